"""The store directory: what may be in it, who owns it, and refusing everything else.

<store_dir>/streamd/node.json     format and identity of this node's data
                    LOCK          held while a server runs here
                    wal/          the log of all groups
                    meta/         snapshots of the meta group
                    streams/<uid>/
                    trash/        deleted streams, until they are unlinked; what was set aside
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from crc32c import crc32c

from streamd.errors import ConfigError, CorruptionError, DiskError
from streamd.store.disk import Disk, disk_error
from streamd.store.snapshots import read_file, write_file

FORMAT = 1
_NAME = "node.json"
_CRC = "crc"  # of all the other fields
_OURS = {_NAME, _NAME + ".tmp", "LOCK", "wal", "meta", "streams", "trash"}


class StoreDir(NamedTuple):
    """A directory that is ours now."""

    root: str
    lock: int
    identity: dict[str, Any]
    """`id`: of this very data (a node that lost its data comes back with another one).
    `cluster_id`, `voters`: of the cluster it belongs to; absent until it belongs to one.
    `name`: of the node of a cluster whose data it is.
    `log_id`: of its write-ahead log; `log_segment`: one that it had begun.
    `seen`: the latest start of each other node that this one knows of, `starts`: of its own, those
    it told them of, and `log_life`: by what else they know its log since they saw that it was an
    older copy (`sightings`).
    `is_accepting_loss`: a single server was told to go on without what its log lost, and has not
    come to the end of that start.
    `is_new`: joined with an empty directory, and not vouched for by a meta leader yet.
    `is_rejoined`, `forgotten_upto`, `dropped`, `left_at`: what it may have forgotten (`amnesia`).
    `removal`: removals of this server's name up to that meta entry were before this data was begun;
    `is_removed`: this very server was removed since."""


def prepare(store_dir: str, disk: Disk) -> StoreDir:
    """Create or check `store_dir`.

    Raises ConfigError when the directory is somebody else's, in use or not writable, and
    CorruptionError when `node.json` is ours but unreadable.
    """
    root = os.path.join(store_dir, "streamd")
    try:
        present = set(disk.listdir(store_dir)) if disk.exists(store_dir) else set()
        if "jetstream" in present and "streamd" not in present:
            raise ConfigError(
                f"store directory {store_dir!r} holds nats-server's data (jetstream/), which "
                "streamd cannot read: give it a directory of its own"
            )
        disk.make_dirs(root)
        names = set(disk.listdir(root))
    except NotADirectoryError as err:
        raise ConfigError(f"storage directory is not a directory: {store_dir!r}") from err
    except OSError as err:
        raise ConfigError(
            f"can't use store directory {store_dir!r}: {err.strerror or err}"
        ) from err
    except DiskError as err:
        raise ConfigError(f"can't use store directory {store_dir!r}: {err}") from err
    foreign = sorted(names - _OURS)
    if foreign or (names - {"LOCK", _NAME + ".tmp"} and _NAME not in names):
        what = foreign[0] if foreign else f"data without {_NAME}"
        raise ConfigError(f"store directory {root!r} is not streamd's: it holds {what!r}")
    try:
        lock = disk.lock(os.path.join(root, "LOCK"))
    except BlockingIOError as err:
        raise ConfigError(f"store directory {store_dir!r} is in use by another server") from err
    except OSError as err:
        raise ConfigError(
            f"can't use store directory {store_dir!r}: LOCK: {err.strerror or err}"
        ) from err
    try:
        identity = _identity(root, disk, is_new=_NAME not in names)
        for name in ("wal", "meta", "streams", "trash"):
            if name not in names:
                disk.mkdir(os.path.join(root, name))
        # What a killed process renamed may be known to the page cache only. What is found is
        # acted upon from now on (a snapshot's index is told to peers), so make it durable.
        for name in ("meta", "streams"):
            disk.sync_dir(os.path.join(root, name))
        disk.sync_dir(root)
    except PermissionError as err:
        raise ConfigError(f"can't use store directory {root!r}: Permission denied") from err
    except OSError as err:
        raise disk_error("preparing the store directory", root, err) from err
    return StoreDir(root, lock, identity)


def save_identity(root: str, disk: Disk, identity: dict[str, Any]) -> None:
    """Make `identity` what the next start finds."""
    content = json.dumps(identity | {_CRC: _crc(identity)}).encode()
    write_file(disk, root, _NAME, [content], point="NODE_IDENTITY")


def _identity(root: str, disk: Disk, *, is_new: bool) -> dict[str, Any]:
    path = os.path.join(root, _NAME)
    if not is_new:  # by its name: a link may lead to what is not there now
        try:
            identity: dict[str, Any] = json.loads(read_file(disk, path))
            found = identity["format"]
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise CorruptionError(f"{path}: unreadable: {err}") from err
        crc = identity.pop(_CRC, None)  # earlier servers wrote none
        if crc is not None and crc != _crc(identity):
            raise CorruptionError(f"{path}: unreadable: it is not what was written")
        if found != FORMAT:
            raise ConfigError(f"{path}: format {found!r}, this server reads format {FORMAT}")
        return identity
    identity = {"format": FORMAT, "store": "streamd", "id": disk.random_bytes(16).hex()}
    save_identity(root, disk, identity)
    return identity


def _crc(identity: dict[str, Any]) -> int:
    """`identity` tells what this node may have forgotten: a letter less, and it would not know."""
    crc: int = crc32c(json.dumps(identity, sort_keys=True).encode())
    return crc
