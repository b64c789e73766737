"""Comparison of publishers' acks with the stream: lost and phantom writes.

The file (`--expect`, Parquet or JSON) has a row per publish, with any of the columns `seq` (of the
ack), `id` (Nats-Msg-Id; `msg_id` is the same), `subject`, `payload` or `payload_hash` (sha256 as
hex), and `status`: "acked" (also if there is no such column), or "unknown" for a publish that was
never answered, which may be stored or not. A row needs a seq, an id, or subject and payload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_jobs.audit.block_check import stored_messages
from spark_jobs.audit.block_task import live_seqs
from spark_jobs.audit.findings import Finding, finding
from spark_jobs.audit.replica_files import View
from spark_jobs.audit.spark_tasks import MSG_ID, works_of
from streamd.offline.server_text import header_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX: Final = 1000  # of each code; the rest is counted in a note
_ROWS: Final = 8192  # of one Arrow batch
_COLUMNS: Final = ("seq", "id", "subject", "payload_hash", "status")

_JUDGED: Final = (
    "seq long, id string, subject string, stored_id string, stored_subject string, "
    "stored_seq long, is_gone boolean"
)
STORED_SCHEMA: Final = "seq long, id string, subject string, payload_hash string, is_live boolean"
_STORED_ARROW = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("subject", pa.string()),
        ("payload_hash", pa.string()),
        ("is_live", pa.bool_()),
    ]
)


class BadExpectation(ValueError):
    """The file of acked publishes can't be used."""


def stored_groups(
    batches: Iterable[pa.RecordBatch], *, groups: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """Every stored message, deleted ones too while their bytes are there (mapInArrow)."""
    for work in works_of(batches, groups):
        task = work.task
        live = live_seqs(task)
        rows: list[tuple[int, str | None, str, str]] = []
        for record in stored_messages(task):
            msg_id = header_of(record.headers, MSG_ID) if MSG_ID in record.headers else None
            rows.append(
                (
                    record.seq,
                    msg_id.decode("utf-8", "replace") if msg_id else None,
                    record.subject.decode("utf-8", "replace"),
                    hashlib.sha256(record.payload).hexdigest(),
                )
            )
            if len(rows) >= _ROWS:
                yield _stored_batch(rows, live)
                rows = []
        if rows:
            yield _stored_batch(rows, live)


def _stored_batch(rows: list[tuple[int, str | None, str, str]], live: Any) -> pa.RecordBatch:
    seqs, ids, subjects, hashes = zip(*rows, strict=True)
    is_live = np.isin(np.array(seqs, np.uint64), live)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(seqs, pa.int64()),
            pa.array(ids, pa.string()),
            pa.array(subjects, pa.string()),
            pa.array(hashes, pa.string()),
            pa.array(is_live),
        ],
        schema=_STORED_ARROW,
    )


def read_expected(spark: SparkSession, path: str) -> DataFrame:
    """The publisher's log with the columns `_COLUMNS`, null where it has none.

    Raises BadExpectation when it has none of the columns that identify a message.
    """
    from pyspark.sql import functions as f

    if path.endswith((".json", ".jsonl", ".ndjson")):
        frame = spark.read.option("multiLine", str(path.endswith(".json")).lower()).json(path)
        if path.endswith(".json") and "_corrupt_record" in frame.columns:
            frame = spark.read.json(path)
    else:
        frame = spark.read.parquet(path)
    names = {name.lower(): name for name in frame.columns}
    if "msg_id" in names and "id" not in names:
        names["id"] = names["msg_id"]
    if not {"seq", "id"} & set(names) and not (
        "subject" in names and {"payload", "payload_hash"} & set(names)
    ):
        raise BadExpectation(
            f"--expect {path}: has columns {', '.join(frame.columns)}; a row must have seq, or id, "
            "or subject with payload or payload_hash"
        )
    hashed = f.lit(None).cast("string")
    if "payload_hash" in names:
        hashed = f.lower(f.col(names["payload_hash"]).cast("string"))
    elif "payload" in names:
        hashed = f.sha2(f.col(names["payload"]).cast("binary"), 256)
    nothing = f.lit(None)

    def column(name: str, kind: str) -> Any:
        return (f.col(names[name]) if name in names else nothing).cast(kind)

    status = f.coalesce(f.lower(column("status", "string")), f.lit("acked"))
    return frame.select(
        column("seq", "long").alias("seq"),
        column("id", "string").alias("id"),
        column("subject", "string").alias("subject"),
        hashed.alias("payload_hash"),
        status.alias("status"),
    )


def expected_findings(
    spark: SparkSession, path: str, stored: DataFrame | None, view: View
) -> tuple[list[Finding], list[str]]:
    """Lost and phantom writes of one stream, and notes about what cannot be told."""
    expected = read_expected(spark, path).persist()
    if stored is None:
        stored = spark.createDataFrame([], STORED_SCHEMA)
    stored = stored.persist()
    try:
        lost, notes = _lost(expected, stored, view)
        phantom, more = _phantom(expected, stored, view)
    finally:
        expected.unpersist()
        stored.unpersist()
    return lost + phantom, notes + more


def _lost(expected: DataFrame, stored: DataFrame, view: View) -> tuple[list[Finding], list[str]]:
    from pyspark.sql import functions as f

    acked = expected.filter("status = 'acked'")
    by_seq = (
        acked.filter("seq is not null")
        .alias("e")
        .join(stored.alias("s"), f.col("e.seq") == f.col("s.seq"), "left")
    )
    is_same = (
        f.coalesce(f.col("e.id") == f.col("s.id"), f.col("e.id").isNull())
        & f.coalesce(f.col("e.subject") == f.col("s.subject"), f.col("e.subject").isNull())
        & f.coalesce(
            f.col("e.payload_hash") == f.col("s.payload_hash"), f.col("e.payload_hash").isNull()
        )
    )
    wrong = by_seq.filter(f.col("s.seq").isNull() | ~is_same).select(
        f.col("e.seq").alias("seq"),
        f.col("e.id").alias("id"),
        f.col("e.subject").alias("subject"),
        f.col("s.id").alias("stored_id"),
        f.col("s.subject").alias("stored_subject"),
        f.col("s.seq").alias("stored_seq"),
    )
    first_seq, last_seq, count, _, _ = view.index_row()
    deleted = view.deleted()
    # What is deleted is told apart where the rows are: it may be most of what was ever published.
    judged = wrong.mapInArrow(partial(_with_gone, deleted=_ranges(first_seq, deleted)), _JUDGED)
    counts = {row["is_gone"]: row["count"] for row in judged.groupBy("is_gone").count().collect()}
    gone, lost = counts.get(True, 0), counts.get(False, 0)
    found: list[Finding] = []
    for row in judged.filter("not is_gone").orderBy("seq").limit(FINDINGS_MAX).collect():
        got = "no message" if row["seq"] <= last_seq else f"the stream ends at {last_seq}"
        if row["stored_seq"] is not None:
            got = f"another message: subject {row['stored_subject']}"
            got += f", id {row['stored_id']}" if row["stored_id"] else ""
        found.append(_lost_write(view, row["seq"], _what(row["id"], row["subject"]), got))
    notes = []
    if gone:
        notes.append(f"{view.name}: {gone} acked messages were deleted since, as the stream says")
    bare = acked.filter("seq is null")
    by_id = bare.filter("id is not null").join(stored.select("id"), "id", "left_anti")
    by_content = bare.filter("id is null").join(
        stored.select("subject", "payload_hash"), ["subject", "payload_hash"], "left_anti"
    )
    has_deleted = bool(deleted) or count < last_seq
    absent = by_id.select("id", "subject").unionByName(by_content.select("id", "subject"))
    untold = absent.count()
    if untold and not has_deleted:
        lost, untold = lost + untold, 0
        left = FINDINGS_MAX - len(found)
        for row in absent.orderBy("id", "subject").limit(left).collect():
            found.append(_lost_write(view, None, _what(row["id"], row["subject"]), "no message"))
    if untold:
        notes.append(
            f"{view.name}: {untold} acked messages without a seq are not there; the stream has "
            "deleted messages, these may be among them"
        )
    if lost > len(found):
        notes.append(f"{view.name}: {lost - len(found)} more lost writes, not listed")
    return found, notes


def _lost_write(view: View, seq: int | None, expected: str, got: str) -> Finding:
    return finding(
        "lost-write",
        replica=view.label,
        stream=view.name,
        seq=seq,
        file=view.files.store.directory(view.uid),
        expected=expected,
        got=got,
    )


def _ranges(first_seq: int, deleted: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the seqs that the stream has deleted, as rows (low, high), ascending."""
    return np.array([(0, first_seq - 1), *deleted], np.int64)


def _with_gone(
    batches: Iterable[pa.RecordBatch], *, deleted: NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """Add `is_gone`: the message is not there because it was deleted (mapInArrow)."""
    for batch in batches:
        seqs = batch.column("seq").to_numpy(zero_copy_only=False)
        at = np.searchsorted(deleted[:, 0], seqs, side="right") - 1
        is_inside = (at >= 0) & (seqs <= deleted[at, 1])
        is_absent = batch.column("stored_seq").is_null().to_numpy(zero_copy_only=False)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(is_inside & is_absent)],
            names=[*batch.schema.names, "is_gone"],
        )


def _what(msg_id: str | None, subject: str | None) -> str:
    parts = [f"subject {subject}" if subject else "", f"id {msg_id}" if msg_id else ""]
    return ", ".join(part for part in parts if part) or "the acked message"


def _phantom(expected: DataFrame, stored: DataFrame, view: View) -> tuple[list[Finding], list[str]]:
    """Live messages that no publish explains. Only on the subjects that the log names."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = stored.filter("is_live")
    subjects = expected.filter("subject is not null").select("subject").distinct()
    if subjects.take(1):
        rows = rows.join(subjects, "subject", "left_semi")
    rows = rows.join(expected.filter("seq is not null").select("seq"), "seq", "left_anti")
    # A publish without a seq explains the first message with its id, or with its content.
    bare = expected.filter("seq is null")
    ids = bare.filter("id is not null").select("id").distinct().withColumn("is_known", f.lit(True))
    order = Window.partitionBy("id").orderBy("seq")
    named = (
        rows.filter("id is not null")
        .withColumn("nth", f.row_number().over(order))
        .join(ids, "id", "left")
        .filter("is_known is null or nth > 1")
        .select("seq", "id", "subject", "is_known")
    )
    pairs = (
        bare.filter("id is null and payload_hash is not null")
        .select("subject", "payload_hash")
        .distinct()
    )
    plain = (
        rows.filter("id is null")
        .join(pairs, ["subject", "payload_hash"], "left_anti")
        .select("seq", "id", "subject", f.lit(None).cast("boolean").alias("is_known"))
    )
    found: list[Finding] = []
    phantom = named.unionByName(plain)
    for row in phantom.orderBy("seq").limit(FINDINGS_MAX).collect():
        found.append(
            finding(
                "phantom-write",
                replica=view.label,
                stream=view.name,
                seq=row["seq"],
                file=view.files.store.directory(view.uid),
                expected="once" if row["is_known"] else "nothing of it in the publisher's log",
                got=f"stored again: {_what(row['id'], row['subject'])}"
                if row["is_known"]
                else _what(row["id"], row["subject"]),
            )
        )
    more = phantom.count() - FINDINGS_MAX if len(found) == FINDINGS_MAX else 0
    return found, [f"{view.name}: {more} more phantom writes, not listed"] if more else []
