"""Rules that random faults hit too rarely: each test builds the one schedule that needs it."""

from __future__ import annotations

import pytest

from streamd.raft.core import ProposalRejected
from streamd.raft.election import FOLLOWER
from streamd.raft.log import next_chain
from streamd.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Quiesce,
    Vote,
    VoteReply,
)
from streamd.types import Entry
from tests.unit.raft.cluster import Cluster


def elected() -> Cluster:
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    return cluster


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """Figure 8: b and c hold a's old entry, but a's own no-op is nowhere yet."""
    cluster = elected()
    cluster.core("a").propose(b"old")
    cluster.take("a")
    cluster.persist("a")
    cluster.boot("a", cluster.crash("a"))
    cluster.campaign("a")
    cluster.run_until_leader("a")
    core = cluster.core("a")
    assert core.term == 2
    assert core.last_index == 3
    for peer in "bc":
        core.step(peer, AppendReply(2, True, 2))
    assert core.commit < 2
    core.step("b", AppendReply(2, True, 3))
    cluster.take("a")
    cluster.persist("a")
    assert core.commit == 3


def test_a_leader_counts_its_own_copy_when_it_is_durable() -> None:
    cluster = elected()
    core = cluster.core("a")
    core.propose(b"x")
    cluster.take("a")
    core.step("b", AppendReply(1, True, 2))
    assert core.commit == 1
    cluster.persist("a")
    assert core.commit == 2


def test_completion_of_an_overwritten_write_does_not_count() -> None:
    """ABA: entry 1/2 is written, voided by 2/2, and appended again by the leader of term 3 while
    no write has completed. The first completion must not pass for the third write's."""
    cluster = elected()
    member = cluster.members["c"]
    core = member.core
    chain1 = core.log.last_chain

    def append(sender: str, term: int, entry_term: int) -> None:
        chain = next_chain(chain1, entry_term, 2, b"e")
        entry = Entry(entry_term, 2, b"e", chain=chain)
        core.step(sender, Append(term, 1, 1, chain1, [entry], 1))
        assert cluster.take("c") is not None

    append("a", 1, 1)
    append("b", 2, 2)
    append("a", 3, 1)
    stable = []
    for _ in range(3):
        cluster.persist("c")
        stable.append(core.log.stable)
    assert stable == [1, 1, 2]


def with_an_entry_of_a_alone() -> Cluster:
    """b has logged what only a had, behind the entry that all have."""
    cluster = elected()
    core = cluster.core("b")
    chain1 = core.log.last_chain
    old = Entry(1, 2, b"old", chain=next_chain(chain1, 1, 2, b"old"))
    core.step("a", Append(1, 1, 1, chain1, [old], 1))
    cluster.take("b")
    cluster.persist("b")
    return cluster


def test_an_append_commits_no_more_than_it_vouches_for() -> None:
    """The leader of the next term committed something else there, and looks for the last entry that
    both have."""
    cluster = with_an_entry_of_a_alone()
    core = cluster.core("b")
    chain1 = core.log.entry_id(1)[1]
    core.step("c", Append(2, 1, 1, chain1, [], 3))
    assert (core.last_index, core.commit) == (2, 1)
    new = Entry(2, 2, b"new", chain=next_chain(chain1, 2, 2, b"new"))
    core.step("c", Append(2, 1, 1, chain1, [new], 3))
    assert (core.log.last_chain, core.commit) == (new.chain, 2)


def test_a_follower_whose_last_entry_differs_does_not_go_to_rest() -> None:
    """It has as many as the leader; the last one is of an earlier term."""
    cluster = with_an_entry_of_a_alone()
    core = cluster.core("b")
    core.step("c", Quiesce(2, 2, 2))
    assert not core.is_quiescent
    assert core.commit == 1
    cluster.take("b")
    cluster.persist("b")
    ready = cluster.take("b")
    assert ready is not None
    [refusal] = [message for to, message in ready.send_now if to == "c"]
    assert isinstance(refusal, AppendReply)
    assert (refusal.is_ok, refusal.index, refusal.hint_index) == (False, 2, 2)


def test_votes_and_prevotes_are_ignored_while_a_leader_is_heard() -> None:
    cluster = elected()
    core = cluster.core("b")
    core.step("c", Vote(9, False, 99, 9))
    core.step("c", Vote(9, True, 99, 9))
    assert core.term == 1
    assert core.leader_id == "a"
    assert core.take(64, 1 << 20) is None
    core.step("c", Vote(9, False, 99, 9, is_transfer=True))
    assert core.term == 9
    assert core.vote == "c"


def test_leader_ignores_disturbers_too() -> None:
    core = elected().core("a")
    core.step("c", Vote(9, False, 99, 9))
    assert core.is_leader


def test_one_vote_a_term_and_only_for_a_log_as_good_as_ours() -> None:
    cluster = elected()
    cluster.core("a").propose(b"x")
    cluster.run()
    core = cluster.core("b")
    core._clock.now_ms += 5000
    core.step("c", Vote(2, False, 1, 1))  # shorter
    assert core.vote == ""
    core.step("c", Vote(2, False, 2, 1))
    assert core.vote == "c"
    core.step("a", Vote(2, False, 9, 1))
    assert core.vote == "c"
    ready = cluster.take("b")
    assert ready is not None
    assert not any(isinstance(message, VoteReply) for _, message in ready.send_now)
    cluster.persist("b")
    ready = cluster.take("b")
    assert ready is not None
    replies = [(to, m.is_granted) for to, m in ready.send_now if isinstance(m, VoteReply)]
    assert replies == [("c", False), ("c", True), ("a", False)]


def test_leader_without_a_quorum_steps_down() -> None:
    cluster = elected()
    cluster.cut("a")
    for _ in range(11):
        cluster.tick(200)
        cluster.take("a")
    core = cluster.core("a")
    assert core.role == FOLLOWER
    assert core.term == 1


def test_leader_that_hears_one_of_two_stays() -> None:
    cluster = elected()
    cluster.cut("c")
    cluster.pass_time(5000)
    assert cluster.core("a").is_leader
    assert cluster.core("c").term == 1  # it only ever asked for pre-votes


def test_read_needs_a_round_that_began_after_it() -> None:
    """A heartbeat sent before the read proves nothing about the time after."""
    cluster = elected()
    core = cluster.core("a")
    cluster.now_ms += 300
    core.tick(cluster.now_ms)
    ready = core.take(64, 1 << 20)
    assert ready is not None
    [old, _] = [message for _, message in ready.send_now if isinstance(message, Heartbeat)]
    core.read_index(1)
    core.step("b", HeartbeatReply(1, old.round_no))
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert ready.read_states == []
    [new, _] = [message for _, message in ready.send_now if isinstance(message, Heartbeat)]
    core.step("b", HeartbeatReply(1, new.round_no))
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert [(state.context, state.index) for state in ready.read_states] == [(1, 1)]


def test_other_content_under_the_same_term_is_noticed_by_both() -> None:
    """c's entry 2 is not what a logged there: c acks nothing more and both sides say so."""
    cluster = elected()
    cluster.core("a").propose(b"x")
    cluster.run()
    log = cluster.core("c").log
    log.last_chain ^= 1
    cluster.core("a").propose(b"y")
    cluster.run()
    assert "log chain at index 2" in cluster.members["c"].alerts[0]
    assert "differs from the leader's at index 2" in cluster.members["a"].alerts[0]
    assert cluster.core("c").last_index == 2
    assert cluster.core("a").commit == 3
    cluster.core("c").step("b", Vote(9, False, 99, 9, is_transfer=True))
    assert cluster.core("c").vote == ""


def test_append_damaged_on_its_way_is_not_taken() -> None:
    cluster = elected()
    core = cluster.core("b")
    chain = core.log.last_chain
    core.step("a", Append(1, 1, 1, chain, [Entry(1, 2, b"x", chain=123)], 2))
    ready = cluster.take("b")
    assert ready is not None
    assert ready.alerts
    assert ready.send_now == []
    assert core.last_index == 1


def test_the_inflight_window_bounds_messages_to_a_silent_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamd.raft.replication.RAFT_INFLIGHT_APPENDS", 3)
    monkeypatch.setattr("streamd.raft.replication.RAFT_APPEND_ENTRIES", 2)
    cluster = elected()
    core = cluster.core("a")
    for number in range(20):
        core.propose(b"%d" % number)
    ready = cluster.take("a")
    assert ready is not None
    sizes = [len(m.entries) for to, m in ready.send_now if to == "b" and isinstance(m, Append)]
    assert sizes == [2, 2, 2]
    cluster.run()
    assert cluster.core("b").applied == 21


def test_far_follower_is_found_by_one_hint_per_term() -> None:
    """A follower with a long tail of a lost term is not probed entry by entry."""
    cluster = elected()
    cluster.cut("a")
    for number in range(50):
        cluster.core("a").propose(b"%d" % number)
    cluster.pass_time(100)
    cluster.elect("b")
    for number in range(50):
        cluster.core("b").propose(b"other %d" % number)
    cluster.run()
    cluster.cuts.clear()
    cluster.trace.clear()
    cluster.pass_time(600)
    refused = [line for line in cluster.trace if "refused" in line and line.startswith("a->b")]
    assert len(refused) <= 3
    assert cluster.core("a").log.entry_id(52) == cluster.core("b").log.entry_id(52)


def test_transfer_stops_proposals_and_is_given_up_in_time() -> None:
    cluster = elected()
    cluster.cut("c")
    core = cluster.core("a")
    core.propose(b"x")
    core.transfer("c")
    with pytest.raises(ProposalRejected):
        core.propose(b"y")
    for _ in range(12):
        cluster.tick(100)
        cluster.run()
    core.propose(b"y")
    with pytest.raises(ProposalRejected):
        core.transfer("nobody")


def test_proposals_of_a_deposed_leader_are_reported_dropped() -> None:
    cluster = elected()
    cluster.cut("a")
    cluster.core("a").propose(b"lost", tag="tag")
    cluster.run()
    cluster.elect("b")
    cluster.cuts.clear()
    cluster.pass_time(600)
    assert cluster.members["a"].outcomes == [("tag", "dropped")]


def test_membership_change_waits_for_the_terms_first_commit() -> None:
    cluster = elected()
    cluster.core("a").propose(b"x")
    cluster.run()
    cluster.campaign("b")
    cluster.run_until_leader("b")
    core = cluster.core("b")
    with pytest.raises(ProposalRejected, match="no entry of this leader's term"):
        core.propose_membership("ab")


def test_uncommitted_change_is_undone_with_its_entry() -> None:
    cluster = elected()
    cluster.cut("a")
    cluster.core("a").propose_membership("ab")
    cluster.run()
    assert cluster.core("a").members.voters == ("a", "b")
    cluster.elect("b")
    cluster.cuts.clear()
    cluster.pass_time(600)
    assert cluster.core("a").members.voters == ("a", "b", "c")


def test_learner_receives_but_does_not_count() -> None:
    cluster = Cluster(list("ab"), ["d"])
    cluster.elect("a")
    cluster.cut("b")
    cluster.core("a").propose(b"x")
    cluster.run()
    assert cluster.core("d").last_index == 2
    assert cluster.core("a").commit == 1
    assert cluster.core("a").is_close("d", 0)
    assert not cluster.core("a").is_close("b", 0)
    assert not cluster.core("a").is_close("nobody", 100)


def test_lost_appends_are_noticed_at_the_next_heartbeat() -> None:
    cluster = elected()
    cluster.core("a").propose(b"x")
    cluster.take("a")
    cluster.wire.clear()
    cluster.pass_time(300)
    assert cluster.core("b").applied == 2


def test_broken_link_makes_the_leader_ask_again() -> None:
    cluster = elected()
    cluster.core("a").propose(b"x")
    cluster.take("a")
    cluster.wire.clear()
    cluster.run()
    assert cluster.core("b").last_index == 1
    cluster.core("a").unreachable("b")
    cluster.run()
    assert cluster.core("b").last_index == 2


def test_too_many_reads_are_refused_to_peers_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.raft.read_index.RAFT_READS_MAX", 2)
    cluster = elected()
    for context in range(3):
        cluster.core("b").read_index(context)
    cluster.run()
    assert sorted(cluster.members["b"].read_states) == [(0, 1), (1, 1), (2, 0)]


def test_an_ack_beyond_our_log_is_an_alert_not_a_commit() -> None:
    cluster = elected()
    core = cluster.core("a")
    core.step("b", AppendReply(1, True, 99))
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert "acks index 99" in ready.alerts[0]
    assert core.commit == 1


def test_a_member_stands_for_election_once_the_log_makes_it_a_voter() -> None:
    """d learns that it is a voter from an append, and may be the only one with that entry."""
    cluster = Cluster(list("a"), extra=["d"])
    cluster.run()
    assert cluster.core("d").deadline_ms == 0
    cluster.core("a").propose_membership("ad")
    cluster.run()
    assert cluster.core("d").deadline_ms > cluster.now_ms


def test_a_removed_member_stands_until_its_removal_is_committed() -> None:
    """a alone has the entry that removes a; b, the only voter left by it, has a shorter log."""
    cluster = Cluster(list("ab"))
    cluster.elect("a")
    cluster.cut("a")
    cluster.core("a").propose(b"x")
    cluster.core("a").propose_membership("b")
    cluster.pass_time(3000)
    cluster.cuts.clear()
    cluster.pass_time(6000)
    leader = cluster.leader()
    assert leader is not None
    assert leader.node_id == "b"
    assert leader.members.voters == ("b",)
    assert cluster.committed[2] == (1, b"x")


def test_promises_of_a_term_that_is_over_are_not_made() -> None:
    """b took an entry of term 1 that is not on disk yet when it learns of term 2."""
    cluster = elected()
    cluster.core("a").propose(b"x")
    cluster.take("a")
    while cluster.wire:
        cluster.deliver()
    assert cluster.take("b") is not None
    core = cluster.core("b")
    core.step("c", Vote(2, False, 9, 1, is_transfer=True))
    cluster.persist("b")
    ready = cluster.take("b")
    assert ready is not None
    assert ready.send_now == []
    cluster.persist("b")
    ready = cluster.take("b")
    assert ready is not None
    assert [type(message) for _, message in ready.send_now] == [VoteReply]


def test_a_sole_voter_needs_no_learner_to_confirm_a_read() -> None:
    """It waited for an answer to a heartbeat, of whomever: with all learners away, for ever."""
    cluster = Cluster(["a"], ["b", "c"])
    cluster.cut("b", "c")
    cluster.elect("a")
    core = cluster.core("a")
    core.read_index(1)
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert [(state.context, state.index) for state in ready.read_states] == [(1, 1)]


def test_a_vote_counts_when_no_earlier_membership_is_needed_any_more() -> None:
    """Of two new voters none could lead before the joint phase is over: that takes the old one."""
    cluster = Cluster(["a"], ["b", "c"])
    cluster.elect("a")
    cluster.run()
    core = cluster.core("a")
    seen: list[tuple[bool, bool, str]] = []

    def look() -> None:
        row = (core.has_vote("a"), core.has_vote("b"), core.transfer_target())
        if not seen or seen[-1] != row:
            seen.append(row)

    look()
    core.propose_membership("abc")
    look()
    assert core.members.is_joint
    cluster.run()
    look()
    assert core.commit == core.log.membership_index and not core.members.is_joint
    assert seen == [(True, False, ""), (True, True, "b")]
    core.propose_membership("bc")
    assert not core.has_vote("a")
    assert core.has_vote("b")


def test_a_silent_learner_counts_as_close_but_not_as_following() -> None:
    """Its link is up for a while, and it has all there was: its vote would be waited for."""
    cluster = Cluster(["a"], ["b", "c"])
    cluster.elect("a")
    cluster.run()
    core = cluster.core("a")
    core.set_live(frozenset("abc"))
    assert core.is_close("b", 0) and core.is_close("c", 0)
    for _ in range(30):
        cluster.now_ms += 50
        core.propose(b"x")
        core.tick(cluster.now_ms)
        cluster.take("a")
        cluster.persist("a")
        core.step("b", AppendReply(core.term, True, core.last_index))
    assert core.is_close("b", 0)
    assert not core.is_following("c")
