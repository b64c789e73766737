"""`Expiry`: whose time is over, and what a snapshot says of it."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from streamd.machine import commands, expiry
from streamd.machine.expiry import Expiry
from streamd.machine.retention import Limits
from tests.unit.machine.box import SECOND, START_NS, Box

NO_LIMITS = Limits({"allow_msg_ttl": True})


def joined(expiry: Expiry) -> list[Any]:
    return list(chain.from_iterable(expiry.freeze()()))


@pytest.mark.parametrize("seed", range(20))
def test_all_leave_in_their_time_whatever_order_they_came_in(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a list of everything. One replica plans, one does not, one was restored."""
    monkeypatch.setattr(expiry, "EXPIRE_NAMED_MAX", 3)
    rng = random.Random(seed)
    box = Box()
    index = box.machine.index
    leader, follower = Expiry(index), Expiry(index)
    due: dict[int, int] = {}
    now = START_NS
    for _ in range(200):
        now += rng.choice((1, SECOND // 3, 2 * SECOND))
        for _ in range(rng.randrange(3)):
            seq = int(box.put(b"a.x"))
            due[seq] = now + rng.randrange(10 * SECOND)
            leader.watch(seq, due[seq])
            follower.watch(seq, due[seq])
            assert 0 < leader.fresh_ns <= due[seq]
        if rng.random() < 0.2 and due:
            seq = rng.choice(list(due))
            box.do(commands.DELETE_MSG, seq, False)
            del due[seq]
        assert leader.next_due_ns(NO_LIMITS) == min(due.values(), default=0)
        assert leader.fresh_ns == 0
        if rng.random() < 0.5:
            over = sorted((at, seq) for seq, at in due.items() if at <= now)
            plan = leader.plan(now, NO_LIMITS)
            assert (plan is None) is (not over)
            if plan is not None:
                assert plan[3] == sorted(seq for _, seq in over[:3])
                if rng.random() < 0.7:  # else the log did not take it
                    box.do(commands.EXPIRE, 0, plan[3])
                    for seq in plan[3]:
                        del due[seq]
        expected = sorted((at, seq) for seq, at in due.items())
        assert joined(leader) == joined(follower) == expected
        if rng.random() < 0.1:
            leader = Expiry(index)
            leader.load(expected)


def test_a_snapshot_says_what_was_so_when_it_was_frozen() -> None:
    box = Box()
    times = box.machine.expiry
    for number in range(6):
        times.watch(int(box.put(b"a.x")), START_NS + (6 - number) * SECOND)
    frozen = times.freeze()
    before = joined(times)
    box.do(commands.DELETE_MSG, 3, False)
    times.watch(int(box.put(b"a.x")), START_NS)
    assert list(chain.from_iterable(frozen())) == before
    assert len(before) == 6
