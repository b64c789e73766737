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

    def __init__(self, disk: Disk, directory: str, thread: Thread) -> None:
        self._disk = disk
        self._directory = directory
        self._thread = thread

    def save(
        self, group: Group, *, index: Index, term: int, chain: int, done: Callable[[], None]
    ) -> None:
        state = _state(group, index)

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

        self._thread.submit(job, _raise_or(done))


class StreamSnapshots:
    """Writes one stream's."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def save(
        self, group: Group, *, index: Index, term: int, chain: int, done: Callable[[], None]
    ) -> None:
        machine: StreamMachine = group.machine
        self._store.save_snapshot(
            index=index,
            term=term,
            chain=chain,
            state=_state(group, index),
            index_db=machine.index_db(),
            tail=machine.tail,
            done=done,
        )


def _state(group: Group, index: Index) -> bytes:
    """The machine's state; with peers, also who belonged to the group at `index`."""
    state: bytes = group.machine.snapshot()
    log = group.raft.log
    return state if log.is_sole else wrap(log.membership_at(index), state)


def _raise_or(done: Callable[[], None]) -> Callable[[Any], None]:
    def completed(result: Any) -> None:
        if isinstance(result, BaseException):
            raise result
        done()

    return completed
