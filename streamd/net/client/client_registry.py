"""Registry of client connections: those that are open, the last that were closed, and totals.

The server has one. The listener enters connections, monitoring reads.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from streamd.net.client.auth import ClientPolicy
from streamd.net.client.profile import ClientProfile
from streamd.net.client.reauthentication import Judged
from streamd.net.client.server_info import ServerInfo
from streamd.net.monitoring.stats import Connection, ConnectionStats, last_stats


class ClientConnection(Connection, Judged, Protocol):
    """A connection as the server sees it that counts, informs, judges and ends it."""

    @property
    def profile(self) -> ClientProfile: ...

    @property
    def policy(self) -> ClientPolicy:
        """The configuration that holds for the connection: one object a listener."""

    @property
    def info(self) -> ServerInfo:
        """The document that describes the server to it."""

    def close(self, reason: str, text: bytes = b"") -> None:
        """End the connection when its buffered output has gone."""

    def cut_off(self) -> None:
        """Drop the socket, buffered output and all."""

    def send_info(self, *, is_lame_duck: bool = False) -> None:
        """Tell the client how the server is now."""

    def apply_options(self) -> None:
        """Use the limits of a configuration that was read again."""


class ClientRegistry:
    """Open connections by cid, in the order they came, and counters of all since the start."""

    def __init__(self, closed_max: int) -> None:
        """`closed_max`: how many closed connections are remembered."""
        self.open: dict[int, ClientConnection] = {}
        self.closed: deque[ConnectionStats] = deque(maxlen=max(0, closed_max))
        # Totals of closed connections; those of open ones are added when somebody asks.
        self.closed_in_msgs = self.closed_in_bytes = 0
        self.closed_out_msgs = self.closed_out_bytes = 0
        self.slow_consumers_count = 0
        self.stale_connections_count = 0
        self.connections_total = 0

    def close(self, conn: ClientConnection) -> bool:
        """Move a connection that ends to the closed ones; its counters join the totals. False: it
        was not open."""
        if self.open.pop(conn.cid, None) is None:
            return False
        self.closed_in_msgs += conn.in_msgs
        self.closed_in_bytes += conn.in_bytes
        self.closed_out_msgs += conn.out_msgs
        self.closed_out_bytes += conn.out_bytes
        self.closed.append(last_stats(conn))
        return True
