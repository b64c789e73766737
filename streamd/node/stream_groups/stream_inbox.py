"""Messages that only a stream's group takes: publishes, acks, pulls, and results of disk reads."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.node.delivery.cursor import Cursor
from streamd.node.groups.inbox import InboxMessage
from streamd.node.ports import PublishSink
from streamd.types import Msg, Seq


@dataclass(slots=True)
class Publish(InboxMessage):
    """Messages of one chunk of one client; `replies[i]` is to hear what became of `msgs[i]`."""

    msgs: list[Msg]
    replies: list[bytes]
    sink: PublishSink


@dataclass(slots=True)
class Acks(InboxMessage):
    """Acks of one chunk of one client, all for one consumer. No replies: none is wanted."""

    subjects: list[bytes]
    replies: list[bytes] | None
    payloads: list[bytes]


@dataclass(slots=True)
class Pull(InboxMessage):
    """A client asks a consumer for messages."""

    consumer: bytes
    reply: bytes
    headers: bytes
    payload: bytes


@dataclass(slots=True)
class FlowReply(InboxMessage):
    """A client answered a flow-control request of a consumer; its headers may ack."""

    consumer: bytes
    subject: bytes
    headers: bytes


@dataclass(slots=True)
class InterestChanged(InboxMessage):
    """Subscriptions to a push consumer's deliver subject appeared, or the last one ended."""

    cursor: Cursor
    has_interest: bool


@dataclass(slots=True)
class ChunkRead(InboxMessage):
    """The block bytes that a cursor asked for are in memory."""

    cursor: Cursor


@dataclass(slots=True)
class Drained(InboxMessage):
    """A congested client has read what waited for it."""


@dataclass(slots=True)
class UnreadableFound(InboxMessage):
    """The disk does not give these messages of a block; none: only what is dead is damaged."""

    block_no: int
    seqs: list[Seq]
    reason: str


@dataclass(slots=True)
class BlockReadable(InboxMessage):
    """The disk gave the whole block."""

    block_no: int
