"""Output of one leaf link: lines that wait to be written, and the link as routing knows it.

It is the receiver of messages that leave by the link (`pubsub.leaf_routes.LeafPeer`), the publisher
of those that come (`pubsub.fanout.LeafPublisher`), and what is told of interest
(`told_interest.ToldLink`). Streams send the acks of publishes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from streamd.machine.commands import PublishOutcome
from streamd.net.leaf.leaf_session import TRACING_LEVEL, LeafSession
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.pubacks import ack_body
from streamd.net.pubsub.sublist import Subscription
from streamd.protocol.leaf_protocol import msg_line


@dataclass(slots=True)
class LeafFacts:
    """Facts about a link, for requests, advisories and monitoring."""

    cid: int
    ip: str = ""
    port: int = 0
    start_ns: int = 0
    rtt_ns: int = 0
    is_websocket: bool = False
    compression: str = "off"
    may_administer: Callable[[bytes], bool] = lambda subject: False


class LeafOutput:
    """Lines on their way to the other end of a link. Nothing is sent before `open` or after
    `close`."""

    lang = ""
    has_headers = True
    has_echo = False
    is_granting_replies = False
    is_told_no_responders = False
    rights = None

    def __init__(
        self, session: LeafSession, facts: LeafFacts, *, stall: Callable[[float], None]
    ) -> None:
        """`stall` has the link read no more for some seconds, since a receiver is far behind."""
        self._session = session
        self.facts = facts
        self.stall = stall
        self._router: MessageRouter | None = None
        self._write: Callable[[bytes], None] | None = None
        self.out: list[bytes] = []
        self.out_msgs = self.out_bytes = 0
        self.is_dirty = False
        self.is_congested = False
        self.is_closed = False

    @property
    def peer(self) -> LeafOutput:
        return self

    @property
    def is_spoke(self) -> bool:
        return self._session.is_spoke

    @property
    def is_isolated(self) -> bool:
        return self._session.end.is_isolated

    @property
    def remote_cluster(self) -> str:
        return self._session.end.cluster

    def open(self, write: Callable[[bytes], None]) -> None:
        """Write by `write` from here on."""
        self._write = write

    def join(self, router: MessageRouter) -> None:
        """Take part in a subject space from here on."""
        self._router = router

    def close(self) -> None:
        """Take no more lines."""
        self.is_closed = True
        self.out.clear()
        self._write = None

    # --- lines ------------------------------------------------------------------------------------

    def send_line(self, line: bytes) -> None:
        """Send a line behind those that wait, at the end of the chunk."""
        if self.is_closed:
            return
        self.out.append(line)
        self._touch()

    def tell(self, lines: Iterable[bytes]) -> None:
        """See `told_interest.ToldLink`."""
        if not self.is_closed:
            self.out += lines
            self._touch()

    def send(
        self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        """See `leaf_routes.LeafPeer`."""
        if self.is_closed:
            return
        size = len(headers) + len(payload)
        line = msg_line(subject, reply, queues, header_size=len(headers), size=size)
        self.out += (line, headers + payload if headers else payload)
        self.out_msgs += 1
        self.out_bytes += size
        self._touch(is_message=True)

    def _touch(self, *, is_message: bool = False) -> None:
        """Schedule the lines for the end of the chunk; if there is none, write interest at once,
        and leave messages to whoever sends them."""
        router = self._router
        if router is None:
            self.flush()
            return
        queue = router.output_queue
        if not self.is_dirty and (is_message or queue.is_in_chunk):
            self.is_dirty = True
            queue.dirty.append(self)
        elif not is_message and not queue.is_in_chunk:
            self.flush()

    def flush(self) -> bool:
        """Write the collected lines; True if so much waits that their source should rest."""
        if self.out and self._write is not None:
            self.out.append(b"")
            data = b"\r\n".join(self.out)
            self.out.clear()
            self._write(data)
        return self.is_congested

    def send_blob(self, blob: bytes) -> None:
        """Send whole lines behind those that were collected before."""
        self.send_line(blob[:-2])

    # --- rights -----------------------------------------------------------------------------------

    def may_send(self, subject: bytes) -> bool:
        """See `leaf_routes.LeafPeer`."""
        return self._session.rights.send.permits(subject)

    def may_tell(self, pattern: bytes) -> bool:
        """See `told_interest.ToldLink`."""
        return self._session.rights.may_tell(pattern)

    def forbid_publish(self, subject: bytes) -> None:
        """Drop a message that nobody may publish: no client is there to be told."""

    def drop_subscription(self, sub: Subscription) -> None:
        """See `sublist.Receiver`; a link has no subscriptions that end by themselves."""

    # --- the link, as requests and advisories name it ---------------------------------------------

    @property
    def cid(self) -> int:
        return self.facts.cid

    @property
    def account(self) -> str:
        return self._router.account if self._router is not None else ""

    @property
    def ip(self) -> str:
        return self.facts.ip

    @property
    def start_ns(self) -> int:
        return self.facts.start_ns or time.time_ns()

    @property
    def rtt_ns(self) -> int:
        return self.facts.rtt_ns

    @property
    def user(self) -> str:
        return self._session.end.user

    @property
    def is_tracing(self) -> bool:
        return self._session.end.level >= TRACING_LEVEL

    @property
    def name(self) -> str:
        return self._session.end.name

    @property
    def version(self) -> str:
        return self._session.end.version

    def may_administer(self, subject: bytes) -> bool:
        """Return True if requests that concern the whole cluster may come by this link."""
        return self.facts.may_administer(subject)

    # --- acks of publishes ------------------------------------------------------------------------

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        """Answer publishes: each ack is a message to its reply subject, wherever that leads."""
        router = self._router
        assert router is not None
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply:
                router.publish(reply, b"", b"", ack_body(stream, outcome, router.domain_field))
