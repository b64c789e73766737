"""Many consumers are told of what concerns them alone, and end up as if each had been asked."""

from __future__ import annotations

import random

import pytest

from streamd.machine import commands, stream_consumers
from streamd.machine.audience import Audience
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
    audience = Audience(members)
    assert audience.of_all == [5]
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
            locs, _ = box.machine.index.select(consumer.next_sseq, consumer.matcher, 3, 1 << 30)
            cseq = consumer.delivered_cseq
            items = [(loc[0], loc[0], cseq + at + 1, False) for at, loc in enumerate(locs)]
            if items and not consumer.initial:
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
