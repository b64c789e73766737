"""`StreamMachine`: the replicated state of one stream with its consumers.

`apply` turns committed entries into stored messages, deletions and consumer changes, and lays out
the blocks. It reads nothing but its state and the entry (I4); what follows goes to `Effects`. The
hot way is `_store_plain`: a batch of messages without headers costs a few C loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from streamd import errors
from streamd.machine import (
    commands,
    consumer_checks,
    msgheaders,
    publish,
    retention,
    snapshot,
    trimming,
)
from streamd.machine.audience import Audience
from streamd.machine.base import (
    APPEND,
    BLOCK_HEADER_BYTES,
    DROP,
    HAS_HEADERS,
    HAS_TTL,
    IS_NEVER,
    NO_MARKER,
    REWRITTEN,
    SEAL,
    ColumnSource,
    Effects,
    RecordCodec,
)
from streamd.machine.columns import Columns
from streamd.machine.commands import Command
from streamd.machine.consumer import Consumer
from streamd.machine.consumer_position import ConsumerPosition
from streamd.machine.dedupe import DedupeWindow
from streamd.machine.digest import MASK64, chain64
from streamd.machine.expiry import Expiry
from streamd.machine.index import StreamIndex
from streamd.machine.retention import Limits
from streamd.machine.seqset import as_ranges
from streamd.machine.trimming import Purged, Unwanted
from streamd.subjects import is_literal
from streamd.types import Entry, Index, Msg, Pieces, Seq, Uid

BLOCK_BYTES: Final = 8 * 1024 * 1024
_ROLL_DEAD_BYTES: Final = 1024 * 1024  # an all-dead active block this big is worth a new file

_FEW_CONSUMERS: Final = 16  # are asked one by one
_BULKY_PIECE_BYTES: Final = 4096  # on average: they are not copied together before they are read

Scan = Callable[[int, int], Iterable[Any]]
"""(block_no, end_offset) -> the block's records (store.format.Record)."""


class StreamMachine:
    """Implements machine.base.Machine for a stream group."""

    def __init__(
        self,
        *,
        uid: Uid,
        config: dict[str, Any],
        created_ns: int,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.uid = uid
        self.name: str = config["name"]
        self.name_bytes = self.name.encode()
        self.created_ns = created_ns
        self.applied: Index = 0
        self.config_meta_index: Index = uid
        self.config = config
        self.limits = Limits(config)
        self.index = StreamIndex(
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
            is_memory=config.get("storage", "file") == "memory",
            first_seq=int(config.get("first_seq") or 0) or 1,
        )
        self.index.track_seqs(self.limits.tracks_seqs)
        self.dedupe = DedupeWindow(int(config.get("duplicate_window") or 0))
        self.last_msg_id = b""
        self.consumers: dict[str, Consumer] = {}
        self.consumers_by_uid: dict[Uid, Consumer] = {}
        self._audience: Audience[Consumer] | None = None  # of `consumers`, as they are now
        self.expiry = Expiry(self.index)
        self._codec = codec
        self._scan: Scan | None = None
        self.index.rescan = self._rescan
        # What the entry being applied has done so far; empty between entries.
        self._blob: list[bytes] = []
        self._blob_offset = 0
        self._stored: list[tuple[Seq, Sequence[Msg]]] = []
        self._gone_seqs: list[Seq] = []
        self._gone_subjects: list[bytes] = []
        self._is_purged = False
        self._out: Effects | None = None
        self._handlers: dict[int, Callable[[Entry, Command, Effects], Any]] = {
            commands.STORE: self._apply_store,
            commands.STORE_BATCH: self._apply_store_batch,
            commands.DELIVERED: self._apply_to_consumer,
            commands.ACKED: self._apply_to_consumer,
            commands.NAKED: self._apply_to_consumer,
            commands.TERMED: self._apply_to_consumer,
            commands.PROGRESS: self._apply_to_consumer,
            commands.DEAD: self._apply_to_consumer,
            commands.POSITION: self._apply_to_consumer,
            commands.EXPIRE: self._apply_expire,
            commands.PURGE: self._apply_purge,
            commands.DELETE_MSG: self._apply_delete_msg,
            commands.CONFIGURE: self._apply_configure,
            commands.CREATE_CONSUMER: self._apply_create_consumer,
            commands.DELETE_CONSUMER: self._apply_delete_consumer,
            commands.PAUSE_CONSUMER: self._apply_pause_consumer,
            commands.RESET_CONSUMER: self._apply_reset_consumer,
            commands.CHECKPOINT: self._apply_checkpoint,
            commands.REWRITE: self._apply_rewrite,
            commands.REMOVE: self._apply_remove,
        }

    # --- the machine ----------------------------------------------------------------------------

    @property
    def digest(self) -> int:
        """64-bit content digest of the live messages (machine/digest.py)."""
        return self.index.digest

    def fingerprint(self) -> int:
        """See machine.base.Machine. Costs a little per consumer, nothing per message."""
        index = self.index
        consumers = 0
        for consumer in self.consumers.values():
            consumers += chain64(
                (
                    consumer.uid,
                    consumer.delivered_cseq,
                    consumer.delivered_sseq,
                    consumer.floor_cseq,
                    consumer.floor_sseq,
                    len(consumer.pending),
                    len(consumer.redelivered),
                )
            )
        return chain64(
            (
                self.digest,
                index.first_seq,
                index.last_seq,
                index.count,
                index.bytes,
                len(index.deleted),
                self.config_meta_index,
                len(self.consumers),
                consumers & MASK64,
            )
        )

    @property
    def tail(self) -> tuple[int, int]:
        """(block_no, offset) where the next record goes: all before it belongs to `applied`."""
        return self.index.active.block_no, self.index.active.end_offset

    def apply(self, entry: Entry, out: Effects) -> None:
        """See machine.base.Machine. Outcomes: machine/commands.py."""
        assert entry.index == self.applied + 1, (entry.index, self.applied)  # no gaps, no repeats
        command = commands.command_of(entry)
        if command is not None:
            self._out = out
            self.index.settle()
            self._blob_offset = self.index.active.end_offset
            outcome = self._handlers[command[0]](entry, command, out)
            self._finish(entry.index, command[1], out)
            if entry.tag is not None:
                out.outcomes.append((entry.tag, outcome))
        self.applied = entry.index

    def _finish(self, index: Index, ts: int, out: Effects) -> None:
        """Close the entry: tell consumers, write what it wrote as one blob, drop dead blocks."""
        if self._stored:
            self._tell_stored(out)
        tombstone = b""
        if self._gone_seqs or self._is_purged:
            tombstone = self._tell_gone(index, out)
        if self._blob or tombstone:
            active = self.index.active
            tail = tombstone + self._codec.encode_frame(index, ts)
            self.index.reserve(len(tail))
            self._blob.append(tail)
            pieces, self._blob = self._blob, []
            size = active.end_offset - self._blob_offset
            is_bulky = size >= len(pieces) * _BULKY_PIECE_BYTES
            blob = Pieces(pieces, size) if is_bulky else b"".join(pieces)
            assert self._blob_offset + len(blob) == active.end_offset, active.end_offset
            out.block_ops.append((APPEND, active.block_no, self._blob_offset, blob))
        if self._gone_seqs or self._is_purged or self.index.has_dead_blocks:
            self._drop_dead(out)
            self._gone_seqs = []
            self._gone_subjects = []
            self._is_purged = False

    def _tell_stored(self, out: Effects) -> None:
        if len(self.consumers) <= _FEW_CONSUMERS:
            for consumer in self.consumers.values():
                if consumer.needs_store_hook:
                    for first, msgs in self._stored:
                        consumer.on_stored_batch(first, [msg[0] for msg in msgs])
        else:
            audience = self._consumer_audience()
            for first, msgs in self._stored:
                subjects = [msg[0] for msg in msgs]
                for consumer in audience.of_all:
                    if consumer.needs_store_hook:
                        consumer.on_stored_batch(first, subjects)
                for consumer in audience.filtered(subjects):
                    consumer.on_stored_batch(first, subjects)
        first, msgs = self._stored[-1]
        out.stored_last = first + len(msgs) - 1
        self._stored = []

    def _tell_gone(self, index: Index, out: Effects) -> bytes:
        """Tell consumers what left; return the tombstone for what left from the middle."""
        seqs, subjects = self._gone_seqs, self._gone_subjects
        if self._is_purged:
            for consumer in self.consumers.values():
                consumer.on_purged(out)
        elif self.consumers:
            if any(a > b for a, b in pairwise(seqs)):
                order = sorted(range(len(seqs)), key=seqs.__getitem__)
                seqs = [seqs[at] for at in order]
                subjects = [subjects[at] for at in order]
            concerned = None
            if seqs and len(self.consumers) > _FEW_CONSUMERS:
                concerned = set(self._consumer_audience().filtered(subjects))
            for consumer in self.consumers.values():
                if (
                    concerned is None
                    or consumer.matcher is None
                    or consumer in concerned
                    or not consumer.is_untouched_by(seqs)
                ):
                    consumer.on_removed(seqs, subjects, out)
        # What left from the front is told by first_seq alone.
        first_seq = self.index.first_seq
        middle = sorted(seq for seq in seqs if seq > first_seq)
        return self._codec.encode_tombstone(as_ranges(middle), index) if middle else b""

    def _consumer_audience(self) -> Audience[Consumer]:
        if self._audience is None:
            self._audience = Audience((each, each.matcher) for each in self.consumers.values())
        return self._audience

    def _drop_dead(self, out: Effects) -> None:
        active = self.index.active
        if active.count and not active.live and active.end_offset >= _ROLL_DEAD_BYTES:
            self._roll(out)
        for block_no in self.index.take_dead_blocks():
            out.block_ops.append((DROP, block_no))

    def _roll(self, out: Effects) -> None:
        sealed, footer = self.index.roll()
        out.block_ops.append((SEAL, sealed.block_no, sealed.end_offset, footer))
        self._blob_offset = self.index.active.end_offset

    def snapshot(self) -> bytes:
        """See machine.base.Machine. Inverse: `restore`."""
        return self.freeze()()

    def freeze(self) -> Callable[[], bytes]:
        """What `snapshot` would return now; to be called later, in any thread."""
        return snapshot.freeze_stream(self)

    def index_db(self) -> bytes:
        """What `restore` can do without, but faster with: subjects and the newest columns."""
        return self.freeze_index()()

    def freeze_index(self) -> Callable[[], bytes]:
        """`index_db` likewise. What it copies is proportional to the number of subjects."""
        return snapshot.freeze_index(self)

    @classmethod
    def restore(
        cls,
        state: bytes,
        index_db: bytes | None,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        scan: Scan,
        block_bytes: int = BLOCK_BYTES,
    ) -> StreamMachine:
        """The machine as `snapshot` saw it. `index_db` that is missing or of another moment is
        replaced by reading the blocks."""
        found = snapshot.decode_stream(state)
        machine = cls(
            uid=found.uid,
            config=found.config,
            created_ns=found.created_ns,
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
        )
        machine._scan = scan
        snapshot.fill(machine, found, index_db)
        return machine

    def use_scan(self, scan: Scan) -> None:
        """Where to read a block's records if its footer turns out bad."""
        self._scan = scan

    def _rescan(self, block_no: int, end_offset: int) -> Columns:
        if self._scan is None:
            raise errors.CorruptionError(f"block {block_no}: no way to read it again")
        return snapshot.columns_from(self._scan(block_no, end_offset))

    # --- numbers --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The numbers of a StreamInfo's `state`; times in ns, 0 for none."""
        index = self.index
        is_new = not index.last_seq
        return {
            "messages": index.count,
            "bytes": index.bytes,
            "first_seq": 0 if is_new else index.first_seq,
            "first_ts": index.ts_at(index.first_seq) if index.count else 0,
            "last_seq": index.last_seq,
            "last_ts": index.last_ts,
            "num_subjects": len(index.subjects),
            "num_deleted": len(index.deleted),
            "consumer_count": len(self.consumers),
        }

    # --- storing --------------------------------------------------------------------------------

    def _apply_store(self, entry: Entry, command: Command, out: Effects) -> Any:
        msgs: list[Msg] = command[2]
        if self.index.is_block_full():
            self._roll(out)
        limits = self.limits
        ts = max(command[1], self.index.last_ts + 1)
        if limits.is_plain:
            size_max = limits.size_max
            for _, headers, payload in msgs:
                if headers or len(payload) > size_max:
                    break
            else:
                first = self._write(ts, msgs, None)
                self.last_msg_id = b""
                self._enforce(msgs)
                return range(first, first + len(msgs))
        return self._store_checked(ts, msgs, entry.index)

    def _write(self, ts: int, msgs: list[Msg], flags: list[int] | None) -> Seq:
        """Store `msgs`, admitted already, with the next seqs. Returns the first of them."""
        index = self.index
        pieces, lengths, crcs = self._codec.encode_batch(index.last_seq + 1, ts, msgs)
        first = index.append(first_ts=ts, msgs=msgs, lengths=lengths, crcs=crcs, flags=flags)
        self._blob += pieces
        self._stored.append((first, msgs))
        return first

    def _store_checked(self, ts: int, msgs: list[Msg], index: Index) -> list[Any]:
        """Store what passes the checks, in runs as long as no check needs to see them stored."""
        self.dedupe.forget_before(ts)
        outcomes: list[Any] = []
        run = _Run(self, ts)
        limits = self.limits
        is_plain = limits.is_plain
        size_max = limits.size_max
        find = self.dedupe.find
        for msg in msgs:
            _, headers, payload = msg
            if is_plain and len(headers) + len(payload) <= size_max:
                # Most messages have no header that means anything here, or just an id.
                msg_id = publish.simple_id(headers) if headers else b""
                if msg_id is not None:
                    seen = find(msg_id) if msg_id else 0
                    if seen:
                        outcomes.append((commands.DUPLICATE, seen))
                    else:
                        outcomes.append(run.add_simple(msg, msg_id))
                    continue
            fields: publish.Fields = {}
            if headers and b"Nats-" in headers:
                fields = msgheaders.server_headers(headers)
            if run.msgs and (limits.checks_room or (fields and publish.needs_state(fields))):
                self._store_run(run)
            verdict = publish.check(
                self, msg, fields, last_seq=run.last_seq, last_msg_id=self.last_msg_id
            )
            if not isinstance(verdict, publish.Admitted):
                outcomes.append(verdict)
                continue
            if self._is_uninteresting(msg[0]):
                self._store_run(run)
                outcomes.append(self._skip_one(run, verdict, index))
                continue
            seq = run.add(verdict)
            outcomes.append(seq)
            if verdict.rollup:
                self._store_run(run)
                self._roll_up(verdict.rollup, msg[0], seq)
        self._store_run(run)
        return outcomes

    def _store_run(self, run: _Run) -> None:
        msgs = run.msgs
        if msgs:
            lasts = self._last_seqs_before(msgs) if self.limits.republish else []
            first = self._write(run.first_ts, msgs, run.flags if any(run.flags) else None)
            assert first + len(msgs) - 1 == run.last_seq, (first, run.last_seq)
            if lasts and self._out is not None:
                self._republish(first, run.first_ts, msgs, lasts, self._out)
            self._enforce(msgs)
        run.restart()

    def _is_uninteresting(self, subject: bytes) -> bool:
        return self.limits.is_interest and not retention.has_interest(
            subject, self.consumers.values()
        )

    def _skip_one(self, run: _Run, verdict: publish.Admitted, index: Index) -> Seq:
        """Interest retention without interest: the seq is used up, nothing is stored."""
        seq = self.index.last_seq + 1
        record = self._codec.encode_skip(seq, seq, index)
        self.index.reserve(len(record))
        self._blob.append(record)
        self.index.skip(seq, seq)
        self.index.last_ts = run.first_ts
        self.last_msg_id = verdict.msg_id
        if verdict.msg_id:
            self.dedupe.remember(verdict.msg_id, seq=seq, ts=run.first_ts)
        run.restart()
        return seq

    def _apply_store_batch(self, entry: Entry, command: Command, out: Effects) -> Any:
        msgs: list[Msg] = [tuple(msg) for msg in command[3]]
        if self.index.is_block_full():
            self._roll(out)
        ts = max(command[1], self.index.last_ts + 1)
        self.dedupe.forget_before(ts)
        simple, admitted, refused = publish.check_batch(self, msgs)
        if refused is not None:
            return refused
        run = _Run(self, ts)
        seqs: list[Seq] = []
        if simple:
            run.add_all_simple(msgs[: len(simple)], simple)
        for one in admitted:
            if self._is_uninteresting(one.msg[0]):
                self._store_run(run)
                seqs.append(self._skip_one(run, one, entry.index))
                continue
            seqs.append(run.add(one))
        self._store_run(run)
        for one, seq in zip(admitted, seqs, strict=True):
            if one.rollup:
                self._roll_up(one.rollup, one.msg[0], seq)
        return (seqs[-1] if seqs else self.index.last_seq), len(msgs)

    def _last_seqs_before(self, msgs: list[Msg]) -> list[Seq]:
        """For each of `msgs`, stored next: the last seq of its subject before it; 0: none. Known
        now; once they are stored it would have to be looked for."""
        lasts: dict[bytes, Seq] = {}
        found: list[Seq] = []
        for seq, (subject, _, _) in enumerate(msgs, self.index.last_seq + 1):
            found.append(lasts[subject] if subject in lasts else self.index.last_of(subject))
            lasts[subject] = seq
        return found

    def _republish(
        self, first: Seq, ts: int, msgs: list[Msg], lasts: list[Seq], out: Effects
    ) -> None:
        for at, (subject, headers, payload) in enumerate(msgs):
            fields = {
                "stream": self.name,
                "subject": subject,
                "seq": first + at,
                "ts": ts + at,
                "last_seq": lasts[at],
                "headers": headers,
                "payload": payload,
            }
            out.events.append(("republish", fields))

    # --- removing -------------------------------------------------------------------------------

    def _remove(self, seqs: Sequence[Seq]) -> tuple[list[Seq], list[bytes], list[int]]:
        gone, subjects, flags = self.index.remove(seqs)
        self._gone_seqs += gone
        self._gone_subjects += subjects
        return gone, subjects, flags

    def _enforce(self, msgs: Sequence[Msg]) -> None:
        """Remove what the limits no longer allow after `msgs` were stored."""
        limits, index = self.limits, self.index
        if limits.max_per_subject > 0:
            self._enforce_per_subject({msg[0]: None for msg in msgs})
        if limits.is_discard_new:
            return  # what was let in stays, also when the limits are lowered later
        if retention.is_over_limits(index, limits):
            self._remove(retention.over_limits(index, limits))

    def _enforce_per_subject(self, names: Iterable[bytes]) -> None:
        allowed = self.limits.max_per_subject
        rows = self.index.subjects
        over: list[Seq] = []
        for name in names:
            row = rows.get(name)
            if row is not None and row[2] > allowed:
                over += retention.subject_seqs(self.index, name, row[2] - allowed)
        if over:
            over.sort()
            self._remove(over)

    def _roll_up(self, rollup: bytes, subject: bytes, seq: Seq) -> None:
        """Remove what `seq` replaces: all before it, of its subject or of the stream. A subject
        with wildcards is text for whoever reads, but here stands for all that it matches."""
        index = self.index
        if rollup == b"all":
            if seq == index.last_seq and index.is_live(seq):
                index.remove_all_but_newest()
            else:  # more of its batch came after it
                self._remove(list(index.live_seqs(index.first_seq, seq - 1)))
            self._is_purged = True
        elif index.count_of(subject) > 1 or not is_literal(subject):
            # All but the last, if it is that: the search ends when it has as many.
            is_last = index.last_of(subject) == seq
            self._remove(Purged(index, subject, 0 if is_last else seq, int(is_last)).step())

    def _apply_purge(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, pattern, seq, keep = command
        if self.limits.is_sealed:
            return errors.STREAM_SEALED()
        if self.limits.denies_purge:
            return errors.STREAM_PURGE_FAILED(err="stream purge not permitted")
        index = self.index
        is_of_all = not pattern or pattern == b">"
        if is_of_all and not keep and (not seq or seq > index.last_seq):
            self._is_purged = True
            count = index.remove_all()
            if seq > index.last_seq + 1:
                # A purge below a seq that is not used yet moves the stream on to it.
                record = self._codec.encode_skip(index.last_seq + 1, seq - 1, entry.index)
                index.reserve(len(record))
                self._blob.append(record)
                index.skip(index.last_seq + 1, seq - 1)
            return count
        found = Purged(index, pattern, seq, keep).step()
        self._remove(found)
        # What is purged below a seq is no longer what consumers wait for, even if they hold acks.
        self._is_purged = is_of_all
        return len(found)

    def _apply_remove(self, entry: Entry, command: Command, out: Effects) -> Any:
        ranges: list[Seq] = command[2]
        seqs: list[Seq] = []
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            seqs += self.index.live_seqs(first, last)
        self._remove(seqs)
        return len(seqs)

    def _apply_delete_msg(self, entry: Entry, command: Command, out: Effects) -> Any:
        seq: Seq = command[2]
        if self.limits.is_sealed:
            return errors.STREAM_SEALED()
        if self.limits.denies_delete:
            return errors.STREAM_MSG_DELETE_FAILED(err="message delete not permitted")
        if self.config.get("storage", "file") == "file":  # clients see which it is
            if seq > self.index.last_seq:
                return errors.STREAM_MSG_DELETE_FAILED(err="stream store EOF")
            if seq < self.index.first_seq:
                return errors.STREAM_MSG_DELETE_FAILED(err="no message found")
        if not self.index.is_live(seq):
            return errors.SEQUENCE_NOT_FOUND(seq=seq)
        self._remove([seq])
        return True

    def _apply_expire(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, ts, up_to, seqs = command
        index = self.index
        due: list[Seq] = []
        if up_to:
            due = list(index.live_seqs(index.first_seq, up_to))
            if self.limits.allows_ttl:
                due = [seq for seq in due if not index.flags_at(seq) & IS_NEVER]
        named = [seq for seq in seqs if index.is_live(seq)]
        if named:
            due = sorted({*due, *named})
        if not due:
            return 0
        gone, subjects, flags = self._remove(due)
        if self.limits.marker_ttl_ns > 0:
            self._leave_markers(max(ts, index.last_ts + 1), subjects, flags, out)
        return len(gone)

    def _leave_markers(
        self, ts: int, subjects: list[bytes], flags: list[int], out: Effects
    ) -> None:
        """Store a delete marker for each subject that age has emptied."""
        ttl_ns = self.limits.marker_ttl_ns
        # The last message to leave decides whether there is a marker.
        last = dict(zip(subjects, flags, strict=True))
        emptied = [
            name
            for name, flag in last.items()
            if name not in self.index.subjects and not flag & NO_MARKER
        ]
        if not emptied:
            return
        if self.index.is_block_full():
            self._roll(out)
        ttl = msgheaders.go_duration(ttl_ns).encode()
        headers = (
            b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: "
            + ttl
            + b"\r\nNats-Rollup: sub\r\n\r\n"
        )
        msgs: list[Msg] = [(name, headers, b"") for name in emptied]
        first = self._write(ts, msgs, [HAS_HEADERS | HAS_TTL | NO_MARKER] * len(msgs))
        for at in range(len(msgs)):
            self.expiry.watch(first + at, ts + at + ttl_ns)

    def next_expiry_ns(self) -> int:
        """When the next message must leave by age or TTL; 0: nothing will."""
        return self.expiry.next_due_ns(self.limits)

    def plan_expiry(self, now_ns: int) -> Command | None:
        """The EXPIRE to propose at `now_ns`, or None. Bounded: ask again after it is applied."""
        return self.expiry.plan(now_ns, self.limits)

    # --- config and consumers -------------------------------------------------------------------

    def _apply_configure(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, config, meta_index = command
        if meta_index <= self.config_meta_index:
            return True  # told again after a restart of the meta group's leader
        before = self.limits
        self.config = config
        self.config_meta_index = meta_index
        limits = self.limits = Limits(config)
        self.dedupe.resize(int(config.get("duplicate_window") or 0))
        self.expiry.forget_hint()
        self.index.track_seqs(limits.tracks_seqs)
        consumers = self.consumers.values()
        for search in trimming.reconfigured(self.index, before, limits, consumers):
            self._remove(search.step())
        return True

    def _apply_to_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        consumer = self.consumers_by_uid.get(command[2])
        if consumer is None:
            return False  # deleted before this was applied
        consumer.apply(command, out)
        return True

    def _apply_create_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, ts, name, config, action, _ = command
        refused = consumer_checks.check_create(
            name, config, action, stream_config=self.config, consumers=self.consumers
        )
        if refused is not None:
            return refused
        self._audience = None
        existing = self.consumers.get(name)
        if existing is not None:
            had = existing.matcher.patterns if existing.matcher else None
            existing.update(config)
            now = existing.matcher.patterns if existing.matcher else None
            if self.limits.is_interest and had != now:
                self._remove(Unwanted(self.index, self.consumers.values()).step())
            return existing
        consumer = Consumer.create(
            uid=entry.index, name=name, config=config, created_ns=ts, stream=self
        )
        self.consumers[name] = self.consumers_by_uid[entry.index] = consumer
        out.events.append(("consumer_created", {"stream": self.name, "consumer": name}))
        return consumer

    def _apply_delete_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, name, uid, reason, *later = command
        consumer = self.consumers.get(name)
        if consumer is None or uid not in (0, consumer.uid):
            return errors.CONSUMER_NOT_FOUND()
        self._audience = None
        del self.consumers[name]
        del self.consumers_by_uid[consumer.uid]
        if self.limits.is_interest and later != [True]:
            self._remove(Unwanted(self.index, self.consumers.values()).step())
        fields = {
            "stream": self.name,
            "consumer": name,
            "uid": consumer.uid,
            "reason": reason,
        }
        out.events.append(("consumer_deleted", fields))
        return True

    def _apply_pause_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, name, until_ns = command
        consumer = self.consumers.get(name)
        if consumer is None:
            return errors.CONSUMER_NOT_FOUND()
        consumer.pause(until_ns)
        fields = {"stream": self.name, "consumer": name, "until_ns": until_ns}
        out.events.append(("consumer_paused", fields))
        return consumer

    def _apply_reset_consumer(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, name, seq = command
        consumer = self.consumers.get(name)
        if consumer is None:
            return errors.CONSUMER_NOT_FOUND()
        refused = consumer_checks.check_reset(consumer, seq)
        if refused is not None:
            return refused
        consumer.reset(seq)
        return consumer

    def _apply_checkpoint(self, entry: Entry, command: Command, out: Effects) -> Any:
        # Nothing of this entry changes what the fingerprint covers, so it is that of the entry.
        out.checkpoint = (entry.index, self.fingerprint())
        return True

    def _apply_rewrite(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, block_nos, ranges, records = command
        made = self.index.rewrite(block_nos, ranges, len(records), REWRITTEN + entry.index)
        if made is None:
            return False
        block, footer = made
        out.block_ops += (
            (APPEND, block.block_no, BLOCK_HEADER_BYTES, records),
            (SEAL, block.block_no, block.end_offset, footer),
        )
        out.block_ops += [(DROP, block_no) for block_no in block_nos]
        return True

    def on_acked(self, consumer: ConsumerPosition, sseqs: Sequence[Seq]) -> None:
        """See consumer_position.StreamView: remove what nobody needs any longer."""
        index = self.index
        matcher = consumer.matcher
        consumers = list(self.consumers.values())
        done: list[Seq] = []
        for seq in sseqs:
            if not index.is_live(seq):
                continue
            if self.limits.is_workqueue:
                if matcher is None or matcher.matches(index.subject_at(seq)):
                    done.append(seq)
            elif not retention.is_wanted(seq, index.subject_at(seq), consumers, consumer):
                done.append(seq)
        if done:
            self._remove(done)


class _Run:
    """Admitted messages with consecutive seqs, not yet written."""

    __slots__ = ("_machine", "first_ts", "flags", "last_seq", "msgs")

    def __init__(self, machine: StreamMachine, ts: int) -> None:
        self._machine = machine
        self.first_ts = ts
        self.last_seq = machine.index.last_seq
        self.msgs: list[Msg] = []
        self.flags: list[int] = []

    def add(self, admitted: publish.Admitted) -> Seq:
        """Give the next seq to a message."""
        machine = self._machine
        ts = self.first_ts + len(self.msgs)
        seq = self.last_seq = self.last_seq + 1
        self.msgs.append(admitted.msg)
        self.flags.append(admitted.flags)
        machine.last_msg_id = admitted.msg_id
        if admitted.msg_id:
            machine.dedupe.remember(admitted.msg_id, seq=seq, ts=ts)
        if admitted.ttl_ns:
            machine.expiry.watch(seq, ts + admitted.ttl_ns)
        return seq

    def add_simple(self, msg: Msg, msg_id: bytes) -> Seq:
        """As `add`, for a message with at most an id and headers of its own."""
        machine = self._machine
        msgs = self.msgs
        seq = self.last_seq = self.last_seq + 1
        if msg_id:
            machine.dedupe.remember(msg_id, seq=seq, ts=self.first_ts + len(msgs))
        machine.last_msg_id = msg_id
        msgs.append(msg)
        self.flags.append(HAS_HEADERS if msg[1] else 0)
        return seq

    def add_all_simple(self, msgs: list[Msg], msg_ids: list[bytes]) -> None:
        """As `add_simple` of each message, all of them with headers."""
        machine = self._machine
        ts = self.first_ts + len(self.msgs)
        seq = self.last_seq + 1
        if machine.dedupe.window_ns > 0:
            remember = machine.dedupe.remember
            for at, msg_id in enumerate(msg_ids):
                if msg_id:
                    remember(msg_id, seq=seq + at, ts=ts + at)
        machine.last_msg_id = msg_ids[-1]
        self.msgs += msgs
        self.flags += [HAS_HEADERS] * len(msgs)
        self.last_seq += len(msgs)

    def restart(self) -> None:
        """Begin anew after what was stored."""
        index = self._machine.index
        self.first_ts = max(self.first_ts, index.last_ts + 1)
        self.last_seq = index.last_seq
        self.msgs = []
        self.flags = []
