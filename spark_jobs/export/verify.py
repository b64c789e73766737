"""Comparison of an export with the stream: every file is read again, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.export.committed_rows import read_files
from spark_jobs.export.export_ledger import Ledger
from spark_jobs.jobs.compare import ONLY_LEFT, Comparison, Rule, Side, compare
from spark_jobs.jobs.origin import Origin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome in words."""

    is_good: bool
    text: str


def verify(spark: SparkSession, origin: Origin, ledger: Ledger) -> Report:
    """Compare the files with the seqs that the stream still has of them.

    Rows that have left the stream since (limits, deletes) are counted, not held against the
    export. A row that is missing, changed or there twice is a difference.
    """
    ledger.check_files()
    facts = origin.facts()
    paths = sorted(ledger.live)
    source = ledger.source
    first = max(facts.first_seq, source.first_seq if source else 1)
    last = ledger.last_seq

    def exported(low: int, high: int) -> DataFrame:
        return read_files(spark, ledger, paths).where(f"seq between {low} and {high}")

    def stored(low: int, high: int) -> DataFrame:
        return origin.rows(spark, low, high)

    found = compare(Side(exported, first, last), Side(stored, first, last), Rule())
    try:
        twice = 0
        if not found.is_equal:
            twice = found.left_rows - exported(first, last).select("seq").distinct().count()
        before = ledger.rows - found.left_rows
        return _report(found, twice=twice, before=before)
    finally:
        if found.differing is not None:
            found.differing.unpersist()


def _report(found: Comparison, *, twice: int, before: int) -> Report:
    gone = found.kinds.get(ONLY_LEFT, 0)
    bad = {kind: count for kind, count in found.kinds.items() if kind != ONLY_LEFT and count}
    if twice:
        bad["twice in the files"] = twice
    left = f"; {gone + before:,} rows have left the stream since" if gone + before else ""
    if not bad and (found.is_equal or gone):
        return Report(
            True,
            f"verified: {found.left_rows - gone:,} rows are equal in the files and the stream, "
            f"digest {found.right_digest}{left}",
        )
    assert found.differing is not None or twice, found
    words = {"only right": "missing in the files", "changed": "different"}
    what = ", ".join(f"{count:,} {words.get(kind, kind)}" for kind, count in bad.items())
    examples = ""
    if found.differing is not None:
        rows = found.differing.where("kind != 'only left'").orderBy("seq").limit(SHOWN).collect()
        places = (f"seq {row.seq} ({row.kind}{_fields(row.fields)})" for row in rows)
        examples = ": " + ", ".join(places)
    return Report(False, f"NOT equal: {what}{examples}{left}")


def _fields(fields: list[str]) -> str:
    return f" in {', '.join(fields)}" if fields else ""
