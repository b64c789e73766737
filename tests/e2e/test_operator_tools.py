"""What `nats server ...` and `nats account ...` ask of a cluster, as that program asks it.

The program itself is not installed: these are its requests, with its subjects, headers, bodies and
way of waiting (until as many answers as expected, or 300 ms after the last), and the fields that
its reports are made from.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import cramjam
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e.conftest import Run
from tests.parity.runner import ours_binary
from tests.waiting import until_told

pytestmark = pytest.mark.slow

ACCOUNTS = """
accounts {
  APP { users: [{user: app, password: p}], jetstream: enabled }
  SYS { users: [{user: admin, password: p}] }
}
system_account: SYS
"""
_QUIET_S = 0.3
_NAMES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    if not ours_binary():
        pytest.skip("streamd is not installed beside this interpreter")
    directory = tmp_path_factory.mktemp("tools")
    found = ClusterProcess(ours_binary(), directory=directory, extra=ACCOUNTS)
    try:
        found.start()
        yield found
    finally:
        found.close()


async def do_request(nc: Client, subject: str, body: Any = None, expected: int = 0) -> list[Any]:
    """Return the answers to a request, each with the server's description."""
    answers: list[Any] = []
    came = asyncio.Event()

    async def take(msg: Msg) -> None:
        headers = msg.headers or {}
        assert headers.get("Status") != "503", f"{subject}: the account has no system privileges"
        data = msg.data
        if headers.get("Content-Encoding") == "snappy":
            data = bytes(cramjam.snappy.decompress(data))
        answers.append(json.loads(data))
        came.set()

    inbox = nc.new_inbox()
    sub = await nc.subscribe(inbox, cb=take)
    is_plain = subject == "$SYS.REQ.SERVER.PING" or subject.startswith("$SYS.REQ.ACCOUNT")
    headers = None if is_plain else {"Accept-Encoding": "snappy"}
    payload = b"{}" if body is None else json.dumps(body).encode()
    await nc.publish(subject, payload, reply=inbox, headers=headers)
    wait_s = 5.0
    while not expected or len(answers) < expected:
        came.clear()
        try:
            async with asyncio.timeout(wait_s):
                await came.wait()
        except TimeoutError:
            break
        wait_s = _QUIET_S
    await sub.unsubscribe()
    return answers


async def admin_of(server: ServerProcess) -> Client:
    return await nats.connect(server.url, user="admin", password="p", connect_timeout=30)


async def is_replica_healthy(admin: Client, server_id: str) -> bool:
    """Ask a server for the health of its replica of CHECKED."""
    asked = {"account": "APP", "stream": "CHECKED"}
    (answer,) = await do_request(admin, f"$SYS.REQ.SERVER.{server_id}.HEALTHZ", asked, expected=1)
    return bool(answer["data"] == {"status": "ok", "status_code": 200})


async def app_of(server: ServerProcess, name: str) -> Client:
    options = {"user": "app", "password": "p", "name": name, "connect_timeout": 5}
    return await nats.connect(server.url, **options)


def names(answers: list[Any]) -> list[str]:
    return sorted(answer["server"]["name"] for answer in answers)


def test_server_list_and_ping(cluster: ClusterProcess, run: Run) -> None:
    """`nats server list`, `ping`: a bare PING, answered by all, with what the table shows."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n2"])
        answers = await do_request(admin, "$SYS.REQ.SERVER.PING")
        assert names(answers) == list(_NAMES)
        for answer in answers:
            server, statistics = answer["server"], answer["statsz"]
            assert server["cluster"] == "bench" and server["jetstream"] and server["ver"]
            assert len(server["id"]) == 56 and server["host"] and server["time"]
            for key in ("start", "mem", "cores", "cpu", "connections", "subscriptions"):
                assert key in statistics, key
            for key in ("sent", "received"):
                assert statistics[key].keys() == {"msgs", "bytes"}
            assert {route["name"] for route in statistics["routes"]} == {*_NAMES} - {server["name"]}
            assert statistics["active_servers"] == 3
            assert statistics["jetstream"]["stats"]["api"].keys() >= {"total", "errors"}
        assert sum(answer["statsz"]["connections"] for answer in answers) == 1
        await admin.close()

    run(body())


def test_server_info(cluster: ClusterProcess, run: Run) -> None:
    """`nats server info NAME`, and by id, through whatever server."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n1"])
        wanted = {"server_name": "n3", "exact_match": True}
        (answer,) = await do_request(admin, "$SYS.REQ.SERVER.PING.VARZ", wanted, expected=1)
        data = answer["data"]
        assert (data["server_name"], data["system_account"]) == ("n3", "SYS")
        for key in ("cluster", "uptime", "max_payload", "tls_timeout", "jetstream", "mem", "cores"):
            assert key in data, key
        subject = f"$SYS.REQ.SERVER.{data['server_id']}.VARZ"
        (again,) = await do_request(admin, subject, expected=1)
        assert again["data"]["server_id"] == again["server"]["id"] == data["server_id"]
        await admin.close()

    run(body())


def test_server_reports(cluster: ClusterProcess, run: Run) -> None:
    """`nats server report connections | accounts | jetstream | health`, and `check meta`."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n1"])
        apps = [await app_of(cluster.nodes[name], f"app-{name}") for name in _NAMES]
        for app in apps:
            await app.subscribe("orders.*", "workers")
            await app.flush()
        js = apps[0].jetstream()
        await js.add_stream(name="ORDERS", subjects=["stored.>"], num_replicas=3)
        await js.publish("stored.1", b"x")

        asked = {"subscriptions": True, "auth": True, "limit": 1024, "offset": 0, "state": 0}
        found = await do_request(admin, "$SYS.REQ.SERVER.PING.CONNZ", asked)
        rows = [row for answer in found for row in answer["data"]["connections"]]
        by_name = {row.get("name"): row for row in rows}
        for name in _NAMES:
            row = by_name[f"app-{name}"]
            assert (row["account"], row["authorized_user"]) == ("APP", "app")
            assert "orders.*" in row["subscriptions_list"] and row["uptime"] and row["ip"]
        only = await do_request(admin, "$SYS.REQ.SERVER.PING.CONNZ", asked | {"acc": "APP"})
        assert [answer["data"]["total"] for answer in only] == [1, 1, 1]

        asked = {"accounts": True, "streams": True, "consumer": True, "config": True, "limit": 2048}
        found = await do_request(admin, "$SYS.REQ.SERVER.PING.JSZ", asked | {"raft": True})
        assert names(found) == list(_NAMES)
        for answer in found:
            (detail,) = [a for a in answer["data"]["account_details"] if a["name"] == "APP"]
            (stream,) = [s for s in detail["stream_detail"] if s["name"] == "ORDERS"]
            assert stream["cluster"]["leader"] and stream["config"]["num_replicas"] == 3
        leaders = await do_request(admin, "$SYS.REQ.SERVER.PING.JSZ", {"leader_only": True})
        (leader,) = leaders
        meta = leader["data"]["meta_cluster"]
        assert meta["leader"] == leader["server"]["name"] and meta["cluster_size"] == 3

        found = await do_request(admin, "$SYS.REQ.SERVER.PING.HEALTHZ", {"details": True})
        assert [answer["data"] for answer in found] == [{"status": "ok", "status_code": 200}] * 3
        found = await do_request(admin, "$SYS.REQ.SERVER.PING.ACCOUNTZ", {"account": "APP"})
        for answer in found:
            detail = answer["data"]["account_detail"]
            assert detail["jetstream_enabled"] and detail["client_connections"] == 1
        for each in (admin, *apps):
            await each.close()

    run(body())


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("SUBSZ", "num_subscriptions"), ("ROUTEZ", "routes"), ("GATEWAYZ", "outbound_gateways"),
        ("LEAFZ", "leafnodes"), ("ACCOUNTZ", "accounts"), ("EXPVARZ", "memstats"),
        ("RAFTZ", "SYS"), ("PROFILEZ", "error"),
    ],
)  # fmt: skip
def test_server_requests(cluster: ClusterProcess, run: Run, kind: str, key: str) -> None:
    """`nats server request ...`: every server answers with the document."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n3"])
        found = await do_request(admin, f"$SYS.REQ.SERVER.PING.{kind}")
        assert names(found) == list(_NAMES)
        assert all(key in answer["data"] for answer in found)
        await admin.close()

    run(body())


# Fields that the tables of `nats server report ...`, `check ...` and `stream-check` are made from:
# paths in `data`; `*` stands for each item of a list, which must not be empty.
_READ: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "check server, report cpu, report mem": (
        "VARZ",
        None,
        (
            "server_id", "server_name", "version", "start", "now", "uptime", "mem", "cores", "cpu",
            "gomaxprocs", "connections", "total_connections", "routes", "remotes", "leafnodes",
            "in_msgs", "out_msgs", "in_bytes", "out_bytes", "slow_consumers", "subscriptions",
            "auth_required", "max_connections", "ping_interval", "ping_max", "http_port",
            "max_control_line", "max_payload", "max_pending", "write_deadline", "config_load_time",
            "jetstream.config.max_memory", "jetstream.config.max_storage",
            "jetstream.config.store_dir", "jetstream.stats.memory", "jetstream.stats.storage",
            "jetstream.stats.accounts", "jetstream.stats.ha_assets", "jetstream.stats.api.total",
            "jetstream.stats.api.errors", "jetstream.meta.leader", "jetstream.meta.cluster_size",
            "cluster.name", "slow_consumer_stats.clients", "http_req_stats",
        ),
    ),
    "report jetstream": (
        "JSZ",
        {"raft": True, "leader_only": False},
        (
            "server_id", "now", "config.max_memory", "config.max_storage", "memory", "storage",
            "reserved_memory", "reserved_storage", "accounts", "ha_assets", "api.total",
            "api.errors", "api.level", "streams", "consumers", "messages", "bytes",
            "meta_cluster.name", "meta_cluster.leader", "meta_cluster.peer",
            "meta_cluster.cluster_size",
        ),
    ),
    "stream-check, consumer-check": (
        "JSZ",
        {"accounts": True, "streams": True, "consumer": True, "config": True, "raft": True,
         "limit": 10_000},
        (
            "account_details.*.name", "account_details.*.id", "account_details.*.memory",
            "account_details.*.storage",
        ),
    ),
    "report routes": (
        "ROUTEZ",
        None,
        (
            "server_id", "server_name", "num_routes", "routes.*.rid", "routes.*.remote_id",
            "routes.*.remote_name", "routes.*.did_solicit", "routes.*.ip", "routes.*.port",
            "routes.*.pending_size", "routes.*.rtt", "routes.*.in_msgs", "routes.*.out_msgs",
            "routes.*.in_bytes", "routes.*.out_bytes", "routes.*.subscriptions", "routes.*.uptime",
            "routes.*.start", "routes.*.last_activity",
        ),
    ),
    "report connections": (
        "CONNZ",
        {"subscriptions": True, "auth": True, "limit": 1024, "state": 0, "acc": "SYS"},
        (
            "server_id", "now", "num_connections", "total", "offset", "limit", "connections.*.cid",
            "connections.*.ip", "connections.*.port", "connections.*.start",
            "connections.*.last_activity", "connections.*.rtt", "connections.*.uptime",
            "connections.*.idle", "connections.*.pending_bytes", "connections.*.in_msgs",
            "connections.*.out_msgs", "connections.*.in_bytes", "connections.*.out_bytes",
            "connections.*.subscriptions", "connections.*.kind", "connections.*.type",
            "connections.*.lang", "connections.*.version", "connections.*.authorized_user",
            "connections.*.account",
        ),
    ),
    "report gateways": ("GATEWAYZ", {"accounts": True}, ("server_id", "now")),
    "report leafnodes": ("LEAFZ", None, ("server_id", "now", "leafnodes")),
    "request subscriptions": (
        "SUBSZ",
        {"subscriptions": True, "limit": 100},
        ("server_id", "num_subscriptions", "num_cache", "num_inserts", "num_removes",
         "num_matches", "cache_hit_rate", "max_fanout", "avg_fanout", "total", "limit",
         "subscriptions_list.*.subject"),
    ),
    "request accounts": ("ACCOUNTZ", None, ("server_id", "system_account", "accounts.*")),
    "request expvar, queues": ("IPQUEUESZ", None, ()),
}  # fmt: skip


def fields(document: Any, path: list[str]) -> bool:
    """True if a document has the field that a path names; of a list each item."""
    if not path:
        return True
    if path[0] == "*":
        return bool(document) and all(fields(each, path[1:]) for each in document)
    return path[0] in document and fields(document[path[0]], path[1:])


@pytest.mark.parametrize("command", _READ)
def test_fields_that_server_commands_read(cluster: ClusterProcess, run: Run, command: str) -> None:
    """Of each server; a client of the system account is connected to each."""
    kind, asked, paths = _READ[command]

    async def body() -> None:
        admins = [await admin_of(cluster.nodes[name]) for name in _NAMES]
        found = await do_request(admins[0], f"$SYS.REQ.SERVER.PING.{kind}", asked)
        assert names(found) == list(_NAMES)
        for answer in found:
            missing = [path for path in paths if not fields(answer["data"], path.split("."))]
            assert not missing, (answer["server"]["name"], missing)
        for admin in admins:
            await admin.close()

    run(body())


def test_stream_check(cluster: ClusterProcess, run: Run) -> None:
    """`nats server stream-check` and `consumer-check`: each server tells of its replica, with the
    group's name, state and replicas; and `<id>.HEALTHZ` of one stream."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n1"])
        app = await app_of(cluster.nodes["n1"], "app")
        js = app.jetstream()
        await js.add_stream(name="CHECKED", subjects=["checked.>"], num_replicas=3)
        await js.publish("checked.1", b"x")
        await js.pull_subscribe("checked.>", "worker")
        asked = {"accounts": True, "streams": True, "consumer": True, "config": True}
        asked |= {"raft": True, "limit": 10_000}

        async def seen() -> list[tuple[str, Any]]:
            found = await do_request(admin, "$SYS.REQ.SERVER.PING.JSZ", asked)
            assert names(found) == list(_NAMES)
            return [
                (answer["server"]["id"], stream)
                for answer in found
                for account in answer["data"]["account_details"]
                if account["name"] == "APP"
                for stream in account["stream_detail"]
                if stream["name"] == "CHECKED"
            ]

        async with asyncio.timeout(30):
            while True:  # until all replicas have all, and know the leader
                rows = await seen()
                states = [row["state"] for _, row in rows]
                if len(rows) == 3 and all(state["messages"] == 1 for state in states):
                    if all(row["cluster"].get("leader") for _, row in rows):
                        break
        for server_id, row in rows:
            assert row["config"]["num_replicas"] == 3 and row["created"]
            group = row["cluster"]
            assert group["name"] == "bench" and group["raft_group"] == row["stream_raft_group"]
            for key in ("messages", "bytes", "first_seq", "last_seq", "consumer_count"):
                assert key in row["state"], key
            (consumer,) = row["consumer_detail"]
            for key in ("delivered", "ack_floor", "num_ack_pending", "num_pending", "cluster"):
                assert key in consumer, key
            assert consumer["delivered"].keys() >= {"consumer_seq", "stream_seq"}
            (raft,) = row["consumer_raft_groups"]
            assert raft["name"] == "worker" and raft["raft_group"]
            is_well = partial(is_replica_healthy, admin, server_id)
            await until_told(is_well, f"{server_id} says that its replica is healthy")
        leaders = {row["cluster"]["leader"] for _, row in rows}
        assert len(leaders) == 1
        followers = [row for _, row in rows if "replicas" in row["cluster"]]
        replicas = [each for row in followers for each in row["cluster"]["replicas"]]
        assert {each["name"] for each in replicas} <= set(_NAMES)
        assert all({"current", "active", "peer"} <= each.keys() for each in replicas)
        await js.delete_stream("CHECKED")
        await admin.close()
        await app.close()

    run(body())


def test_checks_of_streams_consumers_buckets_and_messages(
    cluster: ClusterProcess, run: Run
) -> None:
    """`nats server check connection | jetstream | stream | consumer | kv | message`, which an
    ordinary account asks: the fields that thresholds are compared with."""

    async def body() -> None:
        app = await app_of(cluster.nodes["n2"], "app")
        js = app.jetstream()
        await js.add_stream(name="WATCHED", subjects=["watched.>"], num_replicas=3)
        await js.publish("watched.1", b"x", headers={"A": "b"})
        await js.pull_subscribe("watched.>", "worker")

        async def ask(subject: str, asked: Any = None) -> Any:
            payload = b"" if asked is None else json.dumps(asked).encode()
            answer = json.loads((await app.request(f"$JS.API.{subject}", payload, timeout=10)).data)
            assert "error" not in answer, answer
            return answer

        found = await ask("INFO")
        for path in (
            "memory", "storage", "streams", "consumers", "limits.max_memory", "limits.max_storage",
            "limits.max_streams", "limits.max_consumers", "api.level", "api.total", "api.errors",
        ):  # fmt: skip
            assert fields(found, path.split(".")), path
        found = await ask("STREAM.INFO.WATCHED")
        for path in (
            "cluster.leader", "cluster.replicas.*.name", "cluster.replicas.*.current",
            "cluster.replicas.*.active", "state.messages", "state.num_subjects", "state.bytes",
            "state.first_ts", "state.last_ts", "config.metadata", "created", "ts",
        ):  # fmt: skip
            assert fields(found, path.split(".")), path
        found = await ask("CONSUMER.INFO.WATCHED.worker")
        for path in (
            "num_ack_pending", "num_waiting", "num_pending", "num_redelivered", "ack_floor",
            "delivered.consumer_seq", "config.ack_policy", "cluster.leader", "created", "ts",
        ):  # fmt: skip
            assert fields(found, path.split(".")), path
        found = await ask("STREAM.MSG.GET.WATCHED", {"last_by_subj": "watched.1"})
        assert {"subject", "seq", "data", "hdrs", "time"} <= found["message"].keys()
        bucket = await js.create_key_value(bucket="B", replicas=3)
        await bucket.put("k", b"v")
        found = await ask("STREAM.INFO.KV_B")
        assert found["state"]["messages"] == 1
        await js.delete_stream("WATCHED")
        await js.delete_key_value("B")
        await app.close()

    run(body())


def test_cluster_step_down_and_reload(cluster: ClusterProcess, run: Run) -> None:
    """`nats server cluster step-down`, by name too, and `nats server config reload`."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n1"])

        async def leader() -> str:
            subject, only = "$SYS.REQ.SERVER.PING.JSZ", {"leader_only": True}
            found = await do_request(admin, subject, only, expected=1)
            told = {answer["data"]["meta_cluster"].get("leader", "") for answer in found}
            return min(told, default="")  # "": while there is none

        async with asyncio.timeout(30):
            while not (first := await leader()):
                pass
        wanted = next(name for name in _NAMES if name != first)
        for asked, is_right in (
            ({"placement": {"preferred": wanted}}, lambda name: name == wanted),
            ({}, lambda name: name not in (wanted, "")),
        ):
            payload = json.dumps(asked).encode() if asked else b""
            msg = await admin.request("$JS.API.META.LEADER.STEPDOWN", payload, timeout=10)
            answer = json.loads(msg.data)
            assert answer["type"] == "io.nats.jetstream.api.v1.meta_leader_stepdown_response"
            assert answer["success"] is True
            async with asyncio.timeout(30):
                while not is_right(await leader()):
                    pass
        (info,) = await do_request(
            admin, "$SYS.REQ.SERVER.PING.VARZ", {"server_name": "n2", "exact_match": True}, 1
        )
        server_id = info["data"]["server_id"]
        (answer,) = await do_request(admin, f"$SYS.REQ.SERVER.{server_id}.RELOAD", expected=1)
        assert answer["server"]["name"] == "n2" and "error" not in answer
        await admin.close()

    run(body())


def test_kick_and_events(cluster: ClusterProcess, run: Run) -> None:
    """`nats server request kick`, seen by `nats events` at another server."""

    async def body() -> None:
        admin = await admin_of(cluster.nodes["n1"])
        events = await admin.subscribe("$SYS.ACCOUNT.APP.>")
        # Answers of all: each server knows of the subscription.
        assert len(await do_request(admin, "$SYS.REQ.SERVER.PING", expected=3)) == 3
        closed = asyncio.Event()

        async def on_disconnect() -> None:
            closed.set()

        options = {"user": "app", "password": "p", "name": "victim", "allow_reconnect": False}
        app = await nats.connect(cluster.nodes["n2"].url, disconnected_cb=on_disconnect, **options)
        asked = {"acc": "APP", "auth": True}
        found = await do_request(admin, "$SYS.REQ.SERVER.PING.CONNZ", asked)
        ((server_id, cid),) = [
            (answer["server"]["id"], row["cid"])
            for answer in found
            for row in answer["data"]["connections"]
            if row["name"] == "victim"
        ]
        (answer,) = await do_request(
            admin, f"$SYS.REQ.SERVER.{server_id}.KICK", {"cid": cid}, expected=1
        )
        assert "error" not in answer
        async with asyncio.timeout(30):
            await closed.wait()
        seen: dict[str, Any] = {}
        while "$SYS.ACCOUNT.APP.DISCONNECT" not in seen:
            msg = await events.next_msg(timeout=30)
            seen[msg.subject] = json.loads(msg.data)
        gone = seen["$SYS.ACCOUNT.APP.DISCONNECT"]
        assert (gone["reason"], gone["server"]["name"]) == ("Kicked", "n2")
        assert {"$SYS.ACCOUNT.APP.CONNECT", "$SYS.ACCOUNT.APP.SERVER.CONNS"} <= seen.keys()
        await admin.close()
        await app.close()

    run(body())


def test_account_info_and_reports(cluster: ClusterProcess, run: Run) -> None:
    """`nats account info | report connections | report statistics`, by an ordinary account."""

    async def body() -> None:
        app, other = [await app_of(cluster.nodes[name], name) for name in ("n1", "n3")]
        admin = await admin_of(cluster.nodes["n1"])
        (answer,) = await do_request(app, "$SYS.REQ.USER.INFO", expected=1)
        assert answer["data"]["account"] == "APP" and answer["data"]["user"] == "app"
        found = await do_request(app, "$SYS.REQ.ACCOUNT.PING.CONNZ", {"limit": 1024})
        rows = [row for each in found for row in each["data"]["connections"]]
        assert sorted(row["name"] for row in rows) == ["n1", "n3"]
        found = await do_request(app, "$SYS.REQ.ACCOUNT.PING.STATZ")
        counts = [row for each in found for row in each["data"]["account_statz"]]
        assert {row["acc"] for row in counts} == {"APP"}
        assert sum(row["conns"] for row in counts) == 2
        with pytest.raises(nats.errors.NoRespondersError):
            await app.request("$SYS.REQ.SERVER.PING", b"", timeout=20)
        await other.subscribe("watched.*")
        await other.flush()
        msg = {"acc": "APP", "subject": "watched.x"}
        found = await do_request(admin, "$SYS.REQ.ACCOUNT.NSUBS", msg)
        assert sorted(found) == [0, 1]
        for each in (app, other, admin):
            await each.close()

    run(body())


async def trace(nc: Client, subject: str, payload: bytes = b"", **headers: str) -> list[Any]:
    """Return the documents of a traced message, as `nats trace` gets them: the first one says how
    many servers the message went on to, and each of these how many more."""
    documents: list[Any] = []
    came = asyncio.Event()

    async def take(msg: Msg) -> None:
        assert (msg.headers or {})["Content-Encoding"] == "snappy"
        documents.append(json.loads(bytes(cramjam.snappy.decompress(msg.data))))
        came.set()

    inbox = nc.new_inbox()
    sub = await nc.subscribe(inbox, cb=take)
    named = {"Accept-Encoding": "snappy", "Nats-Trace-Dest": inbox, **headers}
    await nc.publish(subject, payload, headers=named)
    async with asyncio.timeout(20):
        while len(documents) < 1 + sum(each.get("hops", 0) for each in documents):
            came.clear()
            await came.wait()
    await sub.unsubscribe()
    return documents


def events(documents: list[Any], kind: str) -> list[Any]:
    found = [event for document in documents for event in document["events"]]
    return [event for event in found if event["type"] == kind]


def test_trace(cluster: ClusterProcess, run: Run) -> None:
    """`nats trace`: the way of a message through the cluster, without delivering it; with
    `--deliver` it arrives."""

    async def body() -> None:
        sender = await app_of(cluster.nodes["n1"], "sender")
        receiver = await app_of(cluster.nodes["n3"], "receiver")
        sub = await receiver.subscribe("way.*")
        answer = await receiver.subscribe("ready")
        await receiver.flush()
        async with asyncio.timeout(20):
            while True:  # until n1 knows of the subscriptions
                await sender.publish("ready")
                await sender.flush()
                try:
                    await answer.next_msg(0.1)
                    break
                except nats.errors.TimeoutError:
                    continue
        only = {"Nats-Trace-Only": "true"}
        documents = await trace(sender, "way.1", b"x", **only)
        assert names(documents) == ["n1", "n3"]
        (last,) = [event for event in events(documents, "eg") if event["kind"] == 0]
        assert last["name"] == "receiver" and last["sub"] == "way.*"
        (hop,) = [event for event in events(documents, "eg") if event["kind"] == 1]
        assert (hop["name"], hop["hop"]) == ("n3", "1")
        await trace(sender, "way.2", b"delivered")
        assert (await sub.next_msg(5)).subject == "way.2"
        # A stream that any of the nodes may lead.
        js = sender.jetstream()
        await js.add_stream(name="TRACED", subjects=["traced.>"], num_replicas=3)
        for node in cluster.nodes.values():
            nc = await app_of(node, "publisher")
            documents = await trace(nc, "traced.1", **only)
            (stored,) = events(documents, "js")
            assert (stored["stream"], stored["subject"]) == ("TRACED", "traced.1")
            documents = await trace(nc, "traced.1", **only, **{"Nats-Expected-Last-Sequence": "9"})
            (stored,) = events(documents, "js")
            assert stored["error"] == "last sequence mismatch: 9 vs 0"
            await nc.close()
        assert (await js.stream_info("TRACED")).state.messages == 0
        documents = await trace(sender, "traced.1")
        assert "error" not in events(documents, "js")[0]
        assert (await js.stream_info("TRACED")).state.messages == 1
        await js.delete_stream("TRACED")
        await sender.close()
        await receiver.close()

    run(body())
