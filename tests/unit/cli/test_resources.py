"""What a server takes of its machine when it is not told."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamd.cli import resources

MIB = 1 << 20


def test_a_store_may_hold_what_it_holds_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk of 100 MiB fills up: at each start the limit is above what is stored, and never
    above the disk."""
    disk = 100 * MIB
    stored = 0

    def free(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=(disk - stored) // 4096, f_frsize=4096)

    monkeypatch.setattr(os, "statvfs", free)
    store = tmp_path / "not yet" / "store"
    assert resources.storage_share(str(store)) == 75 * MIB
    block = store / "streamd" / "streams" / "2" / "1.blk"
    block.parent.mkdir(parents=True)
    for stored in range(10 * MIB, 100 * MIB, 10 * MIB):
        block.write_bytes(b"x" * stored)
        assert stored < resources.storage_share(str(store)) <= disk


def test_files_that_go_meanwhile_count_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed file is gone when it is looked at."""
    monkeypatch.setattr(os, "walk", lambda path: [(str(tmp_path), [], ["gone"])])
    assert resources.storage_share(str(tmp_path)) > 0
