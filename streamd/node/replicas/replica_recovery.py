"""`ReplicaRecovery`: brings back a stream from this node's disk before its group starts.

All but `tell_log` is for the block thread.
Files are brought back to the newest snapshot; the log, replayed on top, does the rest. A fetched
snapshot takes its place first, if a crash came before it had. What can't be used is set aside when
there are peers who have the stream too.
"""

from __future__ import annotations

import os
from functools import partial

from streamd.errors import CorruptionError, IncarnationError, StreamdError, is_passing
from streamd.machine.meta import StreamAsset
from streamd.machine.snapshot import decode_stream
from streamd.machine.streams.loss import Loss
from streamd.machine.streams.stream import StreamMachine
from streamd.node.catchup.service import CatchupService
from streamd.node.context import NodeContext
from streamd.node.groups.raft_members import check_end, log_from_snapshot
from streamd.node.groups.snapshot_state import history_of, unwrap
from streamd.node.identity.amnesia import Amnesia
from streamd.node.integrity.scrub import check_installed
from streamd.node.recovery.lost_blocks import LostBlocks
from streamd.node.recovery.lost_copies import is_only_copy
from streamd.node.recovery.quorum_loss_recovery import QuorumLossRecovery
from streamd.node.recovery.stream_rebuild import GroupLog, StreamRebuild
from streamd.node.replicas.replica_table import has_peers
from streamd.node.replicas.replica_trash import ReplicaTrash
from streamd.raft.history import LogPosition
from streamd.raft.membership import Membership, simple
from streamd.store.blocks.block import OpenBlocks
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.quarantine import quarantine, quarantines
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.blocks.tail_cache import CacheBudget
from streamd.store.disk import disk_error
from streamd.store.transfer.install import (
    clear_marker,
    failed_installs,
    finish_install,
    read_marker,
    remove_replaced,
)
from streamd.store.transfer.manifest import Manifest
from streamd.types import Index, Uid

OPENING_ERRORS = (StreamdError, OSError, AssertionError, LookupError, ValueError)


class Recovered:
    """Result of the recovery of one stream."""

    def __init__(self, store: StreamStore | MemoryStreamStore, machine: StreamMachine) -> None:
        self.store = store
        self.machine = machine
        self.index: Index = 0
        self.term = 0
        self.chain = 0
        self.members: Membership | None = None
        self.history: tuple[LogPosition, ...] = ()
        self.is_damaged = False
        self.conflict = ""  # what was there was another incarnation's
        self.marker: Manifest | None = None  # what the files were installed from, if just now
        self.is_install_void = False  # what had been installed could not be used
        self.needless: list[str] = []  # in `trash/`: earlier ones of that kind
        self.faults: list[str] = []  # what was missing or damaged, and is made good by the log
        self.lacking: list[tuple[int, str]] = []  # blocks that are gone or cut, and what of them

    @property
    def is_file(self) -> bool:
        return isinstance(self.store, StreamStore)


class ReplicaRecovery:
    """Recovery of one node's streams."""

    def __init__(
        self,
        context: NodeContext,
        catchups: CatchupService,
        amnesia: Amnesia,
        quorum_loss: QuorumLossRecovery,
        trash: ReplicaTrash,
    ) -> None:
        self._context = context
        self._catchups = catchups
        self._amnesia = amnesia
        self._quorum_loss = quorum_loss
        self._trash = trash
        self._codec = BlockCodec()
        self._seen: set[Uid] = set()  # opened by this process before
        self._hot_budget = CacheBudget(
            on_full=lambda: context.wal.hold(),
            on_room=lambda: context.wal.resume(),
            open_blocks=OpenBlocks(context.options.open_blocks_max),
        )

    def recover(self, asset: StreamAsset) -> Recovered:
        """Open all that is here of the stream, be it nothing yet. Raises one of OPENING_ERRORS if
        it can't be used and nobody else has it."""
        context = self._context
        if not asset.is_file:
            installed = self._catchups.take_memory_store(asset.uid)
            if installed is not None:
                return self._recover_store(asset, installed)
            store = MemoryStreamStore(asset.uid, keeps_snapshots=context.is_clustered)
            return Recovered(store, self._new_machine(asset, store))
        if not context.is_clustered:
            return self._recover_files(asset)
        disk, uid = context.env.disk, asset.uid
        directory = os.path.join(context.root, "streams", str(uid))
        marker: Manifest | None = None
        try:
            marker = finish_install(disk, context.root, uid) or read_marker(disk, directory, uid)
            found = self._recover_files(asset)
            if marker is not None and found.machine.applied == marker.index:
                damage = check_installed(marker, found.machine, found.store)
                if damage:
                    found.store.close()
                    raise CorruptionError(f"stream {asset.name}: installed files: {damage[0]}")
            found.marker = marker
            return found
        except OPENING_ERRORS as err:
            if is_passing(err) or not self._others_have(asset):
                raise  # what is here may be whole, and all that there is of it
            aside = self.set_aside(uid)
            self._seen.add(uid)
            context.log.warn(
                "stream files set aside", stream=asset.name, path=aside, reason=str(err)
            )
            found = self._recover_files(asset)
            found.is_damaged = True
            found.is_install_void = marker is not None
            found.needless = failed_installs(disk, context.root, uid)[
                :-1
            ]  # the last lends its blocks
            found.conflict = str(err) if isinstance(err, IncarnationError) else ""
            return found

    def _others_have(self, asset: StreamAsset) -> bool:
        """True if the group has other members. Others that are wanted are not enough: they begin
        with what is here."""
        is_shared = any(name != self._context.name for name in asset.members)
        return is_shared and has_peers(self._context, asset)

    def _recover_files(self, asset: StreamAsset) -> Recovered:
        context, uid = self._context, asset.uid
        directory = os.path.join(context.root, "streams", str(uid))
        is_gone = not context.env.disk.exists(directory)
        store = StreamStore.open(
            context.env.disk, directory, uid, context.block_thread, budget=self._hot_budget
        )
        try:
            self._rebuild(asset, store)
            found = self._recover_store(asset, store)
            if uid not in self._seen:  # else what is missing now was damaged before, and told
                found.faults += self._missing(found, directory, is_gone=is_gone)
            self._seen.add(uid)
            return found
        except BaseException:
            store.close()
            raise

    def _missing(self, found: Recovered, directory: str, *, is_gone: bool) -> list[str]:
        """Say what this process found missing at its start, by what the log knows of the group."""
        log = self._context.wal.group(found.machine.uid)
        if log is None or log.last_index == 0:
            return []
        if is_gone:
            return [f"{directory}: the directory is missing"]
        if found.index < log.first_index - 1 and not found.faults:
            ends = f"the newest is of entry {found.index}" if found.index else "there is none"
            return [
                f"{directory}: a snapshot is missing: {ends}, the log begins with {log.first_index}"
            ]
        return []

    def _rebuild(self, asset: StreamAsset, store: StreamStore) -> None:
        """Make a snapshot of what is left of a stream that nobody else has, if that loss is
        accepted and neither its snapshots nor the log bring all of it back."""
        context, uid = self._context, asset.uid
        if not self._accepts_loss(asset) or not self._lacks_something(asset, store):
            return
        members = simple([context.name]) if context.is_clustered else None
        log = GroupLog(context.wal.group(uid), partial(context.wal.read, uid))
        rebuild = StreamRebuild(
            context.env.disk,
            context.root,
            store,
            self._codec,
            log,
            members=members,
            is_resumed=self._quorum_loss.is_resumed,
        )
        try:
            report = rebuild.run(asset)
        except OSError as err:
            raise disk_error("rebuilding a stream", store.directory, err) from err
        if report is not None:
            self._quorum_loss.record_rebuilt(report)

    def _accepts_loss(self, asset: StreamAsset) -> bool:
        """True if an operator said that what is lost of the stream may be, and nobody has it."""
        context = self._context
        return (context.accepts_loss or context.accepts_doubt) and is_only_copy(
            self._context, asset
        )

    def _lacks_something(self, asset: StreamAsset, store: StreamStore) -> bool:
        """True if the newest snapshot, with what the log has, is not all that there was."""
        context, uid = self._context, asset.uid
        try:
            snapshot = store.load_snapshot()
            index, tail = (0, (0, 0)) if snapshot is None else (snapshot.index, snapshot.tail)
            self._check_group(uid, store, index=index, term=0, chain=0)
        except CorruptionError:
            return True
        is_lost = context.wal.group(uid) is None or self._quorum_loss.is_resumed
        return is_lost and store.reaches_beyond(tail)

    def _check_group(
        self, uid: Uid, store: StreamStore, *, index: Index, term: int, chain: int
    ) -> None:
        """Raise CorruptionError if the log does not bring back what came after a snapshot."""
        context = self._context
        damage = context.wal.damaged_groups.get(uid, "")
        if damage:
            raise CorruptionError(f"group {uid}: {damage}")
        found = context.wal.group(uid)
        log_from_snapshot(uid, found, index=index, term=term, chain=chain)
        if context.options.sync == "always":  # else a power cut may have taken the end of the log
            check_end(uid, found, max(index, store.written_upto()))

    def _recover_store(
        self, asset: StreamAsset, store: StreamStore | MemoryStreamStore
    ) -> Recovered:
        """Bring blocks back to the newest snapshot, and the machine to what it was then."""
        faults: list[str] = []
        snapshot = store.load_snapshot(faults.append)
        if snapshot is None:
            self._check_log(asset, store, index=0, term=0, chain=0, tail=(0, 0))
            store.truncate_to((0, 0))
            machine = self._new_machine(asset, store)
            if isinstance(store, StreamStore) and not has_peers(self._context, asset):
                store.begin_outline(machine.freeze().outline)
            return Recovered(store, machine)
        self._check_log(
            asset,
            store,
            index=snapshot.index,
            term=snapshot.term,
            chain=snapshot.chain,
            tail=snapshot.tail,
        )
        members, state = unwrap(snapshot.state)
        accepts_loss = self._accepts_loss(asset)
        loss = self._loss(asset, store, state) if accepts_loss else None
        store.truncate_to(loss.tail if loss is not None else snapshot.tail)
        machine = StreamMachine.restore(
            state,
            snapshot.index_db,
            codec=self._codec,
            columns=store,
            scan=store.scan,
            loss=loss,
        )
        found = Recovered(store, machine)
        found.faults = faults
        if isinstance(store, StreamStore):
            store.disown(block.block_no for block in machine.index.blocks)
            found.lacking = store.lacking(machine.index.blocks)
        found.index, found.term, found.chain = snapshot.index, snapshot.term, snapshot.chain
        found.members, found.history = members, history_of(snapshot.state)
        return found

    def _loss(
        self, asset: StreamAsset, store: StreamStore | MemoryStreamStore, state: bytes
    ) -> Loss | None:
        """Find the blocks that can't be read, if that loss is accepted; they hold what is left by
        then."""
        context = self._context
        if not isinstance(store, StreamStore):
            return None
        lost = LostBlocks(context.env.disk, context.root, store, self._codec, warn=context.log.warn)
        try:
            loss = lost.replace(decode_stream(state).messages)
            store.look_again()
        except OSError as err:
            raise disk_error("replacing lost blocks", store.directory, err) from err
        if loss is not None:
            self._quorum_loss.record_lost(asset.uid)
        return loss

    def _check_log(
        self,
        asset: StreamAsset,
        store: StreamStore | MemoryStreamStore,
        *,
        index: Index,
        term: int,
        chain: int,
        tail: tuple[int, int],
    ) -> None:
        """Raise CorruptionError, before anything is cut off, if nobody else has the stream and the
        log does not bring back what comes after a snapshot. If that loss is accepted, keep it."""
        context, uid = self._context, asset.uid
        if not isinstance(store, StreamStore):
            return
        is_alone = not context.is_clustered or self._amnesia.is_alone(asset)
        if not is_alone:
            self._check_forgotten(asset, store, tail)
            return
        try:
            self._check_group(uid, store, index=index, term=term, chain=chain)
        except CorruptionError:
            if not (context.accepts_loss or context.accepts_doubt):
                raise
            self._quorum_loss.keep_ends(uid, tail)
        else:
            if context.accepts_loss and self._quorum_loss.is_lost(uid):
                self._quorum_loss.keep_ends(uid, tail)

    def _check_forgotten(
        self, asset: StreamAsset, store: StreamStore, tail: tuple[int, int]
    ) -> None:
        """Raise CorruptionError, before anything is cut off, if this node lost its log, nobody else
        has the stream, and its blocks hold more than its newest snapshot."""
        context = self._context
        is_lost = context.wal.group(asset.uid) is None and self._amnesia.may_have_forgotten(
            asset.uid
        )
        if is_lost and is_only_copy(self._context, asset) and store.reaches_beyond(tail):
            raise CorruptionError(f"group {asset.uid}: the log has no entry of the stream any more")

    def _new_machine(
        self, asset: StreamAsset, store: StreamStore | MemoryStreamStore
    ) -> StreamMachine:
        # As it was created: the log replayed on top brings the config forward (CONFIGURE).
        machine = StreamMachine(
            uid=asset.uid,
            config=asset.created_config,
            created_ns=asset.created_ns,
            codec=self._codec,
            columns=store,
        )
        machine.use_scan(store.scan)
        return machine

    def set_aside(self, uid: Uid) -> str:
        """Move the files of a closed stream where nothing reads them; return where that is."""
        return quarantine(self._context.env.disk, self._context.root, uid)

    def forget(self, uid: Uid) -> None:
        """Keep nothing of a stream that is gone from this node."""
        self._seen.discard(uid)

    def tell_log(self, uid: Uid, marker: Manifest) -> None:
        """Tell the log that the files were installed from a peer: a crash may have come first. On
        the loop."""
        context = self._context
        state = context.wal.group(uid)
        if state is not None and state.first_index <= marker.index < state.last_index:
            entry = context.wal.read(uid, marker.index, marker.index + 1, 0)[0]
            if (entry.term, entry.chain) != (marker.term, marker.chain):
                context.wal.reset_group(uid, marker.index, marker.term, marker.chain)
        directory = os.path.join(context.root, "streams", str(uid))

        def forget() -> list[str]:
            clear_marker(context.env.disk, directory)
            remove_replaced(context.env.disk, context.root, uid)
            failed = failed_installs(context.env.disk, context.root, uid)
            kept = [
                name
                for name in quarantines(context.env.disk, context.root, uid)
                if name not in failed
            ]
            return failed + kept[:-1]

        def forgotten(result: list[str] | BaseException) -> None:
            if isinstance(result, BaseException):
                raise result
            self._trash.empty(result)

        context.wal.append([], lambda: context.block_thread.submit(forget, forgotten))
