"""Ports of a node: Protocols of what it shows to the rooms above it, and what it asks of them.

Upward talk is a value or one of these; `node` never imports `net` or `api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

from streamd.errors import CorruptionError
from streamd.latency_histogram import LatencyHistogram
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.commands import Command, PublishOutcome
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.machine.streams.stream import StreamMachine
from streamd.node.clock import Clock as Clock
from streamd.node.stream_groups.stream_cut import StreamCut
from streamd.protocol.node_hello import Facts, Hello
from streamd.raft.messages import Message
from streamd.types import Index, Msg, NodeId, Seq, StoredMsg, StreamKey, Term, Uid

Done = Callable[[Any], None]
"""Called once, on the event loop, with the outcome of a command or the answer to a call: a JsError,
or a value whose type the command (machine/commands.py) or call (protocol/peer_schemas.py) says."""

Answer = Callable[[object], None]
"""Called once, now or later, with a value for the wire or a JsError."""


class Peers(Protocol):
    """The other nodes, over one link each. What is sent on one link arrives in order,
    or not at all."""

    def send(self, node_id: NodeId, uid: Uid, messages: list[Message]) -> None:
        """Send Raft messages of group `uid`; lost without a word when there is no link."""

    def call(
        self,
        node_id: NodeId,
        method: str,
        args: Sequence[object],
        done: Done,
        timeout_ms: int = 5000,
    ) -> None:
        """Ask a node; `done` gets its answer or a JsError, exactly once, and never at once."""

    def note(self, node_id: NodeId, kind: str, args: Sequence[object]) -> None:
        """Tell a node something; no answer comes."""

    def is_up(self, node_id: NodeId) -> bool:
        """True while there is a link."""

    def nodes(self) -> list[NodeId]:
        """Nodes with a link, sorted."""

    def refuse(self, node_id: NodeId, reason: str) -> None:
        """End the link to a node that must not be talked to any more, if there is one."""


class PeerHandler(Protocol):
    """Receiver of what other nodes send; called on the event loop."""

    def hello(self) -> Hello:
        """Return what the other side of a new link is told."""

    def on_peer_up(self, node_id: NodeId, hello: Hello) -> None:
        """Take in a node whose link is up. Raises ConfigError if it must not be talked to."""

    def on_peer_down(self, node_id: NodeId) -> None: ...

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None: ...

    def on_call(self, sender: NodeId, method: str, args: list[object], answer: Answer) -> None:
        """Answer a call: a msgpack-able value or a JsError, now or later, once."""

    def on_note(self, sender: NodeId, kind: str, args: list[object]) -> None: ...


OnStreamEvent = Callable[["StreamHandle", str, dict[str, object]], None]
"""(stream, kind, fields): see api/advisories.py."""

OnMetaEvent = Callable[[str, dict[str, object]], None]
"""(kind, fields), likewise."""


class PublishSink(Protocol):
    """Publisher that waits for acks: a client connection, or the server itself."""

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        """`outcomes[i]` answers `replies[i]` (see commands.STORE); an empty reply wants none."""


class DeliverSink(Protocol):
    """Destination of a consumer's messages: what a deliver subject or a pull's inbox leads to
    now."""

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
        """False once no subscriber would receive what is sent; re-checked before each batch."""

    def is_congested(self) -> bool:
        """True while the receiver's connection has more than its share buffered; the planner
        then waits for `Wires.when_drained`."""


class Wires(Protocol):
    """Core NATS as the node sees it: net/pubsub/message_router.py. Given to the node's
    constructor."""

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        """Return where `subject` (within queue group `queue`, if any) leads; None: no interest."""

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Publish from the server itself (advisories, API replies, republish)."""

    def has_interest(self, subject: bytes) -> bool:
        """True if a subscriber would receive a message on `subject`."""

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        """Call `on_change(has_interest)` whenever the first subscription to just `subject` (of the
        queue group, if one is given) appears or the last one ends; those with wildcards do not
        count. Returns a token for `unwatch`. Called once at once with the present state."""

    def unwatch(self, token: object) -> None: ...

    def subscribe(
        self,
        subject: bytes,
        on_messages: Callable[[list[tuple[bytes, bytes, bytes, bytes]]], object],
    ) -> object:
        """Call `on_messages` with what comes on a subject, here or from other nodes: lists
        of (subject, reply, headers, payload), where a consumer's messages have their own subjects.
        Returns a token for `unsubscribe`."""

    def unsubscribe(self, token: object) -> None: ...

    def request(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, *, is_external: bool
    ) -> None:
        """Send a request, or an answer to a flow-control request, as this server: to this node, to
        others, over leaf links or by imports. `is_external`: what is meant is not in this account
        and domain, even if a stream here has its name."""

    def when_drained(self, tell: Callable[[], None]) -> None:
        """Call `tell`, once, when a receiver that was congested has room again."""


class StreamHandle(Protocol):
    """Handle of a stream, for net and api. Present exactly while the stream exists."""

    @property
    def uid(self) -> Uid: ...

    @property
    def name(self) -> str: ...

    @property
    def name_bytes(self) -> bytes: ...

    @property
    def account(self) -> str: ...

    @property
    def is_local(self) -> bool:
        """True if this node leads the stream; only then are `machine` and reads to be had."""

    @property
    def is_expected(self) -> bool:
        """True if the stream has a leader, or will in a moment."""

    @property
    def config(self) -> StreamConfig: ...

    def captures(self, subject: bytes) -> bool:
        """True if a publish on `subject` belongs in this stream."""

    def takes_acks(self, name: str) -> bool:
        """False if surely no cursor takes acks: there is no such consumer, or it wants none."""

    @property
    def machine(self) -> StreamMachine:
        """Read-only outside the group's turn. Not for a stream that another node leads."""

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Store `msgs` (one chunk of one connection); outcomes go to `sink` after apply."""

    def judge(self, msg: Msg, done: Callable[[PublishOutcome, tuple[bytes, bool]], None]) -> None:
        """Find out what would become of a publish, and store nothing: its outcome as far as that
        is known before, and its `place`."""

    def place(self, subject: bytes) -> tuple[bytes, bool]:
        """Return under which subject a message is kept, and whether it is kept: no consumer may be
        interested. Of a stream that another node leads the latter is not known, and True."""

    def propose(self, command: Command, done: Done | None) -> None:
        """Propose a command (machine/commands.py); `done` gets its outcome after apply."""

    def read_barrier(self, done: Callable[[], None], lost: Callable[[], None]) -> None:
        """Call `done` when all that was posted before is applied, as a linearizable read needs; or
        `lost` if this node leads no more and can't know."""

    @property
    def unreadable(self) -> list[Seq]:
        """Messages that are stored and that the disk does not give back, as far as is known."""

    def read(self, seqs: list[Seq], done: Callable[[list[StoredMsg | None] | None], None]) -> None:
        """Read messages by seq (None: not there). May call `done` at once, or after a disk read;
        with None if one of them is there and can't be read."""

    def cut(self, start_seq: Seq = 0) -> StreamCut:
        """Return the stream as it is now, with its consumers, to be read from `start_seq` on while
        it goes on. Not for a stream that another node leads."""

    def damaged(self, err: CorruptionError) -> None:
        """Report a block, met through `machine`, that can't be read, or lacks something."""

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        """A `MSG.NEXT` request; False if there is no such consumer (caller answers 503)."""

    def acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        """Messages of one chunk on `$JS.ACK.<stream>.<consumer>....`, all for one consumer;
        unparsable ones are ignored."""

    def flow_reply(self, consumer: str, subject: bytes, headers: bytes = b"") -> None:
        """Take a client's answer to a flow-control request: a message on `$JS.FC.<s>.<c>.<id>`.
        Its headers may ack."""

    def consumer_view(self, consumer: str) -> ConsumerView | None:
        """Leader-side facts about a consumer that its replicated state does not hold."""

    @property
    def is_close_mirror(self) -> bool:
        """True of a mirror that has all but a few of its origin's messages, at its leader."""

    def dead_letter_error(self, subject: bytes) -> str:
        """Return why dead letters to a subject could not be stored lately; "": they can, or this
        node does not lead the stream."""

    def origin_infos(self) -> Mapping[str, OriginInfo]:
        """Leader-side facts about each origin of a mirror or sources, by its index name."""


class OriginInfo(Protocol):
    """Facts about the link to an origin."""

    @property
    def lag(self) -> int: ...

    @property
    def active_ns(self) -> int:
        """Time since anything came from the origin; -1: nothing did."""

    @property
    def error(self) -> dict[str, Any] | None: ...

    @property
    def seq(self) -> Seq:
        """The last of the origin's seqs that was taken."""


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
        """Id of the client that has a pinned consumer for itself; empty: none."""

    @property
    def pinned_ns(self) -> int: ...

    def unpin(self, reason: str) -> bool:
        """Take the pin from its client; False if there was none. A later barrier sees it done."""


class LogWaits(NamedTuple):
    """Waits of the log for the disk, of one append a second."""

    now_s: float  # how long one waits by now; 0: none does
    waited: int  # appends that waited, since the start
    total_ns: int
    longest_ns: int


class NodeHealth(Protocol):
    """Health of a node, for the monitoring endpoint."""

    @property
    def store_fault(self) -> str:
        """Reason why nothing is stored here any more; empty: the store directory is there."""

    @property
    def latencies(self) -> Mapping[str, LatencyHistogram]:
        """Durations since the start: of writes of the log, `log_write`, of groups' turns, `turn`,
        and of what applied committed entries in them, `apply`."""

    def log_waits(self) -> LogWaits:
        """Return how long appends to the log have waited for the disk."""

    def damage_reasons(self) -> dict[Uid, str]:
        """Return why copies of streams are damaged here; what is left of them is served."""

    @property
    def verified_ns(self) -> tuple[int, int]:
        """Unix times at which the last whole verification of all files began and ended; (0, 0):
        there was none since the start."""

    def lost_copy_reason(self, asset: StreamAsset) -> str:
        """Return why a stream whose only copy is here is not served, or not all of it, and what to
        do about that; "": it is."""

    def discarded_reasons(self) -> dict[StreamKey, str]:
        """Return, by stream, what was acknowledged, or may have been, and is only kept aside."""

    def counts(self) -> dict[str, int]:
        """Return what was found wrong with this node's copies since its start, what became of it,
        and how much was read to find out."""


class MemberInfo(TypedDict):
    """Another member of a group, as this node sees it."""

    name: NodeId
    current: bool
    offline: bool
    active_ns: int
    lag: int
    is_voter: bool


class MonitorInfo(TypedDict, total=False):
    """Messages that wait for a group's turn, and what its next snapshot would cover."""

    waiting_count: int
    unsaved_count: int
    unsaved_bytes: int
    saved_ns: int
    saving_ns: int


class GroupInfo(MonitorInfo, total=False):
    """Facts about this node's member of a group; groups/group_info.py makes it, whole but for
    what only a running monitor knows."""

    raft_group: str
    leader: NodeId
    leader_since_ns: int
    role: str
    term: Term
    commit: Index
    applied: Index
    last_index: Index
    last_term: Term
    vote: NodeId
    first_index: Index
    peers: list[MemberInfo]
    is_changing: bool
    write_quorum: int
    write_quorum_wanted: int
    rescue_quorum: int
    state: str
    reason: str
    digest: int
    digest_index: Index
    agreement: dict[NodeId, bool]
    """Members that were compared with, and whether each holds what this node holds."""
    at_ms: int


class AccountStreams(Protocol):
    """The streams of one account on a node: meta_group/catalog.py."""

    def stream(self, name: str) -> StreamHandle | None:
        """Return the stream, wherever it is led (`is_local`); None: there is none of that name."""

    def streams(self) -> Sequence[StreamHandle]:
        """Return all streams of the account, sorted by name."""

    def streams_for(self, subject: bytes) -> tuple[StreamHandle, ...]:
        """Streams that capture `subject`; the caller caches it until `topology_version` changes."""

    def streams_under(self, prefix: bytes) -> tuple[StreamHandle, ...] | None:
        """Streams that capture every subject of `prefix` (ends with a dot) and one more token;
        None: some capture only a part of them. Cached likewise."""

    @property
    def topology_version(self) -> int:
        """Another number whenever anything about streams has changed."""


class NodeHandle(Protocol):
    """The node, for net, api and the monitoring endpoint."""

    @property
    def health(self) -> NodeHealth: ...

    @property
    def meta(self) -> MetaMachine: ...

    @property
    def server_id(self) -> str: ...

    @property
    def server_name(self) -> NodeId: ...

    @property
    def store_dir(self) -> str: ...

    @property
    def memory_max(self) -> int: ...

    @property
    def storage_max(self) -> int: ...

    @property
    def failed(self) -> dict[StreamKey, str]:
        """Streams that can't be served on this node, and why."""

    def is_short_of_files(self) -> bool:
        """True if this process may hardly open one more file (`ulimit -n`)."""

    def propose_meta(self, command: Command, done: Done) -> None:
        """Propose to the meta group. For stream commands, `done` is called once the stream's
        group is running (created), reconfigured (updated) or stopped and in trash (deleted)."""

    def account(self, name: str) -> AccountStreams:
        """Return the streams of an account; any name is one."""

    def streams(self) -> Sequence[StreamHandle]:
        """Return the streams of all accounts, sorted by account and name."""

    @property
    def is_clustered(self) -> bool:
        """True for a node of a cluster, false for a single server."""

    @property
    def cluster_name(self) -> str: ...

    @property
    def node_facts(self) -> dict[NodeId, Facts]:
        """Facts about each node, this one included: tags, limits, what it holds."""

    @property
    def peers(self) -> Peers | None: ...

    @property
    def meta_leader(self) -> NodeId:
        """The node that leads the meta group, as far as is known here; empty: none."""

    @property
    def is_meta_leader(self) -> bool:
        """True if this node leads the meta group and has applied all before its term."""

    def leader_of(self, uid: Uid) -> NodeId:
        """The node that leads a stream, as far as is known here; empty: none."""

    def rescue_meta(self, quorum: int, done: Done) -> None:
        """Let this member of the meta group take so many servers for enough for some minutes, if
        it knows no leader. `done` gets how many it took before, or a JsError."""

    def removal_obstacle(self, name: NodeId) -> str:
        """A stream that may need the server `name`, which is away, for a majority; empty: none."""

    def replica(self, uid: Uid) -> StreamHandle | None:
        """This node's member of a stream's group, whatever its role."""

    def watch_events(self, on_stream: OnStreamEvent, on_meta: OnMetaEvent) -> None:
        """Call these for what a stream's machine or leader, or the meta group's leader, reports;
        one pair, in place of any before."""

    def watch_leaders(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever a leader that is known here changes."""

    def watch_streams(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever anything about streams has changed."""

    def waiting_count(self, uid: Uid) -> int | None:
        """Messages that wait for the turn of this node's member of a group; None: it has none."""

    def group_info(self, uid: Uid) -> GroupInfo | None:
        """Facts about this node's member of a group; None if it has none."""

    def block_bytes(self, uid: Uid) -> tuple[int, int] | None:
        """(bytes of a stream's blocks, bytes that their files take) on this node; None: it has
        none, or none in files."""

    def step_down(self, uid: Uid, preferred: NodeId, done: Done) -> None:
        """Transfer the leadership of a group that this node leads."""

    def wait_configured(
        self, uid: Uid, meta_index: int, done: Done, timeout_ms: int = 5000
    ) -> None:
        """Call `done` once the stream's leader runs it with the config of that meta entry."""

    @property
    def is_stopping(self) -> bool:
        """True from when the node was told to stop."""

    def wait_for_requests(self, has_any: Callable[[], bool]) -> None:
        """A node that stops waits while there are any, within bounds: other nodes serve them."""

    def on_call_prefix(self, prefix: str, serve: Callable[..., None]) -> None:
        """Serve calls of other nodes whose method starts so by `serve(sender, method, args,
        answer)`."""

    def on_note_prefix(self, prefix: str, take: Callable[..., None]) -> None:
        """Take notes of other nodes whose kind starts so by `take(sender, kind, args)`."""

    def used_bytes(self, account: str, replicas: int = 0) -> tuple[int, int]:
        """Return the bytes of an account's messages on this node: in memory, on files; with
        `replicas`, of its streams that have so many."""

    def memory_bytes(self) -> int: ...

    def storage_bytes(self) -> int: ...
