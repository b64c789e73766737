"""Publishes on their way from a client into a stream: as the stream is to keep them, or refused.

What is decided here needs no state of the stream, only its config. The rest (duplicates, expected
sequences, limits) is decided where the log entry is applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamd import errors
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.types import Msg

if TYPE_CHECKING:
    from streamd.node.ports import PublishSink, StreamHandle

_FAST_BATCH: Final = b".$FI"


def ingest(
    stream: StreamHandle,
    msgs: list[Msg],
    replies: list[bytes],
    sink: PublishSink,
    *,
    has_odd_headers: bool,
) -> None:
    """Publish messages to a stream; with `has_odd_headers` some of them may have headers that are
    not stored as they were sent. A member of a fast batch, which its reply subject makes it, is
    refused: no stream allows them."""
    if has_odd_headers:
        msgs = [
            (subject, message_headers.as_stored(block) if block else block, payload)
            for subject, block, payload in msgs
        ]
    if _FAST_BATCH in b"".join(replies):
        msgs, replies = _without_fast(stream, msgs, replies, sink)
        if not msgs:
            return
    if stream.config.get("no_ack"):
        replies = [b""] * len(msgs)
    stream.publish(msgs, replies, sink)


def is_ingested_as_sent(reply: bytes, headers: bytes) -> bool:
    """Return True if `ingest` would pass on such a publish as it is; False: perhaps not."""
    if reply[-4:] == _FAST_BATCH:
        return False
    return not headers or message_headers.are_stored_as_sent(headers)


def refuse_fast(stream: StreamHandle, msg: Msg, reply: bytes, sink: PublishSink) -> bool:
    """Answer a message that is a member of a fast batch; False: it is none."""
    if not reply.endswith(_FAST_BATCH):
        return False
    if not stream.config.get("no_ack"):
        sink.publish_acks(stream.name_bytes, [reply], [_refusal(stream, msg)])
    return True


def _without_fast(
    stream: StreamHandle, msgs: list[Msg], replies: list[bytes], sink: PublishSink
) -> tuple[list[Msg], list[bytes]]:
    kept: list[Msg] = []
    answers: list[bytes] = []
    for msg, reply in zip(msgs, replies, strict=True):
        if not refuse_fast(stream, msg, reply, sink):
            kept.append(msg)
            answers.append(reply)
    return kept, answers


def _refusal(stream: StreamHandle, msg: Msg) -> JsError:
    config = stream.config
    if config.get("sealed"):
        return errors.STREAM_SEALED()
    if 0 <= config.get("max_msg_size", -1) < len(msg[1]) + len(msg[2]):
        return errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
    return errors.BATCH_PUBLISH_DISABLED()
