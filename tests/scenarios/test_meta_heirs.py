"""All logs have lost their end, the meta group's too: who has most leads, once an operator accepts
the loss, and nothing that it does not know of is deleted or mixed with what comes later."""

from __future__ import annotations

import pytest

from streamd.store.wal import wal_format as wf
from streamd.types import META_UID, NodeId, Uid
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import copy_of, put_back
from tests.scenarios.test_heirs import WAIT_MS, boot_accepting

WAL = ROOT + "/wal"
IN_DOUBT = "the meta group has no leader, and this server may have lost entries of it"
GOES_ON = (
    "the meta group continues without the lost end of its log: changes of streams "
    "and servers in those entries are lost"
)
KEPT = (
    "files of a stream are kept, not served: the meta group has lost the entry that created the "
    "stream"
)

Logs = dict[NodeId, dict[str, bytes]]


def logs_of(cluster: Cluster) -> Logs:
    return {name: copy_of(cluster.hosts[name].disk, WAL) for name in cluster.names}


def lose_ends(cluster: Cluster, *names: NodeId, logs: Logs | None = None) -> None:
    """These stop, and their logs end as in `logs`, or where they are; the nodes can't know where
    they ended."""
    cluster.kill(*names)
    for name in names:
        disk = cluster.hosts[name].disk
        uids = [META_UID, *cluster.checkers.assets]
        cluster.checkers.durability.copy_destroyed(name)
        cluster.checkers.durability.log_lost(name, uids)
        if logs is not None:
            put_back(disk, WAL, logs[name])
        for offset in (0, wf.MANIFEST_COPY_BYTES):
            disk.flip(f"{WAL}/manifest", offset)


def stays_without_leader(cluster: Cluster, wait_ms: int = WAIT_MS) -> None:
    def is_led() -> bool:
        return bool(cluster.leader_name(META_UID))

    cluster.world.run(cluster.world.now_us + wait_ms * 1000, is_led)
    assert not is_led()


def boot_all(cluster: Cluster, accepting: NodeId) -> None:
    for name in cluster.names:
        if name == accepting:
            boot_accepting(cluster, name)
        elif cluster.hosts[name].node is None:
            cluster.boot(name)


def until_led(cluster: Cluster) -> NodeId:
    cluster.until("a meta leader", lambda: cluster.leader_name(META_UID), 20)
    return cluster.leader_name(META_UID)


def until_whole(cluster: Cluster) -> None:
    """As the driver's. Whoever was elected by everybody is vouched for by that: it remembers all
    that there is from then on (raft/recovering.py)."""
    for uid in (META_UID, cluster.uid("S")):
        cluster.until("led", lambda uid=uid: cluster.leader_name(uid), 20)
        cluster.checkers.durability.on_certify(cluster.leader_name(uid), uid)
    cluster.until_whole()


def members(cluster: Cluster, name: NodeId) -> tuple[NodeId, ...]:
    group = cluster.node(name).groups.group_of(META_UID)
    return group.raft.members.members() if group is not None else ()


def until_used_up(cluster: Cluster) -> None:
    """All know of one loss, and what may have been used is behind them."""

    def is_past() -> bool:
        machines = [cluster.node(name).meta for name in cluster.names]
        return all(m.losses and m.applied >= m.used_to for m in machines)

    cluster.until("used up", is_past, 20)
    machines = [cluster.node(name).meta for name in cluster.names]
    assert all(m.losses == machines[0].losses for m in machines)
    assert len(machines[0].losses) == 1


def create_later(cluster: Cluster, stream: str) -> Uid:
    """A stream that the checkers' truth does not know of."""
    body = {"name": stream, "subjects": [f"{stream}.>"], "num_replicas": 3}
    answer = cluster.ask(f"STREAM.CREATE.{stream}", body)
    assert "error" not in answer, answer
    name = cluster.running()[0]
    cluster.until("known", lambda: cluster.node(name).meta.stream(stream) is not None)
    return cluster.node(name).meta.streams_by_key["$G", stream].uid


def test_a_cluster_whose_logs_all_lost_their_end_goes_on_when_that_is_accepted(
    cluster: Cluster,
) -> None:
    cluster.create()
    cluster.publish(30)
    cluster.until_whole()
    stored = cluster.read("n1")
    lose_ends(cluster, *cluster.names)
    for name in cluster.names:
        cluster.boot(name)
    stays_without_leader(cluster)
    assert cluster.events(IN_DOUBT) == 3
    cluster.stop("n2")
    boot_accepting(cluster, "n2")
    until_led(cluster)
    until_whole(cluster)
    assert [cluster.read(name) for name in cluster.names] == [stored] * 3
    cluster.publish(5)
    until_used_up(cluster)
    assert cluster.events(GOES_ON) == 3
    assert not cluster.events(KEPT)
    cluster.hosts["n2"].accepts_loss = False
    cluster.stop("n2")
    cluster.boot("n2")
    cluster.until_whole()
    assert cluster.create("T") > cluster.node("n1").meta.used_to
    cluster.publish(5, "T")
    cluster.until_whole("T")
    assert len(cluster.node("n1").meta.losses) == 1


def test_streams_created_in_lost_entries_are_kept_and_their_uids_not_reused(
    cluster: Cluster,
) -> None:
    """L and its messages were acknowledged, and no log knows of L any more. Its files stay where
    they are on all nodes, also when others are created, under its name too, and at later starts."""
    cluster.create()
    cluster.publish(30)
    cluster.until_whole()
    stored = cluster.read("n1")
    logs = logs_of(cluster)
    lost = cluster.create("L")
    cluster.publish(20, "L")
    cluster.until_whole("L")
    for name in cluster.names:
        replica = cluster.node(name).replica(lost)
        assert replica is not None
        told: list[bool] = []
        cluster.process(name).run(replica.monitor.save_anew, lambda told=told: told.append(True))
        cluster.until("saved", lambda told=told: told)
    directory = cluster.directory("L")
    cluster.checkers.forfeited |= {META_UID, *range(lost, lost + 3000)}
    lose_ends(cluster, *cluster.names, logs=logs)
    files = {name: copy_of(cluster.hosts[name].disk, directory) for name in cluster.names}
    assert all(files.values())

    def are_kept() -> bool:
        return all(
            copy_of(cluster.hosts[name].disk, directory) == files[name] for name in cluster.names
        )

    boot_all(cluster, "n3")
    until_led(cluster)
    until_whole(cluster)
    assert [cluster.read(name) for name in cluster.names] == [stored] * 3
    cluster.publish(5)
    until_used_up(cluster)
    assert cluster.events(KEPT) == 3
    assert are_kept()
    assert create_later(cluster, "N") > lost
    again = create_later(cluster, "L")
    assert again > lost + 1000
    cluster.until("led", lambda: cluster.leader_name(again))
    assert not cluster.info("L")["state"]["messages"]
    for name in cluster.names:
        cluster.save(META_UID, name)
        cluster.hosts[name].accepts_loss = False
        cluster.stop(name)
        cluster.boot(name)
    cluster.until_whole()
    assert cluster.events(KEPT) == 6
    assert are_kept()


def test_two_empty_servers_and_one_whose_log_lost_its_end_go_on(cluster: Cluster) -> None:
    """The empty ones join its cluster again, and found none of their own."""
    cluster.create()
    cluster.publish(30)
    cluster.until_whole()
    stored = cluster.read("n3")
    cluster_id = cluster.node("n3").parts.context.identity.cluster_id
    lose_ends(cluster, *cluster.names)
    for name in ("n1", "n2"):
        cluster.hosts[name].disk.wipe(ROOT)
        cluster.boot(name)
    boot_accepting(cluster, "n3")
    until_led(cluster)
    until_whole(cluster)
    assert [cluster.read(name) for name in cluster.names] == [stored] * 3
    assert {cluster.node(name).parts.context.identity.cluster_id for name in cluster.names} == {
        cluster_id
    }
    until_used_up(cluster)


def test_forced_meta_election_passes_over_no_member_that_may_have_more(cluster: Cluster) -> None:
    cluster.create()
    cluster.publish(10)
    lose_ends(cluster, *cluster.names)
    cluster.boot("n2")
    boot_accepting(cluster, "n1")
    stays_without_leader(cluster)
    assert cluster.events("the meta group waits for servers that may have a longer log") == 1
    cluster.boot("n3")
    until_led(cluster)
    until_whole(cluster)


def test_a_member_that_remembers_is_elected_without_an_operator(cluster: Cluster) -> None:
    cluster.create()
    cluster.publish(10)
    cluster.until_whole()
    lose_ends(cluster, "n1", "n2")
    cluster.stop("n3")
    boot_accepting(cluster, "n1")
    cluster.boot("n2")
    stays_without_leader(cluster)
    cluster.boot("n3")
    assert until_led(cluster) == "n3"
    cluster.until_whole()
    assert not any(cluster.node(name).meta.losses for name in cluster.names)


def test_a_majority_that_remembers_is_not_touched(cluster: Cluster) -> None:
    cluster.create()
    cluster.publish(10)
    lose_ends(cluster, "n1")
    boot_accepting(cluster, "n1")
    cluster.until_whole()
    cluster.kill("n2")
    cluster.run_ms(WAIT_MS)
    cluster.boot("n2")
    cluster.until_whole()
    assert not any(cluster.node(name).meta.losses for name in cluster.names)


def test_an_heir_that_ends_at_once_leaves_no_gap(cluster: Cluster) -> None:
    """It led for a moment: whoever leads next knows what must not be used again."""
    cluster.create()
    cluster.publish(10)
    cluster.until_whole()
    lose_ends(cluster, *cluster.names)
    boot_all(cluster, "n1")

    def heir() -> NodeId:
        for name in cluster.names:
            group = cluster.node(name).groups.group_of(META_UID)
            if group is not None and group.machine.losses:
                return name
        return ""

    cluster.until("a loss", heir, 20)
    name = heir()
    cluster.checkers.durability.on_certify(name, META_UID)
    cluster.kill(name)
    cluster.run_ms(3000)  # another one leads, if it vouched for both in time
    cluster.boot(name)
    until_used_up(cluster)
    until_whole(cluster)


@pytest.mark.parametrize("is_removal_lost", [False, True])
def test_a_removed_server_is_not_waited_for_if_that_is_known(
    make: Make, is_removal_lost: bool
) -> None:
    """All have seen n4, and all but n4 know that it was removed; or have forgotten it: then an
    empty one takes its place."""
    cluster = make(4)
    cluster.create()
    cluster.publish(10)
    cluster.until_whole()
    logs = logs_of(cluster)
    cluster.kill("n4")
    cluster.names.remove("n4")
    cluster.until("led", lambda: cluster.leader_name(META_UID) and cluster.leader("S"))
    cluster.until("removed", lambda: cluster.ask("SERVER.REMOVE", {"peer": "n4"}).get("success"))
    cluster.until(
        "left", lambda: all(members(cluster, name) == ("n1", "n2", "n3") for name in cluster.names)
    )
    if is_removal_lost:
        cluster.checkers.forfeited.add(META_UID)
    else:
        cluster.save(META_UID)  # what comes after that is not known to be committed
    lose_ends(cluster, *cluster.names, logs=logs if is_removal_lost else None)
    boot_all(cluster, "n1")
    if is_removal_lost:
        stays_without_leader(cluster)
        cluster.hosts["n4"].disk.wipe(ROOT)
        cluster.boot("n4")
    until_led(cluster)
    cluster.until("whole", lambda: not cluster.missing(), 20)
