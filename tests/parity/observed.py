"""Rows of docs/COMPATIBILITY.md that comparisons met: in what they sent, and in what came back.

A row is `api:STREAM.INFO`, `sys:<subject>`, `stream:<field>`, `consumer:<field>`,
`request:<request> <field>`, `header:<name>`, `status:<line>`, `error:<err_code>` or `key:<path>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from benchmarks.servers import ServerProcess
from streamd.config.grammar import Value, parse_file
from streamd.errors import ConfigError
from tests.wire import Frame, Wire

OURS, PEER = "ours", "peer"
_API = re.compile(r"\$JS\.(?:[^.]+\.)?API\.(.+)")
_ERROR = re.compile(rb'"err_code": ?(\d+)')
_CONFIGURES = {
    "STREAM.CREATE": "stream",
    "STREAM.UPDATE": "stream",
    "CONSUMER.CREATE": "consumer",
    "CONSUMER.DURABLE.CREATE": "consumer",
}


class Observed:
    """Rows that the messages of tests are about, apart for either server, since the last `take`."""

    def __init__(self, requests: list[str], system_subjects: list[str], ours: str) -> None:
        """`ours` is the path of our server: any other one is the peer."""
        self._requests = sorted(requests, key=len, reverse=True)
        self._system = [
            (subject, re.compile(re.escape(subject).replace(r"\*", "[^.]+") + "$"))
            for subject in system_subjects
        ]
        self._ours = ours
        self._seen: dict[str, set[str]] = {OURS: set(), PEER: set()}
        self.versions: dict[str, str] = {}

    def take(self) -> dict[str, list[str]]:
        """Return what was seen at either server, and begin anew."""
        found = {side: sorted(rows) for side, rows in self._seen.items()}
        self._seen = {OURS: set(), PEER: set()}
        return found

    # --- messages -------------------------------------------------------------------------------

    def sent(self, wire: Wire, subject: str, headers: bytes, payload: bytes) -> None:
        rows = self._seen[_side(wire)]
        rows.update(_headers(headers))
        if subject.startswith("$SYS."):
            rows.update(f"sys:{name}" for name, pattern in self._system if pattern.match(subject))
        elif match := _API.match(subject):
            request = next(
                (one for one in self._requests if f"{match[1]}.".startswith(f"{one}.")), ""
            )
            if request:
                rows.add(f"api:{request}")
                rows.update(_fields(request, payload))

    def came(self, wire: Wire, frame: Frame) -> None:
        side = _side(wire)
        self.versions[side] = str(wire.info.get("version", ""))
        rows = self._seen[side]
        rows.update(_headers(frame.headers))
        if frame.headers and frame.status:
            rows.add(f"status:{frame.status}")
        if frame.payload[:1] == b"{":
            rows.update(f"error:{code.decode()}" for code in _ERROR.findall(frame.payload))

    def configured(self, server: ServerProcess) -> None:
        side = OURS if server.binary == self._ours else PEER
        try:
            keys = set(_keys(parse_file(str(server.config_file)), ""))
        except ConfigError:
            return
        self._seen[side].update(f"key:{key}" for key in keys)


def _side(wire: Wire) -> str:
    return OURS if str(wire.info.get("go", "")).startswith("python") else PEER


def _headers(block: bytes) -> Iterator[str]:
    for line in block.split(b"\r\n")[1:]:
        if b":" in line:
            yield f"header:{line.partition(b':')[0].decode(errors='replace')}"


def _fields(request: str, payload: bytes) -> Iterator[str]:
    """Fields of a request that is an object; of a configuration, those of it."""
    try:
        body = json.loads(payload)
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    kind = _CONFIGURES.get(request)
    if kind is None:
        yield from (f"request:{request} {way}" for way in _ways(body))
    elif kind == "stream":
        yield from (f"stream:{way}" for way in _ways(body))
    else:
        config = body.get("config")
        yield from (f"consumer:{way}" for way in _ways(config if isinstance(config, dict) else {}))


def _ways(body: dict[str, Any], way: str = "") -> Iterator[str]:
    for name, value in body.items():
        yield way + name
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _ways(inner, f"{way}{name}.")


def _keys(block: Value, way: str) -> Iterator[str]:
    """Ways to the keys of a configuration, in lower case; names of accounts are `A`."""
    if isinstance(block.raw, list):
        for each in block.raw:
            yield from _keys(each, way)
    elif isinstance(block.raw, dict):
        for name, value in block.raw.items():
            key = "A" if way == "accounts." else name.lower()
            yield way + key
            yield from _keys(value, f"{way}{key}.")
