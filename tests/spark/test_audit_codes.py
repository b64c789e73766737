"""Every finding code is produced by an injected damage, and by nothing else.

All damaged directories are made first, each with a stream of its own, and audited in one run; each
test looks at one of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_jobs.audit import run as audit_run
from spark_jobs.audit.findings import CODES, Finding
from streamd.machine import commands
from streamd.offline.stream_view import find_stores
from streamd.store.node_file import NAMES
from tests.spark import audit_damage as damage
from tests.spark.audit_stores import CLUSTER, Replica, copy_of, small_blocks

Found = set[tuple[str, str, int | None, int | None]]


class Case(NamedTuple):
    """One damage: `make(directory, stream name)` returns what must be found."""

    name: str
    make: Callable[[Path, str], Found]

    @property
    def stream(self) -> str:
        return self.name.replace("-", "_").upper()


CASES: list[Case] = []


def case(function: Callable[[Path, str], Found]) -> Callable[[Path, str], Found]:
    CASES.append(Case(function.__name__.replace("_", "-"), function))
    return function


def filled(directory: Path, stream: str, count: int = 200, **config: Any) -> Replica:
    """A replica whose messages are in several sealed blocks and a newest one, all in a snapshot."""
    replica = Replica(directory / "n1", name=stream, **config)
    replica.fill(count)
    replica.snapshot()
    return replica


def save(replicas: Iterable[Replica]) -> None:
    """Take a last snapshot of each and end its server."""
    for replica in replicas:
        replica.snapshot()
        replica.close()


def stored(directory: Path, stream: str) -> Replica:
    """A filled replica whose server has ended."""
    replica = filled(directory, stream)
    replica.close()
    return replica


# --- blocks -------------------------------------------------------------------------------------


def flipped_record(name: str, *, block: int, seq: int, at: int, mask: int = 1) -> None:
    """Add a case: bits of one byte of a record, `at` from its start or, below 0, from its end."""

    def make(directory: Path, stream: str) -> Found:
        path = stored(directory, stream).block(block)
        record = damage.record_of(path, seq)
        damage.flip(path, record.offset + at % record.length, mask)
        return {("record-crc", "n1", seq, seq)}

    CASES.append(Case(name, make))


flipped_record("flipped-payload", block=2, seq=60, at=50)
flipped_record("flipped-crc", block=1, seq=1, at=-1)
flipped_record("flipped-length", block=1, seq=20, at=0, mask=4)
flipped_record("flipped-in-newest-block", block=5, seq=199, at=1)
flipped_record("flipped-last-record-of-a-snapshot", block=5, seq=200, at=40)


@case
def zeros_over_three_records(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    first = damage.record_of(replica.block(2), 70)
    last = damage.record_of(replica.block(2), 72)
    damage.put(replica.block(2), first.offset, bytes(last.offset + last.length - first.offset))
    return {("record-crc", "n1", seq, seq) for seq in (70, 71, 72)}


@case
def no_record_of_a_live_seq(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.drop_record(replica.block(2), 61)
    damage.drop_record(replica.block(2), 62)
    damage.footer_again(replica.block(2))
    return {("seq-gap", "n1", 61, 62)}


@case
def record_of_a_seq_nobody_knows(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    frame = next(r for r in damage.records_of(replica.block(5)) if r.type == 2)
    from streamd.store.blocks import record_format as fmt

    records, _, _ = fmt.encode_batch(9999, 1, [(b"", b"", b"")])
    damage.put(replica.block(5), frame.offset, records[0])
    return {("seq-extra", "n1", 9999, 9999)}


@case
def missing_block(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    rows = [block for block in replica.machine.index.blocks if block.block_no == 3]
    replica.block(3).unlink()
    return {("block-missing", "n1", rows[0].first_seq, rows[0].last_seq)}


@case
def block_that_the_disk_does_not_give_back(directory: Path, stream: str) -> Found:
    """A file whose first bytes nobody may read: EIO, as of a bad sector."""
    replica = stored(directory, stream)
    row = replica.machine.index.blocks[1]
    replica.block(2).unlink()
    replica.block(2).symlink_to("/proc/self/mem")
    return {("block-unreadable", "n1", row.first_seq, row.last_seq)}


@case
def identity_cut_off(directory: Path, stream: str) -> Found:
    """Of one of three; its stream is compared with the others'."""
    replicas = three(directory, stream, 100)
    save(replicas.values())
    for name in NAMES:
        path = replicas["n2"].root / name
        path.write_bytes(path.read_bytes()[:20])
    damage.flip(replicas["n2"].block(1), damage.record_of(replicas["n2"].block(1), 12).offset + 45)
    return {("identity-damaged", f"n2-{stream}", None, None), ("record-crc", "n2", 12, 12)}


@case
def identity_removed(directory: Path, stream: str) -> Found:
    """A directory without node.json is a replica all the same, and not passed over."""
    replicas = three(directory, stream, 100)
    save(replicas.values())
    for name in NAMES:
        (replicas["n2"].root / name).unlink()
    return {("identity-damaged", f"n2-{stream}", None, None)}


@case
def flipped_block_header(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.flip(replica.block(2), 10)
    return {("block-header", "n1", None, None)}


@case
def swapped_blocks(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.swap(replica.block(2), replica.block(3))
    rows = {block.block_no: block for block in replica.machine.index.blocks}
    return {("block-header", "n1", rows[no].first_seq, rows[no].last_seq) for no in (2, 3)}


@case
def block_of_zeros(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.put(replica.block(2), 0, bytes(replica.block(2).stat().st_size))
    row = replica.machine.index.blocks[1]
    return {("block-header", "n1", row.first_seq, row.last_seq)}


@case
def truncated_sealed_block(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    row = replica.machine.index.blocks[1]
    record = damage.record_of(replica.block(2), 80)
    damage.cut(replica.block(2), record.offset + 20)
    return {("block-short", "n1", 80, row.last_seq)}


@case
def truncated_newest_block(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    record = damage.record_of(replica.block(5), 199)
    damage.cut(replica.block(5), record.offset)
    return {("block-short", "n1", 199, 200)}


@case
def newest_block_cut_before_what_the_log_has(directory: Path, stream: str) -> Found:
    """The file has less than the snapshot covers; what came after that is in the log."""
    replica = filled(directory, stream)
    replica.fill(5, first=201)
    replica.close()
    record = damage.record_of(replica.block(5), 198)
    damage.cut(replica.block(5), record.offset + 20)
    return {("block-short", "n1", 198, 200)}


@case
def other_valid_record(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.replace_record(replica.block(2), 75)
    damage.footer_again(replica.block(2))
    row = replica.machine.index.blocks[1]
    return {("block-digest", "n1", row.first_seq, row.last_seq)}


@case
def flipped_footer(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.flip(replica.block(2), -100)
    return {("footer-damaged", "n1", None, None)}


@case
def footer_cut_off(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.cut(replica.block(2), replica.machine.index.blocks[1].end_offset + 5)
    return {("footer-damaged", "n1", None, None)}


@case
def footer_of_other_times(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)

    def later(footer: Any) -> None:
        footer.ts_deltas[3] += 1

    damage.change_footer(replica.block(2), later)
    seq = replica.machine.index.blocks[1].first_seq + 3
    return {("footer-differs", "n1", seq, seq)}


@case
def footer_of_other_subjects(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)

    def other(footer: Any) -> None:
        footer.subject_ids[5] = (footer.subject_ids[5] + 1) % len(footer.subjects)

    damage.change_footer(replica.block(2), other)
    seq = replica.machine.index.blocks[1].first_seq + 5
    return {("footer-differs", "n1", seq, seq)}


@case
def torn_append(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(5, first=201)
    replica.close()
    with replica.block(5).open("ab") as file:
        file.write(b"\x99\x00\x00\x00\x01half a record")
    return {("torn-tail", "n1", None, None)}


@case
def cut_last_record_after_a_snapshot(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(5, first=201)
    replica.close()
    record = damage.record_of(replica.block(5), 205)
    damage.cut(replica.block(5), record.offset + 60)
    return {("torn-tail", "n1", None, None)}


@case
def flipped_after_the_snapshot(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(12, first=201, batch=3)
    replica.close()
    record = damage.record_of(replica.block(5), 203)
    damage.flip(replica.block(5), record.offset + 45)
    return {("record-crc", "n1", 203, 203)}


# --- state --------------------------------------------------------------------------------------


@case
def flipped_newest_snapshot(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(20, first=201)
    replica.snapshot(releases=False)
    replica.close()
    damage.flip(damage.snapshots_of(replica)[0], 200)
    return {("snapshot-damaged", "n1", None, None)}


@case
def flipped_all_snapshots(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(20, first=201)
    save([replica])
    for path in damage.snapshots_of(replica):
        damage.flip(path, 200)
    return {
        ("snapshot-damaged", "n1", None, None),
        ("stream-unreadable", "n1", None, None),
    }


@case
def flipped_meta_snapshot(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.meta_snapshot()
    replica.close()
    (path,) = (replica.root / "meta").glob("*.snap")
    blob = path.read_bytes()
    newer = path.with_name("meta-00000000000000ff.snap")
    newer.write_bytes(blob[:-1])
    return {("snapshot-damaged", f"n1-{stream}", None, None)}


@case
def no_meta_snapshot_that_is_whole(directory: Path, stream: str) -> Found:
    """Which streams there are is not known, but for what their own snapshots say."""
    replica = filled(directory, stream)
    replica.meta_snapshot(releases=True)
    replica.close()
    (path,) = (replica.root / "meta").glob("*.snap")
    damage.flip(path, 200)
    record = damage.record_of(replica.block(2), 60)
    damage.flip(replica.block(2), record.offset + 50)
    return {
        ("snapshot-damaged", f"n1-{stream}", None, None),
        ("stream-unreadable", f"n1-{stream}", None, None),
        ("record-crc", "n1", 60, 60),
    }


@case
def wrong_digest_in_a_snapshot(directory: Path, stream: str) -> Found:
    replica = Replica(directory / "n1", name=stream)
    replica.fill(200)
    replica.machine.index.live.digest ^= 1
    replica.snapshot()
    replica.close()
    return {("state-digest", "n1", None, None)}


@case
def flipped_index_db(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    damage.flip(replica.stream_dir / "index.db", 90)
    return {("index-damaged", "n1", None, None)}


@case
def index_db_of_other_subjects(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)

    def change(body: bytes) -> bytes:
        values = msgpack.unpackb(body, raw=False, strict_map_key=False)
        names = values[-1][0]
        names[0], names[1] = names[1], names[0] + b"x"
        packed: bytes = msgpack.packb(values, use_bin_type=True)
        return packed

    damage.index_with(replica.stream_dir / "index.db", change)
    return {("index-differs", "n1", None, None)}


@case
def index_db_of_other_places(directory: Path, stream: str) -> Found:
    replica = Replica(directory / "n1", name=stream)
    replica.fill(200)
    columns = replica.machine.index.blocks.active.columns
    assert columns is not None
    columns.offsets[2] += 8
    replica.snapshot()
    replica.close()
    row = replica.machine.index.blocks.active
    return {("index-differs", "n1", row.first_seq, row.last_seq)}


@case
def removed_stream_directory(directory: Path, stream: str) -> Found:
    replica = stored(directory, stream)
    shutil.rmtree(replica.stream_dir)
    return {("stream-missing", "n1", None, None)}


@case
def more_messages_than_the_limit(directory: Path, stream: str) -> Found:
    replica = Replica(directory / "n1", name=stream)
    replica.fill(50)
    replica.machine.content.config = {**replica.machine.config, "max_msgs": 10}
    save([replica])
    return {("limit-exceeded", "n1", None, None)}


@case
def more_per_subject_than_the_limit(directory: Path, stream: str) -> Found:
    replica = Replica(directory / "n1", name=stream)
    replica.fill(10)
    replica.publish((b"s.9", b"", b"alone"))
    replica.machine.content.config = {**replica.machine.config, "max_msgs_per_subject": 1}
    replica.machine.index.track_seqs(False)
    save([replica])
    return {("limit-exceeded", "n1", None, None)}


# --- consumers ----------------------------------------------------------------------------------


def consumed(directory: Path, stream: str) -> tuple[Replica, Any]:
    """A replica of 30 messages, and a consumer that was given ten of them."""
    replica = Replica(directory / "n1", name=stream)
    replica.fill(30)
    consumer = replica.create_consumer("c")
    replica.deliver(consumer, 1, 10)
    return replica, consumer


@case
def consumer_beyond_the_end(directory: Path, stream: str) -> Found:
    replica, consumer = consumed(directory, stream)
    consumer.delivered_sseq = 44
    save([replica])
    return {("consumer-ahead", "n1", 31, 44)}


@case
def floor_beyond_delivered(directory: Path, stream: str) -> Found:
    replica, consumer = consumed(directory, stream)
    replica.ack(consumer, *range(1, 11))
    consumer.floor_sseq = 20
    save([replica])
    return {("consumer-floor", "n1", None, None)}


@case
def pending_that_was_never_delivered(directory: Path, stream: str) -> Found:
    replica, consumer = consumed(directory, stream)
    consumer.pending[25] = (25, 1)
    save([replica])
    return {("consumer-pending", "n1", 25, 25)}


# --- the log ------------------------------------------------------------------------------------


@case
def flipped_log(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(40, first=201, batch=4)
    replica.close()
    segment = max((replica.root / "wal").glob("*.wal"))
    at = segment.read_bytes().find(b"000213")
    assert at > 0
    damage.flip(segment, at)
    return {("log-damaged", f"n1-{stream}", None, None)}


@case
def removed_newest_snapshot(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(20, first=201)
    replica.snapshot()
    replica.fill(4, first=221)
    replica.close()
    damage.snapshots_of(replica)[0].unlink()
    return {("log-gap", "n1", None, None)}


@case
def torn_log(directory: Path, stream: str) -> Found:
    replica = Replica(directory / "running", name=stream)
    replica.fill(100)
    replica.snapshot()
    replica.fill(3, first=101)
    replica.fill(3, first=104)
    copied = copy_of(replica.directory, directory / "n1")
    segment = max((copied / "streamd" / "wal").glob("*.wal"))
    at = segment.read_bytes().rfind(b"000105")
    damage.flip(segment, at)
    replica.close()
    shutil.rmtree(replica.directory)
    return {("log-torn-tail", f"n1-{stream}", None, None)}


@case
def record_that_the_log_does_not_make(directory: Path, stream: str) -> Found:
    replica = filled(directory, stream)
    replica.fill(12, first=201, batch=3)
    replica.close()
    damage.replace_record(replica.block(5), 204)
    return {("log-store-mismatch", "n1", 204, 204)}


# --- replicas -----------------------------------------------------------------------------------


def three(directory: Path, stream: str, count: int) -> dict[str, Replica]:
    """Three replicas with `count` messages each."""
    replicas = {
        node: Replica(directory / node, name=stream, node=node, peers=CLUSTER) for node in CLUSTER
    }
    for replica in replicas.values():
        replica.fill(count)
    return replicas


@case
def other_content_on_one_of_three(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 100)
    for node, replica in replicas.items():
        replica.publish((b"x", b"", b"right" if node != "n2" else b"wrong"))
        replica.fill(60, first=102)
    save(replicas.values())
    return {("drift-content", "n2", 101, 101)}


@case
def other_time_on_one_of_three(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 20)
    for node, replica in replicas.items():
        replica.publish((b"x", b"", b"same"), seconds=1.0 if node != "n3" else 1.5)
        replica.tick(1.0 if node != "n3" else 0.5)
        replica.fill(20, first=22)
    save(replicas.values())
    return {("drift-time", "n3", 21, 21)}


@case
def deleted_on_one_of_three_only(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 100)
    for node, replica in replicas.items():
        for seq in (40, 41):
            replica.delete(seq if node == "n1" else 1000)
    save(replicas.values())
    return {("drift-missing", "n1", 40, 41)}


@case
def not_deleted_on_one_of_three(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 100)
    for node, replica in replicas.items():
        replica.delete(1000 if node == "n2" else 33)
    save(replicas.values())
    return {("drift-extra", "n2", 33, 33)}


@case
def head_lost_on_two_of_three(directory: Path, stream: str) -> Found:
    """Replicas agree on the last sequence and on nothing else."""
    replicas = three(directory, stream, 60)
    for node, replica in replicas.items():
        seq = 0 if node == "n3" else 58
        replica.propose([commands.PURGE, replica.tick(), b"none" if not seq else b"", seq, 0])
    save(replicas.values())
    return {("drift-extra", "n3", 1, 57)}


@case
def other_ack_on_one_of_three(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 30)
    for node, replica in replicas.items():
        consumer = replica.create_consumer("c")
        replica.deliver(consumer, 1, 10)
        replica.ack(consumer, 1 if node == "n3" else 2)
    save(replicas.values())
    return {("drift-consumer", "n3", None, None)}


@case
def other_config_on_one_of_three(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 30)
    for node, replica in replicas.items():
        index = 9 if node == "n1" else 8
        config = {**replica.config, "description": "new"}
        replica.propose([commands.CONFIGURE, replica.tick(), config, index])
    save(replicas.values())
    return {("drift-state", "n1", None, None)}


@case
def damage_on_one_of_three_is_no_drift(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 100)
    save(replicas.values())
    path = replicas["n2"].block(1)
    record = damage.record_of(path, 12)
    damage.flip(path, record.offset + record.length - 2)
    damage.flip(replicas["n3"].block(2), damage.record_of(replicas["n3"].block(2), 70).offset + 55)
    return {("record-crc", "n2", 12, 12), ("record-crc", "n3", 70, 70)}


@case
def lag_is_no_drift(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 100)
    for node, replica in replicas.items():
        if node != "n3":
            replica.fill(30, first=101)
            replica.delete(20)
    for replica in replicas.values():
        replica.close()
    return {("replica-behind", "n3", None, None)}


@case
def far_behind_is_no_drift(directory: Path, stream: str) -> Found:
    """The others' snapshots begin after what this replica's log has."""
    replicas = three(directory, stream, 100)
    for node, replica in replicas.items():
        if node != "n3":
            replica.fill(300, first=101)
            replica.delete(20)
            replica.snapshot()
    for replica in replicas.values():
        replica.close()
    return {("replica-behind", "n3", None, None)}


@case
def far_behind_with_other_content(directory: Path, stream: str) -> Found:
    replicas = three(directory, stream, 50)
    for node, replica in replicas.items():
        replica.publish((b"x", b"", b"right" if node != "n3" else b"wrong"))
        if node != "n3":
            replica.fill(300, first=52)
            replica.snapshot()
    for replica in replicas.values():
        replica.close()
    return {("drift-content", "n3", 51, 51), ("replica-behind", "n3", None, None)}


@case
def a_block_cut_on_one_of_three(directory: Path, stream: str) -> Found:
    """What stands before the cut is there, on this replica too."""
    replicas = three(directory, stream, 200)
    for replica in replicas.values():
        replica.snapshot()
    row = replicas["n2"].machine.index.blocks[1]
    for replica in replicas.values():
        replica.close()
    middle = (row.first_seq + row.last_seq) // 2
    record = damage.record_of(replicas["n2"].block(2), middle)
    damage.cut(replicas["n2"].block(2), record.offset + 5)
    return {("block-short", "n2", middle, row.last_seq)}


@case
def recreated_on_one_of_two(directory: Path, stream: str) -> Found:
    for node, uid in (("n1", 2), ("n2", 3)):
        replica = Replica(directory / node, name=stream, node=node, peers=CLUSTER, uid=uid)
        replica.fill(20)
        replica.close()
    return {("stream-recreated", "n1", None, None)}


@case
def an_id_twice_in_one_window(directory: Path, stream: str) -> Found:
    replica = Replica(directory / "n1", name=stream, duplicate_window=120_000_000_000)
    headers = b"NATS/1.0\r\nNats-Msg-Id: once\r\n\r\n"
    replica.publish((b"x", headers, b"1"))
    replica.fill(150, first=2)
    replica.machine.content.dedupe.resize(0)
    replica.machine.content.dedupe.resize(120_000_000_000)
    replica.publish((b"x", headers, b"2"))
    replica.tick(200)
    replica.publish((b"x", headers, b"later: no duplicate"))
    save([replica])
    return {("duplicate-id", "n1", 152, 152)}


@case
def an_id_twice_behind_a_damaged_record(directory: Path, stream: str) -> Found:
    """What cannot be read hides nothing of what comes after it in its block."""
    replica = Replica(directory / "n1", name=stream, duplicate_window=120_000_000_000)
    headers = b"NATS/1.0\r\nNats-Msg-Id: once\r\n\r\n"
    replica.publish((b"x", b"", b"1"))
    replica.publish((b"x", headers, b"2"))
    replica.machine.content.dedupe.resize(0)
    replica.machine.content.dedupe.resize(120_000_000_000)
    replica.publish((b"x", headers, b"3"))
    save([replica])
    damage.flip(replica.block(1), damage.record_of(replica.block(1), 1).offset + 29)
    return {("record-crc", "n1", 1, 1), ("duplicate-id", "n1", 3, 3)}


# --- the run ------------------------------------------------------------------------------------


class Run(NamedTuple):
    outcome: Any
    expected: dict[str, Found]


@pytest.fixture(scope="module")
def run(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One audit over all damaged directories."""
    root = tmp_path_factory.mktemp("codes")
    expected = {}
    stores = []
    with small_blocks():
        for each in CASES:
            expected[each.name] = each.make(root / each.name, each.stream)
            for store in find_stores(root / each.name):
                stores.append((f"{store.server_name}-{each.stream}", store))
        before = _contents(root)
        outcome = audit_run.audit(spark, audit_run.Request(stores), _silent)
    assert _contents(root) == before  # nothing was written
    return Run(outcome, expected)


def _silent(label: str) -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _contents(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def found_in(run: Run, each: Case) -> Found:
    """What was found in one case; a finding about a whole directory has no stream."""
    found: Found = set()
    for row in run.outcome.findings:
        if row.stream == each.stream:
            label = ", ".join(
                part.removesuffix(f"-{each.stream}") for part in row.replica.split(", ")
            )
            found.add((row.code, label, row.seq_lo, row.seq_hi))
        elif not row.stream and row.replica.endswith(f"-{each.stream}"):
            found.add((row.code, row.replica, row.seq_lo, row.seq_hi))
    return found


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_a_damage_is_found_and_nothing_else(run: Run, each: Case) -> None:
    assert found_in(run, each) == run.expected[each.name]


def test_every_code_is_produced(run: Run) -> None:
    """Codes about publishers' logs are in test_audit_expect.py, codes about entries set aside in
    test_audit_tails.py."""
    made = {code for found in run.expected.values() for code, *_ in found}
    elsewhere = {"lost-write", "phantom-write", "tail-set-aside", "tail-open"}
    assert made == set(CODES) - elsewhere


def test_a_damaged_record_comes_with_its_bytes_and_those_of_a_good_copy(run: Run) -> None:
    found = [
        each
        for each in run.outcome.findings
        if each.stream == "DAMAGE_ON_ONE_OF_THREE_IS_NO_DRIFT" and each.seq_lo == 70
    ]
    (only,) = found
    records = {whose.partition("-")[0]: bytes.fromhex(text) for whose, text in only.records}
    assert set(records) == set(CLUSTER)
    assert records["n1"] == records["n2"] != records["n3"]
    assert b"000070" in records["n1"]
    assert only.advice.startswith("n1-")


def test_advice_and_severity_are_those_of_the_code(run: Run) -> None:
    each: Finding
    for each in run.outcome.findings:
        assert each.severity == CODES[each.code].severity
        assert each.advice and each.expected + each.got
