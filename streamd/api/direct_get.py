"""`DIRECT.GET`: stored messages as they are, with where they come from in their headers.

One message, a batch of them in order, or the last of each of many subjects. The replies are
messages, not JSON; refusals are statuses. Reads what is applied now: no barrier, so a reader that
did not wait for its own write's ack may miss it.

Two headers of ours ask for more (docs/extensions.md). `Nats-Linearizable: true`, or the same in the
stream's metadata: the leader answers, behind a ReadIndex round, and nobody else does.
`Nats-Min-Last-Seq: N`: who has not applied message N says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from streamd import limits, subjects
from streamd.api import shapes, times
from streamd.api.decoding import decode_one
from streamd.api.message_endpoints import has_selector, is_contradictory, select
from streamd.api.request import Request
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.machine.extension_settings import LINEARIZABLE_READS
from streamd.node.ports import StreamHandle
from streamd.subjects import Matcher
from streamd.types import Document, Seq, StoredMsg

_NOT_FOUND: Final = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_NO_RESULTS: Final = b"NATS/1.0 404 No Results\r\n\r\n"
_EMPTY: Final = b"NATS/1.0 408 Empty Request\r\n\r\n"
_BAD: Final = b"NATS/1.0 408 Bad Request\r\n\r\n"
_MALFORMED: Final = b"NATS/1.0 408 Malformed Request\r\n\r\n"
_TOO_MANY: Final = b"NATS/1.0 413 Too Many Results\r\n\r\n"
_BEHIND: Final = b"NATS/1.0 412 Min Last Sequence\r\nNats-Last-Sequence: %d\r\n\r\n"
_NO_LEADER: Final = b"NATS/1.0 503 No Leader\r\n%b\r\n"

LINEARIZABLE: Final = b"Nats-Linearizable"
MIN_LAST_SEQ: Final = b"Nats-Min-Last-Seq"


def _allows(request: Request, handle: StreamHandle) -> bool:
    """True if the stream answers direct gets, or is a mirror that was asked for its origin."""
    config = handle.machine.config
    if config["allow_direct"]:
        return True
    mirror = config["mirror"]
    if mirror is None or not config["mirror_direct"]:
        return False
    return request.subject.split(b".")[4] == mirror.get("name", "").encode()


def get(request: Request) -> None:
    """`DIRECT.GET.<stream>` with a request, or `DIRECT.GET.<stream>.<subject>` for its last."""
    handle = request.replica()
    if handle is None or not _allows(request, handle):
        request.no_responders()
        return
    headers, metadata = request.headers, handle.machine.config.get("metadata")
    if headers or metadata:
        least = message_headers.get(headers, MIN_LAST_SEQ) if headers else None
        if least is not None and not least.isdigit():
            request.status(_BAD)
            return
        least_seq = int(least or 0)
        if _is_linearizable(headers, metadata):
            _get_behind_a_barrier(request, least_seq)
            return
        if handle.machine.index.last_seq < least_seq:
            request.status(_BEHIND % handle.machine.index.last_seq)
            return
    _get(request, handle)


def _is_linearizable(headers: bytes, metadata: dict[str, str] | None) -> bool:
    if metadata and metadata.get(LINEARIZABLE_READS) == "true":
        return True
    return bool(headers) and message_headers.get(headers, LINEARIZABLE) == b"true"


def _get_behind_a_barrier(request: Request, least_seq: Seq) -> None:
    """Serve a linearizable read: what it sees was committed at some moment after it was asked.

    Only the leader's barrier says so: it has heard from a majority, since the request came, that
    nobody took its place. Without a leader, or when another one takes over meanwhile, the answer is
    a 503, which clients take for a reason to try again; it names the leader, if there is one.
    """

    def lost() -> None:
        name = request.names[0]
        asset = request.context.asset(name)
        leader = "" if asset is None else request.context.node.leader_of(asset.uid)
        told = b"Nats-Leader: %b\r\n" % leader.encode() if leader else b""
        request.status(_NO_LEADER % told)

    def look_up() -> None:
        found = request.replica()
        if found is None:
            request.no_responders()
        elif found.machine.index.last_seq < least_seq:
            request.status(_BEHIND % found.machine.index.last_seq)
        else:
            _get(request, found)

    handle = request.context.streams.stream(request.names[0])
    if handle is None or (request.context.is_clustered and not handle.is_local):
        lost()
    else:
        handle.read_barrier(lambda: request.guard(look_up), lost)


def _get(request: Request, handle: StreamHandle) -> None:
    wanted: Document = {}
    if not request.payload and len(request.names) > 1:
        # What a key-value get is: kept short, there are many. A pattern is no subject.
        subject, machine = request.names[1], handle.machine
        last = machine.index.lookup.last_of(subject.encode()) or select(
            machine, {"last_by_subj": subject}
        )
        _send_one(request, handle, last)
        return
    if request.payload:
        try:
            wanted = decode_one(request.payload, shapes.MSG_GET)
        except JsError:
            request.status(_MALFORMED)
            return
    if len(request.names) > 1:
        if has_selector(wanted) or wanted.get("batch") or wanted.get("multi_last"):
            request.status(_BAD)
            return
        wanted["last_by_subj"] = request.names[1]
    is_many = bool(wanted.get("multi_last"))
    if not is_many and not has_selector(wanted):
        request.status(_EMPTY)
    elif wanted.get("up_to_seq") and wanted.get("up_to_time"):
        request.status(_BAD)
    elif is_many:
        _get_last_of_many(request, handle, wanted)
    elif is_contradictory(wanted) or (wanted.get("batch") and wanted.get("last_by_subj")):
        request.status(_BAD)
    elif wanted.get("batch"):
        _get_batch(request, handle, wanted)
    else:
        _get_one(request, handle, wanted)


def _get_one(request: Request, handle: StreamHandle, wanted: Document) -> None:
    seq = select(handle.machine, wanted)
    _send_one(request, handle, seq, with_headers=not wanted.get("no_hdr"))


def _send_one(
    request: Request, handle: StreamHandle, seq: Seq, *, with_headers: bool = True
) -> None:
    if not seq:
        request.status(_NOT_FOUND)
        return

    def send(found: list[StoredMsg | None] | None) -> None:
        if found is None:
            request.unreadable()
            return
        message = found[0]
        if message is None:
            request.status(_NOT_FOUND)
        elif request.reply:
            block = _origin(handle.name_bytes, message, b"") if with_headers else b""
            request.send(block, message.payload)

    handle.read([seq], send)


def _get_batch(request: Request, handle: StreamHandle, wanted: Document) -> None:
    index = handle.machine.index
    pattern = wanted.get("next_by_subj", "").encode()
    matcher = Matcher([pattern]) if pattern else None
    start: Seq = wanted.get("seq", 0)
    if wanted.get("start_time"):
        start = index.locations.seq_at_time(times.parse_ns(wanted["start_time"]))
    start = max(start, index.first_seq)
    if (pattern and not subjects.is_valid(pattern)) or not index.lookup.next_match(start, matcher):
        request.status(_NOT_FOUND)
        return
    matching = index.lookup.count_from(start, matcher)
    batch = _Batch(request, handle, wanted, matching, b"")
    position = start

    def more(limit: int) -> list[Seq]:
        nonlocal position
        while position <= index.last_seq:
            found, position = index.lookup.select(position, matcher, limit, limits.DIRECT_SCAN)
            if found:
                return [loc[0] for loc in found]
        return []

    batch.run(more)


def _get_last_of_many(request: Request, handle: StreamHandle, wanted: Document) -> None:
    """The last message of each subject that matches, in stream order: not after `up_to_seq`, and
    before `up_to_time`."""
    index = handle.machine.index
    up_to, up_to_time = wanted.get("up_to_seq", 0), wanted.get("up_to_time")
    if (
        wanted.get("last_by_subj")
        or wanted.get("next_by_subj")
        or (wanted.get("seq") and wanted.get("start_time"))
    ):
        request.status(_BAD)
        return
    if up_to_time:
        up_to = index.locations.seq_at_time(times.parse_ns(up_to_time)) - 1
    elif not up_to:
        up_to = index.last_seq
    up_to = min(up_to, index.last_seq)
    start: Seq = wanted.get("seq", 0)
    if wanted.get("start_time"):
        start = index.locations.seq_at_time(times.parse_ns(wanted["start_time"]))
    patterns = [text.encode() for text in wanted["multi_last"]]
    patterns = [pattern for pattern in patterns if subjects.is_valid(pattern)]
    lasts: list[Seq] = []
    if patterns and up_to >= index.first_seq:
        for subject, first, last in index.lookup.subjects_matching(Matcher(patterns)):
            if first > up_to:
                continue
            seq = (
                last
                if last <= up_to
                else index.lookup.last_match(Matcher.of_subject(subject), up_to + 1)
            )
            if seq:
                lasts.append(seq)
            if len(lasts) > limits.DIRECT_MULTI_SUBJECTS_MAX:
                request.status(_TOO_MANY)
                return
    if not lasts:
        request.status(_NO_RESULTS)
        return
    seqs = sorted(seq for seq in lasts if seq >= start)
    trailer = b"Nats-UpTo-Sequence: %d\r\n" % up_to
    wanted = wanted | {"no_hdr": False, "batch": max(0, wanted.get("batch", 0))}
    batch = _Batch(request, handle, wanted, len(seqs), trailer)
    position = 0

    def more(limit: int) -> list[Seq]:
        nonlocal position
        chunk = seqs[position : position + limit]
        position += len(chunk)
        return chunk

    batch.run(more)


class _Batch:
    """A batched get under way: reads a chunk, sends it, reads the next, ends with `204 EOB`."""

    def __init__(
        self,
        request: Request,
        handle: StreamHandle,
        wanted: Document,
        matching: int,
        trailer: bytes,
    ) -> None:
        self._request = request
        self._handle = handle
        self._left = wanted["batch"] if wanted.get("batch") else matching
        asked_bytes = wanted.get("max_bytes", 0)
        self._bytes_left = asked_bytes if asked_bytes > 0 else limits.DIRECT_BATCH_BYTES_MAX
        self._with_headers = not wanted.get("no_hdr")
        self._pending = matching
        self._last_seq: Seq = 0
        self._trailer = trailer

    def run(self, more: Callable[[int], list[Seq]]) -> None:
        """Send the messages of the seqs that `more` yields until the batch is over."""
        self._more = more
        self._next_chunk()

    def _next_chunk(self) -> None:
        if not self._request.reply:
            return
        seqs: list[Seq] = []
        if self._left > 0 and self._bytes_left > 0:
            seqs = self._more(min(self._left, limits.DIRECT_READ_CHUNK))
        if seqs:
            request = self._request
            self._handle.read(seqs, lambda found: request.guard(self._send, found))
        else:
            self._request.status(
                b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n%b\r\n"
                % (self._pending, self._last_seq, self._trailer)
            )

    def _send(self, found: list[StoredMsg | None] | None) -> None:
        if found is None:
            self._request.unreadable()
            return
        name, send = self._handle.name_bytes, self._request.send
        for message in found:
            if message is None:
                continue  # deleted since it was selected
            if self._left <= 0 or self._bytes_left <= 0:
                break
            self._left -= 1
            self._pending = max(0, self._pending - 1)
            self._bytes_left -= sum(map(len, message[2:]))  # subject, headers, payload
            block = b""
            if self._with_headers:
                place = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (
                    self._pending,
                    self._last_seq,
                )
                block = _origin(name, message, place)
            self._last_seq = message.seq
            send(block, message.payload)
        self._next_chunk()


def _origin(stream: bytes, message: StoredMsg, more: bytes) -> bytes:
    """Return the message's headers with where it is stored, and `more`, added at their end."""
    head = message.headers[:-2] if message.headers else b"NATS/1.0\r\n"
    return (
        b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
        b"%b\r\n"
        % (head, stream, message.subject, message.seq, times.format_ns(message.ts).encode(), more)
    )
