"""Monitoring of connections and subscriptions: /connz and /subsz."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from typing import Any

from streamd.api.times import format_ns
from streamd.config.duration_values import format_uptime
from streamd.durations import format_duration
from streamd.limits import MONITORING_PAGE, MONITORING_ROWS_MAX
from streamd.net.monitoring.account_views import AccountsView
from streamd.net.monitoring.query import BadQuery, Query, flag, number, page
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Document, Rows, Steps, looked_at
from streamd.net.monitoring.stats import (
    Connection,
    ConnectionStats,
    SublistStats,
    SubscriptionStats,
)
from streamd.net.tls.facts import TlsFacts
from streamd.subjects import is_valid_literal, matches
from streamd.types import ACCOUNT

Shown = Connection | ConnectionStats
"""A connection that is open, or the stats of one that was."""

_RUN = 1024  # connections sorted in one step; such runs are merged, some in each step


class Connz:
    """Builds both documents."""

    def __init__(self, stats: ServerStats, *, server_id: str) -> None:
        self._stats = stats
        self._server_id = server_id

    def connz(self, query: Query) -> Steps[Document]:
        """Build /connz. Of one connection (`cid`) offset and limit cut its subscriptions."""
        sort = query.get("sort", "") or "cid"
        state = query.get("state", "") or "open"
        with_user = flag(query, "auth")
        is_detailed = query.get("subs") == "detail"
        with_subjects = not is_detailed and flag(query, "subs")
        offset, limit = page(query)
        cid = number(query, "cid")
        if state not in ("open", "closed", "any", "all"):
            raise BadQuery(f"Error decoding state for {state}")
        if sort not in _SORTS:
            raise BadQuery(f"invalid sorting option: {sort}")
        if sort in ("stop", "reason") and state != "closed":
            raise BadQuery(f"sort by {sort} only valid on closed connections")
        shows = _Shown(with_user, with_subjects, is_detailed)
        if cid:
            shows.offset, shows.limit = offset, limit
            offset, limit = 0, 1
        now = time.time_ns()
        account = query.get("acc", "")
        if account and self._stats.accounts.get(account) is None:
            return _nobodys_connections(now, offset, limit)
        total, found = yield from self._found(query, state, cid)
        shown = yield from self._sorted(found, sort, now, offset, limit)
        if with_subjects or is_detailed:
            fitting = _fitting(shown)
            if fitting < len(shown):  # the page ends early, and says so
                del shown[fitting:]
                limit = fitting
        return {
            "server_id": self._server_id,
            "now": format_ns(now),
            "num_connections": len(shown),
            "total": total,
            "offset": offset,
            "limit": limit,
            "connections": Rows(self._row(stats, now, shows) for stats in shown),
        }

    def _row(self, stats: ConnectionStats, now: int, shows: _Shown) -> Document:
        row = _connection(stats, now, shows)
        if shows.with_user:
            if stats.account != ACCOUNT:
                row["account"] = stats.account
            login = stats.login
            shown = {"jwt": login.jwt, "issuer_key": login.issuer_key, "tags": list(login.tags)}
            row |= {key: value for key, value in shown.items() if value}
            row["name_tag"] = self._label_of(stats.account)
        return row

    def _found(self, query: Query, state: str, cid: int) -> Steps[tuple[int, list[Shown]]]:
        """Collect the connections that the query means, in the order they came; and count those of
        its account and state."""
        user, account = query.get("user", ""), query.get("acc", "")
        subject = query.get("filter_subject", "").encode(errors="replace")
        every: list[Shown] = []
        if state != "closed":
            every += self._stats.open_connections()
        if state != "open":
            every += self._stats.closed_connections()
        if query.get("mqtt_client"):  # none is a client of MQTT
            return len(every), []
        if not (cid or user or subject or account):
            return len(every), every
        total = 0
        found = []
        for connection in looked_at(every):
            if connection is None:
                yield
                continue
            if account and connection.account != account:
                continue
            total += 1
            if cid and connection.cid != cid:
                continue
            if user and self._stats.stats_of(connection).user != user:
                continue
            if subject and not (yield from self._has_subject(connection, subject)):
                continue
            found.append(connection)
        return total, found

    def _has_subject(self, connection: Shown, wanted: bytes) -> Steps[bool]:
        for sub in looked_at(self._stats.stats_of(connection).subscriptions()):
            if sub is None:
                yield
            elif matches(sub.subject.encode(), wanted):
                return True
        return False

    def _sorted(
        self, found: list[Shown], sort: str, now: int, offset: int, limit: int
    ) -> Steps[list[ConnectionStats]]:
        """Return one page of `found` in its order: runs are sorted, then merged as far as needed.

        What is sorted are places in `found`, for numbers are nothing to the garbage collector.
        """
        key, is_descending = _SORTS[sort]
        stats_of = self._stats.stats_of
        keys: list[Any] = []
        for connection in looked_at(found):
            if connection is None:
                yield
            else:
                keys.append(key(stats_of(connection), now))
        runs = []
        for start in range(0, len(found), _RUN):
            run = list(range(start, min(start + _RUN, len(found))))
            run.sort(key=keys.__getitem__, reverse=is_descending)
            runs.append(run)
            yield
        merged = heapq.merge(*runs, key=keys.__getitem__, reverse=is_descending)
        shown: list[ConnectionStats] = []
        for at in looked_at(merged):
            if at is None:
                yield
            elif offset:
                offset -= 1
            elif len(shown) < limit:
                shown.append(stats_of(found[at]))
            else:
                break
        return shown

    def subsz(self, query: Query) -> Steps[Document]:
        """Build /subsz."""
        with_list = flag(query, "subs")
        offset, limit = page(query)
        test = query.get("test", "").encode(errors="replace")
        account = query.get("acc", "") or None
        if test and not is_valid_literal(test):
            raise BadQuery(f"invalid test subject, must be valid publish subject: {test.decode()}")
        stats = yield from self._stats.sublist(account)
        document: Document = {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            **sublist_stats(stats),
            "total": 0,
            "offset": offset,
            "limit": limit,
        }
        if with_list:
            total = 0
            shown = []
            for found in looked_at(self._stats.subscriptions(account)):
                if found is None:
                    yield
                    continue
                name, sub = found
                if test and not matches(sub.subject.encode(), test):
                    continue
                if offset <= total < offset + limit:
                    shown.append((name, sub))
                total += 1
            document["total"] = total
            if shown:
                document["subscriptions_list"] = Rows(
                    {"account": name, "account_tag": self._label_of(name)} | _subscription(sub)
                    for name, sub in shown
                )
        return document

    def _label_of(self, account: str) -> str:
        return label_of(self._stats.accounts, account)


def _nobodys_connections(now: int, offset: int, limit: int) -> Document:
    """Return nats-server's answer about an account that it does not know."""
    return {
        "server_id": "",
        "now": format_ns(now),
        "num_connections": 0,
        "total": 0,
        "offset": offset,
        "limit": limit,
        "connections": None,
    }


def label_of(accounts: AccountsView, name: str) -> str:
    """Return the name of an account for people."""
    account = accounts.get(name)
    return (account.options.label if account is not None else "") or name


def sublist_stats(stats: SublistStats) -> Document:
    """Return how big the subscription registry is, as it is shown."""
    return {
        "num_subscriptions": stats.subscriptions,
        "num_cache": stats.cache_entries,
        "num_inserts": stats.inserts,
        "num_removes": stats.removes,
        "num_matches": 0,  # lookups are not counted: they are the hot path
        "cache_hit_rate": 0,
        "max_fanout": stats.max_fanout,
        "avg_fanout": stats.avg_fanout,
    }


def _fitting(shown: list[ConnectionStats]) -> int:
    """Return how many of the connections fit on a page with their subscriptions: one does."""
    rows = 0
    for at, stats in enumerate(shown):
        rows += 1 + min(stats.subscription_count, MONITORING_PAGE)
        if at and rows > MONITORING_ROWS_MAX:
            return at
    return len(shown)


_Sort = Callable[[ConnectionStats, int], Any]
_SORTS: dict[str, tuple[_Sort, bool]] = {  # option -> (key, largest first)
    "cid": (lambda stats, now: stats.cid, False),
    "start": (lambda stats, now: stats.start_ns, False),
    "subs": (lambda stats, now: stats.subscription_count, True),
    "pending": (lambda stats, now: stats.pending_bytes, True),
    "msgs_to": (lambda stats, now: stats.out_msgs, True),
    "msgs_from": (lambda stats, now: stats.in_msgs, True),
    "bytes_to": (lambda stats, now: stats.out_bytes, True),
    "bytes_from": (lambda stats, now: stats.in_bytes, True),
    "last": (lambda stats, now: stats.last_activity_ns, True),
    "idle": (lambda stats, now: now - stats.last_activity_ns, True),
    "uptime": (lambda stats, now: (stats.stop_ns or now) - stats.start_ns, False),
    "stop": (lambda stats, now: stats.stop_ns, True),
    "reason": (lambda stats, now: stats.reason, False),
    "rtt": (lambda stats, now: stats.rtt_ns, True),
}


class _Shown:
    """Extent of what is shown of a connection: its user, and which of its subscriptions."""

    def __init__(self, with_user: bool, with_subjects: bool, is_detailed: bool) -> None:
        self.with_user = with_user
        self.with_subjects = with_subjects
        self.is_detailed = is_detailed
        self.offset = 0
        self.limit = MONITORING_PAGE

    def subscriptions(
        self, stats: ConnectionStats, show: Callable[[SubscriptionStats], object]
    ) -> Rows | None:
        """Return the rows of a connection's subscriptions; None if it has none."""
        return Rows(self._rows(stats, show)) if stats.subscription_count else None

    def _rows(
        self, stats: ConnectionStats, show: Callable[[SubscriptionStats], object]
    ) -> Iterator[object]:
        at = -1
        for sub in looked_at(stats.subscriptions()):
            if sub is None:
                yield None
                continue
            at += 1
            if at >= self.offset + self.limit:
                return
            if at >= self.offset:
                yield show(sub)


def _connection(stats: ConnectionStats, now: int, shows: _Shown) -> Document:
    until = stats.stop_ns or now
    tls = stats.tls
    entry: Document = {
        "cid": stats.cid,
        "kind": "Client",
        "type": "websocket" if stats.is_websocket else "nats",
        "ip": stats.ip,
        "port": stats.port,
        "start": format_ns(stats.start_ns),
        "last_activity": format_ns(stats.last_activity_ns),
        "stop": format_ns(stats.stop_ns) if stats.stop_ns else None,
        "reason": stats.reason or None,
        "rtt": format_duration(stats.rtt_ns) if stats.rtt_ns else None,
        "uptime": format_uptime(until - stats.start_ns),
        "idle": format_uptime(until - stats.last_activity_ns),
        "pending_bytes": stats.pending_bytes,
        "in_msgs": stats.in_msgs,
        "out_msgs": stats.out_msgs,
        "in_bytes": stats.in_bytes,
        "out_bytes": stats.out_bytes,
        "subscriptions": stats.subscription_count,
        "name": stats.name or None,
        "lang": stats.lang or None,
        "version": stats.version or None,
        "tls_version": tls.version if tls is not None else None,
        "tls_cipher_suite": tls.cipher_suite if tls is not None else None,
        "tls_peer_certs": _certificates(tls) if tls is not None and shows.with_user else None,
        "tls_first": True if tls is not None and tls.is_first else None,
        "authorized_user": stats.user or None if shows.with_user else None,
        "subscriptions_list": (
            shows.subscriptions(stats, lambda sub: sub.subject) if shows.with_subjects else None
        ),
        "subscriptions_list_detail": (
            shows.subscriptions(stats, _subscription) if shows.is_detailed else None
        ),
    }
    return {key: value for key, value in entry.items() if value is not None}


def _certificates(tls: TlsFacts) -> list[Document] | None:
    return [
        {
            "subject": certificate.subject.text,
            "spki_sha256": certificate.spki_sha256,
            "cert_sha256": certificate.cert_sha256,
        }
        for certificate in tls.certificates
    ] or None


def _subscription(sub: SubscriptionStats) -> Document:
    entry: Document = {"subject": sub.subject}
    if sub.queue:
        entry["qgroup"] = sub.queue
    entry["sid"] = sub.sid
    entry["msgs"] = sub.msgs
    if sub.max_msgs:
        entry["max"] = sub.max_msgs
    entry["cid"] = sub.cid
    return entry
