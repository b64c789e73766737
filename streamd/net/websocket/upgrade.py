"""Handshake of one WebSocket connection, sans-IO: a request of HTTP in, an answer out.

Order, statuses and texts of the checks are nats-server's. The request is parsed by the library
`websockets`.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers
from websockets.exceptions import SecurityError
from websockets.http11 import Request, Response
from websockets.streams import StreamReader
from websockets.utils import accept_key

from streamd.config.websocket_options import WebSocketOptions
from streamd.limits import WEBSOCKET_REQUEST_BYTES_MAX
from streamd.net.websocket.framing import browser_frame_bytes
from streamd.net.websocket.origins import OriginRules

_DEFLATE: Final = "permessage-deflate"
_DEFLATE_ANSWER: Final = f"{_DEFLATE}; server_no_context_takeover; client_no_context_takeover"
_UNMASKED: Final = "Nats-No-Masking"


@dataclass(slots=True)
class Upgraded:
    """A request that was granted: the answer, and what it says of the connection."""

    answer: bytes
    is_leaf: bool = False  # another server asks, as a leaf node
    is_masked: bool = True
    is_deflating: bool = False
    frame_bytes: int = 0  # in one frame to this client; 0: any number
    login: dict[str, str] = field(default_factory=dict)  # of cookies, by the field of CONNECT
    forwarded_for: str = ""  # the client's address, as a proxy tells it


@dataclass(slots=True)
class Refused:
    """A request that was not granted: the answer (b"": none), and the reason for the log."""

    answer: bytes
    reason: str


class Refusal(Exception):
    """A check failed: the status of the answer, and the reason for the log."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class UpgradeRules:
    """Rules of one listener: which requests are granted, and how they are answered."""

    def __init__(self, options: WebSocketOptions) -> None:
        self._options = options
        self._origins = OriginRules(
            is_same=options.is_same_origin,
            allowed=options.allowed_origins,
            has_tls=options.tls is not None,
        )

    def judge(self, request: Request) -> Upgraded:
        """Check a request. Raises Refusal."""
        headers, options = request.headers, self._options
        path = request.path.partition("?")[0]
        if path.endswith("/mqtt"):
            raise Refusal(HTTPStatus.NOT_FOUND, "mqtt websocket endpoint not enabled")
        if request.method != "GET":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "request method must be GET")
        for name, wanted in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            if not _names(headers, name, wanted):
                raise Refusal(HTTPStatus.BAD_REQUEST, f"invalid value for header '{name}'")
        key = first_of(headers, "Sec-WebSocket-Key")
        if not key:
            raise Refusal(HTTPStatus.BAD_REQUEST, "key missing")
        if not _is_key(key):
            raise Refusal(HTTPStatus.BAD_REQUEST, "invalid websocket key")
        if not _names(headers, "Sec-WebSocket-Version", "13"):
            raise Refusal(HTTPStatus.BAD_REQUEST, "invalid version")
        origin = first_of(headers, "Origin") or first_of(headers, "Sec-WebSocket-Origin")
        reason = self._origins.why_not(origin, first_of(headers, "Host"))
        if reason:
            raise Refusal(HTTPStatus.FORBIDDEN, f"origin not allowed: {reason}")
        is_deflating = options.is_compressing and _offers_deflate(headers)
        is_masked = first_of(headers, _UNMASKED) != "true"
        cookies = parse_cookies(headers)
        return Upgraded(
            self._grant(key, is_masked=is_masked, is_deflating=is_deflating),
            is_leaf=path.endswith("/leafnode"),
            is_masked=is_masked,
            is_deflating=is_deflating,
            frame_bytes=browser_frame_bytes(
                first_of(headers, "User-Agent"), is_deflating=is_deflating
            ),
            login=_login(options.cookies, cookies),
            forwarded_for=_address(first_of(headers, "X-Forwarded-For")),
        )

    def _grant(self, key: str, *, is_masked: bool, is_deflating: bool) -> bytes:
        headers = Headers()
        headers["Upgrade"] = "websocket"
        headers["Connection"] = "Upgrade"
        headers["Sec-WebSocket-Accept"] = accept_key(key)
        if is_deflating:
            headers["Sec-WebSocket-Extensions"] = _DEFLATE_ANSWER
        if not is_masked:
            headers[_UNMASKED] = "true"
        for name, value in self._options.headers:
            headers[name] = value
        return Response(101, "Switching Protocols", headers).serialize()


class Handshake:
    """Reads one request, and judges it by the listener's rules."""

    __slots__ = ("_parsing", "_reader", "_rules", "_seen_bytes")

    def __init__(self, rules: UpgradeRules) -> None:
        self._rules = rules
        self._reader = StreamReader()
        self._seen_bytes = 0
        self._parsing: Generator[None, None, Request] = Request.parse(self._reader.read_line)

    def feed(self, data: bytes) -> Upgraded | Refused | None:
        """Take in bytes of the socket; None: the request is not whole yet. Not after an outcome."""
        self._reader.feed_data(data)
        self._seen_bytes += len(data)
        try:
            self._parsing.send(None)
        except StopIteration as whole:
            request: Request = whole.value
        except SecurityError as err:
            return _malformed(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, str(err))
        except (ValueError, NotImplementedError, EOFError) as err:
            return _malformed(HTTPStatus.BAD_REQUEST, str(err))
        else:
            if self._seen_bytes > WEBSOCKET_REQUEST_BYTES_MAX:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                return _malformed(status, "request is too long")
            return None
        if self._reader.buffer:
            return Refused(b"", "client sent data before handshake is complete")
        if not first_of(request.headers, "Host"):
            return _malformed(HTTPStatus.BAD_REQUEST, "missing required Host header", is_told=True)
        try:
            return self._rules.judge(request)
        except Refusal as refusal:
            return Refused(_error(refusal.status), str(refusal))


def first_of(headers: Headers, name: str) -> str:
    """Return the first value of a header; "": there is none."""
    return next(iter(headers.get_all(name)), "")


def parse_cookies(headers: Headers) -> dict[str, str]:
    """Return the cookies of a request by name; of equal names the first counts."""
    found: dict[str, str] = {}
    for line in headers.get_all("Cookie"):
        for part in line.split(";"):
            name, equals, value = part.strip().partition("=")
            if equals:
                if len(value) > 1 and value[0] == value[-1] == '"':
                    value = value[1:-1]
                found.setdefault(name.strip(), value)
    return found


def _login(names: Mapping[str, str], cookies: Mapping[str, str]) -> dict[str, str]:
    return {field: cookies[name] for field, name in names.items() if cookies.get(name)}


def _names(headers: Headers, name: str, wanted: str) -> bool:
    """Return True if `wanted` is among the values, separated by commas, of a header."""
    values = ",".join(headers.get_all(name)).split(",")
    return any(value.strip(" \t").lower() == wanted.lower() for value in values)


def _offers_deflate(headers: Headers) -> bool:
    """Return True if the client names the extension, wherever: its parameters don't matter, as the
    answer is always the same."""
    offers = ",".join(headers.get_all("Sec-WebSocket-Extensions")).replace(";", ",").split(",")
    return any(offer.strip(" \t").lower() == _DEFLATE for offer in offers)


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key.encode(), validate=True)) == 16
    except (ValueError, binascii.Error):
        return False


def _address(text: str) -> str:
    """Return `text` if it is one address of IP, else "": a list of proxies is not looked into."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return ""
    return text


def _error(status: HTTPStatus) -> bytes:
    """Return the answer to a request that fails a check."""
    body = f"{status.phrase}\n".encode()
    headers = Headers()
    headers["Content-Type"] = "text/plain; charset=utf-8"
    headers["Sec-Websocket-Version"] = "13"
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Date"] = formatdate(time.time(), usegmt=True)
    headers["Content-Length"] = str(len(body))
    headers["Connection"] = "close"
    return Response(status.value, status.phrase, headers, body).serialize()


def _malformed(status: HTTPStatus, reason: str, *, is_told: bool = False) -> Refused:
    """Return the answer to what is no request; `is_told`: with the reason."""
    phrase = f"{status.phrase}: {reason}" if is_told else status.phrase
    headers = Headers()
    headers["Content-Type"] = "text/plain; charset=utf-8"
    headers["Connection"] = "close"
    body = f"{status.value} {phrase}".encode()
    return Refused(Response(status.value, phrase, headers, body).serialize(), reason)
