"""The TCP listener for clients: accepts connections, informs them, and sends them away.

Makes the parts that all client connections share: the policy, the registry of open connections,
password checks and the INFO document.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from streamd.config.options import Options
from streamd.net.client.auth import ClientPolicy, OutsideLogins
from streamd.net.client.client_registry import ClientRegistry
from streamd.net.client.connection import TOO_MANY_OF_ACCOUNT, Connection, SubjectSpaces
from streamd.net.client.entrance import Entrance
from streamd.net.client.open_connections import OpenConnections
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.client.server_info import ServerInfo
from streamd.net.client.tracing import Tracer
from streamd.net.sockets import refuse_connections, serve
from streamd.net.tls.handshakes import Handshakes
from streamd.obs.server_log import Log
from streamd.types import ACCOUNT


class OtherListener(Protocol):
    """A listener of another kind, whose clients are the same server's."""

    @property
    def info(self) -> ServerInfo: ...

    def stop_listening(self) -> None:
        """Accept no more clients; those that are connected stay."""

    def refuse(self) -> None:
        """Refuse clients from this moment on (the kernel does)."""

    def reload(self, options: Options) -> bool:
        """Use new options; returns True if its INFO says something else now."""


class Listener:
    """Serves the client protocol on one address, and owns what listeners of all kinds share.

    `connections_max`, if not 0, is how many connections the process can afford, whatever the
    options allow.
    """

    def __init__(
        self,
        options: Options,
        spaces: SubjectSpaces,
        registry: ClientRegistry,
        *,
        server_id: str,
        server_name: str,
        has_jetstream: bool,
        log: Log | None = None,
        connections_max: int = 0,
        handshakes: Handshakes | None = None,
        outside: OutsideLogins | None = None,
    ) -> None:
        """`outside` decides on logins beyond the configuration. Raises ConfigError, if certificates
        can't be used."""
        self.spaces = spaces
        self._output_queue = spaces.router(ACCOUNT).output_queue  # of all
        self.policy = ClientPolicy.of(options, outside=outside)
        self._handshakes = handshakes or Handshakes()
        self.policy.tls = self._entrance(options)
        self.registry = registry
        self.connections = OpenConnections(
            self.policy, registry, lambda: self._output_queue.clock(), log, connections_max
        )
        self.passwords = PasswordChecks()
        self.info = ServerInfo(
            options,
            server_id=server_id,
            server_name=server_name,
            has_jetstream=has_jetstream,
        )
        self.host = options.host
        self.port = options.port
        self.others: list[OtherListener] = []
        self.log = log
        self._server: asyncio.Server | None = None

    def _entrance(self, options: Options) -> Entrance | None:
        """Return the TLS that `options` ask for; None: clients speak in clear. Raises
        ConfigError."""
        if options.tls is None:
            return None
        from streamd.net.client.tls_entry import ClientTls

        tls, allows_plain = options.tls, options.allows_non_tls
        return ClientTls(tls, allows_plain=allows_plain, handshakes=self._handshakes)

    async def start(self) -> None:
        """Listen. Raises OSError. `port` is the real one afterwards."""
        loop = asyncio.get_running_loop()
        options = self.policy.options
        self._server = await serve(
            loop, self.make_connection, options.host, options.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.info.set_address(options, self.port)

    def make_connection(self, loop: asyncio.AbstractEventLoop | None = None) -> Connection:
        """Return the protocol of a new connection."""
        return self.connection_of(self.policy, self.info, loop or asyncio.get_running_loop())

    def connection_of(
        self, policy: ClientPolicy, info: ServerInfo, loop: asyncio.AbstractEventLoop
    ) -> Connection:
        """Return a connection of a listener: a traced one, if traces are asked for now."""
        options = policy.options
        tracer = None
        if options.is_trace and self.log is not None:
            tracer = Tracer(self.log, options)
        return Connection(policy, self.spaces, self.connections, self.passwords, info, loop, tracer)

    def stop_listening(self) -> None:
        """Accept no more clients; those that are connected stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for other in self.others:
            other.stop_listening()

    def refuse(self) -> None:
        """Make the kernel refuse clients from this moment on: the process ends next."""
        if self._server is not None:
            refuse_connections(self._server)
        for other in self.others:
            other.refuse()

    async def close(self, *, leaves_open: bool = False) -> None:
        """Stop listening and end all connections, their buffered output first.

        `leaves_open` says that the process ends next: `refuse` and its end then close the listening
        socket, and connections that have nothing more to be sent. So no client is told before the
        process has gone.
        """
        self.passwords.close()
        self._handshakes.close()
        if not leaves_open:
            self.stop_listening()
        self._output_queue.write_out(None)
        await self.connections.close_all(leaves_idle=leaves_open)

    async def lame_duck(self) -> None:
        """Accept no more, tell clients to go elsewhere, then end their connections one by one.

        Returns when all are gone. The caller then stops the server.
        """
        self.stop_listening()
        for info in (self.info, *(other.info for other in self.others)):
            info.is_lame_duck = True
        connections = self.connections.all
        for conn in list(connections):
            conn.send_info(is_lame_duck=True)
        if not connections:
            return
        options = self.policy.options
        await asyncio.sleep(options.lame_duck_grace_ns / 1e9)
        options = self.policy.options
        total_s = (options.lame_duck_duration_ns - options.lame_duck_grace_ns) / 1e9
        between_s = min(1.0, total_s / max(1, len(connections)))
        if self.log is not None:
            self.log.info("Closing existing clients")
        while connections:
            conn = next(iter(connections))
            conn.close("Server Shutdown")
            connections.discard(conn)
            if connections:  # not in step with other servers that do the same
                await asyncio.sleep(between_s * random.uniform(0.5, 1.0))

    def reload(self, options: Options) -> None:
        """Use new options: for new connections, and at once for those that are open. Clients that
        would not be let in any more are sent away, the youngest if they are too many. Raises
        ConfigError, if certificates can't be used, and then nothing changes."""
        tls = self._entrance(options)
        self.policy.reload(options)
        self.policy.tls = tls
        changed = [other.info for other in self.others if other.reload(options)]
        if self.info.apply_options(options, self.port):
            changed.append(self.info)
        self._drop_unpinned()
        connections = self.connections.all
        for conn in connections:
            conn.apply_options()
        for info in changed:
            self.send_info(info)
        if 0 < options.max_connections < len(self.registry.open):
            for served in list(self.registry.open.values())[options.max_connections :]:
                served.close("Maximum Connections Exceeded", b"maximum connections exceeded")
        self.connections.reauthenticate(list(connections))

    def end_surplus(self, cid: int) -> None:
        """End a client that its account has no place for any more."""
        conn = self.registry.open.get(cid)
        if conn is not None:
            conn.close(*TOO_MANY_OF_ACCOUNT)

    def _drop_unpinned(self) -> None:
        """End connections whose certificates have a key that is no longer accepted."""
        tls = self.policy.tls
        if tls is None:
            return
        unpinned = [
            conn
            for conn in self.registry.open.values()
            if conn.policy is self.policy and conn.tls is not None and not tls.has_pinned(conn.tls)
        ]
        for conn in unpinned:
            conn.close("TLS Handshake Failure")
        if unpinned and self.log is not None:
            self.log.info(f"Disconnect {len(unpinned)} clients due to pinned certs reload")

    def set_connect_urls(self, urls: list[str]) -> None:
        """Tell clients, new ones and those that are connected, of other servers to connect to."""
        if self.info.set_connect_urls(urls):
            self.send_info(self.info)

    def send_info(self, info: ServerInfo) -> None:
        """Send a document that changed to the connected clients that it describes the server to."""
        for conn in list(self.connections.all):
            if conn.info is info:
                conn.send_info()
