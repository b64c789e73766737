"""Table of links: those that exist, and the choice of the one that two servers keep."""

from __future__ import annotations

import asyncio
from typing import Protocol

from streamd.config.cluster_options import join_address
from streamd.limits import (
    LISTENER_CLOSE_S,
    PEER_CLOCK_SKEW_NS,
    PEER_HANDSHAKES_MAX,
    PEER_REFUSALS_MAX,
)
from streamd.net.route.dialer import Dialer
from streamd.net.route.link import DUPLICATE, DUPLICATE_NAME, SELF, SHUTDOWN, PeerLink
from streamd.net.route.local_server import LocalServer
from streamd.obs.server_log import Log
from streamd.protocol.node_hello import Hello
from streamd.types import NodeId


class LinkEvents(Protocol):
    """Follower of the links: the cluster as this server sees it."""

    def words(self) -> Hello:
        """Return the node's own words, for WELCOME."""

    def why_not_up(self, link: PeerLink) -> str:
        """Introduce the server behind a link; return why there can be no link, or ""."""

    def link_up(self, link: PeerLink) -> None:
        """Follow a link that is up."""

    def link_down(self, name: NodeId) -> None:
        """Follow the end of a link that was up."""

    def link_drained(self, name: NodeId) -> None:
        """Follow a link that was behind and has nearly caught up."""


class LinkTable:
    """The links of this server; see `link.LinkRegistry` for its side towards them.

    A server has at most one link in `up`. `_chosen` may hold one that is not up yet: the arbiter
    has said which.
    """

    def __init__(self, local: LocalServer, dialer: Dialer, events: LinkEvents, log: Log) -> None:
        self._local = local
        self._dialer = dialer
        self._events = events
        self._log = log
        self._open: set[PeerLink] = set()  # every socket that is not gone yet
        self._chosen: dict[NodeId, PeerLink] = {}  # that will be up, or are
        self.up: dict[NodeId, PeerLink] = {}
        self._rid = 0
        self._refused: set[tuple[str, str]] = set()  # (source, kind of fault) that were logged
        self._is_closing = False
        self._all_gone = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """True from when the server stops."""
        return self._is_closing

    def has_link(self, name: NodeId) -> bool:
        """True if there is no need to dial `name`."""
        return name in self._chosen

    def known(self) -> dict[NodeId, str]:
        """Return the servers with a link, and where they can be dialed."""
        return {name: join_address(*link.handshake.address) for name, link in self.up.items()}

    def begin_close(self) -> None:
        """Take in no more links."""
        self._is_closing = True

    async def close(self) -> None:
        """End all links."""
        for link in list(self._open):
            link.close(SHUTDOWN)
        if not self._open:
            return
        try:
            async with asyncio.timeout(LISTENER_CLOSE_S):
                await self._all_gone.wait()
        except TimeoutError:
            for link in list(self._open):
                link.abort()

    # --- for links ------------------------------------------------------------------------------

    def register(self, link: PeerLink) -> bool:
        """Take in a new connection; of too many that prove nothing, the oldest goes. False: the
        server stops."""
        if link.target is None:
            strangers = [
                each for each in self._open if each.target is None and not each.handshake.is_proven
            ]
            if len(strangers) >= PEER_HANDSHAKES_MAX:  # a server takes less time than they took
                min(strangers, key=lambda each: each.start_ns).cut("Too Many Handshakes")
        self._open.add(link)
        return not self._is_closing

    def welcome(self) -> dict[str, object]:
        """Return the content of WELCOME: the node's own words, and the other servers here."""
        return {"node": self._events.words(), "peers": self.known()}

    def is_configured(self, link: PeerLink) -> bool:
        """True if a configured route leads to where `link` does."""
        return any(target.name == link.name for target in self._dialer.explicit)

    def why_not(self, link: PeerLink, facts: dict[str, object]) -> str:
        """Judge a HELLO: return why there can be no link, or ""."""
        local, boot = self._local, link.handshake.boot
        if boot == local.boot:
            if link.target is not None:
                self._dialer.leads_here(link.target)
            return SELF
        cluster = facts.get("cluster")
        own_cluster = local.cluster_name
        if not isinstance(cluster, str) or (cluster and own_cluster and cluster != own_cluster):
            return f"Cluster Name Conflict: {cluster!r} and {own_cluster!r}"
        if link.name == local.name:
            return f"{DUPLICATE_NAME}: {link.name}"
        if link.target is not None:
            self._dialer.leads_to(link.target, link.name)
        existing = self._chosen.get(link.name)
        if existing is not None and existing.is_up:
            if existing.handshake.boot != boot:
                return "" if existing.is_doubtful else f"{DUPLICATE_NAME}: {link.name}"
            if link.target is not None:
                return DUPLICATE
        their_ns = facts.get("time_ns")
        if not isinstance(their_ns, int):
            return "Protocol Violation: HELLO without a time"
        skew_ns = local.clock.now_ns() - their_ns
        if abs(skew_ns) > PEER_CLOCK_SKEW_NS and self._is_new_fault(link.name, "clock"):
            self._log.warning(
                "clocks differ: times of messages will jump when a leader changes",
                node=link.name,
                seconds=round(skew_ns / 1e9),
            )
        return ""

    def choose(self, link: PeerLink) -> str:
        """Keep `link`, as the arbiter; or return why another one is kept."""
        existing = self._chosen.get(link.name)
        if existing is not None and existing is not link:
            if not existing.is_doubtful:
                same = existing.handshake.boot == link.handshake.boot
                return DUPLICATE if same else f"{DUPLICATE_NAME}: {link.name}"
            existing.cut("Replaced")
        self._chosen[link.name] = link
        link.is_chosen = True
        return ""

    def replaced_by(self, link: PeerLink) -> None:
        """Keep `link`, which the arbiter on the other side chose, instead of any other."""
        existing = self._chosen.get(link.name)
        if existing is not None:
            existing.cut("Replaced")
        self._chosen[link.name] = link
        link.is_chosen = True

    def came_up(self, link: PeerLink) -> None:
        """Take in a link whose handshake is done."""
        self._rid += 1
        link.rid = self._rid
        self.up[link.name] = link
        reason = self._events.why_not_up(link)
        if reason:
            del self.up[link.name]
            link.exchange.is_up = False
            link.refuse(reason)
            return
        if link.reason:
            return  # the handler's own sending failed
        link.was_up = True
        self._refused = {entry for entry in self._refused if entry[0] != link.source}
        address = join_address(link.ip, link.port)
        self._log.info(f"{address} - rid:{link.rid} - Route connection created", node=link.name)
        self._events.link_up(link)

    def drained(self, link: PeerLink) -> None:
        """Note that `link` was behind and has nearly caught up."""
        self._events.link_drained(link.name)

    def lost(self, link: PeerLink) -> None:
        """Drop a link: nothing comes from it any more. May be called again."""
        name = link.name
        if self._chosen.get(name) is link:
            del self._chosen[name]
            if not self._is_closing:
                self._dialer.lost(name)
        if not link.is_up:
            return
        link.exchange.is_up = False
        del self.up[name]
        address = join_address(link.ip, link.port)
        self._log.info(
            f"{address} - rid:{link.rid} - Router connection closed: {link.reason}", node=name
        )
        if not self._is_closing:
            self._events.link_down(name)

    def gone(self, link: PeerLink) -> None:
        """Drop a connection: its socket is closed."""
        self._open.discard(link)
        if not self._open:
            self._all_gone.set()

    def refused(self, link: PeerLink, reason: str) -> None:
        """Log that a handshake or link failed by somebody's fault: once for each source."""
        if not self._is_closing and self._is_new_fault(link.source, reason.partition(":")[0]):
            fields: dict[str, object] = {"address": join_address(link.ip, link.port)}
            if link.name:
                fields["node"] = link.name
            self._log.error(f"route connection refused: {reason}", **fields)

    def _is_new_fault(self, source: str, kind: str) -> bool:
        if (source, kind) in self._refused:
            return False
        if len(self._refused) >= PEER_REFUSALS_MAX:
            self._refused.clear()
        self._refused.add((source, kind))
        return True
