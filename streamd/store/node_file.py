"""Identity of a store directory: `node.json` and its copy, each with a checksum.

The two are written one after the other, with a higher number each time, so a crash leaves at most
one of them behind. The newest whole one counts; rot in a single one costs nothing.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, NamedTuple

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.store.blocks.snapshots import read_file, write_file
from streamd.store.disk import Disk, is_refused

NAMES = ("node.json", "node-2.json")
_CRC = "crc"  # of all the other fields
_GENERATION = "generation"  # of this content

Identity = dict[str, Any]


class Copies(NamedTuple):
    """Content of the two files of one directory."""

    identity: Identity | None  # of the newest that is whole; None: there is none
    faults: list[str]  # of files that should be there and whole
    are_equal: bool  # both are whole, and say the same
    is_open: bool  # one is there that can't be read now, and may be whole


def encode(identity: Identity) -> bytes:
    """Return the bytes of a file."""
    return json.dumps(identity | {_CRC: _crc(identity)}).encode()


def decode(blob: bytes, path: str) -> Identity:
    """Return the inverse of `encode`, of any format number. Raises CorruptionError."""
    try:
        identity: Identity = dict(json.loads(blob))
    except (ValueError, TypeError) as err:
        raise CorruptionError(f"{path}: unreadable: {err}") from err
    if identity.pop(_CRC, None) != _crc(identity) or "format" not in identity:
        raise CorruptionError(f"{path}: unreadable: it is not what was written")
    return identity


def read(disk: Disk, root: str) -> Copies:
    """Read both files. Raises OSError if one may not be read now, which is no damage."""
    whole: list[Identity] = []
    faults: list[str] = []
    is_open = False
    present = disk.listdir(root)
    for name in NAMES:
        path = os.path.join(root, name)
        if name not in present:
            continue
        try:
            whole.append(decode(read_file(disk, path), path))
        except CorruptionError as err:
            faults.append(str(err))
        except OSError as err:  # by its name it is there: a link may lead to what is not, just now
            if is_refused(err):
                raise
            is_open = is_open or err.errno != errno.EIO
            faults.append(f"{path}: unreadable: {os.strerror(err.errno or 0)}")
    newest = max(whole, key=_generation, default=None)
    missing = [name for name in NAMES if name not in present]
    # Of the first that was ever written, a crash may have left no copy.
    if missing and newest is not None and _generation(newest) > 1:
        faults.append(f"{os.path.join(root, missing[0])}: the file is missing")
    are_equal = len(whole) == len(NAMES) and whole[0] == whole[1]
    return Copies(newest, faults, are_equal, is_open)


def write(disk: Disk, root: str, identity: Identity) -> None:
    """Write `identity` to both files, for the next start."""
    identity[_GENERATION] = _generation(identity) + 1
    content = encode(identity)
    write_file(disk, root, NAMES[0], [content], point="NODE_IDENTITY")
    write_file(disk, root, NAMES[1], [content], point="NODE_IDENTITY_COPY")


def _generation(identity: Identity) -> int:
    return int(identity.get(_GENERATION, 0))


def _crc(identity: Identity) -> int:
    """Encode strictly: a letter less, and a node would not know what it may have forgotten."""
    crc: int = crc32c(json.dumps(identity, sort_keys=True).encode())
    return crc
