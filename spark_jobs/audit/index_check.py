"""`index.db` against the blocks: the state that was read from it must tell what the records are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spark_jobs.audit import spark_tasks as audit_tasks
from spark_jobs.audit.block_task import BlockTask, live_seqs
from spark_jobs.audit.findings import Finding, finding
from spark_jobs.audit.replica_files import View
from spark_jobs.audit.spark_tasks import Stats
from spark_jobs.replica.record_rows import BlockRows, subject_sum
from streamd.offline.engine import LENGTH_MASK, MASK64


def newest_crc(view: View, task: BlockTask) -> int:
    """`spark_tasks.columns_crc` of the newest block's live messages, as memory has them; 0 for
    another block, or if they did not come from `index.db`."""
    if not task.wants_subjects or task.is_sealed or view.machine is None:
        return 0
    active = view.machine.index.blocks.active
    if active.columns is None or active.block_no != task.block_no:
        return 0
    return _columns_crc(active.columns, task)


def subject_findings(
    views: Sequence[View], stats: Sequence[Stats], known: Sequence[Finding]
) -> list[Finding]:
    """The subject table that came from `index.db` against the subjects of the records."""
    found = []
    for view in views:
        mine = [each for each in stats if (each.replica, each.stream) == (view.label, view.name)]
        if not view.has_index_db or view.machine is None or not mine:
            continue
        if any(each.subject_sum < 0 for each in mine):
            continue
        there = sum(each.subject_sum for each in mine) & MASK64
        rows = view.machine.index.subjects.rows
        told = subject_sum((name, row[2]) for name, row in rows.items())
        path = f"{view.files.store.directory(view.uid)}/index.db"
        if there != told and not any(
            each.code == "index-differs" and each.file == path for each in known
        ):
            found.append(
                finding(
                    "index-differs",
                    replica=view.label,
                    stream=view.name,
                    file=path,
                    expected="how many messages the blocks have of each subject",
                    got="other subjects or counts",
                )
            )
    return found


def _columns_crc(columns: Any, task: BlockTask) -> int:
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
