"""Durations as Go reads and prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("10s", 10**10),
        ("1h2m3s", 3723 * 10**9),
        ("1h30m", 5400 * 10**9),
        (".5ms", 500_000),
        ("-1us", -1000),
        ("+7ns", 7),
        ("0", 0),
        ("2µs", 2000),
        ("0.9ns", 0),
        ("", None),
        ("-", None),
        ("10", None),
        ("1.2.3s", None),
        ("s", None),
        ("1x", None),
        ("1 s", None),
        ("٣s", None),
        ("0" * 5000 + "1s", 10**9),
        ("0.5" + "0" * 5000 + "s", 500_000_000),
        ("9" * 5000 + "s", None),
        ("2562047h", 2562047 * 3600 * 10**9),
        ("2562048h", None),  # beyond 64 bits
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, ns: int | None) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (5, "5ns"),
        (1_500, "1.5µs"),
        (100_000_000, "100ms"),
        (2_000_000_000, "2s"),
        (90_500_000_000, "1m30.5s"),
        (3_600_000_000_000, "1h0m0s"),
        (-1_000_000_000, "-1s"),
    ],
)
def test_how_it_is_printed(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_printed_durations_read_back(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns
