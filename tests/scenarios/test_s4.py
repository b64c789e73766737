"""S4: replicas hold the same, and it is checked; lost is not deleted; what is lost is repaired.

A node's files of a stream are one directory with blocks and snapshots, which carry the digest of
the content; the Raft log and the votes of all groups are in the node's one write-ahead log.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd.types import NodeId, Seq
from tests.scenarios.conftest import ROUNDS, Make, proof
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import copy_of, falsify, purged, put_back, unchanged

LETTERS = "abcdefg"


def until_repaired(cluster: Cluster, names: list[NodeId], *, messages: int) -> None:
    """Wait until all are whole; meanwhile no node is current with anything but all messages."""
    began = cluster.world.now_us
    while cluster.missing("S"):
        cluster.run_ms(3)
        for name in names:
            group = cluster.group(name, "S")
            if group is not None and group.machine.index.count != messages:
                assert not cluster.is_current(name), group.machine.state()
                assert not group.raft.is_leader
        assert cluster.world.now_us - began < 30_000_000, cluster.missing("S")
    cluster.until_whole()


def seven_left(cluster: Cluster) -> None:
    """The numbers of the report: 7 messages, the first 778, the last 1029, 245 deleted."""
    cluster.create(max_msgs_per_subject=1, subjects=["config.system.*"])
    others = LETTERS[1:]
    subjects = [others[at % 6] for at in range(777)] + ["a"]
    subjects += [others[at % 6] for at in range(251)]
    for at in range(0, len(subjects), 50):
        chunk = subjects[at : at + 50]
        msgs = [(b"config.system." + each.encode(), b"", cluster.body(100)) for each in chunk]
        assert all(type(each) is int for each in cluster.publish_raw("S", msgs))
    cluster.until_whole()
    check_seven(cluster)
    cluster.save(cluster.uid("S"))


def check_seven(cluster: Cluster) -> None:
    for name in cluster.names:
        state = cluster.machine(name, "S").state()
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (7, 778, 1029)
    state = cluster.info()["state"]
    assert (state["num_deleted"], state["num_subjects"]) == (245, 7)


def test_s4_1_the_wrong_files_are_the_majority(make: Make) -> None:
    """S4.1: two of three have blocks with just 1027 to 1029, the third has the truth.

    The snapshots of the two say what the blocks must hold, and these do not; so the two are not
    current, serve nothing, and are made anew from the third.
    """
    with Cluster(seed=2) as other:  # where a stream of the same uid holds three messages
        other.boot()
        uid = other.create(first_seq=1027, subjects=["config.system.*"])
        msgs = [(b"config.system.e", b"", b"1027"), (b"config.system.f", b"", b"1028")]
        assert other.publish_raw("S", [*msgs, (b"config.system.g", b"", b"1029")])[-1] == 1029
        other.save(uid)
        wrong = copy_of(other.hosts["n1"].disk, other.directory("S"))
    cluster = make()
    seven_left(cluster)
    assert cluster.uid("S") == uid
    for name in cluster.names:
        cluster.stop(name)
    for name in ("n1", "n2"):
        disk, directory = cluster.hosts[name].disk, cluster.directory("S")
        kept = {k: v for k, v in copy_of(disk, directory).items() if k.endswith(".snap")}
        taken = {k: v for k, v in wrong.items() if k.endswith(".blk") or k == "index.db"}
        assert kept
        assert taken
        put_back(disk, directory, kept | taken)
    cluster.boot()
    until_repaired(cluster, ["n1", "n2"], messages=7)
    check_seven(cluster)
    told = [line for line in cluster.world.recent if "stream files set aside" in line]
    assert {line.split()[1] for line in told} == {"n1", "n2"}


@pytest.mark.parametrize("is_told_to_lead", [False, True], ids=["s4_2", "s4_4"])
def test_s4_2_and_s4_4_a_stream_directory_is_removed(make: Make, is_told_to_lead: bool) -> None:
    """S4.2: one node's directory of the stream is removed while it is down; it is never current
    with 0 messages, and has all 7 within 30 s. S4.4: told to lead meanwhile, it does not."""
    cluster = make()
    seven_left(cluster)
    name = cluster.followers("S")[0]
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    cluster.boot(name)
    told: list[Any] = []
    uid = cluster.uid("S")
    while is_told_to_lead and cluster.missing("S"):
        leader = cluster.leader_name(uid)
        if leader and leader != name:
            cluster.process(leader).run(cluster.node(leader).step_down, uid, name, told.append)
        cluster.run_ms(5)
        group = cluster.group(name, "S")
        if group is not None and group.raft.is_leader:
            assert group.machine.index.count == 7
        assert len(told) < 5000
    until_repaired(cluster, [name], messages=7)
    check_seven(cluster)
    if is_told_to_lead:
        assert len(told) > 20
        cluster.lead("S", name)
        check_seven(cluster)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("lost", ["blocks", "all", "snapshots", "log"])
def test_s4_3_parts_of_a_node_are_removed(make: Make, size: int, lost: str) -> None:
    """S4.3: a minority loses the stream's blocks (snapshots and log kept), the directory and the
    log, only the snapshots, or only the log. R3 and R5."""
    cluster = make(size)
    cluster.create(replicas=size)
    cluster.publish(400)
    cluster.save(cluster.uid("S"))
    cluster.publish(20)
    cluster.until_whole()
    names = cluster.followers("S")[: size // 2]
    for name in names:
        cluster.stop(name)
        disk, directory = cluster.hosts[name].disk, cluster.directory("S")
        if lost == "blocks":
            for path in [path for path in disk.paths if path.startswith(directory + "/")]:
                if not path.endswith(".snap"):
                    disk.wipe(path)
        elif lost == "snapshots":
            for path in [path for path in disk.paths if path.startswith(directory + "/")]:
                if path.endswith(".snap"):
                    disk.wipe(path)
        if lost == "all":
            disk.wipe(directory)
        if lost in ("all", "log"):
            disk.wipe(f"{ROOT}/wal")
    cluster.publish(5, at=cluster.leader("S"))
    cluster.boot(*names)
    if lost in ("blocks", "all"):
        until_repaired(cluster, names, messages=425)
    cluster.until_whole()
    assert cluster.info()["state"]["messages"] == 425
    assert len(cluster.read(names[0])) == 425


def test_s4_5_two_copies_are_lost_at_once(cluster: Cluster) -> None:
    """S4.5: two of three lose the directory while the third is not reachable: nobody leads the
    stream, nothing is served and nothing made up; with the third back, nothing is lost."""
    cluster.create()
    acked = cluster.publish(500)
    cluster.until_whole()
    cluster.save(cluster.uid("S"))
    third = cluster.leader("S")
    names = cluster.followers("S")
    cluster.isolate(third)
    for name in names:
        cluster.kill(name)
        cluster.hosts[name].disk.wipe(cluster.directory("S"))
    cluster.boot(*names)
    uid = cluster.uid("S")
    for _ in range(200):
        cluster.run_ms(100)
        for name in names:
            group = cluster.group(name, "S")
            assert group is None or not group.raft.is_leader
            assert group is None or not cluster.is_current(name)
    told = cluster.offer("S", [(b"S.x", b"", b"nobody leads")], names[0])
    cluster.run_ms(3000)
    assert type(cluster.outcome(told[0])) is not int
    cluster.net.heal()
    cluster.until("led", lambda: cluster.leader_name(uid))
    assert cluster.leader_name(uid) == third
    until_repaired(cluster, names, messages=500)
    assert list(cluster.read(names[0])) == acked


def test_s4_6_power_cuts_of_all_under_load(cluster: Cluster) -> None:
    """S4.6: all three lose their power, and what was not synced, under load: 8 rounds of 300
    publishes. Every acked message is there, and all replicas are equal."""
    power_cuts(cluster, 8, 300)


@proof
def test_s4_6_a_hundred_power_cuts(cluster: Cluster) -> None:
    """S4.6 in full."""
    power_cuts(cluster, ROUNDS or 100, 2000)


def power_cuts(cluster: Cluster, rounds: int, messages: int) -> None:
    rng = random.Random(6)
    cluster.create()
    acked: dict[Seq, bytes] = {}
    for _ in range(rounds):
        sent: list[tuple[bytes, bytes]] = []
        at = cluster.leader("S")
        while len(sent) < messages:
            bodies = [cluster.body(100) for _ in range(20)]
            msgs = [(b"S.x", b"", body) for body in bodies]
            sent += zip(cluster.offer("S", msgs, at), bodies, strict=True)
            cluster.run_ms(rng.random() * 2)
        cluster.lose_power(*cluster.names)
        for reply, body in sent:
            seq = cluster.outcome(reply)
            if type(seq) is int:
                assert acked.setdefault(seq, body) == body
        cluster.boot()
        cluster.until_whole()
    stored = cluster.read("n2")
    assert len(acked) > rounds * messages // 2
    assert {seq: stored.get(seq) for seq in acked} == acked


@pytest.mark.parametrize("wrong", ["head lost", "purge missed"])
def test_s4_10_a_follower_begins_elsewhere(cluster: Cluster, wrong: str) -> None:
    """S4.10: a follower's content begins later than the leader's (its head is lost) or earlier (it
    missed a purge), in files that are right in themselves. That it differs is seen when the group
    comes to rest, without another word of any client; it is made anew from a peer."""
    cluster.create()
    cluster.publish(300)
    uid, name = cluster.uid("S"), cluster.followers("S")[0]
    cluster.save(uid)
    disk, directory = cluster.hosts[name].disk, cluster.directory("S")
    before = copy_of(disk, directory)
    if wrong == "purge missed":
        assert cluster.ask("STREAM.PURGE.S", {"seq": 101})["purged"] == 100
    cluster.publish(20)
    cluster.until_whole()
    cluster.save(uid)
    cluster.stop(name)
    like = cluster.leader("S")
    if wrong == "purge missed":
        put_back(disk, directory, before)
        falsify(cluster, name, unchanged, like=like)
    else:
        falsify(cluster, name, purged(101), like=like)
    cluster.boot(name)
    right = cluster.machine(like, "S").index.first_seq
    log_end = cluster.group(like, "S").raft.last_index

    def is_seen() -> bool:
        return any("replica has drifted" in line for line in cluster.world.recent)

    cluster.until("seen to be wrong", is_seen)
    assert cluster.group(like, "S").raft.last_index == log_end
    cluster.suspects.clear()
    cluster.until_whole()
    assert cluster.machine(name, "S").index.first_seq == right
    assert len(cluster.read(name)) == (220 if wrong == "purge missed" else 320)


def test_two_of_three_differ_while_the_third_is_away(cluster: Cluster) -> None:
    """One of two that are left has lost its head, and leads; the third comes back without files. It
    is given neither's content, which would be a majority then, and it is said that they differ.
    With the wrong one replaced all three hold what was published."""
    cluster.create()
    cluster.publish(300)
    uid, right = cluster.uid("S"), cluster.leader("S")
    cluster.until_whole()
    cluster.save(uid)
    wrong, third = cluster.followers("S")
    cluster.stop(third)
    cluster.hosts[third].disk.wipe(cluster.directory("S"))
    cluster.stop(wrong)
    falsify(cluster, wrong, purged(101), like=right)
    cluster.boot(wrong)
    cluster.until("told by both", lambda: cluster.events("replicas differ") == 2)
    cluster.lead("S", wrong)
    cluster.boot(third)
    cluster.run_ms(25_000)
    assert cluster.not_current(third)
    assert not cluster.events("replica has drifted")
    assert len(cluster.read(right)) == 300
    cluster.stop(wrong)
    cluster.hosts[wrong].disk.wipe(cluster.directory("S"))
    cluster.suspects.clear()
    cluster.boot(wrong)
    cluster.until_whole()
    assert len(cluster.read(third)) == 300


def test_a_replica_that_differed_and_was_right_is_heard_again(cluster: Cluster) -> None:
    """What differed was in its memory, and a restart has mended it. Nothing is written, and the
    third, which waits for a content, keeps the group awake: they compare at an entry."""
    cluster.create()
    cluster.publish(300)
    cluster.until_whole()
    cluster.save(cluster.uid("S"))
    wrong, third = cluster.followers("S")
    cluster.stop(third)
    cluster.hosts[third].disk.wipe(cluster.directory("S"))
    cluster.suspects.add(wrong)
    cluster.machine(wrong, "S").index.live.digest ^= 1
    cluster.publish(1)
    cluster.until("told", lambda: cluster.events("replicas differ"), 5)
    cluster.stop(wrong)
    cluster.suspects.clear()
    cluster.boot(wrong, third)
    cluster.until_whole()
    assert len(cluster.read(third)) == 301


def test_s4_11_messages_expire_alike_whatever_the_clocks_say(cluster: Cluster) -> None:
    """S4.11: max_age and TTLs while one clock is an hour late, one an hour early, and leaders
    change: all replicas expire the same, because leaders name what expires in the log."""
    hour_ns = 3600 * 10**9
    cluster.hosts["n2"].clock.skew_ns = hour_ns
    cluster.hosts["n3"].clock.skew_ns = -hour_ns
    cluster.create(max_age=2 * 10**9, duplicate_window=10**9, allow_msg_ttl=True)
    ttl = b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n"
    for name in ("n1", "n2", "n3", "n1", "n3", "n2"):
        cluster.lead("S", name)
        cluster.publish(20, at=name)
        cluster.publish(5, headers=ttl, at=name)
        cluster.run_ms(700)
        cluster.until("equal", lambda: not cluster.missing("S"), 10)
        cluster.check_equal()
    cluster.lead("S", "n2")
    cluster.until("all expired", lambda: cluster.machine("n2", "S").index.count == 0, 20)
    cluster.until_whole()
    states = [cluster.machine(name, "S").state() for name in cluster.names]
    assert [state["first_seq"] for state in states] == [151] * 3


def test_s4_12_every_node_gives_the_same(cluster: Cluster) -> None:
    """S4.12: a direct get of every seq from each node, and a consumer led by each node, give one
    and the same list; a third of the messages is deleted."""
    cluster.create()
    cluster.publish(150)
    for seq in range(1, 151, 3):
        assert cluster.ask("STREAM.MSG.DELETE.S", {"seq": seq})["success"]
    cluster.save(cluster.uid("S"))
    cluster.stop("n2")
    cluster.publish(30, at="n1")
    cluster.boot("n2")
    cluster.until_whole()
    gotten: list[Any] = []
    for name in cluster.names:
        answers: dict[int, bytes] = {}
        for seq in range(1, 181):
            reply = cluster.send("DIRECT.GET.S", {"seq": seq}, at=name)
            cluster.until("an answer", lambda reply=reply: cluster.received(reply))
            _, _, headers, payload = cluster.received(reply)[0]
            if not headers.startswith(b"NATS/1.0 404"):
                assert b"Nats-Sequence: %d\r\n" % seq in headers
                answers[seq] = payload
        gotten.append(answers)
    consumed: list[Any] = []
    for name in cluster.names:
        cluster.lead("S", name)
        cluster.consumer("S", f"C{name}", at=name)
        found = {}
        while got := cluster.pull(50, name=f"C{name}", at=name):
            found |= {each.seq: each.payload for each in got}
            cluster.ack(got, at=name)
        consumed.append(found)
    assert len(gotten[0]) == 130
    assert gotten[0] == gotten[1] == gotten[2] == consumed[0] == consumed[1] == consumed[2]
