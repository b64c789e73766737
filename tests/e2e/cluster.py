"""A cluster of real processes under load and faults: publishers, consumers, drains, the verdict.

Everything a publisher saw acknowledged, everything a consumer was given and everything each node
holds afterwards is kept and compared by `Campaign.verdict`.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.wire import Frame, Wire

STREAM = "S"
SUBJECTS = 7
BURST = 20
BATCH = 100
ACKED_WITHIN_S = 2.0
API_WITHIN_S = 3.0
DRAINED_WITHIN_S = 60.0


@dataclass
class Verdict:
    """What a campaign ends with. `faults` are the claims that did not hold, in words."""

    acked: int = 0
    stored: int = 0
    delivered: int = 0
    resent: int = 0
    longest_gap_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.acked} acked, {self.stored} stored, {self.delivered} delivered, "
            f"{self.resent} sent again, longest gap {self.longest_gap_s:.2f} s, "
            f"{len(self.faults)} faults"
        )


class Connection:
    """A connection to some running node, another one after each failure."""

    def __init__(self, cluster: ClusterProcess, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._wire: Wire | None = None

    def wire(self) -> Wire | None:
        """The connection; None if no node could be reached this time."""
        if self._wire is None:
            node = self._rng.choice(list(self._cluster.nodes.values()))
            try:
                self._wire = Wire(node.port)
            except (OSError, TimeoutError, ValueError):
                return None
        return self._wire

    def drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


class Publisher(threading.Thread):
    """Publishes bursts with unique ids; what is not acked goes again with the same id."""

    def __init__(self, cluster: ClusterProcess, number: int, seed: int, *, pause_s: float) -> None:
        super().__init__(name=f"publisher{number}", daemon=True)
        self._connection = Connection(cluster, random.Random(f"{seed}-{number}"))
        self._number = number
        self._pause_s = pause_s
        self.acked: dict[int, bytes] = {}  # seq -> payload
        self.resent = 0
        self.longest_gap_s = 0.0
        self.faults: list[str] = []
        self.is_stopped = threading.Event()
        self._acked_at = time.monotonic()

    def run(self) -> None:
        first = 0
        while not self.is_stopped.is_set():
            missing = set(range(first, first + BURST))
            first += BURST
            while missing:
                sent = set(missing)
                self._send(missing)
                if missing and self.is_stopped.is_set():
                    return  # never acked: may be stored or not
                self.resent += len(missing)
                if missing == sent:
                    self._connection.drop()
                    self.is_stopped.wait(0.02)
            self.is_stopped.wait(self._pause_s)

    def _send(self, missing: set[int]) -> None:
        """Publish what is missing and take what is acked out of it."""
        wire = self._connection.wire()
        if wire is None:
            return
        inbox = f"{wire.inbox}.p"
        sid = wire.subscribe(f"{inbox}.*")
        for number in sorted(missing):
            wire.publish(
                f"s.{number % SUBJECTS}",
                self._body(number),
                reply=f"{inbox}.{number}",
                headers={"Nats-Msg-Id": f"{self._number}-{number}"},
            )
        waiting = set(missing)
        deadline = time.monotonic() + ACKED_WITHIN_S
        while waiting:
            try:
                frame = wire.next(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                break
            if frame.op == "CLOSED":
                self._connection.drop()
                return
            if frame.op == "MSG" and frame.sid == sid:
                self._answered(frame, missing, waiting)
        if waiting:
            self._connection.drop()
        else:
            wire.unsubscribe(sid)

    def _answered(self, frame: Frame, missing: set[int], waiting: set[int]) -> None:
        number = int(frame.subject.rpartition(".")[2])
        waiting.discard(number)
        if frame.status:
            return  # no responders: no leader at this moment
        found = frame.json()
        if "error" in found:
            return
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._acked_at)
        self._acked_at = now
        body = self._body(number)
        if self.acked.setdefault(found["seq"], body) != body:
            self.faults.append(f"seq {found['seq']} was acked for two messages")
        missing.discard(number)

    def _body(self, number: int) -> bytes:
        return b"publisher %d message %d" % (self._number, number)


class Consumer(threading.Thread):
    """Pulls from a durable consumer and acks with confirmation, at whatever node."""

    def __init__(self, cluster: ClusterProcess, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._connection = Connection(cluster, random.Random(f"{seed}-{name}"))
        self._consumer = name
        self.delivered: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.again: set[int] = set()  # delivered although its ack was confirmed before
        self.faults: list[str] = []
        self.is_stopped = threading.Event()

    def run(self) -> None:
        while not self.is_stopped.is_set():
            wire = self._connection.wire()
            if wire is None or not self._pull(wire):
                self._connection.drop()
                self.is_stopped.wait(0.05)

    def _pull(self, wire: Wire) -> bool:
        """One request and its acks; False if the connection should be given up."""
        inbox = f"{wire.inbox}.c"
        sid = wire.subscribe(f"{inbox}.>")
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}"
        wire.publish(subject, b'{"batch":%d,"expires":1000000000}' % BATCH, reply=f"{inbox}.m")
        unacked: dict[str, int] = {}
        count = 0
        is_over = False
        deadline = time.monotonic() + 3
        while unacked or not is_over:
            try:
                frame = wire.next(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                return False
            if frame.op == "CLOSED":
                return False
            if frame.sid != sid:
                continue
            token = frame.subject.removeprefix(f"{inbox}.")
            if frame.reply.startswith("$JS.ACK."):
                count += 1
                is_over = count == BATCH
                seq = self._delivered(frame)
                unacked[f"a{seq}"] = seq
                wire.publish(frame.reply, b"+ACK", reply=f"{inbox}.a{seq}")
            elif token != "m":  # the confirmation of an ack, or that nobody was there to confirm
                seq = unacked.pop(token, 0)
                if seq and not frame.status:
                    self.acked.add(seq)
            elif frame.status.startswith("503"):
                return False
            elif not frame.status.startswith("100"):
                is_over = True
        wire.unsubscribe(sid)
        return True

    def _delivered(self, frame: Frame) -> int:
        seq = int(frame.reply.split(".")[-4])
        if self.delivered.setdefault(seq, frame.payload) != frame.payload:
            self.faults.append(f"{self._consumer}: seq {seq} came with two payloads")
        if seq in self.acked:
            self.again.add(seq)
        return seq


class Campaign:
    """Publishers and consumers on one stream of a cluster, and what must hold in the end."""

    def __init__(
        self,
        cluster: ClusterProcess,
        *,
        seed: int = 1,
        publishers: int = 4,
        consumers: int = 2,
        pause_s: float = 0.0,
    ) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self._create(consumers)
        self.publishers = [
            Publisher(cluster, number, seed, pause_s=pause_s) for number in range(publishers)
        ]
        self.consumers = [Consumer(cluster, f"C{number}", seed) for number in range(consumers)]

    def _create(self, consumers: int) -> None:
        config = {
            "name": STREAM,
            "subjects": ["s.>"],
            "num_replicas": 3,
            "allow_direct": True,
            "duplicate_window": 3600_000_000_000,
        }
        api(self.cluster, f"STREAM.CREATE.{STREAM}", config)
        for number in range(consumers):
            consumer = {"durable_name": f"C{number}", "ack_policy": "explicit"}
            consumer |= {"ack_wait": 5_000_000_000, "max_ack_pending": -1}  # type: ignore[dict-item]
            body = {"stream_name": STREAM, "config": consumer}
            api(self.cluster, f"CONSUMER.CREATE.{STREAM}.C{number}", body)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Everybody works inside; afterwards all publishers have stopped."""
        for worker in (*self.publishers, *self.consumers):
            worker.start()
        try:
            yield
        finally:
            for publisher in self.publishers:
                publisher.is_stopped.set()
            for publisher in self.publishers:
                publisher.join(30)

    def acked_count(self) -> int:
        return sum(len(publisher.acked) for publisher in self.publishers)

    def wait_acked(self, more: int, within_s: float = 60.0) -> None:
        """Wait until so many more messages are acked: the cluster serves."""
        wanted = self.acked_count() + more
        self.cluster.wait_until(
            lambda: self.acked_count() >= wanted, f"acking ({wanted})", within_s
        )

    def victim(self, *, is_leader: bool) -> str:
        """A node's name: the stream's leader, or any other."""
        leader = self.cluster.leader(STREAM)
        if is_leader:
            return leader
        return self.rng.choice([name for name in self.cluster.nodes if name != leader])

    def settle(self) -> None:
        """Wait until every node runs, is healthy and has a whole copy."""
        self.cluster.start()
        self.cluster.wait_until(lambda: self.cluster.is_whole(STREAM), "whole")

    def verdict(self) -> Verdict:
        """Let the consumers finish, drain every node, compare. The publishers have stopped."""
        self.settle()
        found = Verdict()
        acked: dict[int, bytes] = {}
        for publisher in self.publishers:
            found.faults += publisher.faults
            found.resent += publisher.resent
            found.longest_gap_s = max(found.longest_gap_s, publisher.longest_gap_s)
            for seq, body in publisher.acked.items():
                if acked.setdefault(seq, body) != body:
                    found.faults.append(f"seq {seq} was acked to two publishers")
        found.acked = len(acked)
        drained = {name: drain(node) for name, node in self.cluster.nodes.items()}
        for name, stored in drained.items():
            lost = [seq for seq, body in acked.items() if stored.get(seq) != body]
            if lost:
                found.faults.append(f"{name} lost {len(lost)} acked messages: {lost[:5]}")
            bodies = list(stored.values())
            if len(set(bodies)) != len(bodies):
                found.faults.append(f"{name} has {len(bodies) - len(set(bodies))} duplicates")
        whole = next(iter(drained.values()))
        found.stored = len(whole)
        for name, stored in drained.items():
            if stored != whole:
                found.faults.append(f"{name} holds other messages than the first node")
        digests = self.digests()
        if len(set(digests.values())) != 1:
            found.faults.append(f"digests differ: {digests}")
        self._consumers_finish(whole, found)
        return found

    def _consumers_finish(self, stored: dict[int, bytes], found: Verdict) -> None:
        deadline = time.monotonic() + DRAINED_WITHIN_S
        for consumer in self.consumers:
            while len(consumer.delivered) < len(stored) and time.monotonic() < deadline:
                consumer.is_stopped.wait(0.05)
        for consumer in self.consumers:
            consumer.is_stopped.set()
        for consumer in self.consumers:
            consumer.join(30)
            found.faults += consumer.faults
            found.delivered += len(consumer.delivered)
            missing = [seq for seq in stored if seq not in consumer.delivered]
            if missing:
                found.faults.append(f"{consumer.name} never got {len(missing)}: {missing[:5]}")
            wrong = [seq for seq, body in consumer.delivered.items() if stored.get(seq) != body]
            if wrong:
                found.faults.append(f"{consumer.name} got what is not stored: {wrong[:5]}")
            if consumer.again:
                again = sorted(consumer.again)[:5]
                found.faults.append(f"{consumer.name} got acked messages again: {again}")

    def digests(self) -> dict[str, str]:
        """Every copy's digest, once none changes any more."""
        return {
            name: str(self.cluster.detail(node, STREAM).get("digest", ""))
            for name, node in self.cluster.nodes.items()
        }


def drain(node: ServerProcess) -> dict[int, bytes]:
    """All messages as this node's own copy gives them, by direct gets at the node itself."""
    stored: dict[int, bytes] = {}
    with Wire(node.port) as wire:
        while True:  # a direct get of many ends with 204, or 404 when there are no more
            ask = b'{"seq":%d,"batch":1000}' % (max(stored, default=0) + 1)
            frames = wire.ask(
                f"$JS.API.DIRECT.GET.{STREAM}", ask, is_last=lambda frame: bool(frame.status)
            )
            assert frames, f"no answer to a direct get\n{node.log_tail()}"
            found = {int(each.pairs["Nats-Sequence"]): each.payload for each in frames[:-1]}
            if not found:
                return stored
            stored |= found


def api(cluster: ClusterProcess, subject: str, body: Any = None) -> dict[str, Any]:
    """A request at any node, again until it has an answer without a 5xx error."""

    def ask() -> dict[str, Any]:
        for node in cluster.nodes.values():
            try:
                with Wire(node.port) as wire:
                    frames = wire.ask(
                        f"$JS.API.{subject}", json.dumps(body or {}).encode(), within_s=API_WITHIN_S
                    )
            except (OSError, TimeoutError):
                continue
            if frames and frames[0].op == "MSG" and not frames[0].status:
                found: dict[str, Any] = frames[0].json()
                if found.get("error", {}).get("code", 0) < 500:
                    return found
        return {}

    answer: dict[str, Any] = cluster.wait_until(ask, f"answering {subject}")
    assert "error" not in answer, (subject, answer)
    return answer


def kill_rounds(campaign: Campaign, rounds: int, *, acked_between: int) -> None:
    """SIGKILL of a random node, every other time the leader; all is whole again before the next."""
    for number in range(rounds):
        campaign.wait_acked(acked_between)
        name = campaign.victim(is_leader=number % 2 == 0)
        campaign.cluster.kill(name)
        campaign.wait_acked(acked_between)
        campaign.settle()


def pause_rounds(campaign: Campaign, rounds: int, *, seconds: float) -> None:
    """SIGSTOP of the leader for some seconds: it comes back believing that it leads."""
    for _ in range(rounds):
        campaign.wait_acked(100)
        node = campaign.cluster.nodes[campaign.victim(is_leader=True)]
        node.send(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            node.send(signal.SIGCONT)
        campaign.settle()


def blackout_rounds(campaign: Campaign, rounds: int) -> list[float]:
    """SIGKILL of all at once; return the seconds from the restart to the next ack of each round."""
    outages = []
    for _ in range(rounds):
        campaign.wait_acked(200)
        campaign.cluster.kill_at_once()
        began = time.monotonic()
        for node in campaign.cluster.nodes.values():
            node.launch()
        campaign.wait_acked(1)
        outages.append(time.monotonic() - began)
        campaign.settle()
    return outages


def rolling_restart(campaign: Campaign) -> None:
    """SIGTERM and a start of each node in turn."""
    for name in list(campaign.cluster.nodes):
        campaign.wait_acked(100)
        campaign.cluster.nodes[name].stop()
        campaign.wait_acked(50)
        campaign.settle()


def wipe_round(campaign: Campaign) -> None:
    """A follower is killed, loses its copy of the stream, and comes back whole."""
    campaign.wait_acked(100)
    name = campaign.victim(is_leader=False)
    campaign.cluster.kill(name)
    campaign.cluster.remove_stream(name)
    campaign.wait_acked(100)
    campaign.settle()
