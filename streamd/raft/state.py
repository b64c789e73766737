"""What one member of one group knows: all fields of the core, and nothing that changes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from streamd.errors import CorruptionError
from streamd.memory_share import MemoryShare
from streamd.raft import membership
from streamd.raft.election import FOLLOWER, Ballot, Dice
from streamd.raft.history import LogPosition
from streamd.raft.log import LogReader, RaftLog
from streamd.raft.membership import Membership
from streamd.raft.messages import SnapshotOffer
from streamd.raft.ready import Outgoing, ReadState, Token, Write
from streamd.raft.replication import Leadership
from streamd.types import Entry, Index, LogState, NodeId, Term, Uid

NEVER = 0
"""`deadline_ms` of a core that no passing of time can move."""

LED_TERMS_MAX = 64  # remembered of a member; entries of earlier ones count as another leader's


class State:
    """Fields of one member of one group. Used only as the base of `Member`."""

    __slots__ = (
        "_alerts",
        "_ballot",
        "_dice",
        "_dropped",
        "_election_ms",
        "_emit_to",
        "_everybody",
        "_excused_ms",
        "_hard_state_changed",
        "_has_diverged",
        "_has_news",
        "_has_told",
        "_heartbeat_ms",
        "_held",
        "_hinted",
        "_is_certified",
        "_is_sole",
        "_leadership",
        "_live",
        "_may_have_voted",
        "_opening",
        "_outbox",
        "_patience_ms",
        "_read_states",
        "_role_changed",
        "_snapshot_wanted",
        "_token",
        "_tries",
        "_uncommitted_bytes",
        "_writes",
        "certified_index",
        "commit_delay_ms",
        "deadline_ms",
        "first_commit",
        "forgetful",
        "group",
        "heard_ms",
        "is_incomplete",
        "is_leader",
        "is_leader_ready",
        "is_quiescent",
        "is_uncertain",
        "leader_id",
        "led_terms",
        "left_at",
        "log",
        "may_begin_anew",
        "named",
        "node_id",
        "nonce",
        "now_ms",
        "role",
        "term",
        "vote",
    )

    def __init__(
        self,
        *,
        group: Uid,
        node_id: NodeId,
        voters: Sequence[NodeId],
        log: LogState,
        reader: LogReader,
        now_ms: int,
        seed: int,
        applied: Index = 0,
        election_ms: int = 1000,
        heartbeat_ms: int = 250,
        learners: Sequence[NodeId] = (),
        members: Membership | None = None,
        is_uncertain: bool = False,
        is_incomplete: bool = False,
        may_begin_anew: bool = False,
        named: frozenset[NodeId] = frozenset(),
        left_at: tuple[Term, Index] = (0, 0),
        windows: MemoryShare | None = None,
        history: Iterable[LogPosition] = (),
    ) -> None:
        """Start from what storage has: `log`, and a snapshot at `applied` whose members were
        `voters` and `learners` (or `members`, if it was taken amid a joint change).

        `is_uncertain`: it may have forgotten votes or entries it acknowledged (see `doubt`); also
        if its hard state says so. `is_incomplete`: the log is whole, but the machine's state
        below it is missing; then `applied` may be anything up to the start of the log.
        `may_begin_anew`: what all members have forgotten is gone, and the group may go on without
        it: an uncertain member may stand, and wins if all voters, or a majority that remembers,
        grant it; whoever has a longer log does not. `named`: who belongs to the group, or will,
        whatever its log says: it may have been told a part of before they came, or have lost it.
        They must be among the voters for that, and are asked who leads. `left_at`:
        (term, index) of the last entry of an earlier member of this node, which was destroyed when
        it had left; nobody with less is granted a vote while there is a doubt. `windows`: shared by
        the logs of the node. `history`: of entries up to the snapshot.

        Reads the durable log once, and raises CorruptionError if it does not fit together.
        """
        self.group = group
        self.node_id = node_id
        self.is_uncertain = is_uncertain or log.hard_state.is_uncertain
        self.is_incomplete = is_incomplete
        self.may_begin_anew = may_begin_anew
        self.named = named
        self.left_at = left_at
        if self.is_uncertain:
            # The hint may be younger than the entries that are left: let a leader verify them.
            log = log._replace(hard_state=log.hard_state._replace(commit=0))
        self.log = RaftLog(
            log,
            reader,
            applied=max(applied, log.first_index - 1) if is_incomplete else applied,
            membership=members or membership.simple(voters, learners),
            windows=windows,
            history=history,
        )
        self.term: Term = log.hard_state.term
        self.vote: NodeId = log.hard_state.vote
        # Was a voter at some time, or can't say: entries may rest on what it acked.
        self._may_have_voted = self.is_uncertain
        if self.term < self.log.last_term:
            # Its vote is lost as well: it could vote twice in a term (I12).
            if not self.is_uncertain:
                raise CorruptionError(
                    f"hard state has term {self.term}, the log already term {self.log.last_term}"
                )
            self.term, self.vote = self.log.last_term, ""
        self.leader_id: NodeId | None = None
        self.first_commit: Index = 0  # the first commit index that a leader told us; 0: none yet
        self.role = FOLLOWER
        self.is_leader = False
        self.led_terms: deque[Term] = deque(maxlen=LED_TERMS_MAX)  # since it was made
        self.forgetful: set[NodeId] = set()  # who elected it, and not a majority that remembers
        self.is_leader_ready = False  # the no-op of this term was given out as committed
        self.now_ms = now_ms  # as last told; see the module
        self.heard_ms = now_ms - election_ms  # last sign of a leader; none yet
        self.deadline_ms = NEVER
        self.commit_delay_ms = 0  # how long a leader lets a commit index wait for entries
        self._election_ms = election_ms
        self._heartbeat_ms = heartbeat_ms
        self._patience_ms = election_ms  # of this follower; drawn anew with each role it takes
        self._dice = Dice(seed)
        self.nonce = 0  # differs from one life of a member to the next; the shell's to set
        self._ballot = Ballot()
        self._everybody: frozenset[NodeId] = frozenset()  # who must agree; see `stand_in`
        self._opening = b""  # the command that its term begins with if they do
        self._leadership: Leadership | None = None
        self._is_sole = False
        self._excused_ms = 0  # when it last was found to have stood still; see the core
        self._tries = 0  # lost elections in a row, since a leader was heard
        self._live: frozenset[NodeId] | None = None  # nodes with a link up; None: never told
        self.is_quiescent = False  # nothing is under way and time may pass
        self._has_diverged = False
        self._has_told = False  # anybody what its log holds, since it was made
        self._token: Token = 0
        self._writes: deque[Write] = deque()  # handed out, not reported
        self._held: list[Outgoing] = []  # rest on what the next write carries
        self._outbox: list[Outgoing] = []
        # Durable before it promises anything: who restarts must know that it cannot remember.
        self._hard_state_changed = self.is_uncertain and not log.hard_state.is_uncertain
        self.certified_index: Index = 0  # what came later was never forgotten; 0: not certified
        self._is_certified = False  # a write says that we are certain; not yet reported
        self._hinted: Index = log.hard_state.commit
        self._emit_to: Index = self.log.emitted
        if not is_incomplete:
            self._emit_to = min(self.log.commit, self.log.stable)
        self._uncommitted_bytes = 0
        self._read_states: list[ReadState] = []
        self._role_changed = False
        self._dropped: list[Entry] = []
        self._alerts: list[str] = []
        self._snapshot_wanted: tuple[NodeId, SnapshotOffer] | None = None
        self._has_news = False  # any of the three above
        self._begin()

    def _begin(self) -> None:
        """Take the first role: `Roles` knows which."""
        raise NotImplementedError
