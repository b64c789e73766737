"""Who writes snapshots: given to a group's monitor and to nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.machine.stream import StreamMachine
from streamd.node.group import Group
from streamd.node.snapshot_state import wrap
from streamd.store.disk import Disk, Thread
from streamd.store.snapshots import SnapshotFile
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
        self, group: Group, *, index: Index, term: int, chain: int, done: Callable[[], None]
    ) -> None:
        state = _state(group, index, self._is_clustered)

        def job() -> None:
            SnapshotFile.save(
                self._disk,
                self._directory,
                "meta",
                group=META_UID,
                index=index,
                term=term,
                chain=chain,
                state=state,
            )

        def saved(result: Any) -> None:
            if isinstance(result, BaseException):
                self.on_error(result)  # no failed sync is tried again (I10)
            else:
                done()

        self._thread.submit(job, saved)


class StreamSnapshots:
    """Writes one stream's."""

    def __init__(self, store: Any, *, is_clustered: bool) -> None:
        self._store = store
        self._is_clustered = is_clustered

    def save(
        self, group: Group, *, index: Index, term: int, chain: int, done: Callable[[], None]
    ) -> None:
        machine: StreamMachine = group.machine
        self._store.save_snapshot(
            index=index,
            term=term,
            chain=chain,
            state=_state(group, index, self._is_clustered),
            index_db=machine.index_db(),
            tail=machine.tail,
            done=done,
        )


def _state(group: Group, index: Index, is_clustered: bool) -> bytes:
    """The machine's state; in a cluster, also who belonged to the group at `index`. Of a group of
    one too: it may have begun with others, or elsewhere."""
    state: bytes = group.machine.snapshot()
    return wrap(group.raft.log.membership_at(index), state) if is_clustered else state


def _raise(err: BaseException) -> None:
    raise err
