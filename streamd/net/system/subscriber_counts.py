"""Counts of subscribers: `$SYS.DEBUG.SUBSCRIBERS` over the cluster, by `$SYS.REQ.ACCOUNT.NSUBS`.

A server that is asked counts its own, asks the others with interest in the subject, and answers
when they have, or after half a second with what came.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from streamd.api.cluster_infos import short_hash
from streamd.limits import SUBSCRIBERS_ASKED_MAX, SUBSCRIBERS_WAIT_S
from streamd.net.monitoring.account_views import AccountsView, AccountView
from streamd.net.monitoring.sliced_pages import Slicer, Steps, looked_at
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.sublist import Entry, Sublist
from streamd.net.system.requester_info import request_info
from streamd.net.system.server_description import ServerDescription
from streamd.subjects import is_literal, is_subset, is_valid

T = TypeVar("T")

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
        slicer: Slicer,
        has_clients: Callable[[str], bool],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`router`: subject space of the system account; `has_clients(account)`: here."""
        self._router = router
        self._accounts = accounts
        self._slicer = slicer
        self._has_clients = has_clients
        self._call_later = call_later
        self._inbox = b"$SYS._INBOX.%b." % short_hash(description.server_id).encode()
        self._running_count = 0  # counts of this server's own that are being made
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

        def counted(found: tuple[int, int]) -> None:
            self._running_count -= 1
            total, expected = found
            if expected:
                self._ask(_Count(reply, total, expected), name, subject, queue)
            else:
                self._answer(reply, total)

        def steps() -> Steps[tuple[int, int]]:
            total = yield from count(account, subject, queue)
            return total, (yield from _interested(account, subject))

        self._run(steps(), counted)

    def _run(self, steps: Steps[T], done: Callable[[T], None]) -> None:
        """Count; beyond so many counts at a time nothing is, for a wrong number is no answer."""
        if self._running_count >= SUBSCRIBERS_ASKED_MAX:
            return
        self._running_count += 1

        def failed(err: Exception) -> None:
            self._running_count -= 1
            raise err

        self._slicer.start(steps, done, failed)

    def _ask(self, waiting: _Count, account: str, subject: bytes, queue: bytes) -> None:
        if len(self._counts) >= SUBSCRIBERS_ASKED_MAX:
            return
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
        if account is None or not self._has_clients(account.name):
            return
        if not is_valid(subject):
            self._answer(reply, 0)
            return

        def counted(total: int) -> None:
            self._running_count -= 1
            self._answer(reply, total)

        self._run(count(account, subject, queue), counted)


def count(account: AccountView, subject: bytes, queue: bytes = b"") -> Steps[int]:
    """Count the subscriptions of an account's clients here that a subject reaches; of a pattern
    those that lie within it. With `queue` the members of that group alone."""
    total = 0
    for sub in looked_at(_reached(account.router.subscriptions.sublist, subject)):
        if sub is None:
            yield
        elif sub.callback is None and queue in (b"", sub.queue):
            total += 1
    return total


def _interested(account: AccountView, subject: bytes) -> Steps[int]:
    """Count the other servers with clients that a subject, or one within a pattern, reaches."""
    nodes = set()
    remote = account.router.subscriptions.remote_interest.sublist
    for sub in looked_at(_reached(remote, subject)):
        if sub is None:
            yield
        else:
            nodes.add(sub.node.node_id)
    return len(nodes)


def _reached(sublist: Sublist[Entry], subject: bytes) -> Iterator[Entry]:
    """Iterate over the entries that a subject reaches, or that lie within a pattern."""
    if is_literal(subject):
        match = sublist.match(subject)
        yield from match.plain
        for members in match.queues:
            yield from members
        return
    for entry in list(sublist.all()):
        if is_subset(entry.pattern, subject):
            yield entry
