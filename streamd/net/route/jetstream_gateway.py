"""JetStream for the clients of a server that has none, by servers of its cluster that have it.

A server without JetStream knows no stream, so what its clients publish for streams, ask of the API
and acknowledge goes whole to one server that has it, the same one as long as that is there, so that
order is kept. That server treats it as if the client were its own: it serves, or passes on to who
leads. Answers and acks come back as any message to a subject that somebody there listens to.

Each account has its own gate. Notes between the two (`PeerLinks.note`) begin with the account; in
order on each link:

    gate.want      [..]                                    tell me what streams capture
    gate.subjects  [.., is_full, [pattern, ...], [pattern, ...]]   added, and gone
    gate.msgs      [.., client, [[subject, reply, headers, payload, may it administer?], ...]]   as
                   a client published them

Each server with JetStream tells all patterns it knows of. One that answers a client about a new
stream has told of its subjects before, on the same link: so the client can publish at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from streamd import errors
from streamd.api.remote_client import ClientFacts, client_of, facts_of
from streamd.limits import NET_ROUTE_CACHE_MAX
from streamd.net.pubsub.delivery_sinks import ServerSink
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.subject_routes import Judged, Place, RouteTable
from streamd.net.route.remote_messages import PeerLinks
from streamd.subject_tree import SubjectTree
from streamd.types import Msg, NodeId

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.asset_configs import StreamConfig
    from streamd.node.ports import PublishSink

_PREFIX: Final = "gate."
_KINDS: Final = ("gate.want", "gate.subjects", "gate.msgs", "api.answer")
_OWN: Final = (b"$JS.API.>", b"$JS.ACK.>", b"$JS.FC.>")


Subjects = tuple[bool, list[bytes], list[bytes]]
"""Arguments of the note `gate.subjects`."""


class GatewayClient(ClientFacts, Protocol):
    """A client whose publishes go through the gateway."""

    def may_administer(self, subject: bytes) -> bool:
        """True if the client may make requests that concern the whole cluster."""


class AccountGate(Protocol):
    """The end of one account's gate at this server."""

    def on_up(self, node_id: NodeId) -> None: ...

    def on_down(self, node_id: NodeId) -> None: ...

    def on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        """Take a note of another server, without the account."""


class Gate:
    """The gates of all accounts: takes notes to the account that they name."""

    def __init__(self, links: PeerLinks, obtain: Callable[[str], object]) -> None:
        """`obtain` makes an account that another server knows and this one does not yet, and adds
        its gate."""
        self._obtain = obtain
        self._by_account: dict[str, AccountGate] = {}
        links.on_note_prefix(_PREFIX, self._on_note)
        links.on_up(self._on_up)
        links.on_down(self._on_down)

    def add(self, account: str, gate: AccountGate) -> None:
        """Take notes of an account to its gate from here on."""
        self._by_account[account] = gate

    def take_answers(self, links: PeerLinks) -> None:
        """Take answers of the API too: this server has no JetStream."""
        links.on_note_prefix("api.answer", self._on_note)

    def _on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        if kind not in _KINDS:
            return
        account, *rest = args
        if account not in self._by_account:
            self._obtain(account)
        gate = self._by_account.get(account)
        if gate is not None:
            gate.on_note(sender, kind, rest)

    def _on_up(self, node_id: NodeId) -> None:
        for gate in list(self._by_account.values()):
            gate.on_up(node_id)

    def _on_down(self, node_id: NodeId) -> None:
        for gate in list(self._by_account.values()):
            gate.on_down(node_id)


class GatewayStream:
    """The end at the server without JetStream: in the router's eyes a stream, led elsewhere, that
    captures all subjects of JetStream."""

    is_local = False
    name_bytes = b""
    config: Final[StreamConfig] = {}

    def __init__(
        self,
        account: str,
        table: RouteTable,
        publish: Callable[[bytes, bytes, bytes, bytes], None],
        links: PeerLinks,
        server_name: NodeId,
    ) -> None:
        """`publish(subject, reply, headers, payload)` is the router's."""
        self._account = account
        self._table = table
        self._publish = publish
        self._links = links
        self._server_name = server_name
        self._patterns: dict[NodeId, set[bytes]] = {}  # that each server told
        self._tree: SubjectTree[NodeId] = SubjectTree()
        self._server: NodeId = ""  # that gets what it can serve
        self._servers: dict[bytes, NodeId] = {}  # by subject, as it was found
        for node_id in links.nodes():
            self.on_up(node_id)
        self._changed()

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """See ports.StreamHandle. The acks come from where the messages go, to their replies."""
        client: list[object] = []
        publisher: GatewayClient | None = None
        if not isinstance(sink, ServerSink):
            publisher = cast(GatewayClient, sink)  # no other sinks publish
            client = facts_of(publisher, self._server_name)
        run: list[tuple[bytes, bytes, bytes, bytes, bool]] = []
        target = ""
        for (subject, headers, payload), reply in zip(msgs, replies, strict=True):
            server = self._server_for(subject)
            if server != target and run:
                self._links.note(target, "gate.msgs", [self._account, client, run])
                run = []
            target = server
            is_trusted = False
            if publisher is not None and subject.startswith(b"$JS."):
                is_trusted = publisher.may_administer(subject)
            run.append((subject, reply, headers, payload, is_trusted))
        if run:
            self._links.note(target, "gate.msgs", [self._account, client, run])

    def judge(self, msg: Msg, done: Judged) -> None:
        """See `subject_routes.CapturingStream`; nobody asks: the stream is none."""
        done(errors.CLUSTER_NOT_AVAIL(), self.place(msg[0]))

    def place(self, subject: bytes) -> Place:
        """See `subject_routes.CapturingStream`."""
        return subject, True

    def _server_for(self, subject: bytes) -> NodeId:
        found = self._servers.get(subject)
        if found is None:
            able = self._tree.overlapping(subject)
            if self._server not in self._patterns:
                self._server = min(self._patterns, default="")
            found = self._server if self._server in able else min(able, default="")
            if len(self._servers) >= NET_ROUTE_CACHE_MAX:
                self._servers.clear()
            self._servers[subject] = found
        return found

    # --- for routes -----------------------------------------------------------------------------

    def _streams_for(self, subject: bytes) -> tuple[GatewayStream, ...]:
        return (self,) if self._tree.overlapping(subject) else ()

    def _streams_under(self, prefix: bytes) -> tuple[GatewayStream, ...] | None:
        if not self._tree.overlapping(prefix + b"*"):
            return ()
        return (self,) if self._tree.covering(prefix + b"*") else None

    def _changed(self) -> None:
        self._servers.clear()
        self._table.set_streams(self._streams_for, self._streams_under)

    # --- from other servers ---------------------------------------------------------------------

    def on_up(self, node_id: NodeId) -> None:
        """Ask a server what it can serve: its link is up."""
        self._links.note(node_id, "gate.want", [self._account])

    def on_down(self, node_id: NodeId) -> None:
        """Forget a server whose link is gone."""
        for pattern in self._patterns.pop(node_id, ()):
            self._tree.remove(pattern, node_id)
        self._changed()

    def on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        """See AccountGate."""
        if kind == "api.answer":
            self._on_answer(*args)
        elif kind == "gate.subjects":
            self._on_subjects(sender, args)

    def _on_subjects(self, sender: NodeId, args: Subjects) -> None:
        is_full, added, gone = args
        if is_full:
            gone = list(self._patterns.get(sender, ()))
        known = self._patterns.setdefault(sender, set())
        for pattern in known.intersection(gone):
            self._tree.remove(pattern, sender)
            known.discard(pattern)
        for pattern in set(added) - known:
            self._tree.add(pattern, sender)
            known.add(pattern)
        self._changed()

    def _on_answer(self, reply: bytes, headers: bytes, payload: bytes, *_: int) -> None:
        """Take an answer to a request that went on to a server which the client's own does not know
        of yet."""
        self._publish(reply, b"", headers, payload)


class GatewayServer:
    """The end at a server with JetStream: tells of the streams, and takes in their messages."""

    def __init__(
        self,
        account: str,
        router: MessageRouter,
        stream_subjects: Callable[[], Iterable[str]],
        links: PeerLinks,
        call_soon: Callable[[Callable[[], None]], object],
        domain: str = "",
    ) -> None:
        """`stream_subjects` returns the patterns that streams of the cluster capture;
        `streams_changed` is to be called whenever they may be others."""
        self._account = account
        self._router = router
        self._stream_subjects = stream_subjects
        self._links = links
        self._call_soon = call_soon
        self._own = set(_OWN)
        if domain:
            self._own.add(b"$JS.%b.API.>" % domain.encode())
        self._told: dict[NodeId, set[bytes]] = {}  # patterns, by server that wants to know
        self._is_scheduled = False

    def streams_changed(self) -> None:
        """Tell the other servers of it when the loop's iteration is over."""
        if self._told and not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._tell_all)

    def _tell_all(self) -> None:
        self._is_scheduled = False
        patterns = self._patterns()
        for node_id, told in list(self._told.items()):
            if patterns != told:
                self._told[node_id] = patterns
                changes = [self._account, False, sorted(patterns - told), sorted(told - patterns)]
                self._links.note(node_id, "gate.subjects", changes)

    def _patterns(self) -> set[bytes]:
        """Return the patterns of all that concerns JetStream, wherever it is served."""
        return self._own.union(pattern.encode() for pattern in self._stream_subjects())

    def on_up(self, node_id: NodeId) -> None:
        """See AccountGate. A server that wants to know will say so."""

    def on_down(self, node_id: NodeId) -> None:
        """Forget a server whose link is gone."""
        self._told.pop(node_id, None)

    def on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        """See AccountGate."""
        if kind == "gate.want":
            self._told[sender] = patterns = self._patterns()
            self._links.note(sender, "gate.subjects", [self._account, True, sorted(patterns), []])
        elif kind == "gate.msgs":
            client = client_of(args[0])
            for *message, is_administrator in args[1]:
                if client is not None:
                    client = client._replace(is_administrator=is_administrator)
                self._router.publish_for(client, *message)
            self._router.published_for()
