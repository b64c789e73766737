"""The WebSocket listener: the same server's clients at an address with its own INFO and logins.

Connections, their numbers and limits are those of the server's `Listener`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamd.config.options import Options
from streamd.limits import WEBSOCKET_HANDSHAKE_S, WEBSOCKET_HANDSHAKES_MAX
from streamd.net.client.auth import WEBSOCKET, ClientPolicy
from streamd.net.client.connection import Connection
from streamd.net.client.listener import Listener
from streamd.net.client.server_info import ServerInfo
from streamd.net.sockets import refuse_connections, serve
from streamd.net.tls.facts import TlsFacts
from streamd.net.tls.handshakes import Handshakes
from streamd.net.websocket.framed_connection import (
    LeafEndpoint,
    Reception,
    WebSocketConnection,
)
from streamd.net.websocket.upgrade import UpgradeRules

if TYPE_CHECKING:
    from streamd.net.tls.acceptor import TlsAcceptor


class WebSocketListener:
    """Serves the client protocol in WebSocket frames on one address."""

    def __init__(
        self,
        options: Options,
        clients: Listener,
        *,
        server_id: str,
        server_name: str,
        has_jetstream: bool,
        handshakes: Handshakes | None = None,
    ) -> None:
        """`clients` is the server's listener. Raises ConfigError for certificates."""
        self.settings = settings = options.websocket
        view = options.for_websocket()
        self.policy = ClientPolicy.of(view, WEBSOCKET, clients.policy.auth.outside)
        self.info = ServerInfo(
            view,
            server_id=server_id,
            server_name=server_name,
            has_jetstream=has_jetstream,
            is_websocket=True,
        )
        self.host = settings.host
        self.port = settings.port
        self._clients = clients
        self._tls: TlsAcceptor | None = None
        if settings.tls is not None:
            # OpenSSL costs a tenth of a second, which a server in clear saves.
            from streamd.net.tls.acceptor import TO_HTTP, TlsAcceptor

            self._tls = TlsAcceptor(
                settings.tls,
                handshakes or Handshakes(),
                waiting_max=WEBSOCKET_HANDSHAKES_MAX,
                is_wanted=self._has_pinned,
                to_plain=TO_HTTP,
            )
        self._reception = Reception(
            UpgradeRules(settings),
            self._make_client,
            handshake_s=settings.handshake_timeout_ns / 1e9 or WEBSOCKET_HANDSHAKE_S,
            log_error=self._log_error,
        )
        self._server: asyncio.Server | None = None

    @property
    def scheme(self) -> str:
        """Scheme of the URLs by which clients come."""
        return "ws" if self._tls is None else "wss"

    async def start(self) -> None:
        """Listen. Raises OSError. `port` is the real one afterwards."""
        loop = asyncio.get_running_loop()
        self._server = await serve(loop, self._accept, self.host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self.info.set_address(self.policy.options, self.port)
        self._clients.others.append(self)

    def _accept(self) -> asyncio.BaseProtocol:
        if self._tls is None:
            return self.make_connection()
        return self._tls.accept(self.make_connection)

    def make_connection(self, loop: asyncio.AbstractEventLoop | None = None) -> WebSocketConnection:
        """Return the protocol of a new socket, behind TLS if there is any."""
        return WebSocketConnection(self._reception, loop or asyncio.get_running_loop())

    def set_connect_urls(self, urls: list[str]) -> None:
        """Tell clients of this listener of other servers' listeners of its kind."""
        if self.info.set_connect_urls(urls):
            self._clients.send_info(self.info)

    def serve_leafs(self, make: Callable[[asyncio.AbstractEventLoop], LeafEndpoint]) -> None:
        """Accept leaf nodes as well, at paths that end with `/leafnode`."""
        self._reception.make_leaf = make

    # --- `listener.OtherListener` ----------------------------------------------------------------

    def stop_listening(self) -> None:
        """Accept no more clients; those that are connected stay, handshakes under way end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for conn in list(self._reception.handshakes):
            conn.cut_off()

    def refuse(self) -> None:
        """Refuse clients from this moment on (the kernel does)."""
        if self._server is not None:
            refuse_connections(self._server)

    def reload(self, options: Options) -> bool:
        """Use new options; returns True if INFO says something else now. Certificates are read
        anew. Raises ConfigError, and then nothing changes."""
        if self._tls is not None and options.websocket.tls is not None:
            self._tls.renew(options.websocket.tls)
        view = options.for_websocket()
        self.policy.reload(view)
        return self.info.apply_options(view, self.port)

    def _has_pinned(self, facts: TlsFacts) -> bool:
        """Return True if the client's key is one of those that are pinned, or none is."""
        pins = self.settings.tls.pinned_certs if self.settings.tls is not None else ()
        return not pins or bool(facts.certificates and facts.certificates[0].spki_sha256 in pins)

    # --- for connections ------------------------------------------------------------------------

    def _make_client(self, loop: asyncio.AbstractEventLoop) -> Connection:
        conn = self._clients.connection_of(self.policy, self.info, loop)
        conn.profile.is_websocket = True
        return conn

    def _log_error(self, text: str) -> None:
        if self._clients.log is not None:
            self._clients.log.error(text)
