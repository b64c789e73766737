"""Sequences at which replicas differ, found by the server's digests of ranges, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamd.ctl.drift_search import SEQS_MAX, Drift, find_drift
from streamd.machine import commands
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.range_digests import range_digests
from streamd.net.monitoring.sliced_pages import finish
from streamd.net.system.request_options import query_of
from streamd.net.system.server_requests import DIGESTS_NAMES
from streamd.offline.odd_replicas import Odd, gathered, odd_ones
from tests.unit.machine.box import Box

COUNT = 1000


def replica(*others: int, count: int = COUNT, lacks: tuple[int, ...] = ()) -> Box:
    """A replica in many blocks, with some messages deleted, and other bodies at `others`."""
    box = Box(block_bytes=4096)
    for seq in range(1, count + 1):
        box.put(b"a.b", b"other" if seq in others else b"%05d" % seq)
    gone = [seq for seq in range(1, count + 1) if seq % 7 == 0 or seq in lacks]
    for seq in gone:
        assert box.do(commands.DELETE_MSG, seq, False) is not None
    box.machine.applied = 10_000  # they have deleted other counts
    return box


class Servers:
    """Machines under names, asked as servers are."""

    def __init__(self, **boxes: Box) -> None:
        self.boxes = boxes
        self.asked = 0

    async def ask(self, server: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        query = query_of(body, DIGESTS_NAMES)
        found: Any = finish(range_digests(self.boxes[server].machine, query))
        return dict(found)

    def drift(self, at_index: int = 10_000) -> Drift:
        return asyncio.run(find_drift(self.ask, list(self.boxes), "$G", "S", at_index))


def test_ranges_sum_up_to_the_digest_of_the_stream() -> None:
    """However they are cut: by blocks, by starts that were given, or one by one."""
    box = replica()
    machine = box.machine
    assert len(machine.index.blocks) > 10
    for query in ({}, {"starts": "1,2,500,999"}, {"first": "1", "last": "1000"}):
        found: Any = finish(range_digests(machine, query))
        total = sum(int(each["digest"], 16) for each in found["ranges"]) % (1 << 64)
        assert f"{total:016x}" == found["digest"], query
        assert sum(each["messages"] for each in found["ranges"]) == machine.index.count
        assert found["is_still"] and found["applied"] == 10_000
    one: Any = finish(range_digests(machine, {"first": "11", "last": "14"}))
    assert [each["messages"] for each in one["ranges"]] == [1, 1, 1, 0]  # 14 was deleted


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"starts": "a"}, "must be sequences"),
        ({"starts": "2,3"}, "must ascend from the first sequence"),
        ({"starts": "1,9,9"}, "must ascend"),
        ({"starts": "1,4000"}, "not pass the last"),
        ({"starts": ",".join(map(str, range(1, 300)))}, "at most 256 ranges, not 299"),
    ],
)
def test_starts_that_make_no_sense_are_refused(query: dict[str, str], told: str) -> None:
    with pytest.raises(BadQuery, match=told):
        finish(range_digests(replica(count=20).machine, {"last": "1000", **query}))


def test_an_empty_stream_has_no_ranges() -> None:
    found: Any = finish(range_digests(Box().machine, {}))
    assert found["ranges"] == [] and found["messages"] == 0


def test_the_sequences_and_the_odd_server_are_found() -> None:
    """Messages changed, missing, and only there are found; with few requests, whatever the size."""
    servers = Servers(n1=replica(), n2=replica(123, lacks=(800,)), n3=replica())
    found = servers.drift()
    assert found.seqs == {123: ["n2"], 800: ["n2"]} and found.reason == ""
    assert servers.asked <= 3 * 8
    longer = replica(count=COUNT + 2)
    found = Servers(n1=replica(), n2=longer, n3=replica()).drift()
    assert found.seqs == {COUNT + 2: ["n2"]}  # the other was deleted


def test_without_a_majority_all_are_named() -> None:
    found = Servers(n1=replica(5), n2=replica()).drift()
    assert found.seqs == {5: ["n1", "n2"]}
    assert odd_ones({"a": (1, "x"), "b": (1, "y"), "c": (1, "y")}) == ["a"]
    assert gathered({7: ["b"], 3: ["a"], 4: ["b"]}) == [Odd(["a"], [3]), Odd(["b"], [4, 7])]


def test_many_are_told_in_part_and_a_stream_that_goes_on_not_at_all() -> None:
    others = tuple(range(1, 600))
    found = Servers(n1=replica(count=700), n2=replica(*others, count=700)).drift()
    assert len(found.seqs) >= SEQS_MAX and "only the first" in found.reason
    assert min(found.seqs) == 1
    hundred = [seq for seq in range(1, 700) if seq % 7][:SEQS_MAX]
    found = Servers(n1=replica(count=700), n2=replica(*hundred, count=700)).drift()
    assert sorted(found.seqs) == hundred and found.reason == ""
    moved = Servers(n1=replica(), n2=replica(7)).drift(at_index=9)
    assert not moved.seqs and "the stream goes on" in moved.reason
