"""Dialer: dials configured peers, and those that others told of, until each of them is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from streamd.config.cluster_options import LOOPBACK, RouteUrl, split_address
from streamd.limits import (
    PEER_BACKOFF_S_MAX,
    PEER_BACKOFF_S_MIN,
    PEER_DIAL_S,
    PEER_GOSSIP_TRIES_MIN,
    PEER_NODES_MAX,
)
from streamd.net.route.dial_target import DialTarget
from streamd.net.route.link import PeerLink
from streamd.net.route.local_server import WILDCARDS, LocalServer
from streamd.obs.server_log import Log
from streamd.types import NodeId


class Secure(Protocol):
    """TLS of links that this server dials."""

    def connect(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        up: asyncio.Future[None],
    ) -> asyncio.Protocol:
        """Return the protocol of a socket to `host`; `up` is done when that of `make` has begun,
        or has a ConnectionError that says why not."""


class Dialer:
    """Dials each target whenever its server is not here, at growing intervals."""

    def __init__(
        self,
        local: LocalServer,
        has_link: Callable[[NodeId], bool],
        make_link: Callable[[DialTarget], PeerLink],
        log: Log,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`has_link(name)`: there is no need to dial that server."""
        self._local = local
        self._has_link = has_link
        self._make_link = make_link
        self._log = log
        self._loop = loop
        self._tls: Secure | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        urls = {url.address: url for url in local.options.routes}
        self.explicit = [DialTarget(url, is_explicit=True) for url in urls.values()]
        self._implicit: dict[NodeId, DialTarget] = {}
        self._retries_max = max(local.options.connect_retries, PEER_GOSSIP_TRIES_MIN)

    def start(self, tasks: asyncio.TaskGroup, tls: Secure | None) -> None:
        """Begin to dial. The port this server listens on is known by now."""
        self._tasks = tasks
        self._tls = tls
        for target in self.explicit:
            self._begin(target)

    def change(self, urls: tuple[RouteUrl, ...]) -> None:
        """Dial these from now on. The link to a server that is no longer among them stays while it
        lasts: it may be a member of our groups all the same."""
        wanted = {url.address: url for url in urls}
        known = {target.address: target for target in self.explicit}
        for address in known.keys() - wanted.keys():
            known[address].is_dropped = True
            known[address].wake.set()
        self.explicit = []
        for address, url in wanted.items():
            target = known.get(address) or DialTarget(url, is_explicit=True)
            target.url = url  # the credentials may be others
            self.explicit.append(target)
            if address not in known:
                self._begin(target)

    def close(self) -> None:
        """Dial no more."""
        self._tasks = None
        for task in self._running:
            task.cancel()

    def learn(self, name: NodeId, address: str) -> None:
        """Take in that another server says `name` can be dialed at `address`."""
        try:
            url = RouteUrl(*split_address(address))
        except ValueError:
            return
        for target in self.explicit:
            if target.address == address and not target.name and not target.is_self:
                self.leads_to(target, name)
        known = self._implicit.get(name)
        if known is not None:
            if known.address != address:  # it came back elsewhere
                known.url = url
                known.wake.set()
            return
        if name == self._local.name or len(self._implicit) >= PEER_NODES_MAX:
            return
        if any(target.name == name or target.address == address for target in self.explicit):
            return
        target = self._implicit[name] = DialTarget(url, name=name, is_explicit=False)
        self._run(target)

    def leads_to(self, target: DialTarget, name: NodeId) -> None:
        """Note that the server behind `target` is `name`."""
        if target.is_explicit and target.name != name:
            target.name = name
            known = self._implicit.pop(name, None)
            if known is not None:
                known.is_dropped = True
                known.wake.set()

    def leads_here(self, target: DialTarget) -> None:
        """Dial `target` no more: it leads back to this server."""
        target.is_self = True
        target.wake.set()
        if not target.is_explicit:
            self._implicit.pop(target.name, None)

    def lost(self, name: NodeId) -> None:
        """Dial `name` again: the link to it is gone."""
        for target in [*self.explicit, *self._implicit.values()]:
            if target.name == name:
                target.wake.set()

    def expected_size(self, left_out: Collection[NodeId] = ()) -> int:
        """Return how many servers the configured routes lead to, this one included, without those
        in `left_out`."""
        others = {target.name or target.address for target in self.explicit if not target.is_self}
        return len(others.difference(left_out)) + 1

    def unreached(self) -> list[str]:
        """Return the addresses of configured routes without a link at the moment."""
        return [
            target.address
            for target in self.explicit
            if not target.is_self and not (target.name and self._has_link(target.name))
        ]

    # --- the dialer -----------------------------------------------------------------------------

    def _begin(self, target: DialTarget) -> None:
        target.is_self = self._is_own_address(target)
        if not target.is_self:
            self._run(target)

    def _run(self, target: DialTarget) -> None:
        if self._tasks is not None:
            task = self._tasks.create_task(self._keep(target), name=f"route {target.address}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _keep(self, target: DialTarget) -> None:
        loop = self._loop
        backoff_s = PEER_BACKOFF_S_MIN
        while not target.is_self and not target.is_dropped:
            target.wake.clear()
            started_s = loop.time()
            if target.name and self._has_link(target.name):
                await target.wake.wait()
            elif await self._dial(target):
                target.tries = 0
            elif not target.is_explicit and target.tries > self._retries_max:
                self._implicit.pop(target.name, None)
                return
            if target.is_self or target.is_dropped:
                return
            if loop.time() - started_s > PEER_BACKOFF_S_MAX:
                backoff_s = PEER_BACKOFF_S_MIN  # it was good for a while
            target.wake.clear()  # links that come and go at once must not hurry the next dial
            try:
                async with asyncio.timeout(backoff_s):
                    await target.wake.wait()
            except TimeoutError:
                pass  # nothing happened: try again
            backoff_s = min(backoff_s * 2, PEER_BACKOFF_S_MAX)

    async def _dial(self, target: DialTarget) -> bool:
        """Connect and stay until the link is over. True if it was up."""
        target.tries += 1
        await self._local.prepare_key(target)
        link = self._make_link(target)
        try:
            async with asyncio.timeout(PEER_DIAL_S):
                await self._connect(link, target.url.host, target.url.port)
        except (OSError, TimeoutError, ValueError) as err:  # ValueError: no name can be like that
            if not target.is_failing:  # once, until it works again
                target.is_failing = True
                text = str(err) or "timeout"
                self._log.warning(
                    f"Error trying to connect to route (attempt {target.tries}):"
                    f" dial tcp {target.address}: {text}"
                )
            return False
        await link.closed.wait()
        if link.was_up:
            target.is_failing = False
        return link.was_up

    async def _connect(self, link: PeerLink, host: str, port: int) -> None:
        """Connect `link`. Raises OSError, TimeoutError, ValueError."""
        loop, tls = self._loop, self._tls
        if tls is None:
            await loop.create_connection(lambda: link, host, port)
            return
        up: asyncio.Future[None] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: tls.connect(lambda: link, host, up), host, port
        )
        try:
            await up
        except BaseException:
            transport.abort()
            raise

    def _is_own_address(self, target: DialTarget) -> bool:
        own_host, own_port = self._local.host, self._local.port
        if target.address == self._local.options.advertise:
            return True
        if target.url.port != own_port:
            return False
        host = target.url.host
        return host == own_host or (host in LOOPBACK and own_host in (*WILDCARDS, *LOOPBACK))
