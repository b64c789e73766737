"""Outbox of events: what the server publishes in the system account without being asked.

An event is published on the next round of the loop, for it may be made while a connection is about
to end whose subscriptions are still there. Nothing is made for a subject that nobody listens to.
"""

from __future__ import annotations

import secrets
import string
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from streamd.limits import SYSTEM_EVENTS_MAX
from streamd.machine.rfc3339 import format_ns
from streamd.net.monitoring.sliced_pages import Document, encode
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.system.server_description import ServerDescription

_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LENGTH: Final = 22


class EventOutbox:
    """Publishes events in order, and counts those that had no room."""

    def __init__(
        self,
        router: MessageRouter,
        description: ServerDescription,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`router`: subject space of the system account."""
        self._router = router
        self._description = description
        self._call_soon = call_soon
        self._waiting: deque[tuple[str, Document]] = deque()
        self.lost_count = 0

    def has_interest(self, subject: str) -> bool:
        """True if an event on `subject` would reach somebody."""
        return self._router.has_interest(subject.encode())

    def put(self, subject: str, event: Document) -> None:
        """Publish an event soon."""
        if len(self._waiting) >= SYSTEM_EVENTS_MAX:
            self.lost_count += 1
            return
        self._waiting.append((subject, event))
        if len(self._waiting) == 1:
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Publish what waits."""
        while self._waiting:
            subject, event = self._waiting.popleft()
            body = "".join(encode(event, "")).encode(errors="replace")
            self._router.publish(subject.encode(), b"", b"", body)

    def head(self, kind: str) -> Document:
        """Return the beginning of an event of a kind that has a schema."""
        return {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH)),
            "timestamp": format_ns(time.time_ns()),
            "server": self._description.next(),
        }
