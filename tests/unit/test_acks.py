"""Ack subjects and payloads, good and bad."""

from __future__ import annotations

import pytest

from streamd.protocol import acks

V1 = b"$JS.ACK.S.C.3.17.21.1795230598127858266.4"
V2 = b"$JS.ACK._.hash.S.C.3.17.21.1795230598127858266.4.rest"


@pytest.mark.parametrize("subject", [V1, V2])
def test_both_layouts(subject: bytes) -> None:
    assert acks.parse_target(subject) == (b"C", 17)


@pytest.mark.parametrize(
    "subject",
    [b"", b"$JS.ACK.S.C", b"$JS.ACK.S.C.x.y.z.1.2", V1 + b".9", b"$JS.ACK.S.C.1.2.3.4", b"." * 8],
)
def test_subjects_that_are_no_ack_are_none(subject: bytes) -> None:
    assert acks.parse_target(subject) is None


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", (acks.ACK, 0, b"")),
        (b"+ACK", (acks.ACK, 0, b"")),
        (b"+OK", (acks.ACK, 0, b"")),
        (b"-NAK", (acks.NAK, 0, b"")),
        (b'-NAK {"delay": 1500}', (acks.NAK, 1500, b"")),
        (b'-NAK {"delay": "x"}', (acks.NAK, 0, b"")),
        (b"-NAK [1]", (acks.NAK, 0, b"")),
        (b"-NAK 1m1.5s", (acks.NAK, 61_500_000_000, b"")),
        (b"-NAK rubbish", (acks.NAK, 0, b"")),
        (b'-NAK {"delay": 9223372036854775807}', (acks.NAK, (1 << 63) - 1, b"")),
        (b'-NAK {"delay": 9223372036854775808}', (acks.NAK, 0, b"")),
        (b'-NAK {"delay": 18446744073709551616}', (acks.NAK, 0, b"")),
        (b'-NAK {"delay": %b}' % (b"[" * 2000), (acks.NAK, 0, b"")),
        (b"-NAK 99999999999999999h", (acks.NAK, 0, b"")),
        (b"-NAK %bs" % (b"9" * 5000), (acks.NAK, 0, b"")),
        (b"+WPI", (acks.PROGRESS, 0, b"")),
        (b"+TERM", (acks.TERM, 0, b"")),
        (b"+TERM too old ", (acks.TERM, 0, b"too old")),
        (b"+NXT", (acks.NEXT, 0, b"")),
        (b'+NXT {"batch":2}', (acks.NEXT, 0, b'{"batch":2}')),
    ],
)
def test_payloads(payload: bytes, expected: tuple[int, int, bytes]) -> None:
    assert acks.parse_payload(payload) == expected


def test_unknown_payload_is_none() -> None:
    assert acks.parse_payload(b"hello") is None
