"""Bounds of an online read from the filters of a query (option `pushdown`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_jobs.client.options import SEQ_MAX
from spark_jobs.sink.ledger import is_ledger
from spark_jobs.source.read_options import ReadOptions
from streamd.subjects import Matcher, is_valid_literal

SUBJECTS_MAX: Final = 100  # filters of one consumer; a longer list is left to Spark


class SeqFilters:
    """Bounds on seq, and subjects by equality, taken from the filters of a query.

    All other filters are left to Spark, bounds on time among them: two messages may be stored in
    another order than their times. `options` has the subjects; `low` and `high` are inclusive.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.low, self.high = 1, SEQ_MAX

    def take(self, wanted: Filter) -> bool:
        """Narrow the read by `wanted` and return True, or return False if that can't be said."""
        column = getattr(wanted, "attribute", ())
        value: Any = getattr(wanted, "value", None)
        if self.options.last_per_subject:
            return False  # the newest of a subject is chosen before the query's filters
        if column == ("subject",) and isinstance(wanted, EqualTo):
            return self._take_subjects((value,))
        if column == ("subject",) and isinstance(wanted, In):
            return self._take_subjects(tuple(wanted.value))
        if column != ("seq",) or not isinstance(value, int):
            return False
        if isinstance(wanted, EqualTo):
            self.low, self.high = max(self.low, value), min(self.high, value)
        elif isinstance(wanted, GreaterThan | GreaterThanOrEqual):
            self.low = max(self.low, value + isinstance(wanted, GreaterThan))
        elif isinstance(wanted, LessThan | LessThanOrEqual):
            self.high = min(self.high, value - isinstance(wanted, LessThan))
        else:
            return False
        return True

    def _take_subjects(self, values: tuple[Any, ...]) -> bool:
        if len(values) > SUBJECTS_MAX or not all(isinstance(value, str) for value in values):
            return False
        # A wildcard is no subject, and would match others here.
        if not all(is_valid_literal(value.encode()) for value in values):
            return False
        had = self.options.subjects
        matcher = Matcher([subject.encode() for subject in had]) if had else None
        kept = tuple(
            value
            for value in dict.fromkeys(values)
            # Without option subjects the sink's ledger is left out, whoever asks for it.
            if (matcher.matches(value.encode()) if matcher else not is_ledger(value))
        )
        if not kept:
            self.high = 0
        self.options = replace(self.options, subjects=kept)
        return True
