"""Ways out of a group's turn: to the event loop, back to its own inbox, and to followers.

Parts of a group hold the shell, never the group. `release` cuts all that leads from the group to
its monitor and further up.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import errors
from streamd.callbacks import ignore
from streamd.machine.commands import Command, encode
from streamd.node.groups.inbox import InboxMessage
from streamd.node.ports import Done
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.types import Index

Events = list[tuple[str, dict[str, object]]]


class GroupShell:
    """Callbacks of one group. A callback of an upper room is called apart from the turn, so that
    its failure can't be the group's."""

    __slots__ = ("call_soon", "on_events", "on_ready", "post")

    def __init__(self) -> None:
        self.on_events: Callable[[Events], None] | None = None
        self.on_ready: list[Callable[[], None]] = []  # once: this node leads and has applied all
        self.call_soon: Callable[..., object] = _call
        self.post: Callable[[InboxMessage], None] = ignore

    def attach(
        self, *, post: Callable[[InboxMessage], None], call_soon: Callable[..., object]
    ) -> None:
        """Serve the monitor with that inbox, on that loop."""
        self.post = post
        self.call_soon = call_soon

    def release(self) -> None:
        """Lead nowhere any more: such rings would stay in memory, for the garbage collector hardly
        ever looks at what is old."""
        self.call_soon = _call
        self.post = ignore
        self.on_events = None


class Proposer:
    """Proposals of one group's own: outside of publishes, which are answered differently."""

    __slots__ = ("_raft", "_shell")

    def __init__(self, raft: RaftCore, shell: GroupShell) -> None:
        self._raft = raft
        self._shell = shell

    def is_all_applied(self, applied: Index) -> bool:
        """True if nothing is in the log that is not applied yet."""
        return self._raft.last_index == applied

    def propose(self, command: Command, tag: Done | None) -> bool:
        """Append a command to the log; its outcome goes to `tag` after apply. False: refused."""
        try:
            self._raft.propose(encode(command), command, tag)
        except (NotLeader, ProposalRejected):
            if callable(tag):
                self._shell.call_soon(tag, errors.Unserved())
            return False
        return True


def _call(callback: Callable[..., object], *args: object) -> object:
    return callback(*args)
