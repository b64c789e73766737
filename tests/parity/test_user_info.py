"""`$SYS.REQ.USER.INFO` says of a user what a real nats-server says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import CONNECT, Wire

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "nobody": ("", {}),
    "named without need": ("", {"user": "u", "pass": "p"}),
    "token": ("authorization { token: s3cret }", {"auth_token": "s3cret"}),
    "one user": ("authorization { user: u, password: p }", {"user": "u", "pass": "p"}),
    "without login": ("authorization { users: [{user: u, password: p}] }\nno_auth_user: u", {}),
    "account": ("accounts { A { users: [{user: u, password: p}] } }", {"user": "u", "pass": "p"}),
    "permissions": (
        "authorization { users: [{user: u, password: p, permissions: {"
        ' publish: {allow: ["x.>", "$SYS.REQ.USER.INFO"], deny: "x.no"},'
        ' subscribe: {deny: ["q.> group", "p"]},'
        ' allow_responses: {max: 3, expires: "5s"}}}] }',
        {"user": "u", "pass": "p"},
    ),
    "default permissions": (
        "authorization { default_permissions: {publish: {deny: d}, subscribe: [i, '_INBOX.>']},"
        " users: [{user: u, password: p}] }",
        {"user": "u", "pass": "p"},
    ),
    "publish alone": (
        "authorization { users: [{user: u, password: p, permissions: {"
        " publish: '$SYS.REQ.USER.INFO'}}] }",
        {"user": "u", "pass": "p"},
    ),
    "subscribe alone": (
        "authorization { users: [{user: u, password: p, permissions: {subscribe: '_INBOX.>'}}] }",
        {"user": "u", "pass": "p"},
    ),
    "nothing said": (
        "authorization { users: [{user: u, password: p, permissions: {}}] }",
        {"user": "u", "pass": "p"},
    ),
    "any response": (
        "authorization { users: [{user: u, password: p, permissions: {"
        " publish: '$SYS.REQ.USER.INFO', allow_responses: true}}] }",
        {"user": "u", "pass": "p"},
    ),
}


def ask(
    binary: str, directory: Path, config: str, connect: dict[str, Any], *flags: str
) -> dict[str, Any]:
    with ServerProcess(binary, directory=directory, extra=config) as server:
        server.launch(*flags)
        server.wait()
        with Wire(server.port, CONNECT | connect) as wire:
            answer: dict[str, Any] = wire.ask("$SYS.REQ.USER.INFO")[0].json()
            return answer


def in_order(data: dict[str, Any]) -> dict[str, Any]:
    """Sort the patterns of each rule: nats-server lists them in an order that varies."""
    for rules in (data.get("permissions", {}).get(kind, {}) for kind in ("publish", "subscribe")):
        for patterns in rules.values():
            patterns.sort()
    return data


@pytest.mark.parametrize("case", CASES)
def test_the_same_is_told(case: str, tmp_path: Path) -> None:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    config, connect = CASES[case]
    theirs = ask(peer_binary(), tmp_path / "peer", config, connect)
    ours = ask(ours_binary(), tmp_path / "ours", config, connect, "--ignore-unserved")
    assert in_order(ours["data"]) == in_order(theirs["data"])
    assert set(ours["server"]) == set(theirs["server"])
