"""Acks of deliveries and flow-control replies of clients, on their way to consumers.

Both are messages on subjects that name a stream and a consumer. They go to the stream's group and
are not routed, unless a subscription could see them (`Subscriptions.ack_watcher_count`).
"""

from __future__ import annotations

from typing import Final, Protocol

from streamd.net.pubsub.fanout import Publisher
from streamd.net.pubsub.ingest import Ingest
from streamd.net.pubsub.subscriptions import Subscriptions
from streamd.protocol import acks

ACK_PREFIX: Final = acks.PREFIX
FLOW_PREFIX: Final = acks.FLOW_PREFIX


class AckedStream(Protocol):
    """A stream, as acks reach it; see ports.StreamHandle."""

    def takes_acks(self, name: str) -> bool:
        """False if acks of that consumer have no receiver for sure."""

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        """Take messages on `$JS.ACK.<stream>.<consumer>....`, all for one consumer."""

    def flow_reply(self, consumer: str, subject: bytes, headers: bytes = b"") -> None:
        """Take a client's answer to a flow-control request."""


class NamedStreams(Protocol):
    """The streams of a node, by name."""

    def stream(self, name: str) -> AckedStream | None: ...


class DeliveryAcks:
    """Hands acks of deliveries to their streams; remembers where the last one of a chunk went."""

    def __init__(self, subscriptions: Subscriptions, ingest: Ingest) -> None:
        """`ingest` is posted before a batch of acks, so that publishes before them come first."""
        self.streams: NamedStreams | None = None  # None: this server has no streams
        self._subscriptions = subscriptions
        self._ingest = ingest
        self._key = b""  # up to the consumer's name and its dot; empty: nothing is remembered
        self._consumer = ""
        self._stream: AckedStream | None = None

    def forget(self) -> None:
        """Look the next stream up anew: streams may come and go between chunks."""
        self._key = b""
        self._stream = None

    def take_batch(
        self,
        conn: Publisher,
        subjects: list[bytes],
        replies: list[bytes] | None,
        payloads: list[bytes],
    ) -> bool:
        """Hand over a batch that is all acks for one consumer; False: it is not, nothing was done.

        Only while no subscription could see acks.
        """
        assert not self._subscriptions.ack_watcher_count
        subject = subjects[0]
        tokens = subject.split(b".")
        if self.streams is None or len(tokens) != 9:
            return False
        key = b".".join(tokens[:4]) + b"."
        # All lie between the least and the greatest, so if both begin with the key all do.
        if not (min(subjects).startswith(key) and max(subjects).startswith(key)):
            return False
        stream = self._stream_named(tokens[2])
        if stream is None or not stream.takes_acks(tokens[3].decode(errors="replace")):
            return False  # no receiver: a client that wants an answer hears "no responders"
        if self._ingest.collected:
            self._ingest.post(conn)
        stream.acks(subjects, replies, payloads)
        return True

    def take(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Hand over an ack or flow-control reply; False: it is neither, or has to be routed too."""
        if not subject.startswith(ACK_PREFIX):
            if not subject.startswith(FLOW_PREFIX) or self.streams is None:
                return False
            tokens = subject.split(b".", 4)
            stream = self._stream_named(tokens[2]) if len(tokens) == 5 else None
            if stream is None:
                return False
            stream.flow_reply(tokens[3].decode(errors="replace"), subject, header)
            return self._subscriptions.ack_watcher_count == 0
        key = self._key
        if not key or not subject.startswith(key):
            if self.streams is None:
                return False
            tokens = subject.split(b".")
            at = 2 if len(tokens) == 9 else 4
            if len(tokens) != 9 and len(tokens) < 11:
                return False
            self._stream = self._stream_named(tokens[at])
            self._key = b".".join(tokens[: at + 2]) + b"."
            self._consumer = tokens[at + 1].decode(errors="replace")
        if self._stream is None or not self._stream.takes_acks(self._consumer):
            self._key = b""
            return False
        self._stream.acks([subject], [reply] if reply else None, [payload])
        return self._subscriptions.ack_watcher_count == 0

    def _stream_named(self, name: bytes) -> AckedStream | None:
        assert self.streams is not None
        return self.streams.stream(name.decode(errors="replace"))
