"""A damaged log that is tolerated: what it keeps is true, and who may have lost something is named.

Random work, a clean stop, one random fault (rot, removed or unreadable segments, a lost manifest,
files of somebody else), and a start that tolerates it: groups that are not named are exactly what
they were; the others hold only what once was true, without gaps, and say `is_uncertain` for ever.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState
from tests.sim.disk import SimCrash, SimDisk, SimThread

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 32 * 1024
Known = dict[int, tuple[int, int, bytes]]  # index -> (term, chain, data)


def fail(err: Exception) -> None:
    raise AssertionError(err)


def open_wal(disk: SimDisk, *, tolerates: bool = True) -> tuple[Wal, SimThread]:
    thread = SimThread()
    wal = Wal.open(
        disk, "/wal", thread, segment_bytes=SEGMENT_BYTES, sync="always", on_error=fail,
        tolerate_damage=tolerates,
    )  # fmt: skip
    return wal, thread


class Member:
    """What one group holds, and all it ever held."""

    def __init__(self) -> None:
        self.base = (0, 0, 0)
        self.bases = {self.base}
        self.entries: Known = {}
        self.ever: set[tuple[int, int, int, bytes]] = set()
        self.hard_state = HardState()
        self.hard_states = {HardState()}

    @property
    def last(self) -> int:
        return max(self.entries, default=self.base[0])

    def put(self, entry: Entry) -> None:
        self.entries[entry.index] = (entry.term, entry.chain, entry.data)
        self.ever.add((entry.index, entry.term, entry.chain, entry.data))

    def move_base(self, base: tuple[int, int, int], *, keeps: bool) -> None:
        self.base = base
        self.bases.add(base)
        self.entries = {i: e for i, e in self.entries.items() if keeps and i > base[0]}


class Work:
    """Random appends, conflicts, releases, resets and destroyed groups."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"damage/{seed}")
        self.disk = SimDisk(seed)
        self.members: dict[int, Member] = {}
        self.term = 1
        self.next_uid = 1

    def run(self, wal: Wal, thread: SimThread, count: int) -> None:
        rng = self.rng
        for _ in range(count):
            roll = rng.random()
            if roll < 0.04 or len(self.members) < 2:
                uid, self.next_uid = self.next_uid, self.next_uid + 1
                self.members[uid] = Member()
                self._append(wal, uid, HardState(self.term, "n", 0, rng.random() < 0.1))
                continue
            uid = rng.choice(sorted(self.members))
            member = self.members[uid]
            if roll < 0.80:
                voted = rng.random() < 0.2
                self._append(wal, uid, HardState(self.term, rng.choice("abc")) if voted else None)
            elif roll < 0.94 and member.entries:
                index = rng.choice(sorted(member.entries))
                term, chain, _ = member.entries[index]
                wal.release(uid, index, term, chain)
                member.move_base((index, term, chain), keeps=True)
            elif roll < 0.97:
                base = (max(1, member.last + rng.randint(-3, 9)), self.term, rng.getrandbits(32))
                wal.reset_group(uid, *base)
                member.move_base(base, keeps=False)
            elif len(self.members) > 4:
                wal.destroy(uid)
                del self.members[uid]
            if rng.random() < 0.5:
                thread.run()
        wal.append([], lambda: None)  # what was lazy goes with it
        thread.run()

    def _append(self, wal: Wal, uid: int, hard_state: HardState | None) -> None:
        rng, member = self.rng, self.members[uid]
        first, truncate = member.last + 1, 0
        if rng.random() < 0.15 and len(member.entries) > 3:
            truncate = first = first - rng.randint(1, 2)
            self.term += 1
            member.entries = {i: e for i, e in member.entries.items() if i < truncate}
        entries = [
            Entry(
                self.term, first + i, rng.randbytes(rng.choice((0, 9, 500, 2500))),
                chain=rng.getrandbits(32),
            )
            for i in range(rng.randint(1, 4))
        ]  # fmt: skip
        for entry in entries:
            member.put(entry)
        if hard_state is not None:
            member.hard_state = hard_state
            member.hard_states.add(hard_state)
        wal.append([(uid, entries, hard_state, truncate)], lambda: None)

    # --- checks -----------------------------------------------------------------------------

    def check(self, wal: Wal, damaged: dict[int, str], *, may_miss: bool = False) -> None:
        for uid, member in self.members.items():
            if uid not in wal.groups:
                is_blank = not member.entries and member.base[0] == 0
                assert is_blank or may_miss, f"group {uid} vanished unnoticed"
                continue
            state = wal.groups[uid]
            found = contents(wal, uid)
            if uid not in damaged:
                assert state.first_index == member.base[0] + 1, (uid, state, member.base)
                assert found == member.entries, (uid, state, sorted(member.entries))
                assert state.hard_state == member.hard_state
                assert (state.prev_term, state.prev_chain) == member.base[1:]
                continue
            assert state.hard_state.is_uncertain
            assert any(state.hard_state[:3] == known[:3] for known in member.hard_states)
            for index, fields in found.items():
                assert (index, *fields) in member.ever, (uid, index)
            base = (state.first_index - 1, state.prev_term, state.prev_chain)
            assert base in member.bases, (uid, base)


def contents(wal: Wal, uid: int) -> Known:
    state = wal.groups[uid]
    entries = wal.read(uid, state.first_index, state.last_index + 1, 1 << 40)
    assert [e.index for e in entries] == list(range(state.first_index, state.last_index + 1))
    return {e.index: (e.term, e.chain, e.data) for e in entries}


def segments(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir("/wal") if name.endswith(".wal")]


FAULTS = (
    "rot", "zeros", "header", "remove", "remove newest", "remove all", "unreadable", "manifest",
    "no manifest", "garbage", "empty file", "directory",
)  # fmt: skip


def harm(work: Work, fault: str, close_at: int) -> bool:
    """Do one thing to the log; True if something durable is gone."""
    rng, disk = work.rng, work.disk
    names = segments(disk)
    path = f"/wal/{rng.choice(names)}"
    is_newest = path.endswith(names[-1])
    end = close_at if is_newest else len(disk.contents(path))
    if fault == "rot":
        disk.flip(path, rng.randrange(4096, end), rng.randint(1, 255))
    elif fault == "zeros":
        at = rng.randrange(4096, end)
        disk.zero(path, at, min(rng.choice((1, 600, 9000)), end - at))
    elif fault == "header":
        disk.zero(path, 0, 4096)
    elif fault in ("remove", "remove newest"):
        disk.wipe(f"/wal/{names[-1]}" if fault == "remove newest" else path)
        return fault == "remove newest" or is_newest
    elif fault == "remove all":
        for name in names:
            disk.wipe(f"/wal/{name}")
    elif fault == "unreadable":
        at = rng.randrange(0, end)
        disk.bad_read(path, at, min(rng.choice((1, 5000)), end - at))
    elif fault == "manifest":
        disk.zero("/wal/manifest", 0, 8192)
    elif fault == "no manifest":
        disk.wipe("/wal/manifest")
    else:
        garbage = rng.choice(("zz.wal", "ffffffffffffffff.wal", "00000000000000ff.wal"))
        if fault == "directory":
            disk.make_dirs(f"/wal/{garbage}")
        else:
            fd = disk.open(f"/wal/{garbage}", create=True)
            disk.pwrite(fd, rng.randbytes(9000 if fault == "garbage" else 0), 0)
            disk.fdatasync(fd)
            disk.close(fd)
            disk.sync_dir("/wal")
        return garbage.startswith("00") and fault != "empty file"  # else it is foreign, no damage
    return fault in ("header", "remove all", "manifest", "no manifest")


def prepared(seed: int) -> tuple[Work, int]:
    """A log after some lives, closed cleanly; also where its last witness is."""
    work = Work(seed)
    for _ in range(work.rng.randint(1, 3)):
        wal, thread = open_wal(work.disk, tolerates=False)
        work.check(wal, {})
        work.run(wal, thread, work.rng.randint(10, 90))
        close_at = wal._segment.position
        wal.close()
        thread.run()
    return work, close_at


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_log_keeps_true_entries_and_names_groups_that_lost_some(fault: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        work, close_at = prepared(seed)
        log_id = open_wal(work.disk)[0].log_id if seed % 2 else ""
        work.disk.crash()
        if seed % 2:
            close_at = len(work.disk.contents(f"/wal/{segments(work.disk)[-1]}")) - 20_000
            close_at = max(5000, close_at)
        is_gone = harm(work, fault, close_at)
        was_cut = work.rng.random() < 0.4
        if was_cut:  # the power goes while it is repaired, or right after
            work.disk.crash_at_operation = work.disk.operation_count + work.rng.randint(20, 70)
            try:
                open_wal(work.disk)
            except SimCrash:
                seen["cut short"] += 1
            work.disk.crash_at_operation = None
            work.disk.crash()
        wal, thread = open_wal(work.disk)
        damaged = dict(wal.damaged_groups)
        for uid, state in wal.groups.items():
            if state.hard_state.is_uncertain and uid in work.members:
                if not work.members[uid].hard_state.is_uncertain:
                    damaged.setdefault(uid, "by a start that was cut short")
        # A start that was cut short knew; nothing of a group that has no trace is kept.
        may_miss = wal.may_have_lost_groups or was_cut
        work.check(wal, damaged, may_miss=may_miss)
        assert wal.damage or not is_gone or was_cut
        seen["damaged"] += bool(damaged)
        seen["whole"] += not damaged
        if log_id and fault != "remove all":
            assert wal.log_id == log_id
        # It goes on, and the next start, which tolerates nothing, finds the same.
        before = {uid: (wal.groups[uid], contents(wal, uid)) for uid in wal.groups}
        wal.append([(999, [Entry(1, 1, b"on", chain=5)], None, 0)], lambda: None)
        thread.run()
        work.disk.heal()
        work.disk.crash(keep=0.0)
        wal, _ = open_wal(work.disk, tolerates=False)
        assert {u: (wal.groups[u], contents(wal, u)) for u in wal.groups if u != 999} == before
        assert contents(wal, 999) == {1: (1, 5, b"on")}
    if fault in ("rot", "zeros", "unreadable", "remove", "header"):
        assert seen["damaged"] > 3, seen
