"""Local server: this server as it introduces itself to the other servers of the cluster."""

from __future__ import annotations

import asyncio
import secrets

from streamd.config.cluster_options import ClusterOptions, split_address
from streamd.net.route.dial_target import DialTarget
from streamd.node.ports import Clock
from streamd.protocol import route_proof
from streamd.types import NodeId

WILDCARDS = ("", "0.0.0.0", "::")


class LocalServer:
    """Name, address and password of this server; `port` is the real one after the start."""

    def __init__(
        self, options: ClusterOptions, *, server_name: NodeId, server_id: str, clock: Clock
    ) -> None:
        self.options = options
        self.name = server_name
        self.server_id = server_id
        self.clock = clock
        self.cluster_name = options.name
        self.host = options.host
        self.port = options.port
        self.auth_timeout_s = options.auth_timeout_s
        self.boot = secrets.token_hex(16)

    def hello(self) -> dict[str, object]:
        """Return the facts of this server's HELLO."""
        host, port = advertised(self.options.advertise, self.options.host, self.port)
        return {
            "name": self.name,
            "cluster": self.cluster_name,
            "boot": self.boot,
            "id": self.server_id,
            "host": host,
            "port": port,
            "time_ns": self.clock.now_ns(),
        }

    def key_for(self, target: DialTarget | None) -> bytes:
        """Return the key that both ends of a link must know; empty: there is no password."""
        return route_proof.stretched(*self._credentials(target))

    async def prepare_key(self, target: DialTarget | None) -> None:
        """Stretch the password on another thread, so that `key_for` returns at once."""
        username, password = self._credentials(target)
        if password:
            await asyncio.to_thread(route_proof.stretched, username, password)

    def _credentials(self, target: DialTarget | None) -> tuple[str, str]:
        if target is not None and target.url.username:
            return target.url.username, target.url.password
        return self.options.username, self.options.password

    def is_arbiter(self, name: NodeId) -> bool:
        """Return True if this server, not `name`, chooses the link between them that is kept."""
        return self.name < name


def advertised(advertise: str, host: str, port: int) -> tuple[str, int]:
    """Return (host, port) that others should dial; host "": the one our packets come from."""
    if advertise:
        try:
            return split_address(advertise)
        except ValueError:
            return advertise.strip("[]"), port
    return ("" if host in WILDCARDS else host), port
