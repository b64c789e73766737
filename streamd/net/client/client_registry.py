"""Registry of client connections: those that are open, the last that were closed, and totals.

The server has one. The listener enters connections, monitoring reads.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from streamd.net.monitoring.stats import Connection, ConnectionStats, last_stats

Conn = TypeVar("Conn", bound=Connection)


class ClientRegistry(Generic[Conn]):
    """Open connections by cid, in the order they came, and counters of all since the start."""

    def __init__(self, closed_max: int) -> None:
        """`closed_max`: how many closed connections are remembered."""
        self.open: dict[int, Conn] = {}
        self.closed: deque[ConnectionStats] = deque(maxlen=max(0, closed_max))
        # Totals of closed connections; those of open ones are added when somebody asks.
        self.closed_in_msgs = self.closed_in_bytes = 0
        self.closed_out_msgs = self.closed_out_bytes = 0
        self.slow_consumers_count = 0
        self.stale_connections_count = 0
        self.connections_total = 0

    def close(self, conn: Conn) -> None:
        """Move a connection that ends to the closed ones; its counters join the totals."""
        if self.open.pop(conn.cid, None) is None:
            return
        self.closed_in_msgs += conn.in_msgs
        self.closed_in_bytes += conn.in_bytes
        self.closed_out_msgs += conn.out_msgs
        self.closed_out_bytes += conn.out_bytes
        self.closed.append(last_stats(conn))
