"""Catch-up: a follower fetches the leader's snapshot over a bent wire, onto a disk that crashes."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import errors, limits
from streamd.node.catchup import fetch as c
from streamd.node.integrity.scrub import check_installed
from streamd.store.blocks.quarantine import quarantine
from streamd.store.transfer.install import read_marker
from streamd.store.transfer.manifest import Manifest
from tests.sim.catchup import DELETE_MSG, MEMBERS, PURGE, ROOT, UID, Replica, World
from tests.sim.disk import SimCrash

STREAM = f"{ROOT}/streams/{UID}"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of these tests are small; they shall still come in several pieces."""
    monkeypatch.setattr(limits, "CATCHUP_CHUNK_BYTES", 1000)


def leader(name: str = "a", *, seed: int = 1, is_file: bool = True) -> Replica:
    """A replica with 200 messages in some ten blocks, a few of them deleted, saved."""
    replica = Replica(name, seed=seed, is_file=is_file)
    replica.publish(120)
    for seq in (5, 50, 51, 77):
        replica.apply(DELETE_MSG, 1, seq, False)
    replica.publish(80)
    replica.save()
    return replica


def same(one: Replica, other: Replica) -> bool:
    return (
        one.machine.digest == other.machine.digest
        and one.machine.snapshot() == other.machine.snapshot()
    )


def test_a_wiped_follower_gets_every_block_and_says_what_it_installed() -> None:
    one = leader()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    world.run()
    (done,) = world.done
    assert done == c.InstalledSnapshot(204, 3, 204 * 11, MEMBERS, one.machine.digest)
    assert same(world.reopened(), one)
    assert world.catchup.state == c.DONE
    for name in one.disk.listdir(STREAM):
        if name.endswith(".blk") and name != f"{one.machine.tail[0]}.blk":
            assert one.disk.contents(f"{STREAM}/{name}") == world.follower.disk.contents(
                f"{STREAM}/{name}"
            )


def test_a_memory_stream_is_fetched_from_memory() -> None:
    one = leader(is_file=False)
    one.publish(50)  # after the snapshot: not in it
    world = World(Replica("b", is_file=False), one)
    world.catchup.start("a", 1)
    world.run()
    follower = world.reopened()
    assert follower.machine.index.last_seq == 200
    assert follower.machine.digest == world.done[0].digest
    follower.publish(50)
    assert same(follower, one)
    follower.save()
    assert follower.store.load_snapshot().index == 254


def test_blocks_of_a_memory_stream_outlive_a_purge_while_its_snapshot_does() -> None:
    one = leader(is_file=False)
    digest = one.machine.digest
    one.apply(PURGE, 1, b"", 0, 0)
    world = World(Replica("b", is_file=False), one)
    world.catchup.start("a", 1)
    world.run()
    assert world.reopened().machine.digest == digest


def test_the_leader_makes_a_snapshot_when_its_newest_is_too_old() -> None:
    one = leader()
    one.publish(10)
    world = World(Replica("b"), one)
    world.catchup.start("a", 210)
    world.run()
    assert not world.done
    assert [index for index, _ in one.waiting] == [210]
    one.save()
    world.run()
    assert world.done[0].index == 214
    assert same(world.reopened(), one)


def test_a_repeated_offer_of_the_same_leader_changes_nothing() -> None:
    world = World(Replica("b"), leader())
    world.catchup.start("a", 1)
    for _ in range(30):
        world.step()
        world.catchup.start("a", 3)
    world.run()
    assert [method for _, method, _ in world.asked].count("manifest") == 1
    assert len(world.done) == 1


def test_the_window_bounds_what_is_under_way() -> None:
    world = World(Replica("b"), leader())
    world.catchup.start("a", 1)
    most = 0
    while not world.done:
        assert world.step()
        most = max(most, len(world.calls))
    assert most == limits.CATCHUP_WINDOW
    assert world.catchup.progress[0] == world.catchup.progress[1] > 0


@pytest.mark.parametrize("where", [0, 30, 70, 300, 999])
def test_a_block_damaged_on_the_wire_is_fetched_again(where: int) -> None:
    one = leader()
    world = World(Replica("b"), one)
    bent: list[int] = []

    def bend(method: str, args: list[Any], result: Any) -> Any:
        if method == "block" and args[2] == 2 and not bent and len(result) > where:
            bent.append(1)
            return result[:where] + bytes([result[where] ^ 4]) + result[where + 1 :]
        return result

    world.bend = bend
    world.catchup.start("a", 1)
    world.run()
    assert same(world.reopened(), one)
    assert len(world.troubles) == 1
    assert "2.blk" in world.troubles[0]


def test_a_piece_cut_short_is_no_block() -> None:
    one = leader()
    world = World(Replica("b"), one)
    bent: list[int] = []

    def bend(method: str, args: list[Any], result: Any) -> Any:
        if method == "block" and args[2] == 3 and not bent:
            bent.append(1)
            return result[:-1]
        return result

    world.bend = bend
    world.catchup.start("a", 1)
    world.run()
    assert same(world.reopened(), one)
    assert "less than it promised" in world.troubles[0]


def test_a_block_that_vanished_leads_to_a_new_manifest_and_the_rest_is_kept() -> None:
    """Blocks die at the leader while they are fetched: what is whole is not fetched again."""
    one = leader()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    while not world.follower.disk.exists(f"{STREAM}.catchup/4.blk"):
        assert world.step()
    one.apply(PURGE, 1, b"", 150, 0)  # the front of the stream, in part fetched already
    for _ in range(3):
        one.publish(1)
        one.save()
    world.catchup._todo.reverse()  # so that what was dropped is still to be fetched
    world.run()
    assert same(world.reopened(), one)
    manifests = [args for _, method, args in world.asked if method == "manifest"]
    assert len(manifests) == 2
    again = {args[2] for _, method, args in world.asked[-40:] if method == "block"}
    assert not again & {1, 2}
    assert not world.follower.disk.exists(f"{STREAM}/4.blk")  # dead: dropped with the rest


def test_a_leader_that_finds_its_own_block_damaged_says_so_and_sends_nothing() -> None:
    one = leader()
    one.disk.flip(f"{STREAM}/3.blk", 700)
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    world.run(retries=2)
    assert not world.done
    assert "3.blk" in str(one.damages[0][1])
    assert "3.blk" in world.troubles[0]
    assert not world.follower.disk.exists(f"{STREAM}.catchup")


def test_a_missing_block_of_the_leader_is_damage_not_a_shorter_stream() -> None:
    one = leader()
    one.disk.unlink(f"{STREAM}/3.blk")
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    world.run(retries=1)
    assert not world.done
    assert "3.blk" in str(one.damages[0][1])


def test_a_snapshot_that_the_leader_can_not_read_is_written_anew() -> None:
    """Its state is in memory: nothing else of it is damaged, and it need not be made anew from
    others, who may be those that lack it."""
    leader, follower = Replica("a"), Replica("b")
    leader.publish(40)
    leader.save()
    leader.publish(10)
    leader.save()
    for path in leader.disk.paths:
        if path.endswith(f"{leader.saved_index:016x}.snap"):
            leader.disk.bad_read(path, 70, 1)
    world = World(follower, leader)
    world.catchup.start("a", leader.saved_index)
    world.run()
    assert leader.voids and not leader.damages
    leader.save()
    world.run()
    assert world.reopened().machine.digest == leader.machine.digest


def test_rot_after_the_leader_vouched_for_a_block_is_found_by_asking_it_to_look_again() -> None:
    one = leader()
    first = World(Replica("b"), one)
    first.catchup.start("a", 1)
    first.run()
    one.disk.flip(f"{STREAM}/3.blk", 700)
    second = World(Replica("c"), one)
    second.catchup.start("a", 1)
    second.run(retries=4)
    assert not second.done
    assert one.damages
    suspects = [args[2] for _, method, args in second.asked if method == "manifest"]
    assert suspects[:2] == [[], [3]]


def test_a_new_leader_goes_on_where_the_old_one_ended() -> None:
    """Sealed blocks are the same bytes everywhere, so only what is missing is asked for."""
    one, two = leader("a", seed=1), leader("c", seed=2)
    world = World(Replica("b"), one, two)
    world.catchup.start("a", 1)
    while not world.follower.disk.exists(f"{STREAM}.catchup/5.blk"):
        assert world.step()
    one.is_leading = False
    del world.leaders["a"]
    world.catchup.start("c", 1)
    world.run()
    assert same(world.reopened(), two)
    from_two = {args[2] for node, method, args in world.asked if (node, method) == ("c", "block")}
    assert not from_two & {0, -1, 1, 2, 3, 4, 5}
    assert from_two


def test_answers_of_a_leader_that_was_given_up_are_ignored() -> None:
    one, two = leader("a", seed=1), leader("c", seed=2)
    two.publish(30)
    two.save()
    world = World(Replica("b"), one, two)
    world.catchup.start("a", 1)
    for _ in range(40):
        world.step()
    late = list(world.calls)
    world.catchup.start("c", 210)
    world.run()
    for _, _, _, done in late:
        done(b"x" * 1000)
    assert world.done[0].index == 234
    assert same(world.reopened(), two)


def test_without_a_leader_it_asks_for_ever_and_stays_as_it_was() -> None:
    world = World(Replica("b"), leader())
    del world.leaders["a"]
    world.catchup.start("a", 1)
    world.run(retries=30)
    assert world.catchup.state == c.ASKING  # the timer has rung once more
    assert len(world.troubles) == 31
    assert not world.failures


def test_snapshots_no_longer_offered_are_not_asked_for_again() -> None:
    """The index offered in an earlier term may never be reached again: seed 20353."""
    world = World(Replica("b"), leader())
    del world.leaders["a"]
    world.catchup.start("a", 1)
    world.has_offer = False
    world.run(retries=3)
    assert world.catchup.state == c.IDLE
    assert len(world.asked) == len(world.troubles) == 1


def test_stopped_it_does_nothing_more_and_resumes_from_what_is_whole() -> None:
    one = leader()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    while not world.follower.disk.exists(f"{STREAM}.catchup/3.blk"):
        assert world.step()
    world.catchup.stop()
    world.run()
    assert not world.done
    asked = len(world.asked)
    world.catchup.start("a", 1)
    world.run()
    again = {args[2] for _, method, args in world.asked[asked:] if method == "block"}
    assert not again & {0, -1, 1, 2, 3}
    assert same(world.reopened(), one)


def test_a_group_that_got_further_by_itself_is_not_set_back() -> None:
    world = World(Replica("b"), leader())
    world.swaps_wanted = False
    world.catchup.start("a", 1)
    world.run()
    assert world.catchup.state == c.IDLE
    assert not world.done
    assert not world.follower.disk.exists(f"{STREAM}.catchup")


def test_a_follower_a_little_behind_keeps_its_own_blocks_and_fetches_the_rest() -> None:
    one = leader()
    behind = Replica("b", seed=5)
    behind.publish(100)
    behind.save()
    world = World(behind, one)
    world.catchup.start("a", 1)
    world.run()
    fetched = {args[2] for _, method, args in world.asked if method == "block"}
    assert not fetched & {1, 2, 3, 4, 5}
    assert same(world.reopened(), one)
    assert any(name.startswith(f"{UID}-replaced-") for name in behind.disk.listdir(f"{ROOT}/trash"))


def test_a_rotten_block_of_the_follower_is_replaced_and_the_others_are_not_fetched() -> None:
    one, two = leader("a", seed=1), leader("b", seed=2)
    two.disk.flip(f"{STREAM}/4.blk", 321)
    world = World(two, one)
    world.catchup.start("a", 1)
    world.run()
    assert {a[2] for _, method, a in world.asked if method == "block" and a[2] > 0} == {4}
    assert same(world.reopened(), one)


def test_good_parts_of_files_set_aside_are_used() -> None:
    one, two = leader("a", seed=1), leader("b", seed=2)
    two.disk.flip(f"{STREAM}/4.blk", 321)
    quarantine(two.disk, ROOT, UID)
    two.open()
    world = World(two, one)
    world.catchup.start("a", 1)
    world.run()
    assert {a[2] for _, method, a in world.asked if method == "block" and a[2] > 0} == {4}
    assert same(world.reopened(), one)
    assert two.disk.exists(f"{ROOT}/trash/{UID}-damaged-1/4.blk")


def test_a_full_disk_is_waited_out() -> None:
    one = leader()
    world = World(Replica("b"), one)
    disk = world.follower.disk
    room = disk.capacity
    disk.capacity = 10_000
    world.catchup.start("a", 1)
    world.run(retries=3)
    assert not world.done
    assert not world.failures
    assert len(world.troubles) == 1
    assert "no room" in world.troubles[0]
    disk.capacity = room
    world.run()
    assert same(world.reopened(), one)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_catch_up_leaves_the_disk_reserve_free(when: str) -> None:
    """A fetch that filled the disk stopped the streams that were well: their next write failed."""
    one = leader()
    world = World(Replica("b"), one, keep_free_bytes=50_000)
    disk = world.follower.disk
    room = disk.capacity
    free: list[int] = []

    def look(method: str, args: list[Any], result: Any) -> Any:
        if method == "block":
            if disk.capacity == room:
                disk.capacity = disk.used_bytes + 55_000  # others write as well
            free.append(disk.free_bytes(ROOT))
        return result

    world.bend = look
    if when == "before":
        disk.capacity = disk.used_bytes + 55_000
    world.catchup.start("a", 1)
    world.run(retries=3)
    assert not world.done
    assert "no room" in world.troubles[0]
    assert bool(free) == (when == "meanwhile")  # what can not fit is not even asked for
    # The simulated disk counts the hole before a smaller piece that found room.
    assert min(free, default=50_000) >= 50_000 - limits.CATCHUP_CHUNK_BYTES
    world.bend = lambda method, args, result: result
    disk.capacity = room
    world.run()
    assert same(world.reopened(), one)


def test_a_failed_sync_is_not_repeated_on_the_same_file() -> None:
    one = leader()
    world = World(Replica("b"), one)
    world.follower.disk.fail_next["fdatasync"] = 5
    world.catchup.start("a", 1)
    world.run()
    assert len(world.troubles) == 1
    assert same(world.reopened(), one)


POINTS = (
    "INSTALL_BLOCK_SYNCED", "INSTALL_BLOCK_RENAMED", "INSTALL_BLOCK_LINKED",
    "SNAPSHOT_TMP_SYNCED", "SNAPSHOT_RENAMED", "INSTALL_FILES_SYNCED",
    "INSTALL_MARKER_TMP_WRITTEN", "INSTALL_MARKER_TMP_SYNCED",
    "INSTALL_MARKER_RENAMED", "INSTALL_MARKER_DIR_SYNCED", "INSTALL_OLD_MOVED",
    "INSTALL_OLD_SYNCED", "INSTALL_SWAPPED", "INSTALL_SWAP_SYNCED",
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_wiped", [True, False])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    point: str, seed: int, is_wiped: bool
) -> None:
    """After it the follower opens either whole; then a resumed catch-up completes."""
    one = leader()
    follower = Replica("b", seed=seed)
    if not is_wiped:
        follower.publish(100)
        follower.save()
    old = follower.machine.digest
    world = World(follower, one)
    if is_wiped and point in ("INSTALL_OLD_MOVED", "INSTALL_BLOCK_LINKED"):
        follower.disk.remove_tree(STREAM)  # nothing is moved, or here already
        world.catchup.start("a", 1)
        world.run()
        assert point not in follower.disk.points
        return
    follower.disk.crash_at_point = point
    world.catchup.start("a", 1)
    with pytest.raises(SimCrash):
        world.run()
    assert not world.done
    follower.disk.crash()
    follower.thread = type(follower.thread)()
    _check_restart(world, one, old)


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_at_any_operation_leaves_the_old_or_the_new(seed: int) -> None:
    """S3.8: wherever a restore is cut off, from its first operation to its last, the next start
    completes it."""
    total = 0
    for is_whole in (True, False):
        one = leader()
        follower = Replica("b", seed=seed)
        follower.publish(100)
        follower.save()
        old = follower.machine.digest
        disk, begin = follower.disk, follower.disk.operation_count
        world = World(follower, one)
        world.catchup.start("a", 1)
        if is_whole:
            world.run()
            total = disk.operation_count - begin
            assert same(world.reopened(), one)
        else:
            disk.crash_at_operation = begin + 1 + seed * (total - 1) // 59
            with pytest.raises(SimCrash):
                world.run()
    disk.crash()
    follower.thread = type(follower.thread)()
    _check_restart(world, one, old)


def test_a_complete_install_counts_no_more_once_another_begins() -> None:
    """It was stopped before the swap; then the leader has other blocks, and some here go. A crash
    at any moment: a start must not take what is left for the whole."""
    for at in range(1, 40):
        one, follower = leader(), Replica("b", seed=at)
        follower.publish(100)
        follower.save()
        world = World(follower, one)
        world.catchup.start("a", 1)
        while world.catchup.state != c.SEALING:
            assert world.step()
        world.catchup.stop()
        follower.thread.run()
        assert read_marker(follower.disk, f"{STREAM}.catchup", UID) is not None
        one.apply(PURGE, 1, b"", 150, 0)
        one.publish(100)
        one.save()
        one.save()
        world.catchup = world.make_catchup()
        follower.disk.crash_at_operation = follower.disk.operation_count + at
        world.catchup.start("a", one.machine.applied)
        with pytest.raises(SimCrash):
            world.run()
        follower.disk.crash()
        follower.thread = type(follower.thread)()
        assert world.reopened().machine.index.last_seq in (100, 200)
        world.catchup = world.make_catchup()
        world.catchup.start("a", one.machine.applied)
        world.run()
        assert same(world.reopened(), one)


def _check_restart(world: World, one: Replica, old: int) -> None:
    follower = world.reopened()
    if follower.installed is not None:
        assert follower.installed.index == 204
    if not same(follower, one):
        assert follower.machine.digest == old
        asked = len(world.asked)
        world.catchup = world.make_catchup()
        whole = {
            int(name[:-4])
            for name in follower.disk.listdir(f"{STREAM}.catchup")
            if name.endswith(".blk")
        }
        world.catchup.start("a", 1)
        world.run()
        again = {args[2] for _, method, args in world.asked[asked:] if method == "block"}
        assert not again & whole
    assert same(world.reopened(), one)
    assert not any("catchup" in name for name in follower.disk.listdir(f"{ROOT}/streams"))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"uid": 8},
        {"index": 0},
        {"index": -1},
        {"blocks": []},
        {"blocks": [[0, 1]]},
        {"blocks": [[0, 10, 1], [0, 10, 1]]},
        {"blocks": [[0, 10, "x"]]},
        {"members": [["a"]]},
        {"members": [[1], [], [], []]},
        {"tail": [99, 1000]},
        {"tail": None},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    one = leader()
    world = World(Replica("b"), one)

    def bend(method: str, args: list[Any], result: Any) -> Any:
        return {**result, **change} if method == "manifest" else result

    world.bend = bend
    world.catchup.start("a", 1)
    world.run(retries=2)
    assert not world.done
    assert len(world.troubles) == 3
    world.bend = lambda method, args, result: result
    world.run()
    assert same(world.reopened(), one)


def test_a_snapshot_before_what_is_needed_is_not_taken() -> None:
    """Whatever the leader answers: the log that it still has would not follow on it."""
    one = leader()
    world = World(Replica("b"), one)
    answer_as_asked = one.files.on_manifest
    one.files.on_manifest = lambda args, answer: answer_as_asked([UID, 1, []], answer)  # type: ignore[method-assign]
    one.publish(50)
    world.catchup.start("a", 250)
    world.run(retries=2)
    assert not world.done
    assert world.troubles == ["from a: manifest at index 204, before 250"] * 3
    one.save()
    world.run()
    assert world.done[0].index == 254
    assert same(world.reopened(), one)


def test_garbage_instead_of_a_manifest_is_refused() -> None:
    for garbage in (None, 7, b"abc", [], {}, {"version": 1}):
        with pytest.raises(errors.CorruptionError):
            Manifest.from_wire(garbage)
    with pytest.raises(errors.CorruptionError):
        Manifest.decode(b"\xc1")


def test_a_group_that_is_not_led_here_is_answered_with_an_error() -> None:
    one = leader()
    one.is_leading = False
    answers: list[Any] = []
    one.files.on_manifest([UID, 1, []], answers.append)
    one.files.on_block([UID, 1, 1, 0, 10], answers.append)
    assert answers == [errors.CLUSTER_NOT_AVAIL()] * 2


@pytest.mark.parametrize(("offset", "size"), [(-1, 10), (0, 0), (0, -1), (0, 1 << 40)])
def test_a_piece_that_is_none_is_refused(offset: int, size: int) -> None:
    """A peer decides how much is read into memory here no more than a client does."""
    one = leader()
    World(Replica("b"), one)
    answers: list[Any] = []
    one.files.on_block([UID, 204, 2, offset, size], answers.append)
    assert [each.description for each in answers] == [f"{size} bytes at {offset} are no part"]
    one.files.on_block([UID, 204, 2, 0, 10], answers.append)
    one.thread.run()
    assert len(answers[1]) == 10


def test_a_group_forgotten_while_it_waits_for_a_snapshot_answers_at_once() -> None:
    one = leader()
    one.is_leading = True
    one.publish(10)
    answers: list[Any] = []
    one.files.on_manifest([UID, 210, []], answers.append)
    one.thread.run()
    assert not answers
    one.files.forget(UID)
    assert answers == [errors.CLUSTER_NOT_AVAIL()]
    one.waiting.pop()[1]()  # too late
    one.files.on_manifest([UID, 1, []], answers.append)
    one.thread.run()
    assert answers[1]["index"] == 204


def test_checksums_of_blocks_that_are_gone_are_forgotten() -> None:
    """Of each manifest something stayed: the block being written ends elsewhere each time."""
    one = leader()
    one.is_leading = True
    answers: list[Any] = []
    for number in range(4):
        one.publish(10)
        one.apply(PURGE, 1, b"", 0, 20)
        one.save()
        one.files.on_manifest([UID, one.last_index, []], answers.append)
        one.thread.run()
        facts = one.files._facts[UID]
        assert len(answers) == number + 1
        assert len(facts) == len({key[0] for key in facts}) <= len(one.machine.index.blocks)
    one.files.on_manifest([UID, one.last_index, [1, facts.popitem()[0][0]]], answers.append)
    one.files.forget(UID)
    one.thread.run()  # what was being looked at
    assert not one.files._facts


def test_a_group_opened_again_while_somebody_waits_is_asked_for_a_snapshot_again() -> None:
    """The monitor that had been asked is gone, and nobody will call back."""
    one = leader()
    one.is_leading = True
    one.publish(10)
    answers: list[Any] = []
    one.files.on_manifest([UID, 210, []], answers.append)
    one.thread.run()
    one.waiting.clear()
    one.files.on_manifest([UID, 210, []], answers.append)
    one.thread.run()
    one.save()
    one.thread.run()
    assert [answer["index"] for answer in answers] == [214, 214]


def test_requests_for_the_present_snapshot_do_not_wait_for_later_ones() -> None:
    """Seed 711349: somebody asked for an index that a stream begun anew had not reached yet, and
    was gone; all who asked afterwards waited for that index too."""
    one = leader()
    one.is_leading = True
    one.publish(10)
    first: list[Any] = []
    second: list[Any] = []
    one.files.on_manifest([UID, 210, []], first.append)
    one.thread.run()
    one.files.on_manifest([UID, 1, []], second.append)
    one.thread.run()
    assert [answer["index"] for answer in second] == [204]
    assert not first
    one.save()
    one.thread.run()
    assert [answer["index"] for answer in first] == [214]


def test_indexes_beyond_the_log_are_refused() -> None:
    """The group began anew since it was offered; nobody knows when it comes to that index."""
    one = leader()
    one.is_leading = True
    answers: list[Any] = []
    one.files.on_manifest([UID, one.last_index + 1, []], answers.append)
    assert answers == [errors.CLUSTER_NOT_AVAIL()]
    one.files.on_manifest([UID, one.last_index, []], answers.append)
    one.thread.run()
    assert answers[1]["index"] == 204


def test_an_install_that_differs_from_its_manifest_is_told() -> None:
    one = leader()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    world.run()
    follower = world.reopened()
    marker = read_marker(follower.disk, STREAM, UID)
    assert marker is not None
    assert check_installed(marker, follower.machine, follower.store) == []
    wrong = marker._replace(digest=marker.digest ^ 1)
    assert len(check_installed(wrong, follower.machine, follower.store)) == 1


def test_a_leader_that_goes_on_publishing_is_caught_up_with() -> None:
    """Snapshots and dropped blocks come while blocks are fetched; what is installed is whole."""
    one = leader()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    rounds = 0
    while not world.done and rounds < 2000:
        rounds += 1
        if not world.step():
            for callback in world.timers:
                callback()
            world.timers.clear()
        if rounds % 9 == 0:
            one.publish(2)
        if rounds % 90 == 0:
            one.apply(PURGE, 1, b"", 0, 120)
            one.save()
    assert world.done
    follower = world.reopened()
    assert follower.machine.applied == world.done[0].index >= 204
    # From here the log leads on: the same entries give the same state.
    behind = World(follower, one)
    one.save()
    behind.catchup.start("a", one.machine.applied)
    behind.run()
    assert same(behind.reopened(), one)


def test_few_groups_catch_up_at_a_time_and_none_is_forgotten() -> None:
    """A wiped node has thousands; one that waits for its next attempt makes room for others."""
    slots = c.FetchSlots()
    worlds = [World(Replica("b", seed=n), leader(seed=n)) for n in range(9)]
    for world in worlds:
        world.slots = slots
        world.catchup = world.make_catchup()
    del worlds[1].leaders["a"]  # never gets anywhere
    for world in worlds:
        world.catchup.start("a", 1)
    assert [len(world.calls) for world in worlds] == [1] * 4 + [0] * 5
    worlds[2].catchup.stop()
    assert len(worlds[4].calls) == 1
    worlds[6].catchup.stop()  # while it waits
    for _ in range(3):
        for world in worlds:
            world.run(retries=1)
    assert [len(world.done) for world in worlds] == [1, 0, 0, 1, 1, 1, 0, 1, 1]


def test_meta_waits_for_no_turn() -> None:
    slots = c.FetchSlots()
    asked: list[int] = []

    def make(uid: int) -> c.SnapshotFetch:
        target: Any = None
        host: Any = None
        return c.SnapshotFetch(
            uid, call=lambda node, method, args, done: asked.append(args[0]), target=target,
            later=lambda delay_s, callback: None, host=host, slots=slots,
        )  # fmt: skip

    for uid in (3, 4, 5, 6, 7, 0):
        make(uid).start("a", 1)
    assert asked == [3, 4, 5, 6, 0]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_catch_up_begun_anew_ignores_the_former_block_search(is_stopped: bool) -> None:
    """A new leader, or a replica opened again, with hundreds of blocks to be copied from here. The
    copying for the manifest of before went on, and put its last block, shorter, in the place of
    one that was whole: what was installed then was not what the manifest said."""
    for steps in range(12):
        one, two, follower = leader("a"), leader("c"), leader("b", seed=2)
        two.apply(PURGE, 1, b"", 198, 0)
        for _ in range(4):
            two.publish(2)
            two.save()
        world = World(follower, one, two)
        world.catchup.start("a", 1)
        while world.catchup.state != c.PREPARING:
            assert world.step()
        for _ in range(steps):
            world.step()
        if is_stopped:
            world.catchup.stop()
            world.catchup = world.make_catchup()
        world.catchup.start("c", 1)
        world.run()
        assert not world.troubles
        assert same(world.reopened(), two)


def test_a_state_that_was_handed_out_leaves_the_leaders_memory() -> None:
    """It has some 24 bytes for each message: those of the last four streams stayed for ever."""
    one = leader()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    most = 0
    while not world.done:
        assert world.step()
        states = one.files._states.values()
        most = max(most, sum(len(blob) for files in states for blob in files.values()))
    assert most > 1000
    assert not any(one.files._states.values())
    assert same(world.reopened(), one)


def test_two_may_fetch_one_state_at_a_time() -> None:
    one = leader()
    worlds = [World(Replica(name), one) for name in "bc"]
    for world in worlds:
        world.catchup.start("a", 1)
        for _ in range(5):
            world.step()
    while not all(world.done for world in worlds):
        for world in worlds:
            assert world.done or world.step()
    for world in worlds:
        assert not world.troubles
        assert same(world.reopened(), one)
