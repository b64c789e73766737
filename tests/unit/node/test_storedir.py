"""A store directory that this server can't have: what it says of that."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from streamd.errors import ConfigError, CorruptionError, DiskError
from streamd.node.storedir import prepare, save_identity
from streamd.store.disk import OsDisk
from tests.sim.disk import SimDisk


class Unlockable(SimDisk):
    """A disk on which no file can be locked, for a reason of its own."""

    reason = errno.EROFS

    def lock(self, path: str) -> int:
        raise OSError(self.reason, os.strerror(self.reason), path)


def test_who_comes_second_hears_that_another_server_is_there() -> None:
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


def test_no_letter_of_the_identity_changes_unseen() -> None:
    """It says what this node may have forgotten: by a name spelt otherwise it would not."""
    disk = SimDisk()
    identity = prepare("/data", disk).identity | {"dropped": [7, 12], "is_rejoined": True}
    save_identity("/data/streamd", disk, identity)
    path = "/data/streamd/node.json"
    content = bytes(disk.contents(path))
    for offset in range(len(content)):
        disk.kill()
        disk.flip(path, offset, 1 << offset % 8)
        with suppress(ConfigError, CorruptionError):
            assert prepare("/data", disk).identity.items() >= identity.items(), offset
        disk.flip(path, offset, 1 << offset % 8)
    assert bytes(disk.contents(path)) == content


def test_an_identity_that_an_earlier_server_wrote_is_taken() -> None:
    disk = SimDisk()
    identity = prepare("/data", disk).identity
    path = "/data/streamd/node.json"
    disk.kill()
    fd = disk.open(path)
    disk.truncate(fd, 0)
    disk.pwrite(fd, json.dumps(identity).encode(), 0)
    assert prepare("/data", disk).identity == identity


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
    place = tmp_path / "streamd" / "node.json"
    place.rename(tmp_path / "elsewhere")
    place.symlink_to("/not/mounted/node.json")
    with pytest.raises(CorruptionError, match=r"streamd/node\.json: unreadable"):
        prepare(str(tmp_path), disk)
    assert place.is_symlink()
