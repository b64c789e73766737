"""A task attempt of the sink: its writer, its outcome, and whether the ledger fits it."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_jobs.sink.ledger import Entry, LedgerError, StreamFacts
from spark_jobs.sink.rows import Rows, Sums
from spark_jobs.sink.rules import Rejection
from spark_jobs.sink.sink_options import SinkOptions


@dataclass(frozen=True, slots=True)
class Task:
    """The writer of some rows. `batch`: the micro-batch, 0 in a batch job; `attempt` is for people
    to read."""

    job: str
    partition: int
    batch: int = 0
    is_streaming: bool = False
    attempt: str = ""

    def __str__(self) -> str:
        batch = f" batch {self.batch}" if self.is_streaming else ""
        return f"job {self.job}{batch} partition {self.partition}"

    @property
    def id_prefix(self) -> bytes:
        """Return the beginning of the ids of generated rows."""
        batch = f"{self.batch}:" if self.is_streaming else ""
        return f"{self.job}:{batch}{self.partition}:".encode()


@dataclass(slots=True)
class Outcome:
    """Counts of one attempt: rows in all, and of them: done before, sent, left out."""

    rows: int = 0
    resumed: int = 0
    sent: int = 0
    duplicates: int = 0
    rejected: int = 0
    payload_bytes: int = 0
    last_seq: int = 0
    samples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Chunk:
    """Rows on their way, and the entry that will commit them."""

    rows: Rows  # as they were read
    sent: Rows  # those of them that are messages
    is_last: bool
    sums: Sums  # of all rows up to and with these
    duplicates: int
    rejections: list[Rejection]
    number: int = 0  # of its replies
    batch_id: str = ""
    messages: int = 0  # of the batch, before the entry
    is_committing: bool = False


def check_entry(options: SinkOptions, task: Task, entry: Entry) -> None:
    """Raise LedgerError if `entry` is none that this task can follow on."""
    where = f"stream {options.stream}, {task}"
    if entry.batch > task.batch:
        raise LedgerError(
            f"{where}: the ledger is at batch {entry.batch} already (sequence {entry.seq}): the "
            "query's checkpoint is older than the stream. Use its newest checkpoint, or begin a "
            "new one"
        )
    if entry.batch == task.batch and entry.plan != options.plan:
        raise LedgerError(
            f"{where}: it was begun with another plan ({entry.plan!r}, now {options.plan!r}): "
            "other input, partitions or settings. Give the same ones, or another job id"
        )


def check_not_gone(facts: StreamFacts, task: Task, entry: Entry, *, before: Entry) -> None:
    """Raise LedgerError if `entry` is older than `before`, which this attempt has seen."""
    rows = entry.rows if entry.batch == task.batch else 0
    rows_before = before.rows if before.batch == task.batch else 0
    if entry.seq >= before.seq and rows >= rows_before:
        return
    limits = {
        name: facts.config.get(name)
        for name in ("max_msgs", "max_bytes", "max_age")
        if int(facts.config.get(name) or 0) > 0
    }
    raise LedgerError(
        f"stream {facts.name}, {task}: its ledger entry at sequence {before.seq} is gone (now "
        f"{entry.seq}): purged, deleted, or removed by the stream's limits {limits}"
    )


def check_rows(
    options: SinkOptions, task: Task, entry: Entry, rows: int, sums: Sums, *, is_over: bool
) -> None:
    """Raise LedgerError if the rows of now are not those that `entry` counts.

    `rows` and `sums` are of those that were skipped for it; `is_over`: there are no more.
    """
    fault = ""
    if rows < entry.rows:
        fault = f"it has {rows} rows now and had {entry.rows} or more"
    elif sums != entry.sums:
        fault = f"its first {entry.rows} rows are not the same, or not in the same order"
    elif entry.is_done and not is_over:
        fault = f"it had {entry.rows} rows and has more now"
    elif not entry.is_done and is_over:
        fault = f"it had more than {entry.rows} rows and has no more now"
    if fault:
        raise LedgerError(
            f"stream {options.stream}, {task}: {fault}; other rows were written by an earlier "
            f"attempt ({entry.attempt}). A repeated task must get the same ones: sort within "
            "partitions, or persist, what comes out of a shuffle"
        )
