"""Checkpoints: when the replicas of one group compare what they hold."""

from __future__ import annotations

from streamd import limits
from streamd.machine.base import Machine
from streamd.machine.commands import CHECKPOINT
from streamd.node.groups.group_shell import Proposer
from streamd.node.groups.turn import Turn, TurnTime
from streamd.raft.core import RaftCore
from streamd.types import Index


class Checkpoints:
    """Comparisons of one member: at an entry while the group works, or where it comes to rest."""

    __slots__ = ("_due_ms", "_index", "_is_at_rest", "_machine", "_now", "_proposer", "_raft")

    def __init__(self, raft: RaftCore, machine: Machine, proposer: Proposer, now: TurnTime) -> None:
        self._raft = raft
        self._machine = machine
        self._proposer = proposer
        self._now = now
        self._due_ms = 0  # 0: nothing changed since the last one
        self._index: Index = 0  # of the last one applied here
        self._is_at_rest = False  # and has said what it holds

    @property
    def due_ms(self) -> int:
        """Monotonic ms of the next one; 0: none is due."""
        return self._due_ms

    def clear_due(self) -> None:
        """Propose none for now: this node leads no more, or no other member is left."""
        self._due_ms = 0

    def on_applied(self, index: Index) -> None:
        """A checkpoint entry was applied."""
        self._index = index

    def on_peer_up(self) -> None:
        """A member came that missed what this one holds. If this one rests it says so again; a
        leader compares at an entry, unless the group rests before."""
        self._is_at_rest = False
        self._index = min(self._index, max(self._machine.applied - 1, 0))

    def poll(self) -> None:
        """As leader: propose, now and then, that all replicas compare what they hold."""
        now = self._now
        unchecked = self._machine.applied - self._index
        if unchecked <= 0:
            self._due_ms = 0
            return
        if self._due_ms == 0:
            self._due_ms = now.ms + limits.CHECKPOINT_EVERY_MS
        if unchecked >= limits.CHECKPOINT_ENTRIES or now.ms >= self._due_ms:
            self._due_ms = 0
            self._index = self._raft.last_index + 1
            self._proposer.propose([CHECKPOINT, now.ns, 0, 0], None)

    @property
    def has_rest_changed(self) -> bool:
        """True if the group came to rest, or woke, since `poll_rest` was called last."""
        return self._raft.is_quiescent != self._is_at_rest

    def poll_rest(self, turn: Turn, *, is_cheap: bool) -> None:
        """Compare where the group rests, if the fingerprint `is_cheap`: its members hold the same
        log then, and have applied it to its end, so nobody has to log that. (docs/adr/0030)"""
        raft, machine = self._raft, self._machine
        if not raft.is_quiescent:
            self._is_at_rest = False
        elif machine.applied == raft.last_index:
            self._is_at_rest = True
            if is_cheap:
                self._index, self._due_ms = machine.applied, 0
                turn.checkpoints.append((machine.applied, machine.fingerprint()))
