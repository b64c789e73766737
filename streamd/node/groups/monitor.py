"""The shell around one group: one task, one await, and the only writer of its snapshots.

Everything that can happen to a group is a message in the inbox. The monitor wakes, runs one turn
(a plain function, nothing can interleave inside it) and carries out what the turn asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streamd import limits
from streamd.node.groups import inbox
from streamd.node.groups.group import Group
from streamd.node.groups.inbox import InboxMessage
from streamd.node.groups.turn import Turn
from streamd.node.groups.wakeup import DueTurns, Wakeup
from streamd.node.ports import Clock
from streamd.raft.messages import Message
from streamd.raft.ready import Token
from streamd.types import Entry, HardState, Index, NodeId, Uid


class GroupLog(Protocol):
    """Log that makes a group's entries durable: the node's WAL, or memory for memory streams."""

    def append(
        self,
        writes: list[tuple[Uid, list[Entry], HardState | None, Index]],
        done: Callable[[], None],
    ) -> None: ...

    def flush(self) -> None: ...

    def release(self, group: Uid, index: Index, term: int, chain: int) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """The part of an event loop that a monitor uses; the simulator has its own."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Timer: ...


class MonitorEnv(Protocol):
    """World of a monitor: the part of `NodeEnv` that it uses."""

    @property
    def loop(self) -> Loop: ...

    @property
    def clock(self) -> Clock: ...


class SnapshotWriter(Protocol):
    """Makes (state, index) durable and then calls `done`. Held by the monitor alone."""

    def save(
        self,
        group: Group,
        *,
        index: Index,
        term: int,
        chain: int,
        is_last: bool,
        done: Callable[[], None],
    ) -> None:
        """`is_last`: the group stops then, so that it may take its time."""


class Monitor:
    """Loop of one group: the same class for the meta group and for every stream."""

    def __init__(
        self,
        group: Group,
        *,
        log: GroupLog,
        env: MonitorEnv,
        snapshot_writer: SnapshotWriter,
        on_failed: Callable[[Group, BaseException], None],
        send: Callable[[NodeId, Uid, list[Message]], None] | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        due: DueTurns | None = None,
    ) -> None:
        self._group = group
        self._log = log
        self._clock = env.clock
        self._snapshot_writer = snapshot_writer  # reached from _do_snapshot only (test_tidy)
        self._on_failed = on_failed
        self._inbox: list[InboxMessage] = []
        self._wake = Wakeup()
        self._due = due if due is not None else DueTurns()  # with those of the other groups
        self._is_done = False
        self._is_stopping = False
        self._is_saving = False
        self._has_more = False  # of what is committed: the last turn had no room for it
        self._snapshot_wanted = False
        self.saved_ns = self.saving_ns = 0  # when the last snapshot was durable; how long it took
        self._is_save_void = False  # what was saved last can't be read
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._loop = env.loop
        self._send = send
        self._on_turn = on_turn  # of a turn in which something happened that its owner follows
        self._saved_waiters: list[tuple[Index, Callable[[], None]]] = []
        group.shell.attach(post=self.post, call_soon=env.loop.call_soon)
        self.stopped = asyncio.Event()
        self.on_stopped: list[Callable[[], None]] = []

    @property
    def waiting_count(self) -> int:
        """Messages in the inbox."""
        return len(self._inbox)

    def now_ns(self) -> int:
        """Return the time."""
        return self._clock.now_ns()

    def post(self, message: InboxMessage) -> None:
        """Put a message in the inbox; the next turn takes it. After the last turn, a message that
        wants an answer gets an error."""
        if self._is_done:
            self._group.end([message])
            return
        self._inbox.append(message)
        if len(self._inbox) == 1:
            self._schedule()

    def _schedule(self) -> None:
        if not self._wake.is_scheduled and not self._is_done:
            self._due.schedule(self._wake)

    def _begin_turn(self) -> None:
        if self._wake.is_scheduled:
            self._due.begin(self._wake)

    @property
    def has_nothing_to_do(self) -> bool:
        """True while the group runs, and all messages so far have had their turn."""
        return not (self._inbox or self._is_stopping or self._is_done)

    def stop(self) -> None:
        """Ask the loop to end; it takes a last snapshot itself, or none. Await `stopped`."""
        self.post(inbox.Stop())

    def when_stopped(self, done: Callable[[], None]) -> None:
        """Stop, if that has not happened yet; then call `done`."""
        if self.stopped.is_set():
            done()
        else:
            self.on_stopped.append(done)
            self.stop()

    def is_awake(self) -> bool:
        """True if a turn is due."""
        return self._wake.is_scheduled and not self._is_done

    def step(self) -> None:
        """Run one round of `run`, for a driver without an event loop."""
        self._begin_turn()
        try:
            self._turn()
        except Exception as err:  # noqa: BLE001 - as in `run`
            self._end(err)
        else:
            if self._is_done:
                self._end(None)

    async def run(self) -> None:
        """Turn until stopped. A failure ends this group, keeps its bytes, and is reported."""
        try:
            while not self._is_done:
                await self._wake.wait()  # the only await in the loop
                self._begin_turn()
                self._due.measure(self._turn)
        except Exception as err:  # noqa: BLE001 - whatever it was, it ends this group and no other
            self._end(err)
        else:
            self._end(None)

    def _end(self, err: Exception | None) -> None:
        self._is_done = True
        self._begin_turn()
        if self._timer is not None:
            self._timer.cancel()
        if err is not None:
            self._group.fail(err)
            self._on_failed(self._group, err)
        unread, self._inbox = self._inbox, []
        self._group.end(unread)
        self.stopped.set()
        callbacks, self.on_stopped = self.on_stopped, []  # or what they hold would hold us
        for callback in callbacks:
            callback()

    def when_saved(self, index: Index, done: Callable[[], None]) -> None:
        """Call `done` once a snapshot at `index` or later is durable; takes one if need be."""
        if self._group.snapshot_index >= index:
            done()
            return
        self._saved_waiters.append((index, done))
        self.post(inbox.SnapshotWanted())

    def save_anew(self, done: Callable[[], None]) -> None:
        """The newest snapshot can't be read: write one that can. Call `done` once it is durable."""
        self._is_save_void = True
        self._saved_waiters.append((0, done))
        self.post(inbox.SnapshotWanted())

    def _turn(self) -> None:
        turn = self._pass()
        if turn.writes and not turn.send_now and not self._due.count:
            # The last turn of this round, so nothing else would share the sync. What was sent to
            # peers leaves first: it does when the round is over, and then the log is written too.
            self._log.flush()
            if self._wake.is_scheduled:  # and it is written: go on with what waited for that
                self._begin_turn()
                self._pass()
        group = self._group
        if group.deliver() or self._has_more:
            self._schedule()
        if self._snapshot_due():
            self._do_snapshot()
        if self._is_stopping and not self._is_saving:
            self._is_done = True
            return
        self._arm(group.deadline_ms())

    def _pass(self) -> Turn:
        """Give the group its messages, and carry out what it wants at once."""
        inbox, self._inbox = self._inbox, []
        clock = self._clock
        due = self._due
        turn = due.measure_apply(self._group, clock.monotonic_ms(), clock.now_ns(), inbox)
        if turn.send_now:
            self._send_all(turn.send_now)  # appends may overtake the leader's own fsync
        for write, token in turn.writes:
            self._log.append([write], self._durable(token))
        self._emit(turn)
        if self._on_turn is not None and (
            turn.has_role_changed
            or turn.has_members_news
            or turn.newcomers
            or turn.checkpoints
            or turn.snapshot_offer
            or turn.alerts
            or turn.effects.ignored
        ):
            self._loop.call_soon(self._on_turn, turn)
        self._has_more = turn.more
        if turn.is_stopping:
            self._is_stopping = True
        if turn.snapshot_wanted:
            self._snapshot_wanted = True
        return turn

    def _emit(self, turn: Turn) -> None:
        """Hand outcomes to clients that wait and events to the announcer; after apply only (I5)."""
        effects = turn.effects
        if effects.outcomes or turn.ready_callbacks:
            self._group.emit_outcomes(effects.outcomes, turn.ready_callbacks)
        if effects.events:
            self._group.emit_events(effects.events)

    def _send_all(self, outgoing: list[tuple[NodeId, Message]]) -> None:
        send = self._send
        if send is None:
            return
        by_node: dict[NodeId, list[Message]] = {}
        for node_id, message in outgoing:
            by_node.setdefault(node_id, []).append(message)
        for node_id, messages in by_node.items():
            send(node_id, self._group.uid, messages)

    def _durable(self, token: Token) -> Callable[[], None]:
        def done() -> None:
            self.post(inbox.Durable(token))

        return done

    def _snapshot_due(self) -> bool:
        group = self._group
        is_covered = group.machine.applied <= group.snapshot_index and not self._is_save_void
        if self._is_saving or is_covered:
            return False
        if self._is_stopping:
            return group.applied_bytes >= limits.SNAPSHOT_AT_STOP_BYTES
        return self._snapshot_wanted or group.applied_bytes >= group.snapshot_every_bytes

    def _do_snapshot(self) -> None:
        """Save the state between two turns, so it is exactly that of the applied index (I3)."""
        group = self._group
        index = group.machine.applied
        term, chain = group.raft.log.entry_id(index)
        self._is_saving = True
        self._snapshot_wanted = self._is_save_void = False
        group.applied_bytes = 0
        began_ms = self._clock.monotonic_ms()

        def done() -> None:
            self._is_saving = False
            self.saved_ns = self._clock.now_ns()
            self.saving_ns = (self._clock.monotonic_ms() - began_ms) * 1_000_000
            group.snapshot_index = index
            self.post(inbox.Saved(index=index, term=term, chain=chain))
            self._log.release(group.uid, index, term, chain)
            waiting, self._saved_waiters = self._saved_waiters, []
            for wanted, callback in waiting:
                if index >= wanted:
                    callback()
                else:
                    self.when_saved(wanted, callback)

        self._snapshot_writer.save(
            group, index=index, term=term, chain=chain, is_last=self._is_stopping, done=done
        )

    def _arm(self, deadline_ms: int) -> None:
        """Keep one timer for the earliest deadline; firing early is harmless, so never push out."""
        if deadline_ms == 0:
            if self._timer is not None and self._group.raft.is_quiescent:
                # Thousands come to rest at a time: none is to have one more turn for nothing.
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
        self._timer_at_ms = deadline_ms
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.post(inbox.Tick())
