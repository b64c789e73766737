"""Sums over the streams of a node: brought up to date by what changed, the same as all anew."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from streamd.net.monitoring.sliced_pages import finish
from streamd.net.monitoring.stream_totals import Totals, TotalsKeeper, added, share_of


class Machine:
    """State of a stream that counts how often its share is made out."""

    def __init__(self, count: int, *, storage: str = "file", replicas: int = 1) -> None:
        self.applied = 1
        self.index = SimpleNamespace(count=count, live=SimpleNamespace(bytes=10 * count))
        self.consumers: dict[str, None] = {}
        self.asked = 0
        self._config = {"storage": storage, "num_replicas": replicas, "max_bytes": 1000}

    @property
    def config(self) -> dict[str, Any]:
        self.asked += 1
        return self._config

    @property
    def listed_count(self) -> int:
        return len(self.consumers)

    def apply(self, count: int) -> None:
        self.applied += 1
        self.index.count += count
        self.index.live.bytes += 10 * count


def stream(uid: int, machine: Machine) -> Any:
    return SimpleNamespace(uid=uid, machine=machine)


def totals(keeper: TotalsKeeper, streams: Sequence[Any], led: Sequence[int] = ()) -> Totals:
    return finish(keeper.totals(streams, lambda each: each.uid in led))


def test_each_number_is_a_sum_over_the_streams() -> None:
    one, two = Machine(3, replicas=3), Machine(4, storage="memory")
    one.consumers = {"a": None, "b": None}
    assert totals(TotalsKeeper(), [stream(1, one), stream(2, two)], led=[1]) == Totals(
        streams=2,
        streams_led=1,
        consumers=2,
        consumers_led=2,
        messages=7,
        bytes=70,
        memory=40,
        storage=30,
        reserved_memory=1000,
        reserved_storage=1000,
        ha_assets=1,
    )
    assert totals(TotalsKeeper(), []) == Totals()


def test_a_share_is_kept_until_its_stream_changes() -> None:
    keeper, one, two = TotalsKeeper(), Machine(1), Machine(1)
    streams = [stream(1, one), stream(2, two)]
    assert totals(keeper, streams).messages == totals(keeper, streams).messages == 2
    assert (one.asked, two.asked) == (1, 1)
    two.apply(5)
    assert totals(keeper, streams).messages == 7
    assert (one.asked, two.asked) == (1, 2)
    assert totals(keeper, streams, led=[1]).streams_led == 1
    assert (one.asked, two.asked) == (2, 2)
    streams[0] = stream(1, Machine(9))  # of the same uid, with as many entries applied
    assert totals(keeper, streams).messages == 15


def test_a_stream_that_is_deleted_leaves_memory_though_nobody_asks_again() -> None:
    keeper, streams = TotalsKeeper(), [stream(1, Machine(1))]
    totals(keeper, streams)
    machine = weakref.ref(streams.pop().machine)
    assert machine() is None


def test_pages_made_at_the_same_time_do_not_count_twice() -> None:
    keeper = TotalsKeeper()
    streams = [stream(uid, Machine(1)) for uid in range(100)]
    pages = [keeper.totals(streams, lambda each: True) for _ in range(3)]
    found: list[Totals] = []
    while pages:
        for page in list(pages):
            try:
                next(page)
            except StopIteration as end:
                found.append(end.value)
                pages.remove(page)
    assert [each.messages for each in found] == [100] * 3


def test_whatever_comes_goes_and_changes_sums_are_those_made_anew() -> None:
    rng = random.Random(7)
    keeper = TotalsKeeper()
    streams: dict[int, Any] = {}
    led: set[int] = set()
    for uid in range(2000):
        what = rng.random()
        if what < 0.4 or not streams:
            kind = rng.choice(["file", "memory"])
            machine = Machine(rng.randrange(9), storage=kind, replicas=rng.choice([1, 3]))
            streams[uid] = stream(uid, machine)
        elif what < 0.6:
            del streams[rng.choice(list(streams))]
        elif what < 0.8:
            rng.choice(list(streams.values())).machine.apply(rng.randrange(9))
        else:
            led ^= {rng.choice(list(streams))}
        if rng.random() < 0.5:
            shares = (share_of(each.machine, leads=each.uid in led) for each in streams.values())
            assert totals(keeper, list(streams.values()), list(led)) == added(Totals(), *shares)
