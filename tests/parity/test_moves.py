"""Operations that need a server to spare, on four of each kind: moves, removals, purges.

Where the requests name servers, they are those which the cluster itself has chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.parity.runner import ours_binary, peer_binary
from tests.parity.test_operations import Operated
from tests.unit.api.bed import check_schema, needs_schemas
from tests.waiting import until

pytestmark = [pytest.mark.slow, needs_schemas, pytest.mark.timeout(300)]
TAGS = ("az:1", "az:2", "az:3", "az:4")
MOVE, CANCEL = "ACCOUNT.STREAM.MOVE", "ACCOUNT.STREAM.CANCEL_MOVE"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Operated]]:
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    made: list[Operated] = []
    try:
        for at, binary in enumerate(binaries):
            made.append(Operated(binary, tmp_path_factory.mktemp(f"moved{at}"), tags=TAGS))
            made[-1].start()
        yield made
    finally:
        for each in made:
            each.cluster.close()


class Script:
    """Requests to one cluster, and what it answers as far as that is compared."""

    def __init__(self, operated: Operated) -> None:
        self.operated = operated
        self.seen: list[Any] = []

    def ask(self, user: str, request: str, body: Any = None, *, shown: Any = None) -> None:
        """`shown`: the body, where it names a server that the other cluster did not choose."""
        answer = self.operated.ask(user, request, body)
        name = answer["type"].rpartition(".")[2]
        if name == "stream_cancel_move_response" and "error" not in answer:
            name = "stream_update_response"  # the same, and of its own type has no schema
        if name != "none" and not (name == "account_purge_response" and "error" in answer):
            check_schema("api", answer | {"type": f"io.nats.jetstream.api.v1.{name}"})
        told = {key: answer.get(key) for key in ("type", "error", "success", "initiated")}
        self.seen.append((user, request, shown or body, told, sorted(answer.get("config", ()))))

    def members(self) -> set[str]:
        """The servers of the stream; none while it has no leader, or moves."""
        self.operated.settle()
        block = self.operated.ask("A", "STREAM.INFO.S").get("cluster", {})
        if not block.get("leader") or "desired" in block:
            return set()
        return {block["leader"], *(row["name"] for row in block["replicas"])}

    def refusals(self) -> None:
        member = min(self.members())
        spare = min(set(self.operated.cluster.nodes) - self.members())
        for subject in (MOVE, CANCEL):
            self.ask("S", f"{subject}.NONE.S")
            self.ask("S", f"{subject}.A.NONE")
            self.ask("S", f"{subject}.SYS.S")
        for body in ("{", {"unknown": 1}, {"server": "nowhere"}, {"tags": ["az:9"]}):
            self.ask("S", f"{MOVE}.A.S", body)
        self.ask("S", f"{MOVE}.A.S", {"server": spare}, shown="spare")
        self.ask("S", f"{MOVE}.A.S", {"server": member, "tags": ["az:9"]}, shown="tags")
        self.ask("S", f"{MOVE}.A.S", {"server": member, "cluster": "none"}, shown="cluster")
        self.ask("S", f"{CANCEL}.A.S")
        self.ask("A", "ACCOUNT.PURGE.A")
        self.ask("S", "ACCOUNT.PURGE.a\\b")
        for request in ("CONSUMER.PEER.REMOVE", "CONSUMER.PEER.EVACUATE"):
            for names, body in (
                ("S.C", None),
                ("S.C", "{"),
                ("S.C", {"unknown": 1}),
                ("S.C", {"peer": "nowhere"}),
                ("NONE.C", {"peer": member}),
                ("S.NONE", {"peer": member}),
            ):
                self.ask("A", f"{request}.{names}", body, shown="a peer")
            self.ask("A", f"{request}.S.C", {"peer": member}, shown="member")

    def changes(self) -> None:
        for request in (f"{MOVE}.A.S", "STREAM.PEER.REMOVE.S", "STREAM.PEER.EVACUATE.S"):
            left = min(self.members())
            of_system = request.startswith("ACCOUNT")
            body = {"server" if of_system else "peer": left}
            self.ask("S" if of_system else "A", request, body, shown="left")
            moved = set(self.operated.cluster.nodes) - {left}
            until(lambda moved=moved: self.members() == moved, "moved")  # type: ignore[misc]
        left = min(self.members())
        self.ask("S", "SERVER.EVACUATE", {"peer": left}, shown="left")
        evacuated = set(self.operated.cluster.nodes) - {left}
        until(lambda: self.members() == evacuated, "evacuated")
        until(self.has_handed_over, "handed over")
        for number in (3, 4, 3):
            self.operated.settle()
            self.ask("S", "META.LEADER.STEPDOWN", {"placement": {"tags": [f"az:{number}"]}})
            until(lambda number=number: self.meta_leader() == f"n{number}", "it leads")  # type: ignore[misc]

    def has_handed_over(self) -> bool:
        """True if n4 leads the cluster; else whoever does is asked to hand over to it."""
        if self.meta_leader() == "n4":
            return True
        self.operated.ask("S", "META.LEADER.STEPDOWN", {"placement": {"preferred": "n4"}})
        return False

    def meta_leader(self) -> str:
        cluster = self.operated.cluster
        document = cluster.get(cluster.nodes[self.operated.asked], "/jsz")
        return str(document.get("meta_cluster", {}).get("leader"))

    def removal(self, server: str) -> dict[str, Any]:
        answer = self.operated.ask("S", "SERVER.REMOVE", {"peer": server})
        if answer["type"] != "none":
            check_schema("api", answer)
        return answer

    def ends(self) -> None:
        cluster = self.operated.cluster
        cluster.kill("n4")
        # Ours removes none that is connected: docs/gotchas.md.
        until(lambda: self.removal("n4").get("success") is True, "removed")
        self.ask("S", "ACCOUNT.PURGE.NONE")
        self.ask("S", "ACCOUNT.PURGE.A", "{")
        until(lambda: self.operated.ask("A", "STREAM.NAMES").get("total") == 0, "no streams")
        # While its removal is under way ours says so: 10202.
        until(lambda: self.removal("n4").get("error", {}).get("err_code") != 10202, "removed")
        self.ask("S", "SERVER.REMOVE", {"peer": "n4"})


def test_answers_have_their_schemas_and_are_the_same(both: list[Operated]) -> None:
    scripts = [Script(operated) for operated in both]
    for script in scripts:
        script.refusals()
        script.changes()
        script.ends()
    mine, theirs = (script.seen for script in scripts)
    pairs = zip(mine, theirs, strict=True)
    differing = "\n".join(f"ours  {one}\npeers {other}" for one, other in pairs if one != other)
    assert not differing, differing
