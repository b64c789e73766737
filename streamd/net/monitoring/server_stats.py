"""Source of what monitoring shows: of all clients and accounts of a server, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from streamd.net.monitoring.account_views import AccountsView, AccountView, CountedClients
from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.net.monitoring.stats import (
    Clients,
    Connection,
    ConnectionStats,
    LeafRow,
    SublistStats,
    SubscriptionStats,
    Traffic,
    connection_stats,
    subscription_stats,
)
from streamd.net.pubsub.interest import RemoteSub
from streamd.types import NodeId


def no_leafs(_account: str) -> list[LeafRow]:
    """Return nothing: there are no leaf links."""
    return []


class ServerStats:
    """Source of stats. Every method may be called at any time; iterations are over copies, so there
    may be pauses between."""

    def __init__(
        self,
        clients: Clients,
        accounts: AccountsView,
        clients_of: Callable[[str], CountedClients],
    ) -> None:
        """`clients`: of the server; `clients_of(account)`: of one account."""
        self._clients = clients
        self.accounts = accounts
        self.clients_of = clients_of
        self.leafs_of: Callable[[str], list[LeafRow]] = no_leafs
        """account -> its leaf links that are up."""

    def every_account(self) -> list[AccountView]:
        """Return all accounts there are now."""
        found = map(self.accounts.get, self.accounts.names())
        return [account for account in found if account is not None]

    def _chosen(self, account: str | None) -> list[AccountView]:
        """Return the account of that name, or none; None: all of them."""
        if account is None:
            return self.every_account()
        found = self.accounts.get(account)
        return [found] if found is not None else []

    # --- connections ----------------------------------------------------------------------------

    def open_connections(self) -> list[Connection]:
        """Return the connections there are now, to be asked for their stats one by one: those of
        ten thousand would make work for the garbage collector."""
        return list(self._clients.open.values())

    def closed_connections(self) -> list[ConnectionStats]:
        """Return the connections that ended last, oldest first."""
        return list(self._clients.closed)

    def stats_of(self, connection: Connection | ConnectionStats) -> ConnectionStats:
        """Return what is shown of a connection of either list."""
        if isinstance(connection, ConnectionStats):
            return connection
        return connection_stats(connection)

    # --- counters -------------------------------------------------------------------------------

    def traffic(self) -> Steps[Traffic]:
        """Add up the counters of the server since the start."""
        clients, accounts = self._clients, self.every_account()
        return (
            yield from _added_up(
                clients,
                total_connections=clients.connections_total,
                subscriptions=sum(each.router.subscriptions.sublist.count for each in accounts),
                stale_connections=clients.stale_connections_count,
                stalled_clients=sum(each.router.stalled_count for each in accounts),
            )
        )

    def account_traffic(self, account: AccountView) -> Steps[Traffic]:
        """Add up the counters of an account; of connections those that are open."""
        clients = self.clients_of(account.name)
        return (
            yield from _added_up(
                clients,
                total_connections=len(clients.open),
                subscriptions=account.router.subscriptions.sublist.count,
                stale_connections=0,
                stalled_clients=account.router.stalled_count,
            )
        )

    def sublist(self, account: str | None = None) -> Steps[SublistStats]:
        """Measure the registries and their caches, of one account or of all."""
        chosen = [each.router.subscriptions for each in self._chosen(account)]
        total = highest = count = 0
        for subscriptions in chosen:
            routes = list(subscriptions.table.routes.values())
            count += len(routes)
            for route in looked_at(routes):
                if route is None:
                    yield
                    continue
                fanout = len(route.plain) + len(route.queues)
                total += fanout
                highest = max(highest, fanout)
        return SublistStats(
            subscriptions=sum(each.sublist.count for each in chosen),
            cache_entries=count,
            inserts=sum(each.sublist.insert_count for each in chosen),
            removes=sum(each.sublist.remove_count for each in chosen),
            max_fanout=highest,
            avg_fanout=total / count if count else 0.0,
        )

    # --- subscriptions --------------------------------------------------------------------------

    def subscriptions(self, account: str | None = None) -> Iterator[tuple[str, SubscriptionStats]]:
        """Yield subscriptions, each with the name of its account: those of the server itself, then
        connection by connection."""
        for chosen in self._chosen(account):
            name = chosen.name
            for sub in list(chosen.router.subscriptions.internal):
                yield name, subscription_stats(sub)
        conns: Iterable[Connection] = list(self._clients.open.values())
        for conn in conns:
            name = conn.account
            if account is None or name == account:
                for sub in list(conn.subs.values()):
                    yield name, subscription_stats(sub)

    def remote_subscriptions(self, node_id: NodeId) -> list[RemoteSub]:
        """Return the interest of another node's clients."""
        return [
            sub
            for account in self.every_account()
            for sub in account.router.subscriptions.remote_interest.of_node(node_id)
        ]


def _added_up(
    clients: CountedClients,
    *,
    total_connections: int,
    subscriptions: int,
    stale_connections: int,
    stalled_clients: int,
) -> Steps[Traffic]:
    conns = list(clients.open.values())
    # Taken with the list: a connection that closes meanwhile is counted as open, once.
    in_msgs, in_bytes = clients.closed_in_msgs, clients.closed_in_bytes
    out_msgs, out_bytes = clients.closed_out_msgs, clients.closed_out_bytes
    for conn in looked_at(conns):
        if conn is None:
            yield
            continue
        in_msgs += conn.in_msgs
        in_bytes += conn.in_bytes
        out_msgs += conn.out_msgs
        out_bytes += conn.out_bytes
    return Traffic(
        in_msgs=in_msgs,
        in_bytes=in_bytes,
        out_msgs=out_msgs,
        out_bytes=out_bytes,
        connections=len(clients.open),
        total_connections=total_connections,
        subscriptions=subscriptions,
        slow_consumers=clients.slow_consumers_count,
        stale_connections=stale_connections,
        stalled_clients=stalled_clients,
    )
