"""Controls of a running server that operators reach by requests in the system account."""

from __future__ import annotations

from collections.abc import Callable

from streamd.net.client.client_registry import ClientRegistry


class OperatorControls:
    """Reloads the server, ends connections and sends clients away (`ServerControls`)."""

    def __init__(self, clients: ClientRegistry, reload: Callable[[], str]) -> None:
        """`reload` reads the configuration again, and returns why that failed."""
        self._clients = clients
        self.reload = reload

    def kick(self, cid: int) -> bool:
        """End the connection of a client, without a word; False: it has none."""
        conn = self._clients.open.get(cid)
        if conn is not None:
            conn.close("Kicked")
        return conn is not None

    def send_away(self, cid: int) -> bool:
        """Tell a client to connect to another server; False: there is no such client."""
        conn = self._clients.open.get(cid)
        if conn is not None:
            conn.send_info(is_lame_duck=True)
        return conn is not None
