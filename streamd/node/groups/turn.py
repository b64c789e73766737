"""Turn of a group: its time, and what it asks of the shell."""

from __future__ import annotations

from collections.abc import Callable

from streamd.machine.base import Effects
from streamd.raft.messages import Message, SnapshotOffer
from streamd.raft.ready import Token
from streamd.types import Entry, HardState, Index, NodeId, Uid


class TurnTime:
    """Time of the turn that runs: the same for everything that is done in it."""

    __slots__ = ("ms", "ns")

    def __init__(self) -> None:
        self.ms = 0  # monotonic
        self.ns = 0  # wall clock


class Turn:
    """Requests of one turn to the shell, in the order in which they must be carried out."""

    __slots__ = (
        "alerts",
        "checkpoints",
        "effects",
        "has_members_news",
        "has_role_changed",
        "is_stopping",
        "more",
        "newcomers",
        "ready_callbacks",
        "send_now",
        "snapshot_offer",
        "snapshot_wanted",
        "writes",
    )

    def __init__(self) -> None:
        # ((uid, entries, hard state, truncate_from), token): log them, then post Durable(token)
        self.writes: list[tuple[tuple[Uid, list[Entry], HardState | None, Index], Token]] = []
        self.send_now: list[tuple[NodeId, Message]] = []
        self.effects = Effects()
        self.ready_callbacks: list[Callable[[], object]] = []  # barriers that have been passed
        self.more = False
        self.is_stopping = False
        self.snapshot_wanted = False
        self.snapshot_offer: tuple[NodeId, SnapshotOffer] | None = None  # what we lack is there
        self.checkpoints: list[tuple[Index, int]] = []  # (applied index, fingerprint) to compare
        # The leader, its term, whether it is this node, or whether this member is certain.
        self.has_role_changed = False
        # As leader: what the next step of a change of members may have waited for.
        self.has_members_news = False
        # Members that were none before this turn: the core may not know of the links to them.
        self.newcomers: tuple[NodeId, ...] = ()
        self.alerts: list[str] = []
