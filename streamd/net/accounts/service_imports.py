"""Service imports: requests of one account that are answered in another.

The importing account has a subscription of the server itself to the local subjects. A request that
comes there is published in the exporting account, under the subject there, with a reply subject of
that account's table (`service_responses.py`) and a header about the requester. It counts as
delivered only if somebody got it there: else the requester hears that there is no responder. A
request may pass through several accounts, one import after another, but through each only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from streamd.api.remote_client import ClientFacts
from streamd.config.account_options import SINGLETON, STREAMED, LatencyOptions
from streamd.machine.message_headers import TRACE_DEST
from streamd.net.accounts import service_latency
from streamd.net.accounts.request_info import (
    ServerFacts,
    full_info,
    short_info,
    with_info,
)
from streamd.net.accounts.request_origin import RequestOrigin
from streamd.net.accounts.service_responses import ACK_PREFIX, ServiceResponses, random_token
from streamd.net.pubsub.delivery_sinks import InboxSink
from streamd.net.pubsub.interest import Delivery
from streamd.net.pubsub.message_trace import MessageTrace, disabled, replaced
from streamd.net.pubsub.sublist import Subscription
from streamd.subject_mapping import as_pattern, mark_wildcards, reversed_import


class ServiceImportSpec(NamedTuple):
    """An import as it is configured; equal ones are the same import."""

    exporter: ServiceResponses
    account: str  # the exporting one
    remote: bytes  # pattern there
    local: bytes  # the name here, with all wildcards of `remote`; empty: the same
    is_shared: bool = False  # the service learns who asks
    response_type: str = SINGLETON
    threshold_ns: int = 0
    latency: LatencyOptions | None = None
    names_server: bool = False  # the service learns which server is asked
    allows_trace: bool = False  # traces of requests go on behind the import


class Facilities(NamedTuple):
    """Server as imports see it."""

    server: ServerFacts
    wall_ns: Callable[[], int]
    random_below: Callable[[int], int]


class _Measurement:
    """Measurement of one request; see `service_responses.Measurement`."""

    __slots__ = ("_facilities", "_header", "_requestor", "_spec", "_start_ns")

    def __init__(
        self,
        spec: ServiceImportSpec,
        requestor: dict[str, Any],
        header: service_latency.Header,
        facilities: Facilities,
    ) -> None:
        self._spec = spec
        self._requestor = requestor
        self._header = header
        self._facilities = facilities
        self._start_ns = facilities.wall_ns()

    def answered(self, responder: ClientFacts | None) -> None:
        """Report a response."""
        facts = None
        if responder is not None:
            facts = full_info(responder, self._spec.account, self._facilities.server)
        self._publish(service_latency.OK, facts)

    def failed(self, status: int) -> None:
        """Report that there will be no response."""
        self._publish(status, None)

    def _publish(self, status: int, responder: dict[str, Any] | None) -> None:
        latency = self._spec.latency
        assert latency is not None
        body = service_latency.event(
            status,
            now_ns=self._facilities.wall_ns(),
            start_ns=self._start_ns,
            requestor=self._requestor,
            responder=responder,
            header=self._header,
        )
        self._spec.exporter.router.publish(latency.subject.encode(), b"", b"", body)


class ServiceImport:
    """Service that an account imports. Raises SubjectMappingError if its subjects do not fit."""

    def __init__(
        self,
        spec: ServiceImportSpec,
        importer: ServiceResponses,
        account: str,
        facilities: Facilities,
    ) -> None:
        """`account`: the importing one."""
        self._spec = spec
        self._importer = importer
        self._account = account
        self._facilities = facilities
        marked = mark_wildcards(spec.local or spec.remote)
        self._to_remote = reversed_import(spec.remote, marked).apply
        self._tracked_suffix = b"." + random_token(8) + b".T"
        sub = importer.router.subscriptions.subscribe_internal(as_pattern(marked), self._on_request)
        sub.relay = self._relay
        sub.is_traced = True
        self._subscription: Subscription = sub

    def end(self) -> None:
        """Take no more requests. Responses to those that were taken still come back."""
        self._importer.router.subscriptions.unsubscribe(self._subscription)

    def _on_request(
        self,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        client: ClientFacts | None,
    ) -> bool:
        spec = self._spec
        trace = self._importer.router.traced.tracing.take()
        if isinstance(client, RequestOrigin) and not client.is_response:
            if self in client.path:
                return False  # it would go round in circles
            origin = client.through(self)
        else:
            origin = RequestOrigin(client, self._account, is_shared=spec.is_shared, path=(self,))
        remote = self._to_remote(subject)
        mapped = None if remote is None else spec.exporter.router.map(remote)
        if mapped is None:
            return False
        if trace is not None:
            trace.asked(spec.account, subject, mapped)
            if not spec.allows_trace:
                if trace.is_only:
                    return False
                headers, trace = disabled(headers), None
        measurement = self._measurement(origin, headers)
        own_reply = reply
        if reply and not reply.startswith(ACK_PREFIX):
            own_reply = spec.exporter.expect(
                self._importer,
                reply,
                response_type=spec.response_type,
                threshold_ns=spec.threshold_ns,
                measurement=measurement,
                suffix=self._tracked_suffix if measurement is not None else b"",
            )
        elif measurement is not None and not reply:
            measurement.failed(service_latency.BAD_REQUEST)
        if trace is not None:
            headers = self._with_destination(trace, headers)
        if origin.requester is not None:
            headers = with_info(headers, self._info(origin))
        router = spec.exporter.router
        if router.publish_imported(origin, mapped, own_reply, headers, payload, trace):
            return True
        if own_reply != reply:
            spec.exporter.forget(own_reply)
            if measurement is not None:
                measurement.failed(service_latency.SERVICE_UNAVAILABLE)
        return False

    def _with_destination(self, trace: MessageTrace, headers: bytes) -> bytes:
        """Return headers that have servers elsewhere send events to the exporting account, from
        where they come back to the destination as responses do."""
        if not trace.destination:
            return headers
        to = self._spec.exporter.expect(self._importer, trace.destination, response_type=STREAMED)
        return replaced(headers, TRACE_DEST, to)

    def _relay(self, to: bytes, batch: list[Delivery]) -> None:
        """Pass on a consumer's messages, whose deliver subject is a service of another account."""
        remote = self._to_remote(to)
        if remote is not None:
            InboxSink(self._spec.exporter.router.fanout, remote, b"").deliver(batch)

    def _info(self, origin: RequestOrigin) -> dict[str, Any]:
        requester = origin.requester
        assert requester is not None
        service = self._account if len(origin.path) > 1 else ""
        if origin.is_shared:
            return full_info(requester, origin.account, self._facilities.server, service)
        info = short_info(requester, origin.account, service)
        if self._spec.names_server or (service and self._spec.is_shared):
            server = self._facilities.server
            info |= {"server": server.name}
            if server.cluster:
                info["cluster"] = server.cluster
        return info

    def _measurement(self, origin: RequestOrigin, headers: bytes) -> _Measurement | None:
        spec = self._spec
        if spec.latency is None or spec.response_type != SINGLETON:
            return None
        header = service_latency.sample(spec.latency, headers, self._facilities.random_below)
        if header is None:
            return None
        requestor = short_info(origin.requester, origin.account)
        if origin.is_shared and origin.requester is not None:
            requestor = full_info(origin.requester, origin.account, self._facilities.server)
        return _Measurement(spec, requestor, header, self._facilities)


class ServiceImports:
    """The service imports of one account."""

    def __init__(self, importer: ServiceResponses, account: str, facilities: Facilities) -> None:
        self._importer = importer
        self._account = account
        self._facilities = facilities
        self._imports: dict[ServiceImportSpec, ServiceImport] = {}

    @property
    def count(self) -> int:
        """Imports there are."""
        return len(self._imports)

    def replace(self, specs: Iterable[ServiceImportSpec]) -> None:
        """Take these imports and no others. Those that stay are not interrupted."""
        wanted = dict.fromkeys(specs)
        for spec in [each for each in self._imports if each not in wanted]:
            self._imports.pop(spec).end()
        for spec in wanted:
            if spec not in self._imports:
                made = ServiceImport(spec, self._importer, self._account, self._facilities)
                self._imports[spec] = made
