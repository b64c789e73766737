"""Claims of an account as the options of an account, as a configuration file would give them.

An import is taken where the exporter's claims let it be: its export is there, covers it, and is
public, or names this account at its position, or the import comes with an activation that the
exporter signed, that is not over and not revoked. Others are left out, each with a reason; where an
exporter is not known yet, its name is returned, so that the caller can ask again once it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamd.config.account_options import (
    CHUNKED,
    SINGLETON,
    STREAMED,
    AccountJetStream,
    AccountLimits,
    AccountOptions,
    ExportOptions,
    ImportOptions,
    JetStreamTier,
    LatencyOptions,
    MappingDestination,
    SubjectMapping,
    TraceOptions,
)
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.subjects import is_subset
from streamd.tokens.account_validation import check_import
from streamd.tokens.claims import (
    AccountClaims,
    AccountLimitClaims,
    ActivationClaims,
    ExportClaims,
    ImportClaims,
    JetStreamLimitClaims,
    MappingClaims,
)
from streamd.tokens.issues import Issues, check_times
from streamd.tokens.permissions import as_permissions
from streamd.tokens.validation import Trust, is_issuer_known, is_revoked

_RESPONSE_TYPES: Final = {"Stream": STREAMED, "Chunked": CHUNKED}
AccountOf = Callable[[str], AccountClaims | None]


@dataclass(frozen=True, slots=True)
class AccountConversion:
    """Options of an account, and what could not be taken over."""

    options: AccountOptions
    unknown_accounts: frozenset[str]  # exporters whose claims are not known
    problems: tuple[str, ...]  # one for each import that is left out


def account_options(
    claims: AccountClaims, token: str, account_of: AccountOf, trust: Trust, *, now_s: int
) -> AccountConversion:
    """Return the options of the account whose claims are those of `token`, which are valid."""
    imports: list[ImportOptions] = []
    problems: list[str] = []
    unknown: set[str] = set()
    for item in claims.imports:
        if item is None:
            continue
        exporter = claims if item.account == claims.registered.subject else account_of(item.account)
        if exporter is None:
            unknown.add(item.account)
            problems.append(f"{_described(item)}: the account is not known")
            continue
        try:
            imports.append(_import(item, claims, exporter, trust, now_s))
        except TokenError as err:
            problems.append(f"{_described(item)}: {err}")
    registered = claims.registered
    options = AccountOptions(
        name=registered.subject,
        nkey=registered.subject,
        exports=tuple(_export(item) for item in claims.exports if item is not None),
        imports=tuple(imports),
        mappings=tuple(_mapping(*mapping) for mapping in claims.mappings.items()),
        limits=_limits(claims.limits),
        jetstream=_jetstream(claims),
        default_permissions=as_permissions(claims.default_permissions),
        trace=None
        if claims.trace is None
        else TraceOptions(claims.trace.destination, claims.trace.sampling or 100),
        label=registered.name,
        tags=registered.tags,
        token=token,
        issuer=registered.issuer,
        expires_ns=registered.expires_s * SECOND_NS,
        revocations=claims.revocations,
    )
    return AccountConversion(options, frozenset(unknown), tuple(problems))


def _described(item: ImportClaims) -> str:
    return f"import of {item.kind} {item.subject!r:.128} from {item.account!r:.64}"


def _import(
    item: ImportClaims, importer: AccountClaims, exporter: AccountClaims, trust: Trust, now_s: int
) -> ImportOptions:
    """Return the import, if the exporter lets the importer have it; else raise TokenError."""
    is_service = item.kind == "service"
    subject, local_subject = item.subject, item.local_subject
    if not local_subject and item.to:
        if is_service:  # `subject` is that of the importer, `to` that of the exporter
            subject, local_subject = item.to, item.subject
        else:  # a prefix here
            local_subject = f"{item.to.rstrip('.')}.{item.subject}"
    export = _export_of(exporter, subject, item.kind)
    account = importer.registered.subject
    activation: ActivationClaims | None = None
    if position := export.account_token_position:
        tokens = subject.split(".")
        if position > len(tokens) or tokens[position - 1] != account:
            raise TokenError(f"token {position} of the subject is to be the importing account")
    elif export.is_token_required:
        activation = _activation(item, account, exporter, export, trust, now_s)
    return ImportOptions(
        account=item.account,
        subject=subject,
        is_service=is_service,
        local_subject=local_subject,
        is_shared=item.is_shared,
        allows_trace=item.allows_trace,
        expires_ns=0 if activation is None else activation.registered.expires_s * SECOND_NS,
    )


def _export_of(exporter: AccountClaims, subject: str, kind: str) -> ExportClaims:
    """Return the export that an import is of: of the same subject, else the first that covers."""
    candidates = [each for each in exporter.exports if each is not None and each.kind == kind]
    for export in candidates:
        if export.subject == subject:
            return export
    for export in candidates:
        if is_subset(subject.encode(), export.subject.encode()):
            return export
    raise TokenError("the account exports no such subject")


def _activation(
    item: ImportClaims,
    account: str,
    exporter: AccountClaims,
    export: ExportClaims,
    trust: Trust,
    now_s: int,
) -> ActivationClaims:
    """Return the activation of an import, if it holds now; else raise TokenError."""
    issues = Issues()
    activation = check_import(item, account, issues)
    if activation is None:
        raise TokenError(issues.first or "an activation token is required")
    registered = activation.registered
    check_times(registered, now_s, issues)
    if issues:
        raise TokenError(f"activation token: {issues.first}")
    if registered.expires_s != 0 and registered.expires_s <= now_s:
        raise TokenError("activation token: claim is expired")
    if activation.issuer_account:
        is_own = activation.issuer_account == exporter.registered.subject
        if not is_own or not is_issuer_known(registered.issuer, exporter, trust):
            raise TokenError("activation token: its issuer is no signing key of the account")
    if is_revoked(export.revocations, registered.subject, registered.issued_s):
        raise TokenError("activation token: revoked")
    return activation


def _export(item: ExportClaims) -> ExportOptions:
    return ExportOptions(
        subject=item.subject,
        is_service=item.kind == "service",
        response_type=_RESPONSE_TYPES.get(item.response_type, SINGLETON),
        response_threshold_ns=item.response_threshold_ns,
        latency=None
        if item.latency is None
        else LatencyOptions(item.latency.subject, item.latency.sampling),
        account_token_position=item.account_token_position,
        allows_trace=item.allows_trace,
        is_token_required=item.is_token_required,
        revocations=item.revocations,
    )


def _mapping(source: str, destinations: tuple[MappingClaims, ...]) -> SubjectMapping:
    listed = (
        MappingDestination(each.subject, each.effective_weight, each.cluster)
        for each in destinations
    )
    return SubjectMapping(source, tuple(listed))


def _limits(claims: AccountLimitClaims) -> AccountLimits:
    return AccountLimits(
        max_connections=claims.connections,
        max_leafnodes=claims.leafnodes,
        max_subscriptions=claims.subscriptions,
        max_payload=claims.payload,
        max_imports=claims.imports,
        max_exports=claims.exports,
        allows_wildcard_exports=claims.allows_wildcard_exports,
        allows_bearer=not claims.disallows_bearer,
    )


def _jetstream(claims: AccountClaims) -> AccountJetStream | None:
    """Return JetStream of an account; None if it has none: no memory and no disk."""
    limits = claims.limits
    if limits.jetstream.is_enabled:
        return AccountJetStream(_tier(limits.jetstream), cluster_traffic=claims.cluster_traffic)
    if not any(tier.is_enabled for tier in limits.tiers.values()):
        return None
    tiers = {name: _tier(tier) for name, tier in limits.tiers.items()}
    nothing = JetStreamTier(max_memory=0, max_storage=0, max_streams=0, max_consumers=0)
    return AccountJetStream(nothing, tiers, claims.cluster_traffic)


def _tier(claims: JetStreamLimitClaims) -> JetStreamTier:
    return JetStreamTier(
        max_memory=claims.memory,
        max_storage=claims.storage,
        max_streams=claims.streams,
        max_consumers=claims.consumers,
        max_ack_pending=_unlimited(claims.max_ack_pending),
        memory_max_stream_bytes=_unlimited(claims.memory_max_stream_bytes),
        storage_max_stream_bytes=_unlimited(claims.storage_max_stream_bytes),
        max_bytes_required=claims.max_bytes_required,
    )


def _unlimited(limit: int) -> int:
    """Return a limit of which 0 means that there is none."""
    return limit if limit > 0 else -1
