"""Publishes between a client's node and the leader: waiting clients there, ack routes here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from streamd import limits
from streamd.errors import JsError
from streamd.machine.commands import PublishOutcome
from streamd.node.ports import Peers, PublishSink
from streamd.types import Msg, NodeId, Uid

_RUN = "run"

Part = list[bytes] | list[int] | None
"""Messages of a chunk, by their replies or their places; None: all of them."""

WireOutcomes = list[Any]
"""Outcomes as a note has them, see `encode_outcomes`."""

_PLACES: list[bytes] = []  # see `_places`


class Chunk(NamedTuple):
    """Publishes of one client to one stream."""

    stream: bytes
    msgs: list[Msg]
    replies: list[bytes]
    sink: PublishSink
    sent_ms: int = 0  # when a leader was sent them first, by the monotonic clock; 0: not yet
    is_again: bool = False  # that leader is gone, and may have stored them


class Relayed(NamedTuple):
    """A chunk on its way to another node. Its messages are left out if they can't be sent again."""

    leader: NodeId
    uid: Uid
    chunk: Chunk
    is_batch: bool  # its members are answered at their own replies, some not at all
    byte_count: int = 0  # of the messages


class Relay:
    """Publishes on their way to other nodes, and the clients that want their acks.

    What an earlier process of this node sent may be answered to us, long after: a leader answers
    when the entry is committed. So tokens begin elsewhere in each process (`begin`).
    """

    def __init__(
        self,
        on_over: Callable[[int, Relayed], None],
        on_lost: Callable[[int, Relayed, list[int]], None],
    ) -> None:
        self._waiting: dict[int, Relayed] = {}
        self._answered: dict[int, list[bytes | int]] = {}  # of those answered in part: which are
        self.held_bytes = 0  # of messages that may be sent again
        self._on_over = on_over  # no answer to a chunk is waited for any more
        self._on_lost = on_lost  # ... before: the leader of these of its messages is gone
        self.count = 0  # the last token given

    def begin(self, nonce: int) -> None:
        """Before anything is sent: a number of 31 bits that differs from process to process."""
        self.count = nonce << 32

    @property
    def waiting_count(self) -> int:
        """Chunks that are not answered, or not wholly."""
        return len(self._waiting)

    def expect(self, row: Relayed) -> int:
        """Return the token under which the leader will answer; 0 if no client wants an ack."""
        chunk = row.chunk
        if not any(chunk.replies):
            return 0
        if len(self._waiting) >= limits.RELAYED_MAX:
            # The oldest has waited longer than any client does.
            self._forget(next(iter(self._waiting)))
        if self.held_bytes + row.byte_count > limits.PUBLISH_KEPT_BYTES_MAX:
            row = row._replace(chunk=chunk._replace(msgs=[]), byte_count=0)
        self.held_bytes += row.byte_count
        self.count += 1
        self._waiting[self.count] = row
        return self.count

    def expire(self, now_ms: int) -> None:
        """Wait no longer for what was sent very long ago: its leader began anew, perhaps, and knows
        nothing of it."""
        before_ms = now_ms - limits.RELAYED_MS
        while self._waiting:
            token, row = next(iter(self._waiting.items()))
            if row.chunk.sent_ms > before_ms:
                return
            self._forget(token)

    def on_acks(self, token: int, part: Part, outcomes: WireOutcomes) -> None:
        """The leader answered all that was sent under `token`, or a part of it: which, by the place
        of each or, if it knows them, by their replies."""
        found = self.part_of(token, part)
        if found is not None:
            row, replies = found
            self.finish(token, part)
            row.chunk.sink.publish_acks(row.chunk.stream, replies, decode_outcomes(outcomes))

    def part_of(self, token: int, part: Part) -> tuple[Relayed, list[bytes]] | None:
        """A chunk that waits, and the replies of that part of it."""
        row = self._waiting.get(token)
        if row is None:
            return None
        replies = row.chunk.replies
        if part is None:
            return row, replies
        return row, [replies[one] if isinstance(one, int) else one for one in part]

    def finish(self, token: int, part: Part) -> None:
        """Wait no more for that part of a chunk."""
        if part is not None:
            answered = self._answered.setdefault(token, [])
            answered += part
            # A member of a fast batch may be answered twice.
            if len(set(answered)) < len(self._waiting[token].chunk.replies):
                return
        self._forget(token)

    def on_down(self, node_id: NodeId) -> None:
        """Wait no more for that node: it answers nothing any more."""
        for token in [token for token, row in self._waiting.items() if row.leader == node_id]:
            row = self._waiting[token]
            if row.chunk.msgs:
                answered = set(self._answered.get(token, ()))
                places = range(len(row.chunk.msgs))
                self._on_lost(token, row, [place for place in places if place not in answered])
            self._forget(token)

    def forget(self, uid: Uid) -> None:
        """The stream is gone: nothing that was sent to it is answered any more."""
        for token in [token for token, row in self._waiting.items() if row.uid == uid]:
            self._forget(token)

    def _forget(self, token: int) -> None:
        row = self._waiting.pop(token)
        self._answered.pop(token, None)
        self.held_bytes -= row.byte_count
        self._on_over(token, row)


class RelaySink:
    """At the leader: where the acks of a relayed batch go. Implements ports.PublishSink.

    `replies` are what is published here with: the client's own, or, if they stayed where the client
    is, the place of each message in what was relayed.
    """

    def __init__(
        self, peers: Peers, node_id: NodeId, token: int, own: list[bytes] | None, count: int
    ) -> None:
        self._peers = peers
        self._node_id = node_id
        self._token = token
        self._own = own
        if own is not None:
            self.replies = own
        else:
            self.replies = _places(count) if token else [b""] * count  # no client wants an ack

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        if self._token:
            args = [self._token, self._part(replies), encode_outcomes(outcomes)]
            self._peers.note(self._node_id, "pubacks", args)

    def give_back(self, msgs: list[Msg], replies: list[bytes]) -> None:
        """This node does not lead, and none of it was proposed: the client's node sends it again,
        as it alone knows what comes after."""
        if self._token:
            self._peers.note(self._node_id, "given_back", [self._token, self._part(replies), msgs])

    def _part(self, replies: list[bytes]) -> Part:
        if replies is self.replies:
            return None
        return replies if self._own is not None else list(map(int, replies))


def _places(count: int) -> list[bytes]:
    """The numbers from 0 on, as texts."""
    while len(_PLACES) < count:
        _PLACES.append(b"%d" % len(_PLACES))
    return _PLACES[:count]


def encode_outcomes(outcomes: Sequence[PublishOutcome]) -> Sequence[object]:
    """Outcomes of a STORE as msgpack-able values."""
    if type(outcomes) is range:
        return [_RUN, outcomes.start, outcomes.stop]
    return [
        ["e", outcome.code, outcome.err_code, outcome.description]
        if isinstance(outcome, JsError)
        else list(outcome)
        if type(outcome) is tuple
        else outcome
        for outcome in outcomes
    ]


def decode_outcomes(values: WireOutcomes) -> Sequence[PublishOutcome]:
    """Inverse of `encode_outcomes`."""
    if values and values[0] == _RUN:
        _, start, stop = values
        return range(start, stop)
    return [_outcome(value) for value in values]


def _outcome(value: int | list[Any]) -> PublishOutcome:
    if isinstance(value, int):
        return value
    if value[0] == "e":
        return JsError(value[1], value[2], value[3])
    seq, count, *name = value
    return (seq, count, name[0]) if name else (seq, count)
