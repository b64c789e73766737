"""Takes many messages out of a stream in steps, so that no entry holds the loop for long.

A PURGE, or a CONFIGURE with lower limits, waits here while its messages leave by REMOVE entries;
it is proposed when few are left, and does the rest. What only a deleted consumer wanted leaves
after the deletion: before it, a deletion that came to nothing would have taken messages from a
consumer that is still there. So does what a consumer that was reset passes over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.commands import Command
from streamd.machine.indexes.seqset import as_ranges
from streamd.machine.streams import trimming
from streamd.machine.streams.retention import Limits
from streamd.machine.streams.stream import StreamMachine
from streamd.machine.streams.trimming import Search
from streamd.node.ports import Done
from streamd.types import Seq


class SteppedOutcome:
    """Outcome of a command whose messages left in steps: `removed` of them went before it."""

    __slots__ = ("_done", "_removed")

    def __init__(self, done: Done | None, removed: int) -> None:
        self._done = done
        self._removed = removed

    def __call__(self, outcome: int | errors.JsError) -> None:
        if self._done is not None:
            if isinstance(outcome, errors.JsError):
                self._done(_undone(outcome, self._removed))
            elif type(outcome) is int:
                self._done(outcome + self._removed)
            else:
                self._done(outcome)  # True: no count


def _undone(outcome: errors.JsError, removed: int) -> errors.JsError:
    """Return a refusal as it is told: a removal that has begun is not to be repeated as if not."""
    if removed and isinstance(outcome, errors.Unserved):
        return errors.CLUSTER_NOT_AVAIL()
    return outcome


class _Job:
    __slots__ = ("command", "done", "is_done", "removed", "search")

    def __init__(self, command: Command | None, done: Done | None) -> None:
        self.command = command  # None: a sweep
        self.done = done
        self.search: Search | None = None  # once it is this one's turn
        self.is_done = False  # or void: the command itself does what is left
        self.removed = 0


class BulkDelete:
    """Large removals of one stream, while this node leads it: one after another, sweeps last."""

    def __init__(
        self,
        machine: StreamMachine,
        propose: Callable[[Command, Done], None],
        wake: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._propose = propose  # in a turn to come
        self._wake = wake  # have a turn call `go_on`
        self._jobs: deque[_Job] = deque()
        self.is_due = False
        self.owes_sweep = False  # one came to nothing: ask for it again
        self._looked_ms = self._rows_left = 0  # for consumers to be deleted, at that time

    def takes(self, command: Command, done: Done | None, now_ns: int) -> bool:
        """True if `command` takes out so much that it has to wait here. It is proposed by and by,
        with a `SteppedOutcome` for `done`."""
        if command[0] not in (commands.PURGE, commands.CONFIGURE):
            return False
        job = _Job(command, done)
        ahead = sum(each.command is not None for each in self._jobs)
        if not ahead:
            found = self._step(job)
            if job.is_done:
                return False
            self.is_due = False  # a sweep's
            self._remove(job, found, now_ns)
        self._jobs.insert(ahead, job)
        return True

    def lightened(self, command: Command, now_ms: int) -> Command:
        """A DELETE_CONSUMER as it is to be proposed: if very many messages were wanted by that
        consumer only, they leave later. So do those of consumers that are deleted in great number
        at a time."""
        machine = self._machine
        consumer = machine.consumers.get(command[2])
        if consumer is None or not machine.limits.is_interest:
            return command
        held = machine.content.letters.held
        search = trimming.Unwanted(machine.index, machine.interest(), consumer, held=held)
        if now_ms != self._looked_ms:
            self._looked_ms, self._rows_left = now_ms, limits.TRIM_ROWS
        search.step(limits.TRIM_MSGS, self._rows_left)
        self._rows_left -= min(self._rows_left, machine.index.count)
        return command if search.is_done else [*command[:5], True]

    def sweep(self) -> None:
        """Look for messages that no consumer wants, in a stream that keeps only wanted ones."""
        self.owes_sweep = False
        if not self._machine.limits.is_interest:
            return
        if self._jobs and self._jobs[-1].search is None and self._jobs[-1].command is None:
            return  # one that has not begun
        self._jobs.append(_Job(None, None))
        if len(self._jobs) == 1:
            self.is_due = True
            self._wake()

    def stop(self) -> list[Done]:
        """End all jobs: this node leads no more, or the stream is gone. Returns their callbacks."""
        waiting = [job.done for job in self._jobs if job.done is not None]
        self._jobs.clear()
        self.is_due = self.owes_sweep = False
        return waiting

    def go_on(self, now_ns: int) -> None:
        """The next step. Call it in a turn if `is_due`."""
        self.is_due = False
        while self._jobs:
            job = self._jobs[0]
            found = self._step(job)
            if not job.is_done or (found and job.command is None):
                self._remove(job, found, now_ns)
                return
            self._jobs.popleft()
            if job.command is not None:
                self._propose(job.command, SteppedOutcome(job.done, job.removed))

    def _step(self, job: _Job) -> list[Seq]:
        if job.search is None:
            job.search = self._search_of(job.command)
        job.is_done = job.search.is_done or self._is_void(job.command)
        if job.is_done:
            return []
        found = job.search.step(limits.TRIM_MSGS, limits.TRIM_ROWS)
        job.is_done = job.search.is_done
        return found

    def _search_of(self, command: Command | None) -> Search:
        machine = self._machine
        index, held = machine.index, machine.content.letters.held
        if command is None:
            return trimming.Unwanted(index, machine.interest(), held=held)
        if command[0] == commands.PURGE:
            _, _, pattern, seq, keep = command
            return trimming.Purged(index, pattern, seq, keep)
        after = Limits(command[2])
        return trimming.OneAfterAnother(
            trimming.reconfigured(index, machine.limits, after, machine.interest, held)
        )

    def _is_void(self, command: Command | None) -> bool:
        """True if the command will do nothing: a later config is there, purges are forbidden."""
        machine = self._machine
        if command is None:
            return not machine.limits.is_interest
        if command[0] == commands.PURGE:
            return machine.limits.is_sealed or machine.limits.denies_purge
        return bool(machine.config_meta_index >= command[3])

    def _remove(self, job: _Job, found: list[Seq], now_ns: int) -> None:
        def removed(outcome: int | JsError) -> None:
            if not self._jobs or self._jobs[0] is not job:
                return  # stopped meanwhile, or a command goes before this sweep
            if isinstance(outcome, JsError):
                is_sweep_lost = any(each.command is None for each in self._jobs)
                for done in self.stop():
                    done(_undone(outcome, job.removed))
                self.owes_sweep = is_sweep_lost
                return
            job.removed += outcome
            self.is_due = True
            self._wake()

        if found:
            ranges = [seq for pair in as_ranges(found) for seq in pair]
            self._propose([commands.REMOVE, now_ns, ranges], removed)
        else:  # none among so many
            self.is_due = True
            self._wake()
