"""Groups with nothing to do are silent, and no fault passes unnoticed because of that."""

from __future__ import annotations

from streamd.raft.core import NEVER, MemberStart, RaftCore
from streamd.raft.messages import AppendReply, Heartbeat, Quiesce, Vote
from tests.unit.raft.cluster import Cluster


def resting(names: str = "abc") -> Cluster:
    cluster = Cluster(list(names))
    cluster.has_links = True
    cluster.tell_links()
    cluster.elect("a")
    cluster.pass_time(1500)
    assert all(member.core.is_quiescent for member in cluster.members.values())
    return cluster


def test_silence_costs_nothing() -> None:
    cluster = resting()
    cluster.trace.clear()
    assert all(member.core.deadline_ms == NEVER for member in cluster.members.values())
    cluster.pass_time(60_000, step_ms=1000)
    assert cluster.trace == []
    assert cluster.core("a").is_leader


def test_a_group_at_rest_keeps_no_entries_in_memory() -> None:
    """Each kept up to 32 MiB for followers that had it all: 27 GB with a thousand streams."""
    cluster = resting()
    for _ in range(3):
        cluster.core("a").propose(b"x" * 1000)
    cluster.run()
    logs = [member.core.log for member in cluster.members.values()]
    assert all(len(log.entries) >= 3 for log in logs)
    cluster.pass_time(1500)
    assert [log.entries for log in logs] == [[], [], []]
    cluster.core("a").propose(b"y")
    cluster.run()
    assert [cluster.core(name).applied for name in "abc"] == [5, 5, 5]


def test_a_leader_at_rest_keeps_entries_that_a_dead_follower_lacks() -> None:
    cluster = resting()
    disk = cluster.crash("c")
    cluster.core("a").propose(b"x" * 1000)
    cluster.run()
    cluster.pass_time(1500)
    assert cluster.core("a").is_quiescent
    assert [entry.index for entry in cluster.core("a").log.entries[-1:]] == [2]
    cluster.boot("c", disk)
    cluster.run()
    cluster.pass_time(1500)
    assert cluster.core("c").applied == 2
    assert [member.core.log.entries for member in cluster.members.values()] == [[], [], []]


def test_a_leader_that_knows_no_links_keeps_sending_heartbeats() -> None:
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    cluster.pass_time(3000)
    assert not cluster.core("a").is_quiescent


def test_work_wakes_and_reads_are_answered() -> None:
    cluster = resting()
    cluster.core("b").read_index(5)
    cluster.run()
    assert cluster.members["b"].read_states == [(5, 1)]
    cluster.pass_time(1500)
    assert cluster.core("b").is_quiescent
    cluster.core("a").propose(b"x")
    cluster.run()
    assert cluster.core("c").applied == 2
    cluster.core("a").transfer("c")
    cluster.run()
    assert cluster.core("c").is_leader


def test_a_change_of_members_wakes() -> None:
    cluster = resting()
    cluster.core("a").propose_membership("ab")
    cluster.run()
    assert cluster.core("b").members.voters == ("a", "b")


def test_a_member_that_lacks_something_does_not_rest() -> None:
    cluster = resting()
    core = cluster.core("b")
    core.step("a", Quiesce(1, 2, 2))
    assert not core.is_quiescent
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert ready.send_now == [("a", AppendReply(1, False, 2, 1, 1))]
    cluster.core("a").step("b", ready.send_now[0][1])
    assert not cluster.core("a").is_quiescent


def test_a_member_that_begins_anew_without_its_state_is_made_whole() -> None:
    """Its links stay up, so nobody hears of it, and it may not stand for election: it asks."""
    cluster = resting()
    for node_id in "abc":
        cluster.compact(node_id, 1)
    member = cluster.members["b"]
    member.core = RaftCore(
        MemberStart(
            group=7,
            node_id="b",
            voters="abc",
            log=member.disk.state(),
            reader=member.disk,
            now_ms=cluster.now_ms,
            seed=1,
            is_incomplete=True,
        )
    )
    member.core.set_live(frozenset("abc"))
    cluster.pass_time(5000)
    assert not cluster.core("b").is_incomplete
    assert cluster.core("a").is_leader
    assert cluster.core("a").term == 1
    assert all(each.core.is_quiescent for each in cluster.members.values())


def test_a_member_restarted_just_before_rest_learns_the_commit_from_quiesce() -> None:
    """The word that all may rest is the first it hears of its leader, and the last for long."""
    cluster = resting()
    cluster.core("a").propose(b"x")
    cluster.run()
    cluster.boot("c", cluster.close("c"))
    cluster.trace.clear()
    cluster.pass_time(400)
    assert [line for line in cluster.trace if "a->c" in line] == [
        "a->c Quiesce t1 last_index=2 commit=2"
    ]
    core = cluster.core("c")
    assert (core.is_quiescent, core.first_commit, core.applied) == (True, 2, 2)


def test_no_help_to_depose_a_leader_that_rests() -> None:
    cluster = resting()
    for node_id in "ab":
        core = cluster.core(node_id)
        core.step("c", Vote(9, False, 99, 9))
        assert core.term == 1
    assert cluster.core("a").is_leader
    [*beats] = [m for _, m in (cluster.take("a")).send_now if isinstance(m, Heartbeat)]  # type: ignore[union-attr]
    assert len(beats) == 2


def test_a_voter_cut_off_from_a_leader_at_rest_does_not_become_leader() -> None:
    """The others are woken by its campaign, their leader is not. They ask it before they help: else
    it rests on as a leader of before, and its clients are cut off instead."""
    for seed in range(20):
        for names in ("abc", "abcde"):
            cluster = Cluster(list(names), seed=seed * 1000)
            cluster.has_links = True
            cluster.tell_links()
            cluster.elect("a")
            cluster.pass_time(1500)
            cluster.cuts |= {("a", "c"), ("c", "a")}
            cluster.tell_links()
            cluster.pass_time(20_000, step_ms=5)
            assert "c" not in cluster.leaders.values()
            leader = cluster.core("a").leader_id
            assert {cluster.core(name).leader_id for name in names if name != "c"} == {leader}


def test_a_dead_follower_is_no_reason_to_stay_awake_a_lost_quorum_is() -> None:
    cluster = resting()
    cluster.crash("c")
    core = cluster.core("a")
    assert core.is_quiescent
    core.propose(b"x")
    cluster.pass_time(1500)
    assert core.is_quiescent
    cluster.crash("b")
    assert not core.is_quiescent
    cluster.pass_time(2500)
    assert not core.is_leader


def test_a_dead_leader_is_replaced_at_once() -> None:
    for seed in range(20):
        cluster = Cluster(list("abcde"), seed=seed * 1000)
        cluster.has_links = True
        cluster.tell_links()
        cluster.elect("a")
        cluster.pass_time(1500)
        since_ms = cluster.now_ms
        cluster.crash("a")
        while cluster.leader() is None:
            cluster.tick(5)
            cluster.run()
        assert cluster.now_ms - since_ms <= 700


def test_a_member_that_returns_to_a_group_at_rest_learns_its_leader() -> None:
    cluster = resting()
    disk = cluster.crash("c")
    cluster.core("a").propose(b"x")
    cluster.pass_time(1500)
    cluster.boot("c", disk)
    cluster.run()
    assert cluster.core("c").leader_id == "a"
    assert cluster.core("c").applied == 2
    cluster.pass_time(1500)
    assert cluster.core("a").is_quiescent


def test_a_resting_leader_that_begins_anew_without_its_state_is_replaced() -> None:
    """Its links stay up, and should nobody get its node's word that it leads no more: it asks."""
    cluster = resting()
    cluster.damage("a")
    cluster.pass_time(4000)
    leader = cluster.leader()
    assert leader is not None
    assert leader.node_id != "a"
    assert not cluster.core("a").is_incomplete


def test_an_uncertain_member_keeps_the_leader_awake_until_it_counts() -> None:
    cluster = resting()
    cluster.wipe("c")
    cluster.pass_time(3000)
    assert not cluster.core("c").is_uncertain
    assert cluster.core("a").is_quiescent
    assert cluster.core("c").is_quiescent
