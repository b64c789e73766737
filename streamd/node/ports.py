"""What a node shows to the rooms above it, and what it asks of them, as Protocols.

Upward talk is a value or one of these; `node` never imports `net` or `api`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from streamd.machine.meta import MetaMachine
from streamd.machine.stream import StreamMachine
from streamd.types import Msg, Seq, StoredMsg, Uid

Done = Callable[[Any], None]
"""Called once, on the event loop, with the command's outcome (a value or a JsError)."""


class Clock(Protocol):
    def now_ns(self) -> int:
        """Wall clock, ns since the epoch."""

    def monotonic_ms(self) -> int:
        """Never goes back; only differences mean anything."""


class PublishSink(Protocol):
    """Who published and waits for acks: a client connection, or the server itself."""

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        """`outcomes[i]` answers `replies[i]` (see commands.STORE); an empty reply wants none."""


class DeliverSink(Protocol):
    """Where a consumer's messages go: what a deliver subject or a pull's inbox leads to now."""

    def deliver(self, batch: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """Send messages: (subject, ack reply, headers, payload), in order."""

    def deliver_run(
        self,
        ack: bytes,
        subjects: Sequence[bytes],
        payloads: Sequence[bytes],
        numbers: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
    ) -> None:
        """Send messages without headers, all payloads of one size. The ack reply of each is
        `ack` %-formatted with its numbers: (stream seqs, consumer seqs, times, pending)."""

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        """Send a header-only message (a `NATS/1.0 408 ...` block) on the inbox itself."""

    def is_open(self) -> bool:
        """False once nobody would receive what is sent; re-checked before each batch."""

    def is_congested(self) -> bool:
        """True while the receiver's connection has more than its share buffered; the planner
        then waits for `on_drained` of the node."""


class Wires(Protocol):
    """Core NATS as the node sees it: net/pubsub.py. Given to the node's constructor."""

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        """Return where `subject` (within queue group `queue`, if any) leads; None: no interest."""

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Publish from the server itself (advisories, API replies, republish)."""

    def has_interest(self, subject: bytes) -> bool:
        """True if anybody would receive a message on `subject`."""

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        """Call `on_change(has_interest)` whenever interest in `subject` appears or ends. Returns
        a token for `unwatch`. Called once at once with the present state."""

    def unwatch(self, token: object) -> None: ...


class StreamHandle(Protocol):
    """One stream of this node, for net and api. Present exactly while the stream exists."""

    @property
    def uid(self) -> Uid: ...

    @property
    def name(self) -> str: ...

    @property
    def name_bytes(self) -> bytes: ...

    @property
    def machine(self) -> StreamMachine:
        """Read-only outside the group's turn."""

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Store `msgs` (one chunk of one connection); outcomes go to `sink` after apply."""

    def propose(self, command: list[Any], done: Done | None) -> None:
        """Propose a command (machine/commands.py); `done` gets its outcome after apply."""

    def read_barrier(self, done: Callable[[], None]) -> None:
        """Call `done` when all that was posted before is applied, as a linearizable read needs."""

    def read(self, seqs: list[Seq], done: Callable[[list[StoredMsg | None]], None]) -> None:
        """Read messages by seq (None: not there). May call `done` at once, or after a disk read."""

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """A `MSG.NEXT` request; False if there is no such consumer (caller answers 503)."""

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        """Messages of one chunk on `$JS.ACK.<stream>.<consumer>....`, all for one consumer;
        unparsable ones are ignored."""

    def flow_reply(self, consumer: str, subject: bytes) -> None:
        """The client answered a flow-control request: a message on `$JS.FC.<s>.<c>.<id>`."""

    def consumer_view(self, consumer: str) -> ConsumerView | None:
        """Leader-side facts about a consumer that its replicated state does not hold."""


class ConsumerView(Protocol):
    @property
    def num_waiting(self) -> int: ...

    @property
    def is_push_bound(self) -> bool: ...

    @property
    def last_delivered_ns(self) -> int:
        """0: never."""

    @property
    def last_acked_ns(self) -> int: ...

    @property
    def pinned_id(self) -> str:
        """Of the client that has a pinned consumer for itself; empty: nobody."""

    @property
    def pinned_ns(self) -> int: ...

    def unpin(self, reason: str) -> bool:
        """Take the pin from its client; False if there was none. A later barrier sees it done."""


class NodeHandle(Protocol):
    """The node, for net, api and the monitoring endpoint."""

    @property
    def meta(self) -> MetaMachine: ...

    server_id: str
    server_name: str
    store_dir: str
    memory_max: int
    storage_max: int

    def propose_meta(self, command: list[Any], done: Done) -> None:
        """Propose to the meta group. For stream commands, `done` is called once the stream's
        group is running (created), reconfigured (updated) or stopped and in trash (deleted)."""

    def stream(self, name: str) -> StreamHandle | None: ...

    def streams(self) -> Sequence[StreamHandle]:
        """All streams, sorted by name."""

    def streams_for(self, subject: bytes) -> tuple[StreamHandle, ...]:
        """Streams that capture `subject`; the caller caches it until `topology_version` changes."""

    topology_version: int

    def on_drained(self) -> None:
        """A congested connection has drained: cursors that wait for it may go on."""

    def memory_bytes(self) -> int: ...

    def storage_bytes(self) -> int: ...
