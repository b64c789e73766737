"""The stream replicas of one node: opened, run, reopened after a repair, closed.

Every way into service is the same procedure (`_open`): what is on disk is recovered, the group
starts, and its monitor runs. A replica that fetched a peer's snapshot, or whose files were set
aside as damaged, is stopped and opened again, so there is no second path that could differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.errors import CorruptionError, DiskError, IncarnationError
from streamd.machine.meta import StreamAsset
from streamd.node.catchup.service import CatchUps
from streamd.node.groups import group as g
from streamd.node.groups import inbox
from streamd.node.replicas.failed_replicas import Failures
from streamd.node.replicas.orphans import Leftovers
from streamd.node.replicas.replica_maker import ReplicaMaker
from streamd.node.replicas.replica_recovery import OPENING_ERRORS, Recovered, ReplicaRecovery
from streamd.node.replicas.replica_removal import Departures
from streamd.node.stream_groups.remote_stream import RemoteStream
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.messages import Message, Vote
from streamd.store.blocks.stream_store import StreamStore
from streamd.types import META_UID, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node

Ready = Callable[[], None]


class Replicas:
    """All stream groups that have a member on this node, by uid."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replicas: dict[Uid, LocalStream] = {}
        self._assets: dict[Uid, StreamAsset] = {}  # of replicas that are open, opening or failed
        self._busy: set[Uid] = set()  # of these, being opened, or closed for good
        self._waiting: dict[Uid, list[Callable[[], None]]] = {}  # to be gone
        self._ready_waiters: dict[Uid, list[Ready]] = {}  # to lead, or to have failed
        self.reasons: dict[Uid, str] = {}  # why a replica does not serve
        self._led_since_ns: dict[Uid, int] = {}  # when this node last began to lead
        self._early: dict[Uid, dict[NodeId, Message]] = {}  # campaigns in groups not open yet
        self._void_logs: set[Uid] = set()  # of replicas being repaired
        self.catch_ups = CatchUps(node)
        self._recovery = ReplicaRecovery(node, self.catch_ups)
        self._maker = ReplicaMaker(
            node, on_turn=self._on_turn, on_events=self._on_events, on_failed=self._failed
        )
        self.failures = Failures(node)
        self.departures = Departures(node)
        self.leftovers = Leftovers(node)

    def __iter__(self) -> Iterator[LocalStream]:
        return iter(list(self._replicas.values()))

    def get(self, uid: Uid) -> LocalStream | None:
        return self._replicas.get(uid)

    def has_peers(self, asset: StreamAsset) -> bool:
        """True if other nodes should have the stream too."""
        return self._node.is_clustered and len(asset.peers) > 1

    def hold(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None:
        """Keep a campaign's latest word until the group is open: a new group's first candidate is
        often faster than its voters, and would be told nothing for a second."""
        for message in messages:
            if isinstance(message, Vote):
                self._early.setdefault(uid, {})[sender] = message
                if len(self._early) > limits.EARLY_VOTES_MAX:
                    del self._early[next(iter(self._early))]

    # --- which there should be --------------------------------------------------------------

    def open_all(self, assets: list[StreamAsset], done: Ready) -> None:
        """Open `assets`; call `done` when each leads or has failed."""
        one_ready = _after(len(assets), done)
        for asset in assets:
            self._ready_waiters.setdefault(asset.uid, []).append(one_ready)
            self._open(asset)

    def reconcile(self) -> None:
        """Open, close and place whatever the meta group says."""
        known = self._node.meta.streams_by_uid
        for uid, asset in list(self._assets.items()):
            if uid not in known:
                self.reconcile_one(uid, asset.name)
        for asset in sorted(known.values(), key=lambda asset: asset.uid):
            self.reconcile_one(asset.uid, asset.name)
        self.leftovers.look()

    def knows(self, uid: Uid) -> bool:
        """True if a replica of it is open, being opened or closed, or has failed."""
        return uid in self._assets

    def asset(self, uid: Uid) -> StreamAsset | None:
        """What the stream is, as far as it is known to be here."""
        return self._assets.get(uid)

    def reconcile_one(self, uid: Uid, name: str) -> None:
        """Do what the meta group's state asks for one stream."""
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        self.departures.forget(uid)
        if uid in self._busy:
            pass  # until it is over: of two members here, neither would know the other's promises
        elif asset is None:
            # A committed command took it away, if it named the uid.
            if uid in self._assets and node.meta.is_deleted(uid):
                self._close(self._assets[uid])
            elif uid in self._assets and node.meta.is_lost(uid):
                self._close_lost(self._assets[uid])
            elif uid not in self._assets:
                node.peering.forget(uid)  # it was elsewhere
        elif self._is_foreign(asset):
            if uid in self._replicas:
                self.departures.begin(uid)
            elif uid in self._assets:
                if self.failures.is_final(uid) or not asset.is_file:
                    self._close(self._assets[uid])  # not open: what it has on disk stays
                # Else it is begun anew, here or in a while: then its group is asked.
            elif node.wal.group(uid) is not None:
                self._open(asset)  # it moved away meanwhile: the group is asked, as by any other
        elif uid not in self._assets:
            is_too_early = node.amnesia.is_unknown(uid) or self._is_early(asset)
            if self._is_wanted(asset) and not is_too_early:
                self._open(asset)
        else:
            self._assets[uid] = asset
            replica = self._replicas.get(uid)
            if replica is not None and replica.is_ready:
                node.config_changes.carry_over(replica, asset)
                node.moves.look_at(replica, asset)
            elif replica is not None:
                node.moves.begin_anew_if_wrong(replica, asset)
        self._place(name)

    def _is_wanted(self, asset: StreamAsset) -> bool:
        name = self._node.server_name
        return not self._node.is_clustered or name in asset.peers or name in asset.members

    def _is_early(self, asset: StreamAsset) -> bool:
        """True of a stream in memory while the meta group may have news of it. Who belongs to it
        is known there alone: its own log, which would stop a replica that has moved, is gone."""
        node = self._node
        return node.is_clustered and not asset.is_file and not node.meta_member.is_fresh

    def _is_foreign(self, asset: StreamAsset) -> bool:
        return self._node.is_clustered and asset.may_be_dropped_by(self._node.server_name)

    def _place(self, name: str) -> None:
        """Have the stream's name lead to its replica here, or to its leader elsewhere."""
        node = self._node
        asset = node.meta.streams_by_name.get(name)
        if asset is None:
            node.catalog.place(name, None)
            return
        replica = self._replicas.get(asset.uid)
        is_awaited = not node.is_clustered and asset.uid not in self.failures
        if replica is not None and (replica.is_ready or is_awaited):
            node.catalog.place(name, replica)
        elif node.is_clustered:
            known = node.catalog.stream(name)
            if known is None or known.uid != asset.uid:
                node.leaders.expect(asset.uid)
            node.catalog.place(name, RemoteStream(asset, node))
        else:
            node.catalog.place(name, None)

    # --- opening ----------------------------------------------------------------------------

    def _open(self, asset: StreamAsset) -> None:
        """Recover or create the group of `asset`, off the loop; then run it."""
        self._assets[asset.uid] = asset
        self._busy.add(asset.uid)
        self.failures.begin_again(asset.uid)

        def opened(result: Any) -> None:
            try:
                if isinstance(result, BaseException):
                    raise result
                self._run(asset, result)
            except OPENING_ERRORS as err:
                self.not_opened(asset.uid, err)
            self._no_longer_busy(asset)

        self._node.block_thread.submit(partial(self._recovery.recover, asset), opened)

    def _no_longer_busy(self, asset: StreamAsset) -> None:
        """Do what was asked for meanwhile: it may have come to be wanted here, or not to be."""
        self._busy.discard(asset.uid)
        if not self._node.is_stopping:
            self.reconcile_one(asset.uid, asset.name)

    def _run(self, asset: StreamAsset, found: Recovered) -> None:
        node = self._node
        uid = asset.uid
        asset = node.meta.streams_by_uid.get(uid, asset)  # what the meta group says of it now
        self._assets[uid] = asset
        is_gone = node.meta.is_deleted(uid) or (self._is_foreign(asset) and not found.is_file)
        if is_gone or node.is_stopping or node.removals.reason:
            self._discard(asset, found.store)
            return
        if found.is_damaged:
            node.damages.damage_count += 1
        for text in found.faults:
            node.damages.on_found_at_start(text, uid)
        if found.conflict:
            node.damages.on_conflict(uid, found.conflict)
        if found.marker is not None:
            self._recovery.tell_log(uid, found.marker)
        if found.marker is not None or found.is_install_void:
            self.catch_ups.note_opened(uid, is_void=found.is_install_void)
            node.trash.empty(found.needless)
        raft = self._maker.member(asset, found, is_log_void=uid in self._void_logs)
        self._void_logs.discard(uid)
        replica = self._replicas[uid] = self._maker.replica(asset, found, raft)
        self._place(asset.name)
        self.failures.over(uid, asset.name)
        node.env.spawn(replica.monitor)
        node.accepted_loss.opened(uid, replica.monitor)
        if node.is_clustered:
            node.peering.introduce(replica.monitor, raft.members.members())
            for sender, message in self._early.pop(uid, {}).items():
                replica.monitor.post(inbox.Step(sender, message))
        replica.monitor.post(inbox.Tick())
        for block_no, text in found.lacking:
            tell = partial(node.scrubber.found_lacking, replica, block_no, CorruptionError(text))
            # A moment later where peers are to be asked for it: they may not be met yet.
            delay_s = limits.DAMAGES_EVERY_S if len(raft.members.voters) > 1 else 0
            node.env.loop.call_later(delay_s, tell)

    def _discard(self, asset: StreamAsset, store: Any) -> None:
        """The stream was deleted, or the node began to stop, while this was being opened."""
        node = self._node
        is_deleted = node.meta.is_deleted(asset.uid)

        def job() -> None:
            if is_deleted and isinstance(store, StreamStore):
                store.move_to_trash(node.trash.directory)

        def done(result: Any) -> None:
            node.trash.note_moved(asset.uid, result)
            if is_deleted and isinstance(store, StreamStore):
                node.trash.destroy(asset.uid)

        store.close()
        node.block_thread.submit(job, done)

    # --- running ----------------------------------------------------------------------------

    def _on_turn(self, uid: Uid, group: StreamGroup, turn: g.Turn) -> None:
        """After a turn in which a role or the members changed or peers must hear of something."""
        node = self._node
        replica = self._replicas.get(uid)
        if replica is None or replica.group is not group or group.failure:
            return
        if turn.newcomers:
            # Their links, up before they were members, were none of this group's business then.
            node.peering.introduce(replica.monitor, turn.newcomers)
        if turn.has_role_changed and node.is_clustered:
            node.leaders.note_own(uid, group.raft.term, is_ready=group.is_ready)
            node.peering.announce(uid)
        if turn.has_role_changed and replica.is_ready != group.is_ready:
            replica.is_ready = group.is_ready
            asset = node.meta.streams_by_uid.get(uid)
            if group.is_ready and asset is not None:
                node.config_changes.carry_over(replica, asset)
                node.moves.look_at(replica, asset)
            if group.is_ready:
                node.publish_routes.look(uid)
            self._place(replica.name)
            if group.is_ready:
                self._settle_ready(uid)
                self._led_since_ns[uid] = node.env.clock.now_ns()
                if replica.is_file:
                    last_seq = replica.machine.index.last_seq
                    node.heirs.tell_election(
                        group.raft, stream=replica.name, uid=uid, last_seq=last_seq
                    )
                if not group.raft.log.is_sole:
                    self._on_events(replica, [("leader_elected", {})])
        if turn.has_members_news and replica.is_ready:
            node.moves.carry_on(uid)
        node.config_changes.settle(uid)
        node.peering.follow(uid, turn)

    def led_since_ns(self, uid: Uid) -> int:
        """When this node began to lead the stream, ns since the epoch; 0: it does not."""
        replica = self._replicas.get(uid)
        return self._led_since_ns.get(uid, 0) if replica is not None and replica.is_ready else 0

    def _settle_ready(self, uid: Uid) -> None:
        for waiting in self._ready_waiters.pop(uid, []):
            waiting()

    def _on_events(self, handle: LocalStream, events: list[tuple[str, dict[str, Any]]]) -> None:
        announce = self._node.on_stream_event
        if announce is not None:
            for kind, fields in events:
                announce(handle, kind, fields)

    def announce(self, handle: LocalStream, kind: str, fields: dict[str, Any]) -> None:
        """Tell of something that this node, which leads the stream, has seen."""
        self._on_events(handle, [(kind, fields)])

    # --- repair -----------------------------------------------------------------------------

    def repair(self, uid: Uid, reason: str, *, is_log_void: bool = False) -> None:
        """This replica is wrong: it stops serving, sets its files aside, and is made anew.

        `is_log_void`: its log is wrong as well, so it must not answer for what it once acked.
        """
        self.reasons[uid] = reason
        if is_log_void:
            self._void_logs.add(uid)
            self.catch_ups.note_differing(uid)
        if uid == META_UID:
            self._node.meta_member.restart_damaged()
            return
        self.reopen(uid, before=partial(self._recovery.set_aside, uid))

    def stop_serving(self, uid: Uid, reason: str) -> None:
        """Nobody knows the truth: this replica does nothing more until an operator looks."""
        self.reasons[uid] = reason
        replica = self._replicas.get(uid)
        if replica is not None:
            replica.monitor.post(inbox.Failed(CorruptionError(reason)))

    def reopen(self, uid: Uid, before: Callable[[], Any]) -> None:
        """Stop the replica, do `before` on the block thread, and open what is there then."""

        def closed() -> None:
            self._node.block_thread.submit(before, done)

        def done(result: Any) -> None:
            if isinstance(result, BaseException):
                self.not_opened(uid, result)
            else:
                self.open_again(uid)

        if uid in self._replicas:
            self.catch_ups.stop(uid)
            self.close_live(uid, closed)

    def close_live(self, uid: Uid, done: Callable[[], None]) -> None:
        """Stop the replica and close its files, to be opened again; then call `done`."""
        replica = self._replicas.get(uid)
        if replica is None:
            done()
            return
        self._withdraw(replica)
        replica.group.delete()

        def stopped() -> None:
            replica.store.close()
            if self._replicas.get(uid) is replica:  # else it stopped for something else, too
                del self._replicas[uid]
                replica.let_go()
            # Writes of this group that are under way end before its log is looked at again.
            self._node.wal.append([], done)

        replica.monitor.when_stopped(stopped)

    def open_again(self, uid: Uid) -> None:
        """Open a replica that was closed for a repair, if it is still wanted."""
        asset = self._assets.get(uid)
        if asset is None or uid in self._busy or self._node.is_stopping:
            return
        self._node.peering.comparisons.forget(uid)
        self._node.damages.forget(uid)
        self.reasons.pop(uid, None)
        if uid in self._node.meta.streams_by_uid:
            self._open(self._node.meta.streams_by_uid[uid])
        else:
            self._close(asset)

    def _withdraw(self, replica: LocalStream) -> None:
        """The replica serves nobody from here on."""
        replica.is_ready = False
        node = self._node
        if node.is_clustered:
            node.leaders.note_own(replica.uid, replica.group.raft.term, is_ready=False)
            node.peering.announce(replica.uid)
        self._place(replica.name)

    # --- the end ----------------------------------------------------------------------------

    def _failed(self, asset: StreamAsset, err: BaseException) -> None:
        """A turn raised. With peers, what is wrong here is right elsewhere."""
        uid, replica = asset.uid, self._replicas[asset.uid]
        if uid in self._busy:
            self._node.warn("stream failed at its end", stream=asset.name, reason=str(err))
            return  # it is being closed for good, and nobody misses it
        # As its members are now: when it was opened, or where it is wanted, may be another matter.
        voters = replica.group.raft.members.voters
        has_peers = any(name != self._node.server_name for name in voters)
        is_damage = isinstance(err, CorruptionError) and not errors.is_passing(err)
        if has_peers and is_damage and uid not in self.reasons:
            self._node.damages.damage_count += 1
            self._node.error("replica is damaged", stream=asset.name, reason=str(err))
            self.repair(uid, str(err))
            return
        self.fail(uid, asset.name, err)
        replica.store.close()  # nobody reads it any more: others need what it holds open
        self._look_if_passing(asset, err)

    def not_opened(self, uid: Uid, err: BaseException) -> None:
        """A replica that is closed can't be opened, for now or for good."""
        asset = self._assets.get(uid)
        if asset is not None:  # else it was deleted meanwhile
            self.fail(uid, asset.name, err)
            self._look_if_passing(asset, err)

    def _look_if_passing(self, asset: StreamAsset, err: BaseException) -> None:
        """A replica that had to stop, or could not be opened, with nothing wrong but what passes:
        open it again in a while, as it is."""
        node, uid = self._node, asset.uid

        def look() -> None:
            if uid in self.failures and uid in self._assets and not node.is_stopping:
                self.close_live(uid, lambda: self.open_again(uid))

        if errors.is_passing(err):
            self.failures.pause(uid)
            node.env.loop.call_later(limits.OPEN_AGAIN_S, look)

    def fail(self, uid: Uid, name: str, err: BaseException) -> None:
        """A stream can't be served on this node."""
        node = self._node
        if isinstance(err, IncarnationError):
            node.damages.on_conflict(uid, str(err))
        reason = self.failures.note(uid, name, err)
        replica = self._replicas.get(uid)
        if replica is not None:
            self._withdraw(replica)
            replica.group.delete()
        self._place(name)
        self._settle_ready(uid)
        node.config_changes.fail(uid, errors.STREAM_OFFLINE_REASON(err=reason))

    def when_closed(self, uid: Uid, done: Ready) -> None:
        """Call `done` when no group of `uid` runs here any more."""
        if uid in self._assets:
            self._waiting.setdefault(uid, []).append(done)
        else:
            done()

    def leave(self, uid: Uid) -> None:
        """The group has let this node go (see departures): unless the stream is wanted here again,
        its replica goes too."""
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        if asset is None or not self._is_foreign(asset) or uid in self._busy:
            return
        if node.is_stopping or node.removals.reason:
            return
        # What the group asks from now on is not promised, for it would be forgotten.
        self._replicas[uid].group.turn_deaf()
        self._close(asset)

    def _close(self, asset: StreamAsset) -> None:
        """Stop the group of a stream that was deleted or has left, and move what it stored into
        trash."""
        node = self._node
        uid = asset.uid
        self.departures.forget(uid)
        self.catch_ups.forget(uid)
        if uid not in node.meta.streams_by_uid:
            node.peering.forget(uid)  # else it lives on, elsewhere
        node.peering.comparisons.forget(uid)
        node.damages.forget(uid)
        self.reasons.pop(uid, None)
        is_led = self.led_since_ns(uid) > 0
        self._led_since_ns.pop(uid, None)
        self.failures.forget(uid)
        replica = self._replicas.get(uid)
        if replica is None:
            # Not open: being begun anew, or failed.
            if node.meta.is_deleted(uid) and asset.is_file:
                self.leftovers.remove(uid)
            self._gone(uid)
            return
        self._busy.add(uid)
        replica.is_ready = False
        self._place(asset.name)
        if is_led and node.meta.is_deleted(uid):
            gone = [("consumer_deleted", {"consumer": name}) for name in replica.machine.consumers]
            self._on_events(replica, gone)
        replica.group.delete(is_gone=node.meta.is_deleted(uid))

        def stopped() -> None:
            replica.store.close()
            node.block_thread.submit(remove, removed)

        def remove() -> None:
            if replica.is_file:
                node.env.disk.remove_tree(os.path.join(node.root, "streams", f"{uid}.catchup"))
                # A crash before this rename leaves a directory without an asset, which the
                # next start moves to trash; the committed deletion is in the meta log.
                replica.store.move_to_trash(node.trash.directory)

        def removed(result: Any) -> None:
            node.trash.note_moved(uid, result)
            log = replica.group.raft.log
            node.amnesia.note_dropped(uid, (log.last_term, log.last_index))
            if replica.is_file:
                node.trash.destroy(uid)
            if self._replicas.pop(uid, None) is replica:  # else it stopped for something else, too
                replica.let_go()
            self._gone(uid)
            self._no_longer_busy(asset)

        replica.monitor.when_stopped(stopped)

    def _close_lost(self, asset: StreamAsset) -> None:
        """The meta group went on without the stream: its group stops, and its files stay."""
        uid = asset.uid

        def closed() -> None:
            self._gone(uid)
            self._no_longer_busy(asset)

        self._busy.add(uid)
        self.catch_ups.forget(uid)
        self.failures.forget(uid)
        self.close_live(uid, closed)

    def _gone(self, uid: Uid) -> None:
        self._recovery.forget(uid)
        self._assets.pop(uid, None)
        self._node.peering.comparisons.forget(uid)  # others told of it until now
        if self._node.meta.is_deleted(uid):
            self._node.amnesia.forget(uid)
        for waiting in self._waiting.pop(uid, []):
            waiting()

    def stop_all(self, done: Ready) -> None:
        """Stop every group; waiting pulls hear of it."""
        self.catch_ups.stop_all()
        stopped = _after(len(self._replicas), done)
        for replica in self:
            replica.group.shut_down()
        for replica in self:
            replica.monitor.when_stopped(stopped)

    def fail_all(self, err: BaseException) -> None:
        """Nothing is served on this node any more."""
        for uid, asset in list(self._assets.items()):
            self.catch_ups.stop(uid)
            self.fail(uid, asset.name, err)

    def end_all(self, err: DiskError) -> None:
        """Every group ends here, also those that lead: what they rely on is gone."""
        for uid, asset in list(self._assets.items()):
            self.catch_ups.stop(uid)
            replica = self._replicas.get(uid)
            if replica is None or replica.monitor.stopped.is_set():
                self.fail(uid, asset.name, err)
            else:
                self._withdraw(replica)
                replica.monitor.post(inbox.Failed(err))

    def close_stores(self) -> None:
        for replica in self:
            replica.store.close()


def _after(count: int, done: Ready) -> Ready:
    """What calls `done` when it has been called `count` times; nothing to wait for: at once."""
    left = count

    def one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done()

    if not count:
        done()
    return one
