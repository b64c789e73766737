"""Two sets of records compared: counts and digests per bucket first, then the records of the
buckets that differ.

Records are matched by seq, or by a key for copies whose seqs differ. The key of `msg-id` is the
header Nats-Msg-Id (a record without one is matched by its content); that of `subject` is the
subject, so the n-th message of a subject meets the n-th there. Equal keys are numbered by seq.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from spark_jobs.jobs.row_hash import CONTENT, digest_of, digest_parts, header_text, row_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEQ, MSG_ID, SUBJECT = "seq", "msg-id", "subject"
BUCKET_SEQS: Final = 4096
BUCKETS_OF_KEYS: Final = 65_536
BUCKETS_LISTED: Final = 100_000  # differing buckets that the driver holds; more: all are compared
MSG_ID_HEADER: Final = "Nats-Msg-Id"
ONLY_LEFT, ONLY_RIGHT, CHANGED = "only left", "only right", "changed"

Read = Callable[[int, int], "DataFrame"]
"""(first seq, last seq) to the records in between, with seq, subject, ts_ns, headers, payload."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Fields that must be equal, and the key by which records are paired."""

    by: str = SEQ
    fields: tuple[str, ...] = CONTENT
    without_headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """A set of records: `read` gives those from `first_seq` to `last_seq`, every time the same."""

    read: Read
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class Comparison:
    """The outcome. `differing` is a DataFrame of records, lazy; None if all is equal."""

    left_rows: int = 0
    right_rows: int = 0
    left_digest: str = ""
    right_digest: str = ""
    bucket_count: int = 0
    bucket_differ: int = 0
    kinds: dict[str, int] = field(default_factory=dict)  # only left, only right, changed
    fields: dict[str, int] = field(default_factory=dict)  # how often each differs
    differing: DataFrame | None = None

    @property
    def is_equal(self) -> bool:
        return not self.bucket_differ and not self.kinds


def compare(left: Side, right: Side, rule: Rule) -> Comparison:
    """Read both sides once; the differing part once more, with its counts.

    `differing` is cached (memory, then disk): call its `unpersist` when done with it.
    """
    found = Comparison()
    buckets = _buckets(left, rule, "left").join(_buckets(right, rule, "right"), "bucket", "full")
    buckets = buckets.na.fill(0).cache()
    try:
        differ = (
            (F.col("left_rows") != F.col("right_rows"))
            | (F.col("left_low") != F.col("right_low"))
            | (F.col("left_high") != F.col("right_high"))
        )
        total = buckets.agg(
            F.count(F.lit(1)).alias("count"),
            F.coalesce(F.sum(differ.cast("long")), F.lit(0)).alias("differ"),
            *(
                F.coalesce(F.sum(F.col(f"{side}_{name}").cast("decimal(38,0)")), F.lit(0)).alias(
                    f"{side}_{name}"
                )
                for side in ("left", "right")
                for name in ("rows", "low", "high")
            ),
        ).first()
        assert total is not None
        found.left_rows, found.right_rows = int(total.left_rows), int(total.right_rows)
        found.left_digest = digest_of(int(total.left_low), int(total.left_high))
        found.right_digest = digest_of(int(total.right_low), int(total.right_high))
        found.bucket_count, found.bucket_differ = total["count"], total.differ
        if not found.bucket_differ:
            return found
        wanted = None
        if found.bucket_differ <= BUCKETS_LISTED:
            wanted = sorted(row.bucket for row in buckets.where(differ).select("bucket").collect())
    finally:
        buckets.unpersist()
    _compare_records(left, right, rule, wanted, found)
    return found


def _buckets(side: Side, rule: Rule, name: str) -> DataFrame:
    """(bucket, rows, low, high) of one side."""
    records = _keyed(side.read(side.first_seq, side.last_seq), rule)
    columns = ["seq" if rule.by == SEQ else "key", *rule.fields]
    if rule.by == SUBJECT:
        records = _numbered(records)
        columns.append("occurrence")
    value = row_hash(columns, without_headers=rule.without_headers)
    rows = F.count(F.lit(1)).alias(f"{name}_rows")
    return (
        records.select(_bucket(rule).alias("bucket"), value.alias("value"))
        .groupBy("bucket")
        .agg(rows, *digest_parts(F.col("value"), name))
    )


def _bucket(rule: Rule) -> Column:
    if rule.by == SEQ:
        return F.expr(f"seq div {BUCKET_SEQS}")
    return F.pmod(F.xxhash64("key"), F.lit(BUCKETS_OF_KEYS))


def _keyed(records: DataFrame, rule: Rule) -> DataFrame:
    """With column `key` where records are matched by one."""
    if rule.by == SUBJECT:
        return records.withColumn("key", F.col("subject"))
    if rule.by == MSG_ID:
        given = F.try_element_at(F.col("headers")[MSG_ID_HEADER], F.lit(1))
        content = F.hex(row_hash(rule.fields, without_headers=rule.without_headers))
        return records.withColumn("key", F.coalesce(given, F.concat(F.lit("content "), content)))
    return records


def _numbered(records: DataFrame) -> DataFrame:
    """With `occurrence`, 1 for the first record of each key."""
    window = Window.partitionBy("key").orderBy("seq")
    return records.withColumn("occurrence", F.row_number().over(window))


def _compare_records(
    left: Side, right: Side, rule: Rule, buckets: Sequence[int] | None, found: Comparison
) -> None:
    """Fill in what differs. `buckets` None: look at all."""
    on = ["seq"] if rule.by == SEQ else ["key", "occurrence"]
    sides = [
        _records(side, rule, buckets, name) for side, name in ((left, "left"), (right, "right"))
    ]
    joined = sides[0].join(sides[1], on, "full")
    is_left, is_right = F.col("left_at").isNotNull(), F.col("right_at").isNotNull()
    unequal = F.filter(
        F.array(
            *(
                F.when(~F.col(f"left_h_{name}").eqNullSafe(F.col(f"right_h_{name}")), F.lit(name))
                for name in rule.fields
            )
        ),
        lambda name: name.isNotNull(),
    )
    kind = (
        F.when(~is_right, F.lit(ONLY_LEFT))
        .when(~is_left, F.lit(ONLY_RIGHT))
        .otherwise(F.lit(CHANGED))
    )
    shown = [
        F.col(f"{side}_{name}")
        for name in ("at", "subject", "ts_ns", "size")
        for side in ("left", "right")
    ]
    records = joined.select(
        *on,
        kind.alias("kind"),
        F.when(is_left & is_right, unequal)
        .otherwise(F.array().cast("array<string>"))
        .alias("fields"),
        *shown,
    ).where((F.col("kind") != CHANGED) | (F.size("fields") > 0))
    records = records.withColumnsRenamed({"left_at": "left_seq", "right_at": "right_seq"}).cache()
    found.differing = records
    for row in records.groupBy("kind", "fields").count().collect():
        found.kinds[row.kind] = found.kinds.get(row.kind, 0) + row["count"]
        for name in row.fields:
            found.fields[name] = found.fields.get(name, 0) + row["count"]


def _records(side: Side, rule: Rule, buckets: Sequence[int] | None, name: str) -> DataFrame:
    """The records of the wanted buckets with a hash per field."""
    first, last = side.first_seq, side.last_seq
    if buckets is not None and rule.by == SEQ:
        first = max(first, buckets[0] * BUCKET_SEQS)
        last = min(last, (buckets[-1] + 1) * BUCKET_SEQS - 1)
    records = _keyed(side.read(first, last), rule)
    if buckets is not None:
        spark = records.sparkSession
        listed = spark.createDataFrame([(each,) for each in buckets], "bucket bigint")
        records = records.withColumn("bucket", _bucket(rule)).join(
            F.broadcast(listed), "bucket", "left_semi"
        )
    if rule.by != SEQ:
        records = _numbered(records)
    on = [F.col("seq")] if rule.by == SEQ else [F.col("key"), F.col("occurrence")]
    hashes = {
        "subject": F.xxhash64("subject"),
        "ts_ns": F.col("ts_ns"),
        "headers": F.xxhash64(header_text(rule.without_headers)),
        "payload": F.xxhash64("payload"),
    }
    return records.select(
        *on,
        F.col("seq").alias(f"{name}_at"),
        F.col("subject").alias(f"{name}_subject"),
        F.col("ts_ns").alias(f"{name}_ts_ns"),
        F.octet_length("payload").alias(f"{name}_size"),
        *(hashes[each].alias(f"{name}_h_{each}") for each in rule.fields),
    )
