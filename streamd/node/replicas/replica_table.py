"""`ReplicaTable`: the streams this node has to do with, and those that are in transition."""

from __future__ import annotations

from streamd.machine.meta import StreamAsset
from streamd.node.context import NodeContext
from streamd.types import Uid


class ReplicaTable:
    """Streams with a replica here that is open, being opened or closed, or that failed.

    A uid in `busy` is being opened, or closed for good: nothing else is begun about it until that
    is done, since of two members here neither would know the other's promises.
    """

    def __init__(self) -> None:
        self.assets: dict[Uid, StreamAsset] = {}
        self.busy: set[Uid] = set()
        self.reasons: dict[Uid, str] = {}  # why a member of a group does not serve
        self.renewed_count = 0  # wrong members that were made anew from their peers

    def knows(self, uid: Uid) -> bool:
        """True if a replica of it is open, being opened or closed, or has failed."""
        return uid in self.assets


def has_peers(context: NodeContext, asset: StreamAsset) -> bool:
    """True if other nodes should have the stream too."""
    return context.is_clustered and len(asset.peers) > 1


def is_foreign(context: NodeContext, asset: StreamAsset) -> bool:
    """True if this node has nothing to do with the stream any more, by what the meta group says."""
    return context.is_clustered and asset.may_be_dropped_by(context.name)
