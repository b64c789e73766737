"""Checks of accounts against each other: may each import what it does, and does that end.

An import is admitted if the exporter exports the subject, or a wider pattern, to the importer, and
if no chain of imports leads from it back to the importer. Exports of all accounts come first,
then imports of streams, then those of services. Error texts are nats-server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from streamd import subject_mapping, subjects
from streamd.config.account_options import SINGLETON, ExportOptions, ImportOptions
from streamd.config.exchange_reader import ReadImport
from streamd.config.values import quoted
from streamd.limits import IMPORT_CHAIN_ACCOUNTS_MAX


class AccountError(ValueError):
    """A reason for which accounts cannot be as they are configured."""


class _Import(NamedTuple):
    """An admitted import: patterns of the exporter and of the importer."""

    account: str
    subject: str
    local: str


class Exchange:
    """Exports and imports of the accounts of one configuration, admitted one by one."""

    def __init__(self, accounts: Iterable[str], *, has_system_account: bool) -> None:
        self._accounts = frozenset(accounts)
        self._has_system_account = has_system_account
        self._exports: dict[tuple[str, bool], dict[str, ExportOptions]] = {}
        self._imports: dict[tuple[str, bool], list[_Import]] = {}

    def exports(self, account: str) -> tuple[ExportOptions, ...]:
        """Return the exports of the account: one for each subject."""
        streams, services = self._of(account, False), self._of(account, True)
        return (*streams.values(), *services.values())

    def add_export(self, account: str, export: ExportOptions) -> None:
        """Admit an export. Raises AccountError."""
        kind = "service" if export.is_service else "stream"
        for name in export.accounts:
            if name not in self._accounts:
                raise AccountError(f"{quoted(name)} account not defined for {kind} export")
        position = export.account_token_position
        tokens = export.subject.split(".")
        if position and not (0 < position <= len(tokens) and tokens[position - 1] == "*"):
            raise AccountError(
                f"Error adding {kind} export {quoted(export.subject)}: sublist: invalid subject"
            )
        known = self._exports.setdefault((account, export.is_service), {})
        before = known.get(export.subject)
        known[export.subject] = export if before is None else _merged(before, export)
        if export.latency is not None:
            self._check_latency(account, known[export.subject])

    def add_import(self, account: str, read: ReadImport) -> ImportOptions:
        """Admit an import, and return it with its prefix in its local subject. Raises
        AccountError."""
        wanted = read.options
        kind = "service" if wanted.is_service else "stream"
        if wanted.account not in self._accounts:
            raise AccountError(f"{quoted(wanted.account)} account not defined for {kind} import")
        admit = self._service_import if wanted.is_service else self._stream_import
        try:
            return admit(account, wanted, read.prefix)
        except ValueError as err:
            raise AccountError(
                f"Error adding {kind} import {quoted(wanted.subject)}: {err}"
            ) from None

    def _of(self, account: str, is_service: bool) -> dict[str, ExportOptions]:
        return self._exports.get((account, is_service), {})

    def _check_latency(self, account: str, export: ExportOptions) -> None:
        assert export.latency is not None
        subject, service = export.latency.subject, quoted(export.subject)
        if not self._has_system_account:
            raise AccountError(
                f"Error adding service latency sampling for {service}: system account not setup"
            )
        services = self._of(account, True)
        if not subjects.is_valid_literal(subject.encode()) or any(
            subjects.is_subset(subject.encode(), each.encode()) for each in services
        ):
            fault = "invalid publish subject"
        elif export.response_type != SINGLETON:
            fault = "bad service response type"
        else:
            return
        raise AccountError(
            f"Error adding service latency sampling for {service} on subject {quoted(subject)}:"
            f" {fault}"
        )

    # --- imports ------------------------------------------------------------------------------

    def _stream_import(self, account: str, wanted: ImportOptions, prefix: str) -> ImportOptions:
        subject = wanted.subject
        if not subjects.is_valid(subject.encode()) or not self._is_authorized(account, wanted):
            raise ValueError("stream import not authorized")
        if prefix:
            if not subjects.is_literal(prefix.encode()):
                raise ValueError("stream import prefix can not contain wildcard tokens")
            joined = prefix if prefix.endswith(".") else prefix + "."
            wanted = replace(wanted, local_subject=joined + subject)
        local = wanted.local_subject or subject
        for pattern in (local, subject):
            self._check_cycle(account, wanted.account, pattern, is_service=False)
        if has_wildcard(subject) and local != subject:
            _check_transform(subject, local, f"stream import subject {_way(subject, local)}")
        known = self._imports.setdefault((account, False), [])
        if any(each.account == wanted.account and each.subject == subject for each in known):
            raise ValueError("stream import already exists")
        if has_wildcard(subject):
            local = as_pattern(local)
        known.append(_Import(wanted.account, subject, local))
        return wanted

    def _service_import(self, account: str, wanted: ImportOptions, _: str) -> ImportOptions:
        subject = wanted.subject
        local = wanted.local_subject or subject
        if not all(subjects.is_valid(each.encode()) for each in (local, subject)):
            raise ValueError("sublist: invalid subject")
        if not self._is_authorized(account, wanted):
            raise ValueError("service import not authorized")
        is_wild = has_wildcard(subject)
        pattern = as_pattern(local) if is_wild else local
        self._check_cycle(account, wanted.account, pattern, is_service=True)
        if is_wild and local != subject:
            # The way back: importers' requests match the local pattern.
            told = f"service import subject {_way(local, as_pattern(subject))}"
            _check_transform(as_pattern(subject), local, told)
        self._imports.setdefault((account, True), []).append(
            _Import(wanted.account, subject, pattern)
        )
        return wanted

    def _is_authorized(self, importer: str, wanted: ImportOptions) -> bool:
        exports = self._of(wanted.account, wanted.is_service)
        direct = exports.get(wanted.subject)
        if direct is not None:
            return not direct.account_token_position and _is_for(direct, importer)
        tokens = wanted.subject.split(".")
        for export in exports.values():
            if not subjects.is_subset(wanted.subject.encode(), export.subject.encode()):
                continue
            position = export.account_token_position
            if position:
                if position <= len(tokens) and tokens[position - 1] == importer:
                    return True
            elif _is_for(export, importer):
                return True
        return False

    def _check_cycle(self, importer: str, exporter: str, pattern: str, *, is_service: bool) -> None:
        """Follow the imports of the exporter that touch `pattern`, and theirs, depth first."""
        visited = {importer}
        stack: list[tuple[str, str, Iterator[_Import]]] = []

        def enter(account: str, wanted: str) -> None:
            if len(visited) >= IMPORT_CHAIN_ACCOUNTS_MAX:
                raise ValueError("search cycle depth exhausted")
            if is_service or self._exports_stream(account, wanted):
                stack.append((account, wanted, iter(self._imports.get((account, is_service), []))))

        enter(exporter, pattern)
        while stack:
            account, wanted, rest = stack[-1]
            for each in rest:
                # A stream comes from the local subject of the import before it, a request goes to
                # the subject of the exporter.
                near = each.subject if is_service else each.local
                if not subjects.collides(wanted.encode(), near.encode()):
                    continue
                if each.account in visited:
                    raise ValueError("import forms a cycle")
                visited.add(account)
                is_narrower = subjects.is_subset(each.local.encode(), wanted.encode())
                enter(each.account, each.local if is_narrower else wanted)
                break
            else:
                stack.pop()

    def _exports_stream(self, account: str, wanted: str) -> bool:
        return any(
            subjects.is_subset(wanted.encode(), each.encode()) for each in self._of(account, False)
        )


def _is_for(export: ExportOptions, importer: str) -> bool:
    return not export.accounts or importer in export.accounts


def _merged(before: ExportOptions, after: ExportOptions) -> ExportOptions:
    """Join two exports of one subject: the later one adds to the one before."""
    position = after.account_token_position
    if not after.accounts and not position:
        position = before.account_token_position
    return replace(
        after,
        accounts=tuple(dict.fromkeys((*before.accounts, *after.accounts))),
        account_token_position=position,
        response_type=after.response_type
        if after.response_type != SINGLETON
        else before.response_type,
        latency=after.latency or before.latency,
        allows_trace=after.allows_trace or before.allows_trace,
    )


def has_wildcard(pattern: str) -> bool:
    """True if a token of the pattern is a wildcard."""
    return not subjects.is_literal(pattern.encode())


def as_pattern(subject: str) -> str:
    """Return the subject with `*` for each token that stands for one (`$1`)."""
    return subject_mapping.as_pattern(subject.encode()).decode()


def _check_transform(source: str, destination: str, told: str) -> None:
    marked = subject_mapping.mark_wildcards(destination.encode())
    try:
        subject_mapping.SubjectTransform(source.encode(), marked, is_import=True)
    except ValueError as err:
        raise ValueError(f"failed to create mapping transform for {told}: {err}") from None


def _way(source: str, destination: str) -> str:
    return f"from {quoted(source)} to {quoted(destination)}"
