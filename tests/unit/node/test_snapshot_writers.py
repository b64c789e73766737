"""A snapshot that can't be written is reported, once, and not called done."""

from __future__ import annotations

import errno
from typing import Any

from streamd.machine.meta import MetaMachine
from streamd.node.snapshot_writers import MetaSnapshots
from tests.sim.disk import SimDisk, SimThread


class _Log:
    is_sole = True


class _Raft:
    log = _Log()


class _MetaGroup:
    machine = MetaMachine()
    raft = _Raft()


def test_a_failed_sync_of_a_meta_snapshot_reaches_the_group() -> None:
    disk, thread = SimDisk(), SimThread()
    disk.mkdir("/meta")
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
