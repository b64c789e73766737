"""Replay of entries that a node set aside because its leader did not have them.

A replay publishes what clients had published, in the old order, each with an id by which the stream
knows it if it comes again: its own `Nats-Msg-Id`, or one that names the old entry. Headers that say
what the stream should have held then (`Nats-Expected-...`), and `Nats-Rollup`, which would remove
what is newer, are left out. A file that was replayed to its end is renamed to `FILE.replayed`.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from streamd.callbacks import ignore
from streamd.errors import StreamdError
from streamd.offline.discarded_files import (
    Tail,
    TailFacts,
    bytes_field,
    is_tail,
    lines_of,
    parse_facts,
    read_tail,
)

REPLAYED = ".replayed"
ANSWER_WITHIN_S = 10.0
_DROPPED = (b"nats-expected-", b"nats-rollup")
_BLANK = b"NATS/1.0\r\n"

Record = Mapping[str, object]
"""A line of such a file: an entry, or a message of one."""


class TailError(StreamdError):
    """Failure to read or to publish such entries; the text says why."""


def tails_in(directory: Path) -> list[Tail]:
    """Return the files of a store directory, or of a `trash` directory. Raises TailError."""
    for below in ("streamd/trash", "trash", "."):
        if (directory / below).is_dir():
            directory = directory / below
            break
    else:
        raise TailError(f"{directory} is no store directory")
    names = sorted(name for name in os.listdir(directory) if is_tail(name))
    return [read_tail(str(directory / name)) for name in names]


def replay(
    path: str, server: str, on_message: Callable[[], object] = ignore
) -> tuple[str, int, int]:
    """Publish the messages of a file once each, and rename it; return the stream's name, how many
    were published and how many were there. `on_message` is called with each. Raises TailError."""
    facts, records = open_tail(path)
    _refuse_meta(path, facts)
    published = there = 0
    with _Connection(server) as connection:
        for number, record in enumerate(records):
            try:
                on_message()
                if not facts.is_exact and connection.has(facts.stream, record):
                    there += 1
                    continue
                is_new = connection.publish(facts.stream, record, _msg_id(facts, record, number))
            except (TailError, OSError, ValueError) as err:
                raise TailError(
                    f"{published} messages were published, {there} were in the stream already; "
                    f"then seq {record.get('seq', '?')} on {record.get('subject', '?')!r} "
                    f"failed: {err}. Start the replay again: no message is stored twice within "
                    "the stream's duplicate window"
                ) from err
            published += is_new
            there += not is_new
    os.replace(path, path + REPLAYED)
    return facts.stream, published, there


def count(path: str) -> tuple[str, int]:
    """Return the stream's name, and how many messages a replay would publish. Raises TailError."""
    facts, records = open_tail(path)
    _refuse_meta(path, facts)
    return facts.stream, sum(1 for _ in records)


def _refuse_meta(path: str, facts: TailFacts) -> None:
    if not facts.stream:
        raise TailError(f"{path}: entries of the meta group: create or delete streams as they say")


def open_tail(path: str) -> tuple[TailFacts, Iterator[Record]]:
    """The first line, and the messages one after another: a file may be larger than memory."""
    try:
        read_tail(path)  # whole?
        facts = parse_facts(json.loads(next(lines_of(path))))
    except (StreamdError, ValueError, TypeError) as err:
        raise TailError(f"{path}: {err}") from err
    return facts, _messages(path)


def _messages(path: str) -> Iterator[Record]:
    lines = lines_of(path)
    next(lines)
    for line in lines:
        record = json.loads(line)
        if "subject" in record or "subject_base64" in record:
            yield record


def _msg_id(facts: TailFacts, record: Record, number: int) -> bytes:
    """Return the id of a message: the same for the same message of the same file."""
    name = f"tail-{facts.group}-{facts.first_index}-{facts.last_index}-{facts.last_term}"
    return f"{name}-{record.get('seq') or f'n{number}'}".encode()


def headers_for(headers: bytes, msg_id: bytes) -> bytes:
    """The header block that a message is published again with."""
    lines = headers.split(b"\r\n")[1:] if headers else []
    kept = [line for line in lines if line and not line.lower().startswith(_DROPPED)]
    if not any(line.lower().startswith(b"nats-msg-id:") for line in kept):
        kept.append(b"Nats-Msg-Id: " + msg_id)
    return _BLANK + b"".join(line + b"\r\n" for line in kept) + b"\r\n"


class _Connection:
    """A blocking connection to one server: one request at a time."""

    def __init__(self, url: str) -> None:
        found = urlsplit(url if "//" in url else f"nats://{url}")
        if found.scheme not in ("nats", ""):
            raise TailError(f"{url}: only nats:// is served")
        self._address = found.hostname or "127.0.0.1", found.port or 4222
        self._options: dict[str, object] = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "name": "streamctl discarded", "lang": "python", "version": "1", "protocol": 1,
        }  # fmt: skip
        if found.password is not None:
            self._options["user"] = unquote(found.username or "")
            self._options["pass"] = unquote(found.password)
        elif found.username:
            self._options["auth_token"] = unquote(found.username)
        self._inbox = f"_INBOX.{os.urandom(12).hex()}".encode()

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(self._address, ANSWER_WITHIN_S)
        self._lines = self._socket.makefile("rb")
        self._line()  # INFO
        connect = json.dumps(self._options).encode()
        self._socket.sendall(b"CONNECT %b\r\nSUB %b 1\r\nPING\r\n" % (connect, self._inbox))
        while self._line() != b"PONG":
            pass
        return self

    def __exit__(self, *exc: object) -> None:
        self._lines.close()
        self._socket.close()

    def has(self, stream: str, record: Record) -> bool:
        """True if the stream has this very message under the sequence it had."""
        if not record.get("seq"):
            return False
        wanted = json.dumps({"seq": record["seq"]}).encode()
        answer = self._ask(f"$JS.API.STREAM.MSG.GET.{stream}".encode(), b"", wanted)
        found = answer.get("message")
        if not found:
            return False
        payload = base64.b64decode(found.get("data", ""))
        is_same = found["time"] == record["time"]
        return is_same and payload == bytes_field(record, "payload")

    def publish(self, stream: str, record: Record, msg_id: bytes) -> bool:
        """Publish it; False: the stream knew its id. Raises TailError if it is not stored."""
        headers = headers_for(bytes_field(record, "headers"), msg_id)
        subject, payload = bytes_field(record, "subject"), bytes_field(record, "payload")
        answer = self._ask(subject, headers, payload)
        if "error" in answer:
            raise TailError(answer["error"].get("description", str(answer["error"])))
        if answer.get("stream") != stream:
            raise TailError(f"stored by stream {answer.get('stream')!r}, not {stream!r}")
        return not answer.get("duplicate", False)

    def _ask(self, subject: bytes, headers: bytes, payload: bytes) -> dict[str, Any]:
        if headers:
            head = b"HPUB %b %b %d %d\r\n" % (
                subject, self._inbox, len(headers), len(headers) + len(payload),
            )  # fmt: skip
        else:
            head = b"PUB %b %b %d\r\n" % (subject, self._inbox, len(payload))
        self._socket.sendall(head + headers + payload + b"\r\n")
        while True:
            verb, *fields = self._line().split(b" ")
            if verb in (b"MSG", b"HMSG"):
                body = self._lines.read(int(fields[-1]) + 2)[:-2]
                if verb == b"HMSG":
                    raise TailError(f"no stream takes {subject.decode(errors='replace')!r}")
                answer: dict[str, Any] = json.loads(body)
                return answer

    def _line(self) -> bytes:
        line = self._lines.readline().rstrip(b"\r\n")
        if line == b"PING":
            self._socket.sendall(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise TailError(line.decode(errors="replace"))
        elif not line and not self._lines.peek(1):
            raise TailError("the server closed the connection")
        return line
