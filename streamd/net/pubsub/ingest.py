"""Publishes on their way from clients into streams: collected, made as they are kept, or refused.

What is decided here needs no state of the stream, only its config. The rest (duplicates, expected
sequences, limits) is decided where the log entry is applied.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

from streamd import errors
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.net.pubsub.subject_routes import CapturingStream
from streamd.types import Msg

if TYPE_CHECKING:  # a server without streams does not load that room
    from streamd.node.ports import PublishSink

_FAST_BATCH: Final = b".$FI"


class Ingest:
    """Publishes for streams that wait to be handed over: those of one chunk, by stream.

    They are posted once per chunk, or before a message that must come after them.
    """

    __slots__ = ("_is_forwarded", "collected", "has_odd_headers")

    def __init__(self) -> None:
        self.collected: dict[CapturingStream, tuple[list[Msg], list[bytes]]] = {}
        self._is_forwarded = False
        self.has_odd_headers = False  # some headers of the chunk may not be stored as sent

    def collecting(self, stream: CapturingStream) -> tuple[list[Msg], list[bytes]]:
        """Return the lists that take messages for `stream` and their replies, until `post`."""
        collecting = self.collected.get(stream)
        if collecting is None:
            collecting = self.collected[stream] = ([], [])
        return collecting

    def collect_run(
        self,
        stream: CapturingStream,
        subject: bytes,
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> None:
        """Add messages on one subject."""
        msgs = list(zip(repeat(subject), headers or repeat(b""), payloads, strict=False))
        answers = replies if replies is not None else [b""] * len(payloads)
        collecting = self.collected.get(stream)
        if collecting is None:
            self.collected[stream] = (msgs, answers)
        else:
            collecting[0].extend(msgs)
            collecting[1].extend(answers)

    def post(self, sink: PublishSink) -> None:
        """Hand the collected messages to their streams; the outcomes go to `sink`."""
        collected = self.collected
        self.collected = {}
        for stream, (msgs, replies) in collected.items():
            ingest(stream, msgs, replies, sink, has_odd_headers=self.has_odd_headers)
            if not stream.is_local:
                self._is_forwarded = True

    def take_forwarded(self) -> bool:
        """Return True if publishes went to a stream that another node leads, since last asked."""
        is_forwarded, self._is_forwarded = self._is_forwarded, False
        return is_forwarded


def ingest(
    stream: CapturingStream,
    msgs: list[Msg],
    replies: list[bytes],
    sink: PublishSink,
    *,
    has_odd_headers: bool,
) -> None:
    """Publish messages to a stream; with `has_odd_headers` some of them may have headers that are
    not stored as they were sent. A member of a fast batch, which its reply subject makes it, is
    refused unless the stream allows them."""
    if has_odd_headers:
        msgs = [
            (subject, message_headers.as_stored(block) if block else block, payload)
            for subject, block, payload in msgs
        ]
    is_fast = _FAST_BATCH in b"".join(replies)
    if is_fast and not stream.config.get("allow_batched"):
        is_fast = False
        msgs, replies = _without_fast(stream, msgs, replies, sink)
        if not msgs:
            return
    if stream.config.get("no_ack"):
        # What the reply of a member says must not be lost; its batch has an ack at the end.
        replies = [reply if is_fast and reply.endswith(_FAST_BATCH) else b"" for reply in replies]
    stream.publish(msgs, replies, sink)


def is_ingested_as_sent(reply: bytes, headers: bytes) -> bool:
    """Return True if `ingest` would pass on such a publish as it is; False: perhaps not."""
    if reply[-4:] == _FAST_BATCH:
        return False
    return not headers or message_headers.are_stored_as_sent(headers)


def refuse_fast(stream: CapturingStream, msg: Msg, reply: bytes, sink: PublishSink) -> bool:
    """Answer a message that is a member of a fast batch where there are none; False: it is no
    member, or they are allowed."""
    if not reply.endswith(_FAST_BATCH) or stream.config.get("allow_batched"):
        return False
    if not stream.config.get("no_ack"):
        sink.publish_acks(stream.name_bytes, [reply], [_refusal(stream, msg)])
    return True


def _without_fast(
    stream: CapturingStream, msgs: list[Msg], replies: list[bytes], sink: PublishSink
) -> tuple[list[Msg], list[bytes]]:
    kept: list[Msg] = []
    answers: list[bytes] = []
    for msg, reply in zip(msgs, replies, strict=True):
        if not refuse_fast(stream, msg, reply, sink):
            kept.append(msg)
            answers.append(reply)
    return kept, answers


def _refusal(stream: CapturingStream, msg: Msg) -> JsError:
    config = stream.config
    if config.get("sealed"):
        return errors.STREAM_SEALED()
    if 0 <= config.get("max_msg_size", -1) < len(msg[1]) + len(msg[2]):
        return errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
    return errors.BATCH_PUBLISH_DISABLED()
