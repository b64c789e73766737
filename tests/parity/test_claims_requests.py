"""Requests about account tokens: answered here as by a real nats-server, for each resolver."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.net.account_tokens.resolvers import DirectoryResolver, MemoryResolver, Resolver
from streamd.net.account_tokens.token_directory import TokenDirectory
from streamd.tokens.nkeys import KeyKind
from tests.minted_tokens import (
    ACCOUNT,
    OPERATOR,
    OTHER_ACCOUNT,
    SYSTEM,
    account,
    connect_options,
    key,
    mint,
    operator,
    user,
)
from tests.parity.runner import ours_binary, peer_binary
from tests.unit.net.token_bed import Bed, nobody, serving
from tests.wire import CONNECT, Wire

A, B, NOBODY = ACCOUNT.public, OTHER_ACCOUNT.public, key(KeyKind.ACCOUNT, "nobody").public
STRANGER = key(KeyKind.OPERATOR, "stranger")
PRELOAD = {SYSTEM.public: account(SYSTEM, name="SYS"), A: account()}
RESOLVERS = {
    "full": "{type: full, dir: 'DIR', allow_delete: true}",
    "full, without deletion": "{type: full, dir: 'DIR'}",
    "full, of two": "{type: full, dir: 'DIR', allow_delete: true, hard_delete: true, limit: 2}",
    "cache": "{type: cache, dir: 'DIR', limit: 2}",
    "memory": "MEMORY",
}
UPDATE, LIST, DELETE = (f"$SYS.REQ.CLAIMS.{name}" for name in ("UPDATE", "LIST", "DELETE"))
UPDATE_A, UPDATE_B = (f"$SYS.REQ.ACCOUNT.{name}.CLAIMS.UPDATE" for name in (A, B))
OLD_UPDATE_B = f"$SYS.ACCOUNT.{B}.CLAIMS.UPDATE"


def _deletion(accounts: object, issuer: Any = OPERATOR, asker: Any = None) -> str:
    return mint("generic", (asker or issuer).public, issuer, accounts=accounts)


REQUESTS = [
    (UPDATE, account(name="another")),
    (UPDATE_A, account(name="yet another")),
    (UPDATE_A, account(issuer=STRANGER)),
    (UPDATE_A, ""),
    (UPDATE, "x"),
    (UPDATE, user()),
    (UPDATE_A, account(exports=[{"subject": "a..b", "type": "stream"}])),
    (UPDATE, account(mappings={"a": [{"subject": "{{foo(1)}}"}]})),
    (UPDATE, account(OTHER_ACCOUNT)),
    (UPDATE_B, account(OTHER_ACCOUNT)),
    (OLD_UPDATE_B, account(OTHER_ACCOUNT)),
    (OLD_UPDATE_B, account()),
    ("$SYS.REQ.ACCOUNT.x.CLAIMS.UPDATE", account()),
    (LIST, ""),
    (f"$SYS.REQ.ACCOUNT.{SYSTEM.public}.CLAIMS.LOOKUP", ""),
    (f"$SYS.REQ.ACCOUNT.{NOBODY}.CLAIMS.LOOKUP", ""),
    (DELETE, ""),
    (DELETE, _deletion([B], STRANGER)),
    (DELETE, _deletion([B], OPERATOR, ACCOUNT)),
    (DELETE, _deletion([SYSTEM.public])),
    (DELETE, _deletion("x")),
    (DELETE, _deletion(["x"])),
    (DELETE, _deletion(None)),
    (DELETE, _deletion([NOBODY])),
    (DELETE, _deletion([B])),
    (DELETE, _deletion([])),
    (LIST, ""),
]


def _told(payload: bytes) -> Any:
    """Return an answer without the description of the server."""
    try:
        answer = json.loads(payload)
    except ValueError:
        return payload
    answer.pop("server", None)
    return answer


@contextmanager
def _operator(resolver: str, directory: Path, binary: str) -> Iterator[Wire]:
    """A client in the system account of a server with this resolver."""
    preload = "\n".join(f"  {name}: {token}" for name, token in PRELOAD.items())
    config = (
        f"operator: {operator()}\nsystem_account: {SYSTEM.public}\n"
        f"resolver: {resolver.replace('DIR', str(directory / 'jwt'))}\n"
        f"resolver_preload: {{\n{preload}\n}}\n"
    )
    with ServerProcess(binary, directory=directory, extra=config, is_jetstream=False) as one:
        one.launch()
        one.wait_for_log("Server is ready")
        with Wire(one.port, None) as wire:
            options = connect_options(user(issuer=SYSTEM), wire.info["nonce"])
            wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
            wire.fence()
            yield wire


def _served(resolver: str, directory: Path, binary: str) -> list[Any]:
    """Return the answers of a server."""
    with _operator(resolver, directory, binary) as wire:
        found = []
        for subject, payload in REQUESTS:
            frame = wire.ask(subject, payload.encode())[0]
            found.append(None if frame.status == "503" else _told(frame.payload))
        return found


async def _ours(resolver: Resolver) -> list[Any]:
    async with serving(resolver, now_ns=time.time_ns) as bed:
        await bed.loader.load(SYSTEM.public)
        return [await _answer(bed, subject, payload) for subject, payload in REQUESTS]


async def _answer(bed: Bed, subject: str, payload: str) -> Any:
    if not bed.router.has_interest(subject.encode()):
        return None
    return _told((await bed.ask(subject, payload)).encode())


def _resolver(name: str, directory: Path) -> Resolver:
    if name == "memory":
        return MemoryResolver(PRELOAD)
    is_full = name != "cache"
    tokens = TokenDirectory(
        directory,
        time.time_ns,
        limit=2 if "two" in name or not is_full else 0,
        is_evicting=not is_full,
        is_removing="two" in name,
    )
    return DirectoryResolver(
        tokens, nobody, is_full=is_full, preload=PRELOAD, is_deletable="without" not in name
    )


def _files(directory: Path) -> list[tuple[str, int]]:
    if not directory.exists():
        return []
    return sorted((path.name, path.stat().st_mode) for path in directory.iterdir())


@pytest.mark.parametrize("name", RESOLVERS)
def test_requests_are_answered_as_by_nats_server(name: str, tmp_path: Path) -> None:
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    (tmp_path / "peer").mkdir()
    theirs = _served(RESOLVERS[name], tmp_path / "peer", peer_binary())
    ours = asyncio.run(_ours(_resolver(name, tmp_path / "ours")))
    for (subject, _), mine, their in zip(REQUESTS, ours, theirs, strict=True):
        assert mine == their, subject
    assert _files(tmp_path / "ours") == _files(tmp_path / "peer" / "jwt")


@pytest.mark.parametrize("name", RESOLVERS)
def test_a_server_answers_as_nats_server(name: str, tmp_path: Path) -> None:
    """The same requests, of a client in the system account of each."""
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    (tmp_path / "peer").mkdir()
    (tmp_path / "ours").mkdir()
    theirs = _served(RESOLVERS[name], tmp_path / "peer", peer_binary())
    ours = _served(RESOLVERS[name], tmp_path / "ours", ours_binary())
    for (subject, _), mine, their in zip(REQUESTS, ours, theirs, strict=True):
        assert mine == their, subject
    assert _files(tmp_path / "ours" / "jwt") == _files(tmp_path / "peer" / "jwt")


def test_a_pack_is_alike(tmp_path: Path) -> None:
    """A message an account and an empty one, for a server that holds something else."""
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    digests = [hashlib.sha256(token.encode()).digest() for token in PRELOAD.values()]
    same = bytes(one ^ other for one, other in zip(*digests, strict=True))
    seen = []
    for binary in (peer_binary(), ours_binary()):
        told = []
        directory = tmp_path / str(len(seen))
        with _operator(RESOLVERS["full, without deletion"], directory, binary) as wire:
            for digest in (bytes(32), same):
                frames = wire.ask(
                    "$SYS.REQ.CLAIMS.PACK", digest, is_last=lambda frame: not frame.payload
                )
                told.append([frame.payload for frame in frames])
        assert told[0].pop() == b""
        seen.append([sorted(told[0]), told[1]])
    assert seen[0] == seen[1]
    assert seen[0][0] == sorted(f"{name}|{token}".encode() for name, token in PRELOAD.items())
