"""Samples of streams for /metrics: made anew once a number may have changed, otherwise kept."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from streamd.net.monitoring.stream_samples import SampleMaker
from streamd.obs.metrics import StreamSamples


class Numbers:
    """Source of numbers that counts what it is asked."""

    def __init__(self) -> None:
        self.node: Any = SimpleNamespace(is_clustered=False)
        self.blocks = (100, 100)
        self.asked: list[str] = []

    def stream_numbers(self, handle: Any) -> Sequence[int]:
        self.asked.append(handle.name)
        return (handle.machine.applied, 0, 0, 0, 0, 0)

    def block_sizes(self, uid: int) -> Sequence[int]:
        return self.blocks

    def consumer_numbers(self, handle: Any, consumer: Any) -> Sequence[int]:
        raise AssertionError(handle)

    def consumer_ages(self, consumer: Any) -> Sequence[int]:
        raise AssertionError(consumer)


class Machine:
    """State machine of a stream without consumers and dead letters."""

    def __init__(self, applied: int) -> None:
        self.applied = applied
        self.consumers: dict[str, Any] = {}
        self.content = SimpleNamespace(letters=SimpleNamespace(last_number=0))


def stream(uid: int, applied: int) -> Any:
    return SimpleNamespace(uid=uid, name=f"S{uid}", account="A", machine=Machine(applied))


def made(maker: SampleMaker, streams: Sequence[Any]) -> list[StreamSamples]:
    return [found for found in maker.samples(streams) if found is not None]


def test_samples_are_kept_while_nothing_changes() -> None:
    numbers = Numbers()
    maker = SampleMaker(numbers, "ID")
    streams = [stream(1, 5), stream(2, 6)]
    first = made(maker, streams)
    assert [found.numbers[0] for found in first] == [5, 6]
    again = made(maker, streams)
    assert [id(found) for found in again] == [id(found) for found in first]
    assert numbers.asked == ["S1", "S2"]
    streams[1].machine.applied = 7
    assert [found.numbers[0] for found in made(maker, streams)] == [5, 7]
    assert numbers.asked == ["S1", "S2", "S2"]
    numbers.blocks = (200, 100)
    (changed, _) = made(maker, streams)
    assert "} 200.0\n" in changed.groups[1].lines[0]


def test_another_stream_with_the_same_entries_applied_is_another() -> None:
    numbers = Numbers()
    maker = SampleMaker(numbers, "ID")
    made(maker, [stream(1, 5)])
    made(maker, [stream(1, 5)])
    assert numbers.asked == ["S1", "S1"]


def test_streams_that_are_gone_are_forgotten() -> None:
    """A stream is deleted, another created: as many as before."""
    numbers = Numbers()
    maker = SampleMaker(numbers, "ID")
    kept, gone, new = stream(1, 5), stream(2, 5), stream(3, 5)
    made(maker, [kept, gone])
    made(maker, [kept, new])
    made(maker, [kept, new, gone])
    assert numbers.asked == ["S1", "S2", "S3", "S2"]


def test_a_stream_that_is_deleted_leaves_memory_though_nobody_asks_again() -> None:
    maker, streams = SampleMaker(Numbers(), "ID"), [stream(1, 5)]
    made(maker, streams)
    machine = weakref.ref(streams.pop().machine)
    assert machine() is None
