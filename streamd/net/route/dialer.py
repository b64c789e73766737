"""Whom to dial: peers that were configured and peers that others told of, each until it is here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from streamd.config.cluster_options import LOOPBACK, RouteUrl, split_address
from streamd.limits import (
    PEER_BACKOFF_S_MAX,
    PEER_BACKOFF_S_MIN,
    PEER_DIAL_S,
    PEER_GOSSIP_TRIES_MIN,
    PEER_NODES_MAX,
)
from streamd.net.route.link import PeerLink
from streamd.types import NodeId

if TYPE_CHECKING:
    from streamd.net.route.links import Cluster

_WILDCARD = ("", "0.0.0.0", "::")


class Route:
    """One address to dial. Which node is there is known once it said so."""

    def __init__(self, url: RouteUrl, *, name: NodeId = "", is_explicit: bool) -> None:
        self.url = url
        self.name = name
        self.is_explicit = is_explicit
        self.is_self = False
        self.is_dropped = False
        self.is_failing = False
        self.tries = 0
        self.wake = asyncio.Event()  # something changed that the dialer should look at

    @property
    def address(self) -> str:
        return self.url.address


class PeerRoutes:
    """Dials each route whenever its node is not here, at growing intervals."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        options = cluster.options
        urls = {url.address: url for url in options.routes}
        self.explicit = [Route(url, is_explicit=True) for url in urls.values()]
        self._implicit: dict[NodeId, Route] = {}
        self._retries_max = max(options.connect_retries, PEER_GOSSIP_TRIES_MIN)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to dial. The port this server listens on is known by now."""
        self._tasks = tasks
        for route in self.explicit:
            self._begin(route)

    def change(self, urls: tuple[RouteUrl, ...]) -> None:
        """Dial these from now on. The link to a server that is no longer among them stays while it
        lasts: it may be a member of our groups all the same."""
        wanted = {url.address: url for url in urls}
        known = {route.address: route for route in self.explicit}
        for address in known.keys() - wanted.keys():
            known[address].is_dropped = True
            known[address].wake.set()
        self.explicit = []
        for address, url in wanted.items():
            route = known.get(address) or Route(url, is_explicit=True)
            route.url = url  # the credentials may be others
            self.explicit.append(route)
            if address not in known:
                self._begin(route)

    def close(self) -> None:
        """Dial no more."""
        self._tasks = None
        for task in self._running:
            task.cancel()

    def learn(self, name: NodeId, address: str) -> None:
        """Another server says that `name` can be dialed at `address`."""
        try:
            url = RouteUrl(*split_address(address))
        except ValueError:
            return
        for route in self.explicit:
            if route.address == address and not route.name and not route.is_self:
                self.is_at(route, name)
        known = self._implicit.get(name)
        if known is not None:
            if known.address != address:  # it came back elsewhere
                known.url = url
                known.wake.set()
            return
        if name == self._cluster.server_name or len(self._implicit) >= PEER_NODES_MAX:
            return
        if any(route.name == name or route.address == address for route in self.explicit):
            return
        route = self._implicit[name] = Route(url, name=name, is_explicit=False)
        self._run(route)

    def is_at(self, route: Route, name: NodeId) -> None:
        """The node behind `route` is `name`."""
        if route.is_explicit and route.name != name:
            route.name = name
            known = self._implicit.pop(name, None)
            if known is not None:
                known.is_dropped = True
                known.wake.set()

    def is_ours(self, route: Route) -> None:
        """`route` leads back to this server: it is not dialed again."""
        route.is_self = True
        route.wake.set()
        if not route.is_explicit:
            self._implicit.pop(route.name, None)

    def lost(self, name: NodeId) -> None:
        """The link to `name` is gone."""
        for route in [*self.explicit, *self._implicit.values()]:
            if route.name == name:
                route.wake.set()

    def expected_size(self, left_out: Collection[NodeId] = ()) -> int:
        """How many servers the configured routes lead to, this one included; some are not to be
        counted."""
        others = {route.name or route.address for route in self.explicit if not route.is_self}
        return len(others.difference(left_out)) + 1

    def unreached(self) -> list[str]:
        """Return the addresses of configured routes that lead to nobody at the moment."""
        return [
            route.address
            for route in self.explicit
            if not route.is_self and not (route.name and self._cluster.has_link(route.name))
        ]

    # --- the dialer -----------------------------------------------------------------------------

    def _begin(self, route: Route) -> None:
        route.is_self = self._is_own_address(route)
        if not route.is_self:
            self._run(route)

    def _run(self, route: Route) -> None:
        if self._tasks is not None:
            task = self._tasks.create_task(self._keep(route), name=f"route {route.address}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _keep(self, route: Route) -> None:
        loop = self._cluster.loop
        backoff_s = PEER_BACKOFF_S_MIN
        while not route.is_self and not route.is_dropped:
            route.wake.clear()
            started_s = loop.time()
            if route.name and self._cluster.has_link(route.name):
                await route.wake.wait()
            elif await self._dial(route):
                route.tries = 0
            elif not route.is_explicit and route.tries > self._retries_max:
                self._implicit.pop(route.name, None)
                return
            if route.is_self or route.is_dropped:
                return
            if loop.time() - started_s > PEER_BACKOFF_S_MAX:
                backoff_s = PEER_BACKOFF_S_MIN  # it was good for a while
            route.wake.clear()  # links that come and go at once must not hurry the next dial
            try:
                async with asyncio.timeout(backoff_s):
                    await route.wake.wait()
            except TimeoutError:
                pass  # nothing happened: try again
            backoff_s = min(backoff_s * 2, PEER_BACKOFF_S_MAX)

    async def _dial(self, route: Route) -> bool:
        """Connect and stay until the link is over. True if it was up."""
        cluster = self._cluster
        route.tries += 1
        await cluster.prepare_key(route)
        link = PeerLink(cluster, route)
        tls = cluster.tls.client if cluster.tls is not None else None
        try:
            async with asyncio.timeout(PEER_DIAL_S):
                await cluster.loop.create_connection(
                    lambda: link, route.url.host, route.url.port, ssl=tls
                )
        except (OSError, TimeoutError, ValueError) as err:  # ValueError: no name can be like that
            if not route.is_failing:  # once, until it works again
                route.is_failing = True
                text = str(err) or "timeout"
                cluster.log.warning(
                    f"Error trying to connect to route (attempt {route.tries}):"
                    f" dial tcp {route.address}: {text}"
                )
            return False
        await link.closed.wait()
        if link.was_up:
            route.is_failing = False
        return link.was_up

    def _is_own_address(self, route: Route) -> bool:
        own_host, own_port = self._cluster.host, self._cluster.port
        if route.address == self._cluster.options.advertise:
            return True
        if route.url.port != own_port:
            return False
        host = route.url.host
        return host == own_host or (host in LOOPBACK and own_host in (*_WILDCARD, *LOOPBACK))


def advertised(advertise: str, host: str, port: int) -> tuple[str, int]:
    """Return (host, port) that others should dial; host "": the one our packets come from."""
    if advertise:
        try:
            return split_address(advertise)
        except ValueError:
            return advertise.strip("[]"), port
    return ("" if host in _WILDCARD else host), port
