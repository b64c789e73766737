"""Links between the accounts of a server: their imports, made from the accounts' options.

`AccountLinks.apply` is called at the start and after a reload, `change` when the claims of an
account's token changed: with many accounts that is what a login may afford. Imports that stay the
same are left alone, and so are responses on their way.
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
        self._exporters: dict[str, frozenset[str]] = {}  # of each account that imports
        self._importers: dict[str, set[str]] = {}  # the same, by exporter
        self._expiry: TimerHandle | None = None  # of the import that expires first
        self._expires_ns = 0  # its time

    def apply(self, accounts: Mapping[str, Linkable]) -> list[str]:
        """Link the accounts as their options say now, and no others.

        Returns a text for each import that can't be: of an account that is missing or does not
        export it.
        """
        self._stop_expiry()
        return self.change(accounts, self._linked.keys() | accounts.keys())

    def change(self, accounts: Mapping[str, Linkable], names: Iterable[str]) -> list[str]:
        """Link those accounts whose options are others now, or that are gone from `accounts`, and
        those that import of them; others stay as they are. Returns what `apply` does."""
        self._accounts = accounts
        changed = sorted(names)
        exporters = {each for name in changed for each in self._exporters.get(name, ())}
        for name in changed:
            self._keep(name, accounts.get(name))
        affected = {name for name in changed if name in accounts}
        affected |= {each for name in changed for each in self._importers.get(name, ())}
        if self._has_system_services and self._system_account in changed:
            affected = set(accounts)
        refused: list[str] = []
        for name in sorted(affected):
            self._link(accounts[name], accounts, refused)
            exporters |= self._exporters.get(name, frozenset())
        for name in exporters | affected:
            if name in self._linked:
                self._linked[name].router.set_importing(self._capturing(name))
        self._await_expiry(affected)
        return refused

    def _link(
        self, account: Linkable, accounts: Mapping[str, Linkable], refused: list[str]
    ) -> None:
        """Make the mappings and imports of one account."""
        linked = self._linked[account.name]
        mappings = account.options.mappings
        cluster = self._facilities.server.cluster
        below = self._facilities.random_below
        made = WeightedMappings(mappings, below, cluster=cluster) if mappings else None
        account.router.mappings = made
        streams, services = self._specs(account, accounts, refused)
        linked.streams.replace(streams)
        linked.services.replace(services)

    def _capturing(self, exporter: str) -> list[ImportingStreams]:
        """Return the streams of other accounts that capture what they import of this one."""
        router = self._linked[exporter].router
        return [
            each
            for importer in sorted(self._importers.get(exporter, ()))
            for each in self._linked[importer].streams.streams().get(router, ())
        ]

    def _await_expiry(self, names: Iterable[str]) -> None:
        """Apply all options again when the first import expires, if it is of these accounts."""
        now_ns = self._facilities.wall_ns()
        times = [
            each.expires_ns
            for name in names
            for each in self._accounts[name].options.imports
            if each.expires_ns > now_ns
        ]
        if not times or (self._expiry is not None and self._expires_ns <= min(times)):
            return
        self._stop_expiry()
        self._expires_ns = min(times)
        wait_s = min((self._expires_ns - now_ns) / 1e9, _LOOK_EVERY_S)
        self._expiry = self._call_later(wait_s, self._on_expiry)

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _on_expiry(self) -> None:
        self._expiry = None
        self.apply(self._accounts)

    def responses(self, account: str) -> ServiceResponses:
        """Return the table of the responses of an account's services."""
        return self._linked[account].responses

    def _keep(self, name: str, account: Linkable | None) -> None:
        """Make the links of an account, or end them; and know of whom it imports."""
        for exporter in self._exporters.pop(name, ()):
            self._importers[exporter].discard(name)
            if not self._importers[exporter]:
                del self._importers[exporter]
        linked = self._linked.get(name)
        if linked is not None and (account is None or account.router is not linked.router):
            self._linked.pop(name).end()
        if account is None:
            return
        if name not in self._linked:
            responses = ServiceResponses(
                account.router, monotonic_ns=self._monotonic_ns, call_later=self._call_later
            )
            self._linked[name] = _Linked(account, responses, self._facilities)
        exporters = frozenset(each.account for each in account.options.imports)
        if exporters:
            self._exporters[name] = exporters
        for exporter in exporters:
            self._importers.setdefault(exporter, set()).add(name)

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
