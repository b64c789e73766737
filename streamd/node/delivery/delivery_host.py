"""Port of a cursor's parts: what they need of the stream's group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamd.errors import CorruptionError
from streamd.machine.commands import Command
from streamd.machine.streams.stream import StreamMachine
from streamd.node.ports import DeliverSink
from streamd.types import Seq

Item = tuple[bytes, bytes, bytes, bytes]
"""A delivery: (subject, ack reply, headers, payload)."""


class DeliveryHost(Protocol):
    """The stream's group, as the parts of a cursor see it."""

    machine: StreamMachine
    decode_fields: Callable[[bytes, int], tuple[Seq, int, bytes, bytes, bytes]]
    """(blob, position in it) -> (seq, ts, subject, headers, payload): the codec's."""
    max_payload: int

    def now_ns(self) -> int:
        """Return the wall-clock time of this turn."""

    def now_ms(self) -> int:
        """Return the monotonic time of this turn."""

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """Return (base, blob) holding the whole record at `offset`. None: a read was started, and
        the group will call `plan` of this cursor again when it is done."""

    def on_lost_block(self, err: CorruptionError) -> None:
        """The index can't say where the next messages are. The planning cursor is woken again."""

    def propose(self, command: Command, *, is_forced: bool, tag: list[bytes] | None = None) -> None:
        """Append `command` to the log. Not forced: may wait <= 10 ms for other entries. Once
        applied the group calls `cursor.on_applied(command, tag)` with the same two objects."""

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        """Return where `subject` leads now; None: it has no subscriber."""

    def advise(self, kind: str, fields: dict[str, object]) -> None:
        """Publish an event as those of Effects.events, but the leader's own observation."""

    def wait_for_room(self) -> None:
        """Call `plan` of the planning cursor again when a congested receiver has room."""

    def reply_empty(self, reply: bytes) -> None:
        """Answer a client that asked for a confirmation."""
