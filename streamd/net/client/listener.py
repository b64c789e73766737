"""The TCP listener for clients: accepts, registers, introduces the server, and sends away.

Owns what all client connections share: options, the authenticator, the INFO document.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from streamd import API_LEVEL, NATS_LEVEL, __version__
from streamd.config.cluster_options import client_address
from streamd.config.options import Options
from streamd.limits import LISTENER_CLOSE_S
from streamd.net.client.auth import Authenticator
from streamd.net.client.busy_poll import Attention
from streamd.net.client.client_registry import ClientRegistry
from streamd.net.client.connection import ClientConn
from streamd.net.client.output import ClientOutput
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.client.reauthentication import Recheck
from streamd.net.client.session import ClientSession
from streamd.net.client.tracing import TracedConn
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.sockets import serve
from streamd.obs.server_log import Log
from streamd.types import ACCOUNT


class Listener:
    """Serves the client protocol on one address.

    `connections_max`, if not 0, is how many connections the process can afford, whatever the
    options allow.
    """

    def __init__(
        self,
        options: Options,
        router: MessageRouter,
        registry: ClientRegistry[ClientConn],
        node: Any | None,
        *,
        server_id: str,
        server_name: str,
        log: Log | None = None,
        connections_max: int = 0,
    ) -> None:
        self.options = options
        self.router = router
        self.registry = registry
        self.auth = Authenticator(options)
        self.passwords = PasswordChecks()
        self.attention = Attention()
        self.host = options.host
        self.port = options.port
        self._log = log
        self._connections_max = connections_max
        self._refused_at = 0  # with how many connections, as the log was told
        self._server: asyncio.Server | None = None
        self._is_lame_duck = False
        self._all_gone = asyncio.Event()
        # Sockets not yet let go of; a closed connection stays here while its last bytes go out.
        self._open: set[ClientConn] = set()
        self._info: dict[str, Any] = {
            "server_id": server_id,
            "server_name": server_name,
            "version": NATS_LEVEL,
            "proto": 1,
            "git_commit": f"streamd-{__version__}",
            "go": f"python{sys.version.split()[0]}",
            "host": options.host,
            "port": options.port,
            "headers": options.has_header_support,
        }
        if options.is_auth_required:
            self._info["auth_required"] = True
        self._info["max_payload"] = options.max_payload
        if node is not None:
            self._info["jetstream"] = True
            self._info["api_lvl"] = API_LEVEL
            if options.jetstream.domain:
                self._info["domain"] = options.jetstream.domain
        if options.cluster.is_enabled and options.cluster.name:
            self._info["cluster"] = options.cluster.name

    async def start(self) -> None:
        """Listen. Raises OSError. `port` is the real one afterwards."""
        loop = asyncio.get_running_loop()
        options = self.options
        self._server = await serve(
            loop, self.make_connection, options.host, options.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._info["host"], self._info["port"] = self._shown_address()

    def make_connection(self, loop: asyncio.AbstractEventLoop | None = None) -> ClientConn:
        """Return the protocol of a new connection: a traced one, if traces are asked for now."""
        if self.options.is_trace and self._log is not None:
            return TracedConn(self, self._log, loop)
        return ClientConn(self, loop)

    def stop_listening(self) -> None:
        """Accept no more clients; those who are here stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self, *, leaves_open: bool = False) -> None:
        """Stop listening and end all connections, their buffered output first.

        With `leaves_open`, which says that the process ends next, its end closes what has nothing
        more to send, the listening socket too: so nobody is told before the process has gone.
        """
        self.passwords.close()
        if not leaves_open:
            self.stop_listening()
        self.router.output_queue.write_out(None)
        ending = [conn for conn in self._open if conn.pending_bytes or not leaves_open]
        for conn in ending:
            conn.close("Server Shutdown")
        if leaves_open:
            self._open.intersection_update(ending)
        if not self._open:
            return
        self._all_gone.clear()
        try:
            async with asyncio.timeout(LISTENER_CLOSE_S):
                await self._all_gone.wait()
        except TimeoutError:
            for conn in list(self._open):  # they read no more; what is left for them is lost
                conn.cut_off()

    async def lame_duck(self) -> None:
        """Accept no more, tell clients to go elsewhere, then end their connections one by one.

        Returns when all are gone. The caller then stops the server.
        """
        self.stop_listening()
        self._is_lame_duck = True
        for conn in list(self._open):
            conn.send_info(is_lame_duck=True)
        if not self._open:
            return
        await asyncio.sleep(self.options.lame_duck_grace_ns / 1e9)
        total_s = (self.options.lame_duck_duration_ns - self.options.lame_duck_grace_ns) / 1e9
        between_s = min(1.0, total_s / max(1, len(self._open)))
        if self._log is not None:
            self._log.info("Closing existing clients")
        while self._open:
            conn = next(iter(self._open))
            conn.close("Server Shutdown")
            self._open.discard(conn)
            if self._open:  # not in step with other servers that do the same
                await asyncio.sleep(between_s * random.uniform(0.5, 1.0))

    def reload(self, options: Options) -> None:
        """Use new options: for new connections, and at once for those that are here. Those who
        would not be let in any more end, the youngest if they are too many."""
        self.options = options
        self.auth = Authenticator(options, self.auth)
        for conn in self._open:
            conn.options_changed()
        self._info.pop("auth_required", None)
        if options.is_auth_required:
            self._info["auth_required"] = True
        host, port = self._shown_address()
        fresh = {"max_payload": options.max_payload, "host": host, "port": port}
        if any(self._info[key] != value for key, value in fresh.items()):
            self._info |= fresh
            for conn in list(self._open):
                conn.send_info()
        if 0 < options.max_connections < len(self.registry.open):
            for conn in list(self.registry.open.values())[options.max_connections :]:
                conn.close("Maximum Connections Exceeded", b"maximum connections exceeded")
        self.recheck(list(self._open))

    def recheck(self, conns: list[ClientSession]) -> None:
        """Judge connections by what is configured now."""
        auth = self.auth
        Recheck(conns, auth, lambda: auth is self.auth, self.router.output_queue.clock).go_on()

    def _shown_address(self) -> tuple[str, int]:
        """Where clients are told that this server is."""
        if self.options.client_advertise:
            return client_address(self.options.client_advertise, self.port)
        return self.options.host, self.port

    def set_connect_urls(self, urls: list[str]) -> None:
        """Tell clients, those to come and those here, where else they could connect."""
        if urls != self._info.get("connect_urls", []):
            self._info["connect_urls"] = urls
            for conn in list(self._open):
                conn.send_info()

    # --- for connections ------------------------------------------------------------------------

    def register(self, conn: ClientConn) -> bytes:
        """Take in a new connection; returns why not, as the text of its `-ERR`."""
        self.registry.connections_total += 1
        conn.cid = self.registry.connections_total
        self._open.add(conn)
        count = len(self.registry.open)
        if 0 < self._connections_max <= count:
            return self._refuse(count, "the process may not open enough files (ulimit -n)")
        if 0 < self.options.max_connections <= count:
            return self._refuse(count, "maximum connections exceeded (max_connections)")
        if count < self._refused_at // 2:
            self._refused_at = 0
        self.registry.open[conn.cid] = conn
        return b""

    def _refuse(self, count: int, reason: str) -> bytes:
        """Have the log say it, once until half of the connections are gone."""
        if self._log is not None and not self._refused_at:
            self._refused_at = count
            self._log.warning(f"clients are refused: {reason}", connections=count)
        return b"maximum connections exceeded"

    def closing(self, conn: ClientConn) -> None:
        """A connection ends; its subscriptions are still there to be looked at."""
        self.registry.close(conn)

    def gone(self, conn: ClientConn) -> None:
        """A connection's socket is closed."""
        self._open.discard(conn)
        if not self._open:
            self._all_gone.set()

    def on_auth_refused(self, conn: ClientSession) -> None:
        if self._log is not None:
            self._log.error("authentication error", cid=conn.cid, ip=conn.ip, user=conn.user)

    def on_slow_consumer(self, conn: ClientOutput, reason: str) -> None:
        if self._log is not None:
            self._log.warning(
                reason, cid=conn.cid, ip=conn.ip, name=conn.name, pending=conn.pending_bytes
            )

    def info_line(
        self, conn: ClientSession, *, is_connect_info: bool = False, is_lame_duck: bool = False
    ) -> bytes:
        """Return the INFO line for `conn`, without CRLF."""
        info = {**self._info, "client_id": conn.cid, "client_ip": conn.ip}
        if is_connect_info:
            info["connect_info"] = True
            info["remote_account"] = ACCOUNT
        if is_lame_duck or self._is_lame_duck:
            info["ldm"] = True
        return b"INFO %b " % json.dumps(info, separators=(",", ":")).encode()
