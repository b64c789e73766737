"""Functions of Spark tasks: a row of `spark.range` picks a group of blocks; Arrow batches come out.

First pass: findings, and a digest per replica and 4,096 seqs. Second pass, only over what differs:
who holds which record. Third, if there are message ids: which ids come twice in one window.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_jobs.audit.block_check import Checked, check_file, stored_messages
from spark_jobs.audit.block_task import BlockTask, blob_of
from spark_jobs.audit.findings import Finding, finding
from spark_jobs.replica.record_rows import BUCKET_SHIFT, BlockRows, buckets_of
from spark_jobs.worker import settle
from streamd.offline.server_text import header_of

GROUP_BYTES_MAX: Final = 64 * 1024 * 1024  # one Spark task reads about this much
MSG_ID: Final = b"Nats-Msg-Id"

CHECK_SCHEMA: Final = (
    "kind string, replica string, cohort string, bucket long, lo long, hi long, messages long, "
    "expected_replicas int, body binary"
)
_CHECK_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("replica", pa.string()),
        ("cohort", pa.string()),
        ("bucket", pa.int64()),
        ("lo", pa.int64()),
        ("hi", pa.int64()),
        ("messages", pa.int64()),
        ("expected_replicas", pa.int32()),
        ("body", pa.binary()),
    ]
)
HELD_SCHEMA: Final = "cohort string, seq long, replica string, crc long, ts long, content long"
_HELD_ARROW = pa.schema(
    [
        ("cohort", pa.string()),
        ("seq", pa.int64()),
        ("replica", pa.string()),
        ("crc", pa.int64()),
        ("ts", pa.int64()),
        ("content", pa.int64()),
    ]
)
ID_SCHEMA: Final = "cohort string, seq long, ts long, id binary"
_ID_ARROW = pa.schema(
    [
        ("cohort", pa.string()),
        ("seq", pa.int64()),
        ("ts", pa.int64()),
        ("id", pa.binary()),
    ]
)


class Work(NamedTuple):
    """A block to read, the replica it belongs to, and the rows that are wanted of it."""

    task: BlockTask
    cohort: str
    replicas: int  # of the cohort
    buckets: tuple[int, ...] = ()  # second pass: only these
    columns_crc: int = 0  # of the newest block's columns as index.db has them; 0: not compared


class Stats(NamedTuple):
    """Counts of what a task read of a block."""

    replica: str
    stream: str
    record_count: int
    byte_count: int
    has_headers: bool
    subject_sum: int  # see record_rows; -1: not known


def groups_of(works: Sequence[Work], sizes: Sequence[int], *, at_least: int) -> list[bytes]:
    """Split into pickled groups, one per Spark task: about equal in bytes, neighbours together."""
    total = sum(sizes)
    limit = max(1, min(GROUP_BYTES_MAX, total // max(at_least, 1) + 1))
    groups: list[list[Work]] = [[]]
    size = 0
    for work, each in zip(works, sizes, strict=True):
        if groups[-1] and size + each > limit:
            groups.append([])
            size = 0
        groups[-1].append(work)
        size += each
    return [pickle.dumps(group) for group in groups if group]


# --- first pass -------------------------------------------------------------------------------


def check_groups(
    batches: Iterable[pa.RecordBatch], *, groups: Sequence[bytes], level: str, bytes_per_s: float
) -> Iterator[pa.RecordBatch]:
    """Check the blocks of each group (mapInArrow): rows of kind bucket, finding and stats."""
    for work in works_of(batches, groups):
        began = time.monotonic()
        task = work.task
        try:
            checked = check_file(task, level)
        except OSError as err:
            raise OSError(f"{task.path}: {err.strerror or err}") from err
        yield _check_batch(work, checked)
        if bytes_per_s:
            pause = checked.byte_count / bytes_per_s - (time.monotonic() - began)
            if pause > 0:
                time.sleep(pause)


def works_of(batches: Iterable[pa.RecordBatch], groups: Sequence[bytes]) -> Iterator[Work]:
    """The blocks of the groups that the rows of `spark.range` number."""
    settle()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from pickle.loads(groups[number])


def _check_batch(work: Work, checked: Checked) -> pa.RecordBatch:
    task = work.task
    numbers, digests, sizes = buckets_of(checked.rows) if task.is_judged else _no_buckets()
    findings = list(checked.findings)
    if work.columns_crc and not findings and columns_crc(checked.rows) != work.columns_crc:
        findings.append(_index_differs(task))
    stats = Stats(
        task.replica,
        task.stream,
        checked.record_count,
        checked.byte_count,
        checked.has_headers,
        checked.subject_sum,
    )
    bodies = [("finding", pickle.dumps(each)) for each in findings]
    bodies.append(("stats", json.dumps(stats).encode()))
    count, more = len(numbers), len(bodies)
    nothing = [None] * more
    low = (digests & np.uint64(0xFFFFFFFF)).astype(np.int64)
    high = (digests >> np.uint64(32)).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["bucket"] * count + [kind for kind, _ in bodies]),
            pa.array([task.replica] * (count + more)),
            pa.array([work.cohort] * (count + more)),
            pa.array(numbers.tolist() + nothing, pa.int64()),
            pa.array(low.tolist() + nothing, pa.int64()),
            pa.array(high.tolist() + nothing, pa.int64()),
            pa.array(sizes.tolist() + nothing, pa.int64()),
            pa.array([work.replicas] * (count + more), pa.int32()),
            pa.array([None] * count + [body for _, body in bodies], pa.binary()),
        ],
        schema=_CHECK_ARROW,
    )


def _no_buckets() -> tuple[Any, Any, Any]:
    return np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64)


def columns_crc(rows: BlockRows) -> int:
    """Return a number for the live messages of a block and their places; never 0."""
    crc = 0
    for column in (rows.seqs, rows.crcs, rows.offsets, rows.lengths, rows.tss):
        crc = crc32c(np.ascontiguousarray(column).view(np.uint8).tobytes(), crc)
    return crc or 1


def _index_differs(task: BlockTask) -> Finding:
    return finding(
        "index-differs",
        replica=task.replica,
        stream=task.stream,
        seq=task.first_seq or None,
        seq_hi=task.last_seq or None,
        file=task.path.rpartition("/")[0] + "/index.db",
        expected=f"the records of block {task.block_no}",
        got="others",
    )


# --- second pass ------------------------------------------------------------------------------


def held_groups(
    batches: Iterable[pa.RecordBatch], *, groups: Sequence[bytes], level: str
) -> Iterator[pa.RecordBatch]:
    """The live messages of the wanted buckets, one row each (mapInArrow)."""
    for work in works_of(batches, groups):
        checked = check_file(work.task, level)
        rows = checked.rows
        numbers = (rows.seqs >> np.uint64(BUCKET_SHIFT)).astype(np.int64)
        at = np.flatnonzero(np.isin(numbers, np.array(work.buckets, np.int64)))
        if not len(at):
            continue
        blob = blob_of(work.task)
        contents = [_content(blob, int(rows.offsets[i]), int(rows.lengths[i])) for i in at]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([work.cohort] * len(at)),
                pa.array(rows.seqs[at].astype(np.int64)),
                pa.array([work.task.replica] * len(at)),
                pa.array(rows.crcs[at].astype(np.int64)),
                pa.array(rows.tss[at].astype(np.int64)),
                pa.array(contents, pa.int64()),
            ],
            schema=_HELD_ARROW,
        )


def _content(blob: bytes, offset: int, length: int) -> int:
    """crc32c of a record without its time and its crc: equal for equal messages."""
    return int(crc32c(blob[offset + 28 : offset + length - 4], crc32c(blob[offset : offset + 20])))


# --- message ids ------------------------------------------------------------------------------


def id_groups(
    batches: Iterable[pa.RecordBatch], *, groups: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """(seq, ts, id) of every stored message that has an id, dead ones too (mapInArrow)."""
    for work in works_of(batches, groups):
        ids: list[bytes] = []
        seqs: list[int] = []
        tss: list[int] = []
        for record in stored_messages(work.task):
            if MSG_ID not in record.headers:
                continue
            msg_id = (header_of(record.headers, MSG_ID) or b"").strip()
            if msg_id:
                ids.append(msg_id)
                seqs.append(record.seq)
                tss.append(record.ts)
        if ids:
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([work.cohort] * len(ids)),
                    pa.array(seqs, pa.int64()),
                    pa.array(tss, pa.int64()),
                    pa.array(ids, pa.binary()),
                ],
                schema=_ID_ARROW,
            )
