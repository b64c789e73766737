"""`ForwardedRequests`: publishes, pulls and acks that other nodes pass on to a leader here.

The node of the client has forwarded them (stream_groups/remote_stream.py); a leader that is none
any more gives publishes back, and lets the rest go: clients ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamd import errors, limits
from streamd.node.ports import Answer, Peers, Wires
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.forwarded_publishes import RelaySink, encode_outcomes
from streamd.protocol import acks
from streamd.types import Msg, NodeId, Uid


class ForwardedRequests:
    """Requests of other nodes' clients for the streams that this node leads."""

    def __init__(
        self,
        groups: LocalGroups,
        peers: Peers | None,
        wires: Callable[[str], Wires],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`wires`: the subject space of an account. `call_later(delay_s, callback)` is the
        loop's."""
        self._groups = groups
        self._peers = peers
        self._wires = wires
        self._call_later = call_later

    def on_publish(
        self, sender: NodeId, args: tuple[Uid, int, list[Msg], list[bytes] | None]
    ) -> None:
        """Store messages, or give them back: the note `publish`."""
        uid, token, msgs, own_replies = args
        assert self._peers is not None
        replica = self._groups.get(uid)
        sink = RelaySink(self._peers, sender, token, own_replies, len(msgs))
        replies = sink.replies
        if replica is not None and replica.is_ready:
            replica.note_writer_at(sender)
            copies = [(subject, headers, payload) for subject, headers, payload in msgs]
            replica.publish(copies, replies, sink)
        else:
            sink.give_back(msgs, replies)

    def serve_judge(
        self, sender: NodeId, args: tuple[Uid, bytes, bytes, bytes], answer: Answer
    ) -> None:
        """Say what would become of a publish: the call `judge`."""
        uid, subject, headers, payload = args
        replica = self._groups.get(uid)
        if replica is None or not replica.is_ready:
            answer(errors.CLUSTER_NOT_AVAIL())
            return
        replica.judge(
            (subject, headers, payload),
            lambda outcome, place: answer([list(encode_outcomes([outcome])), *place]),
        )

    def on_pull(self, sender: NodeId, args: tuple[Uid, str, bytes, bytes, bytes]) -> None:
        """Serve a pull request: the note `pull`.

        The client's own server may be a third one (without JetStream): then the note may be here
        before the news that the client listens to `reply`, which took another link, and nothing
        could be delivered. Such a pull is served a moment later.
        """
        uid, consumer, reply, headers, payload = args
        replica = self._groups.get(uid)
        if replica is None or self._wires(replica.account).has_interest(reply):
            self._pull(uid, consumer, reply, headers, payload)
        else:
            pull = partial(self._pull, uid, consumer, reply, headers, payload)
            self._call_later(limits.API_EARLY_S, pull)

    def _pull(self, uid: Uid, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> None:
        replica = self._groups.get(uid)
        if replica is None or not replica.is_ready:
            return
        if not replica.pull(consumer, reply, headers, payload):
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{replica.name}.{consumer}"
            self._answer_no_responders(replica.account, reply, subject.encode())

    def on_acks(
        self, sender: NodeId, args: tuple[Uid, list[bytes], list[bytes] | None, list[bytes]]
    ) -> None:
        """Take acks of one consumer: the note `acks`."""
        uid, subjects, replies, payloads = args
        replica = self._groups.get(uid)
        if replica is None or not replica.is_ready:
            return
        target = acks.parse_target(subjects[0])
        if target is None or replica.takes_acks(target[0].decode(errors="replace")):
            replica.acks(subjects, replies, payloads)
        elif replies is not None:
            for subject, reply in zip(subjects, replies, strict=True):
                if reply:
                    self._answer_no_responders(replica.account, reply, subject)

    def on_flow(self, sender: NodeId, args: tuple[Uid, str, bytes, *tuple[bytes, ...]]) -> None:
        """Take an answer to a flow-control request: the note `flow`."""
        uid, consumer, subject, *headers = args
        replica = self._groups.get(uid)
        if replica is not None and replica.is_ready:
            replica.flow_reply(consumer, subject, *headers)

    def _answer_no_responders(self, account: str, reply: bytes, subject: bytes) -> None:
        """Answer as a server does for a request on a subject without subscribers."""
        headers = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
        self._wires(account).publish(reply, b"", headers, b"")
