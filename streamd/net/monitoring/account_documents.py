"""Documents about one account: what it has and shares (/accountz), and its counters (/accstatz)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from streamd.api.times import format_ns
from streamd.config.account_options import (
    CHUNKED,
    STREAMED,
    AccountOptions,
    ExportOptions,
    ImportOptions,
    SubjectMapping,
)
from streamd.net.monitoring.account_views import AccountView
from streamd.net.monitoring.connz import sublist_stats
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Document, Steps

_RESPONSES: Final = {STREAMED: "Streamed", CHUNKED: "Chunked"}
_NONE: Final = {"msgs": 0, "bytes": 0}


def account_counters(account: AccountView, stats: ServerStats) -> Steps[Document]:
    """Build the counters of an account."""
    traffic = yield from stats.account_traffic(account)
    leafs = stats.leafs_of(account.name)
    sent = sum(row.out_msgs for row in leafs), sum(row.out_bytes for row in leafs)
    received = sum(row.in_msgs for row in leafs), sum(row.in_bytes for row in leafs)
    return {
        "acc": account.name,
        "name": account.options.label or account.name,
        "conns": traffic.connections,
        "leafnodes": len(leafs),
        "total_conns": traffic.connections + len(leafs),
        "num_subscriptions": traffic.subscriptions,
        "sent": _traffic(traffic.out_msgs, traffic.out_bytes, *sent),
        "received": _traffic(traffic.in_msgs, traffic.in_bytes, *received),
        "slow_consumers": traffic.slow_consumers,
    }


def _traffic(msgs: int, size: int, leaf_msgs: int, leaf_bytes: int) -> Document:
    """Return traffic with clients and leaf nodes; that with leaf nodes is of links that are up."""
    return {
        "msgs": msgs + leaf_msgs,
        "bytes": size + leaf_bytes,
        "gateways": _NONE,
        "routes": _NONE,
        "leafs": {"msgs": leaf_msgs, "bytes": leaf_bytes},
    }


def account_detail(
    account: AccountView,
    stats: ServerStats,
    *,
    is_system: bool,
    has_jetstream: bool,
    offers_jetstream: bool,
) -> Steps[Document]:
    """Build what is said of an account. `offers_jetstream`: the server has streams, for others."""
    options, system = account.options, stats.accounts.system.name
    traffic = yield from stats.account_traffic(account)
    sublist = yield from stats.sublist(account.name)
    shown: Document = {
        "account_name": account.name,
        "update_time": format_ns(account.updated_ns),
        "is_system": is_system or None,
        "expired": False,
        "complete": True,
        "jetstream_enabled": has_jetstream,
        "leafnode_connections": len(stats.leafs_of(account.name)),
        "client_connections": traffic.connections,
        "subscriptions": traffic.subscriptions,
        "mappings": _mappings(options.mappings) or None,
        "exports": [*_exports(options), *(_system_exports() if is_system else ())] or None,
        "imports": [
            *map(_import, options.imports),
            *_system_imports(account.name, system, has_jetstream=offers_jetstream),
        ],
        "jwt": options.token or None,
        "issuer_key": options.issuer or None,
        "name_tag": options.label or account.name,
        "tags": list(options.tags) or None,
        "sublist_stats": sublist_stats(sublist),
    }
    return {key: value for key, value in shown.items() if value is not None}


def _mappings(mappings: Sequence[SubjectMapping]) -> Document:
    return {
        mapping.source: [
            {"subject": to.subject, "weight": to.weight}
            | ({"cluster": to.cluster} if to.cluster else {})
            for to in mapping.destinations
        ]
        for mapping in mappings
    }


def _exports(options: AccountOptions) -> list[Document]:
    return [_export(export) for export in options.exports]


def _export(export: ExportOptions) -> Document:
    shown: Document = {"subject": export.subject, "type": _type_of(export.is_service)}
    if export.is_token_required:
        shown["token_req"] = True
    if export.is_service:
        shown["response_type"] = _RESPONSES.get(export.response_type, "Singleton")
    if export.accounts:
        shown["approved_accounts"] = list(export.accounts)
    if export.latency is not None:
        latency = export.latency
        shown["service_latency"] = {"sampling": latency.sampling, "results": latency.subject}
    if export.revocations:
        shown["revoked_act"] = dict(export.revocations)
    return shown


def _import(one: ImportOptions) -> Document:
    shown: Document = {"subject": one.subject, "account": one.account}
    if one.is_service:
        shown["to"] = one.local_subject or one.subject
    shown["local_subject"] = one.local_subject or one.subject
    return shown | _import_flags(is_service=one.is_service, is_shared=one.is_shared)


def _import_flags(*, is_service: bool, is_shared: bool) -> Document:
    return {
        "type": _type_of(is_service),
        "invalid": False,
        "share": is_shared,
        "tracking": False,
    }


def _type_of(is_service: bool) -> str:
    return "service" if is_service else "stream"


def _system_exports() -> Iterable[Document]:
    """Return what the system account lets all others ask."""
    for subject, response in (
        ("$SYS.REQ.ACCOUNT.*.CONNZ", "Streamed"),
        ("$SYS.REQ.ACCOUNT.*.STATZ", "Streamed"),
        ("$SYS.DEBUG.SUBSCRIBERS", "Singleton"),
        ("$SYS.REQ.USER.*.INFO", "Singleton"),
        ("$JS.API.>", "Singleton"),
    ):
        yield {"subject": subject, "type": "service", "response_type": response}


def _system_imports(name: str, system: str, *, has_jetstream: bool) -> Iterable[Document]:
    """Return what each account may ask the server, as imports from the system account."""
    served = [(f"$SYS.REQ.USER.{name}.INFO", "$SYS.REQ.USER.INFO", True)]
    if name != system:
        connections = f"$SYS.REQ.ACCOUNT.{name}.CONNZ"
        served += [
            (connections, "$SYS.REQ.ACCOUNT.PING.CONNZ", False),
            (connections, "$SYS.REQ.SERVER.PING.CONNZ", False),
            (f"$SYS.REQ.ACCOUNT.{name}.STATZ", "$SYS.REQ.ACCOUNT.PING.STATZ", False),
        ]
        if has_jetstream:
            served.append(("$JS.API.>", "$JS.API.>", True))
    for subject, to, is_shared in served:
        yield {
            "subject": subject,
            "account": system,
            "to": to,
            "local_subject": to,
            **_import_flags(is_service=True, is_shared=is_shared),
        }
