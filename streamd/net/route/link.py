"""One link to another server: the handshake, the frames, the beats, and the calls under way.

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
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from streamd.errors import BAD_REQUEST, CLUSTER_NOT_AVAIL, JsError, RequestError, StreamdError
from streamd.limits import (
    PEER_APPEND_BUFFER_BYTES_MAX,
    PEER_BUFFER_BYTES_MAX,
    PEER_CALLS_MAX,
    PEER_FAULTS_TOLD_MAX,
    PEER_FLUSH_BYTES,
    PEER_FRAME_BYTES_MAX,
    PEER_HANDSHAKE_BYTES_MAX,
    PEER_SILENT_BEATS_MAX,
    REMOTE_CONGESTED_BYTES,
)
from streamd.net.monitoring.stats import RouteStats
from streamd.net.sockets import peer_address
from streamd.protocol import peer_frames, peer_schemas, route_proof
from streamd.protocol.peer_frames import Frame, ProtocolError, RaftMessage
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.protocol.route_proof import Proofs
from streamd.types import NodeId, Uid

if TYPE_CHECKING:
    from streamd.net.route.dialer import Route
    from streamd.net.route.links import Cluster

Done = Callable[[Any], None]

DUPLICATE: Final = "Duplicate Route"  # the two servers have a link already: no fault of anybody's
SELF: Final = "Loop Detected"  # a route that leads back to this server
DUPLICATE_NAME: Final = "Duplicate Server Name"
SHUTDOWN: Final = "Server Shutdown"
_QUIET = (DUPLICATE, SELF, SHUTDOWN)


class PeerLink(asyncio.Protocol):
    """A connection to another server, from either side. `closed` is set when it is over."""

    def __init__(self, cluster: Cluster, route: Route | None) -> None:
        self._cluster = cluster
        self.route = route  # what was dialed; None: the other side dialed
        self._reader = peer_frames.FrameReader(PEER_HANDSHAKE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()
        self.reason = ""

        self._key = cluster.key_for(route)
        self._hellos = [b"", b""]  # the dialer's and the acceptor's, as sent
        self._proofs: Proofs | None = None  # None: not both HELLOs are here yet
        self.is_proven = False  # the other side has proven itself
        self.is_chosen = False  # the arbiter (who may be us) welcomed this link
        self.is_up = False
        self.was_up = False
        self.hello: dict[str, Any] = {}  # what the node behind the link says of itself

        self.name: NodeId = ""
        self.boot = ""  # drawn at each start of a process
        self.server_id = ""
        self.address = ("", 0)  # where the other side can be dialed
        self.ip, self.port = "", 0
        self.rid = 0

        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_scheduled = False
        self._calls: dict[int, tuple[str, Done, asyncio.TimerHandle]] = {}
        self._failing: set[tuple[str, type]] = set()  # (what, error) that the log was told of
        self._call_no = 0
        self._silent_beats = 0

        self.start_ns = 0
        self.last_activity_ns = 0
        self.rtt_ns = 0
        self.in_msgs = self.out_msgs = self.in_bytes = self.out_bytes = 0

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does what asyncio's does, but is no subclass of it.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self.ip, self.port = peer_address(transport)
        transport.set_write_buffer_limits(
            high=REMOTE_CONGESTED_BYTES, low=REMOTE_CONGESTED_BYTES // 4
        )
        self.start_ns = self.last_activity_ns = self._cluster.clock.now_ns()
        self._deadline = self._cluster.loop.call_later(
            self._cluster.auth_timeout_s, self.refuse, "Authentication Timeout"
        )
        if not self._cluster.register(self):
            transport.abort()
        elif self.route is not None:
            self._send_hello()

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
                # What is behind a proof, in the same chunk, may be longer than what is before it.
                frames = self._reader.feed(b"") if is_handshake else []
        except ProtocolError as err:
            self.refuse(f"Protocol Violation: {err}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.reason:
            self.reason = "Connection Closed" if exc is None else f"Connection Lost: {exc!r}"
            if self.route is not None and not self.is_up:
                self._cluster.refused(self, f"{self.reason} during the handshake")
        try:
            self._down()
        finally:  # whatever a handler does: the dialer must go on
            self.closed.set()
            self._cluster.gone(self)

    def resume_writing(self) -> None:
        """The socket has taken nearly all there was."""
        if self.is_up:
            self._cluster.drained(self)

    # --- sending --------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """What the other side has not been sent yet."""
        if self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    def send_raft(self, uid: Uid, messages: list[RaftMessage]) -> None:
        """Send messages of one group, or lose them: appends first when the link is behind."""
        buffered = self.buffered_bytes
        if buffered > PEER_APPEND_BUFFER_BYTES_MAX:
            if buffered > PEER_BUFFER_BYTES_MAX:
                return
            messages = peer_frames.without_appends(messages)
        if messages:
            self.out_msgs += 1
            self._write(peer_frames.encode_raft(uid, messages))

    def note(self, kind: str, args: list[Any]) -> None:
        """Send a note; a link that can't take it is closed, since a note must not get lost."""
        self.out_msgs += 1
        self._write(peer_frames.frame(peer_frames.NOTE, kind, args))
        self._check_buffer()

    def call(self, method: str, args: list[Any], done: Done, timeout_ms: int) -> None:
        """Ask the other side; `done` gets the outcome once, later."""
        loop = self._cluster.loop
        if len(self._calls) >= PEER_CALLS_MAX:
            loop.call_soon(done, CLUSTER_NOT_AVAIL())
            return
        self._call_no += 1
        timer = loop.call_later(timeout_ms / 1000, self._timed_out, self._call_no)
        self._calls[self._call_no] = (method, done, timer)
        self.out_msgs += 1
        self._write(peer_frames.frame(peer_frames.CALL, self._call_no, method, args))
        self._check_buffer()

    def _answer(self, number: int, outcome: Any) -> None:
        if not self.is_up:
            return  # whoever asked knows that the link is gone
        is_error = isinstance(outcome, StreamdError)
        if isinstance(outcome, JsError):
            outcome = list(outcome.args)
        elif is_error:
            outcome = [0, 0, str(outcome)]
        self.out_msgs += 1
        self._write(peer_frames.frame(peer_frames.ANSWER, number, is_error, outcome))
        self._check_buffer()

    def beat(self) -> None:
        """Show a sign of life, and miss the other side's; called at an even pace."""
        self._silent_beats += 1
        if self._silent_beats > PEER_SILENT_BEATS_MAX:
            self.cut("Stale Connection")
        else:
            self._write(peer_frames.frame(peer_frames.BEAT, self._cluster.monotonic_ns(), False))

    @property
    def source(self) -> str:
        """Where the link leads to, as far as nobody can make it up."""
        return self.route.address if self.route is not None else self.ip

    @property
    def is_doubtful(self) -> bool:
        """True if the other side missed a beat: it may be gone."""
        return self._silent_beats > 1

    def _write(self, data: bytes) -> None:
        """Queue bytes: those of one iteration of the loop leave in one write."""
        if self.reason:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > PEER_FLUSH_BYTES:
            self._flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._cluster.loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._is_flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            if self._transport.is_closing():
                self._out = []  # the connection broke; `connection_lost` is on its way
                self._out_bytes = 0
                return
            self.out_bytes += self._out_bytes
            self._transport.writelines(self._out)
            self._out = []
            self._out_bytes = 0

    def _check_buffer(self) -> None:
        if self.buffered_bytes > PEER_BUFFER_BYTES_MAX:
            self.cut("Slow Consumer (Pending Bytes)")

    # --- handshake ------------------------------------------------------------------------------

    def _send_hello(self) -> None:
        data = peer_frames.hello(self._cluster.facts() | {"nonce": secrets.token_bytes(16)})
        self._hellos[0 if self.route is not None else 1] = data[4:]
        self._write(data)

    def _shake_hands(self, frame: Frame) -> None:
        kind = frame[0]
        if kind == peer_frames.CLOSE:
            self._closed_by_peer(frame[1])
        elif not self.name:
            self._on_hello(frame)
        elif kind == peer_frames.AUTH and not self.is_proven and self._proofs is not None:
            self._on_auth(frame[1])
        elif kind == peer_frames.WELCOME and self.is_proven:
            self._on_welcome(frame[1])
        else:
            raise ProtocolError(f"frame of kind {kind} during the handshake")

    def _on_hello(self, frame: Frame) -> None:
        facts = peer_frames.check_hello(frame)
        name, boot, host = facts.get("name"), facts.get("boot"), facts.get("host")
        port, server_id = facts.get("port"), facts.get("id")
        if (
            not isinstance(name, str) or not 0 < len(name) <= 255 or not isinstance(boot, str)
            or not isinstance(host, str) or not isinstance(port, int)
            or not isinstance(server_id, str)
        ):  # fmt: skip
            raise ProtocolError("HELLO without a name and an address")
        self.name, self.boot, self.server_id = name, boot, server_id
        self.address = (host or self.ip, port)
        # What both sides prove covers the very bytes that were sent: packing is deterministic.
        theirs = peer_frames.hello(facts)[4:]
        self._hellos[1 if self.route is not None else 0] = theirs
        if self.route is None:
            self._send_hello()  # even before a refusal: the dialer sees for itself what is wrong
        reason = self._cluster.why_not(self, facts)
        if reason:
            self.refuse(reason)
            return
        self._proofs = route_proof.proofs(self._key, *self._hellos)
        if self.route is None:  # the dialer waits for this, and proves nothing before
            self._write(peer_frames.frame(peer_frames.AUTH, self._proofs.acceptor))

    def _on_auth(self, given: bytes) -> None:
        assert self._proofs is not None
        is_dialer = self.route is not None
        expected = self._proofs.acceptor if is_dialer else self._proofs.dialer
        if not route_proof.is_proof(given, expected):
            self.refuse("Authorization Violation")
            return
        self.is_proven = True
        self._reader.frame_bytes_max = PEER_FRAME_BYTES_MAX
        if is_dialer:
            self._write(peer_frames.frame(peer_frames.AUTH, self._proofs.dialer))
        elif not self._cluster.is_arbiter(self.name) or self._choose():
            self._write(peer_frames.frame(peer_frames.WELCOME, self._cluster.hello()))

    def _on_welcome(self, hello: dict[str, Any]) -> None:
        self.hello = hello
        if self._cluster.is_arbiter(self.name):
            if not self.is_chosen and not self._choose():
                return
        else:
            self._cluster.replaced_by(self)
        if self.route is not None:
            self._write(peer_frames.frame(peer_frames.WELCOME, self._cluster.hello()))
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.is_up = True
        self._cluster.came_up(self)

    def _choose(self) -> bool:
        reason = self._cluster.choose(self)
        if reason:
            self.refuse(reason)
        return not reason

    # --- receiving ------------------------------------------------------------------------------

    def _receive(self, frame: Frame) -> None:
        kind = frame[0]
        if kind == peer_frames.BEAT:
            self._on_beat(frame[1], frame[2])
            return
        self.in_msgs += 1
        try:
            self._handle(frame)
        except ProtocolError:
            raise
        except Exception as err:  # noqa: BLE001 - whatever it was, it ends this message, no other
            self._failed(frame, err)

    def _handle(self, frame: Frame) -> None:
        """Give a frame to whom it is for. What a handler raises is the end of this frame alone."""
        kind = frame[0]
        if kind == peer_frames.RAFT:
            uid, messages = peer_frames.raft_of(frame)
            self._cluster.handler.on_raft(self.name, uid, messages)
        elif kind == peer_frames.NOTE:
            peer_schemas.check_note(frame[1], frame[2])
            self._cluster.on_note(self, frame[1], frame[2])
        elif kind == peer_frames.CALL:
            _, number, method, args = frame
            peer_schemas.check_call(method, args)
            self._cluster.handler.on_call(
                self.name, method, args, lambda outcome: self._answer(number, outcome)
            )
        elif kind == peer_frames.ANSWER:
            self._on_answer(frame[1], frame[2], frame[3])
        elif kind == peer_frames.CLOSE:
            self._closed_by_peer(frame[1])
        else:
            raise ProtocolError(f"frame of kind {kind} after the handshake")

    def _failed(self, frame: Frame, err: Exception) -> None:
        """A frame could not be handled. The log is told once a link of each kind of failure: a peer
        that sends one sends thousands."""
        kind = frame[0]
        what = (
            f"{peer_frames.name_of(kind)} {frame[1]}"
            if kind == peer_frames.NOTE
            else peer_frames.name_of(kind)
        )
        if kind == peer_frames.CALL:
            what = f"CALL {frame[2]}"
            is_theirs = isinstance(err, MalformedArgs)
            self._answer(frame[1], BAD_REQUEST() if is_theirs else CLUSTER_NOT_AVAIL())
        fault = (what, type(err))
        is_new = fault not in self._failing and len(self._failing) < PEER_FAULTS_TOLD_MAX
        if is_new:
            self._failing.add(fault)
        self._cluster.message_failed(self.name, what, err, is_new=is_new)

    def _on_beat(self, stamp: int, is_answer: bool) -> None:
        if is_answer:
            self.rtt_ns = max(0, self._cluster.monotonic_ns() - stamp)
        else:
            self.last_activity_ns = self._cluster.clock.now_ns()
            self._write(peer_frames.frame(peer_frames.BEAT, stamp, True))

    def _on_answer(self, number: int, is_error: bool, value: Any) -> None:
        waiting = self._calls.pop(number, None)
        if waiting is None:
            return  # it came too late
        method, done, timer = waiting
        timer.cancel()
        if is_error:
            value = _error_of(value)
        else:
            try:
                peer_schemas.check_answer(method, value)
            except MalformedArgs:
                done(CLUSTER_NOT_AVAIL())  # whoever asked must not wait for ever
                raise
        done(value)

    def _timed_out(self, number: int) -> None:
        _, done, _ = self._calls.pop(number)
        done(CLUSTER_NOT_AVAIL())

    def _fail_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for _, done, timer in calls.values():
            timer.cancel()
            self._cluster.loop.call_soon(done, CLUSTER_NOT_AVAIL())

    # --- the end --------------------------------------------------------------------------------

    def refuse(self, reason: str) -> None:
        """Tell the other side why, and close. What stands before a colon is the kind of fault."""
        if not self.reason:
            if reason not in _QUIET:
                self._cluster.refused(self, reason)
            self.close(reason)

    def close(self, reason: str) -> None:
        """Say why, then close when all is sent."""
        if not self.reason and self._transport is not None:
            self._write(peer_frames.frame(peer_frames.CLOSE, reason))
            self._flush()
            self.reason = reason
            self._down()
            self._transport.close()

    def cut(self, reason: str) -> None:
        """Close at once; what waits is lost."""
        if not self.reason and self._transport is not None:
            self.reason = reason
            self._down()
            self._transport.abort()

    def abort(self) -> None:
        """Let go of the socket whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _closed_by_peer(self, reason: str) -> None:
        if self.reason:
            return
        self.reason = reason
        if reason not in _QUIET and not self.is_up:
            self._cluster.refused(self, f"the other side says {reason}")
        self._down()
        assert self._transport is not None
        self._transport.close()

    def _down(self) -> None:
        """Nothing arrives from here on, although the socket may live a little longer."""
        self._cluster.lost(self)
        self._fail_calls()

    def stats(self) -> RouteStats:
        """Return what monitoring shows."""
        return RouteStats(
            rid=self.rid,
            remote_id=self.server_id,
            remote_name=self.name,
            did_solicit=self.route is not None,
            is_configured=self._cluster.is_configured(self),
            ip=self.ip,
            port=self.port,
            start_ns=self.start_ns,
            last_activity_ns=self.last_activity_ns,
            rtt_ns=self.rtt_ns,
            pending_bytes=self.buffered_bytes,
            in_msgs=self.in_msgs,
            out_msgs=self.out_msgs,
            in_bytes=self.in_bytes,
            out_bytes=self.out_bytes,
        )


def _error_of(value: Any) -> RequestError:
    """The error that an answer brings. Raises ProtocolError."""
    if type(value) is not list or list(map(type, value)) != [int, int, str]:
        raise ProtocolError("an error that is not two codes and a text")
    code, err_code, text = value
    return JsError(code, err_code, text) if err_code else RequestError(text)
