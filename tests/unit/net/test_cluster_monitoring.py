"""What the monitoring port says in a cluster: replicas, leaders, lag, links, and health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streamd.config.options import JetStreamOptions, Options
from streamd.limits import CURRENT_LAG_MAX
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import finish
from streamd.net.pubsub.interest import RemoteSub
from streamd.obs.metrics import render
from tests.unit.api.cluster_bed import ClusterNode, World
from tests.unit.net.health import Health
from tests.unit.net.test_monitoring import Documents, monitoring


class Nodes(World):
    """Three nodes with group facts that a test may change."""

    def __init__(self) -> None:
        super().__init__("n1", "n2", "n3")
        self.changes: dict[tuple[str, int], dict[str, Any]] = {}
        for name, node in self.nodes.items():
            node.failed = {}  # type: ignore[attr-defined]
            node.health = Health()  # type: ignore[attr-defined]
            self._patch(name, node)

    def _patch(self, name: str, node: ClusterNode) -> None:
        plain = node.group_info

        def group_info(uid: int) -> dict[str, Any] | None:
            facts = plain(uid)
            if facts is None:
                return None
            is_leader = facts["leader"] == name
            facts |= {
                "raft_group": "_meta_" if uid == 0 else f"S-R3F-{uid:08d}",
                "role": "leader" if is_leader else "follower",
                "term": 3, "commit": 9, "applied": 9, "last_index": 10, "reason": "",
                "digest": 0xAB, "digest_index": 7,
                "agreement": {"n1": True, "n2": True, "n3": False, "n9": False},
            }  # fmt: skip
            return facts | self.changes.get((name, uid), {})

        node.group_info = group_info  # type: ignore[method-assign]

    def monitoring(self, name: str) -> Documents:
        m = monitoring(Options(jetstream=JetStreamOptions(is_enabled=True)))
        m.monitoring._server_name = name
        m.attach(JetStreamSources(self.nodes[name], self.routers[name]))
        m.monitoring.is_ready = True
        return m


@pytest.fixture
def world() -> Nodes:
    world = Nodes()
    world.make("R1")
    world.make("R3", num_replicas=3)
    return world


def details(m: Documents, **query: str) -> dict[str, dict[str, Any]]:
    found = m.jsz(query)["account_details"][0]["stream_detail"]
    return {stream["name"]: stream for stream in found}


def test_jsz_shows_the_replicas_of_this_node(world: Nodes) -> None:
    """R1 lives on n1 alone; the replicated stream on all, and each tells its own digest."""
    here = {name: details(world.monitoring(name), digest="1") for name in world.nodes}
    assert [sorted(streams) for streams in here.values()] == [["R1", "R3"], ["R3"], ["R3"]]
    leader = world.leaders[2]
    for name, streams in here.items():
        stream = streams["R3"]
        assert stream["role"] == ("leader" if name == leader else "follower")
        assert (stream["current"], stream["lag"], stream["uid"]) == (True, 0, 2)
        assert len(stream["digest"]) == 16 and stream["applied"] >= 0
        assert stream["cluster"]["leader"] == leader
        assert stream["blocks"] == {"bytes": 4000, "stored_bytes": 1000, "ratio": 4.0}
        assert stream["checkpoint"] == {
            "index": 7, "fingerprint": "00000000000000ab",
            "equal": 1 + (name == "n3"), "differing": int(name != "n3"),
        }  # fmt: skip
        assert [row["name"] for row in stream["cluster"]["replicas"]] == [
            other for other in sorted(world.nodes) if other != name
        ]


def test_jsz_counts_and_leaders(world: Nodes) -> None:
    plain = world.monitoring("n1").jsz({})
    led = sum(leader == "n1" for uid, leader in world.leaders.items() if uid)
    assert (plain["streams"], plain.get("streams_leader", 0)) == (2, led)
    assert "consumers_leader" not in plain
    assert plain["ha_assets"] == 1
    meta = plain["meta_cluster"]
    assert (meta["name"], meta["leader"], meta["peer"]) == ("C1", "n1", "fjFyEjc1")
    assert (meta["cluster_size"], meta["quorum_needed"], meta["pending"]) == (3, 2, 0)
    assert [row["name"] for row in meta["replicas"]] == ["n2", "n3"]
    behind = world.monitoring("n2").jsz({"leader-only": "0"})["meta_cluster"]
    assert [row["name"] for row in behind["replicas"]] == ["n1", "n3"]
    with pytest.raises(BadQuery, match="not leader"):
        world.monitoring("n2").jsz({"leader-only": "1"})
    follower = next(name for name in world.nodes if name != world.leaders[2])
    only = details(world.monitoring(follower), streams="1", **{"stream-leader-only": "1"})
    assert "R3" not in only


def test_raftz_lists_groups(world: Nodes) -> None:
    found = world.monitoring("n2").raftz({})
    assert found is not None
    groups = found["$SYS"]
    assert sorted(groups) == ["_meta_"]
    streams = world.monitoring("n2").raftz({"acc": "$G"})
    assert streams is not None and sorted(streams["$G"]) == ["S-R3F-00000002"]
    meta = groups["_meta_"]
    assert (meta["state"], meta["size"], meta["quorum_needed"]) == ("FOLLOWER", 3, 2)
    assert (meta["leader"], meta["term"], meta["committed"], meta["pindex"]) == (
        "fjFyEjc1",
        3,
        9,
        10,
    )
    assert meta["peers"]["fjFyEjc1"]["name"] == "n1"
    assert world.monitoring("n1").raftz({"group": "_meta_"})["$SYS"]["_meta_"]["state"] == "LEADER"  # type: ignore[index]
    assert world.monitoring("n1").raftz({"group": "nope"}) == {}
    assert world.monitoring("n1").raftz({"acc": "nope"}) == {}
    assert monitoring().raftz({}) is None


def health(m: Documents, **query: str) -> tuple[int, str]:
    status, document = m.healthz({name.replace("_", "-"): value for name, value in query.items()})
    return status, document.get("error", "")


def test_health_needs_a_meta_leader(world: Nodes) -> None:
    m = world.monitoring("n2")
    assert health(m) == (200, "")
    world.leaders[0] = ""
    text = "JetStream has not established contact with a meta leader"
    assert health(m) == (503, text)
    assert health(m, js_enabled_only="1") == (200, "")
    assert health(m, js_meta_only="1") == (503, text)
    world.leaders[0] = "n1"
    world.changes["n2", 0] = {"commit": 9 + CURRENT_LAG_MAX + 1}
    assert health(m) == (503, "JetStream is not current with the meta leader")


def test_health_needs_whole_replicas(world: Nodes) -> None:
    """Recovering, behind, leaderless, missing: each is named; other nodes' trouble is not ours."""
    m = world.monitoring("n2")
    head = "JetStream stream '$G > R3' is not current: "
    for change, reason in (
        ({"state": "recovering", "reason": ""}, "recovering"),
        ({"state": "diverged", "reason": "drift at 7"}, "drift at 7"),
        ({"leader": ""}, "no leader"),
        ({"commit": 5009}, "5000 entries behind"),
    ):
        world.changes["n2", 2] = change
        assert health(m) == (503, head + reason)
        assert health(m, account="$G", stream="R1") == (200, "")
        assert health(m, js_server_only="1") == (200, "")
        assert health(m, js_meta_only="1") == (200, "")
        assert not details(m, digest="1")["R3"]["current"]
    assert health(world.monitoring("n3")) == (200, "")
    del world.changes["n2", 2], world.machines[2]["n2"]
    assert health(m) == (503, head + "replica is missing")
    assert health(m, account="$G", stream="none")[0] == 404


@dataclass
class Route:
    rid: int = 4
    remote_id: str = "N2ID"
    remote_name: str = "n2"
    did_solicit: bool = True
    is_configured: bool = True
    ip: str = "127.0.0.1"
    port: int = 6223
    start_ns: int = 1_000_000_000
    last_activity_ns: int = 2_000_000_000
    rtt_ns: int = 597_000
    pending_bytes: int = 3
    in_msgs: int = 5
    out_msgs: int = 6
    in_bytes: int = 50
    out_bytes: int = 60


class Links:
    name = "C1"
    host = "127.0.0.1"
    port = 6222
    auth_timeout_s = 2.0
    configured_urls = ("127.0.0.1:6223",)

    def routes(self) -> list[Route]:
        return [Route()]

    def client_urls(self) -> list[str]:
        return ["10.0.0.1:4222", "10.0.0.2:4222"]


def test_routez_and_varz_show_links() -> None:
    m = monitoring()
    assert (m.varz({})["cluster"], m.varz({})["routes"], m.routez({})["routes"]) == ({}, 0, [])
    m.attach_cluster(Links())  # type: ignore[arg-type]
    found = m.routez({})
    (route,) = found["routes"]
    assert found["num_routes"] == 1
    assert (route["remote_name"], route["rtt"], route["pending_size"]) == ("n2", "597µs", 3)
    varz = m.varz({})
    assert (varz["cluster"]["name"], varz["cluster"]["cluster_port"]) == ("C1", 6222)
    assert (varz["routes"], varz["remotes"]) == (1, 1)
    assert varz["connect_urls"] == ["10.0.0.1:4222", "10.0.0.2:4222"]


def test_routez_lists_the_interest_of_a_servers_clients() -> None:
    subs = [RemoteSub(b"a.*", b"", None, 1), RemoteSub(b"b", b"q", None, 2)]  # type: ignore[arg-type]
    m = monitoring(remote=subs)
    m.attach_cluster(Links())
    (plain,) = m.routez({})["routes"]
    assert (plain["subscriptions"], plain["compression"]) == (2, "off")
    assert "subscriptions_list" not in plain
    (route,) = m.routez({"subs": "1"})["routes"]
    assert route["subscriptions_list"] == ["a.*", "b"]
    (route,) = m.routez({"subs": "detail"})["routes"]
    assert route["subscriptions_list_detail"][1] == {
        "subject": "b", "qgroup": "q", "sid": "b", "msgs": 0, "cid": 4,
    }  # fmt: skip


def test_metrics_of_a_cluster(world: Nodes) -> None:
    m = world.monitoring("n2")
    varz = m.varz({}) | {"server_name": "n2"}

    def text_of(m: Documents) -> str:
        return render(varz, m.monitoring.jetstream(), finish(m.monitoring.samples())).decode()

    text = text_of(m)
    assert 'streamd_meta_is_leader{cluster="C1",server_id="NID"} 0.0' in text
    assert 'streamd_meta_cluster_size{cluster="C1",server_id="NID"} 3.0' in text
    for name, value in (("current", 1), ("equal", 1), ("differing", 1)):
        labels = 'account="$G",server_id="NID",stream_name="R3"'
        assert f"streamd_replica_{name}{{{labels}}} {value}.0\n" in text
    assert 'jetstream_server_total_streams{server_id="NID"} 1.0\n' in text
    assert text_of(m) == text
    world.changes["n2", 2] = {"agreement": {"n1": False, "n3": False}, "applied": 7}
    changed = text_of(m)
    for name, value in (("lag", 2), ("applied", 7), ("equal", 0), ("differing", 2)):
        assert f"streamd_replica_{name}{{{labels}}} {value}.0\n" in changed
