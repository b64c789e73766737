"""Streams whose only copy is lost or damaged here: waiting brings nothing back.

A node on which one of them lives is well, and may be restarted, upgraded and relied upon like any
other; an operator has to decide what becomes of the stream. So they are told apart from what a node
is not ready with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamd.errors import CorruptionError
from streamd.machine.meta import StreamAsset

if TYPE_CHECKING:
    from streamd.node.local_node import Node

REBUILD = (
    "put its files back, or start this server once with --accept-loss to go on with what is left "
    "(--accept-loss=dry-run says what that is, and changes nothing), or delete the stream"
)
DELETE = "put the block's file back, or accept the loss of a message by deleting it"


class LostCopies:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def is_only(self, asset: StreamAsset) -> bool:
        """True if nobody else has the stream, nor is to have it, by what the meta group says. A
        server that lost its log is asked only when that has vouched for it."""
        node = self._node
        mine = (node.server_name,)
        return not node.is_clustered or (asset.peers == mine and asset.members == mine)

    def reason(self, asset: StreamAsset) -> str:
        """Why the stream is not served, or not all of it, and what to do about that; "": it is."""
        if self._node.is_clustered and not self.is_only(asset):
            return ""
        return self._loss(asset)

    def _loss(self, asset: StreamAsset) -> str:
        node, uid = self._node, asset.uid
        failures = node.replicas.failures
        if isinstance(failures.error(uid), CorruptionError):
            return f"its only copy is damaged: {failures.error(uid)}; {REBUILD}"
        if asset.is_file and node.is_clustered and node.heirs.is_stuck(asset):
            return f"its only copy may have lost what it acknowledged; {REBUILD}"
        damage = node.damages.reasons.get(uid, "")
        return f"its only copy is damaged: {damage}; {DELETE}" if damage else ""
