"""Pages of thousands of rows: how much is looked at between two pauses, and who goes on there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from streamd.config.options import JetStreamOptions, Options
from streamd.limits import (
    MONITORING_PAGE,
    MONITORING_ROWS_MAX,
    SLICE_GROUPS,
    SLICE_LOOKS,
)
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import Rows, Slicer, Steps, encode, gather, to_text
from streamd.net.monitoring.stats import SubscriptionStats
from streamd.obs import metrics
from tests.unit.net.test_monitoring import Documents, Streams, connection, machine, monitoring

pytestmark = pytest.mark.slow

CONNECTIONS = 10_000
STREAMS = 5_000
CONSUMERS = 3


class Counted:
    """Counts what is looked at, and how much at most between two pauses."""

    def __init__(self) -> None:
        self.total = self.most = self._since = 0

    def one(self) -> None:
        self.total += 1
        self._since += 1
        self.most = max(self.most, self._since)

    def of(self, members: Iterable[Any]) -> Iterator[Any]:
        for member in members:
            self.one()
            yield member

    def text(self, steps: Steps[Any], write: Callable[[Any], Iterator[str]] = encode) -> str:
        """Build a document and write it, with all its pauses."""

        def whole() -> Steps[str]:
            document = yield from steps
            return (yield from gather(write(document), 1 << 40))

        running = whole()
        while True:
            self._since = 0
            try:
                next(running)
            except StopIteration as end:
                found: str = end.value
                return found


class Nodes(Streams):
    """One node of a cluster with many streams, each with some consumers."""

    def __init__(self, counted: Counted, stream_count: int, consumer_count: int) -> None:
        super().__init__()
        consumers = {f"c{at:05}": "C" for at in range(consumer_count)}
        names = [f"S{at:05}" for at in range(stream_count)]
        self._counted = counted
        handles = {
            at + 1: SimpleNamespace(
                uid=at + 1,
                name=name,
                account="$G",
                machine=machine(uid=at + 1, consumers=consumers),
            )
            for at, name in enumerate(names)
        }
        assets = {
            ("$G", name): SimpleNamespace(uid=at + 1, name=name, account="$G", peers=("n1",))
            for at, name in enumerate(names)
        }

        def replica(uid: int) -> Any:
            counted.one()
            return handles[uid]

        node = self.node
        node.is_clustered, node.is_meta_leader = True, True
        node.server_name = node.meta_leader = "n1"
        node.cluster_name = "C"
        node.meta = SimpleNamespace(
            streams_by_key=assets, streams_by_uid={one.uid: one for one in assets.values()}
        )
        node.replica = replica
        node.leader_of = lambda uid: "n1"
        node.group_info = self._group_info
        node.waiting_count = lambda uid: 0

    def _group_info(self, uid: int) -> dict[str, Any]:
        self._counted.one()
        return {
            "raft_group": f"S-R3F-{uid:08d}", "leader": "n1", "role": "leader", "term": 1,
            "commit": 3, "applied": 3, "last_index": 3, "peers": [], "state": "ok", "reason": "",
            "digest": 1, "digest_index": 1,
        }  # fmt: skip

    def origins(self, handle: Any) -> dict[str, Any]:
        return {}

    def stream_state(self, handle: Any) -> dict[str, Any]:
        self._counted.one()
        return {"messages": 4}

    def stream_numbers(self, handle: Any) -> tuple[int, ...]:
        self._counted.one()
        return super().stream_numbers(handle)

    def consumer_numbers(self, handle: Any, consumer: Any) -> tuple[int, ...]:
        self._counted.one()
        return super().consumer_numbers(handle, consumer)

    def consumer_info(self, handle: Any, consumer: Any, *, has_lag: bool = False) -> dict[str, Any]:
        self._counted.one()
        return super().consumer_info(handle, consumer, has_lag=has_lag)

    def cluster_block(self, handle: Any) -> dict[str, Any]:
        return {"raft_group": f"S-R3F-{handle.uid:08d}", "leader": "n1"}

    def consumer_group(self, handle: Any, consumer: Any) -> str:
        return "C-R3F-x"

    def replica_rows(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        return []

    def peer_id(self, name: str) -> str:
        return name


def crowded(
    counted: Counted, streams: int = STREAMS, consumers: int = CONSUMERS, subs: int = 3
) -> Documents:
    def subscriptions(cid: int) -> Iterator[Any]:
        each = (SubscriptionStats(f"s.{cid}.{at}", "", str(at), 0, 0, cid) for at in range(subs))
        return counted.of(each)

    m = monitoring(
        Options(jetstream=JetStreamOptions(is_enabled=True)),
        subscriptions=counted.of(
            [SubscriptionStats(f"a.{at}", "", "1", 0, 0, 4) for at in range(CONNECTIONS)]
        ),
        opened=[
            connection(
                cid,
                subscriptions=lambda cid=cid: subscriptions(cid),
                subscription_count=subs,
                in_msgs=cid * 7 % 1000,
            )
            for cid in range(1, CONNECTIONS + 1)
        ],
    )
    m.attach(Nodes(counted, streams, consumers))
    m.monitoring.is_ready = True
    return m


PAGES: list[tuple[str, dict[str, str]]] = [
    ("connz", {}),
    ("connz", {"subs": "detail", "sort": "msgs_from", "offset": "5000"}),
    ("connz", {"filter_subject": "s.*.2", "limit": "100000"}),
    ("subsz", {"subs": "1"}),
    ("subsz", {"subs": "1", "test": "a.9999"}),
    ("varz", {}),
    ("jsz", {"streams": "1", "config": "1"}),
    ("jsz", {"consumers": "1", "digest": "1", "raft": "1"}),
    ("jsz", {"acc": "$G", "streams": "1", "offset": "4096", "limit": "100000"}),
    ("raftz", {"acc": "$G"}),
    ("raftz", {"acc": "$G", "group": "S-R3F-00004999"}),
    ("accountz", {"acc": "$G"}),
    ("healthz", {}),
    ("ipqueuesz", {"all": "1"}),
]


@pytest.mark.parametrize(("name", "query"), PAGES, ids=lambda value: str(value))
def test_no_page_looks_at_much_between_two_pauses(name: str, query: dict[str, str]) -> None:
    """Whatever there is, and whatever is asked: the loop is never held for more than a step."""
    counted = Counted()
    m = crowded(counted)
    text = counted.text(getattr(m.monitoring, name)(query))
    assert json.loads(text)
    assert counted.most <= SLICE_LOOKS
    if name == "healthz":
        assert counted.total == STREAMS + 1 and counted.most <= SLICE_GROUPS + 1


def test_metrics_of_all_streams_are_written_in_steps() -> None:
    """Nobody can page here, so all are there."""
    counted = Counted()
    m = crowded(counted)
    varz, here = m.varz({}), m.monitoring.jetstream()
    counted.most = 0
    text = counted.text(m.monitoring.samples(), lambda each: metrics.pieces(varz, here, each))
    assert text.count("\njetstream_stream_total_messages{") == STREAMS
    assert text.count("\njetstream_consumer_num_pending{") == STREAMS * CONSUMERS
    assert text.count('stream_name="S04999"} 2.5\n') == CONSUMERS  # ns of ages in seconds
    assert counted.most <= SLICE_LOOKS


def test_pages_have_no_more_rows_than_a_page() -> None:
    m = crowded(Counted())
    assert m.connz({"limit": "100000"})["limit"] == MONITORING_PAGE
    assert len(m.connz({"limit": "100000"})["connections"]) == MONITORING_PAGE
    last = m.connz({"offset": "9999", "limit": "-1"})
    assert [one["cid"] for one in last["connections"]] == [CONNECTIONS]
    assert (last["total"], last["limit"]) == (CONNECTIONS, MONITORING_PAGE)
    assert len(m.subsz({"subs": "1", "limit": "9999"})["subscriptions_list"]) == MONITORING_PAGE
    assert len(m.raftz({"acc": "$G"})["$G"]) == MONITORING_PAGE
    assert list(m.raftz({"acc": "$G", "offset": "4999"})["$G"]) == ["S-R3F-00005000"]


def test_streams_are_paged_where_their_account_is_named() -> None:
    """Without, offset and limit are of accounts; a page that is not all says so."""
    m = crowded(Counted())
    (detail,) = m.jsz({"streams": "1"})["account_details"]
    assert len(detail["stream_detail"]) == MONITORING_PAGE
    assert (detail["streams_total"], detail["streams_offset"]) == (STREAMS, 0)
    assert "account_details" not in m.jsz({"streams": "1", "offset": "1"})
    names: list[str] = []
    while True:
        query = {"acc": "$G", "streams": "1", "offset": str(len(names))}
        (detail,) = m.jsz(query)["account_details"]
        names += [one["name"] for one in detail["stream_detail"]]
        if len(names) >= detail["streams_total"]:
            break
    assert names == [f"S{at:05}" for at in range(STREAMS)]
    (detail,) = m.jsz({"acc": "$G", "stream": "S00007", "streams": "1"})["account_details"]
    assert [one["name"] for one in detail["stream_detail"]] == ["S00007"]
    assert "streams_total" not in detail


def test_a_page_ends_early_where_rows_have_many_rows_of_their_own() -> None:
    m = crowded(Counted(), streams=40, consumers=2000, subs=2000)
    (detail,) = m.jsz({"consumers": "1"})["account_details"]
    fits = MONITORING_ROWS_MAX // (MONITORING_PAGE + 1)
    assert len(detail["stream_detail"]) == fits
    assert detail["streams_total"] == 40
    first = detail["stream_detail"][0]
    assert len(first["consumer_detail"]) == MONITORING_PAGE
    assert (first["consumers_total"], first["consumers_offset"]) == (2000, 0)
    query = {"acc": "$G", "stream": "S00000", "consumers": "1", "offset": "1990"}
    (rest,) = m.jsz(query)["account_details"][0]["stream_detail"]
    assert len(rest["consumer_detail"]) == 10
    page = m.connz({"subs": "1"})
    assert page["num_connections"] == page["limit"] == len(page["connections"]) == fits
    (one,) = m.connz({"subs": "1", "cid": "7", "offset": "1998"})["connections"]
    assert one["subscriptions_list"] == ["s.7.1998", "s.7.1999"]


class Loop:
    """`call_soon`, round by round."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.rounds = 0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        while self.calls:
            calls, self.calls = self.calls, []
            self.rounds += 1
            for call in calls:
                call()


def counting(count: int, told: list[str], name: str) -> Steps[str]:
    for _ in range(count):
        told.append(name)
        yield
    return name


def test_one_slice_runs_in_a_round_and_pages_take_turns() -> None:
    """With a clock of which each look takes a second, a slice is one step."""
    loop, told, ended = Loop(), [], []  # type: ignore[var-annotated]
    ticks = iter(range(10_000))
    slicer = Slicer(loop.call_soon, lambda: float(next(ticks)))
    for name in ("a", "b"):
        slicer.start(counting(3, told, name), ended.append, ended.append)
    loop.run()
    assert told == ["a", "b"] * 3
    assert ended == ["a", "b"]
    assert (loop.rounds, slicer.slice_count) == (8, 8)


def test_a_slice_ends_after_so_many_steps_too() -> None:
    loop, told, ended = Loop(), [], []  # type: ignore[var-annotated]
    slicer = Slicer(loop.call_soon, lambda: 0.0)
    slicer.start(counting(1000, told, "a"), ended.append, ended.append)
    loop.run()
    assert ended == ["a"] and loop.rounds == 4


def test_a_builder_that_fails_or_is_not_wanted_ends_alone() -> None:
    loop, told, ended = Loop(), [], []  # type: ignore[var-annotated]

    def failing() -> Steps[str]:
        yield
        raise BadQuery("no")

    slicer = Slicer(loop.call_soon, lambda: 0.0)
    slicer.start(failing(), ended.append, lambda err: ended.append(str(err)))
    slicer.start(counting(3, told, "gone"), ended.append, ended.append, lambda: False)
    slicer.start(counting(3, told, "c"), ended.append, ended.append)
    loop.run()
    assert ended == ["no", "c"] and told == ["c"] * 3


def test_text_equals_that_of_json() -> None:
    document = {
        "a": [1, 2.5, True, "x", {}, [], {"b": 'q"\n\\ü'}],
        "c": {"d": {"e": -1, "f": False}},
        "g": None,
    }
    assert to_text(document) == json.dumps(document, indent=2, ensure_ascii=False)
    line = "".join(encode(document, ""))
    assert line == json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    rows = Rows(iter([None, {"a": 1}, None]))
    assert to_text({"r": rows}) == json.dumps({"r": [{"a": 1}]}, indent=2)
    assert to_text({"r": Rows([])}) == '{\n  "r": []\n}'


def test_sources_have_the_methods_that_pages_need() -> None:
    """The stand-in above has the methods of the real thing."""
    methods = {name for name in vars(JetStreamSources) if not name.startswith("_")}
    assert methods <= set(dir(Nodes))
