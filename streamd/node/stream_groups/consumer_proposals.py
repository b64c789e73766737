"""Proposals of a stream's cursors: deliveries and acks, which wait a little for other entries.

Most of them owe no client an answer, so they force no fsync: they go to the log with the
next publishes, or after a few milliseconds. The order in which they were made is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.machine import commands
from streamd.machine.commands import Command, encode
from streamd.node.groups.turn import TurnTime
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore


class CursorTag:
    """Marks an entry as a cursor's own; carries the replies of clients that wait for it."""

    __slots__ = ("tag",)

    def __init__(self, tag: list[bytes] | None) -> None:
        self.tag = tag


class ConsumerProposals:
    """Commands of one stream's consumers that are not in the log yet."""

    __slots__ = ("_lighten", "_now", "_raft", "_waiting", "due_ms", "is_forced")

    def __init__(
        self, raft: RaftCore, now: TurnTime, lighten: Callable[[Command, int], Command]
    ) -> None:
        self._raft = raft
        self._now = now
        self._lighten = lighten  # of a consumer's removal: what it leaves to later
        self._waiting: list[tuple[Command, list[bytes] | None]] = []
        self.due_ms = 0  # 0: nothing waits
        self.is_forced = False  # a client waits for an answer

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, command: Command, *, is_forced: bool, tag: list[bytes] | None) -> None:
        """Propose `command` soon; forced: in this turn, or the next."""
        if command[0] == commands.DELETE_CONSUMER:
            command = self._lighten(command, self._now.ms)
        self._waiting.append((command, tag))
        if is_forced:
            self.is_forced = True
        if self.due_ms == 0:
            self.due_ms = self._now.ms + limits.UNFORCED_DELAY_MS

    def poll(self, *, has_company: bool) -> None:
        """Propose them if they are due, or if other entries of this turn are logged anyway."""
        if self._waiting and (self.is_forced or has_company or self._now.ms >= self.due_ms):
            self.flush()

    def flush(self) -> None:
        """Propose all of them."""
        waiting, self._waiting = self._waiting, []
        self.due_ms = 0
        self.is_forced = False
        propose = self._raft.propose
        for at, (command, tag) in enumerate(waiting):
            try:
                propose(encode(command), command, CursorTag(tag))
            except NotLeader:
                return  # what is not acked there is delivered again
            except ProposalRejected:
                # Kept, in order: a transfer of leadership may come to nothing, and then the log
                # must not lack what the cursors have counted already.
                self._waiting = waiting[at:]
                self.due_ms = self._now.ms + limits.UNFORCED_DELAY_MS
                return

    def clear(self) -> None:
        """Forget them: this node leads no more."""
        self._waiting = []
        self.due_ms = 0
        self.is_forced = False
