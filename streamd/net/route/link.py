"""Link to another server: its socket, the handshake, the beats, and its end.

The dialer says HELLO first; the other side answers with its own HELLO and proves that it knows the
cluster's password (route_proof). Only then does the dialer prove the same, and both say WELCOME.
Two servers may dial each other at the same moment, so one of them must choose: the one with the
smaller name is the *arbiter*. It says WELCOME on one link only, and the other takes whatever link
the arbiter welcomes it on. So both always keep the same link, and none comes up to be closed again.

    dialer   HELLO ->                   AUTH ->            WELCOME -> (up)
    acceptor          <- HELLO AUTH             <- WELCOME                 (up)
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol, cast

from streamd.limits import (
    PEER_FRAME_BYTES_MAX,
    PEER_HANDSHAKE_BYTES_MAX,
    PEER_SILENT_BEATS_MAX,
    REMOTE_CONGESTED_BYTES,
)
from streamd.net.monitoring.stats import RouteStats
from streamd.net.route.dial_target import DialTarget
from streamd.net.route.frame_writer import FrameWriter
from streamd.net.route.handshake import Handshake
from streamd.net.route.link_exchange import Inbound, LinkExchange
from streamd.net.route.local_server import LocalServer
from streamd.net.sockets import peer_address
from streamd.protocol import peer_frames
from streamd.protocol.peer_frames import Frame, ProtocolError
from streamd.types import NodeId

DUPLICATE: Final = "Duplicate Route"  # the two servers have a link already: no fault of anybody's
SELF: Final = "Loop Detected"  # a route that leads back to this server
DUPLICATE_NAME: Final = "Duplicate Server Name"
SHUTDOWN: Final = "Server Shutdown"
_QUIET: Final = (DUPLICATE, SELF, SHUTDOWN)


class LinkRegistry(Protocol):
    """Registry of all links: hears of each step of a link, and decides which links are kept."""

    def register(self, link: PeerLink) -> bool:
        """Take in a new connection; False: the server stops."""

    def why_not(self, link: PeerLink, facts: dict[str, object]) -> str:
        """Judge a HELLO: return why there can be no link, or ""."""

    def choose(self, link: PeerLink) -> str:
        """Keep `link`, as the arbiter; return why another one is kept, or ""."""

    def replaced_by(self, link: PeerLink) -> None:
        """Keep `link`, which the arbiter on the other side chose, instead of any other."""

    def welcome(self) -> dict[str, object]:
        """Return the content of WELCOME."""

    def came_up(self, link: PeerLink) -> None:
        """Take in a link whose handshake is done."""

    def drained(self, link: PeerLink) -> None:
        """Note that `link` was behind and has nearly caught up."""

    def refused(self, link: PeerLink, reason: str) -> None:
        """Log that a handshake or link failed by somebody's fault."""

    def lost(self, link: PeerLink) -> None:
        """Drop a link: nothing comes from it any more. May be called again."""

    def gone(self, link: PeerLink) -> None:
        """Drop a connection: its socket is closed."""

    def is_configured(self, link: PeerLink) -> bool:
        """True if a configured route leads to where `link` does."""


class PeerLink(asyncio.Protocol):
    """A connection to another server, from either side. `closed` is set when it is over."""

    def __init__(
        self,
        target: DialTarget | None,
        local: LocalServer,
        registry: LinkRegistry,
        inbound: Inbound,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`target` is the address that was dialed; None: the other side dialed."""
        self.target = target
        self._local = local
        self._registry = registry
        self._loop = loop
        self._reader = peer_frames.FrameReader(PEER_HANDSHAKE_BYTES_MAX)
        self.writer = FrameWriter(loop)
        self.handshake = Handshake(local.key_for(target), is_dialer=target is not None)
        self.exchange = LinkExchange(self.writer, inbound, loop, self.cut, self._closed_by_peer)
        self._deadline: asyncio.TimerHandle | None = None  # of the handshake
        self.closed = asyncio.Event()
        self.reason = ""  # of its end

        self.is_chosen = False  # the arbiter (who may be us) welcomed this link
        self.was_up = False
        self.hello: dict[str, object] = {}  # what the node behind the link says of itself
        self.ip, self.port = "", 0
        self.rid = 0

        self._silent_beats = 0
        self.start_ns = 0
        self.last_activity_ns = 0
        self.rtt_ns = 0
        self.in_bytes = 0

    @property
    def name(self) -> NodeId:
        """Name of the server behind the link; empty before its HELLO."""
        return self.handshake.name

    @property
    def is_up(self) -> bool:
        """True while messages are exchanged."""
        return self.exchange.is_up

    @property
    def source(self) -> str:
        """Address that the link leads to, as far as it cannot be made up by the other side."""
        return self.target.address if self.target is not None else self.ip

    @property
    def is_doubtful(self) -> bool:
        """True if the other side missed a beat: it may be gone."""
        return self._silent_beats > 1

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does what asyncio's does, but is no subclass of it.
        transport = cast(asyncio.Transport, transport)
        self.ip, self.port = peer_address(transport)
        transport.set_write_buffer_limits(
            high=REMOTE_CONGESTED_BYTES, low=REMOTE_CONGESTED_BYTES // 4
        )
        self.writer.open(transport)
        self.start_ns = self.last_activity_ns = self._local.clock.now_ns()
        self._deadline = self._loop.call_later(
            self._local.auth_timeout_s, self.refuse, "Authentication Timeout"
        )
        if not self._registry.register(self):
            self.abort()
        elif self.target is not None:
            self.writer.write(self.handshake.hello(self._local.hello()))

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        self.in_bytes += len(data)
        try:
            is_handshake = not self.is_up
            frames = self._reader.feed(data)
            while frames:
                for frame in frames:
                    if self.closed.is_set() or self.reason:
                        return
                    if self.is_up:
                        self._receive(frame)
                    else:
                        self._shake_hands(frame)
                # Frames behind a proof, in the same chunk, may be longer than those before it.
                frames = self._reader.feed(b"") if is_handshake else []
        except ProtocolError as err:
            self.refuse(f"Protocol Violation: {err}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.reason:
            self.reason = "Connection Closed" if exc is None else f"Connection Lost: {exc!r}"
            self.writer.discard()
            if self.target is not None and not self.is_up:
                self._registry.refused(self, f"{self.reason} during the handshake")
        try:
            self._down()
        finally:  # whatever a handler does: the dialer must go on
            self.closed.set()
            self._registry.gone(self)

    def resume_writing(self) -> None:
        """Tell that the socket has taken nearly all there was."""
        if self.is_up:
            self._registry.drained(self)

    # --- handshake ------------------------------------------------------------------------------

    def _shake_hands(self, frame: Frame) -> None:
        kind = frame[0]
        handshake = self.handshake
        if kind == peer_frames.CLOSE:
            self._closed_by_peer(frame[1])
        elif not handshake.name:
            self._on_hello(frame)
        elif kind == peer_frames.AUTH and handshake.is_proof_due:
            self._on_auth(frame[1])
        elif kind == peer_frames.WELCOME and handshake.is_proven:
            self._on_welcome(frame[1])
        else:
            raise ProtocolError(f"frame of kind {kind} during the handshake")

    def _on_hello(self, frame: Frame) -> None:
        handshake = self.handshake
        facts = handshake.on_hello(frame, self.ip)
        if not handshake.is_dialer:
            # Even before a refusal: the dialer sees for itself what is wrong.
            self.writer.write(handshake.hello(self._local.hello()))
        reason = self._registry.why_not(self, facts)
        if reason:
            self.refuse(reason)
            return
        handshake.begin_proofs()
        if not handshake.is_dialer:  # the dialer waits for this, and proves nothing before
            self.writer.write(handshake.proof())

    def _on_auth(self, given: bytes) -> None:
        handshake = self.handshake
        if not handshake.on_proof(given):
            self.refuse("Authorization Violation")
            return
        self._reader.frame_bytes_max = PEER_FRAME_BYTES_MAX
        if handshake.is_dialer:
            self.writer.write(handshake.proof())
        elif not self._local.is_arbiter(handshake.name) or self._choose():
            self._send_welcome()

    def _send_welcome(self) -> None:
        self.writer.write(peer_frames.frame(peer_frames.WELCOME, self._registry.welcome()))

    def _on_welcome(self, hello: dict[str, object]) -> None:
        self.hello = hello
        if self._local.is_arbiter(self.name):
            if not self.is_chosen and not self._choose():
                return
        else:
            self._registry.replaced_by(self)
        if self.target is not None:
            self._send_welcome()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.exchange.open(self.name)
        self._registry.came_up(self)

    def _choose(self) -> bool:
        reason = self._registry.choose(self)
        if reason:
            self.refuse(reason)
        return not reason

    # --- a link that is up ----------------------------------------------------------------------

    def _receive(self, frame: Frame) -> None:
        kind = frame[0]
        if kind == peer_frames.BEAT:
            self._on_beat(frame[1], frame[2])
        else:
            self.exchange.receive(frame)

    def beat(self) -> None:
        """Show a sign of life, and miss the other side's; called at an even pace."""
        self._silent_beats += 1
        if self._silent_beats > PEER_SILENT_BEATS_MAX:
            self.cut("Stale Connection")
        else:
            # The loop's own time may be as coarse as a millisecond.
            stamp = time.monotonic_ns()
            self.writer.write(peer_frames.frame(peer_frames.BEAT, stamp, False))

    def _on_beat(self, stamp: int, is_answer: bool) -> None:
        if is_answer:
            self.rtt_ns = max(0, time.monotonic_ns() - stamp)
        else:
            self.last_activity_ns = self._local.clock.now_ns()
            self.writer.write(peer_frames.frame(peer_frames.BEAT, stamp, True))

    # --- the end --------------------------------------------------------------------------------

    def refuse(self, reason: str) -> None:
        """Tell the other side why, and close. Text before a colon is the kind of fault."""
        if not self.reason:
            if reason not in _QUIET:
                self._registry.refused(self, reason)
            self.close(reason)

    def close(self, reason: str) -> None:
        """Tell the other side the reason, then close when all is sent."""
        if not self.reason and self.writer.is_open:
            self.writer.write(peer_frames.frame(peer_frames.CLOSE, reason))
            self.writer.stop()
            self.reason = reason
            self._down()
            self.writer.close()

    def cut(self, reason: str) -> None:
        """Close at once; queued frames are lost."""
        if not self.reason and self.writer.is_open:
            self.reason = reason
            self.writer.abort()
            self._down()

    def abort(self) -> None:
        """Release the socket; queued frames are lost."""
        self.writer.abort()

    def _closed_by_peer(self, reason: str) -> None:
        if self.reason:
            return
        self.reason = reason
        self.writer.close()
        if reason not in _QUIET and not self.is_up:
            self._registry.refused(self, f"the other side says {reason}")
        self._down()

    def _down(self) -> None:
        """End the exchange: nothing arrives from here on, although the socket may live a little
        longer."""
        self._registry.lost(self)
        self.exchange.close()

    def stats(self) -> RouteStats:
        """Return the stats that monitoring shows."""
        return RouteStats(
            rid=self.rid,
            remote_id=self.handshake.server_id,
            remote_name=self.name,
            did_solicit=self.target is not None,
            is_configured=self._registry.is_configured(self),
            ip=self.ip,
            port=self.port,
            start_ns=self.start_ns,
            last_activity_ns=self.last_activity_ns,
            rtt_ns=self.rtt_ns,
            pending_bytes=self.writer.buffered_bytes,
            in_msgs=self.exchange.in_msgs,
            out_msgs=self.exchange.out_msgs,
            in_bytes=self.in_bytes,
            out_bytes=self.writer.out_bytes,
        )
