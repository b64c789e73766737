"""A server that is gone is removed for good: who takes over, and that it does not come back."""

from __future__ import annotations

import pytest

from streamd.machine import commands
from streamd.types import META_UID, NodeId
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.sim.world import Violation


def meta_members(cluster: Cluster) -> set[NodeId]:
    """The members of the meta group as its leader counts them."""
    leader = cluster.leader_name(META_UID)
    group = cluster.node(leader).groups.group_of(META_UID) if leader else None
    return set(group.raft.members.members()) if group is not None else set()


def peers_of(cluster: Cluster, stream: str) -> set[NodeId]:
    return set(cluster.checkers.assets[cluster.uid(stream)].peers)


def voters_of(cluster: Cluster, stream: str) -> set[NodeId]:
    group = cluster.group(cluster.leader(stream), stream)
    assert group is not None
    return set(group.raft.members.voters)


def do_without(cluster: Cluster, others: list[NodeId], name: NodeId) -> bool:
    """True if `others` know that a node is gone, and who leads now what it may have led."""
    shared = [uid for uid, asset in cluster.checkers.assets.items() if len(asset.peers) > 1]
    nodes = [cluster.node(other) for other in others]
    return all(
        node.peers is not None
        and not node.peers.is_up(name)
        and all(node.leader_of(uid) in others for uid in (META_UID, *shared))
        for node in nodes
    )


def remove(cluster: Cluster, name: NodeId) -> None:
    """Kill a node and remove it, as soon as the others know that it is gone."""
    cluster.kill(name)
    others = cluster.running()
    cluster.until(f"{name} gone", lambda: do_without(cluster, others, name))
    assert cluster.ask("SERVER.REMOVE", {"peer": name}) == {
        "type": "io.nats.jetstream.api.v1.meta_server_remove_response",
        "success": True,
    }
    cluster.until(f"{name} out of meta", lambda: meta_members(cluster) == set(others))


@pytest.mark.parametrize("lost", ["n3", "leader"])
def test_two_of_three_go_on(make: Make, lost: str) -> None:
    """Streams stay R3 with two members, who ack; the meta group of two takes changes."""
    cluster = make()
    cluster.create()
    cluster.publish(50)
    name = cluster.leader_name(META_UID) if lost == "leader" else lost
    remove(cluster, name)
    left = set(cluster.names) - {name}
    cluster.until("two members", lambda: voters_of(cluster, "S") == left)
    assert peers_of(cluster, "S") == left
    cluster.publish(50)
    cluster.until_whole()
    info = cluster.info()
    assert info["config"]["num_replicas"] == 3
    assert len(info["cluster"]["replicas"]) == 1
    assert cluster.ask("STREAM.CREATE.T", {"name": "T", "num_replicas": 2})["did_create"]
    assert cluster.ask("SERVER.REMOVE", {"peer": name})["error"]["err_code"] == 10044


def test_others_take_over_where_there_is_room(make: Make) -> None:
    """Of five nodes one is removed: every R3 stream has three members again, with all messages."""
    cluster = make(5)
    for number in range(4):
        cluster.create(f"S{number}")
        cluster.publish(20, stream=f"S{number}")
    cluster.create("ALONE", replicas=1)
    alone = next(iter(peers_of(cluster, "ALONE")))
    name = next(each for each in cluster.names if each != alone and each in peers_of(cluster, "S0"))
    remove(cluster, name)
    for number in range(4):
        stream = f"S{number}"

        def is_settled(stream: str = stream) -> bool:
            peers = peers_of(cluster, stream)
            return len(peers) == 3 and name not in peers and voters_of(cluster, stream) == peers

        cluster.until(f"{stream} on three others", is_settled, 30)
        cluster.publish(5, stream=stream)
        cluster.until_whole(stream)
        assert cluster.info(stream)["state"]["messages"] == 25


def test_only_copy_stays_assigned(make: Make) -> None:
    """An R1 stream of the removed server is not given away empty: lost is not deleted."""
    cluster = make()
    cluster.create("ALONE", replicas=1)
    name = next(iter(peers_of(cluster, "ALONE")))
    remove(cluster, name)
    cluster.run_ms(3000)
    assert peers_of(cluster, "ALONE") == {name}
    assert cluster.ask("STREAM.NAMES")["streams"] == ["ALONE"]


def test_removed_server_does_not_come_back_with_its_data(make: Make) -> None:
    """It learns of its removal, says so, serves nothing, not even what only it has; and does not
    start again from that directory."""
    cluster = make()
    cluster.create("ALONE", replicas=1)
    cluster.create()
    name = next(iter(peers_of(cluster, "ALONE")))
    remove(cluster, name)
    cluster.boot(name)
    told = "was removed from the cluster: to have it join again, stop it and give it an empty store"
    cluster.until("told", lambda: any(
        f"{name} error" in line and told in line for line in cluster.world.recent
    ))  # fmt: skip
    cluster.run_ms(5000)
    node = cluster.node(name)
    assert node.groups.monitor_of(META_UID) is None
    assert not any(replica.is_ready for replica in node.groups)
    assert meta_members(cluster) == set(cluster.names) - {name}
    cluster.publish(10, at=next(each for each in cluster.names if each != name))
    cluster.stop(name)
    with pytest.raises(Violation, match=r"can't start: ConfigError: server .* was removed"):
        cluster.boot(name)


def test_removed_while_it_could_not_know_of_it_by_its_own_log(make: Make) -> None:
    """Cut off, it goes on by itself; when it meets the others again, it is told."""
    cluster = make()
    cluster.create()
    name = "n3"
    cluster.isolate(name)
    cluster.until("cut off", lambda: do_without(cluster, ["n1", "n2"], name))
    at = cluster.leader_name(META_UID)
    answer = cluster.ask("SERVER.REMOVE", {"peer": name}, at=at)
    assert answer.get("success"), answer
    cluster.net.heal()
    cluster.until("told", lambda: cluster.node(name).parts.context.life.is_removed)
    cluster.until("out", lambda: meta_members(cluster) == {"n1", "n2"})
    cluster.publish(10, at="n1")


def test_removed_while_it_comes_back(make: Make) -> None:
    """It is there again by the time the removal is decided: its links are cut, and it is told."""
    cluster = make()
    cluster.create()
    cluster.kill("n3")
    cluster.until("led", lambda: cluster.leader_name(META_UID) in ("n1", "n2"))
    cluster.boot("n3")
    cluster.until("back", lambda: all(
        cluster.node(name).peers.is_up("n3") for name in ("n1", "n2")  # type: ignore[union-attr]
    ))  # fmt: skip
    assert cluster.command(META_UID, [commands.REMOVE_SERVER, 1, "n3"]) is True
    cluster.until("told", lambda: cluster.node("n3").parts.context.life.is_removed)
    cluster.until("out", lambda: meta_members(cluster) == {"n1", "n2"})
    cluster.run_ms(2000)
    nodes = [cluster.node(name) for name in ("n1", "n2")]
    assert not any(node.peers is None or node.peers.is_up("n3") for node in nodes)
    cluster.publish(10, at="n1")


def test_an_empty_directory_joins_under_the_old_name(make: Make) -> None:
    """It is let in, and the stream that was short of a replica has three again."""
    cluster = make()
    cluster.create()
    cluster.publish(30)
    remove(cluster, "n3")
    cluster.until("two members", lambda: voters_of(cluster, "S") == {"n1", "n2"})
    cluster.hosts["n3"].disk.wipe(ROOT)
    cluster.boot("n3")
    cluster.until("joined", lambda: meta_members(cluster) == {"n1", "n2", "n3"})
    cluster.until("three members", lambda: voters_of(cluster, "S") == {"n1", "n2", "n3"}, 30)
    cluster.until_whole()
    cluster.publish(10)
    for name in ("n1", "n2", "n3"):  # it is a member like any other, over restarts too
        cluster.stop(name)
    cluster.boot()
    cluster.until("joined again", lambda: meta_members(cluster) == {"n1", "n2", "n3"})
    cluster.until_whole()
    assert cluster.info()["state"]["messages"] == 40


def test_online_servers_and_strangers_are_refused(cluster: Cluster) -> None:
    for body, code in (
        (None, 10003),
        ({"peer": "n9"}, 10044),
        ({"peer": "n3", "peer_id": "xxxxxxxx"}, 10044),
        ({"peer": "n3"}, 10041),
    ):
        answer = cluster.ask("SERVER.REMOVE", body)
        assert answer["error"]["err_code"] == code, answer
    assert meta_members(cluster) == {"n1", "n2", "n3"}


def test_an_empty_directory_joins_by_way_of_one_that_has_not_heard(make: Make) -> None:
    """The first member it meets knows nothing of the removal yet, which is not about this data."""
    cluster = make(5)
    cluster.create()
    cluster.publish(30)
    cluster.kill("n5")
    late = next(name for name in cluster.running() if name != cluster.leader_name(META_UID))
    others = [name for name in cluster.running() if name != late]
    cluster.isolate(late)
    cluster.until("led", lambda: cluster.leader_name(META_UID) in others)
    cluster.until("gone", lambda: not any(
        node.peers is None or node.peers.is_up("n5") for node in map(cluster.node, others)
    ))  # fmt: skip
    at = cluster.leader_name(META_UID)
    assert cluster.ask("SERVER.REMOVE", {"peer": "n5"}, at=at)["success"]
    cluster.until("out", lambda: meta_members(cluster) == {*others, late})
    cluster.net.heal()
    pairs = {(a, b) for a in (late, "n5") for b in others}
    cluster.net.block(pairs | {(b, a) for a, b in pairs})
    cluster.hosts["n5"].disk.wipe(ROOT)
    cluster.boot("n5")
    cluster.until(
        "joined",
        lambda: (
            cluster.node("n5").is_clustered and cluster.node("n5").parts.context.identity.cluster_id
        ),
    )
    assert cluster.node("n5").parts.context.identity.facts["removal"] == 0
    cluster.net.heal()
    cluster.until("a member", lambda: meta_members(cluster) == set(cluster.names))
    cluster.until_whole()
    cluster.publish(10, at="n5")
    cluster.stop("n5")
    cluster.boot("n5")
    cluster.until_whole()
    assert meta_members(cluster) == set(cluster.names)
