"""Digests of 4,096 seqs each, compared between the replicas of a stream: where records differ.

On the driver, or in Spark if there are more than it should hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.audit.replica_drift import DriftedBucket
from spark_jobs.audit.spark_tasks import Work
from spark_jobs.replica.record_rows import BUCKET_SHIFT
from streamd.offline.engine import MASK64

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKET_COLUMNS: Final = ("cohort", "replica", "bucket", "lo", "hi", "expected_replicas")
LOW_BITS: Final = (1 << 32) - 1


def bucket_count(works: Sequence[Work]) -> int:
    """Estimate how many rows of kind bucket `works` give at most."""
    return sum((work.task.last_seq - work.task.first_seq >> BUCKET_SHIFT) + 2 for work in works)


def drifted(rows: Iterable[tuple[Any, ...]]) -> list[tuple[DriftedBucket, list[str]]]:
    """Buckets whose digests are not equal on all replicas, and who has any of it.

    `rows` have `BUCKET_COLUMNS`; a bucket that lies in two blocks has two.
    """
    sums: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    replicas: dict[str, int] = {}
    for cohort, replica, number, low, high, count in rows:
        sums[cohort, number][replica] += low + (high << 32)
        replicas[cohort] = count
    return [
        (DriftedBucket(cohort, number), list(held))
        for (cohort, number), held in sorted(sums.items())
        if len(held) < replicas[cohort] or len({total & MASK64 for total in held.values()}) > 1
    ]


def drifted_in_spark(
    spark: SparkSession, frame: DataFrame, live_rows: Sequence[tuple[Any, ...]]
) -> list[tuple[DriftedBucket, list[str]]]:
    """As `drifted`, for more buckets than the driver should hold."""
    from pyspark.sql import functions as f

    rows = frame.filter("kind = 'bucket'").select(*BUCKET_COLUMNS)
    if live_rows:
        schema = "cohort string, replica string, bucket long, lo long, hi long, "
        schema += "expected_replicas int"
        more = spark.createDataFrame(live_rows, schema)
        rows = rows.unionByName(more)
    # Two halves of 32 bits: a sum of longs that overflows is an error in Spark.
    sums = rows.groupBy("cohort", "bucket", "replica").agg(
        f.sum("lo").alias("lo"),
        f.sum("hi").alias("hi"),
        f.max("expected_replicas").alias("n"),
    )
    whole = sums.select(
        "cohort",
        "bucket",
        "replica",
        "n",
        f.col("lo").bitwiseAND(f.lit(LOW_BITS)).alias("lo"),
        (f.col("hi") + f.shiftright("lo", 32)).bitwiseAND(f.lit(LOW_BITS)).alias("hi"),
    )
    compared = whole.groupBy("cohort", "bucket").agg(
        f.count("*").alias("held"),
        f.max("n").alias("n"),
        f.min("lo").alias("lo_min"),
        f.max("lo").alias("lo_max"),
        f.min("hi").alias("hi_min"),
        f.max("hi").alias("hi_max"),
        f.collect_list("replica").alias("replicas"),
    )
    different = compared.filter("held < n or lo_min != lo_max or hi_min != hi_max").orderBy(
        "cohort", "bucket"
    )
    return [
        (DriftedBucket(row["cohort"], row["bucket"]), list(row["replicas"]))
        for row in different.collect()
    ]
