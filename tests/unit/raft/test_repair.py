"""Members whose state is missing or whose log is rotten, and what a snapshot does for them."""

from __future__ import annotations

import pytest

from streamd.raft.core import MemberStart, RaftCore
from streamd.raft.log import next_chain
from streamd.raft.membership import simple
from streamd.raft.messages import Append, SnapshotOffer, Vote
from streamd.types import Entry, HardState, LogState
from tests.unit.raft.cluster import Cluster, Disk


def with_entries(count: int) -> Cluster:
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    for number in range(count):
        cluster.core("a").propose(b"%d" % number)
    cluster.run()
    return cluster


def test_an_incomplete_member_starts_at_its_log_whatever_is_missing_below() -> None:
    cluster = with_entries(5)
    cluster.compact("c", 4)
    disk = cluster.crash("c")
    disk.hard_state = disk.hard_state._replace(commit=6)  # that 5 and 6 may be applied is known
    core = RaftCore(
        MemberStart(
            group=7,
            node_id="c",
            voters="abc",
            log=disk.state(),
            reader=disk,
            now_ms=cluster.now_ms,
            seed=1,
            applied=0,
            is_incomplete=True,
        )
    )
    assert (core.applied, core.last_index) == (4, 6)
    assert core.take(64, 1 << 20) is None
    core.step("b", Vote(2, False, 9, 9, is_transfer=True))
    assert core.vote == "b"
    core.step("b", Append(2, 6, 1, core.log.last_chain, [], 6))
    assert core.applied == 4
    assert core.commit == 6


def test_a_snapshot_keeps_the_tail_and_completes() -> None:
    """Entries 6 and 7 were acked after it was taken, and nobody need send them again."""
    cluster = with_entries(5)
    core = cluster.damage("c").core
    cluster.compact("a", 5)
    cluster.core("a").propose(b"later")
    cluster.run(installs=False)
    assert (core.applied, core.commit, core.last_index) == (0, 7, 7)
    cluster.trace.clear()
    cluster.run()
    core = cluster.core("c")
    assert (core.is_incomplete, core.applied, core.last_index) == (False, 5, 7)
    assert core.deadline_ms > cluster.now_ms
    cluster.tick(250)
    cluster.run()
    assert (core.applied, core.commit) == (7, 7)
    assert [entry.data for entry in cluster.members["c"].applied] == [b"4", b"later"]
    assert not [line for line in cluster.trace if line.startswith("a->c Append ")]


def test_a_snapshot_that_lags_behind_the_log_is_not_enough() -> None:
    """What c's log no longer has is in a later one: the shell asks for one at `applied`."""
    cluster = with_entries(5)
    cluster.compact("a", 2)
    cluster.compact("c", 4)
    core = cluster.damage("c").core
    assert core.applied == 4
    cluster.tick(250)
    cluster.run(installs=False)
    offer = cluster.members["c"].wanted
    assert offer is not None
    assert offer.index == 2
    cluster.run()
    assert (cluster.core("c").is_incomplete, cluster.core("c").applied) == (False, 6)


def test_the_offer_is_repeated_until_the_state_is_there() -> None:
    cluster = with_entries(2)
    cluster.damage("c")
    for _ in range(12):
        cluster.tick(250)
        cluster.run(installs=False)
    offers = [line for line in cluster.trace if "SnapshotOffer" in line]
    assert len(offers) in (3, 4)
    cluster.run()
    cluster.pass_time(250)  # a's next sign of life is answered with what c has now
    cluster.trace.clear()
    cluster.pass_time(3000)
    assert not [line for line in cluster.trace if "SnapshotOffer" in line]
    assert cluster.core("c").applied == cluster.core("a").applied


def test_a_rotten_log_is_dropped_and_its_acks_count_as_forgotten() -> None:
    cluster = with_entries(3)
    core = cluster.core("c")
    core.log.last_chain ^= 1
    cluster.core("a").propose(b"y")
    cluster.run()
    assert core.status()["has_diverged"]
    assert cluster.members["c"].alerts
    core = cluster.give_up_log("c").core
    assert (core.term, core.vote, core.last_index) == (1, "a", 0)
    assert core.is_uncertain
    assert core.is_incomplete
    cluster.pass_time(3000)
    status = cluster.core("c").status()
    assert status | {"role": ""} == cluster.core("b").status() | {"role": "", "vote": "a"}
    assert status["applied"] == 6  # with the entry that ended the doubt


@pytest.mark.parametrize(
    ("base", "previous"),
    [
        (4, 2),  # its entry 4 comes with those that are sent
        (4, 4),  # and before them
        (2, 2),  # nothing of the two logs' difference is compacted
        (2, 3),
    ],
)
def test_a_member_whose_committed_entries_differ_from_the_leaders_has_diverged(
    base: int, previous: int
) -> None:
    """c comes back with four entries that were committed; all voters had forgotten the last two,
    and the group went on without them. c took entries after others, or acked all four as its own
    and was asked again and again, with one more entry of the leader's each time."""
    first = Entry(1, 1, b"", chain=next_chain(0, 1, 1, b""))
    second = Entry(1, 2, b"2", chain=next_chain(first.chain, 1, 2, b"2"))
    logs = {}
    for term in (1, 3):
        logs[term] = [first, second]
        for index in range(3, 7 if term == 3 else 5):
            data = b"%d of %d" % (index, term)
            chain = next_chain(logs[term][-1].chain, term, index, data)
            logs[term].append(Entry(term, index, data, chain=chain))
    disk = Disk()
    disk.hard_state = HardState(1, "a", 4)
    disk.entries = {entry.index: entry for entry in logs[1]}
    at = logs[1][base - 1]
    disk.release(base, at.term, at.chain, simple("abc"))
    core = Cluster(list("abc")).boot("c", disk).core
    theirs = logs[3]
    before = theirs[previous - 1]
    core.step("b", Append(3, previous, before.term, before.chain, theirs[previous:], 4))
    while (ready := core.take(64, 1 << 20)) is not None:
        replies = [message for _, message in ready.send_now]
        core.persisted(ready.token)
    assert core.status()["has_diverged"]
    assert [(reply.is_ok, reply.is_diverged) for reply in replies] == [(False, True)]
    assert core.log.entry_id(4) == (1, logs[1][3].chain)


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("more", [0, 1])
def test_another_entry_of_the_same_term_is_noticed_when_it_is_sent(
    more: int, is_compacted: bool
) -> None:
    """c has another second entry of term 1 than its leader. It took the leader's for its own, acked
    it and what follows, and its log went on with a chain that the next start would refuse."""
    first = Entry(1, 1, b"", chain=next_chain(0, 1, 1, b""))
    ours, theirs = (
        Entry(1, 2, data, chain=next_chain(first.chain, 1, 2, data)) for data in (b"c", b"a")
    )
    third = Entry(1, 3, b"3", chain=next_chain(theirs.chain, 1, 3, b"3"))
    disk = Disk()
    disk.hard_state = HardState(1, "a", 2 if is_compacted else 1)
    disk.entries = {1: first, 2: ours}
    if is_compacted:
        disk.release(2, 1, ours.chain, simple("abc"))
    core = Cluster(list("abc")).boot("c", disk).core
    sent = [theirs, third][: 1 + more]
    core.step("a", Append(1, 1, 1, first.chain, sent, 1))
    replies = []
    while (ready := core.take(64, 1 << 20)) is not None:
        replies += [message for _, message in ready.send_now]
        core.persisted(ready.token)
    assert core.status()["has_diverged"]
    assert [(reply.is_ok, reply.is_diverged) for reply in replies] == [(False, True)]
    assert core.last_index == 2


def test_a_snapshot_offer_of_present_entries_is_no_divergence() -> None:
    """c holds the entries that a later leader's snapshot covers, and none of that leader's term
    yet: it acks. It used to take the offer's term for that of the entry, and gave up all it had."""
    cluster = with_entries(5)
    disk = cluster.crash("c")
    core = cluster.boot("c", disk).core
    term, chain = core.log.entry_id(4)
    core.step("b", Append(2, 6, 1, core.log.last_chain, [], 6))
    core.step("b", SnapshotOffer(2, 4, term, chain, simple("abc")))
    cluster.trace.clear()
    cluster.run()
    assert not core.status()["has_diverged"]
    assert "c->b AppendReply t2 ok 6" in cluster.trace
    assert not cluster.members["c"].alerts


def test_an_incomplete_sole_voter_does_not_lead() -> None:
    core = RaftCore(
        MemberStart(
            group=1,
            node_id="n",
            voters=["n"],
            log=LogState(*Cluster(["n"]).members["n"].disk.state()),
            reader=Cluster(["n"]).members["n"].disk,
            now_ms=0,
            seed=1,
            is_incomplete=True,
        )
    )
    assert not core.is_leader


def test_memory_of_an_incomplete_member_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_ENTRIES", 10)
    cluster = with_entries(1)
    core = cluster.damage("c").core
    for number in range(50):
        cluster.core("a").propose(b"%d" % number)
        cluster.run(installs=False)
    assert core.last_index == 52
    assert len(core.log.entries) <= 11
    cluster.run()
    cluster.tick(250)
    cluster.run()
    assert cluster.core("c").applied == 52
