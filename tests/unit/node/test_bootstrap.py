"""Which cluster a node belongs to, decided once."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import ConfigError
from streamd.limits import BOOTSTRAP_QUIET_LOOKS
from streamd.node.identity.bootstrap import Bootstrap

VIRGIN: dict[str, Any] = {"cluster_id": "", "voters": []}


class Calls:
    """Ports.Peers that keeps what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, list[Any]]] = []

    def call(
        self, node_id: str, method: str, args: list[Any], done: Any, timeout_ms: int = 0
    ) -> None:
        self.sent.append((node_id, method, args))


class Bed:
    def __init__(self, name: str, *, expected: int = 3, cluster_id: str = "") -> None:
        self.identity: dict[str, Any] = {"cluster_id": cluster_id} if cluster_id else {}
        self.saved: list[dict[str, Any]] = []
        self.decided: list[bool] = []
        self.is_disk_well = True
        self.calls = Calls()
        peers: Any = self.calls
        self.bootstrap = Bootstrap(
            name=name,
            identity=self.identity,
            expected_size=lambda: expected,
            peers=peers,
            random_id=lambda: "drawn",
            save=self._save,
            on_decided=self.decided.append,
        )

    def told(self, args: list[Any]) -> str:
        """Have another node tell which cluster it has founded; return the answer."""
        answers: list[str] = []
        self.bootstrap.serve("a", args, answers.append)
        return answers[0]

    def _save(self) -> bool:
        if not self.is_disk_well:
            return False
        self.saved.append(dict(self.identity))
        return True


def test_the_smallest_name_founds_once_all_have_met() -> None:
    bed = Bed("a")
    bed.bootstrap.on_peer_up("c", VIRGIN)
    assert bed.decided == []
    bed.bootstrap.on_peer_up("b", VIRGIN)
    assert bed.decided == [False]
    assert bed.saved[-1]["cluster_id"] == "drawn"
    assert bed.saved[-1]["voters"] == ["a", "b", "c"]
    told = [(node_id, args) for node_id, _, args in bed.calls.sent]
    assert told == [("b", ["drawn", ["a", "b", "c"]]), ("c", ["drawn", ["a", "b", "c"]])]


def test_others_wait_to_be_told_and_are_certain() -> None:
    bed = Bed("b")
    bed.bootstrap.on_peer_up("a", VIRGIN)
    bed.bootstrap.on_peer_up("c", VIRGIN)
    assert bed.decided == []
    assert bed.told(["drawn", ["a", "b", "c"]]) == "drawn"
    assert bed.decided == [False]
    # A second founder, who knows of none yet, hears what has been decided.
    assert bed.told(["other", ["b", "c", "d"]]) == "drawn"
    assert bed.decided == [False]


def test_two_without_data_never_found_a_second_cluster() -> None:
    """S3.5: the third, who has the data, is away."""
    bed = Bed("a")
    bed.bootstrap.on_peer_up("b", VIRGIN)
    for _ in range(100):
        bed.bootstrap.check()
    assert bed.decided == [] and bed.saved == []


def test_a_node_without_data_joins_as_a_recovering_voter() -> None:
    bed = Bed("a")
    bed.bootstrap.on_peer_up("b", VIRGIN)
    bed.bootstrap.on_peer_up("c", {"cluster_id": "old", "voters": ["a", "b", "c"]})
    assert bed.decided == [True]
    assert bed.saved[-1]["cluster_id"] == "old" and bed.saved[-1]["is_rejoined"]


def test_a_node_of_another_cluster_is_refused() -> None:
    bed = Bed("a", cluster_id="ours")
    with pytest.raises(ConfigError, match="another cluster"):
        bed.bootstrap.check_cluster("b", {"cluster_id": "theirs"})
    bed.bootstrap.check_cluster("b", {"cluster_id": "ours"})
    bed.bootstrap.check_cluster("b", VIRGIN)


def test_a_server_that_left_again_does_not_count_for_the_bootstrap() -> None:
    bed = Bed("a")
    bed.bootstrap.on_peer_up("b", VIRGIN)
    bed.bootstrap.on_peer_down("b")
    bed.bootstrap.on_peer_up("c", VIRGIN)
    assert bed.decided == []


@pytest.mark.parametrize("theirs", ["", "known"])
def test_decisions_that_cannot_be_written_down_are_not_taken(theirs: str) -> None:
    bed = Bed("a")
    bed.is_disk_well = False
    for name in "bc":
        bed.bootstrap.on_peer_up(name, VIRGIN | {"cluster_id": theirs, "voters": ["b", "c"]})
    assert bed.decided == []
    assert bed.calls.sent == []
    assert bed.identity.keys() <= {"removal"}
    assert not bed.bootstrap.is_decided


def test_without_a_known_size_the_bootstrap_member_waits_for_peers() -> None:
    """All routes lead to a server without JetStream, by which the others meet."""
    bed = Bed("a", expected=1)
    bed.bootstrap.on_peer_up("b", VIRGIN)
    for _ in range(BOOTSTRAP_QUIET_LOOKS - 1):
        bed.bootstrap.check()
    bed.bootstrap.on_peer_up("c", VIRGIN)
    for _ in range(BOOTSTRAP_QUIET_LOOKS - 1):
        bed.bootstrap.check()
        assert bed.decided == []
    bed.bootstrap.check()
    assert bed.saved[-1]["voters"] == ["a", "b", "c"]


def test_a_bootstrap_names_the_servers_that_it_waits_for() -> None:
    bed = Bed("b", expected=4)
    assert bed.bootstrap.waits_for() == "3 more servers with JetStream"
    bed.bootstrap.on_peer_up("c", VIRGIN)
    bed.bootstrap.on_peer_up("d", VIRGIN)
    assert bed.bootstrap.waits_for() == "1 more server with JetStream"
    bed.bootstrap.on_peer_up("a", VIRGIN)
    assert bed.bootstrap.waits_for() == "server a to form it"
