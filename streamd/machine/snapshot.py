"""A stream machine as bytes: `state` (the truth) and `index.db` (a cache of what blocks say).

The state holds everything that is not in the blocks, including which seqs are deleted and how far
each block reaches. The cache carries a stamp of the state it belongs to and is ignored if that
differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from streamd.errors import CorruptionError
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import RecordView
from streamd.machine.consumers.consumer import Consumer, StreamView
from streamd.machine.indexes.columns import Columns
from streamd.machine.indexes.live_messages import MessagesState
from streamd.machine.indexes.subject_table import IndexCache
from streamd.machine.streams.dedupe import Arrival, DedupeState, columns_of
from streamd.machine.streams.publish import flags_from
from streamd.machine.streams.stream_content import FeaturesState, StreamContent
from streamd.types import Index, Seq, Uid

_STATE_VERSION: Final = 1
_INDEX_VERSION: Final = 1
_PACKED_AT_ONCE: Final = 4096  # values: well below a millisecond
_MSG_RECORD: Final = 1  # type of a block record that is a message: see store/README.md


class Left(Protocol):
    """The messages of a state that are left after a loss."""

    def messages(self) -> MessagesState:
        """Return them as a snapshot holds them, but for how many bytes they are."""


class StreamState(NamedTuple):
    """A decoded `state`."""

    uid: Uid
    config: StreamConfig
    created_ns: int
    applied: Index
    config_meta_index: Index
    messages: MessagesState
    dedupe: DedupeState
    last_msg_id: bytes
    ttl: list[list[int]]
    consumers: list[list[Any]]
    features: FeaturesState = {}  # noqa: RUF012 - nobody changes it


class FrozenStream:
    """A machine's state at one moment. What may change was copied; bytes are made of it later, in
    any thread: ids of a million messages take a third of a second, their due times two, in steps
    between which other threads run."""

    __slots__ = ("_arrivals", "_before", "_consumers", "_due", "_features", "_last_msg_id")

    def __init__(
        self, content: StreamContent, applied: Index, consumers: Iterable[Consumer]
    ) -> None:
        self._before = [
            content.uid,
            content.config,
            content.created_ns,
            applied,
            content.config_meta_index,
            content.index.to_state(),
        ]
        self._arrivals = content.dedupe.arrivals()
        self._last_msg_id = content.last_msg_id
        self._due = content.expiry.freeze()
        self._consumers = [consumer.to_state() for consumer in consumers]
        self._features = content.features_state()

    def __call__(self) -> bytes:
        """The state, equal on all replicas."""
        return self._encode(self._arrivals, list(chain.from_iterable(self._due())))

    def outline(self) -> bytes:
        """The same without what the messages themselves say: their ids, and when they are due."""
        return self._encode([], [])

    def _encode(self, arrivals: list[Arrival], due: list[object]) -> bytes:
        before = self._before
        more = [self._features] if self._features else []
        parts = [_list_head(len(before) + 5 + len(more)), _pack(_STATE_VERSION)]
        parts += map(_pack, before)
        parts.append(_list_head(3))
        parts += _pack_list([msg_id for _, msg_id, _ in arrivals])
        parts += map(_pack, columns_of(arrivals))
        parts.append(_pack(self._last_msg_id))
        parts += _pack_list(due)
        parts.append(_pack(self._consumers))
        parts += map(_pack, more)
        return b"".join(parts)


def freeze_index(content: StreamContent, applied: Index) -> Callable[[], bytes]:
    """Copy what `index.db` holds of a stream at `applied`; the result makes its bytes."""
    active = content.index.blocks.active
    stamp = [content.uid, applied, active.block_no, active.end_offset]
    names, *rest = content.index.to_cache()

    def encode() -> bytes:
        parts = [_list_head(len(stamp) + 2), _pack(_INDEX_VERSION), *map(_pack, stamp)]
        parts.append(_list_head(len(rest) + 1))
        parts += _pack_list(names)
        parts += map(_pack, rest)
        return b"".join(parts)

    return encode


def _list_head(count: int) -> bytes:
    head: bytes = msgpack.Packer().pack_array_header(count)
    return head


def _pack_list(values: Sequence[object]) -> Iterator[bytes]:
    """The pieces of `_pack(values)`: one call for all would keep other threads waiting."""
    yield _list_head(len(values))
    for start in range(0, len(values), _PACKED_AT_ONCE):
        part = values[start : start + _PACKED_AT_ONCE]
        yield _pack(part)[len(_list_head(len(part))) :]


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def decode_stream(state: bytes) -> StreamState:
    """Inverse of what `FrozenStream` makes, as far as a new machine's constructor needs it."""
    values = _unpack(state)
    if values[0] != _STATE_VERSION:
        raise CorruptionError(f"stream snapshot has unknown version {values[0]}")
    found = StreamState(*values[1:])
    return found._replace(
        messages=MessagesState(*found.messages), dedupe=DedupeState(*found.dedupe)
    )


def fill(
    content: StreamContent, state: StreamState, index_db: bytes | None, loss: Left | None
) -> None:
    """Give a new stream's content the rest of `state`, less the messages that are lost."""
    content.config_meta_index = state.config_meta_index
    index = content.index
    tail = state.messages[-1][-1]  # the last block's row
    stamp = [state.uid, state.applied, tail[0], tail[8]]
    if loss is None:
        index.load(state.messages, _cache_of(index_db, stamp))
    else:
        index.load(loss.messages(), None)
        index.live.bytes = sum(size for _, size in index.locations.live_sizes())
    index.track_seqs(False)
    index.track_seqs(content.limits.tracks_seqs)
    content.expiry.load(state.ttl)
    content.dedupe.load(state.dedupe)
    content.last_msg_id = state.last_msg_id
    content.load_features(state.features)


def consumers_from(state: StreamState, stream: StreamView, loss: Left | None) -> Iterator[Consumer]:
    """Make the consumers of `state`, once the content is there. After a loss each counts anew."""
    for each in state.consumers:
        consumer = Consumer.from_state(each, stream)
        if loss is not None:
            consumer.on_purged()
        yield consumer


def _cache_of(index_db: bytes | None, stamp: list[int]) -> IndexCache | None:
    """Return the values of `index_db`, if it was written at `stamp`."""
    if not index_db:
        return None
    values = _unpack(index_db)
    if values[:-1] != [_INDEX_VERSION, *stamp]:
        return None
    return IndexCache(*values[-1])


def columns_from(records: Iterable[RecordView]) -> Columns:
    """Columns of a block from its records (store.blocks.record_format.Record), in order."""
    columns = Columns()
    ids: dict[bytes, int] = {}
    next_seq: Seq = 0
    for record in records:
        if record.type != _MSG_RECORD:
            columns.end_offset = record.offset + record.length
            continue
        if not len(columns):
            columns.first_seq = next_seq = record.seq
            columns.base_ts = record.ts
        if record.seq != next_seq:
            columns.use_gaps()
        if columns.seqs is not None:
            columns.seqs.append(record.seq)
        local = ids.get(record.subject)
        if local is None:
            local = ids[record.subject] = len(ids)
            columns.added.append(record.subject)
        flags = flags_from(record.headers)
        if flags:
            columns.has_flags = True
        columns.offsets.append(record.offset)
        columns.lengths.append(record.length | flags)
        columns.ts_deltas.append(record.ts - columns.base_ts)
        columns.crcs.append(record.crc)
        columns.subject_ids.append(local)
        columns.end_offset = record.offset + record.length
        next_seq = record.seq + 1
    return columns
