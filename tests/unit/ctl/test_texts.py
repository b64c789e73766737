"""Templates, headers, latencies and payloads of `streamctl`, without a server."""

from __future__ import annotations

import re

import pytest

from streamd.ctl.body_templates import filled
from streamd.ctl.command_groups.publish_verb import headers_of
from streamd.ctl.display import clean
from streamd.ctl.failures import CtlError
from streamd.ctl.latencies import histogram_lines, percentile, summary
from streamd.ctl.message_display import parse_headers, payload_lines
from streamd.ctl.pulling import delivery_of, time_text


def test_templates_are_filled_in() -> None:
    """With and without Go's dot, as natscli's are written."""
    assert filled("n={{Count}} {{.Count}}", 7) == "n=7 7"
    assert re.fullmatch(r"[A-Za-z0-9]{3,5}", filled("{{Random 3 5}}", 1))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", filled("{{TimeStamp}}", 1))
    assert filled("{{ID}}", 1) != filled("{{ID}}", 2)
    assert filled("{not a template}", 1) == "{not a template}"
    for text in ("{{Nope}}", "{{Random 5 3}}", "{{Random 0 9999999}}", "{{Count 3}}"):
        with pytest.raises(CtlError):
            filled(text, 1)


def test_headers_are_names_and_values() -> None:
    assert headers_of(("A:1", "B: x:y")) == {"A": "1", "B": "x:y"}
    for text in ("novalue", ":x", "A:b\r\nC:d"):
        with pytest.raises(CtlError, match="write NAME:VALUE"):
            headers_of((text,))
    assert parse_headers(b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB:\r\n\r\n") == {"A": "1, 2", "B": ""}


def test_percentiles_and_histograms_count_every_sample() -> None:
    samples = [1000 * n for n in range(1, 101)]
    found = summary(samples)
    assert (found["count"], found["min_ns"], found["max_ns"]) == (100, 1000, 100_000)
    assert (found["p50_ns"], found["p99_ns"]) == (50_000, 99_000)
    assert sum(row["count"] for row in found["histogram"]) == 100
    assert all(a["below_ns"] * 2 == b["below_ns"] for a, b in
               zip(found["histogram"], found["histogram"][1:], strict=False))  # fmt: skip
    assert len(histogram_lines(found)) == len(found["histogram"])
    assert percentile([5], 99.9) == 5
    assert summary([]) == {"count": 0, "histogram": []}


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    """Escapes, bells and characters that turn the direction of text."""
    assert clean("a\x1b[31mb\x07\u202ec") == "a\\x1b[31mb\\x07\\x202ec"
    assert clean("line\n\ttab") == "line\n\ttab"


def test_payloads_are_laid_out() -> None:
    assert payload_lines(b'{"a":[1]}') == ["{", '  "a": [', "    1", "  ]", "}"]
    assert payload_lines(b'{"a":1}', is_pretty=False) == ['{"a":1}']
    assert payload_lines(b"{no json") == ["{no json"]
    (line,) = payload_lines(b"\xffAB")
    assert line.startswith("00000000  ff 41 42") and line.endswith(".AB")
    assert payload_lines(b"") == []


def test_the_place_of_a_delivery_is_in_its_ack_subject() -> None:
    """In both forms: without and with the domain and the account."""
    place = delivery_of("$JS.ACK.S.c.1.42.7.1700000000000000001.3")
    assert (place.stream_seq, place.consumer_seq, place.pending) == (42, 7, 3)
    assert delivery_of("$JS.ACK._.hash.S.c.1.42.7.1700000000000000001.3") == place
    assert time_text(place.time_ns) == "2023-11-14T22:13:20.000000001Z"
