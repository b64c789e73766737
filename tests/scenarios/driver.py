"""A simulated cluster with clients. What a scenario does is in its test; this is with what."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from streamd.config.options import Options
from streamd.machine import commands
from streamd.net.monitoring.healthz import Health, judge, not_current
from streamd.net.monitoring.jetstreamz import JetStreamSources, JetStreamz
from streamd.net.monitoring.sliced_pages import finish
from streamd.types import META_UID, Msg, NodeId, Seq, Uid
from tests.scenarios.nodes import Nodes, setting
from tests.sim.host import ROOT
from tests.sim.world import Violation, need

EXPLICIT = {"ack_policy": "explicit", "ack_wait": 30 * 10**9}
Document = dict[str, Any]


class Delivery(NamedTuple):
    """One message as a consumer was given it."""

    seq: Seq
    consumer_seq: int
    deliveries: int
    payload: bytes
    ack: bytes  # where to ack it


class Cluster(Nodes):
    """Use as a context manager; `boot` starts all and waits until they serve."""

    # --- clients ----------------------------------------------------------------------------

    def reply(self, name: NodeId) -> bytes:
        """A fresh subject of the client at a node."""
        self._replies += 1
        return b"%b.%d" % (name.encode(), self._replies)

    def received(self, reply: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
        return self.inboxes[reply.split(b".")[0]].received.get(reply, [])

    def send(self, subject: str, body: Any = None, at: NodeId = "") -> bytes:
        """Send an API request; returns its reply subject."""
        name = at or self.running()[0]
        reply = self.reply(name)
        payload = json.dumps(body).encode() if body is not None else b""
        process = self.process(name)
        process.run(process.router.handle, b"$JS.API." + subject.encode(), reply, b"", payload)
        return reply

    def ask(self, subject: str, body: Any = None, at: NodeId = "") -> Document:
        """Send an API request and return its answer."""
        reply = self.send(subject, body, at)
        self.until(f"an answer to {subject}", lambda: self.received(reply), 6)
        answer: Document = json.loads(self.received(reply)[0][3])
        return answer

    def create(self, stream: str = "S", replicas: int = 3, at: NodeId = "", **config: Any) -> Uid:
        body = {"name": stream, "subjects": [f"{stream}.>"], "num_replicas": replicas}
        answer = self.ask(f"STREAM.CREATE.{stream}", body | {"allow_direct": True} | config, at)
        need("error" not in answer, str(answer))
        return self.uid(stream)

    def create_on(self, config: Document, peers: Iterable[NodeId]) -> Uid:
        """Create a stream at nodes that may be down just now, as the meta group commits it."""
        leader = self.leader_name(META_UID)
        told: list[Any] = []
        command = [commands.CREATE_STREAM, self.hosts[leader].clock.now_ns(), config, list(peers)]
        self.process(leader).run(self.node(leader).propose_meta, command, told.append)
        self.until("created", lambda: told)
        return int(told[0].uid)

    def consumer(self, stream: str = "S", name: str = "C", at: NodeId = "", **config: Any) -> None:
        body = {"stream_name": stream, "config": {"durable_name": name} | EXPLICIT | config}
        answer = self.ask(f"CONSUMER.CREATE.{stream}.{name}", body, at)
        need("error" not in answer, str(answer))

    def publish(
        self,
        count: int,
        stream: str = "S",
        *,
        subject: str = "x",
        size: int = 100,
        headers: bytes = b"",
        at: NodeId = "",
        chunk: int = 50,
    ) -> list[Seq]:
        """Publish messages that tell where they are, and wait for their acks."""
        if at:  # may have joined just now
            self.until(f"{stream} known", lambda: self.node(at).stream(stream) is not None)
        seqs: list[Seq] = []
        while len(seqs) < count:
            first = len(seqs)
            amount = min(chunk, count - first)
            msgs = [
                (f"{stream}.{subject}".encode(), headers, self.body(size)) for _ in range(amount)
            ]
            outcomes = self.publish_raw(stream, msgs, at)
            seqs += [each for each in outcomes if type(each) is int]
            failed = [each for each in outcomes if type(each) is not int]
            need(all(each.code == 503 for each in failed), str(failed))
            if failed:
                self.run_ms(20)  # nobody leads just now
        return seqs

    def body(self, size: int) -> bytes:
        self._replies += 1
        return (b"%d-" % self._replies).ljust(size, b"x")

    def offer(self, stream: str, msgs: list[Msg], at: NodeId = "") -> list[bytes]:
        """Publish in one chunk and return where the acks will arrive."""
        name = at or self.running()[0]
        replies = [self.reply(name) for _ in msgs]
        handle = self.node(name).stream(stream)
        if handle is not None:
            sink = self.inboxes[name.encode()]
            self.process(name).run(handle.publish, msgs, replies, sink)
        return replies

    def publish_raw(self, stream: str, msgs: list[Msg], at: NodeId = "") -> list[Any]:
        replies = self.offer(stream, msgs, at)
        self.until("acks", lambda: all(self.outcome(reply) is not None for reply in replies))
        return [self.outcome(reply) for reply in replies]

    def outcome(self, reply: bytes) -> Any:
        return self.inboxes[reply.split(b".")[0]].outcomes.get(reply)

    def pull(
        self, batch: int, stream: str = "S", name: str = "C", at: NodeId = ""
    ) -> list[Delivery]:
        """Pull up to `batch` messages, waiting a quarter of a second for more to come."""
        where = at or self.running()[0]
        request = {"batch": batch, "expires": 250 * 10**6}
        reply = self.send(f"CONSUMER.MSG.NEXT.{stream}.{name}", request, where)

        def is_over() -> bool:
            found = self.received(reply)
            return len(found) >= batch or any(b"NATS/1.0" in each[2] for each in found)

        self.until("a pull over", is_over, 3)
        rows = [row for row in self.received(reply) if row[1].startswith(b"$JS.ACK.")]
        return [_delivery(ack, payload) for _, ack, _, payload in rows]

    def ack(
        self,
        deliveries: Iterable[Delivery],
        stream: str = "S",
        at: NodeId = "",
        is_awaited: bool = True,
    ) -> None:
        """Ack with confirmation, and wait for all of them."""
        where = at or self.running()[0]
        subjects = [each.ack for each in deliveries]
        replies = [self.reply(where) for _ in subjects]
        handle = self.node(where).stream(stream)
        assert handle is not None
        payloads = [b"+ACK"] * len(subjects)
        self.process(where).run(handle.acks, subjects, replies, payloads)
        if is_awaited:
            self.until("acks confirmed", lambda: all(self.received(reply) for reply in replies))

    def consume(self, count: int, stream: str = "S", name: str = "C") -> list[Seq]:
        """Pull and ack `count` messages."""
        seqs: list[Seq] = []
        while len(seqs) < count:
            got = self.pull(min(100, count - len(seqs)), stream, name)
            need(got, f"{name} got {len(seqs)} of {count}")
            self.ack(got, stream)
            seqs += [each.seq for each in got]
        return seqs

    # --- what is there ----------------------------------------------------------------------

    def info(self, stream: str = "S", at: NodeId = "") -> Document:
        return self.ask(f"STREAM.INFO.{stream}", at=at)

    def is_current(self, name: NodeId, stream: str = "S") -> bool:
        """What the node itself says of its replica: /healthz, /jsz."""
        return not self.not_current(name, stream)

    def not_current(self, name: NodeId, stream: str = "S") -> str:
        facts = self.node(name).group_info(self.uid(stream))
        return "no replica" if facts is None else not_current(facts)

    def leader_says_current(self, name: NodeId, stream: str = "S") -> bool:
        """What the stream's leader says of another's replica: StreamInfo."""
        info = self.node(self.leader(stream)).group_info(self.uid(stream)) or {}
        return any(peer["current"] for peer in info["peers"] if peer["name"] == name)

    def documents(self, name: NodeId) -> JetStreamz:
        process = self.process(name)
        sources = JetStreamSources(process.node, process.router)
        return JetStreamz(sources, Options(), server_id=name, server_name=name)

    def health(self, name: NodeId) -> Health:
        return finish(judge(self.node(name), {}))

    def read(self, name: NodeId, stream: str = "S") -> dict[Seq, bytes]:
        """All messages as a node's own replica gives them."""
        replica = self.node(name).replica(self.uid(stream))
        assert replica is not None
        index = replica.machine.index
        seqs = [seq for seq in range(index.first_seq, index.last_seq + 1) if index.live.has(seq)]
        told: list[Any] = []
        self.process(name).run(replica.read, seqs, told.append)
        self.until(f"{name} reads", lambda: told)
        return {seq: found.payload for seq, found in zip(seqs, told[0], strict=True) if found}

    def missing(self, stream: str = "S") -> str:
        """Why not all replicas are whole, current and equal; empty if they are."""
        uid = self.uid(stream)
        states = set()
        for name in self.checkers.assets[uid].peers:
            if self.hosts[name].node is None or not self.process(name).is_started:
                return f"{name} does not run"
            reason = self.not_current(name, stream)
            if reason:
                return f"{name}: {reason}"
            machine = self.machine(name, stream)
            states.add((machine.applied, machine.digest, machine.fingerprint()))
        return "" if len(states) == 1 else f"states differ: {states}"

    def until_whole(self, stream: str = "S", within_s: float = 30.0) -> None:
        """Wait until all replicas are whole and equal; then compare them bit by bit."""
        try:
            self.until("whole", lambda: not self.missing(stream), within_s)
        except Violation as err:
            raise Violation(f"{err}: {self.missing(stream)}") from err
        self.check_equal(stream)

    def check_equal(self, stream: str = "S") -> None:
        """Equal state, consumers and messages on all nodes."""
        uid = self.uid(stream)
        peers = self.checkers.assets[uid].peers
        kept = []
        for name in peers:
            machine = self.machine(name, stream)
            consumers = {each.name: each.to_state() for each in machine.consumers.values()}
            kept.append((machine.state(), consumers, self.read(name, stream)))
            assert self.node(name).groups.meta_group is not None
            self.checkers.check_equal(name, self.node(name).groups.group_of(uid))  # type: ignore[arg-type]
        for name, one in zip(peers, kept, strict=True):
            text = f"{name} and {peers[0]} differ: {one[:2]} {kept[0][:2]}"[:1000]
            need(one == kept[0], text)
            need(len(one[2]) == one[0]["messages"], f"{name} can't read all of its messages")

    def events(self, text: str) -> int:
        """How often a line was logged."""
        return sum(count for line, count in self.world.counts.items() if line.endswith(text))


def _delivery(ack: bytes, payload: bytes) -> Delivery:
    tokens = ack.split(b".")
    return Delivery(int(tokens[5]), int(tokens[6]), int(tokens[4]), payload, ack)


__all__ = ["META_UID", "ROOT", "Cluster", "Delivery", "setting"]
