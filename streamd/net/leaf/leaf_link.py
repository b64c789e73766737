"""A leaf link: its socket, timers, and the parts that serve it, at either end.

The parser turns chunks into events, the session turns events into actions, the space of the account
carries messages and interest, and the output sends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from streamd.config.cluster_options import join_address
from streamd.limits import (
    CLIENT_SHARE_S,
    CONGESTED_BYTES,
    LEAF_FIRST_PING_S,
    LEAF_LINE_BYTES_MAX,
    LEAF_LOGIN_BLOCK_BYTES,
    LEAF_PAYLOAD_BYTES_MAX,
    WEBSOCKET_FRAME_BYTES_MAX,
)
from streamd.net.client.auth import Identity
from streamd.net.client.login_expiry import LoginExpiry
from streamd.net.leaf import leaf_session as actions
from streamd.net.leaf.compression import AUTO, UNCOMPRESSED, mode_by_rtt
from streamd.net.leaf.leaf_output import LeafFacts, LeafOutput
from streamd.net.leaf.leaf_session import Action, LeafSession
from streamd.net.leaf.leaf_space import LeafSpace
from streamd.net.sockets import peer_address
from streamd.protocol.leaf_protocol import LeafMsg, LeafParser, error_line
from streamd.protocol.s2_stream import BLOCK_BYTES_MAX, S2Error, S2Reader, S2Writer

_LOOP: Final = 'Loop detected for leafnode account="{}". Delaying attempt to reconnect for 30s'
_NO_ANSWER: Final = "Authentication Timeout"


class LeafOwner(Protocol):
    """Owner of all links: knows accounts, logins and TLS, and which links may be."""

    def admit(self, link: LeafLink) -> bool:
        """Take in a new connection; False: there are too many, or the server stops."""

    def judge(self, link: LeafLink, connect: dict[str, Any]) -> None:
        """Check a login, now or later, and call `accept` or `close` of `link`."""

    def opened(self, link: LeafLink) -> LeafSpace | None:
        """Return the space of a link that is up; None: it was refused, and closed."""

    def secure(self, link: LeafLink, transport: asyncio.Transport) -> None:
        """Shake hands for TLS, then call `secured` or `close` of `link`."""

    def learn(self, link: LeafLink, addresses: list[str]) -> None:
        """Take in addresses of the hub's other servers."""

    def closed(self, link: LeafLink) -> None:
        """Drop a link that has ended."""

    def report(self, link: LeafLink, level: str, text: str) -> None:
        """Log something about a link."""


class LeafTimes(Protocol):
    """Settings of time and size of a link."""

    @property
    def login_s(self) -> float: ...
    @property
    def ping_s(self) -> float: ...
    @property
    def ping_max(self) -> int: ...
    @property
    def pending_bytes_max(self) -> int: ...
    @property
    def payload_bytes_max(self) -> int: ...
    @property
    def write_s(self) -> float: ...
    @property
    def rtts_ns(self) -> tuple[int, ...]:
        """Round trips at which `s2_auto` goes on to the next mode."""


class LeafLink(asyncio.Protocol):
    """Connection of a leaf link, at either end. `over` is set when its socket is closed."""

    def __init__(
        self,
        session: LeafSession,
        owner: LeafOwner,
        times: LeafTimes,
        loop: asyncio.AbstractEventLoop,
        account: str = "",
    ) -> None:
        """`account`: of a link that this server dials; else the login says it."""
        self.session = session
        self.account = account
        self._owner = owner
        self._times = times
        self._loop = loop
        self._parser = LeafParser(line_bytes_max=LEAF_LINE_BYTES_MAX, payload_bytes_max=0)
        self.facts = LeafFacts(session.lid)
        self.output = LeafOutput(session, self.facts, stall=self._stall)
        self.space: LeafSpace | None = None
        self.identity: Identity | None = None  # of the leaf node that logged in here
        self._expiry: LoginExpiry | None = None  # None: the login does not end
        self.reason = ""
        self.retry_s = 0.0  # not before that is it dialed again
        self.over = asyncio.Event()
        self.in_msgs = self.in_bytes = 0
        self._timers = _Timers(loop)
        self._held: list[bytes] | None = None  # chunks that wait: for a login, or their turn
        self._reader: S2Reader | None = None  # None: the link is not compressed
        self._writer: S2Writer | None = None
        self._rest: list[LeafMsg] = []  # messages that wait for their turn
        self._transport: asyncio.Transport

    # --- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the link; the end that listens says INFO."""
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=CONGESTED_BYTES, low=CONGESTED_BYTES // 4)
        self._transport = transport
        self.facts.ip, self.facts.port = peer_address(transport)
        self.facts.start_ns = time.time_ns()
        self.output.open(self._write)
        if not self._owner.admit(self):
            self.close("Maximum Connections Exceeded")
            return
        self._timers.start("login", self._times.login_s, self._on_no_login)
        if not self.account:
            self.output.send_line(self.session.greeting())
            self._owner.secure(self, transport)

    def data_received(self, data: bytes) -> None:
        """Parse a chunk and handle its events, or hold it."""
        if self.output.is_closed:
            return
        self._timers.unanswered = 0
        if self._held is not None:
            self._held.append(data)
            self._transport.pause_reading()
        else:
            self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything: the socket is closed."""
        if not self.output.is_closed:
            self._end("Client Closed" if exc is None else "Read Error")
        self._timers.close()
        self.over.set()

    def pause_writing(self) -> None:
        """Note that the other end is behind (called by the transport)."""
        self.output.is_congested = True
        if self._times.write_s > 0:
            self._timers.start("write", self._times.write_s, self._on_slow)

    def resume_writing(self) -> None:
        """Note that the other end has caught up (called by the transport)."""
        self.output.is_congested = False
        self._timers.stop("write")
        if self.space is not None:
            self.space.router.on_drained()

    def _write(self, data: bytes) -> None:
        if self._writer is not None:
            data = self._writer.encode(data)
        self._transport.write(data)
        if self.output.is_congested:
            if self._transport.get_write_buffer_size() > self._times.pending_bytes_max:
                self._end("Slow Consumer (Pending Bytes)")
                self._transport.abort()

    def _on_slow(self) -> None:
        self._end("Slow Consumer (Write Deadline)")
        self._transport.abort()

    @property
    def pending_bytes(self) -> int:
        return 0 if self.output.is_closed else self._transport.get_write_buffer_size()

    @property
    def is_closed(self) -> bool:
        return self.output.is_closed

    @property
    def frame_bytes_max(self) -> int:
        """Bytes that one WebSocket frame may hold: few, as long as nobody knows who sends it."""
        return WEBSOCKET_FRAME_BYTES_MAX if self.session.is_open else LEAF_LINE_BYTES_MAX

    @property
    def address(self) -> str:
        """Address of the other end."""
        return join_address(self.facts.ip, self.facts.port)

    # --- the end ----------------------------------------------------------------------------------

    def close(self, reason: str, text: str = "", retry_s: float = 0.0) -> None:
        """End the link for `reason`; collected output still goes out, with `text` as its error."""
        if self.output.is_closed:
            return
        self.retry_s = retry_s
        if text:
            self._owner.report(self, "error", text)
            self.output.out.append(error_line(text))
        self.output.flush()
        self._end(reason)
        self._transport.close()
        self._timers.start("linger", 1.0, self._transport.abort)

    def _end(self, reason: str) -> None:
        if self.output.is_closed:
            return
        self.reason = reason
        self.session.state = actions.State.CLOSED
        self.output.close()
        if self._expiry is not None:
            self._expiry.close()
        for name in ("login", "ping", "write", "stall"):
            self._timers.stop(name)
        self._owner.closed(self)
        if self.space is not None:
            self.space.close(self.output)

    def _on_expired(self) -> None:
        self.close("Authentication Expired", "User Authentication Expired")

    def await_others(self) -> None:
        """Await a login that others decide upon, in a time of their own."""
        self._timers.stop("login")

    def _on_no_login(self) -> None:
        if not self.session.is_open:
            self.close(_NO_ANSWER, "" if self.account else _NO_ANSWER)

    # --- events and actions -----------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Handle bytes as they came: the blocks of an S2 stream one by one, or as they are."""
        reader = self._reader
        if reader is None:
            self._handle(data)
            return
        self._handle(b"")  # what was parsed before
        if self.output.is_closed or self._held is not None:
            if self._held is not None:
                self._held.insert(0, data)
            return
        try:
            until = time.perf_counter() + CLIENT_SHARE_S
            for piece in reader.feed(data):
                self._handle(piece)
                if self.output.is_closed or self._held is not None:
                    return
                if time.perf_counter() >= until:
                    self._hold()
                    return
        except S2Error as err:
            self._owner.report(self, "error", f"S2 stream: {err}")
            self.close("Read Error")

    def _compress(self, mode: str) -> None:
        """Speak S2 from here on, in both directions."""
        self.output.flush()
        is_stranger = self.session.remote is None and not self.session.is_open
        self._reader = S2Reader(LEAF_LOGIN_BLOCK_BYTES if is_stranger else BLOCK_BYTES_MAX)
        self._writer = S2Writer(is_compressing=mode != UNCOMPRESSED)
        if mode == AUTO:
            self._adapt(time.time_ns() - self.facts.start_ns)
        else:
            self.facts.compression = mode

    def _adapt(self, rtt_ns: int) -> None:
        """Compress as much as the way to the other end is long, if that is to decide."""
        writer = self._writer
        if writer is not None and self.session.compression == AUTO:
            mode = mode_by_rtt(rtt_ns, self._times.rtts_ns)
            writer.is_compressing = mode != UNCOMPRESSED
            self.facts.compression = mode

    def _handle(self, data: bytes) -> None:
        """Handle the events of a chunk, within a chunk of the router once the link is up."""
        while True:
            events = self._parser.feed(data)
            data = b""
            if not events:
                return
            space = self.space
            if space is None:
                self._handle_events(events)
            else:
                space.router.begin_chunk()
                try:
                    self._handle_events(events)
                finally:
                    space.router.end_chunk(self.output)
            if self.output.is_closed or self._held is not None:
                return

    def _handle_events(self, events: Iterable[tuple[Any, ...]]) -> None:
        for event in events:
            self._carry_out(self.session.receive(event))
            if self.output.is_closed:
                return

    def _carry_out(self, todo: Iterable[Action]) -> None:
        for action in todo:
            kind = action[0]
            if kind == actions.MSGS:
                self._publish(action[1])
            elif kind == actions.INTEREST:
                self._take_interest(action[1], action[2], action[3])
            elif kind == actions.SEND:
                self.output.send_line(action[1])
            elif kind == actions.NOTE_PONG:
                self._note_pong()
            elif kind == actions.OPENED:
                self._open()
            elif kind == actions.JUDGE:
                self._held = []
                self._owner.judge(self, action[1])
            elif kind == actions.COMPRESS:
                self._compress(action[1])
            elif kind == actions.SECURE:
                self._held = []
                self._owner.secure(self, self._transport)
            elif kind == actions.LEARN:
                self._owner.learn(self, action[1])
            elif kind == actions.RERIGHT:
                if self.space is not None:
                    self.space.reopen(self.output)
            elif kind == actions.FAULT:
                self._owner.report(self, "error", action[1])
            elif kind == actions.REFUSED:
                self._owner.report(self, "error", f"Leafnode Error '{action[1]}'")
            else:
                assert kind == actions.FAIL, kind
                self.close(*action[1:])
            if self.output.is_closed:
                return

    def _publish(self, msgs: list[LeafMsg]) -> None:
        space, bytes_max = self.space, self._times.payload_bytes_max
        assert space is not None
        fitting = [msg for msg in msgs if len(msg[3]) + len(msg[4]) <= bytes_max]
        if len(fitting) < len(msgs):
            self._owner.report(
                self, "warning", f"messages larger than max_payload ({bytes_max}) were dropped"
            )
        self.in_msgs += len(msgs)
        self.in_bytes += sum(len(msg[3]) + len(msg[4]) for msg in msgs)
        if self._rest:
            self._rest += fitting
            return
        if fitting:
            done = space.router.publish_from_leaf(self.output, fitting)
            if done < len(fitting):
                self._rest = fitting[done:]
                self._hold()

    def _hold(self) -> None:
        """Read no more until others had their turn of the loop."""
        self._held = self._held or []
        self._transport.pause_reading()
        self._loop.call_later(0, self.go_on)

    def _stall(self, rest_s: float) -> None:
        if not self.output.is_closed and self._held is None:
            self._held = []
            self._transport.pause_reading()
            self._timers.start("stall", rest_s, self.go_on)

    def go_on(self) -> None:
        """Handle what was held, and read again."""
        if self.output.is_closed or self._held is None:
            return
        held, self._held = self._held, None
        rest, self._rest = self._rest, []
        space = self.space
        if rest and space is not None:
            space.router.begin_chunk()
            try:
                done = space.router.publish_from_leaf(self.output, rest)
            finally:
                space.router.end_chunk(self.output)
            if done < len(rest):
                self._rest = rest[done:]
                self._held = held
                self._hold()
                return
        self._transport.resume_reading()
        self._take(b"".join(held))

    # --- up ---------------------------------------------------------------------------------------

    def accept(self, account: str, identity: Identity) -> None:
        """Go on: the login of CONNECT is good."""
        self.account = account
        self.identity = identity
        self._carry_out(self.session.accept(account, identity.user, identity.permissions))
        token = identity.token
        if token is not None and token.expires_ns and not self.is_closed:
            self._expiry = LoginExpiry(self._loop.call_later, self._on_expired)
            self._expiry.start(token.expires_ns)
        self.go_on()

    def secured(self, transport: asyncio.Transport) -> None:
        """Go on behind the TLS handshake, by `transport`."""
        self._transport = transport
        self._carry_out(self.session.secured())
        self.go_on()

    def _open(self) -> None:
        self._timers.stop("login")
        space = self._owner.opened(self)
        if space is None:
            return
        self.space = space
        self._parser.allow_payloads(LEAF_PAYLOAD_BYTES_MAX)
        if self._reader is not None:
            self._reader.block_bytes_max = BLOCK_BYTES_MAX
        space.open(self.output)
        self._timers.start("ping", min(LEAF_FIRST_PING_S, self._times.ping_s), self._ping)

    def _take_interest(self, subject: bytes, queue: bytes, weight: int) -> None:
        space = self.space
        assert space is not None
        if subject == space.loop_subject and weight:
            retry_s = 30.0
            self.close("Protocol Violation", _LOOP.format(space.name), retry_s)
            return
        space.take_interest(self.output, subject, queue, weight)

    def _ping(self) -> None:
        if self._timers.unanswered >= self._times.ping_max:
            self.close("Stale Connection", "Stale Connection")
            return
        self._timers.unanswered += 1
        self._timers.pinged_ns = time.monotonic_ns()
        self.output.send_line(b"PING")
        self.output.flush()
        self._timers.start("ping", self._times.ping_s, self._ping)

    def _note_pong(self) -> None:
        if self._timers.pinged_ns:
            self.facts.rtt_ns = time.monotonic_ns() - self._timers.pinged_ns
            self._adapt(self.facts.rtt_ns)
            self._timers.pinged_ns = 0


class _Timers:
    """Timers of a link by name, and the state of its keep-alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handles: dict[str, asyncio.TimerHandle] = {}
        self.unanswered = 0  # PINGs since anything came
        self.pinged_ns = 0

    def start(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        self.stop(name)
        self._handles[name] = self._loop.call_later(delay_s, action)

    def stop(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        for name in list(self._handles):
            self.stop(name)
