"""Times as JetStream writes them: RFC 3339 to and from ns."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

UNSET = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set; `parse_ns` gives 0 for it."""

_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PATTERN = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def parse_ns(text: str) -> int:
    """Return ns since the epoch (0 for the unset time). Raises ValueError for anything else."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    day, clock, fraction, zone = found.groups()
    if day == "0001-01-01":
        return 0
    zone = "+00:00" if zone in "Zz" else zone
    since = datetime.fromisoformat(f"{day}T{clock}{zone}") - _EPOCH
    return (since.days * 86400 + since.seconds) * _NS + int((fraction or "").ljust(9, "0"))


def format_ns(ns: int) -> str:
    """Return `ns` since the epoch as Go prints it: UTC, no trailing zeros; 0 is the unset time."""
    if ns == 0:
        return UNSET
    second, fraction = divmod(ns, _NS)
    if not fraction:
        return _second_text(second) + "Z"
    digits = f"{fraction:09d}"
    if fraction % 10 == 0:
        digits = digits.rstrip("0")
    return f"{_second_text(second)}.{digits}Z"


@lru_cache(maxsize=1024)  # messages of one reply are often of one second
def _second_text(second: int) -> str:
    moment = _EPOCH + timedelta(seconds=second)
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}"
