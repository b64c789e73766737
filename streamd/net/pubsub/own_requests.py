"""Requests and subscriptions of the server itself: of streams that copy from others."""

from __future__ import annotations

from collections.abc import Callable

from streamd.net.pubsub.sublist import Subscription

Delivered = Callable[[list[tuple[bytes, bytes, bytes, bytes]]], object]
"""Takes messages: (subject, reply, headers, payload), in order."""


class ServerRequester:
    """Requester that is the server itself, as the API and imports of other accounts see it: without
    any right to administer."""

    cid = 0
    ip = ""
    start_ns = 0
    rtt_ns = 0
    user = ""
    name = "JetStream"
    lang = ""
    version = ""

    def may_administer(self, subject: bytes) -> bool:
        """Return False: streams only make consumers."""
        return False

    def forbid_publish(self, subject: bytes) -> None:
        """Ignore it: no client published to `subject`."""


def own_subscription(subject: bytes, on_messages: Delivered) -> Subscription:
    """Return a subscription of the server that other nodes, leaf links and imports follow as if it
    were a client's."""

    def on_message(
        subject: bytes, reply: bytes, headers: bytes, payload: bytes, client: object
    ) -> None:
        on_messages([(subject, reply, headers, payload)])

    sub = Subscription(subject, callback=on_message)
    sub.relay = lambda to, batch: on_messages(batch)
    sub.is_told = sub.is_own = True
    return sub
