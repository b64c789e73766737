"""Remotes: dials each configured hub, and dials it again whenever the link has ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Protocol

from streamd.config.cluster_options import split_address
from streamd.config.leaf_options import LeafRemote, LeafUrl
from streamd.limits import LEAF_URLS_MAX
from streamd.net.leaf.leaf_link import LeafLink
from streamd.obs.server_log import Log


class Dialing(Protocol):
    """The way to a hub: makes the socket, and the link on it."""

    async def dial(self, remote: LeafRemote, url: LeafUrl) -> LeafLink:
        """Connect; the link's own handshake goes on. Raises OSError, TimeoutError, ValueError."""


class Remote:
    """Configured hub, and the task that keeps a link to it."""

    def __init__(
        self, remote: LeafRemote, dialing: Dialing, log: Log, *, reconnect_s: float
    ) -> None:
        self.options = remote
        self._dialing = dialing
        self._log = log
        self._reconnect_s = reconnect_s
        self._learned: list[LeafUrl] = []
        self.attempt_count = 0  # since there was a link
        self.link: LeafLink | None = None

    def learn(self, addresses: list[str]) -> None:
        """Take in addresses of the hub's other servers, to be dialed if the configured are away."""
        options = self.options
        if options.ignores_discovered or not options.urls:
            return
        known = {url.address for url in options.urls}
        first = options.urls[0]
        self._learned = []
        for address in addresses:
            try:
                host, port = split_address(address)
            except ValueError:
                continue
            if address not in known and len(self._learned) < LEAF_URLS_MAX:
                known.add(address)
                self._learned.append(first._replace(host=host, port=port))

    async def keep(self) -> None:
        """Dial until cancelled."""
        while True:
            for url in self._order():
                wait_s = await self._try(url)
                await asyncio.sleep(wait_s)

    def _order(self) -> list[LeafUrl]:
        urls = list(self.options.urls)
        if self.options.is_randomized:
            random.shuffle(urls)
        return urls + self._learned

    async def _try(self, url: LeafUrl) -> float:
        """Dial one URL, and stay while the link lasts; returns how long to wait then."""
        self.attempt_count += 1
        try:
            self.link = link = await self._dialing.dial(self.options, url)
        except (OSError, TimeoutError, ValueError) as err:
            if self.attempt_count == 1 or not self.attempt_count % 60:
                text = str(err) or "i/o timeout"
                self._log.error(
                    f'Error trying to connect as leafnode to remote server "{url.address}"'
                    f" (attempt {self.attempt_count}): {text}"
                )
            return self._reconnect_s + random.random() * 0.1
        try:
            await link.over.wait()
        finally:
            self.link = None
        if link.space is not None:
            self.attempt_count = 0
        return max(self._reconnect_s, link.retry_s)


class Remotes:
    """Remotes of this server, each kept by a task of its own."""

    def __init__(
        self,
        make: Callable[[LeafRemote], Remote],
        create_task: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._make = make
        self._create_task = create_task
        self._running: dict[Remote, asyncio.Task[None]] = {}

    def change(self, wanted: Iterable[LeafRemote]) -> None:
        """Dial these remotes and no others. Links to those that stay are not interrupted."""
        missing = {each.key: each for each in wanted if each.urls and not each.is_disabled}
        for remote in list(self._running):
            options = missing.get(remote.options.key)
            if options is None or options.compression != remote.options.compression:
                self._end(remote)  # if it is still wanted, it is dialed anew
            else:
                del missing[options.key]
        for options in missing.values():
            remote = self._make(options)
            name = f"leaf {options.urls[0].address}"
            self._running[remote] = self._create_task(remote.keep(), name=name)

    def _end(self, remote: Remote) -> None:
        self._running.pop(remote).cancel()
        if remote.link is not None:
            remote.link.close("Client Closed")

    def close(self) -> None:
        """Dial no more."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    def of_link(self, link: LeafLink) -> Remote | None:
        """Return the remote that a link belongs to."""
        return next((remote for remote in self._running if remote.link is link), None)
