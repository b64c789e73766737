"""A stream of this node as `net` and `api` hold it: every request becomes an inbox message."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, DiskError, is_passing
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.commands import Command, PublishOutcome
from streamd.machine.meta import account_of
from streamd.machine.streams.stream import StreamMachine
from streamd.node.delivery.cursor import Cursor
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.ports import Done, OriginInfo, PublishSink
from streamd.node.stream_groups import stream_inbox
from streamd.node.stream_groups.forwarded_publishes import RelaySink
from streamd.node.stream_groups.ingest_transform import IngestTransform
from streamd.node.stream_groups.stream_cut import StreamCut
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.record_format import crc_of, decode_at
from streamd.store.blocks.stream_store import StreamStore
from streamd.subjects import matches
from streamd.types import Msg, NodeId, Seq, StoredMsg, StreamKey


class LocalStream:
    """Implements `ports.StreamHandle`, for this node's member of a stream's group."""

    is_local = True
    is_expected = True

    def __init__(
        self,
        group: StreamGroup,
        monitor: Monitor,
        store: StreamStore | MemoryStreamStore,
        *,
        is_file: bool,
    ) -> None:
        self.group = group
        self.monitor = monitor
        self.store = store
        self.files = store if isinstance(store, StreamStore) else None  # None: a memory stream
        self.is_file = is_file
        self.is_ready = False
        self.is_gated = False  # publishes sent to the leader before may come back yet
        self.uid = group.uid
        self.machine: StreamMachine = group.machine
        self.name = self.machine.name
        self.name_bytes = self.name.encode()
        self.account = account_of(self.machine.config)  # which never changes
        self._post = monitor.post
        self._raft = group.raft

    def release(self) -> None:
        """The group has stopped, and this is no stream of the node any more; see Group.release."""
        if self.files is not None:
            self.files.on_error = ignore
        self.machine.let_go()
        self.group.release()

    @property
    def key(self) -> StreamKey:
        return self.account, self.name

    @property
    def config(self) -> StreamConfig:
        return self.machine.config

    def takes_acks(self, name: str) -> bool:
        consumer = self.machine.consumers.get(name)
        return consumer is not None and not consumer.is_ack_none

    def captures(self, subject: bytes) -> bool:
        """True if a publish on `subject` belongs in this stream."""
        config = self.machine.config
        if config.get("restoring"):
            return False
        return any(matches(pattern.encode(), subject) for pattern in config["subjects"] or ())

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        if self._raft.is_leader and not (self.is_gated and not isinstance(sink, RelaySink)):
            self._post(stream_inbox.Publish(msgs, replies, sink))
        else:
            # At once: what follows may go to another node, and must not overtake this.
            self.group.hooks.pass_on(msgs, replies, sink)

    def judge(self, msg: Msg, done: Callable[[PublishOutcome, tuple[bytes, bool]], None]) -> None:
        """See ports.StreamHandle."""
        subject, headers, payload = msg
        place = self.place(subject)
        now_ns = self.monitor.now_ns()
        done(self.machine.judge((place[0], headers, payload), now_ns), place)

    def place(self, subject: bytes) -> tuple[bytes, bool]:
        """See ports.StreamHandle."""
        ((to, _, _),) = IngestTransform().apply(self.config, [(subject, b"", b"")], 0)
        return to, self.machine.wants(to)

    def propose(self, command: Command, done: Done | None) -> None:
        self._post(inbox.Propose(command, done, True))

    def note_writer_at(self, node_id: NodeId) -> None:
        """A client of that node publishes: what it reads there, it wants with its own writes."""
        self._post(inbox.WriterAt(node_id))

    def read_barrier(self, done: Callable[[], None], lost: Callable[[], None]) -> None:
        if self.monitor.has_nothing_to_do and self.group.shows_all:
            done()
        else:
            self._post(inbox.ReadBarrier(done, lost))

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        if consumer not in self.machine.consumers:
            return False
        self._post(stream_inbox.Pull(consumer.encode(), reply, headers, payload))
        return True

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        self._post(stream_inbox.Acks(subjects, replies, payloads))

    def flow_reply(self, consumer: str, subject: bytes, headers: bytes = b"") -> None:
        self._post(stream_inbox.FlowReply(consumer.encode(), subject, headers))

    def consumer_view(self, consumer: str) -> Cursor | None:
        return self.group.cursor(consumer)

    @property
    def is_close_mirror(self) -> bool:
        return self.group.imports.is_close()

    def dead_letter_error(self, subject: bytes) -> str:
        return self.group.letters.error_of(subject)

    def origin_infos(self) -> Mapping[str, OriginInfo]:
        return self.group.imports.infos()

    @property
    def unreadable(self) -> list[Seq]:
        """Messages that are stored here and that the disk does not give back, ascending."""
        return self.group.unreadable.seqs

    def read(self, seqs: list[Seq], done: Callable[[list[StoredMsg | None] | None], None]) -> None:
        """See ports.StreamHandle. Messages not in memory cost one block read each."""
        _Read(self, seqs, done).advance()

    def cut(self, start_seq: Seq = 0) -> StreamCut:
        """See ports.StreamHandle."""
        return StreamCut(self.machine, self.store.hold(), start_seq)

    def damaged(self, err: CorruptionError) -> None:
        self.group.hooks.on_damaged(err, True, err.block_no)

    def report(self, block_no: int, seqs: list[Seq], reason: str) -> None:
        """The disk does not give these messages of a block; [] if only what is dead is damaged."""
        self._post(stream_inbox.UnreadableFound(block_no, seqs, reason))

    def report_whole(self, block_no: int) -> None:
        """Report that the whole of a block could be read."""
        self._post(stream_inbox.BlockReadable(block_no))


class _Read:
    """A `LocalStream.read` under way."""

    def __init__(
        self,
        handle: LocalStream,
        seqs: list[Seq],
        done: Callable[[list[StoredMsg | None] | None], None],
    ) -> None:
        self._handle = handle
        self._seqs = seqs
        self._done = done
        self._found: list[StoredMsg | None] = []
        self._asked_for: Seq = 0  # of the disk, last

    def advance(self) -> None:
        """Read until all is read, or until a block has to come from the disk."""
        handle = self._handle
        index = handle.machine.index
        found = self._found
        while len(found) < len(self._seqs):
            seq = self._seqs[len(found)]
            try:
                loc = index.locations.locate(seq)
            except CorruptionError as err:  # not even what its block should hold
                handle.damaged(err)
                self._done(None)
                return
            if loc is None:
                found.append(None)
                continue
            try:
                message = self._message(*loc)
            except (CorruptionError, DiskError) as err:
                if not is_passing(err):
                    handle.report(loc[1], [seq], str(err))
                self._done(None)
                return
            if message is None:
                return
            found.append(message)
        self._done(found)

    def _message(self, seq: Seq, block_no: int, offset: int, length: int) -> StoredMsg | None:
        """The message at a place, or None: it is being read."""
        store = self._handle.store
        try:
            chunk = store.chunk(block_no, offset)
        except (CorruptionError, DiskError):
            if self._asked_for == seq:
                raise
            chunk = None  # it could not be read before: perhaps now
        if chunk is None:
            self._asked_for = seq
            store.read_chunk(block_no, offset, max(length, limits.READ_ONE_BYTES), self.advance)
            return None
        base, blob = chunk
        message = decode_at(blob, offset - base)
        if message.seq != seq:
            raise CorruptionError(
                f"block {block_no} offset {offset} holds seq {message.seq}, the index says {seq}"
            )
        crc = crc_of(blob[offset - base : offset - base + length])
        if crc != self._handle.machine.index.locations.crc_at(seq):
            raise CorruptionError(f"block {block_no} offset {offset} holds another message")
        return message
