"""`BulkDelete`: large removals in steps end as the command alone would have ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from streamd import errors, limits
from streamd.machine import commands
from streamd.node.groups import inbox
from streamd.node.stream_groups.bulk_delete import BulkDelete, SteppedOutcome
from tests.unit.machine.box import Box
from tests.unit.node.test_refused_proposals import Leader

STEP = 10


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRIM_MSGS", STEP)
    monkeypatch.setattr(limits, "TRIM_ROWS", 4 * STEP)


class World:
    """A stream and its trimmer; what that proposes waits until a turn."""

    def __init__(self, **config: Any) -> None:
        self.box = Box(**config)
        self.is_stepped = True  # False: commands go without it
        self.queue: list[tuple[list[Any], Callable[[Any], None]]] = []
        self.removals: list[list[int]] = []
        self.steps = 0
        self.trimmer = BulkDelete(
            self.box.machine,
            lambda command, done: self.queue.append((command, done)),
            lambda: None,
        )

    def fill(self, count: int, subjects: int = 3) -> None:
        self.box.store(*((b"a.%d" % (n % subjects), b"", b"") for n in range(count)))

    def ask(self, command: list[Any]) -> list[Any]:
        """What the client hears of `command`; goes on until nothing is left to do."""
        heard: list[Any] = []
        self.post(command, heard.append)
        while self.turn():
            pass
        return heard

    def post(self, command: list[Any], done: Callable[[Any], None]) -> None:
        if not (self.is_stepped and self.trimmer.takes(command, done, 1)):
            self.queue.append((command, done))

    def turn(self) -> bool:
        if self.trimmer.is_due:
            self.steps += 1
            self.trimmer.go_on(1)
        if not self.queue:
            return self.trimmer.is_due
        command, done = self.queue.pop(0)
        before = self.box.machine.index.count
        outcome = self.box.do(command[0], *command[2:])
        if command[0] == commands.REMOVE:
            self.removals.append(command[2])
            assert outcome == before - self.box.machine.index.count > 0
        done(outcome)
        return True

    def configure(self, **changes: Any) -> list[Any]:
        config = self.box.machine.config | changes
        return self.ask([commands.CONFIGURE, 1, config, self.box.machine.applied + 100])


PURGES = [(b"", 61, 0), (b"", 0, 7), (b"a.1", 0, 0), (b"a.1", 70, 0), (b"a.*", 0, 33), (b">", 9, 0)]


@pytest.mark.parametrize("purge", PURGES)
def test_a_purge_in_steps_is_that_purge(purge: tuple[bytes, int, int]) -> None:
    world, plain = World(), World()
    plain.is_stepped = False
    for each in (world, plain):
        each.fill(100)
        for seq in (5, 6, 50):
            each.box.do(commands.DELETE_MSG, seq, False)
    command = [commands.PURGE, 1, *purge]
    assert world.ask(command) == plain.ask(command)
    assert world.box.live() == plain.box.live()
    assert plain.removals == []
    assert bool(world.removals) is (purge[1] != 9)  # that one is small enough
    assert all(b - a < STEP for ranges in world.removals for a, b in [(ranges[0], ranges[1])])


def test_all_but_nothing_leaves_at_once() -> None:
    world = World()
    world.fill(100)
    assert world.ask([commands.PURGE, 1, b"", 101, 0]) == [100]
    assert len(world.removals) == 9  # the last ten leave with the purge itself
    assert (world.box.live(), world.box.machine.index.first_seq) == ([], 101)


CONFIGS = [
    {"max_msgs": 17},
    {"max_bytes": 900},
    {"max_msgs_per_subject": 2},
    {"max_msgs_per_subject": 20, "max_msgs": 30, "max_bytes": 500},
    {"max_msgs_per_subject": 2, "discard": "new", "max_msgs": 1},
    {"retention": "interest"},
    {"description": "nothing to remove"},
]


@pytest.mark.parametrize("changes", CONFIGS)
def test_new_limits_in_steps_are_those_limits(changes: dict[str, Any]) -> None:
    world, plain = World(), World()
    plain.is_stepped = False
    for each in (world, plain):
        each.fill(100)
        each.box.consumer("c", filter_subject="a.1")
        assert each.configure(**changes) == [True]
    assert world.box.live() == plain.box.live()
    assert bool(world.removals) is ("description" not in changes)
    assert world.box.machine.config == plain.box.machine.config


def test_messages_published_meanwhile_count() -> None:
    world = World()
    world.fill(60)
    heard: list[Any] = []
    world.post([commands.PURGE, 1, b"a.1", 0, 0], heard.append)
    world.fill(60)
    while world.turn():
        pass
    assert heard == [40]
    assert world.box.machine.index.subjects.count_of(b"a.1") == 0
    assert world.box.machine.index.count == 80


def test_messages_that_a_purge_keeps_stay_while_acks_or_age_remove_others() -> None:
    """Acks of a work queue, or age, take the oldest in between: then so many fewer are left to be
    purged. The purge took as many as it had counted at first, from what it was to keep."""
    for pattern, kept in ((b"", list(range(81, 101))), (b"a.*", list(range(81, 101)))):
        world = World()
        world.fill(100)
        world.post([commands.PURGE, 1, pattern, 0, 20], lambda outcome: None)
        world.turn()
        assert world.box.live()[0] == 11
        world.box.do(commands.EXPIRE, 40, [])
        while world.turn():
            pass
        assert world.box.live() == kept
    world = World()
    world.fill(100)
    world.post([commands.PURGE, 1, b"a.1", 0, 3], lambda outcome: None)
    world.turn()
    world.box.do(commands.EXPIRE, 90, [])
    while world.turn():
        pass
    assert [seq for seq in world.box.live() if seq % 3 == 2] == [92, 95, 98]


def test_the_newest_of_a_subject_stay_though_they_came_meanwhile() -> None:
    """Of a subject that was within the new limit when its oldest message was looked at, and is
    not any more: the steps took the next one they came to, and kept the oldest."""
    world, plain = World(), World()
    plain.is_stepped = False
    old = [(b"a.x", b"", b"1"), *[(b"a.y", b"", b"")] * 30, (b"a.x", b"", b"2")]
    for each in (world, plain):
        each.box.store(*old)
        each.box.store(*[(b"a.z", b"", b"")] * 60)
    config = world.box.machine.config | {"max_msgs_per_subject": 2}
    world.post([commands.CONFIGURE, 1, config, 200], lambda outcome: None)
    world.turn()
    assert world.box.live()[:2] == [1, 12]
    for each in (world, plain):
        each.box.store((b"a.x", b"", b"3"))
    while world.turn():
        pass
    plain.configure(max_msgs_per_subject=2)
    assert world.box.live() == plain.box.live() == [30, 31, 32, 91, 92, 93]


def test_the_newest_value_of_a_key_stays_though_others_leave_meanwhile() -> None:
    """More had left than the steps found, so they went on into what came since; there they took
    the newest value of a key for the one too many, and the one before it was its value again."""
    world = World()
    world.box.store((b"a.key", b"", b"old"), *[(b"a.z", b"", b"")] * 60)
    config = world.box.machine.config | {"max_msgs_per_subject": 1}
    world.post([commands.CONFIGURE, 1, config, 200], lambda outcome: None)
    world.turn()
    world.box.do(commands.EXPIRE, 0, list(range(30, 50)))
    world.box.store((b"a.key", b"", b"new"), *[(b"a.%d" % n, b"", b"") for n in range(100)])
    while world.turn():
        pass
    assert world.box.live() == list(range(61, 163))


@pytest.mark.parametrize("seed", range(40))
def test_a_stepwise_purge_keeps_what_a_purge_at_once_keeps(seed: int) -> None:
    """Beside the steps, one stream for which the command came at their beginning, and one for
    which it came at their end: what both keep is kept, and nothing that the second would not."""
    rng = random.Random(seed)
    subjects = [b"a.%d" % number for number in range(rng.choice((1, 3, 8, 30)))]
    steps, first, last = worlds = [World(block_bytes=rng.choice((400, 10**6))) for _ in range(3)]

    def all_do(kind: int, *fields: Any) -> None:
        for world in worlds:
            world.box.do(kind, *fields)

    def publish(count: int) -> None:
        msgs = [[rng.choice(subjects), b"", bytes(rng.randrange(20))] for _ in range(count)]
        all_do(commands.STORE, msgs)

    publish(rng.choice((60, 150)))
    command: list[Any] = [
        commands.PURGE,
        1,
        rng.choice((b"", b"a.*", b"a.1")),
        0,
        rng.choice((3, 20)),
    ]
    if seed % 3:
        limit = (
            {"max_msgs_per_subject": rng.choice((1, 2, 10))} if seed % 3 == 1 else {"max_msgs": 9}
        )
        command = [commands.CONFIGURE, 1, steps.box.machine.config | limit, 10**6]
    heard: list[Any] = []
    first.box.do(command[0], *command[2:])
    steps.post(command, heard.append)
    while steps.turn() and not heard:
        index = steps.box.machine.index
        what = rng.randrange(5)
        if what < 2:
            publish(rng.choice((1, 5, 15)) if index.last_seq < 400 else 1)
        elif what == 2:
            all_do(commands.DELETE_MSG, rng.randint(1, index.last_seq), False)
        elif what == 3:
            all_do(commands.EXPIRE, min(index.first_seq + rng.randrange(12), index.last_seq), [])
        else:
            some = {rng.randint(1, index.last_seq) for _ in range(8)}
            all_do(commands.EXPIRE, 0, sorted(some))
    assert heard
    last.box.do(command[0], *command[2:])
    kept = [{*world.box.live()} for world in worlds]
    assert kept[1] & kept[2] <= kept[0] <= kept[2]


def test_one_after_another_and_a_later_config_ends_an_earlier_one() -> None:
    """Higher limits that came while lower ones were being enforced keep what is still there."""
    world = World()
    world.fill(100)
    heard: list[Any] = []
    config = world.box.machine.config
    world.post([commands.CONFIGURE, 1, config | {"max_msgs": 10}, 200], heard.append)
    world.turn()
    world.box.do(commands.CONFIGURE, config | {"max_msgs": 1000}, 300)
    world.post([commands.PURGE, 1, b"", 0, 85], heard.append)
    while world.turn():
        pass
    assert heard == [True, 5]
    assert world.box.live() == list(range(16, 101))
    assert world.box.machine.config["max_msgs"] == 1000


def test_a_purge_that_is_forbidden_removes_nothing() -> None:
    world = World(deny_purge=True)
    world.fill(100)
    (refused,) = world.ask([commands.PURGE, 1, b"", 0, 1])
    assert refused.err_code == 10110
    assert len(world.box.live()) == 100


def interested(count: int) -> World:
    """An interest stream that two consumers want: `one` all of it, `two` a third."""
    world = World(retention="interest")
    world.box.consumer("one")
    world.box.consumer("two", filter_subject="a.2")
    world.fill(count)
    return world


def test_messages_that_only_a_deleted_consumer_wanted_leave_after_its_deletion() -> None:
    world = interested(100)
    command = world.trimmer.lightened([commands.DELETE_CONSUMER, 1, "one", 0, ""], 1)
    assert command[5:] == [True]
    assert world.ask(command) == [True]
    assert len(world.box.live()) == 100
    world.trimmer.sweep()
    while world.turn():
        pass
    assert world.box.live() == list(range(3, 101, 3))
    assert len(world.removals) == 5
    assert world.box.machine.consumers["two"].num_pending == 33


def test_a_command_does_not_wait_for_a_sweep() -> None:
    world = interested(300)
    world.box.do(commands.DELETE_CONSUMER, "one", 0, "", True)
    world.trimmer.sweep()
    for _ in range(3):
        world.trimmer.sweep()
    world.turn()
    heard: list[Any] = []
    world.post([commands.PURGE, 1, b"a.2", 0, 10], heard.append)
    before = len(world.removals)
    while not heard:
        world.turn()
    assert heard == [90]
    assert len(world.removals) < before + 15  # of the purge, not of the sweep
    while world.turn():
        pass
    assert world.box.live() == list(range(300, 270, -3))[::-1]


def test_few_leave_with_the_deletion() -> None:
    world = interested(20)
    command = [commands.DELETE_CONSUMER, 1, "one", 0, ""]
    assert world.trimmer.lightened(command, 1) == command
    assert world.ask(command) == [True]
    assert world.box.live() == [3, 6, 9, 12, 15, 18]
    nobody = [commands.DELETE_CONSUMER, 1, "nobody", 0, ""]
    assert world.trimmer.lightened(nobody, 1) == nobody


def test_deletions_at_a_time_look_at_so_many_messages_together() -> None:
    world = interested(30)
    world.box.do(commands.DELETE_CONSUMER, "one", 0, "")
    assert len(world.box.live()) == 10
    for number in range(20):
        world.box.consumer(f"c{number}", filter_subject="a.2")
    deletions = [[commands.DELETE_CONSUMER, 1, f"c{number}", 0, ""] for number in range(20)]
    for now_ms in (1, 2):
        light = [world.trimmer.lightened(each, now_ms)[5:] for each in deletions]
        assert light[0] == []
        assert light[4:] == [[True]] * 16


def test_a_sweep_finds_nothing_where_all_is_wanted() -> None:
    world = interested(400)
    world.box.do(commands.DELETE_CONSUMER, "two", 0, "")
    world.trimmer.sweep()
    while world.turn():
        pass
    assert (world.removals, world.steps) == ([], 1)  # an unfiltered consumer wants the rest anyhow


def test_a_sweep_that_could_not_be_is_owed() -> None:
    """A step is refused while leadership is on its way to another member, who does not take it.
    What nobody wants stayed for good."""
    world = interested(300)
    world.box.do(commands.DELETE_CONSUMER, "one", 0, "", True)
    world.trimmer.sweep()
    assert not world.trimmer.owes_sweep
    world.trimmer.go_on(1)
    _, done = world.queue.pop(0)
    done(errors.CLUSTER_NOT_AVAIL())
    assert (world.trimmer.owes_sweep, world.turn()) == (True, False)
    world.trimmer.sweep()
    while world.turn():
        pass
    assert world.box.live() == list(range(3, 301, 3))
    world.trimmer.sweep()
    world.trimmer.stop()
    assert not world.trimmer.owes_sweep


def test_rows_of_one_step_are_bounded() -> None:
    world = World()
    world.fill(2000, subjects=1000)
    heard: list[Any] = []
    world.post([commands.PURGE, 1, b"a.999", 0, 0], heard.append)
    while world.turn():
        pass
    assert heard == [2]
    assert world.steps >= 1000 // (4 * STEP)


def test_callers_that_wait_for_a_purge_hear_of_a_lost_leadership() -> None:
    world = World()
    world.fill(100)
    heard: list[Any] = []
    world.post([commands.PURGE, 1, b"", 0, 1], heard.append)
    world.post([commands.PURGE, 1, b"", 0, 2], heard.append)
    (_, done), *_ = world.queue
    assert len(world.trimmer.stop()) == 2
    done(10)  # late news of the step under way
    assert not world.trimmer.is_due

    world.queue.clear()
    world.post([commands.PURGE, 1, b"", 0, 1], heard.append)
    (_, done), *_ = world.queue
    done(errors.CLUSTER_NOT_AVAIL())
    assert [each.err_code for each in heard] == [10008]
    assert not world.trimmer.is_due


def test_a_stepped_outcome_adds_up_counts_only() -> None:
    heard: list[Any] = []
    for outcome in (4, True, "other"):
        SteppedOutcome(heard.append, 3)(outcome)
    SteppedOutcome(None, 3)(4)
    assert heard == [7, True, "other"]


def test_a_group_removes_in_steps() -> None:
    """Through log, turns and apply."""
    leader = Leader()
    leader.publish(100)
    heard: list[Any] = []
    leader.post(inbox.Propose([commands.PURGE, 1, b"", 0, 15], heard.append, True))
    leader.pass_time(50)
    assert heard == [85]
    applied = leader.machine.applied
    config = leader.machine.config | {"max_msgs": 3}
    leader.post(inbox.Propose([commands.CONFIGURE, 1, config, 10**6], heard.append, True))
    leader.pass_time(50)
    assert heard == [85, True]
    assert leader.machine.applied == applied + 2
    assert leader.machine.state()["messages"] == 3
    assert not leader.node.errors


def test_a_group_removes_what_a_deleted_consumer_wanted() -> None:
    leader = Leader(retention="interest")
    config = {"durable_name": "C", "ack_policy": "explicit", "deliver_policy": "all"}
    leader.propose([commands.CREATE_CONSUMER, 1, "C", config, "", False])
    leader.publish(100)
    assert leader.machine.state()["messages"] == 100
    heard: list[Any] = []
    leader.post(inbox.Propose([commands.DELETE_CONSUMER, 1, "C", 0, ""], heard.append, True))
    leader.pass_time(50)
    assert heard == [True]
    assert leader.machine.state()["messages"] == 0


def test_a_group_removes_what_a_reset_consumer_passed_over() -> None:
    """What others want stays."""
    leader = Leader(retention="interest")
    config = {"durable_name": "C", "ack_policy": "explicit", "deliver_policy": "all"}
    leader.propose([commands.CREATE_CONSUMER, 1, "C", config, "", False])
    leader.publish(50)
    leader.propose([commands.CREATE_CONSUMER, 1, "D", config | {"durable_name": "D"}, "", False])
    leader.propose([commands.RESET_CONSUMER, 1, "D", 41])
    leader.propose([commands.RESET_CONSUMER, 1, "C", 46])
    leader.pass_time(50)
    state = leader.machine.state()
    assert (state["first_seq"], state["messages"]) == (41, 10)
    leader.propose([commands.RESET_CONSUMER, 1, "C", 1])
    assert leader.machine.state()["messages"] == 10
