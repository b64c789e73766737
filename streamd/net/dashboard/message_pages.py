"""Pages of a stream's messages: by sequence, time or subject, forwards and backwards.

A search looks at a few thousand messages in a step, and in one request at no more than
`DASHBOARD_SCAN_MAX`: the answer then says where to go on, with fewer messages on the page or none.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamd.api import times
from streamd.limits import (
    DASHBOARD_MESSAGES_BYTES,
    DASHBOARD_PAGE,
    DASHBOARD_PAYLOAD_BYTES,
    DASHBOARD_SCAN_MAX,
    DASHBOARD_SCAN_STEP,
)
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.subject_table import FIRST
from streamd.net.dashboard.peer_questions import Elsewhere
from streamd.net.monitoring.query import BadQuery, number
from streamd.net.monitoring.sliced_pages import Slicer, Steps
from streamd.node.ports import StreamHandle
from streamd.subjects import Matcher, is_valid
from streamd.types import Document, Seq, StoredMsg

_MESSAGES_DEFAULT: Final = 25
_DIRECTIONS: Final = ("next", "previous")


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """Messages that are asked for."""

    seq: Seq = 0  # where to begin, it included; 0: at the time, or at the end that is meant
    since_ns: int = 0  # 0: not by time
    matcher: Matcher | None = None
    is_backward: bool = False
    limit: int = _MESSAGES_DEFAULT


def read_message_query(query: Mapping[str, str]) -> MessageQuery:
    """Read the parameters of a page of messages. Raises BadQuery."""
    direction = query.get("direction") or "next"
    if direction not in _DIRECTIONS:
        raise BadQuery(f"direction={direction[:64]!r} must be next or previous")
    seq, limit = number(query, "seq"), number(query, "limit")
    if seq < 0:
        raise BadQuery(f"seq={seq} must not be negative")
    since_ns = 0
    if text := query.get("time", ""):
        try:
            since_ns = times.parse_ns(text)
        except ValueError as err:
            raise BadQuery(f"time: {err}") from None
    if seq and since_ns:
        raise BadQuery("seq and time exclude each other")
    return MessageQuery(
        seq=seq,
        since_ns=since_ns,
        matcher=read_filter(query, "subject"),
        is_backward=direction == "previous",
        limit=min(limit, DASHBOARD_PAGE) if limit > 0 else _MESSAGES_DEFAULT,
    )


def read_filter(query: Mapping[str, str], name: str) -> Matcher | None:
    """Return a filter by subject; None: there is none. Raises BadQuery."""
    text = query.get(name, "").strip()
    if not text:
        return None
    subject = text.encode(errors="replace")
    if not is_valid(subject):
        raise BadQuery(f"{name}={text[:200]!r} is not a valid subject")
    return Matcher([subject])


class Found(NamedTuple):
    """Messages of a page, in the order that was asked for."""

    seqs: list[Seq]
    following: Seq | None  # where to go on; None: there are no more
    last_seq: Seq  # of the stream, when the search came to its end


def find_seqs(index: StreamIndex, wanted: MessageQuery) -> Steps[Found]:
    """Find the messages of a page."""
    first = index.first_seq
    if wanted.matcher is not None and wanted.matcher.literal is not None:
        row = index.subjects.rows.get(wanted.matcher.literal)
        if row is None:
            return Found([], None, index.last_seq)
        first = max(first, row[FIRST])
    if not index.count:
        return Found([], None, index.last_seq)
    if wanted.is_backward:
        return (yield from _search_back(index, wanted, first))
    start = wanted.seq
    if wanted.since_ns:
        start = index.locations.seq_at_time(wanted.since_ns)
    return (yield from _search(index, wanted, max(start, first)))


def _search(index: StreamIndex, wanted: MessageQuery, seq: Seq) -> Steps[Found]:
    found: list[Seq] = []
    looked = 0
    while len(found) < wanted.limit and seq <= index.last_seq and looked < DASHBOARD_SCAN_MAX:
        locations, seq = index.lookup.select(
            seq, wanted.matcher, wanted.limit - len(found), DASHBOARD_SCAN_STEP
        )
        found += [location[0] for location in locations]
        looked += DASHBOARD_SCAN_STEP
        yield
    return Found(found, seq if seq <= index.last_seq else None, index.last_seq)


def _search_back(index: StreamIndex, wanted: MessageQuery, lowest: Seq) -> Steps[Found]:
    live = index.live
    before = index.last_seq + 1
    if wanted.since_ns:
        before = index.locations.seq_at_time(wanted.since_ns)
    elif wanted.seq:
        before = min(wanted.seq, index.last_seq) + 1
    found: list[Seq] = []
    looked = 0
    while before > lowest and len(found) < wanted.limit and looked < DASHBOARD_SCAN_MAX:
        # The newest live one below: where whole ranges are deleted, they are stepped over.
        last = live.deleted.prev_absent(before - 1)
        first = max(lowest, last - DASHBOARD_SCAN_STEP + 1)
        if last < first:
            break
        locations, _ = index.lookup.select(
            first, wanted.matcher, DASHBOARD_SCAN_STEP, DASHBOARD_SCAN_STEP
        )
        seqs = [location[0] for location in locations if location[0] <= last]
        room = wanted.limit - len(found)
        taken = seqs[-room:]
        found += reversed(taken)
        before = taken[0] if len(seqs) >= room else first
        looked += last - first + 1
        yield
    return Found(found, before - 1 if before > lowest else None, index.last_seq)


def fitting(index: StreamIndex, seqs: Sequence[Seq]) -> list[Seq]:
    """Return the first of these messages that may be read for one page; one always may."""
    size = 0
    found: list[Seq] = []
    for seq in seqs:
        size += index.locations.size_of(seq) if index.live.has(seq) else 0
        if found and size > DASHBOARD_MESSAGES_BYTES:
            break
        found.append(seq)
    return found


async def read_messages(handle: StreamHandle, seqs: list[Seq]) -> list[StoredMsg]:
    """Read messages; those that are gone meanwhile are left out. Raises Elsewhere if one can't be
    read."""
    if not seqs:
        return []
    told: asyncio.Future[list[StoredMsg | None] | None]
    told = asyncio.get_running_loop().create_future()
    handle.read(seqs, lambda found: None if told.done() else told.set_result(found))
    found = await told
    if found is None:
        raise Elsewhere(
            f"messages {seqs[0]} to {seqs[-1]} of {handle.name} can't all be read from this disk"
        )
    return [message for message in found if message is not None]


async def message_page(handle: StreamHandle, wanted: MessageQuery, slicer: Slicer) -> Document:
    """Build a page of messages."""
    index = handle.machine.index
    seqs, following, last_seq = await slicer.wait(find_seqs(index, wanted))
    shown = fitting(index, seqs)
    if len(shown) < len(seqs):
        following = seqs[len(shown)]
    messages = await read_messages(handle, shown)
    items = [message_item(message) for message in messages]
    return {"items": items, "next": following, "last_seq": last_seq}


def message_item(message: StoredMsg) -> Document:
    """Return a message as it is shown; of a long payload the begin."""
    payload = message.payload
    return {
        "seq": message.seq,
        "subject": message.subject.decode(errors="replace"),
        "time": times.format_ns(message.ts),
        "headers": headers_of(message.headers),
        "size": len(payload),
        "payload": base64.b64encode(payload[:DASHBOARD_PAYLOAD_BYTES]).decode(),
        "cut": len(payload) > DASHBOARD_PAYLOAD_BYTES,
    }


def headers_of(block: bytes) -> list[list[str]]:
    """Return the headers of a message, in order, as texts."""
    found = []
    for line in block.split(b"\r\n")[1:]:
        if line:
            key, _, value = line.partition(b":")
            found.append(
                [key.decode(errors="replace"), value.lstrip(b" ").decode(errors="replace")]
            )
    return found
