"""Message schedules on a stream's leader: in virtual time, and over a restart."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from streamd import limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.node.stream_groups import schedule_patterns, stream_inbox
from streamd.raft.core import RaftCore
from tests.unit.machine.box import Box
from tests.unit.node.test_refused_proposals import Leader, _refuse

SECOND = 10**9


class Sink:
    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def publish_acks(self, stream: bytes, replies: Any, outcomes: Any) -> None:
        self.outcomes += outcomes


def leading(**config: Any) -> Leader:
    allowed = {"allow_msg_schedules": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True}
    return Leader(subjects=["s.>"], **allowed, **config)


def schedule(
    leader: Leader, pattern: str, subject: bytes = b"s.a", target: str = "s.t", **more: str
) -> Any:
    fields = {"": pattern, "-Target": target} | {f"-{key}": text for key, text in more.items()}
    lines = "".join(f"Nats-Schedule{key}: {text}\r\n" for key, text in fields.items())
    sink = Sink()
    headers = b"NATS/1.0\r\n" + lines.encode() + b"\r\n"
    leader.post(stream_inbox.Publish([(subject, headers, b"body")], [b"r"], sink))
    return sink.outcomes[0]


def count_of(leader: Leader, subject: bytes) -> int:
    return int(leader.machine.index.subjects.count_of(subject))


def test_an_interval_fires_on_its_grid_and_missed_times_once() -> None:
    leader = leading()
    assert schedule(leader, "@every 10s") == 1
    counts = []
    for seconds in (9, 2, 8, 2, 94, 4, 2):
        leader.pass_time(seconds * 1000)
        counts.append(count_of(leader, b"s.t"))
    assert counts == [0, 1, 1, 2, 3, 3, 4]
    assert leader.machine.content.schedules.find(b"s.a").seq == 1


def test_once_is_once_and_then_the_schedule_is_gone() -> None:
    leader = leading()
    schedule(leader, "@at 2001-01-01T00:00:00Z")
    for _ in range(5):
        leader.pass_time(1000)
    assert (count_of(leader, b"s.a"), count_of(leader, b"s.t")) == (0, 1)
    assert not leader.machine.content.schedules


@pytest.mark.parametrize("how", ["purge", "delete", "message", "schedule", "end", "limit"])
def test_a_schedule_that_is_gone_or_replaced_does_not_fire(how: str) -> None:
    leader = leading(max_msgs=1 if how == "limit" else -1)
    schedule(leader, "@every 5s")
    if how == "purge":
        leader.propose([commands.PURGE, 1, b"s.a", 0, 0])
    elif how == "delete":
        leader.propose([commands.DELETE_MSG, 1, 1, False])
    elif how == "message":
        leader.post(stream_inbox.Publish([(b"s.a", b"", b"x")], [b""], Sink()))
    elif how == "schedule":
        schedule(leader, "@every 100s")
    elif how == "limit":
        leader.post(stream_inbox.Publish([(b"s.y", b"", b"x")], [b""], Sink()))
    else:
        head = b"NATS/1.0\r\nNats-Scheduler: s.a\r\nNats-Schedule-Next: purge\r\n\r\n"
        leader.post(stream_inbox.Publish([(b"s.x", head, b"x")], [b""], Sink()))
        assert count_of(leader, b"s.a") == 0
    for _ in range(5):
        leader.pass_time(5000)
    assert count_of(leader, b"s.t") == 0


def test_what_could_not_be_proposed_fires_afterwards_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = leading()
    schedule(leader, "@at 2001-01-01T00:00:00Z")
    with monkeypatch.context() as refusing:
        refusing.setattr(RaftCore, "propose", _refuse)
        for _ in range(3):
            leader.pass_time(1000)
        assert count_of(leader, b"s.t") == 0
    for _ in range(3):
        leader.pass_time(2000)
    assert (count_of(leader, b"s.a"), count_of(leader, b"s.t")) == (0, 1)


def test_thousands_that_are_due_fire_in_turns_of_a_bounded_size() -> None:
    leader = leading()
    count = 5 * limits.FIRED_PER_TURN_MAX // 2
    sink = Sink()
    head = b"NATS/1.0\r\nNats-Schedule: 0 0 5 * * *\r\nNats-Schedule-Target: s.t.%d\r\n\r\n"
    msgs = [(b"s.a.%d" % at, head % at, b"x") for at in range(count)]
    leader.post(stream_inbox.Publish(msgs, [b""] * count, sink))
    assert all(type(outcome) is int for outcome in sink.outcomes)
    for _ in range(10):
        leader.pass_time(24 * 3600 * 100)
    leader.pass_time(24 * 3600 * 1000)
    sizes = [
        len(entry.command[2])
        for entry in leader.oracle.values()
        if entry.command and entry.command[0] == commands.FIRE
    ]
    assert max(sizes) <= limits.FIRED_PER_TURN_MAX and len(sizes) >= 3
    assert all(count_of(leader, b"s.t.%d" % at) >= 1 for at in range(count))


def test_a_source_gives_the_body_and_the_schedule_if_there_is_none() -> None:
    leader = leading()
    schedule(leader, "@every 1s", Source="s.source", TTL="1h", Rollup="sub")
    bodies = []
    for body in (b"", b"one", b"two"):
        if body:
            leader.post(stream_inbox.Publish([(b"s.source", b"", body)], [b""], Sink()))
        leader.pass_time(2000)
        assert count_of(leader, b"s.t") == 1
        item = max(leader.oracle.values(), key=lambda entry: entry.index).command[2][0]
        bodies.append(bytes(item[5][2]))
        assert item[5][1].endswith(b"Nats-TTL: 1h\r\nNats-Rollup: sub\r\n\r\n")
    assert bodies == [b"body", b"one", b"two"]


def test_a_restart_keeps_what_is_due_and_fires_what_was_missed_once() -> None:
    leader = leading()
    schedule(leader, "@every 10s")
    schedule(leader, "@at 2100-01-01T00:00:00Z", b"s.b")
    leader.pass_time(11_000)
    assert count_of(leader, b"s.t") == 1
    before = leader.machine.content.schedules.to_state()
    leader.clock.ms += 35_000
    leader.restart()
    assert [row[:2] for row in leader.machine.content.schedules.to_state()] == [
        row[:2] for row in before
    ]
    leader.pass_time(1000)
    assert count_of(leader, b"s.t") == 2  # of 20, 30 and 40 s
    leader.pass_time(4500)
    assert count_of(leader, b"s.t") == 3


def test_a_fire_applies_only_to_the_time_that_it_names() -> None:
    box = Box(allow_msg_schedules=True, allow_rollup_hdrs=True)
    head = b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Schedule-Target: a.t\r\n\r\n"
    store = [[[b"a.x", head, b""]], commands.PUBLISH_RULES, [[0, 500, 0]]]
    assert box.do(commands.STORE_SCHEDULED, *store) == [1]
    fired = [b"a.t", b"NATS/1.0\r\nNats-Scheduler: a.x\r\n\r\n", b"x"]
    item = [b"a.x", 1, 500, 900, [], fired]
    assert box.do(commands.FIRE, [[b"a.x", 1, 400, 900, [], fired]]) == 0
    assert box.do(commands.FIRE, [[b"a.x", 2, 500, 900, [], fired]]) == 0
    assert box.do(commands.FIRE, [[b"a.x", 1, 500, 900, [b"a.source", 1], fired]]) == 0
    assert box.do(commands.FIRE, [item]) == 1
    assert box.do(commands.FIRE, [item]) == 0
    assert box.restored().content.schedules.to_state() == [[b"a.x", 1, 900]]
    assert box.do(commands.FIRE, [[b"a.x", 1, 900, 0, [], fired]]) == 1
    assert (box.live(), bool(box.machine.content.schedules)) == ([2, 3], False)


def test_a_pattern_that_the_leader_refused_is_refused_everywhere() -> None:
    box = Box(allow_msg_schedules=True, allow_rollup_hdrs=True)
    head = b"NATS/1.0\r\nNats-Schedule: x\r\nNats-Schedule-Target: a.t\r\n\r\n"
    for err_code in (10189, 10223):
        store = [[[b"a.x", head, b""]], commands.PUBLISH_RULES, [[0, 0, err_code]]]
        (outcome,) = box.do(commands.STORE_SCHEDULED, *store)
        assert isinstance(outcome, JsError) and outcome.err_code == err_code
    (unjudged,) = box.store((b"a.x", head, b""))  # its leader knew of no schedules here
    assert isinstance(unjudged, JsError) and unjudged.err_code == 10188


def test_a_restored_schedule_is_due_when_its_leader_finds_out() -> None:
    box = Box(allow_msg_schedules=True, allow_rollup_hdrs=True, restoring=True)
    head = b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Schedule-Target: a.t\r\n\r\n"
    rows = [(5, 100, b"a.x", head, b""), (6, 101, b"a.y", b"", b"")]
    assert box.do(commands.IMPORT, rows, 0) is True
    assert box.machine.content.schedules.to_state() == [[b"a.x", 5, 0]]


# --- patterns -------------------------------------------------------------------------------------


def following(pattern: str, after: str, zone: str = "") -> str:
    place = zone.encode() if zone else None
    found = schedule_patterns.read(pattern.encode(), place)
    assert isinstance(found, schedule_patterns.Schedule), found
    moment = datetime.fromisoformat(after)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ns = found.following(0, int(moment.timestamp()) * SECOND)
    return f"{datetime.fromtimestamp(ns / SECOND, ZoneInfo(zone or 'UTC')):%Y-%m-%dT%H:%M:%S%z}"


@pytest.mark.parametrize(
    ("pattern", "after", "zone", "expected"),
    [
        ("0 30 5 * * *", "2026-01-01T05:30:00", "", "2026-01-02T05:30:00+0000"),
        ("*/20 * * * * *", "2026-01-01T05:30:01", "", "2026-01-01T05:30:20+0000"),
        ("0 0 0 29 2 *", "2026-01-01T00:00:00", "", "2028-02-29T00:00:00+0000"),
        ("0 0 0 13 * fri", "2026-01-31T00:00:00", "", "2026-02-06T00:00:00+0000"),  # either
        ("0 0 0 */2 * fri", "2026-01-31T00:00:00", "", "2026-02-13T00:00:00+0000"),  # both
        ("0 0 12 ? * mon-fri", "2026-01-03T00:00:00", "", "2026-01-05T12:00:00+0000"),
        ("@monthly", "2026-12-15T00:00:00", "", "2027-01-01T00:00:00+0000"),
        ("@weekly", "2026-01-01T00:00:00", "", "2026-01-04T00:00:00+0000"),
        ("0 0 12 * * *", "2026-06-01T00:00:00", "Europe/Berlin", "2026-06-01T12:00:00+0200"),
        # An hour that is left out names nothing; one that comes twice names twice.
        ("0 30 2 * * *", "2026-03-28T12:00:00", "Europe/Berlin", "2026-03-30T02:30:00+0200"),
        ("0 30 2 * * *", "2026-10-25T00:00:00", "Europe/Berlin", "2026-10-25T02:30:00+0200"),
        ("0 30 2 * * *", "2026-10-25T00:30:00", "Europe/Berlin", "2026-10-25T02:30:00+0100"),
        ("@every 90s", "2026-01-01T00:00:00", "", "2026-01-01T00:01:30+0000"),
        ("@at 2026-01-01T00:00:00+02:00", "2025-01-01T00:00:00", "", "2025-12-31T22:00:00+0000"),
    ],
)
def test_next_times(pattern: str, after: str, zone: str, expected: str) -> None:
    assert following(pattern, after, zone) == expected


def test_one_that_is_past_fires_a_quarter_of_a_second_later() -> None:
    found = schedule_patterns.read(b"@at 2001-01-01T00:00:00Z", None)
    assert isinstance(found, schedule_patterns.Schedule)
    assert found.following(0, 10**18) == 10**18 + SECOND // 4


def test_the_next_time_is_never_before_the_one_that_is_due() -> None:
    """A clock that is behind the time for which a schedule fired does not make it fire again."""
    found = schedule_patterns.read(b"0 * * * * *", None)
    assert isinstance(found, schedule_patterns.Schedule)
    assert found.following(600 * SECOND, 590 * SECOND) == 660 * SECOND
    every = schedule_patterns.read(b"@every 10s", None)
    assert isinstance(every, schedule_patterns.Schedule)
    assert every.following(600 * SECOND, 590 * SECOND) == 610 * SECOND


def test_random_patterns_agree_with_a_search_second_by_second() -> None:
    chance = random.Random(5)
    for _ in range(60):
        second, minute = (
            chance.choice(("0", "*/7", "5,10", "30-40")),
            chance.choice(("*", "3", "*/9")),
        )
        pattern = f"{second} {minute} * * * *"
        found = schedule_patterns.read(pattern.encode(), None)
        assert isinstance(found, schedule_patterns.Schedule)
        allowed = [
            {int(v) for v in schedule_patterns._values(word, 0, 59, {}) or ()}
            for word in (second, minute)
        ]
        start = chance.randrange(10**9)
        expected = next(
            at for at in range(start + 1, start + 4000)
            if at % 60 in allowed[0] and at // 60 % 60 in allowed[1]
        )  # fmt: skip
        assert found.following(0, start * SECOND) == expected * SECOND
