"""Subject space of one account, as leaf links join it: its router, and what the links are told."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Final, NamedTuple

from streamd.net.leaf.leaf_output import LeafOutput
from streamd.net.leaf.leaf_rights import LOOP_PREFIX
from streamd.net.leaf.told_interest import ELSEWHERE, HERE, ToldInterest
from streamd.net.pubsub.message_router import MessageRouter

_DIGITS: Final = string.digits + string.ascii_letters
_NOT_FOR_OTHERS: Final = b"$SYS."
"""Requests to servers: each answers its own clients, and two answers would be one too many."""


class StreamInterest(NamedTuple):
    """Patterns that this account's JetStream listens to."""

    # Of streams that this node leads, and of the API, if it is this node's to answer.
    here: frozenset[bytes] = frozenset()
    elsewhere: frozenset[bytes] = frozenset()


StreamsOf = Callable[[str], StreamInterest]
"""account -> the patterns of its JetStream."""


class LeafSpace:
    """Account with its leaf links. Made with the account's first link, and then kept."""

    def __init__(self, name: str, router: MessageRouter, streams_of: StreamsOf) -> None:
        self.name = name
        self.router = router
        self.loop_subject = (
            LOOP_PREFIX + "".join(secrets.choice(_DIGITS) for _ in range(22)).encode()
        )
        self.told = ToldInterest(self.loop_subject)
        self.links: dict[LeafOutput, None] = {}
        self._streams_of = streams_of
        self._streams = StreamInterest()
        subscriptions = router.subscriptions
        for sub in subscriptions.sublist.all():
            if sub.is_followed:
                self.told.subscribed(sub)
        subscriptions.watcher = self.told
        for entry in subscriptions.remote_interest.all():
            self.told.on_node(entry.node, entry.pattern, entry.queue, entry.weight)
        subscriptions.remote_interest.on_change = self.told.on_node
        self.streams_changed()

    def streams_changed(self) -> None:
        """Tell the links of streams that came, went, or are led elsewhere now."""
        before, now = self._streams, self._streams_of(self.name)
        self._streams = now
        for source, old, new in (
            (HERE, before.here, now.here),
            (ELSEWHERE, before.elsewhere, now.elsewhere),
        ):
            for pattern in sorted(new - old):
                self.told.add(source, (pattern, b""), 1)
            for pattern in sorted(old - new):
                self.told.add(source, (pattern, b""), -1)

    def open(self, link: LeafOutput) -> None:
        """Join a link: it is told of interest here, and may send messages."""
        self.links[link] = None
        link.join(self.router)
        self.told.open(link)

    def reopen(self, link: LeafOutput) -> None:
        """Tell a link again, which may hear of other interest now; what was told before and is
        forbidden now does no harm, for messages are checked."""
        if link in self.links:
            self.told.open(link)

    def close(self, link: LeafOutput) -> None:
        """Take a link out, with its interest."""
        if link not in self.links:
            return
        del self.links[link]
        self.told.close(link)
        for sub in self.router.subscriptions.leaf_interest.of_peer(link):
            self.take_interest(link, sub.pattern, sub.queue, 0)
        self.router.subscriptions.leaf_interest.forget(link)

    def take_interest(self, link: LeafOutput, pattern: bytes, queue: bytes, weight: int) -> None:
        """Note interest that a link tells; weight 0: it has ended."""
        if pattern.startswith(_NOT_FOR_OTHERS):
            return
        self.router.subscriptions.set_leaf_interest(link, pattern, queue, weight)
        self.told.set(link, (pattern, queue), weight)
