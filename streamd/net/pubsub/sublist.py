"""Who subscribed to what: an index from subjects to subscriptions.

Literal patterns live in a dict, patterns with wildcards in a tree of tokens, so that a lookup
touches only what may match. Routes found here are cached by `pubsub.PubSub`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from streamd.subjects import is_literal

if TYPE_CHECKING:
    from streamd.net.client.connection import ClientConn

Callback = Callable[[bytes, bytes, bytes, bytes, Any], None]
"""(subject, reply, headers, payload, conn): a subscription of the server itself."""


class Subscription:
    """One `SUB` of a client, or one interest of the server itself (`callback`)."""

    __slots__ = (
        "callback",
        "conn",
        "delivered_count",
        "is_filtered",
        "is_open",
        "is_told",
        "max_msgs",
        "pattern",
        "queue",
        "sid",
    )

    def __init__(
        self,
        pattern: bytes,
        queue: bytes = b"",
        sid: bytes = b"",
        conn: ClientConn | None = None,
        callback: Callback | None = None,
    ) -> None:
        self.pattern = pattern
        self.queue = queue
        self.sid = sid
        self.conn: Any = conn  # never None when callback is
        self.callback = callback
        self.max_msgs = 0  # UNSUB after that many in all; 0: never
        self.delivered_count = 0  # since SUB: `UNSUB sid max` may come any time later
        self.is_filtered = False  # a subscribe-deny of its user covers part of the pattern
        self.is_open = True
        self.is_told = callback is None  # to other nodes, which then pass messages on


class _Level:
    """All subscriptions with one and the same pattern; and in the tree, what follows a token."""

    __slots__ = ("children", "plain", "queues")

    def __init__(self) -> None:
        self.children: dict[bytes, _Level] = {}
        # In the order they came, and any is found at once: thousands may leave together.
        self.plain: dict[Subscription, None] = {}
        self.queues: dict[bytes, dict[Subscription, None]] = {}

    def is_empty(self) -> bool:
        return not (self.children or self.plain or self.queues)

    def add(self, sub: Subscription) -> None:
        members = self.queues.setdefault(sub.queue, {}) if sub.queue else self.plain
        members[sub] = None

    def discard(self, sub: Subscription) -> None:
        members = self.queues.get(sub.queue, {}) if sub.queue else self.plain
        members.pop(sub, None)
        if sub.queue and not members:
            self.queues.pop(sub.queue, None)


class Match:
    """What a subject leads to: every plain subscription, and one member of each queue group.

    A group is known by its name alone, whatever patterns its members subscribed to.
    """

    __slots__ = ("_groups", "plain", "queues")

    def __init__(self) -> None:
        self.plain: list[Subscription] = []
        self.queues: list[list[Subscription]] = []
        self._groups: dict[bytes, list[Subscription]] = {}  # of `queues`, by name

    def take(self, level: _Level) -> None:
        if level.plain:
            self.plain += level.plain
        for name, members in level.queues.items():
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = []
                self.queues.append(group)
            group += members


class Sublist:
    """The subscriptions of one subject space."""

    __slots__ = ("_literals", "_parents", "_root", "count", "insert_count", "remove_count")

    def __init__(self) -> None:
        self._literals: dict[bytes, _Level] = {}
        # How many literal patterns begin with `key` (up to and with the last dot): tells whether
        # all subjects under a prefix lead to the same place.
        self._parents: dict[bytes, int] = {}
        self._root = _Level()
        self.count = 0
        self.insert_count = 0
        self.remove_count = 0

    def insert(self, sub: Subscription) -> None:
        """Add a subscription with a valid pattern."""
        pattern = sub.pattern
        if is_literal(pattern):
            level = self._literals.get(pattern)
            if level is None:
                level = self._literals[pattern] = _Level()
                parent = pattern[: pattern.rfind(b".") + 1]
                self._parents[parent] = self._parents.get(parent, 0) + 1
        else:
            level = self._root
            for token in pattern.split(b"."):
                child = level.children.get(token)
                if child is None:
                    child = level.children[token] = _Level()
                level = child
        level.add(sub)
        self.count += 1
        self.insert_count += 1

    def remove(self, sub: Subscription) -> None:
        """Take out a subscription that was inserted."""
        pattern = sub.pattern
        if is_literal(pattern):
            level = self._literals[pattern]
            level.discard(sub)
            if level.is_empty():
                del self._literals[pattern]
                parent = pattern[: pattern.rfind(b".") + 1]
                left = self._parents[parent] - 1
                if left:
                    self._parents[parent] = left
                else:
                    del self._parents[parent]
        else:
            path: list[tuple[_Level, bytes]] = []
            level = self._root
            for token in pattern.split(b"."):
                path.append((level, token))
                level = level.children[token]
            level.discard(sub)
            for above, token in reversed(path):
                if not above.children[token].is_empty():
                    break
                del above.children[token]
        self.count -= 1
        self.remove_count += 1

    def has_literal(self, subject: bytes, queue: bytes = b"") -> bool:
        """True if somebody (of `queue`, if given) subscribed to just this subject; whoever listens
        to more than it does not count."""
        level = self._literals.get(subject)
        return level is not None and bool(queue in level.queues if queue else level.plain)

    def match(self, subject: bytes) -> Match:
        """Return what the literal `subject` leads to."""
        found = Match()
        level = self._literals.get(subject)
        if level is not None:
            found.take(level)
        if self._root.children:
            levels = [self._root]
            for token in subject.split(b"."):
                following: list[_Level] = []
                for level in levels:
                    children = level.children
                    rest = children.get(b">")
                    if rest is not None:
                        found.take(rest)
                    child = children.get(token)
                    # In a published subject `*` and `>` are text; only patterns give them sense.
                    if child is not None and token != b">" and token != b"*":
                        following.append(child)
                    child = children.get(b"*")
                    if child is not None:
                        following.append(child)
                if not following:
                    return found
                levels = following
            for level in levels:
                found.take(level)
        return found

    def match_under(self, prefix: bytes) -> Match | None:
        """Return what every subject of the form `prefix` + one token leads to.

        `prefix` ends with a dot. None when such subjects lead to different places.
        """
        if prefix in self._parents:
            return None
        found = Match()
        levels = [self._root]
        for token in prefix[:-1].split(b"."):
            following: list[_Level] = []
            for level in levels:
                children = level.children
                rest = children.get(b">")
                if rest is not None:
                    found.take(rest)
                child = children.get(token)
                if child is not None and token != b">" and token != b"*":  # as in `match`
                    following.append(child)
                child = children.get(b"*")
                if child is not None:
                    following.append(child)
            levels = following
        for level in levels:
            for token, child in level.children.items():
                if token == b"*" or token == b">":
                    found.take(child)
                elif child.plain or child.queues:
                    return None
        return found

    def all(self) -> Iterator[Subscription]:
        """Every subscription, in no particular order."""
        stack = [*self._literals.values(), self._root]
        while stack:
            level = stack.pop()
            stack.extend(level.children.values())
            yield from level.plain
            for members in level.queues.values():
                yield from members
