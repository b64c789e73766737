"""Observers of client connections: parts that are told when a client comes, logs in and goes.

`OpenConnections` tells them, on the loop, before the connection goes on; an observer writes to no
client while it is told, for the connection that it is told of may be the receiver.
"""

from __future__ import annotations

from typing import Protocol

from streamd.net.client.client_registry import ClientConnection


class ClientEvents(Protocol):
    """An observer of all client connections of a server."""

    def admitted(self, conn: ClientConnection) -> None:
        """Note a connection that was accepted; its client may have said nothing yet."""

    def identified(self, conn: ClientConnection) -> None:
        """Note that a CONNECT was accepted: `conn.profile` says whose. May come again."""

    def refused(self, conn: ClientConnection) -> None:
        """Note that the client is not let in, or not any more; `closed` follows."""

    def closed(self, conn: ClientConnection) -> None:
        """Note the end of a connection that was admitted, while its subscriptions can be seen."""
