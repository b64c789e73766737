"""WebSocket connection to a hub: the handshake as a client, and the link's bytes in frames.

Handshake, masks and frames are those of the library `websockets`; frames are always masked. The
link is given a transport, as on a plain socket, once the hub has agreed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from streamd.config.leaf_options import LeafUrl
from streamd.limits import WEBSOCKET_FRAME_BYTES_MAX
from streamd.net.tls.facts import TlsFault

_DATA: Final = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class Secure(Protocol):
    """TLS of a socket to a hub."""

    def __call__(
        self,
        protocol: asyncio.Protocol,
        transport: asyncio.Transport,
        *,
        done: Callable[[asyncio.Transport | TlsFault], None],
    ) -> None: ...


class DialedTransport(asyncio.Transport):
    """A socket as the link has it: what is written leaves in frames."""

    def __init__(self, raw: asyncio.Transport, protocol: ClientProtocol) -> None:
        super().__init__()
        self._raw = raw
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self._protocol.send_binary(data)
        self.send_pending()

    def send_pending(self) -> None:
        """Write what the library has to say."""
        for piece in self._protocol.data_to_send():
            if piece:
                self._raw.write(piece)

    def close(self) -> None:
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)


class DialedWebSocket(asyncio.Protocol):
    """Protocol of a socket to a hub. `opened` is done when the link has begun, or has a
    ConnectionError that says why not."""

    def __init__(
        self,
        link: asyncio.Protocol,
        url: LeafUrl,
        loop: asyncio.AbstractEventLoop,
        *,
        is_compressing: bool,
        secure: Secure | None,
    ) -> None:
        """`secure`: None for a hub that speaks in clear."""
        self._link = link
        self._secure = secure
        self.opened: asyncio.Future[None] = loop.create_future()
        extensions = [ClientPerMessageDeflateFactory()] if is_compressing else None
        self._protocol = ClientProtocol(
            parse_uri(f"{url.scheme}://{url.address}{url.path}/leafnode"),
            extensions=extensions,
            max_size=WEBSOCKET_FRAME_BYTES_MAX,
        )
        self._raw: asyncio.Transport
        self._framed: DialedTransport
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for WebSocket, behind TLS if there is any."""
        self._raw = cast(asyncio.Transport, transport)
        if self._secure is None:
            self._ask(self._raw)
        else:
            self._secure(self, self._raw, done=self._on_secured)

    def _on_secured(self, result: asyncio.Transport | TlsFault) -> None:
        if isinstance(result, TlsFault):
            self._fail(f"TLS handshake error: {result.text}")
        else:
            self._ask(result)

    def _ask(self, transport: asyncio.Transport) -> None:
        self._raw = transport
        self._framed = DialedTransport(transport, self._protocol)
        self._protocol.send_request(self._protocol.connect())
        self._framed.send_pending()

    def data_received(self, data: bytes) -> None:
        """Take in the answer, then frames."""
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Response):
                self._on_answer()
            elif isinstance(event, Frame) and event.opcode in _DATA and self._is_open:
                self._link.data_received(bytes(event.data))
        if self._is_open:
            self._framed.send_pending()
        if protocol.close_expected() and not self._raw.is_closing():
            self._raw.close()

    def _on_answer(self) -> None:
        refusal = self._protocol.handshake_exc
        if refusal is not None:
            name = "websocket" if isinstance(refusal, InvalidHandshake) else "protocol"
            self._fail(f"{name} handshake error: {refusal}")
        elif not self.opened.done():
            self._is_open = True
            self._link.connection_made(self._framed)
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the socket on."""
        if self._is_open:
            self._link.connection_lost(exc)
        else:
            self._fail("connection closed during the handshake")

    def pause_writing(self) -> None:
        """Pass on that the hub is behind."""
        if self._is_open:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the hub has caught up."""
        if self._is_open:
            self._link.resume_writing()

    def cut_off(self) -> None:
        """Close the socket, whatever goes on."""
        self._raw.abort()

    def _fail(self, text: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(text))
        self._raw.abort()
