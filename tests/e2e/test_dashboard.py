"""The dashboard's documents, sessions and actions, at one server and at a cluster."""

from __future__ import annotations

import base64
import json
import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.browser import WITHIN_S, Browser, payload_of
from tests.certificates import Authority
from tests.e2e.cluster import api
from tests.parity.runner import ours_binary
from tests.wire import Wire

USERS = """
http {{ listen: "127.0.0.1:{port}", users: [
  {{ user: ops, password: secret, role: administrator }}
  {{ user: see, password: {see} }}
  {{ user: of_a, password: a, account: A }}
], token: tok }}
accounts {{
  A {{ jetstream: enabled, users: [{{ user: a, password: a }}] }}
  B {{ jetstream: enabled, users: [{{ user: b, password: b }}] }}
}}
"""
STATIC = Path(__file__).parents[2] / "streamd" / "net" / "dashboard" / "static"
pytestmark = pytest.mark.slow


def until(found: Callable[[], Any], what: str) -> Any:
    """Ask again and again; return what was true."""
    deadline = time.monotonic() + WITHIN_S
    while not (value := found()):
        assert time.monotonic() < deadline, f"not {what} within {WITHIN_S:g} s"
        time.sleep(0.02)
    return value


def ask(wire: Wire, subject: str, body: object = None) -> dict[str, Any]:
    (frame,) = wire.ask(f"$JS.API.{subject}", json.dumps(body or {}).encode(), within_s=WITHIN_S)
    found: dict[str, Any] = frame.json()
    assert "error" not in found, found
    return found


def make(wire: Wire, name: str, **config: object) -> None:
    ask(wire, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]} | config)


def put(wire: Wire, subject: str, payload: bytes, **headers: str) -> int:
    inbox = f"{wire.inbox}.p"
    sid = wire.subscribe(inbox)
    wire.publish(subject, payload, reply=inbox, headers=headers or None)
    frame = wire.next(WITHIN_S)
    wire.unsubscribe(sid)
    seq: int = frame.json()["seq"]
    return seq


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without logins, with three streams, a consumer, a bucket."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    directory = tmp_path_factory.mktemp("single")
    with ServerProcess(binary, directory=directory, extra="server_name: s1") as server:
        server.start()
        with Wire(server.port) as wire:
            make(wire, "ORDERS", max_msgs_per_subject=-1)
            make(wire, "M", storage="memory")
            make(wire, "KV_conf", subjects=["$KV.conf.>"], max_msgs_per_subject=5)
            for number in range(60):
                put(wire, f"ORDERS.{number % 3}", b"n%d" % number, Kind=f"k{number}")
            put(wire, "ORDERS.big", b"x" * 100_000)
            ask(wire, "STREAM.MSG.DELETE.ORDERS", {"seq": 2})
            put(wire, "$KV.conf.a.b", b"1")
            put(wire, "$KV.conf.a.b", b"2")
            put(wire, "$KV.conf.<img/src=x>", b"3")
            put(wire, "$KV.conf.gone", b"", **{"KV-Operation": "DEL"})
            consumer = {"durable_name": "c", "ack_policy": "explicit"}
            ask(
                wire,
                "CONSUMER.DURABLE.CREATE.ORDERS.c",
                {"stream_name": "ORDERS", "config": consumer},
            )
            wire.ask("$JS.API.CONSUMER.MSG.NEXT.ORDERS.c", b'{"batch":1}', within_s=WITHIN_S)
        yield server


@pytest.fixture
def browser(single: ServerProcess) -> Browser:
    found = Browser(single.http_port)
    assert found.begin()["login"] == "none"
    return found


# --- one server, nobody logs in ----------------------------------------------------------------


def test_the_page_is_served_with_a_strict_policy(browser: Browser) -> None:
    status, _ = browser.request("GET", "/ui")
    assert (status, browser.answer["location"]) == (308, "/ui/")
    for path, wanted in (("/ui/", (200, 404)), ("/ui/static/nothing.js", (404,))):
        status, _ = browser.request("GET", path)
        assert status in wanted, path
        policy = browser.answer["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "frame-ancestors 'none'; base-uri 'none'; form-action 'self'" in policy
        assert "unsafe" not in policy
        assert browser.answer["x-content-type-options"] == "nosniff"
        assert browser.answer["referrer-policy"] == "no-referrer"
    browser.get("overview")
    assert browser.answer["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in browser.answer


def test_the_session_is_a_cookie_that_scripts_do_not_see(single: ServerProcess) -> None:
    browser = Browser(single.http_port)
    found = browser.begin()
    assert (found["login"], found["role"], found["user"]) == ("none", "administrator", "")
    assert found["server"]["name"] == "s1" and len(found["csrf"]) > 40
    cookie = browser.answer["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/ui" in cookie
    assert browser.begin()["csrf"] == found["csrf"]  # the same session by the cookie
    assert Browser(single.http_port).begin()["csrf"] != found["csrf"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8222"},
        {"X-Forwarded-For": "1.2.3.4"},
        {"Forwarded": "for=1.2.3.4"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=["rebound name", "proxy", "forwarded", "other site"],
)
def test_only_browsers_of_this_host_are_served_without_a_login(
    single: ServerProcess, headers: dict[str, str]
) -> None:
    browser = Browser(single.http_port)
    browser.begin()
    browser.headers = headers
    for segments in (("session",), ("streams",), ("overview",)):
        error = browser.get(*segments)["error"]
        assert error["code"] == 403
    if "Sec-Fetch-Site" not in headers:
        assert "Configure `http { users" in error["message"]
        assert browser.request("GET", "/ui/")[0] == 403


def test_actions_need_the_second_secret_and_the_name(browser: Browser) -> None:
    good = browser.csrf
    purge = ("streams", "$G", "M", "purge")
    for csrf, words in (("", "X-CSRF-Token"), ("x" * 43, "X-CSRF-Token")):
        browser.csrf = csrf
        error = browser.post(*purge, confirm="M")["error"]
        assert error["code"] == 403 and words in error["message"]
    browser.csrf = good
    assert browser.post(*purge, confirm="ORDERS")["error"]["code"] == 400
    assert browser.post(*purge)["error"]["message"].endswith('{"confirm": "M"}')
    browser.headers = {"Origin": "http://evil.example"}
    assert browser.post(*purge, confirm="M")["error"]["code"] == 403
    browser.headers = {"Content-Type": "text/plain"}
    status, _ = browser.request("POST", "/ui/api/streams/$G/M/purge", {"confirm": "M"},
                                Content_Type="text/plain")  # fmt: skip
    assert status == 403
    browser.headers = {}
    browser.cookie, cookie = "", browser.cookie
    assert browser.post(*purge, confirm="M")["error"]["code"] == 403
    browser.cookie = cookie
    status, body = browser.request(
        "POST", "/ui/api/streams/$G/M/purge", {"confirm": "M", "x": "y" * 20_000}
    )
    assert status == 400 and b"16384 bytes" in body
    deep = b"[" * 16_000
    connection = browser.connect()
    json_body = {"Content-Type": "application/json"}
    connection.request("POST", "/ui/api/session", deep, json_body)
    response = connection.getresponse()
    assert response.status == 400 and b"no JSON" in response.read()
    connection.close()


def test_a_purge_and_a_pause_are_requests_of_the_api(
    single: ServerProcess, browser: Browser
) -> None:
    with Wire(single.port) as wire:
        put(wire, "M.x", b"gone soon")
        assert browser.post("streams", "$G", "M", "purge", confirm="M")["done"] is True
        assert ask(wire, "STREAM.INFO.M")["state"]["messages"] == 0
    pause = ("consumers", "$G", "ORDERS", "c")
    until_text = "2100-01-01T00:00:00Z"
    assert browser.post(*pause, "pause", confirm="c", until=until_text)["done"] is True
    shown = browser.get(*pause)
    assert shown["paused"] is True and shown["paused_until"] == until_text
    assert browser.post(*pause, "pause", confirm="c", until="soon")["error"]["code"] == 400
    assert browser.post(*pause, "resume", confirm="c")["done"] is True
    assert browser.get(*pause)["paused"] is False
    assert browser.post("consumers", "$G", "ORDERS", "x", "resume", confirm="x")["error"] == {
        "code": 404, "message": "there is no consumer 'x' of ORDERS",
    }  # fmt: skip
    # There is nobody to hand it to: the API's own words.
    error = browser.post("streams", "$G", "ORDERS", "step_down", confirm="ORDERS")["error"]
    assert error["code"] in (400, 503) and error["message"]


def test_lists_are_paged_sorted_and_filtered(browser: Browser) -> None:
    found = browser.get("streams", sort="messages", descending="1")
    assert [item["name"] for item in found["items"]] == ["ORDERS", "KV_conf", "M"]
    assert (found["total"], found["offset"], found["limit"]) == (3, 0, 50)
    orders = found["items"][0]
    assert (orders["messages"], orders["consumers"], orders["leader"]) == (60, 1, "s1")
    assert orders["replicas"] == [
        {"name": "s1", "current": True, "offline": False, "lag": 0, "digest": "single"}
    ]
    assert orders["health"] == "" and orders["last_time"].endswith("Z")
    assert [i["name"] for i in browser.get("streams", limit=1, offset=1)["items"]] == ["M"]
    assert browser.get("streams", filter="order")["total"] == 1
    assert browser.get("streams", sort="x")["error"]["code"] == 400
    assert browser.get("streams", limit="x")["error"]["code"] == 400
    (consumer,) = browser.get("consumers", sort="pending")["items"]
    assert (consumer["stream"], consumer["name"]) == ("ORDERS", "c")
    assert (consumer["ack_pending"], consumer["pending"]) == (1, 59)
    assert consumer["lag_ns"] > 0 and consumer["oldest_ns"] > 0 and consumer["last_delivery"]
    assert browser.get("groups")["items"][0]["stream"] in ("KV_conf", "M", "ORDERS")
    assert browser.get("nothing")["error"]["code"] == 404


def test_lists_are_sorted_by_every_column_that_offers_it(
    single: ServerProcess, browser: Browser
) -> None:
    """The server sorts by all that the page may ask for, in both orders, as its rows show it."""
    columns = re.compile(r'sort: "(\w+)", cell')
    with Wire(single.port, {"verbose": False, "lang": "go"}), Wire(single.port):
        for name in ("buckets", "connections", "consumers", "groups", "streams"):
            fields = columns.findall((STATIC / f"{name}.js").read_text(encoding="utf-8"))
            assert len(fields) > 8 or name == "buckets", (name, fields)
            for field in fields:
                where = (name, "$G", "conf", "keys") if field in ("key", "revision") else (name,)
                for descending in ("", "1"):
                    items = browser.get(*where, sort=field, descending=descending)["items"]
                    values = [item.get(field, "") for item in items]
                    shown = [len(each) if isinstance(each, list) else each for each in values]
                    assert shown and shown == sorted(shown, reverse=bool(descending)), (name, field)
            refused = browser.get(name, sort="x")["error"]["message"]
            assert "is not a field to sort by; these are" in refused


def test_a_stream_shows_its_blocks_and_subjects(browser: Browser) -> None:
    found = browser.get("streams", "$G", "ORDERS")
    assert found["config"]["name"] == "ORDERS" and found["state"]["messages"] == 60
    (block,) = found["blocks"]
    assert (block["first_seq"], block["last_seq"], block["messages"]) == (1, 61, 60)
    assert 0 < block["fill"] < 0.1 and block["dead"] == 0.016 and block["damage"] == ""
    assert found["blocks_total"] == 1 and found["group"]["term"] >= 1
    assert found["top_subjects"][0] == {"subject": "ORDERS.0", "count": 20}
    assert browser.get("streams", "$G", "NONE")["error"]["code"] == 404
    assert browser.get("streams", "OTHER", "ORDERS")["error"]["code"] == 404


def test_messages_are_browsed_in_both_directions(browser: Browser) -> None:
    def seqs(**query: object) -> tuple[list[int], int | None]:
        found = browser.get("streams", "$G", "ORDERS", "messages", **query)
        return [item["seq"] for item in found["items"]], found["next"]

    assert seqs(limit=3) == ([1, 3, 4], 5)
    assert seqs(seq=2, limit=2) == ([3, 4], 5)
    assert seqs(direction="previous", limit=2) == ([61, 60], 59)
    assert seqs(seq=3, direction="previous") == ([3, 1], None)
    assert seqs(subject="ORDERS.1", limit=3) == ([5, 8, 11], 12)
    assert seqs(subject="ORDERS.big") == ([61], None)
    assert seqs(subject="ORDERS.none") == ([], None)
    assert seqs(subject="ORDERS.*", direction="previous", seq=10, limit=2) == ([10, 9], 8)
    assert seqs(seq=62) == ([], None)
    assert seqs(time="2100-01-01T00:00:00Z") == ([], None)
    assert seqs(time="2001-01-01T00:00:00Z", limit=1) == ([1], 2)
    assert seqs(time="2100-01-01T00:00:00Z", direction="previous", limit=1)[0] == [61]
    found = browser.get("streams", "$G", "ORDERS", "messages", seq=60, limit=5)["items"]
    assert (found[0]["subject"], payload_of(found[0])) == ("ORDERS.2", b"n59")
    assert found[0]["headers"] == [["Kind", "k59"]] and found[0]["cut"] is False
    assert (found[1]["size"], found[1]["cut"]) == (100_000, True)
    assert len(payload_of(found[1])) == 64 * 1024
    for query in ({"seq": "-1"}, {"direction": "x"}, {"time": "x"}, {"subject": "a..b"}):
        assert browser.get("streams", "$G", "ORDERS", "messages", **query)["error"]["code"] == 400


def test_buckets_have_keys_and_values(browser: Browser) -> None:
    (bucket,) = browser.get("buckets")["items"]
    assert (bucket["name"], bucket["kind"], bucket["history"]) == ("conf", "key-value", 5)
    found = browser.get("buckets", "$G", "conf", "keys")
    assert [(i["key"], i["operation"]) for i in found["items"]] == [
        ("<img/src=x>", "put"), ("a.b", "put"), ("gone", "delete"),
    ]  # fmt: skip
    assert found["total"] == 3 and found["items"][1]["revision"] == 2
    assert browser.get("buckets", "$G", "conf", "keys", filter="A.")["total"] == 1
    value = browser.get("buckets", "$G", "conf", "keys", "a.b")
    assert (payload_of(value), value["revision"]) == (b"2", 2)
    assert browser.get("buckets", "$G", "conf", "keys", "none")["error"]["code"] == 404
    assert browser.get("buckets", "$G", "none", "keys")["error"]["code"] == 404


def test_an_object_store_has_objects_also_beside_a_bucket_of_its_name(
    single: ServerProcess, browser: Browser
) -> None:
    meta = {"name": "a/b.txt", "size": 70_000, "chunks": 2, "digest": "SHA-256=x"}
    encoded = base64.urlsafe_b64encode(meta["name"].encode()).decode()
    with Wire(single.port) as wire:
        make(wire, "OBJ_conf", subjects=["$O.conf.>"])
        put(wire, f"$O.conf.M.{encoded}", json.dumps(meta).encode())
        kinds = [b["kind"] for b in browser.get("buckets", sort="kind", descending="1")["items"]]
        assert kinds == ["objects", "key-value"]
        found = browser.get("buckets", "$G", "conf", "keys", kind="objects")
        assert [(i["key"], i["size"], i["operation"]) for i in found["items"]] == [
            ("a/b.txt", 70_000, "put")
        ]
        value = browser.get("buckets", "$G", "conf", "keys", "a/b.txt", kind="objects")
        assert json.loads(payload_of(value)) == meta
        assert browser.get("buckets", "$G", "conf", "keys")["total"] == 3
        ask(wire, "STREAM.DELETE.OBJ_conf")


def test_connections_show_the_names_of_clients_as_they_are(
    single: ServerProcess, browser: Browser
) -> None:
    name = "<script>alert(1)</script>"
    with Wire(single.port, {"verbose": False, "name": name, "lang": "x"}):
        found = browser.get("connections", sort="name", filter="<script>")
    assert [item["name"] for item in found["items"]] == [name]


def test_the_overview_and_what_comes_live(single: ServerProcess, browser: Browser) -> None:
    found = browser.get("overview")
    assert found["health"] == {"ok": True, "reasons": []}
    (node,) = found["nodes"]
    assert (node["name"], node["here"], node["offline"]) == ("s1", True, False)
    assert (found["streams"], found["consumers"], found["meta_leader"]) == (3, 1, "")
    assert found["fsync"]["count"] > 0 and found["fsync"]["p99_ns"] >= found["fsync"]["p50_ns"] > 0
    assert found["memory"] > 1_000_000 and found["disk"]["free"] > 0
    with browser.stream("live") as live, Wire(single.port) as wire:
        assert (live.status, live.content_type) == (200, "text/event-stream")
        live.wait("overview")
        make(wire, "TEMP")
        event = live.wait("event", subject="$JS.EVENT.ADVISORY.STREAM.CREATED.TEMP")
        assert event["kind"] == "advisory" and "stream=TEMP" in event["text"]
        ask(wire, "STREAM.DELETE.TEMP")
        assert live.wait("overview", streams=3)["nodes"][0]["name"] == "s1"
    events = browser.get("events")["items"]
    assert "stream=TEMP" in events[-1]["text"] or any("TEMP" in e["text"] for e in events)


def test_a_tail_shows_new_messages_and_counts_those_left_out(
    single: ServerProcess, browser: Browser
) -> None:
    tail_of = ("streams", "$G", "M", "tail")
    with Wire(single.port) as wire:
        put(wire, "M.a", b"before")
        with browser.stream(*tail_of, filter="M.a") as tail:
            put(wire, "M.b", b"other")
            seq = put(wire, "M.a", b"first")
            message = tail.wait("message")
            assert (payload_of(message), message["seq"]) == (b"first", seq)
            put(wire, "M.a", b"second")
            assert payload_of(tail.wait("message")) == b"second"
        with browser.stream(*tail_of) as tail:
            # In one chunk, hence one entry of the log: no look comes between them.
            wire.send(b"".join(b"PUB M.a 3\r\n%03d\r\n" % number for number in range(300)))
            skipped = tail.wait("skipped")
            assert skipped["count"] == skipped["to"] - skipped["from"] + 1 == 250
            shown = [payload_of(tail.wait("message")) for _ in range(50)]
            assert shown == [b"%03d" % number for number in range(250, 300)]
    assert browser.get(*tail_of, filter="a..b")["error"]["code"] == 400


# --- a server with logins ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    directory = tmp_path_factory.mktemp("guarded")
    with ServerProcess(binary, directory=directory) as server:
        users = USERS.format(port=server.http_port, see="old")
        server.configure(extra=f"server_name: g1\n{users}")
        server.start()
        for name in "ab":
            login = {"verbose": False, "headers": True, "no_responders": True}
            with Wire(server.port, login | {"user": name, "pass": name}) as wire:
                make(wire, "S", subjects=["s"])
                put(wire, "s", name.encode())
        yield server


def test_a_login_is_demanded_and_an_account_is_all_that_its_user_sees(
    guarded: ServerProcess,
) -> None:
    stranger = Browser(guarded.http_port)
    assert stranger.begin()["login"] == "needed"
    for segments in (("overview",), ("streams",), ("live",), ("streams", "A", "S", "messages")):
        assert stranger.get(*segments)["error"]["code"] == 401
    assert stranger.post("streams", "A", "S", "purge", confirm="S")["error"]["code"] == 401
    assert stranger.log_in("a", "a")["error"]["code"] == 401  # a client's login is not one here
    of_a = Browser(guarded.http_port)
    session = of_a.log_in("of_a", "a")
    assert (session["login"], session["role"], session["account"]) == ("user", "reader", "A")
    assert [item["account"] for item in of_a.get("streams")["items"]] == ["A"]
    assert payload_of(of_a.get("streams", "A", "S", "messages")["items"][0]) == b"a"
    assert of_a.get("streams", "B", "S", "messages")["error"]["code"] == 404
    assert of_a.get("streams", "B", "S")["error"]["code"] == 404
    error = of_a.post("streams", "A", "S", "purge", confirm="S")["error"]
    assert error == {
        "code": 403, "message": "'of_a' is a reader: only administrators may do that"
    }  # fmt: skip
    ops = Browser(guarded.http_port)
    assert ops.log_in("ops", "secret")["role"] == "administrator"
    assert [item["account"] for item in ops.get("streams")["items"]] == ["A", "B"]
    assert ops.post("streams", "B", "S", "scrub", confirm="S") == {
        "done": True, "nodes": ["g1"], "unreached": [],
    }  # fmt: skip
    by_token = Browser(guarded.http_port)
    assert by_token.log_in(token="tok")["role"] == "administrator"
    before = by_token.cookie
    assert by_token.request("DELETE", "/ui/api/session", {})[0] == 200
    by_token.cookie = before
    assert by_token.get("streams")["error"]["code"] == 401


def test_a_reload_ends_the_sessions_of_a_user_that_changed(guarded: ServerProcess) -> None:
    see, ops = Browser(guarded.http_port), Browser(guarded.http_port)
    assert see.log_in("see", "old")["login"] == ops.log_in("ops", "secret")["login"] == "user"
    with see.stream("live") as live:
        live.wait("overview")
        text = guarded.config_file.read_text()
        guarded.config_file.write_text(text.replace("password: old", "password: new"))
        guarded.send(signal.SIGHUP)
        live.wait("session_ended")
        assert list(live.events()) == []
    assert see.get("streams")["error"]["code"] == 401
    assert ops.get("streams")["total"] == 2
    assert see.log_in("see", "new")["login"] == "user"
    log = guarded.log_file.read_text()
    assert "Reloaded: http.users and http.token changed" in log
    assert "password: new" not in log


def test_failed_logins_are_slowed_down(guarded: ServerProcess) -> None:
    browser = Browser(guarded.http_port)
    assert browser.log_in("ops", "guess")["error"]["code"] == 401
    until(lambda: browser.log_in("ops", "guess")["error"]["code"] == 429, "slowed down")
    assert int(browser.answer["retry-after"]) >= 1
    # A right one waits as well, and is let in then.
    until(lambda: browser.log_in("ops", "secret").get("login") == "user", "let in again")


def test_over_https_the_cookie_never_travels_in_clear(tmp_path: Path) -> None:
    """And users of clients log in, where the dashboard has no logins of its own."""
    authority = Authority(tmp_path)
    server = ServerProcess(ours_binary(), directory=tmp_path / "s", is_jetstream=False)
    port, server.http_port = server.http_port, 0
    users = "[{ user: a, password: pw, permissions: { publish: [x] } }]"
    server.configure(
        extra=f'https: "127.0.0.1:{port}"\ntls {{ {authority.issue("server").block} }}\n'
        f"allow_non_tls: true\nauthorization {{ users: {users} }}"
    )
    with server:
        server.start()
        browser = Browser(port, tls=ssl.create_default_context(cafile=authority.cert))
        assert browser.begin()["login"] == "needed"  # also here, on the server's own host
        assert browser.log_in("a", "no")["error"]["code"] == 401
        found = browser.log_in("a", "pw")
        assert (found["login"], found["role"], found["account"]) == ("user", "reader", "$G")
        assert "Secure" in browser.answer["set-cookie"]
        assert browser.get("overview")["nodes"][0]["here"] is True
        with browser.stream("live") as live:
            assert live.wait("overview")["streams"] == 0
        for list_name in ("streams", "groups"):
            error = browser.get(list_name)["error"]
            assert error["code"] == 403 and "$JS.API.STREAM.LIST" in error["message"]


# --- a cluster ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three nodes; R3 has replicas everywhere, and each node one R1 stream of its own."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    directory = tmp_path_factory.mktemp("cluster")
    tags = ("at:1", "at:2", "at:3")
    with ClusterProcess(binary, directory=directory, tags=tags) as found:
        found.start()
        api(found, "STREAM.CREATE.R3", {"name": "R3", "subjects": ["r3.>"], "num_replicas": 3})
        for n in (1, 2, 3):
            placement = {"tags": [f"at:{n}"]}
            config = {"name": f"R1_{n}", "subjects": [f"r1.{n}.>"], "placement": placement}
            api(found, f"STREAM.CREATE.R1_{n}", config)
            consumer = {"durable_name": "d", "ack_policy": "explicit"}
            api(
                found,
                f"CONSUMER.DURABLE.CREATE.R1_{n}.d",
                {"stream_name": f"R1_{n}", "config": consumer},
            )
            with Wire(found.nodes["n1"].port) as wire:
                for number in range(n):
                    put(wire, f"r1.{n}.x", b"%d" % number)
                put(wire, "r3.x", b"m")
        yield found


def at(cluster: ClusterProcess, name: str) -> Browser:
    browser = Browser(cluster.nodes[name].http_port)
    browser.begin()
    return browser


def test_every_node_shows_all_streams_wherever_they_are(cluster: ClusterProcess) -> None:
    for name in cluster.nodes:
        browser = at(cluster, name)
        # A node hears of a new leader a moment after the client that made the stream.
        until(lambda b=browser: all(i["health"] == "" for i in b.get("streams")["items"]), "well")
        found = browser.get("streams", sort="messages", descending="1")["items"]
        assert {i["name"]: (i["messages"], i["leader"]) for i in found if i["name"] != "R3"} == {
            "R1_1": (1, "n1"), "R1_2": (2, "n2"), "R1_3": (3, "n3"),
        }, name  # fmt: skip
        consumers = browser.get("consumers", filter="R1_", sort="pending")["items"]
        assert [(c["stream"], c["pending"]) for c in consumers] == [
            ("R1_1", 1), ("R1_2", 2), ("R1_3", 3),
        ], name  # fmt: skip
        for n in (1, 2, 3):  # two of these are at other nodes
            messages = browser.get("streams", "$G", f"R1_{n}", "messages")["items"]
            assert [payload_of(m) for m in messages] == [b"%d" % k for k in range(n)]
            detail = browser.get("streams", "$G", f"R1_{n}")
            assert detail["stored_on"] == f"n{n}" and detail["blocks_total"] == 1
            assert browser.get("consumers", "$G", f"R1_{n}", "d")["pending"] == n
            error = browser.get("consumers", "$G", f"R1_{n}", "none")["error"]
            assert error["code"] == 404


def test_replicas_agree_and_the_page_knows_the_other_nodes(cluster: ClusterProcess) -> None:
    browser = at(cluster, "n2")

    def agreed() -> bool:
        (r3,) = browser.get("streams", filter="R3")["items"]
        replicas = r3["replicas"]
        assert [each["name"] for each in replicas] == ["n1", "n2", "n3"]
        return all(r["digest"] == "equal" and r["current"] and r["lag"] == 0 for r in replicas)

    until(agreed, "equal at all nodes")
    nodes = {node["name"]: node for node in browser.get("overview")["nodes"]}
    assert sorted(nodes) == ["n1", "n2", "n3"] and nodes["n2"]["here"]
    for name in ("n1", "n3"):
        port = cluster.nodes[name].http_port
        assert nodes[name]["ui"] == f"http://127.0.0.1:{port}/ui/"
        assert nodes[name]["version"] and not nodes[name]["offline"]
    assert sorted(browser.begin()["peers"]) == sorted(nodes[n]["ui"] for n in ("n1", "n3"))


def test_leaders_step_down_from_a_page_of_any_node(cluster: ClusterProcess) -> None:
    browser = at(cluster, "n3")
    (before,) = browser.get("streams", filter="R3")["items"]
    answer = browser.post("streams", "$G", "R3", "step_down", confirm="R3")
    assert answer.get("done") is True, answer

    def moved() -> bool:
        (now,) = browser.get("streams", filter="R3")["items"]
        return now["leader"] not in ("", before["leader"])

    until(moved, "led by another node")
    assert browser.post("streams", "$G", "R3", "scrub", confirm="R3") == {
        "done": True, "nodes": ["n1", "n2", "n3"], "unreached": [],
    }  # fmt: skip

    def verified() -> bool:
        return all(b["scrubbed"] for b in browser.get("streams", "$G", "R3")["blocks"])

    until(verified, "verified")
    meta = browser.get("overview")["meta_leader"]
    assert browser.post("meta", "step_down", confirm="x")["error"]["code"] == 400
    assert browser.post("meta", "step_down", confirm=meta)["done"] is True

    def is_led_elsewhere() -> bool:
        return browser.get("overview")["meta_leader"] not in ("", meta)

    until(is_led_elsewhere, "another meta leader")


def test_a_node_that_is_gone_holds_up_nothing_and_is_named(cluster: ClusterProcess) -> None:
    """The last test of this cluster: n2 does not come back."""
    browser = at(cluster, "n3")
    with browser.stream("live") as live:
        live.wait("overview")
        cluster.kill("n2")
        for name, document in live.events():
            if name == "overview":
                gone = [node["name"] for node in document["nodes"] if node["offline"]]
                if gone == ["n2"]:
                    break

    def told() -> Any:
        found = {i["name"]: i for i in browser.get("streams")["items"]}
        is_told = "n2" in found["R1_2"]["health"] or found["R1_2"]["health"] == "no leader"
        return found if is_told and "n2" in found["R3"]["health"] else None

    found = until(told, "told of")
    assert found["R1_1"]["health"] == found["R1_3"]["health"] == ""

    def is_sorted() -> bool:  # by what leaders told lately: n2 may have, just before its end
        worst = browser.get("streams", sort="health", descending="1")["items"]
        return {row["name"] for row in worst[:2]} == {"R1_2", "R3"}

    until(is_sorted, "the worst first")
    assert browser.get("streams", sort="digests", descending="1")["items"][0]["name"] == "R3"
    error = browser.get("streams", "$G", "R1_2", "messages")["error"]
    assert error["code"] == 503 and error["message"]
    assert not browser.get("overview")["health"]["ok"] or browser.get("overview")["nodes"]
