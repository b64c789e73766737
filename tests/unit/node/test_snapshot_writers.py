"""A snapshot that can't be written is reported, once, and not called done."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from streamd import limits
from streamd.machine import commands
from streamd.machine.meta import MetaMachine
from streamd.node.groups.snapshot_writers import MetaSnapshots, StreamSnapshots
from streamd.store.blocks.stream_store import StreamStore
from tests.sim.disk import SimDisk, SimThread
from tests.unit.machine.box import Box


class _Log:
    is_sole = True


class _Raft:
    log = _Log()


class _MetaGroup:
    machine = MetaMachine()
    raft = _Raft()


def test_a_failed_sync_of_a_meta_snapshot_reaches_the_group() -> None:
    disk, thread = SimDisk(), SimThread()
    disk.make_dirs("/meta")
    writer = MetaSnapshots(disk, "/meta", thread, is_clustered=False)
    errors: list[BaseException] = []
    saved: list[str] = []
    writer.on_error = errors.append
    group: Any = _MetaGroup()
    disk.fail("fdatasync", errno.EIO, under="/meta/")
    writer.save(group, index=3, term=1, chain=0, is_last=False, done=lambda: saved.append("first"))
    thread.run()
    assert not saved and [getattr(err, "errno", 0) for err in errors] == [errno.EIO]
    writer.save(group, index=4, term=1, chain=0, is_last=False, done=lambda: saved.append("second"))
    thread.run()
    assert saved == ["second"] and len(errors) == 1


class _Stream:
    """A group with a stream's machine, and its store."""

    def __init__(self) -> None:
        self.disk, self.thread = SimDisk(), SimThread()
        self.disk.make_dirs("/streams")
        self.store = StreamStore.open(self.disk, "/streams/7", 7, self.thread)
        self.box = Box(allow_msg_ttl=True)
        self.machine = self.box.machine
        self.raft = _Raft()
        self.writer = StreamSnapshots(self.store, is_clustered=False)
        for number in range(5000):
            self.box.put(b"a.%d" % (number % 30), Msg_Id=f"id{number}")
        self.box.consumer("C")

    def save(self, *, is_last: bool = False) -> None:
        group: Any = self
        index = self.machine.applied
        self.writer.save(group, index=index, term=1, chain=0, is_last=is_last, done=lambda: None)


def test_changes_after_the_turn_are_not_in_its_snapshot() -> None:
    stream = _Stream()
    machine = stream.machine
    state, index_db = machine.snapshot(), machine.index_db()
    stream.save()
    stream.box.put(b"a.new", Msg_Id="new")
    stream.box.do(commands.DELETE_MSG, 7, False)
    stream.box.do(commands.DELIVERED, machine.consumers["C"].uid, [(1, 3, 1, False)], 0)
    assert machine.snapshot() != state
    stream.thread.run()
    found = stream.store.load_snapshot()
    assert found is not None
    assert (found.state, found.index_db) == (state, index_db)


def test_index_db_of_very_many_subjects_is_written_at_a_stop_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "INDEX_SUBJECTS_MAX", 29)
    stream = _Stream()
    for is_last in (False, True):
        stream.save(is_last=is_last)
        stream.thread.run()
        found = stream.store.load_snapshot()
        assert found is not None
        assert (found.index_db is not None) is is_last
        stream.box.put(b"a.1")
