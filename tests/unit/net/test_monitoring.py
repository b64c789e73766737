"""The monitoring documents, built from made-up facts: filters, sorting, paging, health."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.config.duration_values import format_uptime
from streamd.config.options import JetStreamOptions, Options
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import Steps, finish, whole
from streamd.net.monitoring.stats import ConnectionStats, SublistStats, SubscriptionStats, Traffic
from streamd.node.ports import LogWaits
from tests.unit.net.bed import Bed
from tests.unit.net.health import Health

SECOND = 1_000_000_000
ACCOUNTS = Bed().accounts


def connection(cid: int, **changes: Any) -> ConnectionStats:
    facts = ConnectionStats(
        cid=cid, ip="127.0.0.1", port=5000 + cid, is_websocket=False, start_ns=cid * SECOND,
        last_activity_ns=(cid + 1) * SECOND, stop_ns=0, reason="", rtt_ns=597_000,
        pending_bytes=0, in_msgs=1, out_msgs=2, in_bytes=10, out_bytes=20,
        subscriptions=lambda: [SubscriptionStats(f"s.{cid}.*", "q", "1", 7, 0, cid)],
        subscription_count=1, name=f"c{cid}", lang="python3", version="2.16.0", user="",
    )  # fmt: skip
    return facts._replace(**changes)


def at_once(found: Any) -> Steps[Any]:
    """A builder that has no need to pause."""
    yield
    return found


class Documents:
    """A `Monitoring` whose documents are built without a pause."""

    def __init__(self, monitoring: Monitoring) -> None:
        self.monitoring = monitoring

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.monitoring, name)
        if not name.endswith("z"):
            return found

        def built(query: dict[str, str], **kwargs: Any) -> Any:
            document = finish(found(query, **kwargs))
            return tuple(whole(document)) if isinstance(document, tuple) else whole(document)

        return built


def monitoring(options: Options | None = None, **lists: Any) -> Documents:
    opened = lists.get("opened", [])
    return Documents(
        Monitoring(
            options or Options(),
            stats=SimpleNamespace(  # type: ignore[arg-type]
                traffic=lambda: at_once(Traffic(1, 2, 3, 4, len(opened), 9, 5, 1, 0, 6)),
                open_connections=lambda: opened,
                closed_connections=lambda: lists.get("closed", []),
                stats_of=lambda stats: stats,
                leafs_of=lambda _: [],
                account_traffic=lambda _: at_once(Traffic(1, 2, 3, 4, len(opened), 9, 5, 1, 0, 6)),
                sublist=lambda account=None: at_once(SublistStats(5, 2, 6, 1, 3, 1.5)),
                subscriptions=lambda account=None: (
                    ("$G", sub) for sub in lists.get("subscriptions", [])
                ),
                accounts=lists.get("accounts", ACCOUNTS),
                clients_of=lambda _: SimpleNamespace(open=opened),
                every_account=lambda: [ACCOUNTS.main] if opened else [],
                remote_subscriptions=lambda name: lists.get("remote", []),
            ),
            server_id="NID",
            server_name="n1",
        )
    )


class Machine(SimpleNamespace):
    """State machine of a stream; unlike its base, a class whose instances weak references take."""


def machine(**changes: Any) -> Machine:
    values: dict[str, Any] = {
        "uid": 3, "created_ns": SECOND, "applied": 17, "digest": 0xABC, "consumers": {"c": "C"},
        "config": {"storage": "file", "max_bytes": 100},
        "index": SimpleNamespace(count=4, live=SimpleNamespace(bytes=400)),
        "content": SimpleNamespace(letters=SimpleNamespace(last_number=0)),
    }  # fmt: skip
    given = Machine(**(values | changes))
    names = list(given.consumers)
    given.listed_count, given.listed_names, given.direct_names = len(names), lambda: names, []
    return given


class Streams:
    """Stands in for JetStreamSources: one node with one stream."""

    def __init__(self) -> None:
        handle = SimpleNamespace(name="S", uid=3, account="$G", machine=machine())
        self.node = SimpleNamespace(
            memory_max=1, storage_max=2, store_dir="/d", failed={}, is_clustered=False,
            health=Health(lambda asset: self.lost.get(asset.name, "")),
            streams=lambda: [handle], account=self._account,
            waiting_count=lambda uid: uid,
            meta=SimpleNamespace(
                streams_by_key={("$G", n): SimpleNamespace(name=n, account="$G") for n in "ST"}
            ),
        )  # fmt: skip
        self.lost: dict[str, str] = {}
        self._handle = handle

    def _account(self, account: str) -> Any:
        def stream(name: str) -> Any:
            return self._handle if (account, name) == ("$G", "S") else None

        streams = self.node.streams() if account == "$G" else []
        return SimpleNamespace(stream=stream, streams=lambda: streams)

    def accounts(self) -> list[str]:
        return ["$G"]

    def api_totals(self) -> tuple[int, int]:
        return 8, 1

    def account_totals(self, account: str) -> tuple[int, int]:
        return 8, 1

    def api_pending(self) -> int:
        return 1

    def origins(self, handle: Any) -> dict[str, Any]:
        return {}

    def blocks(self, uid: int) -> dict[str, Any]:
        return {}

    def block_sizes(self, uid: int) -> tuple[int, ...]:
        return ()

    def stream_numbers(self, handle: Any) -> tuple[int, ...]:
        return 4, 400, 1, 4, 1, 1

    def consumer_numbers(self, handle: Any, consumer: Any) -> tuple[int, ...]:
        return 2, 3, 2, 3, 0, 0, 0, 0

    def consumer_ages(self, consumer: Any) -> tuple[int, ...]:
        return 2_500_000_000, 0

    def stream_state(self, handle: Any) -> dict[str, Any]:
        return {"messages": 4}

    def stream_config(self, handle: Any) -> dict[str, Any]:
        return {"name": handle.name}

    def consumer_info(self, handle: Any, consumer: Any, *, has_lag: bool = False) -> dict[str, Any]:
        info: dict[str, Any] = {"name": "c", "config": {"name": "c"}}
        for key in ("num_ack_pending", "num_redelivered", "num_waiting", "num_pending"):
            info[key] = 0
        for key in ("delivered", "ack_floor"):
            info[key] = {"consumer_seq": 2, "stream_seq": 3}
        return info


def with_streams() -> Documents:
    m = monitoring(Options(jetstream=JetStreamOptions(is_enabled=True)))
    m.attach(Streams())  # type: ignore[arg-type]
    m.monitoring.is_ready = True
    return m


def test_varz_has_the_fields_that_dashboards_read() -> None:
    """Keys of nats-top and the exporter, and our own version beside the level we speak."""
    m = monitoring()
    m.monitoring.client_port = 4999
    m.count_request("/varz")
    varz = m.varz({})
    for key in ("cpu", "mem", "slow_consumers", "start", "uptime", "cores", "max_payload"):
        assert key in varz
    assert (varz["in_msgs"], varz["out_bytes"], varz["total_connections"]) == (1, 4, 9)
    assert varz["stalled_clients"] == 6
    assert (varz["port"], varz["http_req_stats"]) == (4999, {"/varz": 1})
    assert varz["git_commit"].startswith("streamd-")
    assert varz["jetstream"] == {}
    assert "auth_required" not in varz


def test_varz_shows_how_durable_acks_are() -> None:
    """`sync_always` by default; the interval when one was chosen."""
    assert with_streams().varz({})["jetstream"]["config"]["sync_always"] is True
    m = monitoring(Options(jetstream=JetStreamOptions(is_enabled=True, sync_interval_ns=SECOND)))
    m.attach(Streams())  # type: ignore[arg-type]
    assert m.varz({})["jetstream"]["config"]["sync_interval"] == SECOND


def test_connz_entry() -> None:
    """One connection as nats-server 2.15 shows it."""
    entry = monitoring(opened=[connection(1)]).connz({})["connections"][0]
    assert list(entry) == [
        "cid", "kind", "type", "ip", "port", "start", "last_activity", "rtt", "uptime", "idle",
        "pending_bytes", "in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions", "name",
        "lang", "version",
    ]  # fmt: skip
    assert (entry["rtt"], entry["start"]) == ("597µs", "1970-01-01T00:00:01Z")


def test_connz_sorts_pages_and_filters() -> None:
    """Every sort option works; offset and limit cut; cid picks one."""
    m = monitoring(
        opened=[connection(cid, in_msgs=10 - cid, user=f"u{cid}") for cid in (3, 1, 2)],
        closed=[connection(9, stop_ns=5 * SECOND, reason="Client Closed")],
    )

    def cids(**query: str) -> list[int]:
        return [entry["cid"] for entry in m.connz(query)["connections"]]

    assert cids() == [1, 2, 3]
    assert cids(sort="msgs_from") == [1, 2, 3]
    assert cids(sort="start") == [1, 2, 3]
    assert cids(sort="last") == cids(sort="uptime") == [3, 2, 1]
    assert cids(offset="1", limit="1") == [2]
    assert cids(cid="3") == [3]
    assert cids(state="closed") == [9]
    assert cids(state="any") == [1, 2, 3, 9]
    assert cids(user="u2", auth="1") == cids(user="u2") == [2]
    assert cids(acc="$SYS") == []
    unknown = m.connz({"acc": "other"})
    assert (unknown["server_id"], unknown["connections"]) == ("", None)  # as nats-server says it
    assert cids(filter_subject="s.2.x") == [2]
    for option in ("subs", "pending", "msgs_to", "bytes_to", "bytes_from", "idle", "uptime", "rtt"):
        assert sorted(cids(sort=option)) == [1, 2, 3]
    assert cids(state="closed", sort="stop") == cids(state="closed", sort="reason") == [9]
    assert m.connz({"subs": "1"})["connections"][0]["subscriptions_list"] == ["s.1.*"]
    assert m.connz({"subs": "detail"})["connections"][0]["subscriptions_list_detail"] == [
        {"subject": "s.1.*", "qgroup": "q", "sid": "1", "msgs": 7, "cid": 1}
    ]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"limit": "x"}, "Error decoding int for 'limit': strconv.Atoi: parsing \"x\": invalid"),
        (
            {"limit": "1_0"},
            "Error decoding int for 'limit': strconv.Atoi: parsing \"1_0\": invalid",
        ),
        (
            {"offset": "9" * 30},
            f"Error decoding int for 'offset': strconv.Atoi: parsing \"{'9' * 30}\": value",
        ),
        ({"subs": "bogus"}, "Error decoding boolean for 'subs': strconv.ParseBool"),
        ({"state": "bogus"}, "Error decoding state for bogus"),
        ({"sort": "zz"}, "invalid sorting option: zz"),
        ({"sort": "stop"}, "sort by stop only valid on closed connections"),
    ],
)
def test_bad_queries_are_named(query: dict[str, str], words: str) -> None:
    """In nats-server's words."""
    with pytest.raises(BadQuery) as caught:
        monitoring().connz(query)
    assert str(caught.value).startswith(words)


def test_subsz_lists_and_tests() -> None:
    """The list only when asked for; `test` keeps what a publish there would reach."""
    subs = [SubscriptionStats(f"{name}.>", "", "1", 0, 0, 4) for name in ("a", "b")]
    m = monitoring(subscriptions=subs)
    assert m.subsz({})["total"] == 0
    assert m.subsz({"subs": "1"})["total"] == 2
    tested = m.subsz({"subs": "1", "test": "b.x"})["subscriptions_list"]
    assert tested == [
        {"account": "$G", "account_tag": "$G", "subject": "b.>", "sid": "1", "msgs": 0, "cid": 4}
    ]


def test_subsz_pages_and_counts_all() -> None:
    """`total` is of all that match, as nats-server counts."""
    each = [SubscriptionStats(f"a.{at}", "", "1", 0, 0, 4) for at in range(9)]
    shown = monitoring(subscriptions=each).subsz({"subs": "1", "offset": "2", "limit": "3"})
    assert [sub["subject"] for sub in shown["subscriptions_list"]] == ["a.2", "a.3", "a.4"]
    assert (shown["total"], shown["offset"], shown["limit"]) == (9, 2, 3)


def test_a_test_subject_is_one_to_publish_to() -> None:
    with pytest.raises(BadQuery, match="invalid test subject, must be valid publish subject: a"):
        monitoring().subsz({"test": "a.*"})


def test_details_of_health_are_a_yes_or_no() -> None:
    with pytest.raises(BadQuery, match="Error decoding boolean for 'details'"):
        monitoring().healthz({"details": "x"})


def test_jsz_grows_with_the_options_asked_for() -> None:
    """Plain totals, then accounts, streams, configs, consumers, digests."""
    m = with_streams()
    plain = m.jsz({})
    assert (plain["streams"], plain["consumers"], plain["messages"], plain["bytes"]) == (
        1,
        1,
        4,
        400,
    )
    assert (plain["api"]["total"], plain["reserved_storage"]) == (8, 100)
    assert "account_details" not in plain
    assert "stream_detail" not in m.jsz({"accounts": "1"})["account_details"][0]

    def detail(**query: str) -> dict[str, Any]:
        found: dict[str, Any] = m.jsz(query)["account_details"][0]["stream_detail"][0]
        return found

    assert list(detail(streams="1")) == ["name", "created", "cluster", "state"]
    assert detail(streams="1", config="1")["config"] == {"name": "S"}
    assert "config" not in detail(consumers="true")["consumer_detail"][0]
    assert detail(consumers="true", config="1")["consumer_detail"][0]["config"] == {"name": "c"}
    assert (detail(digest="1")["applied"], detail(digest="1")["digest"]) == (17, "0" * 13 + "abc")
    assert "account_details" not in m.jsz({"acc": "other"})
    assert "account_details" not in m.jsz({"accounts": "1", "offset": "1"})
    assert m.jsz({"acc": "$G", "offset": "1"})["account_details"][0]["name"] == "$G"


def test_jsz_without_jetstream_says_so() -> None:
    """`disabled`."""
    assert monitoring().jsz({"streams": "1"})["disabled"] is True


def test_healthz_is_503_while_a_disk_hangs() -> None:
    m = with_streams()
    streams = Streams()
    streams.node.health.waits = LogWaits(10.0, 2, 30, 20)
    m.attach(streams)  # type: ignore[arg-type]
    text = "JetStream has waited 10 s for the disk"
    assert m.healthz({}) == (503, {"status": "unavailable", "error": text})
    assert m.healthz({"js-enabled-only": "1"})[0] == 200


def test_healthz_names_a_store_directory_that_is_gone() -> None:
    """Whatever is asked, and also while the server sends its clients away for that."""
    m = with_streams()
    streams = Streams()
    streams.node.health.store_fault = "/d: the directory is gone"
    m.attach(streams)  # type: ignore[arg-type]
    text = "JetStream is stopped: the store directory is gone: /d: the directory is gone"
    for query in ({}, {"js-enabled-only": "1"}, {"js-server-only": "1"}):
        assert m.healthz(query) == (503, {"status": "unavailable", "error": text})
    m.is_ready = False
    assert m.healthz({}) == (503, {"status": "unavailable", "error": text})


def test_healthz() -> None:
    """Ready, not ready, recovering, unknown assets, bad questions."""
    m = with_streams()
    assert m.healthz({}) == (200, {"status": "ok"})
    assert m.healthz({"account": "$G", "stream": "S", "consumer": "c"})[0] == 200
    assert m.healthz({"account": "x"}) == (
        404, {"status": "unavailable", "error": 'JetStream account "x" not found'},
    )  # fmt: skip
    assert m.healthz({"account": "$G", "stream": "T"})[0] == 404
    assert m.healthz({"account": "$G", "stream": "S", "consumer": "z"})[0] == 404
    assert m.healthz({"stream": "S"})[0] == 400
    assert m.healthz({"consumer": "c"})[0] == 400
    assert m.healthz({"account": "x", "details": "1"})[1] == {
        "status": "error",
        "errors": [{"type": "ACCOUNT", "account": "x", "error": 'JetStream account "x" not found'}],
    }


def test_healthz_is_503_until_everything_serves() -> None:
    """While recovering, before listening, and when a stream can't prove itself."""
    recovering = monitoring(Options(jetstream=JetStreamOptions(is_enabled=True)))
    assert recovering.healthz({})[0] == 503
    plain = monitoring()
    assert plain.healthz({})[0] == 503
    plain.monitoring.is_ready = True
    assert plain.healthz({})[0] == 200
    for query in ({"js-enabled-only": "1"}, {"js-enabled": "1"}, {"account": "A", "stream": "S"}):
        assert plain.healthz(query) == (200, {"status": "ok"})  # as nats-server without JetStream
    m = with_streams()
    streams = Streams()
    streams.node.failed = {("$G", "S"): "DiskError: no room"}
    m.attach(streams)  # type: ignore[arg-type]
    status, document = m.healthz({})
    assert status == 503
    assert document["error"] == "JetStream stream '$G > S' is not current: DiskError: no room"
    assert m.healthz({"js-server-only": "1"})[0] == 200


def test_healthz_tells_a_node_that_is_not_ready_from_a_stream_that_is_lost() -> None:
    """Who waits for the node goes on; who asks for the stream, or for no loss at all, hears 503."""
    m = with_streams()
    streams = Streams()
    streams.node.failed = {("$G", "S"): "CorruptionError: block 1"}
    streams.lost = {"S": "gone; start it with --accept-loss", "T": "gone too"}
    m.attach(streams)  # type: ignore[arg-type]
    text = "JetStream stream '$G > S' is not served as it was: gone; start it with --accept-loss"
    assert m.healthz({}) == (200, {"status": "degraded", "error": text, "lost": ["S", "T"]})
    assert m.healthz({"strict": "1"})[0] == 503
    status, document = m.healthz({"account": "$G", "stream": "S"})
    assert (status, document["status"], document["error"]) == (503, "unavailable", text)
    first = {"type": "STREAM", "account": "$G", "stream": "S", "error": text}
    second = {"type": "STREAM", "account": "$G", "stream": "T", "error": "gone too"}
    assert m.healthz({"details": "1"}) == (
        200, {"status": "degraded", "errors": [first, second]},
    )  # fmt: skip
    streams.node.failed["$G", "U"] = "DiskError: no room"
    assert m.healthz({})[0] == 503


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h0m0s"), (90061, "1d1h1m1s"),
     (31536000 + 5, "1y0d0h0m5s")],
)  # fmt: skip
def test_uptime(seconds: int, text: str) -> None:
    """nats-server's own form, with years and days."""
    assert format_uptime(seconds * SECOND) == text


def test_ipqueuesz_shows_waiting_messages() -> None:
    m = with_streams()
    group = "[ACC:$G] RAFT 'S-00000003' inbox"
    assert m.ipqueuesz({}) == {"JetStream API queue": {"pending": 1}, group: {"pending": 3}}
    assert m.ipqueuesz({"queues": "RAFT"}) == {group: {"pending": 3}}
    assert monitoring().ipqueuesz({"all": "1"}) == {}
