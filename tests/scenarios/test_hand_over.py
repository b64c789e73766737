"""Leadership that is handed over: nobody who publishes or asks hears of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from streamd import limits
from streamd.errors import CLUSTER_NOT_AVAIL
from streamd.types import META_UID
from tests.scenarios.conftest import Make
from tests.scenarios.driver import Cluster

ROUND_MS = 2


class Publishers:
    """One at each node in `at`, several messages in flight; each message tells its place."""

    def __init__(
        self, cluster: Cluster, at: list[str], stream: str = "S", *, have_ids: bool = False
    ) -> None:
        self._cluster = cluster
        self._at = at
        self._stream = stream
        self._have_ids = have_ids
        self._sent: dict[str, list[bytes]] = {name: [] for name in at}  # replies, in order

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for name in self._at:
                sent = self._sent[name]
                body = b"%b %d" % (name.encode(), len(sent))
                headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\nA: b\r\n\r\n" % body
                msgs = [(f"{self._stream}.x".encode(), headers if self._have_ids else b"", body)]
                sent += self._cluster.offer(self._stream, msgs, name)
            self._cluster.run_ms(ROUND_MS)

    def settle(self) -> Counter[str]:
        """Wait for all answers; how many there were of each kind."""
        outcome = self._cluster.outcome
        replies = [reply for sent in self._sent.values() for reply in sent]
        self._cluster.until("answers", lambda: all(outcome(one) is not None for one in replies), 10)
        return Counter(_kind(outcome(one)) for one in replies)

    def open_count(self) -> int:
        """How many have no answer."""
        outcome = self._cluster.outcome
        return sum(outcome(one) is None for sent in self._sent.values() for one in sent)

    def check_order(self) -> None:
        """Each publisher's messages are stored in the order it sent them, each once."""
        stored = self._cluster.read(self._cluster.leader(self._stream), self._stream)
        found: dict[str, list[int]] = {name: [] for name in self._at}
        for seq in sorted(stored):
            name, number = stored[seq].split()
            found[name.decode()].append(int(number))
        for name in self._at:
            assert found[name] == sorted(set(found[name])), name
            outcomes = [self._cluster.outcome(one) for one in self._sent[name]]
            acked = [one[1] if type(one) is tuple else one for one in outcomes]
            assert acked == sorted(acked), name


def _kind(outcome: Any) -> str:
    if type(outcome) is int:
        return "ack"
    return "duplicate" if type(outcome) is tuple else str(outcome.err_code)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (1, 2))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_down_refuses_no_publish(make: Make, seed: int) -> None:
    cluster = make()
    cluster.create()
    publishers = Publishers(cluster, cluster.names)
    for number in range(6):
        publishers.run(3 + seed + number)
        cluster.send("STREAM.LEADER.STEPDOWN.S", at=cluster.names[(number + seed) % 3])
        publishers.run(20)
    assert set(publishers.settle()) == {"ack"}
    publishers.check_order()
    cluster.until_whole()


def test_a_server_that_stops_refuses_no_publish_of_others(cluster: Cluster) -> None:
    cluster.create()
    for _ in range(3):
        leader, others = cluster.leader("S"), cluster.followers("S")
        publishers = Publishers(cluster, others)
        publishers.run(10)
        cluster.hosts[leader].stop()
        while cluster.hosts[leader].node is not None:
            publishers.run(1)
        publishers.run(10)
        assert set(publishers.settle()) == {"ack"}
        cluster.boot(leader)
        cluster.until_whole()


def test_publishes_wait_for_the_next_leader_after_a_crash(cluster: Cluster) -> None:
    """What was with the leader may be lost; what comes while there is none is not."""
    cluster.create()
    leader, others = cluster.leader("S"), cluster.followers("S")
    cluster.kill(leader)
    uid = cluster.uid("S")
    nodes = [cluster.node(name) for name in others]
    cluster.until("noticed", lambda: not any(node.leader_of(uid) for node in nodes))
    publishers = Publishers(cluster, others)
    publishers.run(5)
    assert set(publishers.settle()) == {"ack"}
    publishers.check_order()


@pytest.mark.parametrize("seed", range(5))
def test_publishes_with_ids_go_from_a_killed_leader_to_the_next(make: Make, seed: int) -> None:
    """Nobody knows if it was stored; the next leader finds out. Before, there was no answer."""
    cluster = make()
    seen: Counter[str] = Counter()
    for stream in ("S", "T", "U"):
        cluster.create(stream)
        leader, others = cluster.leader(stream), cluster.followers(stream)
        publishers = Publishers(cluster, others, stream, have_ids=True)
        publishers.run(5 + seed)
        if stream == "U":  # it gives back what comes from here on, and has the rest
            cluster.send(f"STREAM.LEADER.STEPDOWN.{stream}", at=leader)
            publishers.run(1)
        seen["open"] += publishers.open_count()
        cluster.kill(leader)
        publishers.run(100)
        seen += publishers.settle()
        publishers.check_order()
        cluster.boot(leader)
        cluster.until_whole()
    assert seen["open"]
    assert set(seen) <= {"open", "ack", "duplicate"}, seen
    assert not any(
        cluster.node(name).parts.cluster.forwarding.relay.held_bytes for name in cluster.names
    )


def test_publishes_are_not_sent_again_if_their_ids_may_be_forgotten(cluster: Cluster) -> None:
    window_ns = limits.SENT_AGAIN_WINDOW_NS_MIN - 1
    cluster.create(duplicate_window=window_ns)
    leader, others = cluster.leader("S"), cluster.followers("S")
    headers = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n"
    replies = []
    for number, name in enumerate(others):
        replies += cluster.offer("S", [(b"S.x", headers % number, b"")], name)
    cluster.kill(leader)
    uid = cluster.uid("S")
    cluster.until("led again", lambda: cluster.leader_name(uid) in others)
    cluster.run_ms(limits.PUBLISH_KEPT_MS)
    assert [cluster.outcome(reply) for reply in replies] == [None, None]
    assert not any(cluster.node(name).parts.cluster.forwarding.relay.held_bytes for name in others)


def test_a_publish_that_waits_too_long_is_refused(cluster: Cluster) -> None:
    """Without a majority nobody will lead. What waited is refused; then nobody takes publishes."""
    cluster.create()
    left = cluster.followers("S")[0]
    for name in cluster.names:
        if name != left:
            cluster.kill(name)
    uid, node = cluster.uid("S"), cluster.node(left)
    cluster.until("noticed", lambda: not node.leader_of(uid))
    assert node.account("$G").streams_for(b"S.x")  # a leader is expected
    publishers = Publishers(cluster, [left])
    publishers.run(3)
    assert node.parts.cluster.forwarding.kept_bytes
    assert publishers.settle() == Counter({str(CLUSTER_NOT_AVAIL.err_code): 3})
    assert not node.parts.cluster.forwarding.kept_bytes
    cluster.run_ms(limits.PUBLISH_KEPT_MS)
    assert not node.account("$G").streams_for(
        b"S.x"
    )  # "no responders", as for a subject nobody has


def test_no_more_than_a_bound_waits(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create()
    leader, other = cluster.leader("S"), cluster.followers("S")[0]
    cluster.kill(leader)
    uid, node = cluster.uid("S"), cluster.node(other)
    cluster.until("noticed", lambda: not node.leader_of(uid))
    monkeypatch.setattr(limits, "PUBLISH_KEPT_BYTES_MAX", 1000)
    replies: list[bytes] = []
    for _ in range(3):
        replies += cluster.offer("S", [(b"S.x", b"", b"x" * 400)], other)
    outcomes: list[Any] = [cluster.outcome(reply) for reply in replies]
    assert outcomes[:2] == [None, None]
    assert outcomes[2].err_code == CLUSTER_NOT_AVAIL.err_code
    cluster.until("acks", lambda: all(type(cluster.outcome(one)) is int for one in replies[:2]), 5)


def test_a_hand_over_that_fails_loses_nothing(cluster: Cluster) -> None:
    """The one who is to lead does not hear of it: the leader leads on."""
    cluster.create()
    leader, target = cluster.leader("S"), cluster.followers("S")[0]
    publishers = Publishers(cluster, [leader])
    publishers.run(5)
    cluster.process(target).pause()
    placement = {"placement": {"preferred": target}}
    cluster.send("STREAM.LEADER.STEPDOWN.S", placement, at=leader)
    publishers.run(10)
    assert set(publishers.settle()) == {"ack"}
    publishers.check_order()
    assert cluster.leader("S") == leader
    cluster.process(target).resume()
    cluster.until_whole()


def test_publishes_held_by_transfers_are_bounded_for_all_streams(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that stops hands over all it leads at once: 64 MiB for each had no bound."""
    cluster.create("S")
    cluster.create("T")
    leader, target = cluster.leader("S"), cluster.followers("S")[0]
    if cluster.leader("T") != leader:
        cluster.send("STREAM.LEADER.STEPDOWN.T", {"placement": {"preferred": leader}}, at=leader)
        cluster.until("moved", lambda: cluster.leader("T") == leader)
    monkeypatch.setattr(limits, "PUBLISH_KEPT_BYTES_MAX", 1000)
    cluster.process(target).pause()
    for name in "ST":
        placement = {"placement": {"preferred": target}}
        cluster.send(f"STREAM.LEADER.STEPDOWN.{name}", placement, at=leader)
    cluster.run_ms(20)
    replies: list[bytes] = []
    for name in "SST":
        replies += cluster.offer(name, [(f"{name}.x".encode(), b"", b"x" * 400)], leader)
    cluster.run_ms(20)
    outcomes: list[Any] = [cluster.outcome(reply) for reply in replies]
    assert outcomes[:2] == [None, None]
    assert outcomes[2].err_code == CLUSTER_NOT_AVAIL.err_code
    cluster.until("acks", lambda: all(type(cluster.outcome(one)) is int for one in replies[:2]), 5)
    assert not cluster.node(leader).parts.replicas.opener._maker._backlog.held_bytes


def test_a_deleted_stream_leaves_nothing_where_it_only_passed(cluster: Cluster) -> None:
    uid = cluster.create(replicas=1)
    leader = cluster.leader("S")
    other = next(name for name in cluster.names if name != leader)
    cluster.publish(3, at=other)
    node = cluster.node(other)
    assert node.leader_of(uid) == leader
    assert uid in node.parts.cluster.forwarding._routes
    cluster.ask("STREAM.DELETE.S")
    cluster.until("forgotten", lambda: uid not in node.meta.streams_by_uid)
    cluster.run_ms(100)
    assert not node.leader_of(uid)
    assert uid not in node.parts.cluster.forwarding._routes


def test_publishes_to_a_stream_that_is_deleted_are_waited_for_no_longer(cluster: Cluster) -> None:
    """Its leader answers none that comes too late. Who had passed them on kept all of them, with
    the connections they came from, until 65,536 others had come."""
    for number in range(5):
        name = f"S{number}"
        cluster.create(name)
        cluster.send(f"STREAM.DELETE.{name}")
        for at in cluster.names:
            cluster.offer(name, [(f"{name}.x".encode(), b"", b"1")], at)
            cluster.run_ms(0.3)
            cluster.offer(name, [(f"{name}.x".encode(), b"", b"1")], at)
        cluster.run_ms(500)
    relays = [cluster.node(name).parts.cluster.forwarding.relay for name in cluster.names]
    assert any(relay._waiting for relay in relays)
    cluster.run_ms(limits.PUBLISH_KEPT_MS)
    assert not any(relay._waiting for relay in relays)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_new_stream_takes_publishes_before_its_leader_is_known(
    cluster: Cluster, replicas: int
) -> None:
    """The answer to who made it may be there before the news of who leads it."""
    config = {"name": "S", "subjects": ["S.>"], "num_replicas": replicas}
    cluster.send("STREAM.CREATE.S", config, at=cluster.names[0])
    replies: list[bytes] = []
    for name in cluster.names:
        node = cluster.node(name)
        cluster.until(f"the stream at {name}", lambda node=node: node.stream("S") is not None)
        assert node.account("$G").streams_for(b"S.x"), name
        replies += cluster.offer("S", [(b"S.x", b"", b"1")], name)
    cluster.until("acks", lambda: all(type(cluster.outcome(one)) is int for one in replies), 5)


class Requests:
    """API requests of every kind that changes or reads something a leader alone knows, at each node
    in `at`."""

    def __init__(self, cluster: Cluster, at: list[str]) -> None:
        self._cluster = cluster
        self._at = at
        self._replies: list[tuple[str, bytes]] = []

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for name in self._at:
                number = len(self._replies)
                durable = {"durable_name": f"c{number}", "ack_policy": "explicit"}
                new = {"name": f"T{number}", "subjects": [f"t{number}"], "num_replicas": 3}
                bodies = {
                    f"CONSUMER.CREATE.S.c{number}": {"stream_name": "S", "config": durable},
                    f"STREAM.CREATE.T{number}": new,
                    "STREAM.INFO.S": None,
                    "STREAM.PURGE.S": None,
                    "CONSUMER.NAMES.S": None,
                }
                for subject, body in bodies.items():
                    reply = self._cluster.send(subject, body, name)
                    self._replies.append((subject, reply))
            self._cluster.run_ms(ROUND_MS)

    def settle(self) -> Counter[str]:
        """Wait for all answers; how many there were of each kind."""
        received = self._cluster.received
        waiting = self._replies
        self._cluster.until("answers", lambda: all(received(one) for _, one in waiting), 6)
        counts: Counter[str] = Counter()
        for subject, reply in self._replies:
            error = json.loads(received(reply)[0][3]).get("error")
            counts[f"{subject}: {error}" if error else "done"] += 1
        return counts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_down_refuses_no_request(make: Make, seed: int) -> None:
    """Neither the stream's leader nor the meta group's."""
    cluster = make()
    cluster.create()
    requests = Requests(cluster, cluster.names)
    for number in range(4):
        requests.run(2 + seed)
        subject = "META.LEADER.STEPDOWN" if number % 2 else "STREAM.LEADER.STEPDOWN.S"
        cluster.send(subject, at=cluster.names[(number + seed) % 3])
        requests.run(8)
    assert set(requests.settle()) == {"done"}
    cluster.until_whole()


def test_a_server_that_stops_refuses_no_request_of_others(cluster: Cluster) -> None:
    cluster.create()
    for _ in range(3):
        leader, others = cluster.leader("S"), cluster.followers("S")
        requests = Requests(cluster, others)
        requests.run(5)
        cluster.hosts[leader].stop()
        requests.run(20)
        assert set(requests.settle()) == {"done"}
        host = cluster.hosts[leader]
        cluster.until("stopped", lambda host=host: host.node is None, 10)
        cluster.boot(leader)
        cluster.until_whole()


def test_creator_of_a_stream_can_publish_at_once_on_a_slow_disk(cluster: Cluster) -> None:
    """Its node has no part in the majority, and would learn of the stream after its own client."""
    leader = cluster.leader_name(META_UID)
    slow = next(name for name in cluster.names if name != leader)
    cluster.hosts[slow].slowness = 100
    for number in range(5):
        name = f"N{number}"
        config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3}
        assert "error" not in cluster.ask(f"STREAM.CREATE.{name}", config, at=slow)
        assert cluster.node(slow).account("$G").streams_for(f"{name}.x".encode()), name
        (reply,) = cluster.offer(name, [(f"{name}.x".encode(), b"", b"1")], slow)
        cluster.until("ack", lambda reply=reply: cluster.outcome(reply) == 1, 10)
