"""Many consumers are told of what concerns them alone, and end up as if each had been asked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd.machine import commands
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams import stream_consumers
from streamd.machine.streams.interest_index import InterestIndex
from streamd.subjects import Matcher, matches
from tests.unit.machine.box import Box

PATTERNS = [b"a.b", b"a.c", b"a.*", b"a.b.>", b"a.*.x", b">", b"a.b.x"]
SUBJECTS = [b"a.b", b"a.c", b"a.d", b"a.b.x", b"a.b.y", b"a.c.x"]


def test_filters_are_those_of_the_matchers() -> None:
    members = [
        (number, None if pattern == b">" else Matcher([pattern]))
        for number, pattern in enumerate(PATTERNS)
    ]
    members.append((99, Matcher([b"a.b", b"a.c"])))
    audience = InterestIndex(members)
    assert list(audience.of_all) == [5]
    for subject in SUBJECTS:
        wanted = {number for number, each in members if each is not None and each.matches(subject)}
        assert set(audience.filtered([subject, subject])) == wanted
        assert len(list(audience.filtered([subject, b"a.b"]))) == len(
            {n for n, each in members if each and (each.matches(subject) or each.matches(b"a.b"))}
        )
    assert matches(b"a.*.x", b"a.b.x")


@pytest.mark.parametrize("seed", range(12))
def test_the_same_state_as_when_each_is_asked(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With consumers that come, go, get another filter, have messages pending, and lose some."""
    rng = random.Random(seed)
    config = {
        "retention": rng.choice(["limits", "limits", "interest"]),
        "max_msgs_per_subject": rng.choice([-1, 1, 3]),
        "max_msgs": rng.choice([-1, 12]),
    }
    monkeypatch.setattr(stream_consumers, "_FEW_CONSUMERS", 0)
    box = Box(block_bytes=900, **config)
    names: list[str] = []
    for _ in range(150):
        kind = rng.random()
        if kind < 0.2 and len(names) < 12:
            name = f"c{rng.randrange(100)}"
            policy = rng.choice(["all", "new", "last_per_subject", "by_start_sequence"])
            made = box.consumer(
                name,
                deliver_policy=policy,
                opt_start_seq=rng.randint(1, 60),
                filter_subject=rng.choice(PATTERNS).decode(),
            )
            if hasattr(made, "uid") and name not in names:
                names.append(name)
        elif kind < 0.25 and names:
            name = rng.choice(names)
            other = box.machine.consumers[name].config | {
                "filter_subject": rng.choice(PATTERNS).decode()
            }
            box.do(commands.CREATE_CONSUMER, name, other, "update", False)
        elif kind < 0.28 and names:
            name = names.pop(rng.randrange(len(names)))
            box.do(commands.DELETE_CONSUMER, name, 0, "")
        elif kind < 0.6:
            box.store(*((rng.choice(SUBJECTS), b"", b"x") for _ in range(rng.choice((1, 1, 5)))))
        elif kind < 0.75 and names:
            consumer = box.machine.consumers[rng.choice(names)]
            locs, _ = box.machine.index.lookup.select(
                consumer.next_sseq, consumer.matcher, 3, 1 << 30
            )
            cseq = consumer.delivered_cseq
            items = [(loc[0], loc[0], cseq + at + 1, False) for at, loc in enumerate(locs)]
            if items and not consumer.remaining.initial:
                box.do(commands.DELIVERED, consumer.uid, items, consumer.resets)
        elif kind < 0.85 and names:
            consumer = box.machine.consumers[rng.choice(names)]
            if consumer.pending:
                box.do(commands.ACKED, consumer.uid, [rng.choice(list(consumer.pending))])
        elif kind < 0.95:
            box.do(commands.DELETE_MSG, rng.randint(1, box.machine.index.last_seq + 1), False)
        else:
            box.do(commands.PURGE, rng.choice(PATTERNS), 0, rng.randrange(3))
    monkeypatch.setattr(stream_consumers, "_FEW_CONSUMERS", 1 << 30)
    plain = Box(block_bytes=900, **config)
    for data in box.log:
        plain.apply(data)
    assert plain.machine.snapshot() == box.machine.snapshot()
    assert plain.events == box.events
    for consumer in box.machine.consumers.values():
        assert consumer.num_pending == plain.machine.consumers[consumer.name].num_pending


MANY = 40  # consumers, each of a subject of its own


def crowd(**config: Any) -> Box:
    """Two messages for each of many consumers."""
    box = Box(**config)
    for number in range(MANY):
        box.consumer(f"c{number}", filter_subject=f"a.{number}.>")
    for _ in range(2):
        box.store(*[(b"a.%d.x" % number, b"", b"x") for number in range(MANY)])
    return box


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """From now on, who was called by that name."""
    calls: list[Any] = []
    plain = getattr(owner, name)

    def call(self: Any, *args: Any) -> Any:
        calls.append(self)
        return plain(self, *args)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("way", ["delete", "update"])
def test_a_deleted_consumer_asks_only_consumers_with_fitting_filters(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = crowd(retention="interest")
    asked = counted(monkeypatch, Matcher, "matches")
    if way == "delete":
        box.do(commands.DELETE_CONSUMER, "c7", 0, "")
    else:
        box.consumer("c7", filter_subject="a.x.>")
    assert box.machine.index.count == 2 * MANY - 2
    assert len(asked) < MANY, len(asked)


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_removals_are_told_to_the_consumers_they_concern(
    retention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = crowd(retention=retention)
    consumer = box.machine.consumers["c7"]
    box.do(commands.DELIVERED, consumer.uid, [[8, 8, 1, False]], 0)
    asked = counted(monkeypatch, Matcher, "matches")
    told = counted(monkeypatch, Consumer, "on_removed")
    box.do(commands.ACKED, consumer.uid, [8])
    box.do(commands.DELETE_MSG, MANY + 8, False)
    assert told == [consumer] * (1 if retention == "limits" else 2)
    assert not asked
    assert consumer.num_pending == 0


def test_consumers_that_come_and_go_leave_others_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = crowd(retention="interest")
    made = counted(monkeypatch, InterestIndex, "__init__")
    box.consumer("late", filter_subject="a.5.x")
    box.put(b"a.5.x")
    box.consumer("late", filter_subject="a.6.x")
    box.put(b"a.6.x")
    box.do(commands.DELETE_CONSUMER, "late", 0, "")
    box.put(b"a.5.x")
    assert box.machine.consumers["c5"].num_pending == 4
    assert not made
    assert box.put(b"a.late.x") and box.machine.index.count == 2 * MANY + 3


def test_a_subject_that_reads_like_a_pattern_has_its_own_takers() -> None:
    members = list(enumerate([Matcher([b"a.b"]), Matcher([b"a.*"]), Matcher([b"x.>"]), None]))
    audience = InterestIndex(members)
    assert audience.takers(b"a.*") == [3, 1]
    assert audience.takers(b"a.b") == [3, 0, 1]
    audience.put(1, Matcher([b"b.*"]))
    audience.drop(3)
    assert audience.takers(b"a.*") == []
    assert audience.takers(b"b.c") == [1]
