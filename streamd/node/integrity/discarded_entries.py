"""`DiscardedEntries`: sets aside entries that were, or may have been, committed and are void now.

Where disks keep what they are given, no such entry exists: a leader has all that was committed.
With an older copy of a directory in its place, or an end of a log that a disk dropped, a majority
may elect a leader that lacks some. Nothing can be done about that here; but a member that still has
those entries must not discard them without a word. They go to a file in `trash/` first
(`store/blocks/discarded_entries_file.py`), and the log, /metrics and /healthz tell. `streamctl
discarded` shows and publishes them.

An entry is known to be committed if the member has been told so, or its log says so: each write
says how far the group was committed when it was made (`Wal.hint`). What came after the last such
hint of an earlier life may have been committed, and acknowledged by whoever led then. So may what
came from another leader since: that hears of an ack, and so commits, some milliseconds before the
follower is told. What this process itself has appended as leader, and not committed, was
acknowledged to nobody.

A member discards entries in three places: where it truncates, since a leader has other ones
(`GuardedLog`); where it begins anew, because its log differs in what was committed
(`keep_conflict`); and where a snapshot takes the place of its log (`keep_before_install`). Groups
in memory keep nothing that could be set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from streamd import errors, limits
from streamd.errors import DiskError, StreamdError
from streamd.machine import commands
from streamd.machine.commands import Command
from streamd.machine.rfc3339 import format_ns
from streamd.machine.streams.stream import StreamMachine
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.group import Group
from streamd.node.groups.monitor import Monitor
from streamd.node.ports import Answer, Peers
from streamd.node.replicas.group_control import GroupControl
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.raft.history import Common, LogPosition, last_common
from streamd.raft.membership import is_membership
from streamd.store.blocks.discarded_entries_file import (
    COMMITTED,
    LED,
    OPEN,
    Tail,
    TailFacts,
    TailWriter,
    file_name,
    is_tail,
    tails_in,
    text_fields,
)
from streamd.store.disk import Thread
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import (
    ACCOUNT,
    META_UID,
    Entry,
    HardState,
    Index,
    Msg,
    NodeId,
    Seq,
    StoredMsg,
    StreamKey,
    Term,
    Uid,
)

T = TypeVar("T")
Write = tuple[Uid, list[Entry], HardState | None, Index]
"""See monitor.GroupLog."""

META_NAME = "_meta_"
_FEW = 64  # entries that are looked at before they are set aside

Then = Callable[[BaseException | None], None]
"""Called once: with None when the log may let go, or with what went wrong."""

_WORDS = {
    value: name
    for name, value in vars(commands).items()
    if name.isupper() and type(value) is int and value > 0
}


class _Start(NamedTuple):
    """State of a member's log when it was opened."""

    last: Index  # later entries came in this process's life
    led_in: Term  # the term in which it voted for itself; 0: for another, or it can't know
    is_uncertain: bool  # what it had may be no part of the truth


class VoidedEntries(Protocol):
    """Keeper of the entries that a log is about to void: `DiscardedEntries`."""

    def concerns(self, uid: Uid, first: Index) -> bool: ...

    def keep_voided(self, uid: Uid, first: Index, then: Then) -> None: ...


class GuardedLog:
    """Log of one group with peers, as its monitor has it. Implements `monitor.GroupLog`.

    Where a write voids entries that have to be set aside, it and all that follow wait for that.
    """

    def __init__(self, keeper: VoidedEntries, wal: Wal, uid: Uid) -> None:
        self._keeper = keeper
        self._wal = wal
        self._uid = uid
        self._waiting: list[tuple[list[Write], Callable[[], None]]] | None = None
        self._is_over = False
        self._post: Callable[[inbox.InboxMessage], None] | None = None
        self.flush = wal.flush
        self.release = wal.release

    def append(
        self,
        writes: list[Write],
        done: Callable[[], None],
    ) -> None:
        if self._waiting is not None:
            self._waiting.append((writes, done))
        elif not writes[0][3] or not self._keeper.concerns(self._uid, writes[0][3]):
            self._wal.append(writes, done)
        else:
            self._waiting = [(writes, done)]
            first = writes[0][3]
            # What is under way is in the log by then.
            self._wal.append([], lambda: self._keeper.keep_voided(self._uid, first, self._kept))

    def follow(self, monitor: Monitor) -> None:
        """Serve that monitor, to its end."""
        self._post = monitor.post
        monitor.on_stopped.append(self._end)

    def _end(self) -> None:
        """Drop what waits, since the group has stopped: no client was told of it."""
        self._is_over = True
        self._waiting = []

    def _kept(self, err: BaseException | None) -> None:
        if self._is_over:
            return
        if err is not None:
            self._waiting = []  # and what comes is not written either: the log keeps its entries
            assert self._post is not None
            self._post(inbox.Failed(err))
            return
        waiting, self._waiting = self._waiting or [], None
        for writes, done in waiting:
            self._wal.append(writes, done)


class DiscardedEntries:
    """Discarded entries of one node's groups. `trash` is the directory they go to."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        peers: Peers | None,
        trash: str,
        control: GroupControl,
    ) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._trash = trash
        self._control = control
        self._starts: dict[Uid, _Start] = {}
        self._busy: set[Uid] = set()  # groups that begin anew once their tail is set aside
        self.count = 0  # set aside since the start: of committed entries, or those of a leader
        self.open_count = 0  # and of entries that may or may not have been committed
        self.found: list[Tail] = []  # in `trash/`, when it was last read

    # --- the node's life ----------------------------------------------------------------------

    def start(self) -> None:
        """Tell the log how far groups are committed, and report what earlier starts have set
        aside until it is taken away. The log is open."""
        context = self._context
        if context.is_clustered:  # alone, no group voids anything
            context.wal.commit_of = self._commit_of
        with suppress(OSError):  # it may be no directory at all
            if any(map(is_tail, context.env.disk.listdir(self._trash))):
                self._refresh()

    def _refresh(self) -> None:
        """Read what `trash/` holds, and again in a while if it holds something."""
        context = self._context

        def seen(result: list[Tail] | BaseException) -> None:
            if not isinstance(result, BaseException):
                self.found = result
            if self.found:
                context.timers.later("tails", limits.TAILS_EVERY_S, self._refresh)

        context.block_thread.submit(lambda: tails_in(context.env.disk, self._trash), seen)

    @property
    def reasons(self) -> dict[StreamKey, str]:
        """Streams of which `trash/` has what was acknowledged, or may have been, and where."""
        known = self._groups.meta.streams_by_uid
        found: dict[StreamKey, str] = {}
        for tail in self.found:
            facts, uid = tail.facts, tail.facts.group
            if facts.proof != OPEN and (uid == META_UID or uid in known):
                text = f"log entries {facts.first_index}..{facts.last_index}"
                if tail.messages:
                    text += f", messages {tail.first_seq}..{tail.last_seq}"
                word = "were" if facts.proof == COMMITTED else "may have been"
                text += f" {word} acknowledged, are not in the stream, and are kept in {tail.path}"
                found[known[uid].key if uid else (ACCOUNT, META_NAME)] = text
        return found

    def record_start(self, raft: RaftCore) -> None:
        """Record a member that was made from what the log holds of it."""
        has_led = raft.vote == raft.node_id and not raft.is_uncertain
        self._starts[raft.group] = _Start(
            raft.last_index, raft.term if has_led else 0, raft.is_uncertain
        )

    def forget(self, uid: Uid) -> None:
        """Remove a group that is gone from here; what was set aside of it stays."""
        self._starts.pop(uid, None)
        self._busy.discard(uid)

    def log_of(self, uid: Uid) -> GuardedLog:
        """Return the log for a group with peers."""
        return GuardedLog(self, self._context.wal, uid)

    def _commit_of(self, uid: Uid) -> Index:
        group = self._groups.group_of(uid)
        if group is None or group.raft.log.is_sole:
            return 0  # alone, a group voids nothing
        return group.raft.log.commit

    # --- what may be lost -----------------------------------------------------------------------

    def concerns(self, uid: Uid, first: Index) -> bool:
        """False if the entries from `first` on, which are not committed as far as the member was
        told, are surely those that it appended as leader in this process's life: then nobody was
        told that they are. `_keep` looks at the entries themselves."""
        start, group = self._starts.get(uid), self._groups.group_of(uid)
        if start is None or group is None:
            return False
        if first <= start.last or first <= self._context.wal.hint(uid):
            return True
        return group.raft.members.is_voter(self._context.name)

    def keep_voided(self, uid: Uid, first: Index, then: Then) -> None:
        """Set aside the entries from `first` on: a leader has other ones."""
        group = self._groups.group_of(uid)
        if group is None:
            then(DiskError(f"group {uid} ended"))
            return
        # Not by what the core knows now: that is committed of the leader's entries.
        self._keep(group, Common(first - 1, is_exact=True), then, commit=0)

    def keep_conflict(self, uid: Uid, reason: str) -> None:
        """Begin a member anew, as one that is recovering, once what the leader does not have is set
        aside: its log is not the leader's in what was committed."""
        group = self._groups.group_of(uid)
        if group is None or uid in self._busy:
            return
        if not self._is_logged(uid):
            self._control.repair(uid, reason, is_log_void=True)
            return
        self._busy.add(uid)
        leader = group.raft.leader_id

        def kept(err: BaseException | None) -> None:
            self._busy.discard(uid)
            if self._groups.group_of(uid) is not group:
                return  # it was stopped for something else meanwhile, and will differ again
            if err is None:
                self._control.repair(uid, reason, is_log_void=True)
            else:
                self.fail(uid, err)

        def answered(result: object) -> None:
            if self._groups.group_of(uid) is not group:
                self._busy.discard(uid)
                return
            history: list[LogPosition] = []
            last = 0
            if isinstance(result, dict):
                history = [LogPosition(*row) for row in result["positions"]]
                last = result["last"]
            # Without an answer: all there is, of which the leader may have the most.
            common = self._common(group, history, last) or Common(0, is_exact=False)
            self._keep(group, common, kept, commit=group.raft.commit)

        if leader and self._peers is not None:
            self._peers.call(leader, "terms", [uid], answered)
        else:
            answered(None)

    def check_before_install(self, uid: Uid) -> Callable[[Index, tuple[LogPosition, ...]], bool]:
        """Return a judge of snapshots, for any thread: True if what this member has leads to the
        snapshot, or it is the newer one of two that nobody can tell apart."""
        group = self._groups.group_of(uid)
        if group is None or not self._is_logged(uid):
            return lambda index, terms: True
        last = group.raft.last_index
        ours = group.raft.log.history(last)

        def leads(index: Index, theirs: tuple[LogPosition, ...]) -> bool:
            common = last_common(ours, last, theirs, index)
            return common is None or common.index >= min(index, last)

        return leads

    def keep_before_install(
        self, uid: Uid, index: Index, history: tuple[LogPosition, ...], then: Then
    ) -> None:
        """Set aside what a snapshot at `index` does not have, whose entries have this history, and
        which is about to take the place of a group's log and state."""
        group = self._groups.group_of(uid)
        if group is None or not self._is_logged(uid):
            then(None)
            return
        common = self._common(group, history, index)
        last = group.raft.last_index
        if common is None or common.index >= min(index, last):
            # The log leads to the snapshot, or the snapshot to what follows; or nobody can tell.
            then(None)
            return
        self._keep(group, common, then, commit=group.raft.commit)

    def serve_terms(self, sender: NodeId, args: tuple[Uid], answer: Answer) -> None:
        """Answer the call `terms`, from a follower whose log differs: [uid]."""
        group = self._groups.group_of(args[0])
        if group is None or not group.raft.is_leader:
            answer(errors.CLUSTER_NOT_AVAIL())
            return
        log = group.raft.log
        answer({"positions": log.history(log.last_index), "last": log.last_index})

    def serve_held(
        self, sender: NodeId, args: tuple[Uid, list[tuple[Seq, int, int]]], answer: Answer
    ) -> None:
        """Answer the call `held`: [uid, [[seq, time, crc], ...]]; for each, is that message
        here?"""
        uid, rows = args
        replica = self._groups.get(uid)
        if replica is None or len(rows) > limits.TAIL_LOOK_SEQS:
            answer(errors.CLUSTER_NOT_AVAIL())
            return
        index = replica.machine.index
        answer(
            [
                bool(index.locations.locate(seq))
                and (index.locations.ts_at(seq), index.locations.crc_at(seq)) == (ts, crc)
                for seq, ts, crc in rows
            ]
        )

    # --- setting aside --------------------------------------------------------------------------

    def _common(self, group: Group, theirs: Sequence[LogPosition], last: Index) -> Common | None:
        log = group.raft.log
        return last_common(log.history(log.last_index), log.last_index, theirs, last)

    def _is_logged(self, uid: Uid) -> bool:
        replica = self._groups.get(uid)
        return uid == META_UID or (replica is not None and replica.is_file)

    def _keep(self, group: Group, common: Common, then: Then, *, commit: Index) -> None:
        """Set aside the log's entries after the `common` ones, if they were committed or may have
        been. The member knows that they were up to `commit`, or what the log says."""
        context, uid, first = self._context, group.uid, common.index + 1
        wal = context.wal
        start = self._starts.get(uid, _Start(0, 0, is_uncertain=False))
        state = wal.group(uid)
        if state is None:
            then(None)
            return
        # A log that lost something says of what is left no more than that it may have been so.
        hint = 0 if start.is_uncertain else wal.hint(uid)
        committed_to = max(hint, commit)
        is_committed = first <= committed_to
        last, end_term, end_chain = state.first_index - 1, state.prev_term, state.prev_chain
        if state.last_index > last:
            try:
                end = wal.read(uid, state.last_index, state.last_index + 1, 0)[0]
            except StreamdError as err:
                then(err)
                return
            last, end_term, end_chain = end.index, end.term, end.chain
        try:
            is_nothing = last < first or not (
                is_committed or self._may_matter(group, start, first, last)
            )
        except StreamdError as err:
            then(err)
            return
        if is_nothing:
            then(None)
            return
        proof = LED if end_term == start.led_in else OPEN
        stream = group.machine.name if isinstance(group.machine, StreamMachine) else ""
        facts = TailFacts(
            stream=stream,
            group=uid,
            node=context.name,
            leader=group.raft.leader_id or "",
            first_index=first,
            last_index=last,
            last_term=end_term,
            committed_to=committed_to,
            applied_to=group.machine.applied,
            proof=COMMITTED if is_committed else proof,
            is_exact=common.is_exact,
            set_aside=format_ns(context.env.clock.now_ns()),
        )
        name = file_name(uid, first, last, end_chain)
        writer = TailWriter(context.env.disk, self._trash, name, facts)

        def written(result: Tail | BaseException | None) -> None:
            if isinstance(result, BaseException):
                then(result)
                return
            if result is not None:
                self._tell(result)
            then(None)

        source = _Source(group, self._groups.get(uid), wal, self._peers)
        _Keeping(source, context.block_thread, writer, facts, written).begin()

    def _may_matter(self, group: Group, start: _Start, first: Index, last: Index) -> bool:
        """False if nobody can have been told that these entries are committed, or all that is in
        them is that somebody began to lead."""
        if first <= start.last:
            return self._says_something(group.uid, first, last)
        if not group.raft.members.is_voter(self._context.name):
            return False  # its acks commit nothing
        led = group.raft.led_terms
        at = first
        while at <= last:
            for entry in self._context.wal.read(group.uid, at, last + 1, limits.TAIL_PIECE_BYTES):
                if entry.term not in led and _is_news(entry):
                    return True
                at = entry.index + 1
        return False

    def _says_something(self, uid: Uid, first: Index, last: Index) -> bool:
        """False if all that is in these few entries is that somebody began to lead."""
        state = self._context.wal.group(uid)
        if state is None or first < state.first_index or last - first >= _FEW:
            return True
        entries = self._context.wal.read(uid, first, last + 1, limits.TAIL_PIECE_BYTES)
        return entries[-1].index < last or any(map(_is_news, entries))

    def _tell(self, tail: Tail) -> None:
        context, facts = self._context, tail.facts
        told: dict[str, object] = {
            "stream": facts.stream or META_NAME,
            "group": facts.group,
            "entries": f"{facts.first_index}..{facts.last_index}",
            "messages": tail.messages,
            "seqs": f"{tail.first_seq}..{tail.last_seq}",
            "leader": facts.leader,
            "path": tail.path,
        }
        if not self.found:
            context.timers.later("tails", limits.TAILS_EVERY_S, self._refresh)
        self.found = [*self.found, tail]
        if facts.proof == COMMITTED:
            self.count += 1
            context.log.error(
                "entries that were committed are not in the leader's log: set aside",
                committed_to=facts.committed_to, **told,
            )  # fmt: skip
        elif facts.proof == LED:
            self.count += 1
            context.log.error(
                "entries of this node's time as leader, which may have been acknowledged, are not "
                "in the new leader's log: set aside", **told,
            )  # fmt: skip
        else:
            self.open_count += 1
            context.log.warn(
                "entries that may have been committed are not in the leader's log: set aside",
                **told,
            )

    def fail(self, uid: Uid, err: BaseException) -> None:
        """Stop a group, with every byte it has: what it holds can't be set aside."""
        monitor = self._groups.monitor_of(uid)
        if monitor is not None:
            text = f"entries that the leader does not have can't be set aside: {err}"
            monitor.post(inbox.Failed(DiskError(text)))


class _Source(NamedTuple):
    """Places where the entries of a group can be read."""

    group: Group
    replica: LocalStream | None  # of a stream
    wal: Wal
    peers: Peers | None


class _Keeping:
    """Way of a tail to its file, a piece at a time: the log is read by the event loop, the file is
    written by the block thread. Entries that the log has compacted, because a snapshot of this
    member covers them, are in the stream: the newest messages that the leader does not have."""

    def __init__(
        self,
        source: _Source,
        thread: Thread,
        writer: TailWriter,
        facts: TailFacts,
        done: Callable[[Tail | BaseException | None], None],
    ) -> None:
        self._source = source
        self._thread = thread
        self._writer = writer
        self._facts = facts
        self._done = done
        machine = source.group.machine
        index = machine.index if isinstance(machine, StreamMachine) else None
        self._messages = index  # of a stream: where its messages are
        # Entries that are not applied yet are counted from the first such.
        self._at = min(facts.first_index, facts.applied_to + 1)
        self._seq: Seq = index.last_seq + 1 if index is not None else 0
        self._stored: list[Seq] = []  # to be read of the stream, ascending

    def begin(self) -> None:
        """Begin the file; the rest follows by itself."""
        self._submit(self._writer.begin, self._begun)

    def _begun(self, is_new: bool) -> None:
        facts, index = self._facts, self._messages
        if not is_new:
            self._done(None)
            return
        state = self._source.wal.group(facts.group)
        if state is None or facts.first_index >= state.first_index or index is None:
            self._next()
            return
        # Entries that the log has compacted: up to the first message of those that it still has.
        end = index.last_seq + 1
        at = state.first_index
        while at <= min(state.last_index, facts.applied_to):
            entry = self._source.wal.read(facts.group, at, at + 1, 0)[0]
            _, seq = self._place(entry)
            if seq:
                end = seq
                break
            at += 1
        self._find_stored(end)

    # --- what the stream has --------------------------------------------------------------------

    def _find_stored(self, end: Seq) -> None:
        """Find the messages before `end`, down to the newest that the leader has as well."""
        index, peers = self._messages, self._source.peers
        assert index is not None
        first = max(index.first_seq, end - limits.TAIL_LOOK_SEQS)
        seqs = list(index.live.seqs(first, end - 1)) if first < end else []
        if not seqs or peers is None:
            self._read_stored()
            return

        def answered(result: list[bool] | StreamdError) -> None:
            # Nobody to ask: all there is.
            held = result if isinstance(result, list) else [False] * len(seqs)
            at = max((number for number, is_held in enumerate(held) if is_held), default=-1)
            self._stored = seqs[at + 1 :] + self._stored
            if at >= 0:
                self._read_stored()
            else:
                self._find_stored(first)

        # A leader whose clock is behind gives the next moment, and so does another.
        rows = [[seq, index.locations.ts_at(seq), index.locations.crc_at(seq)] for seq in seqs]
        peers.call(self._facts.leader, "held", [self._facts.group, rows], answered)

    def _read_stored(self) -> None:
        replica = self._source.replica
        if not self._stored or replica is None:
            self._next()
            return
        piece = self._stored[: limits.TAIL_READ_MSGS]
        self._stored = self._stored[limits.TAIL_READ_MSGS :]

        def read(found: list[StoredMsg | None] | None) -> None:
            if found is None:
                self._done(DiskError("messages that the leader does not have can't be read"))
                return
            msgs = [message for message in found if message is not None]
            records = list(map(_stored, msgs))
            self._submit(lambda: self._writer.add(records), lambda result: self._read_stored())

        replica.read(piece, read)

    # --- what the log has -----------------------------------------------------------------------

    def _next(self) -> None:
        uid, last = self._facts.group, self._facts.last_index
        if self._at > last:
            self._submit(self._writer.finish, self._done)
            return
        state = self._source.wal.group(uid)
        if state is None:
            self._done(DiskError(f"group {uid} ended"))
            return
        try:
            at = max(self._at, state.first_index)
            if at > last:
                self._submit(self._writer.finish, self._done)
                return
            entries = self._source.wal.read(uid, at, last + 1, limits.TAIL_PIECE_BYTES)
        except StreamdError as err:
            self._done(err)
            return
        self._at = entries[-1].index + 1
        rows = [(entry, *self._place(entry)) for entry in entries]
        first = self._facts.first_index
        rows = [row for row in rows if row[0].index >= first]
        self._submit(lambda: self._writer.add(_records(rows)), lambda result: self._next())

    def _place(self, entry: Entry) -> tuple[Command | None, Seq]:
        """Return the command of an entry, and the sequence of the first of its messages."""
        index = self._messages
        if not entry.data or is_membership(entry.data):
            return None, 0
        command = commands.decode(entry.data)
        msgs = _messages_of(command)
        if index is None or not msgs:
            return command, 0
        if entry.index <= self._facts.applied_to:
            return command, index.locations.seq_at_time(command[1])
        seq = self._seq
        self._seq += len(msgs)
        return command, seq

    def _submit(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        def over(result: T | BaseException) -> None:
            if isinstance(result, BaseException):
                self._done(result)
            else:
                then(result)

        self._thread.submit(job, over)


def _stored(message: StoredMsg) -> dict[str, object]:
    return {"seq": message.seq, "time": format_ns(message.ts)} | text_fields(
        subject=message.subject, headers=message.headers, payload=message.payload
    )


def _messages_of(command: Command) -> list[Msg]:
    """Return the messages that an entry is to store; [] if it is none that stores."""
    place = {
        commands.STORE: 2,
        commands.STORE_BATCH: 3,
        commands.STORE_SCHEDULED: 2,
        commands.STORE_SCHEDULED_BATCH: 3,
        commands.COPY: 8,
        commands.STORE_FAST: 2,
    }.get(command[0])
    found: list[Msg] = command[place] if place is not None else []
    return found


def _is_news(entry: Entry) -> bool:
    """True if the entry may have changed what a client sees."""
    if not entry.data or is_membership(entry.data):
        return False
    return bool(commands.decode(entry.data)[0] != commands.CHECKPOINT)


def _records(rows: list[tuple[Entry, Command | None, Seq]]) -> list[dict[str, object]]:
    """A line for each message; for an entry without any, one that says what it is."""
    found: list[dict[str, object]] = []
    for entry, command, seq in rows:
        place: dict[str, object] = {"index": entry.index, "term": entry.term}
        if command is None:
            found.append(place | {"entry": "MEMBERS" if entry.data else "TERM"})
        elif seq:
            for number, (subject, headers, payload) in enumerate(_messages_of(command)):
                found.append(
                    place
                    | {"seq": seq + number, "time": format_ns(command[1] + number)}
                    | text_fields(subject=subject, headers=headers, payload=payload)
                )
        else:
            word = _WORDS.get(command[0], str(command[0]))
            found.append(place | {"entry": word} | text_fields(command=entry.data))
    return found
