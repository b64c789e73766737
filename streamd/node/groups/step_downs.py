"""Step-downs: requests that this member hands leadership to another one, until it has."""

from __future__ import annotations

from collections.abc import Callable

from streamd import errors, limits
from streamd.node.groups.group_shell import GroupShell
from streamd.node.groups.inbox import StepDown
from streamd.node.groups.turn import Turn, TurnTime
from streamd.raft.core import ProposalRejected, RaftCore


class StepDowns:
    """Requests of one group that are under way; `done(True)` once this node leads no more."""

    __slots__ = ("_now", "_raft", "_shell", "_waiting")

    def __init__(self, raft: RaftCore, shell: GroupShell, now: TurnTime) -> None:
        self._raft = raft
        self._shell = shell
        self._now = now
        self._waiting: list[
            tuple[int, Callable[[bool | errors.JsError], object]]
        ] = []  # (deadline, done)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, request: StepDown) -> None:
        """Transfer leadership to another member, the preferred one if it is named."""
        raft, done = self._raft, request.done
        target = raft.transfer_target(request.preferred) if raft.is_leader else ""
        if not target:
            outcome = errors.CLUSTER_NOT_AVAIL() if raft.is_leader else True
            self._shell.call_soon(done, outcome)
            return
        try:
            raft.transfer(target)
        except ProposalRejected:
            self._shell.call_soon(done, errors.CLUSTER_NOT_AVAIL())
            return
        self._waiting.append((self._now.ms + limits.TRANSFER_MS, done))

    def poll(self, turn: Turn) -> None:
        """Answer those that came true, and those that took too long."""
        waiting = []
        for deadline_ms, done in self._waiting:
            if not self._raft.is_leader:
                turn.effects.outcomes.append((done, True))
            elif self._now.ms >= deadline_ms:
                turn.effects.outcomes.append((done, errors.CLUSTER_NOT_AVAIL()))
            else:
                waiting.append((deadline_ms, done))
        self._waiting = waiting

    def next_ms(self) -> int:
        """Return the earliest deadline, monotonic ms; 0: none waits."""
        return min((deadline_ms for deadline_ms, _ in self._waiting), default=0)

    def end(self) -> None:
        """Refuse all that wait: the group takes no turn any more."""
        for _, done in self._waiting:
            self._shell.call_soon(done, errors.CLUSTER_NOT_AVAIL())
        self._waiting = []
