"""Real processes: a stream's replica moves to a server that is frozen, so the move is under way for
as long as the test wants: cancelled, begun again, the server killed in the middle of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.parity.test_operations import Operated
from tests.unit.api.bed import check_schema
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TAGS = ("az:1", "az:2", "az:3", "az:4")


def test_a_move_is_cancelled_and_survives_a_kill(tmp_path: Path, binary: str) -> None:
    operated = Operated(binary, tmp_path / "moved", tags=TAGS)
    try:
        operated.start()
        _move(operated)
        _purge(operated)
    finally:
        for node in operated.cluster.nodes.values():
            if node.is_running():
                node.send(signal.SIGCONT)
        operated.cluster.close()


def _members(operated: Operated) -> dict[str, Any]:
    """The servers of the stream: its leader, and the others, as the leader shows them."""
    block = operated.ask("A", "STREAM.INFO.S").get("cluster", {})
    rows = {row["name"]: row["current"] for row in block.get("replicas", ())}
    return rows | ({block["leader"]: True} if block.get("leader") else {})


def _publish(operated: Operated, count: int) -> None:
    with operated.wire("A") as wire:
        for _ in range(count):
            assert "seq" in wire.ask("S.x", b"x", within_s=20)[0].json()


def _asked(operated: Operated, request: str, body: Any = None) -> dict[str, Any]:
    """An answer to the system account that is a stream's info."""
    info = operated.ask("S", request, body)
    assert "error" not in info, info
    check_schema("api", info | {"type": "io.nats.jetstream.api.v1.stream_update_response"})
    return info


def _begin(operated: Operated, spare: str, left: str) -> None:
    """Freeze `spare`, and have the stream leave `left` for it."""
    until(lambda: _is_seen(operated, spare), "the spare is seen")
    operated.cluster.nodes[spare].send(signal.SIGSTOP)
    _asked(operated, "ACCOUNT.STREAM.MOVE.A.S", {"server": left})
    until(lambda: _members(operated).get(spare) is False, "the spare is a member")


def _is_seen(operated: Operated, server: str) -> bool:
    """True if the leader of the meta group is in touch with `server`."""
    return any(
        row["name"] == server and row["current"] and not row.get("offline")
        for node in operated.cluster.nodes.values()
        for row in operated.cluster.get(node, "/jsz").get("meta_cluster", {}).get("replicas") or ()
    )


def _move(operated: Operated) -> None:
    servers = set(operated.cluster.nodes)
    until(lambda: len(_members(operated)) == 3, "three members")
    members = set(_members(operated))
    (spare,) = servers - members
    leader = str(operated.ask("A", "STREAM.INFO.S")["cluster"]["leader"])
    left = min(members - {leader})
    operated.asked = leader
    wanted = {"placement": {"tags": [f"az:{leader[1:]}"]}}
    until(lambda: _leads(operated, leader, wanted), "the leader leads the cluster")
    _publish(operated, 50)

    _begin(operated, spare, left)
    again = operated.ask("S", "ACCOUNT.STREAM.MOVE.A.S", {"server": left})
    assert again["error"]["err_code"] == 10124
    _publish(operated, 50)
    _asked(operated, "ACCOUNT.STREAM.CANCEL_MOVE.A.S")
    until(lambda: _members(operated) == dict.fromkeys(members, True), "as before")
    none = operated.ask("S", "ACCOUNT.STREAM.CANCEL_MOVE.A.S")
    assert none["error"]["err_code"] == 10129
    operated.cluster.nodes[spare].send(signal.SIGCONT)
    operated.cluster.wait_healthy(operated.cluster.nodes[spare])

    _begin(operated, spare, left)
    operated.cluster.kill(spare)
    _publish(operated, 50)
    operated.cluster.start()
    moved = members - {left} | {spare}
    until(lambda: _members(operated) == dict.fromkeys(moved, True), "moved")
    stepped = operated.ask("A", "STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": spare}})
    assert stepped["success"], stepped
    until(lambda: _led_by(operated, spare), "the spare leads")
    assert operated.ask("A", "STREAM.INFO.S")["state"]["messages"] == 150


def _led_by(operated: Operated, server: str) -> bool:
    info = operated.ask("A", "STREAM.INFO.S")
    return bool(info.get("cluster", {}).get("leader") == server)


def _leads(operated: Operated, server: str, wanted: dict[str, Any]) -> bool:
    """True if `server` leads the meta group; else it is asked to hand over to that one."""
    document = operated.cluster.get(operated.cluster.nodes[server], "/jsz")
    if document.get("meta_cluster", {}).get("leader") == server:
        return True
    operated.ask("S", "META.LEADER.STEPDOWN", wanted)
    return False


def _purge(operated: Operated) -> None:
    purged = operated.ask("S", "ACCOUNT.PURGE.A")
    check_schema("api", purged)
    assert purged["initiated"] is True
    for name in operated.cluster.nodes:
        operated.asked = name
        until(lambda: operated.ask("A", "STREAM.NAMES").get("total") == 0, "purged")
