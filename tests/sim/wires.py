"""Core NATS in the simulator: inboxes of clients, wherever they are connected now.

Subjects that matter begin with a client's name. A message for a client of another node goes over
the link between the two, as it does between servers; what the link loses is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd.net.pubsub.pubacks import ack_body
from streamd.types import ACCOUNT
from tests.sim.world import MS

if TYPE_CHECKING:
    from tests.sim.host import SimProcess
    from tests.sim.workload import Client

Message = tuple[bytes, bytes, bytes, bytes]
FAR_API = b"$JS.hub.API."  # by which an origin is reached as if in another domain
LOST_SHARE = 0.01  # of what goes to a stream at another node: core NATS promises no delivery
LOOK_US = 50 * MS  # how long news of interest take


class Inbox:
    """A subject of a client, as a DeliverSink."""

    def __init__(self, wires: SimWires, subject: bytes) -> None:
        self._wires = wires
        self._subject = subject

    def deliver(self, batch: list[Message]) -> None:
        self._wires.send(self._subject, list(batch))

    def deliver_run(self, ack: bytes, subjects: Any, payloads: Any, numbers: Any) -> None:
        replies = [ack % row for row in zip(*numbers, strict=True)]
        batch = [
            (subject, reply, b"", payload)
            for subject, reply, payload in zip(subjects, replies, payloads, strict=True)
        ]
        self._wires.send(self._subject, batch)

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        self._wires.send(self._subject, [(self._subject, reply, headers, b"")])

    def is_open(self) -> bool:
        return self._wires.has_interest(self._subject)

    def is_congested(self) -> bool:
        return False


class SimWires:
    """Implements ports.Wires for one process."""

    clients: dict[bytes, Client]

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.clients = {}
        self._watches: dict[_Watch, None] = {}
        self._taken: dict[bytes, Callable[[list[Message]], object]] = {}  # by streams of ours
        self._listeners: dict[bytes, SimWires] = {}  # the nodes that listen, of the whole cluster
        # For clients connected here: what is sent to one stays in order.
        self._local: deque[tuple[Client, bytes, list[Message]]] = deque()

    def attach(self, clients: dict[bytes, Client], listeners: dict[bytes, SimWires]) -> None:
        """Know the clients and listening streams of the whole cluster, and take messages for those
        that are here."""
        self.clients = clients
        self._listeners = listeners
        self._process.peers.on_note_prefix("own.", self._on_own)
        self._process.peers.on_note_prefix("net.", self._on_note)

    # --- subscriptions of streams: their subjects name the node ---------------------------------

    def subscribe(self, subject: bytes, on_messages: Callable[[list[Message]], object]) -> object:
        self._taken[subject] = on_messages
        self._listeners[subject] = self
        return subject

    def unsubscribe(self, token: object) -> None:
        assert isinstance(token, bytes), token
        self._taken.pop(token, None)
        self._listeners.pop(token, None)

    def request(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, *, is_external: bool
    ) -> None:
        if is_external and subject.startswith(FAR_API):
            subject = b"$JS.API." + subject.removeprefix(FAR_API)  # as an import maps it
        if not subject.startswith(b"$JS.FC."):
            self._process.router.handle(subject, reply, headers, payload)
            return
        _, _, stream, consumer, _ = subject.decode().split(".")
        handle = self._process.node.stream(stream)
        if handle is not None:
            handle.flow_reply(consumer, subject, headers)

    def _listener(self, subject: bytes) -> SimWires | None:
        """The node with a stream that listens on `subject`, if a link leads there."""
        found = self._listeners.get(subject) or self._listeners.get(_pattern(subject))
        if found is None or not found._process.is_alive:
            return None
        is_near = found is self or self._process.peers.is_up(found._process.name)
        return found if is_near else None

    def _on_own(self, sender: str, kind: str, args: list[Any]) -> None:
        to, rows = args
        self._take(to, [tuple(row) for row in rows])

    def _take(self, to: bytes, batch: list[Message]) -> None:
        take = self._taken.get(to) or self._taken.get(_pattern(to))
        if take is not None:
            take(batch)

    def _client(self, subject: bytes) -> Client | None:
        return self.clients.get(subject.split(b".", 2)[0])

    def sink(self, subject: bytes, queue: bytes = b"") -> Inbox | None:
        return Inbox(self, subject) if self.has_interest(subject) else None

    def has_interest(self, subject: bytes) -> bool:
        if subject.startswith(b"$JS"):
            return self._listener(subject) is not None
        client = self._client(subject)
        if client is None or client.process is None:
            return False
        return client.process is self._process or self._process.peers.is_up(client.process.name)

    def when_drained(self, tell: Callable[[], None]) -> None:
        raise AssertionError("no inbox here is ever congested")

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if reply:
            for stream in self._process.node.catalogs.of(ACCOUNT).streams_for(subject):
                stream.publish([(subject, headers, payload)], [reply], self)
        self.send(subject, [(subject, reply, headers, payload)])

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        """See ports.PublishSink: of what the server itself published."""
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply:
                self.send(reply, [(reply, b"", b"", ack_body(stream, outcome))])

    def send(self, to: bytes, batch: list[Message]) -> None:
        """Bring messages to the client or stream that listens on `to`."""
        if to.startswith(b"$JS"):
            listener = self._listener(to)
            if listener is self:
                self._process.schedule(100, self._take, to, batch)
            elif listener is not None:
                process = self._process
                if process.host.rng.random() < LOST_SHARE:
                    process.world.fault("delivery lost")
                    return
                rows = [list(message) for message in batch]
                self._process.peers.note(listener._process.name, "own.msgs", [to, rows])
            return
        client = self._client(to)
        if client is None or client.process is None:
            return
        if client.process is self._process:
            self._local.append((client, to, batch))
            self._process.schedule(100, self._hand_over_next)
        else:
            rows = [list(message) for message in batch]
            self._process.peers.note(client.process.name, "net.msgs", [to, rows])

    def _hand_over_next(self) -> None:
        self._hand_over(*self._local.popleft())

    def _on_note(self, sender: str, kind: str, args: list[Any]) -> None:
        to, rows = args
        client = self._client(to)
        if client is not None:
            self._hand_over(client, to, [tuple(row) for row in rows])

    def _hand_over(self, client: Client, to: bytes, batch: list[Message]) -> None:
        if client.process is self._process:
            for message in batch:
                client.on_message(to, *message)

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        watch = _Watch(subject, on_change, self.has_interest(subject))
        if not self._watches:
            self._process.schedule(LOOK_US, self._look)
        self._watches[watch] = None
        on_change(watch.has_interest)
        return watch

    def listen(self, pattern: bytes, on_message: Callable[..., None]) -> object:
        """Only one subject: acks of archives are not waited for here."""
        if b"*" in pattern:
            return None

        def on_messages(batch: list[Message]) -> None:
            for message in batch:
                on_message(*message, None)

        return self.subscribe(pattern, on_messages)

    def unlisten(self, token: object) -> None:
        if token is not None:
            self.unsubscribe(token)

    def unwatch(self, token: object) -> None:
        assert isinstance(token, _Watch), token
        self._watches.pop(token, None)

    def _look(self) -> None:
        """Tell those who watch a subject if interest in it has come or gone."""
        for watch in list(self._watches):
            has_interest = self.has_interest(watch.subject)
            if has_interest != watch.has_interest and watch in self._watches:
                watch.has_interest = has_interest
                watch.on_change(has_interest)
        if self._watches:
            self._process.schedule(LOOK_US, self._look)


def _pattern(subject: bytes) -> bytes:
    """The pattern with a wildcard for the last token of a subject."""
    return subject.rpartition(b".")[0] + b".*"


class _Watch:
    """Somebody who wants to know of interest in a subject."""

    def __init__(
        self, subject: bytes, on_change: Callable[[bool], None], has_interest: bool
    ) -> None:
        self.subject = subject
        self.on_change = on_change
        self.has_interest = has_interest
