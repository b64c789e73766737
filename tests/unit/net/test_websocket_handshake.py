"""Handshake of WebSocket: which requests are granted, and how each is answered."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings, strategies

from streamd.config.tls_options import TlsOptions
from streamd.config.websocket_options import WebSocketOptions
from streamd.limits import WEBSOCKET_REQUEST_BYTES_MAX
from streamd.net.websocket.origins import OriginRules
from streamd.net.websocket.upgrade import Handshake, Refused, Upgraded, UpgradeRules

REQUEST = {
    "Host": "a.test:8080",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
OPTIONS = WebSocketOptions(port=8080, has_no_tls=True)


def request(line: str = "GET / HTTP/1.1", **headers: str) -> bytes:
    """A request; a header that is given as "" is left out."""
    wanted = {name: value for name, value in (REQUEST | headers).items() if value}
    return "\r\n".join([line, *(f"{k}: {v}" for k, v in wanted.items()), "", ""]).encode()


def outcome(data: bytes, **options: object) -> Upgraded | Refused:
    rules = UpgradeRules(dataclasses.replace(OPTIONS, **options))  # type: ignore[arg-type]
    found = Handshake(rules).feed(data)
    assert found is not None
    return found


def granted(data: bytes, **options: object) -> Upgraded:
    found = outcome(data, **options)
    assert isinstance(found, Upgraded), found
    return found


def refused(data: bytes, **options: object) -> tuple[str, str]:
    """The line of the answer's status, and the reason for the log."""
    found = outcome(data, **options)
    assert isinstance(found, Refused), found
    return found.answer.partition(b"\r\n")[0].decode(), found.reason


def test_a_request_in_pieces_is_granted_with_the_answer_of_the_standard() -> None:
    handshake = Handshake(UpgradeRules(OPTIONS))
    data = request()
    for at in range(len(data) - 1):
        assert handshake.feed(data[at : at + 1]) is None
    found = handshake.feed(data[-1:])
    assert isinstance(found, Upgraded)
    assert found.answer == (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )
    assert found == Upgraded(found.answer)


@pytest.mark.parametrize(
    "path", ["/", "/any/path?x=/mqtt", "/mqttx", "//a/../b", "//[x/", "http://["]
)
def test_any_path_is_served(path: str) -> None:
    assert not granted(request(f"GET {path} HTTP/1.1")).is_leaf


@settings(deadline=None)
@given(at=strategies.integers(0, 300), cut=strategies.integers(0, 9), added=strategies.binary())
def test_whatever_a_stranger_sends_is_an_outcome_or_not_whole_yet(
    at: int, cut: int, added: bytes
) -> None:
    """A request with a piece taken out and another one put in: nothing is raised."""
    whole = request(Origin="http://[::1]:8080", Cookie="u=x; p", **{"X-Forwarded-For": "::1"})
    data = whole[:at] + added + whole[at + cut :]
    rules = UpgradeRules(dataclasses.replace(OPTIONS, is_same_origin=True, user_cookie="u"))
    handshake = Handshake(rules)
    if handshake.feed(data[:at]) is None:
        handshake.feed(data[at:])


def test_older_http_and_a_list_of_versions_are_granted() -> None:
    granted(request("GET / HTTP/1.0"))
    granted(request(**{"Sec-WebSocket-Version": "8, 13", "Sec-WebSocket-Protocol": "nats"}))


def test_a_leaf_is_recognised_by_its_path() -> None:
    assert granted(request("GET /x/leafnode?a=b HTTP/1.1")).is_leaf


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (
            request("GET /x/mqtt HTTP/1.1"),
            "404 Not Found",
            "mqtt websocket endpoint not enabled",
        ),
        (request("POST / HTTP/1.1"), "405 Method Not Allowed", "request method must be GET"),
        (request(Upgrade=""), "400 Bad Request", "invalid value for header 'Upgrade'"),
        (request(Upgrade="h2c"), "400 Bad Request", "invalid value for header 'Upgrade'"),
        (
            request(Connection="close"),
            "400 Bad Request",
            "invalid value for header 'Connection'",
        ),
        (request(**{"Sec-WebSocket-Key": ""}), "400 Bad Request", "key missing"),
        (request(**{"Sec-WebSocket-Key": "abc"}), "400 Bad Request", "invalid websocket key"),
        (request(**{"Sec-WebSocket-Version": "8"}), "400 Bad Request", "invalid version"),
        (
            request(Host=""),
            "400 Bad Request: missing required Host header",
            "missing required Host header",
        ),
    ],
)
def test_refusals_have_the_status_and_the_reason_of_the_peer(
    data: bytes, status: str, reason: str
) -> None:
    assert refused(data) == (f"HTTP/1.1 {status}", reason)


def test_the_answer_of_a_refusal() -> None:
    found = outcome(request("POST / HTTP/1.1"))
    assert isinstance(found, Refused)
    head, _, body = found.answer.partition(b"\r\n\r\n")
    headers = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    assert headers.pop("Date").endswith(" GMT")
    assert headers == {
        "Content-Type": "text/plain; charset=utf-8",
        "Sec-Websocket-Version": "13",
        "X-Content-Type-Options": "nosniff",
        "Content-Length": "19",
        "Connection": "close",
    }
    assert body == b"Method Not Allowed\n"


@pytest.mark.parametrize(
    "data",
    [
        b"CONNECT {}\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        request("GET /\xff HTTP/1.1"),
        request(**{"b ad": "x"}),
        request(**{"Content-Length": "3"}),
        request(**{"Transfer-Encoding": "chunked"}),
    ],
)
def test_what_is_no_request_is_answered_with_400(data: bytes) -> None:
    assert refused(data)[0] == "HTTP/1.1 400 Bad Request"


def test_a_request_has_bounds() -> None:
    too_large = "HTTP/1.1 431 Request Header Fields Too Large"
    assert refused(request(X="a" * 10_000))[0] == too_large
    handshake = Handshake(UpgradeRules(OPTIONS))
    many = b"GET / HTTP/1.1\r\n" + b"X: %b\r\n" % (b"a" * 8000) * 8
    assert len(many) < WEBSOCKET_REQUEST_BYTES_MAX
    assert handshake.feed(many) is None
    found = handshake.feed(b"X: %b\r\n" % (b"a" * 8000))
    assert isinstance(found, Refused)
    assert found.answer.startswith(too_large.encode())


def test_frames_before_the_answer_end_the_connection_without_one() -> None:
    assert outcome(request() + b"\x82\x80") == Refused(
        b"", "client sent data before handshake is complete"
    )


def test_compression_is_agreed_upon_only_if_both_want_it() -> None:
    offer = {"Sec-WebSocket-Extensions": "x, y; permessage-deflate; client_max_window_bits"}
    assert not granted(request(**offer)).is_deflating
    assert not granted(request(), is_compressing=True).is_deflating
    found = granted(request(**offer), is_compressing=True)
    assert found.is_deflating
    assert (
        b"\r\nSec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover;"
        b" client_no_context_takeover\r\n" in found.answer
    )


def test_no_masking_has_to_be_asked_for_in_these_words() -> None:
    found = granted(request(**{"Nats-No-Masking": "true"}), headers=(("X-A", "b"),))
    assert not found.is_masked
    assert found.answer.endswith(b"\r\nNats-No-Masking: true\r\nX-A: b\r\n\r\n")
    assert granted(request(**{"Nats-No-Masking": "True"})).is_masked


def test_cookies_are_logins() -> None:
    cookie = 'other=1; u=alice; u=bob; p="s3 cret"; t=; broken'
    found = granted(request(Cookie=cookie), user_cookie="u", pass_cookie="p", token_cookie="t")
    assert found.login == {"user": "alice", "pass": "s3 cret"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("fe80::1", "fe80::1"),
        ("10.1.2.3, 10.0.0.1", ""),
        ("10.1.2.3\\n[ERR]", ""),
        ("somebody", ""),
    ],
)
def test_a_proxy_names_one_address(said: str, found: str) -> None:
    assert granted(request(**{"X-Forwarded-For": said})).forwarded_for == found


@pytest.mark.parametrize(
    ("origin", "host", "is_allowed"),
    [
        ("http://a.test:8080", "a.test:8080", True),
        ("http://A.TEST:8080", "a.test:8080", True),
        ("http://a.test", "a.test", True),
        ("http://a.test:80", "a.test", True),
        ("http://a.test", "a.test:8080", False),
        ("https://a.test:8080", "a.test:8080", False),
        ("http://b.test:8080", "a.test:8080", False),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("null", "a.test:8080", False),
        ("http://a.test:x", "a.test:8080", False),
        ("", "a.test:8080", True),
    ],
)
def test_same_origin(origin: str, host: str, is_allowed: bool) -> None:
    rules = OriginRules(is_same=True, allowed=(), has_tls=False)
    assert (rules.why_not(origin, host) == "") is is_allowed


def test_allowed_origins_and_both_rules_at_once() -> None:
    allowed = ("https://a.test", "http://b.test:8080")
    rules = OriginRules(is_same=False, allowed=allowed, has_tls=True)
    assert rules.why_not("https://a.test:443", "x") == ""
    assert rules.why_not("http://b.test:8080", "x") == ""
    assert rules.why_not("http://a.test", "x") == "not in the allowed list"
    both = OriginRules(is_same=True, allowed=allowed, has_tls=True)
    assert both.why_not("https://a.test", "a.test") == ""
    assert both.why_not("http://b.test:8080", "b.test:8080") == "not same origin"
    assert both.why_not("https://c.test", "c.test") == "not in the allowed list"
    assert OriginRules(is_same=False, allowed=(), has_tls=False).why_not("null", "x") == ""


def test_a_page_of_another_origin_is_refused() -> None:
    page = request(Origin="http://evil.test")
    assert refused(page, is_same_origin=True) == (
        "HTTP/1.1 403 Forbidden",
        "origin not allowed: not same origin",
    )
    older = request(**{"Sec-WebSocket-Origin": "http://evil.test"})
    assert refused(older, is_same_origin=True)[0] == "HTTP/1.1 403 Forbidden"
    granted(request(Origin="https://a.test:8080"), is_same_origin=True, tls=TlsOptions())
    granted(page)
