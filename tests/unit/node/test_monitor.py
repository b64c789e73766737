"""What runs a group leaves the event loop to others between two turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamd import errors, limits
from streamd.errors import DiskError, JsError
from streamd.machine import commands
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.wakeup import DueTurns, Wakeup
from streamd.raft.messages import Heartbeat
from tests.unit.node.test_quorum_loss_recovery import contents, create, make, publish


def test_a_long_log_is_replayed_with_others_served_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn applies a bounded number of entries. When a group's share is over, its next turn
    begins after the loop went round. A restart with small entries held the loop for seconds:
    no client was served, no heartbeat sent."""
    monkeypatch.setattr(limits, "TURN_ENTRIES_MAX", 4)
    monkeypatch.setattr(limits, "LOOP_SHARE_S", 0.0)
    monkeypatch.setattr(limits, "SNAPSHOT_AT_STOP_BYTES", 1 << 40)
    rounds = 0
    turns: dict[Any, list[int]] = {}
    turn = Monitor._turn

    def noted(monitor: Monitor) -> None:
        turns.setdefault(monitor, []).append(rounds)
        turn(monitor)

    async def run() -> None:
        nonlocal rounds
        node = make(tmp_path)
        await node.started()
        await create(node, "S")
        for _ in range(100):
            await publish(node, "S", 1)
        await node.stopped()
        monkeypatch.setattr(Monitor, "_turn", noted)
        again = make(tmp_path)
        starting = asyncio.get_running_loop().create_task(again.started())
        while not starting.done() or not turns:
            rounds += 1
            await asyncio.sleep(0)
        while (stream := again.stream("S")) is None or not stream.is_ready:
            rounds += 1
            await asyncio.sleep(0)
        assert len(await contents(again, "S")) == 100
        seen = turns[stream.monitor]
        assert len(seen) >= 25
        assert len(set(seen)) == len(seen), seen
        await again.stopped()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("is_over", [True, False])
def test_a_busy_group_yields_when_its_share_is_over(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr(limits, "LOOP_SHARE_S", 0.0 if is_over else 60.0)

    async def run() -> list[str]:
        wakeup, seen = Wakeup(), []
        loop = asyncio.get_running_loop()

        async def take_turns() -> None:
            for number in range(3):
                await wakeup.wait()
                wakeup.clear()
                seen.append(f"turn {number}")
                wakeup.schedule()
                loop.call_soon(seen.append, "others")

        working = loop.create_task(take_turns())
        await asyncio.sleep(0)
        assert not seen
        wakeup.schedule()
        wakeup.schedule()
        await working
        return seen

    turns, others = [f"turn {number}" for number in range(3)], ["others"] * 3
    taking_turns = [each for pair in zip(turns, others, strict=True) for each in pair]
    seen = asyncio.run(asyncio.wait_for(run(), 10))
    assert seen == (taking_turns if is_over else turns + others)


async def test_a_waiting_group_may_be_cancelled() -> None:
    wakeup = Wakeup()
    waiting = asyncio.get_running_loop().create_task(wakeup.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wakeup.schedule()
    await wakeup.wait()


@pytest.mark.parametrize("more", [0, 2])
def test_the_turns_of_many_groups_leave_the_loop_to_others_in_between(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """All groups are rung at once, and some again by their own turn. In no round of the loop do
    more than the bound take a turn, the others follow in order, and none is left out."""
    monkeypatch.setattr(limits, "LOOP_TURNS_MAX", 4)
    monkeypatch.setattr(limits, "LOOP_SHARE_S", 60.0)
    rounds = 0
    seen: list[tuple[int, int]] = []  # (round of the loop, group)

    async def run() -> None:
        nonlocal rounds
        due = DueTurns()
        wakeups = [Wakeup() for _ in range(50)]

        async def take_turns(number: int) -> None:
            again = more if number % 5 == 0 else 0
            for left in range(again, -1, -1):
                await wakeups[number].wait()
                due.begin(wakeups[number])
                seen.append((rounds, number))
                if left:
                    due.schedule(wakeups[number])

        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(take_turns(number))
            await asyncio.sleep(0)  # a round of the loop: all of them wait now
            for wakeup in wakeups:
                due.schedule(wakeup)
            while len(seen) < 50 + 10 * more:
                rounds += 1
                await asyncio.sleep(0)  # one round, which is what is counted
        assert due.count == 0
        assert not any(wakeup.is_scheduled for wakeup in wakeups)

    asyncio.run(asyncio.wait_for(run(), 10))
    first = list(dict.fromkeys(number for _, number in seen))
    assert first == list(range(50))
    for each in {each for each, _ in seen}:
        assert len({number for at, number in seen if at == each}) <= 4


async def test_a_due_group_that_ends_does_not_take_the_turn_of_another() -> None:
    """Groups that end while their turn is due, one of the next or a later one, and one that is
    rung again meanwhile: all others have theirs."""
    due = DueTurns()
    bound = limits.LOOP_TURNS_MAX
    wakeups = [Wakeup() for _ in range(3 * bound)]
    loop = asyncio.get_running_loop()
    had: list[int] = []

    async def take_turn(number: int) -> None:
        await wakeups[number].wait()
        had.append(number)
        due.begin(wakeups[number])

    waiting = [loop.create_task(take_turn(number)) for number in range(len(wakeups))]
    await asyncio.sleep(0)  # a round of the loop: all of them wait now
    for wakeup in wakeups:
        due.schedule(wakeup)
    ended = [0, 1, bound, bound + 1]
    for number in ended:
        waiting[number].cancel()
        due.begin(wakeups[number])
    due.schedule(wakeups[bound])
    due.begin(wakeups[bound])
    await asyncio.wait(waiting)
    assert had == [number for number in range(len(wakeups)) if number not in ended]
    assert due.count == 0


async def test_a_group_that_does_not_run_yet_does_not_hold_up_others() -> None:
    """More of them are rung than may have a turn in one round, and nobody waits for any."""
    due = DueTurns()
    early = [Wakeup() for _ in range(limits.LOOP_TURNS_MAX)]
    other = Wakeup()

    async def wait(wakeup: Wakeup) -> None:
        await wakeup.wait()
        due.begin(wakeup)

    for wakeup in early:
        due.schedule(wakeup)
    waiting = asyncio.create_task(wait(other))
    await asyncio.sleep(0)  # a round of the loop: it waits now
    due.schedule(other)
    await waiting
    for wakeup in early:
        await wait(wakeup)
    assert due.count == 0


async def test_a_stopped_group_keeps_no_later_messages(tmp_path: Path) -> None:
    """Peers send to a replica that failed as if it lived: appends until the window is full, and a
    heartbeat four times a second. It kept them all, for nobody."""
    node = make(tmp_path)
    await node.started()
    await create(node, "S")
    stream = node.stream("S")
    assert stream is not None
    monitor = stream.monitor
    monitor.post(inbox.Failed(DiskError("the disk is gone")))
    await monitor.stopped.wait()
    for _ in range(100):
        monitor.post(inbox.Step("other", Heartbeat(1, 0, 1)))
    assert not monitor._inbox
    await node.stopped()


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_waiters_of_a_group_that_ends_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """What was in the log and not committed, what nobody had looked at, and what still came: none
    of it was answered. Whether it is in the log is another answer than that it never was."""
    node = make(tmp_path)
    await node.started()
    await create(node, "S")
    stream = node.stream("S")
    assert stream is not None
    monitor = stream.monitor
    told: list[Any] = []
    purge = [commands.PURGE, 1, "", 0, 0]
    with monkeypatch.context() as slow:  # the log does not come to it
        slow.setattr(monitor, "_durable", lambda token: lambda: None)
        monitor.post(inbox.Propose(purge, told.append, True))
        # A batch: what may be stored is not refused. Its publisher hears nothing.
        batch = [commands.STORE_BATCH, 1, "b", [(b"S.x", b"", b"")]]
        monitor.post(inbox.Propose(batch, told.append, True))
        monitor.step()
    assert not told
    stream.group.delete(is_gone=is_deleted)
    monitor.stop()
    monitor.post(inbox.ReadBarrier(lambda: told.append("read"), lambda: told.append("lost")))
    await monitor.stopped.wait()
    monitor.post(inbox.Propose(purge, told.append, True))
    monitor.post(inbox.Propose(purge, None, True))
    monitor.post(inbox.ReadBarrier(lambda: told.append("read"), lambda: told.append("lost")))
    monitor.post(inbox.StepDown("", told.append))
    await asyncio.sleep(0)  # a round of the loop: answers are given in the next
    kinds = [each if type(each) is str else (type(each), each.err_code) for each in told]
    gone, left = (JsError, 10059), (JsError, 10008)
    in_doubt, undone = (gone, gone) if is_deleted else (left, (errors.Unserved, 10008))
    assert kinds == [in_doubt, "lost", undone, "lost", left]
    await node.stopped()
