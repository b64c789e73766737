"""A member whose data was replaced by an older copy: nothing is damaged, and it does not know."""

from __future__ import annotations

from copy import deepcopy

import pytest

from streamd.limits import RAFT_APPEND_ENTRIES
from streamd.raft.messages import AppendReply
from tests.unit.raft.cluster import Cluster


def led_by_a() -> Cluster:
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    return cluster


@pytest.mark.parametrize("is_compacted", [False, True])
def test_an_older_copy_of_a_members_data_is_noticed_and_brought_up_to_date(
    is_compacted: bool,
) -> None:
    """b is stopped, and all its disk has is of an earlier day: it does not know, its leader does.
    Asked for the last entry that it acked, it refuses twice; then its acks count for nothing until
    it has all again. It used to be asked for that entry for ever."""
    cluster = led_by_a()
    cluster.has_links = True
    cluster.tell_links()
    cluster.pass_time(500)
    backup = deepcopy(cluster.members["b"].disk)
    for number in range(3):
        cluster.core("a").propose(b"%d" % number)
        cluster.pass_time(100)
    if is_compacted:
        cluster.compact("a", cluster.core("a").applied)
    cluster.crash("b")
    cluster.pass_time(100)
    cluster.boot("b", backup)
    cluster.pass_time(3000)
    assert cluster.core("a").is_leader
    last = cluster.core("a").last_index
    assert [cluster.core(name).applied for name in "abc"] == [last] * 3
    assert cluster.core("a").status()["peers"]["b"]["is_uncertain"] is False
    assert len(cluster.members["a"].alerts) == 1
    assert "was its data restored from a backup?" in cluster.members["a"].alerts[0]


def test_an_older_copy_commits_nothing_that_its_leader_does_not_have() -> None:
    """The copy is of when b was cut off and led, with an entry that was never committed, and voided
    since. What the leader knows b to hold, b holds no more; a sign of life must not commit it."""
    cluster = Cluster(list("abc"))
    cluster.has_links = True
    cluster.tell_links()
    cluster.elect("b").propose(b"committed")
    cluster.run()
    cluster.cut("b")
    cluster.core("b").propose(b"never committed")
    cluster.run()
    backup = deepcopy(cluster.members["b"].disk)
    cluster.pass_time(3000)
    leader = cluster.leader()
    assert leader is not None
    for number in range(3):
        leader.propose(b"%d" % number)
    cluster.heal()
    cluster.pass_time(1000)
    assert cluster.core("b").applied == leader.last_index
    cluster.crash("b")
    cluster.pass_time(100)
    cluster.boot("b", backup)
    cluster.pass_time(3000)
    assert [cluster.core(name).applied for name in "abc"] == [leader.last_index] * 3
    assert not cluster.core("b").status()["has_diverged"]


def test_one_old_answer_is_no_reason_to_doubt() -> None:
    """The link broke, and a refusal of before comes late: nothing is thought of it."""
    cluster = led_by_a()
    cluster.run()
    core = cluster.core("a")
    core.peer_down("b")
    refusal = AppendReply(core.term, False, core.last_index)
    core.step("b", refusal)
    cluster.pass_time(1000)
    core.peer_down("b")
    core.step("b", refusal)
    cluster.pass_time(1000)
    assert cluster.members["a"].alerts == []
    assert core.last_index == cluster.core("b").applied == 1


def went_on_without_a(
    *, common: int, is_compacted: bool = False, has_terms: bool = True
) -> Cluster:
    """b goes on with c from an older copy that ends with `common` entries. Then a comes back, whose
    snapshot covers more than all that b has, and says its entries' terms, or (as in earlier
    versions) says nothing of them."""
    cluster = led_by_a()
    cluster.has_links = True
    cluster.tell_links()
    for number in range(common - 1):
        cluster.core("a").propose(b"%d" % number)
    cluster.pass_time(500)
    if is_compacted:
        cluster.compact("b", common)
    disks = {"b": deepcopy(cluster.members["b"].disk), "c": cluster.crash("c")}
    for number in range(8):
        cluster.core("a").propose(b"lost %d" % number)
    cluster.pass_time(500)
    cluster.compact("a", common + 8)
    if not has_terms:
        cluster.members["a"].disk.history = []
    disks["a"] = cluster.crash("a")
    cluster.crash("b")
    cluster.committed.clear()  # nobody promises any more that it stays
    for name in "cb":
        cluster.boot(name, disks[name])
    cluster.elect("b").propose(b"later")
    cluster.pass_time(500)
    assert cluster.core("b").last_index == common + 2
    cluster.boot("a", disks["a"])
    return cluster


@pytest.mark.parametrize("has_terms", [False, True])
def test_a_restored_member_with_more_entries_than_its_leader_reports_that_it_differs(
    has_terms: bool,
) -> None:
    """Also if nobody knows the terms of what its snapshot covers: none is above the last one."""
    cluster = went_on_without_a(common=5, has_terms=has_terms)
    cluster.pass_time(1000)
    assert "log chain at index 13" in cluster.members["a"].alerts[0]
    assert cluster.core("b").status()["peers"]["a"]["state"] == "diverged"


@pytest.mark.parametrize(("common", "is_compacted"), [(RAFT_APPEND_ENTRIES + 10, False), (5, True)])
def test_a_diverged_member_reports_that_it_differs_after_each_start(
    common: int, is_compacted: bool
) -> None:
    """a is killed before it begins anew, and knows no more that it differs. b must not ask from the
    beginning: what both have, as entries or in a snapshot, a acks as it did before, for ever."""
    cluster = went_on_without_a(common=common, is_compacted=is_compacted)
    cluster.pass_time(1000)
    assert cluster.core("b").status()["peers"]["a"]["state"] == "diverged"
    disk = cluster.crash("a")
    cluster.pass_time(100)
    alerts = cluster.boot("a", disk).alerts
    cluster.pass_time(1000)
    assert "log chain" in alerts[0]
    assert cluster.core("b").status()["peers"]["a"]["state"] == "diverged"
    said = len(cluster.members["b"].alerts)
    cluster.pass_time(5000)
    assert len(cluster.members["b"].alerts) == said


@pytest.mark.parametrize("is_sent_at_once", [False, True])
@pytest.mark.parametrize("is_leader_compacted", [False, True])
def test_a_snapshot_of_a_term_that_was_led_again_is_noticed(
    is_leader_compacted: bool, is_sent_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b led term 2 with a, forgot it, and leads term 2 again with c. The snapshot of a covers more
    of that term than b has: the terms are the same at every index that both have. An append may
    hold no more than the first entry of the term, which is the same in both."""
    if not is_sent_at_once:
        monkeypatch.setattr("streamd.raft.replication.RAFT_APPEND_ENTRIES", 1)
    cluster = led_by_a()
    cluster.has_links = True
    cluster.tell_links()
    cluster.pass_time(500)
    disks = {"b": deepcopy(cluster.members["b"].disk), "c": cluster.crash("c")}
    cluster.core("a").transfer("b")
    cluster.pass_time(500)
    for number in range(8):
        cluster.core("b").propose(b"lost %d" % number)
    cluster.pass_time(500)
    term = cluster.core("a").term
    cluster.compact("a", cluster.core("a").last_index)
    disks["a"] = cluster.crash("a")
    cluster.crash("b")
    cluster.committed.clear()  # nobody promises any more that it stays
    for name in "cb":
        cluster.boot(name, disks[name])
    cluster.elect("b").propose(b"later")
    cluster.core("b").propose(b"and later")
    cluster.pass_time(500)
    assert cluster.core("b").term == term
    if is_leader_compacted:
        cluster.compact("b", cluster.core("b").last_index)
    cluster.boot("a", disks["a"])
    cluster.pass_time(1000)
    assert "log chain at index" in cluster.members["a"].alerts[0]
    assert cluster.core("b").status()["peers"]["a"]["state"] == "diverged"
