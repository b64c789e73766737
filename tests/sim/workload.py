"""Clients of a simulated cluster: they publish, pull, are pushed to, ack, and ask the API.

Each is connected to one node, does one thing at a time, and goes elsewhere when it hears nothing.
What it was promised it remembers, and compares with what the cluster has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from streamd.errors import JsError
from streamd.types import Msg, NodeId, Seq, Uid
from tests.sim.ledger import Ledger
from tests.sim.requests import Requester
from tests.sim.world import MS, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.host import SimProcess

TIMEOUT_US = 2000 * MS
REPLIES = b"NATS/1.0\r\n"


class Connection:
    """What a process holds of a client. Implements ports.PublishSink."""

    def __init__(self, client: Client, process: SimProcess) -> None:
        self.client = client
        self.process = process
        self.is_open = True

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        if self.is_open:
            for reply, outcome in zip(replies, outcomes, strict=True):
                self.client.on_outcome(reply, outcome)


class Client(Requester):
    """One client. All its subjects begin with its name."""

    acking: tuple[str, ...] = ("C", "P")  # what they deliver is to be acked

    def __init__(self, name: bytes, cluster: SimCluster, ledger: Ledger) -> None:
        self.name = name
        self.cluster = cluster
        self.ledger = ledger
        self.world = cluster.world
        self.rng = cluster.world.rng(f"client/{name.decode()}")
        self.connection: Connection | None = None
        self.is_working = False
        self._replies = count(1)
        self._waiting: dict[bytes, Callable[..., None]] = {}
        self._operation = 0  # the one under way; answers to earlier ones come too late
        self.delivered: list[tuple[Uid, str, bytes, Seq]] = []
        self._last_fresh: dict[Uid, Seq] = {}

    @property
    def process(self) -> SimProcess | None:
        """The process this client is connected to, if that still runs."""
        connection = self.connection
        if connection is None or not connection.process.is_alive:
            return None
        return connection.process

    def connect(self, at: NodeId = "") -> None:
        """Go to some node that runs, or to this one."""
        if self.connection is not None:
            self.connection.is_open = False
            self.connection = None
        self._waiting.clear()
        self.delivered.clear()
        running = [
            host.process
            for host in self.cluster.hosts.values()
            if host.process is not None
            and host.process.is_alive
            and host.process.is_started
            and at in ("", host.name)
        ]
        if running:
            self.connection = Connection(self, self.rng.choice(running))
            self.world.note(f"{self.name.decode()} connects to {self.connection.process.name}")

    # --- one thing after another ------------------------------------------------------------

    def start(self) -> None:
        self.is_working = True
        self.world.after(self.rng.randint(0, 50 * MS), self._next)

    def _next(self) -> None:
        if not self.is_working:
            return
        if self.process is None:
            self.connect()
        process = self.process
        if process is None:
            self.world.after(100 * MS, self._next)
            return
        self._operation += 1
        self.world.after(TIMEOUT_US, self._timed_out, self._operation)
        action = self.cluster.choose_action(self.rng)
        process.schedule(self.rng.randint(50, 300), self._act, action, self._operation)

    def _act(self, action: str, operation: int) -> None:
        if operation == self._operation and self.process is not None:
            getattr(self, action)()

    def _timed_out(self, operation: int) -> None:
        if operation != self._operation or not self.is_working:
            return
        self.world.counts["timeouts"] += 1
        if self.rng.random() < 0.6:
            self.connect()
        self.finish()

    def finish(self) -> None:
        """The operation under way is over; think, then do the next."""
        self._operation += 1
        self._waiting.clear()
        pause_ms = self.rng.choice((1, 3, 10, 30))
        self.world.after(pause_ms * MS, self._next)

    def await_reply(self, then: Callable[..., None]) -> bytes:
        subject = b"%b.r.%d" % (self.name, next(self._replies))
        self._waiting[subject] = then
        return subject

    def on_outcome(self, reply: bytes, outcome: Any) -> None:
        """The answer to a publish."""
        then = self._waiting.pop(reply, None)
        if then is not None:
            then(outcome)

    # --- publishing -------------------------------------------------------------------------

    def _message(self, subject: bytes, headers: bytes = b"") -> Msg:
        body = b"%d-" % next(self.ledger.bodies) + b"x" * self.rng.choice((0, 10, 10, 200, 3000))
        return (subject, headers, body)

    def some_handle(self) -> Any:
        return self._handle_of(self._some_name())

    def _handle_of(self, name: str) -> Any:
        process = self.process
        handle = process.node.stream(name) if process is not None else None
        if handle is None:
            self.finish()
        return handle

    def _some_name(self) -> str:
        return self.rng.choice(self.cluster.plan.names)

    def some_subject(self, handle: Any) -> bytes:
        return b"%b.%d" % (handle.name_bytes, self.rng.randint(0, 4))

    def publish(self) -> None:
        """A few messages at once."""
        handle = self.some_handle()
        if handle is not None:
            amount = self.rng.choice((1, 1, 1, 4, 20))
            self._send(handle, [self._message(self.some_subject(handle)) for _ in range(amount)])

    def publish_with_id(self) -> None:
        """A message with an id, the same again and again until it is acked."""
        handle = self.some_handle()
        if handle is None:
            return
        number = self.rng.randint(0, 40)
        msg_id = b"id-%b-%d" % (self.name, number)
        headers = REPLIES + b"Nats-Msg-Id: " + msg_id + b"\r\n\r\n"
        self._send(handle, [(b"%b.id" % handle.name_bytes, headers, msg_id)], msg_id)

    def publish_expecting(self) -> None:
        """Only if the last seq is what it was at the last ack we know of."""
        handle = self.some_handle()
        if handle is None:
            return
        last = self.ledger.last_acked.get(handle.uid, 0)
        headers = REPLIES + b"Nats-Expected-Last-Sequence: %d\r\n\r\n" % last
        self._send(handle, [self._message(self.some_subject(handle), headers)], expected=last)

    def publish_batch(self) -> None:
        """An atomic batch."""
        handle = self.some_handle()
        if handle is not None:
            self._send_batch(handle, [b""] * self.rng.randint(1, 4), None)

    def publish_batch_expecting(self) -> None:
        """An atomic batch, only if the last seq, or that of a subject, is what we know of."""
        handle = self.some_handle()
        if handle is None:
            return
        last = self.ledger.last_acked.get(handle.uid, 0)
        headers = [b""] * self.rng.randint(1, 4)
        if self.rng.random() < 0.7:
            headers[0] = b"Nats-Expected-Last-Sequence: %d\r\n" % last
            self._send_batch(handle, headers, last)
        else:
            headers[-1] = b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % last
            self._send_batch(handle, headers, None)

    def _send_batch(self, handle: Any, headers: list[bytes], expected: int | None) -> None:
        """Send a batch of as many messages as there are headers to add."""
        batch_id = next(self.ledger.bodies)
        amount = len(headers)
        msgs = []
        for at, added in enumerate(headers, 1):
            block = REPLIES + b"Nats-Batch-Id: b%d\r\nNats-Batch-Sequence: %d\r\n" % (batch_id, at)
            if at == amount:
                block += b"Nats-Batch-Commit: 1\r\n"
            msgs.append(self._message(self.some_subject(handle), block + added + b"\r\n"))
        uid = handle.uid

        def done(outcome: Any) -> None:
            if isinstance(outcome, JsError):
                self.world.counts["refused"] += 1
                self.ledger.refused.update(msg[2] for msg in msgs)
            else:
                last = outcome[0]
                for seq, msg in zip(range(last - amount + 1, last + 1), msgs, strict=True):
                    self.ledger.on_ack(uid, seq, msg)
                self.world.counts["batches"] += 1
                if expected is not None:
                    first = last - amount + 1
                    need(first == expected + 1, f"expected {expected}, stored from {first} on")
                    self.world.counts["batches as expected"] += 1
            self.finish()

        replies = [b""] * (amount - 1) + [self.await_reply(done)]
        handle.publish(msgs, replies, self.connection)

    def _send(
        self, handle: Any, msgs: list[Msg], msg_id: bytes = b"", expected: int | None = None
    ) -> None:
        uid: Uid = handle.uid
        left = len(msgs)
        before = self._last_fresh.get(uid, 0)

        def answered(msg: Msg, outcome: Any) -> None:
            nonlocal left, before
            left -= 1
            if isinstance(outcome, JsError):
                self.world.counts["refused"] += 1
                if not msg_id:
                    self.ledger.refused.add(msg[2])
            elif type(outcome) is int:
                self.ledger.on_ack(uid, outcome, msg)
                if uid not in self.ledger.checkers.forfeited:
                    text = f"{self.name!r}: acked {outcome} after {before} in {uid}"
                    need(outcome > before, text)
                before = self._last_fresh[uid] = outcome
                if expected is not None:
                    need(outcome == expected + 1, f"expected {expected}, stored as {outcome}")
                    self.world.counts["expectations met"] += 1
            else:
                self.ledger.on_ack(uid, outcome[1], msg)
                self.world.counts["duplicates found"] += 1
            if msg_id and not isinstance(outcome, JsError):
                self.ledger.on_id(uid, msg_id, outcome if type(outcome) is int else outcome[1])
            if left == 0:
                self.finish()

        replies = [self.await_reply(partial(answered, msg)) for msg in msgs]
        handle.publish(msgs, replies, self.connection)

    # --- consuming --------------------------------------------------------------------------

    def pull(self) -> None:
        handle = self.some_handle()
        if handle is None:
            return
        inbox = b"%b.p.%d" % (self.name, next(self._replies))
        if not handle.pull(
            self._pulled_from(handle.name), inbox, b"", b'{"batch":10,"expires":300000000}'
        ):
            self.finish()
            return
        self.world.after(350 * MS, self._pulled, self._operation)

    def _pulled_from(self, stream: str) -> str:
        """A consumer of this stream from which clients pull."""
        return "C"

    def _pulled(self, operation: int) -> None:
        if operation == self._operation:
            self.finish()

    def ack(self) -> None:
        """Ack something that was delivered, mostly asking for a confirmation."""
        process = self.process
        if not self.delivered or process is None:
            self.finish()
            return
        uid, name, subject, seq = self.delivered.pop(self.rng.randrange(len(self.delivered)))
        handle = next((h for h in process.node.streams() if h.uid == uid), None)
        if handle is None:
            self.finish()
            return
        if self.rng.random() < 0.3:
            verb = self.some_verb()
            if verb.startswith((b"+ACK", b"+TERM", b"+NXT")):
                is_terminating = verb.startswith(b"+TERM")
                self.ledger.on_ack_asked(uid, name, seq, is_terminating=is_terminating)
            handle.acks([subject], None, [verb])
            self.finish()
            return

        key = self.ledger.key(uid, name)

        def confirmed(headers: bytes, payload: bytes) -> None:
            self.ledger.on_double_ack(key, seq)
            self.finish()

        self.ledger.on_ack_asked(uid, name, seq)
        handle.acks([subject], [self.await_reply(confirmed)], [b"+ACK"])

    def some_verb(self) -> bytes:
        """What it says of a delivery without asking for an answer."""
        return self.rng.choice((b"+ACK", b"-NAK", b"+WPI"))

    def on_message(
        self, to: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """Something arrived on one of our subjects."""
        then = self._waiting.pop(to, None)
        if then is not None:
            then(headers, payload)
        elif reply.startswith(b"$JS.ACK."):
            self._on_delivery(reply, payload)

    def _on_delivery(self, reply: bytes, payload: bytes) -> None:
        """A consumer delivered something; `reply` says what."""
        _, _, stream, consumer, _, sseq, *_ = reply.decode().split(".")
        seq = int(sseq)
        checkers = self.ledger.checkers
        found = [
            uid
            for uid, truth in checkers.truths.items()
            if uid and truth.machine.name == stream and self._is_of(truth, seq, payload)
        ]
        if not found and any(self.cluster.is_asset(stream, uid) for uid in checkers.forfeited):
            return
        need(
            found, f"{self.name!r} is sent {stream} {seq} {payload[:20]!r}, which nobody committed"
        )
        self.world.counts["delivered"] += 1
        self._take_delivery(found[-1], consumer, reply, seq)

    def _is_of(self, truth: Any, seq: Seq, payload: bytes) -> bool:
        """True if a stream holds what was delivered."""
        return bool(truth.content.get(seq, ())[2:] == (payload,))

    def _take_delivery(self, uid: Uid, consumer: str, reply: bytes, seq: Seq) -> None:
        """Note what is to be acked."""
        if consumer in ("P", "N"):
            self.world.counts["pushed"] += 1
        if consumer in self.acking:
            self.delivered.append((uid, consumer, reply, seq))
