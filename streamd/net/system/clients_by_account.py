"""Clients by account: which connections an account has, and the traffic of those that are gone."""

from __future__ import annotations

from streamd.net.client.client_registry import ClientConnection
from streamd.net.monitoring.account_views import AccountClients


class ClientsByAccount:
    """Observer of client connections (`ClientEvents`) that counts them with their accounts."""

    def __init__(self) -> None:
        self._by_account: dict[str, AccountClients] = {}
        self._counted: dict[int, AccountClients] = {}  # where, by cid

    def of(self, account: str) -> AccountClients:
        """Return the clients of an account."""
        return self._by_account.setdefault(account, AccountClients())

    def admitted(self, conn: ClientConnection) -> None:
        self._count(conn)

    def identified(self, conn: ClientConnection) -> None:
        self._count(conn)

    def refused(self, conn: ClientConnection) -> None:
        """Nothing changes: the end follows."""

    def closed(self, conn: ClientConnection) -> None:
        counted = self._counted.pop(conn.cid, None)
        if counted is not None:
            counted.remove(conn)

    def _count(self, conn: ClientConnection) -> None:
        """Count a connection with its account, once that is known, and with no other."""
        if conn.profile.identity is None:
            return
        before, clients = self._counted.get(conn.cid), self.of(conn.account)
        if before is not None and before is not clients:
            before.open.pop(conn.cid, None)
        clients.add(conn)
        self._counted[conn.cid] = clients
