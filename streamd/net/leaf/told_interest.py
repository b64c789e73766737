"""Interest of one subject space, as leaf links are told of it.

`ToldInterest` counts who wants a subject: clients here, streams that are led here or elsewhere,
other nodes of the cluster, other leaf links. A link is told the sum of those that it may hear of,
and again whenever that changes: a hub tells all it has, a leaf node only what is its own or of its
own leaf nodes. Nothing is kept by link, for what a link was told follows from the counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from streamd.net.leaf.leaf_rights import LOOP_PREFIX
from streamd.net.pubsub.interest import PeerNode
from streamd.net.pubsub.leaf_routes import LeafPeer
from streamd.net.pubsub.sublist import Subscription
from streamd.protocol.leaf_protocol import sub_line, unsub_line

Key = tuple[bytes, bytes]  # pattern, queue


class Here:
    """Source of interest that is this server's own."""


class Elsewhere:
    """Source of interest of streams that other nodes lead."""


HERE: Final = Here()
ELSEWHERE: Final = Elsewhere()
Source = Here | Elsewhere | PeerNode | LeafPeer


class ToldLink(LeafPeer, Protocol):
    """A leaf link that is told of interest."""

    @property
    def is_isolated(self) -> bool:
        """True if interest of other leaf links is not for it."""

    def may_tell(self, pattern: bytes) -> bool:
        """True if the other end may learn of interest in `pattern`."""

    def tell(self, lines: Iterable[bytes]) -> None:
        """Send lines about interest."""


class ToldInterest:
    """Counts of interest by its sources, and the links that hear of each change."""

    def __init__(self, loop_subject: bytes) -> None:
        self.loop_subject = loop_subject
        self._counts: dict[Key, dict[Source, int]] = {(loop_subject, b""): {HERE: 1}}
        self._links: dict[ToldLink, None] = {}

    # --- sources ----------------------------------------------------------------------------------

    def subscribed(self, sub: Subscription) -> None:
        """A client here subscribed."""
        self.add(HERE, (sub.pattern, sub.queue), 1)

    def unsubscribed(self, sub: Subscription) -> None:
        """A subscription that `subscribed` was told of has ended."""
        self.add(HERE, (sub.pattern, sub.queue), -1)

    def on_node(self, node: PeerNode, pattern: bytes, queue: bytes, count: int) -> None:
        """Another node has so many members of a group, or any interest at all."""
        self.set(node, (pattern, queue), count)

    def add(self, source: Source, key: Key, change: int) -> None:
        """Count `change` more of a source."""
        self.set(source, key, self._counts.get(key, {}).get(source, 0) + change)

    def set(self, source: Source, key: Key, count: int) -> None:
        """Note how much of a source's interest there is now, and tell the links."""
        sources = self._counts.setdefault(key, {})
        before = [(link, self._value(link, key, sources)) for link in self._links]
        if count > 0:
            sources[source] = count
        else:
            sources.pop(source, None)
        if not sources:
            del self._counts[key]
        for link, value in before:
            now = self._value(link, key, sources)
            if now != value and link.may_tell(key[0]):
                link.tell((sub_line(*key, now) if now else unsub_line(*key),))

    # --- links ------------------------------------------------------------------------------------

    def open(self, link: ToldLink) -> None:
        """Tell a new link everything, and of each change from here on."""
        self._links[link] = None
        link.tell(
            sub_line(*key, value)
            for key, sources in self._counts.items()
            if (value := self._value(link, key, sources)) and link.may_tell(key[0])
        )

    def close(self, link: ToldLink) -> None:
        """Tell a link no more. Its own interest is to be ended by its owner."""
        self._links.pop(link, None)

    def is_open(self, link: ToldLink) -> bool:
        return link in self._links

    def _value(self, link: ToldLink, key: Key, sources: dict[Source, int]) -> int:
        is_loop = key[0].startswith(LOOP_PREFIX)
        total = sum(
            count for source, count in sources.items() if _hears(link, source, is_loop=is_loop)
        )
        return total if key[1] else min(total, 1)


def _hears(link: ToldLink, source: Source, *, is_loop: bool) -> bool:
    """Return True if `link` is told of interest of `source`."""
    if source is link:
        return False
    if is_loop or source is HERE:
        return True
    is_leaf = hasattr(source, "is_spoke")
    if link.is_spoke:
        return is_leaf and not source.is_spoke  # type: ignore[union-attr]
    if is_leaf:
        is_same = source.remote_cluster == link.remote_cluster  # type: ignore[union-attr]
        return not link.is_isolated and not is_same
    return True
