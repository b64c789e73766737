"""The store directory: its content and its owner; everything else is refused.

<store_dir>/streamd/node.json     format and identity of this node's data
                    node-2.json   the same once more (store/node_file.py)
                    encryption.json, encryption-2.json    keys of an encrypted store, wrapped
                    LOCK          held while a server runs here
                    wal/          the log of all groups
                    meta/         snapshots of the meta group
                    streams/<uid>/
                    trash/        deleted streams, until they are unlinked; what was set aside
"""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple

from streamd.errors import ConfigError, CorruptionError, DiskError
from streamd.store import node_file
from streamd.store.blocks.quarantine import free_name
from streamd.store.disk import Disk, disk_error
from streamd.store.file_names import foreign_paths
from streamd.store.frames import keyring
from streamd.store.frames.encryption import TMP_NAME
from streamd.store.node_file import Identity

FORMAT = 1
_DIRECTORIES = ("wal", "meta", "streams", "trash")
_FILES = (*node_file.NAMES, *keyring.NAMES)
_OURS = {*_FILES, *(f"{name}.tmp" for name in _FILES), TMP_NAME, "LOCK", *_DIRECTORIES}
_HARMLESS = {"lost+found"}  # what a new file system has from the start


class StoreDir(NamedTuple):
    """A directory that is ours now."""

    root: str
    lock: int
    identity: Identity
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
    faults: list[str]
    """What was found damaged or missing."""
    foreign: list[str]
    """Paths of files and directories that are none of streamd's (store/file_names.py)."""


class WhenUnknown(Enum):
    """Fate of data of which both files that say whose it is are lost."""

    REFUSE = 0  # CorruptionError
    BEGIN_ANEW = 1  # all is set aside in `trash/`: the others of the cluster have it
    KEEP = 2  # it is this server's, as its operator says


def root_of(store_dir: str) -> str:
    """Return streamd's own directory in the one that is configured."""
    return os.path.join(store_dir, "streamd")


def prepare(
    store_dir: str, disk: Disk, *, when_unknown: WhenUnknown = WhenUnknown.REFUSE
) -> StoreDir:
    """Create or check `store_dir`.

    Raises ConfigError when the directory is another program's, in use or not writable, and
    CorruptionError when it is not known whose it is.
    """
    root = root_of(store_dir)
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
    if [name for name in foreign if name not in _HARMLESS] and not names & _OURS:
        raise ConfigError(f"store directory {root!r} is not streamd's: it holds {foreign[0]!r}")
    try:
        lock = disk.lock(os.path.join(root, "LOCK"))
    except BlockingIOError as err:
        raise ConfigError(f"store directory {store_dir!r} is in use by another server") from err
    except OSError as err:
        raise ConfigError(
            f"can't use store directory {store_dir!r}: LOCK: {err.strerror or err}"
        ) from err
    faults: list[str] = []
    try:
        found = _identity(root, disk, names, faults, when_unknown)
        names = set(disk.listdir(root))
        for name in _DIRECTORIES:
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
    paths = [os.path.join(root, name) for name in foreign]
    return StoreDir(root, lock, found, faults, paths + foreign_paths(disk, root))


def save_identity(root: str, disk: Disk, found: Identity) -> None:
    """Make `found` what the next start finds."""
    node_file.write(disk, root, found)


def identity_faults(root: str, disk: Disk) -> list[str]:
    """Say what is wrong with the files of the identity of a server that runs. Raises OSError if
    that can't be said now."""
    copies = node_file.read(disk, root)
    if copies.identity is None and not copies.faults:
        return [f"{os.path.join(root, name)}: the file is missing" for name in node_file.NAMES]
    return copies.faults


def _identity(
    root: str, disk: Disk, names: set[str], faults: list[str], when_unknown: WhenUnknown
) -> Identity:
    copies = node_file.read(disk, root)
    found = copies.identity
    if found is None:
        if copies.faults or _has_data(root, disk):
            faults.append(_give_up(root, disk, copies, when_unknown))
        found = {"format": FORMAT, "store": "streamd", "id": disk.random_bytes(16).hex()}
        save_identity(root, disk, found)
        return found
    if found["format"] != FORMAT:
        path = os.path.join(root, node_file.NAMES[0])
        raise ConfigError(f"{path}: format {found['format']!r}, this server reads format {FORMAT}")
    faults += copies.faults
    for name in ("meta", "streams"):
        if name not in names and "log_id" in found:
            faults.append(f"{os.path.join(root, name)}: the directory is missing")
    if not copies.are_equal:
        save_identity(root, disk, found)
    return found


def _has_data(root: str, disk: Disk) -> bool:
    """True if something is stored here: not of a directory that a first start was making, nor of
    what `rm -rf` left of empty directories."""
    return any(disk.listdir(os.path.join(root, name)) for name in ("wal", "meta", "streams"))


def _give_up(root: str, disk: Disk, copies: node_file.Copies, when_unknown: WhenUnknown) -> str:
    """Nothing says whose data this is: say what becomes of it, or raise CorruptionError."""
    reason = "; ".join(copies.faults) or "both are missing"
    text = f"{root}: node.json and its copy node-2.json are lost ({reason})"
    if copies.is_open or when_unknown is WhenUnknown.REFUSE:
        raise CorruptionError(
            f"{text}: nothing else says whose data this is: put one of them back from a copy of "
            "this directory"
        )
    if when_unknown is WhenUnknown.KEEP:
        return f"{text}: all that is here is taken for this server's"
    trash = os.path.join(root, "trash")
    disk.mkdir(trash)
    target = free_name(disk, trash, "unknown")
    disk.mkdir(target)
    # Last what says that there is something to be set aside.
    for name in (*node_file.NAMES, "meta", "streams", "wal"):
        if disk.exists(os.path.join(root, name)):
            disk.replace(os.path.join(root, name), os.path.join(target, name))
            disk.crash_point("UNKNOWN_DATA_MOVED")
    for directory in (target, trash, root):
        disk.sync_dir(directory)
    return f"{text}: all that was here is in {target}, and this node begins anew"
