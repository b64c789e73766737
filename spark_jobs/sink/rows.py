"""Rows on their way to a stream: Arrow columns to protocol bytes, without Python work per row.

A `Rows` holds what the sink needs of some rows as binary Arrow arrays. `batch_frames` joins them,
with what is the same in all, to HPUB frames by one vectorised call: the bytes of its data buffer
are what goes to the socket.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.sink.sink_options import BATCH_MSGS_MAX, Layout

_STATUS: Final = b"NATS/1.0\r\n"
_ID_KEY: Final = b"Nats-Msg-Id: "
_BAD_NAME: Final = r"^$|[:\s\x00-\x1f\x7f]"
_BAD_VALUE: Final = r"[\r\n\x00]"
# What the sink itself, or a column, says in a message's headers.
_RESERVED: Final = r"^(Nats-(Batch|Expected)-.*|Nats-(Msg-Id|TTL))$"
_EMPTY: Final = pa.scalar(b"", pa.binary())

HEADER_NAME: Final = 1
HEADER_VALUE: Final = 2
HEADER_RESERVED: Final = 3
Sums = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of rows. All arrays have the same length; `None` for a column that was not given.

    `headers` are whole lines without the status line and the last, empty one. `numbers` counts
    rows from 0 within the partition. `bad_headers`: HEADER_* per row, None if all are well.
    """

    numbers: np.ndarray[Any, np.dtype[np.int64]]
    subject: Any
    payload: Any
    headers: Any = None
    msg_id: Any = None
    ttl: Any = None
    pace: np.ndarray[Any, np.dtype[np.int64]] | None = None
    bad_headers: np.ndarray[Any, np.dtype[np.int8]] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> Rows:
        """Rows `start` up to, not including, `stop`; shares the memory."""

        def cut(column: Any) -> Any:
            return None if column is None else column[start:stop]

        return self._each(cut)

    def pick(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """The rows where `keep` is true."""
        mask = pa.array(keep)

        def cut(column: Any) -> Any:
            if column is None:
                return None
            return column[keep] if isinstance(column, np.ndarray) else column.filter(mask)

        return self._each(cut)

    def _each(self, cut: Any) -> Rows:
        return Rows(
            numbers=cut(self.numbers),
            subject=cut(self.subject),
            payload=cut(self.payload),
            headers=cut(self.headers),
            msg_id=cut(self.msg_id),
            ttl=cut(self.ttl),
            pace=cut(self.pace),
            bad_headers=cut(self.bad_headers),
        )


def rows_of(batch: Any, layout: Layout, *, first: int) -> Rows:
    """The rows of a RecordBatch, the first with number `first`. A null payload is an empty one;
    so is a null subject, which no stream takes."""
    count = batch.num_rows
    headers = bad = None
    if layout.headers >= 0:
        headers, bad = _header_lines(batch.column(layout.headers))
    ttl = None
    if layout.ttl >= 0:
        column = batch.column(layout.ttl)
        text = column if _is_text(column) else column.cast(pa.string())
        ttl = text.cast(pa.binary())
    pace = None
    if layout.pace >= 0:
        pace = batch.column(layout.pace).fill_null(0).to_numpy(zero_copy_only=False)
    msg_id = None if layout.msg_id < 0 else batch.column(layout.msg_id).cast(pa.binary())
    if msg_id is not None:  # an empty id is none
        msg_id = pc.if_else(pc.equal(pc.binary_length(msg_id), 0), pa.scalar(None), msg_id)
        msg_id = msg_id.cast(pa.binary())
    return Rows(
        numbers=np.arange(first, first + count, dtype=np.int64),
        subject=batch.column(layout.subject).cast(pa.binary()).fill_null(b""),
        payload=batch.column(layout.payload).cast(pa.binary()).fill_null(b""),
        headers=headers,
        msg_id=msg_id,
        ttl=ttl,
        pace=pace,
        bad_headers=bad,
    )


def _is_text(column: Any) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _header_lines(column: Any) -> tuple[Any, Any]:
    """(lines of each row as a binary array, HEADER_* per row or None if all are well)."""
    count = len(column)
    offsets = _starts(column)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, values = column.keys[first:last], column.items[first:last]
    line_owner = np.repeat(np.arange(count), np.diff(offsets))
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        parents = pc.list_parent_indices(values)
        values = pc.list_flatten(values)
        keys = keys.take(parents)
        line_owner = line_owner[parents.to_numpy()]
    keys = keys.fill_null("")
    values = values.fill_null("")
    bad = None
    faults = [(HEADER_NAME, pc.match_substring_regex(keys, _BAD_NAME))]
    faults.append((HEADER_VALUE, pc.match_substring_regex(values, _BAD_VALUE)))
    faults.append((HEADER_RESERVED, pc.match_substring_regex(keys, _RESERVED, ignore_case=True)))
    for kind, found in faults:
        if pc.any(found).as_py():
            bad = np.zeros(count, dtype=np.int8) if bad is None else bad
            bad[line_owner[found.to_numpy(zero_copy_only=False)]] = kind
    lines = pc.binary_join_element_wise(
        keys.cast(pa.binary()), b": ", values.cast(pa.binary()), b"\r\n", b""
    )
    ends = np.zeros(count + 1, dtype=np.int64)
    np.add.at(ends, line_owner + 1, 1)
    ends = np.cumsum(ends)
    if not len(lines):
        return pa.array([b""] * count, pa.binary()), bad
    line_starts = _starts(lines)
    starts = line_starts[ends].astype(np.int32)
    data = lines.buffers()[2]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(np.ascontiguousarray(starts)), data]
    ), bad


def _starts(column: Any) -> np.ndarray[Any, Any]:
    """The offsets of a list, map or binary array: one more than it has items."""
    buffer = column.buffers()[1]
    kind = np.int64 if str(column.type).startswith("large_") else np.int32
    if buffer is None or not buffer.size:
        return np.zeros(len(column) + 1, dtype=kind)
    whole = np.frombuffer(buffer, dtype=kind)
    return whole[column.offset : column.offset + len(column) + 1]


def data_of(column: Any) -> memoryview:
    """The bytes of all items of a binary array, one after the other, without a copy."""
    starts = _starts(column)
    buffer = column.buffers()[2]
    if buffer is None:
        return memoryview(b"")
    return memoryview(buffer)[int(starts[0]) : int(starts[-1])]


def lengths_of(column: Any) -> np.ndarray[Any, Any]:
    """The number of bytes of each item of a binary array."""
    return np.diff(_starts(column))


# --- checksums --------------------------------------------------------------------------------


def add_sums(sums: Sums, rows: Rows) -> Sums:
    """The checksums of the rows before and these. How they are cut into pieces makes no
    difference. () stands for no rows."""
    columns = [rows.subject, rows.payload]
    for given in (rows.headers, rows.msg_id, rows.ttl):
        if given is not None:
            columns.append(given.fill_null(b"") if given.null_count else given)
    before = sums or (0,) * (len(columns) + 1)
    assert len(before) == len(columns) + 1, (len(before), len(columns))
    sizes = np.zeros(len(rows), dtype=np.int64)
    found = []
    for column, crc in zip(columns, before, strict=False):
        found.append(zlib.crc32(data_of(column), crc))
        sizes += lengths_of(column)
    found.append(zlib.crc32(sizes.tobytes(), before[-1]))
    return tuple(found)


# --- frames -----------------------------------------------------------------------------------


def _texts(numbers: np.ndarray[Any, Any]) -> Any:
    """Numbers as decimal text, a binary array."""
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


_POSITIONS: Final = _texts(np.arange(1, BATCH_MSGS_MAX + 1))


def with_ids(rows: Rows, prefix: bytes) -> Rows:
    """Give rows without a msg_id the id `prefix` + number."""
    made = pc.binary_join_element_wise(prefix, _texts(rows.numbers), b"")
    ids = made if rows.msg_id is None else pc.coalesce(rows.msg_id, made)
    return replace(rows, msg_id=ids)


def extra_lines(rows: Rows) -> Any:
    """The header lines of each row, of its ttl and its msg_id too; None if there are none."""
    parts: list[Any] = []
    if rows.msg_id is not None:
        parts.append(_optional(_ID_KEY, rows.msg_id))
    if rows.ttl is not None:
        parts.append(_optional(b"Nats-TTL: ", rows.ttl))
    if rows.headers is not None:
        parts.append(rows.headers)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def _optional(key: bytes, values: Any) -> Any:
    lines = pc.binary_join_element_wise(key, values, b"\r\n", b"")  # null stays null
    return pc.coalesce(lines, _EMPTY) if lines.null_count else lines


def header_sizes(rows: Rows, lines: Any) -> np.ndarray[Any, Any]:
    """The bytes that the lines of each row take as a header block, batch headers apart."""
    extra = 0 if lines is None else lengths_of(lines).astype(np.int64)
    return np.zeros(len(rows), dtype=np.int64) + (len(_STATUS) + 2) + extra


def batch_frames(rows: Rows, lines: Any, *, batch_id: str, reply: str) -> memoryview:
    """HPUB frames: `rows` as messages 1, 2, ... of an atomic batch; the first asks for a reply.

    `lines` are those of `extra_lines`.
    """
    count = len(rows)
    head = _STATUS + f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: ".encode()
    positions = _POSITIONS[:count]
    sizes = lengths_of(positions).astype(np.int64) + (len(head) + 4)
    if lines is not None:
        sizes = sizes + lengths_of(lines)
    targets = rows.subject
    first = targets[0].as_py() + b" " + reply.encode()
    targets = pa.concat_arrays([pa.array([first], pa.binary()), targets[1:]])
    parts: list[Any] = [b"HPUB ", targets, b" ", _texts(sizes), b" "]
    parts += [_texts(sizes + lengths_of(rows.payload)), b"\r\n" + head, positions, b"\r\n"]
    if lines is not None:
        parts.append(lines)
    parts += [b"\r\n", rows.payload, b"\r\n"]
    return data_of(pc.binary_join_element_wise(*parts, b""))


def plain_frames(rows: Rows, lines: Any, *, inbox: str) -> memoryview:
    """PUB or HPUB frames that ask for an ack each, on `inbox` + the row's place in `rows`."""
    count = len(rows)
    places = _texts(np.arange(count))
    to: list[Any] = [rows.subject, f" {inbox}".encode(), places, b" "]
    if lines is None:
        parts = [b"PUB ", *to, _texts(lengths_of(rows.payload)), b"\r\n", rows.payload, b"\r\n"]
        return data_of(pc.binary_join_element_wise(*parts, b""))
    sizes = header_sizes(rows, lines)
    parts = [b"HPUB ", *to, _texts(sizes), b" ", _texts(sizes + lengths_of(rows.payload))]
    parts += [b"\r\n" + _STATUS, lines, b"\r\n", rows.payload, b"\r\n"]
    return data_of(pc.binary_join_element_wise(*parts, b""))


def probe_frames(
    rows: Rows, lines: Any, *, batch_ids: Sequence[str], inbox: str, entry: str
) -> bytes:
    """For each row an atomic batch of its own that can't be stored: it asks what the server
    thinks of the row. `entry` is the ledger's subject; replies come on `inbox` + `r` or `c` +
    the row's place."""
    found: list[bytes] = []
    for at, batch_id in enumerate(batch_ids):
        one = rows.slice(at, at + 1)
        some = None if lines is None else lines[at : at + 1]
        found.append(bytes(batch_frames(one, some, batch_id=batch_id, reply=f"{inbox}r{at}")))
        head = (
            f"NATS/1.0\r\nNats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: 2\r\n"
            "Nats-Batch-Commit: 1\r\n"
            # No sequence is ever this: the batch is refused here if not before.
            f"Nats-Expected-Last-Subject-Sequence: {(1 << 63) - 1}\r\n\r\n"
        ).encode()
        size = len(head)
        to = f"{entry} {inbox}c{at}".encode()
        found.append(b"HPUB %b %d %d\r\n" % (to, size, size))
        found.append(head + b"\r\n")
    return b"".join(found)
