"""How often messages are counted to know what is left to a filtered consumer: a count walks the
stream, and there may be a thousand consumers."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.machine import commands
from streamd.machine.indexes.lookup import Lookup
from tests.unit.machine.box import Box

SUBJECTS = 10
MSGS = 500


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seqs from which a count walked the stream."""
    seen: list[int] = []
    walk = Lookup._count_between

    def counted(self: Lookup, first: int, last: int, matcher: Any) -> int:
        seen.append(first)
        return walk(self, first, last, matcher)

    monkeypatch.setattr(Lookup, "_count_between", counted)
    return seen


def crowd(**config: Any) -> Box:
    """One consumer of each subject, which has had the first n tenths of the stream."""
    box = Box(**config)
    box.store(*[(b"a.%d" % (at % SUBJECTS), b"", b"x") for at in range(MSGS)])
    for at in range(SUBJECTS):
        uid = box.consumer(f"c{at}", filter_subject=f"a.{at}").uid
        mine = range(at + 1, MSGS * at // SUBJECTS, SUBJECTS)
        rows = [(seq, seq, cseq, False) for cseq, seq in enumerate(mine, 1)]
        box.do(commands.DELIVERED, uid, rows, 0)
    return box


def counted_anew(box: Box) -> list[int]:
    """What is left to each consumer, from the messages themselves."""
    index = box.machine.index
    return [
        sum(
            each.matcher.matches(index.locations.subject_at(seq))
            for seq in box.live()
            if seq >= next_sseq
        )
        for each in box.machine.consumers.values()
        for next_sseq in [each.next_sseq]
    ]


def kept(machine: Any) -> list[int]:
    return [each.num_pending for each in machine.consumers.values()]


def test_a_restart_counts_nothing(walks: list[int]) -> None:
    box = crowd()
    box.do(commands.DELETE_MSG, 499)
    del walks[:]
    again = box.restored(with_index=False)
    assert not walks
    assert kept(again) == kept(box.machine) == counted_anew(box)


@pytest.mark.parametrize("keep", [0, 100])
def test_a_purge_counts_for_no_one(walks: list[int], keep: int) -> None:
    """Who is behind it begins at the first message that is left, and what each subject has is
    known there; who is beyond it lost nothing that was to come."""
    box = crowd()
    del walks[:]
    box.do(commands.PURGE, b"", 0 if keep else 401, keep)
    assert not walks
    assert box.machine.index.first_seq == 401
    assert [each.next_sseq >= 401 for each in box.machine.consumers.values()].count(True) > 1
    assert kept(box.machine) == counted_anew(box)


def test_messages_removed_by_a_rollup_are_counted() -> None:
    """One entry may empty the stream and then replace what it has stored itself."""
    box = crowd(max_msgs_per_subject=1, allow_rollup_hdrs=True)
    headers = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
    box.store((b"a.1", headers, b""), *[(b"a.%d" % at, b"", b"") for at in (2, 3, 2, 4, 3)])
    assert box.live() == [501, 504, 505, 506]
    assert kept(box.machine) == counted_anew(box) == kept(box.restored())
