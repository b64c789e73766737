"""The copies of the demo's stream, as each node tells its own, and whether they are equal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from examples.flights import STREAM
from streamd.cli.cluster_local import LocalCluster, LocalNode

EQUAL_WITHIN_S = 60.0
POLL_S = 0.01


@dataclass
class Replica:
    """Copy of the stream on one node, as that node reports it."""

    name: str
    role: str = "-"
    last_seq: int = 0
    messages: int = 0
    digest: str = ""
    is_current: bool = False


def are_equal(replicas: list[Replica], count: int) -> bool:
    """True if there are `count` copies, all current and with the same content."""
    contents = {(one.last_seq, one.messages, one.digest) for one in replicas}
    return (
        len(replicas) == count
        and len(contents) == 1
        and all(one.digest and one.is_current for one in replicas)
        and sum(one.role == "leader" for one in replicas) == 1
    )


def compared(cluster: LocalCluster) -> list[Replica]:
    """The copies as soon as they are equal, or as they are when the time is up; blocks."""
    deadline = time.monotonic() + EQUAL_WITHIN_S
    count = len(cluster.nodes)
    while not are_equal(found := _replicas(cluster), count) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return found


def stream_detail(node: LocalNode) -> dict[str, Any]:
    """The stream as this node's monitoring port shows it, {} if it does not."""
    try:
        found = node.get(f"/jsz?streams=1&digest=1&stream={STREAM}")
    except (OSError, ValueError):
        return {}
    for account in found.get("account_details") or []:
        for stream in account.get("stream_detail") or []:
            if stream["name"] == STREAM:
                return dict(stream)
    return {}


def copies_table(found: list[Replica]) -> Table:
    """Side by side, for people."""
    table = Table(title="The copies")
    for column in ("node", "role", "last_seq", "messages", "digest", "current"):
        table.add_column(column, justify="right" if column in ("last_seq", "messages") else "left")
    for one in found:
        current = "yes" if one.is_current else "[bold red]no"
        cells = (one.name, one.role, f"{one.last_seq:,}", f"{one.messages:,}", one.digest, current)
        table.add_row(*cells)
    return table


def _replicas(cluster: LocalCluster) -> list[Replica]:
    """Every node's copy; whether it is current is for the leader to say."""
    details = {node.name: stream_detail(node) for node in cluster.nodes}
    found = []
    for name, detail in details.items():
        state, info = detail.get("state", {}), detail.get("cluster", {})
        leader = info.get("leader", "")
        told = details.get(leader, {}).get("cluster", {}).get("replicas") or []
        is_current = any(one["name"] == name and one.get("current") for one in told)
        found.append(
            Replica(
                name=name,
                role="" if not leader else "leader" if leader == name else "follower",
                last_seq=state.get("last_seq", 0),
                messages=state.get("messages", 0),
                digest=str(detail.get("digest", "")),
                is_current=is_current or leader == name,
            )
        )
    return found
