"""One audit from beginning to end: open, read in Spark, compare, narrow down, look twice.

The driver opens snapshots and logs; Spark tasks read blocks and send back findings and one digest
per replica and 4,096 seqs. Only where digests differ are records looked at.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_jobs import audit_drift, audit_evidence, audit_expect, audit_state, audit_tasks
from spark_jobs.audit_block import DIGEST, FULL, QUICK
from spark_jobs.audit_block_task import BlockTask, live_seqs
from spark_jobs.audit_drift import Alignment, Cohort, DriftedBucket, Held
from spark_jobs.audit_findings import Finding, finding, joined, unexplained
from spark_jobs.audit_live import LiveNode, LiveStream
from spark_jobs.audit_open import Store, StreamFiles, View, files_of, log_findings, open_view
from spark_jobs.audit_rows import BUCKET, BUCKET_SHIFT, BlockRows, subject_sum
from spark_jobs.audit_tasks import Stats, Work
from spark_jobs.replica import StoreDir
from streamd.machine.base import LENGTH_MASK
from streamd.machine.digest import MASK64

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str], AbstractContextManager[Any]]
"""Shows the Spark tasks that finish inside, under a label."""

TASKS_PER_CORE: Final = 4
OPEN_TRIES: Final = 5
OPEN_PAUSE_S: Final = 0.1  # before the second try; longer before each after that
DRIVER_BUCKETS_MAX: Final = 250_000  # compared on the driver: 1e9 records, about 100 MB
_LOW: Final = (1 << 32) - 1
_BUCKET_COLUMNS: Final = ("cohort", "replica", "bucket", "lo", "hi", "expected_replicas")


@dataclass
class Request:
    """What to audit, and how."""

    stores: list[tuple[str, StoreDir]]  # label, directory
    live: list[LiveNode] = field(default_factory=list)
    level: str = FULL
    streams: tuple[str, ...] = ()  # empty: all
    throttle_mb_s: float = 0.0
    expect: str = ""  # file of acked publishes
    expect_stream: str = ""


@dataclass
class ReplicaRow:
    """One line of the report's table: one replica of one stream."""

    replica: str
    stream: str
    uid: int
    state: str  # "compared", "behind", "alone", "unreadable", "live"
    applied: int
    first_seq: int
    last_seq: int
    messages: int
    digest: str
    records_read: int = 0
    bytes_read: int = 0
    findings: int = 0


@dataclass
class Outcome:
    """What an audit found. `notes` are facts that are nobody's fault."""

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
    """One look at everything (or at the streams `only`)."""

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
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.views: list[View] = []
        self.cohorts: dict[str, Cohort] = {}
        self._by_cohort: dict[str, list[int]] = defaultdict(list)  # places in `views`
        self.live: list[LiveStream] = []
        self.tasks: dict[tuple[str, str], list[BlockTask]] = {}  # by cohort and replica
        self.stats: list[Stats] = []
        self.rows: dict[tuple[str, str, int], ReplicaRow] = {}

    def outcome(self) -> Outcome:
        for each in self.stats:
            row = next(
                (
                    r
                    for (s, label, _), r in self.rows.items()
                    if (s, label) == (each.stream, each.replica)
                ),
                None,
            )
            if row is not None:
                row.records_read += each.record_count
                row.bytes_read += each.byte_count
        return Outcome(
            joined(self.findings),
            [self.rows[key] for key in sorted(self.rows)],
            list(dict.fromkeys(self.notes)),
            sum(each.record_count for each in self.stats),
            sum(each.byte_count for each in self.stats),
            0.0,
        )

    def run(self) -> None:
        """Fill `findings`, `notes`, `rows` and `stats`."""
        stores: list[Store] = []
        try:
            for attempt in range(OPEN_TRIES):
                time.sleep(OPEN_PAUSE_S * attempt)  # a server at work needs a moment
                for store in stores:
                    store.close()
                self._forget()
                stores = [Store(place, label) for label, place in self.request.stores]
                self._open_streams(stores)
                if not self._is_busy(stores):
                    break
            for store in stores:
                self.findings += log_findings(store) + audit_state.store_findings(store)
            for node in self.request.live:
                self._open_live(node)
            for view in self.views:
                self.findings += audit_state.view_findings(view)
            self._check_blocks()
            self._explain_views(stores)
            if self.request.expect:
                self._check_expected()
            self.findings = audit_evidence.with_records(self.findings, self.views)
        finally:
            for store in stores:
                store.close()

    def _forget(self) -> None:
        for kept in (self.findings, self.notes, self.views):
            kept.clear()
        for named in (self.cohorts, self._by_cohort, self.tasks, self.rows):
            named.clear()

    def _is_busy(self, stores: Sequence[Store]) -> bool:
        """True if files that a running server changed meanwhile may be why something is wrong."""
        running = {store.label for store in stores if store.place.is_running}
        return any(
            store.label in running and bool(store.log.damage or store.problem) for store in stores
        ) or any(
            view.label in running and bool(view.problem or view.files.has_gap)
            for view in self.views
        )

    # --- opening ----------------------------------------------------------------------------

    def _is_wanted(self, name: str) -> bool:
        if self.only is not None and name not in self.only and "" not in self.only:
            return False
        return not self.request.streams or name in self.request.streams

    def _open_streams(self, stores: Sequence[Store]) -> None:
        by_name: dict[str, list[StreamFiles]] = defaultdict(list)
        for store in stores:
            for asset in store.assets:
                if not self._is_wanted(asset.name):
                    continue
                if asset.config.get("storage", "file") != "file":
                    self.notes.append(f"{asset.name}: kept in memory on {store.label}: not audited")
                    continue
                files = files_of(store, asset)
                found = audit_state.files_findings(files)
                self.findings += found
                if files.is_there or found or asset.uid in store.log.groups:
                    by_name[asset.name].append(files)
        for replicas in by_name.values():
            self._open_cohorts(replicas)

    def _open_cohorts(self, replicas: list[StreamFiles]) -> None:
        newest = max(each.asset.uid for each in replicas)
        by_uid: dict[int, list[StreamFiles]] = defaultdict(list)
        for each in replicas:
            by_uid[each.asset.uid].append(each)
            if each.asset.uid != newest:
                self.findings.append(
                    finding(
                        "stream-recreated",
                        replica=each.store.label,
                        stream=each.asset.name,
                        file=each.store.directory(each.asset.uid),
                        expected=f"uid {newest}",
                        got=f"uid {each.asset.uid}",
                    )
                )
        for uid, members in sorted(by_uid.items()):
            self._open_cohort(uid, members)

    def _open_cohort(self, uid: int, members: list[StreamFiles]) -> None:
        name = members[0].asset.name
        cohort = Cohort(name, uid)
        found = audit_drift.align(members) if len(members) > 1 else Alignment(0, (), ())
        self.notes += found.notes
        views = []
        for files in members:
            is_aligned = files.store.label in found.aligned
            view = open_view(files, found.log_index if is_aligned else None)
            views.append(view)
            if not view.is_known:
                self._row(view, "unreadable")
                continue
            first_seq, last_seq, *_ = view.index_row()
            cohort.labels.append(view.label)
            cohort.first_seqs[view.label] = first_seq
            cohort.last_seqs[view.label] = last_seq
            if is_aligned and view.applied == found.log_index:
                cohort.aligned.add(view.label)
            self._row(view, "compared" if view.label in cohort.aligned else "behind")
        if len(members) == 1 and cohort.labels:
            self.rows[name, cohort.labels[0], uid].state = "alone"
            cohort.aligned.update(cohort.labels)
        self.cohorts[cohort.key] = cohort
        self._by_cohort[cohort.key] = list(range(len(self.views), len(self.views) + len(views)))
        self.views += views
        for view in views:
            tasks = audit_state.tasks_of(view)
            wants = view.has_index_db and view.machine is not None
            self.tasks[cohort.key, view.label] = [
                task._replace(wants_subjects=wants) for task in tasks
            ]

    def _row(self, view: View, state: str) -> None:
        first, last, messages, _, digest = view.index_row()
        self.rows[view.name, view.label, view.uid] = ReplicaRow(
            view.label, view.name, view.uid, state, view.applied, first, last, messages,
            f"{digest:016x}" if view.is_known else "",
        )  # fmt: skip

    def _open_live(self, node: LiveNode) -> None:
        for stream in node.streams():
            if not self._is_wanted(stream.name):
                continue
            cohort = self._cohort_for(stream)
            views = self._views_of(cohort)
            stream.is_exact = bool(stream.applied) and any(
                view.applied == stream.applied and view.label in cohort.aligned for view in views
            )
            cohort.labels.append(stream.label)
            cohort.first_seqs[stream.label] = stream.first_seq
            cohort.last_seqs[stream.label] = stream.last_seq
            if stream.is_exact:
                cohort.aligned.add(stream.label)
            self.live.append(stream)
            self.rows[stream.name, stream.label, cohort.uid] = ReplicaRow(
                stream.label, stream.name, cohort.uid, "live", stream.applied, stream.first_seq,
                stream.last_seq, stream.messages, stream.digest,
            )  # fmt: skip

    def _cohort_for(self, stream: LiveStream) -> Cohort:
        """The replicas that a live stream belongs to: by uid, or by name if that is not known."""
        for cohort in self.cohorts.values():
            if cohort.name == stream.name and stream.uid in (0, cohort.uid):
                return cohort
        made = Cohort(stream.name, stream.uid)
        self.cohorts[made.key] = made
        return made

    # --- blocks -----------------------------------------------------------------------------

    def _check_blocks(self) -> None:
        works: list[Work] = []
        for (key, _), tasks in self.tasks.items():
            count = len(self.cohorts[key].labels)
            works += [self._work(task, key, count) for task in tasks]
        frame = self._pass(
            works,
            partial(
                audit_tasks.check_groups,
                level=self.request.level,
                bytes_per_s=self._bytes_per_task(),
            ),
            audit_tasks.CHECK_SCHEMA,
        )
        live_rows = [row for stream in self.live for row in self._live_rows(stream)]
        if frame is None:
            drifted = _drifted(live_rows)
        elif _bucket_count(works) <= DRIVER_BUCKETS_MAX:
            # One action, no shuffle: the rows are few.
            with self.progress(f"audit ({self.request.level})"):
                buckets = [
                    tuple(row[name] for name in _BUCKET_COLUMNS)
                    for row in frame.collect()
                    if row["kind"] == "bucket" or self._take(row)
                ]
            drifted = _drifted(buckets + live_rows)
        else:
            frame = frame.persist()
            try:
                with self.progress(f"audit ({self.request.level})"):
                    for row in frame.filter("kind != 'bucket'").collect():
                        self._take(row)
                drifted = self._drifted_in_spark(frame, live_rows)
            finally:
                frame.unpersist()
        if self.request.level == QUICK:
            drifted = []
        local = list(self.findings)
        drift = self._narrow(drifted, local)
        for cohort in self.cohorts.values():
            views = [view for view in self._views_of(cohort) if view.label in cohort.aligned]
            has_drift = any(each.stream == cohort.name for each in drift)
            drift += audit_drift.state_findings(views, has_record_drift=has_drift)
        self.findings += unexplained(drift, local)
        self._check_subjects()
        if self.request.level == FULL:
            self._check_ids()

    def _work(self, task: BlockTask, key: str, count: int) -> Work:
        crc = 0
        view = next(v for v in self.views if v.label == task.replica and f"{v.uid}:{v.name}" == key)
        if task.wants_subjects and not task.is_sealed and view.machine is not None:
            columns = view.machine.index.active.columns
            if columns is not None and view.machine.index.active.block_no == task.block_no:
                crc = _columns_crc(columns, task)
        return Work(task, key, count, (), crc)

    def _pass(
        self, works: Sequence[Work], function: Callable[..., Any], schema: str
    ) -> DataFrame | None:
        """A frame of what `function` makes of `works`, one Spark task per group of blocks."""
        if not works:
            return None
        sizes = [_size_of(work.task) for work in works]
        cores = self._cores()
        groups = audit_tasks.groups_of(works, sizes, at_least=cores * TASKS_PER_CORE)
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
        cohort = self._cohort_for(stream)
        self.stats.append(Stats(stream.label, stream.name, *stream.load(), True, -1))
        return [
            (cohort.key, stream.label, number, digest & _LOW, digest >> 32, len(cohort.labels))
            for number, digest in stream.buckets()
        ]

    def _drifted_in_spark(
        self, frame: DataFrame, live_rows: list[tuple[Any, ...]]
    ) -> list[tuple[DriftedBucket, list[str]]]:
        """As `_drifted`, for more buckets than the driver should hold."""
        from pyspark.sql import functions as f

        rows = frame.filter("kind = 'bucket'").select(*_BUCKET_COLUMNS)
        if live_rows:
            schema = "cohort string, replica string, bucket long, lo long, hi long, "
            schema += "expected_replicas int"
            more = self.spark.createDataFrame(live_rows, schema)
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
            f.col("lo").bitwiseAND(f.lit(_LOW)).alias("lo"),
            (f.col("hi") + f.shiftright("lo", 32)).bitwiseAND(f.lit(_LOW)).alias("hi"),
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

    def _narrow(
        self, drifted: Sequence[tuple[DriftedBucket, list[str]]], local: Sequence[Finding]
    ) -> list[Finding]:
        """The records that differ in `drifted`, bounded per stream."""
        wanted: dict[str, list[int]] = defaultdict(list)
        left: dict[str, list[DriftedBucket]] = defaultdict(list)
        for bucket, holders in drifted:
            cohort = self.cohorts[bucket.cohort]
            if not audit_drift.worth_a_look(cohort, bucket, holders, local):
                continue
            if len(wanted[bucket.cohort]) < audit_drift.BUCKETS_MAX:
                wanted[bucket.cohort].append(bucket.number)
            else:
                left[bucket.cohort].append(bucket)
        found: list[Finding] = []
        for key, rows in self._held(wanted).items():
            found += audit_drift.compare(self.cohorts[key], rows, local)
        for key, buckets in left.items():
            cohort = self.cohorts[key]
            found.append(
                finding(
                    "drift-state",
                    replica=", ".join(cohort.labels),
                    stream=cohort.name,
                    seq=buckets[0].first_seq,
                    seq_hi=buckets[-1].last_seq,
                    expected="equal content on all",
                    got=f"{len(buckets)} more ranges of {BUCKET} sequences differ; "
                    f"only the first {audit_drift.BUCKETS_MAX} were narrowed down to records",
                )
            )
        return found

    def _held(self, wanted: dict[str, list[int]]) -> dict[str, dict[int, dict[str, Held]]]:
        """cohort -> seq -> replica -> what it has there, for seqs that are not equal on all."""
        works: list[Work] = []
        for (key, _), tasks in self.tasks.items():
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
            partial(audit_tasks.held_groups, level=DIGEST),
            audit_tasks.HELD_SCHEMA,
        )
        if frame is not None:
            with self.progress("audit (what differs)"):
                for row in frame.collect():
                    held = Held(row["crc"], row["ts"], row["content"])
                    rows[row["cohort"]][row["seq"]][row["replica"]] = held
        for stream in self.live:
            key = self._cohort_for(stream).key
            for seq, held in stream.held(wanted.get(key, ())):
                rows[key][seq][stream.label] = held
        different: dict[str, dict[int, dict[str, Held]]] = {}
        for key, by_seq in rows.items():
            count = len(self.cohorts[key].labels)
            different[key] = {
                seq: held
                for seq, held in by_seq.items()
                if len(held) < count or len(set(held.values())) > 1
            }
        return different

    # --- index.db, ids, publishers ----------------------------------------------------------

    def _check_subjects(self) -> None:
        """The subject table that came from index.db against the subjects of the records."""
        for view in self.views:
            mine = [
                each
                for each in self.stats
                if (each.replica, each.stream) == (view.label, view.name)
            ]
            if not view.has_index_db or view.machine is None or not mine:
                continue
            if any(each.subject_sum < 0 for each in mine):
                continue
            there = sum(each.subject_sum for each in mine) & MASK64
            rows = view.machine.index.subjects
            told = subject_sum((name, row[2]) for name, row in rows.items())
            path = f"{view.files.store.directory(view.uid)}/index.db"
            if there != told and not any(
                each.code == "index-differs" and each.file == path for each in self.findings
            ):
                self.findings.append(
                    finding(
                        "index-differs",
                        replica=view.label,
                        stream=view.name,
                        file=path,
                        expected="how many messages the blocks have of each subject",
                        got="other subjects or counts",
                    )
                )

    def _check_ids(self) -> None:
        """Message ids twice inside the duplicate window; in one replica per stream, as the others
        are compared with it."""
        from spark_jobs.audit_ids import duplicate_findings

        with_headers = {(each.replica, each.stream) for each in self.stats if each.has_headers}
        chosen: dict[str, View] = {}
        works: list[Work] = []
        for key, cohort in self.cohorts.items():
            views = [view for view in self._views_of(cohort) if view.machine is not None]
            views.sort(key=lambda view: view.label not in cohort.aligned)
            if views and (views[0].label, cohort.name) in with_headers:
                chosen[key] = views[0]
                works += [Work(task, key, 0) for task in self.tasks[key, views[0].label]]
        frame = self._pass(works, audit_tasks.id_groups, audit_tasks.ID_SCHEMA)
        if frame is not None:
            with self.progress("audit (message ids)"):
                self.findings += duplicate_findings(frame, chosen)

    def _views_of(self, cohort: Cohort) -> list[View]:
        return [self.views[key] for key in self._by_cohort.get(cohort.key, ())]

    def _check_expected(self) -> None:
        name = self.request.expect_stream
        views = [view for view in self.views if view.name == name and view.machine is not None]
        if not views:
            raise ValueError(f"--expect: stream {name!r} can be read on none of the replicas")
        view = max(views, key=lambda each: (each.uid, each.applied))
        key = f"{view.uid}:{view.name}"
        works = [Work(task, key, 0) for task in self.tasks[key, view.label]]
        frame = self._pass(works, audit_expect.stored_groups, audit_expect.STORED_SCHEMA)
        with self.progress("audit (acked publishes)"):
            found, notes = audit_expect.expected_findings(
                self.spark, self.request.expect, frame, view
            )
        self.findings += found
        self.notes += notes

    def _explain_views(self, stores: Sequence[Store]) -> None:
        """A state that could not be brought up to date, and nothing else says why."""
        for view in self.views:
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
        for store in stores:
            if store.problem and store.assets:
                self.notes.append(f"{store.label}: {store.problem}")


def _bucket_count(works: Sequence[Work]) -> int:
    """How many rows of kind bucket `works` give at most, about."""
    return sum((work.task.last_seq - work.task.first_seq >> BUCKET_SHIFT) + 2 for work in works)


def _drifted(rows: Iterable[tuple[Any, ...]]) -> list[tuple[DriftedBucket, list[str]]]:
    """Buckets whose digests are not equal on all replicas, and who has any of it.

    `rows` have `_BUCKET_COLUMNS`; a bucket that lies in two blocks has two.
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


def _columns_crc(columns: Any, task: BlockTask) -> int:
    """`audit_tasks.columns_crc` of the newest block's live messages, as memory has them."""
    count = len(columns)
    offsets = np.array(columns.offsets, np.int64)
    if columns.seqs is None:
        seqs = np.arange(columns.first_seq, columns.first_seq + count, dtype=np.uint64)
    else:
        seqs = np.array(columns.seqs, np.uint64)
    lengths = np.array(columns.lengths, np.int64) & LENGTH_MASK
    tss = np.array(columns.ts_deltas, np.uint64) + np.uint64(columns.base_ts)
    at = np.isin(seqs, live_seqs(task), assume_unique=True)
    crcs = np.array(columns.crcs, np.uint64)
    return audit_tasks.columns_crc(BlockRows(seqs[at], crcs[at], offsets[at], lengths[at], tss[at]))


def _size_of(task: BlockTask) -> int:
    try:
        return os.path.getsize(task.path) + len(task.tail)
    except OSError:
        return len(task.tail) + 1
