"""The API of a cluster: asked at any node, answered by the right one, placed by load and tags."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from streamd import errors, limits
from streamd.api import stream_configs
from streamd.api.cluster_infos import short_hash
from streamd.api.times import format_ns
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.meta import MetaMachine
from streamd.types import ACCOUNT, Entry
from tests.unit.api.bed import Bed, Wires, check_schema
from tests.unit.api.cluster_bed import World

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def world() -> World:
    return World(*NAMES)


# --- who answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("node", NAMES)
def test_every_node_takes_every_request(world: World, node: str) -> None:
    """Create, show, list, change and delete, asked at one node, whoever leads."""
    created = world.ask(node, "STREAM.CREATE.S", {"name": "S", "num_replicas": 3})
    assert created["did_create"] and created["config"]["num_replicas"] == 3
    world.lead(1, "n2")
    shown = world.ask(node, "STREAM.INFO.S")
    assert shown["cluster"]["leader"] == "n2"
    assert [row["name"] for row in shown["cluster"]["replicas"]] == ["n1", "n3"]
    assert world.ask(node, "STREAM.NAMES")["streams"] == ["S"]
    assert [row["config"]["name"] for row in world.ask(node, "STREAM.LIST")["streams"]] == ["S"]
    consumer = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    made = world.ask(node, "CONSUMER.CREATE.S.c", consumer)
    assert made["cluster"]["raft_group"].startswith("C-R3F-")
    assert world.ask(node, "CONSUMER.NAMES.S")["consumers"] == ["c"]
    assert world.ask(node, "INFO")["consumers"] == 1
    changed = world.ask(node, "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3, "max_msgs": 5})
    assert changed["config"]["max_msgs"] == 5
    assert world.ask(node, "STREAM.DELETE.S")["success"]
    assert world.error(node, "STREAM.INFO.S")[0] == 10059


def test_a_restored_stream_that_is_listed_answers(world: World) -> None:
    """Its group hears after the meta group that it is whole: requests wait for that."""
    normal = stream_configs.normalise({"name": "S", "subjects": ["S"], "num_replicas": 3})
    part = stream_configs.restored(stream_configs.owned(normal, ACCOUNT), is_whole=False)
    world.apply_meta([commands.CREATE_STREAM, world.clock.ns, part, list(NAMES)])
    assert world.error("n2", "STREAM.INFO.S")[0] == 10059
    whole = stream_configs.restored(part, is_whole=True)
    update = [commands.UPDATE_STREAM, world.clock.ns, "S", whole]
    world.meta.apply(Entry(1, world.meta.applied + 1, b"x", update), Effects())
    asset = world.meta.stream("S")
    assert asset is not None
    assert world.ask("n2", "STREAM.NAMES")["streams"] == ["S"]
    reply = world.send("n2", "STREAM.INFO.S")
    assert not world.replies(reply)
    machine = world.machines[asset.uid]["n1"]
    machine.apply([commands.CONFIGURE, world.clock.ns, asset.config, asset.update_index])
    world.pass_ms(limits.API_RETRY_MS)
    ((_, payload),) = world.replies(reply)
    assert json.loads(payload)["config"]["name"] == "S"


def test_cluster_block_is_nats_servers(world: World) -> None:
    block = (world.make("S", num_replicas=3), world.ask("n1", "STREAM.INFO.S")["cluster"])[1]
    assert block["name"] == "C1" and block["raft_group"].startswith("S-R3F-")
    assert block["system_account"] is True and block["traffic_account"] == "$SYS"
    row = {"name": "n2", "current": True, "active": 5, "peer": short_hash("n2")}
    assert block["replicas"][0] == row
    assert short_hash("n1") == "fjFyEjc1"


def test_stream_not_heard_of_yet_is_found_by_way_of_the_meta_leader(world: World) -> None:
    """n3 lags: it asks the meta leader n1, who hands the request on to the stream's leader."""
    uid = world.make("S", num_replicas=3).uid
    world.lead(uid, "n2")
    world.nodes["n3"].hidden.add("S")
    assert world.ask("n3", "STREAM.INFO.S")["cluster"]["leader"] == "n2"


def test_an_answer_does_not_need_interest_that_is_still_on_its_way(world: World) -> None:
    """From n3 by way of n1 to n2, which may not have heard yet that n3's client listens."""
    uid = world.make("S", num_replicas=3).uid
    world.lead(uid, "n2")
    world.nodes["n3"].hidden.add("S")
    deaf = world.routers["n2"].context.wires = Wires()
    facts = {"ip": "10.0.0.9", "start_ns": 1, "rtt_ns": 2, "user": "u", "name": "app"}
    client = SimpleNamespace(cid=7, lang="python3", version="2", **facts)
    reply = world.send("n3", "STREAM.INFO.S", b"", client)
    ((_, payload),) = world.replies(reply)
    assert json.loads(payload)["cluster"]["leader"] == "n2"
    assert reply not in [item[0] for item in deaf.sent]
    world.nodes["n3"].hidden.clear()
    reply = world.send("n3", "STREAM.INFO.S", b"", client)
    assert [item[0] for item in deaf.sent].count(reply) == 1  # a link of its own is in order


@pytest.mark.parametrize("is_caught_up", [True, False])
def test_a_change_is_answered_when_the_clients_node_has_applied_it(
    world: World, is_caught_up: bool
) -> None:
    """n3 has not applied yet what its client asked for, and what it is asked next may rest on it.
    But the client does not wait for ever."""
    node = world.nodes["n3"]
    node.meta = MetaMachine()
    reply = world.send("n3", "STREAM.CREATE.S", {"name": "S"})
    world.pass_ms(20)
    assert not world.replies(reply)
    if is_caught_up:
        node.meta = world.meta
        world.pass_ms(20)
    else:
        world.pass_ms(limits.API_ANSWER_LATE_MS)
    ((_, payload),) = world.replies(reply)
    assert json.loads(payload)["config"]["name"] == "S"


def test_requests_do_not_go_round_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody thinks somebody else leads: a request ends with 10008, not in a circle."""
    uid = world.make("S", num_replicas=3).uid
    for name, other in zip(NAMES, ("n2", "n3", "n1"), strict=True):
        monkeypatch.setattr(world.nodes[name], "leader_of", {uid: other}.get)
    world.leaders[uid] = ""
    before = world.notes
    reply = world.send("n1", "STREAM.INFO.S")
    assert world.notes - before == limits.API_HOPS_MAX
    world.pass_ms(limits.API_PARKED_MS + limits.API_RETRY_MS)
    assert json.loads(world.replies(reply)[0][1])["error"]["err_code"] == 10008


@pytest.mark.parametrize("is_known", [True, False])
def test_a_node_that_stops_gives_back_what_it_was_passed(
    world: World, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """n1 leads no more and stops. n3, whose client asked, has heard who leads now, or will: it asks
    there itself, for of a request that n1 had passed on it would hear only that n1 is gone."""
    uid = world.make("S", num_replicas=3).uid
    world.lead(uid, "n1")
    reply = world.send("n3", "STREAM.PURGE.S", runs=False)
    world.nodes["n1"].is_stopping = True
    world.leaders[uid] = "n2" if is_known else ""
    monkeypatch.setattr(world.nodes["n1"].peers, "call", None)  # it asks nobody
    world.run()
    if not is_known:
        assert not world.replies(reply)
        world.lead(uid, "n2")
    ((_, payload),) = world.replies(reply)
    assert json.loads(payload)["success"]
    assert not any(node.has_requests() for node in world.nodes.values())


def test_a_node_that_stops_waits_for_changes_that_are_not_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1 made the stream, and waits for its leader to run it: who asked is not to hear 10008."""
    waiting: list[Any] = []
    node = world.nodes["n1"]
    monkeypatch.setattr(node, "wait_configured", lambda *args: waiting.append(args[2]))
    reply = world.send("n3", "STREAM.CREATE.S", {"name": "S", "num_replicas": 3})
    assert node.has_requests() and not world.replies(reply)
    world.lead(1, "n2")
    waiting[0](True)
    world.run()
    ((_, payload),) = world.replies(reply)
    assert json.loads(payload)["did_create"]
    assert not node.has_requests() and not world.nodes["n3"].has_requests()


def test_request_waits_for_a_leader(world: World) -> None:
    uid = world.make("S", num_replicas=3).uid
    world.leaders[uid] = ""
    reply = world.send("n1", "STREAM.INFO.S")
    world.pass_ms(1000)
    assert not world.replies(reply)
    world.lead(uid, "n3")
    ((_, payload),) = world.replies(reply)
    assert json.loads(payload)["cluster"]["leader"] == "n3"


def test_request_waits_no_longer_than_clients_do(world: World) -> None:
    world.leaders[0] = ""
    reply = world.send("n2", "STREAM.CREATE.S", {"name": "S"})
    world.pass_ms(limits.API_PARKED_MS - limits.API_RETRY_MS)
    assert not world.replies(reply)
    world.pass_ms(2 * limits.API_RETRY_MS)
    error = json.loads(world.replies(reply)[0][1])["error"]
    assert (error["code"], error["err_code"]) == (503, 10008)


def test_leader_without_a_link_is_none(world: World) -> None:
    """Its link is down, its lead not yet forgotten: the request waits, and finds the next one."""
    world.down.add("n1")
    reply = world.send("n2", "STREAM.NAMES")
    assert not world.replies(reply)
    world.lead(0, "n2")
    assert json.loads(world.replies(reply)[0][1])["streams"] is None


def test_request_outlives_the_node_it_was_passed_to(world: World) -> None:
    """n1 dies with the request on its way: what reads is asked anew, what writes is refused."""
    world.make("S", num_replicas=3)

    def lost(subject: str, body: Any = b"") -> bytes:
        world.lead(0, "n1")
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = b"lost." + subject.encode()
        world.routers["n3"].handle(b"$JS.API." + subject.encode(), reply, b"", payload)
        world.down.add("n1")
        world.run()
        return reply

    reply = lost("STREAM.NAMES")
    assert not world.replies(reply)
    world.lead(0, "n2")
    assert json.loads(world.replies(reply)[0][1])["streams"] == ["S"]
    world.down.clear()
    reply = lost("STREAM.DELETE.S")
    assert json.loads(world.replies(reply)[0][1])["error"]["err_code"] == 10008


def test_request_outlives_the_link_it_went_by(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is cut with the request on its way, and a new one is up before that is noticed."""
    world.make("S", num_replicas=3)
    peers = world.nodes["n3"].peers
    ways: list[Any] = []

    def cut(node_id: str, method: str, args: list[Any], done: Any, timeout_ms: int) -> None:
        ways.append(node_id)
        world.queue.append(lambda: done(errors.CLUSTER_NOT_AVAIL()))

    def lost(subject: str) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(peers, "call", cut)
            return world.send("n3", subject)

    reply = lost("STREAM.NAMES")
    assert not world.replies(reply)
    world.pass_ms(limits.API_RETRY_MS)
    assert json.loads(world.replies(reply)[0][1])["streams"] == ["S"]
    reply = lost("STREAM.DELETE.S")
    assert json.loads(world.replies(reply)[0][1])["error"]["err_code"] == 10008
    assert ways == ["n1", "n1"]


def test_only_so_many_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "API_PARKED_MAX", 2)
    world.leaders[0] = ""
    replies = [world.send("n1", "STREAM.NAMES") for _ in range(3)]
    assert [len(world.replies(reply)) for reply in replies] == [0, 0, 1]


def test_refusals_come_before_looking_for_a_stream(world: World) -> None:
    """An unknown stream's requests are refused as on one node: by what is wrong first."""
    alone = Bed()
    for subject, body in (
        ("STREAM.MSG.GET.X", {}),
        ("STREAM.PURGE.X", {"seq": 1, "keep": 1}),
        ("CONSUMER.INFO.X.c", b"x"),
        ("CONSUMER.INFO.X.c", b""),
        ("STREAM.DELETE.X", b""),
        ("STREAM.UPDATE.X", {"name": "X"}),
        ("STREAM.CREATE.X", {"name": "Y"}),
        ("STREAM.SNAPSHOT.X", {"deliver_subject": "d"}),
    ):
        assert world.error("n2", subject, body) == alone.error(subject, body), subject


def test_a_list_leaves_out_streams_for_which_no_node_answers(world: World) -> None:
    for name in ("A", "B", "C"):
        world.make(name)
    leaders = {world.leaders[uid] for uid in (1, 2, 3)}
    assert leaders == set(NAMES)  # one each: fewest streams first
    lost = world.leaders[2]
    world.lead(0, next(name for name in NAMES if name != lost))
    world.down.add(lost)
    answer = world.ask(world.leaders[0], "STREAM.LIST")
    assert [row["config"]["name"] for row in answer["streams"]] == ["A", "C"]
    assert answer["missing"] == ["B"] and answer["total"] == 3
    assert answer["offline"] == {"B": f"no majority of its replicas is online: {lost} offline"}
    world.make("D", num_replicas=2, subjects=["d"])
    world.lead(4, "")  # its leader has just gone; the others will elect one
    world.nodes[world.leaders[0]].failed["$G", "C"] = "CorruptionError: block 1"
    world.lead(3, "")
    answer = world.ask(world.leaders[0], "STREAM.LIST")
    assert answer["missing"] == ["B", "C", "D"]
    assert list(answer["offline"]) == ["B", "C"]
    assert answer["offline"]["C"] == "CorruptionError: block 1"


def test_lists_are_served_few_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand from one client kept every node from its heartbeats for seconds."""
    monkeypatch.setattr(limits, "API_LISTS_MAX", 2)
    monkeypatch.setattr(limits, "API_LISTS_WAITING_MAX", 5)
    world.make("A")
    other = next(name for name in NAMES if name != world.leaders[0])
    replies = [world.send(other, "STREAM.LIST", runs=False) for _ in range(9)]
    world.run()
    assert [bool(world.replies(reply)) for reply in replies] == [True] * 2 + [False] * 7
    assert world.ask(other, "STREAM.INFO.A")["config"]["name"] == "A"
    world.lead(0, other)  # who waits goes where the list is made now
    world.pass_ms(10)
    assert [bool(world.replies(reply)) for reply in replies] == [True] * 7 + [False] * 2
    assert not any(node.has_requests() for node in world.nodes.values())
    assert world.ask(other, "STREAM.LIST")["total"] == 1


def test_pull_goes_to_the_stream_wherever_it_is_led(world: World) -> None:
    asset = world.make("S")
    other = next(name for name in NAMES if name != world.leaders[asset.uid])
    reply = world.send(other, "CONSUMER.MSG.NEXT.S.c", b"1")
    assert world.remote(asset).pulls == [("c", reply)]


def test_direct_get_asks_the_leader_and_in_need_any_replica(world: World) -> None:
    """At the leader a reader finds what it wrote; while there is none, old data beats no data."""
    uid = world.make("S", num_replicas=3, allow_direct=True, subjects=["s"]).uid
    world.machines[uid]["n1"].store("s", b"hello")
    before = world.notes
    (found,) = world.replies(world.send("n2", "DIRECT.GET.S.s"))
    assert found[1] == b"hello" and world.notes == before + 1
    world.leaders[uid] = ""
    (found,) = world.replies(world.send("n2", "DIRECT.GET.S.s"))
    assert found[1] == b"hello" and world.notes == before + 1
    del world.machines[uid]["n2"]
    (found,) = world.replies(world.send("n2", "DIRECT.GET.S.s"))
    assert found[0].startswith(b"NATS/1.0 503")


def test_a_linearizable_direct_get_is_answered_by_the_leader_or_not_at_all(world: World) -> None:
    """By a header, or by the stream's metadata: no replica answers while nobody leads."""
    uid = world.make("S", num_replicas=3, allow_direct=True, subjects=["s"]).uid
    world.machines[uid]["n1"].store("s", b"hello")
    asked = b"NATS/1.0\r\nNats-Linearizable: true\r\n\r\n"
    (found,) = world.replies(world.send("n2", "DIRECT.GET.S.s", headers=asked))
    assert found[1] == b"hello"
    world.leaders[uid] = ""
    (found,) = world.replies(world.send("n2", "DIRECT.GET.S.s", headers=asked))
    assert found == (b"NATS/1.0 503 No Leader\r\n\r\n", b"")
    uid = world.make(
        "T",
        num_replicas=3,
        allow_direct=True,
        subjects=["t"],
        metadata={"streamd.linearizable_reads": "true"},
    ).uid
    world.machines[uid]["n1"].store("t", b"hello")
    (found,) = world.replies(world.send("n2", "DIRECT.GET.T.t"))
    assert found[1] == b"hello"
    world.leaders[uid] = ""
    (found,) = world.replies(world.send("n2", "DIRECT.GET.T.t"))
    assert found[0].startswith(b"NATS/1.0 503 No Leader")


def test_a_retriable_error_names_the_leader_to_a_client_that_asks(world: World) -> None:
    """Requests that waited in vain: for a leader, and for a link to one."""
    asked = b"NATS/1.0\r\nNats-Error-Detail: true\r\n\r\n"
    uid = world.make("S", num_replicas=3, subjects=["s"]).uid
    world.leaders[uid] = ""
    reply = world.send("n2", "STREAM.INFO.S", headers=asked)
    world.pass_ms(limits.API_PARKED_MS + 1000)
    (found,) = world.replies(reply)
    error = json.loads(found[1])["error"]
    assert (error["code"], error["detail"]["retriable"]) == (503, True)
    assert error["detail"]["outcome"] == "not done"
    assert "leader" not in error["detail"]
    world.leaders[uid] = "n1"
    world.down.add("n1")  # no link leads there from here
    reply = world.send("n2", "STREAM.INFO.S", headers=asked)
    world.pass_ms(limits.API_PARKED_MS + 1000)
    (found,) = world.replies(reply)
    assert json.loads(found[1])["error"]["detail"]["leader"] == "n1"


def test_audit_names_the_client_and_its_server(world: World) -> None:
    world.wires.heard = (b"$JS.EVENT.ADVISORY.API",)
    facts = {"ip": "10.0.0.9", "start_ns": 1, "rtt_ns": 2, "user": "u", "name": "app"}
    client = SimpleNamespace(cid=7, lang="python3", version="2", **facts)
    world.send("n3", "STREAM.NAMES", b"", client)
    (advisory,) = [json.loads(item[3]) for item in world.wires.sent if b"ADVISORY" in item[0]]
    assert advisory["server"] == "n1"
    assert advisory["client"]["server"] == "n3" and advisory["client"]["id"] == 7


# --- placement ----------------------------------------------------------------------------------


def test_streams_go_where_fewest_are(world: World) -> None:
    for number in range(9):
        world.make(f"S{number}")
    peers = [asset.peers[0] for asset in world.meta.streams_by_uid.values()]
    assert {name: peers.count(name) for name in NAMES} == dict.fromkeys(NAMES, 3)


def test_too_few_nodes(world: World) -> None:
    wanted = {"name": "S", "num_replicas": 5}
    assert world.error("n1", "STREAM.CREATE.S", wanted) == (
        10005,
        "no suitable peers for placement",
    )
    world.down |= {"n2", "n3"}
    for count in (2, 3):
        wanted["num_replicas"] = count
        assert world.error("n1", "STREAM.CREATE.S", wanted) == (
            10005,
            "no suitable peers for placement, peer offline",
        )


def test_a_node_that_is_down_gets_its_replica_if_a_majority_is_up(world: World) -> None:
    """Else nothing could be made in a cluster of three while one of them is restarted."""
    world.down.add("n3")
    for number in range(3):
        assert set(world.make(f"R{number}").peers) <= {"n1", "n2"}
        assert set(world.make(f"S{number}", num_replicas=2).peers) == {"n1", "n2"}
        peers = world.make(f"T{number}", num_replicas=3).peers
        assert set(peers) == set(NAMES) and peers[-1] == "n3"


def test_tags_choose_and_exclude(world: World) -> None:
    world.facts["n1"]["tags"] = ["SSD", "old"]
    world.facts["n2"]["tags"] = ["ssd"]
    assert world.make("A", placement={"tags": ["ssd", "!old"]}).peers == ("n2",)
    wanted = {"name": "B", "num_replicas": 2, "placement": {"tags": ["ssd", "!old"]}}
    code, text = world.error("n1", "STREAM.CREATE.B", wanted)
    assert code == 10005
    assert text == (
        "no suitable peers for placement, tags not matched ['ssd'], tags excluded ['old']"
    )


def test_replicated_streams_of_a_node_are_limited(world: World) -> None:
    """max_ha_assets: a node takes so many replicated streams; others do not count."""
    world.make("ALONE", subjects=["alone"])
    for name in NAMES:
        world.facts[name]["ha_assets_max"] = 1
    world.make("A", num_replicas=2, subjects=["a"])
    wanted = {"name": "B", "num_replicas": 2, "subjects": ["b"]}
    code, text = world.error("n1", "STREAM.CREATE.B", wanted)
    assert (code, text) == (10005, "no suitable peers for placement, miscellaneous issue")
    assert world.make("C", subjects=["c"]).peers
    grown = {"name": "A", "num_replicas": 3, "subjects": ["a"]}
    assert world.ask("n1", "STREAM.UPDATE.A", grown)["config"]["num_replicas"] == 3


def test_replicas_go_to_different_zones() -> None:
    """unique_tag: one replica per tag of that kind, and none without; new and replaced ones."""
    world = World("n1", "n2", "n3", "n4", "n5")
    zones = {"n1": "az:a", "n2": "AZ:A", "n3": "az:b", "n4": "az:c"}
    for name, facts in world.facts.items():
        facts |= {"unique_tag": "az:", "tags": ["ssd", zones.get(name, "rack:1")]}
    world.make("A", num_replicas=3, subjects=["a"])
    assert world.meta.streams_by_key["$G", "A"].peers == ("n1", "n3", "n4")
    wanted = {"name": "B", "num_replicas": 4, "subjects": ["b"]}
    text = "no suitable peers for placement, server tag not unique"
    assert world.error("n1", "STREAM.CREATE.B", wanted) == (10005, text)
    assert world.ask("n1", "STREAM.PEER.REMOVE.A", {"peer": "n1"})["success"]
    assert world.meta.streams_by_key["$G", "A"].peers == ("n3", "n4", "n2")
    assert world.error("n1", "STREAM.PEER.REMOVE.A", {"peer": "n3"})[0] == 10075
    named = {"num_replicas": 2, "subjects": ["c"], "placement": {"tags": ["az:a"]}}
    assert world.make("C", **named).peers == ("n1", "n2")


def test_room_counts(world: World) -> None:
    for name in NAMES:
        world.facts[name]["storage_max"] = 1000
    world.make("A", max_bytes=900, num_replicas=2, subjects=["a"])
    assert world.make("B", max_bytes=200, subjects=["b"]).peers == ("n3",)
    code, text = world.error("n1", "STREAM.CREATE.C", {"name": "C", "max_bytes": 900})
    assert (code, text) == (10005, "no suitable peers for placement, insufficient storage")


def test_another_cluster_has_no_nodes_here(world: World) -> None:
    wanted = {"name": "S", "placement": {"cluster": "elsewhere"}}
    assert world.error("n1", "STREAM.CREATE.S", wanted)[0] == 10005
    assert world.make("T", placement={"cluster": "C1"}).peers


def test_overlap_is_told_before_room(world: World) -> None:
    world.make("A", subjects=["a.>"])
    wanted = {"name": "B", "subjects": ["a.b"], "num_replicas": 5}
    assert world.error("n1", "STREAM.CREATE.B", wanted)[0] == 10065


def test_same_again_is_the_same_stream(world: World) -> None:
    first = world.make("S", num_replicas=3)
    again = world.ask("n1", "STREAM.CREATE.S", {"name": "S", "num_replicas": 3})
    assert "did_create" not in again and world.meta.streams_by_key["$G", "S"] == first
    assert world.error("n1", "STREAM.CREATE.S", {"name": "S", "num_replicas": 1})[0] == 10058


def test_scaling_up_keeps_the_present_peers(world: World) -> None:
    asset = world.make("S")
    wide = world.ask("n3", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3})
    assert wide["config"]["num_replicas"] == 3
    asset = world.meta.streams_by_key["$G", "S"]
    assert set(asset.peers) == set(NAMES) and asset.members == asset.created_peers
    pending = [row for row in wide["cluster"]["replicas"] if not row["current"]]
    assert len(pending) == 2  # wanted, not there yet
    world.apply_meta([commands.MOVED, 1, asset.uid, list(asset.peers)])
    world.lead(asset.uid, "n3")
    world.machines[asset.uid]["n3"] = next(iter(world.machines[asset.uid].values()))
    world.down.add("n1")
    world.lead(0, "n2")
    world.ask("n2", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 2})
    assert world.meta.streams_by_key["$G", "S"].peers == ("n3", "n2")  # the leader, and who is up


def test_a_new_placement_moves(world: World) -> None:
    world.facts["n2"]["tags"] = ["new"]
    asset = world.make("S", placement={"tags": ["!new"]})
    world.ask("n1", "STREAM.UPDATE.S", {"name": "S", "placement": {"tags": ["new"]}})
    moved = world.meta.streams_by_key["$G", "S"]
    assert (moved.peers, moved.members) == (("n2",), asset.peers)
    again: dict[str, Any] = {"name": "S", "placement": {"tags": ["!new"]}}
    assert world.error("n1", "STREAM.UPDATE.S", again)[0] == 10124
    both = again | {"num_replicas": 3}
    assert world.error("n1", "STREAM.UPDATE.S", both)[0] == 10123
    kept = world.ask("n1", "STREAM.CANCEL_MOVE.S")
    assert (
        kept["type"].endswith("v1.stream_cancel_move_response") and kept["state"]["messages"] == 0
    )
    assert world.meta.streams_by_key["$G", "S"].peers == asset.peers
    assert world.error("n1", "STREAM.CANCEL_MOVE.S")[0] == 10129


@pytest.mark.parametrize("placement", [{}, {"placement": None}, {"placement": {}}])
def test_a_placement_that_is_dropped_is_no_move(world: World, placement: dict[str, Any]) -> None:
    """So it may go with another number of replicas, which a move may not."""
    world.facts["n2"]["tags"] = ["ssd"]
    world.make("S", placement={"tags": ["ssd"]})
    answer = world.ask("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3} | placement)
    assert "placement" not in answer["config"]
    assert world.meta.streams_by_key["$G", "S"].peers[0] == "n2"
    assert len(world.meta.streams_by_key["$G", "S"].peers) == 3


def test_limits_that_consumers_exceed_are_refused_by_their_leader(world: World) -> None:
    asset = world.make("S")
    world.lead(0, next(name for name in NAMES if name != asset.peers[0]))
    config = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 500}
    world.ask("n1", "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    change = {"name": "S", "consumer_limits": {"max_ack_pending": 10}}
    code, text = world.error("n1", "STREAM.UPDATE.S", change)
    assert (code, text) == (10069, "change to limits violates consumers: c")


# --- peers and leaders --------------------------------------------------------------------------


def test_peer_remove_finds_another_node() -> None:
    world = World("n1", "n2", "n3", "n4")
    asset = world.make("S", num_replicas=3)
    assert asset.peers == ("n1", "n2", "n3")
    assert world.ask("n2", "STREAM.PEER.REMOVE.S", {"peer": "n2"})["success"]
    assert world.meta.streams_by_key["$G", "S"].peers == ("n1", "n3", "n4")
    assert world.error("n2", "STREAM.PEER.REMOVE.S", {"peer": "n2"})[0] == 10040
    assert world.error("n2", "STREAM.PEER.REMOVE.S", {})[0] == 10003
    assert world.error("n2", "STREAM.PEER.REMOVE.S", b"")[0] == 10003
    assert world.error("n2", "STREAM.LEADER.STEPDOWN.S", b"{x")[0] == 10025
    assert world.ask("n1", "STREAM.PEER.REMOVE.S", {"peer": short_hash("n3")})["success"]
    assert world.meta.streams_by_key["$G", "S"].peers == ("n1", "n4", "n2")


def test_two_peers_removed_at_once_are_both_replaced() -> None:
    """Each answer said success, and the later request had brought the other's peer back."""
    world = World("n1", "n2", "n3", "n4", "n5")
    world.make("S", num_replicas=3)
    world.down = {"n2", "n3"}
    world.is_meta_busy = True
    first = world.send("n1", "STREAM.PEER.REMOVE.S", {"peer": "n2"}, runs=False)
    second = world.send("n1", "STREAM.PEER.REMOVE.S", {"peer": "n3"}, runs=False)
    world.run()
    for reply in (first, second):
        ((_, payload),) = world.replies(reply)
        assert json.loads(payload)["success"]
    assert world.meta.streams_by_key["$G", "S"].peers == ("n1", "n4", "n5")


def test_replicas_asked_for_while_a_config_changes_are_as_many_as_it_says() -> None:
    """A change of something else, decided before, left five peers to a stream of three replicas."""
    world = World("n1", "n2", "n3", "n4", "n5")
    world.make("S", num_replicas=3)
    world.is_meta_busy = True
    world.send("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 5}, runs=False)
    world.send("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3}, runs=False)
    world.run()
    asset = world.meta.streams_by_key["$G", "S"]
    assert asset.config["num_replicas"] == len(asset.peers) == 3


def test_r1_has_a_leader_and_no_group(world: World) -> None:
    asset = world.make("S")
    assert world.ask("n1", "STREAM.INFO.S")["cluster"] == {"name": "C1", "leader": asset.peers[0]}


def test_what_blocks_take_is_shown_to_those_who_ask(world: World) -> None:
    world.make("S", num_replicas=3)
    headers = b"NATS/1.0\r\nNats-Storage-Detail: true\r\n\r\n"
    for node in NAMES:
        ((_, payload),) = world.replies(world.send(node, "STREAM.INFO.S", headers=headers))
        answer = json.loads(payload)
        check_schema("api", answer)
        assert answer["blocks"] == {"bytes": 4000, "stored_bytes": 1000, "ratio": 4.0}
        assert "blocks" not in world.ask(node, "STREAM.INFO.S")


def test_peer_remove_without_another_node(world: World) -> None:
    asset = world.make("S", num_replicas=3)
    assert world.error("n1", "STREAM.PEER.REMOVE.S", {"peer": "n2"})[0] == 10075
    assert world.meta.streams_by_key["$G", "S"] == asset


def test_server_remove(world: World) -> None:
    """A server that is gone leaves by its name or by the hash of it; an advisory says so."""
    world.make("S", num_replicas=3)
    world.facts["n3"]["server_id"] = "NC3"
    world.down = {"n2", "n3"}
    world.wires.heard = (b"$JS.EVENT.ADVISORY.SERVER.",)
    assert world.ask("n1", "SERVER.REMOVE", {"peer": "n3"})["success"]
    assert world.meta.out == {"n3"} and world.meta.streams_by_key["$G", "S"].peers == ("n1", "n2")
    both = {"peer": "nobody", "peer_id": short_hash("n2")}
    assert world.ask("n1", "SERVER.REMOVE", both)["success"]
    told = [
        json.loads(payload) for subject, _, _, payload in world.wires.sent if b"EVENT" in subject
    ]
    for document in told:
        check_schema("advisory", document)
    assert [(each["server"], each["server_id"], each["cluster"]) for each in told] == [
        ("n3", "NC3", "C1"),
        ("n2", "", "C1"),
    ]


@pytest.mark.parametrize("is_busy", [False, True])
def test_server_evacuate(is_busy: bool) -> None:
    """All streams leave that have somewhere to go, of all accounts, and spread over the others."""
    world = World("n1", "n2", "n3", "n4", "n5")
    for at in range(40):
        world.make(f"S{at}", subjects=[f"s{at}"], num_replicas=1 + at % 3)
    wide = world.make("W", subjects=["w"], num_replicas=5)
    world.is_meta_busy = is_busy
    held = Counter(peer for asset in world.meta.streams_by_uid.values() for peer in asset.peers)
    assert held["n2"] > 10
    assert world.ask("n4", "SERVER.EVACUATE", {"peer_id": short_hash("n2")})["success"]
    assets = list(world.meta.streams_by_uid.values())
    assert [asset.name for asset in assets if "n2" in asset.peers] == ["W"]
    assert world.meta.streams_by_uid[wide.uid] == wide
    assert all(len(set(asset.peers)) == asset.config["num_replicas"] for asset in assets)
    after = Counter(peer for asset in assets for peer in asset.peers)
    assert max(after[name] for name in ("n1", "n3", "n4", "n5")) <= sum(after.values()) // 4 + 3
    assert world.ask("n1", "SERVER.EVACUATE", {"peer": "n2"})["success"]  # nothing is left to do


def test_server_evacuate_is_refused(world: World) -> None:
    def refused(body: Any) -> int:
        return world.error("n2", "SERVER.EVACUATE", body)[0]

    assert refused(b"") == refused({}) == 10003
    assert refused({"peer": "n9"}) == refused({"peer": "n3", "peer_id": "zzz"}) == 10044
    assert refused({"server": "n3"}) == refused("n3") == 10025
    world.make("S")
    leader = world.nodes["n1"]
    leader.propose_meta = lambda command, done: done(errors.CLUSTER_NOT_AVAIL())  # type: ignore[method-assign]
    assert refused({"peer": "n1"}) == 10008


@pytest.mark.parametrize("node", NAMES)
def test_meta_rescue_is_answered_by_every_server(world: World, node: str) -> None:
    world.wires.heard = (b"$JS.EVENT.ADVISORY.SERVER.META_RESCUE",)
    for name in NAMES:
        world.facts[name]["server_id"] = name.upper()

    def answers(body: Any) -> list[dict[str, Any]]:
        reply = world.send(node, "META.RESCUE", body)
        found = [json.loads(payload) for _, payload in world.replies(reply)]
        assert {each["type"] for each in found} == {"io.nats.jetstream.api.v1.meta_rescue_response"}
        assert sorted(each["server_id"] for each in found) == ["N1", "N2", "N3"]
        return found

    assert [each["error"]["err_code"] for each in answers(b"")] == [10003] * 3
    assert [each["error"]["err_code"] for each in answers({"quorum": 1})] == [10025] * 3
    assert [each["error"]["err_code"] for each in answers({"quorum_needed": 3})] == [10224] * 3
    rescued = sorted(answers({"quorum_needed": 2}), key=lambda each: str(each["server"]))
    assert [list(each.values())[1:] for each in rescued] == [
        [name, name.upper(), 3, 2] for name in NAMES
    ]
    told = [json.loads(item[3]) for item in world.wires.sent if b"ADVISORY" in item[0]]
    assert sorted(each["server"] for each in told) == list(NAMES)
    assert {(each["prev_quorum"], each["new_quorum"]) for each in told} == {(3, 2)}
    client = User(b"$JS.API.META.LEADER")
    ((headers, _),) = world.replies(world.send(node, "META.RESCUE", {"quorum_needed": 1}, client))
    assert headers.startswith(b"NATS/1.0 503")
    assert all(1 not in each.rescued for each in world.nodes.values())


def test_while_a_rescue_lasts_no_stream_stands_against_a_removal(world: World) -> None:
    world.down = {"n3"}
    world.obstacle = "S"
    leader = world.nodes["n1"]
    facts = leader.group_info
    leader.group_info = lambda uid: (facts(uid) or {}) | {"rescue_quorum": 1}  # type: ignore[method-assign]
    assert world.ask("n1", "SERVER.REMOVE", {"peer": "n3"})["success"]


def test_a_move_is_shown_until_it_is_over() -> None:
    """Where it goes, what was before, how far it is; in the infos of stream and consumer."""
    world = World("n1", "n2", "n3", "n4")
    uid = world.make("S", num_replicas=2).uid
    config = {"durable_name": "c", "ack_policy": "explicit"}
    world.ask("n1", "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    assert "desired" not in world.ask("n1", "STREAM.INFO.S")["cluster"]
    created = world.clock.ns
    block = world.ask("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3})["cluster"]
    desired = block["desired"]
    assert desired["created"].startswith(format_ns(created)[:19]) and desired["name"] == "C1"
    assert [row["name"] for row in desired["replicas"]] == ["n1", "n2", "n3"]
    assert all(set(row) == {"name", "peer"} for row in desired["replicas"])
    assert desired["origin"]["replicas"] == 2
    (joining,) = (row for row in block["replicas"] if row.get("pending"))
    assert joining["name"] == "n3" and not joining["current"]
    assert desired["status"] == {"description": "adding peer n3", "type": "membership"}
    assert world.ask("n2", "CONSUMER.INFO.S.c")["cluster"]["desired"] == desired
    node = world.nodes["n1"]
    facts = node.group_info

    def status(**row: Any) -> tuple[str, str]:
        """With one more member than before, at its leader."""

        def seen(asked: int) -> Any:
            found = facts(asked) or {}
            peers = [dict(each) for each in found["peers"]]  # type: ignore[union-attr]
            peers = [each | {"is_voter": True} for each in peers if each["name"] != row["name"]]
            more = {"current": False, "offline": False, "active_ns": 1, "lag": 0, "is_voter": False}
            return dict(found) | {"peers": [*peers, more | row]}

        node.group_info = seen  # type: ignore[method-assign]
        shown = world.ask("n1", "STREAM.INFO.S")["cluster"]["desired"]["status"]
        return shown["type"], shown["description"]

    assert status(name="n3", lag=10**6) == (
        "catchup", "waiting for peer to catch up before adding it",
    )  # fmt: skip
    assert status(name="n3") == ("membership", "adding peer n3")
    assert status(name="n3", offline=True) == ("quorum", "waiting for quorum to add peer")
    assert status(name="n3", is_voter=True) == ("meta", "waiting for peer set to settle")
    world.ask("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 2})
    assert status(name="n3", is_voter=True) == ("membership", "removing peer n3")
    node.group_info = facts  # type: ignore[method-assign]
    peers = list(world.meta.streams_by_uid[uid].peers)
    world.apply_meta([commands.MOVED, world.clock.ns, uid, peers])
    assert "desired" not in world.ask("n1", "STREAM.INFO.S")["cluster"]


def test_a_cancelled_change_leaves_the_config_of_before(world: World) -> None:
    world.make("S", num_replicas=1)
    world.ask("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3})
    assert len(world.meta.streams_by_key["$G", "S"].peers) == 3
    kept = world.ask("n2", "STREAM.CANCEL_MOVE.S")
    assert kept["config"]["num_replicas"] == 1
    asset = world.meta.streams_by_key["$G", "S"]
    assert asset.peers == ("n1",) and asset.config["num_replicas"] == 1
    uid = asset.uid
    world.apply_meta([commands.MOVED, world.clock.ns, uid, ["n1"]])
    assert not world.meta.changes and not world.meta.thin
    assert world.error("n1", "STREAM.CANCEL_MOVE.S")[0] == 10129


def test_server_remove_is_refused(world: World) -> None:
    """Nobody named, a stranger, a change under way, one that is online: nothing is proposed."""
    world.down = {"n3"}

    def refused(body: Any) -> int:
        return world.error("n1", "SERVER.REMOVE", body)[0]

    assert refused(b"") == refused({}) == 10003
    assert refused({"peer": "n9"}) == refused({"peer": ""}) == 10044
    assert refused({"peer": "n3", "peer_id": "zzz"}) == 10044
    assert refused({"server": "n3"}) == refused({"peer": 3}) == 10025
    text = "server 'n2' is online: stop it, then remove it"
    assert world.error("n1", "SERVER.REMOVE", {"peer": "n2"}) == (10041, text)
    assert refused({"peer": "n1"}) == 10041
    world.is_changing = True
    assert refused({"peer": "n3"}) == 10202
    world.is_changing = False
    world.obstacle = "S"
    assert world.error("n1", "SERVER.REMOVE", {"peer": "n3"}) == (
        10041,
        "stream 'S' has no leader and may need server 'n3' for a majority: have it come back,"
        " or delete the stream",
    )
    world.obstacle = ""
    proposals: list[Any] = []
    leader = world.nodes["n1"]
    leader.propose_meta = lambda command, done: proposals.append((command, done))  # type: ignore[method-assign]
    first = world.send("n1", "SERVER.REMOVE", {"peer": "n3"})
    assert refused({"peer": "n3"}) == 10202  # while the first is not decided
    proposals[0][1](errors.CLUSTER_NOT_AVAIL())
    assert b"10008" in world.replies(first)[0][1]
    world.send("n1", "SERVER.REMOVE", {"peer": "n3"})
    assert len(proposals) == 2


def test_step_down(world: World) -> None:
    """Of a stream, of a consumer (which is led with its stream), of the meta group."""
    uid = world.make("S", num_replicas=3).uid
    config = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    world.ask("n1", "CONSUMER.CREATE.S.c", config)
    world.lead(uid, "n2")
    world.machines[uid]["n2"] = world.machines[uid]["n1"]
    assert world.ask("n1", "STREAM.LEADER.STEPDOWN.S")["success"]
    preferred = {"placement": {"preferred": "n3"}}
    assert world.ask("n1", "CONSUMER.LEADER.STEPDOWN.S.c", preferred)["success"]
    assert world.nodes["n2"].stepped == [(uid, ""), (uid, "n3")]
    assert world.error("n1", "CONSUMER.LEADER.STEPDOWN.S.x")[0] == 10014
    assert world.error("n1", "STREAM.LEADER.STEPDOWN.X")[0] == 10059
    assert world.ask("n3", "META.LEADER.STEPDOWN")["success"]
    assert world.nodes["n1"].stepped == [(0, "")]


def test_a_consumer_stays_where_its_stream_is(world: World) -> None:
    """No other node of the stream can take it from one of them: each has it already."""
    asset = world.make("S", num_replicas=3)
    config = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    world.ask("n1", "CONSUMER.CREATE.S.c", config)
    of_stream = {"peer": asset.peers[1]}
    for request in ("CONSUMER.PEER.REMOVE", "CONSUMER.PEER.EVACUATE"):
        assert world.error("n1", f"{request}.S.c")[0] == 10003
        assert world.error("n1", f"{request}.S.c", {"peer": "n9"})[0] == 10040
        assert world.error("n1", f"{request}.X.c", of_stream)[0] == 10059
        assert world.error("n1", f"{request}.S.x", of_stream)[0] == 10014
        assert world.error("n1", f"{request}.S.c", of_stream)[0] == 10075


def test_a_step_down_takes_the_preferred_peer_or_is_refused(world: World) -> None:
    uid = world.make("S", num_replicas=3).uid
    assert world.leaders[uid] == "n1"

    def refusal(**placement: Any) -> tuple[int, str]:
        return world.error("n2", "STREAM.LEADER.STEPDOWN.S", {"placement": placement})

    assert refusal(preferred="nx") == (10005, 'preferred server "nx" not known')
    assert refusal(preferred="n1") == (10005, 'preferred server "n1" is already leader')
    world.down.add("n3")
    assert refusal(preferred="n3") == (10005, "no replacement peer connected")
    assert refusal(tags=["none"]) == (10005, "no replacement peer connected")
    world.facts["n2"]["tags"] = ["some"]
    body = {"placement": {"tags": ["some"]}}
    assert world.ask("n2", "STREAM.LEADER.STEPDOWN.S", body)["success"]
    assert world.nodes["n1"].stepped == [(uid, "n2")]


def test_sole_replica_keeps_the_lead(world: World) -> None:
    world.make("S")
    assert world.ask("n1", "STREAM.LEADER.STEPDOWN.S")["success"]
    assert not any(node.stepped for node in world.nodes.values())


def test_leader_elected_is_announced(world: World) -> None:
    uid = world.make("S", num_replicas=3).uid
    world.wires.heard = (b"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S",)
    handle = world.nodes["n1"].stream("S")
    world.routers["n1"].context.advisories.on_stream_event(handle, "leader_elected", {})
    (advisory,) = [json.loads(item[3]) for item in world.wires.sent if b"ADVISORY" in item[0]]
    assert advisory["leader"] == "n1" and uid
    assert [row["name"] for row in advisory["replicas"]] == ["n1", "n2", "n3"]
    own = advisory["replicas"][0]
    assert own["current"] and len(own["peer"]) == 8


def test_acks_on_too_few_disks_are_announced_and_shown(world: World) -> None:
    world.make("S", num_replicas=3)
    world.wires.heard = (b"$JS.EVENT.ADVISORY.STREAM.WRITE_QUORUM.S", b"$JS.EVENT.ADVISORY.DOMAIN.")
    node, advisories = world.nodes["n1"], world.routers["n1"].context.advisories
    fields = {"write_quorum": 1, "write_quorum_wanted": 2}
    advisories.on_stream_event(node.stream("S"), "write_quorum", fields)
    advisories.on_meta_event("write_quorum", fields)
    sent = [(item[0], json.loads(item[3])) for item in world.wires.sent if b"ADVISORY" in item[0]]
    (subject, stream), (meta_subject, meta) = sent
    assert subject == b"$JS.EVENT.ADVISORY.STREAM.WRITE_QUORUM.S"
    assert stream["type"] == "io.streamd.jetstream.advisory.v1.stream_write_quorum"
    assert (stream["stream"], stream["leader"]) == ("S", "n1")
    assert [row["name"] for row in stream["replicas"]] == ["n2", "n3"]
    assert meta_subject == b"$JS.EVENT.ADVISORY.DOMAIN.WRITE_QUORUM"
    assert fields.items() <= stream.items() and fields.items() <= meta.items()
    facts = node.group_info
    node.group_info = lambda uid: (facts(uid) or {}) | fields  # type: ignore[method-assign]
    assert fields.items() <= world.ask("n1", "STREAM.INFO.S")["cluster"].items()


@pytest.mark.parametrize("node", NAMES)
def test_audits_tell_which_client_asked_wherever_it_is_served(world: World, node: str) -> None:
    """Also of a request that another node was passed: who asked, and at which node."""

    class Client:
        cid, ip, start_ns, rtt_ns = 7, "10.0.0.1", 1_600_000_000_000_000_000, 1000
        user, name, lang, version = "me", "app", "go", "1.2"

    world.make("S", num_replicas=3)
    world.wires.heard = (b"$JS.EVENT.ADVISORY.API",)
    world.routers[node].handle(b"$JS.API.STREAM.INFO.S", b"", b"", b"", Client())
    world.run()
    (audit,) = [json.loads(item[3]) for item in world.wires.sent if b"ADVISORY" in item[0]]
    assert list(audit["client"].items()) == [
        ("start", "2020-09-13T12:26:40Z"), ("host", "10.0.0.1"), ("id", 7), ("acc", "$G"),
        ("user", "me"), ("name", "app"), ("lang", "go"), ("ver", "1.2"), ("rtt", 1000),
        ("server", node), ("cluster", world.nodes[node].cluster_name), ("kind", "Client"),
        ("client_type", "nats"),
    ]  # fmt: skip


def test_a_single_server_refuses_a_step_down() -> None:
    """One node: 10010 as ever, and no endpoint of the meta group."""
    bed = Bed()
    bed.make("S")
    for subject in (
        "STREAM.LEADER.STEPDOWN.S",
        "STREAM.PEER.REMOVE.S",
        "STREAM.CANCEL_MOVE.S",
        "CONSUMER.PEER.REMOVE.S.c",
    ):
        assert bed.error(subject)[0] == 10010
    assert bed.ask_raw("META.LEADER.STEPDOWN") == []
    assert bed.ask_raw("SERVER.REMOVE", {"peer": "x"}) == []
    assert bed.error("STREAM.CREATE.R", {"name": "R", "num_replicas": 3})[0] == 10074


class User:
    """A client of the node it asks: as much of a connection as the API needs."""

    def __init__(self, *named: bytes) -> None:
        self.cid, self.start_ns, self.rtt_ns = 1, 1, 1
        self.ip = self.user = self.name = self.lang = self.version = ""
        self.named = named
        self.forbidden: list[bytes] = []

    def may_administer(self, subject: bytes) -> bool:
        return any(subject.startswith(prefix) for prefix in self.named)

    def forbid_publish(self, subject: bytes) -> None:
        self.forbidden.append(subject)


@pytest.mark.parametrize("node", NAMES)
def test_server_requests_are_for_administrators(world: World, node: str) -> None:
    """At whichever node they are: it is judged there, and forwarded or not. Others are told as for
    any subject that they may not publish to, and that nobody answers."""
    asset = world.make("S", num_replicas=3)
    world.make("R1")
    removed = asset.peers[0]
    subjects = {
        "META.LEADER.STEPDOWN": {},
        "SERVER.REMOVE": {"peer": "n9"},
        "SERVER.EVACUATE": {"peer": "n9"},
        "STREAM.PEER.REMOVE.S": {"peer": removed},
        "STREAM.PEER.EVACUATE.S": {"peer": removed},
        "STREAM.CANCEL_MOVE.S": b"",
    }
    for subject, body in subjects.items():
        full = b"$JS.API." + subject.encode()
        other = User(b"$JS.API.OTHER")
        reply = world.send(node, subject, body, other)
        (answer,) = world.replies(reply)
        assert answer == (b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % full, b"")
        assert other.forbidden == [full]
        administrator = User(full)
        ((headers, payload),) = world.replies(world.send(node, subject, body, administrator))
        assert not headers and json.loads(payload)["type"].startswith("io.nats.jetstream.api.v1.")
        assert not administrator.forbidden


def test_to_have_another_member_lead_is_for_every_user(world: World) -> None:
    """As with nats-server: it harms nobody, and concerns one's own stream."""
    world.make("S", num_replicas=3)
    for node in NAMES:
        user = User()
        assert world.replies(world.send(node, "STREAM.LEADER.STEPDOWN.S", b"", user))
        assert not user.forbidden


def test_a_named_ephemeral_consumer_may_be_created_twice(world: World) -> None:
    """As by nats-servers of a cluster: they fill in its threshold before they compare."""
    world.ask("n1", "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    body = {"stream_name": "S", "config": {"name": "e"}, "action": "create"}
    for _ in range(2):
        made = world.ask("n1", "CONSUMER.CREATE.S.e", body)
        assert made["config"]["inactive_threshold"] == 5 * 10**9
