"""What the monitoring port says of connections and subscriptions: /connz and /subsz."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from streamd.api.times import format_ns
from streamd.config.durations import format_uptime
from streamd.durations import format_duration
from streamd.net.facts import ConnectionFacts, Sources, SubscriptionFacts
from streamd.net.query import BadQuery, Query, flag, number, page
from streamd.subjects import is_valid_literal, matches
from streamd.types import ACCOUNT


class Connz:
    """Builds both documents."""

    def __init__(self, sources: Sources, *, server_id: str) -> None:
        self._sources = sources
        self._server_id = server_id

    def connz(self, query: Query) -> dict[str, Any]:
        sort = query.get("sort", "") or "cid"
        state = query.get("state", "") or "open"
        with_user = flag(query, "auth")
        is_detailed = query.get("subs") == "detail"
        with_subjects = not is_detailed and flag(query, "subs")
        offset, limit = page(query)
        cid = number(query, "cid")
        user, account = query.get("user", ""), query.get("acc", "")
        if state not in ("open", "closed", "any", "all"):
            raise BadQuery(f"Error decoding state for {state}")
        if sort not in _SORTS:
            raise BadQuery(f"invalid sorting option: {sort}")
        if sort in ("stop", "reason") and state != "closed":
            raise BadQuery(f"sort by {sort} only valid on closed connections")
        found: list[ConnectionFacts] = []
        if state != "closed":
            found.extend(self._sources.open_connections())
        if state != "open":
            found.extend(self._sources.closed_connections())
        now = time.time_ns()
        if cid:
            found, offset, limit = [facts for facts in found if facts.cid == cid], 0, 1
        if user:
            found = [facts for facts in found if facts.user == user]
        if account and account != ACCOUNT:
            found = []
        if subject := query.get("filter_subject", ""):
            found = [facts for facts in found if self._has_subject(facts, subject)]
        key, is_descending = _SORTS[sort]
        found.sort(key=lambda facts: key(facts, now), reverse=is_descending)
        shown = found[offset : offset + limit]
        return {
            "server_id": self._server_id,
            "now": format_ns(now),
            "num_connections": len(shown),
            "total": len(found),
            "offset": offset,
            "limit": limit,
            "connections": [
                _connection(facts, now, with_user, with_subjects, is_detailed) for facts in shown
            ],
        }

    def _has_subject(self, facts: ConnectionFacts, subject: str) -> bool:
        wanted = subject.encode()
        return any(matches(sub.subject.encode(), wanted) for sub in facts.subscriptions())

    def subsz(self, query: Query) -> dict[str, Any]:
        with_list = flag(query, "subs")
        offset, limit = page(query)
        test = query.get("test", "")
        account = query.get("acc", "")
        if test and not is_valid_literal(test.encode()):
            raise BadQuery(f"invalid test subject, must be valid publish subject: {test}")
        facts = self._sources.sublist()
        document: dict[str, Any] = {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "num_subscriptions": facts.subscriptions,
            "num_cache": facts.cache_entries,
            "num_inserts": facts.inserts,
            "num_removes": facts.removes,
            "num_matches": 0,  # lookups are not counted: they are the hot path
            "cache_hit_rate": 0,
            "max_fanout": facts.max_fanout,
            "avg_fanout": facts.avg_fanout,
            "total": 0,
            "offset": offset,
            "limit": limit,
        }
        if with_list:
            found = (
                sub
                for sub in self._sources.subscriptions()
                if not test or matches(sub.subject.encode(), test.encode())
            )
            is_other = account and account != ACCOUNT
            shown = [] if is_other else list(islice(found, offset, offset + limit))
            document["total"] = len(shown)
            if shown:
                document["subscriptions_list"] = [
                    {"account": ACCOUNT, "account_tag": ACCOUNT, **_subscription(sub)}
                    for sub in shown
                ]
        return document


_Sort = Callable[[ConnectionFacts, int], Any]
_SORTS: dict[str, tuple[_Sort, bool]] = {  # option -> (key, largest first)
    "cid": (lambda facts, now: facts.cid, False),
    "start": (lambda facts, now: (facts.start_ns, facts.cid), False),
    "subs": (lambda facts, now: facts.subscription_count, True),
    "pending": (lambda facts, now: facts.pending_bytes, True),
    "msgs_to": (lambda facts, now: facts.out_msgs, True),
    "msgs_from": (lambda facts, now: facts.in_msgs, True),
    "bytes_to": (lambda facts, now: facts.out_bytes, True),
    "bytes_from": (lambda facts, now: facts.in_bytes, True),
    "last": (lambda facts, now: facts.last_activity_ns, True),
    "idle": (lambda facts, now: now - facts.last_activity_ns, True),
    "uptime": (lambda facts, now: (facts.stop_ns or now) - facts.start_ns, False),
    "stop": (lambda facts, now: facts.stop_ns, True),
    "reason": (lambda facts, now: facts.reason, False),
    "rtt": (lambda facts, now: facts.rtt_ns, True),
}


def _connection(
    facts: ConnectionFacts, now: int, with_user: bool, with_subjects: bool, is_detailed: bool
) -> dict[str, Any]:
    until = facts.stop_ns or now
    entry: dict[str, Any] = {
        "cid": facts.cid,
        "kind": "Client",
        "type": "nats",
        "ip": facts.ip,
        "port": facts.port,
        "start": format_ns(facts.start_ns),
        "last_activity": format_ns(facts.last_activity_ns),
        "stop": format_ns(facts.stop_ns) if facts.stop_ns else None,
        "reason": facts.reason or None,
        "rtt": format_duration(facts.rtt_ns) if facts.rtt_ns else None,
        "uptime": format_uptime(until - facts.start_ns),
        "idle": format_uptime(until - facts.last_activity_ns),
        "pending_bytes": facts.pending_bytes,
        "in_msgs": facts.in_msgs,
        "out_msgs": facts.out_msgs,
        "in_bytes": facts.in_bytes,
        "out_bytes": facts.out_bytes,
        "subscriptions": facts.subscription_count,
        "name": facts.name or None,
        "lang": facts.lang or None,
        "version": facts.version or None,
        "authorized_user": facts.user or None if with_user else None,
        "account": ACCOUNT if with_user else None,
        "subscriptions_list": (
            [sub.subject for sub in facts.subscriptions()] or None if with_subjects else None
        ),
        "subscriptions_list_detail": (
            [_subscription(sub) for sub in facts.subscriptions()] or None if is_detailed else None
        ),
        "name_tag": ACCOUNT if with_user else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _subscription(sub: SubscriptionFacts) -> dict[str, Any]:
    entry: dict[str, Any] = {"subject": sub.subject}
    if sub.queue:
        entry["qgroup"] = sub.queue
    entry["sid"] = sub.sid
    entry["msgs"] = sub.msgs
    if sub.max_msgs:
        entry["max"] = sub.max_msgs
    entry["cid"] = sub.cid
    return entry
