"""A replica of a stream as its files tell it, damaged or not. Reads; never writes.

The driver opens state here: the newest valid snapshot and the entries of the write-ahead log after
it, applied in memory by the server's own machine. Where something is damaged this goes on with what
is left and says so. `streamd.offline.stream_view`, which reads messages to use them, refuses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgpack
from crc32c import crc32c

from spark_jobs.audit.findings import Finding, finding
from streamd.errors import CorruptionError, StreamdError
from streamd.offline.engine import (
    APPEND,
    HEADER_BYTES,
    SEAL,
    TRAILER_BYTES,
    BlockCodec,
    Effects,
    SeqSet,
    Snapshot,
    SnapshotFile,
    StreamAsset,
    StreamConfig,
    StreamMachine,
    StreamState,
    block_name,
    block_number,
    decode_snapshot,
    decode_stream,
    footer_length,
    membership,
    simple,
    unwrap,
)
from streamd.offline.engine import record_format as fmt
from streamd.offline.log_reader import LogReader, last_frame_index
from streamd.offline.read_only_disk import (
    Content,
    ReadOnlyDisk,
    content_bytes,
    open_content,
)
from streamd.offline.stream_view import StoreDir
from streamd.types import META_UID, Entry, stream_label

_RECOVERY_ERRORS: Final = (
    StreamdError,
    AssertionError,
    LookupError,
    ValueError,
    TypeError,
    OSError,
    msgpack.exceptions.UnpackException,
)


@dataclass
class SnapshotFileFact:
    """A snapshot file: its decoded content, or the reason why there is none."""

    path: str
    snapshot: Snapshot | None
    problem: str = ""


class Store:
    """The data directory of one node, or a copy of one, under a label. Close it after use."""

    def __init__(self, place: StoreDir, label: str) -> None:
        self.place = place
        self.label = label
        self.log: LogReader = place.open_log(tolerate_damage=True, is_whole=True)
        self.meta_snapshots = self.snapshots("meta", "meta", META_UID)
        self.assets: list[StreamAsset] = []
        self.identity_problem = ""  # why it is not known whose directory this is
        try:
            self.is_clustered = place.is_clustered
        except CorruptionError as err:
            self.identity_problem = str(err)
            self.is_clustered = True  # believes less of its log to be committed
        self.problem = ""  # why the list of streams is not known
        try:
            self.assets = sorted(
                place.meta(self.log).streams_by_uid.values(), key=lambda asset: asset.name
            )
        except _RECOVERY_ERRORS as err:
            self.problem = f"{type(err).__name__}: {err}"
            self.assets = place.assets_of_snapshots()

    def close(self) -> None:
        self.log.close()

    @property
    def root(self) -> str:
        return str(self.place.path)

    def directory(self, uid: int) -> str:
        return os.path.join(self.root, "streams", str(uid))

    def snapshots(self, folder: str, name: str, uid: int) -> list[SnapshotFileFact]:
        """The generations of a group's snapshot, newest first, each decoded or with its fault."""
        directory = os.path.join(self.root, folder)
        found = []
        for file_name in SnapshotFile.names(ReadOnlyDisk(), directory, name):
            path = os.path.join(directory, file_name)
            try:
                blob = content_bytes(path)
                found.append(SnapshotFileFact(path, decode_snapshot(blob, name=path, group=uid)))
            except FileNotFoundError:
                continue  # a running server has a newer one
            except (CorruptionError, ValueError, OSError) as err:
                found.append(SnapshotFileFact(path, None, str(err)))
        return found

    def entries(self, uid: int, first: int, last: int) -> Iterator[Entry]:
        """The entries first..last of a group. Raises CorruptionError where one can't be read."""
        for entry in self.log.entries(uid, first, last):
            if entry.data[:1] == membership.MARK:  # nothing to a machine
                entry.data = b""
            yield entry


@dataclass
class StreamFiles:
    """Files of a stream in one store, before the stream is opened."""

    store: Store
    asset: StreamAsset
    snapshots: list[SnapshotFileFact]
    snapshot: Snapshot | None  # the newest valid one
    is_there: bool

    @property
    def name(self) -> str:
        """Name of the stream, with its account before it unless that is `$G`."""
        return stream_label(self.asset.key)

    @property
    def snapshot_index(self) -> int:
        return self.snapshot.index if self.snapshot is not None else 0

    @property
    def log_last(self) -> int:
        return max(self.store.log.last_index(self.asset.uid), self.snapshot_index)

    @property
    def has_gap(self) -> bool:
        """True if entries between the snapshot and the log are nowhere."""
        log = self.store.log.groups.get(self.asset.uid)
        if log is None:
            return False
        return max(log.base, log.first - 1) > self.snapshot_index

    @cached_property
    def commit(self) -> int:
        """Up to here all is surely committed, as far as this directory can tell."""
        log, uid = self.store.log, self.asset.uid
        first_members = self.asset.created_peers or self.asset.peers or ("",)
        members = simple(first_members)
        if self.snapshot is not None:
            members = unwrap(self.snapshot.state)[0] or members
        try:
            members = log.members_after(uid, members, self.snapshot_index)
        except CorruptionError:
            return self.snapshot_index
        if not self.store.is_clustered or len(members.members()) < 2:
            return self.log_last
        proven = last_frame_index(Path(self.store.directory(uid)), uid)
        return max(self.snapshot_index, min(max(log.commit_hint(uid), proven), self.log_last))

    @property
    def bad_snapshots(self) -> list[SnapshotFileFact]:
        return [fact for fact in self.snapshots if fact.problem]

    def block_numbers(self) -> list[int]:
        """Return the numbers of the block files in a directory, ascending."""
        names = ReadOnlyDisk().listdir(self.store.directory(self.asset.uid))
        return sorted(no for name in names if (no := block_number(name)) is not None)

    def mark_at(self, index: int) -> tuple[int, int] | None:
        """(term, chain) of the entry at `index`, which stands for all before it."""
        if self.snapshot is not None and self.snapshot.index == index:
            return self.snapshot.term, self.snapshot.chain
        try:
            return self.store.log.mark_at(self.asset.uid, index)
        except CorruptionError:
            return None


def files_of(store: Store, asset: StreamAsset) -> StreamFiles:
    """Look at the stream's snapshots and log; opens nothing."""
    snapshots = store.snapshots(f"streams/{asset.uid}", "stream", asset.uid)
    valid = [fact.snapshot for fact in snapshots if fact.snapshot is not None]
    return StreamFiles(
        store,
        asset,
        snapshots,
        valid[0] if valid else None,
        os.path.isdir(store.directory(asset.uid)),
    )


@dataclass
class View:
    """A replica of a stream as of log index `applied`."""

    files: StreamFiles
    applied: int
    machine: StreamMachine | None = None  # None: only `state` could be had
    state: StreamState | None = None  # as in the newest valid snapshot
    has_index_db: bool = False  # the machine's subjects and newest columns come from index.db
    durable_ends: dict[int, int] = field(default_factory=dict)  # block -> surely in its file
    tails: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # block -> only in the log
    problem: str = ""  # why the state is older than it should be, or not known

    @property
    def label(self) -> str:
        return self.files.store.label

    @property
    def name(self) -> str:
        return self.files.name

    @property
    def uid(self) -> int:
        return self.files.asset.uid

    @property
    def is_known(self) -> bool:
        return self.machine is not None or self.state is not None

    def index_row(self) -> tuple[int, int, int, int, int]:
        """(first_seq, last_seq, messages, bytes, digest)"""
        if self.machine is not None:
            index = self.machine.index
            return index.first_seq, index.last_seq, index.count, index.live.bytes, index.live.digest
        if self.state is not None:
            first, last, count, size, digest = self.state.messages[:5]
            return first, last, count, size, digest
        return 0, 0, 0, 0, 0

    def deleted(self) -> list[tuple[int, int]]:
        """Deleted seqs between first and last, as inclusive ranges."""
        if self.machine is not None:
            return list(self.machine.index.live.deleted.ranges())
        if self.state is not None:
            return list(SeqSet.from_state(self.state.messages[6]).ranges())
        return []

    def block_rows(self) -> list[list[Any]]:
        """`machine.indexes.columns.Block.to_state` of every block there should be."""
        if self.machine is not None:
            return [block.to_state() for block in self.machine.index.blocks]
        return list(self.state.messages[-1]) if self.state is not None else []

    @property
    def config(self) -> StreamConfig:
        if self.machine is not None:
            return self.machine.config
        return self.state.config if self.state is not None else self.files.asset.config


def open_view(files: StreamFiles, up_to: int | None = None) -> View:
    """The state of a stream at `up_to` (default: all that is committed). Never raises for damage:
    `View.problem` and `View.findings` say what is missing."""
    wanted = files.commit if up_to is None else up_to
    view = View(files, files.snapshot_index)
    if files.snapshot is not None:
        try:
            _, state = unwrap(files.snapshot.state)
            view.state = decode_stream(state)
        except _RECOVERY_ERRORS as err:
            view.problem = f"the snapshot's state cannot be read: {err}"
            return view
        view.durable_ends = _durable_ends(view.state)
    if files.has_gap:
        return view  # told as a finding; what the snapshot says is all there is
    try:
        _replay(view, wanted)
    except _RECOVERY_ERRORS as err:
        view.machine = None
        view.tails.clear()
        view.applied = files.snapshot_index
        view.problem = f"{type(err).__name__}: {err}"
        if view.state is not None:
            view.durable_ends = _durable_ends(view.state)
    return view


def _replay(view: View, wanted: int) -> None:
    files = view.files
    source = _Blocks(files.store.directory(files.asset.uid), view)
    codec = BlockCodec()
    if files.snapshot is None:
        machine = StreamMachine(
            uid=files.asset.uid,
            config=files.asset.created_config,
            created_ns=files.asset.created_ns,
            codec=codec,
            columns=source,
        )
        machine.use_scan(source.scan)
    else:
        cache = read_index_db(files)
        view.has_index_db = cache.body is not None
        _, state = unwrap(files.snapshot.state)
        machine = StreamMachine.restore(
            state, cache.body, codec=codec, columns=source, scan=source.scan
        )
    try:
        for entry in files.store.entries(files.asset.uid, machine.applied + 1, wanted):
            out = Effects()
            machine.apply(entry, out)
            source.carry_out(out.block_ops)
    except CorruptionError as err:
        if "is damaged" not in str(err) or not _is_log_error(err):
            raise
        view.problem = str(err)
    view.machine = machine
    view.applied = machine.applied
    source.settle()


def _is_log_error(err: CorruptionError) -> bool:
    return ".wal: " in str(err)


class _Blocks:
    """The block files, and what replaying the log would write behind them (ColumnSource)."""

    def __init__(self, directory: str, view: View) -> None:
        self._directory = directory
        self._view = view
        self._footers: dict[int, bytes] = {}
        self._written: dict[int, list[tuple[int, bytes]]] = {}
        self._files: dict[int, Content] = {}

    def path(self, block_no: int) -> str:
        return os.path.join(self._directory, block_name(block_no))

    def load_footer(self, block_no: int) -> bytes:
        """See machine.base.ColumnSource."""
        if block_no in self._footers:
            return self._footers[block_no]
        blob = self._read(block_no)
        length = footer_length(blob)
        if not HEADER_BYTES <= len(blob) - length < len(blob):
            raise CorruptionError(f"{self.path(block_no)}: no footer")
        return blob[len(blob) - length :]

    def scan(self, block_no: int, end_offset: int = 0) -> Iterator[fmt.Record]:
        """The records of a block; CorruptionError where one is damaged."""
        blob = self._read(block_no)
        for offset, part in self._written.get(block_no, ()):
            blob = blob[:offset] + part
        end = HEADER_BYTES
        for record in fmt.scan(blob[HEADER_BYTES : end_offset or None], HEADER_BYTES):
            if record.type == fmt.FOOTER:
                break
            end = record.offset + record.length
            yield record
        if end < end_offset:
            raise CorruptionError(f"{self.path(block_no)}: offset {end}: a record is damaged")

    def carry_out(self, ops: list[tuple[Any, ...]]) -> None:
        """Remember what the log writes, unless the file has it already."""
        for op in ops:
            if op[0] in (APPEND, SEAL):
                _, block_no, offset, blob = op
                if op[0] == SEAL:
                    self._footers[block_no] = blob
                self._write(block_no, offset, bytes(blob))  # large records come in pieces
            else:
                self._forget(op[1])

    def _write(self, block_no: int, offset: int, blob: bytes) -> None:
        view = self._view
        held = self._written.get(block_no)
        known = view.durable_ends.get(block_no, 0) or HEADER_BYTES
        if held is None and offset == known and self._there(block_no, offset, len(blob)) == blob:
            view.durable_ends[block_no] = offset + len(blob)
            return
        self._written.setdefault(block_no, []).append((offset, blob))

    def _there(self, block_no: int, offset: int, size: int) -> bytes:
        file = self._files.get(block_no)
        if file is None:
            try:
                file = self._files[block_no] = open_content(self.path(block_no))
            except FileNotFoundError:
                return b""
        return file.read(size, offset)

    def _forget(self, block_no: int) -> None:
        self._written.pop(block_no, None)
        self._footers.pop(block_no, None)
        self._view.durable_ends.pop(block_no, None)

    def settle(self) -> None:
        """Hand what is only in the log to the view."""
        for block_no, parts in self._written.items():
            self._view.tails[block_no] = parts[0][0], b"".join(blob for _, blob in parts)
        for file in self._files.values():
            file.close()

    def _read(self, block_no: int) -> bytes:
        try:
            return content_bytes(self.path(block_no))
        except FileNotFoundError as err:
            if block_no in self._written:
                return fmt.encode_block_header(self._view.uid, block_no)
            raise CorruptionError(f"{self.path(block_no)}: the file is missing") from err


def _durable_ends(state: StreamState) -> dict[int, int]:
    """Return how far each block's file must reach: sealed blocks with their footer, whose length
    the file alone knows, so at least one byte of it; the newest block up to the snapshot's tail."""
    ends: dict[int, int] = {}
    for row in state.messages[-1]:
        block_no, end_offset, is_sealed = row[0], row[8], row[9]
        if is_sealed:
            ends[block_no] = end_offset + fmt.RECORD_OVERHEAD_BYTES + TRAILER_BYTES
        else:
            ends[block_no] = end_offset if end_offset > HEADER_BYTES else 0
    return ends


@dataclass
class IndexDb:
    """`index.db`: its body if it belongs to the newest snapshot and is whole."""

    path: str
    body: bytes | None
    problem: str = ""


_INDEX_HEADER_BYTES: Final = 40


def read_index_db(files: StreamFiles) -> IndexDb:
    """The cache beside the snapshots; one of another snapshot is no problem, just of no use."""
    path = os.path.join(files.store.directory(files.asset.uid), "index.db")
    try:
        blob = content_bytes(path)
    except FileNotFoundError:
        return IndexDb(path, None)
    except OSError as err:
        return IndexDb(path, None, str(err))
    if len(blob) < _INDEX_HEADER_BYTES or blob[:8] != b"STRDIDX1":
        return IndexDb(path, None, f"{len(blob)} bytes that are no index")
    uid, stamp, size = (int.from_bytes(blob[at : at + 8], "little") for at in (8, 16, 24))
    if stamp != files.snapshot_index:
        return IndexDb(path, None)
    body = blob[_INDEX_HEADER_BYTES:]
    crc = int.from_bytes(blob[32:36], "little")
    if uid != files.asset.uid or size != len(body):
        return IndexDb(path, None, f"{len(body)} bytes of stream {uid}, its header says {size}")
    if crc32c(body) != crc:
        return IndexDb(path, None, f"crc {crc32c(body):#010x}, its header says {crc:#010x}")
    return IndexDb(path, body)


def log_findings(store: Store) -> list[Finding]:
    """Return the findings about the write-ahead log of a store."""
    wal = os.path.join(store.root, "wal")
    found = []
    for text in store.log.damage:
        path, _, said = text.partition(": ")
        offset = None
        if said.startswith("offset "):
            number, _, said = said.removeprefix("offset ").partition(": ")
            offset = int(number)
        found.append(
            finding(
                "log-damaged",
                replica=store.label,
                file=path if path.startswith(wal) else wal,
                offset=offset,
                expected="whole batches, each segment after the one before",
                got=said if path.startswith(wal) else text,
            )
        )
    if store.log.torn_bytes:
        name, _, offset_text = store.log.torn_at.partition(": offset ")
        found.append(
            finding(
                "log-torn-tail",
                replica=store.label,
                file=os.path.join(wal, name),
                offset=int(offset_text) if offset_text else None,
                expected="a whole batch",
                got=f"{store.log.torn_bytes} bytes of none",
            )
        )
    return found
