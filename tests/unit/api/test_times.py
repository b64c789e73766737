"""Times in the API's text form."""

from __future__ import annotations

import pytest

from streamd.api.times import ZERO_TIME, bounded, format_ns, parse_ns, parse_time


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, ZERO_TIME),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_600_000_000_000_000_000, "2020-09-13T12:26:40Z"),
        (1_600_000_000_120_000_000, "2020-09-13T12:26:40.12Z"),
    ],
)
def test_format_and_parse_are_inverse(ns: int, text: str) -> None:
    assert format_ns(ns) == text
    assert parse_ns(text) == ns


def test_zones_are_kept_in_text_and_count_in_time() -> None:
    text, ns = parse_time("2025-01-01T00:00:00.123456789+02:00")
    assert text == "2025-01-01T00:00:00.123456789+02:00"
    assert format_ns(ns) == "2024-12-31T22:00:00.123456789Z"
    assert parse_ns("") == parse_ns(ZERO_TIME) == 0


def test_times_beyond_64_bits_are_moved_to_their_edge() -> None:
    assert bounded("9999-12-31T23:59:59Z") == "2262-04-11T23:47:16.854775807Z"
    assert parse_ns(bounded("0002-01-01T00:00:00Z")) == -(1 << 63)
    assert bounded(ZERO_TIME) == ZERO_TIME
    assert bounded("2025-01-01T00:00:00+02:00") == "2025-01-01T00:00:00+02:00"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2020-01-01", 'cannot parse "" as "T"'),
        ("", 'cannot parse "" as "2006"'),
        ("2020-01-01T25:00:00Z", "hour out of range"),
        ("2021-02-29T00:00:00Z", "day out of range"),
        ("2021-02-28T00:00:00Zx", 'extra text: "x"'),
    ],
)
def test_bad_times_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="parsing time") as caught:
        parse_time(text)
    assert str(caught.value).endswith(reason)
