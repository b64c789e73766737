"""Data directories seen from outside: where they are, which streams they know."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from streamd.errors import CorruptionError, StreamdError
from streamd.offline.engine import (
    MARK,
    Effects,
    MetaMachine,
    SnapshotFile,
    StreamAsset,
    decode_stream,
    node_file,
    unwrap,
)
from streamd.offline.log_reader import LogReader
from streamd.offline.read_only_disk import ReadOnlyDisk
from streamd.types import META_UID, Entry, Index, Uid, stream_label

T = TypeVar("T")
_TRIES = 5
_PAUSE_S = 0.05  # between tries, growing: a restarting server needs a moment to be consistent
_DEPTH_MAX = 3  # levels below a given directory at which data directories are looked for
_DULL_NAMES = {"streamd", "store", "data", "jetstream", ""}
_JSON_NAME = "node.json"


class StoreBusy(StreamdError):
    """The directory changed under every attempt to read it."""


class StreamMissing(StreamdError):
    """Request for a stream that is not there, or has no files; the text says what there is."""


class StreamFiles(NamedTuple):
    """A stream that the meta group of a directory knows and this node has files or a log of."""

    uid: Uid
    name: str
    asset: StreamAsset
    directory: Path

    @property
    def is_file(self) -> bool:
        """False for a stream in memory: nothing of it can be read here."""
        return bool(self.asset.config.get("storage", "file") == "file")


class StoreDir:
    """A node's data directory: `path` has node.json, wal/, meta/ and streams/."""

    def __init__(self, path: Path, server_name: str) -> None:
        self.path = path
        self.server_name = server_name

    def __repr__(self) -> str:
        return f"StoreDir({self.server_name!r}, {str(self.path)!r})"

    @property
    def is_running(self) -> bool:
        """True if a server holds the directory now, as far as this machine can tell."""
        try:
            found = os.stat(self.path / "LOCK")
            locks = Path("/proc/locks").read_text(encoding="ascii")
        except OSError:
            return False
        wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        return any(wanted in line.split() for line in locks.splitlines())

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The content of node.json or its copy, whichever is newer and whole."""
        try:
            copies = node_file.read(ReadOnlyDisk(), str(self.path))
        except OSError as err:
            raise CorruptionError(f"{self.path / _JSON_NAME}: unreadable: {err}") from err
        if copies.identity is None:
            text = "; ".join(copies.faults) or f"{self.path / _JSON_NAME}: unreadable: it is gone"
            raise CorruptionError(text)
        return copies.identity

    @property
    def is_clustered(self) -> bool:
        return bool(self.identity.get("cluster_id"))

    def open_log(self, *, tolerate_damage: bool = False, is_whole: bool = False) -> LogReader:
        """The write-ahead log as it is now. Raises CorruptionError."""
        return LogReader(self.path / "wal", tolerate_damage=tolerate_damage, is_whole=is_whole)

    def read(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; try again while the directory changes under it.

        Raises StoreBusy when it changed every time, else what `work` raised.
        """
        for attempt in range(_TRIES):
            before = self._signature()
            try:
                return work()
            except (CorruptionError, FileNotFoundError, AssertionError) as err:
                if self._signature() == before and not (self.is_running and attempt < 2):
                    raise
                last = err
            time.sleep(_PAUSE_S * (attempt + 1))
        raise StoreBusy(f"{self.path}: changed while it was read, {_TRIES} times: {last}") from last

    def _signature(self) -> list[tuple[str, int, int]]:
        """Names, sizes and times of what a reading depends on."""
        found: list[tuple[str, int, int]] = []
        for folder in ("wal", "meta", "streams", "streams/*"):
            for path in sorted(self.path.glob(f"{folder}/*")):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                found.append((str(path), stat.st_size, stat.st_mtime_ns))
        return found

    def meta(self, log: LogReader) -> MetaMachine:
        """Return the catalog of streams, by the newest snapshot and all of the log.

        How far the meta group is committed is seldom on disk, and its last entries are uncommitted
        only for a moment: so all of the log counts.
        """
        disk = ReadOnlyDisk()
        snapshot = SnapshotFile.load(disk, str(self.path / "meta"), "meta", group=META_UID)
        machine = MetaMachine()
        if snapshot is not None:
            machine = MetaMachine.restore(unwrap(snapshot.state)[1])
        check_reach(log, META_UID, machine.applied)
        effects = Effects()
        for entry in log.entries(META_UID, machine.applied + 1, log.last_index(META_UID)):
            machine.apply(without_membership(entry), effects)
        return machine

    def streams(self) -> list[StreamFiles]:
        """The streams that have a replica here, by name. Raises CorruptionError or StoreBusy."""

        def work() -> list[StreamFiles]:
            log = self.open_log()
            try:
                return self.streams_by(log)
            finally:
                log.close()

        return self.read(work)

    def streams_by(self, log: LogReader, *, tolerate_damage: bool = False) -> list[StreamFiles]:
        """Return what `streams` does, by a log that is open already; reads once. `tolerate_damage`:
        where the meta group can't be read, those that have a snapshot of their own."""
        try:
            assets = list(self.meta(log).streams_by_key.values())
        except CorruptionError:
            if not tolerate_damage:
                raise
            assets = self.assets_of_snapshots()
        found = [
            StreamFiles(asset.uid, asset.name, asset, self.path / "streams" / str(asset.uid))
            for asset in assets
        ]
        here = [
            files
            for files in found
            if files.directory.is_dir() or log.group(files.uid) is not None or not files.is_file
        ]
        return sorted(here, key=lambda files: files.asset.key)

    def assets_of_snapshots(self) -> list[StreamAsset]:
        """The streams that have a whole snapshot of their own, as that tells them, by name."""
        disk, found = ReadOnlyDisk(), []
        folders = [each for each in (self.path / "streams").glob("*") if each.name.isdigit()]
        for folder in folders:
            uid = int(folder.name)
            try:
                snapshot = SnapshotFile.load(disk, str(folder), "stream", group=uid)
                members, blob = unwrap(snapshot.state) if snapshot is not None else (None, b"")
                state = decode_stream(blob) if blob else None
            except CorruptionError:
                continue
            if state is not None:
                peers = members.members() if members is not None else ()
                config, known = state.config, state.config_meta_index
                found.append(
                    StreamAsset(uid, config["name"], config, state.created_ns, known, config, peers)
                )
        return sorted(found, key=lambda asset: asset.name)


def find_stores(path: str | Path) -> list[StoreDir]:
    """The data directories at `path` or up to three levels below it, by name.

    `path` may be what a server got as store_dir, the `streamd` directory in it, or a directory
    with those of several nodes. Raises FileNotFoundError saying what was looked for.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such directory")
    found = sorted(_roots(root, _DEPTH_MAX))
    if not found:
        raise FileNotFoundError(
            f"{root}: no data directory of streamd: neither it nor a directory in it has "
            f"streamd/{_JSON_NAME}"
        )
    return named_stores(found)


def named_stores(paths: Sequence[Path]) -> list[StoreDir]:
    """Give each data directory a short name of its own, made of its path."""
    names: list[str] = []
    for path in paths:
        parts = [part for part in path.resolve().parts if part not in _DULL_NAMES]
        names.append(parts[-1].strip(os.sep) or "node" if parts else "node")
    if len(set(names)) < len(names):
        common = os.path.commonpath([path.resolve() for path in paths])
        names = [os.path.relpath(path.resolve(), common) for path in paths]
    return [StoreDir(path, name) for path, name in zip(paths, names, strict=True)]


def _roots(path: Path, depth: int) -> Iterator[Path]:
    # One that has lost its node.json is found too: it is damaged, and not to be passed over.
    has_data = (path / _JSON_NAME).is_file() or (path / "streams").is_dir()
    if has_data and (path / "wal").is_dir():
        yield path
    elif depth:
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink() and child.name != "trash":
                yield from _roots(child, depth - 1)


def check_reach(log: LogReader, uid: Uid, index: Index) -> None:
    """Raise CorruptionError if entries after `index` are missing from the log."""
    first = log.first_index(uid)
    if first > index + 1 and log.last_index(uid) > index:
        raise CorruptionError(
            f"{log.directory}: group {uid}: the log begins with entry {first}, the snapshot "
            f"ends at {index}"
        )


def without_membership(entry: Entry) -> Entry:
    """A change of membership is nothing to a machine."""
    if entry.data[:1] == MARK:
        return Entry(entry.term, entry.index, b"", chain=entry.chain)
    return entry


def find_stream(
    store: StoreDir, name: str, log: LogReader, *, tolerate_damage: bool = False
) -> StreamFiles:
    """The files of a stream: by its name, with its account before it (`A/ORDERS`) unless that is
    `$G` or no other account has a stream of that name. Raises StreamMissing."""
    there = store.streams_by(log, tolerate_damage=tolerate_damage)
    streams = {stream_label(files.asset.key): files for files in there}
    found = streams.get(name)
    if found is None:
        namesakes = {label: files for label, files in streams.items() if files.name == name}
        if len(namesakes) > 1:
            labels = ", ".join(sorted(namesakes))
            raise StreamMissing(f"{store.path}: {name!r} may be one of {labels}: name the account")
        found = next(iter(namesakes.values()), None)
    if found is None:
        known = ", ".join(streams) or "none"
        raise StreamMissing(f"{store.path}: no stream {name!r}; streams there are: {known}")
    if not found.is_file:
        raise StreamMissing(f"{store.path}: stream {name!r} is kept in memory, it has no files")
    return found
