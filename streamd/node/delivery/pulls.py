"""Pull requests: what a client asks for, and the queue of those that wait to be served.

Pulls are the leader's alone and live in memory: the next leader tells clients to ask again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping

from streamd import go_json, limits
from streamd.durations import format_duration
from streamd.machine.asset_configs import ConsumerConfig
from streamd.node.ports import DeliverSink

_MS = 1_000_000  # ns
_OPTIONS_CACHE_MAX = 256  # clients repeat their pull requests byte for byte
_CACHED_BYTES_MAX = 512  # what is longer is odd, and would be kept for nothing
_INT64_MAX = (1 << 63) - 1

IDLE = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
NO_MESSAGES = b"NATS/1.0 404 No Messages\r\n\r\n"
REQUESTS_PENDING = b"NATS/1.0 408 Requests Pending\r\n\r\n"
EXCEEDED_MAX_WAITING = b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
PUSH_BASED = b"NATS/1.0 409 Consumer is push based\r\n\r\n"
API_LEVEL = b"NATS/1.0 412 Required Api Level\r\n\r\n"
PIN_MISMATCH = b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"


class PullOptions:
    """A pull request as the client wrote it, checked for its own sake."""

    __slots__ = (
        "asked",
        "batch",
        "bytes_max",
        "expires_ns",
        "group",
        "heartbeat_ns",
        "is_no_wait",
        "min_ack_pending",
        "min_pending",
        "pin_id",
        "priority",
    )

    def __init__(self) -> None:
        self.batch = 1
        self.asked = 1  # the batch as the client wrote it, which statuses repeat
        self.bytes_max = 0  # 0: no limit
        self.expires_ns = 0  # 0: waits as long as its reply subject has a subscriber
        self.heartbeat_ns = 0
        self.is_no_wait = False
        self.group = ""
        self.min_pending = 0
        self.min_ack_pending = 0
        self.pin_id = ""
        self.priority = 0


class BadRequestError(Exception):
    """A pull request no server understands; the text belongs into a 400 status."""


_INTS = {
    "expires": "expires_ns",
    "batch": "batch",
    "max_bytes": "bytes_max",
    "idle_heartbeat": "heartbeat_ns",
    "min_pending": "min_pending",
    "min_ack_pending": "min_ack_pending",
    "priority": "priority",
}
_GO_TYPES = {
    "expires": "time.Duration",
    "batch": "int",
    "max_bytes": "int",
    "idle_heartbeat": "time.Duration",
    "min_pending": "int64",
    "min_ack_pending": "int64",
    "priority": "int",
}
_options_cache: dict[bytes, PullOptions] = {}


def parse_options(payload: bytes) -> PullOptions:
    """Understand the payload of a pull: nothing, a number, or JSON. Raises BadRequestError.

    The result is shared between equal requests: read-only.
    """
    options = _options_cache.get(payload)
    if options is None:
        options = _parse(payload)
        if len(payload) > _CACHED_BYTES_MAX:
            return options
        if len(_options_cache) >= _OPTIONS_CACHE_MAX:
            _options_cache.clear()
        _options_cache[payload] = options
    return options


def _parse(payload: bytes) -> PullOptions:
    options = PullOptions()
    text = payload.strip()
    if not text:
        return options
    if text[:1] == b"{":
        options.batch = 0
        _parse_json(text, options)
    elif text.isdigit() and len(text) <= 19 and int(text) <= _INT64_MAX:
        options.batch = int(text)  # anything else is taken for "one", as the peers do
    options.asked = options.batch
    if options.batch <= 0:
        options.batch = 1
    if options.heartbeat_ns and options.heartbeat_ns * 2 > options.expires_ns:
        raise BadRequestError("heartbeat value too large")
    return options


def _parse_json(text: bytes, options: PullOptions) -> None:
    try:
        fields: Mapping[str, object] = json.loads(text)
    except json.JSONDecodeError as err:
        raise BadRequestError(_json_fault(err)) from None
    except ValueError:
        raise BadRequestError("invalid character in string literal") from None
    except RecursionError:
        raise BadRequestError("exceeded max depth") from None
    for key, value in fields.items():
        key = key.lower()
        if value is None:
            continue
        if key in _INTS:
            if type(value) is not int or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
                raise BadRequestError(_misfit(value, key))
            setattr(options, _INTS[key], value)
        elif key == "no_wait":
            if type(value) is not bool:
                raise BadRequestError(_misfit(value, key))
            options.is_no_wait = value
        elif key in ("group", "id"):
            if type(value) is not str:
                raise BadRequestError(_misfit(value, key))
            setattr(options, "group" if key == "group" else "pin_id", value)


def _misfit(value: object, key: str) -> str:
    kind = go_json.kind(value)
    goal = _GO_TYPES.get(key, "bool" if key == "no_wait" else "string")
    if kind == "number" and key in _GO_TYPES:
        kind = f"number {value}"
    return go_json.misfit(kind, f"Go struct field .{key}", goal)


def _json_fault(err: json.JSONDecodeError) -> str:
    """Return the words of Go's decoder for such text, as clients show them to people."""
    if err.pos >= len(err.doc.rstrip()):
        return "unexpected end of JSON input"
    found = err.doc[err.pos]
    if err.msg.startswith("Extra data"):
        return f"invalid character '{found}' after top-level value"
    if err.msg.startswith("Expecting property name"):
        return f"invalid character '{found}' looking for beginning of object key string"
    if err.msg.startswith("Expecting ':'"):
        return f"invalid character '{found}' after object key"
    if err.msg.startswith("Expecting ','"):
        return f"invalid character '{found}' after object key:value pair"
    return f"invalid character '{found}' looking for beginning of value"


class PullRequest:
    """A pull that waits to be served."""

    __slots__ = (
        "bytes_left",
        "delivered",
        "expires_ms",
        "has_bytes_max",
        "heartbeat_at_ms",
        "heartbeat_ms",
        "is_no_wait",
        "left",
        "options",
        "pin_id",
        "reply",
        "sink",
    )

    def __init__(self, reply: bytes, options: PullOptions, sink: DeliverSink, now_ms: int) -> None:
        self.reply = reply
        self.options = options
        self.sink = sink
        self.left = options.batch
        self.has_bytes_max = options.bytes_max > 0
        self.bytes_left = options.bytes_max
        self.delivered = 0
        self.is_no_wait = options.is_no_wait
        self.pin_id = options.pin_id
        expires = options.expires_ns
        self.expires_ms = now_ms + max(1, (expires + _MS - 1) // _MS) if expires > 0 else 0
        self.heartbeat_ms = max(1, options.heartbeat_ns // _MS) if options.heartbeat_ns > 0 else 0
        self.heartbeat_at_ms = now_ms + self.heartbeat_ms if self.heartbeat_ms else 0

    def is_over_for_now(self) -> bool:
        """True if it ends once there is nothing for it at the moment."""
        return self.is_no_wait and bool(self.delivered or not self.expires_ms)

    def end(self, status: bytes) -> None:
        """Tell the client that this pull is over: `status` is code and text."""
        self.sink.status(
            b"NATS/1.0 %b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n"
            % (status, self.left if self.delivered else self.options.asked, self.bytes_left)
        )


class Waiting:
    """The pulls of one consumer, in the order in which they are served."""

    __slots__ = ("is_by_priority", "next_event_ms", "queue")

    def __init__(self) -> None:
        self.queue: deque[PullRequest] = deque()
        self.is_by_priority = False
        self.next_event_ms = 0  # no pull expires or beats before; 0: none ever

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, request: PullRequest) -> None:
        """Append; with priorities, behind the last of its own or a more urgent one."""
        queue = self.queue
        if self.is_by_priority and queue:
            at = len(queue)
            priority = request.options.priority
            while at and queue[at - 1].options.priority > priority:
                at -= 1
            queue.insert(at, request)
        else:
            queue.append(request)
        for at_ms in (request.expires_ms, request.heartbeat_at_ms):
            if at_ms and (self.next_event_ms == 0 or at_ms < self.next_event_ms):
                self.next_event_ms = at_ms

    def rotate(self) -> None:
        """The first one got a message: the next goes to the next (not across priorities)."""
        queue = self.queue
        if not self.is_by_priority:
            queue.rotate(-1)
            return
        first = queue.popleft()
        at = 0
        while at < len(queue) and queue[at].options.priority == first.options.priority:
            at += 1
        queue.insert(at, first)

    def total_left(self, enough: int) -> int:
        """Return how many messages all pulls together still take, or `enough` if not less."""
        total = 0
        for request in self.queue:
            total += request.left
            if total >= enough:
                return enough
        return total

    def open_left(self, enough: int) -> int:
        """`total_left` of those that are listened to; looks at no more of them than it takes."""
        total = 0
        for request in self.queue:
            if not request.sink.is_open():
                self.drop_closed()
                return self.total_left(enough)
            total += request.left
            if total >= enough:
                return enough
        return total

    def expire(self, now_ms: int, *, last_cseq: int, last_sseq: int, is_held: bool) -> bool:
        """End pulls whose time is over or whose client is gone; send due heartbeats. While the
        consumer's limit of pending acks holds them (`is_held`), pulls that do not wait for messages
        end as well, if they got some or have no time of their own. True if some client was there
        until its time was over."""
        if self.next_event_ms == 0 or now_ms < self.next_event_ms:
            return False
        self.next_event_ms = 0
        is_ended = False
        kept: deque[PullRequest] = deque()
        soonest = 0
        for request in self.queue:
            if request.expires_ms and now_ms >= request.expires_ms:
                request.end(b"408 Request Timeout")
                is_ended = True
                continue
            if not request.sink.is_open():
                continue
            if is_held and request.is_over_for_now():
                request.sink.status(NO_MESSAGES)
                continue
            if request.heartbeat_at_ms and now_ms >= request.heartbeat_at_ms:
                request.sink.status(IDLE % (last_cseq, last_sseq))
                request.heartbeat_at_ms = now_ms + request.heartbeat_ms
            for at_ms in (request.expires_ms, request.heartbeat_at_ms):
                if at_ms and (soonest == 0 or at_ms < soonest):
                    soonest = at_ms
            kept.append(request)
        self.queue = kept
        self.next_event_ms = soonest
        return is_ended

    def drop_closed(self) -> None:
        """Forget pulls whose client no longer listens."""
        if any(not request.sink.is_open() for request in self.queue):
            self.queue = deque(each for each in self.queue if each.sink.is_open())

    def end_all(self, status: bytes) -> None:
        """Tell all clients, and drop their requests."""
        queue, self.queue = self.queue, deque()
        self.next_event_ms = 0
        for request in queue:
            if status == b"409 Server Shutdown":
                request.end(status)
            elif status:
                request.sink.status(b"NATS/1.0 %b\r\n\r\n" % status)


def refusal(options: PullOptions, config: ConsumerConfig) -> bytes | None:
    """A status block if the consumer's own limits forbid this pull."""
    batch_max = config.get("max_batch") or 0
    if batch_max > 0 and options.batch > batch_max:
        return b"NATS/1.0 409 Exceeded MaxRequestBatch of %d\r\n\r\n" % batch_max
    expires_max = config.get("max_expires") or 0
    if expires_max > 0 and options.expires_ns > expires_max:
        text = format_duration(expires_max).encode()
        return b"NATS/1.0 409 Exceeded MaxRequestExpires of %b\r\n\r\n" % text
    bytes_max = config.get("max_bytes") or 0
    if bytes_max > 0 and options.bytes_max > bytes_max:
        return b"NATS/1.0 409 Exceeded MaxRequestMaxBytes of %d\r\n\r\n" % bytes_max
    return None


def bad_request(text: str) -> bytes:
    """A 400 status block."""
    return b"NATS/1.0 400 Bad Request - %b\r\n\r\n" % text.encode("utf-8", "replace")


def waiting_max(config: ConsumerConfig) -> int:
    """Return how many pulls the consumer lets wait."""
    return config.get("max_waiting") or limits.MAX_WAITING
