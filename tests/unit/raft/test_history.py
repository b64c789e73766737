"""Histories of logs: where two logs part, by their terms and by the chains of some entries."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamd.raft.history import (
    POSITIONS_MAX,
    Common,
    LogPosition,
    bounded,
    last_common,
    next_index,
    term_at,
)

STEPS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def history_of(terms: list[int], *, contents: str = "") -> list[LogPosition]:
    """Return the history of a log of entries with these terms; no `contents`: without chains."""
    positions: list[LogPosition] = []
    chain = 0
    for index, term in enumerate(terms, 1):
        text = f"{term} {contents[index - 1 :][:1]}"
        chain = crc32c(text.encode(), chain)
        if not positions or positions[-1].term != term or index == next_index(positions, index - 1):
            positions.append(LogPosition(index, term, chain if contents else 0))
    return positions


@given(STEPS, STEPS, STEPS)
def test_two_logs_part_where_their_terms_do(
    shared: list[int], one: list[int], two: list[int]
) -> None:
    """Both begin with the same entries; then each has terms of its own, as each has one leader."""
    base = [1]
    for step in shared:
        base.append(base[-1] + step)
    ours, theirs = list(base), list(base)
    for log, steps, kind in ((ours, one, 0), (theirs, two, 1)):
        for step in steps:
            least = max(log[-1], base[-1] + 1)
            log.append(least + (least + kind) % 2 + 2 * step)
    found = last_common(history_of(ours), len(ours), history_of(theirs), len(theirs))
    assert found == Common(len(base), is_exact=True)


@given(st.integers(0, 20), st.integers(1, 40), st.integers(1, 40), st.integers(0, 20))
def test_a_term_led_twice_is_common_up_to_its_first_entry_that_differs(
    before: int, ours: int, theirs: int, equal: int
) -> None:
    """A term that was led twice: equal entries, then others. A log that goes twice as far as the
    equal ones is always told; nothing after the parting is ever called common then."""
    shared = before + 1 + equal
    logs = []
    for letter, more in (("a", ours), ("b", theirs)):
        terms = [1] * before + [2] * (1 + equal + more)
        logs.append(history_of(terms, contents="=" * shared + letter * more))
    lasts = shared + ours, shared + theirs
    found = last_common(logs[0], lasts[0], logs[1], lasts[1])
    assert found is not None
    if min(ours, theirs) > equal:
        assert found.index <= shared
        assert found.index == shared or not found.is_exact or equal == 0
    if equal == 0:
        assert found == Common(shared, is_exact=True)  # the second entry of the term tells


def test_a_term_that_begins_at_two_indexes_was_led_twice() -> None:
    """Ours began it after entry 6, theirs after entry 4, as an older copy would."""
    ours = history_of([1] * 6 + [2] * 5)
    theirs = history_of([1] * 4 + [2] * 9)
    assert last_common(ours, 11, theirs, 13) == Common(4, is_exact=True)


def test_a_log_that_is_shorter_is_common_to_its_end() -> None:
    ours = history_of([1] * 5 + [2] * 4, contents="=========")
    assert last_common(ours[:2], 5, ours, 9) == Common(5, is_exact=True)
    assert last_common(ours, 9, bounded(ours, last=7), 7) == Common(7, is_exact=True)


def test_a_term_of_which_only_the_end_is_known_is_common_as_far_as_both_go() -> None:
    """The log below 100 is compacted: the entry there has term 4, as ours from 80 on have."""
    ours = [LogPosition(1, 1), LogPosition(80, 4)]
    theirs = [LogPosition(100, 4), LogPosition(120, 6)]
    assert last_common(ours, 95, theirs, 130) == Common(95, is_exact=True)


def test_histories_without_a_common_entry_share_nothing() -> None:
    assert last_common([LogPosition(1, 1)], 5, [LogPosition(9, 3)], 12) is None
    assert last_common([], 0, [LogPosition(9, 3)], 12) is None


def test_terms_of_entries() -> None:
    positions = [LogPosition(4, 1), LogPosition(9, 3)]
    assert [term_at(positions, index) for index in (3, 4, 8, 9, 50)] == [None, 1, 1, 3, 3]
    assert bounded(positions, last=8) == [LogPosition(4, 1)]


def test_a_history_keeps_entries_ever_farther_from_the_start_of_their_term() -> None:
    kept = [position.index for position in history_of([1] * 5 + [2] * 40)]
    assert kept == [1, 2, 3, 5, 6, 7, 8, 10, 14, 22, 38]


def test_a_history_is_bounded() -> None:
    positions = [LogPosition(index, index, 1) for index in range(1, POSITIONS_MAX + 9)]
    assert bounded(positions, last=POSITIONS_MAX + 8) == positions[8:]
    assert next_index([], 7) == 0
