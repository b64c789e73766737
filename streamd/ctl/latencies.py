"""Latencies of many operations: percentiles and a histogram in steps of powers of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from streamd.ctl.quantities import span_text

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
_BAR: Final = 40


def percentile(ordered: Sequence[int], percent: float) -> int:
    """Return the value that `percent` of the values, in ascending order, do not exceed."""
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * percent / 100) - 1)]


def summary(samples_ns: Sequence[int]) -> dict[str, Any]:
    """Return count, least, greatest, percentiles and histogram of latencies in ns."""
    if not samples_ns:
        return {"count": 0, "histogram": []}
    ordered = sorted(samples_ns)
    found: dict[str, Any] = {"count": len(ordered), "min_ns": ordered[0], "max_ns": ordered[-1]}
    found |= {f"p{percent:g}_ns": percentile(ordered, percent) for percent in PERCENTILES}
    steps: dict[int, int] = {}
    for value in ordered:
        step = max(10, value.bit_length())  # at least a microsecond
        steps[step] = steps.get(step, 0) + 1
    first, last = min(steps), max(steps)
    found["histogram"] = [
        {"below_ns": 1 << step, "count": steps.get(step, 0)} for step in range(first, last + 1)
    ]
    return found


def histogram_lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of a histogram for people."""
    rows = found["histogram"]
    most = max((row["count"] for row in rows), default=0)
    lines = []
    for row in rows:
        bar = "#" * max(1 if row["count"] else 0, round(_BAR * row["count"] / max(1, most)))
        lines.append(f"  < {span_text(row['below_ns']):>8}  {row['count']:>8}  {bar}".rstrip())
    return lines
