"""`ReplicaSet`: the stream replicas of one node: which there should be, and what becomes of each.

Every way into service is the same procedure (`_open`): what is on disk is recovered, the group
starts, and its monitor runs. A replica that fetched a peer's snapshot, or whose files were set
aside as damaged, is stopped and opened again, so no second path exists that could differ.

    not here -> opening -> running -> closing live -> opening   (repair, catch-up, wrong members)
                   |          |
                   v          v
                failed     closing for good -> not here         (deleted, moved away, lost)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamd import errors, limits
from streamd.errors import CorruptionError, DiskError
from streamd.machine.meta import StreamAsset
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.group_shell import Events
from streamd.node.groups.turn import Turn
from streamd.node.replicas.failed_replicas import FailedReplicas
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.replica_closer import ReplicaCloser
from streamd.node.replicas.replica_opener import ReplicaOpener
from streamd.node.replicas.replica_recovery import OPENING_ERRORS, Recovered
from streamd.node.replicas.replica_removal import ReplicaRemoval
from streamd.node.replicas.replica_roles import ReplicaRoles
from streamd.node.replicas.replica_table import ReplicaTable, is_foreign
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import StreamKey, Uid, stream_label

Done = Callable[[], None]


class ReplicaSet:
    """Owner of the stream groups that have a member on this node. The replicas stand in
    `LocalGroups`."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        table: ReplicaTable,
        opener: ReplicaOpener,
        closer: ReplicaCloser,
        roles: ReplicaRoles,
        removal: ReplicaRemoval,
        failed: FailedReplicas,
    ) -> None:
        self._context = context
        self._groups = groups
        self._table = table
        self._opener = opener
        self._closer = closer
        self._roles = roles
        self._removal = removal
        self._failed = failed
        removal.on_left = self._on_left

    # --- which there should be --------------------------------------------------------------

    def open_all(self, assets: list[StreamAsset], done: Done) -> None:
        """Open `assets`; call `done` when each leads or has failed."""
        one_ready = _after(len(assets), done)
        for asset in assets:
            self._roles.when_ready(asset.uid, one_ready)
            self._open(asset)

    def reconcile(self) -> None:
        """Open, close and place all streams as the meta group's state says."""
        known = self._groups.meta.streams_by_uid
        for uid, asset in list(self._table.assets.items()):
            if uid not in known:
                self.reconcile_one(uid, asset.key)
        for asset in sorted(known.values(), key=lambda asset: asset.uid):
            self.reconcile_one(asset.uid, asset.key)
        self._closer.check_orphans()

    def reconcile_one(self, uid: Uid, key: StreamKey) -> None:
        """Open, close and place one stream as the meta group's state says."""
        table, meta = self._table, self._groups.meta
        asset = meta.streams_by_uid.get(uid)
        self._removal.forget(uid)
        if uid in table.busy:
            pass  # until it is done: of two members here, neither would know the other's promises
        elif asset is None:
            # A committed command took it away, if it named the uid.
            if uid in table.assets and meta.is_deleted(uid):
                self._close(table.assets[uid])
            elif uid in table.assets and meta.is_lost(uid):
                self._close_lost(table.assets[uid])
            elif uid not in table.assets:
                self._roles.forget(uid)  # it was elsewhere
        elif is_foreign(self._context, asset):
            self._reconcile_foreign(asset)
        elif uid not in table.assets:
            if self._opener.is_due(asset):
                self._open(asset)
        else:
            table.assets[uid] = asset
            replica = self._groups.get(uid)
            if replica is not None:
                self._roles.on_asset(replica, asset)
        self._roles.place(key)

    def _reconcile_foreign(self, asset: StreamAsset) -> None:
        """Begin to part with a stream that has moved away."""
        uid = asset.uid
        if self._groups.get(uid) is not None:
            self._removal.begin(uid)
        elif uid in self._table.assets:
            if self._failed.is_final(uid) or not asset.is_file:
                self._close(self._table.assets[uid])  # not open: what it has on disk stays
            # Else it is begun anew, here or in a while: then its group is asked.
        elif self._context.wal.group(uid) is not None:
            self._open(asset)  # it moved away meanwhile: the group is asked, as by any other

    # --- opening ----------------------------------------------------------------------------

    def _open(self, asset: StreamAsset) -> None:
        """Recover or create the group of `asset`, off the loop; then run it."""
        self._table.assets[asset.uid] = asset
        self._table.busy.add(asset.uid)
        self._failed.begin_again(asset.uid)

        def opened(result: Recovered | BaseException) -> None:
            try:
                if isinstance(result, BaseException):
                    raise result
                self._run(asset, result)
            except OPENING_ERRORS as err:
                self.not_opened(asset.uid, err)
            self._end_transition(asset)

        self._opener.recover(asset, opened)

    def _end_transition(self, asset: StreamAsset) -> None:
        """Follow what was asked for meanwhile: the stream may be wanted here by now, or not."""
        self._table.busy.discard(asset.uid)
        if not self._context.life.is_stopping:
            self.reconcile_one(asset.uid, asset.key)

    def _run(self, asset: StreamAsset, found: Recovered) -> None:
        uid = asset.uid
        asset = self._groups.meta.streams_by_uid.get(uid, asset)  # what the meta group says now
        self._table.assets[uid] = asset
        replica = self._opener.make(asset, found, self)
        if replica is not None:
            self._roles.place(asset.key)
            self._failed.clear(uid, asset.name)
            self._opener.run(replica, found)

    # --- running ----------------------------------------------------------------------------

    def on_turn(self, uid: Uid, group: StreamGroup, turn: Turn) -> None:
        """Follow a turn of a replica; see replica_maker.ReplicaHandlers, also for the next two."""
        replica = self._groups.get(uid)
        if replica is not None and replica.group is group and not group.failure:
            self._roles.on_turn(replica, turn)

    def on_events(self, replica: LocalStream, events: Events) -> None:
        """Tell the rooms above of events of a stream that this node leads."""
        for kind, fields in events:
            self._context.hooks.announce(replica, kind, fields)

    def on_failed(self, asset: StreamAsset, err: BaseException) -> None:
        """Repair or stop a replica whose turn raised. With peers, what is wrong here is right
        elsewhere."""
        uid, replica = asset.uid, self._groups.replicas[asset.uid]
        if uid in self._table.busy:
            text = "stream failed while it was closed for good"
            self._context.log.warn(text, stream=asset.name, reason=str(err))
            return  # it is being closed for good, and is needed no more
        # As its members are now: when it was opened, or where it is wanted, may be another matter.
        voters = replica.group.raft.members.voters
        has_peers = any(name != self._context.name for name in voters)
        is_damage = isinstance(err, CorruptionError) and not errors.is_passing(err)
        if has_peers and is_damage and uid not in self._table.reasons:
            self._failed.record_damage(asset.name, err)
            self._table.reasons[uid] = str(err)
            self._table.renewed_count += 1
            self.repair(uid, str(err))
            return
        self.fail(uid, asset.key, err)
        replica.store.close()  # no read comes any more: others need the files it holds open
        self._retry_if_passing(asset, err)

    # --- repair -----------------------------------------------------------------------------

    def repair(self, uid: Uid, reason: str, *, is_log_void: bool = False) -> None:
        """Make a wrong replica anew; see group_control.GroupControl, also for the next four."""
        if is_log_void:
            self._opener.void_log(uid)
        self.reopen(uid, before=partial(self._opener.set_aside, uid))

    def stop_serving(self, uid: Uid, reason: str) -> None:
        """Stop a replica that may or may not be right."""
        replica = self._groups.get(uid)
        if replica is not None:
            replica.monitor.post(inbox.Failed(CorruptionError(reason)))

    def close_live(self, uid: Uid, done: Done) -> None:
        """Stop a replica and close its files, to be opened again; then call `done`."""
        replica = self._groups.get(uid)
        if replica is None:
            done()
            return
        self._roles.withdraw(replica)
        self._closer.close_live(replica, done)

    def open_again(self, uid: Uid) -> None:
        """Open a replica that was closed for a repair, if it is still wanted."""
        asset = self._table.assets.get(uid)
        if asset is None or uid in self._table.busy or self._context.life.is_stopping:
            return
        self._closer.clear_observations(uid)
        known = self._groups.meta.streams_by_uid
        if uid in known:
            self._open(known[uid])
        else:
            self._close(asset)

    def not_opened(self, uid: Uid, err: BaseException) -> None:
        """Report that a closed replica can't be opened, for now or for good."""
        asset = self._table.assets.get(uid)
        if asset is not None:  # else it was deleted meanwhile
            self.fail(uid, asset.key, err)
            self._retry_if_passing(asset, err)

    def reopen(self, uid: Uid, before: Callable[[], object] = lambda: None) -> None:
        """Stop the replica, do `before` on the block thread, and open what is there then."""

        def closed() -> None:
            self._context.block_thread.submit(before, done)

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                self.not_opened(uid, result)
            else:
                self.open_again(uid)

        if self._groups.get(uid) is not None:
            self._closer.stop_fetching(uid)
            self.close_live(uid, closed)

    # --- the end ----------------------------------------------------------------------------

    def _retry_if_passing(self, asset: StreamAsset, err: BaseException) -> None:
        """Open a replica again in a while, as it is, that had to stop, or could not be opened, with
        nothing wrong but what passes."""
        uid = asset.uid

        def retry() -> None:
            is_known = uid in self._failed and uid in self._table.assets
            if is_known and not self._context.life.is_stopping:
                self.close_live(uid, lambda: self.open_again(uid))

        if errors.is_passing(err):
            self._failed.pause(uid)
            self._context.env.loop.call_later(limits.OPEN_AGAIN_S, retry)

    def fail(self, uid: Uid, key: StreamKey, err: BaseException) -> None:
        """Stop serving a stream on this node."""
        reason = self._failed.record(uid, stream_label(key), err)
        replica = self._groups.get(uid)
        if replica is not None:
            self._roles.withdraw(replica)
            replica.group.delete()
        self._roles.fail(uid, key, reason)

    def when_closed(self, uid: Uid, done: Done) -> None:
        """Call `done` when no group of `uid` runs here any more."""
        self._closer.when_closed(uid, done)

    def _on_left(self, uid: Uid) -> None:
        """Close the replica of a group that has removed this node (see replica_removal), unless
        the stream is wanted here again."""
        context = self._context
        asset = self._groups.meta.streams_by_uid.get(uid)
        if asset is None or not is_foreign(context, asset) or uid in self._table.busy:
            return
        if context.life.is_stopping or context.life.is_removed:
            return
        # What the group asks from now on is not promised, for it would be forgotten.
        self._groups.replicas[uid].group.turn_deaf()
        self._close(asset)

    def _close(self, asset: StreamAsset) -> None:
        """Close the replica of a stream that was deleted or has left."""
        uid, meta = asset.uid, self._groups.meta
        is_deleted = meta.is_deleted(uid)
        self._removal.forget(uid)
        self._closer.forget_fetching(uid)
        if uid not in meta.streams_by_uid:
            self._roles.forget(uid)  # else it lives on, elsewhere
        self._closer.clear_observations(uid)
        is_led = self._roles.begin_close(uid)
        self._failed.forget(uid)
        replica = self._groups.get(uid)
        if replica is None:
            # Not open: being begun anew, or failed.
            if is_deleted and asset.is_file:
                self._closer.remove_files(uid)
            self._on_gone(uid)
            return
        self._table.busy.add(uid)
        replica.is_ready = False
        self._roles.place(asset.key)
        if is_led and is_deleted:
            names = replica.machine.listed_names()
            self.on_events(replica, [("consumer_deleted", {"consumer": name}) for name in names])

        def closed() -> None:
            self._on_gone(uid)
            self._end_transition(asset)

        self._closer.close_for_good(replica, closed)

    def _close_lost(self, asset: StreamAsset) -> None:
        """Stop the group of a stream without which the meta group went on; its files stay."""
        uid = asset.uid

        def closed() -> None:
            self._on_gone(uid)
            self._end_transition(asset)

        self._table.busy.add(uid)
        self._closer.forget_fetching(uid)
        self._failed.forget(uid)
        self.close_live(uid, closed)

    def _on_gone(self, uid: Uid) -> None:
        self._opener.forget(uid)
        self._closer.on_gone(uid)

    def stop_all(self, done: Done) -> None:
        """Stop every group; waiting pulls hear of it."""
        self._closer.stop_all_fetching()
        replicas = list(self._groups)
        stopped = _after(len(replicas), done)
        for replica in replicas:
            replica.group.shut_down()
        for replica in replicas:
            replica.monitor.when_stopped(stopped)

    def fail_all(self, err: BaseException) -> None:
        """Stop serving all streams on this node."""
        for uid, asset in list(self._table.assets.items()):
            self._closer.stop_fetching(uid)
            self.fail(uid, asset.key, err)

    def end_all(self, err: DiskError) -> None:
        """End every group, also those that lead: what they rely on is gone."""
        for uid, asset in list(self._table.assets.items()):
            self._closer.stop_fetching(uid)
            replica = self._groups.get(uid)
            if replica is None or replica.monitor.stopped.is_set():
                self.fail(uid, asset.key, err)
            else:
                self._roles.withdraw(replica)
                replica.monitor.post(inbox.Failed(err))

    def close_stores(self) -> None:
        """Close the files of all replicas: the node stops."""
        for replica in self._groups:
            replica.store.close()


def _after(count: int, done: Done) -> Done:
    """Return a callback that calls `done` when it has been called `count` times; at once if that is
    0."""
    left = count

    def one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done()

    if not count:
        done()
    return one
