"""SeqSet against Python's own set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.machine.indexes import seqset
from streamd.machine.indexes.seqset import SeqSet
from tests.holdings import sizes

SEQS = st.one_of(st.integers(1, 60), st.integers(2000, 2100), st.integers(4000, 9000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SEQS, st.just(0)),
        st.tuples(st.just("range"), SEQS, st.integers(0, 5000)),
        st.tuples(st.just("several"), SEQS, st.integers(0, 5000)),
        st.tuples(st.just("below"), SEQS, st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, probe=SEQS)
def test_agrees_with_a_plain_set(steps: list[tuple[str, int, int]], probe: int) -> None:
    """Every answer after random adds, ranges and trims equals the set's."""
    check(steps, probe)


@pytest.mark.parametrize("shift", [1, 2, 3])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, probe=SEQS)
def test_agrees_with_a_plain_set_however_small_its_spans(
    shift: int, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, int, int]], probe: int
) -> None:
    """The same with spans so small that runs of full ones are full spans of theirs, and so on."""
    monkeypatch.setattr(seqset, "_SHIFT", shift)
    monkeypatch.setattr(seqset, "_SPAN", 1 << shift)
    monkeypatch.setattr(seqset, "_LOW", (1 << shift) - 1)
    monkeypatch.setattr(seqset, "_FULL", (1 << (1 << shift)) - 1)
    check(steps, probe)


def check(steps: list[tuple[str, int, int]], probe: int) -> None:
    real, model = SeqSet(), set[int]()
    for kind, seq, length in steps:
        if kind == "add":
            assert real.add(seq) == (seq not in model)
            model.add(seq)
        elif kind == "range":
            new = set(range(seq, seq + length)) - model
            assert real.add_range(seq, seq + length - 1) == len(new)
            model |= new
        elif kind == "several":
            several = range(seq, seq + length, seq % 7 + 1)
            real.add_all(several)
            model.update(several)
        else:
            assert real.discard_below(seq) == sum(each < seq for each in model)
            model = {each for each in model if each >= seq}
    assert len(real) == len(model)
    assert list(real) == sorted(model)
    assert (probe in real) == (probe in model)
    assert real.count_below(probe) == sum(each < probe for each in model)
    absent = probe
    while absent in model:
        absent += 1
    assert real.next_absent(probe) == absent
    absent = probe
    while absent in model:
        absent -= 1
    assert real.prev_absent(probe) == absent
    assert real.has_any(probe, probe + 3000) == any(probe <= s <= probe + 3000 for s in model)
    assert list(real.copy()) == sorted(model)
    for offset, size in ((0, 3), (probe, 100), (len(model) - 1, 10), (len(model), 1), (0, 10_000)):
        offset = max(0, offset)
        assert real.page(offset, size) == sorted(model)[offset : offset + size]
    again = SeqSet.from_state(real.to_state())
    assert list(again) == sorted(model) and len(again) == len(model)
    assert again.to_state() == real.to_state()


def test_a_long_range_takes_no_room_in_a_snapshot() -> None:
    """A purge of millions in the middle is one row, wherever it begins and ends."""
    made = SeqSet()
    made.add_range(5, 2_000_000)
    made.add(3_000_000)
    state = made.to_state()
    assert len(state) <= 4  # a part of a span, many whole ones, a part, and one alone
    again = SeqSet.from_state(state)
    assert len(again) == len(made) == 1_999_997
    assert list(again.ranges()) == [(5, 2_000_000), (3_000_000, 3_000_000)]


def test_seqs_deleted_long_ago_cost_nothing() -> None:
    """One key that is never written again keeps all that was deleted behind it in the set. Each
    2,048 of them took an entry, that was walked over to find what comes next."""
    made = SeqSet()
    most = 0
    for first in range(2, 40_000_000, 2000):
        made.add_range(first, first + 1999)
        if first % 100 == 2:
            most = max(most, sum(sizes(made).values()))
    assert most <= 16
    made.add_range(40_000_002, 1 << 62)
    assert sum(sizes(made).values()) <= 16
    assert len(made) == (1 << 62) - 1
    assert made.next_absent(2) == (1 << 62) + 1
    assert made.prev_absent(1 << 62) == 1
    assert made.count_below(1 << 61) == (1 << 61) - 2
    assert list(made.ranges()) == [(2, 1 << 62)]
    assert list(SeqSet.from_state(made.to_state()).ranges()) == [(2, 1 << 62)]
    assert made.discard_below(1 << 61) == (1 << 61) - 2
    assert list(made.ranges()) == [(1 << 61, 1 << 62)]


def test_seqs_discarded_in_front_are_not_searched_behind() -> None:
    """Each message that leaves at the front of a stream, below scattered deletes."""

    class Spans(dict[int, int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            for key in super().__iter__():
                self.looks += 1
                yield key

    made = SeqSet()
    made.add_all(range(1000, 1_000_000, 2000))
    made.discard_below(2)
    spans = made._spans = Spans(made._spans)
    for seq in range(2, 10_000):
        assert made.discard_below(seq) == (seq % 2000 == 1001)
    assert spans.looks < 100
    made.add(500)
    assert made.discard_below(501) == 1
    assert list(made) == list(range(11_000, 1_000_000, 2000))
