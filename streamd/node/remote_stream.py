"""A stream that another node leads, as `net` and `api` hold it here: all goes to that node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine.meta import StreamAsset
from streamd.machine.stream import StreamMachine
from streamd.node.ports import Done, Peers, PublishSink
from streamd.subjects import matches
from streamd.types import Msg, NodeId, Seq, StoredMsg, Uid

_RUN = "run"
_BATCH = b"Nats-Batch-"
_PLACES: list[bytes] = []  # see `_places`


class Leaders(Protocol):
    """Who leads what, as far as this node knows."""

    @property
    def peers(self) -> Peers | None: ...

    def leader_of(self, uid: Uid) -> NodeId: ...


class RemoteStream:
    """Implements the part of `ports.StreamHandle` that works from afar."""

    is_local = False

    def __init__(self, asset: StreamAsset, leaders: Leaders, relay: Relay) -> None:
        self.asset = asset
        self.uid = asset.uid
        self.name = asset.name
        self.name_bytes = asset.name.encode()
        self._leaders = leaders
        self._relay = relay

    @property
    def config(self) -> dict[str, Any]:
        return self.asset.config

    @property
    def machine(self) -> StreamMachine:
        raise AssertionError(f"stream {self.name} is led by {self.leader or 'nobody'}")

    @property
    def leader(self) -> NodeId:
        return self._leaders.leader_of(self.uid)

    def captures(self, subject: bytes) -> bool:
        """True if a publish on `subject` belongs in this stream."""
        return any(matches(pattern.encode(), subject) for pattern in self.config["subjects"] or ())

    def takes_acks(self, name: str) -> bool:
        return True  # only the leader knows

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Acks come back over the link; when it breaks, the client's timeout is the answer."""
        leader = self.leader
        if leader and self._leaders.peers is not None:
            token = self._relay.expect(leader, self.name_bytes, replies, sink)
            # Members of atomic batches are answered one by one, each at its own reply.
            own = replies if any(_BATCH in msg[1] for msg in msgs if msg[1]) else None
            self._leaders.peers.note(leader, "publish", [self.uid, token, msgs, own])
        else:
            refused = [errors.CLUSTER_NOT_AVAIL()] * len(msgs)
            sink.publish_acks(self.name_bytes, replies, refused)

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        return self._note("pull", [self.uid, consumer, reply, headers, payload])

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        self._note("acks", [self.uid, subjects, replies, payloads])

    def flow_reply(self, consumer: str, subject: bytes) -> None:
        self._note("flow", [self.uid, consumer, subject])

    def propose(self, command: list[Any], done: Done | None) -> None:
        if done is not None:
            done(errors.CLUSTER_NOT_LEADER())

    def read_barrier(self, done: Callable[[], None]) -> None:
        raise AssertionError(f"stream {self.name}: reads go to its leader")

    @property
    def unreadable(self) -> list[Seq]:
        return []  # its leader knows

    def read(self, seqs: list[Seq], done: Callable[[list[StoredMsg | None] | None], None]) -> None:
        raise AssertionError(f"stream {self.name}: reads go to its leader")

    def consumer_view(self, consumer: str) -> None:
        return None

    def _note(self, kind: str, args: list[Any]) -> bool:
        leader = self.leader
        peers = self._leaders.peers
        if not leader or peers is None:
            return False
        peers.note(leader, kind, args)
        return True


class Relay:
    """Publishes on their way to other nodes: who wants their acks.

    What an earlier process of this node sent may be answered to us, long after: a leader answers
    when the entry is committed. So tokens begin elsewhere in each process (`begin`).
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[NodeId, bytes, list[bytes], PublishSink]] = {}
        self._left: dict[int, int] = {}  # of those answered in part: how many are not
        self._count = 0

    def begin(self, nonce: int) -> None:
        """Before anything is sent: a number of 31 bits that differs from process to process."""
        self._count = nonce << 32

    @property
    def waiting_count(self) -> int:
        """Chunks that are not answered, or not wholly."""
        return len(self._waiting)

    def expect(self, leader: NodeId, stream: bytes, replies: list[bytes], sink: PublishSink) -> int:
        """Return the token under which `leader` will answer; 0 if nobody wants an ack."""
        if not any(replies):
            return 0
        if len(self._waiting) >= limits.RELAYED_MAX:
            # The oldest has waited longer than any client does.
            self._forget(next(iter(self._waiting)))
        self._count += 1
        self._waiting[self._count] = (leader, stream, replies, sink)
        return self._count

    def on_acks(self, token: int, part: list[bytes] | list[int] | None, outcomes: Any) -> None:
        """The leader answered all that was sent under `token`, or a part of it: which, by the place
        of each or, if it knows them, by their replies."""
        waiting = self._waiting.get(token)
        if waiting is None:
            return
        _, stream, replies, sink = waiting
        left = 0
        if part is not None:
            left = self._left.get(token, len(replies)) - len(part)
            replies = [replies[one] if isinstance(one, int) else one for one in part]
        if left > 0:
            self._left[token] = left
        else:
            self._forget(token)
        sink.publish_acks(stream, replies, decode_outcomes(outcomes))

    def on_down(self, node_id: NodeId) -> None:
        """What that node was asked gets no answer any more."""
        for token in [token for token, row in self._waiting.items() if row[0] == node_id]:
            self._forget(token)

    def _forget(self, token: int) -> None:
        del self._waiting[token]
        self._left.pop(token, None)


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
            self.replies = _places(count) if token else [b""] * count  # nobody wants an ack

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        if self._token:
            part: list[Any] | None = None
            if replies is not self.replies:
                part = replies if self._own is not None else list(map(int, replies))
            self._peers.note(
                self._node_id, "pubacks", [self._token, part, encode_outcomes(outcomes)]
            )


def _places(count: int) -> list[bytes]:
    """The numbers from 0 on, as texts."""
    while len(_PLACES) < count:
        _PLACES.append(b"%d" % len(_PLACES))
    return _PLACES[:count]


def encode_outcomes(outcomes: Any) -> list[Any]:
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


def decode_outcomes(values: list[Any]) -> Any:
    """Inverse of `encode_outcomes`."""
    if values and values[0] == _RUN:
        return range(values[1], values[2])
    return [_outcome(value) for value in values]


def _outcome(value: Any) -> Any:
    if type(value) is not list:
        return value
    if value[0] == "e":
        return JsError(value[1], value[2], value[3])
    return tuple(value)
