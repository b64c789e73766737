"""A group in turns, with real cores of its peers and no monitor."""

from __future__ import annotations

from functools import partial
from typing import Any

from streamd import limits
from streamd.errors import JsError
from streamd.node.groups import inbox
from streamd.node.groups.block_port import NoBlocks
from streamd.node.groups.group import MetaGroup
from streamd.raft.core import MemberStart, RaftCore
from streamd.raft.log import next_chain
from streamd.raft.membership import simple
from streamd.raft.messages import Append, Heartbeat, ReadAnswer, ReadQuery, SnapshotOffer
from streamd.types import Entry, LogState
from tests.unit.raft.cluster import Cluster


class _Machine:
    applied = 0

    def apply(self, entry: Any, effects: Any) -> None:
        self.applied = entry.index


def follower() -> MetaGroup:
    """The member of "b" in a group that "a" leads."""
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    core = cluster.core("b")
    return MetaGroup(uid=7, raft=core, machine=_Machine(), blocks=NoBlocks(), snapshot_index=0)


def test_reads_whose_question_is_lost_do_not_pile_up() -> None:
    """Nobody delivers what the follower asks its leader: who waits for it hears of that."""
    group = follower()
    now_ms = group.raft.now_ms
    lost: list[int] = []

    def never() -> None:
        raise AssertionError("answered without the leader's word")

    for round_no in range(1000):
        now_ms += 250
        beat = Heartbeat(term=1, commit=1, round_no=round_no)
        reads = inbox.ReadBarrier(never, partial(lost.append, round_no))
        messages = [inbox.Step("a", beat), reads]
        turn = group.turn(now_ms, now_ms * 10**6, messages)
        assert any(isinstance(message, ReadQuery) for _, message in turn.send_now)
    waiting = limits.RAFT_READ_LOST_MS // 250
    assert lost == list(range(1000 - waiting))
    assert group.deadline_ms() == now_ms + 250  # when the next one is given up


def test_a_read_waits_until_what_it_must_see_is_applied() -> None:
    """The leader's word comes with the entry, and that is applied when it is durable here."""
    group = follower()
    core = group.raft
    before = group.machine.applied = core.applied
    reads = inbox.ReadBarrier(lambda: None, lambda: None)
    turn = group.turn(core.now_ms, 0, [reads])
    [query] = [message for _, message in turn.send_now if isinstance(message, ReadQuery)]
    chain = next_chain(core.log.last_chain, 1, before + 1, b"")
    entry = Entry(1, before + 1, b"", chain=chain)
    append = Append(1, before, 1, core.log.last_chain, [entry], before + 1)
    answer = ReadAnswer(1, query.context, before + 1)
    messages = [inbox.Step("a", answer), inbox.Step("a", append)]
    turn = group.turn(core.now_ms, 0, messages)
    assert group.machine.applied == before
    assert turn.ready_callbacks == []
    [(_, token)] = turn.writes
    turn = group.turn(core.now_ms, 0, [inbox.Durable(token)])
    assert group.machine.applied == before + 1
    assert turn.ready_callbacks == [reads.done]


def test_a_read_of_a_group_that_just_became_alone_is_answered() -> None:
    """It waits for a majority's word, and then this member is one."""
    cluster = Cluster(list("ab"))
    cluster.elect("a")
    core = cluster.core("a")
    group = MetaGroup(uid=7, raft=core, machine=_Machine(), blocks=NoBlocks(), snapshot_index=0)
    group.machine.applied = core.applied
    lost: list[int] = []
    reads = inbox.ReadBarrier(lambda: None, partial(lost.append, 1))
    turn = group.turn(core.now_ms, 0, [reads, inbox.ChangeMembers(["a"], [])])
    [(_, token)] = turn.writes
    turn = group.turn(core.now_ms, 0, [inbox.Durable(token)])
    assert turn.ready_callbacks == [reads.done]
    assert group.deadline_ms() == 0 and not lost


def test_a_member_that_lost_its_snapshot_takes_one_of_an_unknown_member() -> None:
    """It began alone, and the snapshot that told of the others is lost: simulator seeds 7101290 and
    7001888."""
    disk = Cluster(["b"]).members["b"].disk
    core = RaftCore(MemberStart(
        group=7, node_id="b", voters="b", log=LogState(*disk.state()), reader=disk, now_ms=0,
        seed=1, is_incomplete=True,
    ))  # fmt: skip
    group = MetaGroup(uid=7, raft=core, machine=_Machine(), blocks=NoBlocks(), snapshot_index=0)
    group.turn(0, 0, [inbox.Step("a", Heartbeat(3, 0, 1))])
    offer = SnapshotOffer(3, 56, 2, 5, simple("abc"))
    turn = group.turn(0, 0, [inbox.Step("a", offer)])
    assert turn.snapshot_offer == ("a", offer)


def test_a_turn_reports_new_members() -> None:
    """On a follower too, which may lead next; once, and not of those who have left."""
    cluster = Cluster(list("abc"), extra=["d"])
    cluster.elect("a")
    core = cluster.core("b")
    group = MetaGroup(uid=7, raft=core, machine=_Machine(), blocks=NoBlocks(), snapshot_index=0)
    newcomers = []
    for learners in ("d", "", "d"):
        cluster.core("a").propose_membership("abc", learners)
        cluster.run()
        newcomers.append(group.turn(core.now_ms, 0, []).newcomers)
        newcomers.append(group.turn(core.now_ms, 0, []).newcomers)
    assert newcomers == [("d",), (), (), (), ("d",), ()]


def test_a_rescue_must_take_more_than_half_of_the_servers_that_are_here() -> None:
    """With one vote each, two that hear each other might both lead in one term."""
    cluster = Cluster(list("abcde"))
    core = cluster.core("b")
    group = MetaGroup(uid=7, raft=core, machine=_Machine(), blocks=NoBlocks(), snapshot_index=0)
    told: list[Any] = []
    group.shell.call_soon = lambda done, outcome: done(outcome)

    def rescue(quorum: int, live: str) -> Any:
        core.set_live(frozenset(live))
        group.turn(core.now_ms, 0, [inbox.RescueQuorum(quorum, told.append)])
        return told.pop()

    for quorum, live in ((1, "ab"), (2, "abcd")):
        assert isinstance(rescue(quorum, live), JsError)
        assert core.rescue_quorum == 0
    assert rescue(2, "abc") == 3 and core.rescue_quorum == 2
    assert rescue(1, "b") == 2 and core.rescue_quorum == 1
