"""WebSocket connection: a socket whose bytes are a handshake, then frames, with the same client
connection behind it as a plain socket has.

`Connection` (`net/client`) is given a transport that frames what is written, and chunks without
frames; whatever it decides about pace, slow readers and ends goes to the socket through that
transport. So this module knows no client protocol, and `net/client` no WebSocket.

States::

    handshake --> open --> closed
        |                    ^
        +--------------------+   refused, too slow, or the socket is lost

Order: content of frames is handed over in the order it came, and not while the client connection
has paused reading: frames that were read before wait, so a resumed reading goes on with them in an
iteration of its own, when the events that the connection held are handled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from websockets.frames import CloseCode, Frame, Opcode

from streamd.config.cluster_options import join_address
from streamd.limits import (
    CONGESTED_BYTES,
    WEBSOCKET_CHUNK_BYTES,
    WEBSOCKET_FRAME_BYTES_MAX,
    WEBSOCKET_FRAME_BYTES_MIN,
    WEBSOCKET_FRAME_PAYLOADS,
    WEBSOCKET_HANDSHAKES_MAX,
    WEBSOCKET_STRANGER_BYTES,
)
from streamd.net.client.connection import Connection
from streamd.net.client.profile import after_end
from streamd.net.client.session import State
from streamd.net.sockets import peer_address
from streamd.net.websocket.framing import (
    DATA,
    Framing,
    FramingError,
    close_answer,
    close_frame,
    pong,
)
from streamd.net.websocket.upgrade import Handshake, Refused, Upgraded, UpgradeRules

_POLICY: Final = CloseCode.POLICY_VIOLATION
_CODES: Final[dict[str, int]] = {
    "Client Closed": CloseCode.NORMAL_CLOSURE,
    "Authentication Timeout": _POLICY,
    "Authentication Failure": _POLICY,
    "Authentication Expired": _POLICY,
    "Credentials Revoked": _POLICY,
    "Missing Account": _POLICY,
    "Slow Consumer (Pending Bytes)": _POLICY,
    "Slow Consumer (Write Deadline)": _POLICY,
    "Maximum Connections Exceeded": _POLICY,
    "Maximum Account Connections Exceeded": _POLICY,
    "Maximum Control Line Exceeded": _POLICY,
    "Maximum Subscriptions Exceeded": _POLICY,
    "Parse Error": CloseCode.PROTOCOL_ERROR,
    "Protocol Violation": CloseCode.PROTOCOL_ERROR,
    "Bad Client Protocol Version": CloseCode.PROTOCOL_ERROR,
    "Maximum Message Payload Exceeded": CloseCode.MESSAGE_TOO_BIG,
    "Server Shutdown": CloseCode.GOING_AWAY,
    "Stale Connection": CloseCode.GOING_AWAY,
    "Read Error": CloseCode.GOING_AWAY,
    "Write Error": CloseCode.GOING_AWAY,
}


class Endpoint(Protocol):
    """The server's end of what comes in frames: a client connection, or a leaf link."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Reason of its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def close(self, reason: str) -> None:
        """End it, for `reason`."""


class LeafEndpoint(Endpoint, Protocol):
    """The server's end of a leaf link."""

    @property
    def frame_bytes_max(self) -> int:
        """Bytes that one frame may hold now."""


class Reception:
    """Rules of one listener, its way to make clients, its log: shared by its connections."""

    def __init__(
        self,
        rules: UpgradeRules,
        make_client: Callable[[asyncio.AbstractEventLoop], Connection],
        *,
        handshake_s: float,
        log_error: Callable[[str], None],
    ) -> None:
        self.rules = rules
        self.make_client = make_client
        self.handshake_s = handshake_s
        self.log_error = log_error
        self.handshakes: set[WebSocketConnection] = set()  # under way
        # None: leaf nodes are not accepted.
        self.make_leaf: Callable[[asyncio.AbstractEventLoop], LeafEndpoint] | None = None


class FramedTransport(asyncio.Transport):
    """A socket as the client connection has it: what is written leaves in frames."""

    __slots__ = ("_framing", "_is_closing", "_last_frame", "_resumed", "_transport", "is_paused")

    def __init__(
        self,
        transport: asyncio.Transport,
        framing: Framing,
        *,
        last_frame: Callable[[], bytes],
        resumed: Callable[[], None],
    ) -> None:
        """`last_frame` returns the frame that ends the connection; `resumed` has reading go on."""
        super().__init__()
        self._transport = transport
        self._framing = framing
        self._last_frame = last_frame
        self._resumed = resumed
        self._is_closing = False
        self.is_paused = False

    def write(self, data: Any) -> None:
        self._transport.write(self._framing.pack(data))

    def pause_reading(self) -> None:
        self.is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._resumed()

    def close(self) -> None:
        """End the connection, behind all that was written before."""
        if not self._is_closing:
            self._is_closing = True
            self._transport.write(self._last_frame())
            self._transport.close()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def release(self) -> None:
        """Let go of the owner: the socket is closed."""
        self._is_closing = True
        self._last_frame = bytes
        self._resumed = after_end


class WebSocketConnection(asyncio.Protocol):
    """The server's end of one socket of the WebSocket listener."""

    __slots__ = (
        "_chunks",
        "_client",
        "_end_frame",
        "_framed",
        "_framing",
        "_handshake",
        "_has_more",
        "_is_closed",
        "_is_due",
        "_loop",
        "_next",
        "_payload_max",
        "_reception",
        "_timer",
        "_transport",
    )

    def __init__(self, reception: Reception, loop: asyncio.AbstractEventLoop) -> None:
        self._reception = reception
        self._loop = loop
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: Handshake | None = Handshake(reception.rules)  # None: it is over
        self._framing: Framing
        self._framed: FramedTransport
        self._client: Endpoint | None = None  # None: not yet, or not any more
        self._chunks: deque[bytes] = deque()  # content of frames, not yet handed over
        self._next: Frame | FramingError | None = None  # what came behind it
        self._has_more = False  # there may be whole frames behind that
        self._is_due = False  # the rest is handled when others had their turn
        self._end_frame = b""  # of an end with a reason of its own; b"": the client's reason
        self._is_closed = False
        self._payload_max: Callable[[], int] = int  # of one frame

    # --- the socket -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request."""
        self._transport = cast(asyncio.Transport, transport)
        handshakes = self._reception.handshakes
        if len(handshakes) >= WEBSOCKET_HANDSHAKES_MAX:
            self.cut_off()
            return
        handshakes.add(self)
        self._timer = self._loop.call_later(self._reception.handshake_s, self.cut_off)

    def data_received(self, data: bytes) -> None:
        """Take in a chunk of the request, or of frames."""
        if self._is_closed:
            return
        if self._handshake is not None:
            self._judge(self._handshake, data)
            return
        self._framing.feed(data)
        self._has_more = True
        if not self._is_due and not self._framed.is_paused:
            self._hand_over()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything: the socket is closed."""
        self._is_closed = True
        self._end_handshake()
        client, self._client = self._client, None
        if client is not None:
            self._chunks.clear()
            self._framed.release()
            client.connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client is behind (called by the transport)."""
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has caught up (called by the transport)."""
        if self._client is not None:
            self._client.resume_writing()

    # --- handshake ------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """Close without an answer: the request did not come in time, or the server stops."""
        self._is_closed = True
        self._end_handshake()
        self._transport.abort()

    def _judge(self, handshake: Handshake, data: bytes) -> None:
        outcome = handshake.feed(data)
        if outcome is None:
            return
        self._end_handshake()
        if isinstance(outcome, Refused):
            address = join_address(*peer_address(self._transport))
            self._reception.log_error(f"{address} - websocket handshake error: {outcome.reason}")
            self._refuse(outcome.answer)
        elif outcome.is_leaf and self._reception.make_leaf is None:
            self._reception.log_error("Not configured to accept leaf node connections")
            self._refuse(outcome.answer)
        else:
            self._open(outcome)

    def _end_handshake(self) -> None:
        self._handshake = None
        self._reception.handshakes.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, answer: bytes) -> None:
        self._is_closed = True
        if answer:
            self._transport.write(answer)
        self._transport.close()

    def _open(self, upgraded: Upgraded) -> None:
        self._transport.write(upgraded.answer)
        self._framing = Framing(
            is_masked=upgraded.is_masked,
            is_deflating=upgraded.is_deflating,
            frame_bytes=upgraded.frame_bytes,
        )
        self._framed = FramedTransport(
            self._transport, self._framing, last_frame=self._last_frame, resumed=self._go_on
        )
        if upgraded.is_leaf:
            assert self._reception.make_leaf is not None
            link = self._reception.make_leaf(self._loop)
            self._client = link
            self._payload_max = lambda: link.frame_bytes_max
            link.connection_made(self._framed)
            return
        self._client = client = self._reception.make_client(self._loop)
        self._payload_max = partial(_payload_max, client)
        client.profile.tls = self._transport.get_extra_info("tls_facts")
        client.profile.login = upgraded.login
        client.profile.forwarded_for = upgraded.forwarded_for
        client.connection_made(self._framed)

    # --- frames ---------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Pass on one chunk, or handle one control frame; the rest when others had their turn."""
        self._is_due = False
        client = self._client
        if client is None or client.is_closed or self._framed.is_paused:
            return
        if not self._chunks and self._next is None:
            self._collect()
        if self._chunks:
            client.data_received(self._chunks.popleft())
        elif self._next is not None:
            following, self._next = self._next, None
            self._follow(client, following)
        if not client.is_closed and not self._framed.is_paused:
            self._go_on()

    def _go_on(self) -> None:
        """Read on, behind what was read already.

        That is handled in an iteration of its own: the client's connection, which resumes, has yet
        to handle the events that it held.
        """
        if self._chunks or self._next is not None or self._has_more:
            if not self._is_due:
                self._is_due = True
                self._transport.pause_reading()
                self._loop.call_soon(self._hand_over)
        else:
            self._transport.resume_reading()

    def _collect(self) -> None:
        """Read the frames that are there, up to the first that is no data, or a chunk's size."""
        framing = self._framing
        payload_max = self._payload_max()
        pieces: list[Any] = []
        size = 0
        try:
            while size < WEBSOCKET_CHUNK_BYTES:
                plain = framing.take_plain(WEBSOCKET_CHUNK_BYTES - size)
                if plain:
                    pieces += plain
                    size += sum(map(len, plain))
                    continue
                frame = framing.next(payload_max)
                if frame is None:
                    self._has_more = False
                    break
                if frame.opcode not in DATA:
                    self._next = frame
                    break
                pieces.append(frame.data)
                size += len(frame.data)
        except FramingError as err:
            self._next = err
            self._has_more = False
        if size <= WEBSOCKET_CHUNK_BYTES:
            if size:
                self._chunks.append(b"".join(pieces))
            return
        content = b"".join(pieces)
        for at in range(0, size, WEBSOCKET_CHUNK_BYTES):
            self._chunks.append(content[at : at + WEBSOCKET_CHUNK_BYTES])

    def _follow(self, client: Endpoint, following: Frame | FramingError) -> None:
        """Handle what came behind the last chunk."""
        try:
            if isinstance(following, FramingError):
                raise following
            if following.opcode is Opcode.CLOSE:
                self._end_frame = close_answer(following)
                client.close("Client Closed")
            elif following.opcode is Opcode.PING:
                # Of a client that does not read, the last PING alone is worth an answer.
                if self._transport.get_write_buffer_size() < CONGESTED_BYTES:
                    self._transport.write(pong(bytes(following.data)))
        except FramingError as err:
            self._end_frame = close_frame(err.code, str(err))
            client.close("Read Error")

    def _last_frame(self) -> bytes:
        if self._end_frame:
            return self._end_frame
        reason = self._client.reason if self._client is not None else ""
        return close_frame(_CODES.get(reason, CloseCode.INTERNAL_ERROR), reason)


def _payload_max(client: Connection) -> int:
    """Return how much one frame may hold: little, as long as nobody knows who sends it."""
    if client.session.state is State.STRANGER:
        return WEBSOCKET_STRANGER_BYTES
    wanted = WEBSOCKET_FRAME_PAYLOADS * client.policy.options.max_payload
    return min(max(wanted, WEBSOCKET_FRAME_BYTES_MIN), WEBSOCKET_FRAME_BYTES_MAX)
