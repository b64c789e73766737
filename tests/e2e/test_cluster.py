"""Three real processes: kills, pauses, blackouts, restarts, lost directories; nothing is lost.

STREAMD_BINARY chooses another binary. `make cluster-crash` runs the long campaigns.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess, free_port
from tests.e2e import cluster as load
from tests.e2e.cluster import Campaign
from tests.e2e.conftest import MakeCluster
from tests.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def is_peer(cluster: ClusterProcess) -> bool:
    return "nats-server" in next(iter(cluster.nodes.values())).binary


def check(campaign: Campaign) -> None:
    found = campaign.verdict()
    print(found)
    assert found.acked > 0
    assert not found.faults, found.faults


def test_every_node_answers_every_client(make_cluster: MakeCluster) -> None:
    """API, publish, pull and core NATS at each of the three; who leads does not matter."""
    cluster = make_cluster()
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
    created = load.api(cluster, "STREAM.CREATE.S", config)
    assert len(created["cluster"]["replicas"]) == 2
    cluster.leader("S")
    wires = {name: Wire(node.port) for name, node in cluster.nodes.items()}
    for number, (name, wire) in enumerate(wires.items()):
        ack = wire.ask(f"s.{name}", name.encode())[0].json()
        assert ack["seq"] == number + 1
        assert wire.api("STREAM.NAMES")["streams"] == ["S"]
        assert wire.api("STREAM.INFO.S")["state"]["messages"] == number + 1
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    body = {"stream_name": "S", "config": consumer}
    assert "error" not in wires["n2"].api("CONSUMER.CREATE.S.C", body)
    for name, wire in wires.items():
        found = wire.ask("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1}')[0]
        assert found.payload == name.encode()
        assert wire.ask(found.reply, b"+ACK")
    sid = wires["n1"].subscribe("core.*")
    wires["n1"].fence()
    cluster.wait_until(lambda: _is_heard(wires["n3"], wires["n1"], sid), "joined by interest")
    for wire in wires.values():
        wire.close()


def _is_heard(sender: Wire, receiver: Wire, sid: str) -> bool:
    sender.publish("core.x", b"hello")
    sender.fence()
    return any(frame.sid == sid for frame in receiver.collect(count=1, within_s=0.2))


def test_removed_server_stays_outside(make_cluster: MakeCluster) -> None:
    """SERVER.REMOVE of a dead node: two go on; restarted with its data it says why it is out, and
    does not start a second time; with an empty directory it is the third again."""
    cluster = make_cluster()
    node = cluster.nodes["n3"]
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
    load.api(cluster, "STREAM.CREATE.S", config)
    left = cluster.nodes["n1"]
    with Wire(left.port) as wire:
        assert wire.api("SERVER.REMOVE", {"peer": "n3"})["error"]["err_code"] == 10041
        cluster.kill("n3")
        cluster.wait_until(
            lambda: "success" in wire.api("SERVER.REMOVE", {"peer": "n3"}), "removed"
        )

    def meta_size() -> int:
        return int(cluster.get(left, "/jsz").get("meta_cluster", {}).get("cluster_size", 0))

    cluster.wait_until(lambda: meta_size() == 2, "two members")
    cluster.wait_until(lambda: cluster.is_healthy(left), "healthy")
    node.launch()
    why = "[ERR] server 'n3' was removed from the cluster: to have it join again, stop it and give"
    cluster.wait_until(lambda: why in node.log_tail(200), "told")
    node.stop()
    node.launch()
    cluster.wait_until(lambda: not node.is_running(), "refused to start")
    node.kill()  # it is gone already
    assert "an empty store directory" in node.log_tail(3)
    shutil.rmtree(node.store_dir)
    node.launch()
    cluster.wait_until(lambda: meta_size() == 3, "three members")
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")


def test_one_server_of_three_goes_on_by_a_rescue(make_cluster: MakeCluster) -> None:
    """While the leader is known every server refuses; when two are gone for good, the third leads,
    lets them go, and is then its own majority, also after a restart."""
    cluster = make_cluster()
    left = cluster.nodes["n1"]

    def rescue(count: int) -> list[dict[str, Any]]:
        with Wire(left.port) as wire:
            frames = wire.ask("$JS.API.META.RESCUE", b'{"quorum_needed":1}', count=count)
        return [frame.json() for frame in frames]

    refused = rescue(3)
    assert len(refused) == 3
    assert {answer["error"]["description"] for answer in refused} == {
        "JetStream system rescue not applied: raft: leader is known"
    }
    cluster.kill("n2", "n3")
    cluster.wait_until(lambda: rescue(1)[0].get("new_quorum") == 1, "rescued")
    meta = cluster.wait_until(lambda: _led_meta(cluster, left), "a leader")
    assert meta["quorum_needed"] == 1 and meta["rescue"] is True and meta["cluster_size"] == 3
    with Wire(left.port) as wire:
        for name in ("n2", "n3"):
            cluster.wait_until(
                lambda name=name: "success" in wire.api("SERVER.REMOVE", {"peer": name}), name
            )
        cluster.wait_until(lambda: _led_meta(cluster, left).get("cluster_size") == 1, "alone")
        assert "rescue" not in _led_meta(cluster, left)
        made = wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        assert made.get("did_create"), made
        assert wire.ask("s", b"x")[0].json()["seq"] == 1
    left.stop()
    left.start()
    cluster.wait_until(lambda: cluster.is_healthy(left), "healthy")
    with Wire(left.port) as wire:
        cluster.wait_until(lambda: wire.api("STREAM.INFO.S").get("state"), "stream")
        assert wire.ask("s", b"x")[0].json()["seq"] == 2


def _led_meta(cluster: ClusterProcess, node: ServerProcess) -> dict[str, Any]:
    """Facts of the meta group as a node tells them, once it names a leader."""
    meta: dict[str, Any] = cluster.get(node, "/jsz").get("meta_cluster", {})
    return meta if meta.get("leader") else {}


def test_monitoring_shows_the_cluster(make_cluster: MakeCluster) -> None:
    """/healthz, /routez, /raftz, /varz and /jsz at every node."""
    cluster = make_cluster()
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
    load.api(cluster, "STREAM.CREATE.S", config)
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")
    leaders = set()
    for name, node in cluster.nodes.items():
        others = {other for other in cluster.nodes if other != name}
        routes = cluster.get(node, "/routez")
        assert {route["remote_name"] for route in routes["routes"]} == others
        assert cluster.get(node, "/raftz")
        assert cluster.get(node, "/varz")["cluster"]["name"] == "bench"
        meta = cluster.get(node, "/jsz")["meta_cluster"]
        assert meta["cluster_size"] == 3
        leaders.add(meta["leader"])
    assert len(leaders) == 1
    assert leaders <= set(cluster.nodes)


def test_kills_of_leaders_and_followers_lose_nothing(
    make_cluster: MakeCluster, lossy_binary: str
) -> None:
    """Two rounds of SIGKILL under four publishers and two consumers, un-synced bytes dropped."""
    campaign = Campaign(make_cluster(binary=lossy_binary), pause_s=0.02)
    with campaign.load():
        load.kill_rounds(campaign, 2, acked_between=100)
    check(campaign)


def test_a_paused_leader_does_no_harm(make_cluster: MakeCluster) -> None:
    """SIGSTOP of the leader until another one leads; afterwards it follows."""
    campaign = Campaign(make_cluster(), pause_s=0.02)
    with campaign.load():
        load.pause_rounds(campaign, 1, seconds=3)
    check(campaign)


def test_all_killed_at_once_lose_nothing(make_cluster: MakeCluster, lossy_binary: str) -> None:
    """A power failure of all three, un-synced bytes dropped."""
    campaign = Campaign(make_cluster(binary=lossy_binary), pause_s=0.02)
    with campaign.load():
        outages = load.blackout_rounds(campaign, 1)
    print(f"outages: {outages}")
    check(campaign)


def test_restarts_and_a_lost_directory_lose_nothing(make_cluster: MakeCluster) -> None:
    """A rolling restart by SIGTERM; then a follower's copy is removed while it is down."""
    campaign = Campaign(make_cluster(), pause_s=0.02)
    with campaign.load():
        load.rolling_restart(campaign)
        load.wipe_round(campaign)
    check(campaign)


@pytest.mark.parametrize(
    "mistake",
    [
        "secret",
        pytest.param("cluster name", marks=pytest.mark.proof),
        pytest.param("server name", marks=pytest.mark.proof),
    ],
)
def test_a_node_that_does_not_belong_stays_out(
    make_cluster: MakeCluster, tmp_path: Path, mistake: str
) -> None:
    """Wrong secret, wrong cluster name, a name that is taken: the three go on undisturbed."""
    cluster = make_cluster()
    if is_peer(cluster) and mistake == "cluster name":
        pytest.skip("nats-server joins the other cluster's name")
    wrong = {"secret": "wrong"} if mistake == "secret" else {}
    if mistake == "cluster name":
        wrong = {"cluster": "other"}
    name = "n1" if mistake == "server name" else "n9"
    binary = next(iter(cluster.nodes.values())).binary
    block = cluster.cluster_block(name, free_port(), **wrong)
    stranger = ServerProcess(binary, directory=tmp_path / "stranger", extra=block)
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
    load.api(cluster, "STREAM.CREATE.S", config)

    def links() -> set[tuple[str, str, int]]:
        """The links of all nodes; one that was made anew has another number."""
        return {
            (name, route["remote_name"], route["rid"])
            for name, node in cluster.nodes.items()
            for route in cluster.get(node, "/routez")["routes"]
        }

    for node in cluster.nodes.values():
        cluster.wait_healthy(node)
    before = links()
    try:
        stranger.launch()
        cluster.wait_until(
            lambda: "[ERR]" in stranger.log_tail() or "[WRN]" in stranger.log_tail(), "refused"
        )
        if not is_peer(cluster):
            assert links() == before
        for node in cluster.nodes.values():
            cluster.wait_healthy(node)
            routes = cluster.get(node, "/routez")["routes"]
            assert "n9" not in {route["remote_name"] for route in routes}
            with Wire(node.port) as wire:
                assert wire.ask("s.x", b"fine")[0].json()["stream"] == "S"
        assert "Traceback" not in stranger.log_tail(200)
    finally:
        stranger.close()


# --- long proofs: `make cluster-crash` ---------------------------------------------------------


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_campaign_hundred_kills(make_cluster: MakeCluster, lossy_binary: str) -> None:
    seed = int(os.environ.get("STREAMD_SEED", "0")) or int(time.time())
    rounds = int(os.environ.get("STREAMD_ROUNDS", "100"))
    cluster = make_cluster(binary=lossy_binary)
    campaign = Campaign(cluster, seed=seed, pause_s=0.02)
    with campaign.load():
        load.kill_rounds(campaign, rounds, acked_between=100)
    print(f"\nseed {seed}, {rounds} kills, half of them of the leader:")
    check(campaign)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_campaign_twenty_pauses(make_cluster: MakeCluster) -> None:
    campaign = Campaign(make_cluster(), seed=int(time.time()), pause_s=0.05)
    with campaign.load():
        load.pause_rounds(campaign, 20, seconds=10)
    print("\n20 pauses of the leader, 10 s each:")
    check(campaign)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_campaign_twenty_blackouts(make_cluster: MakeCluster, lossy_binary: str) -> None:
    cluster = make_cluster(binary=lossy_binary)
    campaign = Campaign(cluster, seed=int(time.time()), pause_s=0.02)
    with campaign.load():
        outages = load.blackout_rounds(campaign, 20)
    print(f"\n20 kills of all three: outage {min(outages):.2f} to {max(outages):.2f} s:")
    check(campaign)


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_campaign_rolling_restart(make_cluster: MakeCluster) -> None:
    campaign = Campaign(make_cluster(), seed=int(time.time()), pause_s=0.005)
    with campaign.load():
        for _ in range(3):
            load.rolling_restart(campaign)
    print("\n3 rolling restarts by SIGTERM (the longest gap is that of any publisher):")
    check(campaign)
