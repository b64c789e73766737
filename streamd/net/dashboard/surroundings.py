"""`Surroundings`: the parts of a server that its dashboard reads, as they are when they are asked
for: the port is open before the node is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from streamd import __version__
from streamd.config.options import Options
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.stats import Routes
from streamd.types import NodeId

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.api.router import Router
    from streamd.node.ports import NodeHandle


class Controls(Protocol):
    """Changes to a server that an administrator makes."""

    def scrub(self, is_begun: bool) -> dict[str, object] | None:
        """Verify all files from here on if `is_begun`; None: there is no JetStream here."""


class Surroundings:
    """Parts of one server. Some come later than others, or never."""

    def __init__(
        self,
        options: Options,
        monitoring: Monitoring,
        stats: ServerStats,
        controls: Controls,
        *,
        server_id: str,
        server_name: str,
        cluster: Callable[[], Routes | None],
    ) -> None:
        self.options = options
        self.monitoring = monitoring
        self.stats = stats
        self.controls = controls
        self.server_id = server_id
        self.server_name = server_name
        self.version = __version__
        self.sources: JetStreamSources | None = None  # None: no JetStream, or not yet
        self.api: Router | None = None
        self._cluster = cluster

    @property
    def cluster_name(self) -> str:
        """Name of the cluster; "": it is none."""
        return self.options.cluster.name if self.options.cluster.is_enabled else ""

    @property
    def node(self) -> NodeHandle | None:
        """The node; None without JetStream, or while it starts."""
        return self.sources.node if self.sources is not None else None

    def is_up(self, name: NodeId) -> bool:
        """True while there is a link to another node."""
        node = self.node
        return node is not None and node.peers is not None and node.peers.is_up(name)

    def address_of(self, name: NodeId) -> str:
        """Return the address at which another node is linked to; of this one where it listens for
        clients."""
        if name == self.server_name:
            return self.options.host
        cluster = self._cluster()
        for route in cluster.routes() if cluster is not None else ():
            if route.remote_name == name:
                return route.ip
        return ""

    def listened(self) -> tuple[str, str, int, str]:
        """Return scheme, host, port and base path of the monitoring port; a scheme of "": there is
        none."""
        options, monitoring = self.options, self.monitoring
        base = "/" + options.http_base_path.strip("/") if options.http_base_path.strip("/") else ""
        host = options.http_host or options.host
        if options.https_port:
            return "https", host, monitoring.https_port, base
        if options.http_port:
            return "http", host, monitoring.http_port, base
        return "", "", 0, ""
