"""Query parameters of the monitoring port, read as nats-server reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from streamd.limits import MONITORING_PAGE

Query = Mapping[str, str]
_INT = re.compile(r"[+-]?\d+", re.ASCII)
_DIGITS_MAX = 18  # what 64 bits hold for sure, and more than anybody counts


class BadQuery(Exception):
    """A query parameter that means nothing: answered with 400 and this text."""


class NotLeader(BadQuery):
    """A query for the meta leader alone, at another server."""


def flag(query: Query, name: str) -> bool:
    """Return a yes or no; no if it is not there."""
    text = query.get(name, "")
    if text in ("", "0", "f", "F", "false", "FALSE", "False"):
        return False
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    raise BadQuery(
        f"Error decoding boolean for '{name}': strconv.ParseBool: parsing \"{text}\":"
        " invalid syntax"
    )


def number(query: Query, name: str) -> int:
    """Return an int; 0 if it is not there."""
    text = query.get(name, "")
    if not text:
        return 0
    fault = "invalid syntax"
    if _INT.fullmatch(text):
        if len(text.lstrip("+-0")) <= _DIGITS_MAX:
            return int(text)
        fault = "value out of range"
    raise BadQuery(f"Error decoding int for '{name}': strconv.Atoi: parsing \"{text}\": {fault}")


def page(query: Query) -> tuple[int, int]:
    """Return (offset, limit): of one page, however much is asked for."""
    offset, limit = max(0, number(query, "offset")), number(query, "limit")
    return offset, min(limit, MONITORING_PAGE) if limit > 0 else MONITORING_PAGE
