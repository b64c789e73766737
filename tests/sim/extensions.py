"""Producers and dead letters on one node that loses its power again and again.

Workloads for `crash.Campaign`, with their checkers:

    Produced   producers send some messages ahead of the acks, and again whatever is not acked:
               what is stored of each is 1, 2, 3 ... without a hole, each once, and all that is
               acked
    Lettered   a work queue whose consumer acks, terminates, refuses and forgets: each message is
               acked, or stored once as a dead letter with its body, or still there; in the end
               the queue is empty. The stream that stores letters is elsewhere: letters and answers
               get lost, and some come when the power has been gone in between
    Ordered    a consumer with one unacked message a subject: whatever is delivered, all before it
               on its subject was acked; in the end all was delivered
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams.dead_letters import DeadLetters, Letter
from streamd.machine.streams.producers import PRODUCER_OUT_OF_SEQUENCE, Claim, Producers
from streamd.machine.streams.stream import StreamMachine
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.net.pubsub.pubacks import ack_body
from streamd.node.delivery.subject_order import SubjectOrder
from streamd.node.groups import inbox
from streamd.node.stream_groups import stream_inbox
from streamd.node.stream_groups.letter_sending import LetterSending, _Lane
from streamd.store.blocks.block_codec import BlockCodec
from streamd.types import Entry, Msg, Seq
from tests.sim.crash import SimWires
from tests.sim.extension_checks import letter_bodies, overtaken, produced_wrongly
from tests.sim.node import START_NS, FoldColumns, SimNode

if TYPE_CHECKING:
    import random

    from tests.sim.crash import Campaign

SNAPSHOT_EVERY_BYTES = 3000  # of log
ORDERED_MSGS_MAX = 150  # each subject's go one by one in the end
_WHOLE = {
    "max_msgs": -1, "max_msgs_per_subject": -1, "max_bytes": -1, "max_age": 0,
}  # fmt: skip


def _make_consumer(node: SimNode, metadata: dict[str, str], *, max_deliver: int) -> None:
    """Have a consumer, unless there is one."""
    if "C" not in node.group.machine.consumers:
        config = {
            "durable_name": "C", "name": "C", "deliver_policy": "all",
            "ack_policy": "explicit", "ack_wait": 400 * 10**6, "max_deliver": max_deliver,
            "max_ack_pending": 1000, "max_waiting": 512, "replay_policy": "instant",
            "metadata": metadata,
        }  # fmt: skip
        command = [commands.CREATE_CONSUMER, node.clock.now_ns(), "C", config, "", False]
        node.monitor.post(inbox.Propose(command, lambda outcome: None, True))


def _pull(node: SimNode) -> None:
    pull = stream_inbox.Pull(b"C", b"inbox.pull", b"", b'{"batch":10,"no_wait":true}')
    node.monitor.post(pull)


# --- producers ------------------------------------------------------------------------------------


class _Producer:
    """A client that numbers what it publishes."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.sent = 0
        self.acked = 0


class Produced:
    """The workload of one seed of producers."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = dict(_WHOLE, duplicate_window=10**8)
        self._producers = [_Producer(b"p%d" % number) for number in range(3)]

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            _, number, sequence = reply.split(b".")
            producer = self._producers[int(number)]
            if isinstance(outcome, JsError):
                assert PRODUCER_OUT_OF_SEQUENCE.matches(outcome), outcome
            else:  # and all before it: nothing is stored out of order
                producer.acked = max(producer.acked, int(sequence))

    def begin_life(self, campaign: Campaign, node: SimNode) -> None:
        node.group.snapshot_every_bytes = SNAPSHOT_EVERY_BYTES

    def act(self, campaign: Campaign, node: SimNode) -> None:
        rng = campaign.rng
        number = rng.randrange(len(self._producers))
        producer = self._producers[number]
        if rng.random() < 0.4:
            self._send(node, number, range(producer.acked + 1, producer.sent + 1))
            return
        first = producer.sent + 1
        producer.sent += rng.choice((1, 3, 8))
        sequences = [each for each in range(first, producer.sent + 1) if rng.random() > 0.05]
        self._send(node, number, sequences)
        if rng.random() < 0.1:
            campaign.clock.ms += 1000  # any window of ids is over

    def _send(self, node: SimNode, number: int, sequences: Any) -> None:
        name = self._producers[number].name
        head = b"NATS/1.0\r\nNats-Producer-Id: %b\r\nNats-Producer-Seq: %d\r\n\r\n"
        msgs = [(b"s.p", head % (name, each), b"%b:%d" % (name, each)) for each in sequences]
        replies = [b"r.%d.%d" % (number, each) for each in sequences]
        if msgs:
            node.monitor.post(stream_inbox.Publish(msgs, replies, self))

    def check(self, read: Callable[[Seq], tuple[Any, ...] | None], node: SimNode) -> None:
        index = node.group.machine.index
        stored: dict[bytes, list[int]] = defaultdict(list)
        for seq in index.live.seqs(index.first_seq, index.last_seq):
            found = read(seq)
            assert found is not None, seq
            name, sequence = found[4].split(b":")
            stored[name].append(int(sequence))
        for producer in self._producers:
            wrong = produced_wrongly(producer.name, stored[producer.name], producer.acked)
            assert not wrong, wrong

    def finish(self, campaign: Campaign, node: SimNode) -> None:
        for number, producer in enumerate(self._producers):
            self._send(node, number, range(producer.acked + 1, producer.sent + 1))
        node.settle()
        for producer in self._producers:
            assert producer.acked == producer.sent, (producer.name, producer.acked, producer.sent)


# --- dead letters ---------------------------------------------------------------------------------


class _Elsewhere:
    """The stream that stores letters, on a node that never fails."""

    def __init__(self) -> None:
        self._machine = StreamMachine(
            uid=9, config={"name": "DLQ", "subjects": ["dlq"]}, created_ns=START_NS,
            codec=BlockCodec(), columns=FoldColumns(),
        )  # fmt: skip
        self.stored: list[tuple[bytes, bytes]] = []  # (headers, payload)

    def store(self, headers: bytes, payload: bytes) -> Any:
        """Store a letter, if it is to be; returns the outcome."""
        machine = self._machine
        msgs: list[Msg] = [(b"dlq", headers, payload)]
        command = [commands.STORE, START_NS, msgs, commands.PUBLISH_RULES]
        out = Effects()
        entry = Entry(1, machine.applied + 1, commands.encode(command), tag="t")
        machine.apply(entry, out)
        outcome = next(iter(out.outcomes[0][1]))  # type: ignore[call-overload]
        if isinstance(outcome, int):
            self.stored.append((headers, payload))
        return outcome


class _Wires(SimWires):
    """Core NATS that leads to the stream elsewhere, too."""

    def __init__(self, lettered: Lettered) -> None:
        super().__init__()
        self._lettered = lettered
        self._listening: dict[bytes, Callable[[list[Any]], object]] = {}

    def subscribe(self, subject: bytes, on_messages: Callable[[list[Any]], object]) -> object:
        self._listening[subject] = on_messages
        return subject

    def unsubscribe(self, token: object) -> None:
        assert isinstance(token, bytes)
        del self._listening[token]

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if subject == b"dlq":
            self._lettered.on_letter(reply, headers, payload)
        else:
            super().publish(subject, reply, headers, payload)

    def answer(self, reply: bytes, body: bytes) -> None:
        """Bring an answer to who listens, if that one still does."""
        on_messages = self._listening.get(reply.rpartition(b".")[0] + b".*")
        if on_messages is not None:
            on_messages([(reply, b"", b"", body)])


class Lettered:
    """The workload of one seed of dead letters."""

    def __init__(self, rng: random.Random) -> None:
        self.config: dict[str, Any] = dict(_WHOLE, retention="workqueue", allow_atomic=False)
        self._rng = rng
        self._elsewhere = _Elsewhere()
        self._late: list[tuple[bytes, bytes, bytes]] = []  # letters on their way
        self._is_quiet = False  # nothing is lost any more
        self._sent = 0
        self._stored: set[bytes] = set()  # bodies that were acked to their publisher
        self._acked: set[bytes] = set()  # bodies that their consumer may have acked
        self.wires = _Wires(self)

    def make_wires(self) -> SimWires:
        self.wires = _Wires(self)
        return self.wires

    def on_letter(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        """A letter is sent: it is stored, lost, or comes late."""
        chance = 1.0 if self._is_quiet else self._rng.random()
        if chance < 0.1:
            return
        if chance < 0.3:
            self._late.append((reply, headers, payload))
            return
        self._store(reply, headers, payload)

    def _store(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        outcome = self._elsewhere.store(headers, payload)
        if self._is_quiet or self._rng.random() > 0.1:  # else the answer is lost
            self.wires.answer(reply, ack_body(b"DLQ", outcome))

    def _bring_late(self) -> None:
        late, self._late = self._late, []
        for letter in late:
            self._store(*letter)

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            assert isinstance(outcome, int), outcome
            self._stored.add(reply)

    # --- the workload -------------------------------------------------------------------------

    def begin_life(self, campaign: Campaign, node: SimNode) -> None:
        node.group.snapshot_every_bytes = SNAPSHOT_EVERY_BYTES
        _make_consumer(node, {"streamd.dead_letter": "dlq"}, max_deliver=2)

    def act(self, campaign: Campaign, node: SimNode) -> None:
        rng = campaign.rng
        choice = rng.random()
        if choice < 0.2:
            campaign.clock.ms += rng.choice((50, 300, 1500, 6000))
        elif choice < 0.4:
            bodies = [b"m%d" % (self._sent + at) for at in range(rng.choice((1, 4, 10)))]
            self._sent += len(bodies)
            msgs = [(b"s.%d" % rng.randint(0, 2), b"", body) for body in bodies]
            node.monitor.post(stream_inbox.Publish(msgs, bodies, self))
        elif choice < 0.6:
            _pull(node)
        elif choice < 0.7:
            self._bring_late()
        else:
            self._answer_one(node)

    def _answer_one(self, node: SimNode) -> None:
        delivered = self.wires.delivered
        if not delivered:
            return
        _, reply, _, body = delivered.pop(self._rng.randrange(len(delivered)))
        verb = self._rng.choice((b"+ACK", b"+TERM no", b"-NAK", b""))
        if verb == b"+ACK":
            self._acked.add(body)
        if verb:
            node.monitor.post(stream_inbox.Acks([reply], [b"a"], [verb]))

    # --- checks -------------------------------------------------------------------------------

    def check(self, read: Callable[[Seq], tuple[Any, ...] | None], node: SimNode) -> None:
        letters = letter_bodies(self._elsewhere.stored)
        assert all(letters.values()), f"letters have lost their bodies: {letters}"
        index = node.group.machine.index
        there: set[bytes] = set()
        for live in index.live.seqs(index.first_seq, index.last_seq):
            found = read(live)
            assert found is not None, live
            there.add(found[4])
        lost = self._stored - there - self._acked - set(letters.values())
        assert not lost, f"neither acked, nor there, nor a letter: {lost}"

    def finish(self, campaign: Campaign, node: SimNode) -> None:
        """With all in peace the queue runs empty: what is not acked is stored as a letter."""
        self._bring_late()
        self._is_quiet = True
        self.begin_life(campaign, node)
        node.settle()
        machine = node.group.machine
        for _ in range(60):
            if not machine.index.count:
                break
            _pull(node)
            node.settle()
            for _, reply, _, _ in self.wires.delivered:
                node.monitor.post(stream_inbox.Acks([reply], [b"a"], [b"+TERM"]))
            self.wires.delivered.clear()
            campaign.clock.ms += 1500
            node.settle()
        assert not machine.index.count, f"{machine.index.count} messages never leave"
        assert not len(machine.content.letters)


# --- order by subject -----------------------------------------------------------------------------


class Ordered:
    """The workload of one seed of a consumer whose subjects are ordered."""

    def __init__(self, rng: random.Random) -> None:
        self.config: dict[str, Any] = dict(_WHOLE, allow_atomic=False)
        self._rng = rng
        self._wires = SimWires()
        self._seen = 0  # of what the wires delivered in this life
        self._acked: set[int] = set()  # of which an ack was sent
        self._stored: dict[int, bytes] = {}  # seq -> subject
        self._waiting: dict[bytes, bytes] = {}  # reply -> subject
        self._sent = 0

    def make_wires(self) -> SimWires:
        self._wires, self._seen = SimWires(), 0
        return self._wires

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            self._stored[outcome] = self._waiting[reply]

    def begin_life(self, campaign: Campaign, node: SimNode) -> None:
        node.group.snapshot_every_bytes = SNAPSHOT_EVERY_BYTES
        _make_consumer(node, {"streamd.max_ack_pending_per_subject": "1"}, max_deliver=-1)

    def act(self, campaign: Campaign, node: SimNode) -> None:
        self._look(node)
        rng = campaign.rng
        choice = rng.random()
        if choice < 0.1:
            campaign.clock.ms += rng.choice((50, 500))
        elif choice < 0.3 and self._sent < ORDERED_MSGS_MAX:
            msgs: list[Msg] = []
            replies: list[bytes] = []
            for _ in range(rng.choice((1, 4, 10))):
                self._sent += 1
                msgs.append((b"s.%d" % rng.randint(0, 2), b"", b"x"))
                replies.append(b"r.%d" % self._sent)
                self._waiting[replies[-1]] = msgs[-1][0]
            node.monitor.post(stream_inbox.Publish(msgs, replies, self))
        elif choice < 0.5:
            _pull(node)
        elif self._wires.delivered:
            _, reply, _, _ = rng.choice(self._wires.delivered)
            verb = rng.choice((b"+ACK", b"+ACK", b"-NAK"))
            if verb == b"+ACK":
                self._acked.add(int(reply.split(b".")[5]))
            node.monitor.post(stream_inbox.Acks([reply], None, [verb]))

    def _look(self, node: SimNode) -> None:
        """Of what was delivered since the last look: all before it on its subject was acked."""
        live = node.group.machine.index.live
        for subject, reply, _, _ in self._wires.delivered[self._seen :]:
            seq = int(reply.split(b".")[5])
            self._stored.setdefault(seq, subject)  # also if its ack was lost
            before = overtaken(
                seq, self._stored, lambda each: live.has(each) and each not in self._acked
            )
            assert not before, f"{seq} overtakes {before} on {subject!r}"
        self._seen = len(self._wires.delivered)

    def check(self, read: Callable[[Seq], tuple[Any, ...] | None], node: SimNode) -> None:
        index = node.group.machine.index
        for seq in index.live.seqs(index.first_seq, index.last_seq):
            found = read(seq)
            assert found is not None, seq
            self._stored[seq] = found[2]  # also of those whose ack was lost

    def finish(self, campaign: Campaign, node: SimNode) -> None:
        self.begin_life(campaign, node)
        node.settle()
        consumer = node.group.machine.consumers["C"]
        for _ in range(200):
            if not consumer.num_pending and not consumer.pending:
                break
            _pull(node)
            node.settle()
            self._look(node)
            for _, reply, _, _ in self._wires.delivered:
                self._acked.add(int(reply.split(b".")[5]))
                node.monitor.post(stream_inbox.Acks([reply], [b"a"], [b"+ACK"]))
            node.settle()
            self._wires.delivered.clear()
            self._seen = 0
            campaign.clock.ms += 500
            node.settle()
        assert not consumer.num_pending and not consumer.pending, consumer.info()
        assert consumer.floor_sseq == consumer.delivered_sseq
        missing = [seq for seq in self._stored if seq not in self._acked]
        assert not missing, f"never delivered: {missing}"


# --- broken variants ------------------------------------------------------------------------------

Patch = tuple[Any, str, Any]

_judge, _on_stored, _take_back = Producers.judge, LetterSending._on_stored, _Lane.take_back


def _load_nothing(owner: Any, state: Any) -> None:
    """Nothing comes back from a snapshot."""


def _judge_new(producers: Producers, fields: Any, most: int) -> Any:
    judged = _judge(producers, fields, most)
    if judged is None or isinstance(judged, Claim):
        return judged
    return Claim(fields[b"Nats-Producer-Id"], int(fields[b"Nats-Producer-Seq"]))


def _judge_any(producers: Producers, fields: Any, most: int) -> Any:
    return _judge(producers, fields | {b"Nats-Producer-Previous": b"any"}, most)


def _send_and_forget(sending: LetterSending, subject: bytes, lane: Any, most: int) -> int:
    count = _send(sending, subject, lane, most)
    for number in list(lane.flying):
        _on_stored(sending, lane, number)
    return count


_send = LetterSending._send


def _on_acked(consumers: StreamConsumers, consumer: Any, sseqs: Any) -> None:
    consumers._changes.remove([seq for seq in sseqs if consumers.index.live.has(seq)])


def _renumbered(letters: DeadLetters, **fields: Any) -> None:
    """A number of whoever asks: after a restart from the log it is another one."""
    letters.last_number = max(letters._open, default=0) + 1
    letters._put(Letter(number=letters.last_number, **({"text": b""} | fields)))


PRODUCED: dict[str, list[Patch]] = {
    "producers_forgotten": [(Producers, "load", _load_nothing)],
    "stored_again": [(Producers, "judge", _judge_new)],
    "holes_passed_over": [(Producers, "judge", _judge_any)],
}


def _restore_nothing(order: SubjectOrder) -> None:
    """The next leader does not know what is under way."""
    order._subjects, order._held, order._waiting, order._parked = {}, {}, {}, {}
    order._due = deque()
    for sseq in order._consumer.remaining.parked:
        order.park(sseq, order.subject_of(sseq))
    order._choose_all()


def _park_and_forget(consumer: Consumer, first: Seq, last: Seq) -> None:
    first = max(first, consumer.delivered_sseq + 1)
    if first <= last:
        consumer.delivered_sseq = last
        consumer.remaining.deliver(first, last)
        consumer._remember_order(first, last)


ORDERED: dict[str, list[Patch]] = {
    "all_are_admitted": [(SubjectOrder, "admits", lambda order, subject: True)],
    "places_forgotten": [(SubjectOrder, "restore", _restore_nothing)],
    "passed_over_for_ever": [(Consumer, "_park", _park_and_forget)],
}
LETTERED: dict[str, list[Patch]] = {
    "letters_forgotten": [(DeadLetters, "load", _load_nothing)],
    "letters_stored_again": [(Producers, "judge", _judge_new)],
    "sent_is_stored": [(LetterSending, "_send", _send_and_forget)],
    "gone_before_its_letter": [(StreamConsumers, "on_acked", _on_acked)],
    "numbers_used_again": [(DeadLetters, "add", _renumbered)],
    "never_sent_again": [(_Lane, "take_back", lambda lane, now_ms, error: lane.flying.clear())],
}
"""Variants of the server that the checkers must catch."""
