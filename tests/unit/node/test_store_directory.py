"""A store directory that this server can't have: what it says of that."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamd.errors import ConfigError, CorruptionError, DiskError
from streamd.node.identity.store_directory import StoreDir, WhenUnknown, prepare, save_identity
from streamd.store.disk import OsDisk
from streamd.store.node_file import NAMES
from tests.sim.disk import SimCrash, SimDisk

ROOT = "/data/streamd"
Harm = Callable[[SimDisk, str], None]


class Unlockable(SimDisk):
    """A disk on which no file can be locked, for a reason of its own."""

    reason = errno.EROFS

    def lock(self, path: str) -> int:
        raise OSError(self.reason, os.strerror(self.reason), path)


def test_a_second_server_on_a_directory_is_refused() -> None:
    disk = SimDisk()
    prepare("/data", disk)
    with pytest.raises(ConfigError, match="'/data' is in use by another server"):
        prepare("/data", disk)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
        (errno.ENOLCK, "No locks available"),
    ],
)
def test_a_directory_that_can_not_be_locked_is_not_said_to_be_in_use(
    reason: int, text: str
) -> None:
    disk = Unlockable()
    disk.reason = reason
    with pytest.raises(ConfigError, match=text) as caught:
        prepare("/data", disk)
    assert "'/data'" in str(caught.value)
    assert "in use" not in str(caught.value)


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_store_directory_that_is_a_file_is_told_in_the_words_tools_know(
    tmp_path: Path, below: str
) -> None:
    """Itself or what it would be in; the file stays as it is."""
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"^storage directory is not a directory: "):
        prepare(str(file) + below, OsDisk())
    assert file.read_text() == "mine"


def started(disk: SimDisk, **settings: Any) -> StoreDir:
    """What the next process finds."""
    disk.kill()
    return prepare("/data", disk, **settings)


def filled(disk: SimDisk) -> dict[str, Any]:
    """A directory with data, and with promises in its identity."""
    identity = started(disk).identity
    identity |= {"dropped": [7, 12], "is_rejoined": True, "log_id": "1"}
    save_identity(ROOT, disk, identity)
    disk.close(disk.open(f"{ROOT}/wal/0000000000000001.wal", create=True))
    disk.sync_dir(f"{ROOT}/wal")
    return dict(identity)


def rewrite(disk: SimDisk, name: str, content: bytes) -> None:
    fd = disk.open(f"{ROOT}/{name}")
    disk.truncate(fd, 0)
    disk.pwrite(fd, content, 0)
    disk.fdatasync(fd)
    disk.close(fd)


def flip(disk: SimDisk, name: str) -> None:
    disk.flip(f"{ROOT}/{name}", 30, 4)


def cut(disk: SimDisk, name: str) -> None:
    rewrite(disk, name, bytes(disk.contents(f"{ROOT}/{name}"))[:20])


def empty(disk: SimDisk, name: str) -> None:
    rewrite(disk, name, b"")


def remove(disk: SimDisk, name: str) -> None:
    disk.wipe(f"{ROOT}/{name}")


def unreadable(disk: SimDisk, name: str) -> None:
    disk.bad_read(f"{ROOT}/{name}", 0, 10)


HARMS = (flip, cut, empty, remove, unreadable)


def test_no_letter_of_an_identity_changes_unseen() -> None:
    """It says what this node may have forgotten: by a name spelt otherwise it would not."""
    disk = SimDisk()
    identity = filled(disk)
    for name in NAMES:
        path = f"{ROOT}/{name}"
        content = bytes(disk.contents(path))
        other = NAMES[1 - NAMES.index(name)]
        for offset in range(len(content)):
            rewrite(disk, other, b"{")
            disk.flip(path, offset, 1 << offset % 8)
            with suppress(ConfigError, CorruptionError):
                assert started(disk).identity.items() >= identity.items(), offset
            rewrite(disk, path.rpartition("/")[2], content)
        rewrite(disk, other, content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", HARMS)
def test_one_of_the_two_is_enough_and_the_other_is_made_anew(name: str, harm: Harm) -> None:
    """Of 9 that were flipped, cut, emptied or removed, 9 were the end of the directory."""
    disk = SimDisk()
    identity = filled(disk)
    harm(disk, name)
    found = started(disk)
    assert found.identity | {"generation": 0} == identity | {"generation": 0}
    assert [name in text for text in found.faults] == [True]
    again = started(disk)
    assert again.faults == []
    assert disk.contents(f"{ROOT}/{NAMES[0]}") == disk.contents(f"{ROOT}/{NAMES[1]}")


@pytest.mark.parametrize("harm", HARMS)
def test_a_single_server_refuses_a_store_without_both_identity_files(harm: Harm) -> None:
    """A single server refuses, changes nothing and says what may be done; a node of a cluster
    sets all aside and begins anew; with --accept-loss a single server takes it for its own."""
    disk = SimDisk()
    filled(disk)
    for name in NAMES:
        harm(disk, name)
    before = {path: disk.contents(path) for path in disk.paths}
    with pytest.raises(CorruptionError, match=r"node-2\.json are lost .*put one of them back"):
        started(disk)
    assert {path: disk.contents(path) for path in disk.paths} == before
    kept = started(disk, when_unknown=WhenUnknown.KEEP)
    assert "taken for this server's" in kept.faults[0]
    assert f"{ROOT}/wal/0000000000000001.wal" in disk.paths
    for name in NAMES:
        harm(disk, name)
    found = started(disk, when_unknown=WhenUnknown.BEGIN_ANEW)
    assert found.identity.keys() == {"format", "store", "id", "generation"}
    assert f"{ROOT}/trash/unknown-1" in found.faults[0]
    assert disk.paths == sorted(
        [f"{ROOT}/{name}" for name in NAMES]
        + [f"{ROOT}/trash/unknown-1/wal/0000000000000001.wal"]
        + [f"{ROOT}/trash/unknown-1/{name}" for name in NAMES if harm is not remove]
    )


def test_data_that_is_half_set_aside_is_set_aside_to_the_end() -> None:
    """The power goes after each step."""
    for step in range(1, 40):
        disk = SimDisk(step)
        filled(disk)
        for name in NAMES:
            remove(disk, name)
        disk.kill()
        disk.crash_at_operation = disk.operation_count + step
        try:
            prepare("/data", disk, when_unknown=WhenUnknown.BEGIN_ANEW)
        except SimCrash:
            disk.crash(keep=0.0)
        else:
            disk.crash_at_operation = None
        found = started(disk, when_unknown=WhenUnknown.BEGIN_ANEW)
        assert "log_id" not in found.identity
        kept = [path for path in disk.paths if path.endswith("1.wal")]
        assert len(kept) == 1, step
        assert kept[0].startswith(f"{ROOT}/trash/unknown-"), step


def test_empty_directories_of_a_cut_off_removal_are_no_data() -> None:
    disk = SimDisk()
    for name in ("wal", "meta", "streams", "trash"):
        disk.make_dirs(f"{ROOT}/{name}")
    assert started(disk).faults == []


def test_the_newer_of_two_counts() -> None:
    """A crash between the two writes, or somebody who put an older one back."""
    disk = SimDisk()
    filled(disk)
    older = bytes(disk.contents(f"{ROOT}/{NAMES[0]}"))
    identity = started(disk).identity | {"dropped": [99]}
    save_identity(ROOT, disk, identity)
    for name in NAMES:
        newer = bytes(disk.contents(f"{ROOT}/{name}"))
        rewrite(disk, name, older)
        found = started(disk)
        assert found.identity["dropped"] == [99]
        assert found.faults == []
        assert newer != older


def test_an_unknown_format_is_refused() -> None:
    disk = SimDisk()
    identity = filled(disk) | {"format": 2}
    save_identity(ROOT, disk, identity)
    with pytest.raises(ConfigError, match="format 2, this server reads format 1"):
        started(disk)


def test_foreign_files_are_named_and_left_alone() -> None:
    """Beside data that is ours; a directory that holds nothing else is somebody else's, but for
    what a new file system has."""
    disk = SimDisk()
    disk.make_dirs(f"{ROOT}/lost+found")
    assert started(disk).foreign == [f"{ROOT}/lost+found"]
    disk.close(disk.open(f"{ROOT}/notes.txt", create=True))
    disk.close(disk.open(f"{ROOT}/wal/backup.wal", create=True))
    disk.make_dirs(f"{ROOT}/streams/lost+found")
    inner = [f"{ROOT}/wal/backup.wal", f"{ROOT}/streams/lost+found"]
    assert started(disk).foreign == [f"{ROOT}/lost+found", f"{ROOT}/notes.txt", *inner]
    other = SimDisk()
    other.make_dirs(ROOT)
    other.close(other.open(f"{ROOT}/__init__.py", create=True))
    with pytest.raises(ConfigError, match=r"not streamd's: it holds '__init__\.py'"):
        started(other)


def test_an_error_of_the_disk_is_told_with_the_directory() -> None:
    """A sync knows no file: all that was said was `[Errno 5] Input/output error`."""
    disk = SimDisk()
    disk.fail("fdatasync", errno.EIO, under="/data")
    with pytest.raises(DiskError, match=r"^/data/streamd: preparing .*Input/output error"):
        prepare("/data", disk)


def test_a_link_that_leads_nowhere_is_no_new_directory(tmp_path: Path) -> None:
    """The volume with node.json is not mounted: whose data this is would be forgotten."""
    disk = OsDisk()
    disk.unlock(prepare(str(tmp_path), disk).lock)
    for name in NAMES:
        place = tmp_path / "streamd" / name
        place.rename(tmp_path / name)
        place.symlink_to(f"/not/mounted/{name}")
    with pytest.raises(CorruptionError, match=r"streamd/node\.json: unreadable"):
        prepare(str(tmp_path), disk, when_unknown=WhenUnknown.BEGIN_ANEW)
    assert place.is_symlink()
