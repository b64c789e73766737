"""Links between the accounts of a server: their imports, made from the accounts' options.

`AccountLinks.apply` is called at the start, after a reload and when the claims of an account's
token changed. Imports that stay the same are left alone, and so are responses on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from streamd import subjects
from streamd.config.account_options import (
    STREAMED,
    AccountOptions,
    ExportOptions,
    ImportOptions,
)
from streamd.net.accounts.request_info import ServerFacts
from streamd.net.accounts.service_imports import Facilities, ServiceImports, ServiceImportSpec
from streamd.net.accounts.service_responses import CallLater, ServiceResponses, TimerHandle
from streamd.net.accounts.stream_imports import StreamImports, StreamImportSpec
from streamd.net.pubsub.joined_streams import ImportingStreams
from streamd.net.pubsub.message_router import MessageRouter
from streamd.subject_mapping import (
    SubjectMappingError,
    WeightedMappings,
    mark_wildcards,
    reversed_import,
)

_LOOK_EVERY_S: Final = 3600.0  # a clock that is set meanwhile is noticed by then
_CONNZ: Final = "$SYS.REQ.ACCOUNT.{}.CONNZ"
_STATZ: Final = "$SYS.REQ.ACCOUNT.{}.STATZ"
_INFO: Final = "$SYS.REQ.USER.{}.INFO"
SYSTEM_IMPORTS: Final = (
    ("$SYS.REQ.ACCOUNT.PING.CONNZ", _CONNZ, STREAMED, False),
    ("$SYS.REQ.SERVER.PING.CONNZ", _CONNZ, STREAMED, False),
    ("$SYS.REQ.ACCOUNT.PING.STATZ", _STATZ, STREAMED, False),
    ("$SYS.REQ.USER.INFO", _INFO, "singleton", True),
)
"""Imports of every account but the system account from that one: local subject, subject there with
the account's name, response type, and whether the service learns who asks."""


class Linkable(Protocol):
    """An account of the server."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> AccountOptions: ...

    @property
    def router(self) -> MessageRouter: ...


class _Linked:
    """The imports of one account."""

    def __init__(
        self, account: Linkable, responses: ServiceResponses, facilities: Facilities
    ) -> None:
        self.router = account.router
        self.responses = responses
        self.streams = StreamImports(account.router)
        self.services = ServiceImports(responses, account.name, facilities)
        self.router.subscriptions.observers = (self.streams, responses)

    def end(self) -> None:
        """Take all back that links the account to others."""
        self.streams.replace(())
        self.services.replace(())
        self.responses.end()
        self.router.set_importing(())
        self.router.mappings = None
        self.router.subscriptions.observers = ()


class AccountLinks:
    """The imports and mappings of all accounts."""

    def __init__(
        self,
        system_account: str,
        *,
        server: ServerFacts,
        monotonic_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        call_later: CallLater,
        random_below: Callable[[int], int],
        has_system_services: bool = True,
    ) -> None:
        """`has_system_services`: the system account answers the requests of `SYSTEM_IMPORTS`."""
        self._system_account = system_account
        self._facilities = Facilities(server, wall_ns, random_below)
        self._monotonic_ns = monotonic_ns
        self._has_system_services = has_system_services
        self._call_later = call_later
        self._linked: dict[str, _Linked] = {}
        self._accounts: Mapping[str, Linkable] = {}
        self._expiry: TimerHandle | None = None  # of the import that expires first

    def apply(self, accounts: Mapping[str, Linkable]) -> list[str]:
        """Link the accounts as their options say now, and no others.

        Returns a text for each import that can't be: of an account that is missing or does not
        export it.
        """
        self._accounts = accounts
        self._keep(accounts)
        refused: list[str] = []
        capturing: dict[MessageRouter, list[ImportingStreams]] = {}
        for name, account in accounts.items():
            linked = self._linked[name]
            mappings = account.options.mappings
            cluster = self._facilities.server.cluster
            below = self._facilities.random_below
            made = WeightedMappings(mappings, below, cluster=cluster) if mappings else None
            account.router.mappings = made
            streams, services = self._specs(account, accounts, refused)
            linked.streams.replace(streams)
            linked.services.replace(services)
            for exporter, sources in linked.streams.streams().items():
                capturing.setdefault(exporter, []).extend(sources)
        for account in accounts.values():
            account.router.set_importing(capturing.get(account.router, ()))
        self._await_expiry()
        return refused

    def _await_expiry(self) -> None:
        """Apply the options again when the next import expires."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        now_ns = self._facilities.wall_ns()
        times = [
            each.expires_ns
            for account in self._accounts.values()
            for each in account.options.imports
            if each.expires_ns > now_ns
        ]
        if times:
            wait_s = min((min(times) - now_ns) / 1e9, _LOOK_EVERY_S)
            self._expiry = self._call_later(wait_s, self._on_expiry)

    def _on_expiry(self) -> None:
        self._expiry = None
        self.apply(self._accounts)

    def responses(self, account: str) -> ServiceResponses:
        """Return the table of the responses of an account's services."""
        return self._linked[account].responses

    def _keep(self, accounts: Mapping[str, Linkable]) -> None:
        for name in [
            name
            for name, linked in self._linked.items()
            if name not in accounts or accounts[name].router is not linked.router
        ]:
            self._linked.pop(name).end()
        for name, account in accounts.items():
            if name not in self._linked:
                responses = ServiceResponses(
                    account.router, monotonic_ns=self._monotonic_ns, call_later=self._call_later
                )
                self._linked[name] = _Linked(account, responses, self._facilities)

    def _specs(
        self, account: Linkable, accounts: Mapping[str, Linkable], refused: list[str]
    ) -> tuple[list[StreamImportSpec], list[ServiceImportSpec]]:
        streams: list[StreamImportSpec] = []
        services: list[ServiceImportSpec] = []
        now_ns = self._facilities.wall_ns()
        for each in account.options.imports:
            kind = "service" if each.is_service else "stream"
            exporter = accounts.get(each.account)
            export = None
            if exporter is not None:
                export = find_export(exporter.options.exports, each, account.name)
            if exporter is None or export is None or not _is_sound(each):
                where = f'"{each.subject}" of account "{each.account}"'
                refused.append(f'account "{account.name}" may not import {kind} {where}')
            elif each.expires_ns and each.expires_ns <= now_ns:
                continue
            elif each.is_service:
                services.append(self._service_spec(each, export))
            else:
                local = each.local_subject.encode()
                remote = each.subject.encode()
                spec = StreamImportSpec(exporter.router, remote, local, each.allows_trace)
                streams.append(spec)
        is_system = account.name == self._system_account
        if self._has_system_services and not is_system and self._system_account in self._linked:
            services += self._system_specs(account.name, services)
        return streams, services

    def _service_spec(self, each: ImportOptions, export: ExportOptions) -> ServiceImportSpec:
        return ServiceImportSpec(
            self._linked[each.account].responses,
            each.account,
            each.subject.encode(),
            each.local_subject.encode(),
            is_shared=each.is_shared,
            response_type=export.response_type,
            threshold_ns=export.response_threshold_ns,
            latency=export.latency,
            names_server=each.account == self._system_account,
            allows_trace=export.allows_trace,
        )

    def _system_specs(
        self, account: str, explicit: Iterable[ServiceImportSpec]
    ) -> list[ServiceImportSpec]:
        taken = {spec.local or spec.remote for spec in explicit}
        return [
            ServiceImportSpec(
                self._linked[self._system_account].responses,
                self._system_account,
                remote.format(account).encode(),
                local.encode(),
                is_shared=is_shared,
                response_type=response_type,
                names_server=True,
            )
            for local, remote, response_type, is_shared in SYSTEM_IMPORTS
            if local.encode() not in taken
        ]


def find_export(
    exports: Iterable[ExportOptions], wanted: ImportOptions, importer: str
) -> ExportOptions | None:
    """Return the export that allows an account an import, if there are several the one of just
    this subject, or the first; None: there is none.

    An import may be narrower than the export, not wider. Where the export names the position of a
    token, that token of the import has to be the importer's name. Activations were looked at where
    the import's options were made from claims (`tokens/account_claims.py`).
    """
    subject = wanted.subject.encode()
    for export in sorted(exports, key=lambda each: each.subject != wanted.subject):
        if export.is_service != wanted.is_service:
            continue
        if not subjects.is_subset(subject, export.subject.encode()):
            continue
        if export.accounts and importer not in export.accounts:
            continue
        position = export.account_token_position
        if position:
            tokens = wanted.subject.split(".")
            if len(tokens) < position or tokens[position - 1] != importer:
                continue
        return export
    return None


def _is_sound(each: ImportOptions) -> bool:
    """Return True if the names of an import here and there can be turned into one another."""
    remote = each.subject.encode()
    try:
        reversed_import(remote, mark_wildcards(each.local_subject.encode() or remote))
    except (SubjectMappingError, ValueError):
        return False
    return True
