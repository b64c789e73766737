"""Validation of an account's claims: what makes servers refuse a new token of the account.

The texts are those of NATS's own tools, which show them to whoever pushed the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from streamd import subject_mapping
from streamd.errors import TokenError
from streamd.limits import SHARED_SUBJECTS_MAX
from streamd.tokens.claims import (
    ANY,
    NO_LIMIT,
    AccountClaims,
    AccountLimitClaims,
    ActivationClaims,
    AuthorizationClaims,
    ExportClaims,
    ImportClaims,
    LatencyClaims,
    MappingClaims,
    TraceClaims,
    decode_activation,
)
from streamd.tokens.issues import (
    Issues,
    check_permissions,
    check_subject,
    check_times,
    has_wildcards,
    is_contained,
    is_contained_split,
    quoted,
)
from streamd.tokens.nkeys import KeyKind, is_valid_public

INFO_BYTES_MAX: Final = 8 * 1024
_RESPONSE_TYPES: Final = ("", "Singleton", "Stream", "Chunked")


def check_account(account: AccountClaims, now_s: int) -> Issues:
    """Return all that is wrong with the claims of an account, whoever signed them.

    May take seconds with a token that lists as much as it can: not for the loop, if anybody may
    have signed it.
    """
    issues = Issues()
    check_times(account.registered, now_s, issues)
    for name, listed in (("imports", account.imports), ("exports", account.exports)):
        if len(listed) > SHARED_SUBJECTS_MAX:
            issues.add(f"the account contains more than {SHARED_SUBJECTS_MAX} {name}")
            return issues
    _check_imports(account.imports, account.registered.subject, issues)
    _check_exports(account.exports, issues)
    _check_tiers(account.limits, issues)
    check_permissions(account.default_permissions, issues)
    for source, destinations in account.mappings.items():
        _check_mapping(source, destinations, issues)
    _check_authorization(account.authorization, issues)
    if account.trace is not None:
        _check_trace(account.trace, issues)
    _check_counts(account, issues)
    for key, scope in account.signing_keys.items():
        if scope is None and not is_valid_public(KeyKind.ACCOUNT, key):
            issues.add(f"{quoted(key)} is not a valid account signing key")
        elif scope is not None and not is_valid_public(KeyKind.ACCOUNT, key):
            issues.add(f"{key} is not an account public key")
    _check_info(account.description, account.info_url, issues)
    _check_cluster_traffic(account.cluster_traffic, issues)
    return issues


def mapping_problem(account: AccountClaims) -> str:
    """Return the first destination of a mapping that no subject can be mapped to; "" if all can.

    Servers look for that after all else, when they take a token over.
    """
    for source, destinations in account.mappings.items():
        for destination in destinations:
            try:
                subject_mapping.check(source.encode(), destination.subject.encode())
            except subject_mapping.SubjectMappingError as err:
                return f"mapping {quoted(source)} -> {quoted(destination.subject)}: {err}"
    return ""


def _check_imports(imports: Iterable[ImportClaims | None], account: str, issues: Issues) -> None:
    local_subjects: dict[str, list[str]] = {}  # of services, by the account that exports them
    for item in imports:
        if item is None:
            issues.add("null import is not allowed")
            continue
        if item.kind == "service":
            _check_overlap(item, local_subjects.setdefault(item.account, []), issues)
        check_import(item, account, issues)


def _check_overlap(item: ImportClaims, known: list[str], issues: Issues) -> None:
    """Add where a service's local subject overlaps others of the same exporter."""
    subject = item.to or local_pattern(item.local_subject) or item.subject
    for other in known:
        if is_contained(subject, other) or is_contained(other, subject):
            issues.add(
                f"overlapping subject namespace for {quoted(subject)} and {quoted(other)}"
                f" in same account {quoted(item.account)}"
            )
    if subject in known:
        issues.add(
            f"overlapping subject namespace for {quoted(subject)} in account {quoted(item.account)}"
        )
    else:
        known.append(subject)


def check_import(item: ImportClaims, account: str, issues: Issues) -> ActivationClaims | None:
    """Add what is wrong with an import of `account`; return the activation that comes with it."""
    if not item.kind:
        issues.add('invalid import type: "unknown"')
    if not item.account:
        issues.add("account to import from is not specified")
    check_subject(item.subject, issues)
    if item.local_subject:
        _check_renaming(item.local_subject, item.subject, issues)
        if item.to:
            issues.add("Local Subject replaces To")
    if item.is_shared and item.kind != "service":
        issues.add(
            "sharing information (for latency tracking) is only valid for services:"
            f" {quoted(item.subject)}"
        )
    if item.allows_trace and item.kind != "stream":
        issues.add("AllowTrace only valid for stream import")
    return _check_activation(item, account, issues) if item.token else None


def _check_activation(item: ImportClaims, account: str, issues: Issues) -> ActivationClaims | None:
    try:
        activation = decode_activation(item.token)
    except TokenError:
        issues.add(f"import {quoted(item.subject)} contains an invalid activation token")
        return None
    if item.account not in (activation.registered.issuer, activation.issuer_account):
        issues.add(f"activation token doesn't match account for import {quoted(item.subject)}")
    if activation.registered.subject != account:
        issues.add(
            "activation token doesn't match account it is being included in,"
            f" {quoted(item.subject)}"
        )
    if activation.kind != item.kind:
        issues.add(
            f"mismatch between token import type {activation.kind or 'unknown'}"
            f" and type of import {item.kind or 'unknown'}"
        )
    check_activation(activation, issues)
    subject = item.to if item.kind == "service" and item.to else item.subject
    if not is_contained(subject, activation.subject):
        issues.add(
            f"activation token import subject {quoted(activation.subject)}"
            f" doesn't match import {quoted(item.subject)}"
        )
    return activation


def check_activation(activation: ActivationClaims, issues: Issues) -> None:
    """Add what is wrong with an activation apart from its times."""
    if not activation.kind:
        issues.add('invalid import type: "unknown"')
    check_subject(activation.subject, issues)
    issuer = activation.issuer_account
    if issuer and not is_valid_public(KeyKind.ACCOUNT, issuer):
        issues.add("account_id is not an account public key")


def local_pattern(local_subject: str) -> str:
    """Return the pattern of a local subject: each `$1` is a wildcard."""
    tokens = local_subject.split(".")
    return ".".join("*" if _reference(token) is not None else token for token in tokens)


def _reference(token: str) -> int | None:
    """Return the number in `$1`; None for any other token."""
    if len(token) < 2 or token[0] != "$":
        return None
    digits = token[1:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def _check_renaming(local_subject: str, subject: str, issues: Issues) -> None:
    check_subject(local_subject, issues)
    if not subject:
        issues.add("subject cannot be empty")
    if " " in local_subject:
        issues.add(f"subject {quoted(local_subject)} cannot have spaces")
    tokens, from_tokens = local_subject.split("."), subject.split(".")
    if (tokens[-1] == ">") != (from_tokens[-1] == ">"):
        issues.add("both, renaming subject and subject, need to end or not end in >")
    wildcard_count = from_tokens.count("*")
    used_count = 0
    for token in tokens:
        number = _reference(token)
        if token == "*":
            used_count += 1
        elif number is not None and number > wildcard_count:
            issues.add(
                f"Reference ${number} in {quoted(local_subject)} reference * in"
                f" {quoted(subject)} that do not exist"
            )
        elif number is not None:
            used_count += 1
    if used_count != wildcard_count:
        issues.add("subject does not contain enough * or reference wildcards $[0-9]")


def _check_exports(exports: Iterable[ExportClaims | None], issues: Issues) -> None:
    subjects: dict[str, list[str]] = {"service": [], "stream": []}
    for item in exports:
        if item is None:
            issues.add("null export is not allowed")
            continue
        subjects["service" if item.kind == "service" else "stream"].append(item.subject)
        _check_export(item, issues)
    for kind, listed in subjects.items():
        _check_containment(kind, listed, issues)


def _check_containment(kind: str, subjects: Sequence[str], issues: Issues) -> None:
    """Add each export that covers another one of its kind, with the first that it covers."""
    covered: dict[str, str] = {}
    split = [subject.split(".") for subject in subjects]
    patterns = [at for at, subject in enumerate(subjects) if has_wildcards(subject)]
    seen: set[str] = set()
    for number, subject in enumerate(subjects):
        if subject in seen:  # without wildcards it covers nothing but itself
            covered.setdefault(subject, subject)
        seen.add(subject)
        for at in patterns:
            if at != number and is_contained_split(split[number], split[at]):
                covered.setdefault(subjects[at], subject)
    for other, subject in covered.items():
        issues.add(f"{kind} export subject {quoted(other)} already exports {quoted(subject)}")


def _check_export(item: ExportClaims, issues: Issues) -> None:
    is_service = item.kind == "service"
    if not item.kind:
        issues.add('invalid export type: "unknown"')
    if is_service and item.response_type not in _RESPONSE_TYPES:
        issues.add(f"invalid response type for service: {quoted(item.response_type)}")
    if item.kind == "stream":
        if item.response_type:
            issues.add(f"invalid response type for stream: {quoted(item.response_type)}")
        if item.allows_trace:
            issues.add("AllowTrace only valid for service export")
    if item.latency is not None:
        if not is_service:
            issues.add("latency tracking only permitted for services")
        _check_latency(item.latency, issues)
    if item.response_threshold_ns < 0:
        issues.add("negative response threshold is invalid")
    if item.response_threshold_ns > 0 and not is_service:
        issues.add("response threshold only valid for services")
    check_subject(item.subject, issues)
    if item.account_token_position:
        _check_position(item, issues)
    _check_info(item.description, item.info_url, issues)


def _check_latency(latency: LatencyClaims, issues: Issues) -> None:
    if latency.sampling != 0 and latency.sampling not in range(1, 101):
        issues.add("sampling percentage needs to be between 1-100")
    check_subject(latency.subject, issues)
    if has_wildcards(latency.subject):
        issues.add("results subject can not contain wildcards")


def _check_position(item: ExportClaims, issues: Issues) -> None:
    position, tokens = item.account_token_position, item.subject.split(".")
    if not has_wildcards(item.subject):
        issues.add(
            f"Account Token Position can only be used with wildcard subjects: {item.subject}"
        )
    elif position > len(tokens):
        issues.add(f"Account Token Position {position} exceeds length of subject '{item.subject}'")
    elif tokens[position - 1] != "*":
        issues.add(
            f"Account Token Position {position} matches '{tokens[position - 1]}'"
            f" but must match a * in: {item.subject}"
        )


def _check_tiers(limits: AccountLimitClaims, issues: Issues) -> None:
    if "" in limits.tiers:
        issues.add('Tiered JetStream Limits can not contain a blank "" tier name')


def _check_mapping(source: str, destinations: Sequence[MappingClaims], issues: Issues) -> None:
    check_subject(source, issues)
    totals: dict[str, int] = {}
    for destination in destinations:
        check_subject(destination.subject, issues)
        if destination.weight > 100:
            issues.add(
                f"Mapping {quoted(source)} has a weight {destination.weight} that exceeds 100"
            )
        cluster = destination.cluster
        totals[cluster] = totals.get(cluster, 0) + destination.effective_weight
        if cluster and totals[cluster] > 100:
            issues.add(
                f"Mapping {quoted(source)} in cluster {quoted(cluster)} exceeds 100%"
                " among all of it's weighted to mappings"
            )
    if totals.get("", 0) > 100:
        issues.add(f"Mapping {quoted(source)} exceeds 100% among all of it's weighted to mappings")


def _check_authorization(authorization: AuthorizationClaims, issues: Issues) -> None:
    if authorization.allowed_accounts and not authorization.auth_users:
        issues.add("External authorization cannot have accounts without users specified")
    for user in authorization.auth_users:
        if not is_valid_public(KeyKind.USER, user):
            issues.add(f"AuthUser {quoted(user)} is not a valid user public key")
    for account in authorization.allowed_accounts:
        if account == ANY:
            if len(authorization.allowed_accounts) > 1:
                issues.add(f"AllowedAccounts can only be a list of accounts or {quoted(ANY)}")
        elif not is_valid_public(KeyKind.ACCOUNT, account):
            issues.add(f"Account {quoted(account)} is not a valid account public key")
    if authorization.xkey and not is_valid_public(KeyKind.CURVE, authorization.xkey):
        issues.add(f"XKey {quoted(authorization.xkey)} is not a valid public xkey")


def _check_trace(trace: TraceClaims, issues: Issues) -> None:
    own = Issues()
    check_subject(trace.destination, own)
    if own:
        issues.add(f"the account Trace.Destination {own.first}")
    if has_wildcards(trace.destination):
        issues.add(
            f"the account Trace.Destination subject {quoted(trace.destination)}"
            " is not a valid publish subject"
        )
    if trace.sampling not in range(101):
        issues.add(
            f"the account Trace.Sampling value '{trace.sampling}' is not valid,"
            " should be in the range [1..100]"
        )


def _check_counts(account: AccountClaims, issues: Issues) -> None:
    limits = account.limits
    too_many_imports = "the account contains more imports than allowed by the operator"
    has_limits = limits != AccountLimitClaims()
    if has_limits and 0 <= limits.imports < len(account.imports):
        issues.add(too_many_imports)
    if limits.imports != NO_LIMIT and len(account.imports) > limits.imports:
        issues.add(too_many_imports)  # twice, as nats-server has it
    if limits.exports != NO_LIMIT:
        if len(account.exports) > limits.exports:
            issues.add("the account contains more exports than allowed by the operator")
        if not limits.allows_wildcard_exports:
            for item in account.exports:
                if item is not None and has_wildcards(item.subject):
                    issues.add(
                        "the account contains wildcard exports that are not allowed by the operator"
                    )


def _check_info(description: str, info_url: str, issues: Issues) -> None:
    if len(description.encode()) > INFO_BYTES_MAX:
        issues.add("Description is too long")
    if not info_url:
        return
    if len(info_url.encode()) > INFO_BYTES_MAX:
        issues.add("Info URL is too long")
    try:
        url = urlsplit(info_url)
        is_whole = bool(url.scheme and url.hostname)
    except ValueError:
        is_whole = False
    if not is_whole:
        issues.add("error parsing info url: no hostname or scheme")


def _check_cluster_traffic(text: str, issues: Issues) -> None:
    if text not in ("", "system", "owner"):
        issues.add(f"unknown cluster traffic option: {quoted(text)}")
