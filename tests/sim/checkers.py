"""What must hold after every step, whoever crashed: Raft's safety, acks that are durable, replicas
that equal the fold of the log.

`Truth` is what the cluster has ever committed, as the first member to hand it out said; every other
member must say the same. Beside it runs one machine per group that applies exactly that: its digest
at each index is what any replica at that index must have, however it got there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

from streamd.machine import commands
from streamd.machine.base import APPEND, Effects
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.group import Group
from streamd.raft.core import RaftCore
from streamd.raft.messages import AppendReply, Certify, Message, VoteReply
from streamd.raft.ready import Ready
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.record_format import MSG, Record, scan
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import META_UID, Entry, Index, Msg, NodeId, Seq, Term, Uid
from tests.sim.cuts import cut_of_machine
from tests.sim.disk import SimDisk
from tests.sim.durability import Durability
from tests.sim.extension_models import ExtensionModel, Letters
from tests.sim.feature_models import FeatureModel
from tests.sim.growth import AckDisks
from tests.sim.node import FoldColumns
from tests.sim.owed import Owed
from tests.sim.world import Violation, World, need

# What these store is not, or need not be, what they bring.
_MADE = frozenset(
    (
        commands.COPY, commands.STORE_SCHEDULED, commands.STORE_SCHEDULED_BATCH, commands.FIRE,
        commands.STORE_FAST, commands.IMPORT,
    )
)  # fmt: skip
_STORING = _MADE | {commands.STORE, commands.STORE_BATCH, commands.EXPIRE}


class Truth:
    """One group's committed log, and the machine that applied it."""

    def __init__(self, machine: Any, columns: FoldColumns | None) -> None:
        self.machine: Any = machine
        self.entries: list[tuple[Term, int]] = [(0, 0)]  # by index: (term, chain)
        self.prints: list[tuple[int, int, int]] = [_print_of(machine)]  # by index
        self._known_in: list[Term] = [0]  # by index: the term of whoever committed it first
        self.content: dict[Seq, Msg] = {}  # every message ever stored
        self.rewrites = 0  # how often a block took the place of others
        self.removals = 0  # how often messages left in steps
        self.markers = 0  # of subjects that age has emptied
        self.owed: Owed | None = None  # who wants what, if that is looked at
        self.features: FeatureModel | None = None  # likewise, of counters, schedules, ...
        self.extensions: ExtensionModel | None = None  # likewise, of dead letters, ...
        self.copied_behind: dict[Seq, Seq] = {}  # of a mirror's: the position before its entry
        self.cuts: dict[Index, str] | None = None  # by index, from when somebody wants them
        self._columns = columns

    def begin_cuts(self) -> None:
        """Keep from now on what the stream and its consumers are at each index."""
        if self.cuts is None:
            self.cuts = {self.last: cut_of_machine(self.machine)}

    @property
    def last(self) -> Index:
        return len(self.entries) - 1

    def last_in(self, term: Term) -> Index:
        """The last index committed in a term up to `term`. A leader of that term has it; one whose
        votes came late need not have what leaders of later terms have committed meanwhile."""
        return bisect_right(self._known_in, term) - 1

    def add(self, entry: Entry, term: Term) -> list[tuple[str, dict[str, Any]]]:
        """Apply the next entry, committed in `term`; return what the meta machine says of it."""
        out = Effects()
        copy = Entry(entry.term, entry.index, entry.data, tag=entry.index)
        if self.features is not None:
            self.features.before(copy)
        self.machine.apply(copy, out)
        need(not out.ignored, f"an entry that is no command was committed: {out.ignored}")
        self.entries.append((entry.term, entry.chain))
        self._known_in.append(max(term, self._known_in[-1]))
        self.prints.append(_print_of(self.machine))
        if self._columns is not None:
            for op in out.block_ops:
                self._columns.note(op)
            self._note_content(copy, out)
            if self.features is not None and copy.command is not None:
                is_storing = copy.command[0] in _STORING
                stored = _appended(out) if is_storing else []
                self.features.after(copy.command, stored, out)
            if self.extensions is not None and copy.command is not None:
                self.extensions.after(copy.command)
            if self.cuts is not None:
                self.cuts[self.last] = cut_of_machine(self.machine)
            if self.owed is not None:
                self.owed.note(copy)
                wrong = self.owed.differences() if entry.index % 4 == 0 else ""
                need(not wrong, wrong)
        return out.events

    def _note_content(self, entry: Entry, out: Effects) -> None:
        command = entry.command
        if command is None:
            return
        if command[0] in _MADE or self.machine.limits.is_counter:
            if command[0] in _STORING:
                self._note_appended(out)
            if command[0] == commands.COPY:
                self.copied_behind.update((seq, command[4]) for seq in command[6])
        elif command[0] == commands.STORE:
            outcome = out.outcomes[-1][1]
            assert isinstance(outcome, list | range), outcome
            for msg, result in zip(command[2], outcome, strict=True):
                if type(result) is int:
                    self.content[result] = tuple(msg)
        elif command[0] == commands.STORE_BATCH:
            outcome = out.outcomes[-1][1]
            if type(outcome) is tuple:
                last, count = outcome
                for seq, msg in zip(range(last - count + 1, last + 1), command[3], strict=True):
                    self.content[seq] = tuple(msg)
        elif command[0] == commands.REWRITE and out.outcomes[-1][1] is True:
            self.rewrites += 1
        elif command[0] == commands.REMOVE:
            self.removals += 1
        elif command[0] == commands.EXPIRE:  # it may leave markers
            self.markers += self._note_appended(out)

    def _note_appended(self, out: Effects) -> int:
        found = _appended(out)
        for record in found:
            self.content[record.seq] = (record.subject, record.headers, record.payload)
        return len(found)


def _appended(out: Effects) -> list[Record]:
    """Messages that an entry has stored."""
    blobs = [bytes(op[3]) for op in out.block_ops if len(op) == 4 and op[0] == APPEND]
    return [record for blob in blobs for record in scan(blob) if record.type == MSG]


def _print_of(machine: Any) -> tuple[int, int, int]:
    return machine.digest, machine.fingerprint(), crc32(machine.snapshot())


class Checkers:
    """All checks of one run. The cluster calls them; they raise Violation."""

    def __init__(self, world: World, disks: dict[NodeId, SimDisk]) -> None:
        self.world = world
        self.truths: dict[Uid, Truth] = {META_UID: Truth(MetaMachine(), None)}
        self.assets: dict[Uid, StreamAsset] = {}  # every stream there ever was
        self.durability = Durability(world, disks, self.assets)
        self.on_asset: list[Callable[[str, StreamAsset], None]] = []
        self.sees_owed = False
        self.sees_features = False
        self.letters: Letters | None = None  # if dead letters are looked at
        self.voters: Callable[[Uid], set[NodeId]] = lambda uid: set()  # in force now
        self.ack_disks: AckDisks | None = None
        self._leaders: dict[tuple[Uid, Term], NodeId] = {}
        self._votes: dict[tuple[Uid, Term, NodeId], NodeId] = {}
        # Streams in memory whose copies were lost on a majority: nothing can be said of them.
        self.forfeited: set[Uid] = set()
        self._forgot: dict[Uid, set[NodeId]] = {}  # of a stream in memory: who must be told again
        self._seen: dict[int, tuple[Group, Index]] = {}  # by id(group): applied when last looked at

    # --- streams by name --------------------------------------------------------------------

    def uid_of(self, name: str) -> Uid:
        """Return the uid of the stream that has a name now. Raises Violation if none has."""
        asset = self._asset_of(name)
        if asset is None:
            raise Violation(f"no stream has the name {name}")
        return asset.uid

    def named(self, name: str) -> Truth | None:
        """Return what is committed to the stream that has a name now, if anything is."""
        asset = self._asset_of(name)
        return self.truths.get(asset.uid) if asset is not None else None

    def truth_of(self, name: str) -> Truth:
        """Return the same. Raises Violation if there is nothing."""
        truth = self.named(name)
        if truth is None:
            raise Violation(f"nothing was ever committed to {name}")
        return truth

    def _asset_of(self, name: str) -> StreamAsset | None:
        assets: Iterable[StreamAsset] = self.truths[META_UID].machine.streams_by_uid.values()
        return next((asset for asset in assets if asset.name == name), None)

    # --- streams in memory ------------------------------------------------------------------

    def process_ended(self, name: NodeId) -> None:
        """What this node had in memory is gone."""
        for uid, asset in self.truths[META_UID].machine.streams_by_uid.items():
            if asset.config["storage"] != "memory" or uid in self.forfeited:
                continue
            voters = self.voters(uid)
            if asset.peers and name not in (*asset.peers, *asset.members, *voters):
                continue
            forgot = self._forgot.setdefault(uid, set())
            forgot.add(name)
            # Who was in the group when meta last heard of it may be all who vote in it; and while
            # it grows, fewer vote than meta names.
            if not asset.peers or any(
                2 * len(forgot.intersection(who)) > len(who)
                for who in (asset.peers, asset.members, voters)
            ):
                self.forfeited.add(uid)
                self.world.counts["memory streams forfeited"] += 1
                self.world.note(f"stream {uid} in memory is forgotten by {sorted(forgot)}")

    def _note_remembered(self, name: NodeId, group: Group, last: Index) -> None:
        forgot = self._forgot.get(group.uid)
        if forgot and name in forgot and group.machine.applied >= last > 0:
            if not group.raft.is_uncertain:
                forgot.discard(name)
                self.world.counts["memory streams remembered again"] += 1

    # --- Raft -------------------------------------------------------------------------------

    def on_take(self, core: RaftCore, ready: Ready | None) -> None:
        """A core has given out what follows from its inputs."""
        log = core.log
        if core.group in self.forfeited:
            return
        need(log.emitted <= log.commit, f"{_who(core)} applies {log.emitted} > {log.commit}")
        if core.is_leader:
            self._check_leader(core)
        if ready is None:
            return
        if ready.committed:
            is_first = False
            for entry in ready.committed:
                is_first = self._on_committed(core, entry)
            if core.is_leader and core.group != META_UID and self.ack_disks is not None:
                self.ack_disks.on_committed(core)
            if core.is_leader or is_first:
                self.durability.on_committed(core, ready.committed[-1])
        if ready.snapshot_wanted is not None:
            self.world.reached("snapshot wanted")

    def _check_leader(self, core: RaftCore) -> None:
        key = (core.group, core.term)
        known = self._leaders.get(key)
        if known is not None:
            need(known == core.node_id, f"{known} and {_who(core)} both lead term {core.term}")
            return
        self._leaders[key] = core.node_id
        self.world.counts["elections"] += 1
        self.world.note(f"{_who(core)} leads term {core.term}")
        truth = self.truths.get(core.group)
        last = truth.last_in(core.term) if truth is not None else 0
        if truth is None or not last:
            return
        log = core.log
        need(core.last_index >= last, f"{_who(core)} leads without {last}: {core.last_index}")
        if last >= log.base_index:
            found = log.entry_id(last)
            need(found == truth.entries[last], f"{_who(core)} leads with another entry {last}")

    def _on_committed(self, core: RaftCore, entry: Entry) -> bool:
        """Compare an entry with what is known to be committed; True if it was not known yet."""
        truth = self.truths.get(core.group)
        if truth is None:
            truth = self._begin(core.group)
        index = entry.index
        if index <= truth.last:
            found = (entry.term, entry.chain)
            need(
                found == truth.entries[index],
                f"{_who(core)} commits another entry {index}: {found}, not {truth.entries[index]}",
            )
            return False
        need(index == truth.last + 1, f"{_who(core)} commits {index} after {truth.last}")
        self.world.counts["entries"] += 1
        self.world.note(f"{_who(core)} commits {index} of {entry.term} {entry.chain:08x}")
        rewrites, removals, markers = truth.rewrites, truth.removals, truth.markers
        events = truth.add(entry, core.term)
        self.world.counts["blocks rewritten"] += truth.rewrites - rewrites
        self.world.counts["removals in steps"] += truth.removals - removals
        self.world.counts["markers"] += truth.markers - markers
        if truth.owed is not None:
            self.world.counts["retentions checked"] += 1
        for kind, fields in events:
            if core.group == META_UID and "asset" in fields:
                asset = fields["asset"]
                self.assets[asset.uid] = asset
                self.world.counts[kind] += 1
                for tell in self.on_asset:
                    tell(kind, asset)
        return True

    def _begin(self, uid: Uid) -> Truth:
        asset = self.assets.get(uid)
        need(asset is not None, f"group {uid} commits, but no committed entry created it")
        assert asset is not None
        columns = FoldColumns()
        machine = StreamMachine(
            uid=uid, config=asset.created_config, created_ns=asset.created_ns, codec=BlockCodec(),
            columns=columns,
        )  # fmt: skip
        truth = self.truths[uid] = Truth(machine, columns)
        if self.sees_owed:
            truth.owed = Owed(machine)
        if self.sees_features:
            truth.features = FeatureModel(machine)
        if self.letters is not None:
            truth.extensions = self.letters.follow(uid, machine, truth.content)
        return truth

    def on_send(self, sender: NodeId, receiver: NodeId, uid: Uid, messages: list[Message]) -> None:
        """A member says something to another."""
        if uid in self.forfeited:
            return
        for message in messages:
            if type(message) is AppendReply:
                self.durability.on_reply(sender, receiver, uid, message)
            elif type(message) is Certify:
                self.durability.on_certify(receiver, uid)
            elif type(message) is VoteReply and message.is_granted and not message.is_pre:
                self.durability.on_vote(sender, uid, message)
                key = (uid, message.term, sender)
                known = self._votes.setdefault(key, receiver)
                need(
                    known == receiver,
                    f"{sender}/{uid} votes for {known} and {receiver} in term {message.term}",
                )

    # --- replicas ---------------------------------------------------------------------------

    def after_turn(self, name: NodeId, group: Group) -> None:
        """A group has had a turn: it must be what the log says."""
        if group.failure or group.uid in self.forfeited:
            return
        machine = group.machine
        applied = machine.applied
        seen = self._seen.get(id(group))
        if seen is not None and seen[0] is group and seen[1] == applied:
            return
        self._seen[id(group)] = (group, applied)
        truth = self.truths.get(group.uid)
        if truth is None:
            need(applied == 0, f"{name}/{group.uid} has applied {applied} of nothing")
            return
        need(applied <= truth.last, f"{name}/{group.uid} has applied {applied} > {truth.last}")
        found = _print_of(machine)
        need(
            found == truth.prints[applied],
            f"{name}/{group.uid} at {applied} has (digest, fingerprint) {found}, the fold of the "
            f"log {truth.prints[applied]}",
        )
        self.world.counts["states checked"] += 1
        if self._forgot:
            self._note_remembered(name, group, truth.last)
        if isinstance(machine, StreamMachine):
            _check_consumers(name, machine)

    def check_equal(self, name: NodeId, group: Group) -> None:
        """At the end of a run: all of a replica's state, not only its digest."""
        truth = self.truths.get(group.uid)
        if truth is None or group.machine.applied != truth.last:
            return
        machine = group.machine
        if isinstance(machine, MetaMachine):
            have, want = machine.streams_by_key, truth.machine.streams_by_key
            need(have == want, f"{name}: streams {sorted(have)}, not {sorted(want)}")
            return
        assert isinstance(machine, StreamMachine)
        have_state, want_state = machine.state(), truth.machine.state()
        need(have_state == want_state, f"{name}/{group.uid}: {have_state} != {want_state}")
        for consumer_name, consumer in truth.machine.consumers.items():
            want_c = consumer.to_state()
            have_c = machine.consumers[consumer_name].to_state()
            need(have_c == want_c, f"{name}/{group.uid}/{consumer_name}: {have_c} != {want_c}")


def _check_consumers(name: NodeId, machine: StreamMachine) -> None:
    last = machine.index.last_seq
    for consumer in machine.consumers.values():
        floor, delivered = consumer.floor_sseq, consumer.delivered_sseq
        begins = int(consumer.config.get("opt_start_seq") or 0)  # beyond the end, if so wished
        need(
            floor <= delivered <= max(last, begins - 1),
            f"{name}/{machine.uid}/{consumer.name}: {floor=} {delivered=} {last=}",
        )


def _who(core: RaftCore) -> str:
    return f"{core.node_id}/{core.group}"


class Probes:
    """Looks into every core and monitor of this process, for one run at a time.

    The real classes are wrapped while the probes are set and as they were afterwards.
    """

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Probes:
        from streamd.node.cluster.turn_reports import TurnReports
        from streamd.node.groups.monitor import Monitor
        from streamd.node.groups.turn import Turn

        checkers = self._checkers
        take = RaftCore.take
        end = Monitor._end

        def probed_take(core: RaftCore, max_entries: int, max_bytes: int) -> Ready | None:
            ready = take(core, max_entries, max_bytes)
            checkers.on_take(core, ready)
            return ready

        def probed_end(monitor: Monitor, err: Exception | None) -> None:
            if isinstance(err, Violation):
                raise err
            if err is not None and not _is_expected(err):
                group = monitor._group
                who = f"{group.raft.node_id}/{group.uid}"
                raise Violation(f"{who} failed: {type(err).__name__}: {err}") from err
            end(monitor, err)

        follow = TurnReports.follow

        def probed_follow(reports: TurnReports, uid: Uid, turn: Turn) -> None:
            # Only a faulty proposer logs what no machine can apply: what it held would be lost.
            need(not turn.effects.ignored, f"entries of {uid} passed over: {turn.effects.ignored}")
            follow(reports, uid, turn)

        release = Wal.release

        def probed_release(wal: Wal, group: Uid, index: Index, term: Term, chain: int) -> None:
            checkers.durability.on_release(wal._disk, group, index)  # type: ignore[arg-type]
            release(wal, group, index, term, chain)

        self._set(TurnReports, "follow", probed_follow)
        self._set(Wal, "release", probed_release)
        self._set(RaftCore, "take", probed_take)
        self._set(Monitor, "_end", probed_end)
        return self

    def _set(self, owner: type, name: str, value: Any) -> None:
        before = owner.__dict__[name]
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def __exit__(self, *exc: object) -> None:
        while self._undo:
            self._undo.pop()()


def _is_expected(err: Exception) -> bool:
    """True for what a disk can do to a group; anything else is a bug of ours."""
    from streamd.errors import CorruptionError, DiskError

    return isinstance(err, (CorruptionError, DiskError, OSError))
