"""The log on an encrypted disk: the models of crashes and of damage hold as on a plain one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamd.store.frames import frame_format as ff
from streamd.store.frames.framed_disk import FramedDisk
from streamd.store.frames.keyring import Keyring
from streamd.store.wal.write_ahead_log import Wal
from tests.props import test_wal_crash as crash
from tests.props import test_wal_damage as damage

pytestmark = pytest.mark.slow


class EncryptedWal(Wal):
    """Opens the log on an encrypted disk."""

    @classmethod
    def open(cls, disk: Any, *args: Any, **options: Any) -> Any:
        return Wal.open(FramedDisk(disk, Keyring(bytes(32), ff.AES)), *args, **options)


@pytest.fixture(autouse=True)
def encrypted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (crash, damage):
        monkeypatch.setattr(module, "Wal", EncryptedWal)
    yield


@pytest.mark.parametrize("block", [0, 5])
def test_every_acked_write_survives_a_crash_at_any_operation(block: int) -> None:
    crash.test_every_acked_write_survives_a_crash_at_any_operation(block)


def test_with_lazy_sync_a_crash_leaves_the_log_as_it_was_at_some_moment() -> None:
    crash.test_with_lazy_sync_a_crash_leaves_the_log_as_it_was_at_some_moment()


@pytest.mark.parametrize("point", ["WAL_SEGMENT_SYNCED", "WAL_SEGMENT_NAMED", "WAL_SEGMENT_SPARED"])
def test_every_acked_write_survives_a_crash_at_each_named_point(point: str) -> None:
    crash.test_every_acked_write_survives_a_crash_at_each_named_point(point)


def test_a_power_cut_during_the_start_after_a_kill_harms_nothing() -> None:
    crash.test_a_power_cut_during_the_start_after_a_kill_harms_nothing("WAL_SEGMENT_NAMED")


@pytest.mark.parametrize("fault", ["rot", "zeros", "unreadable", "header", "remove"])
def test_a_damaged_log_keeps_true_entries_and_names_groups_that_lost_some(fault: str) -> None:
    damage.test_a_damaged_log_keeps_true_entries_and_names_groups_that_lost_some(fault)
