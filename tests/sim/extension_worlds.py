"""Worlds of five nodes with dead letters, numbered producers, and order by subject.

    Q   a work queue whose consumer gives up: what is terminated, or delivered too often
    L   a stream of limits with such a consumer: what is given up stays
    I   a stream with interest, of such a consumer and of one that has no letters
    X   the letters of all three

Producers send ahead of the acks, and again whatever is not acked; clients pull, ack,
refuse, terminate and forget. What the log says is followed by `extension_models`. At the end all
that was numbered is stored, no letter waits, Q and I are empty, and each message that was given up
has its letter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.streams.producers import PRODUCER_OUT_OF_SEQUENCE
from streamd.types import Msg, Seq, Uid
from tests.sim.drain import Drain
from tests.sim.extension_checks import letter_bodies, produced_wrongly
from tests.sim.extension_models import ExtensionModel, Letters
from tests.sim.plan import Document, Plan
from tests.sim.workload import REPLIES, Client
from tests.sim.world import SECOND, Violation, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

QUEUE, LIMITS, INTEREST, LETTERS = "Q", "L", "I", "X"
CONSUMED = (QUEUE, LIMITS, INTEREST)
CONSUMER, OTHER = "C", "E"  # `E` has no letters
SETTLED_US = 60 * SECOND  # letters that could not be stored are tried again every 30 s
RESEND_US = SECOND
MS_NS = 10**6

ACTIONS: dict[str, float] = {
    "publish": 2.0,
    "produce": 8.0,
    "produce_again": 4.0,
    "create_consumer": 3.0,
    "pull": 8.0,
    "ack": 20.0,
    "forget": 3.0,
    "delete_msg": 0.5,
    "purge": 0.5,
    "read_last": 0.5,
    "get_message": 0.5,
    "get_directly": 0.5,
    "step_down": 0.4,
}


def draw_extensions(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    size = min(node_count, 3)
    configs = {
        QUEUE: _stream(QUEUE, rng.choice((size, size, size, 1)), retention="workqueue"),
        LIMITS: _stream(LIMITS, rng.choice((size, size, size, 1))),
        INTEREST: _stream(INTEREST, rng.choice((size, size, size, 1)), retention="interest"),
        LETTERS: _stream(LETTERS, rng.choice((size, size, size, 1))),
    }
    configs[LIMITS]["max_msgs"] = rng.choice((-1, -1, 60))
    configs[LETTERS]["max_msg_size"] = rng.choice((-1, -1, 1500))
    if rng.random() < 0.3:
        configs[LETTERS] |= {"max_msgs": 30, "discard": "new"}
    actions = {action: weight * rng.choice((0.5, 1.0, 2.0)) for action, weight in ACTIONS.items()}
    consumers = {(name, CONSUMER): _consumers(rng, name) for name in CONSUMED}
    consumers[(INTEREST, OTHER)] = _consumers(rng, "")
    return Plan(configs, actions, consumers=consumers)


def _stream(name: str, size: int, **more: Any) -> Document:
    return {
        "name": name,
        "subjects": [name + ".>"],
        "storage": "file",
        "num_replicas": size,
        "duplicate_window": 100 * MS_NS,  # producers need none
        "allow_direct": True,
        **more,
    }


def _consumers(rng: random.Random, stream: str) -> list[Document]:
    """Return configurations that a consumer has by turns: of a stream with letters; "": without."""
    most = rng.choice((0, 0, 1, 1, 2))
    return [_consumer(rng, stream, most) for _ in range(rng.choice((1, 1, 3)))]


def _consumer(rng: random.Random, stream: str, most: int) -> Document:
    subject = f"{LETTERS}.{stream}.{rng.choice('ab')}"
    metadata = {"streamd.dead_letter": subject} if stream else {}
    most += most and rng.choice((0, 0, 1))
    if most:
        metadata["streamd.max_ack_pending_per_subject"] = str(most)
    return {
        "ack_policy": "explicit",
        "ack_wait": rng.choice((300, 800, 2000)) * MS_NS,
        "max_ack_pending": 1000,
        "max_deliver": rng.choice((1, 2, 3)) if stream else -1,
        "metadata": metadata,
    }


class _Producer:
    """Messages that a client has numbered for one stream."""

    def __init__(self, client: bytes, stream: str) -> None:
        self.name = b"%b-%b" % (client, stream.encode())
        self.stream = stream
        self.sent = 0
        self.acked = 0

    def message(self, sequence: int) -> Msg:
        """Return the message of this number, the same whenever it is sent."""
        subject = b"%b.%d" % (self.stream.encode(), sequence % 4)
        head = REPLIES + b"Nats-Producer-Id: %b\r\nNats-Producer-Seq: %d\r\n\r\n"
        body = b"%b:%d:" % (self.name, sequence) + b"x" * (0, 20, 300, 2500)[sequence % 13 % 4]
        return (subject, head % (self.name, sequence), body)


class ExtensionClient(Client):
    """A client that numbers what it publishes, and gives up some of what it is given."""

    acking = (CONSUMER, OTHER)

    def __init__(self, name: bytes, cluster: SimCluster, promises: ExtensionPromises) -> None:
        super().__init__(name, cluster, cluster.ledger)
        self._promises = promises
        self._producers = [promises.producer(name, stream) for stream in CONSUMED]

    def _some_name(self) -> str:
        return self.rng.choice(CONSUMED)

    def create_consumer(self) -> None:
        self.consume(*self.rng.choice(list(self.cluster.plan.consumers)))

    def consume(self, stream: str, name: str) -> None:
        """Ask for a consumer of a stream."""
        config = self.rng.choice(self.cluster.plan.consumers[(stream, name)])
        self._order_consumer(stream, name, config)

    def _pulled_from(self, stream: str) -> str:
        return self.rng.choice((CONSUMER, OTHER)) if stream == INTEREST else CONSUMER

    def delete_msg(self) -> None:
        """Take a message out, but not of the queue: it leaves that in one way."""
        handle = self._handle_of(LIMITS)
        if handle is not None:
            self._delete_from(handle)

    def purge(self) -> None:
        """Make room for letters."""
        self._order(f"STREAM.PURGE.{LETTERS}", {"keep": self.rng.randint(0, 20)}, "purges")

    def some_verb(self) -> bytes:
        return self.rng.choice((b"+ACK", b"-NAK", b"-NAK", b"+TERM bad", b"+TERM", b"+WPI"))

    def forget(self) -> None:
        """Never answer for something that was delivered."""
        if self.delivered:
            self.delivered.pop(self.rng.randrange(len(self.delivered)))
        self.finish()

    def _take_delivery(self, uid: Uid, consumer: str, reply: bytes, seq: Seq) -> None:
        model = self.ledger.checkers.truths[uid].extensions
        assert model is not None
        model.check_order(consumer, seq)
        super()._take_delivery(uid, consumer, reply, seq)

    # --- producers ----------------------------------------------------------------------------

    def produce(self) -> None:
        """Some more, ahead of the acks; some are lost on the way."""
        producer = self.rng.choice(self._producers)
        first = producer.sent + 1
        producer.sent += self.rng.choice((1, 3, 8))
        sequences = range(first, producer.sent + 1)
        self._send_numbered(producer, [each for each in sequences if self.rng.random() > 0.05])

    def produce_again(self) -> None:
        """All that is not acked."""
        producer = self.rng.choice(self._producers)
        self._send_numbered(producer, list(range(producer.acked + 1, producer.sent + 1)))

    def _send_numbered(self, producer: _Producer, sequences: list[int]) -> None:
        handle = self._handle_of(producer.stream)
        if handle is None:
            return
        if not sequences:
            self.finish()
            return
        left = len(sequences)

        def answered(sequence: int, outcome: Any) -> None:
            nonlocal left
            left -= 1
            self._promises.on_numbered(producer, sequence, outcome)
            if not left:
                self.finish()

        replies = [self.await_reply(partial(answered, each)) for each in sequences]
        handle.publish([producer.message(each) for each in sequences], replies, self.connection)


class ExtensionPromises:
    """Numbered messages and dead letters of a run, and whether what was promised was kept.
    Implements ports.PublishSink, for what is sent again at the end."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._checkers = cluster.checkers
        self._world = cluster.world
        self._producers: dict[bytes, _Producer] = {}
        self._sent_us = -RESEND_US  # when something was sent again
        ledger = cluster.ledger
        self._letters = cluster.checkers.letters = Letters(
            was_acked=lambda uid, name, seq: seq in ledger.asked.get((uid, name), ()),
            was_terminated=lambda uid, name, seq: (uid, name, seq) in ledger.terminated,
            bytes_max=cluster.plan.configs[LETTERS]["max_msg_size"],
        )

    # --- producers ----------------------------------------------------------------------------

    def producer(self, client: bytes, stream: str) -> _Producer:
        """Return what a client numbers for a stream."""
        made = _Producer(client, stream)
        return self._producers.setdefault(made.name, made)

    def on_numbered(self, producer: _Producer, sequence: int, outcome: Any) -> None:
        """A numbered message was answered."""
        uid = self._checkers.uid_of(producer.stream)
        text = f"{sequence} of {producer.name!r}"
        if isinstance(outcome, JsError):
            self._world.counts["refused"] += 1
            is_expected = PRODUCER_OUT_OF_SEQUENCE.matches(outcome) or outcome.code == 503
            need(is_expected, f"{text} is refused: {outcome}")
            return
        if type(outcome) is int:
            self._cluster.ledger.on_ack(uid, outcome, producer.message(sequence))
            self._world.counts["numbered"] += 1
        else:
            need(outcome[0] == commands.DUPLICATE, f"{text} is answered {outcome}")
            self._world.counts["numbers found again"] += 1
        stored = self._model(producer.stream).producers.get(producer.name, 0)
        need(sequence <= stored, f"{text} is acked, stored are {stored}")
        producer.acked = max(producer.acked, sequence)

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            name, _, sequence = reply.rpartition(b".")
            self.on_numbered(self._producers[name], int(sequence), outcome)

    def _is_due(self) -> bool:
        """True once in a while."""
        if self._world.now_us < self._sent_us + RESEND_US:
            return False
        self._sent_us = self._world.now_us
        return True

    def _send_again(self) -> None:
        for producer in self._producers.values():
            host = self._cluster.leader_of(self._checkers.uid_of(producer.stream))
            if host is None or host.process is None or host.node is None:
                continue
            handle = host.node.stream(producer.stream)
            sequences = range(producer.acked + 1, producer.sent + 1)
            if handle is not None and sequences:
                msgs = [producer.message(each) for each in sequences]
                replies = [b"%b.%d" % (producer.name, each) for each in sequences]
                host.process.run(handle.publish, msgs, replies, self)

    # --- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Send again what is not acked, consume all, and wait for the letters."""
        self._await(self._unmade)
        self._await(self._unacked)
        Drain(self._cluster).run()
        self._await(self._waiting)
        for producer in self._producers.values():
            self._check_produced(producer)
        for name in CONSUMED:
            self._check_letters(self._model(name))

    def _await(self, left: Callable[[], str]) -> None:
        is_settled = self._cluster.every_ms(50, lambda: not left())
        if not self._world.run(self._world.now_us + SETTLED_US, is_settled):
            raise Violation(f"{SETTLED_US / SECOND} s after the faults: {left()}")

    def _unmade(self) -> str:
        """A consumer that nobody has asked for, or was not answered."""
        for name, consumer in self._cluster.plan.consumers:
            if consumer not in self._checkers.truth_of(name).machine.consumers:
                if self._is_due():
                    self._have(ExtensionClient.consume, name, consumer)
                return f"{name} has no consumer {consumer}"
        return ""

    def _unacked(self) -> str:
        for producer in self._producers.values():
            if producer.acked < producer.sent:
                if self._is_due():
                    self._send_again()
                return f"{producer.name!r} has {producer.acked} of {producer.sent} acked"
        return ""

    def _have(self, action: Callable[..., None], *args: str) -> None:
        """Have some client do something."""
        client = next(iter(self._cluster.clients.values()))
        client.connect()
        if client.process is not None:
            client.process.run(action, client, *args)

    def _waiting(self) -> str:
        if self._is_due() and "max_msgs" in self._cluster.plan.configs[LETTERS]:
            self._have(ExtensionClient.purge)
        return " and ".join(filter(None, (self._model(name).waiting() for name in CONSUMED)))

    def _check_produced(self, producer: _Producer) -> None:
        """What was ever stored of a producer is all that it sent, in order."""
        model = self._model(producer.stream)
        head = producer.name + b":"
        found = [
            int(body.split(b":")[1])
            for _, (_, _, body) in sorted(model.content.items())
            if body.startswith(head)
        ]
        wrong = produced_wrongly(producer.name, found, producer.sent)
        need(not wrong, f"{producer.stream}: {wrong}")

    def _check_letters(self, model: ExtensionModel) -> None:
        """Each message that was given up has a letter, and no other has."""
        letters = letter_bodies(self._letters.of(model.name))
        given_up = model.given_up_seqs()
        odd = sorted(given_up ^ letters.keys())
        need(not odd, f"{model.name}: {odd[:5]} were given up, or have letters, and not both")
        acked = model.acked_by(CONSUMER)
        both = sorted(given_up & acked)
        need(not both, f"{model.name}: {both[:5]} were acked, and given up")
        if model.name == QUEUE:
            lost = sorted(model.content.keys() - given_up - acked)
            need(not lost, f"{model.name}: {lost[:5]} are gone, neither acked nor given up")
        for each in model.given_up.values():
            self._world.counts[f"letters: {each.reason.decode()}"] += 1
        self._world.counts["letters without a body"] += sum(not body for body in letters.values())
        self._world.counts["acked messages"] += len(acked)

    def _model(self, name: str) -> ExtensionModel:
        model = self._checkers.truth_of(name).extensions
        assert model is not None, name
        return model
