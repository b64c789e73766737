"""Responses of one account's services, on their way back to the accounts that asked.

A request reaches the service with a reply subject of this table, `_R_.<node>.<id>`. Whatever is
published there, at any node, comes back to this node, and goes to the reply subject that the
requester had chosen, in its own account. An entry ends

- with the first response, if the service answers once,
- with an empty response, if it answers in parts or as a stream, or after a while without one,
- when nobody listens to the requester's reply subject any more,
- when there are too many: the oldest ends first.
"""

from __future__ import annotations

import heapq
import secrets
import string
from collections.abc import Callable
from typing import Final, Protocol

from streamd.api.remote_client import ClientFacts
from streamd.config.account_options import SINGLETON
from streamd.limits import SERVICE_RESPONSES_MAX
from streamd.net.accounts.request_origin import RequestOrigin
from streamd.net.pubsub.delivery_sinks import InboxSink
from streamd.net.pubsub.fanout import SERVICE_REPLIES
from streamd.net.pubsub.interest import Delivery
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.message_trace import disabled
from streamd.net.pubsub.sublist import Subscription
from streamd.subjects import is_literal, matches

ACK_PREFIX: Final = b"$JS.ACK."
DEFAULT_THRESHOLD_NS: Final = 120 * 1_000_000_000
_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase


def random_token(length: int) -> bytes:
    """Return letters and digits that nobody can guess."""
    return "".join(secrets.choice(_BASE62) for _ in range(length)).encode()


class Measurement(Protocol):
    """Measurement of one request."""

    def answered(self, responder: ClientFacts | None) -> None:
        """Report the response of `responder`, a client here; None: a client elsewhere."""

    def failed(self, status: int) -> None:
        """Report that there will be no response."""


class TimerHandle(Protocol):
    def cancel(self) -> object: ...


CallLater = Callable[[float, Callable[[], None]], TimerHandle]


class Expected:
    """A response that is expected: where it goes, and until when."""

    __slots__ = (
        "deadline_ns",
        "is_singleton",
        "measurement",
        "reply",
        "requester",
        "subject",
        "threshold_ns",
    )  # fmt: skip

    def __init__(
        self,
        subject: bytes,
        requester: ServiceResponses,
        reply: bytes,
        *,
        is_singleton: bool,
        threshold_ns: int,
        deadline_ns: int,
        measurement: Measurement | None,
    ) -> None:
        self.subject = subject
        self.requester = requester
        self.reply = reply
        self.is_singleton = is_singleton
        self.threshold_ns = threshold_ns
        self.deadline_ns = deadline_ns
        self.measurement = measurement


class ServiceResponses:
    """Expected responses of the services of one account, and the reply subjects that its own
    clients wait at for responses of others."""

    def __init__(
        self,
        router: MessageRouter,
        *,
        monotonic_ns: Callable[[], int],
        call_later: CallLater,
        responses_max: int = SERVICE_RESPONSES_MAX,
    ) -> None:
        self.router = router
        self._monotonic_ns = monotonic_ns
        self._call_later = call_later
        self._max = responses_max
        self._prefix = SERVICE_REPLIES + random_token(6) + b"."
        self._expected: dict[bytes, Expected] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        self._timer: TimerHandle | None = None
        self._subscription: Subscription | None = None
        # Reply subjects of this account's clients, by all but their last token.
        self._awaited: dict[bytes, dict[Expected, ServiceResponses]] = {}

    @property
    def count(self) -> int:
        """Responses that are expected."""
        return len(self._expected)

    # --- requests -------------------------------------------------------------------------------

    def expect(
        self,
        requester: ServiceResponses,
        reply: bytes,
        *,
        response_type: str = SINGLETON,
        threshold_ns: int = 0,
        measurement: Measurement | None = None,
        suffix: bytes = b"",
    ) -> bytes:
        """Return the reply subject with which a request goes to the service; responses go to
        `reply` in the account of `requester`."""
        if self._subscription is None:
            sub = self.router.subscriptions.subscribe_internal(
                self._prefix + b">", self._on_response, is_told=True
            )
            sub.relay = self._relay
            sub.is_traced = True
            self._subscription = sub
        while len(self._expected) >= self._max:
            self._remove(next(iter(self._expected.values())), status=504)
        subject = self._prefix + random_token(6) + suffix
        threshold_ns = threshold_ns or DEFAULT_THRESHOLD_NS
        deadline_ns = self._monotonic_ns() + threshold_ns
        expected = Expected(
            subject,
            requester,
            reply,
            is_singleton=response_type == SINGLETON,
            threshold_ns=threshold_ns,
            deadline_ns=deadline_ns,
            measurement=measurement,
        )
        self._expected[subject] = expected
        requester.wait_at(expected, self)
        heapq.heappush(self._deadlines, (deadline_ns, subject))
        if self._deadlines[0][1] == subject or self._timer is None:
            self._set_timer()
        return subject

    def forget(self, subject: bytes) -> None:
        """Expect nothing more at a subject that `expect` returned."""
        expected = self._expected.get(subject)
        if expected is not None:
            self._remove(expected)

    def end(self) -> None:
        """Expect nothing any more: the account is gone."""
        for expected in list(self._expected.values()):
            self._remove(expected)
        if self._subscription is not None:
            self.router.subscriptions.unsubscribe(self._subscription)
            self._subscription = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- responses ------------------------------------------------------------------------------

    def _on_response(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, conn: ClientFacts | None
    ) -> None:
        trace = self.router.traced.tracing.take()
        expected = self._expected.get(subject)
        if expected is None:
            return  # too late; nobody is told, as by nats-server
        if trace is not None:
            trace.asked(expected.requester.router.account, subject, expected.reply)
            if trace.is_only:
                return
            headers = disabled(headers)
        # Before it is delivered: the client may unsubscribe at once.
        self._answered(expected, is_last=not payload and not headers, responder=conn)
        requester = expected.requester
        if reply and not reply.startswith(ACK_PREFIX):
            # The client may answer in turn: its answers find their way through its own account.
            reply = requester.expect(self, reply, threshold_ns=expected.threshold_ns)
        origin = RequestOrigin(conn, "", is_response=True)
        requester.router.publish_imported(origin, expected.reply, reply, headers, payload)

    def _relay(self, to: bytes, batch: list[Delivery]) -> None:
        """Pass on a consumer's messages: the client gets them under their own subjects."""
        expected = self._expected.get(to)
        if expected is None:
            return
        self._answered(expected, is_last=False, responder=None)
        InboxSink(expected.requester.router.fanout, expected.reply, b"").deliver(batch)

    def _answered(
        self, expected: Expected, *, is_last: bool, responder: ClientFacts | None
    ) -> None:
        if expected.measurement is not None:
            expected.measurement.answered(responder)
            expected.measurement = None
        if expected.is_singleton or is_last:
            self._remove(expected)
        else:
            expected.deadline_ns = self._monotonic_ns() + expected.threshold_ns

    def _remove(self, expected: Expected, *, status: int = 0) -> None:
        if self._expected.pop(expected.subject, None) is None:
            return
        expected.requester.stop_waiting(expected)
        if expected.measurement is not None and status:
            expected.measurement.failed(status)
        if not self._expected:
            self._deadlines.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif len(self._deadlines) > 2 * len(self._expected) + 64:
            self._deadlines = [(each.deadline_ns, at) for at, each in self._expected.items()]
            heapq.heapify(self._deadlines)

    # --- time -----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_ns = self._deadlines[0][0] - self._monotonic_ns()
        self._timer = self._call_later(max(0, left_ns) / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ns = self._monotonic_ns()
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, subject = heapq.heappop(self._deadlines)
            expected = self._expected.get(subject)
            if expected is None:
                continue
            if expected.deadline_ns > now_ns:  # it was answered since
                heapq.heappush(self._deadlines, (expected.deadline_ns, subject))
            else:
                self._remove(expected, status=504)
        if self._deadlines:
            self._set_timer()

    # --- requesters of this account -------------------------------------------------------------

    def wait_at(self, expected: Expected, responses: ServiceResponses) -> None:
        """Note that a client here waits for a response of `responses`."""
        self._awaited.setdefault(_parent(expected.reply), {})[expected] = responses

    def stop_waiting(self, expected: Expected) -> None:
        """Note that it does not any more."""
        parent = _parent(expected.reply)
        waiting = self._awaited.get(parent, {})
        waiting.pop(expected, None)
        if not waiting:
            self._awaited.pop(parent, None)

    def subscribed(self, sub: Subscription) -> None:
        """See `subscriptions.SubscriptionObserver`."""

    def unsubscribed(self, sub: Subscription) -> None:
        """End what is expected for clients that no longer listen.

        Only for a pattern that is literal up to its last token, as inboxes are; for any other the
        entries end by themselves after a while.
        """
        if not self._awaited:
            return
        parent = _parent(sub.pattern)
        waiting = self._awaited.get(parent)
        if waiting is None or not is_literal(parent + b"x"):
            return
        has_interest = self.router.has_interest
        for expected, responses in list(waiting.items()):
            if matches(sub.pattern, expected.reply) and not has_interest(expected.reply):
                responses._remove(expected, status=408)


def _parent(subject: bytes) -> bytes:
    return subject[: subject.rfind(b".") + 1]
