"""Operations of a cluster: each answer has its schema, and is what three real nats-servers say.

Requests of one script go to a cluster of either kind. An answer is checked against the published
schema of its type; type, error and success are compared. Advisories of our cluster are checked
likewise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.unit.api.bed import check_schema, needs_schemas
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = [pytest.mark.slow, needs_schemas]

# One user may operate streams: docs/adr/0034. Of a real server every user may.
ACCOUNTS = """accounts {
  A { jetstream: enabled, users: [{user: A, password: p, permissions: {publish: [
      ">", "$JS.API.STREAM.PEER.>", "$JS.API.STREAM.CANCEL_MOVE.>"]}}] }
  L { jetstream: {max_streams: 1, max_store: 1M, max_consumers: 2}
      users: [{user: L, password: p}] }
  SYS { users: [{user: S, password: p}] }
}
system_account: SYS
"""
Step = tuple[str, str, Any]  # user, request, body (a string: as it is)
SCRIPT: list[Step] = [
    ("A", "STREAM.LEADER.STEPDOWN.NONE", None),
    ("A", "STREAM.LEADER.STEPDOWN.S", "{"),
    ("A", "STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "nowhere"}}),
    ("A", "STREAM.LEADER.STEPDOWN.S", {"placement": {"tags": ["none"]}}),
    ("A", "STREAM.LEADER.STEPDOWN.S", {"unknown": 1}),
    ("A", "STREAM.LEADER.STEPDOWN.S", None),
    ("A", "STREAM.LEADER.STEPDOWN.R1", None),
    ("A", "CONSUMER.LEADER.STEPDOWN.NONE.C", None),
    ("A", "CONSUMER.LEADER.STEPDOWN.S.NONE", None),
    ("A", "CONSUMER.LEADER.STEPDOWN.S.C", "{"),
    ("A", "CONSUMER.LEADER.STEPDOWN.S.C", None),
    ("A", "STREAM.PEER.REMOVE.S", None),
    ("A", "STREAM.PEER.REMOVE.S", "{"),
    ("A", "STREAM.PEER.REMOVE.S", {"peer": ""}),
    ("A", "STREAM.PEER.REMOVE.S", {"peer": "nowhere"}),
    ("A", "STREAM.PEER.REMOVE.NONE", {"peer": "n1"}),
    ("A", "STREAM.PEER.REMOVE.S", {"peer": "n1"}),  # no other server is there
    ("A", "STREAM.CANCEL_MOVE.S", None),
    ("A", "STREAM.CANCEL_MOVE.NONE", None),
    ("S", "META.LEADER.STEPDOWN", "{"),
    ("S", "META.LEADER.STEPDOWN", {"placement": {"preferred": "nowhere"}}),
    ("S", "META.LEADER.STEPDOWN", {"placement": {"tags": ["none"]}}),
    ("S", "META.LEADER.STEPDOWN", {"placement": {"cluster": "none"}}),
    ("S", "META.LEADER.STEPDOWN", None),
    ("S", "SERVER.REMOVE", None),
    ("S", "SERVER.REMOVE", "{"),
    ("S", "SERVER.REMOVE", {"peer": "nowhere"}),
    ("S", "SERVER.EVACUATE", None),
    ("S", "SERVER.EVACUATE", "{"),
    ("S", "SERVER.EVACUATE", {}),
    ("S", "SERVER.EVACUATE", {"peer": "nowhere"}),
    ("S", "SERVER.EVACUATE", {"peer_id": "nowhere"}),
    ("S", "META.RESCUE", None),
    ("S", "META.RESCUE", {"quorum_needed": 0}),
    ("S", "META.RESCUE", {"quorum_needed": 3}),
    ("S", "META.RESCUE", {"quorum_needed": 2}),
    ("S", "META.PEER.REMOVE", {"peer": "n1"}),
    ("S", "SERVER.STREAM.MOVE", None),
    ("A", "META.RESCUE", None),
    ("A", "SERVER.EVACUATE", {"peer": "nowhere"}),
    ("L", "INFO", None),
    ("L", "STREAM.CREATE.L", {"name": "L", "subjects": ["l"], "num_replicas": 3}),
    ("L", "STREAM.CREATE.M", {"name": "M", "subjects": ["m"]}),
    ("L", "STREAM.UPDATE.L", {"name": "L", "subjects": ["l"], "num_replicas": 3,
                              "max_bytes": 400_000}),
    ("L", "STREAM.DELETE.L", None),
    ("A", "INFO", None),
    ("A", "STREAM.DELETE.S", None),
]  # fmt: skip
PAUSED_BEFORE = ("STEPDOWN", "SERVER", "DELETE", "STREAM.UPDATE", "STREAM.CREATE.M")
"""Requests that need a leader; the one before may have changed it."""


class Operated:
    """A cluster with a stream of three replicas, one of one, and a consumer."""

    def __init__(self, binary: str, directory: Any, *, tags: Sequence[str] = ("",) * 3) -> None:
        """`tags`: of each server, see ClusterProcess."""
        self.cluster = ClusterProcess(
            binary,
            size=len(tags),
            directory=directory,
            extra=ACCOUNTS,
            tags=tags if any(tags) else (),
        )
        self.asked = "n2"

    def start(self) -> None:
        # Peers answer logins without a user with an error: their log says when they are there.
        for node in self.cluster.nodes.values():
            node.launch()
        for node in self.cluster.nodes.values():
            node.wait_for_log("Server is ready")
        until(lambda: "error" not in self.ask("A", "INFO"), "JetStream")
        for name, replicas in (("S", 3), ("R1", 1)):
            config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas}
            until(lambda name=name, config=config: self.has_made(name, config), name)  # type: ignore[misc]
        given = {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}}
        until(lambda: "error" not in self.ask("A", "CONSUMER.CREATE.S.C", given), "a consumer")

    def has_made(self, name: str, config: dict[str, Any]) -> bool:
        return "error" not in self.ask("A", f"STREAM.CREATE.{name}", config)

    def settle(self) -> None:
        """Wait until streams, the consumer and the cluster have leaders."""

        def has_leaders() -> bool:
            infos = [self.ask("A", "STREAM.INFO.S"), self.ask("A", "CONSUMER.INFO.S.C")]
            groups = [info.get("cluster", {}) for info in infos]
            return "error" not in self.ask("A", "INFO") and all(
                group.get("leader") and all(each["current"] for each in group["replicas"])
                for group in groups
            )

        until(has_leaders, "leaders")

    def wire(self, user: str) -> Wire:
        node = self.cluster.nodes[self.asked]
        return Wire(node.port, CONNECT | {"user": user, "pass": "p"})

    def ask(self, user: str, request: str, body: Any = None) -> dict[str, Any]:
        payload = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        with self.wire(user) as wire:
            frames = wire.ask(f"$JS.API.{request}", payload.encode(), within_s=10)
        if not frames or not frames[0].payload:
            return {"error": {"code": 0, "description": "no answer"}, "type": "none"}
        found: dict[str, Any] = json.loads(frames[0].payload)
        return found

    def run(self) -> list[Any]:
        """What each step was answered with, as far as it is compared."""
        seen: list[Any] = []
        for user, request, body in SCRIPT:
            if any(word in request for word in PAUSED_BEFORE) and user != "L":
                self.settle()
            answer = self.ask(user, request, body)
            if answer["type"] != "none":
                check_schema("api", answer)
            told = {key: answer.get(key) for key in ("type", "error", "success")}
            seen.append((user, request, body, told))
        return seen


def check_advisory(event: dict[str, Any]) -> str:
    """Check an advisory, and return the last part of its type."""
    # Of replicas the schemas have one object; servers send a list of such.
    for replica in event.get("replicas", ({},)):
        check_schema("advisory", event | ({"replicas": replica} if replica else {}))
    return str(event["type"].rpartition(".")[2])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Operated]]:
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    made: list[Operated] = []
    try:
        for at, binary in enumerate(binaries):
            made.append(Operated(binary, tmp_path_factory.mktemp(f"operated{at}")))
            made[-1].start()
        yield made
    finally:
        for each in made:
            each.cluster.close()


def test_answers_have_their_schemas_and_are_the_same(both: list[Operated]) -> None:
    """And what our cluster tells meanwhile has the schemas of advisories."""
    ours, peers = both
    with ours.wire("A") as listening, ours.wire("S") as system:
        listening.subscribe("$JS.EVENT.ADVISORY.>")
        system.subscribe("$JS.EVENT.ADVISORY.>")
        listening.fence()
        system.fence()
        mine = ours.run()
        kinds: set[str] = set()
        for frame in listening.collect(within_s=5, quiet_s=1):
            kinds.add(check_advisory(frame.json()))
        for frame in system.collect(within_s=5, quiet_s=0.2):
            check_advisory(frame.json())
    assert kinds >= {"api_audit", "stream_leader_elected", "stream_action"}
    theirs = peers.run()
    pairs = zip(mine, theirs, strict=True)
    differing = "\n".join(f"ours  {one}\npeers {other}" for one, other in pairs if one != other)
    assert not differing, differing
