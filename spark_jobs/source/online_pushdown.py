"""Online reads that take filters on `seq` and `subject` out of a query (option `pushdown`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from spark_jobs.client.options import SEQ_MAX, ReadOptions
from spark_jobs.sink.ledger import is_ledger
from spark_jobs.source.online import OnlineReader, plan
from streamd.subjects import Matcher, is_valid_literal

SUBJECTS_MAX: Final = 100  # filters of one consumer; a longer list is left to Spark


class PushingReader(OnlineReader):
    """Takes bounds on seq, and subjects by equality; all other filters are left to Spark.

    Bounds on time are among those: two messages may be stored in another order than their times.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._low, self._high = 1, SEQ_MAX
        self._is_empty = False

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be taken exactly; yield the others."""
        for each in filters:
            if not self._take(each):
                yield each

    def partitions(self) -> list[InputPartition]:
        """See OnlineReader."""
        if self._is_empty:
            self._high = 0
        return list(plan(self._options, low=self._low, high=self._high))

    def _take(self, wanted: Filter) -> bool:
        column = getattr(wanted, "attribute", ())
        value: Any = getattr(wanted, "value", None)
        if self._options.last_per_subject:
            return False  # the newest of a subject is chosen before the query's filters
        if column == ("subject",) and isinstance(wanted, EqualTo):
            return self._take_subjects((value,))
        if column == ("subject",) and isinstance(wanted, In):
            return self._take_subjects(tuple(wanted.value))
        if column != ("seq",) or not isinstance(value, int):
            return False
        if isinstance(wanted, EqualTo):
            self._low, self._high = max(self._low, value), min(self._high, value)
        elif isinstance(wanted, GreaterThan | GreaterThanOrEqual):
            self._low = max(self._low, value + isinstance(wanted, GreaterThan))
        elif isinstance(wanted, LessThan | LessThanOrEqual):
            self._high = min(self._high, value - isinstance(wanted, LessThan))
        else:
            return False
        return True

    def _take_subjects(self, values: tuple[Any, ...]) -> bool:
        if len(values) > SUBJECTS_MAX or not all(isinstance(value, str) for value in values):
            return False
        # A wildcard is no subject, and would match others here.
        if not all(is_valid_literal(value.encode()) for value in values):
            return False
        had = self._options.subjects
        matcher = Matcher([subject.encode() for subject in had]) if had else None
        kept = tuple(
            value
            for value in dict.fromkeys(values)
            # Without option subjects the sink's ledger is left out, whoever asks for it.
            if (matcher.matches(value.encode()) if matcher else not is_ledger(value))
        )
        self._is_empty = self._is_empty or not kept
        self._options = replace(self._options, subjects=kept)
        return True
