"""`Expiry`: whose time is over, and what a snapshot says of it."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from streamd.machine import commands
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.message_locations import Locations
from streamd.machine.streams import expiry
from streamd.machine.streams.expiry import Expiry
from streamd.machine.streams.retention import Limits
from tests.holdings import sizes
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
    monkeypatch.setattr(expiry, "_FEW_DUE", 1 if seed % 2 else 64)  # are swept all the time, never
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
    times = box.machine.content.expiry
    for number in range(6):
        times.watch(int(box.put(b"a.x")), START_NS + (6 - number) * SECOND)
    frozen = times.freeze()
    before = joined(times)
    box.do(commands.DELETE_MSG, 3, False)
    times.watch(int(box.put(b"a.x")), START_NS)
    assert list(chain.from_iterable(frozen())) == before
    assert len(before) == 6


def test_removed_messages_are_not_searched_for_the_first_live_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A purge of a million messages that have a time to live."""
    monkeypatch.setattr(expiry, "EXPIRE_MAX", 10)
    box = Box(allow_msg_ttl=True)
    for _ in range(10):  # seconds, of 30 each
        box.store(*[(b"a.x", b"NATS/1.0\r\nNats-TTL: 60s\r\n\r\n", b"")] * 30, seconds=1)
    machine = box.machine
    first = machine.next_expiry_ns()
    assert first <= START_NS + 62 * SECOND
    assert machine.plan_expiry(START_NS + 62 * SECOND)[2:] == [0, list(range(1, 31))]
    box.do(commands.PURGE, b"", 0, 0)
    last = int(box.put(b"a.y", seconds=80, TTL="5s"))  # the times of all others are over
    asked: list[int] = []
    is_live = LiveMessages.has

    def counted(live: LiveMessages, seq: int) -> bool:
        asked.append(seq)
        return is_live(live, seq)

    monkeypatch.setattr(LiveMessages, "has", counted)
    now = box.now + 6 * SECOND
    for turn in range(100):
        at = machine.next_expiry_ns()
        assert 0 < at <= now
        plan = machine.plan_expiry(now)
        assert len(asked) < 100, asked
        asked.clear()
        if plan is not None:
            assert plan[3] == [last] and turn > 1
            return
    raise AssertionError("never found")


@pytest.mark.parametrize("first_life", ["1h", "9000h"])
def test_removed_messages_are_not_kept_until_their_expiry(first_life: str) -> None:
    """A key that is written anew every second, to live for 30 days, left 2.6 million entries that
    waited for their time."""
    box = Box(allow_msg_ttl=True, max_msgs_per_subject=1)
    machine = box.machine
    box.put(b"a.first", TTL=first_life)
    machine.next_expiry_ns()  # all that is due before that one is in one heap from here on
    box.put(b"a.second", TTL="700h")
    most = 0
    for number in range(3000):
        last = int(box.put(b"a.%d" % (number % 5), seconds=number % 2, TTL="720h"))
        if number % 50 == 0:
            held = sizes(machine.content.expiry)
            most = max(most, sum(held[name] for name in held if name.startswith("Expiry._")))
    assert most < 600, held
    box.do(commands.PURGE, b"", last, 0)
    now = box.now + 721 * 3600 * SECOND
    assert machine.plan_expiry(now)[2:] == [0, [last]]


def test_messages_that_never_expire_are_not_visited_by_each_expiry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bucket whose keys last for ever, but for some: each EXPIRE looked at every one of the keys
    that had come before, on each replica: a second of the loop for a million."""
    box = Box(block_bytes=2000, allow_msg_ttl=True, max_age=10 * SECOND)
    never = b"NATS/1.0\r\nNats-TTL: never\r\n\r\n"
    box.store(*[(b"a.%d" % number, never, b"") for number in range(500)])
    asked: list[int] = []
    flags_at = Locations.flags_at

    def counted(index: Locations, seq: int) -> int:
        asked.append(seq)
        return flags_at(index, seq)

    monkeypatch.setattr(Locations, "flags_at", counted)
    for _ in range(2):
        for _ in range(5):
            box.put(b"a.x")
            box.put(b"a.x", TTL="never")
            box.now += 20 * SECOND
            plan = box.machine.plan_expiry(box.now)
            assert plan is not None
            asked.clear()
            assert box.do(commands.EXPIRE, *plan[2:]) == 1
            assert len(asked) < 3, asked
        box.machine = box.restored()
    assert box.machine.index.count == 510
    assert box.machine.next_expiry_ns() == 0


def test_expiries_of_an_entry_being_stored_survive_the_removal_of_dead_ones() -> None:
    """They are noted before they are stored."""
    box = Box(allow_msg_ttl=True, max_msgs_per_subject=1)
    headers = b"NATS/1.0\r\nNats-TTL: 60s\r\n\r\n"
    for _ in range(10):
        box.store(*[(b"a.%d" % number, headers, b"") for number in range(100)])
    assert box.machine.index.count == 100
    assert len(joined(box.machine.content.expiry)) == 100
