"""Bounds of an offline read, from its options and from the filters of a query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_jobs.replica.decode import Selection
from spark_jobs.source.read_options import ReadOptions
from streamd.offline.blocks import BlockView
from streamd.subjects import Matcher, is_valid_literal
from streamd.types import Seq


@dataclass(frozen=True, slots=True)
class Bounds:
    """Part of a stream that a read wants: inclusive bounds, 0 for none, and subjects."""

    start_seq: Seq = 0
    end_seq: Seq = 0
    start_ts_ns: int = 0
    end_ts_ns: int = 0
    matchers: tuple[tuple[bytes, ...], ...] = ()  # each a list of patterns; all must match
    with_ledger: bool = False  # entries of the sink's ledger: only if option subjects is given
    is_empty: bool = False

    def selection(self, seqs: bytes | None = None) -> Selection:
        """As the decoder takes it. `seqs`: int64 in native order."""
        matcher: Any = None
        if len(self.matchers) == 1:
            matcher = Matcher(self.matchers[0])
        elif self.matchers:
            matcher = _AllOf([Matcher(patterns) for patterns in self.matchers])
        return Selection(
            start_seq=self.start_seq,
            end_seq=self.end_seq,
            start_ts_ns=self.start_ts_ns,
            end_ts_ns=self.end_ts_ns,
            matcher=matcher,
            seqs=None if seqs is None else np.frombuffer(seqs, np.int64),
            with_ledger=self.with_ledger,
        )

    def may_want(self, block: BlockView) -> bool:
        """False if no message of `block` can be wanted."""
        return (
            block.live > 0
            and not self.is_empty
            and (not self.end_seq or block.first_seq <= self.end_seq)
            and block.last_seq >= self.start_seq
            and (not self.end_ts_ns or block.first_ts_ns <= self.end_ts_ns)
            and block.last_ts_ns >= self.start_ts_ns
        )


class _AllOf:
    """A matcher of what several matchers match."""

    is_all = False

    def __init__(self, matchers: list[Matcher]) -> None:
        self._matchers = matchers

    def matches(self, subject: bytes) -> bool:
        return all(matcher.matches(subject) for matcher in self._matchers)


def bounds_of(options: ReadOptions) -> Bounds:
    """Return the bounds that the options of a read ask for."""
    return Bounds(
        start_seq=options.start_seq,
        end_seq=options.end_seq,
        start_ts_ns=options.start_time_ns,
        end_ts_ns=options.end_time_ns,
        matchers=(tuple(s.encode() for s in options.subjects),) if options.subjects else (),
        with_ledger=bool(options.subjects),
    )


class FilterBounds:
    """Bounds on seq, ts and ts_ns, and subjects, taken from the filters of a query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.bounds = bounds_of(options)

    def take(self, wanted: Filter) -> bool:
        """Narrow the bounds by `wanted` and return True, or return False if they can't say it."""
        column = getattr(wanted, "attribute", ())
        value = getattr(wanted, "value", None)
        if column == ("subject",):
            if isinstance(wanted, EqualTo):
                return self._take_subjects((value,))
            return isinstance(wanted, In) and self._take_subjects(wanted.value)
        if self._options.last_per_subject:
            return False  # the newest of a subject is chosen before the query's filters
        if column in (("seq",), ("ts_ns",)) and isinstance(value, int):
            return self._take_bound(column[0], wanted, low=value, high=value)
        if column == ("ts",) and isinstance(value, datetime) and value.tzinfo is not None:
            micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            return self._take_bound("ts_ns", wanted, low=micros * 1000, high=micros * 1000 + 999)
        return False

    def _take_subjects(self, values: tuple[Any, ...]) -> bool:
        if not all(isinstance(value, str) for value in values):
            return False
        encoded = tuple(value.encode() for value in values)
        if not all(map(is_valid_literal, encoded)):
            return False  # a wildcard is no subject, and would match others here
        self.bounds = replace(self.bounds, matchers=(*self.bounds.matchers, encoded))
        return True

    def _take_bound(self, column: str, wanted: Filter, *, low: int, high: int) -> bool:
        """`low`..`high` are the values that count as equal."""
        first, last = 0, 0
        if isinstance(wanted, EqualTo):
            first, last = low, high
        elif isinstance(wanted, GreaterThan):
            first = high + 1
        elif isinstance(wanted, GreaterThanOrEqual):
            first = low
        elif isinstance(wanted, LessThan):
            last = low - 1
        elif isinstance(wanted, LessThanOrEqual):
            last = high
        else:
            return False
        bounds = self.bounds
        if not isinstance(wanted, GreaterThan | GreaterThanOrEqual) and last <= 0:
            self.bounds = replace(bounds, is_empty=True)
        elif column == "seq":
            self.bounds = replace(
                bounds,
                start_seq=max(bounds.start_seq, first),
                end_seq=min(bounds.end_seq or last, last or bounds.end_seq),
            )
        else:
            self.bounds = replace(
                bounds,
                start_ts_ns=max(bounds.start_ts_ns, first),
                end_ts_ns=min(bounds.end_ts_ns or last, last or bounds.end_ts_ns),
            )
        return True
