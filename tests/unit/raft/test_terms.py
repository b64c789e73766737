"""Terms of logs, as runs: where two logs part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamd.raft.terms import Run, joined, last_common, term_at, upto

STEPS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def runs_of(terms: list[int]) -> list[Run]:
    return joined([], enumerate(terms, 1))


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
    found = last_common(runs_of(ours), len(ours), runs_of(theirs), len(theirs))
    assert found == len(base)


def test_a_log_that_is_shorter_is_common_to_its_end() -> None:
    assert last_common([(1, 1)], 5, [(1, 1), (9, 2)], 12) == 5
    assert last_common([(1, 1), (6, 2)], 9, [(1, 1), (6, 2)], 7) == 7


def test_a_run_of_which_only_the_end_is_known_is_common_as_far_as_both_go() -> None:
    """The log below 100 is compacted: the entry there has term 4, as ours from 80 on have."""
    assert last_common([(1, 1), (80, 4)], 95, [(100, 4), (120, 6)], 130) == 95


def test_where_nothing_is_shared_nothing_is_said() -> None:
    assert last_common([(1, 1)], 5, [(9, 3)], 12) is None
    assert last_common([], 0, [(9, 3)], 12) is None


def test_terms_of_entries() -> None:
    runs = [(4, 1), (9, 3)]
    assert [term_at(runs, index) for index in (3, 4, 8, 9, 50)] == [None, 1, 1, 3, 3]
    assert upto(runs, 8) == [(4, 1)]
