"""`DryRun`: does what `--accept-loss` would do here on a `TrialDisk`, tells it, and drops it.

A single server starts as it would with the flag, and serves nobody. A node of a cluster hears from
no other: of the streams whose only copy it has, by what its own files say, each is recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from streamd import errors
from streamd.machine.meta import StreamAsset
from streamd.node.context import LogSink
from streamd.node.env import Completion, SystemEnv
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.node.ports import Done
from streamd.node.recovery.lost_copies import is_only_copy
from streamd.node.replicas.replica_recovery import OPENING_ERRORS, ReplicaRecovery
from streamd.raft.messages import Message
from streamd.store.frames.keyring import EncryptionKeys
from streamd.store.trial_disk import TrialDisk
from streamd.types import NodeId, StreamKey, Uid, stream_label

T = TypeVar("T")


class DryRun:
    """Dry run. `tell` gets each line of what an operator is to read."""

    def __init__(
        self,
        *,
        store_dir: str,
        server_name: NodeId,
        cluster_name: str,
        sync: str | float,
        log: LogSink,
        tell: Callable[[str], None],
        encryption: EncryptionKeys | None = None,
    ) -> None:
        self._disk = TrialDisk(store_dir)
        self._tell = tell
        options = NodeOptions(
            store_dir=store_dir,
            server_id="dry-run",
            server_name=server_name,
            sync=sync,
            cluster_name=cluster_name,
            accepts_loss=True,
            encryption=encryption,
        )
        env = SystemEnv(disk=self._disk.as_disk())
        self._node = LocalNode(options, _NoWires(), env=env, log=log)

    async def run(self) -> None:
        """Recover, tell and stop. Raises what a start raises that can't go on even so."""
        node = self._node
        try:
            if node.is_clustered:
                node.attach_peers(_Nobody(), lambda: _MANY)
            await node.started()
            failed = dict(node.failed)
            if node.is_clustered:
                failed = await self._recover_all()
            self._tell_all(failed)
            await node.stopped()
        finally:
            self._disk.close_all()

    async def _recover_all(self) -> dict[StreamKey, str]:
        """Recover each stream whose only copy is here; return why some can't be, by name."""
        parts = self._node.parts
        failed: dict[StreamKey, str] = {}
        recovery = ReplicaRecovery(
            parts.context,
            parts.recovery.catchups,
            parts.recovery.amnesia,
            parts.recovery.quorum_loss,
            parts.replicas.trash,
        )
        await self._job(lambda: None)  # what the start opened is open
        told = {report.uid for report in parts.recovery.quorum_loss.reports}
        for asset in self._only_copies():
            if asset.uid in told:
                continue
            found = await self._job(partial(recovery.recover, asset))
            if isinstance(found, OPENING_ERRORS):
                failed[asset.key] = str(found)
        return failed

    def _only_copies(self) -> list[StreamAsset]:
        """Return the streams that the meta group's log and snapshots here name, and those whose
        files alone say that they have one replica: whether that is so still, only the cluster
        knows."""
        node, known = self._node, self._node.meta.streams_by_uid
        parts = node.parts
        mine = (node.server_name,)
        found = [asset for asset in known.values() if is_only_copy(parts.context, asset)]
        for each in parts.recovery.quorum_loss.find_by_files(frozenset(known))[0]:
            if each.config.get("num_replicas", 1) == 1 and not node.meta.is_deleted(each.uid):
                found.append(
                    StreamAsset(
                        each.uid, each.config["name"], each.config, each.created_ns,
                        each.config_meta_index, each.config, mine, mine, mine,
                    )
                )  # fmt: skip
        return sorted((asset for asset in found if asset.is_file), key=lambda asset: asset.uid)

    async def _job(self, job: Callable[[], T]) -> T | BaseException:
        completion: Completion[T | BaseException] = Completion()
        self._node.parts.context.block_thread.submit(job, completion.done)
        return await completion.wait()

    def _tell_all(self, failed: dict[StreamKey, str]) -> None:
        node, tell = self._node, self._tell
        reports = sorted(node.parts.recovery.quorum_loss.reports, key=lambda report: report.name)
        for report in reports:
            for line in report.lines():
                tell(line)
        for key, reason in sorted(failed.items()):
            tell(f"stream {stream_label(key)}: cannot be recovered: {reason}")
        rebuilt = {report.uid for report in reports}
        others = [
            stream_label(key)
            for key, asset in sorted(node.meta.streams_by_key.items())
            if asset.uid not in rebuilt and key not in failed
        ]
        if others:
            tell(f"served unchanged: {', '.join(others)}")
        if not reports and not failed and not others:
            tell("no stream is known here")
        tell("dry run: no file was changed and no client served; start with --accept-loss to do it")


_MANY = 1 << 30  # nodes: no cluster is formed


class _Nobody:
    """Implements ports.Peers: no other node is there."""

    def send(self, node_id: NodeId, uid: Uid, messages: list[Message]) -> None:
        """Lost."""

    def call(
        self,
        node_id: NodeId,
        method: str,
        args: Sequence[object],
        done: Done,
        timeout_ms: int = 5000,
    ) -> None:
        done(errors.CLUSTER_NOT_AVAIL())

    def note(self, node_id: NodeId, kind: str, args: Sequence[object]) -> None:
        """Drop a note: no peer is there."""

    def is_up(self, node_id: NodeId) -> bool:
        return False

    def nodes(self) -> list[NodeId]:
        return []

    def refuse(self, node_id: NodeId, reason: str) -> None:
        """There is no link."""


class _NoWires:
    """Implements ports.Wires: there are no clients."""

    def sink(self, subject: bytes, queue: bytes = b"") -> None:
        return None

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Drop a message: no subscriber is there."""

    def has_interest(self, subject: bytes) -> bool:
        return False

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        on_change(False)
        return self

    def unwatch(self, token: object) -> None:
        """Nothing to forget."""

    def subscribe(self, subject: bytes, on_messages: Callable[..., object]) -> object:
        return self  # nothing comes

    def unsubscribe(self, token: object) -> None:
        """Nothing to forget."""

    def request(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, *, is_external: bool
    ) -> None:
        """Drop a request: nobody answers."""

    def when_drained(self, tell: Callable[[], None]) -> None:
        """Ignore: no receiver is congested."""
