"""`$JS.API.>`: from a subject to the endpoint that answers it."""

from __future__ import annotations

from typing import Any, Final, Protocol

from streamd import errors, limits
from streamd.api import account, consumers, direct, messages, streams
from streamd.api.advisories import Advisories
from streamd.api.request import ApiContext, ApiCounts, Endpoint, Request
from streamd.errors import JsError
from streamd.machine.msgheaders import get
from streamd.node.clock import SystemClock
from streamd.node.ports import Clock, NodeHandle, Wires

PREFIX: Final = b"$JS.API."
_DIRECT: Final = b"$JS.API.DIRECT.GET."

_PAGED: Final[dict[str, Any]] = {"total": 0, "offset": 0, "limit": 0}


def _table() -> dict[str, Endpoint]:
    def row(type_name: str, serve: Any, names: int = 0, **more: Any) -> Endpoint:
        return Endpoint(type_name and f"{type_name}_response", serve, name_count=names, **more)

    cluster = streams.needs_cluster
    return {
        "INFO": row("account_info", account.info),
        "STREAM.CREATE": row("stream_create", streams.create, 1),
        "STREAM.UPDATE": row("stream_update", streams.update, 1),
        "STREAM.NAMES": row("stream_names", streams.names, blank=_PAGED | {"streams": None}),
        "STREAM.LIST": row("stream_list", streams.list_infos, blank=_PAGED | {"streams": []}),
        "STREAM.INFO": row("stream_info", streams.info, 1, blank=_PAGED),
        "STREAM.DELETE": row("stream_delete", streams.delete, 1),
        "STREAM.PURGE": row("stream_purge", streams.purge, 1, blank={"purged": 0}),
        "STREAM.SNAPSHOT": row("stream_snapshot", streams.snapshot, 1),
        "STREAM.RESTORE": row("stream_restore", streams.restore, 1, blank={"deliver_subject": ""}),
        "STREAM.MSG.GET": row("stream_msg_get", messages.get, 1),
        "STREAM.MSG.DELETE": row("stream_msg_delete", messages.delete, 1),
        "STREAM.PEER.REMOVE": row("stream_remove_peer", cluster, 1),
        "STREAM.PEER.EVACUATE": row("stream_evacuate_peer", cluster, 1),
        "STREAM.CANCEL_MOVE": row("stream_cancel_move", cluster, 1),
        "STREAM.LEADER.STEPDOWN": row("stream_leader_stepdown", cluster, 1),
        "CONSUMER.CREATE": row("consumer_create", consumers.create, 1, has_rest=True),
        "CONSUMER.DURABLE.CREATE": row("consumer_create", consumers.create_durable, 2),
        "CONSUMER.NAMES": row(
            "consumer_names", consumers.names, 1, blank=_PAGED | {"consumers": []}
        ),
        "CONSUMER.LIST": row(
            "consumer_list", consumers.list_infos, 1, blank=_PAGED | {"consumers": []}
        ),
        "CONSUMER.INFO": row("consumer_info", consumers.info, 2),
        "CONSUMER.DELETE": row("consumer_delete", consumers.delete, 2),
        "CONSUMER.PAUSE": row(
            "consumer_pause",
            consumers.pause,
            2,
            blank={"paused": False, "pause_until": "0001-01-01T00:00:00Z"},
        ),
        "CONSUMER.UNPIN": row("consumer_unpin", consumers.unpin, 2),
        "CONSUMER.RESET": row("consumer_reset", consumers.reset, 2, blank={"reset_seq": 0}),
        "CONSUMER.MSG.NEXT": row("", consumers.next_msgs, 2),
        "CONSUMER.LEADER.STEPDOWN": row("consumer_leader_stepdown", cluster, 2),
    }


class _PubSub(Protocol):
    def subscribe_internal(self, pattern: bytes, callback: Any) -> Any: ...


class Router:
    """The JetStream API of one node."""

    def __init__(
        self,
        node: NodeHandle,
        wires: Wires,
        *,
        server_version: str,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.advisories = Advisories(node, wires, clock)
        self.context = ApiContext(
            node, wires, clock, server_version=server_version, advisories=self.advisories
        )
        self._table = _table()
        self._direct = Endpoint("", direct.get)  # names: the stream, and what follows it as one
        self._found: dict[bytes, tuple[Endpoint, list[str]] | None] = {}

    @property
    def counts(self) -> ApiCounts:
        """Requests so far, for monitoring."""
        return self.context.counts

    def attach(self, pubsub: _PubSub) -> None:
        """Answer what is published to `$JS.API.>`, and announce what streams report."""
        events: Any = self.context.node
        events.on_stream_event = self.advisories.on_stream_event
        pubsub.subscribe_internal(PREFIX + b">", self.handle)

    def handle(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, client: Any = None
    ) -> None:
        """Serve one request. A subject that is no endpoint gets no answer, as with nats-server."""
        if subject.startswith(_DIRECT):
            # Not through the cache: each key of a key-value bucket is a subject of its own.
            endpoint = self._direct
            names = subject[len(_DIRECT) :].decode("utf-8", "replace").split(".", 1)
        else:
            if subject in self._found:
                found = self._found[subject]
            else:
                found = self._find(subject)
                if len(self._found) >= limits.API_SUBJECT_CACHE_MAX:
                    self._found.clear()
                self._found[subject] = found
            if found is None:
                return
            endpoint, names = found
        context = self.context
        request = Request(context, endpoint, subject, names, reply, headers, payload, client)
        if headers and not _knows_level(headers):
            if endpoint.is_json:
                request.refuse(errors.REQUIRED_API_LEVEL())
                context.counts.total += 1
            else:
                request.status(b"NATS/1.0 412 Required Api Level\r\n\r\n")
            return
        if not endpoint.is_json:
            endpoint.serve(request)
            return
        if context.counts.pending >= limits.API_PENDING_MAX:
            self.advisories.limit_reached(1)
            return
        try:
            endpoint.serve(request)
        except JsError as error:
            request.refuse(error)
        context.counts.total += 1

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


def _knows_level(headers: bytes) -> bool:
    level = get(headers, b"Nats-Required-Api-Level")
    return level is None or (level.isdigit() and int(level) <= limits.API_LEVEL)
