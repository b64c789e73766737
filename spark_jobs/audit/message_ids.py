"""Message ids that are stored twice inside one duplicate window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_jobs.audit.findings import Finding, finding
from spark_jobs.audit.replica_files import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FINDINGS_MAX: Final = 1000  # what follows is counted in the last one


def duplicate_findings(ids: DataFrame, views: Mapping[str, View]) -> list[Finding]:
    """`ids` has a row (cohort, seq, ts, id) of every stored message that has an id; `views` has
    the replica that was read, by cohort.

    Ids may come again by right, each in every row: what the windows forbid is told apart in Spark.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("cohort", "id").orderBy("seq")
    again = ids.select(
        "cohort",
        "id",
        "seq",
        f.lag("seq").over(order).alias("first"),
        (f.col("ts") - f.lag("ts").over(order)).alias("apart_ns"),
    ).filter("first is not null")
    spark = ids.sparkSession
    windows = spark.createDataFrame(_windows(views))
    remembered = spark.createDataFrame(_remembered(views))
    forbidden = (
        again.join(windows, "cohort")
        .filter("apart_ns < window_ns")
        .drop("window_ns")
        .unionByName(again.join(remembered, ["cohort", "id", "first"], "left_semi"))
        .persist()
    )
    try:
        rows = forbidden.orderBy("cohort", "seq").limit(FINDINGS_MAX).collect()
        more = forbidden.count() - len(rows)
    finally:
        forbidden.unpersist()
    found = [
        _duplicate(
            views[row["cohort"]], bytes(row["id"]), row["first"], row["seq"], row["apart_ns"]
        )
        for row in rows
    ]
    if more:
        found[-1] = found[-1]._replace(got=f"{found[-1].got}; and {more} more ids")
    return found


def _windows(views: Mapping[str, View]) -> pa.Table:
    """Return for how many nanoseconds each stream surely forbids an id to come again.

    A stream whose configuration was changed may have had another window before; there only ids
    that the state still remembers are judged, because what it remembers it must refuse.
    """
    rows: list[tuple[str, int]] = []
    for cohort, view in views.items():
        now = int(view.config.get("duplicate_window") or 0)
        created = int(view.files.asset.created_config.get("duplicate_window") or 0)
        if not _is_changed(view):
            rows.append((cohort, min(now, created)))
    cohorts, windows = zip(*rows, strict=True) if rows else ((), ())
    return pa.table(
        {"cohort": pa.array(cohorts, pa.string()), "window_ns": pa.array(windows, pa.int64())}
    )


def _remembered(views: Mapping[str, View]) -> pa.Table:
    """The ids that the states of changed streams remember, and as which sequence."""
    cohorts: list[str] = []
    ids: list[bytes] = []
    firsts: list[int] = []
    for cohort, view in views.items():
        if not _is_changed(view) or view.machine is None:
            continue
        arrivals, _, seqs = view.machine.content.dedupe.to_state()
        cohorts += [cohort] * len(arrivals)
        ids += arrivals
        firsts += memoryview(seqs).cast("Q").tolist()
    return pa.table(
        {
            "cohort": pa.array(cohorts, pa.string()),
            "id": pa.array(ids, pa.binary()),
            "first": pa.array(firsts, pa.int64()),
        }
    )


def _is_changed(view: View) -> bool:
    return view.machine is None or view.machine.config_meta_index != view.uid


def _duplicate(view: View, msg_id: bytes, first: int, second: int, apart_ns: int) -> Finding:
    name: Any = msg_id.decode("utf-8", "replace")
    return finding(
        "duplicate-id",
        replica=view.label,
        stream=view.name,
        seq=second,
        file=view.files.store.directory(view.uid),
        expected=f"id {name!r} once, stored as sequence {first}",
        got=f"again {apart_ns / 1e9:.3f} s later",
    )
