"""A data directory seen from outside: its streams, their state and entries; nothing is held."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from benchmarks.cluster import ClusterProcess
from spark_jobs.replica.decode import columns_of
from streamd.errors import CorruptionError
from streamd.machine.digest import MASK64, mix64
from streamd.offline.blocks import BlockRoom, map_file
from streamd.offline.log_reader import LogReader, last_frame_index
from streamd.offline.read_only_disk import ReadOnlyDisk
from streamd.offline.stream_view import (
    StoreBusy,
    StoreDir,
    StreamMissing,
    find_stores,
    open_stream,
)
from streamd.offline.survey import survey
from streamd.store.node_file import NAMES
from tests.parity.runner import ours_binary
from tests.spark.servers import SparkTestServer, flood, frame_of
from tests.wire import Wire


def test_streams_are_named_running_or_not(server: SparkTestServer) -> None:
    server.create_stream("A")
    server.create_stream("B")
    server.create_stream("M", storage="memory")
    server.create_stream("Gone")
    server.api("STREAM.DELETE.Gone")
    (store,) = find_stores(server.store_dir)
    assert store.is_running
    assert [files.name for files in store.streams()] == ["A", "B", "M"]
    server.kill()
    assert not store.is_running
    assert [(files.name, files.is_file) for files in store.streams()] == [
        ("A", True),
        ("B", True),
        ("M", False),
    ]


def test_directories_are_found_at_every_level(server: SparkTestServer, tmp_path: Path) -> None:
    server.create_stream("S")
    server.stop()
    for name in ("n1", "n2"):
        shutil.copytree(server.store_dir, tmp_path / "all" / name / "store")
    (tmp_path / "all" / "n3" / "trash").mkdir(parents=True)
    both = find_stores(tmp_path / "all")
    assert [store.server_name for store in both] == ["n1", "n2"]
    for path in (
        tmp_path / "all" / "n1",
        tmp_path / "all" / "n1" / "store",
        tmp_path / "all" / "n1" / "store" / "streamd",
    ):
        (store,) = find_stores(path)
        assert store.path == both[0].path
        assert store.server_name == "n1"


def state_of(view: Any) -> dict[str, int]:
    return {
        "messages": view.messages,
        "bytes": view.bytes,
        "first_seq": view.first_seq,
        "last_seq": view.last_seq,
    }


def digest_of_blocks(view: Any) -> int:
    """The stream's digest, from the records themselves."""
    total = 0
    for block in view.blocks:
        columns = columns_of(block.read(), block)
        assert len(columns) == block.count
        assert int(columns.live.sum()) == block.live
        rows = zip(columns.seqs[columns.live], columns.crcs[columns.live], strict=True)
        mine = sum(mix64(int(seq), int(crc)) for seq, crc in rows) & MASK64
        assert mine == block.digest
        total += mine
    return total & MASK64


def test_state_and_digest_are_the_servers(server: SparkTestServer) -> None:
    """Beside the server, after SIGKILL and after a clean stop; also the digest of each block."""
    server.create_stream("S", max_msgs=900)
    server.publish((f"s.{at % 9}", b"x" * 5000) for at in range(3000))
    for seq in (2500, 2501, 2999):
        server.delete_msg("S", seq)
    server.purge("S", filter="s.3")
    told = server.state("S")
    (store,) = find_stores(server.store_dir)
    digests = set()
    for end in (lambda: 0, server.kill, lambda: server.start() and server.stop()):
        end()
        with open_stream(store, "S") as view:
            assert state_of(view) == {name: told[name] for name in state_of(view)}
            assert digest_of_blocks(view) == view.digest
            digests.add(view.digest)
            assert view.config["max_msgs"] == 900
    assert len(digests) == 1


def test_settled_blocks_are_those_that_no_restart_writes_again(server: SparkTestServer) -> None:
    """Those are mapped instead of read, which only a file that nobody cuts may be."""
    server.create_stream("S")
    server.publish((f"s.{at % 9}", b"x" * 20_000) for at in range(2000))
    server.stop()  # with a snapshot
    server.start()
    server.publish((f"s.{at % 9}", b"x" * 20_000) for at in range(2000))
    server.kill()
    (store,) = find_stores(server.store_dir)
    with open_stream(store, "S") as view:
        blocks = view.blocks
    settled = [block for block in blocks if block.is_settled]
    sealed = [block for block in blocks if block.is_sealed]
    assert 2 <= len(settled) < len(sealed) < len(blocks)
    assert blocks[: len(settled)] == settled
    before = {block.block_no: written_at(block.path) for block in blocks}
    server.start()
    server.kill()
    again = {block.block_no: written_at(block.path) for block in blocks}
    same = {no for no, moment in before.items() if moment == again[no]}
    assert {block.block_no for block in settled} <= same
    assert {block.block_no for block in sealed} - same  # cut, and written from the log


def written_at(path: str) -> int:
    """When a file was last written, in ns; 0 if there is none."""
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def test_a_settled_block_is_mapped(server: SparkTestServer, tmp_path: Path) -> None:
    server.create_stream("S")
    server.publish((f"s.{at % 9}", b"x" * 20_000) for at in range(1000))
    server.stop()
    (store,) = find_stores(server.store_dir)
    with open_stream(store, "S") as view:
        settled = [block for block in view.blocks if block.is_settled]
    room = BlockRoom()
    path = Path(settled[0].path)
    blob = path.read_bytes()
    found = settled[0].read(room)
    assert found == blob
    assert room.size == 0
    path.unlink()  # as the server does when all its messages are gone
    assert found == blob
    short = replace(settled[0], path=str(tmp_path / "short"))
    Path(short.path).write_bytes(blob[:5000])
    assert short.read(room) == blob[:5000]
    fd = os.open(short.path, os.O_RDONLY)
    try:
        assert map_file(fd, 5001) is None
    finally:
        os.close(fd)
    Path(short.path).write_bytes(b"")
    assert short.read(room) == b""


def test_a_view_at_an_earlier_index(server: SparkTestServer) -> None:
    """`up_to` is exact."""
    server.create_stream("S")
    for at in range(10):
        server.publish([(f"s.{at}", b"x")])
    (store,) = find_stores(server.store_dir)
    with open_stream(store, "S") as whole:
        assert whole.messages == 10
        last = whole.applied
    with open_stream(store, "S", up_to=last - 4) as view:
        assert view.applied == last - 4
        assert view.messages == 6


def test_missing_and_unreadable_are_told_apart(server: SparkTestServer, tmp_path: Path) -> None:
    server.create_stream("S")
    server.publish([("s.a", b"x" * 100)] * 50)
    server.stop()
    (store,) = find_stores(server.store_dir)
    with pytest.raises(StreamMissing, match="no stream 'T'; streams there are: S"):
        open_stream(store, "T")
    (files,) = store.streams()
    log = store.open_log()
    group = log.group(files.uid)
    assert group is not None
    place = group.places[1]  # the first entry is empty
    log.close()
    segment = min((store.path / "wal").glob("*.wal"))
    with segment.open("r+b") as file:
        file.seek((place & 0xFFFFFFFF) + 60)
        file.write(b"\xff\xff\xff")
    with pytest.raises(CorruptionError, match=rf"{segment.name}: offset \d+: batch \d+ is damaged"):
        open_stream(store, "S")
    with open_stream(store, "S", tolerate_damage=True) as view:
        assert view.messages == 0
    for name in NAMES:
        (store.path / name).write_text("{")
    with pytest.raises(CorruptionError, match=r"node\.json: unreadable"):
        _ = find_stores(server.store_dir)[0].identity


def test_a_directory_that_never_rests_is_busy(tmp_path: Path) -> None:
    """What changes under every attempt is not called damaged."""
    (tmp_path / "wal").mkdir()
    store = StoreDir(tmp_path, "n1")
    tries = []

    def work() -> None:
        tries.append(1)
        (tmp_path / "wal" / f"{len(tries)}.wal").touch()
        raise CorruptionError("half of it")

    with pytest.raises(StoreBusy, match="changed while it was read, 5 times: half of it"):
        store.read(work)
    assert len(tries) == 5


def test_files_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    disk = ReadOnlyDisk()
    fd = disk.open(str(path))
    assert disk.pread(fd, 3, 0) == b"abc"
    for change in (
        lambda: disk.open(str(path), create=True),
        lambda: disk.pwrite(fd, b"x", 0),
        lambda: disk.truncate(fd, 0),
        lambda: disk.unlink(str(path)),
        lambda: disk.replace(str(path), str(path)),
        lambda: disk.lock(str(path)),
    ):
        with pytest.raises(PermissionError):
            change()
    disk.close_all()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_logs_let_go_of_their_files(server: SparkTestServer) -> None:
    server.create_stream("S")
    server.publish([("s.a", b"x")] * 10)
    (store,) = find_stores(server.store_dir)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        open_stream(store, "S").close()
        store.streams()
        survey([store], "S")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_three_nodes_together_know_more_than_each(tmp_path: Path) -> None:
    """SIGKILL to all at once: each directory alone may not prove the last acked messages to be
    committed, together they do; and at one index all have the same digest."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    with ClusterProcess(binary, directory=tmp_path / "cluster") as cluster:
        cluster.start()
        config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
        with Wire(cluster.nodes["n1"].port) as wire:
            assert "error" not in wire.api("STREAM.CREATE.S", config, within_s=20)
        port = cluster.nodes[cluster.leader("S")].port
        for _ in range(5):
            flood(port, map(frame_of, [(f"s.{at}", b"x" * 50) for at in range(100)]))
        cluster.kill_at_once()
        stores = find_stores(cluster.directory)
        assert [store.server_name for store in stores] == ["n1", "n2", "n3"]
        found = survey(stores, "S")
        with open_stream(stores[0], "S") as alone:
            assert alone.messages <= 500
            assert alone.applied <= found.committed
        views = [open_stream(store, "S", up_to=found.committed) for store in stores]
        complete = [view for view in views if view.applied == found.committed]
        assert len(complete) >= 2
        assert {view.messages for view in complete} == {500}
        assert len({view.digest for view in complete}) == 1
        assert all(digest_of_blocks(view) == view.digest for view in complete)
        for view in views:
            view.close()
        from tests.spark.reads import read_rows

        rows = read_rows(cluster.directory, "S")
        assert [row["seq"] for row in rows] == list(range(1, 501))


def test_frames_prove_a_commit(server: SparkTestServer) -> None:
    """A clean stop writes every block, so the newest frame is the last entry that stored."""
    server.create_stream("S")
    for at in range(5):
        server.publish([(f"s.{at}", b"x")])
    server.stop()
    (store,) = find_stores(server.store_dir)
    (files,) = store.streams()
    log = LogReader(store.path / "wal")
    assert last_frame_index(files.directory, files.uid) == log.last_index(files.uid)
    assert last_frame_index(files.directory / "none", files.uid) == 0
    log.close()
