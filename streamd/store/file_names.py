"""Names of the files in a store directory, and foreign files: those under no name of streamd's.

A foreign file is named once at a start and left alone: nothing reads, moves or removes it, and it
counts neither as data nor as damage. Only a file under a name of streamd's can stand in its way. A
stream's directory is deleted or set aside as a whole, with the foreign files in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from streamd.store.blocks.discarded_entries_file import is_tail
from streamd.store.blocks.record_format import block_number
from streamd.store.disk import Disk
from streamd.store.wal.wal_format import is_log_name

_TMP = ".tmp"
_CATCHUP = ".catchup"
_SNAPSHOT = re.compile(r"(meta|stream)-[0-9a-f]{16}\.snap")
_STREAM_DIRECTORY = re.compile(r"(0|[1-9][0-9]*)(\.catchup)?")
_FIXED = frozenset(("index.db", "outline", "manifest"))
_ORPHAN = re.compile(r"orphan-(\d+)-(\d+)")
_REPLAYED = ".replayed"
_FETCHED = frozenset(("state", "index"))  # only in a catch-up's directory


def foreign_paths(disk: Disk, root: str) -> list[str]:
    """Return the paths of foreign files and directories in `wal/`, `meta/` and `streams/`.

    A directory that cannot be listed has none: whatever needs it reports that.
    """
    found = _foreign_in(disk, os.path.join(root, "wal"), is_log_name)
    found += _foreign_in(disk, os.path.join(root, "meta"), _is_meta_file)
    streams = os.path.join(root, "streams")
    found += _foreign_in(disk, streams, is_stream_directory)
    for name in filter(is_stream_directory, _names(disk, streams)):
        is_ours = is_fetched_file if name.endswith(_CATCHUP) else _is_stream_file
        found += _foreign_in(disk, os.path.join(streams, name), is_ours)
    return found


def remove_unfinished(disk: Disk, directory: str) -> None:
    """Remove what a crash left half written in a stream's directory: `.tmp` files of streamd."""
    for name in disk.listdir(directory):
        if name.endswith(_TMP) and _is_stream_file(name):
            disk.unlink(os.path.join(directory, name))


def is_stream_directory(name: str) -> bool:
    """True if `name` is one that streamd gives to a directory in `streams/`."""
    return _STREAM_DIRECTORY.fullmatch(name) is not None


def is_fetched_file(name: str) -> bool:
    """True if `name` is one that streamd gives to a file in `streams/<uid>.catchup/`."""
    name = name.removesuffix(".part")
    return name in _FETCHED or _is_stream_file(name)


def is_ours(path: str) -> bool:
    """True if a file has a name that streamd gives, in whichever directory."""
    name = os.path.basename(path)
    return is_log_name(name) or _is_meta_file(name) or is_fetched_file(name) or is_tail(name)


def trash_kind(name: str) -> str:
    """Return the kind of a file or directory in `trash/`, in words for people."""
    if _ORPHAN.fullmatch(name):
        return "directory of an unknown stream"
    if is_tail(name):
        return "log entries that were set aside"
    if is_tail(name.removesuffix(_REPLAYED)):
        return "log entries, published again"
    return "deleted stream, on its way out" if name.isdigit() else "kept by the server"


def orphan_uid(name: str) -> int:
    """Return the uid of the stream that a directory in `trash/` was of; 0: it is none such."""
    found = _ORPHAN.fullmatch(name)
    return int(found[1]) if found else 0


def _is_stream_file(name: str) -> bool:
    name = name.removesuffix(_TMP)
    return name in _FIXED or block_number(name) is not None or _SNAPSHOT.fullmatch(name) is not None


def _is_meta_file(name: str) -> bool:
    return name == "fetched.tmp" or _SNAPSHOT.fullmatch(name.removesuffix(_TMP)) is not None


def _foreign_in(disk: Disk, directory: str, is_ours: Callable[[str], bool]) -> list[str]:
    return [os.path.join(directory, name) for name in _names(disk, directory) if not is_ours(name)]


def _names(disk: Disk, directory: str) -> list[str]:
    try:
        return disk.listdir(directory)
    except OSError:
        return []
