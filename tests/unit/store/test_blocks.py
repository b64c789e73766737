"""StreamStore on a simulated disk: what is in memory, what is in files, what a crash leaves."""

from __future__ import annotations

import errno
import random
from array import array
from collections.abc import Callable

import pytest

from streamd.errors import CorruptionError, DiskError, ReadError, StreamdError
from streamd.machine import base
from streamd.store.blocks import block_writer as blocks_module
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import OpenBlocks
from streamd.store.blocks.block_writer import APPEND, DROP, SEAL
from streamd.store.blocks.footer import FooterColumns, decode_footer, encode_footer
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.blocks.tail_cache import CacheBudget, TailCache
from streamd.store.disk import Disk
from streamd.types import Pieces
from tests.sim.disk import SimCrash, SimDisk, SimThread

DIRECTORY = "/streams/7"


def opened(
    disk: Disk, thread: SimThread, budget: CacheBudget | None = None
) -> tuple[StreamStore, list[StreamdError]]:
    errors: list[StreamdError] = []
    disk.make_dirs("/streams")
    store = StreamStore.open(disk, DIRECTORY, 7, thread, budget=budget, on_error=errors.append)
    return store, errors


def blob_of(first_seq: int, count: int, size: int = 100) -> bytes:
    msgs = [(b"a.b", b"", b"%08d" % (first_seq + i) + bytes(size - 8)) for i in range(count)]
    records, _, _ = fmt.encode_batch(first_seq, 1000 + first_seq, msgs)
    return b"".join([*records, fmt.encode_frame(first_seq, 5)])


def footer_of(end_offset: int) -> bytes:
    return encode_footer(
        FooterColumns(
            first_seq=1,
            seqs=None,
            offsets=array("I", [64]),
            lengths=array("I", [10]),
            ts_deltas=array("Q", [0]),
            base_ts=0,
            crcs=array("I", [1]),
            subject_ids=array("H", [0]),
            subjects=[b"a.b"],
            end_offset=end_offset,
        )
    )


def test_block_operations_and_numbers_are_the_machines() -> None:
    assert (APPEND, SEAL, DROP) == (base.APPEND, base.SEAL, base.DROP)
    assert fmt.REWRITTEN == base.REWRITTEN


def test_a_block_s_name_tells_its_number() -> None:
    for block_no, name in ((17, "17.blk"), (fmt.REWRITTEN + 1234, "r1234.blk")):
        assert fmt.block_name(block_no) == name
        assert fmt.block_number(name) == block_no
    for name in (
        "17.blk.part",
        "17",
        "r.blk",
        ".blk",
        "x1.blk",
        "rr1.blk",
        "index.db",
        "1\u0661.blk",
    ):
        assert fmt.block_number(name) is None, name


def test_a_rewritten_block_is_in_memory_until_it_is_written_and_not_in_the_hot_tail() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread, CacheBudget(bytes_max=0))
    first, records = blob_of(1, 40), blob_of(1, 3)
    made_no, end = fmt.REWRITTEN + 9, 64 + len(records)
    store.apply([(APPEND, 1, 64, first), (SEAL, 1, 64 + len(first), footer_of(64 + len(first)))])
    store.apply([(APPEND, 2, 64, first)])
    store.apply([(APPEND, made_no, 64, records), (SEAL, made_no, end, footer_of(end)), (DROP, 1)])
    assert store.chunk(made_no, 64) == (64, records)
    assert store.load_footer(made_no) == footer_of(end)
    store.flush()
    thread.run()
    assert store.chunk(made_no, 64) is None
    store.apply([(APPEND, 2, 64 + len(first), records)])
    assert store.chunk(2, 64) is None, "written, so evicted"
    assert store.chunk(2, 64 + len(first)) == (64 + len(first), records)
    store.read_chunk(made_no, 64, 10, lambda: None)
    thread.run()
    assert store.chunk(made_no, 64) == (64, records)
    assert disk.exists(f"{DIRECTORY}/r9.blk")
    assert store.load_footer(made_no) == footer_of(end)


@pytest.mark.parametrize("is_memory", [False, True])
@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_blob_in_pieces_is_read_and_written_as_one(is_memory: bool, is_read_before: bool) -> None:
    disk, thread = SimDisk(), SimThread()
    store = MemoryStreamStore(7) if is_memory else opened(disk, thread)[0]
    msgs = [(b"a.b", b"", bytes([number]) * 20_000) for number in range(5)]
    pieces, lengths, _ = fmt.encode_batch(1, 9, msgs)
    assert len(pieces) > len(msgs), "the payloads are pieces of their own"
    blob = b"".join(pieces)
    after = blob_of(6, 2)
    store.apply([(APPEND, 1, 64, Pieces(pieces, len(blob)))])
    store.apply([(APPEND, 1, 64 + len(blob), after)])
    if is_read_before:
        assert store.chunk(1, 64 + lengths[0]) == (64, blob)
    store.flush()
    thread.run()
    assert store.chunk(1, 64 + 4 * lengths[0]) == (64, blob)
    assert store.chunk(1, 64 + len(blob)) == (64 + len(blob), after)
    assert [len(record.payload) for record in store.scan(1)][:6] == [20_000] * 5 + [100]
    if not is_memory:
        content = disk.contents(f"{DIRECTORY}/1.blk")
        assert content[64:] == blob + after


@pytest.mark.parametrize("is_memory", [False, True])
def test_spans_are_read_verified_one_behind_another(is_memory: bool) -> None:
    disk, thread = SimDisk(), SimThread()
    store = MemoryStreamStore(7) if is_memory else opened(disk, thread, CacheBudget(bytes_max=0))[0]
    pieces, (size, *_), _ = fmt.encode_batch(1, 9, [(b"a.b", b"", bytes(90_000))] * 9)
    blob = b"".join(pieces)
    store.apply([(APPEND, 1, 64, blob[: 4 * size]), (APPEND, 1, 64 + 4 * size, blob[4 * size :])])
    store.apply([(SEAL, 1, 64 + len(blob), footer_of(64 + len(blob)))])
    told: list[object] = []
    store.read_spans(1, [(64, size), (64 + 2 * size, 3 * size), (64 + 8 * size, size)], told.append)
    thread.run()
    assert told == [blob[:size] + blob[2 * size : 5 * size] + blob[8 * size :]]


def test_a_span_that_is_damaged_or_missing_is_an_error() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    blob = blob_of(1, 3)
    size = (len(blob) - len(fmt.encode_frame(1, 5))) // 3
    store.apply([(APPEND, 1, 64, blob)])
    store.flush()
    thread.run()
    disk.flip(f"{DIRECTORY}/1.blk", 64 + size + 40)
    told: list[object] = []
    for spans in ([(64, size)], [(64, 2 * size)], [(64 + 2 * size, size), (64 + len(blob), size)]):
        store.read_spans(1, spans, told.append)
    store.read_spans(3, [(64, size)], told.append)
    thread.run()
    assert told[0] == blob[:size]
    assert [type(result) for result in told[1:]] == [CorruptionError, CorruptionError, ReadError]
    assert "offset 64:" in str(told[1])


def test_appends_are_in_memory_at_once_and_in_the_file_after_a_flush() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    blob = blob_of(1, 3)
    store.apply([(APPEND, 1, 64, blob)])
    assert store.chunk(1, 64) == (64, blob)
    assert store.chunk(1, 64 + len(blob)) is None
    assert not disk.exists(f"{DIRECTORY}/1.blk")
    store.flush()
    thread.run()
    assert disk.contents(f"{DIRECTORY}/1.blk") == fmt.encode_block_header(7, 1) + blob


def test_chunks_read_of_many_streams_are_bounded_together() -> None:
    """Each stream kept up to 4 MiB after its last reader had gone, thousands of them."""
    disk, thread = SimDisk(), SimThread()
    budget = CacheBudget(bytes_max=0)
    budget.chunks.bytes_max = 3 * 60_000
    blobs = [blob_of(1, 1, 50_000), blob_of(2, 1, 50_000)]
    stores = []
    for uid in range(1, 6):
        directory = f"/streams/{uid}"
        disk.make_dirs(directory)
        store = StreamStore.open(
            disk, directory, uid, thread, budget=budget, on_error=lambda err: None
        )
        stores.append(store)
        for number, blob in enumerate(blobs):
            store.apply([(APPEND, 1, 64 + number * len(blobs[0]), blob)])
        store.flush()
        thread.run()
        for number in range(2):
            store.read_chunk(1, 64 + number * len(blobs[0]), 50_000, lambda: None)
            thread.run()
            assert store.chunk(1, 64 + number * len(blobs[0])) is not None
    assert budget.chunks.used <= 3 * 60_000
    assert stores[0].chunk(1, 64) is None
    assert stores[-1].chunk(1, 64 + len(blobs[0])) is not None
    stores[0].read_chunk(1, 64, 50_000, lambda: None)
    for store in stores:
        store.close()
    thread.run()
    assert budget.chunks.used == 0, "nor what was on its way from the disk"


def test_streams_with_nothing_in_a_file_are_not_asked_to_shrink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 5,000 streams that had 20 KiB each on their way to a file, each publish asked them all
    and took 5 ms."""
    asked: list[TailCache] = []
    evict = TailCache.evict
    monkeypatch.setattr(
        TailCache, "evict", lambda tail, keep: (asked.append(tail), evict(tail, keep))
    )
    budget = CacheBudget(bytes_max=1000)
    tails = [TailCache(budget) for _ in range(20)]
    for number in range(5):
        for tail in tails:
            tail.append(1, 64 + 100 * number, bytes(100))
    assert not asked
    tails[3].wrote(1, 264)
    tails[4].wrote(1, 264)
    del asked[:]
    tails[0].append(1, 564, bytes(100))
    assert asked == [tails[3], tails[4]]
    assert budget.used == 20 * 500 - 2 * 200 + 100
    tails[0].append(1, 664, bytes(100))
    assert len(asked) == 2
    for tail in tails:
        tail.clear()
    assert budget.used == 0


def test_bytes_gathered_for_writes_are_bounded_for_all_streams() -> None:
    """Each gathers up to 1 MiB: thousands of them kept gigabytes in memory."""
    disk, thread = SimDisk(), SimThread()
    budget = CacheBudget(gathered_bytes_max=100_000)
    blob = blob_of(1, 1, 30_000)
    stores = []
    for uid in range(1, 7):
        directory = f"/streams/{uid}"
        disk.make_dirs(directory)
        stores.append(StreamStore.open(disk, directory, uid, thread, budget=budget))
    for store in stores:
        store.apply([(APPEND, 1, 64, blob)])
    assert budget.gathered == 3 * len(blob)
    assert budget.queued == 3 * len(blob), "those that began first"
    stores[3].apply([(APPEND, 1, 64 + len(blob), blob_of(2, 1))])
    stores[0].apply([(APPEND, 1, 64 + len(blob), blob)])
    assert budget.gathered == 3 * len(blob)
    thread.run()
    unwritten = [uid for uid, store in enumerate(stores, 1) if store.unwritten_bytes]
    assert unwritten == [1, 5, 6]
    assert budget.queued == 0
    for store in stores:
        store.close()
    assert budget.gathered == 0
    thread.run()
    assert disk.contents("/streams/1/1.blk")[64:] == 2 * blob


def test_a_writer_that_filled_the_queue_is_told_of_room() -> None:
    told: list[str] = []
    disk, thread = SimDisk(), SimThread()
    budget = CacheBudget(
        queue_bytes_max=3 * blocks_module.FLUSH_BYTES,
        on_full=lambda: told.append("full"),
        on_room=lambda: told.append("room"),
    )
    store, _ = opened(disk, thread, budget)
    blob = blob_of(1, 1, blocks_module.FLUSH_BYTES)
    for number in range(3):
        assert told == []
        store.apply([(APPEND, 1, 64 + number * len(blob), blob)])
    store.apply([(APPEND, 1, 64 + 3 * len(blob), blob)])
    assert told == ["full"]
    thread.run()
    assert told == ["full", "room"]
    assert budget.queued == 0


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_block_that_can_not_be_written_is_closed_with_its_stream(operation: str) -> None:
    disk, thread = SimDisk(), SimThread()
    store, errors = opened(disk, thread)
    disk.fail(operation, errno.ENOSPC, under=DIRECTORY)
    store.apply([(APPEND, 1, 64, blob_of(1, 1)), (SEAL, 1, 500, footer_of(500))])
    store.flush()
    thread.run()
    assert errors
    store.close()
    thread.run()
    assert not disk._open


def test_bytes_that_never_reach_their_file_leave_the_queue() -> None:
    disk, thread = SimDisk(), SimThread()
    budget = CacheBudget()
    store, errors = opened(disk, thread, budget)
    disk.fail("pwrite", errno.EIO, under=DIRECTORY)
    store.apply([(APPEND, 1, 64, blob_of(1, 1, blocks_module.FLUSH_BYTES))])
    assert budget.queued > 0
    thread.run()
    assert budget.queued == 0
    assert errors


def test_evicted_bytes_are_read_back_verified_and_concurrent_reads_share_one() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread, CacheBudget(bytes_max=0))
    blob = blob_of(1, 40)
    store.apply([(APPEND, 1, 64, blob), (SEAL, 1, 64 + len(blob), footer_of(64 + len(blob)))])
    store.flush()
    thread.run()
    store.apply([(APPEND, 2, 64, blob_of(41, 1))])
    assert store.chunk(1, 64) is None
    calls: list[int] = []
    store.read_chunk(1, 64, 10, lambda: calls.append(1))
    store.read_chunk(1, 64, 10, lambda: calls.append(2))
    assert thread.job_count == 1
    thread.run()
    assert calls == [1, 2]
    assert store.chunk(1, 64) == (64, blob)  # without the footer
    assert list(decode_footer(store.load_footer(1)).subjects) == [b"a.b"]
    assert store.chunk(2, 64) is not None  # not written yet, so never evicted


@pytest.mark.parametrize("size", [300_000, 1 << 20, 5 << 20])
def test_a_record_longer_than_a_read_is_read_whole(size: int) -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread, CacheBudget(bytes_max=0))
    msgs = [(b"big", b"", bytes(size)), (b"big", b"", b"small")]
    pieces, (first, _), _ = fmt.encode_batch(1, 1, msgs)
    blob = b"".join(pieces)
    store.apply([(APPEND, 1, 64, blob)])
    store.flush()
    thread.run()
    store.apply([(APPEND, 2, 64, blob_of(41, 1))])
    assert store.chunk(1, 64) is None
    store.read_chunk(1, 64, 10, lambda: None)
    thread.run()
    assert store.chunk(1, 64) == (64, blob[:first])
    disk.flip(f"{DIRECTORY}/1.blk", 64 + first + 3)  # a length beyond the file
    store.read_chunk(1, 64 + first, 10, lambda: None)
    thread.run()
    with pytest.raises(CorruptionError, match="damaged"):
        store.chunk(1, 64 + first)


def test_a_rotten_record_is_an_error_where_it_is_and_nowhere_else() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread, CacheBudget(bytes_max=0))
    blob = blob_of(1, 3)
    length = (len(blob) - 32) // 3
    store.apply([(APPEND, 1, 64, blob)])
    store.flush()
    thread.run()
    store.apply([(APPEND, 2, 64, blob_of(41, 1))])
    disk.flip(f"{DIRECTORY}/1.blk", 64 + length + 40)
    store.read_chunk(1, 64, 10, lambda: None)
    store.read_chunk(1, 64 + length, 10, lambda: None)
    store.read_chunk(1, 64 + 2 * length, 10, lambda: None)
    thread.run()
    assert store.chunk(1, 64) == (64, blob[:length])
    with pytest.raises(CorruptionError, match=r"1.blk: offset"):
        store.chunk(1, 64 + length)
    assert store.chunk(1, 64 + 2 * length) is not None


def test_a_full_disk_is_one_clean_error_and_final() -> None:
    disk, thread = SimDisk(), SimThread()
    store, errors = opened(disk, thread)
    disk.capacity = 4096
    store.apply([(APPEND, 1, 64, blob_of(1, 1, 8000))])
    store.flush()
    thread.run()
    assert [type(err) for err in errors] == [DiskError]
    assert "No space left" in str(errors[0])
    with pytest.raises(DiskError):
        store.apply([])


def test_a_failed_sync_is_final_and_no_snapshot_is_reported_saved() -> None:
    disk, thread = SimDisk(), SimThread()
    store, errors = opened(disk, thread)
    store.apply([(APPEND, 1, 64, blob_of(1, 1))])
    disk.fail_next["fdatasync"] = errno.EIO
    saved: list[int] = []
    for _ in range(2):
        store.save_snapshot(
            index=1,
            term=1,
            chain=0,
            state=b"s",
            index_db=b"",
            tail=(1, 64),
            done=lambda: saved.append(1),
        )
        thread.run()
    assert saved == []
    assert isinstance(store.failure, DiskError)
    assert errors == [store.failure] * 2
    assert not [name for name in disk.listdir(DIRECTORY) if name.endswith(".snap")]


def test_index_db_is_used_only_with_the_snapshot_it_was_made_with() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    for index in (1, 2):
        store.save_snapshot(
            index=index,
            term=1,
            chain=0,
            state=b"%d" % index,
            index_db=b"columns",
            tail=(0, 0),
            done=lambda: None,
        )
    thread.run()
    found = store.load_snapshot()
    assert found is not None and (found.state, found.index_db) == (b"2", b"columns")
    newest = sorted(n for n in disk.listdir(DIRECTORY) if n.endswith(".snap"))[-1]
    disk.flip(f"{DIRECTORY}/{newest}", 70)
    found = store.load_snapshot()
    assert found is not None
    assert (found.state, found.index_db) == (b"1", None)
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".snap") and name != newest:
            disk.flip(f"{DIRECTORY}/{name}", 70)
    with pytest.raises(CorruptionError, match="checksum"):
        store.load_snapshot()


def test_a_snapshot_or_index_that_can_not_be_read_is_as_good_as_damaged() -> None:
    """`index.db` may go at any time, and a snapshot that rots has an older one behind it. Where the
    disk gave an error instead of other bytes, the stream did not open at all."""
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    for index in (1, 2):
        store.save_snapshot(
            index=index, term=1, chain=0, state=b"%d" % index, index_db=b"columns", tail=(0, 0),
            done=lambda: None,
        )  # fmt: skip
    thread.run()
    disk.bad_read(f"{DIRECTORY}/index.db", 10, 1)
    found = store.load_snapshot()
    assert found is not None
    assert (found.state, found.index_db) == (b"2", None)
    oldest, newest = (name for name in disk.listdir(DIRECTORY) if name.endswith(".snap"))
    disk.bad_read(f"{DIRECTORY}/{newest}", 70, 1)
    found = store.load_snapshot()
    assert found is not None
    assert found.state == b"1"
    disk.bad_read(f"{DIRECTORY}/{oldest}", 70, 1)
    with pytest.raises(ReadError, match=newest):
        store.load_snapshot()


def test_a_snapshot_that_may_not_be_read_is_not_taken_for_lost() -> None:
    """Permissions are the operator's to mend; the one before it would be of long ago."""
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    for index in (1, 2):
        store.save_snapshot(
            index=index, term=1, chain=0, state=b"%d" % index, index_db=None, tail=(0, 0),
            done=lambda: None,
        )  # fmt: skip
    thread.run()
    disk.fail("open", errno.EACCES, under=f"{DIRECTORY}/stream-{2:016x}")
    with pytest.raises(DiskError) as caught:
        store.load_snapshot()
    assert not isinstance(caught.value, CorruptionError)


def test_scan_gives_all_records_or_says_where_they_end() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    blob = blob_of(1, 3)
    end = 64 + len(blob)
    store.apply([(APPEND, 1, 64, blob), (SEAL, 1, end, footer_of(end))])
    store.flush()
    thread.run()
    records = list(store.scan(1, end))
    assert [record.seq for record in records] == [1, 2, 3, 1]
    assert [record.type for record in records] == [fmt.MSG] * 3 + [fmt.FRAME]
    assert list(store.scan(1)) == records
    disk.flip(f"{DIRECTORY}/1.blk", records[2].offset + 30)
    with pytest.raises(CorruptionError, match=f"offset {records[2].offset}"):
        list(store.scan(1, end))


def test_a_held_block_is_read_after_it_died_and_goes_when_it_is_let_go() -> None:
    """Two readers of one moment: the file stays, whatever snapshots say, until both have ended."""
    disk, thread = SimDisk(), SimThread()
    store, errors = opened(disk, thread)

    def snapshot(index: int) -> None:
        store.save_snapshot(
            index=index, term=1, chain=0, state=b"", index_db=b"", tail=(2, 64), done=lambda: None
        )
        thread.run()

    blob = blob_of(1, 5)
    store.apply([(APPEND, 1, 64, blob)])
    one, other = store.hold(), store.hold()
    store.apply([(APPEND, 2, 64, blob_of(6, 1)), (DROP, 1)])
    for index in (1, 2, 3):
        snapshot(index)
    found: list[object] = []
    one.read(1, 64, 40, found.append)
    thread.run()
    record = next(fmt.scan(blob))
    (read,) = found
    assert isinstance(read, bytes) and read[: record.length] == blob[: record.length]
    one.close()
    thread.run()
    assert disk.exists(f"{DIRECTORY}/1.blk")
    other.close()
    thread.run()
    assert not disk.exists(f"{DIRECTORY}/1.blk") and not errors


def test_a_held_memory_stream_is_what_it_was() -> None:
    """Dropped, appended to and closed meanwhile."""
    store = MemoryStreamStore(7)
    first, second = blob_of(1, 3), blob_of(4, 2)
    store.apply([(APPEND, 1, 64, first)])
    held = store.hold()
    store.apply([(APPEND, 1, 64 + len(first), second), (DROP, 1)])
    found: list[object] = []
    held.read(1, 64, 1 << 20, found.append)
    held.read(1, 64 + len(first), 10, found.append)
    held.read(2, 64, 10, found.append)
    assert found[0] == first
    assert all(isinstance(each, CorruptionError) for each in found[1:])


def test_a_dropped_block_is_removed_only_when_two_snapshots_do_without_it() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)

    def snapshot(index: int) -> None:
        store.save_snapshot(
            index=index, term=1, chain=0, state=b"", index_db=b"", tail=(2, 64), done=lambda: None
        )
        thread.run()

    store.apply([(APPEND, 1, 64, blob_of(1, 1))])
    snapshot(1)
    store.apply([(DROP, 1)])
    assert store.chunk(1, 64) is None
    snapshot(2)
    assert disk.exists(f"{DIRECTORY}/1.blk")
    store.close()
    thread.run()
    store, _ = opened(disk, thread)  # the snapshot remembers what is to be removed
    found = store.load_snapshot()
    assert found is not None
    store.truncate_to(found.tail)
    snapshot(3)
    assert not disk.exists(f"{DIRECTORY}/1.blk")


def test_a_closed_stream_moves_to_trash_whole() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    disk.make_dirs("/trash")
    store.apply([(APPEND, 1, 64, blob_of(1, 1))])
    store.close()
    thread.run()
    store.move_to_trash("/trash")
    assert disk.listdir("/trash/7") == ["1.blk"]
    assert not disk.exists(DIRECTORY)


def test_memory_store_answers_as_the_file_store_does() -> None:
    store = MemoryStreamStore(7)
    first, second = blob_of(1, 3), blob_of(4, 2)
    footer = footer_of(64 + len(first) + len(second))
    store.apply([(APPEND, 1, 64, first), (APPEND, 1, 64 + len(first), second)])
    store.apply([(SEAL, 1, 64 + len(first) + len(second), footer), (APPEND, 2, 64, first)])
    assert store.chunk(1, 64 + len(first)) == (64 + len(first), second)
    assert store.load_footer(1) == footer
    assert [r.seq for r in store.scan(1) if r.type == fmt.MSG] == [1, 2, 3, 4, 5]
    store.apply([(DROP, 1)])
    assert store.chunk(1, 64) is None


POINTS = [
    "BLOCKS_SYNCED",
    "BLOCKS_DIR_SYNCED",
    "BLOCK_SEALED",
    "SNAPSHOT_TMP_WRITTEN",
    "SNAPSHOT_TMP_SYNCED",
    "SNAPSHOT_RENAMED",
    "SNAPSHOT_DIR_SYNCED",
    "SNAPSHOT_OLD_REMOVED",
    "INDEX_RENAMED",
    "SNAPSHOT_BLOCK_REMOVED",
]


class Life:
    """A stream whose blocks are a pure function of how many batches were applied."""

    def __init__(
        self,
        seed: int,
        *,
        seen_through: Callable[[Disk], Disk] = lambda disk: disk,
        packs: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(seed)
        self.seen_through = seen_through
        self.packs = packs
        self.reported = 0  # newest snapshot that was reported done
        self.start()

    def start(self) -> None:
        self.thread = SimThread()
        self.store, self.errors = opened(self.seen_through(self.disk), self.thread)
        found = self.store.load_snapshot()
        self.applied = 0 if found is None else found.index
        assert self.applied >= self.reported, "a reported snapshot is gone"
        if found is not None:
            assert found.state == b"%d" % found.index
            assert found.tail >= self.tail(found.index)
            if found.index_db is not None:
                assert found.index_db == b"i%d" % found.index
        self.store.truncate_to((0, 0) if found is None else found.tail)
        if found is not None:
            self.store.disown(self.live())
        self.check()
        if self.packs:
            self.store.begin_packing(lambda: True)

    def dead(self) -> set[int]:
        """The blocks that died up to `applied`."""
        dead = set(range(2, self.applied // 4 + 1, 2))
        for index in range(14, self.applied + 1, 16):
            dead |= {index // 4 - 2, index // 4}
        return dead | {fmt.REWRITTEN + index - 40 for index in range(54, self.applied + 1, 32)}

    def live(self) -> set[int]:
        plain = set(range(1, (self.applied + 3) // 4 + 1))
        return (plain | {fmt.REWRITTEN + i for i in range(14, self.applied + 1, 16)}) - self.dead()

    @staticmethod
    def ops(index: int) -> list[tuple[object, ...]]:
        """Batch `index` of block (index - 1) // 4 + 1; the fourth seals it; one in two dies. One
        in sixteen also rewrites blocks, and every other block made so dies 40 batches later."""
        block_no, at = (index - 1) // 4 + 1, (index - 1) % 4
        size = len(blob_of(1, 2))
        out: list[tuple[object, ...]] = [(APPEND, block_no, 64 + at * size, blob_of(index * 2, 2))]
        if at == 3:
            end = 64 + 4 * size
            out.append((SEAL, block_no, end, footer_of(end)))
            if block_no % 2 == 0:
                out.append((DROP, block_no))
        if index % 16 == 14:
            made_no, records = fmt.REWRITTEN + index, Life.rewritten(index)
            out += [
                (APPEND, made_no, 64, records),
                (SEAL, made_no, 64 + len(records), footer_of(64 + len(records))),
                (DROP, index // 4 - 2),
                (DROP, index // 4),
            ]
        if index >= 54 and index % 32 == 22:
            out.append((DROP, fmt.REWRITTEN + index - 40))
        return out

    @staticmethod
    def rewritten(index: int) -> bytes:
        """What batch `index` leaves of two blocks: a message of each."""
        kept = (index - 13) * 2, (index - 5) * 2
        return b"".join(
            fmt.encode_batch(s, 1000 + s, [(b"a.b", b"", b"%d" % s)])[0][0] for s in kept
        )

    @staticmethod
    def tail(index: int) -> tuple[int, int]:
        if not index:
            return (0, 0)
        size = len(blob_of(1, 2))
        return (index - 1) // 4 + 1, 64 + ((index - 1) % 4 + 1) * size

    def check(self) -> None:
        """Every block that lives at `applied` holds exactly its batches."""
        for block_no in range(1, (self.applied - 1) // 4 + 2 if self.applied else 1):
            last = min(self.applied, block_no * 4)
            if block_no in self.dead():
                continue
            seqs = [r.seq for r in self.store.scan(block_no, self.tail(last)[1]) if r.type == 1]
            first = ((block_no - 1) * 4 + 1) * 2
            assert seqs == list(range(first, last * 2 + 2))
            if last == block_no * 4:
                decode_footer(self.store.load_footer(block_no))
        for index in range(14, self.applied + 1, 16):
            if fmt.REWRITTEN + index not in self.dead():
                blob = self.rewritten(index)
                found = list(self.store.scan(fmt.REWRITTEN + index, 64 + len(blob)))
                assert [r.seq for r in found] == [(index - 13) * 2, (index - 5) * 2]
                decode_footer(self.store.load_footer(fmt.REWRITTEN + index))
        there = {no for name in self.disk.listdir(DIRECTORY) if (no := fmt.block_number(name))}
        rewritten = {block_no for block_no in there if block_no >= fmt.REWRITTEN}
        assert rewritten <= {fmt.REWRITTEN + i for i in range(14, self.applied + 1, 16)}

    def act(self) -> None:
        roll = self.rng.random()
        if roll < 0.5:
            self.applied += 1
            self.store.apply(self.ops(self.applied))
        elif roll < 0.6:
            self.store.flush()
        elif roll < 0.7:
            self.save()
        else:
            self.thread.step()
            self.thread.complete()

    def save(self) -> None:
        index = self.applied

        def done() -> None:
            self.reported = index

        self.store.save_snapshot(
            index=index,
            term=1,
            chain=2,
            state=b"%d" % index,
            index_db=b"i%d" % index,
            tail=self.tail(index),
            done=done,
        )

    def check_that_the_dead_go(self) -> None:
        """Two snapshots later no file of a block that is dead now is left, nor counted."""
        dead = self.dead()
        for _ in range(2):
            self.applied += 1
            self.store.apply(self.ops(self.applied))
            self.save()
            self.thread.run()
        assert not [no for no in dead if self.disk.exists(f"{DIRECTORY}/{fmt.block_name(no)}")]
        assert self.dead() != dead or self.store.reclaimable_bytes == 0


@pytest.mark.parametrize("block", range(4))
def test_recovery_finds_the_newest_reported_snapshot_and_its_blocks(block: int) -> None:
    """Random work, crashes at any operation; then the store is what the snapshot says."""
    for seed in range(block * 15, block * 15 + 15):
        life = Life(seed)
        for _ in range(4):
            life.disk.crash_at_operation = life.disk.operation_count + life.rng.randint(1, 120)
            try:
                for _ in range(200):
                    life.act()
            except SimCrash:
                pass
            life.disk.crash(keep=life.rng.choice((0.0, 0.5, 1.0)))
            life.start()
        life.check_that_the_dead_go()


@pytest.mark.parametrize("point", POINTS)
def test_recovery_after_a_crash_at_each_named_point(point: str) -> None:
    for seed in range(3):
        life = Life(500 + seed)
        life.disk.crash_at_point = point
        with pytest.raises(SimCrash):
            for _ in range(5000):
                life.act()
        life.disk.crash(keep=0.5)
        life.start()
        life.check_that_the_dead_go()


def test_the_flush_size_bounds_unwritten_bytes() -> None:
    disk, thread = SimDisk(), SimThread()
    store, _ = opened(disk, thread)
    offset = 64
    for seq in range(1, 200):
        blob = blob_of(seq, 1, 16_000)
        store.apply([(APPEND, 1, offset, blob)])
        offset += len(blob)
    assert store._writer._gathered_bytes < blocks_module.FLUSH_BYTES
    assert thread.job_count >= 2


# --- how many files are open ----------------------------------------------------------------------


def streams_of(
    disk: SimDisk, thread: SimThread, count: int, *, files_max: int
) -> tuple[list[StreamStore], list[list[StreamdError]], CacheBudget]:
    """Streams 1, 2, ... that share their open files."""
    budget = CacheBudget(open_blocks=OpenBlocks(files_max))
    disk.make_dirs("/streams")
    stores, errors = [], []
    for uid in range(1, count + 1):
        found: list[StreamdError] = []
        stores.append(
            StreamStore.open(
                disk, f"/streams/{uid}", uid, thread, budget=budget, on_error=found.append
            )
        )
        errors.append(found)
    thread.run()
    return stores, errors, budget


def append_to(store: StreamStore, thread: SimThread, offset: int, first_seq: int = 1) -> int:
    blob = blob_of(first_seq, 3)
    store.apply([(APPEND, 1, offset, blob)])
    store.flush()
    thread.run()
    return offset + len(blob)


def test_few_files_are_open_however_many_streams_are_written() -> None:
    """Round after round; who had to close one opens it again, and a power cut takes nothing of
    what a snapshot would rely upon."""
    disk, thread = SimDisk(), SimThread()
    stores, errors, budget = streams_of(disk, thread, 20, files_max=4)
    ends = [64] * len(stores)
    for turn in range(3):
        for at, store in enumerate(stores):
            ends[at] = append_to(store, thread, ends[at], 1 + 3 * turn)
            assert len(budget.open_blocks) <= 4
            assert len(disk._open) <= 4
    assert not any(errors)
    for store in stores:
        store._files.sync()
    assert len(disk._open) == len(budget.open_blocks) == 0
    disk.crash(keep=0.0)
    for at, store in enumerate(stores):
        assert [record.seq for record in store.scan(1, ends[at]) if record.type == fmt.MSG] == [
            *range(1, 10)
        ]
        assert len(disk.contents(f"/streams/{at + 1}/1.blk")) == ends[at]


def test_a_sync_that_fails_for_want_of_a_place_is_told_to_its_stream_alone() -> None:
    """The one that needs the place goes on; the other's snapshot must not be taken (I10)."""
    disk, thread = SimDisk(), SimThread()
    stores, errors, _ = streams_of(disk, thread, 2, files_max=1)
    end = append_to(stores[0], thread, 64)
    disk.fail("fdatasync", errno.EIO, under="/streams/1/")
    append_to(stores[1], thread, 64)
    assert errors == [[], []]
    append_to(stores[0], thread, end, 4)
    assert len(errors[0]) == 1
    assert errors[1] == []
    with pytest.raises(OSError, match="fdatasync"):
        stores[0]._files.sync()


def test_a_block_is_not_written_on_behind_a_hole() -> None:
    """Its file was removed, or cut, while it was closed."""
    for harm in ("removed", "cut"):
        disk, thread = SimDisk(), SimThread()
        stores, errors, _ = streams_of(disk, thread, 2, files_max=1)
        end = append_to(stores[0], thread, 64)
        append_to(stores[1], thread, 64)
        path = "/streams/1/1.blk"
        if harm == "removed":
            disk.wipe(path)
        else:
            fd = disk.open(path)
            disk.truncate(fd, end - 1)
            disk.close(fd)
        append_to(stores[0], thread, end, 4)
        assert [type(err) for err in errors[0]] == [CorruptionError]
        assert path in str(errors[0][0])
