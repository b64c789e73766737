"""Measurement of services: which requests are measured, and the events about them.

The event is published in the exporting account, to the subject that its export names.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from typing import Any, Final

from streamd.config.account_options import LatencyOptions
from streamd.machine.rfc3339 import format_ns

TYPE: Final = "io.nats.server.metric.v1.service_latency"
OK: Final = 200
BAD_REQUEST: Final = 400
REQUEST_TIMEOUT: Final = 408
SERVICE_UNAVAILABLE: Final = 503
SERVICE_TIMEOUT: Final = 504
_TEXTS: Final = {
    BAD_REQUEST: "Bad Request",
    REQUEST_TIMEOUT: "Request Timeout",
    SERVICE_UNAVAILABLE: "Service Unavailable",
    SERVICE_TIMEOUT: "Service Timeout",
}
_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_JAEGER: Final = "Uber-Trace-Id"
_ZIPKIN: Final = "B3"
_ZIPKIN_TRACE: Final = "X-B3-Traceid"
_ZIPKIN_SAMPLED: Final = "X-B3-Sampled"
_TRACE_CONTEXT: Final = "Traceparent"
_ZIPKIN_ALL: Final = (_ZIPKIN_TRACE, _ZIPKIN_SAMPLED, "X-B3-Spanid", "X-B3-Parentspanid")

Header = dict[str, list[str]]


def sample(
    options: LatencyOptions, headers: bytes, random_below: Callable[[int], int]
) -> Header | None:
    """Return the headers that a measured request is reported with, perhaps none; None: this request
    is not measured."""
    if options.sampling >= 100 or (options.sampling > 0 and random_below(100) < options.sampling):
        return {}
    return None if options.sampling or not headers else _traced(_values(headers))


def _values(headers: bytes) -> Header:
    found: Header = {}
    for line in headers.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(_canonical(name.strip()), []).append(value.strip())
    return found


def _canonical(name: str) -> str:
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def _traced(given: Header) -> Header | None:
    """Return the tracing headers of a request that asks by them to be measured."""
    if _JAEGER in given:
        tokens = given[_JAEGER][0].split(":")
        if len(tokens) == 4 and tokens[3] and _is_odd(tokens[3]):
            return _only(given, _JAEGER)
        return None
    if _ZIPKIN_SAMPLED in given:
        return _only(given, *_ZIPKIN_ALL) if given[_ZIPKIN_SAMPLED][0] == "1" else None
    if _ZIPKIN_TRACE in given:
        return _only(given, *_ZIPKIN_ALL)
    if _ZIPKIN in given:
        tokens = given[_ZIPKIN][0].split("-")
        is_refused = tokens[0] == "0" or (len(tokens) > 2 and tokens[2] == "0")
        return None if is_refused else _only(given, _ZIPKIN)
    if _TRACE_CONTEXT in given:
        tokens = given[_TRACE_CONTEXT][0].split("-")
        if len(tokens) == 4 and len(tokens[3]) == 2 and _is_odd(tokens[3]):
            return _only(given, _TRACE_CONTEXT, "Tracestate")
    return None


def _is_odd(digits: str) -> bool:
    try:
        return bool(int(digits, 16) & 1)
    except ValueError:
        return False


def _only(given: Header, *names: str) -> Header:
    return {name: given[name] for name in names if name in given}


def event(
    status: int,
    *,
    now_ns: int,
    start_ns: int,
    requestor: dict[str, Any] | None,
    responder: dict[str, Any] | None,
    header: Header,
) -> bytes:
    """Return the event of one request that came at `start_ns`, as JSON."""
    document: dict[str, Any] = {
        "type": TYPE,
        "id": "".join(secrets.choice(_BASE62) for _ in range(22)),
        "timestamp": format_ns(now_ns),
        "status": status,
    }
    if status != OK:
        document["description"] = _TEXTS[status]
    if requestor:
        document["requestor"] = requestor
    if responder:
        document["responder"] = responder
    if header:
        document["header"] = header
    took = max(0, now_ns - start_ns)
    asked_rtt = (requestor or {}).get("rtt", 0)
    answered_rtt = (responder or {}).get("rtt", 0)
    document["start"] = format_ns(start_ns - asked_rtt)
    is_answered = status == OK
    document["service"] = max(0, took - answered_rtt) if is_answered else 0
    document["system"] = 0
    document["total"] = asked_rtt + took if is_answered else 0
    return json.dumps(document, separators=(",", ":")).encode()
