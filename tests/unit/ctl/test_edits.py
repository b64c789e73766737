"""Edits: fields that stay, and messages that would go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamd.ctl.config_flags import STREAM_FLAGS, changed, differences
from streamd.ctl.edit_losses import losses
from streamd.ctl.failures import CtlError
from streamd.ctl.quantities import parse_size, parse_span, size_text, span_text, time_ns

BEFORE = {"name": "S", "retention": "limits", "max_msgs": -1, "max_bytes": -1, "max_age": 0}
STATE = {"messages": 1000, "bytes": 10_000, "first_ts": "2020-01-01T00:00:00Z"}


def lost(**after: Any) -> list[str]:
    return losses(BEFORE, BEFORE | after, STATE, {"a": 900, "b": 100})


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({"retention": "interest"}, "retention limits -> interest"),
        ({"max_msgs": 100}, "900 messages are removed"),
        ({"max_bytes": 100}, "9.7 KiB of messages are removed"),
        ({"max_age": 10**9}, "older messages are removed"),
        ({"max_msgs_per_subject": 200}, "700 messages are removed"),
        ({"sealed": True}, "no edit undoes it"),
    ],
)
def test_a_change_that_removes_messages_is_told(after: dict[str, Any], told: str) -> None:
    (line,) = lost(**after)
    assert told in line


def test_a_change_that_removes_nothing_is_not() -> None:
    """Limits that all messages keep to, and no limits at all."""
    age = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    young = STATE | {"first_ts": age}
    after = BEFORE | {
        "max_msgs": 1000, "max_bytes": 10_000, "max_age": 86_400 * 10**9,
        "max_msgs_per_subject": 900, "description": "x",
    }  # fmt: skip
    assert losses(BEFORE, after, young, {"a": 900, "b": 100}) == []
    assert losses(after, BEFORE, young, {}) == []
    assert losses(BEFORE, BEFORE | {"max_msgs_per_subject": 5}, STATE, None)


def test_fields_that_no_flag_has_stay() -> None:
    """A server's newer fields survive an edit; `--set` reaches them, null removes them."""
    before = {"name": "S", "a_new_field": {"deep": [1, 2]}, "max_msgs": 5, "mirror": {"name": "M"}}
    options = {"max_msgs": 7, "assignments": ("mirror=null",), "subjects": (), "storage": None}
    after = changed(before, STREAM_FLAGS, options)
    assert after == {"name": "S", "a_new_field": {"deep": [1, 2]}, "max_msgs": 7}
    assert differences(before, after) == ["max_msgs: 5 -> 7", 'mirror: {"name": "M"} -> null']


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("512", 512), ("1K", 1024), ("1.5GiB", 1610612736), ("2mb", 2097152), ("-1", -1)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "ns"), [("0", 0), ("90s", 90), ("1h30m", 5400), ("7d", 604800), ("1d12h", 129600)]
)
def test_spans(text: str, ns: int) -> None:
    assert parse_span(text) == ns * 10**9


def test_texts_of_quantities() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, -1)] == ["0 B", "1023 B", "1.5 KiB", "unlimited"]
    spans = [span_text(n) for n in (5, 1500, 2_500_000, 90 * 10**9, 90_000 * 10**9)]
    assert spans == ["5ns", "1.5us", "2.5ms", "1m30s", "1d1h"]


def test_times_are_exact_to_the_nanosecond() -> None:
    assert time_ns("1970-01-01T00:00:01.000000002Z") == 10**9 + 2
    assert time_ns("1970-01-01T01:00:00+01:00") == 0
    assert time_ns("0001-01-01T00:00:00Z") is None
    with pytest.raises(CtlError, match="is no time"):
        time_ns("yesterday")
