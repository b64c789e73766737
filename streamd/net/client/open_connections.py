"""Open client connections: admission by number, the list of their sockets, their end, reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamd.config.cluster_options import join_address
from streamd.limits import LISTENER_CLOSE_S
from streamd.net.client.auth import ClientPolicy
from streamd.net.client.client_events import ClientEvents
from streamd.net.client.client_registry import ClientConnection, ClientRegistry
from streamd.net.client.reauthentication import Judged, Reauthentication
from streamd.net.tls.facts import TlsFault
from streamd.obs.server_log import Log
from streamd.protocol.connect_options import ConnectOptions


class OpenConnections:
    """The client connections of one server.

    `connections_max`, if not 0, is how many connections the process can afford, whatever the
    options allow.
    """

    def __init__(
        self,
        policy: ClientPolicy,
        registry: ClientRegistry,
        clock: Callable[[], float],
        log: Log | None,
        connections_max: int,
    ) -> None:
        self._policy = policy
        self._registry = registry
        self._clock = clock
        self._log = log
        self._connections_max = connections_max
        self._refused_at = 0  # number of connections at the last warning; 0: none is due
        self._all_gone = asyncio.Event()
        self._observers: list[ClientEvents] = []
        # Sockets that are not released yet: a closed connection stays while its last bytes go out.
        self.all: set[ClientConnection] = set()

    def observe(self, observer: ClientEvents) -> None:
        """Tell `observer` of connections from here on."""
        self._observers.append(observer)

    def admit(self, conn: ClientConnection) -> bytes:
        """Take in a new connection and number it; returns why not, as the text of its `-ERR`."""
        registry = self._registry
        registry.connections_total += 1
        conn.profile.cid = registry.connections_total
        self.all.add(conn)
        count = len(registry.open)
        if 0 < self._connections_max <= count:
            return self._refuse(count, "the process may not open enough files (ulimit -n)")
        if 0 < self._policy.options.max_connections <= count:
            return self._refuse(count, "maximum connections exceeded (max_connections)")
        if count < self._refused_at // 2:
            self._refused_at = 0
        registry.open[conn.cid] = conn
        for observer in self._observers:
            observer.admitted(conn)
        return b""

    def _refuse(self, count: int, reason: str) -> bytes:
        """Warn in the log, once until half of the connections are gone."""
        if self._log is not None and not self._refused_at:
            self._refused_at = count
            self._log.warning(f"clients are refused: {reason}", connections=count)
        return b"maximum connections exceeded"

    def identified(self, conn: ClientConnection) -> None:
        """Tell observers that the client of a connection is known."""
        for observer in self._observers:
            observer.identified(conn)

    def refused(self, conn: ClientConnection) -> None:
        """Report a client that is not let in."""
        if self._log is not None:
            refusal = conn.profile.refusal
            if refusal is not None and refusal.reason:
                tell = getattr(self._log, refusal.level)
                tell(refusal.reason, cid=conn.cid, ip=conn.ip)
            whose = _named_in(conn.connect or {})
            self._log.error(f"authentication error{whose}", cid=conn.cid, ip=conn.ip)
        for observer in self._observers:
            observer.refused(conn)

    def close(self, conn: ClientConnection) -> None:
        """Move a connection that ends to the closed ones, while its subscriptions can be seen."""
        if self._registry.close(conn):
            for observer in self._observers:
                observer.closed(conn)

    def release(self, conn: ClientConnection) -> None:
        """Forget a connection whose socket is closed."""
        self.all.discard(conn)
        if not self.all:
            self._all_gone.set()

    def reauthenticate(self, conns: list[ClientConnection]) -> None:
        """Judge connections by the configuration that holds now for each listener."""
        for policy in {id(conn.policy): conn.policy for conn in conns}.values():
            judged: list[Judged] = [conn for conn in conns if conn.policy is policy]
            self._reauthenticate(judged, policy)

    def _reauthenticate(self, judged: list[Judged], policy: ClientPolicy) -> None:
        auth = policy.auth
        Reauthentication(judged, auth, lambda: auth is policy.auth, self._clock).go_on()

    async def close_all(self, *, leaves_idle: bool) -> None:
        """End all connections, and cut off those that do not read their last output in time.

        With `leaves_idle` those that have nothing more to be sent are left to the end of the
        process. A WebSocket has an end of its own to be sent.
        """
        ending = [
            conn
            for conn in self.all
            if conn.pending_bytes or conn.profile.is_websocket or not leaves_idle
        ]
        for conn in ending:
            conn.close("Server Shutdown")
        if leaves_idle:
            self.all.intersection_update(ending)
        if not self.all:
            return
        self._all_gone.clear()
        try:
            async with asyncio.timeout(LISTENER_CLOSE_S):
                await self._all_gone.wait()
        except TimeoutError:
            for conn in list(self.all):
                conn.cut_off()

    # --- reports --------------------------------------------------------------------------------

    def report_slow(self, reason: str, *, cid: int, ip: str, name: str, pending: int) -> None:
        """Count and log a client that was cut off since it reads too slowly."""
        self._registry.slow_consumers_count += 1
        if self._log is not None:
            self._log.warning(reason, cid=cid, ip=ip, name=name, pending=pending)

    def report_no_tls(self, fault: TlsFault, *, cid: int, ip: str, port: int) -> None:
        """Log a client that has no TLS: as an error if it is about certificates, which somebody
        has to see to; strangers that say something else come every day."""
        if self._log is None:
            return
        log = self._log.error if fault.is_certificate else self._log.debug
        log(f"{join_address(ip, port)} - cid:{cid} - TLS handshake error: {fault.text}")

    def report_other_name(self, name: str, *, cid: int, ip: str) -> None:
        """Log a client that gives a name, although its certificate says who it is."""
        if self._log is not None:
            text = f'User "{name}" found in connect proto, but user required from cert'
            self._log.warning(text, cid=cid, ip=ip)

    def report_throttled(self, count: int) -> None:
        """Log how many connections were refused in a second since too many handshakes began."""
        if self._log is not None:
            self._log.warning(f"Rejected {count} connections due to TLS rate limiting")

    def count_stale(self) -> None:
        """Count a client that was cut off since it answers no PING."""
        self._registry.stale_connections_count += 1


def _named_in(connect: ConnectOptions) -> str:
    """Return who a client says it is, as the log of refused logins has it."""
    if connect.get("nkey"):
        return f' - Nkey "{connect["nkey"]}"'
    if connect.get("user"):
        return f' - User "{connect["user"]}"'
    return ' - Token "[REDACTED]"' if connect.get("auth_token") else ""
