"""Members that may have forgotten: what counts of them, and how they come to count again."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.raft import membership
from streamd.raft.core import MemberStart, ProposalRejected, RaftCore
from streamd.raft.election import FOLLOWER, Ballot
from streamd.raft.log import next_chain
from streamd.raft.membership import Membership, simple
from streamd.raft.messages import (
    Append,
    AppendReply,
    Certify,
    Heartbeat,
    HeartbeatReply,
    Quiesce,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from streamd.raft.ready import Outgoing
from streamd.types import Entry, HardState, LogState
from tests.unit.raft.cluster import Cluster, Disk


def elected(names: str = "abc") -> Cluster:
    cluster = Cluster(list(names))
    cluster.elect("a")
    return cluster


def sent(cluster: Cluster, node_id: str) -> list[Outgoing]:
    """What `node_id` says next, durable or not; its writes stay under way."""
    ready = cluster.take(node_id)
    return ready.send_now if ready is not None else []


# Each letter a member: + granted, ? granted but uncertain, - refused, . silent.
BALLOTS = [
    ("abc", "", "++.", "won"),
    ("abc", "", "+?.", "open"),
    ("abc", "", "+??", "won"),
    ("abc", "", "+?-", "lost"),
    ("abc", "", "+.-", "open"),
    ("abc", "", "+--", "lost"),
    ("ab", "", "+?", "won"),
    ("ab", "", "+.", "open"),
    ("abcde", "", "+++--", "won"),
    ("abcde", "", "++???", "won"),
    ("abcde", "", "++??.", "open"),
    ("abcde", "", "++??-", "lost"),
    ("abcde", "", "++?.-", "open"),
    ("abc", "cde", "+++.+", "won"),
    ("abc", "cde", "++?.+", "open"),
    ("abc", "cde", "++??+", "won"),
    ("abc", "cde", "+++--", "lost"),
    ("abc", "cde", "+++??", "won"),
]


@pytest.mark.parametrize(("voters", "voters_out", "answers", "outcome"), BALLOTS)
def test_ballots(voters: str, voters_out: str, answers: str, outcome: str) -> None:
    members = Membership(tuple(voters), tuple(voters_out))
    ballot = Ballot()
    for node_id, answer in zip(members.members(), answers, strict=True):
        if answer != ".":
            ballot.record(node_id, is_granted=answer != "-", is_uncertain=answer == "?")
    found = "won" if ballot.is_won(members) else "lost" if ballot.is_lost(members) else "open"
    assert found == outcome


def test_a_ballot_is_lost_when_the_missing_voter_has_no_link() -> None:
    ballot = Ballot()
    ballot.record("a", is_granted=True)
    ballot.record("b", is_granted=False)
    assert not ballot.is_lost(simple("abc"))
    assert ballot.is_lost(simple("abc"), frozenset("ab"))


def test_a_forgotten_vote_does_not_make_a_second_leader() -> None:
    """a leads term 1 by c's vote; c is wiped, and b asks for c's vote in term 1 only now."""
    cluster = Cluster(list("abc"))
    cluster.cut("b")
    cluster.elect("a")
    cluster.wipe("c")
    b, c = cluster.core("b"), cluster.core("c")
    cluster.campaign("b")
    b.step("c", VoteReply(1, True, True))
    assert (b.term, b.vote) == (1, "b")
    c.step("b", Vote(1, False, 0, 0))
    cluster.take("c")
    cluster.persist("c")
    [(to, reply)] = [item for item in sent(cluster, "c") if item[0] == "b"]
    assert (to, reply) == ("b", VoteReply(1, False, True, is_uncertain=True))
    cluster.take("b")
    cluster.persist("b")
    b.step("c", reply)
    assert not b.is_leader


def test_acks_and_heartbeats_of_an_uncertain_member_prove_nothing() -> None:
    cluster = elected()
    core = cluster.core("a")
    core.step("b", HeartbeatReply(1, 1, is_uncertain=True))
    assert core.last_index == 2  # the entry that may end it
    core.read_index(7)
    [beat] = [m for to, m in sent(cluster, "a") if to == "b" and isinstance(m, Heartbeat)]
    cluster.persist("a")
    core.step("b", AppendReply(1, True, 2, is_uncertain=True))
    core.step("b", HeartbeatReply(1, beat.round_no, is_uncertain=True))
    assert core.commit == 1
    assert cluster.take("a") is None, "no read is confirmed"
    core.step("c", AppendReply(1, True, 2))
    assert core.commit == 2
    core.step("c", HeartbeatReply(1, beat.round_no))
    ready = cluster.take("a")
    assert ready is not None
    assert [state.context for state in ready.read_states] == [7]
    assert ("b", Certify(1, 2)) in ready.send_now


def test_acks_of_before_a_voter_forgot_count_no_more() -> None:
    """b acked entry 2 and forgot it; c has not got it: 2 is not committed."""
    cluster = elected()
    core = cluster.core("a")
    core.step("b", HeartbeatReply(1, 1, is_uncertain=True))
    core.propose(b"x")
    cluster.take("a")
    cluster.persist("a")
    core.step("b", AppendReply(1, True, 3, is_uncertain=True))
    core.step("b", AppendReply(1, True, 1))  # from before, late
    assert core.status()["peers"]["b"]["is_uncertain"]
    assert core.commit == 1


def test_forgotten_again_while_uncertain_starts_over() -> None:
    cluster = elected()
    core = cluster.core("a")
    core.step("b", HeartbeatReply(1, 1, is_uncertain=True))
    core.step("b", AppendReply(1, True, 2, is_uncertain=True))
    assert core.status()["peers"]["b"]["match"] == 2
    core.step("b", AppendReply(1, False, 2, 0, 0, is_uncertain=True))
    peer = core.status()["peers"]["b"]
    assert (peer["match"], peer["next"]) == (0, 1)
    assert core.last_index == 3
    core.unreachable("b")
    assert core.last_index == 4


def test_a_vote_by_surprise_certifies_nothing_at_once() -> None:
    """b's uncertainty is heard only with its real vote: it might be older than a forgotten one."""
    for is_known in (False, True):
        cluster = Cluster(list("ab"))
        core = cluster.core("a")
        cluster.campaign("a")
        core.step("b", VoteReply(1, True, True, is_uncertain=is_known))
        cluster.take("a")
        cluster.persist("a")
        core.step("b", VoteReply(1, False, True, is_uncertain=True))
        assert core.is_leader
        cluster.take("a")
        cluster.persist("a")
        core.step("b", AppendReply(1, True, 1, is_uncertain=True))
        assert core.commit == 0
        assert (("b", Certify(1, 1)) in sent(cluster, "a")) is is_known


def test_a_voter_that_may_have_forgotten_again_is_not_readmitted_at_once() -> None:
    """The election was unanimous and b known to be in doubt; then the link to it broke."""
    cluster = Cluster(list("ab"))
    core = cluster.core("a")
    cluster.campaign("a")
    core.step("b", VoteReply(1, True, True, is_uncertain=True))
    cluster.take("a")
    cluster.persist("a")
    core.step("b", VoteReply(1, False, True, is_uncertain=True))
    assert core.is_leader
    core.unreachable("b")
    cluster.take("a")
    cluster.persist("a")
    core.step("b", AppendReply(1, True, core.last_index, is_uncertain=True))
    assert core.status()["peers"]["b"]["match"] == core.last_index
    assert not [message for _, message in sent(cluster, "a") if isinstance(message, Certify)]


def test_a_recovering_voter_is_readmitted_only_with_the_entry_that_ends_its_recovery() -> None:
    """Others have committed it."""
    cluster = elected()
    core = cluster.core("a")
    core.step("b", HeartbeatReply(1, 1, is_uncertain=True))
    cluster.take("a")
    cluster.persist("a")
    core.step("c", AppendReply(1, True, 2))
    assert core.commit == 2
    core.step("b", AppendReply(1, True, 1, is_uncertain=True))
    assert not [message for _, message in sent(cluster, "a") if isinstance(message, Certify)]
    core.step("b", AppendReply(1, True, 2, is_uncertain=True))
    assert ("b", Certify(1, 2)) in sent(cluster, "a")


def test_acts_as_certain_only_when_that_is_durable() -> None:
    cluster = elected()
    cluster.wipe("c")
    c = cluster.core("c")
    chain = next_chain(0, 1, 1, b"")
    c.step("a", Append(1, 0, 0, 0, [Entry(1, 1, b"", chain=chain)], 1))
    cluster.take("c")
    cluster.persist("c")
    c.step("a", Certify(1, 2))
    assert cluster.take("c") is not None
    assert c.is_uncertain
    assert not cluster.members["c"].disk.writes  # it lacks entry 2
    c.step("a", Certify(1, 1))
    ready = cluster.take("c")
    assert ready is not None
    assert ready.hard_state == HardState(1, "a", 1, False)
    c.step("a", Heartbeat(1, 1, 9))
    assert sent(cluster, "c") == [("a", HeartbeatReply(1, 9, is_uncertain=True))]
    cluster.persist("c")
    assert not c.is_uncertain
    assert sent(cluster, "c") == [("a", AppendReply(1, True, 1))]
    c.step("a", Heartbeat(1, 1, 10))
    assert sent(cluster, "c") == [("a", HeartbeatReply(1, 10))]


def test_the_leader_that_readmits_a_voter_has_its_vote_of_that_term() -> None:
    """c, wiped and certified by a in term 1, restarts: a late candidate of term 1 gets nothing."""
    cluster = elected()
    cluster.wipe("c")
    c = cluster.core("c")
    c.step("b", Vote(1, False, 0, 0))  # granted, though uncertain: that must not last
    cluster.pass_time(1000)
    assert not c.is_uncertain
    disk = cluster.crash("c")
    assert disk.hard_state.vote == "a"
    c = cluster.boot("c", disk).core
    assert not c.is_uncertain
    cluster.now_ms += 5000
    c._clock.now_ms = cluster.now_ms
    c.step("b", Vote(1, False, 99, 1))
    assert c.vote == "a"


def test_a_new_term_ends_a_certificate_that_is_not_durable() -> None:
    cluster = elected()
    cluster.wipe("c")
    c = cluster.core("c")
    chain = next_chain(0, 1, 1, b"")
    c.step("a", Append(1, 0, 0, 0, [Entry(1, 1, b"", chain=chain)], 1))
    cluster.take("c")
    cluster.persist("c")
    cluster.take("c")
    c.step("a", Certify(1, 1))
    cluster.take("c")
    c.step("b", Vote(2, False, 9, 1, is_transfer=True))
    ready = cluster.take("c")
    assert ready is not None
    assert ready.hard_state is not None
    assert ready.hard_state.is_uncertain
    cluster.persist("c")
    cluster.persist("c")
    assert c.is_uncertain


def test_trusts_no_commit_that_it_cannot_check() -> None:
    """What an uncertain member has left may not be what it had acked."""
    entry = Entry(1, 1, b"old", chain=next_chain(0, 1, 1, b"old"))
    disk = Disk()
    disk.entries[1] = entry
    core = RaftCore(
        MemberStart(
            group=1,
            node_id="c",
            voters="abc",
            log=LogState(HardState(3, "b", 1), 1, 1, 0, 0),
            reader=disk,
            now_ms=0,
            seed=1,
            is_uncertain=True,
        )
    )
    assert core.commit == 0
    core.step("a", Heartbeat(3, 1, 1))
    assert core.commit == 0
    core.step("a", TimeoutNow(3))
    core.tick(100_000)
    assert core.term == 3


def test_a_lost_hard_state_is_no_corruption_for_a_recovering_voter() -> None:
    entry = Entry(4, 1, b"x", chain=next_chain(0, 4, 1, b"x"))
    disk = Disk()
    disk.entries[1] = entry
    core = RaftCore(
        MemberStart(
            group=1,
            node_id="c",
            voters="abc",
            log=LogState(HardState(), 1, 1, 0, 0),
            reader=disk,
            now_ms=0,
            seed=1,
            is_uncertain=True,
        )
    )
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert ready.hard_state == HardState(4, "", 0, True)


def test_leadership_goes_to_whole_members_only() -> None:
    cluster = elected()
    core = cluster.core("a")
    assert core.transfer_target() == "b"
    assert core.transfer_target("c") == "c"
    core.step("b", HeartbeatReply(1, 1, is_uncertain=True))
    assert core.transfer_target("b") == "c"
    with pytest.raises(ProposalRejected):
        core.transfer("b")
    core.set_live(frozenset("ab"))
    assert core.transfer_target("c") == ""
    assert cluster.core("b").transfer_target() == ""


def test_minority_that_forgets_one_after_the_other_loses_nothing() -> None:
    """Each member in turn is wiped and recovers while the others go on."""
    cluster = elected()
    for number in range(9):
        victim = "abc"[number % 3]
        leader = cluster.leader()
        assert leader is not None
        leader.propose(b"%d" % number)
        cluster.run()
        cluster.wipe(victim)
        cluster.pass_time(6000)
        assert not cluster.core(victim).is_uncertain
    assert len(cluster.committed) >= 10
    assert {core.applied for core in map(cluster.core, "abc")} == {max(cluster.committed)}


class _NoEntries:
    def read(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        raise AssertionError(f"entries {lo}..{hi} are in the snapshot")


@pytest.mark.parametrize(("snapshot_term", "is_certain"), [(3, True), (2, False)])
def test_a_snapshot_may_have_taken_in_the_certified_entry(
    snapshot_term: int, is_certain: bool
) -> None:
    """Entry 40 is below the installed snapshot at 50: if that is of the leader's term, it holds
    the leader's entry; if not, nothing shows that."""
    core = RaftCore(
        MemberStart(
            group=1,
            node_id="b",
            voters=("a", "b", "c"),
            log=LogState(HardState(3, "", 50, True), 51, 50, snapshot_term, 7),
            reader=_NoEntries(),
            now_ms=0,
            seed=1,
            applied=50,
            is_uncertain=True,
        )
    )
    core.step("a", Certify(3, 40))
    while (ready := core.take(100, 1 << 20)) is not None:
        if ready.token is not None:
            core.persisted(ready.token)
    assert core.is_uncertain != is_certain


def b_in_memory(log: LogState, **facts: Any) -> RaftCore:
    """The member "b" of a stream's group in memory; `facts` replace what is usual."""
    given: dict[str, Any] = {"voters": "ab", "is_uncertain": True, "may_begin_anew": True} | facts
    return RaftCore(MemberStart(
        group=7, node_id="b", log=log, reader=Disk(), now_ms=0, seed=1,
        applied=log.last_index, **given,
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("voters", "is_uncertain", "is_in_memory", "is_outlived"),
    [
        ("ab", True, True, True),
        ("a", False, True, True),  # a learner
        ("ab", False, True, False),  # what it has acked counts: the message is a late one
        ("ab", True, False, False),  # on disk nobody begins anew
    ],
)
def test_a_member_with_entries_that_all_voters_forgot_takes_no_part(
    voters: str, is_uncertain: bool, is_in_memory: bool, is_outlived: bool
) -> None:
    """b's state ends at 62; a, which leads, began anew and committed 8: simulator seed 31667."""
    core = b_in_memory(
        LogState(HardState(1), 63, 62, 1, 5),
        voters=voters, is_uncertain=is_uncertain, may_begin_anew=is_in_memory,
    )  # fmt: skip
    core.step("a", Append(1, 3, 1, 9, [], 8))
    assert core.status()["has_diverged"] is is_outlived
    late = core.take(64, 1 << 20)
    assert late is not None
    core.persisted(late.token)
    ready = core.take(64, 1 << 20) if not late.send_now else late
    replies = [message for _, message in ready.send_now] if ready is not None else []
    assert [reply.is_diverged for reply in replies] == [is_outlived]


@pytest.mark.parametrize("term", [1, 2])
@pytest.mark.parametrize("kind", [Heartbeat, Append, SnapshotOffer, Quiesce])
def test_the_leader_of_before_a_group_began_anew_is_not_followed(kind: type, term: int) -> None:
    """a led a, b and c, and was cut off when they made b the only voter. Then b forgot all, and
    leads alone; a has not heard of any of it: simulator seed 540019, varied."""
    core = b_in_memory(LogState(HardState(), 1, 0, 0, 0), voters="b", is_uncertain=False)
    while (ready := core.take(64, 1 << 20)) is not None:
        core.persisted(ready.token)
    assert (core.is_leader, core.term, core.commit) == (True, 1, 1)
    said = {
        Heartbeat: Heartbeat(term, 6, 1),
        Append: Append(term, 6, 1, 9, [], 6),
        SnapshotOffer: SnapshotOffer(term, 6, 1, 9, simple("abc")),
        Quiesce: Quiesce(term, 6, 6),
    }
    core.step("a", said[kind])
    assert core.take(64, 1 << 20) is None
    assert (core.is_leader, core.term) == (True, 1)


def test_a_leader_of_several_voters_follows_one_of_them_in_a_later_term() -> None:
    """As on disk, and one who is no voter here may be one there by now: when we lead no more."""
    core = b_in_memory(LogState(HardState(1), 2, 1, 1, 5), voters="b", is_uncertain=False)
    while (ready := core.take(64, 1 << 20)) is not None:
        core.persisted(ready.token)
    core.propose_membership("ab")
    assert core.is_leader
    core.step("a", Heartbeat(core.term + 1, 0, 1))
    assert (core.is_leader, core.leader_id) == (False, "a")


@pytest.mark.parametrize("commit", [1, 2])
def test_only_uncommitted_entries_of_a_former_member_are_overwritten(commit: int) -> None:
    """b led, made a its only voter, and left. a forgot all but the first entry and leads on; its
    second entry is not b's, which was committed: simulator seed 31157."""
    core = b_in_memory(LogState(HardState(1), 1, 0, 0, 0), voters="a", is_uncertain=False)
    first = next_chain(0, 1, 1, b"")
    entries = [
        Entry(1, 1, b"", chain=first),
        Entry(1, 2, b"b", chain=next_chain(first, 1, 2, b"b")),
    ]
    core.step("a", Append(1, 0, 0, 0, entries, commit))
    other = Entry(2, 2, b"a", chain=next_chain(first, 2, 2, b"a"))
    core.step("a", Append(2, 1, 1, first, [other], 1))
    is_outlived = commit == 2
    assert core.status()["has_diverged"] is is_outlived
    assert core.log.term_at(2) == (1 if is_outlived else 2)


@pytest.mark.parametrize(
    ("voters", "is_in_memory", "is_granted"),
    [
        ("a", True, True),  # a learner: nothing was committed by its acks
        ("ab", True, False),
        ("a", False, False),  # on disk nobody begins anew
    ],
)
def test_a_learner_that_remembers_does_not_bar_voters_that_forgot(
    voters: str, is_in_memory: bool, is_granted: bool
) -> None:
    """b was told 44 entries, but not that it is to vote; a, which asked it to, forgot all of them.
    b may not stand, and refused everybody else for good: simulator seed 21924."""
    core = b_in_memory(
        LogState(HardState(1), 45, 44, 1, 5),
        voters=voters, is_uncertain=False, may_begin_anew=is_in_memory,
    )  # fmt: skip
    for is_pre in (True, False):
        core.step("a", Vote(2, is_pre, 0, 0))
        replies: list[VoteReply] = []
        while (ready := core.take(64, 1 << 20)) is not None:
            replies += [each for _, each in ready.send_now if isinstance(each, VoteReply)]
            if ready.token is not None:
                core.persisted(ready.token)
        assert [reply.is_granted for reply in replies] == [is_granted]


@pytest.mark.parametrize("rejoins", [False, True])
def test_a_former_voter_grants_no_vote_to_a_candidate_that_lacks_its_departure(
    rejoins: bool,
) -> None:
    """c, cut off, still counts on b, which has left the group, or is in it as a learner again: b
    was taken for a mere learner, and its grant made c lead beside a. Simulator seed 8100004."""
    core = b_in_memory(
        LogState(HardState(1), 1, 0, 0, 0), voters="abc", is_uncertain=False, may_begin_anew=True
    )
    chain, entries = 0, []
    without = Membership(("a",), learners=("b",) if rejoins else ())
    for index, data in enumerate((b"x", membership.encode(without), b"y"), 1):
        chain = next_chain(chain, 1, index, data)
        entries.append(Entry(1, index, data, chain=chain))
    core.step("a", Append(1, 0, 0, 0, entries, 3))
    while (ready := core.take(64, 1 << 20)) is not None:
        if ready.token is not None:
            core.persisted(ready.token)
    core.tick(core.now_ms + 60_000)
    assert core.commit == 3 and not core.members.is_voter("b")
    core.step("c", Vote(2, True, 1, 1))
    ready = core.take(64, 1 << 20)
    assert ready is not None
    replies = [each for _, each in ready.send_now if isinstance(each, VoteReply)]
    assert [reply.is_granted for reply in replies] == [False]


@pytest.mark.parametrize(
    ("voters", "is_uncertain", "term", "is_wanted"),
    [
        ("ab", False, 2, False),  # it would take away what b acked after it
        ("ab", False, 3, True),  # that leader may have other entries
        ("ab", True, 2, True),  # b's acks count for nothing
        ("a", False, 2, True),
    ],
)
def test_a_snapshot_below_what_counts_is_not_fetched(
    voters: str, is_uncertain: bool, term: int, is_wanted: bool
) -> None:
    """b has a's entries up to 3 and has not heard yet that any of them is committed."""
    core = b_in_memory(LogState(HardState(2), 1, 0, 0, 0), voters=voters, is_uncertain=is_uncertain)
    chain, entries = 0, []
    for index in (1, 2, 3):
        chain = next_chain(chain, 2, index, b"")
        entries.append(Entry(2, index, b"", chain=chain))
    core.step("a", Append(2, 0, 0, 0, entries, 0))
    core.step("a", SnapshotOffer(term, 2, 2, entries[1].chain, simple(voters)))
    offered: list[Any] = []
    acked: list[int] = []
    while (ready := core.take(64, 1 << 20)) is not None:
        offered += [ready.snapshot_wanted] if ready.snapshot_wanted is not None else []
        acked += [each.index for _, each in ready.send_now if isinstance(each, AppendReply)]
        if ready.token is not None:
            core.persisted(ready.token)
    assert bool(offered) is is_wanted
    assert core.is_snapshot_wanted(2) is is_wanted
    if not is_wanted:
        assert acked[-1] == 3


@pytest.mark.parametrize("is_incomplete", [True, False])
def test_a_member_that_begins_anew_without_a_snapshot_answers_its_first_heartbeat(
    is_incomplete: bool,
) -> None:
    """A leader that saw it diverge sends it no entries until then: simulator seed 50728. Its leader
    may have been in doubt of it before, and learns nothing from a heartbeat."""
    start = LogState(HardState(3, "", 0, True), 1, 0, 0, 0)
    core = b_in_memory(start, is_incomplete=is_incomplete)
    replies: list[AppendReply] = []
    for round_no in (1, 2):
        core.step("a", Heartbeat(3, 0, round_no))
        while (ready := core.take(64, 1 << 20)) is not None:
            replies += [each for _, each in ready.send_now if isinstance(each, AppendReply)]
            if ready.token is not None:
                core.persisted(ready.token)
    (reply,) = replies
    assert (reply.is_ok, reply.index) == (True, 0)
    assert reply.needs_snapshot is is_incomplete and reply.is_uncertain


def forgetful(learners: str = "bc") -> Cluster:
    """a alone votes, and has lost its log; b has all that a acknowledged, and c less."""
    cluster = Cluster(["a"], list(learners))
    cluster.run()
    cluster.core("a").propose(b"x")
    cluster.run()
    cluster.cut("c")
    cluster.core("a").propose(b"y")
    cluster.run()
    cluster.heal()
    cluster.give_up_log("a")
    cluster.tick(10_000)
    cluster.run()
    return cluster


def test_a_learner_wins_a_forced_election_with_the_grants_of_all_members() -> None:
    """Its only voter is in doubt, and has nothing any more: b leads, and what it has is committed
    once a has it too, whom it vouches for at once."""
    cluster = forgetful()
    cluster.core("b").stand_in(frozenset("abc"))
    cluster.run()
    b = cluster.core("b")
    assert b.is_leader and b.members.voters == ("a",)
    for _ in range(8):
        cluster.tick(250)
        cluster.run()
    assert cluster.core("b").is_leader, "it stays until it has changed who belongs to the group"
    assert not cluster.core("a").is_uncertain
    assert cluster.core("b").commit == cluster.core("b").last_index == cluster.core("c").commit
    assert [entry.data for entry in cluster.members["c"].applied][-2:] == [b"y", b""]
    cluster.core("b").propose_membership("ab", "c")
    cluster.run()
    assert cluster.core("b").members.voters == ("a", "b")
    cluster.core("b").propose_membership("ac")
    cluster.run()
    assert not cluster.core("b").is_leader, "it left the group, as any leader that does"


def test_the_term_of_a_forced_election_begins_with_the_given_entry() -> None:
    """And with nothing of it once that election came to nothing."""
    cluster = forgetful()
    cluster.cut("c")
    cluster.core("b").stand_in(frozenset("abc"), b"lost")
    for _ in range(8):
        cluster.run()
        cluster.tick(500)
    assert not cluster.core("b").is_leader
    cluster.heal()
    cluster.core("b").stand_in(frozenset("abc"))
    cluster.run()
    assert cluster.core("b").is_leader
    cluster = forgetful()
    cluster.core("b").stand_in(frozenset("abc"), b"lost")
    for _ in range(8):
        cluster.run()
        cluster.tick(250)
    assert [entry.data for entry in cluster.members["c"].applied][-2:] == [b"y", b"lost"]


@pytest.mark.parametrize("who", ["a", "c"])
def test_a_member_with_less_log_wins_no_forced_election(who: str) -> None:
    cluster = forgetful()
    cluster.core(who).stand_in(frozenset("abc"))
    cluster.run()
    assert not any(member.core.is_leader for member in cluster.members.values())
    assert cluster.core(who).term == cluster.core("b").term, "nobody was asked for a real vote"


@pytest.mark.parametrize("silent", ["a", "c", "d"])
def test_a_forced_election_needs_an_answer_of_every_member(silent: str) -> None:
    """The voter, a learner, or somebody whom only the meta group names: d may be a voter by an
    entry that nobody here has."""
    cluster = forgetful()
    if silent != "d":
        cluster.cut(silent)
    cluster.core("b").stand_in(frozenset("abcd" if silent == "d" else "abc"))
    for _ in range(8):
        cluster.run()
        cluster.tick(500)
    assert not cluster.core("b").is_leader
    cluster.heal()
    cluster.run()
    assert cluster.core("b").role == FOLLOWER, "it was asked once"


def test_a_recovering_voter_alone_by_its_log_asks_the_members_of_the_meta_group() -> None:
    """a forgot that it had b for a learner, or more: what it proves of its log does not say so."""
    cluster = Cluster(["a"], extra=["b"])
    disk = cluster.close("a")
    disk.hard_state = disk.hard_state._replace(is_uncertain=True)
    cluster.boot("a", disk)
    cluster.tick(10_000)
    cluster.cut("b")
    a = cluster.core("a")
    a.stand_in(frozenset("ab"))
    cluster.run()
    assert not a.is_leader
    cluster.heal()
    cluster.tick(5000)
    a.stand_in(frozenset("ab"))
    cluster.run()
    assert cluster.core("a").is_leader and not cluster.core("a").is_uncertain


def test_a_forced_election_does_not_replace_a_leader_that_is_heard() -> None:
    cluster = Cluster(["a"], ["b"])
    cluster.run()
    cluster.core("b").stand_in(frozenset("ab"))
    cluster.run()
    assert cluster.core("a").is_leader and cluster.core("b").role == FOLLOWER
