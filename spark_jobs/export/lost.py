"""Messages that an export of damaged files lacks, because no record of them is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_jobs.jobs.command import JobError
from spark_jobs.jobs.origin import Origin
from streamd.offline.engine import as_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ranges = tuple[tuple[int, int], ...]


def lost_of(spark: SparkSession, origin: Origin, first: int, last: int, *, rows: int) -> Ranges:
    """The seqs (inclusive ranges) of `first`..`last` that are stored and can't be read, after
    `rows` messages of them were; of any subject, for that of a lost message is lost too.

    Raises JobError if other messages can be read now than then.
    """
    again = origin.rows(spark, first, last, "seq").count()
    live = origin.live_seqs(first, last)
    read = origin.with_options(subjects=">").rows(spark, first, last, "seq").toArrow()
    if again > rows:
        raise JobError(
            f"seqs {first}..{last}: {rows} rows were read, and {again} a moment later: the disk "
            "gives other bytes each time; nothing was committed: run the export again"
        )
    # What was deleted meanwhile is not lost: it is not live any more.
    lost = np.setdiff1d(live, read.column("seq").to_numpy(), assume_unique=True)
    lost = np.intersect1d(lost, origin.live_seqs(first, last), assume_unique=True)
    return tuple(as_ranges(lost.tolist()))
