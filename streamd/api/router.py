"""`$JS.API.>`: from a subject to the endpoint that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypedDict, Unpack

from streamd import errors, limits
from streamd.api import (
    account_endpoints,
    account_operations,
    cluster_endpoints,
    consumer_endpoints,
    direct_get,
    message_endpoints,
    restores,
    server_endpoints,
    stream_endpoints,
    stream_snapshots,
)
from streamd.api.advisories import Advisories, ApiClient
from streamd.api.forwarding import FORWARD, Forwarding
from streamd.api.remote_client import RemoteClient, client_of
from streamd.api.request import (
    ANSWER,
    META,
    REPLICA,
    STREAM,
    ApiContext,
    ApiCounts,
    ApiWires,
    CallLater,
    Endpoint,
    Request,
    ServerContext,
)
from streamd.config.account_options import AccountJetStream
from streamd.machine.message_headers import get, parse_number
from streamd.node.clock import SystemClock
from streamd.node.ports import Answer, Clock, NodeHandle, StreamHandle
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT, AssetLimits, Document, NodeId

PREFIX: Final = b"$JS.API."
_DIRECT: Final = b"$JS.API.DIRECT.GET."

_READS: Final = (
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.INFO",
    "STREAM.MSG.GET",
    "CONSUMER.NAMES",
    "CONSUMER.LIST",
    "CONSUMER.INFO",
)
# What concerns servers rather than a stream's own messages. That another member is to lead a stream
# or a consumer harms nobody: it is an account's, as with nats-server.
_ADMINISTRATIVE: Final = (
    "ACCOUNT.STREAM.MOVE",
    "ACCOUNT.STREAM.CANCEL_MOVE",
    "META.LEADER.STEPDOWN",
    "META.RESCUE",
    "SERVER.REMOVE",
    "SERVER.EVACUATE",
    "STREAM.PEER.REMOVE",
    "STREAM.PEER.EVACUATE",
    "STREAM.CANCEL_MOVE",
)
# What the system account may ask for, which has no JetStream of its own.
_OF_SERVERS: Final = (b"$JS.API.META.", b"$JS.API.SERVER.", b"$JS.API.ACCOUNT.")
_OF_OPERATORS: Final = (
    b"$JS.API.META.LEADER.STEPDOWN",
    b"$JS.API.META.RESCUE",
    b"$JS.API.SERVER.REMOVE",
    b"$JS.API.SERVER.EVACUATE",
)
# What nobody but the system account is heard about, for it names any account.
_OF_ACCOUNTS: Final = b"$JS.API.ACCOUNT."
_LISTS: Final = ("STREAM.LIST", "CONSUMER.LIST")
# Form of the refusal that the system account gets, whatever it asks for of its streams.
_OF_SYSTEM: Final = Endpoint("system_response", lambda request: None)
_PAGED: Final[Document] = {"total": 0, "offset": 0, "limit": 0}

Serve = Callable[[Request], None]
OnMessage = Callable[[bytes, bytes, bytes, bytes, ApiClient | None], None]
"""(subject, reply, headers, payload, client); None: the server itself."""

ForwardArgs = tuple[bytes, bytes, bytes, bytes, list[Any], int, str]
"""Subject, reply, headers, payload, what `client_of` takes, hops, account."""


class More(TypedDict, total=False):
    """Further parameters of an `Endpoint`."""

    has_rest: bool
    blank: Document
    where: int
    is_cluster_only: bool
    is_audited: bool


def _table(
    operations: account_operations.AccountOperations, *, is_clustered: bool
) -> dict[str, Endpoint]:
    def row(type_name: str, serve: Serve, names: int = 0, **more: Unpack[More]) -> Endpoint:
        return Endpoint(type_name and f"{type_name}_response", serve, name_count=names, **more)

    def moving(type_name: str, serve: Serve, names: int, where: int = META) -> Endpoint:
        """Endpoints that move replicas or leadership: they need another server."""
        return row(
            type_name, serve if is_clustered else stream_endpoints.needs_cluster, names, where=where
        )

    table = {
        "INFO": row("account_info", account_endpoints.info, where=META),
        "STREAM.CREATE": row("stream_create", stream_endpoints.create, 1, where=META),
        "STREAM.UPDATE": row("stream_update", stream_endpoints.update, 1, where=META),
        "STREAM.NAMES": row(
            "stream_names", stream_endpoints.names, where=META, blank=_PAGED | {"streams": None}
        ),
        "STREAM.LIST": row(
            "stream_list", stream_endpoints.list_infos, where=META, blank=_PAGED | {"streams": []}
        ),
        "STREAM.INFO": row("stream_info", stream_endpoints.info, 1, where=STREAM, blank=_PAGED),
        "STREAM.DELETE": row("stream_delete", stream_endpoints.delete, 1, where=META),
        "STREAM.PURGE": row(
            "stream_purge", stream_endpoints.purge, 1, where=STREAM, blank={"purged": 0}
        ),
        "STREAM.SNAPSHOT": row("stream_snapshot", stream_snapshots.snapshot, 1, where=STREAM),
        "STREAM.RESTORE": row(
            "stream_restore", restores.restore, 1, where=META, blank={"deliver_subject": ""}
        ),
        "STREAM.MSG.GET": row(
            "stream_msg_get", message_endpoints.get, 1, where=STREAM, is_audited=False
        ),
        "STREAM.MSG.DELETE": row("stream_msg_delete", message_endpoints.delete, 1, where=STREAM),
        "STREAM.PEER.REMOVE": moving("stream_remove_peer", cluster_endpoints.remove_peer, 1),
        "STREAM.PEER.EVACUATE": moving("stream_evacuate_peer", cluster_endpoints.remove_peer, 1),
        "STREAM.CANCEL_MOVE": moving("stream_cancel_move", cluster_endpoints.cancel_move, 1),
        "STREAM.LEADER.STEPDOWN": moving(
            "stream_leader_stepdown", cluster_endpoints.step_down_stream, 1, where=STREAM
        ),
        "CONSUMER.CREATE": row(
            "consumer_create", consumer_endpoints.create, 1, where=STREAM, has_rest=True
        ),
        "CONSUMER.DURABLE.CREATE": row(
            "consumer_create", consumer_endpoints.create_durable, 2, where=STREAM
        ),
        "CONSUMER.NAMES": row(
            "consumer_names",
            consumer_endpoints.names,
            1,
            where=STREAM,
            blank=_PAGED | {"consumers": []},
        ),
        "CONSUMER.LIST": row(
            "consumer_list",
            consumer_endpoints.list_infos,
            1,
            where=STREAM,
            blank=_PAGED | {"consumers": []},
        ),
        "CONSUMER.INFO": row("consumer_info", consumer_endpoints.info, 2, where=STREAM),
        "CONSUMER.DELETE": row("consumer_delete", consumer_endpoints.delete, 2, where=STREAM),
        "CONSUMER.PAUSE": row(
            "consumer_pause",
            consumer_endpoints.pause,
            2,
            where=STREAM,
            blank={"paused": False, "pause_until": "0001-01-01T00:00:00Z"},
        ),
        "CONSUMER.UNPIN": row("consumer_unpin", consumer_endpoints.unpin, 2, where=STREAM),
        "CONSUMER.RESET": row(
            "consumer_reset", consumer_endpoints.reset, 2, where=STREAM, blank={"reset_seq": 0}
        ),
        "CONSUMER.MSG.NEXT": row("", consumer_endpoints.next_msgs, 2),
        "CONSUMER.PEER.REMOVE": moving(
            "consumer_remove_peer", cluster_endpoints.remove_consumer_peer, 2, where=STREAM
        ),
        "CONSUMER.PEER.EVACUATE": moving(
            "consumer_evacuate_peer", cluster_endpoints.remove_consumer_peer, 2, where=STREAM
        ),
        "CONSUMER.LEADER.STEPDOWN": moving(
            "consumer_leader_stepdown", cluster_endpoints.step_down_consumer, 2, where=STREAM
        ),
    }
    table["ACCOUNT.PURGE"] = row("account_purge", operations.purge, 1, where=META)
    table["ACCOUNT.PURGE"].is_administrative = True
    for name in _READS:
        table[name].is_read = True
    for name in _LISTS:
        table[name].is_list = True
    if is_clustered:
        table["META.LEADER.STEPDOWN"] = moving(
            "meta_leader_stepdown", cluster_endpoints.step_down_meta, 0
        )
        table["SERVER.REMOVE"] = moving("meta_server_remove", server_endpoints.remove, 0)
        table["SERVER.EVACUATE"] = moving("meta_server_evacuate", server_endpoints.evacuate, 0)
        table["META.RESCUE"] = row("meta_rescue", server_endpoints.rescue)
        table["META.RESCUE"].is_for_all = True
        table["ACCOUNT.STREAM.MOVE"] = moving("stream_update", operations.move, 2)
        table["ACCOUNT.STREAM.CANCEL_MOVE"] = moving(
            "stream_cancel_move", operations.cancel_move, 2
        )
        for name in _ADMINISTRATIVE:
            table[name].is_administrative = True
    return table


class Subscriptions(Protocol):
    """The subscriptions of this node, to which the API adds its own."""

    def subscribe_internal(self, pattern: bytes, callback: OnMessage) -> object: ...


class ApiAccounts(Protocol):
    """The accounts of a server, as the API serves them."""

    @property
    def system_account(self) -> str:
        """The account whose users run the servers."""

    def wires(self, account: str) -> ApiWires:
        """Return the subject space of an account; any name is one."""

    def jetstream(self, account: str) -> AccountJetStream | None:
        """Return the limits of an account; None: it may not use JetStream."""

    def with_jetstream(self) -> list[str]:
        """Return the names of the accounts that may use JetStream, sorted."""

    def when_settled(self, account: str, action: Callable[[], None]) -> None:
        """Call `action` when it is known what an account may use: now, but for an account of
        which another node knows and whose token is still being fetched."""


class SoleAccount:
    """`ApiAccounts` of a server that has one account, which may use all that there is."""

    system_account = SYSTEM_ACCOUNT

    def __init__(self, wires: ApiWires) -> None:
        self._wires = wires

    def wires(self, account: str) -> ApiWires:
        return self._wires

    def jetstream(self, account: str) -> AccountJetStream | None:
        return AccountJetStream()

    def with_jetstream(self) -> list[str]:
        return [ACCOUNT]

    def when_settled(self, account: str, action: Callable[[], None]) -> None:
        action()


class Router:
    """The JetStream API of one node, for all accounts."""

    def __init__(
        self,
        node: NodeHandle,
        accounts: ApiAccounts,
        *,
        server_version: str,
        domain: str = "",
        clock: Clock | None = None,
        call_later: CallLater | None = None,
        asset_limits: AssetLimits | None = None,
    ) -> None:
        """`call_later` is the loop's; without it, that of the running loop."""
        self.server = ServerContext(
            node,
            clock or SystemClock(),
            version=server_version,
            domain=domain,
            asset_limits=asset_limits or AssetLimits(),
            call_later=call_later,
        )
        self.server.restores = self._restores = restores.Restores(self.server, self.context_of)
        self._accounts = accounts
        self._contexts: dict[str, ApiContext] = {}
        self.context = self.context_of(ACCOUNT)
        operations = account_operations.AccountOperations(self.context_of, accounts.with_jetstream)
        self._table = _table(operations, is_clustered=node.is_clustered)
        # Its names: the stream, and what follows it as one.
        self._direct = Endpoint("", direct_get.get, where=REPLICA)
        self._forwarding: Forwarding | None = None
        self.server.park = self._wait
        if node.is_clustered:
            later = call_later or asyncio.get_running_loop().call_later
            self._forwarding = Forwarding(self.server, self._serve, later, self._publish)
            self.server.park = self._forwarding.park
            node.on_note_prefix("api.", self._on_note)
            node.on_call_prefix("api.", self._on_call)
        self._found: dict[bytes, tuple[Endpoint, list[str]] | None] = {}

    @property
    def counts(self) -> ApiCounts:
        """Requests of all accounts so far, for monitoring."""
        counts = ApiCounts()
        for context in self._contexts.values():
            counts.add(context.counts)
        return counts

    def jetstream_accounts(self) -> list[str]:
        """Return the names of the accounts that may use JetStream, sorted."""
        return self._accounts.with_jetstream()

    def context_of(self, account: str) -> ApiContext:
        """Return the context in which requests of an account are served."""
        context = self._contexts.get(account)
        if context is None:
            server, wires = self.server, self._accounts.wires(account)
            advisories = Advisories(server.node, account, wires, server.clock, server.domain)
            jetstream = partial(self._accounts.jetstream, account)
            context = ApiContext(server, account, wires, advisories, jetstream)
            self._contexts[account] = context
        return context

    def _publish(self, account: str, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.context_of(account).wires.publish(reply, b"", headers, payload)

    def announce(self) -> None:
        """Announce from here on what streams and the meta group report."""
        self.server.node.watch_events(self._on_stream_event, self._on_meta_event)
        self._restores.watch()  # of a start before this one

    def _on_stream_event(self, handle: StreamHandle, kind: str, fields: Document) -> None:
        if kind == "restore_led":
            self._restores.watch()
        else:
            self.context_of(handle.account).advisories.on_stream_event(handle, kind, fields)

    def _on_meta_event(self, kind: str, fields: Document) -> None:
        # For operators; and for clients of a server without accounts, which has no other users.
        for account in (self._accounts.system_account, ACCOUNT):
            self.context_of(account).advisories.on_meta_event(kind, fields)

    def attach(self, subscriptions: Subscriptions, account: str = ACCOUNT) -> None:
        """Answer what is published to `$JS.API.>` in an account."""
        on_message = partial(self._on_message, account)
        subscriptions.subscribe_internal(PREFIX + b">", on_message)

    def _on_message(
        self,
        account: str,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        client: ApiClient | None,
    ) -> None:
        """Interest of clients. Answers and acks of the server go wherever a client wants them, and
        may not ask for what that client may not: they are no requests."""
        if client is not None:
            self.handle(subject, reply, headers, payload, client, account)

    def handle(
        self,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        client: ApiClient | None = None,
        account: str = ACCOUNT,
    ) -> None:
        """Serve one request. A subject that is no endpoint gets no answer, as with nats-server."""
        context = self.context_of(account)
        request = self._request(context, subject, reply, headers, payload, client)
        if request is None:
            if account == self._accounts.system_account and not _is_of_operators(subject):
                request = Request(context, _OF_SYSTEM, subject, [], reply, headers, payload, client)
                self._refuse_system(request)
            return
        is_of_servers = account == self._accounts.system_account and subject.startswith(_OF_SERVERS)
        if context.jetstream() is None and not is_of_servers:
            self._accounts.when_settled(account, partial(self._handle_settled, request))
        else:
            self._handle(request)

    def _handle_settled(self, request: Request) -> None:
        if request.context.jetstream() is not None:
            self._handle(request)
        elif request.context.account == self._accounts.system_account:
            self._refuse_system(request)
        elif request.endpoint.is_json:
            request.refuse(errors.NOT_ENABLED_FOR_ACCOUNT())
        else:
            request.no_responders()

    def _refuse_system(self, request: Request) -> None:
        """Refuse what the system account asks for, which has no streams, in one form for all: also
        what is no request of anybody's."""
        if request.context.jetstream() is not None:
            return
        if request.endpoint.type_name != "account_info_response":
            request.endpoint = _OF_SYSTEM
        request.refuse(errors.NOT_ENABLED_FOR_ACCOUNT())

    def _handle(self, request: Request) -> None:
        """Serve a request of an account that may use JetStream."""
        context, client = request.context, request.client
        subject, headers = request.subject, request.headers
        if isinstance(client, RemoteClient):  # of a server without JetStream, which passed it on
            request.hops, request.origin = 1, client.server
        is_checked = request.endpoint.is_administrative  # the server itself may
        if is_checked and client is not None and not client.may_administer(subject):
            # Checked at the client's own node, which knows its user: nodes trust each other.
            client.forbid_publish(subject)
            request.no_responders()  # or the client would wait for an answer that never comes
            return
        if headers and not _knows_level(headers):
            if request.endpoint.is_json:
                request.refuse(errors.REQUIRED_API_LEVEL())
                context.counts.total += 1
            else:
                request.status(b"NATS/1.0 412 Required Api Level\r\n\r\n")
            return
        if self._forwarding is not None:
            if request.endpoint.is_for_all:
                self._forwarding.pass_to_others(request)
            self._forwarding.route(request)
        else:
            self._serve(request)

    def _request(
        self,
        context: ApiContext,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        client: ApiClient | None,
    ) -> Request | None:
        """Return the request that a message on `subject` is; None if it is none."""
        if subject.startswith(_DIRECT):
            # Not through the cache: each key of a key-value bucket is a subject of its own.
            endpoint = self._direct
            names = subject[len(_DIRECT) :].decode("utf-8", "replace").split(".", 1)
            names[0] = context.direct_mirrors.serving(names[0])
        else:
            if subject in self._found:
                found = self._found[subject]
            else:
                found = self._find(subject)
                if len(self._found) >= limits.API_SUBJECT_CACHE_MAX:
                    self._found.clear()
                self._found[subject] = found
            if found is None:
                return None
            if subject.startswith(_OF_ACCOUNTS) and (
                context.account != self._accounts.system_account
            ):
                return None
            endpoint, names = found
        return Request(context, endpoint, subject, names, reply, headers, payload, client)

    def _serve(self, request: Request) -> None:
        endpoint, counts = request.endpoint, request.context.counts
        if not endpoint.is_json:
            request.guard(endpoint.serve, request)
            return
        if counts.pending >= limits.API_PENDING_MAX:
            request.context.advisories.limit_reached(1)
            request.finish()
            return
        request.guard(endpoint.serve, request)
        counts.total += 1

    def _wait(self, request: Request) -> None:
        """Serve a request later that nothing serves yet: of a single server, whose stream's group
        is about to run, or to hear that its restore is over."""
        server = self.server
        now_ms = server.clock.monotonic_ms()
        if not request.parked_until_ms:
            request.parked_until_ms = now_ms + limits.API_PARKED_MS
        if not request.endpoint.is_json:
            request.no_responders()
        elif now_ms >= request.parked_until_ms:
            request.refuse(errors.CLUSTER_NOT_AVAIL())
        else:
            server.later(limits.API_ANSWER_LOOK_S, request.guard, request.endpoint.serve, request)

    # --- from other nodes -------------------------------------------------------------------

    def _on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        if kind == FORWARD:
            self._take(sender, args, None)
        elif kind == ANSWER:
            assert self._forwarding is not None, "nobody registered without it"
            self._forwarding.answer(*args)

    def _take(
        self, sender: NodeId, args: ForwardArgs, on_done: Callable[[bool], None] | None
    ) -> None:
        """Serve or pass on what another node passed on to this one."""
        assert self._forwarding is not None, "nobody registered without it"
        subject, reply, headers, payload, facts, hops, account = args
        context = self.context_of(account)
        request = self._request(context, subject, reply, headers, payload, client_of(facts))
        if request is not None:
            request.hops = hops
            first = sender if hops == 1 else ""
            client = request.client
            request.origin = client.server if isinstance(client, RemoteClient) else first
            request.on_done = on_done
            request.may_go_back = on_done is not None
            if context.jetstream() is None:
                route = partial(self._forwarding.route, request)
                self._accounts.when_settled(account, route)
            else:
                self._forwarding.route(request)
        elif on_done is not None:
            on_done(True)

    def _on_call(self, sender: NodeId, method: str, args: Any, answer: Answer) -> None:
        if method == FORWARD:
            self._take(sender, args, answer)
        elif method in restores.CALLS:
            self._restores.serve(method, args, answer)
        else:
            cluster_endpoints.serve_call(self.server.node, self.context_of, method, args, answer)

    def _find(self, subject: bytes) -> tuple[Endpoint, list[str]] | None:
        if not subject.startswith(PREFIX):
            return None
        tokens = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        for verb_count in (2, 3, 1):
            endpoint = self._table.get(".".join(tokens[:verb_count]))
            if endpoint is None or len(tokens) < verb_count:
                continue
            names = tokens[verb_count:]
            count = endpoint.name_count
            if len(names) == count or (endpoint.has_rest and len(names) > count):
                return endpoint, names
            return None
        return None


def _is_of_operators(subject: bytes) -> bool:
    """True of requests to a cluster: a single server leaves them unanswered."""
    return subject in _OF_OPERATORS or subject.startswith(_OF_ACCOUNTS)


def _knows_level(headers: bytes) -> bool:
    level = get(headers, b"Nats-Required-Api-Level")
    return level is None or 0 <= parse_number(level) <= limits.API_LEVEL
