"""The log against a small model, through crashes at any operation and tears at any byte."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from streamd.errors import CorruptionError
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState
from tests.sim.disk import SimCrash, SimDisk, SimThread

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 32 * 1024

State = dict[int, tuple[HardState, dict[int, tuple[int, bytes]]]]


def open_wal(
    disk: SimDisk, thread: SimThread, *, sync: Any = "always", helper: SimThread | None = None
) -> Wal:
    def fail(err: Exception) -> None:
        raise AssertionError(err)

    return Wal.open(
        disk, "/wal", thread, segment_bytes=SEGMENT_BYTES, sync=sync, on_error=fail, helper=helper
    )


class Model:
    """What the log must hold after each append, and what was released meanwhile."""

    def __init__(self) -> None:
        self.states: list[State] = [{}]
        self.acked = 0
        self.base: dict[int, int] = {}
        self.destroyed: set[int] = set()

    def append(self, writes: list[Any]) -> None:
        state = {uid: (hs, dict(entries)) for uid, (hs, entries) in self.states[-1].items()}
        for uid, entries, hard_state, truncate_from in writes:
            hs, have = state.get(uid, (HardState(), {}))
            if truncate_from:
                have = {i: e for i, e in have.items() if i < truncate_from}
            for entry in entries:
                have[entry.index] = (entry.term, entry.data)
            state[uid] = (hard_state or hs, have)
        self.states.append(state)

    def check(self, wal: Wal) -> None:
        """The log is what it was after some append that was acked, or one after it."""
        found: State = {}
        for uid, log in wal.groups.items():
            if uid in self.destroyed:
                continue
            base = self.base.get(uid, 0)
            assert log.first_index <= base + 1, (uid, log, base)
            start = max(base + 1, log.first_index)
            entries = (
                wal.read(uid, start, log.last_index + 1, 1 << 30)
                if (log.last_index >= start)
                else []
            )
            assert [entry.index for entry in entries] == list(range(start, log.last_index + 1))
            found[uid] = (log.hard_state, {e.index: (e.term, e.data) for e in entries})
        for at in range(len(self.states) - 1, self.acked - 1, -1):
            wanted = {
                uid: (hs, {i: e for i, e in have.items() if i > self.base.get(uid, 0)})
                for uid, (hs, have) in self.states[at].items()
                if uid not in self.destroyed
            }
            if {u: s for u, s in wanted.items() if s != (HardState(), {})} == {
                u: s for u, s in found.items() if s != (HardState(), {})
            }:
                self.states = [self.states[at]]
                self.acked = 0
                return
        raise AssertionError(
            f"the log lost an acked write; acked {self.acked} of {len(self.states) - 1}\n"
            f"found {_brief(found)}\nacked {_brief(self.states[self.acked])}\n"
            f"newest {_brief(self.states[-1])}\nbase {self.base} destroyed {self.destroyed}"
        )


def _brief(state: State) -> str:
    return "; ".join(
        f"{uid}: {tuple(hs)} {[(i, t, len(d)) for i, (t, d) in sorted(have.items())]}"
        for uid, (hs, have) in sorted(state.items())
    )


class Run:
    """One node's life: random appends, releases, destroys and crashes."""

    def __init__(self, seed: int, *, sync: Any = "always") -> None:
        self.sync = sync
        self.rng = random.Random(seed)
        self.is_quick = seed % 2 == 1  # the loop writes what it is given a chance to
        self.is_bulky = seed % 4 >= 2  # full segments are followed by reserved ones
        self.disk = SimDisk(seed)
        self.model = Model()
        self.term = 1
        self.next_uid = 1
        self.uids: list[int] = []

    def start(self) -> None:
        self.thread = SimThread(is_quick=self.is_quick)
        self.helper = SimThread()
        self.wal = open_wal(self.disk, self.thread, sync=self.sync, helper=self.helper)
        if self.is_bulky:
            self.wal._segment._batch_bytes = 1e9  # as after a load that lasts longer than this life
        if self.sync != "always":
            self.model.acked = 0  # done meant written; any earlier moment may come back
        self.model.check(self.wal)

    def last(self, uid: int) -> int:
        _, have = self.model.states[-1].get(uid, (HardState(), {}))
        return max(have, default=self.model.base.get(uid, 0))

    def act(self) -> None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.55:
            self.append()
            if self.is_quick and rng.random() < 0.5:
                self.wal.flush()
        elif roll < 0.8:
            self.thread.step()
        elif roll < 0.88:
            self.thread.complete()
        elif roll < 0.93:
            self.helper.step()
        elif roll < 0.98 and self.uids:
            self.release(rng.choice(self.uids))
        elif len(self.uids) > 3:
            uid = self.uids.pop(0)
            self.model.destroyed.add(uid)
            self.wal.destroy(uid)

    def act_without_release(self) -> None:
        """A release follows a durable snapshot; with lazy sync the model would need one too."""
        roll = self.rng.random()
        if roll < 0.55:
            self.append()
        elif roll < 0.8:
            self.thread.step()
        elif roll < 0.98:
            self.thread.complete()
        else:
            self.thread.run_later()

    def append(self) -> None:
        rng = self.rng
        writes: list[Any] = []
        for _ in range(rng.randint(1, 2)):
            if not self.uids or rng.random() < 0.05:
                self.uids.append(self.next_uid)
                self.next_uid += 1
            uid = rng.choice(self.uids)
            if any(uid == write[0] for write in writes):
                continue
            first = self.last(uid) + 1
            truncate = 0
            if rng.random() < 0.15 and first - 2 > self.model.base.get(uid, 0):
                truncate = first = first - rng.randint(1, 2)
            self.term += rng.random() < 0.1
            entries = [
                Entry(self.term, first + i, rng.randbytes(rng.choice((0, 1, 100, 700, 3000))))
                for i in range(rng.randint(0 if not truncate else 1, 3))
            ]
            hard_state = (
                HardState(self.term, rng.choice("abc"), first) if rng.random() < 0.3 else None
            )
            writes.append((uid, entries, hard_state, truncate))
        self.model.append(writes)
        at = len(self.model.states) - 1

        def done() -> None:
            assert self.model.acked < at, "done came twice or out of order"
            self.model.acked = at

        self.wal.append(writes, done)

    def release(self, uid: int) -> None:
        _, have = self.model.states[self.model.acked].get(uid, (HardState(), {}))
        durable = sorted(have)
        if durable:
            index = self.rng.choice(durable)
            if index > self.model.base.get(uid, 0) and index < self.last(uid) - 2:
                self.model.base[uid] = index
                self.wal.release(uid, index, have[index][0], 0)


@pytest.mark.parametrize("block", range(8))
def test_every_acked_write_survives_a_crash_at_any_operation(block: int) -> None:
    """Seeded runs of random work; the power goes at a random operation, some bytes torn."""
    for seed in range(block * 12, block * 12 + 12):
        run = Run(seed)
        run.start()
        for _ in range(5):
            run.disk.crash_at_operation = run.disk.operation_count + run.rng.randint(1, 90)
            try:
                for _ in range(150):
                    run.act()
            except SimCrash:
                pass
            run.disk.crash(keep=run.rng.choice((0.0, 0.5, 1.0)))
            if run.rng.random() < 0.3:  # and again while it recovers
                run.disk.crash_at_operation = run.disk.operation_count + run.rng.randint(1, 12)
                try:
                    run.start()
                except SimCrash:
                    run.disk.crash()
                run.disk.crash_at_operation = None
            run.start()


def test_with_lazy_sync_a_crash_leaves_the_log_as_it_was_at_some_moment() -> None:
    """Several unsynced batches at once, lost or torn in any order: still a prefix of the calls."""
    for seed in range(30):
        run = Run(5000 + seed, sync=60.0)
        run.start()
        for _ in range(3):
            run.disk.crash_at_operation = run.disk.operation_count + run.rng.randint(1, 60)
            try:
                for _ in range(200):
                    run.act_without_release()
            except SimCrash:
                pass
            run.disk.crash(keep=0.5)
            run.start()


@pytest.mark.parametrize(
    "point",
    [
        "WAL_SEGMENT_FULL",
        "WAL_SEGMENT_SYNCED",
        "WAL_SEGMENT_NAMED",
        "WAL_SEGMENT_STARTED",
        "WAL_MANIFEST_WRITTEN",
        "WAL_MANIFEST_SYNCED",
        "WAL_SEGMENT_RELEASED",
        "WAL_SEGMENT_SPARED",
        "WAL_SEGMENT_FREED",
    ],
)
def test_every_acked_write_survives_a_crash_at_each_named_point(point: str) -> None:
    """The same work, stopped between two durable steps."""
    for seed in range(4):
        run = Run(1000 + seed)
        run.start()
        run.disk.crash_at_point = point
        with pytest.raises(SimCrash):
            for _ in range(20_000):
                run.act()
        run.disk.crash(keep=0.5)
        run.start()


@pytest.mark.parametrize(
    "point", ["WAL_SEGMENT_NAMED", "WAL_MANIFEST_WRITTEN", "WAL_SEGMENT_SPARED"]
)
def test_a_power_cut_during_the_start_after_a_kill_harms_nothing(point: str) -> None:
    """What the killed process did last is in memory only, and the start builds on it."""
    for cut in range(1, 25):
        for seed in range(20):
            disk, thread = SimDisk(100 * cut + seed), SimThread()
            wal = open_wal(disk, thread, helper=SimThread())  # removes nothing
            disk.crash_at_point = point
            with pytest.raises(SimCrash):
                for index in range(1, 100):
                    wal.append([(5, [Entry(1, index, bytes(4000))], None, 0)], lambda: None)
                    thread.run()
                    wal.release(5, index - 2, 1, 0)
            disk.kill()
            disk.crash_at_operation = disk.operation_count + cut
            with suppress(SimCrash):
                open_wal(disk, SimThread())
            disk.crash(keep=seed % 2)
            assert open_wal(disk, SimThread()).groups[5].last_index >= index - 1


def filled(count: int = 12) -> tuple[SimDisk, list[int]]:
    """A log of `count` synced batches of one entry each; returns where each batch starts."""
    disk = SimDisk(1)
    thread = SimThread()
    wal = open_wal(disk, thread)
    starts: list[int] = []
    for index in range(1, count + 1):
        starts.append(wal._segment.position)
        wal.append([(5, [Entry(1, index, b"%04d" % index * 30)], None, 0)], lambda: None)
        thread.run()
    return disk, starts


def test_a_torn_last_batch_is_dropped_at_every_byte() -> None:
    """Cut the last batch after each of its bytes: what came before it is all there."""
    for cut in range(0, 64 + 40 + 120, 3):
        disk, starts = filled()
        path = "/wal/0000000000000001.wal"
        for at in range(starts[-1] + cut, starts[-1] + 512):
            disk._files[path].now[at] = disk._files[path].durable[at] = 0
        wal = open_wal(disk, SimThread())
        assert wal.groups[5].last_index == 11, cut
        assert wal.read(5, 11, 12, 1 << 20)[0].data == b"0011" * 30


def test_damage_to_a_witnessed_batch_is_corruption_and_changes_nothing() -> None:
    """Flip a byte of every batch but the last: the error names the segment and the offset."""
    for number in range(11):
        for delta in (0, 20, 60, 70, 110):
            disk, starts = filled()
            path = "/wal/0000000000000001.wal"
            disk.flip(path, starts[number] + delta)
            before = disk.contents(path)
            with pytest.raises(CorruptionError, match=f"wal: offset {starts[number]}"):
                open_wal(disk, SimThread())
            assert disk.contents(path) == before


def test_after_a_clean_close_even_the_last_batch_is_witnessed() -> None:
    disk = SimDisk(2)
    thread = SimThread()
    wal = open_wal(disk, thread)
    at = wal._segment.position
    wal.append([(5, [Entry(1, 1, b"only")], None, 0)], lambda: None)
    wal.close()
    thread.run()
    disk.flip("/wal/0000000000000001.wal", at + 70)
    with pytest.raises(CorruptionError):
        open_wal(disk, SimThread())


def test_a_missing_segment_is_corruption_not_an_empty_log() -> None:
    disk = SimDisk(3)
    thread = SimThread()
    wal = open_wal(disk, thread)
    for index in range(1, 40):
        wal.append([(5, [Entry(1, index, bytes(4000))], None, 0)], lambda: None)
        thread.run()
    names = [name for name in disk.listdir("/wal") if name.endswith(".wal")]
    assert len(names) > 3
    disk.unlink(f"/wal/{names[1]}")
    with pytest.raises(CorruptionError, match="missing"):
        open_wal(disk, SimThread())
