"""A read-only view of a data directory: which streams it holds and what is in them.

A stream's state is its newest snapshot with the log replayed on top, in memory, by the server's
own machine; so deleted and expired messages are gone and the newest ones, which may be nowhere but
in the log, are there. Nothing is written and no lock is taken: the server may be running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from spark_jobs.replica_log import LogReader, ReadOnlyDisk, last_frame_index
from streamd.errors import CorruptionError, StreamdError
from streamd.machine.base import APPEND, SEAL, Effects
from streamd.machine.columns import Block
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.machine.stream import StreamMachine
from streamd.node.snapshot_state import unwrap
from streamd.raft.membership import MARK, Membership, simple
from streamd.store import format as fmt
from streamd.store.block import HEADER_BYTES, BlockFiles
from streamd.store.blocks import read_index
from streamd.store.format import BlockCodec
from streamd.store.snapshots import Snapshot, SnapshotFile
from streamd.types import META_UID, Entry, Index, Seq, Uid

T = TypeVar("T")
_TRIES = 5
_PAUSE_S = 0.05  # between tries, growing: a restarting server needs a moment to be consistent
_DEPTH_MAX = 3  # levels below a given directory at which data directories are looked for
_DULL_NAMES = {"streamd", "store", "data", "jetstream", ""}
_JSON_NAME = "node.json"


class StoreBusy(StreamdError):
    """The directory changed under every attempt to read it."""


class StreamMissing(StreamdError):
    """There is no such stream; the text lists those there are."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes at the end of a block file that are not what was stored. The log makes up for them."""

    path: str
    block_no: int
    offset: int  # where they begin
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.reason} ({self.size} bytes)"


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block of a stream as a view saw it. Picklable; reads nothing by itself."""

    replica: str
    path: str
    block_no: int
    uid: Uid
    first_seq: Seq  # of the messages ever stored in it
    last_seq: Seq
    first_ts_ns: int
    last_ts_ns: int
    count: int
    live: int
    digest: int  # of the live messages: machine/digest.py
    end_offset: int  # where its records end
    is_sealed: bool
    dead: tuple[tuple[Seq, Seq], ...] = ()  # inclusive ranges that are not live, ascending
    tail_offset: int = 0  # from here on the bytes are `tail`, not in the file yet; 0: all in file
    tail: bytes = field(default=b"", repr=False)

    @property
    def byte_count(self) -> int:
        """Bytes of its records."""
        return self.end_offset - HEADER_BYTES

    def read(self) -> bytes:
        """The block's bytes: header, records and, if it is sealed, the footer.

        Shorter than it should be if the file is; who decodes it notices. Raises FileNotFoundError
        when the server has removed the block meanwhile, because all its messages were deleted.
        """
        size = self.tail_offset if self.tail else 0 if self.is_sealed else self.end_offset
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC) if size != HEADER_BYTES else -1
        if fd < 0:  # the file has no record yet
            return fmt.encode_block_header(self.uid, self.block_no) + self.tail
        try:
            wanted = size or os.fstat(fd).st_size
            blob = os.pread(fd, wanted, 0)
            while len(blob) < wanted:  # Linux reads at most 2 GiB at once
                more = os.pread(fd, wanted - len(blob), len(blob))
                if not more:
                    break
                blob += more
        finally:
            os.close(fd)
        return blob + self.tail if self.tail else blob


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
    """One node's data directory: `path` has node.json, wal/, meta/ and streams/."""

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
        """What node.json says."""
        import json

        try:
            found: dict[str, Any] = json.loads((self.path / _JSON_NAME).read_bytes())
        except (OSError, ValueError) as err:
            raise CorruptionError(f"{self.path / _JSON_NAME}: unreadable: {err}") from err
        return found

    @property
    def is_clustered(self) -> bool:
        return bool(self.identity.get("cluster_id"))

    def open_log(self, *, tolerate_damage: bool = False) -> LogReader:
        """The write-ahead log as it is now. Raises CorruptionError."""
        return LogReader(self.path / "wal", tolerate_damage=tolerate_damage)

    def read(self, work: Callable[[], T]) -> T:
        """What `work` returns; tried again while the directory changes under it.

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
        """Which streams there are, by the newest snapshot and all of the log.

        All of it: how far the meta group is committed is seldom on disk, and its last entries are
        uncommitted only for a moment.
        """
        disk = ReadOnlyDisk()
        snapshot = SnapshotFile.load(disk, str(self.path / "meta"), "meta", group=META_UID)
        machine = MetaMachine()
        if snapshot is not None:
            machine = MetaMachine.restore(unwrap(snapshot.state)[1])
        _check_reach(log, META_UID, machine.applied)
        effects = Effects()
        for entry in log.entries(META_UID, machine.applied + 1, log.last_index(META_UID)):
            machine.apply(_without_membership(entry), effects)
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

    def streams_by(self, log: LogReader) -> list[StreamFiles]:
        """As `streams`, by a log that is open already; reads once."""
        found = [
            StreamFiles(asset.uid, asset.name, asset, self.path / "streams" / str(asset.uid))
            for asset in self.meta(log).streams_by_name.values()
        ]
        here = [
            files
            for files in found
            if files.directory.is_dir() or files.uid in log.groups or not files.is_file
        ]
        return sorted(here, key=lambda files: files.name)


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
    if (path / _JSON_NAME).is_file() and (path / "wal").is_dir():
        yield path
    elif depth:
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink() and child.name != "trash":
                yield from _roots(child, depth - 1)


def _check_reach(log: LogReader, uid: Uid, index: Index) -> None:
    """Raise CorruptionError if entries after `index` are missing from the log."""
    first = log.first_index(uid)
    if first > index + 1 and log.last_index(uid) > index:
        raise CorruptionError(
            f"{log.directory}: group {uid}: the log begins with entry {first}, the snapshot "
            f"ends at {index}"
        )


def _without_membership(entry: Entry) -> Entry:
    """A change of membership is nothing to a machine."""
    if entry.data[:1] == MARK:
        return Entry(entry.term, entry.index, b"", chain=entry.chain)
    return entry


# --- one stream ---------------------------------------------------------------------------------


class _Blocks:
    """Takes the block operations of a replay and compares them with the files.

    Keeps in memory only what the files do not have: what waits to be written, or was torn.
    """

    def __init__(self, directory: Path, uid: Uid) -> None:
        self.disk = ReadOnlyDisk()
        self.files = BlockFiles(self.disk, str(directory), uid)
        self.tails: dict[int, tuple[int, list[bytes]]] = {}  # block -> (offset, bytes from there)
        self.torn: list[TornTail] = []
        self.touched: set[int] = set()
        self._footers: dict[int, bytes] = {}
        self._open: tuple[int, int] = (-1, -1)  # (block_no, fd)

    def load_footer(self, block_no: int) -> bytes:
        """See machine.base.ColumnSource."""
        footer = self._footers.get(block_no)
        return footer if footer is not None else self.files.read_footer(block_no)

    def scan(self, block_no: int, end_offset: int) -> Iterator[fmt.Record]:
        """The records of a block up to `end_offset`; for a machine without index.db."""
        blob = self.files.read_all(block_no, end_offset)
        tail = self.tails.get(block_no)
        if tail is not None:
            blob = blob[: tail[0]] + b"".join(tail[1])
        end = HEADER_BYTES
        for record in fmt.scan(blob[HEADER_BYTES:end_offset], HEADER_BYTES):
            end = record.offset + record.length
            yield record
        if end < end_offset:
            raise CorruptionError(
                f"{self.files.path(block_no)}: offset {end}: a record is damaged, the block goes "
                f"on to {end_offset}"
            )

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        for op in ops:
            if op[0] in (APPEND, SEAL):
                kind, block_no, offset, blob = op
                self.touched.add(block_no)
                if kind == SEAL:
                    self._footers[block_no] = blob
                self._put(block_no, offset, blob)

    def _put(self, block_no: int, offset: int, blob: bytes) -> None:
        tail = self.tails.get(block_no)
        if tail is not None:
            tail[1].append(blob)
            return
        found = self._read(block_no, len(blob), offset)
        if found == blob:
            return
        self.tails[block_no] = (offset, [blob])
        if found and not blob.startswith(found):
            same = next(i for i, (a, b) in enumerate(zip(found, blob, strict=False)) if a != b)
            size = os.path.getsize(self.files.path(block_no)) - offset - same
            self.torn.append(
                TornTail(
                    self.files.path(block_no),
                    block_no,
                    offset + same,
                    size,
                    "bytes that differ from the log's",
                )
            )
        elif found:
            self.torn.append(
                TornTail(
                    self.files.path(block_no),
                    block_no,
                    offset,
                    len(found),
                    "the file ends inside what the log holds",
                )
            )

    def _read(self, block_no: int, size: int, offset: int) -> bytes:
        if self._open[0] != block_no:
            self.close()
            try:
                self._open = (block_no, self.disk.open(self.files.path(block_no)))
            except FileNotFoundError:
                return b""
        return self.disk.pread(self._open[1], size, offset)

    def close(self) -> None:
        if self._open[1] >= 0:
            self.disk.close(self._open[1])
        self._open = (-1, -1)


class StreamView:
    """A stream at one log index, `applied`. `close` lets go of the log's files."""

    def __init__(
        self,
        store: StoreDir,
        files: StreamFiles,
        log: LogReader,
        machine: StreamMachine,
        blocks: list[BlockView],
        torn: list[TornTail],
        *,
        snapshot_index: Index,
        commit_hint: Index,
    ) -> None:
        self.store = store
        self.replica = store.server_name
        self.uid = files.uid
        self.name = files.name
        self.asset = files.asset
        self.directory = files.directory
        self.machine = machine
        self.config: dict[str, Any] = machine.config
        self.created_ns = machine.created_ns
        self.blocks = blocks
        self.torn = torn
        self.snapshot_index = snapshot_index
        self.commit_hint = commit_hint
        self.log_last_index = max(log.last_index(files.uid), snapshot_index)
        self._log = log

    @property
    def applied(self) -> Index:
        return self.machine.applied

    @property
    def first_seq(self) -> Seq:
        return self.machine.index.first_seq

    @property
    def last_seq(self) -> Seq:
        return self.machine.index.last_seq

    @property
    def messages(self) -> int:
        return self.machine.index.count

    @property
    def bytes(self) -> int:
        return self.machine.index.bytes

    @property
    def digest(self) -> int:
        return self.machine.digest

    def entries_after(self, index: Index) -> Iterator[Entry]:
        """Log entries beyond `index` that are at hand, up to the log's last, applied or not.

        Raises CorruptionError, also when a running server has reused the log's file.
        """
        return self._log.entries(self.uid, index + 1, self._log.last_index(self.uid))

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> StreamView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_stream(
    store: StoreDir, name: str, *, up_to: Index | None = None, tolerate_damage: bool = False
) -> StreamView:
    """The stream `name` as the replica in `store` has it.

    Without `up_to`, all that is known to be committed: the whole log where one node decides
    alone; else up to what the log or a block says was committed (`survey` finds more
    with the other nodes' logs). With it, all up to that index, as far as there is a log.

    `tolerate_damage`: a damaged log is read as far as it is proven, instead of an error.
    Raises StreamMissing, CorruptionError naming file and offset, or StoreBusy.
    """

    def work() -> StreamView:
        log = store.open_log(tolerate_damage=tolerate_damage)
        try:
            return _open(store, log, find_stream(store, name, log), up_to)
        except BaseException:
            log.close()
            raise

    return store.read(work)


def find_stream(store: StoreDir, name: str, log: LogReader) -> StreamFiles:
    """The files of stream `name`. Raises StreamMissing."""
    streams = {files.name: files for files in store.streams_by(log)}
    found = streams.get(name)
    if found is None:
        there = ", ".join(streams) or "none"
        raise StreamMissing(f"{store.path}: no stream {name!r}; streams there are: {there}")
    if not found.is_file:
        raise StreamMissing(f"{store.path}: stream {name!r} is kept in memory, it has no files")
    return found


def _open(store: StoreDir, log: LogReader, files: StreamFiles, up_to: Index | None) -> StreamView:
    # The log was read before the snapshot: a snapshot that comes later covers what it may lack.
    uid = files.uid
    blocks = _Blocks(files.directory, uid)
    snapshot = SnapshotFile.load(blocks.disk, str(files.directory), "stream", group=uid)
    machine = _restore(files, blocks, snapshot)
    start = machine.applied
    _check_reach(log, uid, start)
    hint = max(log.commit_hint(uid), start)
    last = up_to if up_to is not None else _known_commit(store, log, files, snapshot)
    effects = Effects()
    for entry in log.entries(uid, start + 1, max(last, start)):
        machine.apply(_without_membership(entry), effects)
        if effects.block_ops:
            blocks.apply(effects.block_ops)
        effects = Effects()
    blocks.close()
    views = _views(store, files, machine, blocks)
    torn = blocks.torn
    if not store.is_running:
        torn = torn + _behind_the_end(views, blocks)
    return StreamView(
        store, files, log, machine, views, torn, snapshot_index=start, commit_hint=hint
    )


def _restore(files: StreamFiles, blocks: _Blocks, snapshot: Snapshot | None) -> StreamMachine:
    codec = BlockCodec()
    if snapshot is None:
        asset = files.asset
        machine = StreamMachine(
            uid=asset.uid,
            config=asset.created_config,
            created_ns=asset.created_ns,
            codec=codec,
            columns=blocks,
        )
        machine.use_scan(blocks.scan)
        return machine
    index_db = read_index(blocks.disk, str(files.directory), files.uid, snapshot.index)
    return StreamMachine.restore(
        unwrap(snapshot.state)[1], index_db, codec=codec, columns=blocks, scan=blocks.scan
    )


def _members(files: StreamFiles, log: LogReader, snapshot: Snapshot | None) -> Membership:
    found = unwrap(snapshot.state)[0] if snapshot is not None else None
    asset = files.asset
    if found is None:
        found = simple(asset.created_peers or asset.peers or ("",))
    return log.members_after(files.uid, found, snapshot.index if snapshot is not None else 0)


def _known_commit(
    store: StoreDir, log: LogReader, files: StreamFiles, snapshot: Snapshot | None
) -> Index:
    """The last index that this directory alone proves to be committed."""
    last = log.last_index(files.uid)
    if not store.is_clustered or len(_members(files, log, snapshot).members()) == 1:
        return last
    return min(last, max(log.commit_hint(files.uid), last_frame_index(files.directory, files.uid)))


def _views(
    store: StoreDir, files: StreamFiles, machine: StreamMachine, blocks: _Blocks
) -> list[BlockView]:
    index = machine.index
    found = [block for block in index.blocks if block.count]
    dead = _dead_ranges(machine, found)
    views: list[BlockView] = []
    for block, ranges in zip(found, dead, strict=True):
        tail_offset, parts = blocks.tails.get(block.block_no, (0, []))
        views.append(
            BlockView(
                replica=store.server_name,
                path=blocks.files.path(block.block_no),
                block_no=block.block_no,
                uid=files.uid,
                first_seq=block.first_seq,
                last_seq=block.last_seq,
                first_ts_ns=block.first_ts,
                last_ts_ns=block.last_ts,
                count=block.count,
                live=block.live,
                digest=block.digest,
                end_offset=block.end_offset,
                is_sealed=block.is_sealed,
                dead=ranges,
                tail_offset=tail_offset,
                tail=b"".join(parts),
            )
        )
    return views


def _dead_ranges(machine: StreamMachine, blocks: list[Block]) -> list[tuple[tuple[Seq, Seq], ...]]:
    """For each block the ranges of seqs in it that are not live."""
    index = machine.index
    gone: list[tuple[Seq, Seq]] = []
    if blocks and blocks[0].first_seq < index.first_seq:
        gone.append((blocks[0].first_seq, index.first_seq - 1))
    gone += index.deleted.ranges()
    found: list[tuple[tuple[Seq, Seq], ...]] = []
    at = 0
    for block in blocks:
        while at < len(gone) and gone[at][1] < block.first_seq:
            at += 1
        mine: list[tuple[Seq, Seq]] = []
        step = at
        while step < len(gone) and gone[step][0] <= block.last_seq:
            low, high = gone[step]
            mine.append((max(low, block.first_seq), min(high, block.last_seq)))
            step += 1
        found.append(tuple(mine) if block.live < block.count else ())
    return found


def _behind_the_end(views: list[BlockView], blocks: _Blocks) -> list[TornTail]:
    """What follows the end of the newest block in its file and is no whole record."""
    if not views or views[-1].is_sealed or views[-1].tail:
        return []
    view = views[-1]
    try:
        size = os.path.getsize(view.path)
        if size <= view.end_offset:
            return []
        fd = blocks.disk.open(view.path)
    except FileNotFoundError:
        return []
    try:
        rest = blocks.disk.pread(fd, size - view.end_offset, view.end_offset)
    finally:
        blocks.disk.close(fd)
    whole = fmt.verified_length(rest)
    if whole == len(rest) or fmt.footer_length(rest) == len(rest) - whole:
        return []
    reason = "bytes after the last record that are no record"
    return [TornTail(view.path, view.block_no, view.end_offset + whole, len(rest) - whole, reason)]


# --- several replicas ---------------------------------------------------------------------------


class Survey(NamedTuple):
    """What several directories hold of one stream."""

    committed: Index  # what they together prove to be committed
    lasts: dict[str, Index]  # last log index by replica; those without the stream are not here
    problems: dict[str, StreamdError]  # replicas that cannot be read at all


def survey(stores: Sequence[StoreDir], name: str) -> Survey:
    """Look at all replicas of stream `name`.

    Together they prove more than each alone: an entry of the newest term there is, held with the
    same history by a majority of the group's members, is committed. Raises StreamMissing if none
    has the stream, and a replica's CorruptionError or StoreBusy if no other can be read.
    """
    lasts: dict[str, Index] = {}
    problems: dict[str, StreamdError] = {}
    missing: list[StreamMissing] = []
    held: list[tuple[LogReader, Uid]] = []
    proven = term = quorum = 0
    try:
        for store in stores:
            try:
                seen = store.read(lambda store=store: _look(store, name))  # type: ignore[misc]
            except StreamMissing as err:
                missing.append(err)
                continue
            except (CorruptionError, StoreBusy) as err:
                problems[store.server_name] = err
                continue
            held.append((seen.log, seen.uid))
            lasts[store.server_name] = seen.last
            proven = max(proven, seen.proven)
            term = max(term, seen.log.current_term(seen.uid))
            quorum = max(quorum, seen.quorum)
        if not lasts:
            if problems:
                raise next(iter(problems.values()))
            raise StreamMissing("; ".join(map(str, missing)))
        ranked = sorted((log.last_index(uid) for log, uid in held), reverse=True)
        if len(ranked) >= quorum and ranked[quorum - 1] > proven:
            index = ranked[quorum - 1]
            marks = [log.mark_at(uid, index) for log, uid in held if log.last_index(uid) >= index]
            newest = [mark for mark in marks if mark is not None and mark[0] == term]
            if any(newest.count(mark) >= quorum for mark in newest):
                proven = index
        return Survey(proven, lasts, problems)
    finally:
        for log, _ in held:
            log.close()


class _Look(NamedTuple):
    """One replica in a survey."""

    log: LogReader
    uid: Uid
    last: Index
    proven: Index
    quorum: int


def _look(store: StoreDir, name: str) -> _Look:
    log = store.open_log()
    try:
        files = find_stream(store, name, log)
        snapshot = SnapshotFile.load(
            ReadOnlyDisk(), str(files.directory), "stream", group=files.uid
        )
        index = snapshot.index if snapshot is not None else 0
        return _Look(
            log,
            files.uid,
            max(index, log.last_index(files.uid)),
            max(index, _known_commit(store, log, files, snapshot)),
            len(_members(files, log, snapshot).voters) // 2 + 1,
        )
    except BaseException:
        log.close()
        raise


__all__ = [
    "BlockView",
    "StoreBusy",
    "StoreDir",
    "StreamFiles",
    "StreamMissing",
    "StreamView",
    "Survey",
    "TornTail",
    "find_stores",
    "find_stream",
    "named_stores",
    "open_stream",
    "survey",
]
