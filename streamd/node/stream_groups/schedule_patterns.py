"""Patterns of message schedules (`Nats-Schedule`), and the times that they name.

    @at 2030-01-01T12:00:00Z          once
    @every 90s                        from the next second on, at least a second apart
    0 30 5 * * mon-fri                second minute hour day month weekday, in a time zone
    @yearly @annually @monthly @weekly @daily @midnight @hourly

A leader asks when it proposes an entry, and the entry says what came out: what a time zone is at a
node depends on its files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from streamd import errors
from streamd.durations import SECOND_NS, parse_duration
from streamd.errors import JsError
from streamd.machine.rfc3339 import parse_ns

TIME_NS_MAX: Final = 1 << 62  # the year 2116: what comes later is never reached
_YEARS: Final = 5  # a pattern that names no time within them is none
_SOONEST_NS: Final = SECOND_NS // 4  # what is past fires then: who published it hears of it first
_HOUR: Final = 3600
_LOCAL_ZONE_FILE: Final = "/etc/localtime"

_SHORTCUTS: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS: Final = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6,
    "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
_WEEKDAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_NO_NAMES: Final[dict[str, int]] = {}
_FIELDS: Final = (
    (0, 59, _NO_NAMES),
    (0, 59, _NO_NAMES),
    (0, 23, _NO_NAMES),
    (1, 31, _NO_NAMES),
    (1, 12, _MONTHS),
    (0, 6, _WEEKDAYS),
)
_match_number: Final = re.compile(r"\+?[0-9]{1,9}").fullmatch
_BLANKS: Final = re.compile(r"[ \t\n\v\f\r\x85\xa0]+")

Following = Callable[[int, int], int]
"""(last due or 0, now) -> the next time, ns; 0: there is none any more."""


class Schedule(NamedTuple):
    """A pattern, read."""

    is_once: bool
    following: Following


def read(pattern: bytes, zone: bytes | None) -> Schedule | JsError:
    """Return the schedule of a pattern, or why it is none. `zone`: value of
    `Nats-Schedule-Time-Zone`, if there is that header."""
    place: tzinfo | None = None
    if zone is not None:
        place = zone_of(zone.decode("utf-8", "replace"))
        if place is None:
            return errors.MESSAGE_SCHEDULES_TIME_ZONE_INVALID()
    found = _read(pattern.decode("utf-8", "replace"), place)
    return errors.MESSAGE_SCHEDULES_PATTERN_INVALID() if found is None else found


@lru_cache(maxsize=1024)  # a stream may have thousands of schedules of a few patterns
def _read(pattern: str, zone: tzinfo | None) -> Schedule | None:
    if pattern.startswith("@at "):
        return None if zone is not None else _once(pattern[4:])
    if pattern.startswith("@every "):
        return None if zone is not None else _interval(pattern[7:])
    fields = _cron(_SHORTCUTS.get(pattern, pattern))
    if fields is None:
        return None
    place = zone or UTC
    if not _following(fields, 1_000_000_000, place):  # whatever the year: 31 February
        return None
    return Schedule(
        is_once=False,
        following=lambda due, now: min(
            TIME_NS_MAX, SECOND_NS * _following(fields, max(due, now) // SECOND_NS, place)
        ),
    )


@lru_cache(maxsize=1024)
def zone_of(name: str) -> tzinfo | None:
    """Return the time zone of a name; None: there is none."""
    if name == "UTC":
        return UTC
    if name == "Local":
        name = _local_name()
    if not name or name[:1] in "/." or "\\" in name or len(name) > 255:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        return None


def _local_name() -> str:
    """Return the name of this machine's time zone, as far as it says one."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named:
        _, _, named = os.path.realpath(_LOCAL_ZONE_FILE).partition("/zoneinfo/")
    return named or "UTC"


def _once(text: str) -> Schedule | None:
    if text[10:11] != "T" or text.endswith("z"):
        return None  # Go reads capitals alone
    try:
        at = min(max(1, parse_ns(text)), TIME_NS_MAX)
    except ValueError:
        return None
    return Schedule(
        is_once=True, following=lambda due, now: 0 if due else max(at, now + _SOONEST_NS)
    )


def _interval(text: str) -> Schedule | None:
    every = parse_duration(text)
    if every is None or every < SECOND_NS:
        return None

    def following(due: int, now: int) -> int:
        if not due:  # to the second: halves go up
            due = (now + SECOND_NS // 2) // SECOND_NS * SECOND_NS
        return min(TIME_NS_MAX, due + every * (1 + max(0, now - due) // every))

    return Schedule(is_once=False, following=following)


# --- six fields -----------------------------------------------------------------------------------


class _Cron(NamedTuple):
    """Values that each field allows."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_any_day: bool  # the field of days, or that of weekdays, begins with a star

    def has_day(self, moment: datetime) -> bool:
        """True if the day of `moment` is one that the pattern names."""
        is_day = moment.day in self.days
        is_weekday = moment.isoweekday() % 7 in self.weekdays
        return is_day and is_weekday if self.is_any_day else is_day or is_weekday


def _cron(text: str) -> _Cron | None:
    words = [word for word in _BLANKS.split(text) if word]
    if len(words) != len(_FIELDS):
        return None
    sets: list[frozenset[int]] = []
    for word, (least, most, names) in zip(words, _FIELDS, strict=True):
        found = _values(word, least, most, names)
        if not found:
            return None
        sets.append(found)
    is_any = any(part[:1] in ("*", "?") for at in (3, 5) for part in words[at].split(","))
    return _Cron(sets[0], sets[1], sets[2], sets[3], sets[4], sets[5], is_any)


def _values(word: str, least: int, most: int, names: dict[str, int]) -> frozenset[int] | None:
    found: set[int] = set()
    for part in filter(None, word.split(",")):
        span, slash, step_text = part.partition("/")
        low, dash, high = span.partition("-")
        step = 1
        if slash:
            step = _number(step_text, _NO_NAMES)
            if step < 1:
                return None
        if low in ("*", "?"):
            first, last = least, most
        else:
            first = _number(low, names)
            last = _number(high, names) if dash else most if slash else first
        if not least <= first <= last <= most:
            return None
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: dict[str, int]) -> int:
    """Return the number; -1: it is none."""
    named = names.get(text.lower())
    if named is not None:
        return named
    return int(text) if _match_number(text) else -1


def _following(fields: _Cron, after_s: int, zone: tzinfo) -> int:
    """Return the first second behind `after_s` that the pattern names; 0: none in five years.

    Hours pass as the clock on the wall shows them: one that is left out in spring names nothing,
    one that comes twice in autumn names twice.
    """
    at = after_s + 1
    moment = datetime.fromtimestamp(at, zone)
    year_max = moment.year + _YEARS
    while moment.year <= year_max:
        if moment.month not in fields.months:
            year, month = divmod(moment.month, 12)
            at = _midnight(at, moment.year + year, month + 1, 1, zone)
        elif not fields.has_day(moment):
            after = datetime.fromordinal(moment.toordinal() + 1)
            at = _midnight(at, after.year, after.month, after.day, zone)
        elif moment.hour not in fields.hours:
            at += _HOUR - moment.minute * 60 - moment.second
        elif moment.minute not in fields.minutes:
            at += 60 - moment.second
        elif moment.second not in fields.seconds:
            at += 1
        else:
            return at
        moment = datetime.fromtimestamp(at, zone)
    return 0


def _midnight(after: int, year: int, month: int, day: int, zone: tzinfo) -> int:
    """Return when a day begins: later than `after`, also where a clock is put back at midnight."""
    return max(after + 1, int(datetime(year, month, day, tzinfo=zone).timestamp()))
