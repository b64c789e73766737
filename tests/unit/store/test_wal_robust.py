"""The log's answers to damage and to installs: resets, uncertainty, manifest, witness."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from streamd.errors import CorruptionError, DiskError
from streamd.store.disk import OsDisk
from streamd.store.wal import wal_format as wf
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState, LogState
from tests.sim.disk import SimDisk, SimThread
from tests.sim.overlay import OverlayDisk


class Bed:
    """A log on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.errors: list[Exception] = []
        self.start()

    def start(self, *, tolerates: bool = False, sync: Any = "always") -> None:
        self.thread = SimThread()
        self.wal = Wal.open(
            self.disk, "/wal", self.thread, segment_bytes=64 * 1024, sync=sync,
            on_error=self.errors.append, tolerate_damage=tolerates,
        )  # fmt: skip

    def append(self, *indexes: int, term: int = 1, group: int = 5, size: int = 10) -> None:
        entries = [Entry(term, index, bytes(size), chain=100 * term + index) for index in indexes]
        self.wal.append([(group, entries, None, 0)], lambda: None)

    def stop(self) -> None:
        self.wal.close()
        self.thread.run()

    def segments(self) -> list[str]:
        return [f"/wal/{name}" for name in self.disk.listdir("/wal") if name.endswith(".wal")]

    def indexes(self, group: int = 5) -> list[int]:
        state = self.wal.groups[group]
        found = self.wal.read(group, state.first_index, state.last_index + 1, 1 << 30)
        return [entry.index for entry in found]


# --- hard states, resets ------------------------------------------------------------------------


def test_a_hard_state_remembers_that_the_member_is_uncertain_until_it_is_not() -> None:
    bed = Bed()
    for state in (HardState(3, "n1", 7, True), HardState(3, "n1", 7, False)):
        bed.wal.append([(5, [], state, 0)], lambda: None)
        bed.thread.run()
        for _ in range(2):  # from the record, and from what the next segment repeats
            bed.start()
            assert bed.wal.groups[5].hard_state == state


def test_a_reset_voids_all_entries_also_those_in_flight_and_the_log_goes_on_behind_it() -> None:
    bed = Bed()
    done: list[str] = []
    bed.append(1, 2, 3)
    bed.thread.run()
    bed.append(4, 5)  # not written yet
    bed.wal.append([(5, [Entry(2, 6, b"")], HardState(2, "b"), 0)], lambda: None)
    bed.thread.step()  # written, not yet known to be
    bed.append(7, term=2)
    bed.wal.reset_group(5, 50, 3, 77, lambda: done.append("reset"))
    assert bed.wal.groups[5] == LogState(HardState(), 51, 50, 3, 77)
    bed.append(51, 52, term=3)
    bed.thread.run()
    assert done == ["reset"]
    for _ in range(3):
        assert bed.wal.groups[5] == LogState(HardState(2, "b"), 51, 52, 3, 77)
        assert bed.indexes() == [51, 52]
        bed.disk.crash(keep=0.0)
        bed.start()


def test_a_reset_may_go_backwards_and_survives_the_segments_before_it() -> None:
    bed = Bed()
    bed.append(*range(1, 40))
    bed.thread.run()
    bed.wal.release(5, 30, 1, 130)
    bed.wal.reset_group(5, 20, 2, 9)
    bed.append(21, term=3)
    bed.thread.run()
    for index in range(1, 200):
        bed.append(index, group=6, size=1000)
        bed.thread.run()
    for _ in range(2):
        assert bed.wal.groups[5] == LogState(HardState(), 21, 21, 2, 9)
        bed.start()


def test_entries_in_flight_beyond_a_reset_are_void() -> None:
    """It looks as if it went on from where the log begins anew."""
    bed = Bed()
    bed.append(1, 2)
    bed.thread.run()
    bed.append(3)
    bed.thread.step()  # written, not yet known to be
    bed.append(4)
    bed.wal.reset_group(5, 2, 1, 102)
    bed.thread.run()
    assert bed.wal.groups[5] == LogState(HardState(), 3, 2, 1, 102)
    bed.append(3, term=2)
    bed.thread.run()
    for _ in range(2):
        assert [entry.term for entry in bed.wal.read(5, 3, 9, 1 << 30)] == [2]
        bed.start()


def test_a_reset_group_can_be_destroyed_and_two_resets_in_flight_count_once_each() -> None:
    bed = Bed()
    bed.append(1)
    bed.wal.reset_group(5, 10, 1, 0)
    bed.append(11)
    bed.wal.reset_group(5, 20, 1, 0)
    bed.append(21)
    bed.append(1, group=6)
    bed.wal.reset_group(6, 10, 1, 0)
    bed.wal.destroy(6)
    bed.thread.run()
    assert bed.indexes() == [21]
    bed.append(22)
    bed.thread.run()
    bed.start()
    assert bed.indexes() == [21, 22]
    assert 6 not in bed.wal.groups


def test_a_group_that_comes_back_has_the_entries_logged_after_its_end() -> None:
    """A stream moves away and comes back before anything else is logged."""
    bed = Bed()
    bed.append(1, 2)
    bed.wal.append([(5, [], HardState(3, "n1", 2), 0)], lambda: None)
    bed.thread.step()  # written, not yet known to be
    bed.append(3)
    bed.wal.destroy(5)
    bed.wal.append([(5, [Entry(4, 1, b"new")], HardState(4, "n2", 0), 0)], lambda: None)
    bed.thread.run()
    bed.append(2, term=4)
    bed.thread.run()
    for _ in range(2):
        assert bed.indexes() == [1, 2]
        assert bed.wal.read(5, 1, 2, 100)[0].data == b"new"
        assert bed.wal.groups[5].hard_state == HardState(4, "n2", 0)
        bed.disk.crash(keep=0.0)
        bed.start()


def test_a_group_that_comes_back_with_a_snapshot_has_not_the_vote_of_before() -> None:
    bed = Bed()
    bed.wal.append([(5, [], HardState(3, "n1", 2), 0)], lambda: None)
    bed.wal.destroy(5)
    bed.wal.reset_group(5, 9, 1, 7)
    bed.append(10)
    bed.thread.run()
    for _ in range(2):
        assert bed.wal.groups[5] == LogState(HardState(), 10, 10, 1, 7)
        bed.disk.crash(keep=0.0)
        bed.start()


def test_a_log_is_given_up_and_that_is_admitted_in_one_durable_step() -> None:
    bed = Bed()
    bed.append(1, 2)
    bed.thread.run()
    batch = bed.wal._segment.next_batch
    bed.wal.reset_group(5, 9, 2, 7, hard_state=HardState(4, "n", 9, True))
    bed.thread.run()
    assert bed.wal._segment.next_batch == batch + 1
    for _ in range(2):
        assert bed.wal.groups[5] == LogState(HardState(4, "n", 9, True), 10, 9, 2, 7)
        bed.disk.crash(keep=0.0)
        bed.start()


def test_a_failure_is_reported_once_and_nothing_is_done_after_it() -> None:
    """An append failed; a reset and an append come after it."""
    bed = Bed()
    bed.disk.fail("fdatasync", errno.EIO, under="/wal")
    bed.append(1)
    bed.thread.run()
    done: list[int] = []
    bed.wal.reset_group(5, 9, 1, 0, lambda: done.append(1))
    bed.append(2)
    bed.thread.run()
    assert (done, len(bed.errors)) == ([], 1)
    assert isinstance(bed.errors[0], DiskError)


# --- identity and manifest ----------------------------------------------------------------------


def test_a_write_that_failed_for_whatever_reason_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waited behind it would leave a gap, and with that void all before it."""
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    bed.wal._writer._batch_size.bytes_max = 100  # one append each
    bed.append(2)
    bed.append(3)
    with monkeypatch.context() as patch:
        patch.setattr(bed.disk, "writev", lambda *args, **options: bytearray(1 << 62))
        bed.thread.run()
    assert "MemoryError" in str(bed.errors[0])
    bed.append(4)
    bed.stop()
    assert len(bed.errors) == 1
    bed.start()
    assert bed.indexes() == [1]


def test_the_log_keeps_its_id_and_an_emptied_directory_gets_another() -> None:
    bed = Bed()
    first = bed.wal.log_id
    bed.start()
    assert bed.wal.log_id == first
    bed.disk.wipe("/wal")
    bed.start()
    assert bed.wal.log_id != first


def test_losing_the_newest_segment_is_noticed() -> None:
    for crashed in (False, True):
        bed = Bed()
        for index in range(1, 100):
            bed.append(index, size=1000)
            bed.thread.run()
        bed.disk.crash() if crashed else bed.stop()
        bed.disk.wipe(bed.segments()[-1])
        with pytest.raises(CorruptionError, match="is missing"):
            bed.start()


def test_losing_all_segments_is_noticed_and_tolerated_with_the_same_id() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    log_id = bed.wal.log_id
    for path in bed.segments():
        bed.disk.wipe(path)
    with pytest.raises(CorruptionError, match="is missing"):
        bed.start()
    bed.start(tolerates=True)
    assert bed.wal.may_have_lost_groups
    assert (bed.wal.log_id, bed.wal.groups) == (log_id, {})
    bed.start()  # what was lost is known by now
    assert not bed.wal.damage


def test_one_bad_copy_of_the_manifest_does_no_harm_two_are_damage() -> None:
    for copies in ((0,), (4096,), (0, 4096)):
        bed = Bed()
        for index in range(1, 150):
            bed.append(index, size=1000)
            bed.thread.run()
        bed.stop()
        for at in copies:
            bed.disk.zero("/wal/manifest", at, 100)
        if len(copies) == 2:
            with pytest.raises(CorruptionError, match="manifest is damaged"):
                bed.start()
        else:
            bed.start()


def test_a_directory_of_before_there_were_manifests_opens_and_gets_one() -> None:
    """Its segments have no tips, and the manifest is simply not there."""
    bed = Bed()
    bed.append(1, 2)
    bed.thread.run()
    bed.stop()
    bed.disk.wipe("/wal/manifest")  # no group had anything when the only segment began: no tips
    bed.start()
    assert bed.indexes() == [1, 2]
    assert bed.disk.exists("/wal/manifest")
    bed.stop()
    bed.disk.wipe("/wal/manifest")  # now a segment says that there was one
    with pytest.raises(CorruptionError, match="manifest is missing"):
        bed.start()


# --- the idle witness ---------------------------------------------------------------------------


def test_after_an_idle_moment_rot_of_the_last_batch_is_not_taken_for_a_tear() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    at = bed.wal._segment.position
    bed.append(2)
    bed.thread.run()
    bed.thread.run_later()  # just looks where the log is
    syncs = bed.wal.sync_count
    bed.thread.run_later()
    assert bed.wal.sync_count == syncs + 1
    bed.thread.run_later()  # and then rests
    assert bed.wal.sync_count == syncs + 1
    bed.disk.crash(keep=0.0)
    bed.disk.flip(bed.segments()[-1], at + 70)
    with pytest.raises(CorruptionError, match="says it was durable"):
        bed.start()
    bed.start(tolerates=True)
    assert (list(bed.wal.damaged_groups), bed.indexes()) == ([5], [1])


def test_no_witness_is_written_while_appends_come_or_after_a_failure_or_the_end() -> None:
    bed = Bed()
    for index in range(1, 5):
        bed.append(index)
        bed.thread.run()
        batch = bed.wal._segment.next_batch
        bed.thread.run_later()
        assert bed.wal._segment.next_batch == batch
    bed.disk.fail_next["fdatasync"] = errno.EIO
    bed.thread.run_later()
    assert isinstance(bed.errors[0], DiskError)
    bed.thread.run_later()
    bed.disk.crash()
    bed.start()
    bed.append(5)
    bed.thread.run()
    bed.stop()
    bed.thread.run_later()
    bed.start()


# --- damage -------------------------------------------------------------------------------------


def test_a_lost_segment_damages_only_groups_that_had_something_in_it() -> None:
    """Group 6 has nothing in the lost segment, 7 is covered by a snapshot, 8 began later."""
    bed = Bed()
    for uid in (6, 7):
        bed.append(1, 2, group=uid)
        bed.wal.append([(uid, [], HardState(1, "n"), 0)], lambda: None)
    for index in range(1, 300):
        bed.append(index, size=1000)
        bed.thread.run()
        if index == 100:
            bed.append(3, group=7)
        if index == 250:
            bed.wal.append([(8, [Entry(1, 1, b"")], HardState(1, "n"), 0)], lambda: None)
            bed.wal.release(7, 3, 1, 103)
    bed.stop()
    lost = bed.segments()[1]
    bed.disk.wipe(lost)
    bed.start(tolerates=True)
    assert list(bed.wal.damaged_groups) == [5]
    assert not bed.wal.may_have_lost_groups
    assert len(bed.wal.damage) == 1
    assert lost.rsplit("/", 1)[1] in bed.wal.damage[0]
    assert bed.indexes(6) == [1, 2]
    assert bed.wal.groups[7] == LogState(HardState(1, "n"), 4, 3, 1, 103)
    assert bed.indexes(8) == [1]
    assert bed.indexes(5) == list(range(1, bed.wal.groups[5].last_index + 1))
    assert bed.wal.groups[5].hard_state.is_uncertain


def test_damaged_files_are_kept_aside_byte_for_byte_and_spares_are_not_mistaken_for_them() -> None:
    bed = Bed()
    for index in range(1, 100):
        bed.append(index, size=1000)
        bed.thread.run()
    bed.stop()
    path = bed.segments()[0]
    bed.disk.flip(path, 4608 + 1536 + 200)
    before = {path.rsplit("/", 1)[1]: bed.disk.contents(path) for path in bed.segments()}
    bed.start(tolerates=True)
    assert {
        name: bed.disk.contents(f"/wal/damaged-1/{name}")
        for name in bed.disk.listdir("/wal/damaged-1")
    } == before
    assert len(bed.segments()) == 1
    bed.stop()
    bed.disk.flip(bed.segments()[0], 4608 + 200)
    bed.start(tolerates=True)
    assert bed.disk.listdir("/wal/damaged-2") != []


def test_a_stale_prefix_is_not_joined_to_entries_after_the_loss() -> None:
    """The lost segment replaced entries 3 and 4; entry 5 must not follow the old ones."""
    bed = Bed()
    bed.append(1, 2, 3, 4)
    for index in range(1, 300):
        bed.append(index, group=6, size=1000)
        bed.thread.run()
        number = len(bed.segments())
        if number == 2 and bed.wal.groups[5].last_index == 4 and not bed.errors:
            entries = [Entry(2, i, b"new", chain=200 + i) for i in (3, 4)]
            bed.wal.append([(5, entries, None, 3)], lambda: None)
            bed.errors.append(Exception())  # once
        if number == 3 and bed.wal.groups[5].last_index == 4:
            bed.append(5, term=2)
    bed.stop()
    bed.disk.wipe(bed.segments()[1])
    bed.start(tolerates=True)
    assert 5 in bed.wal.damaged_groups
    found = bed.wal.read(5, 1, 99, 1 << 30)
    assert [(e.term, e.index) for e in found] == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_an_unreadable_page_is_an_error_or_tolerated() -> None:
    bed = Bed()
    for index in range(1, 30):
        bed.append(index, size=1000)
        bed.thread.run()
    bed.stop()
    bed.disk.bad_read(bed.segments()[0], 8192, 100)
    with pytest.raises(DiskError, match=rf"{bed.segments()[0]}: offset 8192: .*Input/output error"):
        bed.start()
    bed.start(tolerates=True)
    assert 5 in bed.wal.damaged_groups
    assert bed.indexes() == list(range(1, bed.wal.groups[5].last_index + 1))


@pytest.mark.parametrize("path", ["/wal/manifest", "/wal/0000000000000001.wal"])
@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("open", errno.EACCES),  # started as somebody else
        ("open", errno.EMFILE),
        ("pread", errno.ENOMEM),
    ],
)
def test_a_file_that_may_not_be_read_now_is_no_damage(operation: str, code: int, path: str) -> None:
    """Else every node that meets it gives its log up, with what it has acked and voted."""
    bed = Bed()
    bed.append(1, 2)
    bed.thread.run()
    files = {name: bed.disk.contents(name) for name in bed.disk.paths}
    bed.disk.fail(operation, code, under=path, count=0)
    with pytest.raises(DiskError):
        bed.start(tolerates=True)
    assert {name: bed.disk.contents(name) for name in bed.disk.paths} == files
    bed.disk.heal()
    bed.start(tolerates=True)
    assert not bed.wal.damage and bed.indexes() == [1, 2]


def test_records_of_an_earlier_use_are_no_part_of_a_torn_batch() -> None:
    """A segment is used again, and its batches may lie as those before them did. Of the last one a
    crash may leave the pages it begins in: older records stood behind, whole ones, and took back
    votes that were safe."""
    bed = Bed()
    uids = range(1, 41)
    vote = "a-node-of-16-chr"  # so that a record ends where a page does, in one of 8 batches

    def vote_all(term: int) -> None:
        bed.wal.append([(uid, [], HardState(term, vote, 0), 0) for uid in uids], lambda: None)
        bed.thread.run()

    term = 0
    while bed.wal.segment_no < 8:
        term += 1
        vote_all(term)
    path = bed.segments()[-1]
    cut_count = 0
    for safe in range(term, term + 8):
        before = bed.disk.contents(path)
        vote_all(safe + 1)
        after = bed.disk.contents(path)
        for cut in range(4096, len(after), 4096):
            if after[:cut] == before[:cut] or after[cut:] == before[cut:]:
                continue
            cut_count += 1
            torn = Bed()
            torn.disk = SimDisk()
            torn.disk.make_dirs("/wal")
            for name in bed.disk.paths:
                fd = torn.disk.open(name, create=True)
                blob = after[:cut] + before[cut:] if name == path else bed.disk.contents(name)
                torn.disk.pwrite(fd, blob, 0)
                torn.disk.close(fd)
            torn.start()
            assert {torn.wal.groups[uid].hard_state.term for uid in uids} == {safe}, cut
    assert cut_count > 3


@pytest.mark.parametrize("vote", ["", "n"])
def test_records_of_any_kind_tell_batches_apart(vote: str) -> None:
    """The crc of what ends with its own crc is always the same."""
    batches = [
        [
            wf.encode_record(wf.TRUNCATE, 5, term=0, index=number),
            wf.encode_hard_state(5, HardState(number, vote, 0)),
            wf.encode_entry_header(5, 1, 9, 9, b"%d" % number),
        ]
        for number in range(2)
    ]
    ties = {
        wf.tie_of([batches[a][0], batches[b][1], batches[c][2]])
        for a in range(2)
        for b in range(2)
        for c in range(2)
    }
    assert len(ties) == 8


def test_a_torn_tail_is_no_damage() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    at = bed.wal._segment.position
    bed.append(2, size=700)
    bed.thread.run()
    bed.disk.flip(bed.segments()[0], at + 600)
    bed.start(tolerates=True)
    assert (bed.wal.damage, bed.wal.damaged_groups, bed.indexes()) == ([], {}, [1])
    assert bed.wal.dropped_bytes > 0


def test_the_manifest_takes_the_newer_whole_copy() -> None:
    def copy(generation: int) -> bytes:
        blob = wf.encode_manifest(wf.Manifest(7, generation, 10 * generation))
        return blob.ljust(wf.MANIFEST_COPY_BYTES, b"\0")

    blank = bytes(wf.MANIFEST_COPY_BYTES)
    assert wf.decode_manifest(copy(2) + copy(3)) == wf.Manifest(7, 3, 30)
    assert wf.decode_manifest(copy(4) + copy(3)) == wf.Manifest(7, 4, 40)
    assert wf.decode_manifest(blank + copy(3)) == wf.Manifest(7, 3, 30)
    assert wf.decode_manifest(copy(2)) == wf.Manifest(7, 2, 20)
    assert wf.decode_manifest(blank + blank) is None


@pytest.mark.parametrize("disk", [OsDisk(), OverlayDisk()], ids=["os", "overlay"])
def test_on_real_files_a_damaged_log_goes_on(disk: OsDisk, tmp_path: Path) -> None:
    def fail(err: Exception) -> None:
        raise err

    directory = str(tmp_path / "wal")
    thread = SimThread()

    def start() -> Wal:
        return Wal.open(
            disk, directory, thread, segment_bytes=64 * 1024, sync="always",
            on_error=fail, tolerate_damage=True,
        )  # fmt: skip

    wal = start()
    for index in range(1, 100):
        wal.append([(5, [Entry(1, index, bytes(1000), chain=index)], None, 0)], lambda: None)
        thread.run()
    wal.close()
    thread.run()
    (tmp_path / "wal" / "0000000000000002.wal").unlink()
    wal = start()
    kept = wal.groups[5].last_index
    assert 0 < kept < 99
    assert list(wal.damaged_groups) == [5]
    wal.append([(6, [Entry(1, 1, b"on")], None, 0)], lambda: None)
    thread.run()
    wal.close()
    thread.run()
    wal = start()
    assert (wal.damage, wal.groups[5].last_index, wal.groups[6].last_index) == ([], kept, 1)
    assert wal.groups[5].hard_state.is_uncertain
    assert len(list((tmp_path / "wal" / "damaged-1").iterdir())) >= 2


# --- failed syncs -------------------------------------------------------------------------------


def test_bytes_of_a_failed_sync_are_written_again_before_they_count() -> None:
    """After a failed fdatasync the pages are clean and hold what the platter never got: a sync of
    the same file then promises nothing."""
    for _ in range(20):  # whether a failed sync kept the write is the disk's dice
        bed = Bed()
        bed.append(1)
        bed.thread.run()
        bed.append(2)
        bed.disk.fail("fdatasync", errno.EIO, under="/wal/")
        bed.thread.run()
        assert bed.errors
        bed.disk.kill()
        bed.start()
        found = bed.indexes()
        assert found in ([1], [1, 2])  # whatever it is: from now on it is promised
        bed.disk.crash(keep=0.0)
        bed.start()
        assert bed.indexes() == found
