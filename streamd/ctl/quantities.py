"""Sizes, durations and times as people type and read them."""

from __future__ import annotations

import re
import time
from typing import Final

from streamd.ctl.failures import unusable
from streamd.durations import parse_duration

_UNITS: Final = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE: Final = re.compile(r"(-1|\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_DAYS: Final = re.compile(r"(\d+(?:\.\d+)?)([dwy])")
_DAY_HOURS: Final = {"d": 24, "w": 24 * 7, "y": 24 * 365}
_STEPS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SECOND: Final = 1_000_000_000


def parse_size(text: str) -> int:
    """Return the bytes of `512`, `64K`, `1.5GiB`; -1 is no limit. Raises CtlError."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise unusable(f"{text!r} is no size: write bytes, or a number with K, M, G or T")
    number, unit = found[1], _UNITS[found[2].upper()]
    return int(number) * unit if "." not in number else int(float(number) * unit)


def parse_span(text: str) -> int:
    """Return the ns of `90s`, `1h30m`, `7d`, `2w`; `0` is none. Raises CtlError."""
    given = text.strip()
    spelled = _DAYS.sub(lambda m: f"{float(m[1]) * _DAY_HOURS[m[2]]:.6f}h", given)
    found = 0 if given in ("0", "") else parse_duration(spelled)
    if found is None or found < 0:
        raise unusable(f"{text!r} is no duration: write 30s, 5m, 1h30m or 7d")
    return found


def size_text(count: int | None) -> str:
    """Return bytes in the largest unit that keeps the number above one."""
    if count is None:
        return "-"
    if count < 0:
        return "unlimited"
    amount, step = float(count), 0
    while amount >= 1024 and step < len(_STEPS) - 1:
        amount /= 1024
        step += 1
    return f"{count} B" if not step else f"{amount:.1f} {_STEPS[step]}"


def count_text(count: int | None) -> str:
    """Return a count with thousands set apart."""
    return "-" if count is None else f"{count:,}"


def limit_text(count: int | None) -> str:
    """Return a count that stands for no limit where it is not positive."""
    return "unlimited" if count is None or count <= 0 else f"{count:,}"


def span_text(ns: int | None) -> str:
    """Return a duration in its two largest units."""
    if ns is None:
        return "-"
    if ns < 0:
        return f"-{span_text(-ns)}"
    if ns < 1_000:
        return f"{ns}ns"
    if ns < 1_000_000:
        return f"{ns / 1e3:.3g}us"
    if ns < _SECOND:
        return f"{ns / 1e6:.3g}ms"
    if ns < 60 * _SECOND:
        return f"{ns / _SECOND:.3g}s"
    whole = ns // _SECOND
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    first = next(at for at, (amount, _) in enumerate(parts) if amount)
    return "".join(f"{amount}{unit}" for amount, unit in parts[first : first + 2] if amount)


def since_text(when: str | None) -> str:
    """Return how long ago an RFC 3339 time was; "never" for the unset time."""
    ns = age_ns(when)
    return "never" if ns is None else span_text(ns)


def age_ns(when: str | None) -> int | None:
    """Return the ns since an RFC 3339 time, None for the unset time."""
    at = time_ns(when)
    return None if at is None else max(0, time.time_ns() - at)


def time_ns(when: str | None) -> int | None:
    """Return the ns since the epoch of an RFC 3339 time, None for the unset time."""
    from datetime import datetime

    if not when or when.startswith("0001-01-01"):
        return None
    head, dot, tail = when.partition(".")
    digits, zone = (re.match(r"\d+", tail) or [""])[0], tail.lstrip("0123456789")
    if not dot:
        digits, zone = "", ""
    try:
        moment = datetime.fromisoformat(head + (zone if dot else ""))
    except ValueError:
        raise unusable(f"{when!r} is no time: write 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return int(moment.timestamp()) * _SECOND + int(digits.ljust(9, "0")[:9] or 0)


def clock_text(when: str | None) -> str:
    """Return an RFC 3339 time to the second, "-" for the unset time."""
    if not when or when.startswith("0001-01-01"):
        return "-"
    return when.partition(".")[0].rstrip("Z").replace("T", " ") + "Z"
