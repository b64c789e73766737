"""The contract between a group's monitor and its replicated state: `Machine` and `Effects`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from streamd.types import BlockOp, Entry, Index, Msg, Seq

# Block operations, in the order in which the store must carry them out.
# (APPEND, block_no, offset, blob): write `blob`, bytes or `Pieces`, at `offset` of block `block_no`
APPEND = 1
SEAL = 2  # (SEAL, block_no, offset, footer): nothing follows in this block but its footer
DROP = 3  # (DROP, block_no): every record of the block is dead (unlink after the next snapshot)

BLOCK_HEADER_BYTES = 64  # what the store writes at the head of a block file; block 1 starts here
REWRITTEN = 1 << 62  # with the log index: the number of a block that took the place of others

# Facts about a record that ride in the top bits of `ColumnsView.lengths`. A record is far shorter
# than LENGTH_MASK, and a column of its own would cost a byte for each message ever stored.
LENGTH_MASK = (1 << 26) - 1
HAS_HEADERS = 1 << 31  # counts 4 bytes more
HAS_TTL = 1 << 30  # it may leave before its age is over
IS_NEVER = 1 << 29  # `Nats-TTL: never`: age does not touch it
NO_MARKER = 1 << 28  # its expiry leaves no delete marker: it is one itself, or a KV purge


class Effects:
    """Consequences of applied entries, in order; the monitor carries them out.

    Everything here is a consequence of committed entries, so it is the same on every replica;
    `outcomes` and `events` are acted upon only by the leader.
    """

    __slots__ = (
        "bereft", "block_ops", "checkpoint", "events", "ignored", "outcomes", "stored_last",
    )  # fmt: skip

    def __init__(self) -> None:
        self.block_ops: list[BlockOp] = []
        # (tag, result) for each entry that carried a tag; what `result` is, each command says.
        self.outcomes: list[tuple[Any, object]] = []
        # (kind, fields) advisories and changes that the leader announces: see api/advisories.py
        self.events: list[tuple[str, dict[str, object]]] = []
        self.stored_last: Seq = 0  # highest seq stored since the effects were taken; 0: none
        self.bereft: dict[Any, None] = {}  # consumers that were told that messages left the stream
        # (index, fingerprint) of the last CHECKPOINT applied: what replicas compare. None: none.
        self.checkpoint: tuple[Index, int] | None = None
        # (index, reason) of entries that are no commands and were passed over: see command_shapes.
        self.ignored: list[tuple[Index, str]] = []


class Machine(Protocol):
    """Replicated state. Same entries in the same order give the same state, effects and digest."""

    applied: Index

    @property
    def digest(self) -> int:
        """Fold of all that was applied."""

    def apply(self, entry: Entry, out: Effects) -> None:
        """Apply one committed entry and append what follows from it to `out`.

        Deterministic: no I/O, clock, random number or set order. A rejected request is an outcome
        in `out`, not an exception. So is an entry that holds no command this machine knows: it
        changes nothing, and stands in `out.ignored` (see command_shapes).
        """

    def snapshot(self) -> bytes:
        """Return the state exactly at `applied`. Does not include block contents."""

    def fingerprint(self) -> int:
        """64 bits over the content and the state around it: what replicas compare at a
        checkpoint. Depends on what was applied, never on how memory happens to hold it."""


class RecordCodec(Protocol):
    """Layout of block records. Given to a stream machine by its constructor, because the
    layout belongs to the store (`BlockCodec`) and rooms do not import each other."""

    def encode_batch(
        self, first_seq: Seq, first_ts: int, msgs: list[Msg]
    ) -> tuple[list[bytes], list[int], list[int]]:
        """Encode `msgs` as records with consecutive seqs and timestamps (one ns apart).

        Returns (pieces, lengths, crcs): the records' bytes, if joined; the length and the crc32c
        of each record.
        """

    def encode_timed(
        self, first_seq: Seq, tss: Sequence[int], msgs: Sequence[Msg]
    ) -> tuple[list[bytes], list[int], list[int]]:
        """As `encode_batch`, with the time of each message."""

    def encode_frame(self, index: Index, ts: int) -> bytes:
        """A record that says: all before this was applied up to log index `index`."""

    def encode_tombstone(self, seqs: list[tuple[Seq, Seq]], index: Index) -> bytes:
        """A record that says: the messages of these inclusive ranges are deleted."""

    def encode_skip(self, first: Seq, last: Seq, index: Index) -> bytes:
        """A record that says: the seqs first..last were used up and hold no message."""

    def encode_footer(self, columns: ColumnsView) -> bytes:
        """The trailer of a sealed block: its columns, so that nobody need scan it."""

    def decode_footer(self, footer: bytes) -> ColumnsView:
        """Inverse of `encode_footer`; raises CorruptionError."""


class RecordView(Protocol):
    """A record of a block. Concrete class: `store.blocks.record_format.Record`."""

    @property
    def type(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def seq(self) -> Seq: ...

    @property
    def ts(self) -> int: ...

    @property
    def subject(self) -> bytes: ...

    @property
    def headers(self) -> bytes: ...

    @property
    def crc(self) -> int: ...


@runtime_checkable
class PackedSubjects(Protocol):
    """Subjects of a block that are not one object each."""

    @property
    def byte_count(self) -> int:
        """About what they take in memory."""


class ColumnsView(Protocol):
    """Per-message columns of one block, in seq order. Concrete class: machine/indexes/columns.py.

    `seqs` is None when the block's seqs are contiguous from `first_seq`. `subject_ids` index into
    `subjects`, this block's own dictionary.
    """

    first_seq: Seq
    seqs: array[int] | None  # of u64
    offsets: array[int]  # of u32: where each record starts in the block
    lengths: array[int]  # of u32: bytes of each record (low 26 bits) and its flags (see above)
    ts_deltas: array[int]  # of u64: ns since base_ts
    base_ts: int
    crcs: array[int]  # of u32
    subject_ids: array[int]  # of u32
    subjects: Sequence[bytes]
    end_offset: int  # where the last record ends


class ColumnSource(Protocol):
    """Source of the footer of a sealed block it has not in memory."""

    def load_footer(self, block_no: int) -> bytes: ...
