"""Entry of a client into TLS: from the accepted socket to the first byte of its own protocol.

    handshake first   |--------------------------- handshake --> INFO, in TLS
    first with delay  |-- a byte within the delay - handshake --> INFO, in TLS
                      |-- silence --> INFO, in clear --> as below
    otherwise         |-- INFO, in clear ---------- handshake
    plain allowed     |-- INFO, in clear -- 0x16 -- handshake
                                         `- another byte, or silence: served in clear

The entry is the socket's protocol meanwhile, so nothing that a client sends is taken for its
protocol before it is known in which way it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamd.config.tls_options import TlsOptions
from streamd.net.client.entrance import Entering
from streamd.net.tls.connection_rate import ConnectionRate
from streamd.net.tls.facts import TlsFacts, TlsFault
from streamd.net.tls.handshakes import Handshakes
from streamd.net.tls.ssl_contexts import server_context
from streamd.net.tls.transport import HANDSHAKE_RECORD, TlsTransport

_NOT_PINNED = TlsFault("certificate not pinned", is_certificate=True)


class ClientTls:
    """Settings of TLS for clients, with the context that was made of them."""

    def __init__(self, tls: TlsOptions, *, allows_plain: bool, handshakes: Handshakes) -> None:
        """Raises ConfigError."""
        self.options = tls
        self.allows_plain = allows_plain  # clients that do not begin with TLS are served as well
        self.handshakes = handshakes
        self.context = server_context(tls)
        self._rate: ConnectionRate | None = None  # none yet: no connection came

    def may_begin(
        self, loop: asyncio.AbstractEventLoop, report_throttled: Callable[[int], None]
    ) -> bool:
        """Count a handshake; False: there were too many in this second."""
        if self._rate is None:
            per_s_max = self.options.connections_per_s_max
            self._rate = ConnectionRate(per_s_max, loop, report_throttled)
        return self._rate.allow()

    def has_pinned(self, facts: TlsFacts) -> bool:
        """Return True if the client's key is one of those that are pinned, or none is."""
        pins = self.options.pinned_certs
        return not pins or bool(facts.certificates and facts.certificates[0].spki_sha256 in pins)

    def enter(
        self, conn: Entering, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        """See `entrance.Entrance`."""
        TlsEntry(self, conn, transport, loop).begin()


class TlsEntry(asyncio.Protocol):
    """Way of one client into TLS, or past it where that is allowed."""

    def __init__(
        self,
        tls: ClientTls,
        conn: Entering,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tls = tls
        self._conn = conn
        self._transport = transport
        self._loop = loop
        self._is_first = tls.options.is_first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Take the socket over until the client is served."""
        options = self._tls.options
        self._transport.set_protocol(self)
        if not self._is_first:
            self._introduce()
        elif options.first_delay_ns:
            self._timer = self._loop.call_later(options.first_delay_ns / 1e9, self._on_no_hello)
        else:
            self._shake()

    def data_received(self, data: bytes) -> None:
        """Learn from the first bytes which way the client comes."""
        if self._conn.is_closed:
            return
        self._stop_timer()
        if self._is_first or data[0] == HANDSHAKE_RECORD:
            self._shake(data)
        else:
            self._serve_plain(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the socket on."""
        self._stop_timer()
        if not self._conn.is_closed:
            self._conn.turn_away(TlsFault("EOF", is_certificate=False))
        self._conn.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the client is behind."""
        self._conn.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client has caught up."""
        self._conn.resume_writing()

    def _on_no_hello(self) -> None:
        self._timer = None
        if not self._conn.is_closed:
            self._is_first = False
            self._introduce()

    def _introduce(self) -> None:
        self._conn.introduce()
        if self._tls.allows_plain:
            self._timer = self._loop.call_later(self._tls.options.timeout_s, self._serve_plain)
        else:
            self._shake()

    def _serve_plain(self, data: bytes = b"") -> None:
        self._timer = None
        if self._conn.is_closed:
            return
        self._transport.set_protocol(self._conn)  # type: ignore[arg-type]
        self._conn.serve(None)
        if data:
            self._conn.data_received(data)

    def _shake(self, data: bytes = b"") -> None:
        tls, conn = self._tls, self._conn
        if not tls.may_begin(self._loop, conn.report_throttled):
            conn.throttle()
            return
        channel = TlsTransport(
            tls.context, self._transport, tls.handshakes, self._loop, self._on_result
        )
        channel.set_protocol(conn)  # type: ignore[arg-type]
        conn.write_to(channel)  # which drops all that is written before it is open
        channel.begin(tls.options.timeout_s, data)

    def _on_result(self, result: TlsFacts | TlsFault) -> None:
        conn = self._conn
        if conn.is_closed:
            return
        if isinstance(result, TlsFault):
            conn.turn_away(result)
        elif not self._tls.has_pinned(result):
            conn.turn_away(_NOT_PINNED)
        else:
            conn.serve(result._replace(is_first=self._is_first))
            if self._is_first:
                conn.introduce(is_tls_first=True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
