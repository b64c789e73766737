"""What a server takes of its machine when it is not told, and asks of its interpreter."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamd.cli import process_resources
from streamd.errors import ConfigError

MIB = 1 << 20

_LIVE_TO_THE_END = """
import gc
from streamd.cli import process_resources as resources
from streamd.errors import ConfigError
resources.tune_interpreter()
living = [[number] for number in range(1000)]
resources.leave_interpreter()
gc.callbacks.append(lambda phase, info: print(phase, len(gc.get_objects()) < 1000))
"""


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
    assert process_resources.storage_share(str(store)) == 75 * MIB
    block = store / "streamd" / "streams" / "2" / "1.blk"
    block.parent.mkdir(parents=True)
    for stored in range(10 * MIB, 100 * MIB, 10 * MIB):
        block.write_bytes(b"x" * stored)
        assert stored < process_resources.storage_share(str(store)) <= disk


def test_files_that_go_meanwhile_count_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed file is gone when it is looked at."""
    monkeypatch.setattr(os, "walk", lambda path: [(str(tmp_path), [], ["gone"])])
    assert process_resources.storage_share(str(tmp_path)) > 0


def test_at_its_end_the_process_looks_at_nothing_that_lives_once_more() -> None:
    """By what the interpreter's own last collection finds in its three generations."""
    ended = subprocess.run(
        [sys.executable, "-c", _LIVE_TO_THE_END], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["start", "True", "stop", "True"]


def test_the_default_store_directory_is_its_users_alone(tmp_path: Path) -> None:
    """Created for nobody else to read; one that they may read is closed; a link, and somebody
    else's, are refused: whoever may write to the temporary directory could own what is stored."""
    path = Path(process_resources.default_store_dir(str(tmp_path)))
    assert path == tmp_path / "streamd"
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    process_resources.default_store_dir(str(tmp_path))
    assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConfigError, match="belongs to user"):
        process_resources.default_store_dir(str(tmp_path), os.geteuid() + 1)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        process_resources.default_store_dir(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "clients", "blocks", "reserved"),
    [(64, 32, 16, 8), (256, 128, 64, 16), (1024, 512, 320, 16), (65_536, 61_440, 3904, 16)],
)
def test_open_files_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, files: int, clients: int, blocks: int, reserved: int
) -> None:
    """Files that the log, listeners and peers need are left."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    process_resources.check_files()
    assert process_resources.connections_max() == clients
    assert process_resources.open_blocks_max() == blocks
    assert process_resources.files_reserved() == reserved
    assert clients + blocks + reserved < files


def test_a_process_that_may_open_too_few_files_says_how_many_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, 32))
    with pytest.raises(ConfigError, match=r"may open 32 files, JetStream needs 64"):
        process_resources.check_files()
