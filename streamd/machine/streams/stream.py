"""`StreamMachine`: the replicated state of one stream with its consumers.

`apply` turns committed entries into stored messages, deletions and consumer changes, and lays out
the blocks. It reads nothing but its state and the entry (I4); what follows goes to `Effects`.

Parts, each with the state that it owns:

    StreamContent      identity, configuration, index, dedupe window, expiry
    EntryChanges       the messages stored and removed by the entry that is applied
    StreamConsumers    the consumers and their interest
    StreamRemoval      no state: removes messages by limit, request, age
    StreamStoring      no state: checks and stores messages
    StreamImport       no state: takes over messages and consumers of an archive
    StreamCopying      no state: stores messages of other streams, each once

An entry's way, always in this order:

    apply -> EntryChanges.begin -> one handler of a part, by the command's kind
          -> StreamConsumers.notify_stored, notify_gone -> EntryChanges.finish (one APPEND, DROPs)

Parts may be called only from a handler, that is: inside `apply`, `follow` or `trim`. Readers (API,
cursors, monitoring) use `index`, `consumers` and the other attributes between two entries. Two
replicas that applied the same entries have equal states, equal blocks and equal snapshots: no part
reads a clock, a random source or the order of a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from streamd import errors
from streamd.machine import command_shapes, commands, snapshot
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.base import (
    APPEND,
    BLOCK_HEADER_BYTES,
    DROP,
    REWRITTEN,
    SEAL,
    ColumnSource,
    Effects,
    RecordCodec,
    RecordView,
)
from streamd.machine.commands import PUBLISH_RULES, Command, Handler, PublishOutcome
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.digest import MASK64, chain64
from streamd.machine.indexes.columns import Columns
from streamd.machine.snapshot import FrozenStream, Left, StreamState
from streamd.machine.streams import publish, trimming
from streamd.machine.streams.entry_changes import EntryChanges
from streamd.machine.streams.interest_index import InterestIndex
from streamd.machine.streams.retention import Limits
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.stream_copying import StreamCopying
from streamd.machine.streams.stream_import import StreamImport
from streamd.machine.streams.stream_removal import StreamRemoval
from streamd.machine.streams.stream_storing import StreamStoring
from streamd.types import Entry, Index, Msg, Uid

BLOCK_BYTES: Final = 8 * 1024 * 1024

Scan = Callable[[int, int], Iterable[RecordView]]
"""(block_no, end_offset) -> the block's records (store.blocks.record_format.Record)."""


class StreamMachine:
    """Implements machine.base.Machine for a stream group."""

    def __init__(
        self,
        *,
        uid: Uid,
        config: StreamConfig,
        created_ns: int,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        content = StreamContent(
            uid=uid,
            config=config,
            created_ns=created_ns,
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
        )
        self.applied: Index = 0
        self.content = content
        self.uid = uid
        self.name = content.name
        self.created_ns = created_ns
        self.index = content.index
        self._changes = EntryChanges(content.index, codec)
        self._consumers = StreamConsumers(content, self._changes, codec)
        self.consumers: dict[str, Consumer] = self._consumers.by_name
        self.consumers_by_uid: dict[Uid, Consumer] = self._consumers.by_uid
        self._scan: Scan | None = None
        self.index.blocks.rescan = self._rescan
        self._handlers = self._handlers_of_parts()

    def _handlers_of_parts(self) -> dict[int, Handler]:
        consumers = self._consumers
        removal = StreamRemoval(self.content, self._changes)
        storing = StreamStoring(self.content, self._changes, consumers, removal)
        importing = StreamImport(self.content, self._changes, consumers)
        copying = StreamCopying(self.content, self._changes, storing, removal)
        return {
            commands.STORE: storing.apply_store,
            commands.STORE_BATCH: storing.apply_store_batch,
            commands.STORE_SCHEDULED: storing.apply_store_scheduled,
            commands.STORE_SCHEDULED_BATCH: storing.apply_store_scheduled_batch,
            commands.FIRE: storing.apply_fire,
            commands.COPY: copying.apply_copy,
            commands.STORE_FAST: storing.apply_store_fast,
            commands.DROP_FAST: storing.apply_drop_fast,
            commands.PURGE: removal.apply_purge,
            commands.DELETE_MSG: removal.apply_delete_msg,
            commands.REMOVE: removal.apply_remove,
            commands.EXPIRE: removal.apply_expire,
            commands.CREATE_CONSUMER: consumers.apply_create,
            commands.DELETE_CONSUMER: consumers.apply_delete,
            commands.PAUSE_CONSUMER: consumers.apply_pause,
            commands.RESET_CONSUMER: consumers.apply_reset,
            commands.DELIVERED: consumers.apply_to_consumer,
            commands.ACKED: consumers.apply_to_consumer,
            commands.NAKED: consumers.apply_to_consumer,
            commands.TERMED: consumers.apply_to_consumer,
            commands.PROGRESS: consumers.apply_to_consumer,
            commands.DEAD: consumers.apply_to_consumer,
            commands.POSITION: consumers.apply_to_consumer,
            commands.LETTERS_SENT: consumers.apply_letters_sent,
            commands.IMPORT: importing.apply_import,
            commands.IMPORT_CONSUMER: importing.apply_import_consumer,
            commands.CONFIGURE: self._apply_configure,
            commands.CHECKPOINT: self._apply_checkpoint,
            commands.REWRITE: self._apply_rewrite,
        }

    # --- an entry -------------------------------------------------------------------------------

    def apply(self, entry: Entry, out: Effects) -> None:
        """See machine.base.Machine. Outcomes: machine/commands.py."""
        assert entry.index == self.applied + 1, (entry.index, self.applied)  # no gaps, no repeats
        command = command_shapes.admit(entry, self._handlers, out)
        if command is not None:
            changes = self._changes
            changes.begin(out)
            outcome = self._handlers[command[0]](entry, command, out)
            if changes.stored:
                self._consumers.notify_stored(out)
            tombstone = b""
            if changes.has_gone:
                tombstone = self._consumers.notify_gone(entry.index, out)
            changes.finish(tombstone, entry.index, command[1])
            if entry.tag is not None:
                out.outcomes.append((entry.tag, outcome))
        self.applied = entry.index

    def follow(self, entry: Entry, command: Command, out: Effects) -> None:
        """Apply an entry about a consumer to a stream that has its messages, of later entries too,
        from elsewhere. Messages that leave because of it leave no record."""
        self._handlers[command[0]](entry, command, out)
        self._finish_unrecorded(entry.index, out)

    def add_consumer(self, *, uid: Uid, name: str, config: ConsumerConfig, created_ns: int) -> None:
        """Add a consumer of which no entry tells, to a stream that was made anew."""
        consumers = self._consumers
        consumers.add(
            Consumer.create(
                uid=uid, name=name, config=config, created_ns=created_ns, stream=consumers
            )
        )

    def trim(self) -> None:
        """Remove messages that came from elsewhere and that the limits do not allow."""
        for search in trimming.over(self.index, self.limits):
            self._changes.remove(search.step())
        self._finish_unrecorded(self.applied, Effects())

    def _finish_unrecorded(self, index: Index, out: Effects) -> None:
        if self._changes.gone_seqs:
            self._consumers.notify_gone(index, out)
            self._changes.forget_gone()
        self.index.blocks.take_dead()

    # --- state for readers ----------------------------------------------------------------------

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""
        return self.content.config

    @property
    def config_meta_index(self) -> Index:
        """The entry of the meta log that has set the configuration."""
        return self.content.config_meta_index

    @property
    def limits(self) -> Limits:
        """The parts of the configuration that `apply` asks for."""
        return self.content.limits

    def judge(self, msg: Msg, now_ns: int) -> PublishOutcome:
        """Return what would become of a publish at `now_ns`, as far as that is known without
        storing it. Changes nothing."""
        headers = msg[1]
        fields: publish.Fields = {}
        if b"Nats-" in headers:
            fields = publish.fields_of(headers, PUBLISH_RULES)
        msg_id = fields.get(publish.MSG_ID)
        if msg_id and not self.content.dedupe.is_remembered(msg_id, now_ns):
            del fields[publish.MSG_ID]
        verdict = publish.check(
            self.content,
            msg,
            fields,
            last_seq=self.index.last_seq,
            last_msg_id=self.content.last_msg_id,
            needs_room=False,
        )
        return self.index.last_seq + 1 if isinstance(verdict, publish.Admitted) else verdict

    def wants(self, subject: bytes) -> bool:
        """False if messages on `subject` are not kept, since no consumer is interested."""
        return not self.limits.is_interest or bool(self._consumers.takers(subject))

    @property
    def last_msg_id(self) -> bytes:
        """The id of the newest message, if it had one."""
        return self.content.last_msg_id

    @property
    def listed_count(self) -> int:
        """The number of consumers without those by which other streams copy this one."""
        return self._consumers.listed_count

    def listed_names(self) -> list[str]:
        """Return the names of the consumers that `listed_count` counts."""
        direct = self._consumers.direct_names
        return [name for name in self.consumers if name not in direct]

    @property
    def direct_names(self) -> list[str]:
        """The names of the others, in order."""
        return sorted(self._consumers.direct_names)

    @property
    def digest(self) -> int:
        """64-bit content digest of the live messages (machine/digest.py)."""
        return self.index.live.digest

    @property
    def tail(self) -> tuple[int, int]:
        """(block_no, offset) where the next record goes: all before it belongs to `applied`."""
        return self.index.blocks.active.block_no, self.index.blocks.active.end_offset

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
                    len(consumer.pending) + (len(consumer.remaining.parked) << 32),
                    len(consumer.redelivered),
                )
            )
        content = self.content
        more = (
            content.origins.fingerprint(),
            content.producers.fingerprint(),
            content.letters.fingerprint(),
        )
        return chain64(
            (
                self.digest,
                index.first_seq,
                index.last_seq,
                index.count,
                index.live.bytes,
                len(index.live.deleted),
                self.config_meta_index,
                len(self.consumers),
                consumers & MASK64,
                *(each for each in more if each),
            )
        )

    def state(self) -> dict[str, Any]:
        """The numbers of a StreamInfo's `state`; times in ns, 0 for none."""
        index = self.index
        is_new = not index.last_seq
        return {
            "messages": index.count,
            "bytes": index.live.bytes,
            "first_seq": 0 if is_new else index.first_seq,
            "first_ts": index.locations.first_ts(),
            "last_seq": index.last_seq,
            "last_ts": index.live.last_ts,
            "num_subjects": len(index.subjects.rows),
            "num_deleted": len(index.live.deleted),
            "consumer_count": self._consumers.listed_count,
        }

    def interest(self) -> InterestIndex[Consumer]:
        """Return the consumers by their filters. The index is kept up to date."""
        return self._consumers.interest()

    def next_expiry_ns(self) -> int:
        """When the next message must leave by age or TTL; 0: none will."""
        return self.content.expiry.next_due_ns(self.limits)

    def plan_expiry(self, now_ns: int) -> Command | None:
        """The EXPIRE to propose at `now_ns`, or None. Bounded: ask again after it is applied."""
        return self.content.expiry.plan(now_ns, self.limits)

    # --- commands about the stream as a whole ---------------------------------------------------

    def _apply_configure(self, entry: Entry, command: Command, out: Effects) -> bool:
        _, _, config, meta_index = command
        if meta_index <= self.config_meta_index:
            return True  # told again after a restart of the meta group's leader
        before = self.limits
        self.content.configure(config, meta_index)
        held = self.content.letters.held
        for search in trimming.reconfigured(self.index, before, self.limits, self.interest, held):
            self._changes.remove(search.step())
        return True

    def _apply_checkpoint(self, entry: Entry, command: Command, out: Effects) -> bool:
        # Nothing of this entry changes what the fingerprint covers, so it is that of the entry.
        out.checkpoint = (entry.index, self.fingerprint())
        return True

    def _apply_rewrite(self, entry: Entry, command: Command, out: Effects) -> bool:
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

    # --- the machine as bytes -------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """See machine.base.Machine. Inverse: `restore`."""
        return self.freeze()()

    def freeze(self) -> FrozenStream:
        """Copy the state; the result makes the bytes of `snapshot` later, in any thread."""
        return FrozenStream(self.content, self.applied, self.consumers.values())

    def index_db(self) -> bytes:
        """Return subjects and the newest columns, with which `restore` is faster."""
        return self.freeze_index()()

    def freeze_index(self) -> Callable[[], bytes]:
        """Copy what `index_db` needs, in proportion to the number of subjects; the result makes the
        bytes."""
        return snapshot.freeze_index(self.content, self.applied)

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
        loss: Left | None = None,
    ) -> StreamMachine:
        """Make the machine that `snapshot` saw. `index_db` that is missing or of another moment is
        replaced by reading the blocks. With `loss`, only the messages that it leaves."""
        return cls.of_state(
            snapshot.decode_stream(state),
            index_db,
            codec=codec,
            columns=columns,
            scan=scan,
            block_bytes=block_bytes,
            loss=loss,
        )

    @classmethod
    def of_state(
        cls,
        found: StreamState,
        index_db: bytes | None,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        scan: Scan,
        block_bytes: int = BLOCK_BYTES,
        loss: Left | None = None,
    ) -> StreamMachine:
        """`restore` of a state that is decoded."""
        machine = cls(
            uid=found.uid,
            config=found.config,
            created_ns=found.created_ns,
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
        )
        machine._scan = scan
        machine.applied = found.applied
        snapshot.fill(machine.content, found, index_db, loss)
        for consumer in snapshot.consumers_from(found, machine._consumers, loss):
            machine._consumers.add(consumer)
        return machine

    def use_scan(self, scan: Scan) -> None:
        """Set how to read a block's records if its footer turns out bad."""
        self._scan = scan

    def let_go(self) -> None:
        """Drop the references that lead back to this object: nothing is applied any more."""
        self._handlers = {}
        self.index.blocks.rescan = _no_way

    def _rescan(self, block_no: int, end_offset: int) -> Columns:
        if self._scan is None:
            return _no_way(block_no, end_offset)
        return snapshot.columns_from(self._scan(block_no, end_offset))


def _no_way(block_no: int, end_offset: int) -> Columns:
    raise errors.CorruptionError(f"block {block_no}: no way to read it again")
