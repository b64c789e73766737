"""A store directory that this server can't have: what it says of that."""

from __future__ import annotations

import errno
import os

import pytest

from streamd.errors import ConfigError
from streamd.node.storedir import prepare
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
