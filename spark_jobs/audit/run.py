"""An audit from beginning to end: open, read in Spark, compare, narrow down, look twice.

The driver opens snapshots and logs; Spark tasks read blocks and send back findings and one digest
per replica and 4,096 seqs. Only where digests differ are records looked at.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.audit import (
    bucket_digests,
    evidence,
    expectations,
    index_check,
    replica_drift,
    spark_tasks,
    state_check,
)
from spark_jobs.audit.block_check import DIGEST, FULL, QUICK
from spark_jobs.audit.block_task import BlockTask
from spark_jobs.audit.bucket_digests import BUCKET_COLUMNS, LOW_BITS
from spark_jobs.audit.cohorts import Cohorts, ReplicaRow
from spark_jobs.audit.findings import Finding, finding, joined, unexplained
from spark_jobs.audit.live_nodes import LiveNode, LiveStream
from spark_jobs.audit.replica_drift import DriftedBucket, Held
from spark_jobs.audit.replica_files import Store, View, log_findings
from spark_jobs.audit.spark_tasks import Stats, Work
from spark_jobs.replica.record_rows import BUCKET, BUCKET_SHIFT
from streamd.offline.stream_view import StoreDir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str], AbstractContextManager[Any]]
"""Shows the Spark tasks that finish inside, under a label."""

TASKS_PER_CORE: Final = 4
OPEN_TRIES: Final = 5
OPEN_PAUSE_S: Final = 0.1  # before the second try; longer before each after that
DRIVER_BUCKETS_MAX: Final = 250_000  # compared on the driver: 1e9 records, about 100 MB


@dataclass
class Request:
    """Inputs, level and limits of an audit."""

    stores: list[tuple[str, StoreDir]]  # label, directory
    live: list[LiveNode] = field(default_factory=list)
    level: str = FULL
    streams: tuple[str, ...] = ()  # empty: all
    throttle_mb_s: float = 0.0
    expect: str = ""  # file of acked publishes
    expect_stream: str = ""


@dataclass
class Outcome:
    """Findings of an audit. `notes` are facts that are nobody's fault."""

    findings: list[Finding]
    rows: list[ReplicaRow]
    notes: list[str]
    records: int
    bytes: int
    elapsed_s: float


def audit(spark: SparkSession, request: Request, progress: Progress) -> Outcome:
    """Run `request`. What a running server changes meanwhile is looked at twice: only what is
    there both times is a finding."""
    began = time.monotonic()
    first = _Round(spark, request, progress)
    first.run()
    outcome = first.outcome()
    running = {label for label, place in request.stores if place.is_running}

    def is_doubtful(each: Finding) -> bool:
        return not running.isdisjoint(each.replica.split(", "))

    doubtful = {each.stream for each in outcome.findings if is_doubtful(each)}
    if doubtful:
        again = _Round(spark, request, progress, only=doubtful)
        again.run()
        seen = {_identity(each) for each in again.outcome().findings}
        outcome.findings = [
            each for each in outcome.findings if not is_doubtful(each) or _identity(each) in seen
        ]
    for row in outcome.rows:
        row.findings = sum(
            row.stream == each.stream and row.replica in each.replica.split(", ")
            for each in outcome.findings
        )
    outcome.elapsed_s = time.monotonic() - began
    return outcome


def _identity(each: Finding) -> tuple[Any, ...]:
    return each.code, each.replica, each.stream, each.seq_lo, each.file, each.offset


class _Round:
    """A pass over everything (or over the streams `only`)."""

    def __init__(
        self,
        spark: SparkSession,
        request: Request,
        progress: Progress,
        *,
        only: set[str] | None = None,
    ) -> None:
        self.spark = spark
        self.request = request
        self.progress = progress
        self.only = only
        self.opened = Cohorts(request.streams, only)
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.stats: list[Stats] = []

    def outcome(self) -> Outcome:
        for each in self.stats:
            row = next(
                (
                    r
                    for (s, label, _), r in self.opened.rows.items()
                    if (s, label) == (each.stream, each.replica)
                ),
                None,
            )
            if row is not None:
                row.records_read += each.record_count
                row.bytes_read += each.byte_count
        return Outcome(
            joined(self.findings),
            [self.opened.rows[key] for key in sorted(self.opened.rows)],
            list(dict.fromkeys(self.notes)),
            sum(each.record_count for each in self.stats),
            sum(each.byte_count for each in self.stats),
            0.0,
        )

    def run(self) -> None:
        """Fill `findings`, `notes`, `stats` and `opened`."""
        stores: list[Store] = []
        try:
            for attempt in range(OPEN_TRIES):
                time.sleep(OPEN_PAUSE_S * attempt)  # a server at work needs a moment
                for store in stores:
                    store.close()
                stores = [Store(place, label) for label, place in self.request.stores]
                self.opened = Cohorts(self.request.streams, self.only)
                self.opened.open_streams(stores)
                if not self.opened.is_busy(stores):
                    break
            self.findings += self.opened.findings
            for store in stores:
                self.findings += log_findings(store) + state_check.store_findings(store)
            for node in self.request.live:
                self.opened.open_live(node)
            self.notes += self.opened.notes
            for view in self.opened.views:
                self.findings += state_check.view_findings(view)
            self._check_blocks()
            self._explain_views()
            if self.request.expect:
                self._check_expected()
            self.findings = evidence.with_records(self.findings, self.opened.views)
        finally:
            for store in stores:
                store.close()

    # --- blocks -----------------------------------------------------------------------------

    def _check_blocks(self) -> None:
        works: list[Work] = []
        for (key, _), tasks in self.opened.tasks.items():
            count = len(self.opened.cohorts[key].labels)
            works += [self._work(task, key, count) for task in tasks]
        frame = self._pass(
            works,
            partial(
                spark_tasks.check_groups,
                level=self.request.level,
                bytes_per_s=self._bytes_per_task(),
            ),
            spark_tasks.CHECK_SCHEMA,
        )
        live_rows = [row for stream in self.opened.live for row in self._live_rows(stream)]
        if frame is None:
            drifted = bucket_digests.drifted(live_rows)
        elif bucket_digests.bucket_count(works) <= DRIVER_BUCKETS_MAX:
            # One action, no shuffle: the rows are few.
            with self.progress(f"audit ({self.request.level})"):
                buckets = [
                    tuple(row[name] for name in BUCKET_COLUMNS)
                    for row in frame.collect()
                    if row["kind"] == "bucket" or self._take(row)
                ]
            drifted = bucket_digests.drifted(buckets + live_rows)
        else:
            frame = frame.persist()
            try:
                with self.progress(f"audit ({self.request.level})"):
                    for row in frame.filter("kind != 'bucket'").collect():
                        self._take(row)
                drifted = bucket_digests.drifted_in_spark(self.spark, frame, live_rows)
            finally:
                frame.unpersist()
        if self.request.level == QUICK:
            drifted = []
        local = list(self.findings)
        drift = self._narrow(drifted, local)
        for cohort in self.opened.cohorts.values():
            views = [view for view in self.opened.views_of(cohort) if view.label in cohort.aligned]
            has_drift = any(each.stream == cohort.name for each in drift)
            drift += replica_drift.state_findings(views, has_record_drift=has_drift)
        self.findings += unexplained(drift, local)
        self.findings += index_check.subject_findings(self.opened.views, self.stats, self.findings)
        if self.request.level == FULL:
            self._check_ids()

    def _work(self, task: BlockTask, key: str, count: int) -> Work:
        view = next(
            view
            for view in self.opened.views
            if view.label == task.replica and f"{view.uid}:{view.name}" == key
        )
        return Work(task, key, count, (), index_check.newest_crc(view, task))

    def _pass(
        self, works: Sequence[Work], function: Callable[..., Any], schema: str
    ) -> DataFrame | None:
        """A frame of what `function` makes of `works`, one Spark task per group of blocks."""
        if not works:
            return None
        sizes = [_size_of(work.task) for work in works]
        cores = self._cores()
        groups = spark_tasks.groups_of(works, sizes, at_least=cores * TASKS_PER_CORE)
        numbers = self.spark.range(0, len(groups), 1, len(groups))
        return numbers.mapInArrow(partial(function, groups=groups), schema)

    def _cores(self) -> int:
        try:
            return int(self.spark.sparkContext.defaultParallelism)
        except Exception:  # noqa: BLE001 - Spark Connect has no context
            return 4

    def _bytes_per_task(self) -> float:
        if not self.request.throttle_mb_s:
            return 0.0
        return self.request.throttle_mb_s * 1e6 / self._cores()

    def _take(self, row: Any) -> bool:
        """Take a finding or the numbers of one block; always False."""
        if row["kind"] == "finding":
            self.findings.append(pickle.loads(bytes(row["body"])))
        else:
            self.stats.append(Stats(*json.loads(bytes(row["body"]))))
        return False

    # --- drift ------------------------------------------------------------------------------

    def _live_rows(self, stream: LiveStream) -> list[tuple[str, str, int, int, int, int]]:
        """(cohort, replica, bucket, lo, hi, replicas) of a live node's messages."""
        if self.request.level == QUICK:
            return []
        cohort = self.opened.cohort_of(stream)
        self.stats.append(Stats(stream.label, stream.name, *stream.load(), True, -1))
        return [
            (cohort.key, stream.label, number, digest & LOW_BITS, digest >> 32, len(cohort.labels))
            for number, digest in stream.buckets()
        ]

    def _narrow(
        self, drifted: Sequence[tuple[DriftedBucket, list[str]]], local: Sequence[Finding]
    ) -> list[Finding]:
        """The records that differ in `drifted`, bounded per stream."""
        wanted: dict[str, list[int]] = defaultdict(list)
        left: dict[str, list[DriftedBucket]] = defaultdict(list)
        for bucket, holders in drifted:
            cohort = self.opened.cohorts[bucket.cohort]
            if not replica_drift.worth_a_look(cohort, bucket, holders, local):
                continue
            if len(wanted[bucket.cohort]) < replica_drift.BUCKETS_MAX:
                wanted[bucket.cohort].append(bucket.number)
            else:
                left[bucket.cohort].append(bucket)
        found: list[Finding] = []
        for key, rows in self._held(wanted).items():
            found += replica_drift.compare(self.opened.cohorts[key], rows, local)
        for key, buckets in left.items():
            cohort = self.opened.cohorts[key]
            found.append(
                finding(
                    "drift-state",
                    replica=", ".join(cohort.labels),
                    stream=cohort.name,
                    seq=buckets[0].first_seq,
                    seq_hi=buckets[-1].last_seq,
                    expected="equal content on all",
                    got=f"{len(buckets)} more ranges of {BUCKET} sequences differ; "
                    f"only the first {replica_drift.BUCKETS_MAX} were narrowed down to records",
                )
            )
        return found

    def _held(self, wanted: dict[str, list[int]]) -> dict[str, dict[int, dict[str, Held]]]:
        """cohort -> seq -> replica -> what it has there, for seqs that are not equal on all."""
        works: list[Work] = []
        for (key, _), tasks in self.opened.tasks.items():
            for task in tasks:
                numbers = tuple(
                    number
                    for number in wanted.get(key, ())
                    if task.first_seq >> BUCKET_SHIFT <= number <= task.last_seq >> BUCKET_SHIFT
                )
                if numbers:
                    works.append(Work(task, key, 0, numbers))
        rows: dict[str, dict[int, dict[str, Held]]] = defaultdict(lambda: defaultdict(dict))
        frame = self._pass(
            works,
            partial(spark_tasks.held_groups, level=DIGEST),
            spark_tasks.HELD_SCHEMA,
        )
        if frame is not None:
            with self.progress("audit (what differs)"):
                for row in frame.collect():
                    held = Held(row["crc"], row["ts"], row["content"])
                    rows[row["cohort"]][row["seq"]][row["replica"]] = held
        for stream in self.opened.live:
            key = self.opened.cohort_of(stream).key
            for seq, held in stream.held(wanted.get(key, ())):
                rows[key][seq][stream.label] = held
        different: dict[str, dict[int, dict[str, Held]]] = {}
        for key, by_seq in rows.items():
            count = len(self.opened.cohorts[key].labels)
            different[key] = {
                seq: held
                for seq, held in by_seq.items()
                if len(held) < count or len(set(held.values())) > 1
            }
        return different

    # --- ids, publishers --------------------------------------------------------------------

    def _check_ids(self) -> None:
        """Message ids twice inside the duplicate window; in one replica per stream, as the others
        are compared with it."""
        from spark_jobs.audit.message_ids import duplicate_findings

        with_headers = {(each.replica, each.stream) for each in self.stats if each.has_headers}
        chosen: dict[str, View] = {}
        works: list[Work] = []
        for key, cohort in self.opened.cohorts.items():
            views = [view for view in self.opened.views_of(cohort) if view.machine is not None]
            views.sort(key=lambda view: view.label not in cohort.aligned)
            if views and (views[0].label, cohort.name) in with_headers:
                chosen[key] = views[0]
                works += [Work(task, key, 0) for task in self.opened.tasks[key, views[0].label]]
        frame = self._pass(works, spark_tasks.id_groups, spark_tasks.ID_SCHEMA)
        if frame is not None:
            with self.progress("audit (message ids)"):
                self.findings += duplicate_findings(frame, chosen)

    def _check_expected(self) -> None:
        name = self.request.expect_stream
        views = [
            view
            for view in self.opened.views
            if name in (view.name, view.files.asset.name) and view.machine is not None
        ]
        labels = sorted({view.name for view in views})
        if len(labels) > 1:
            raise ValueError(f"--expect: {name!r} may be one of {', '.join(labels)}")
        if not views:
            raise ValueError(f"--expect: stream {name!r} can be read on none of the replicas")
        view = max(views, key=lambda each: (each.uid, each.applied))
        key = f"{view.uid}:{view.name}"
        works = [Work(task, key, 0) for task in self.opened.tasks[key, view.label]]
        frame = self._pass(works, expectations.stored_groups, expectations.STORED_SCHEMA)
        with self.progress("audit (acked publishes)"):
            found, notes = expectations.expected_findings(
                self.spark, self.request.expect, frame, view
            )
        self.findings += found
        self.notes += notes

    def _explain_views(self) -> None:
        """A state that could not be brought up to date, and nothing else says why."""
        for view in self.opened.views:
            if not view.problem or not view.is_known:
                continue
            if any(
                each.replica == view.label and each.stream in ("", view.name)
                for each in self.findings
                if each.severity == "damage"
            ):
                continue
            self.findings.append(
                finding(
                    "stream-unreadable",
                    replica=view.label,
                    stream=view.name,
                    file=view.files.store.directory(view.uid),
                    expected=f"the state at log index {view.files.commit}",
                    got=f"only that at {view.applied}: {view.problem}",
                )
            )


def _size_of(task: BlockTask) -> int:
    try:
        return os.path.getsize(task.path) + len(task.tail)
    except OSError:
        return len(task.tail) + 1
