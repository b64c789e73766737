"""Batch reads straight from data directories: `spark.read.format("streamd").option("path", ...)`.

The driver opens the stream once and plans runs of blocks; tasks read block files. Servers
that run there are neither asked nor disturbed.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark_jobs.client.options import OptionError
from spark_jobs.replica.checksums import Blob
from spark_jobs.replica.decode import BlockColumns, OnDamage, Selection, batches_of, checked_columns
from spark_jobs.replica.mending import mended
from spark_jobs.source.offline_bounds import Bounds, FilterBounds, bounds_of
from spark_jobs.source.online import split
from spark_jobs.source.read_options import LATEST, ReadOptions
from spark_jobs.worker import settle
from streamd.errors import CorruptionError, StreamdError
from streamd.offline.engine import HEADER_BYTES, block_name
from streamd.offline.read_only_disk import content_size
from streamd.offline.stream_view import (
    BlockRoom,
    BlockView,
    StoreDir,
    StreamMissing,
    StreamView,
    block_room,
    find_stores,
    named_stores,
    open_stream,
)
from streamd.offline.survey import survey
from streamd.types import Seq

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("streamd.spark")
_TRIES = 20  # a file is shorter than planned while its server restarts
_PAUSE_S = 0.1
T = TypeVar("T")
_ROLES = ("", "leader", "any")  # of readFrom: any replica will do, the most advanced is best


class DataLoss(StreamdError):
    """Messages that were asked for are not there any more, or can't be read."""


@dataclass
class OfflinePartition(InputPartition):
    """A run of blocks, of which a task reads what is in `bounds`. `seqs`: for each block just these
    (int64), or None for all."""

    blocks: tuple[BlockView, ...]
    bounds: Bounds
    seqs: tuple[bytes | None, ...] = field(default=(), repr=False)


def make_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """The reader for option `path`; it takes filters from Spark with option `pushdown` only,
    because Spark refuses such a reader unless its configuration allows it."""
    return PushdownReader(options) if options.pushdown else OfflineReader(options)


class OfflineReader(DataSourceReader):
    """Reads one replica of one stream, as it is when the query is planned."""

    def __init__(self, options: ReadOptions, bounds: Bounds | None = None) -> None:
        if options.starting_position == LATEST:
            raise OptionError("startingPosition latest is for readStream; a batch has an end")
        self._options = options
        self._bounds = bounds or bounds_of(options)

    def partitions(self) -> list[InputPartition]:
        """Open the stream and cut it into partitions. Warns of torn tails and of replicas that
        can't be read.

        Raises StreamMissing, CorruptionError, StoreBusy, FileNotFoundError, DataLoss.
        """
        if self._bounds.is_empty:
            return [OfflinePartition((), self._bounds)]
        with open_best(self._options) as view:
            for torn in view.torn:
                log.warning("torn tail, taken from the log instead: %s", torn)
            if view.log_damage:
                log.warning(
                    "read up to seq %d, as far as the log is whole: %s",
                    view.last_seq,
                    view.log_damage,
                )
            self._check_start(view)
            blocks = [block for block in view.blocks if self._bounds.may_want(block)]
            if not self._options.last_per_subject:
                return list(_partitions(blocks, [None] * len(blocks), self._bounds, self._options))
            chosen = _last_per_subject(blocks, self._bounds, self._on_damage)
            kept = [(block, seqs) for block, seqs in zip(blocks, chosen, strict=True) if seqs]
            return list(
                _partitions(
                    [block for block, _ in kept],
                    [seqs for _, seqs in kept],
                    self._bounds,
                    self._options,
                )
            )

    def _check_start(self, view: StreamView) -> None:
        start = self._options.start_seq
        begin = max(start, int(view.config.get("first_seq") or 1))
        if not start or begin >= view.first_seq:
            return
        text = (
            f"stream {view.name}: messages from startSeq {start} to {view.first_seq - 1} are gone, "
            f"it begins at {view.first_seq}"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false reads what there is")
        log.warning("%s", text)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The wanted messages of the partition's blocks, in order.

        Raises CorruptionError naming file, offset and seq, and DataLoss if the server removed a
        block since; with failOnDataLoss=false those are warnings, and what can be read is.
        """
        if not isinstance(partition, OfflinePartition):
            return
        settle()
        options = self._options
        with block_room() as room:
            for block, seqs in zip(partition.blocks, partition.seqs, strict=True):
                selection = partition.bounds.selection(seqs)

                def decode(
                    blob: Blob,
                    on_damage: OnDamage | None,
                    block: BlockView = block,
                    selection: Selection = selection,
                ) -> Iterator[pa.RecordBatch]:
                    made = batches_of(
                        blob,
                        block,
                        stream=options.stream,
                        selection=selection,
                        columns=options.columns,
                        batch_rows=options.batch_rows,
                        verify=options.verify,
                        on_damage=on_damage,
                    )
                    # All that is wanted is verified before the first batch is made.
                    first = next(made, None)
                    return iter(()) if first is None else chain((first,), made)

                batches = used(
                    block, decode, on_damage=self._on_damage, room=room, bounds=partition.bounds
                )
                if batches is not None:
                    yield from batches

    @property
    def _on_damage(self) -> OnDamage | None:
        return None if self._options.fail_on_data_loss else _warn


def _warn(err: CorruptionError) -> None:
    log.warning("left out: %s", err)


class PushdownReader(DataSourceReader):
    """Reads as `OfflineReader` within the bounds that the query's filters set."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reader = OfflineReader(options)
        self._filters = FilterBounds(options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be taken exactly; yield the others, which Spark applies."""
        for each in filters:
            if not self._filters.take(each):
                yield each

    def partitions(self) -> list[InputPartition]:
        """Plan within the bounds. Raises as `OfflineReader.partitions`."""
        return OfflineReader(self._options, self._filters.bounds).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read as `OfflineReader.read`: a partition carries its bounds."""
        return self._reader.read(partition)


# --- which replica ------------------------------------------------------------------------------


def stores_of(paths: Iterable[str]) -> list[StoreDir]:
    """Return the data directories at `paths`, each once. Raises FileNotFoundError."""
    found = {store.path.resolve(): store.path for path in paths for store in find_stores(path)}
    return named_stores(list(found.values()))


def open_best(options: ReadOptions) -> StreamView:
    """The replica that option readFrom names, else the most advanced one that is whole.

    Whole: it can be opened and no block file is missing or too short. Raises OptionError if there
    is no such replica, and as `open_stream`.
    """
    stores = stores_of(options.paths)
    if options.read_from.lower() not in _ROLES:
        named = [store for store in stores if store.server_name == options.read_from]
        if not named:
            names = ", ".join(store.server_name for store in stores)
            raise OptionError(
                f"option readFrom is {options.read_from!r}, the replicas there are: {names}"
            )
        found = survey(stores, options.stream) if len(stores) > 1 else None
        return _open(named[0], options, found.committed if found else None)
    if len(stores) == 1:
        return _open(stores[0], options, None)
    found = survey(stores, options.stream)
    for name, err in found.problems.items():
        log.warning("replica %s is not read: %s", name, err)
    ranked = sorted(
        (store for store in stores if store.server_name in found.lasts),
        key=lambda store: -min(found.lasts[store.server_name], found.committed),
    )
    failures: list[StreamdError] = []
    halves: list[StreamView] = []
    try:
        for store in ranked:
            try:
                view = _open(store, options, found.committed)
            except StreamMissing:
                raise
            except StreamdError as err:
                log.warning("replica %s is not read: %s", store.server_name, err)
                failures.append(err)
                continue
            _name_others(view, stores)
            problem = missing_bytes(view)
            if not problem:
                return view
            log.warning("replica %s is not whole: %s", store.server_name, problem)
            halves.append(view)
        if halves:
            return halves.pop(0)
        raise failures[0]
    finally:
        for view in halves:
            view.close()


def _name_others(view: StreamView, stores: Iterable[StoreDir]) -> None:
    """Tell the blocks of `view` where the other replicas have the same ones."""
    folders = [
        folder
        for store in stores
        if store.path != view.store.path
        and (folder := store.path / "streams" / str(view.uid)).is_dir()
    ]
    view.blocks = [
        replace(block, others=tuple(str(each / block_name(block.block_no)) for each in folders))
        for block in view.blocks
    ]


def _open(store: StoreDir, options: ReadOptions, up_to: int | None) -> StreamView:
    return open_stream(
        store, options.stream, up_to=up_to, tolerate_damage=not options.fail_on_data_loss
    )


def missing_bytes(view: StreamView) -> str:
    """Which block file is missing or too short, in words; "" if none is."""
    for block in view.blocks:
        wanted = block.tail_offset if block.tail else block.end_offset
        try:
            size = content_size(block.path)
        except FileNotFoundError:
            size = 0
        if size < wanted and not (block.tail and block.tail_offset <= HEADER_BYTES):
            return f"{block.path} has {size} bytes, should have {wanted}"
    return ""


# --- planning and reading -----------------------------------------------------------------------


def _partitions(
    blocks: list[BlockView], seqs: list[bytes | None], bounds: Bounds, options: ReadOptions
) -> Iterator[OfflinePartition]:
    """Runs of whole blocks of about equal size, none beyond the limits but for a single block; if
    `minPartitions` is more than there are blocks, parts of blocks."""
    wanted = options.min_partitions
    if blocks and wanted > len(blocks):
        for at, count in enumerate(_part_counts(blocks, bounds, wanted)):
            for part in _parts(blocks[at], bounds, count):
                yield _partition(blocks, seqs, [at], part)
        return
    total = sum(block.byte_count for block in blocks)
    bytes_max = options.max_bytes_per_partition
    if wanted:
        bytes_max = min(bytes_max, max(1, total // wanted))
    run: list[int] = []
    size = rows = done = 0
    for at, block in enumerate(blocks):
        if run and (
            size + block.byte_count > bytes_max
            or rows + block.live > options.max_records_per_partition
            or done + 1 + len(blocks) - at <= wanted  # each of the others is needed as a run
        ):
            yield _partition(blocks, seqs, run, bounds)
            run, size, rows, done = [], 0, 0, done + 1
        run.append(at)
        size += block.byte_count
        rows += block.live
    yield _partition(blocks, seqs, run, bounds)


def _wanted_seqs(block: BlockView, bounds: Bounds) -> tuple[Seq, Seq]:
    """The first and the last seq of `block` in `bounds`."""
    last = min(block.last_seq, bounds.end_seq) if bounds.end_seq else block.last_seq
    return max(block.first_seq, bounds.start_seq), last


def _part_counts(blocks: list[BlockView], bounds: Bounds, wanted: int) -> list[int]:
    """Into how many parts to split each block, `wanted` in all: always the one with the largest
    parts. Not split: below one seq, and what has no footer, for a part of that takes as long to
    read as all of it."""
    counts = [1] * len(blocks)
    waiting: list[tuple[float, int, int]] = []  # (-bytes of a part, block, seqs of the block)
    for at, block in enumerate(blocks):
        first, last = _wanted_seqs(block, bounds)
        if block.has_footer and last > first:
            share = (last - first + 1) / (block.last_seq - block.first_seq + 1)
            waiting.append((-block.byte_count * share, at, last - first + 1))
    heapq.heapify(waiting)
    for _ in range(wanted - len(blocks)):
        if not waiting:
            break
        size, at, seq_count = heapq.heappop(waiting)
        counts[at] += 1
        if counts[at] < seq_count:
            grown = size * (counts[at] - 1) / counts[at]
            heapq.heappush(waiting, (grown, at, seq_count))
    return counts


def _parts(block: BlockView, bounds: Bounds, count: int) -> Iterator[Bounds]:
    """`bounds` in `count` parts of about as many seqs of `block`."""
    if count == 1:
        yield bounds
        return
    for low, high in split(*_wanted_seqs(block, bounds), count):
        yield replace(bounds, start_seq=low, end_seq=high)


def _partition(
    blocks: list[BlockView], seqs: list[bytes | None], run: list[int], bounds: Bounds
) -> OfflinePartition:
    return OfflinePartition(tuple(blocks[at] for at in run), bounds, tuple(seqs[at] for at in run))


def _last_per_subject(
    blocks: list[BlockView], bounds: Bounds, on_damage: OnDamage | None
) -> list[bytes | None]:
    """For each block the seqs of the messages that are the newest of their subject, of those that
    `bounds` select. From the newest block on, so each subject is decided once.

    Raises as `read_block` and `checked_columns`: in the place of what is lost an older message
    would be taken for the newest.
    """
    seen: set[bytes] = set()
    found: list[bytes | None] = []
    selection = bounds.selection()
    with block_room() as room:
        for block in reversed(blocks):

            def decode(
                blob: Blob, on_damage: OnDamage | None, block: BlockView = block
            ) -> BlockColumns:
                return checked_columns(blob, block, selection, on_damage)

            columns = used(block, decode, on_damage=on_damage, room=room)
            if columns is None:
                found.append(None)
                continue
            rows = selection.rows_of(columns)[::-1]
            ids, firsts = np.unique(columns.subject_ids[rows], return_index=True)
            seqs: list[int] = []
            for local, at in zip(ids.tolist(), firsts.tolist(), strict=True):
                subject = columns.subjects[local]
                if subject not in seen:
                    seen.add(subject)
                    seqs.append(int(columns.seqs[rows[at]]))
            found.append(np.array(sorted(seqs), np.int64).tobytes())
    return found[::-1]


def used(
    block: BlockView,
    decode: Callable[[Blob, OnDamage | None], T],
    *,
    on_damage: OnDamage | None,
    room: BlockRoom,
    bounds: Bounds | None = None,
) -> T | None:
    """`decode` of the block's bytes; if they are damaged and there are other replicas, of what all
    of them together have. None if the server removed the block since and that may be."""
    if block.others:
        try:
            blob = read_block(block, fail_on_data_loss=True, room=room, bounds=bounds)
            assert blob is not None  # it would have raised
            return decode(blob, None)
        except (CorruptionError, DataLoss) as err:
            log.warning("read from other replicas too: %s", err)
        if any(os.path.exists(path) for path in block.others):
            return decode(mended(block), on_damage)
    blob = read_block(block, fail_on_data_loss=on_damage is None, room=room, bounds=bounds)
    return None if blob is None else decode(blob, on_damage)


def read_block(
    block: BlockView,
    *,
    fail_on_data_loss: bool,
    room: BlockRoom | None = None,
    bounds: Bounds | None = None,
) -> memoryview | None:
    """The block's bytes, as `BlockView.read`, at least those of the seqs in `bounds`; None if the
    server removed it since and that may be.

    Waits a moment for a file that is shorter than planned: a server that restarts cuts its newest
    block and writes the same bytes again.
    """
    first, last = (bounds.start_seq, bounds.end_seq) if bounds else (0, 0)
    for _ in range(_TRIES):
        try:
            blob = block.read(room, first_seq=first, last_seq=last)
        except FileNotFoundError:
            text = (
                f"{block.path}: removed since this read was planned, with messages "
                f"{block.first_seq} to {block.last_seq}"
            )
            if fail_on_data_loss:
                raise DataLoss(f"{text}; read again, or failOnDataLoss=false") from None
            log.warning("%s", text)
            return memoryview(block.read_left()) if block.tail else None
        except OSError as err:
            text = f"{block.path}: the disk does not give all of it: {err.strerror}"
            if fail_on_data_loss:
                raise CorruptionError(text) from err
            log.warning("%s", text)
            blob = memoryview(block.read_left())
        if len(blob) >= block.end_offset or block.is_sealed:
            return blob
        time.sleep(_PAUSE_S)
    return blob if fail_on_data_loss else memoryview(block.read_left())
