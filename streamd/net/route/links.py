"""Links to the other servers of the cluster: one to each, whoever dialed it.

`node.ports.Peers` for the node, `PeerLinks` for core NATS. The parts:

    LocalServer    this server as it introduces itself          `local_server.py`
    Dialer         dials servers that are not here              `dialer.py`
    LinkTable      all links, and the choice of those kept      `link_table.py`
    PeerDispatch   receivers of messages from other servers     `peer_dispatch.py`
    ClientUrls     addresses for clients                        `client_urls.py`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streamd.config.cluster_options import ClusterOptions, join_address
from streamd.config.options import Options
from streamd.errors import CLUSTER_NOT_AVAIL, ConfigError
from streamd.limits import PEER_BEAT_S
from streamd.net.monitoring.stats import RouteStats
from streamd.net.route.client_urls import ClientUrls
from streamd.net.route.dial_target import DialTarget
from streamd.net.route.dialer import Dialer
from streamd.net.route.link import PeerLink
from streamd.net.route.link_table import LinkTable
from streamd.net.route.local_server import LocalServer
from streamd.net.route.peer_dispatch import PeerDispatch
from streamd.net.route.remote_messages import OnNode, TakeNote
from streamd.net.sockets import serve
from streamd.net.tls.facts import TlsFault
from streamd.net.tls.handshakes import Handshakes
from streamd.node.ports import Clock, Done, PeerHandler
from streamd.obs.server_log import Log
from streamd.protocol import peer_schemas
from streamd.protocol.node_hello import Hello
from streamd.protocol.peer_frames import RaftMessage
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.types import NodeId, Uid

if TYPE_CHECKING:
    from streamd.net.route.route_tls import PeerTls


class ClusterLinks:
    """The links of this server: their start and end, and the followers of both."""

    def __init__(
        self,
        options: Options,
        *,
        server_name: NodeId,
        log: Log,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        server_id: str = "",
        handshakes: Handshakes | None = None,
    ) -> None:
        self.local = LocalServer(
            options.cluster, server_name=server_name, server_id=server_id, clock=clock
        )
        self.dispatch = PeerDispatch(log)
        self.tls: PeerTls | None = None
        self._log = log
        self._loop = loop
        self._handshakes = handshakes or Handshakes()
        self._dialer = Dialer(self.local, self._has_link, self._make_link, log, loop)
        self.table = LinkTable(self.local, self._dialer, self, log)
        self._up = self.table.up
        self._urls = ClientUrls()
        self._websocket_urls = ClientUrls()
        self._server: asyncio.Server | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self._streamless: set[NodeId] = set()  # servers that were met, and have no JetStream
        self._on_up: list[OnNode] = []
        self._on_down: list[OnNode] = []
        self._on_drained: list[OnNode] = []
        self.dispatch.on_note_prefix("net.peers", self._on_peers)
        self.dispatch.on_note_prefix("net.urls", self._on_urls_note)
        self.dispatch.on_note_prefix("net.ws_urls", self._on_websocket_urls_note)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Listen and dial, in tasks of `tasks`. Raises OSError, OverflowError, ConfigError."""
        options, local = self.local.options, self.local
        if options.port > 65535:  # uvloop would take it modulo 65536
            raise OverflowError(options.port)
        self.tls = self._make_tls(options)
        await local.prepare_key(None)
        self._server = await serve(
            self._loop,
            self._accept,
            options.host,
            options.port,
        )
        local.port = self._server.sockets[0].getsockname()[1]
        self._log.info(f"Listening for route connections on {join_address(local.host, local.port)}")
        self._is_started = True
        self._dialer.start(tasks, self.tls)
        self._beat()

    async def close(self) -> None:
        """Stop listening and dialing, end all links. The handler is not called any more."""
        self.table.begin_close()
        self._dialer.close()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        if self._server is not None:
            self._server.close()
        await self.table.close()

    def _make_tls(self, options: ClusterOptions) -> PeerTls | None:
        if options.tls is None:
            return None
        # OpenSSL and certificates cost a tenth of a second, which a cluster in clear saves.
        from streamd.net.route.route_tls import PeerTls

        return PeerTls(options, self._handshakes, self._loop, self._report_no_tls)

    def _accept(self) -> asyncio.BaseProtocol:
        if self.tls is None:
            return self._make_link(None)
        return self.tls.accept(lambda: self._make_link(None))

    def _report_no_tls(self, address: str, fault: TlsFault) -> None:
        log = self._log.error if fault.is_certificate else self._log.debug
        log(f"{address} - TLS route handshake error: {fault.text}")

    def _make_link(self, target: DialTarget | None) -> PeerLink:
        return PeerLink(target, self.local, self.table, self.dispatch, self._loop)

    def _has_link(self, name: NodeId) -> bool:
        return self.table.has_link(name)

    def _beat(self) -> None:
        # The next is due this long after this one, not after when this was due: a loop that hung
        # finds what came meanwhile in its sockets before it misses a second beat.
        self._beat_timer = self._loop.call_later(PEER_BEAT_S, self._beat)
        for link in list(self._up.values()):
            link.beat()

    # --- Peers ----------------------------------------------------------------------------------

    def send(self, node_id: NodeId, uid: Uid, messages: list[RaftMessage]) -> None:
        """See ports.Peers."""
        link = self._up.get(node_id)
        if link is not None:
            link.exchange.send_raft(uid, messages)

    def call(
        self,
        node_id: NodeId,
        method: str,
        args: Sequence[object],
        done: Done,
        timeout_ms: int = 5000,
    ) -> None:
        """See ports.Peers."""
        link = self._up.get(node_id)
        if link is None:
            self._loop.call_soon(done, CLUSTER_NOT_AVAIL())
        else:
            link.exchange.call(method, args, done, timeout_ms)

    def note(self, node_id: NodeId, kind: str, args: Sequence[object]) -> None:
        """See ports.Peers."""
        link = self._up.get(node_id)
        if link is not None:
            link.exchange.note(kind, args)

    def is_up(self, node_id: NodeId) -> bool:
        """See ports.Peers."""
        return node_id in self._up

    def nodes(self) -> list[NodeId]:
        """See ports.Peers."""
        return sorted(self._up)

    def refuse(self, node_id: NodeId, reason: str) -> None:
        """See ports.Peers."""
        link = self._up.get(node_id)
        if link is not None:
            link.refuse(reason)

    # --- for others of this server --------------------------------------------------------------

    def serve_node(self, handler: PeerHandler) -> None:
        """Give messages of peers to a node from here on."""
        self.dispatch.handler = handler

    def buffered_bytes(self, node_id: NodeId) -> int:
        """Return how many bytes a node has not been sent yet."""
        link = self._up.get(node_id)
        return link.writer.buffered_bytes if link is not None else 0

    def on_note_prefix(self, prefix: str, take: TakeNote) -> None:
        """Hand notes whose kind starts with `prefix` to `take`; the longest prefix wins."""
        self.dispatch.on_note_prefix(prefix, take)

    def on_up(self, on_change: OnNode) -> None:
        """Call when a link is up, after the handler."""
        self._on_up.append(on_change)

    def on_down(self, on_change: OnNode) -> None:
        """Call when a link is gone, after the handler."""
        self._on_down.append(on_change)

    def on_drained(self, on_change: OnNode) -> None:
        """Call when a link that was behind has nearly caught up."""
        self._on_drained.append(on_change)

    def on_urls(self, on_change: Callable[[list[str]], None]) -> None:
        """Call with all addresses clients can connect to, whenever they change."""
        self._urls.on_change(on_change)

    def on_websocket_urls(self, on_change: Callable[[list[str]], None]) -> None:
        """Call with all addresses WebSocket clients can connect to, whenever they change."""
        self._websocket_urls.on_change(on_change)

    def expected_size(self) -> int:
        """Return how many servers with JetStream the configured routes lead to, with this one.

        Routes to one server under two names count twice until it was met, and so does one without
        JetStream count until then.
        """
        return self._dialer.expected_size(self._streamless) if self._is_started else 1

    def unreached(self) -> list[str]:
        """Return the configured routes to servers that are not here, as `host:port`."""
        return self._dialer.unreached() if self._is_started else []

    def change_routes(self, options: ClusterOptions) -> None:
        """Go on with `options`, of which only the routes differ from before."""
        assert self._is_started
        self.local.options = options
        self._dialer.change(options.routes)
        if self.tls is not None:
            self.tls.change_routes([url.host for url in options.routes])

    def set_client_urls(self, urls: list[str]) -> None:
        """Tell others where clients of this server connect."""
        if self.local.options.has_advertise:
            self._urls.own = urls
            for link in self._up.values():
                link.exchange.note("net.urls", urls)
        self._urls.changed()

    def set_websocket_urls(self, urls: list[str]) -> None:
        """Tell others where WebSocket clients of this server connect."""
        if self.local.options.has_advertise:
            self._websocket_urls.own = urls
            for link in self._up.values():
                link.exchange.note("net.ws_urls", urls)
        self._websocket_urls.changed()

    # --- for monitoring (`stats.Routes`) --------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.local.cluster_name

    @property
    def host(self) -> str:
        """Address that other servers connect to."""
        return self.local.host

    @property
    def port(self) -> int:
        """Port that other servers connect to; the real one after `start`."""
        return self.local.port

    @property
    def auth_timeout_s(self) -> float:
        """Time that a handshake may take."""
        return self.local.auth_timeout_s

    @property
    def configured_urls(self) -> list[str]:
        """Configured routes as `host:port`."""
        return [url.address for url in self.local.options.routes]

    @property
    def failed_count(self) -> int:
        """Messages of peers that could not be handled."""
        return self.dispatch.failed_count

    def routes(self) -> list[RouteStats]:
        """Return the stats of the links that are up, oldest first."""
        return [link.stats() for link in sorted(self._up.values(), key=lambda link: link.rid)]

    def client_urls(self) -> list[str]:
        """Return the addresses that clients can connect to, this server's first."""
        return self._urls.all()

    # --- for the table (`link_table.LinkEvents`) ------------------------------------------------

    def words(self) -> Hello:
        """Return the node's own words, for WELCOME."""
        return self.dispatch.handler.hello()

    def why_not_up(self, link: PeerLink) -> str:
        """Introduce the server behind a link to the handler; return why there can be no link."""
        name, words = link.name, link.hello.get("node")
        try:
            hello = peer_schemas.check_hello(words if isinstance(words, dict) else {})
            if hello:
                self._streamless.discard(name)
            else:
                self._streamless.add(name)
            self.dispatch.handler.on_peer_up(name, hello)
        except ConfigError as err:
            return str(err)
        except MalformedArgs as err:
            return f"Protocol Violation: {err}"
        except Exception as err:  # noqa: BLE001 - no peer's word may end more than its own link
            self.dispatch.message_failed(name, "WELCOME", err, is_new=True)
            return f"Internal Error: {type(err).__name__}"
        return ""

    def link_up(self, link: PeerLink) -> None:
        """Follow a link that is up: tell its server of this cluster, and others of that server."""
        name, address = link.name, join_address(*link.handshake.address)
        if self._urls.own:
            link.exchange.note("net.urls", self._urls.own)
        if self._websocket_urls.own:
            link.exchange.note("net.ws_urls", self._websocket_urls.own)
        for on_change in self._on_up:
            on_change(name)
        self._dialer.learn(name, address)
        self._learn_peers(link.hello.get("peers"))
        for other in list(self._up.values()):
            if other is not link:
                other.exchange.note("net.peers", [{name: address}])

    def link_down(self, name: NodeId) -> None:
        """Follow the end of a link that was up."""
        self.dispatch.handler.on_peer_down(name)
        for on_change in self._on_down:
            on_change(name)
        self._urls.forget(name)
        self._websocket_urls.forget(name)

    def link_drained(self, name: NodeId) -> None:
        """Follow a link that was behind and has nearly caught up."""
        for on_change in self._on_drained:
            on_change(name)

    # --- notes of other servers -----------------------------------------------------------------

    def _on_peers(self, _sender: NodeId, _kind: str, args: list[object]) -> None:
        if args:
            self._learn_peers(args[0])

    def _learn_peers(self, addresses: object) -> None:
        if isinstance(addresses, dict):
            for name, address in addresses.items():
                if isinstance(name, str) and isinstance(address, str):
                    self._dialer.learn(name, address)

    def _on_urls_note(self, sender: NodeId, _kind: str, args: list[object]) -> None:
        self._urls.learn(sender, [url for url in args if isinstance(url, str)])

    def _on_websocket_urls_note(self, sender: NodeId, _kind: str, args: list[object]) -> None:
        self._websocket_urls.learn(sender, [url for url in args if isinstance(url, str)])
