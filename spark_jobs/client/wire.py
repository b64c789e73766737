"""A blocking NATS connection for Spark tasks and jobs: publish, subscribe, request, JetStream API.

One socket, one thread, no event loop. A connection is not shared between threads or processes.
What fails for good raises WireError; a connection that is gone raises WireLost, after which the
same work may be done on another server (`with_retries`).
"""

from __future__ import annotations

import json
import os
import select
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_jobs.client.dial import READ_BYTES, Dialed, dial_any, error_text, learn
from spark_jobs.client.wire_errors import (
    UNAVAILABLE,
    ApiError,
    NoResponders,
    WireError,
    WireLost,
    WireTimeout,
)
from spark_jobs.client.wire_parser import Msg, encode_headers, parse_frames, raw

if TYPE_CHECKING:
    from spark_jobs.client.options import ConnectOptions

__all__ = [
    "ApiError",
    "Msg",
    "NoResponders",
    "Wire",
    "WireError",
    "WireLost",
    "WireTimeout",
    "encode_headers",
    "lent",
    "with_retries",
]

OUT_BYTES_MAX: Final = 64 * 1024  # buffered publishes; more is written at once
IDLE_S_MAX: Final = 60.0  # a cached connection unused for longer is not used again
_IDLE_MAX: Final = 4  # connections kept per process
_FIRST_PAUSE_S: Final = 0.05  # before the second try, doubled each time
_PAUSE_S_MAX: Final = 1.0
_FLUSH_WAIT_S: Final = 1.0
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

T = TypeVar("T")


class Wire:
    """A connection to a server; `Wire.connect` makes it."""

    def __init__(self, options: ConnectOptions, dialed: Dialed) -> None:
        self.options = options
        self.address = dialed.address
        self.info: dict[str, Any] = dialed.info
        self._socket = dialed.socket
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._tail = dialed.rest
        self._is_tail_new = bool(dialed.rest)  # holds bytes nobody has looked at
        self._needed = 0  # bytes the first frame of the tail has in all, 0 unknown
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._messages: list[tuple[int, Msg]] = []  # parsed, not yet handed out
        self._answers: dict[str, Msg] = {}  # by reply subject
        self._sids = 0
        self._subscribed: set[int] = set()
        self._prefix = f"_INBOX.{os.urandom(11).hex()}"
        self._inboxes = 0
        self._answer_sid = 0  # subscription of all requests' answers, 0 until the first
        self._pongs = 0
        self._fault = ""  # an -ERR that did not close the connection
        self._last_error = ""
        self.is_closed = False

    @classmethod
    def connect(
        cls,
        options: ConnectOptions,
        *,
        timeout_s: float = 5.0,
        avoid: Sequence[str] = (),
        server_name: str = "",
    ) -> Wire:
        """Connect to the first server that answers, those in `avoid` ("host:port") last.

        `timeout_s` is per server. `server_name`: only to the server of that name. Raises WireLost
        if none can be reached, WireError if one refuses.
        """
        dialed = dial_any(options, timeout_s=timeout_s, avoid=avoid, server_name=server_name)
        return cls(options, dialed)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def server_name(self) -> str:
        return str(self.info.get("server_name", ""))

    def close(self) -> None:
        """Write what is buffered if that needs no waiting, and close. Twice is harmless."""
        if self.is_closed:
            return
        with suppress(OSError, WireError):
            if self._out:
                self._socket.send(b"".join(self._out))
        self.is_closed = True
        self._socket.close()

    # --- sending ----------------------------------------------------------------------------

    def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b""
    ) -> None:
        """Buffer one message. Raises WireError if it is larger than the server takes."""
        size = len(headers) + len(payload)
        size_max = int(self.info.get("max_payload") or 0)
        if size_max and size > size_max:
            raise WireError(
                f"a message of {size} bytes on {subject!r}: the server takes at most {size_max}"
            )
        to = raw(subject) + b" " + raw(reply) if reply else raw(subject)
        if headers:
            frame = b"HPUB %b %d %d\r\n%b%b\r\n" % (to, len(headers), size, headers, payload)
        else:
            frame = b"PUB %b %d\r\n%b\r\n" % (to, size, payload)
        self.publish_raw(frame)

    def publish_raw(self, frames: bytes) -> None:
        """Buffer ready-made protocol bytes (whole PUB/HPUB frames)."""
        self._out.append(frames)
        self._out_bytes += len(frames)
        if self._out_bytes >= OUT_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write all that is buffered to the socket, however long that takes. Raises WireLost.

        Incoming bytes are taken meanwhile, lest both sides wait for the other to read.
        """
        if not self._out:
            return
        if self.is_closed:
            raise WireLost(self._gone("it was closed before"))
        data = memoryview(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        while data:
            try:
                data = data[self._socket.send(data) :]
            except _WOULD_BLOCK:
                self._wait(_FLUSH_WAIT_S, select.POLLIN | select.POLLOUT)
                chunk = self._read_now()
                if chunk:
                    self._tail += chunk
                    self._is_tail_new = True
            except OSError as err:
                raise self._lost(str(err)) from None

    # --- subscriptions ----------------------------------------------------------------------

    def inbox(self) -> str:
        """Return a subject that nobody else uses."""
        self._inboxes += 1
        return f"{self._prefix}.i{self._inboxes}"

    def subscribe(self, subject: str, *, queue: str = "", max_msgs: int = 0) -> int:
        """Subscribe and return the sid. `max_msgs`: the server ends it after so many."""
        self._sids += 1
        sid = self._sids
        middle = raw(subject) + b" " + raw(queue) if queue else raw(subject)
        lines = b"SUB %b %d\r\n" % (middle, sid)
        if max_msgs:
            lines += b"UNSUB %d %d\r\n" % (sid, max_msgs)
        self._subscribed.add(sid)
        self.publish_raw(lines)
        return sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription; what arrived for it before and was not received is dropped."""
        self._subscribed.discard(sid)
        self._messages = [each for each in self._messages if each[0] != sid]
        self.publish_raw(b"UNSUB %d\r\n" % sid)

    # --- receiving --------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> list[tuple[int, Msg]]:
        """Return all whole messages there are as (sid, message), waiting for at least one.

        [] at the timeout. Raises WireLost, and WireError for what the server complains of.
        """
        self.flush()
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            left = deadline - time.monotonic()
            chunk = self.read_chunk(max(0.0, left))
            if chunk:
                self._parse(chunk)
            elif left <= 0:
                break
        found, self._messages = self._messages, []
        return found

    def read_chunk(self, timeout_s: float) -> bytes:
        """Return the next unparsed bytes, what `keep` was given first; b"" at the timeout.

        For callers that parse frames themselves. Raises WireLost.
        """
        self.flush()
        deadline = time.monotonic() + timeout_s
        parts = [self._tail] if self._tail else []
        have = len(self._tail)
        while not self._is_tail_new or have < self._needed:
            chunk = self._read(max(0.0, deadline - time.monotonic()))
            if not chunk:
                break
            # The rest of a large message: joined once at its end, not once a chunk.
            parts.append(chunk)
            have += len(chunk)
            self._is_tail_new = True
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self._is_tail_new or have < self._needed:
            self._tail = data
            return b""
        self.keep(b"")
        return data

    def keep(self, tail: bytes, *, needed: int = 0) -> None:
        """Put bytes that could not be used yet in front of the next chunk.

        `needed`: how many bytes there must be before it makes sense to look again, 0 if unknown.
        """
        self._tail = tail
        self._needed = needed
        self._is_tail_new = False

    def on_line(self, line: bytes) -> None:
        """Take one protocol line that is no message."""
        if line == b"PING":
            self.publish_raw(b"PONG\r\n")
            self.flush()
        elif line == b"PONG":
            self._pongs += 1
        elif line.startswith(b"INFO "):
            self.info = self.info | json.loads(line[5:])
            learn(self.options, self.info, self.address)
        elif line.startswith(b"-ERR"):
            self._last_error = error_text(line)
            lowered = self._last_error.lower()
            if lowered.startswith(("permissions violation", "invalid subject", "maximum subs")):
                self._fault = self._last_error
        elif line != b"+OK":
            raise WireError(f"server {self.address} sent {line[:60]!r}, which is no NATS protocol")

    def check(self) -> None:
        """Raise WireError if the server complained about something since the last look."""
        fault, self._fault = self._fault, ""
        if fault:
            raise WireError(f"server {self.address}: {fault}")

    def ping(self, timeout_s: float = 5.0) -> None:
        """Wait until the server has taken all that was sent before. Raises WireTimeout."""
        wanted = self._pongs + 1
        self.publish_raw(b"PING\r\n")
        deadline = time.monotonic() + timeout_s
        while self._pongs < wanted:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WireTimeout(f"server {self.address} did not answer a PING in {timeout_s:g} s")
            self._parse(self.read_chunk(left))

    # --- requests ---------------------------------------------------------------------------

    def request(
        self, subject: str, payload: bytes = b"", *, headers: bytes = b"", timeout_s: float = 5.0
    ) -> Msg:
        """Publish and return the first answer. Raises NoResponders, WireTimeout, WireLost."""
        if not self._answer_sid:
            self._answer_sid = self.subscribe(f"{self._prefix}.a.*")
        self._inboxes += 1
        reply = f"{self._prefix}.a.{self._inboxes}"
        self.publish(subject, payload, reply=reply, headers=headers)
        deadline = time.monotonic() + timeout_s
        self._answers.clear()  # too late for requests that timed out
        while reply not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WireTimeout(
                    f"no answer on {subject!r} from {self.address} in {timeout_s:g} s"
                )
            self._parse(self.read_chunk(left))
        answer = self._answers.pop(reply)
        if answer.status == UNAVAILABLE and not answer.payload:
            raise NoResponders(subject)
        return answer

    def api_subject(self, name: str) -> str:
        """Return the full subject of an API endpoint, e.g. of "STREAM.INFO.S"."""
        domain = f"{self.options.domain}." if self.options.domain else ""
        return f"$JS.{domain}API.{name}"

    def api(self, subject: str, body: object = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """Call the JetStream API, e.g. `api("STREAM.INFO.S")`. Raises ApiError for a refusal."""
        payload = b"" if body is None else json.dumps(body).encode()
        answer = self.request(self.api_subject(subject), payload, timeout_s=timeout_s)
        try:
            found = json.loads(answer.payload)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise WireError(f"{subject}: the answer is no JSON object: {answer.payload[:60]!r}")
        error = found.get("error")
        if error:
            code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
            raise ApiError(code, err_code, str(error.get("description", "")), subject)
        return found

    # --- the socket -------------------------------------------------------------------------

    def _read(self, timeout_s: float) -> bytes:
        """Return what the socket has, waiting for it; b"" at the timeout. Raises WireLost."""
        chunk = self._read_now()
        if chunk or timeout_s <= 0:
            return chunk
        deadline = time.monotonic() + timeout_s
        while not chunk:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._wait(left, select.POLLIN)
            chunk = self._read_now()  # empty again: a TLS record that is not whole yet
        return chunk

    def _read_now(self) -> bytes:
        """Return what the socket has now, b"" if nothing. Raises WireLost."""
        if self.is_closed:
            raise WireLost(self._gone("it was closed before"))
        try:
            chunk = self._socket.recv(READ_BYTES)
        except _WOULD_BLOCK:
            return b""
        except OSError as err:
            raise self._lost(str(err)) from None
        if not chunk:
            raise self._lost("the server closed it")
        return chunk

    def _wait(self, timeout_s: float, events: int) -> None:
        self._poll.modify(self._socket, events)
        self._poll.poll(timeout_s * 1000)

    def _parse(self, data: bytes) -> None:
        if not data:
            self.check()
            return
        found: list[tuple[int, Msg]] = []
        used, needed = parse_frames(data, self.on_line, found)
        if used < len(data):
            self.keep(data[used:], needed=needed)
        for sid, message in found:
            if sid == self._answer_sid:
                self._answers[message.subject] = message
            elif sid in self._subscribed:
                self._messages.append((sid, message))
        self.check()

    def _gone(self, why: str) -> str:
        told = f", after saying {self._last_error!r}" if self._last_error else ""
        return f"connection to {self.address} is gone: {why}{told}"

    def _lost(self, why: str) -> WireLost:
        self.is_closed = True
        self._socket.close()
        return WireLost(self._gone(why))


def with_retries(
    options: ConnectOptions,
    work: Callable[[Wire], T],
    *,
    tries: int = 8,
    deadline_s: float = 30.0,
) -> T:
    """Run `work` with a connection; when that or a leader is lost, again with another server.

    Only for work that may be done twice. Tries again after WireLost, WireTimeout, NoResponders and
    ApiError 503, at most `tries` times (0: any number) and not after `deadline_s`; then raises the
    last of these.
    """
    deadline = time.monotonic() + deadline_s
    pause_s = _FIRST_PAUSE_S
    avoid: list[str] = []
    for attempt in count(1):
        place = ""
        try:
            with lent(options, avoid=avoid) as wire:
                place = str(wire.address)
                return work(wire)
        except (WireLost, WireTimeout, NoResponders) as err:
            fault: WireError = err
        except ApiError as err:
            if not err.is_temporary:
                raise
            fault = err
        if attempt == tries or time.monotonic() + pause_s > deadline:
            raise fault
        avoid = [place] if place else []
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_S_MAX)
    raise AssertionError("not reached: a try returns or raises")


_idle: list[tuple[int, float, Wire]] = []  # (process, since when, connection)


@contextmanager
def lent(
    options: ConnectOptions,
    *,
    avoid: Sequence[str] = (),
    server_name: str = "",
) -> Iterator[Wire]:
    """Lend a connection of this process, or a new one; it is kept for the next after success.

    The borrower ends its subscriptions; a connection that still has some, or broke, is closed.
    """
    wire = _take_idle(options, avoid, server_name)
    if wire is None:
        wire = Wire.connect(options, avoid=avoid, server_name=server_name)
    is_good = False
    try:
        yield wire
        is_good = True
    finally:
        own = {wire._answer_sid} if wire._answer_sid else set()
        if is_good and not wire.is_closed and wire._subscribed <= own and len(_idle) < _IDLE_MAX:
            _idle.append((os.getpid(), time.monotonic(), wire))
        else:
            wire.close()


def _take_idle(options: ConnectOptions, avoid: Sequence[str], server_name: str) -> Wire | None:
    """Return a kept connection that fits and still answers; close those that don't any more."""
    for entry in list(_idle):
        process, since, wire = entry
        if process != os.getpid():
            _idle.remove(entry)  # a parent's socket: not ours to write to, nor to shut down
            continue
        if time.monotonic() - since > IDLE_S_MAX:
            _idle.remove(entry)
            wire.close()
            continue
        is_fit = wire.options == options and str(wire.address) not in avoid
        if not is_fit or (server_name and wire.server_name != server_name):
            continue
        _idle.remove(entry)
        try:
            wire.ping(1.0)
        except WireError:
            wire.close()
            continue
        return wire
    return None
