"""All voters of a stream lost their logs: who has most leads, once an operator accepts the loss."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import limits
from streamd.machine import commands
from streamd.store.wal import wal_format as wf
from streamd.types import META_UID, NodeId, Seq
from tests.scenarios.driver import ROOT, Cluster, setting
from tests.scenarios.files import copy_of, damages_of, put_back_all
from tests.sim.world import MS

WAIT_MS = 12_000  # longer than all patience there is


def growing(cluster: Cluster) -> dict[Seq, bytes]:
    """S has one copy, on n1, and is to have three; n2 has been told all of it, n3 is away. What was
    acknowledged. In the moment before n2 votes, which is made as long as it takes."""
    with setting(limits, "LEARNER_LAG_ENTRIES", -1):
        return learning(cluster)


def learning(cluster: Cluster) -> dict[Seq, bytes]:
    uid = cluster.create_on(
        {
            "name": "S", "subjects": ["S.>"], "num_replicas": 1, "storage": "file",
            "retention": "limits", "allow_direct": True,
        },
        ["n1"],
    )  # fmt: skip
    cluster.until("led", lambda: cluster.leader_name(uid) == "n1")
    cluster.publish(20)
    cluster.kill("n3")
    told: list[Any] = []
    cluster.until("a meta leader", lambda: cluster.leader_name(META_UID) in ("n1", "n2"))
    leader = cluster.leader_name(META_UID)
    command = [commands.SET_PEERS, cluster.hosts[leader].clock.now_ns(), uid, ["n1", "n2", "n3"]]
    cluster.process(leader).run(cluster.node(leader).propose_meta, command, told.append)
    cluster.until("wanted", lambda: told)
    cluster.until("n2 a learner", lambda: has_all(cluster, "n2"))
    cluster.publish(20)
    cluster.until("n2 told", lambda: has_all(cluster, "n2"))
    assert voters(cluster) == ("n1",)
    return cluster.read("n1")


def has_all(cluster: Cluster, name: NodeId) -> bool:
    group = cluster.group(name, "S")
    last = cluster.checkers.truths[cluster.uid("S")].last
    return group is not None and group.machine.applied == last > 0


def voters(cluster: Cluster) -> tuple[NodeId, ...]:
    group = cluster.group(cluster.leader("S"), "S")
    return tuple(group.raft.members.voters) if group is not None else ()


def lose_log(cluster: Cluster, name: NodeId, directory: str = ROOT + "/wal") -> None:
    cluster.kill(name)
    uid = cluster.uid("S")
    cluster.checkers.durability.copy_destroyed(name)
    cluster.checkers.durability.log_lost(name, [META_UID, uid])
    cluster.hosts[name].disk.wipe(directory)


def boot_accepting(cluster: Cluster, name: NodeId) -> None:
    cluster.hosts[name].accepts_loss = True
    cluster.boot(name)


def is_led(cluster: Cluster) -> bool:
    return bool(cluster.leader_name(cluster.uid("S")))


def stays_without_leader(cluster: Cluster) -> None:
    cluster.world.run(cluster.world.now_us + WAIT_MS * MS, lambda: is_led(cluster))
    assert not is_led(cluster)


def test_a_learner_that_has_all_leads_when_the_only_voter_lost_its_log(cluster: Cluster) -> None:
    """Seed 560188 of the varied worlds. n1 alone had a vote, and forgot; n2 has what n1
    acknowledged. Nobody can know that, so nothing happens until an operator says that what n1
    alone may have had is lost; then n2 leads, and the group gets the members it should have."""
    stored = growing(cluster)
    lose_log(cluster, "n1")
    cluster.boot("n1", "n3")
    stays_without_leader(cluster)
    told = "a stream has no leader, and its replica here may have lost entries"
    assert cluster.events(told) == 1
    cluster.stop("n1")
    boot_accepting(cluster, "n1")
    cluster.until_whole()
    for name in cluster.names:
        assert cluster.read(name) == stored
    cluster.until("three voters", lambda: voters(cluster) == ("n1", "n2", "n3"))
    cluster.publish(5)
    cluster.until("told", lambda: cluster.events("the replica has recovered") == 1)


def test_the_machine_of_the_only_voter_is_replaced_by_an_empty_one(cluster: Cluster) -> None:
    stored = growing(cluster)
    lose_log(cluster, "n1", ROOT)
    boot_accepting(cluster, "n1")
    cluster.boot("n3")
    cluster.until_whole()
    for name in cluster.names:
        assert cluster.read(name) == stored
    cluster.publish(5)


def test_forced_election_passes_over_no_member_that_may_have_more(cluster: Cluster) -> None:
    """n2, which has most, is away: n1 and n3 do not go on without it, whatever was accepted."""
    stored = growing(cluster)
    lose_log(cluster, "n1")
    cluster.kill("n2")
    boot_accepting(cluster, "n1")
    cluster.boot("n3")
    stays_without_leader(cluster)
    cluster.boot("n2")
    cluster.until_whole()
    for name in cluster.names:
        assert cluster.read(name) == stored


def test_a_stream_of_one_copy_goes_on_with_what_its_log_still_proves(cluster: Cluster) -> None:
    """Its node can't tell what the log has lost: the stream is offline. With the loss accepted it
    is what the log proves, which here is all."""
    uid = cluster.create(replicas=1)
    cluster.publish(30)
    name = cluster.leader("S")
    stored = cluster.read(name)
    cluster.kill(name)
    cluster.checkers.durability.log_lost(name, [META_UID, uid])
    disk = cluster.hosts[name].disk
    for offset in (0, wf.MANIFEST_COPY_BYTES):
        disk.flip(f"{ROOT}/wal/manifest", offset)
    cluster.boot(name)
    stays_without_leader(cluster)
    cluster.stop(name)
    boot_accepting(cluster, name)
    cluster.until("led", lambda: is_led(cluster))
    assert cluster.read(name) == stored
    cluster.publish(5)


def test_other_groups_of_a_node_that_accepts_the_loss_lose_nothing(cluster: Cluster) -> None:
    """Of three voters one lost its log, and is told again as ever, although it was started so."""
    cluster.create()
    cluster.publish(30)
    cluster.until_whole()
    stored = cluster.read("n1")
    lose_log(cluster, "n2", ROOT)
    boot_accepting(cluster, "n2")
    cluster.until_whole()
    assert cluster.read("n2") == stored
    assert not cluster.events(
        "forced election of a stream's leader: the member with the longest log is to lead"
    )


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_member_that_returns_with_more_than_the_forced_leader_is_reported_again(
    cluster: Cluster, has_snapshot: bool
) -> None:
    """n1 has what nobody else has; its machine is replaced by an empty one, the loss accepted, and
    the group goes on. Then the old disk is put back: it votes by nothing it has, and gives it up.
    With a snapshot of what the group has not, its leader made an entry with each question."""
    with setting(limits, "LEARNER_LAG_ENTRIES", -1):  # n2 votes later
        learning(cluster)
        uid = cluster.uid("S")
        cluster.checkers.forfeited.add(uid)  # what n1 commits alone is lost
        cluster.isolate("n2")
        cluster.offer("S", [(b"S.x", b"", b"lost")] * 7, "n1")
        cluster.run_ms(300)
        replica = cluster.node("n1").replica(uid)
        assert replica is not None
        assert replica.machine.index.last_seq == 47
        if has_snapshot:
            told: list[bool] = []
            cluster.process("n1").run(replica.monitor.save_anew, lambda: told.append(True))
            cluster.until("saved", lambda: told)
        cluster.kill("n1")
    old = copy_of(cluster.hosts["n1"].disk, ROOT)
    lose_log(cluster, "n1", ROOT)
    cluster.net.heal()
    boot_accepting(cluster, "n1")
    cluster.boot("n3")
    cluster.until_whole()
    cluster.until("three voters", lambda: voters(cluster) == ("n1", "n2", "n3"))
    cluster.publish(3)
    stored = cluster.read("n2")
    assert len(stored) == 43
    cluster.hosts["n1"].accepts_loss = False
    cluster.stop("n1")
    cluster.suspects.add("n1")
    put_back_all(cluster, "n1", old)
    cluster.until_whole()
    for name in cluster.names:
        assert cluster.read(name) == stored
    assert cluster.machine("n1", "S").applied < 20


def test_two_of_three_that_come_back_empty_are_told_by_the_third_and_it_says_so(
    cluster: Cluster,
) -> None:
    """n1 and n2 acknowledged what n3 has not, and forgot all. The group goes on with what n3 has:
    nobody would hear that anything was lost."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.until_whole()
    stored = cluster.read("n3")
    cluster.kill("n3")
    cluster.lead("S", "n1")
    cluster.publish(5)
    for each in (META_UID, uid):
        cluster.checkers.forfeited.add(each)  # what n1 and n2 committed without n3 is lost
    lose_log(cluster, "n1", ROOT)
    lose_log(cluster, "n2", ROOT)
    cluster.boot("n3", "n1")
    stays_without_leader(cluster)
    cluster.boot("n2")
    cluster.until("whole", lambda: not cluster.missing())
    for name in cluster.names:
        assert cluster.read(name) == stored
    told = "a majority of the voters may have lost entries: those that only they had are gone"
    assert cluster.events(told) == 2  # of the meta group, and of S
    cluster.stop("n3")
    cluster.boot("n3")
    cluster.until("whole", lambda: not cluster.missing())
    assert cluster.events(told) == 2


def test_a_stream_that_is_deleted_while_it_is_in_doubt_is_not_told_to_be_over(
    cluster: Cluster,
) -> None:
    growing(cluster)
    lose_log(cluster, "n1")
    cluster.boot("n1", "n3")
    stays_without_leader(cluster)
    assert cluster.ask("STREAM.DELETE.S")["success"]
    cluster.run_ms(11_000)
    assert not cluster.events("the replica has recovered")


def test_the_log_names_the_flag_where_the_log_of_the_only_copy_is_damaged(cluster: Cluster) -> None:
    """Only the stream's own entries are, so that the node knows that it was always alone: its
    stream stops, and the way on is named in its log. With the flag it goes on with what is
    proven."""
    uid = cluster.create(replicas=1)
    cluster.publish(30, chunk=10)
    name = cluster.leader("S")
    cluster.kill(name)
    cluster.boot(name)
    cluster.until("led", lambda: is_led(cluster))
    cluster.kill(name)
    cluster.checkers.durability.log_lost(name, [uid])
    cluster.checkers.forfeited.add(uid)
    disk = cluster.hosts[name].disk
    first = min(path for path in disk.paths if path.endswith(".wal"))
    disk.flip(first, disk.contents(first).index(b"S.x", disk.contents(first).index(b"S.x") + 2000))
    cluster.boot(name)
    stays_without_leader(cluster)
    assert damages_of(cluster, name) == 1
    (line,) = [line for line in cluster.world.recent if "error: stream stopped" in line]
    assert "--accept-loss" in line
    cluster.stop(name)
    boot_accepting(cluster, name)
    cluster.until("led", lambda: is_led(cluster))
    assert 0 < len(cluster.read(name)) < 30
