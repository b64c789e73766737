"""The links to the other servers of the cluster: one to each, whoever dialed it.

`node.ports.Peers` for the node; for core NATS also what is needed to pass messages on. Until
`handler` is a node (a server without streams has none) links carry notes only.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from streamd.config.cluster_options import ClusterOptions, join_address
from streamd.config.options import Options
from streamd.errors import CLUSTER_NOT_AVAIL, ConfigError
from streamd.limits import (
    LISTENER_CLOSE_S,
    PEER_BEAT_S,
    PEER_CLOCK_SKEW_NS,
    PEER_HANDSHAKES_MAX,
    PEER_REFUSALS_MAX,
)
from streamd.net.monitoring.stats import RouteStats
from streamd.net.route.dialer import PeerRoutes, Route, advertised
from streamd.net.route.link import DUPLICATE, DUPLICATE_NAME, SELF, SHUTDOWN, PeerLink
from streamd.net.route.route_tls import PeerTls
from streamd.net.sockets import serve
from streamd.node.ports import Clock, Done, PeerHandler
from streamd.obs.server_log import Log
from streamd.protocol import peer_schemas, route_proof
from streamd.protocol.peer_frames import RaftMessage
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.types import NodeId, Uid

TakeNote = Callable[[NodeId, str, list[Any]], None]
OnNode = Callable[[NodeId], None]


class Cluster:
    """All links of this server. `port` is the real one after `start`."""

    def __init__(
        self,
        options: Options,
        *,
        server_name: NodeId,
        log: Log,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        server_id: str = "",
    ) -> None:
        self.options = options.cluster
        self.server_name = server_name
        self.name = options.cluster.name
        self.handler: PeerHandler = _NoNode()
        self.log = log
        self.clock = clock
        self.loop = loop
        self.host = options.cluster.host
        self.port = options.cluster.port
        self.auth_timeout_s = options.cluster.auth_timeout_s
        self._server_id = server_id
        self._boot = secrets.token_hex(16)
        self.tls: PeerTls | None = None
        self._server: asyncio.Server | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._routes: PeerRoutes | None = None
        self._is_closing = False
        self._all_gone = asyncio.Event()

        self._open: set[PeerLink] = set()  # every socket that is not gone yet
        self._chosen: dict[NodeId, PeerLink] = {}  # that will be up, or are
        self._up: dict[NodeId, PeerLink] = {}
        self._streamless: set[NodeId] = set()  # servers that were met, and have no JetStream
        self._rid = 0
        self._refused: set[tuple[str, str]] = set()  # (source, kind of fault) that were logged
        self.failed_count = 0  # messages of peers that could not be handled

        self._prefixes: list[tuple[str, TakeNote]] = []
        self._take_note: dict[str, TakeNote] = {}  # by kind: `_prefixes` resolved
        self._on_up: list[OnNode] = []
        self._on_down: list[OnNode] = []
        self._on_drained: list[OnNode] = []
        self._on_urls: list[Callable[[list[str]], None]] = []
        self._own_urls: list[str] = []
        self._urls: dict[NodeId, list[str]] = {}  # of other servers' clients
        self.on_note_prefix("net.peers", self._on_peers)
        self.on_note_prefix("net.urls", self._on_urls_note)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Listen and dial, in tasks of `tasks`. Raises OSError, OverflowError, ConfigError."""
        options = self.options
        if options.port > 65535:  # uvloop would take it modulo 65536
            raise OverflowError(options.port)
        self.tls = PeerTls(options.tls) if options.tls is not None else None
        self._routes = PeerRoutes(self)
        tls = self.tls.server if self.tls is not None else None
        await self.prepare_key(None)
        self._server = await serve(
            self.loop, lambda: PeerLink(self, None), options.host, options.port, ssl=tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.log.info(f"Listening for route connections on {join_address(self.host, self.port)}")
        self._routes.start(tasks)
        self._beat()

    async def close(self) -> None:
        """Stop listening and dialing, end all links. The handler is not called any more."""
        self._is_closing = True
        if self._routes is not None:
            self._routes.close()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        if self._server is not None:
            self._server.close()
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

    # --- Peers ----------------------------------------------------------------------------------

    def send(self, node_id: NodeId, uid: Uid, messages: list[RaftMessage]) -> None:
        """Send Raft messages of one group; lost without a word when there is no link."""
        link = self._up.get(node_id)
        if link is not None:
            link.send_raft(uid, messages)

    def call(
        self,
        node_id: NodeId,
        method: str,
        args: list[Any],
        done: Done,
        timeout_ms: int = 5000,
    ) -> None:
        """Ask a node; `done` gets its answer or an error, exactly once, and never at once."""
        link = self._up.get(node_id)
        if link is None:
            self.loop.call_soon(done, CLUSTER_NOT_AVAIL())
        else:
            link.call(method, args, done, timeout_ms)

    def note(self, node_id: NodeId, kind: str, args: list[Any]) -> None:
        """Tell a node something; nobody answers."""
        link = self._up.get(node_id)
        if link is not None:
            link.note(kind, args)

    def is_up(self, node_id: NodeId) -> bool:
        """True while there is a link."""
        return node_id in self._up

    def nodes(self) -> list[NodeId]:
        """Nodes with a link, sorted."""
        return sorted(self._up)

    def refuse(self, node_id: NodeId, reason: str) -> None:
        """See ports.Peers."""
        link = self._up.get(node_id)
        if link is not None:
            link.refuse(reason)

    # --- for others of this server --------------------------------------------------------------

    def buffered_bytes(self, node_id: NodeId) -> int:
        """What a node has not been sent yet."""
        link = self._up.get(node_id)
        return link.buffered_bytes if link is not None else 0

    def on_note_prefix(self, prefix: str, take: TakeNote) -> None:
        """Hand notes whose kind starts with `prefix` to `take`; the longest prefix wins."""
        self._prefixes.append((prefix, take))
        self._prefixes.sort(key=lambda entry: len(entry[0]), reverse=True)
        self._take_note.clear()

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
        self._on_urls.append(on_change)

    def expected_size(self) -> int:
        """How many servers with JetStream the configured routes lead to, this one included.

        Routes to one server under two names count twice until it was met, and so does one without
        JetStream count until then.
        """
        return self._routes.expected_size(self._streamless) if self._routes is not None else 1

    def unreached(self) -> list[str]:
        """Return the configured routes to servers that are not here, as `host:port`."""
        return self._routes.unreached() if self._routes is not None else []

    def change_routes(self, options: ClusterOptions) -> None:
        """Go on with `options`, of which only the routes differ from before."""
        assert self._routes is not None
        self.options = options
        self._routes.change(options.routes)

    def routes(self) -> list[RouteStats]:
        """Return what monitoring shows of the links, oldest first."""
        return [link.stats() for link in sorted(self._up.values(), key=lambda link: link.rid)]

    @property
    def configured_urls(self) -> list[str]:
        """Configured routes as `host:port`."""
        return [url.address for url in self.options.routes]

    def set_client_urls(self, urls: list[str]) -> None:
        """Tell others where clients of this server connect."""
        if self.options.has_advertise:
            self._own_urls = urls
            for link in self._up.values():
                link.note("net.urls", urls)
        self._urls_changed()

    def client_urls(self) -> list[str]:
        """Where clients can connect, this server first."""
        others = [url for name in sorted(self._urls) for url in self._urls[name]]
        return list(dict.fromkeys(self._own_urls + others))

    # --- for links ------------------------------------------------------------------------------

    def register(self, link: PeerLink) -> bool:
        """Take in a new connection; of too many that prove nothing, the oldest goes. False: the
        server stops."""
        if link.route is None:
            strangers = [each for each in self._open if each.route is None and not each.is_proven]
            if len(strangers) >= PEER_HANDSHAKES_MAX:  # a server takes less time than they took
                min(strangers, key=lambda each: each.start_ns).cut("Too Many Handshakes")
        self._open.add(link)
        return not self._is_closing

    def facts(self) -> dict[str, Any]:
        """What HELLO says of this server."""
        host, port = advertised(self.options.advertise, self.options.host, self.port)
        return {
            "name": self.server_name,
            "cluster": self.name,
            "boot": self._boot,
            "id": self._server_id,
            "host": host,
            "port": port,
            "time_ns": self.clock.now_ns(),
        }

    def hello(self) -> dict[str, Any]:
        """What WELCOME says: the node's own words, and who else is here."""
        return {"node": self.handler.hello(), "peers": self._known()}

    def key_for(self, route: Route | None) -> bytes:
        """Return the key that both ends of a link must know; empty: there is no password."""
        return route_proof.stretched(*self._credentials(route))

    async def prepare_key(self, route: Route | None) -> None:
        """Have `key_for` return at once: a password is stretched on another thread, and once."""
        username, password = self._credentials(route)
        if password:
            await asyncio.to_thread(route_proof.stretched, username, password)

    def _credentials(self, route: Route | None) -> tuple[str, str]:
        if route is not None and route.url.username:
            return route.url.username, route.url.password
        return self.options.username, self.options.password

    def monotonic_ns(self) -> int:
        """Time for differences; the loop's own may be as coarse as a millisecond."""
        return time.monotonic_ns()

    def is_arbiter(self, name: NodeId) -> bool:
        """True if this server, not `name`, says which link between them is kept."""
        return self.server_name < name

    def is_configured(self, link: PeerLink) -> bool:
        """True if a configured route leads to where `link` does."""
        assert self._routes is not None
        return any(route.name == link.name for route in self._routes.explicit)

    def has_link(self, name: NodeId) -> bool:
        """True if there is no need to dial `name`."""
        return name in self._chosen

    def why_not(self, link: PeerLink, facts: dict[str, Any]) -> str:
        """Judge a HELLO: return why there can be no link, or ""."""
        assert self._routes is not None
        if link.boot == self._boot:
            if link.route is not None:
                self._routes.is_ours(link.route)
            return SELF
        cluster = facts.get("cluster")
        if not isinstance(cluster, str) or (cluster and self.name and cluster != self.name):
            return f"Cluster Name Conflict: {cluster!r} and {self.name!r}"
        if link.name == self.server_name:
            return f"{DUPLICATE_NAME}: {link.name}"
        if link.route is not None:
            self._routes.is_at(link.route, link.name)
        existing = self._chosen.get(link.name)
        if existing is not None and existing.is_up:
            if existing.boot != link.boot:
                return "" if existing.is_doubtful else f"{DUPLICATE_NAME}: {link.name}"
            if link.route is not None:
                return DUPLICATE
        their_ns = facts.get("time_ns")
        if not isinstance(their_ns, int):
            return "Protocol Violation: HELLO without a time"
        skew_ns = self.clock.now_ns() - their_ns
        if abs(skew_ns) > PEER_CLOCK_SKEW_NS and self._is_new_fault(link.name, "clock"):
            self.log.warning(
                "clocks differ: times of messages will jump when a leader changes",
                node=link.name,
                seconds=round(skew_ns / 1e9),
            )
        return ""

    def choose(self, link: PeerLink) -> str:
        """The arbiter keeps `link`, or returns why it keeps another one."""
        existing = self._chosen.get(link.name)
        if existing is not None and existing is not link:
            if not existing.is_doubtful:
                same = existing.boot == link.boot
                return DUPLICATE if same else f"{DUPLICATE_NAME}: {link.name}"
            existing.cut("Replaced")
        self._chosen[link.name] = link
        link.is_chosen = True
        return ""

    def replaced_by(self, link: PeerLink) -> None:
        """The arbiter on the other side keeps `link`: whatever we had with it is over."""
        existing = self._chosen.get(link.name)
        if existing is not None:
            existing.cut("Replaced")
        self._chosen[link.name] = link
        link.is_chosen = True

    def came_up(self, link: PeerLink) -> None:
        """The handshake is done."""
        assert self._routes is not None
        self._rid += 1
        link.rid = self._rid
        hello, peers = link.hello.get("node"), link.hello.get("peers")
        self._up[link.name] = link
        reason = self._why_not_up(link.name, hello if isinstance(hello, dict) else {})
        if reason:
            del self._up[link.name]
            link.is_up = False
            link.refuse(reason)
            return
        if link.reason:
            return  # the handler's own sending failed
        link.was_up = True
        self._refused = {entry for entry in self._refused if entry[0] != link.source}
        address = join_address(link.ip, link.port)
        self.log.info(f"{address} - rid:{link.rid} - Route connection created", node=link.name)
        if self._own_urls:
            link.note("net.urls", self._own_urls)
        for on_change in self._on_up:
            on_change(link.name)
        self._routes.learn(link.name, join_address(*link.address))
        if isinstance(peers, dict):
            self._on_peers(link.name, "net.peers", [peers])
        told = [{link.name: join_address(*link.address)}]
        for other in list(self._up.values()):
            if other is not link:
                other.note("net.peers", told)

    def _why_not_up(self, name: NodeId, hello: dict[str, Any]) -> str:
        """Introduce a node to the handler; return why there can be no link, or ""."""
        try:
            peer_schemas.check_hello(hello)
            if hello:
                self._streamless.discard(name)
            else:
                self._streamless.add(name)
            self.handler.on_peer_up(name, hello)
        except ConfigError as err:
            return str(err)
        except MalformedArgs as err:
            return f"Protocol Violation: {err}"
        except Exception as err:  # noqa: BLE001 - no peer's word may end more than its own link
            self.message_failed(name, "WELCOME", err, is_new=True)
            return f"Internal Error: {type(err).__name__}"
        return ""

    def message_failed(self, name: NodeId, what: str, err: Exception, *, is_new: bool) -> None:
        """A message of a peer could not be handled: it is counted, and the first of a kind told.
        The link stays, for what comes behind has nothing to do with it."""
        self.failed_count += 1
        if is_new:
            at = traceback.extract_tb(err.__traceback__)[-1]
            self.log.error(
                "a message of a peer could not be handled, and was passed over",
                peer=name, message=what, reason=f"{type(err).__name__}: {err}",
                at=f"{PurePath(at.filename).name}:{at.lineno}",
            )  # fmt: skip

    def lost(self, link: PeerLink) -> None:
        """Nothing comes from `link` any more; called once or more."""
        if self._chosen.get(link.name) is link:
            del self._chosen[link.name]
            if self._routes is not None and not self._is_closing:
                self._routes.lost(link.name)
        if not link.is_up:
            return
        link.is_up = False
        del self._up[link.name]
        address = join_address(link.ip, link.port)
        self.log.info(
            f"{address} - rid:{link.rid} - Router connection closed: {link.reason}", node=link.name
        )
        if self._is_closing:
            return
        self.handler.on_peer_down(link.name)
        for on_change in self._on_down:
            on_change(link.name)
        if self._urls.pop(link.name, None):
            self._urls_changed()

    def gone(self, link: PeerLink) -> None:
        """The socket of `link` is closed."""
        self._open.discard(link)
        if not self._open:
            self._all_gone.set()

    def refused(self, link: PeerLink, reason: str) -> None:
        """A handshake or a link failed by somebody's fault: said once for each source."""
        if not self._is_closing and self._is_new_fault(link.source, reason.partition(":")[0]):
            fields: dict[str, Any] = {"address": join_address(link.ip, link.port)}
            if link.name:
                fields["node"] = link.name
            self.log.error(f"route connection refused: {reason}", **fields)

    def drained(self, link: PeerLink) -> None:
        """`link` was behind and has nearly caught up."""
        for on_change in self._on_drained:
            on_change(link.name)

    def on_note(self, link: PeerLink, kind: str, args: list[Any]) -> None:
        """Give a note to whom it is for."""
        take = self._take_note.get(kind)
        if take is None:
            take = self.handler.on_note
            for prefix, candidate in self._prefixes:
                if kind.startswith(prefix):
                    take = candidate
                    break
            if len(self._take_note) < PEER_REFUSALS_MAX:
                self._take_note[kind] = take
        take(link.name, kind, args)

    # --- inside ---------------------------------------------------------------------------------

    def _beat(self) -> None:
        # The next is due this long after this one, not after when this was due: a loop that hung
        # finds what came meanwhile in its sockets before it misses a second beat.
        self._beat_timer = self.loop.call_later(PEER_BEAT_S, self._beat)
        for link in list(self._up.values()):
            link.beat()

    def _is_new_fault(self, source: str, kind: str) -> bool:
        if (source, kind) in self._refused:
            return False
        if len(self._refused) >= PEER_REFUSALS_MAX:
            self._refused.clear()
        self._refused.add((source, kind))
        return True

    def _known(self) -> dict[NodeId, str]:
        return {name: join_address(*link.address) for name, link in self._up.items()}

    def _on_peers(self, sender: NodeId, kind: str, args: list[Any]) -> None:
        assert self._routes is not None
        if args and isinstance(args[0], dict):
            for name, address in args[0].items():
                if isinstance(name, str) and isinstance(address, str):
                    self._routes.learn(name, address)

    def _on_urls_note(self, sender: NodeId, kind: str, args: list[Any]) -> None:
        self._urls[sender] = [url for url in args if isinstance(url, str)]
        self._urls_changed()

    def _urls_changed(self) -> None:
        urls = self.client_urls()
        for on_change in self._on_urls:
            on_change(urls)


class _NoNode:
    """The handler of a server without streams."""

    def hello(self) -> dict[str, Any]:
        return {}

    def on_peer_up(self, node_id: NodeId, hello: dict[str, Any]) -> None: ...

    def on_peer_down(self, node_id: NodeId) -> None: ...

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[RaftMessage]) -> None: ...

    def on_call(
        self, sender: NodeId, method: str, args: list[Any], answer: Callable[[Any], None]
    ) -> None:
        answer(CLUSTER_NOT_AVAIL())

    def on_note(self, sender: NodeId, kind: str, args: list[Any]) -> None: ...
