"""Configs of streams on their way from the meta group to the streams' own groups.

A stream's leader proposes the config that the meta group has; who asked for the change waits here
until the leader runs with it, wherever that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node.ports import Done
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class ConfigChanges:
    """One node's: of the streams it leads, and of those that somebody here waits for."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiters: dict[Uid, list[tuple[int, Done]]] = {}

    def carry_over(self, replica: LocalStream, asset: StreamAsset) -> None:
        """As leader: bring the stream's own group to the config that meta has."""
        if replica.machine.config_meta_index >= asset.update_index:
            self.settle(replica.uid)
            return

        def configured(outcome: Any) -> None:
            # Only now does the stream capture by its new subjects; what was looked up since meta
            # announced them is stale.
            self._node.catalog.changed()
            if isinstance(outcome, errors.JsError):
                self.settle(replica.uid, outcome)
            else:
                self.settle(replica.uid)

        replica.propose(
            [commands.CONFIGURE, self._node.env.clock.now_ns(), asset.config, asset.update_index],
            configured,
        )

    def wait(self, uid: Uid, meta_index: int, done: Done, timeout_ms: int) -> None:
        """See ports.NodeHandle.wait_configured."""
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        reason = node.replicas.failures.reason(uid)
        if asset is not None and reason and not node.replicas.has_peers(asset):
            done(errors.STREAM_OFFLINE_REASON(err=reason))
            return
        is_open = True

        def finish(outcome: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                timer.cancel()
                done(outcome)

        def expired() -> None:
            self._keep(uid, [row for row in self._waiters.get(uid, ()) if row[1] is not finish])
            finish(errors.CLUSTER_NOT_AVAIL())

        timer = node.env.loop.call_later(timeout_ms / 1000, expired)
        self._waiters.setdefault(uid, []).append((meta_index, finish))
        self.settle(uid)

    def settle(self, uid: Uid, error: errors.JsError | None = None) -> None:
        """Answer those who wait for a config, if this node or the leader elsewhere has it."""
        waiters = self._waiters.get(uid)
        if not waiters:
            return
        node = self._node
        replica = node.replicas.get(uid)
        if replica is not None and replica.is_ready:
            has = replica.machine.config_meta_index
            due = waiters if error is not None else [row for row in waiters if row[0] <= has]
            self._keep(uid, [row for row in waiters if row not in due])
            for _, done in due:
                done(error or True)
            return
        leader = node.leader_of(uid)
        if not leader or leader == node.server_name or node.peers is None:
            return
        del self._waiters[uid]
        for meta_index, done in waiters:
            node.peers.call(leader, "configured", [uid, meta_index], done, limits.CONFIGURED_MS)

    def _keep(self, uid: Uid, waiters: list[tuple[int, Done]]) -> None:
        """Go on with `waiters`; nothing is kept of a stream that nobody waits for."""
        if waiters:
            self._waiters[uid] = waiters
        else:
            self._waiters.pop(uid, None)

    def fail(self, uid: Uid, error: errors.JsError) -> None:
        """The stream can't be served here: all who wait for it are told."""
        for _, done in self._waiters.pop(uid, []):
            done(error)
