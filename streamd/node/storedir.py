"""The store directory: what may be in it, who owns it, and refusing everything else.

<store_dir>/streamd/node.json     format and identity of this node's data
                    LOCK          held while a server runs here
                    wal/          the log of all groups
                    meta/         snapshots of the meta group
                    streams/<uid>/
                    trash/        deleted streams, until they are unlinked
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

from streamd.errors import ConfigError, CorruptionError, DiskError

FORMAT = 1
_OURS = {"node.json", "node.json.tmp", "LOCK", "wal", "meta", "streams", "trash"}


def prepare(store_dir: str, disk: Any) -> tuple[str, int]:
    """Create or check `store_dir`; return (root of our data, lock token).

    Raises ConfigError when the directory is somebody else's, in use or not writable, and
    CorruptionError when `node.json` is ours but unreadable.
    """
    root = os.path.join(store_dir, "streamd")
    try:
        present = set(disk.listdir(store_dir)) if os.path.isdir(store_dir) else set()
        if "jetstream" in present and "streamd" not in present:
            raise ConfigError(
                f"store directory {store_dir!r} holds nats-server's data (jetstream/), which "
                "streamd cannot read: give it a directory of its own"
            )
        os.makedirs(root, exist_ok=True)
        names = set(disk.listdir(root))
    except OSError as err:
        raise ConfigError(
            f"can't use store directory {store_dir!r}: {err.strerror or err}"
        ) from err
    except DiskError as err:
        raise ConfigError(f"can't use store directory {store_dir!r}: {err}") from err
    foreign = sorted(names - _OURS)
    if foreign or (names - {"LOCK", "node.json.tmp"} and "node.json" not in names):
        what = foreign[0] if foreign else "data without node.json"
        raise ConfigError(f"store directory {root!r} is not streamd's: it holds {what!r}")
    if not os.access(root, os.W_OK):
        raise ConfigError(f"can't use store directory {root!r}: Permission denied")
    try:
        lock = disk.lock(os.path.join(root, "LOCK"))
    except (OSError, DiskError) as err:
        raise ConfigError(
            f"store directory {store_dir!r} is in use by another server, or can't be locked: {err}"
        ) from err
    _identity(root, disk)
    for name in ("wal", "meta", "streams", "trash"):
        path = os.path.join(root, name)
        if name not in names:
            disk.mkdir(path)
    disk.sync_dir(root)
    return root, lock


def _identity(root: str, disk: Any) -> dict[str, Any]:
    path = os.path.join(root, "node.json")
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                identity: dict[str, Any] = json.load(file)
            found = identity["format"]
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise CorruptionError(f"{path}: unreadable: {err}") from err
        if found != FORMAT:
            raise ConfigError(f"{path}: format {found!r}, this server reads format {FORMAT}")
        return identity
    identity = {"format": FORMAT, "store": "streamd", "id": secrets.token_hex(16)}
    tmp = path + ".tmp"
    with open(tmp, "w", encoding="utf-8") as file:
        json.dump(identity, file)
        file.flush()
        os.fsync(file.fileno())
    # On disk now: a whole tmp. A crash here leaves it stray, and the next start writes it anew.
    os.replace(tmp, path)
    disk.sync_dir(root)
    return identity
