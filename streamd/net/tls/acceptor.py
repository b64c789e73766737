"""Accepted connections that begin with TLS: monitoring, and links of other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from streamd.config.cluster_options import join_address
from streamd.config.tls_options import TlsOptions
from streamd.net.sockets import peer_address
from streamd.net.tls.facts import TlsFacts, TlsFault
from streamd.net.tls.handshakes import Handshakes
from streamd.net.tls.ssl_contexts import server_context
from streamd.net.tls.transport import NO_TLS, TlsTransport

TO_HTTP: Final = (
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
)
"""Answer to a browser that comes without TLS."""

NOT_WANTED = TlsFault("certificate not pinned, or not of a known server", is_certificate=True)
"""The fault of a certificate that is valid and not wanted."""

Make = Callable[[], asyncio.BaseProtocol]


class TlsAcceptor:
    """Takes accepted connections into TLS; their own protocol begins when that is up."""

    def __init__(
        self,
        tls: TlsOptions,
        handshakes: Handshakes,
        *,
        waiting_max: int,
        is_wanted: Callable[[TlsFacts], bool] = lambda facts: True,
        to_plain: bytes = b"",
        report: Callable[[str, TlsFault], None] = lambda address, fault: None,
    ) -> None:
        """`waiting_max`: handshakes at a time, beyond which connections end at once.
        `is_wanted` judges the other side's certificates, `to_plain` is said to who speaks no TLS;
        `report` takes the other side's address, and why there is no TLS. Raises ConfigError."""
        self.context = server_context(tls)
        self.timeout_s = tls.timeout_s
        self.handshakes = handshakes
        self.waiting_max = waiting_max
        self.waiting_count = 0
        self.is_wanted = is_wanted
        self.to_plain = to_plain
        self.report = report

    def renew(self, tls: TlsOptions) -> None:
        """Use `tls` for connections to come; those that are up stay. Raises ConfigError, and then
        nothing changes."""
        self.context = server_context(tls)
        self.timeout_s = tls.timeout_s

    def accept(self, make: Make) -> asyncio.Protocol:
        """Return the protocol of an accepted socket: it makes the connection's own one by `make`
        when TLS is up."""
        return _Accepted(self, make)


class _Accepted(asyncio.Protocol):
    """Protocol of a socket until its handshake begins, which is at once."""

    def __init__(self, acceptor: TlsAcceptor, make: Make) -> None:
        self._acceptor = acceptor
        self._make = make
        self._channel: TlsTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        acceptor = self._acceptor
        raw = cast(asyncio.Transport, transport)
        self._raw = raw
        if acceptor.waiting_count >= acceptor.waiting_max:
            raw.abort()
            return
        acceptor.waiting_count += 1
        self._channel = TlsTransport(
            acceptor.context,
            raw,
            acceptor.handshakes,
            asyncio.get_running_loop(),
            self._on_result,
        )
        self._channel.begin(acceptor.timeout_s)

    def _on_result(self, result: TlsFacts | TlsFault) -> None:
        acceptor, channel = self._acceptor, self._channel
        assert channel is not None
        acceptor.waiting_count -= 1
        address = join_address(*peer_address(self._raw))
        if isinstance(result, TlsFault):
            acceptor.report(address, result)
            if result is NO_TLS and acceptor.to_plain:
                self._raw.write(acceptor.to_plain)
        elif not acceptor.is_wanted(result):
            acceptor.report(address, NOT_WANTED)
            channel.close()
        else:
            protocol = self._make()
            channel.set_protocol(protocol)
            protocol.connection_made(channel)
