"""A read-only view of one stream in a data directory: `open_stream`.

A stream's state is its newest snapshot with the log replayed on top, in memory, by the server's
own machine; so deleted and expired messages are gone and the newest ones, which may be nowhere but
in the log, are there. Nothing is written and no lock is taken: the server may be running.
"""

from __future__ import annotations

from streamd.offline.blocks import (
    CUT,
    BlockRoom,
    BlockView,
    ReplayedBlocks,
    TornTail,
    behind_the_end,
    block_room,
    views_of,
)
from streamd.offline.engine import (
    BlockCodec,
    Effects,
    Membership,
    Snapshot,
    SnapshotFile,
    StreamMachine,
    read_index,
    simple,
    unwrap,
)
from streamd.offline.log_reader import LogReader, last_frame_index
from streamd.offline.store_dirs import (
    StoreBusy,
    StoreDir,
    StreamFiles,
    StreamMissing,
    check_reach,
    find_stores,
    find_stream,
    named_stores,
    without_membership,
)
from streamd.types import Index, Seq

__all__ = [
    "BlockRoom",
    "BlockView",
    "StoreBusy",
    "StoreDir",
    "StreamFiles",
    "StreamMissing",
    "StreamView",
    "TornTail",
    "block_room",
    "find_stores",
    "find_stream",
    "known_commit",
    "members_of",
    "named_stores",
    "open_stream",
]


class StreamView:
    """A stream at one log index, `applied`. `close` lets go of the log's files."""

    def __init__(
        self,
        store: StoreDir,
        files: StreamFiles,
        log: LogReader,
        machine: StreamMachine,
        blocks: list[BlockView],
        torn: list[TornTail],
    ) -> None:
        self.store = store
        self.replica = store.server_name
        self.uid = files.uid
        self.name = files.name
        self.asset = files.asset
        self.directory = files.directory
        self.machine = machine
        self.config = machine.config
        self.created_ns = machine.created_ns
        self.blocks = blocks
        self.torn = torn
        self.log_damage = log.damage_of(files.uid)  # if that is tolerated
        self._log = log

    @property
    def applied(self) -> Index:
        return self.machine.applied

    @property
    def first_seq(self) -> Seq:
        return self.machine.index.first_seq

    @property
    def last_seq(self) -> Seq:
        return self.machine.index.last_seq

    @property
    def messages(self) -> int:
        return self.machine.index.count

    @property
    def bytes(self) -> int:
        return self.machine.index.live.bytes

    @property
    def digest(self) -> int:
        return self.machine.digest

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> StreamView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_stream(
    store: StoreDir, name: str, *, up_to: Index | None = None, tolerate_damage: bool = False
) -> StreamView:
    """The stream `name` as the replica in `store` has it.

    Without `up_to`, all that is known to be committed: the whole log where one node decides
    alone; else up to what the log or a block says was committed (`survey` finds more
    with the other nodes' logs). With it, all up to that index, as far as there is a log.

    `tolerate_damage`: a damaged log is read as far as it is proven, and a stream is found by its
    own snapshot where the meta group's is damaged, instead of an error.
    Raises StreamMissing, CorruptionError naming file and offset, or StoreBusy.
    """

    def work() -> StreamView:
        log = store.open_log(tolerate_damage=tolerate_damage)
        try:
            files = find_stream(store, name, log, tolerate_damage=tolerate_damage)
            return _open(store, log, files, up_to)
        except BaseException:
            log.close()
            raise

    return store.read(work)


def _open(store: StoreDir, log: LogReader, files: StreamFiles, up_to: Index | None) -> StreamView:
    # The log was read before the snapshot: a snapshot that comes later covers what it may lack.
    uid = files.uid
    blocks = ReplayedBlocks(files.directory, uid)
    snapshot = SnapshotFile.load(blocks.disk, str(files.directory), "stream", group=uid)
    machine = _restore(files, blocks, snapshot)
    start = machine.applied
    check_reach(log, uid, start)
    last = up_to if up_to is not None else known_commit(store, log, files, snapshot)
    effects = Effects()
    for entry in log.entries(uid, start + 1, max(last, start)):
        machine.apply(without_membership(entry), effects)
        if effects.block_ops:
            blocks.apply(effects.block_ops)
        effects = Effects()
    blocks.close()
    views = views_of(store.server_name, machine, blocks)
    if store.is_running:  # a write that is under way looks like a torn one
        torn = [each for each in blocks.torn if each.reason != CUT]
    else:
        torn = blocks.torn + behind_the_end(views, blocks)
    return StreamView(store, files, log, machine, views, torn)


def _restore(
    files: StreamFiles, blocks: ReplayedBlocks, snapshot: Snapshot | None
) -> StreamMachine:
    codec = BlockCodec()
    if snapshot is None:
        asset = files.asset
        machine = StreamMachine(
            uid=asset.uid,
            config=asset.created_config,
            created_ns=asset.created_ns,
            codec=codec,
            columns=blocks,
        )
        machine.use_scan(blocks.scan)
        return machine
    index_db = read_index(blocks.disk, str(files.directory), files.uid, snapshot.index)
    return StreamMachine.restore(
        unwrap(snapshot.state)[1], index_db, codec=codec, columns=blocks, scan=blocks.scan
    )


def members_of(files: StreamFiles, log: LogReader, snapshot: Snapshot | None) -> Membership:
    found = unwrap(snapshot.state)[0] if snapshot is not None else None
    asset = files.asset
    if found is None:
        found = simple(asset.created_peers or asset.peers or ("",))
    return log.members_after(files.uid, found, snapshot.index if snapshot is not None else 0)


def known_commit(
    store: StoreDir, log: LogReader, files: StreamFiles, snapshot: Snapshot | None
) -> Index:
    """The last index that this directory alone proves to be committed."""
    last = log.last_index(files.uid)
    if not store.is_clustered or len(members_of(files, log, snapshot).members()) == 1:
        return last
    return min(last, max(log.commit_hint(files.uid), last_frame_index(files.directory, files.uid)))
