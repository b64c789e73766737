"""Streams whose only copy is lost or damaged here: waiting brings nothing back.

A node on which one of them lives is well, and may be restarted, upgraded and relied upon like any
other; an operator has to decide what becomes of the stream. So they are told apart from what a node
is not ready with.
"""

from __future__ import annotations

from streamd.errors import CorruptionError
from streamd.machine.meta import StreamAsset
from streamd.node.context import NodeContext

REBUILD = (
    "put its files back, or start this server once with --accept-loss to go on with what is left "
    "(--accept-loss=dry-run says what that is, and changes nothing), or delete the stream"
)
DELETE = "put the block's file back, or accept the loss of a message by deleting it"


def is_only_copy(context: NodeContext, asset: StreamAsset) -> bool:
    """True if nobody else has the stream, nor is to have it, by what the meta group says. A server
    that lost its log is asked only when that has vouched for it."""
    mine = (context.name,)
    return not context.is_clustered or (asset.peers == mine and asset.members == mine)


def lost_copy_reason(
    context: NodeContext,
    asset: StreamAsset,
    *,
    failure: BaseException | None,
    is_stuck: bool,
    damage: str,
) -> str:
    """Return why a stream is not served, or not all of it, and what to do about that; "": it is.

    `failure` stopped the replica; `is_stuck`: it may have forgotten something and has no leader;
    `damage` is what of it can't be read.
    """
    if context.is_clustered and not is_only_copy(context, asset):
        return ""
    if isinstance(failure, CorruptionError):
        return f"its only copy is damaged: {failure}; {REBUILD}"
    if asset.is_file and context.is_clustered and is_stuck:
        return f"its only copy may have lost what it acknowledged; {REBUILD}"
    return f"its only copy is damaged: {damage}; {DELETE}" if damage else ""
