"""Counts of subscribers: `$SYS.DEBUG.SUBSCRIBERS` over the cluster, by `$SYS.REQ.ACCOUNT.NSUBS`.

A server that is asked counts its own, asks the others with interest in the subject, and answers
when they have, or after half a second with what came.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from typing import Final

from streamd.api.cluster_infos import short_hash
from streamd.limits import SUBSCRIBERS_ASKED_MAX, SUBSCRIBERS_WAIT_S
from streamd.net.monitoring.account_views import AccountsView, AccountView
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.system.request_info import request_info
from streamd.net.system.server_description import ServerDescription
from streamd.subjects import is_literal, is_subset, is_valid, matches

_ASKED: Final = b"$SYS.DEBUG.SUBSCRIBERS"
_OTHERS: Final = b"$SYS.REQ.ACCOUNT.NSUBS"


class _Count:
    """A count that others still add to."""

    __slots__ = ("expected", "reply", "total")

    def __init__(self, reply: bytes, total: int, expected: int) -> None:
        self.reply = reply
        self.total = total
        self.expected = expected  # answers of other servers


class SubscriberCounts:
    """Counts subscribers for operators, and for other servers."""

    def __init__(
        self,
        router: MessageRouter,
        accounts: AccountsView,
        description: ServerDescription,
        has_clients: Callable[[str], bool],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`router`: subject space of the system account; `has_clients(account)`: here."""
        self._router = router
        self._accounts = accounts
        self._has_clients = has_clients
        self._call_later = call_later
        self._inbox = b"$SYS._INBOX.%b." % short_hash(description.server_id).encode()
        self._counts: dict[bytes, _Count] = {}  # by the subject that others answer to
        subscribe = router.subscriptions.subscribe_internal
        subscribe(_ASKED, self._on_asked)
        subscribe(_OTHERS, self._on_other_server, is_told=True)
        subscribe(self._inbox + b"*", self._on_answer, is_told=True)

    # --- for operators --------------------------------------------------------------------------

    def _on_asked(
        self, _subject: bytes, reply: bytes, headers: bytes, payload: bytes, _conn: object
    ) -> None:
        if not reply:
            return
        name = str(request_info(headers).get("acc") or self._accounts.system.name)
        account = self._accounts.get(name)
        subject, queue = [*payload.split(), b"", b""][:2]
        if account is None or not is_valid(subject):
            self._answer(reply, 0)
            return
        total = count(account, subject, queue)
        expected = _interested(account, subject)
        if not expected or len(self._counts) >= SUBSCRIBERS_ASKED_MAX:
            self._answer(reply, total)
            return
        self._ask(_Count(reply, total, expected), name, subject, queue)

    def _ask(self, waiting: _Count, account: str, subject: bytes, queue: bytes) -> None:
        inbox = self._inbox + secrets.token_hex(4).encode()
        self._counts[inbox] = waiting
        request = {"acc": account, "subject": subject.decode(errors="replace")}
        if queue:
            request["queue"] = base64.b64encode(queue).decode()
        self._call_later(SUBSCRIBERS_WAIT_S, lambda: self._finish(inbox))
        self._router.publish(_OTHERS, inbox, b"", json.dumps(request).encode())

    def _on_answer(
        self, subject: bytes, _reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        waiting = self._counts.get(subject)
        if waiting is None or not payload.isdigit():
            return
        waiting.total += int(payload[:9])
        waiting.expected -= 1
        if not waiting.expected:
            self._finish(subject)

    def _finish(self, inbox: bytes) -> None:
        waiting = self._counts.pop(inbox, None)
        if waiting is not None:
            self._answer(waiting.reply, waiting.total)

    def _answer(self, reply: bytes, total: int) -> None:
        self._router.publish(reply, b"", b"", b"%d" % total)

    # --- for other servers ----------------------------------------------------------------------

    def _on_other_server(
        self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes, _conn: object
    ) -> None:
        """Answer for the clients of this server; silence, if the account has none here."""
        if not reply or reply.startswith(self._inbox):  # the question is our own
            return
        try:
            asked = json.loads(payload)
            account = self._accounts.get(str(asked["acc"]))
            subject = str(asked["subject"]).encode()
            queue = base64.b64decode(asked.get("queue") or "", validate=True)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, binascii.Error):
            return
        if account is not None and self._has_clients(account.name):
            self._answer(reply, count(account, subject, queue) if is_valid(subject) else 0)


def count(account: AccountView, subject: bytes, queue: bytes = b"") -> int:
    """Count the subscriptions of an account's clients here that a subject reaches; of a pattern
    those that lie within it. With `queue` the members of that group alone."""
    subscriptions = account.router.subscriptions
    if is_literal(subject):
        match = subscriptions.sublist.match(subject)
        plain = [] if queue else match.plain
        found = [*plain, *(sub for members in match.queues for sub in members)]
    else:
        found = [sub for sub in subscriptions.sublist.all() if is_subset(sub.pattern, subject)]
    return sum(sub.callback is None and queue in (b"", sub.queue) for sub in found)


def _interested(account: AccountView, subject: bytes) -> int:
    """Count the other servers with clients that a subject, or one within a pattern, reaches."""
    remote = account.router.subscriptions.remote_interest.sublist
    test = matches if is_literal(subject) else is_subset
    nodes = {sub.node.node_id for sub in remote.all() if (test(sub.pattern, subject))}
    return len(nodes)
