"""A block to judge: the state's claims about it, and the findings of the check.

Tasks are made on the driver and go to the Spark tasks; neither needs Spark here.
"""

from __future__ import annotations

import errno
from typing import Any, Final, NamedTuple

import numpy as np

from spark_jobs.audit.findings import Finding, finding
from spark_jobs.replica.record_rows import U64
from streamd.offline.engine import HEADER_BYTES
from streamd.offline.engine import record_format as fmt
from streamd.offline.read_only_disk import content_bytes

FINDINGS_MAX: Final = 200  # of one block; what follows is counted in the last one


class BlockTask(NamedTuple):
    """The facts that a task needs to judge a block. Small and picklable."""

    replica: str
    stream: str
    uid: int
    path: str
    block_no: int
    first_seq: int  # of the messages stored in it; 0: none
    last_seq: int
    message_count: int  # ever stored in it
    live: int
    digest: int
    end_offset: int  # where its records end
    is_sealed: bool
    dead: tuple[tuple[int, int], ...]  # inclusive seq ranges that are not live
    durable_end: int  # the file must reach that far, the footer of a sealed block included
    tail: bytes = b""  # what follows `durable_end` and is, for certain, only in the log
    tail_at: int = 0  # where `tail` begins
    is_judged: bool = True  # False: no state is known, only the bytes are checked
    wants_subjects: bool = False  # count the live messages of each subject, as one sum


class BlockFindings:
    """Findings of a block, as far as the block has been checked."""

    def __init__(self, task: BlockTask) -> None:
        self.task = task
        self.is_whole = True  # nothing so far explains a difference to the state
        self._findings: list[Finding] = []
        self._left_out = 0  # findings beyond FINDINGS_MAX

    def __bool__(self) -> bool:
        return bool(self._findings)

    def add(self, code: str, **fields: Any) -> None:
        """Add a finding; `fields` as of `findings.finding`."""
        if len(self._findings) == FINDINGS_MAX:
            self._left_out += 1
            return
        task = self.task
        fields.setdefault("file", task.path)
        self._findings.append(finding(code, replica=task.replica, stream=task.stream, **fields))

    def add_about_all(self, code: str, **fields: Any) -> None:
        """A finding about all messages of the block."""
        if self.task.first_seq:
            fields |= {"seq": self.task.first_seq, "seq_hi": self.task.last_seq}
        self.add(code, **fields)

    def has(self, *codes: str) -> bool:
        """True if there is a finding of one of `codes`."""
        return any(each.code in codes for each in self._findings)

    def told(self) -> list[Finding]:
        """Return all findings; the last one says how many more there were."""
        if not self._left_out:
            return self._findings
        *others, last = self._findings
        return [*others, last._replace(got=f"{last.got}; and {self._left_out} more in this block")]


def live_seqs(task: BlockTask) -> U64:
    """The seqs that are live in this block, ascending."""
    if not task.first_seq or not task.live:
        return np.empty(0, np.uint64)
    seqs = np.arange(task.first_seq, task.last_seq + 1, dtype=np.uint64)
    keep = np.ones(len(seqs), bool)
    for low, high in task.dead:
        low, high = max(low, task.first_seq), min(high, task.last_seq)
        if low <= high:
            keep[low - task.first_seq : high - task.first_seq + 1] = False
    return seqs[keep]


def blob_of(task: BlockTask) -> bytes:
    """The block's bytes, with what only the log has of it."""
    try:
        blob = content_bytes(task.path)
    except FileNotFoundError:
        blob = b""
    except OSError as err:
        if err.errno != errno.EIO:
            raise
        blob = b""  # told by the first pass
    return with_tail(task, blob)


def with_tail(task: BlockTask, blob: bytes) -> bytes:
    """The file's bytes `blob`, with what only the log has in its place behind them; zeros stand
    for what a file that was cut lacks before that."""
    if not task.tail:
        return blob
    if task.tail_at == HEADER_BYTES:
        blob = fmt.encode_block_header(task.uid, task.block_no)
    return blob[: task.tail_at].ljust(task.tail_at, b"\0") + task.tail
