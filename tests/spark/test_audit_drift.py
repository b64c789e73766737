"""Who is right when replicas differ, and digests as the server computes them. No Spark."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from spark_jobs.audit import block_task as audit_block_task
from spark_jobs.audit.block_check import DIGEST, FULL, check_file
from spark_jobs.audit.block_task import live_seqs
from spark_jobs.audit.findings import finding
from spark_jobs.audit.replica_drift import Cohort, DriftedBucket, Held, align, compare, worth_a_look
from spark_jobs.audit.replica_files import Store, files_of, open_view
from spark_jobs.audit.state_check import tasks_of
from spark_jobs.replica.record_rows import BlockRows, buckets_of, mix, ranges_of, subject_sum
from streamd.machine.digest import MASK64, mix64
from streamd.offline.stream_view import find_stores
from streamd.store.blocks import record_format as fmt
from tests.spark import audit_damage as damage
from tests.spark.audit_stores import CLUSTER, Replica, copy_of, random_work, small_blocks

A, B, LATER = Held(1, 10, 100), Held(2, 10, 200), Held(3, 11, 100)


def verdicts(
    held: dict[str, Held],
    *,
    labels: str = "abc",
    aligned: str = "abc",
    local: list[tuple[str, int]] | None = None,
) -> list[tuple[str, str]]:
    """(code, replica) of what is found for one seq, 7, of which `held` says who has what."""
    cohort = Cohort("S", 2, list(labels), set(aligned))
    known = [finding("record-crc", replica=who, stream="S", seq=at) for who, at in local or ()]
    found = compare(cohort, {7: held}, known)
    assert all(each.seq_lo == each.seq_hi == 7 for each in found)
    return [(each.code, each.replica) for each in found]


def test_the_majority_is_right() -> None:
    assert verdicts({"a": A, "b": A, "c": A}) == []
    assert verdicts({"a": B, "b": A, "c": A}) == [("drift-content", "a")]
    assert verdicts({"a": A, "b": A, "c": LATER}) == [("drift-time", "c")]
    assert verdicts({"a": A, "c": A}) == [("drift-missing", "b")]
    assert verdicts({"b": A}) == [("drift-extra", "b")]


def test_without_a_majority_one_finding_names_all_that_differ() -> None:
    assert verdicts({"a": A, "b": B}, labels="ab", aligned="ab") == [("drift-content", "b")]
    assert verdicts({"a": A, "b": B, "c": LATER}) == [("drift-content", "b, c")]
    assert verdicts({"a": A}, labels="ab", aligned="ab") == [("drift-missing", "b")]
    both = {"a": A, "b": A}
    assert verdicts(both, labels="abcd", aligned="abcd") == [("drift-missing", "c, d")]


def test_copies_at_other_log_indexes_may_lack_messages_but_not_change_them() -> None:
    assert verdicts({"a": A, "b": A}, aligned="ab") == []
    assert verdicts({"c": A}, aligned="ab") == []
    assert verdicts({"a": A, "b": A, "c": B}, aligned="ab") == [("drift-content", "c")]
    assert verdicts({"a": A, "c": A}, aligned="ab") == [("drift-missing", "b")]
    assert verdicts({"a": A, "c": B}, labels="ac", aligned="a") == [("drift-content", "c")]


def test_a_damaged_record_is_no_witness_and_not_told_twice() -> None:
    assert verdicts({"a": A, "b": A, "c": B}, local=[("c", 7)]) == []
    assert verdicts({"a": A, "b": B, "c": B}, local=[("c", 7)]) == [("drift-content", "b")]
    assert verdicts({"a": A, "b": A}, local=[("c", 7)]) == []
    assert verdicts({"a": A, "b": A}, local=[("c", 8)]) == [("drift-missing", "c")]


def test_a_bucket_is_looked_at_unless_lag_or_damage_explains_it() -> None:
    cohort = Cohort("S", 2, ["a", "b", "c"], {"a", "b"}, {"a": 9000, "b": 9000}, {"a": 1, "b": 1})
    bucket = DriftedBucket(cohort.key, 1)
    assert worth_a_look(cohort, bucket, ["a", "b"], [])  # they may differ from each other
    assert worth_a_look(cohort, bucket, ["a"], [])
    assert not worth_a_look(cohort, bucket, ["c"], [])
    gone = finding("block-missing", replica="b", stream="S", seq=4000, seq_hi=9000)
    assert not worth_a_look(cohort, bucket, ["a"], [gone])
    some = finding("block-missing", replica="b", stream="S", seq=5000, seq_hi=9000)
    assert worth_a_look(cohort, bucket, ["a"], [some])


# --- numbers ------------------------------------------------------------------------------------


def test_digests_are_the_servers() -> None:
    rng = random.Random(3)
    seqs = sorted(rng.sample(range(1, 40_000), 5000))
    crcs = [rng.randrange(1 << 32) for _ in seqs]
    rows = BlockRows(
        np.array(seqs, np.uint64),
        np.array(crcs, np.uint64),
        np.zeros(5000, np.int64),
        np.zeros(5000, np.int64),
        np.zeros(5000, np.uint64),
    )
    assert mix(rows.seqs, rows.crcs).tolist() == [
        mix64(seq, crc) for seq, crc in zip(seqs, crcs, strict=True)
    ]
    numbers, digests, sizes = buckets_of(rows)
    wanted: dict[int, list[int]] = {}
    for seq, crc in zip(seqs, crcs, strict=True):
        wanted.setdefault(seq >> 12, []).append(mix64(seq, crc))
    assert numbers.tolist() == list(wanted)
    assert digests.tolist() == [sum(part) & MASK64 for part in wanted.values()]
    assert sizes.tolist() == [len(part) for part in wanted.values()]


def test_ranges_and_sums() -> None:
    assert ranges_of(np.array([1, 2, 3, 7, 9, 10], np.uint64)) == [(1, 3), (7, 7), (9, 10)]
    assert ranges_of(np.array([], np.uint64)) == []
    assert subject_sum([(b"a", 2), (b"b", 1)]) == subject_sum([(b"b", 1), (b"a", 1), (b"a", 1)])
    assert subject_sum([(b"a", 1)]) != subject_sum([(b"b", 1)])


# --- a view against the server's own machine ----------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_store_reads_as_the_machine_holds_it(tmp_path: Path, seed: int) -> None:
    """Random work, killed or stopped at random: state, live messages and digests are equal."""
    rng = random.Random(f"view {seed}")
    config = rng.choice([{}, {"max_msgs": 50}, {"max_msgs_per_subject": 2}])
    replica = Replica(tmp_path / "n1", **config)
    random_work(replica, rng, steps=rng.randrange(5, 80))
    directory = replica.directory
    if rng.random() < 0.5:
        directory = copy_of(directory, tmp_path / "killed")
    else:
        replica.close()
    with small_blocks():
        store = Store(find_stores(directory)[0], "n1")
        view = open_view(files_of(store, store.assets[0]))
        index = replica.machine.index
        assert view.problem == "" and view.applied == replica.machine.applied
        assert view.index_row() == (
            index.first_seq, index.last_seq, index.count, index.live.bytes, index.live.digest,
        )  # fmt: skip
        for level in (FULL, DIGEST):
            live: list[int] = []
            total = 0
            for task in tasks_of(view):
                checked = check_file(task, level)
                assert checked.findings == []
                assert (checked.rows.seqs == live_seqs(task)).all()
                live += checked.rows.seqs.tolist()
                total += sum(buckets_of(checked.rows)[1].tolist())
            assert live == list(index.live.seqs(index.first_seq, index.last_seq))
            assert total & MASK64 == index.live.digest
        store.close()


@pytest.mark.parametrize("is_flushed", [True, False])
def test_large_messages_that_only_the_log_is_sure_of_are_sound(
    tmp_path: Path, is_flushed: bool
) -> None:
    """The machine hands out their records in pieces; nothing has been synced but the log."""
    replica = Replica(tmp_path / "n1")
    replica.fill(10)
    replica.publish(*[(b"s.large", b"", b"%d" % n * 50_000) for n in range(4)])
    replica.fill(10, first=15)
    if is_flushed:
        replica.flush()
    with small_blocks():
        store = Store(find_stores(copy_of(replica.directory, tmp_path / "killed"))[0], "n1")
        view = open_view(files_of(store, store.assets[0]))
        assert view.problem == "" and view.is_known
        checks = [check_file(task, FULL) for task in tasks_of(view)]
        store.close()
    assert [each.findings for each in checks] == [[] for _ in checks]
    assert [seq for each in checks for seq in each.rows.seqs.tolist()] == list(range(1, 25))


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_anywhere_in_a_block_is_found(tmp_path: Path, seed: int) -> None:
    """In records, header or footer, of sealed and newest blocks: one finding or more, and a
    damaged record is never taken for a good one."""
    rng = random.Random(f"flip {seed}")
    replica = Replica(tmp_path / "n1")
    replica.fill(300, batch=rng.choice([1, 5, 40]), size=rng.choice([0, 30, 200]))
    replica.snapshot()
    replica.close()
    path = replica.block(rng.randrange(1, replica.machine.index.blocks.active.block_no + 1))
    blob = path.read_bytes()
    at = rng.randrange(len(blob))
    damage.flip(path, at, 1 << rng.randrange(8))
    with small_blocks():
        store = Store(find_stores(replica.directory)[0], "n1")
        view = open_view(files_of(store, store.assets[0]))
        found = []
        for task in tasks_of(view):
            checked = check_file(task, FULL)
            found += [(each.code, each.file) for each in checked.findings]
            records = damage.records_of(Path(task.path))
            good = {record.seq: record.crc for record in records if record.type == fmt.MSG}
            read = dict(zip(checked.rows.seqs.tolist(), checked.rows.crcs.tolist(), strict=True))
            if task.path != str(path):
                assert read == {seq: crc for seq, crc in good.items() if seq in read}
        store.close()
    assert len(found) == 1, found
    code, where = found[0]
    assert where == str(path)
    wanted = {"block-header"} if at < 64 else {"record-crc", "footer-damaged"}
    assert code in wanted, (code, at)


def test_more_findings_than_a_block_may_have_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record of a block is damaged: the first few are named, the last says how many more."""
    monkeypatch.setattr(audit_block_task, "FINDINGS_MAX", 3)
    replica = Replica(tmp_path / "n1")
    replica.fill(300)
    replica.snapshot()
    replica.close()
    records = [each for each in damage.records_of(replica.block(1)) if each.type == fmt.MSG]
    for record in records:
        damage.flip(replica.block(1), record.offset + record.length - 1)
    with small_blocks():
        store = Store(find_stores(replica.directory)[0], "n1")
        checked = check_file(tasks_of(open_view(files_of(store, store.assets[0])))[0], FULL)
        store.close()
    assert [each.seq_lo for each in checked.findings] == [1, 2, 3]
    assert "more in this block" not in checked.findings[1].got
    assert checked.findings[2].got.endswith(f"; and {len(records) - 3} more in this block")


@pytest.mark.parametrize("size", range(0, 4000, 173))
def test_a_block_cut_anywhere_is_short(tmp_path: Path, size: int) -> None:
    replica = Replica(tmp_path / "n1")
    replica.fill(100)
    replica.snapshot()
    replica.close()
    with replica.block(1).open("r+b") as file:
        file.truncate(size)
    with small_blocks():
        store = Store(find_stores(replica.directory)[0], "n1")
        view = open_view(files_of(store, store.assets[0]))
        for level in (FULL, DIGEST):
            codes = [e.code for task in tasks_of(view) for e in check_file(task, level).findings]
            assert codes == ["block-short"], level
        store.close()


# --- one log index ------------------------------------------------------------------------------


def opened(directory: Path) -> tuple[list[Store], list[object]]:
    stores = [Store(place, place.server_name) for place in find_stores(directory)]
    return stores, [files_of(store, store.assets[0]) for store in stores]


def test_replicas_are_opened_where_all_can_be(tmp_path: Path) -> None:
    """The log index of the one that is least far, if the others can still be opened there."""
    with small_blocks():
        for node, count in zip(CLUSTER, (100, 100, 60), strict=True):
            replica = Replica(tmp_path / node, node=node, peers=CLUSTER)
            replica.fill(count, batch=10)
            replica.close()
        stores, files = opened(tmp_path)
        found = align(files)  # type: ignore[arg-type]
        assert (found.log_index, found.aligned) == (7, CLUSTER)
        assert len([note for note in found.notes if "4 log entries after" in note]) == 2
        for store in stores:
            store.close()


def test_one_whose_log_ends_before_the_others_begin_is_behind(tmp_path: Path) -> None:
    with small_blocks():
        for node, count in zip(CLUSTER, (100, 100, 60), strict=True):
            replica = Replica(tmp_path / node, node=node, peers=CLUSTER)
            replica.fill(count, batch=10)
            if node != "n3":
                replica.snapshot()
            replica.close()
        stores, files = opened(tmp_path)
        found = align(files)  # type: ignore[arg-type]
        assert (found.log_index, found.aligned) == (11, ("n1", "n2"))
        assert any("n3 is behind: its log ends at 7" in note for note in found.notes)
        for store in stores:
            store.close()
