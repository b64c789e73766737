"""Controls of a running server that operators reach by requests in the system account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from streamd.net.client.client_registry import ClientRegistry
from streamd.types import stream_label

if TYPE_CHECKING:  # a server without JetStream loads no node
    from streamd.node.local_node import LocalNode

_NO_STORE: Final = "JetStream not enabled"


class OperatorControls:
    """Reloads the server, ends connections, sends clients away, verifies files, changes the trash,
    drains the server (`ServerControls`)."""

    def __init__(
        self,
        clients: ClientRegistry,
        reload: Callable[[], str],
        drain: Callable[[], None],
        node: Callable[[], LocalNode | None],
    ) -> None:
        """`reload` reads the configuration again, and returns why that failed. `node` returns the
        node, None without JetStream."""
        self._clients = clients
        self.reload = reload
        self.drain = drain
        self._node = node

    def kick(self, cid: int) -> bool:
        """End the connection of a client, without a word; False: it has none."""
        conn = self._clients.open.get(cid)
        if conn is not None:
            conn.close("Kicked")
        return conn is not None

    def send_away(self, cid: int) -> bool:
        """Tell a client to connect to another server; False: there is no such client."""
        conn = self._clients.open.get(cid)
        if conn is not None:
            conn.send_info(is_lame_duck=True)
        return conn is not None

    def trash(
        self, action: str, names: Sequence[str], answer: Callable[[dict[str, object] | str], None]
    ) -> None:
        """List what the server set aside, destroy it, or put it back; `answer` is called with what
        was done, or with why nothing was."""
        node = self._node()
        if node is None or node.health.store_fault:
            answer(_NO_STORE)
        else:
            node.parts.replicas.trash.requests.serve(action, names, answer)

    def scrub(self, is_begun: bool) -> dict[str, object] | None:
        """Begin to verify all files if `is_begun`; return how far that is, and what is damaged.
        None: there is no JetStream here."""
        node = self._node()
        if node is None or node.health.store_fault:
            return None
        scrubber = node.parts.integrity.scrubber
        if is_begun:
            scrubber.begin_now()
        assets = node.meta.streams_by_uid
        reasons = {
            stream_label(assets[uid].key) if uid in assets else f"group {uid}": reason
            for uid, reason in sorted(node.health.damage_reasons().items())
        }
        return scrubber.status._asdict() | {
            "damages": node.health.counts()["damages"],
            "damaged": reasons,
            "failed": {stream_label(key): text for key, text in sorted(node.failed.items())},
        }
