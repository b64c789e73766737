"""Two servers with one configuration, and logins at each: what tests of logins begin with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import CONNECT, Frame, Wire

Offer = Callable[[str], dict[str, Any]]
"""Returns what a client puts into CONNECT, by the nonce that it was given."""
_ABOUT_LOGINS = (
    "authentication error", "Signature ", "Account ", "User ", "Bad src ", "Outside ",
    "Connection type ", "Authentication requires ", "proxy ", "Auth callout ", "No valid account",
    "Expected ", "Wrong issuer ", "Error ", "Authorization response ",
)  # fmt: skip
_ABOUT_FETCHES = re.compile(r"Account \[\w+\] fetch|Account fetch failed")  # of the real server
_PLACE = re.compile(r"(^[\d.]+:\d+ - cid:\d+( - \"[^\"]*\")? - )|( +cid=\d+ ip=[\d.]+$)")


@contextmanager
def both(directory: Path, config: str, *, is_jetstream: bool = False) -> Iterator[Servers]:
    """Run a nats-server and ours; `DIR` in `config` is a directory of each."""
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    with ExitStack() as stack:
        made = []
        for name, binary in (("peer", peer_binary()), ("ours", ours_binary())):
            place = directory / name
            place.mkdir()
            server = ServerProcess(
                binary,
                directory=place,
                extra=config.replace("DIR", str(place)) + "debug: true\n",
                is_jetstream=is_jetstream,
            )
            stack.enter_context(server)
            server.launch()
            made.append(server)
        for server in made:
            server.wait_for_log("Server is ready")
        yield Servers(*made)


class Servers:
    """The real server and ours."""

    def __init__(self, peer: ServerProcess, ours: ServerProcess) -> None:
        self.all = (peer, ours)
        self.peer = peer
        self.ours = ours

    def compare(self, run: Callable[[ServerProcess], Any]) -> Any:
        """Do the same at both; what is seen must be alike, and is returned."""
        theirs, mine = run(self.peer), run(self.ours)
        assert mine == theirs, f"\nours   {mine}\ntheirs {theirs}"
        return mine


def login(server: ServerProcess, offer: Offer) -> Wire:
    """Return a client that has said who it is; whether it was let in is not known yet."""
    wire = Wire(server.port, None)
    options = offer(wire.info.get("nonce", ""))
    wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
    return wire


def outcome(server: ServerProcess, offer: Offer) -> list[Any]:
    """Return what a client that logs in is told, and about itself."""
    with login(server, offer) as wire:
        told = texts(wire.fence())
        if told:
            return told
        reply = wire.ask("$SYS.REQ.USER.INFO")[0]
        return [_sorted(reply.json()["data"]) if reply.op == "MSG" else reply.text]


def _sorted(value: Any) -> Any:
    """Return a document with its lists of subjects in order: that of the real server is chance."""
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in value.items()}
    return sorted(value) if isinstance(value, list) else value


def texts(frames: list[Frame]) -> list[str]:
    return [frame.text or frame.op for frame in frames]


def logged(server: ServerProcess, since: int) -> list[str]:
    """Return the lines about logins from an offset of the log on."""
    lines = []
    for line in server.log_file.read_text()[since:].splitlines():
        match = re.search(r"\[(DBG|ERR|WRN)\] (.*)$", line)
        if match is None:
            continue
        # Ours names the connection at the end of the line, nats-server at its beginning.
        text = _PLACE.sub("", match[2])
        if text.startswith(_ABOUT_LOGINS) and not _ABOUT_FETCHES.match(text):
            lines.append(text)
    return lines
