"""The `trash` of data directories: what servers set aside, listed, put back, removed.

A server is not to run on a directory that is changed here; `put_back` and `remove` refuse it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streamd.errors import StreamdError
from streamd.offline.engine import orphan_uid, trash_kind
from streamd.offline.store_dirs import StoreDir, find_stores


class TrashError(StreamdError):
    """Refusal to change a trash; the text says why."""


class TrashItem(NamedTuple):
    """File or directory in a trash."""

    path: Path
    store: StoreDir
    kind: str
    size: int
    mtime_s: float
    uid: int  # of the stream that a directory was of; 0: none


def items(directory: Path) -> list[TrashItem]:
    """Return what lies in the trash of the data directories at a path, the oldest first. Raises
    FileNotFoundError if there are no such directories."""
    found = [item for store in find_stores(directory) for item in _items(store)]
    return sorted(found, key=lambda item: (item.mtime_s, item.path.name))


def _items(store: StoreDir) -> Iterator[TrashItem]:
    trash = store.path / "trash"
    if not trash.is_dir():
        return
    for path in trash.iterdir():
        kind, uid = trash_kind(path.name), orphan_uid(path.name)
        yield TrashItem(path, store, kind, _size(path), path.stat().st_mtime, uid)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def find(directory: Path, name: str) -> TrashItem:
    """Return the item of that name. Raises TrashError if there is none."""
    there = items(directory)
    for item in there:
        if item.path.name == name:
            return item
    names = ", ".join(item.path.name for item in there) or "nothing"
    raise TrashError(f"{name!r} is not in the trash of {directory}: there is {names}")


def put_back(item: TrashItem) -> Path:
    """Move the directory of a stream to where it was, for the next start. Raises TrashError."""
    if not item.uid:
        raise TrashError(f"{item.path.name}: only a directory of a stream can be put back")
    _refuse_running(item)
    known = {files.uid for files in item.store.streams()}
    if item.uid not in known:
        raise TrashError(
            f"{item.path.name}: no stream of this directory has the uid {item.uid}, so that the "
            "next start would set it aside again"
        )
    target = item.store.path / "streams" / str(item.uid)
    if target.exists():
        raise TrashError(f"{target} exists: move it away first, if it is the worse of the two")
    item.path.rename(target)
    return target


def remove(item: TrashItem) -> None:
    """Destroy an item. Raises TrashError while a server runs on the directory."""
    _refuse_running(item)
    if item.path.is_dir():
        shutil.rmtree(item.path)
    else:
        item.path.unlink()


def _refuse_running(item: TrashItem) -> None:
    if item.store.is_running:
        raise TrashError(f"a server runs on {item.store.path}: stop it first")
