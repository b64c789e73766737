"""Received messages to Arrow record batches with the columns that a read wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.header_maps import header_maps
from spark_jobs.schema import LEDGER_PREFIX, arrow_schema
from spark_jobs.source.online_frames import Rows


def batch_of(
    pieces: Sequence[Rows],
    columns: Sequence[str],
    *,
    stream: str,
    server: str,
    with_ledger: bool = True,
) -> pa.RecordBatch:
    """Return one batch of all `pieces`, which are not empty, with `columns` in that order.

    `server` fills the debug column `replica`; the other debug columns are null, for they tell of
    files. `with_ledger` False leaves out entries of the sink's ledger.
    """
    schema = arrow_schema(columns)
    count = sum(len(piece.seqs) for piece in pieces)
    arrays = [
        _array(name, pieces, count, stream, server).cast(schema.field(name).type, safe=False)
        for name in columns
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if not with_ledger:
        subjects = pa.concat_arrays([piece.subjects for piece in pieces]).cast(pa.binary())
        entries = pc.starts_with(subjects, LEDGER_PREFIX)
        if pc.any(entries).as_py():
            return batch.filter(pc.invert(entries))
    return batch


def _array(name: str, pieces: Sequence[Rows], count: int, stream: str, server: str) -> pa.Array:
    if name == "seq":
        return pa.array(np.concatenate([piece.seqs for piece in pieces]))
    if name == "ts_ns":
        return pa.array(np.concatenate([piece.ts_ns for piece in pieces]))
    if name == "ts":
        return pa.array(np.concatenate([piece.ts_ns for piece in pieces]) // 1000)
    if name == "subject":
        return pa.concat_arrays([piece.subjects for piece in pieces])
    if name == "payload":
        return pa.concat_arrays([piece.payloads for piece in pieces])
    if name == "size":
        return pa.concat_arrays([pc.binary_length(piece.payloads) for piece in pieces])
    if name == "headers":
        return headers_array(pa.concat_arrays([piece.headers for piece in pieces]))
    if name == "stream":
        return pa.repeat(pa.scalar(stream), count)
    if name == "replica":
        return pa.repeat(pa.scalar(server), count)
    return pa.nulls(count)


def headers_array(blocks: pa.Array) -> pa.Array:
    """Return header blocks (binary, b"" for none) as map<string, list<string>>.

    A message without headers has an empty map.
    """
    sizes = pc.binary_length(blocks).to_numpy()
    owners = np.flatnonzero(sizes)
    data = np.frombuffer(b"".join(blocks.filter(pa.array(sizes > 0)).to_pylist()), np.uint8)
    return header_maps(len(blocks), owners, data, np.cumsum(sizes[owners], dtype=np.int64))
