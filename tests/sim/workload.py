"""Clients of a simulated cluster: they publish, delete, purge, pull and ack, create and delete.

Each is connected to one node, does one thing at a time, and goes elsewhere when it hears nothing.
What it was promised it remembers, and compares with what the cluster has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from streamd.errors import JsError
from streamd.machine import commands
from streamd.types import Msg, Seq, Uid
from tests.sim.world import MS, World, need

if TYPE_CHECKING:
    from tests.sim.checkers import Checkers
    from tests.sim.cluster import SimCluster
    from tests.sim.host import SimProcess

TIMEOUT_US = 2000 * MS
NAMES = ("S1", "S2", "D")  # D comes and goes
REPLIES = b"NATS/1.0\r\n"


class Ledger:
    """What all clients were promised."""

    def __init__(self, world: World, checkers: Checkers) -> None:
        self.world = world
        self.checkers = checkers
        self.acked: dict[Uid, dict[Seq, Msg]] = {}
        self.last_acked: dict[Uid, Seq] = {}
        self.double_acked: dict[Uid, set[Seq]] = {}
        self.refused: set[bytes] = set()  # bodies that were definitely not stored
        self.ids: dict[tuple[Uid, bytes], Seq] = {}  # message id -> where it is
        self.bodies = count(1)

    def on_ack(self, uid: Uid, seq: Seq, msg: Msg) -> None:
        """The cluster said that `msg` is stored as `seq`."""
        self.world.counts["acked"] += 1
        acked = self.acked.setdefault(uid, {})
        known = acked.get(seq)
        need(known is None or known == msg, f"stream {uid}: seq {seq} acked twice: {known} {msg}")
        truth = self.checkers.truths.get(uid)
        stored = truth.content.get(seq) if truth is not None else None
        need(stored == msg, f"stream {uid}: {msg[2][:20]!r} acked as {seq}, which holds {stored}")
        acked[seq] = msg
        self.last_acked[uid] = max(seq, self.last_acked.get(uid, 0))


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


class Client:
    """One client. All its subjects begin with its name."""

    def __init__(self, name: bytes, cluster: SimCluster, ledger: Ledger) -> None:
        self.name = name
        self.cluster = cluster
        self.ledger = ledger
        self.world = cluster.world
        self.rng = cluster.world.rng(f"client/{name.decode()}")
        self.connection: Connection | None = None
        self.is_working = False
        self.is_slow = False
        self._replies = count(1)
        self._waiting: dict[bytes, Callable[[Any], None]] = {}
        self._operation = 0  # the one under way; answers to earlier ones come too late
        self._delivered: list[tuple[Uid, bytes, Seq]] = []
        self._last_fresh: dict[Uid, Seq] = {}

    @property
    def process(self) -> SimProcess | None:
        """The process this client is connected to, if that still runs."""
        connection = self.connection
        if connection is None or not connection.process.is_alive:
            return None
        return connection.process

    def connect(self) -> None:
        """Go to some node that runs."""
        if self.connection is not None:
            self.connection.is_open = False
            self.connection = None
        self._waiting.clear()
        self._delivered.clear()
        running = [
            host.process
            for host in self.cluster.hosts.values()
            if host.process is not None and host.process.is_alive and host.process.is_started
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
        process.schedule(self.rng.randint(50, 300), getattr(self, action))

    def _timed_out(self, operation: int) -> None:
        if operation != self._operation or not self.is_working:
            return
        self.world.counts["timeouts"] += 1
        if self.rng.random() < 0.6:
            self.connect()
        self._finish()

    def _finish(self) -> None:
        """The operation under way is over; think, then do the next."""
        self._operation += 1
        self._waiting.clear()
        pause_ms = self.rng.choice((1, 3, 10, 30))
        self.world.after(pause_ms * MS, self._next)

    def _reply(self, then: Callable[[Any], None]) -> bytes:
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

    def _handle(self) -> Any:
        process = self.process
        handle = process.node.stream(self.rng.choice(NAMES)) if process is not None else None
        if handle is None:
            self._finish()
        return handle

    def _subject(self, handle: Any) -> bytes:
        return b"%b.%d" % (handle.name_bytes, self.rng.randint(0, 4))

    def publish(self) -> None:
        """A few messages at once."""
        handle = self._handle()
        if handle is not None:
            amount = self.rng.choice((1, 1, 1, 4, 20))
            self._send(handle, [self._message(self._subject(handle)) for _ in range(amount)])

    def publish_with_id(self) -> None:
        """A message with an id, the same again and again until it is acked."""
        handle = self._handle()
        if handle is None:
            return
        number = self.rng.randint(0, 40)
        msg_id = b"id-%b-%d" % (self.name, number)
        headers = REPLIES + b"Nats-Msg-Id: " + msg_id + b"\r\n\r\n"
        self._send(handle, [(b"%b.id" % handle.name_bytes, headers, msg_id)], msg_id)

    def publish_expecting(self) -> None:
        """Only if the last seq is what it was at the last ack we know of."""
        handle = self._handle()
        if handle is None:
            return
        last = self.ledger.last_acked.get(handle.uid, 0)
        headers = REPLIES + b"Nats-Expected-Last-Sequence: %d\r\n\r\n" % last
        self._send(handle, [self._message(self._subject(handle), headers)], expected=last)

    def publish_batch(self) -> None:
        """An atomic batch."""
        handle = self._handle()
        if handle is None:
            return
        batch_id = next(self.ledger.bodies)
        amount = self.rng.randint(1, 4)
        msgs = []
        for at in range(1, amount + 1):
            headers = REPLIES + b"Nats-Batch-Id: b%d\r\nNats-Batch-Sequence: %d\r\n" % (
                batch_id,
                at,
            )
            if at == amount:
                headers += b"Nats-Batch-Commit: 1\r\n"
            msgs.append(self._message(self._subject(handle), headers + b"\r\n"))
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
            self._finish()

        replies = [b""] * (amount - 1) + [self._reply(done)]
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
                need(outcome > before, f"{self.name!r}: acked {outcome} after {before} in {uid}")
                before = self._last_fresh[uid] = outcome
                if expected is not None:
                    need(outcome == expected + 1, f"expected {expected}, stored as {outcome}")
                    self.world.counts["expectations met"] += 1
            else:
                self.ledger.on_ack(uid, outcome[1], msg)
                self.world.counts["duplicates found"] += 1
            if msg_id and not isinstance(outcome, JsError):
                seq = outcome if type(outcome) is int else outcome[1]
                known = self.ledger.ids.setdefault((uid, msg_id), seq)
                need(known == seq, f"id {msg_id!r} is stored as {known} and as {seq}")
            if left == 0:
                self._finish()

        replies = [self._reply(partial(answered, msg)) for msg in msgs]
        handle.publish(msgs, replies, self.connection)

    # --- commands ---------------------------------------------------------------------------

    def _ask(self, method: str, uid: Uid, args: list[Any], then: Callable[[Any], None]) -> None:
        """Send a request to the leader of a group, as the API does."""
        process = self.process
        assert process is not None
        operation = self._operation

        def done(result: Any) -> None:
            if operation == self._operation:
                then(result)
                self._finish()

        process.ask(method, uid, args, done)

    def _command(self, handle: Any, command: list[Any], name: str) -> None:
        def then(result: Any) -> None:
            self.world.counts["refused" if isinstance(result, JsError) else name] += 1

        self._ask("sim.stream", handle.uid, [handle.uid, command], then)

    def _now_ns(self) -> int:
        process = self.process
        assert process is not None
        return process.clock.now_ns()

    def delete_msg(self) -> None:
        handle = self._handle()
        if handle is not None:
            last = self.ledger.last_acked.get(handle.uid, 0)
            seq = self.rng.randint(1, last + 2)
            command = [commands.DELETE_MSG, self._now_ns(), seq, False]
            self._command(handle, command, "deletes")

    def purge(self) -> None:
        handle = self._handle()
        if handle is not None:
            subject = self.rng.choice((b"", self._subject(handle)))
            command = [commands.PURGE, self._now_ns(), subject, 0, self.rng.randint(0, 5)]
            self._command(handle, command, "purges")

    def create_consumer(self) -> None:
        handle = self._handle()
        if handle is not None:
            config = {
                "durable_name": "C", "name": "C", "deliver_policy": "all",
                "ack_policy": "explicit", "ack_wait": 3 * 10**9, "max_deliver": -1,
                "max_ack_pending": 1000, "max_waiting": 512, "replay_policy": "instant",
                "inactive_threshold": 0, "filter_subject": "", "num_replicas": 0,
            }  # fmt: skip
            command = [commands.CREATE_CONSUMER, self._now_ns(), "C", config, "", False]
            self._command(handle, command, "consumers")

    def create_stream(self) -> None:
        name = self.rng.choice(NAMES)
        self._meta(self.cluster.create_command(name, self._now_ns(), self.rng), "streams")

    def delete_stream(self) -> None:
        self._meta([commands.DELETE_STREAM, self._now_ns(), "D", 0], "stream deletes")

    def _meta(self, command: list[Any], name: str) -> None:
        def then(result: Any) -> None:
            self.world.counts["refused" if isinstance(result, JsError) else name] += 1

        self._ask("sim.meta", 0, [command], then)

    def read_last(self) -> None:
        """A linearizable read: it sees all that was acked before it began."""
        handle = self._handle()
        if handle is None:
            return
        uid = handle.uid
        acked = self.ledger.last_acked.get(uid, 0)

        def then(result: Any) -> None:
            if not isinstance(result, JsError):
                need(result >= acked, f"a read of stream {uid} sees {result}, acked was {acked}")
                self.world.counts["reads"] += 1

        self._ask("sim.read", uid, [uid], then)

    # --- consuming --------------------------------------------------------------------------

    def pull(self) -> None:
        handle = self._handle()
        if handle is None:
            return
        inbox = b"%b.p.%d" % (self.name, next(self._replies))
        if not handle.pull("C", inbox, b"", b'{"batch":10,"expires":300000000}'):
            self._finish()
            return
        self.world.after(350 * MS, self._pulled, self._operation)

    def _pulled(self, operation: int) -> None:
        if operation == self._operation:
            self._finish()

    def ack(self) -> None:
        """Ack something that was delivered, mostly asking for a confirmation."""
        process = self.process
        if not self._delivered or process is None:
            self._finish()
            return
        uid, subject, seq = self._delivered.pop(self.rng.randrange(len(self._delivered)))
        handle = next((h for h in process.node.streams() if h.uid == uid), None)
        if handle is None:
            self._finish()
            return
        if self.rng.random() < 0.3:
            handle.acks([subject], None, [self.rng.choice((b"+ACK", b"-NAK", b"+WPI"))])
            self._finish()
            return

        def confirmed(outcome: Any) -> None:
            self.world.counts["double acked"] += 1
            self.ledger.double_acked.setdefault(uid, set()).add(seq)
            self._finish()

        handle.acks([subject], [self._reply(confirmed)], [b"+ACK"])

    def on_message(
        self, to: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """Something arrived on one of our subjects."""
        then = self._waiting.pop(to, None)
        if then is not None:
            then(None)
            return
        if not reply.startswith(b"$JS.ACK."):
            return
        tokens = reply.split(b".")
        name, seq = tokens[2].decode(), int(tokens[5])
        found = [
            uid
            for uid, truth in self.ledger.checkers.truths.items()
            if uid and truth.machine.name == name and truth.content.get(seq, ())[2:] == (payload,)
        ]
        need(found, f"{self.name!r} is sent {name} {seq} {payload[:20]!r}, which nobody committed")
        self.world.counts["delivered"] += 1
        self._delivered.append((found[-1], reply, seq))
