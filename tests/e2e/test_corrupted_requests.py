"""Corrupted requests and publishes, many: no server ends, no asset is half there, valid ones work.

After each round all that was made is deleted and made anew. At the end what there is survives a
restart as it is told, goes with a valid request, and leaves nothing behind.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from tests.e2e.conftest import MakeCluster, Start
from tests.e2e.corrupted_requests import CONSUMERS, FEATURED, STREAMS, Corrupter
from tests.waiting import until
from tests.wire import Frame, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

AT_ONCE = 100  # sent before any answer is read
ROUND = 2000  # after as many all streams are made anew
ANSWERED_S = 60.0
SETTLED_S = 60.0
KEPT = "kept"  # a stream that no request names
_UNAVAILABLE = (10008, 10074, 10118)  # of a cluster that elects


class HalfThere(Exception):
    """Something is listed that answers no request for it."""


class Campaign:
    """Requests through one connection, and what came back."""

    def __init__(self, wire: Wire, corrupter: Corrupter, *, replicas: int) -> None:
        self.wire = wire
        self.replicas = replicas
        self.counts: Counter[str] = Counter()
        self.kept = 0  # messages acked in KEPT
        self._corrupter = corrupter
        self._sent = 0
        wire.subscribe(f"{wire.inbox}.>")

    def run(self, count: int) -> None:
        """Send `count` messages, in rounds."""
        for at in range(0, count, ROUND):
            self._make_streams()
            for _ in range(0, min(ROUND, count - at), AT_ONCE):
                self._send_some(min(AT_ONCE, count - at))
            self._keep_one()
            if at + ROUND < count:
                self.delete_all()

    def _make_streams(self) -> None:
        for name, features in FEATURED.items():
            config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": self.replicas}
            self.ask(f"STREAM.CREATE.{name}", config | features)

    def _send_some(self, count: int) -> None:
        wire = self.wire
        for _ in range(count):
            self._sent += 1
            sent = self._corrupter.next()
            reply = f"{wire.inbox}.{self._sent}" + (f".{sent.reply}" if sent.reply else "")
            wire.publish(sent.subject, sent.payload, reply=reply, headers=sent.headers or None)
            self.counts["sent"] += 1
        for frame in wire.fence(ANSWERED_S):
            self._note(frame)
        self.ask("INFO", None)  # nobody is kept waiting by what came before

    def _note(self, frame: Frame) -> None:
        assert frame.op == "MSG", f"the connection is over: {frame}"
        if frame.reply.startswith("$JS.ACK."):
            self.counts["delivered"] += 1
            return
        if frame.headers or not frame.payload:
            self.counts[f"status {frame.status[:3]}"] += 1
            return
        document = json.loads(frame.payload)
        error = document.get("error") if isinstance(document, dict) else None
        self.counts["refused" if error else "served"] += 1

    # --- valid requests -----------------------------------------------------------------------

    def ask(self, endpoint: str, body: Any) -> dict[str, Any]:
        """Ask until the cluster serves it; other answers than errors of those are returned."""
        deadline = time.monotonic() + ANSWERED_S
        while True:
            answer = self._ask_once(f"$JS.API.{endpoint}", body)
            code = answer.get("error", {}).get("err_code")
            if answer and code not in _UNAVAILABLE:
                return answer
            assert time.monotonic() < deadline, f"{endpoint}: {answer}"

    def _ask_once(self, subject: str, body: Any) -> dict[str, Any]:
        self._sent += 1
        reply = f"{self.wire.inbox}.{self._sent}.ask"
        payload = b"" if body is None else json.dumps(body).encode()
        self.wire.publish(subject, payload, reply=reply)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                frame = self.wire.next(deadline - time.monotonic())
            except TimeoutError:
                break
            if frame.subject != reply:
                self._note(frame)
            elif not frame.headers:
                return dict(frame.json())
            else:
                break
        return {}

    def _keep_one(self) -> None:
        answer = self._ask_once(f"{KEPT}.1", "x")
        assert answer.get("stream") == KEPT, answer
        self.kept += 1

    def names(self) -> list[str]:
        """Names of all streams, a page at a time."""
        found: list[str] = []
        while True:
            answer = self.ask("STREAM.NAMES", {"offset": len(found)})
            found += answer["streams"] or []
            if len(found) >= answer["total"]:
                return sorted(found)

    def delete_all(self) -> None:
        """Delete every stream but KEPT: what is being restored as well, as soon as it is given
        up."""
        for name in self.names():
            if name != KEPT:
                answer = self.ask(f"STREAM.DELETE.{name}", None)
                assert answer.get("success") or answer["error"]["err_code"] == 10059, answer
        assert self.names() == [KEPT]

    def assets(self) -> dict[str, Any]:
        """Configs of all streams and of their lasting consumers; each answers a request for it."""
        found: dict[str, Any] = {}
        for name in self.names():
            info = self.ask(f"STREAM.INFO.{name}", None)
            if "error" in info:
                raise HalfThere(f"{name} is listed, and not there: {info}")
            found[name] = _lasting(info["config"])
            for consumer in self.ask(f"CONSUMER.LIST.{name}", {})["consumers"] or []:
                told = self.ask(f"CONSUMER.INFO.{name}.{consumer['name']}", None)
                config = consumer["config"]
                if "inactive_threshold" in config or config.get("sourcing"):
                    continue  # it may end at any time
                if info["config"]["storage"] == "memory" or config.get("mem_storage"):
                    continue  # it ends with the server
                if "error" in told:
                    raise HalfThere(
                        f"{consumer['name']} of {name} is listed, and not there: {told}"
                    )
                assert _lasting(told["config"]) == _lasting(config), (told["config"], config)
                found[f"{name} > {consumer['name']}"] = _lasting(config)
        return found


def _lasting(config: dict[str, Any]) -> dict[str, Any]:
    """A config without what only some answers say of the server."""
    metadata = {
        key: value
        for key, value in (config.get("metadata") or {}).items()
        if not key.startswith("_nats.")
    }
    return config | {"metadata": metadata}


def begin(wire: Wire, seed: int, *, replicas: int) -> Campaign:
    """A campaign, with a stream that it must leave alone."""
    campaign = Campaign(wire, Corrupter(seed, replicas=replicas), replicas=replicas)
    config = {"name": KEPT, "subjects": [f"{KEPT}.>"], "num_replicas": replicas}
    answer = campaign.ask(f"STREAM.CREATE.{KEPT}", config)
    assert "error" not in answer, answer
    campaign._keep_one()
    return campaign


def check_served(campaign: Campaign) -> None:
    """Valid requests work: each name is free once all is deleted, and may be used."""
    campaign.delete_all()
    for name in (*STREAMS, *FEATURED):
        config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": campaign.replicas}
        deadline = time.monotonic() + SETTLED_S
        while True:  # a restore that nobody carries on keeps the name for some seconds
            answer = campaign.ask(f"STREAM.CREATE.{name}", config)
            if "error" not in answer:
                break
            assert time.monotonic() < deadline, answer
        for at in range(1, 4):
            stored = campaign._ask_once(f"{name}.1", at)
            assert stored.get("seq") == at, stored
        durable = {"durable_name": CONSUMERS[0], "ack_policy": "explicit"}
        made = campaign.ask(
            f"CONSUMER.CREATE.{name}.{CONSUMERS[0]}", {"stream_name": name, "config": durable}
        )
        assert made.get("num_pending") == 3, made
    campaign.delete_all()
    state = campaign.ask(f"STREAM.INFO.{KEPT}", None)["state"]
    assert state["messages"] == campaign.kept == state["last_seq"], state


def check_log(server: ServerProcess) -> None:
    """Nothing went wrong within the server."""
    text = server.log_file.read_text(errors="replace")
    for line in text.splitlines():
        assert "Traceback" not in line and "[FTL]" not in line and "[ERR]" not in line, line


def await_directories(server: ServerProcess, count: int) -> None:
    """Wait until no deleted stream has a directory any more."""
    streams = server.store_dir / "streamd" / "streams"
    until(lambda: len(list(streams.iterdir())) == count, f"{count} directories", SETTLED_S)


def run_single(make_server: Start, count: int, seed: int) -> Counter[str]:
    """`count` messages to one server."""
    server = make_server()
    server.start()
    pid = server.pid
    with Wire(server.port) as wire:
        campaign = begin(wire, seed, replicas=1)
        campaign.run(count)
        assert server.is_running() and server.pid == pid
        before = settled(campaign)
    server.stop()
    server.start()
    with Wire(server.port) as wire:
        again = Campaign(wire, Corrupter(seed), replicas=1)
        again.kept = campaign.kept
        assert again.assets() == before
        check_served(again)
    await_directories(server, 1)
    check_log(server)
    return campaign.counts


def settled(campaign: Campaign) -> dict[str, Any]:
    """Assets, once two looks find the same: a request may still be under way, and what was to be
    restored is given up after a while."""
    deadline = time.monotonic() + SETTLED_S
    before: dict[str, Any] = {}
    while True:
        try:
            found = campaign.assets()
        except HalfThere as err:
            if time.monotonic() > deadline:
                raise AssertionError(str(err)) from err
            continue
        if found == before:
            return found
        before = found
        assert time.monotonic() < deadline, found


def run_cluster(make_cluster: MakeCluster, count: int, seed: int) -> Counter[str]:
    """`count` messages to three servers, each a third of them."""
    cluster = make_cluster()
    total: Counter[str] = Counter()
    wires = [Wire(port) for port in cluster.ports.values()]
    first = begin(wires[0], seed, replicas=3)
    campaigns = [first]
    for at, wire in enumerate(wires[1:], 1):
        campaigns.append(Campaign(wire, Corrupter(seed + at, replicas=3), replicas=3))
    for campaign in campaigns:
        campaign.run(count // len(campaigns))
        total.update(campaign.counts)
    first.kept = sum(campaign.kept for campaign in campaigns)
    found = [settled(campaign) for campaign in campaigns]
    assert found[0] == found[1] == found[2]
    for name in found[0]:
        if " > " not in name:
            assert cluster.leader(name)
    check_served(first)
    for wire in wires:
        wire.close()
    for server in cluster.nodes.values():
        assert server.is_running()
        await_directories(server, 1)
        check_log(server)
    return total


def check_counts(counts: Counter[str]) -> None:
    """Enough is served, and enough refused, for either to be tried."""
    print(", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    assert counts["served"] > counts["sent"] / 20, counts
    assert counts["refused"] > counts["sent"] / 6, counts


def test_corrupted_requests_leave_one_server_whole(make_server: Start) -> None:
    check_counts(run_single(make_server, 1500, seed=1))


def test_corrupted_requests_leave_three_servers_whole(make_cluster: MakeCluster) -> None:
    check_counts(run_cluster(make_cluster, 600, seed=11))


@pytest.mark.proof
def test_a_hundred_thousand_corrupted_requests_leave_one_server_whole(make_server: Start) -> None:
    check_counts(run_single(make_server, 100_000, seed=2))


@pytest.mark.proof
def test_twenty_thousand_corrupted_requests_leave_three_servers_whole(
    make_cluster: MakeCluster,
) -> None:
    check_counts(run_cluster(make_cluster, 20_001, seed=21))
