"""Times in the text form the JetStream API uses: RFC 3339 with nanoseconds.

A time is ns since the epoch here (0: not set) and the string `0001-01-01T00:00:00Z` when unset
there. Errors read as nats-server's do, since clients show them to people.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from streamd.machine.rfc3339 import UNSET as ZERO_TIME
from streamd.machine.rfc3339 import format_ns

__all__ = ["ZERO_TIME", "bounded", "format_ns", "parse_ns", "parse_time"]

_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHAPE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_PIECES: Final = (
    (r"\d{4}", "2006"),
    ("-", "-"),
    (r"\d\d", "01"),
    ("-", "-"),
    (r"\d\d", "02"),
    ("T", "T"),
    (r"\d\d", "15"),
    (":", ":"),
    (r"\d\d", "04"),
    (":", ":"),
    (r"\d\d", "05"),
    (r"(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)", "Z07:00"),
)


def parse_time(text: str) -> tuple[str, int]:
    """Return (canonical text, ns since the epoch) of an RFC 3339 time.

    The canonical text keeps the zone it was given in. Raises ValueError in nats-server's words.
    """
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ValueError(_misfit(text))
    year, month, day, hour, minute, second = (int(part) for part in found.group(1, 2, 3, 4, 5, 6))
    for name, value, low, high in (
        ("month", month, 1, 12),
        ("day", day, 1, 31),
        ("hour", hour, 0, 23),
        ("minute", minute, 0, 59),
        ("second", second, 0, 59),
    ):
        if not low <= value <= high:
            raise ValueError(f'parsing time "{text}": {name} out of range')
    fraction = int((found.group(7) or "0").ljust(9, "0")[:9])
    zone_text = found.group(8)
    zone: timezone = UTC
    if zone_text != "Z":
        sign = -1 if zone_text[0] == "-" else 1
        hours, minutes = int(zone_text[1:3]), int(zone_text[4:6])
        if hours > 23 or minutes > 59:
            raise ValueError(f'parsing time "{text}": time zone offset hour out of range')
        if hours == 0 and minutes == 0:
            zone_text = "Z"
        zone = timezone(sign * timedelta(hours=hours, minutes=minutes))
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError as err:
        raise ValueError(f'parsing time "{text}": day out of range') from err
    passed = moment - _EPOCH
    ns = (passed.days * 86_400 + passed.seconds) * _SECOND + fraction
    canonical = f"{text[:19]}{_fraction_text(fraction)}{zone_text}"
    return canonical, ns


def bounded(text: str) -> str:
    """Return the canonical text of a time, moved into what 64 bits of ns can hold (1677 to 2262).

    The unset time stays what it is. Raises ValueError as `parse_time`.
    """
    canonical, ns = parse_time(text)
    if canonical == ZERO_TIME or -(1 << 63) <= ns < 1 << 63:
        return canonical
    return format_ns(min(max(ns, -(1 << 63)), (1 << 63) - 1))


def parse_ns(text: str) -> int:
    """Return ns since the epoch of a time that was checked before; 0 for "" and the zero time."""
    if not text or text == ZERO_TIME:
        return 0
    return parse_time(text)[1]


def _fraction_text(fraction: int) -> str:
    return f".{fraction:09d}".rstrip("0") if fraction else ""


def _misfit(text: str) -> str:
    """Say which element of the layout `text` fails at, as Go does."""
    rest = text
    for pattern, element in _PIECES:
        found = re.match(pattern, rest, re.ASCII)
        if found is None:
            return f'parsing time "{text}" as "{_LAYOUT}": cannot parse "{rest}" as "{element}"'
        rest = rest[found.end() :]
    return f'parsing time "{text}": extra text: "{rest}"'
