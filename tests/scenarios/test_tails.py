"""Entries that were committed and are no part of their group any more: nothing goes without a word.

n1 and n2 acknowledge what n3 is not there for; an older copy of n2, and n3, then go on without it.
Nobody can help that. Whoever has those entries still sets them aside and says so.
"""

from __future__ import annotations

import base64
import json

import pytest

from streamd.types import META_UID, Seq
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import copy_of, put_all_back

WORDS = "entries that were committed are not in the leader's log: set aside"
AS_LEADER = (
    "entries of this node's time as leader, which may have been acknowledged, are not in the new "
    "leader's log: set aside"
)


def lose(cluster: Cluster, *, count: int = 200, acked_by: str = "n1") -> dict[Seq, bytes]:
    """n1 leads, and acknowledges `count` messages with n2 alone, of which an older copy is put
    back; n2 and n3 elect a leader. Returns what was acknowledged."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.lead("S", acked_by)
    cluster.until_whole()
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.kill("n3")
    cluster.publish(count, at="n1")
    return end_and_put_back(cluster, uid, backup)


def end_and_put_back(
    cluster: Cluster, uid: int, backup: dict[str, bytes], *, is_clean: bool = False
) -> dict[Seq, bytes]:
    stored = cluster.read("n1")
    if is_clean:
        cluster.hosts["n1"].stop()
        cluster.hosts["n2"].stop()
        cluster.run_ms(5000)
    else:
        cluster.kill("n1", "n2")
    # Nobody promises any more that what was committed stays.
    cluster.checkers.forfeited |= {uid, META_UID}
    cluster.checkers.durability.copy_destroyed("n2")
    put_all_back(cluster.hosts["n2"].disk, backup)
    cluster.boot("n2", "n3")
    cluster.until("a leader", lambda: cluster.leader_name(uid), 20)
    return stored


def come_back(cluster: Cluster, uid: int, *, is_booted: bool = False) -> None:
    """n1 starts (unless it runs), and gets what the others have."""
    if not is_booted:
        cluster.boot("n1")

    def is_same() -> bool:
        leader = cluster.leader_name(uid)
        group = cluster.group("n1", "S")
        return (
            bool(leader)
            and group is not None
            and not group.failure
            and group.machine.applied == cluster.machine(leader, "S").applied
            and not group.raft.is_uncertain
        )

    cluster.until("n1 current", is_same, 30)
    cluster.run_ms(500)


def tails_of(cluster: Cluster, name: str = "n1") -> list[dict]:
    """What is set aside at a node: the first line of each file, with its messages and its end."""
    disk = cluster.hosts[name].disk
    found = []
    for path, blob in sorted(copy_of(disk, f"{ROOT}/trash").items()):
        if "-tail-" not in path:
            continue
        if path.endswith(".tmp"):
            continue  # not whole
        head, *records, end = map(json.loads, blob.splitlines())
        found.append(head | end | {"records": [row for row in records if "subject" in row]})
    return found


def payloads_of(tail: dict) -> dict[Seq, bytes]:
    return {
        row["seq"]: row["payload"].encode()
        if "payload" in row
        else base64.b64decode(row["payload_base64"])
        for row in tail["records"]
    }


def check_told(
    cluster: Cluster, stored: dict[Seq, bytes], *, first: Seq = 21, proof: str = "committed"
) -> None:
    """n1 has set aside all that was acknowledged and is gone, and says so everywhere."""
    (tail,) = tails_of(cluster)
    lost = {seq: payload for seq, payload in stored.items() if seq >= first}
    assert payloads_of(tail) == lost
    assert tail["stream"] == "S" and tail["proof"] == proof and tail["is_exact"]
    assert tail["end"]["messages"] == len(lost)
    assert (tail["end"]["first_seq"], tail["end"]["last_seq"]) == (first, max(lost))
    assert cluster.events(WORDS if proof == "committed" else AS_LEADER) == 1
    node = cluster.node("n1")
    assert node.parts.integrity.discarded.count == 1
    health = cluster.health("n1")
    assert health.status == 200 and "has lost messages" in health.text
    assert f"messages {first}..{max(lost)}" in health.text


def test_a_tail_that_was_committed_is_set_aside_before_it_is_cut_off(cluster: Cluster) -> None:
    """n1 was killed while it served, and truncates."""
    stored = lose(cluster)
    uid = cluster.uid("S")
    cluster.publish(50, at=cluster.leader_name(uid))
    come_back(cluster, uid)
    assert len(stored) == 220 and len(cluster.read("n1")) == 70
    check_told(cluster, stored)


def test_the_last_batch_of_a_former_leader_is_set_aside(cluster: Cluster) -> None:
    """One batch, acknowledged, and no write after it: the log of n1 does not say that it was."""
    stored = lose(cluster, count=1)
    come_back(cluster, cluster.uid("S"))
    check_told(cluster, stored, proof="led")


def test_after_a_second_of_silence_the_log_says_what_was_committed(cluster: Cluster) -> None:
    uid = cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n1")
    cluster.until_whole()
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.kill("n3")
    cluster.publish(1, at="n1")
    cluster.run_ms(3000)
    stored = end_and_put_back(cluster, uid, backup)
    come_back(cluster, uid)
    check_told(cluster, stored)


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_tail_is_set_aside_after_a_clean_stop(cluster: Cluster, is_saved: bool) -> None:
    """n1 was stopped, and knows of all that it was committed; or (`is_saved`) has it in a snapshot
    alone, and its log has let go of it."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n1")
    cluster.until_whole()
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.stop("n3")
    cluster.publish(200, at="n1")
    if is_saved:
        cluster.save(uid, "n1")
    stored = end_and_put_back(cluster, uid, backup, is_clean=True)
    cluster.publish(50, at=cluster.leader_name(uid))
    come_back(cluster, uid)
    assert len(cluster.read("n1")) == 70
    check_told(cluster, stored)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_tail_is_set_aside_where_a_snapshot_takes_its_place(
    cluster: Cluster, is_restarted: bool
) -> None:
    """Those who went on have let go of their logs, and perhaps were started again: n1 is given a
    snapshot, whose entries are not its own."""
    stored = lose(cluster)
    uid = cluster.uid("S")
    for _ in range(8):
        cluster.publish(100, at=cluster.leader_name(uid), chunk=10)
    cluster.save(uid)
    if is_restarted:
        cluster.stop("n2")
        cluster.stop("n3")
        cluster.boot("n2", "n3")
        cluster.until("a leader", lambda: cluster.leader_name(uid), 20)
    come_back(cluster, uid)
    assert cluster.events("caught up") >= 1
    assert len(cluster.read("n1")) == 820
    check_told(cluster, stored)


def test_a_full_disk_stops_the_stream_and_keeps_its_log(cluster: Cluster) -> None:
    """What can't be set aside is not cut off. With room again it is told."""
    stored = lose(cluster)
    uid = cluster.uid("S")
    disk = cluster.hosts["n1"].disk
    disk.fail("pwrite", 28, under=f"{ROOT}/trash")
    cluster.boot("n1")
    cluster.until(
        "n1 stopped", lambda: (group := cluster.group("n1", "S")) is not None and group.failure, 20
    )
    assert "set" in cluster.group("n1", "S").failure and not tails_of(cluster)  # type: ignore[union-attr]
    assert cluster.health("n1").status == 503
    cluster.kill("n1")
    disk.heal()
    come_back(cluster, uid)
    check_told(cluster, stored)


def test_a_crash_while_it_is_set_aside_changes_nothing(cluster: Cluster) -> None:
    """Cut off before the file has its name, and after: one file in the end."""
    stored = lose(cluster)
    uid = cluster.uid("S")
    for point in ("TAIL_SYNCED", "TAIL_SET_ASIDE"):
        cluster.hosts["n1"].disk.crash_at_point = point
        cluster.boot("n1")
        cluster.until(f"n1 at {point}", lambda: cluster.hosts["n1"].node is None, 20)
    come_back(cluster, uid)
    (tail,) = tails_of(cluster)
    assert payloads_of(tail) == {seq: each for seq, each in stored.items() if seq > 20}


def test_a_member_killed_while_setting_aside_notices_again_that_it_differs(
    cluster: Cluster,
) -> None:
    """n1 has in its snapshot what the others lack, and more than all that they have. After its next
    start it was asked from the first entry on, and acked what its leader reads of its log at once,
    which was common, for ever."""
    uid = cluster.create()
    cluster.publish(20, chunk=1)
    cluster.lead("S", "n1")
    cluster.until_whole()
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.stop("n3")
    cluster.publish(200, at="n1", chunk=10)
    stored = end_and_put_back(cluster, uid, backup, is_clean=True)
    cluster.publish(3, at=cluster.leader_name(uid))
    cluster.hosts["n1"].disk.crash_at_point = "TAIL_SYNCED"
    cluster.boot("n1")
    cluster.until("n1 killed", lambda: cluster.hosts["n1"].node is None, 20)
    come_back(cluster, uid)
    assert len(cluster.read("n1")) == 23
    check_told(cluster, stored)


def test_entries_that_a_leader_could_not_commit_are_no_loss(cluster: Cluster) -> None:
    """n1 is cut off with what it was told, and acknowledges none of it: nothing is set aside."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n1")
    cluster.until_whole()
    cluster.isolate("n1")
    replies = cluster.offer("S", [(b"S.x", b"", b"never")], at="n1")
    cluster.run_ms(4000)
    cluster.net.heal()
    cluster.until("another leads", lambda: cluster.leader_name(uid) not in ("", "n1"), 20)
    cluster.publish(5, at="n2")
    cluster.until_whole()
    assert not tails_of(cluster)
    assert type(cluster.outcome(replies[0])) is not int
    assert cluster.events(WORDS) == cluster.events(AS_LEADER) == 0


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_term_that_was_led_twice_is_told_by_its_entries(
    cluster: Cluster, is_compacted: bool
) -> None:
    """n2 led a term with n1, and forgets that it did: with n3 it leads the same term again, or
    n3 does. By their terms the two logs are one; n1 is sent entries, or a snapshot of more."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n1")
    cluster.until_whole()
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.kill("n3")
    cluster.lead("S", "n2")
    term = cluster.group("n2", "S").raft.term  # type: ignore[union-attr]
    cluster.publish(50, at="n2", chunk=1)
    cluster.run_ms(2000)
    stored = end_and_put_back(cluster, uid, backup)
    assert cluster.group(cluster.leader_name(uid), "S").raft.term == term  # type: ignore[union-attr]
    for _ in range(8 if is_compacted else 1):
        cluster.publish(100, at=cluster.leader_name(uid), chunk=10)
    if is_compacted:
        cluster.save(uid)
    come_back(cluster, uid)
    assert cluster.events("caught up")
    check_told(cluster, stored)


MAY_BE = "entries that may have been committed are not in the leader's log: set aside"


@pytest.mark.parametrize("is_compacted", [False, True])
def test_committed_entries_unknown_to_a_follower_are_set_aside(
    cluster: Cluster, is_compacted: bool
) -> None:
    """n1 runs all the time. It acks n2's last entry and is cut off before n2 tells it that this is
    committed; an older copy of n2 and n3 go on. Nothing at n1 says more than that it may have been
    acknowledged."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n2")
    cluster.until_whole()
    cluster.run_ms(1000)
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.kill("n3")
    group = cluster.group("n1", "S")
    assert group is not None
    last = group.raft.last_index
    (reply,) = cluster.offer("S", [(b"S.x", b"", b"acked")], at="n2")
    cluster.until("n1 has it", lambda: group.raft.last_index > last, 1)
    cluster.net.block({("n2", "n1")})  # its ack still passes
    cluster.until("acked", lambda: cluster.outcome(reply) == 21, 1)
    stored = cluster.read("n2")
    cluster.isolate("n1")
    assert group.raft.commit == last
    cluster.kill("n2")
    cluster.checkers.forfeited |= {uid, META_UID}  # nobody promises any more that it stays
    cluster.checkers.durability.copy_destroyed("n2")
    put_all_back(cluster.hosts["n2"].disk, backup)
    cluster.boot("n2", "n3")
    cluster.until("a leader", lambda: cluster.leader_name(uid) not in ("", "n1"), 20)
    for _ in range(8 if is_compacted else 1):
        cluster.publish(100, at=cluster.leader_name(uid), chunk=10)
    if is_compacted:
        cluster.save(uid)
    cluster.run_ms(3000)  # the links are given up, with what they held
    assert group.raft.commit == last
    cluster.net.heal()
    come_back(cluster, uid, is_booted=True)
    (tail,) = tails_of(cluster)
    assert payloads_of(tail) == {21: stored[21]}
    assert tail["proof"] == "open" and tail["is_exact"]
    assert cluster.events(MAY_BE) == 1
    assert cluster.node("n1").parts.integrity.discarded.open_count == 1
