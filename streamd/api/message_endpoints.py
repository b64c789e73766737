"""`STREAM.MSG.GET` and `STREAM.MSG.DELETE`: single messages of a stream."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamd import errors
from streamd.api import decoding, shapes, times
from streamd.api.decoding import decode
from streamd.api.request import Request
from streamd.machine import commands
from streamd.machine.streams.counters import read_total, write_integer
from streamd.subjects import Matcher, is_literal
from streamd.types import Document, Seq, StoredMsg

if TYPE_CHECKING:
    from streamd.machine.streams.stream import StreamMachine
    from streamd.node.ports import StreamHandle


def get(request: Request) -> None:
    """`STREAM.MSG.GET.<stream>`: one message by seq, time, or subject."""
    wanted = decode(request.payload, shapes.MSG_GET)
    if not has_selector(wanted) or is_contradictory(wanted) or _asks_for_many(wanted):
        raise errors.BAD_REQUEST()
    handle = request.stream()

    def show(found: list[StoredMsg | None] | None) -> None:
        if found is None:
            request.unreadable()
            return
        message = found[0]
        if message is None:
            raise errors.NO_MESSAGE_FOUND()
        shown: Document = {
            "subject": message.subject.decode("utf-8", "replace"),
            "seq": message.seq,
        }
        if message.headers and not wanted.get("no_hdr"):
            shown["hdrs"] = base64.b64encode(message.headers).decode()
        if message.payload:
            shown["data"] = base64.b64encode(message.payload).decode()
        shown["time"] = times.format_ns(message.ts)
        request.answer({"message": shown})

    def look_up() -> None:
        seq = select(request.stream().machine, wanted)
        if not seq:
            raise errors.NO_MESSAGE_FOUND()
        handle.read([seq], lambda found: request.guard(show, found))

    # Behind everything posted so far: a reader sees its own writes.
    request.when_current(handle, look_up)


def _asks_for_many(wanted: Document) -> bool:
    return bool(wanted.get("batch", 0) > 0 or wanted.get("max_bytes", 0) > 0)


def has_selector(wanted: Document) -> bool:
    """True if a get request says at all which message it wants."""
    return bool(
        wanted.get("seq")
        or wanted.get("last_by_subj")
        or wanted.get("next_by_subj")
        or wanted.get("start_time")
    )


def is_contradictory(wanted: Document) -> bool:
    """True if the ways to name a message exclude each other."""
    last, following = wanted.get("last_by_subj"), wanted.get("next_by_subj")
    seq, since = wanted.get("seq"), wanted.get("start_time")
    return bool((last and (seq or since or following)) or (seq and since))


def select(machine: StreamMachine, wanted: Document) -> Seq:
    """Return the seq of the message a get request asks for; 0 if there is none."""
    index = machine.index
    last = wanted.get("last_by_subj")
    if last:
        subject = last.encode()
        if is_literal(subject):
            return index.lookup.last_of(subject) or 0
        return index.lookup.last_match(Matcher([subject])) or 0
    start: Seq = wanted.get("seq", 0)
    if wanted.get("start_time"):
        start = index.locations.seq_at_time(times.parse_ns(wanted["start_time"]))
        if not start or start > index.last_seq:
            return 0
    following = wanted.get("next_by_subj")
    if following:
        return index.lookup.next_match(start, Matcher([following.encode()])) or 0
    if wanted.get("start_time"):
        return index.lookup.next_match(start, None) or 0
    return start if index.live.has(start) else 0


def delete(request: Request) -> None:
    """`STREAM.MSG.DELETE.<stream>`: remove one message by seq."""
    if decoding.is_empty_request(request.payload):
        raise errors.BAD_REQUEST()
    wanted = decode(request.payload, shapes.MSG_DELETE)
    handle = request.stream()
    if handle.machine.config["sealed"]:
        raise errors.STREAM_SEALED()
    if handle.machine.config["deny_delete"]:
        raise errors.STREAM_MSG_DELETE_FAILED(err="message delete not permitted")
    seq, no_erase = wanted.get("seq", 0), wanted.get("no_erase", False)

    def propose(*before: Seq | bytes) -> None:
        request.propose(
            handle,
            [commands.DELETE_MSG, request.context.clock.now_ns(), seq, no_erase, *before],
            lambda _: request.answer({"success": True}),
        )

    if handle.machine.config["allow_msg_counter"]:
        request.when_current(handle, _delete_of_counter, request, handle, seq, propose)
    else:
        propose()


def _delete_of_counter(
    request: Request, handle: StreamHandle, seq: Seq, propose: Callable[..., None]
) -> None:
    """Delete a message of a counter, whose total then is that of the message before it: read here,
    for entries are applied without looking at bodies."""
    index = handle.machine.index
    before = 0
    if index.live.has(seq):
        subject = index.locations.subject_at(seq)
        if index.lookup.last_of(subject) == seq:
            before = index.lookup.last_match(Matcher.of_subject(subject), seq)
    if not before:
        propose()
        return

    def read(found: list[StoredMsg | None] | None) -> None:
        if found is None:
            request.unreadable()
            return
        total = None
        if found[0] is not None:
            total = read_total(before, found[0].headers, found[0].payload)
        if total is None:
            raise errors.STREAM_MSG_DELETE_FAILED(err="the counter has changed, try again")
        propose(before, write_integer(total.value), total.sources)

    handle.read([before], lambda found: request.guard(read, found))
