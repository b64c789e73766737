"""Mirrors and sources over a leaf link, with a real nats-server at either end: as the origin of
ours, and as a mirror of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.leaf_bed import LeafPair
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import Wire

pytestmark = pytest.mark.slow
WITHIN_S = 90.0
FIRST, MORE = 50, 3000


@pytest.fixture(scope="module", params=["ours-peer", "peer-ours", "ours-ours"])
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeafPair]:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    binaries = {"ours": ours_binary(), "peer": peer_binary()}
    hub, _, leaf = request.param.partition("-")
    directory = tmp_path_factory.mktemp("mirrors")
    made = LeafPair((binaries[hub], binaries[leaf]), directory, has_jetstream=True)
    try:
        yield made.start()
    finally:
        made.close()


def wait_for(wire: Wire, stream: str, count: int) -> dict[str, Any]:
    """Wait until a stream has so many messages; returns its info."""

    def info() -> dict[str, Any] | None:
        found = wire.api(f"STREAM.INFO.{stream}")
        return found if found["state"]["messages"] == count else None

    found = until(info, f"{count} messages in {stream}", WITHIN_S)
    assert found is not None
    return found


def last(wire: Wire, stream: str) -> dict[str, Any]:
    seq = wire.api(f"STREAM.INFO.{stream}")["state"]["last_seq"]
    message: dict[str, Any] = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]
    return message


def test_a_mirror_of_the_hubs_stream_under_its_name(pair: LeafPair) -> None:
    """The leaf's stream has the name of its origin; more comes than one window of flow control."""
    with Wire(pair.hub.port) as hub, Wire(pair.leaf.port) as leaf:
        hub.api("STREAM.CREATE.O", {"name": "O", "subjects": ["o.>"]})
        for number in range(FIRST):
            hub.ask(f"o.{number}", b"x")
        external = {"api": "$JS.hub.API", "deliver": ""}
        mirror = {"name": "O", "mirror": {"name": "O", "external": external}}
        assert "error" not in leaf.api("STREAM.CREATE.O", mirror)
        wait_for(leaf, "O", FIRST)
        for _ in range(MORE):
            hub.publish("o.more", b"y" * 1500)
        hub.fence(30)
        found = wait_for(leaf, "O", FIRST + MORE)
        assert "error" not in found["mirror"] and found["mirror"]["external"] == external
        assert last(leaf, "O") == last(hub, "O")


def test_a_source_of_the_leafs_stream(pair: LeafPair) -> None:
    with Wire(pair.hub.port) as hub, Wire(pair.leaf.port) as leaf:
        leaf.api("STREAM.CREATE.L", {"name": "L", "subjects": ["l.>"]})
        for number in range(FIRST):
            leaf.ask(f"l.{number % 2}", b"x")
        external = {"api": "$JS.leaf.API", "deliver": "delivered"}
        source = {"name": "L", "filter_subject": "l.1", "external": external}
        assert "error" not in hub.api("STREAM.CREATE.S", {"name": "S", "sources": [source]})
        found = wait_for(hub, "S", FIRST // 2)
        assert found["sources"][0]["seq"] == FIRST
        leaf.ask("l.1", b"z")
        wait_for(hub, "S", FIRST // 2 + 1)


def test_a_work_queue_of_the_leaf_is_emptied(pair: LeafPair) -> None:
    with Wire(pair.hub.port) as hub, Wire(pair.leaf.port) as leaf:
        leaf.api("STREAM.CREATE.W", {"name": "W", "subjects": ["w.>"], "retention": "workqueue"})
        for number in range(FIRST):
            leaf.ask(f"w.{number}", b"x")
        external = {"api": "$JS.leaf.API", "deliver": ""}
        mirror = {"name": "C", "mirror": {"name": "W", "external": external}}
        assert "error" not in hub.api("STREAM.CREATE.C", mirror)
        wait_for(hub, "C", FIRST)
        wait_for(leaf, "W", 0)
