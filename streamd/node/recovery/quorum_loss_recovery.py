"""`QuorumLossRecovery`: goes on without what is lost, because the operator said so (--accept-loss).

The server is alone, or a node that has the only copy of a stream; its log or blocks are damaged.
Nobody else has what is lost. Each group keeps its newest snapshot and what of the log is proven to
follow it; the old log is set aside, whole (store/wal/wal_repair.py), and so are the ends of blocks
that no snapshot covers. Streams that the meta group has forgotten are known again by their files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, JsError, StreamdError
from streamd.machine import commands
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.commands import Command
from streamd.machine.snapshot import StreamState, decode_stream
from streamd.node.context import NodeContext, NodeLog
from streamd.node.groups import inbox
from streamd.node.groups.group import Group
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.snapshot_state import unwrap
from streamd.node.identity.node_identity import NodeIdentity
from streamd.node.ports import Done
from streamd.node.recovery.stream_rebuild import Report
from streamd.node.replicas.local_groups import LocalGroups
from streamd.store.blocks.outline import read_outline
from streamd.store.blocks.quarantine import keep_ends
from streamd.store.blocks.record_format import block_number
from streamd.store.blocks.snapshots import SnapshotFile
from streamd.types import META_UID, Index, Uid

_MARK = "is_accepting_loss"  # in node.json
_KEEPS_ALL: StreamConfig = {
    "description": "rebuilt from blocks: what it was is not known",
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "no_ack": False,
    "duplicate_window": 120_000_000_000,
    "placement": None,
    "mirror": None,
    "sources": [],
    "compression": "none",
    "first_seq": 0,
    "subject_transform": None,
    "republish": None,
    "allow_direct": True,
    "mirror_direct": False,
    "discard_new_per_subject": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "subject_delete_marker_ttl": 0,
    "allow_msg_counter": False,
    "allow_atomic": False,
    "allow_msg_schedules": False,
    "allow_batched": False,
    "persist_mode": "default",
    "metadata": {"_nats.req.level": "0"},
}


class _Found(NamedTuple):
    """State of a stream as its newest snapshot has it."""

    uid: Uid
    config: StreamConfig
    created_ns: int
    config_meta_index: Index  # of the meta entry that set it


def _nameless(uid: Uid, now_ns: int) -> _Found:
    """A stream of which only the blocks are there: what it was called, and what it was to keep,
    nobody knows. It keeps all of it under a name of its own, and captures no subject of before."""
    name = f"RECOVERED_{uid}"
    config: StreamConfig = {**_KEEPS_ALL, "name": name, "subjects": [name]}
    return _Found(uid, config, now_ns, uid)


class Resumption(NamedTuple):
    """Decision, before the log is opened, on whether this start accepts a loss."""

    accepts_loss: bool
    is_resumed: bool  # the start before accepted one, and was cut short


def resume(identity: NodeIdentity, log: NodeLog, *, accepts_loss: bool) -> Resumption:
    """Decide whether a single server accepts a loss, before its log is opened. Where the log is
    damaged it shows nothing of that from then on, so a start that is cut short must be remembered:
    the next one finishes it, unasked."""
    if _MARK in identity.facts:
        log.warn("recovery with --accept-loss continues: the start before was interrupted")
        return Resumption(accepts_loss=True, is_resumed=True)
    if accepts_loss:
        identity.facts[_MARK] = True
        identity.save()
    return Resumption(accepts_loss, is_resumed=False)


class QuorumLossRecovery:
    """Recovery of one start. `is_log_lost`: the log is another one than the server had."""

    def __init__(
        self, context: NodeContext, groups: LocalGroups, *, is_log_lost: bool, is_resumed: bool
    ) -> None:
        self._context = context
        self._groups = groups
        self._is_log_lost = is_log_lost
        self.is_resumed = is_resumed
        self._lost: set[Uid] = set()  # streams that lost a block
        self.is_meta_lost = False  # the meta group began without its log
        self.reports: list[Report] = []  # of streams that were rebuilt

    def finish(self, done: Callable[[], None]) -> None:
        """Save each stream that lost a block, then call `done`: all streams are open, and snapshots
        of before still name what lost blocks held."""
        identity = self._context.identity
        left = set(self._lost)

        def saved(uid: Uid) -> None:
            left.discard(uid)
            if not left and _MARK in identity.facts:
                del identity.facts[_MARK]
                identity.save()
                done()

        def stopped(uid: Uid, group: Group) -> None:
            if group.failure:  # else the node stops: the next start finishes this
                saved(uid)

        for uid in list(left):
            replica = self._groups.get(uid)
            if replica is None or replica.group.failure:
                left.discard(uid)
            else:
                replica.monitor.on_stopped.append(partial(stopped, uid, replica.group))
                replica.monitor.save_anew(partial(saved, uid))
        if not left:
            saved(META_UID)

    def record_lost(self, uid: Uid) -> None:
        """Record that a block of the stream could not be read. On the block thread, before the
        stream is open."""
        self._lost.add(uid)

    def on_opened(self, uid: Uid, monitor: Monitor) -> None:
        """Save a stream anew that runs on a node of a cluster, if it lost a block: the snapshot of
        before still says that it has it."""
        if self._context.is_clustered and uid in self._lost:
            self._lost.discard(uid)
            monitor.save_anew(lambda: None)

    def record_rebuilt(self, report: Report) -> None:
        """Record that a stream was made anew from what is left of it. On the block thread."""
        self.reports.append(report)
        for line in report.lines():
            self._context.log.warn("rebuilt: " + line)

    def is_lost(self, uid: Uid) -> bool:
        """True if the log may lack entries of the group without showing it."""
        return self.is_resumed or self._context.wal.group(uid) is None

    def keep_ends(self, uid: Uid, tail: tuple[int, int]) -> None:
        """Set aside the ends of a stream's blocks before they are cut back to its snapshot: a log
        that is lost won't write the rest again. On the block thread."""
        context = self._context
        kept = keep_ends(context.env.disk, context.root, uid, tail)
        if kept:
            context.log.warn(
                "blocks are cut back to the newest snapshot: a copy of their ends is kept",
                group=uid,
                path=kept,
            )

    def adopt_streams(self, done: Callable[[], None]) -> None:
        """Make the meta group, which leads, know all streams that are here, and use no uid again
        that something on this disk may have, if something is lost. No stream is open yet."""
        context = self._context
        is_lost = bool(context.wal.damage) or self._is_log_lost or self.is_meta_lost
        if not (is_lost or self.is_resumed):
            done()
            return
        job = partial(self.find_by_files, frozenset(self._groups.meta.streams_by_uid))
        context.block_thread.submit(job, partial(self._adopt, done))

    def find_by_files(self, known: frozenset[Uid]) -> tuple[list[_Found], Index]:
        """Find streams that are not known, by uid, and the last meta entry that any of them names.
        Synchronous."""
        context = self._context
        disk, streams = context.env.disk, os.path.join(context.root, "streams")
        log = context.log
        found: list[_Found] = []
        last: Index = 0
        for uid in sorted(int(name) for name in disk.listdir(streams) if name.isdigit()):
            last = max(last, uid)
            directory = os.path.join(streams, str(uid))
            try:
                state = self._state_of(uid, directory)
            except (StreamdError, OSError, ValueError) as err:
                log.warn(
                    "a stream's directory says too little to restore the stream",
                    group=uid,
                    reason=str(err),
                )
                continue
            if state is None:
                if uid not in known:
                    log.warn(
                        "a stream's directory says too little to restore the stream",
                        group=uid,
                        reason="no block",
                    )
                continue
            last = max(last, state.config_meta_index)
            if uid not in known:
                found.append(_Found(uid, state.config, state.created_ns, state.config_meta_index))
        return found, last

    def _state_of(self, uid: Uid, directory: str) -> StreamState | _Found | None:
        """Return what is known of a stream by its files; None: nothing, not even that it has
        messages."""
        disk = self._context.env.disk
        damage: CorruptionError | None = None
        try:
            snapshot = SnapshotFile.load(disk, directory, "stream", group=uid)
        except CorruptionError as err:
            snapshot, damage = None, err
        if snapshot is None:
            snapshot = read_outline(disk, directory, uid)
        if snapshot is not None:
            return decode_stream(unwrap(snapshot.state)[1])
        if any(block_number(name) is not None for name in disk.listdir(directory)):
            return _nameless(uid, self._context.env.clock.now_ns())
        if damage is not None:
            raise damage
        return None

    def _adopt(self, done: Callable[[], None], result: Any) -> None:
        if isinstance(result, BaseException):
            raise result
        found, last = result
        meta_group = self._groups.meta_group
        assert meta_group is not None
        # A stream's uid is the index of the entry that creates it: use up those that were given.
        unused = max([last, *self._context.wal.groups]) - meta_group.raft.last_index
        nothing = [commands.CHECKPOINT, self._context.env.clock.now_ns(), 0, 0]
        for _ in range(max(0, unused) + limits.LOST_INDEXES):
            self._propose(nothing, ignore)
        for stream in found:
            command = [
                commands.ADOPT_STREAM,
                stream.created_ns,
                stream.uid,
                stream.config,
                stream.config_meta_index,
            ]
            self._propose(command, partial(self._adopted, stream))
        self._propose(nothing, lambda outcome: self._forget_groups(done))

    def _propose(self, command: Command, done: Done) -> None:
        assert self._groups.meta_monitor is not None
        self._groups.meta_monitor.post(inbox.Propose(command, done, False))

    def _adopted(self, stream: _Found, outcome: object) -> None:
        name, log = stream.config["name"], self._context.log
        if isinstance(outcome, JsError):
            reason = str(outcome)
            log.warn(
                "stream could not be restored from its files",
                stream=name,
                group=stream.uid,
                reason=reason,
            )
        else:
            log.warn("stream is restored from its files", stream=name, group=stream.uid)

    def _forget_groups(self, done: Callable[[], None]) -> None:
        """Destroy what the log has of groups without a stream: it is of no use."""
        wal = self._context.wal
        for uid in wal.groups:
            if uid != META_UID and uid not in self._groups.meta.streams_by_uid:
                wal.destroy(uid)
        done()
