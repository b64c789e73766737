"""Accounts as monitoring and the system account's requests read them.

`net` makes the accounts; here are Protocols of what is read of them, and the one part of an account
that monitoring gives it: its clients, counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streamd.config.account_options import AccountOptions
from streamd.net.monitoring.stats import Connection
from streamd.net.pubsub.message_router import MessageRouter


class AccountClients:
    """Open connections of one account by cid, and totals of those that are gone."""

    def __init__(self) -> None:
        self.open: dict[int, Connection] = {}
        self.closed_in_msgs = self.closed_in_bytes = 0
        self.closed_out_msgs = self.closed_out_bytes = 0
        self.slow_consumers_count = 0

    def add(self, conn: Connection) -> None:
        """Count a connection that belongs to the account from here on."""
        self.open[conn.cid] = conn

    def remove(self, conn: Connection) -> None:
        """Move a connection that ends to the totals; nothing happens if it is not the account's."""
        if self.open.pop(conn.cid, None) is None:
            return
        self.closed_in_msgs += conn.in_msgs
        self.closed_in_bytes += conn.in_bytes
        self.closed_out_msgs += conn.out_msgs
        self.closed_out_bytes += conn.out_bytes
        self.slow_consumers_count += conn.reason.startswith("Slow Consumer")


class CountedClients(Protocol):
    """Clients of an account or a server, as they are read."""

    @property
    def open(self) -> Mapping[int, Connection]: ...
    @property
    def closed_in_msgs(self) -> int: ...
    @property
    def closed_in_bytes(self) -> int: ...
    @property
    def closed_out_msgs(self) -> int: ...
    @property
    def closed_out_bytes(self) -> int: ...
    @property
    def slow_consumers_count(self) -> int: ...


class AccountView(Protocol):
    """Account as `/accountz` tells it."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> AccountOptions:
        """Options that hold now."""

    @property
    def router(self) -> MessageRouter:
        """Subject space of the account."""

    @property
    def updated_ns(self) -> int:
        """Unix time at which the account got the options that it has."""


class AccountsView(Protocol):
    """Accounts of a server."""

    @property
    def main(self) -> AccountView:
        """Account of clients without one, `$G`."""

    @property
    def system(self) -> AccountView:
        """Account of operators, `$SYS` unless the configuration names another."""

    def names(self) -> Sequence[str]:
        """Return the names of all accounts."""

    def get(self, name: str) -> AccountView | None:
        """Return the account called `name`; None: there is none."""
