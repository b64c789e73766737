"""A stream's state, made anew from what its blocks hold, where its snapshots are lost. Pure.

Which messages are live: those that a block has and no tombstone names; nor the basis, which is what
of an earlier state is known for certain (a snapshot, or the outline), if there is any. Without one,
what left from the front of the stream since its blocks were written is back, for the blocks do not
say that; with one, only what left after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from streamd.machine import command_shapes, commands, message_headers
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.base import REWRITTEN, Effects
from streamd.machine.consumers.consumer import PARKED
from streamd.machine.digest import MASK64, mix_all
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.live_messages import MessagesState
from streamd.machine.indexes.seqset import SeqSet
from streamd.machine.snapshot import StreamState
from streamd.machine.streams import producers, publish
from streamd.machine.streams.counters import Total, read_total, write_integer
from streamd.machine.streams.dedupe import DedupeState, DedupeWindow
from streamd.machine.streams.origins import MIRROR, Origins, named_in_header
from streamd.machine.streams.producers import Producers
from streamd.machine.streams.schedules import UNKNOWN_DUE
from streamd.machine.streams.stream import StreamMachine
from streamd.machine.streams.stream_content import FeaturesState
from streamd.types import Entry, Msg, Seq

_FROM_NOW: tuple[str, ...] = ("new", "last", "last_per_subject")  # deliver policies

Range = tuple[Seq, Seq]


class Part(NamedTuple):
    """The messages of one block's file, dead ones too."""

    block_no: int
    ranges: Sequence[Range]
    first_ts: int
    last_ts: int
    digest: int  # of them all
    end_offset: int
    is_sealed: bool
    is_whole: bool  # nothing that the block held is missing

    @property
    def message_count(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


class Assembly:
    """The messages of a stream, put together from parts."""

    def __init__(self, basis: StreamState | None, parts: Iterable[Part]) -> None:
        self._dead = SeqSet()
        self._last_ts = 0
        self._floor: Seq = 1
        self._known_to: Seq = 0  # of what came later, nobody knows whether it was deleted
        self.last_seq: Seq = 0
        self.listed: dict[int, int] = {}  # blocks that the basis knows, and their live messages
        tail_no = 0
        if basis is not None:
            first, last, _, _, _, last_ts, deleted, rows = basis.messages
            self._floor, self._known_to, self.last_seq, self._last_ts = first, last, last, last_ts
            for low, high in SeqSet.from_state(deleted).ranges():
                self._dead.add_range(low, high)
            self.listed, tail_no = {row[0]: row[6] for row in rows if row[5]}, rows[-1][0]
        chosen = [
            part for part in parts if part.block_no >= tail_no or part.block_no in self.listed
        ]
        numbers = [part.block_no for part in chosen if part.block_no < REWRITTEN]
        self._newest_no = max([tail_no, *numbers])
        self.parts = self._without_replaced(chosen)
        self._present = SeqSet()
        for part in self.parts:
            for low, high in part.ranges:
                self._present.add_range(low, high)
            if part.ranges:
                self.note_seq(part.ranges[-1][1])
                self._last_ts = max(self._last_ts, part.last_ts)

    def _without_replaced(self, parts: list[Part]) -> list[Part]:
        """In order of their seqs; of those that hold the same, the one that came last. What a
        rewritten block lacks of those whose place it took was dead by then."""
        kept: list[Part] = []
        for part in sorted(parts, key=_newest_first):
            if not part.ranges:
                continue
            low, high = part.ranges[0][0], part.ranges[-1][1]
            over = [one for one in kept if one.ranges[0][0] <= high and low <= one.ranges[-1][1]]
            if not over:
                kept.append(part)
                continue
            held = SeqSet()
            for one in over:
                for pair in one.ranges:
                    held.add_range(*pair)
            if all(one.is_whole for one in over):
                for first, last in part.ranges:
                    self._dead.add_all(seq for seq in range(first, last + 1) if seq not in held)
        kept.sort(key=lambda part: part.ranges[0][0])
        return kept

    def note_seq(self, seq: Seq) -> None:
        """This seq was given out."""
        self.last_seq = max(self.last_seq, seq)

    def bury(self, ranges: Iterable[Range]) -> None:
        """Return the seqs that a tombstone names."""
        for low, high in ranges:
            self._dead.add_range(low, high)
            self.note_seq(high)

    def is_live(self, seq: Seq) -> bool:
        return seq >= self._floor and seq not in self._dead and seq in self._present

    def live_count(self, part: Part) -> int:
        dead = self._dead
        total = 0
        for low, high in part.ranges:
            low = max(low, self._floor)
            if low <= high:
                total += high - low + 1 - (dead.count_below(high + 1) - dead.count_below(low))
        return total

    def gaps(self) -> tuple[list[Range], list[Range]]:
        """Seqs that no block has and nobody deleted: those that the basis knows to have been
        there, and those of which nobody knows; inclusive ranges."""
        known = self._dead.copy()
        for low, high in self._present.ranges():
            known.add_range(low, high)
        lost: list[Range] = []
        unknown: list[Range] = []
        first = self._floor
        if not self._known_to:
            first = next((low for low, _ in known.ranges()), first)
        for low, high in (*known.ranges(), (self.last_seq + 1, self.last_seq + 1)):
            if first < low:
                if first <= self._known_to:
                    lost.append((first, min(low - 1, self._known_to)))
                if low - 1 > self._known_to:
                    unknown.append((max(first, self._known_to + 1), low - 1))
            first = max(first, high + 1)
        return lost, unknown

    def messages(self, digests: dict[int, int]) -> MessagesState:
        """As a snapshot would have it (`StreamIndex.to_state`); how many bytes they are is for the
        index to count. `digests`: of the live messages of parts that have dead ones."""
        blocks: list[Block] = []
        count = digest = 0
        active: Block | None = None
        for part in self.parts:
            block = Block(part.block_no)
            block.first_seq, block.last_seq = part.ranges[0][0], part.ranges[-1][1]
            block.first_ts, block.last_ts = part.first_ts, part.last_ts
            block.count, block.live = part.message_count, self.live_count(part)
            block.digest = digests.get(part.block_no, part.digest) if block.live else 0
            block.end_offset, block.is_sealed = part.end_offset, part.is_sealed
            count += block.live
            digest += block.digest
            if not block.is_sealed:
                active = block
            elif block.live:
                blocks.append(block)
        blocks.append(active or Block(self._newest_no + 1))
        first_seq = self.last_seq + 1
        deleted = SeqSet()
        if count:
            first_seq = next(seq for seq in self._live_seqs())
            for low, high in (*self._dead.ranges(), *self.gaps()[0], *self.gaps()[1]):
                deleted.add_range(max(low, first_seq), min(high, self.last_seq))
        return MessagesState(
            first_seq, self.last_seq, count, 0, digest & MASK64, self._last_ts, deleted.to_state(),
            [block.to_state() for block in blocks],
        )  # fmt: skip

    def _live_seqs(self) -> Iterable[Seq]:
        for part in self.parts:
            for low, high in part.ranges:
                seq = self._dead.next_absent(max(low, self._floor))
                while seq <= high:
                    yield seq
                    seq = self._dead.next_absent(seq + 1)

    def digest_of(self, columns: Columns) -> int:
        """Return the digest of the live messages of a block."""
        pairs = zip(columns.seqs_between(0, len(columns)), columns.crcs, strict=True)
        live = [pair for pair in pairs if self.is_live(pair[0])]
        return mix_all([seq for seq, _ in live], [crc for _, crc in live])


def _newest_first(part: Part) -> tuple[bool, int]:
    """Rewritten blocks, the latest first, before those that they may have replaced; a damaged one
    says less than what is whole."""
    is_rewritten = part.block_no >= REWRITTEN and part.is_whole
    return not is_rewritten, -part.block_no


class Headers:
    """Facts that headers of messages hold and a snapshot would have had: the ids seen lately, and
    when messages with a TTL are due. `basis`: a state that has the ids up to its last seq."""

    def __init__(self, config: StreamConfig, basis: StreamState | None) -> None:
        self._window = DedupeWindow(int(config.get("duplicate_window") or 0))
        self._allows_ttl = bool(config.get("allow_msg_ttl"))
        self._known_to: Seq = 0
        self._last: tuple[Seq, bytes] = (0, b"")
        if basis is not None:
            self._last = basis.messages[1], basis.last_msg_id
            if basis.dedupe[0]:
                self._window.load(basis.dedupe)
                self._known_to = basis.messages[1]
        self.due: list[list[int]] = []
        self._is_counter = bool(config.get("allow_msg_counter"))
        self._totals: dict[bytes, list[Total]] = {}  # by subject, ascending
        self._has_schedules = bool(config.get("allow_msg_schedules"))
        self._known_dues: dict[Seq, int] = {}
        if basis is not None:
            for _, seq, due in basis.features.get("schedules", []):
                assert isinstance(seq, int) and isinstance(due, int), seq
                self._known_dues[seq] = due
        self._schedules: list[tuple[bytes, Seq]] = []  # ascending
        self._origins = Origins()
        if basis is not None:
            self._origins.load(basis.features.get("origins", []))
        self._producers = Producers()
        self._producers_known_to: Seq = 0
        self._is_mirror = bool(config.get("mirror"))  # its messages were its origin's producers'
        self._letters: list[list[bytes | int]] = []
        if basis is not None:
            self._producers.load(basis.features.get("producers", []))
            self._producers_known_to = basis.messages[1]
            self._letters = basis.features.get("letters", [])

    def note(self, headed: Iterable[tuple[Seq, int, bytes]]) -> None:
        """Messages with headers of the server's own, in order: (seq, time, headers)."""
        for seq, ts, headers in headed:
            fields = message_headers.server_headers(headers)
            msg_id = fields.get(publish.MSG_ID, b"")
            if msg_id and seq > self._known_to:
                self._window.forget_before(ts)
                self._window.remember(msg_id, seq=seq, ts=ts)
            if msg_id and seq > self._last[0]:
                self._last = seq, msg_id
            if producers.ID in fields and seq > self._producers_known_to:
                if not (self._is_mirror or publish.SOURCE in fields):
                    self._producers.observe(fields, seq=seq, ts=ts)
            named = named_in_header(fields[publish.SOURCE]) if publish.SOURCE in fields else None
            if named is not None:
                self._origins.advance(named[0], *named[1])
            value = fields.get(publish.TTL) if self._allows_ttl else None
            ttl_ns = message_headers.parse_ttl(value) if value else None
            if ttl_ns is not None and ttl_ns != message_headers.NEVER:
                self.due.append([ts + ttl_ns, seq])

    def note_kept(self, kept: Iterable[tuple[Seq, Msg]]) -> None:
        """Messages of which a snapshot keeps something: of counters, and schedules; in order."""
        for seq, (subject, headers, payload) in kept:
            total = read_total(seq, headers, payload) if self._is_counter else None
            if total is not None:
                self._totals.setdefault(subject, []).append(total)
            if self._has_schedules and publish.is_schedule(headers):
                self._schedules.append((subject, seq))

    def features(self, is_live: Callable[[Seq], bool]) -> FeaturesState:
        """As a snapshot would have them: each counter stands at what its newest message has, and a
        schedule is due when the basis says."""
        rows: list[list[bytes | int]] = []
        for subject, totals in sorted(self._totals.items()):
            live = [total for total in totals if is_live(total.seq)]
            if live:
                last = max(live, key=lambda total: total.seq)
                rows.append([subject, last.seq, write_integer(last.value), last.sources])
        schedules: dict[bytes, list[bytes | int]] = {}
        for subject, seq in self._schedules:
            if is_live(seq):  # the leader finds out when those are due of which nobody knows
                schedules[subject] = [subject, seq, self._known_dues.get(seq, UNKNOWN_DUE)]
        found = {
            "counters": rows,
            "origins": self._origins.to_state(),  # of each source its newest message
            "schedules": [row for _, row in sorted(schedules.items())],
            "producers": self._producers.to_state(),
            "letters": self._letters,
        }
        return {name: each for name, each in found.items() if each}

    def dedupe(self) -> DedupeState:
        """As a snapshot would have it."""
        return self._window.to_state()

    def id_of(self, seq: Seq) -> bytes:
        """The id of the message, if it is the last that has one."""
        return self._last[1] if self._last[0] == seq else b""


def follow(machine: StreamMachine, entries: Iterable[Entry], *, known_to: Seq) -> int:
    """Apply what entries say of consumers to a stream that has its messages already, and return how
    many did. A consumer that was created there begins after `known_to`, so that it misses nothing.
    """
    count = 0
    for entry in entries:
        command = command_shapes.admit(entry, _KINDS, Effects())
        if command is None or command[0] not in _OF_CONSUMERS:
            continue
        before = set(machine.consumers_by_uid)
        machine.follow(entry, command, Effects())
        count += 1
        for uid in machine.consumers_by_uid.keys() - before:
            consumer = machine.consumers_by_uid[uid]
            if consumer.config.get("deliver_policy", "all") in _FROM_NOW:
                consumer.begin_at(min(consumer.next_sseq, known_to + 1))
    return count


def close_gaps(machine: StreamMachine, entries: Iterable[Entry]) -> None:
    """Move each consumer of a state that the log does not directly follow to where the first
    delivery that the log has of it can be applied."""
    waiting = dict(machine.consumers_by_uid)
    cseqs: dict[int, int] = {}
    for entry in entries:
        command = command_shapes.admit(entry, _KINDS, Effects())
        if command is None or command[0] != commands.DELIVERED or command[2] not in waiting:
            continue
        uid = command[2]
        consumer = waiting[uid]
        if command[4] != consumer.resets:
            continue
        cseqs.setdefault(uid, command[3][0][2] - 1)
        new = [first for first, _, _, kind in command[3] if not kind or kind == PARKED]
        if new:
            del waiting[uid]
            consumer.skip_to(cseq=cseqs.pop(uid), sseq=new[0])
    for uid, cseq in cseqs.items():
        waiting[uid].skip_to(cseq=cseq, sseq=0)


HOLDER: Final = "RECOVERED"
_HOLDER_UID: Final = 1 << 62  # no log comes so far
_HOLDS_ALL: Final[ConsumerConfig] = {
    "durable_name": HOLDER,
    "description": "holds what the stream had for consumers that are not known any more",
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 30_000_000_000,
    "max_deliver": -1,
    "replay_policy": "instant",
    "max_waiting": 512,
    "max_ack_pending": 1000,
    "num_replicas": 0,
    "metadata": {"_nats.req.level": "0"},
}


def hold(machine: StreamMachine, now_ns: int) -> bool:
    """Add a consumer that waits for all messages, where the stream keeps only what a consumer waits
    for and some consumers may be forgotten: else the rest would leave at once. Returns if it
    did."""
    if machine.config.get("retention") != "interest" or not machine.index.count:
        return False
    if HOLDER not in machine.consumers:
        machine.add_consumer(uid=_HOLDER_UID, name=HOLDER, config=_HOLDS_ALL, created_ns=now_ns)
    return True


_OF_CONSUMERS = frozenset((
    commands.DELIVERED, commands.ACKED, commands.NAKED, commands.TERMED, commands.PROGRESS,
    commands.DEAD, commands.POSITION, commands.CREATE_CONSUMER, commands.DELETE_CONSUMER,
    commands.PAUSE_CONSUMER, commands.RESET_CONSUMER, commands.LETTERS_SENT,
))  # fmt: skip
_KINDS = _OF_CONSUMERS | {
    commands.STORE, commands.STORE_BATCH, commands.EXPIRE, commands.PURGE, commands.COPY,
    commands.STORE_SCHEDULED, commands.STORE_SCHEDULED_BATCH, commands.FIRE, commands.STORE_FAST,
}  # fmt: skip


def shortfall(entries: Iterable[Entry], last_seq: Seq, *, leaves_markers: bool) -> int:
    """Count the seqs, at least, that were given out before these entries and are beyond
    `last_seq`: by deliveries of what no publish among the entries can have stored."""
    known, short = last_seq, 0
    for entry in entries:
        command = command_shapes.admit(entry, _KINDS, Effects())
        if command is None:
            continue
        kind = command[0]
        if kind in (commands.STORE, commands.STORE_SCHEDULED, commands.STORE_FAST, commands.FIRE):
            known += len(command[2])
        elif kind in (commands.STORE_BATCH, commands.STORE_SCHEDULED_BATCH):
            known += len(command[3])
        elif kind == commands.COPY:
            known = max(known, command[5]) if command[2] == MIRROR else known + len(command[8])
        elif kind == commands.EXPIRE and leaves_markers:
            break  # how many it stored, nobody can say
        named = _highest_named(command)
        if named > known:
            short += named - known
            known = named
        if kind == commands.PURGE and not command[2] and command[3] > known + 1:
            known = command[3] - 1
    return short


def _highest_named(command: commands.Command) -> Seq:
    kind = command[0]
    if kind == commands.DELIVERED:
        return max((item[1] for item in command[3]), default=0)
    if kind == commands.POSITION:
        return int(command[3])
    return 0
