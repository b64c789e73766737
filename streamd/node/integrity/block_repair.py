"""`BlockRepair`: fetches a damaged block from a peer, while the replica goes on serving.

Sealed blocks do not change, and it is the machine that lays them out: they are the same bytes on
every replica. What a peer sends is compared with what the machine here says of the block, and only
then takes the place of the damaged file, whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamd import errors, limits
from streamd.errors import StreamdError
from streamd.machine.indexes.columns import Block
from streamd.node.cluster.leaders import Leaders
from streamd.node.context import NodeContext
from streamd.node.integrity.scrub import block_difference
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.store.blocks.block_verify import BlockRows, rows_of
from streamd.types import NodeId

# How a repair ends.
DONE = "done"
VOID = "void"  # the block is needed no more, or the replica was closed
OTHER = "other"  # the leader has a whole block, but not the one the machine here knows
NOWHERE = "nowhere"  # every peer was asked, and none has it whole
LATER = "later"  # some could not be asked, or this disk did not take it


class BlockRepair:
    """Attempt at one sealed block. `on_done` is called once, with how it ended, later."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        peers: Peers,
        replica: LocalStream,
        block: Block,
        on_done: Callable[[str], None],
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._links = peers
        self._replica = replica
        self._block = block
        self._on_done = on_done
        self._peers: list[NodeId] = []  # still to be asked, reversed
        self._parts: list[bytes] = []
        self._size = 0
        self._is_other = False
        self._is_late = False
        self.peer: NodeId = ""  # the one that is asked

    def begin(self) -> None:
        """Ask the stream's leader first, then the others, one after the other."""
        replica, own = self._replica, self._context.name
        leader = self._leaders.leader_of(replica.uid)
        names = [name for name in replica.group.raft.members.members() if name != own]
        self._peers = sorted(names, key=lambda name: (name == leader, name))
        self._next_peer()

    def _next_peer(self) -> None:
        self._parts, self._size = [], 0
        if not self._peers:
            end = OTHER if self._is_other else LATER if self._is_late else NOWHERE
            self._context.env.loop.call_soon(self._on_done, end)
            return
        self.peer = self._peers.pop()
        self._ask()

    def _is_needed(self) -> bool:
        replica = self._replica
        return (
            not self._context.life.is_stopping
            and self._groups.get(replica.uid) is replica
            and not replica.monitor.stopped.is_set()
            and self._block.live > 0
        )

    def _ask(self) -> None:
        no, size = self._block.block_no, limits.CATCHUP_CHUNK_BYTES
        args = [self._replica.uid, 0, no, self._size, size]
        self._links.call(self.peer, "block", args, self._answered)

    def _answered(self, outcome: object) -> None:
        if not self._is_needed():
            self._on_done(VOID)
        elif not isinstance(outcome, bytes):
            # It knows that it can't serve, or nobody is there: ask again. Else it has no such file.
            self._is_late |= errors.CLUSTER_NOT_AVAIL.matches(outcome)
            self._next_peer()
        elif self._size > 2 * self._block.end_offset + limits.CATCHUP_CHUNK_BYTES:
            self._next_peer()  # no block with its footer is so long
        else:
            self._parts.append(outcome)
            self._size += len(outcome)
            if len(outcome) == limits.CATCHUP_CHUNK_BYTES:
                self._ask()
                return
            blob = b"".join(self._parts)
            job = partial(rows_of, blob, self._replica.uid, self._block.block_no)
            self._context.block_thread.submit(job, partial(self._verified, blob))

    def _verified(self, blob: bytes, result: BlockRows | BaseException) -> None:
        if isinstance(result, BaseException) and not isinstance(result, StreamdError):
            raise result
        block, replica = self._block, self._replica
        if not self._is_needed():
            self._on_done(VOID)
        elif isinstance(result, StreamdError):
            self._next_peer()
        elif not result.is_sealed:
            self._is_late = True  # it lags behind: the block still grows there
            self._next_peer()
        elif result.end_offset != block.end_offset or block_difference(
            replica.machine, block, result
        ):
            # One of us has drifted. Of a follower the leader will find out.
            self._is_other |= self.peer == self._leaders.leader_of(replica.uid)
            self._next_peer()
        else:
            assert replica.files is not None
            replica.files.replace_block(block.block_no, blob, self._replaced)

    def _replaced(self, result: object) -> None:
        if isinstance(result, StreamdError):
            reason = str(result)
            self._context.log.warn(
                "block can't be put in place", group=self._replica.uid, reason=reason
            )
            self._on_done(LATER)
        else:
            self._on_done(DONE)
