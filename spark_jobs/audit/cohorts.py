"""The replicas that an audit compares: opened, by stream, at one log index where that can be.

Messages are not read here; `tasks` names the blocks that hold them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.audit import replica_drift as audit_drift
from spark_jobs.audit import state_check as audit_state
from spark_jobs.audit.block_task import BlockTask
from spark_jobs.audit.findings import Finding, finding
from spark_jobs.audit.live_nodes import LiveNode, LiveStream
from spark_jobs.audit.replica_drift import Alignment, Cohort
from spark_jobs.audit.replica_files import Store, StreamFiles, View, files_of, open_view
from streamd.types import StreamKey, stream_label


@dataclass
class ReplicaRow:
    """A line of the report's table: a replica of a stream."""

    replica: str
    stream: str
    uid: int
    state: str  # "compared", "behind", "partly", "alone", "unreadable", "live"
    applied: int
    first_seq: int
    last_seq: int
    messages: int
    digest: str
    records_read: int = 0
    bytes_read: int = 0
    findings: int = 0


class Cohorts:
    """Replicas of the wanted streams, in cohorts: a cohort's replicas should hold the same."""

    def __init__(self, streams: Sequence[str], only: set[str] | None) -> None:
        """`streams` are the names asked for, none for all; of them, `only` some if given."""
        self._streams = streams
        self._only = only
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.views: list[View] = []
        self.live: list[LiveStream] = []
        self.cohorts: dict[str, Cohort] = {}
        self.tasks: dict[tuple[str, str], list[BlockTask]] = {}  # by cohort and replica
        self.rows: dict[tuple[str, str, int], ReplicaRow] = {}
        self._by_cohort: dict[str, list[int]] = defaultdict(list)  # places in `views`

    def open_streams(self, stores: Sequence[Store]) -> None:
        """Open the streams of data directories, each at one log index if that can be."""
        by_key: dict[StreamKey, list[StreamFiles]] = defaultdict(list)
        for store in stores:
            for asset in store.assets:
                if not self._is_wanted(stream_label(asset.key)):
                    continue
                if asset.config.get("storage", "file") != "file":
                    self.notes.append(
                        f"{stream_label(asset.key)}: kept in memory on {store.label}: not audited"
                    )
                    continue
                files = files_of(store, asset)
                found = audit_state.files_findings(files)
                self.findings += found
                if files.is_there or found or asset.uid in store.log.groups:
                    by_key[asset.key].append(files)
        for replicas in by_key.values():
            self._open_cohorts(replicas)

    def open_live(self, node: LiveNode) -> None:
        """Add what a running node has."""
        for stream in node.streams():
            if not self._is_wanted(stream.name):
                continue
            cohort = self.cohort_of(stream)
            views = self.views_of(cohort)
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

    def is_busy(self, stores: Sequence[Store]) -> bool:
        """True if files that a running server changed meanwhile may be why something is wrong."""
        running = {store.label for store in stores if store.place.is_running}
        return any(
            store.label in running and bool(store.log.damage or store.problem) for store in stores
        ) or any(
            view.label in running and bool(view.problem or view.files.has_gap)
            for view in self.views
        )

    def views_of(self, cohort: Cohort) -> list[View]:
        """The replicas of `cohort` that are data directories."""
        return [self.views[key] for key in self._by_cohort.get(cohort.key, ())]

    def cohort_of(self, stream: LiveStream) -> Cohort:
        """The replicas that a live stream belongs to: by uid, or by name if that is not known."""
        for cohort in self.cohorts.values():
            if cohort.name == stream.name and stream.uid in (0, cohort.uid):
                return cohort
        made = Cohort(stream.name, stream.uid)
        self.cohorts[made.key] = made
        return made

    def _is_wanted(self, name: str) -> bool:
        """True for a stream that was asked for: by its name, or with its account (`A/ORDERS`)."""
        if self._only is not None and name not in self._only and "" not in self._only:
            return False
        plain = name.rpartition("/")[2]
        return not self._streams or name in self._streams or plain in self._streams

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
                        stream=each.name,
                        file=each.store.directory(each.asset.uid),
                        expected=f"uid {newest}",
                        got=f"uid {each.asset.uid}",
                    )
                )
        for uid, members in sorted(by_uid.items()):
            self._open_cohort(uid, members)

    def _open_cohort(self, uid: int, members: list[StreamFiles]) -> None:
        name = members[0].name
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
            self._row(view, "compared" if view.label in cohort.aligned else "partly")
        for files in members:
            others = [each for each in members if each is not files]
            lag = audit_drift.lag_finding(files, others)
            if lag is not None:
                self.findings.append(lag)
                row = self.rows.get((name, files.store.label, uid))
                if row is not None and row.state in ("compared", "partly"):
                    row.state = "behind"
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
