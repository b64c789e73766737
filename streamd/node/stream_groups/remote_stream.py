"""A stream that another node leads, as `net` and `api` hold it here: all goes to that node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from streamd import errors
from streamd.errors import CorruptionError, JsError
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.commands import Command, PublishOutcome
from streamd.machine.meta import StreamAsset
from streamd.machine.streams.stream import StreamMachine
from streamd.node.cluster.leaders import Leaders
from streamd.node.ports import Done, OriginInfo, Peers, PublishSink
from streamd.node.stream_groups.forwarded_publishes import WireOutcomes, decode_outcomes
from streamd.node.stream_groups.ingest_transform import IngestTransform
from streamd.node.stream_groups.publish_forwarding import PublishForwarding
from streamd.node.stream_groups.stream_cut import StreamCut
from streamd.subjects import matches
from streamd.types import Msg, NodeId, Seq, StoredMsg


class RemoteStream:
    """Implements the part of `ports.StreamHandle` that works from afar."""

    is_local = False

    def __init__(
        self,
        asset: StreamAsset,
        leaders: Leaders,
        forwarding: PublishForwarding,
        peers: Peers | None,
    ) -> None:
        self.asset = asset
        self.uid = asset.uid
        self.name = asset.name
        self.account = asset.account
        self.name_bytes = asset.name.encode()
        self._leaders = leaders
        self._forwarding = forwarding
        self._peers = peers

    @property
    def config(self) -> StreamConfig:
        return self.asset.config

    @property
    def machine(self) -> StreamMachine:
        raise AssertionError(f"stream {self.name} is led by {self.leader or 'nobody'}")

    @property
    def is_close_mirror(self) -> bool:
        return False  # the leader knows

    def dead_letter_error(self, subject: bytes) -> str:
        return ""

    def origin_infos(self) -> Mapping[str, OriginInfo]:
        return {}  # the leader knows

    @property
    def leader(self) -> NodeId:
        return self._leaders.leader_of(self.uid)

    @property
    def is_expected(self) -> bool:
        """True if the stream has a leader, or will in a moment."""
        return self._forwarding.is_expected(self.uid)

    def captures(self, subject: bytes) -> bool:
        """True if a publish on `subject` belongs in this stream."""
        if self.config.get("restoring"):
            return False
        return any(matches(pattern.encode(), subject) for pattern in self.config["subjects"] or ())

    def takes_acks(self, name: str) -> bool:
        return True  # only the leader knows

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        self._forwarding.publish(self.uid, self.name_bytes, msgs, replies, sink)

    def judge(self, msg: Msg, done: Callable[[PublishOutcome, tuple[bytes, bool]], None]) -> None:
        """See ports.StreamHandle: its leader knows."""
        leader = self.leader
        if not leader or self._peers is None:
            done(errors.CLUSTER_NOT_AVAIL(), self.place(msg[0]))
            return

        def answered(answer: object) -> None:
            if isinstance(answer, JsError):
                done(answer, self.place(msg[0]))
            else:
                outcomes, subject, is_kept = cast(tuple[WireOutcomes, bytes, bool], answer)
                done(decode_outcomes(outcomes)[0], (subject, is_kept))

        self._peers.call(leader, "judge", [self.uid, *msg], answered)

    def place(self, subject: bytes) -> tuple[bytes, bool]:
        """See ports.StreamHandle."""
        ((to, _, _),) = IngestTransform().apply(self.config, [(subject, b"", b"")], 0)
        return to, True

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        return self._note("pull", [self.uid, consumer, reply, headers, payload])

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        self._note("acks", [self.uid, subjects, replies, payloads])

    def flow_reply(self, consumer: str, subject: bytes, headers: bytes = b"") -> None:
        self._note("flow", [self.uid, consumer, subject, *([headers] if headers else [])])

    def propose(self, command: Command, done: Done | None) -> None:
        if done is not None:
            done(errors.Unserved())

    def read_barrier(self, done: Callable[[], None], lost: Callable[[], None]) -> None:
        raise AssertionError(f"stream {self.name}: reads go to its leader")

    @property
    def unreadable(self) -> list[Seq]:
        return []  # its leader knows

    def read(self, seqs: list[Seq], done: Callable[[list[StoredMsg | None] | None], None]) -> None:
        raise AssertionError(f"stream {self.name}: reads go to its leader")

    def cut(self, start_seq: Seq = 0) -> StreamCut:
        raise AssertionError(f"stream {self.name}: reads go to its leader")

    def damaged(self, err: CorruptionError) -> None:
        raise AssertionError(f"stream {self.name}: nothing of it was looked into here") from err

    def consumer_view(self, consumer: str) -> None:
        return None

    def _note(self, kind: str, args: list[object]) -> bool:
        leader = self.leader
        if not leader or self._peers is None:
            return False
        self._peers.note(leader, kind, args)
        return True
