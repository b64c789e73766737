"""Requests of the JetStream API, and the context in which every endpoint answers them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, Protocol

from streamd import errors
from streamd.api.advisories import Advisories, ApiClient
from streamd.api.direct_mirrors import DirectMirrors
from streamd.config.account_options import AccountJetStream
from streamd.errors import CorruptionError, JsError
from streamd.machine import message_headers
from streamd.machine.commands import Command
from streamd.machine.meta import StreamAsset
from streamd.node.ports import Answer, Clock, Done, NodeHandle, StreamHandle, Wires
from streamd.types import AssetLimits, Document, NodeId

_UNREADABLE: Final = b"NATS/1.0 500 Message Can Not Be Read\r\n\r\n"
_TYPE_PREFIX: Final = "io.nats.jetstream.api.v1."
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(document: Document) -> bytes:
    """Return `document` as JSON bytes."""
    return _encode(document).encode("utf-8", "replace")


OnMessage = Callable[[bytes, bytes, bytes, bytes, Any], None]
"""(subject, reply, headers, payload, client)"""


class ApiWires(Wires, Protocol):
    """Core NATS as the API sees it: beside what the node uses, messages to the server itself."""

    def listen(self, pattern: bytes, on_message: OnMessage) -> object:
        """Call `on_message` for each message of a client of any node; `client` is None for those
        of other nodes, which are told of it at once. Returns a token for `unlisten`."""

    def unlisten(self, token: object) -> None: ...


class ApiCounts:
    """Counts of the API's use, which `INFO` and the monitoring endpoint show."""

    __slots__ = ("errors", "pending", "total")

    def __init__(self) -> None:
        self.total = 0
        self.errors = 0
        self.pending = 0  # requests that wait for their outcome

    def add(self, other: ApiCounts) -> None:
        """Add the counts of another account."""
        self.total += other.total
        self.errors += other.errors
        self.pending += other.pending


class CallLater(Protocol):
    def __call__(self, delay: float, callback: Callable[..., object], *args: object) -> object: ...


class UploadService(Protocol):
    """Archives that clients upload into streams that this node leads: api/restores.py."""

    def serve(self, method: str, args: list[object], answer: Answer) -> None:
        """Answer a call of a node, this one included."""


class ServerContext:
    """Settings and state of the API that the accounts of a server share."""

    __slots__ = (
        "_call_later",
        "asset_limits",
        "clock",
        "domain",
        "node",
        "park",
        "removing_until_ms",
        "restores",
        "snapshot_count",
        "version",
    )

    def __init__(
        self,
        node: NodeHandle,
        clock: Clock,
        *,
        version: str,
        domain: str,
        asset_limits: AssetLimits,
        call_later: CallLater | None = None,
    ) -> None:
        self._call_later = call_later
        self.node = node
        self.clock = clock
        self.version = version
        self.domain = domain  # "": the server has none
        self.asset_limits = asset_limits
        self.park: Callable[[Request], None] | None = None  # until somebody serves it
        self.removing_until_ms = 0  # a server's removal is proposed, and may be decided till then
        self.snapshot_count = 0  # of archives that are being sent
        self.restores: UploadService | None = None  # set once, by the router

    def later(self, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        """Call `callback` after a while, by the loop's clock."""
        call_later = self._call_later or asyncio.get_running_loop().call_later
        call_later(delay_s, callback, *args)


class ApiContext:
    """Context that the endpoints share when they serve one account; each account has its own."""

    __slots__ = (
        "account",
        "advisories",
        "counts",
        "direct_mirrors",
        "jetstream",
        "server",
        "streams",
        "wires",
    )

    def __init__(
        self,
        server: ServerContext,
        account: str,
        wires: ApiWires,
        advisories: Advisories,
        jetstream: Callable[[], AccountJetStream | None],
    ) -> None:
        """`jetstream` returns the account's limits as they are now; None: it has no JetStream."""
        self.server = server
        self.account = account
        self.wires = wires
        self.advisories = advisories
        self.jetstream = jetstream
        self.streams = server.node.account(account)
        self.direct_mirrors = DirectMirrors(self.streams)
        self.counts = ApiCounts()

    @property
    def node(self) -> NodeHandle:
        return self.server.node

    @property
    def clock(self) -> Clock:
        return self.server.clock

    @property
    def domain(self) -> str:
        return self.server.domain

    @property
    def asset_limits(self) -> AssetLimits:
        return self.server.asset_limits

    def asset(self, name: str) -> StreamAsset | None:
        """Return the account's stream of that name as the meta group knows it."""
        return self.server.node.meta.stream(name, self.account)

    @property
    def is_clustered(self) -> bool:
        """True if there may be other nodes; then streams have peers and leaders."""
        return self.node.is_clustered


# (account, reply subject, headers, payload[, index]): publish it, your client waits; once you have
# applied that entry of the meta group, for what the client does next may rest on it.
ANSWER: Final = "api.answer"

HERE: Final = 0  # any node answers
META: Final = 1  # the meta group's leader answers
STREAM: Final = 2  # the leader of the stream that the subject names answers
REPLICA: Final = 3  # the same, or while there is none, any node that has a replica


class Endpoint:
    """A row of the router's table: who answers a subject, and the shape of the answer."""

    __slots__ = (
        "blank",
        "has_rest",
        "is_administrative",
        "is_audited",
        "is_cluster_only",
        "is_for_all",
        "is_json",
        "is_list",
        "is_read",
        "name_count",
        "serve",
        "type_name",
        "where",
    )

    def __init__(
        self,
        type_name: str,
        serve: Callable[[Request], None],
        *,
        name_count: int = 0,
        has_rest: bool = False,
        blank: Document | None = None,
        where: int = HERE,
        is_cluster_only: bool = False,
        is_audited: bool = True,
    ) -> None:
        self.where = where  # of a cluster
        self.is_cluster_only = is_cluster_only  # elsewhere nobody answers it
        self.is_audited = is_audited  # what it finds; errors always are
        self.type_name = type_name  # "" if the answers are messages, not JSON
        self.is_json = bool(type_name)
        self.is_read = False  # may be asked twice
        self.is_for_all = False  # every node answers
        self.is_administrative = False  # of the whole cluster: not for every user
        self.is_list = False  # of many infos: takes longer than others
        self.serve = serve
        self.name_count = name_count  # tokens after the verb: stream, consumer
        self.has_rest = has_rest  # and any number more
        self.blank = blank or {}  # what an error response holds beside the error


ERROR_DETAIL: Final = b"Nats-Error-Detail"
"""Header of a request; "true": a refusal says more than nats-server's."""


class Request:
    """A request on its way to its answer; answered or refused exactly once."""

    __slots__ = (
        "client",
        "context",
        "endpoint",
        "headers",
        "hops",
        "may_go_back",
        "names",
        "on_done",
        "origin",
        "parked_until_ms",
        "payload",
        "reply",
        "subject",
    )

    def __init__(
        self,
        context: ApiContext,
        endpoint: Endpoint,
        subject: bytes,
        names: list[str],
        reply: bytes,
        headers: bytes,
        payload: bytes,
        client: ApiClient | None,
    ) -> None:
        self.context = context
        self.endpoint = endpoint
        self.subject = subject
        self.names = names
        self.reply = reply
        self.headers = headers
        self.payload = payload
        self.client = client
        self.hops = 0  # nodes that have passed it on
        self.origin: NodeId = ""  # the node of its client, if that is another one
        self.parked_until_ms = 0  # if it waits for a leader: how long
        # The node that passed it on is told. False: nobody answered, it is to look elsewhere.
        self.on_done: Callable[[bool], None] | None = None
        self.may_go_back = False  # another node passed it on, and waits for word of it

    # --- answers --------------------------------------------------------------------------------

    def answer(self, fields: Document, headers: bytes = b"") -> None:
        """Send the success response made of `fields`."""
        endpoint = self.endpoint
        document = {"type": _TYPE_PREFIX + endpoint.type_name} | fields
        self._send(document, is_audited=endpoint.is_audited, headers=headers)

    def answered(self, body: bytes) -> None:
        """Note that the node of a stream's leader has sent the success response `body`."""
        self.context.advisories.audit(self.client, self.subject, self.payload, body)
        self.finish()

    def refuse(self, error: JsError, more: Document | None = None) -> None:
        """Send the error response; but wait for the next leader if that may serve it. `more`:
        further fields."""
        park = self.context.server.park
        if isinstance(error, errors.Unserved) and park is not None:
            park(self)
            return
        self.context.counts.errors += 1
        shown = error.as_json()
        if self.headers and message_headers.get(self.headers, ERROR_DETAIL) == b"true":
            shown["detail"] = self._detail(error)
        head = {"type": _TYPE_PREFIX + self.endpoint.type_name, "error": shown}
        self._send(head | (more or self.endpoint.blank), is_audited=True)

    def _detail(self, error: JsError) -> Document:
        """Return what a client that asks is told of an error besides: docs/extensions.md."""
        detail: Document = {"reason": error.description, "retriable": error.code == 503}
        if error.field:
            detail["field"] = error.field
        if error.code == 503:
            node, where = self.context.node, self.endpoint.where
            # A change that went into some log may have been done, whatever became of its leader.
            is_undone = self.endpoint.is_read or isinstance(error, errors.Unserved)
            detail["outcome"] = "not done" if is_undone else "unknown"
            asset = self.context.asset(self.names[0]) if self.names and where != META else None
            leader = node.meta_leader if asset is None else node.leader_of(asset.uid)
            if leader:
                detail["leader"] = leader
        return detail

    def status(self, block: bytes) -> None:
        """Send a header-only message: for requests whose answers are messages."""
        if self.reply:
            self.send(block, b"")

    def unreadable(self) -> None:
        """Answer that what was asked for is stored, and that the disk does not give it back."""
        if self.endpoint.is_json:
            reason = "the message is stored and can't be read"
            self.refuse(errors.STREAM_STORE_FAILED(err=reason))
        else:
            self.status(_UNREADABLE)

    def no_responders(self) -> None:
        """Answer as if nobody listened on the subject."""
        self.status(b"NATS/1.0 503\r\nNats-Subject: " + self.subject + b"\r\n\r\n")

    def _send(self, document: Document, *, is_audited: bool, headers: bytes = b"") -> None:
        body = to_json(document)
        if self.reply:
            self.send(headers, body)
        if is_audited:
            self.context.advisories.audit(self.client, self.subject, self.payload, body)
        self.finish()

    def send(self, headers: bytes, payload: bytes) -> None:
        """Send a message to who asked.

        A request that came through a third node may be here before the word that its client
        listens on the reply subject, which took another link: then the client's own node sends it.
        So it does what tells of a change in the meta group, which it may not have applied yet.
        """
        node, origin = self.context.node, self.origin
        peers = node.peers if origin else None
        if peers is not None and peers.is_up(origin):
            args: list[object] = [self.context.account, self.reply, headers, payload]
            if self.endpoint.where == META and not self.endpoint.is_read:
                args.append(node.meta.applied)
            if self.hops > 1 or len(args) > 4:
                peers.note(origin, ANSWER, args)
                return
        self.context.wires.publish(self.reply, b"", headers, payload)

    def finish(self, *, is_answered: bool = True) -> None:
        """Mark the request as done: answered here or elsewhere, or dropped."""
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done(is_answered)

    # --- steps ----------------------------------------------------------------------------------

    def stream(self) -> StreamHandle:
        """Return the stream the subject names; refuses the request if there is none."""
        context = self.context
        handle = context.streams.stream(self.names[0])
        if handle is None or handle.config.get("restoring"):
            reason = context.node.failed.get((context.account, self.names[0]))
            if reason:  # its bytes are there, and wait for an operator
                raise errors.STREAM_OFFLINE_REASON(err=reason)
            asset = context.asset(self.names[0])
            if asset is None or asset.config.get("restoring"):
                raise errors.STREAM_NOT_FOUND()
            # It is listed: its group is about to run, or to hear that it is whole.
            raise errors.Unserved()
        if self.context.is_clustered and not handle.is_local:
            raise errors.Unserved()  # its leader has just changed
        return handle

    def replica(self) -> StreamHandle | None:
        """The stream the subject names, as far as it is on this node; None: it is not."""
        handle = self.context.streams.stream(self.names[0])
        if handle is not None and handle.config.get("restoring"):
            return None
        if handle is None or not self.context.is_clustered or handle.is_local:
            return handle
        return self.context.node.replica(handle.uid)

    def asset(self, *, may_be_restoring: bool = False) -> StreamAsset:
        """Return the stream the subject names as the meta group knows it, wherever it is."""
        asset = self.context.asset(self.names[0])
        if asset is None or (asset.config.get("restoring") and not may_be_restoring):
            raise errors.STREAM_NOT_FOUND()
        return asset

    def propose(
        self,
        handle: StreamHandle,
        command: Command,
        then: Done,
    ) -> None:
        """Propose `command` to a stream; `then` gets its outcome unless that is an error, which
        refuses the request."""
        self.context.counts.pending += 1
        handle.propose(command, self._settled(then))

    def when_current(self, handle: StreamHandle, step: Callable[..., None], *args: object) -> None:
        """Run `step` once it can see all that was asked of the stream before."""
        handle.read_barrier(lambda: self.guard(step, *args), lambda: self.guard(self._lost))

    def _lost(self) -> None:
        self.stream()  # refuses what was asked of one that is gone by now
        raise errors.Unserved()

    def propose_meta(
        self,
        command: Command,
        then: Done,
        again: Callable[[], None] | None = None,
    ) -> None:
        """Propose `command` to the meta group; as `propose`. `again` serves the request anew if
        what the command rests on was changed by another."""
        self.context.counts.pending += 1
        self.context.node.propose_meta(command, self._settled(then, again))

    def _settled(self, then: Done, again: Callable[[], None] | None = None) -> Done:
        def settle(outcome: object) -> None:
            self.context.counts.pending -= 1
            if again is not None and outcome == errors.STREAM_MOVE_IN_PROGRESS():
                self.guard(again)
            elif isinstance(outcome, JsError):
                self.refuse(outcome)
            else:
                self.guard(then, outcome)

        return settle

    def guard(self, step: Callable[..., None], *args: object) -> None:
        """Run a step of serving it. Its JsError refuses the request; so does a block that can't be
        read where the step looked: the client can't help it, and others are served meanwhile."""
        try:
            step(*args)
        except JsError as error:
            self.refuse(error)
        except CorruptionError as err:
            replica = self.replica() if self.names else None
            if replica is not None:
                replica.damaged(err)
            self.unreadable()
