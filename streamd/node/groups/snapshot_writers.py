"""Writers of snapshots: given to a group's monitor and to no other part."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from streamd import limits
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.group import Group
from streamd.node.groups.snapshot_state import wrap
from streamd.raft.history import LogPosition
from streamd.raft.membership import Membership
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.disk import Disk, Thread
from streamd.types import META_UID, Index


class MetaSnapshots:
    """Writes the meta group's."""

    def __init__(self, disk: Disk, directory: str, thread: Thread, *, is_clustered: bool) -> None:
        self._is_clustered = is_clustered
        self._disk = disk
        self._directory = directory
        self._thread = thread
        self.on_error: Callable[[BaseException], None] = _raise

    def save(
        self,
        group: Group,
        *,
        index: Index,
        term: int,
        chain: int,
        is_last: bool,
        done: Callable[[], None],
    ) -> None:
        """See monitor.SnapshotWriter."""
        state = group.machine.snapshot()
        if self._is_clustered:
            log = group.raft.log
            state = wrap(log.membership_at(index), state, log.history(index))

        def job() -> None:
            snapshot = Snapshot(META_UID, index, term, chain, state)
            if not self._disk.exists(self._directory):
                # Removed meanwhile: all that was in it is in memory, and written now.
                self._disk.mkdir(self._directory)
                self._disk.sync_dir(os.path.dirname(self._directory))
            SnapshotFile.save(self._disk, self._directory, "meta", snapshot)

        def saved(result: BaseException | None) -> None:
            if isinstance(result, BaseException):
                self.on_error(result)  # no failed sync is tried again (I10)
            else:
                done()

        self._thread.submit(job, saved)


class StreamSnapshots:
    """Writes one stream's."""

    def __init__(self, store: StreamStore | MemoryStreamStore, *, is_clustered: bool) -> None:
        self._store = store
        self._is_clustered = is_clustered

    def save(
        self,
        group: Group,
        *,
        index: Index,
        term: int,
        chain: int,
        is_last: bool,
        done: Callable[[], None],
    ) -> None:
        """See monitor.SnapshotWriter. Copies what may change; the block thread makes bytes of it.

        Without `index.db` a restart reads the blocks' footers. Of very many subjects it takes too
        long to copy what it says, so it is left out while the stream runs.
        """
        machine = group.machine
        assert isinstance(machine, StreamMachine), machine
        is_small = len(machine.index.subjects.rows) <= limits.INDEX_SUBJECTS_MAX
        frozen = machine.freeze()
        state: Callable[[], bytes] = frozen
        outline: Callable[[], bytes] = frozen.outline
        if self._is_clustered:
            # Of a group of one too: it may have begun with others, or elsewhere.
            log = group.raft.log
            members, history = log.membership_at(index), log.history(index)
            state = partial(_wrapped, members, state, history)
            outline = partial(_wrapped, members, outline, history)
        self._store.save_snapshot(
            index=index,
            term=term,
            chain=chain,
            state=state,
            index_db=machine.freeze_index() if is_small or is_last else None,
            tail=machine.tail,
            done=done,
            outline=outline,
        )


def _wrapped(members: Membership, state: Callable[[], bytes], history: list[LogPosition]) -> bytes:
    return wrap(members, state(), history)


def _raise(err: BaseException) -> None:
    raise err
