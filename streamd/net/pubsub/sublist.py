"""Index from subjects to subscriptions, for one subject space.

Literal patterns live in a dict, patterns with wildcards in a tree of tokens, so that a lookup
touches only what may match. Results are cached by `subject_routes.RouteTable`, not here. The index
takes any entry with a pattern and a queue: subscriptions of clients here, and patterns that other
nodes want (`interest.RemoteSub`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from streamd.subjects import is_literal

Callback = Callable[[bytes, bytes, bytes, bytes, Any], object]
"""(subject, reply, headers, payload, client): a subscription of the server itself. The client is
None for messages of the server and of other nodes. Returns False if the message found no receiver
behind the subscription, which then does not count as one."""

Relay = Callable[[bytes, list[tuple[bytes, bytes, bytes, bytes]]], object]
"""(to, messages): takes a consumer's messages, which come under their own subjects to the
subscribers of `to`."""


class DeliveryRights(Protocol):
    """Permissions of a client, as far as they bear on deliveries to it."""

    def is_denied_delivery(self, subject: bytes) -> bool:
        """True if a message on `subject` must not reach the client."""

    def grant_reply(self, reply: bytes, *, now_ns: int) -> None:
        """Allow the client to publish to `reply`, for it was sent a message that asks for it."""


class Receiver(Protocol):
    """The sending end of a client connection, as delivery uses it.

    `out` takes lines without their CRLF; a message is two of them, control line and payload. The
    receiver is then entered in `OutputQueue.dirty`, once (`is_dirty`), and flushed from there.
    """

    out: list[bytes]
    out_msgs: int
    out_bytes: int
    is_dirty: bool

    @property
    def cid(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def account(self) -> str:
        """Name of the client's account."""

    @property
    def has_headers(self) -> bool:
        """True if the client understands HMSG."""

    @property
    def has_echo(self) -> bool:
        """True if the client wants its own messages back."""

    @property
    def is_congested(self) -> bool:
        """True while more waits for the client to read it than should."""

    @property
    def is_granting_replies(self) -> bool:
        """True if `rights.grant_reply` is due for each message with a reply subject."""

    @property
    def rights(self) -> DeliveryRights | None:
        """Permissions; None: no restrictions. Never None for a filtered subscription."""

    def flush(self) -> bool:
        """Write the lines of `out`; True if so many bytes wait that their source should rest."""

    def send_blob(self, blob: bytes) -> None:
        """Send whole messages, CRLFs and all, behind the lines of `out`."""

    def drop_subscription(self, sub: Subscription) -> None:
        """End a subscription whose last message was delivered."""


class Subscription:
    """A `SUB` of a client, or an interest of the server itself (`callback`)."""

    __slots__ = (
        "callback",
        "conn",
        "delivered_count",
        "is_filtered",
        "is_open",
        "is_own",
        "is_told",
        "is_traced",
        "max_msgs",
        "parent",
        "pattern",
        "queue",
        "relay",
        "rename",
        "sid",
    )

    def __init__(
        self,
        pattern: bytes,
        queue: bytes = b"",
        sid: bytes = b"",
        conn: Receiver | None = None,
        callback: Callback | None = None,
    ) -> None:
        self.pattern = pattern
        self.queue = queue
        self.sid = sid
        # None only with a callback, which every delivery looks at first.
        self.conn: Receiver = cast(Receiver, conn)
        self.callback = callback
        self.max_msgs = 0  # UNSUB after that many in all; 0: never
        self.delivered_count = 0  # since SUB: `UNSUB sid max` may come any time later
        self.is_filtered = False  # a subscribe-deny of its user covers part of the pattern
        self.is_open = True
        self.is_told = callback is None  # to other nodes, which then pass messages on
        self.is_own = False  # of the server itself, and followed as a client's is
        # Of a subscription that a stream import makes in the exporting account: the client's own
        # one, and the subject there of each message (None: it is not for the client). It is also
        # filtered, so that nothing looks at these where a delivery is not filtered.
        self.parent: Subscription | None = None
        self.rename: Callable[[bytes], bytes | None] | None = None
        # Of what joins accounts: traces of messages go on behind it, or (a callback) end there.
        self.is_traced = False
        # Of a callback that joins accounts.
        self.relay: Relay | None = None

    @property
    def is_followed(self) -> bool:
        """True if leaf links and imports follow it: that of a client, or as if it were one's."""
        return self.callback is None or self.is_own


class Interest(Protocol):
    """Entry of the index: a pattern that somebody wants, as a member of `queue` if one is named."""

    @property
    def pattern(self) -> bytes: ...

    @property
    def queue(self) -> bytes: ...

    def __hash__(self) -> int: ...


Entry = TypeVar("Entry", bound=Interest)


class _Level(Generic[Entry]):
    """The entries with one and the same pattern; in the tree, also the levels below a token."""

    __slots__ = ("children", "plain", "queues")

    def __init__(self) -> None:
        self.children: dict[bytes, _Level[Entry]] = {}
        # In the order they came, and any is found at once: thousands may leave together.
        self.plain: dict[Entry, None] = {}
        self.queues: dict[bytes, dict[Entry, None]] = {}

    def is_empty(self) -> bool:
        return not (self.children or self.plain or self.queues)

    def add(self, sub: Entry) -> None:
        members = self.queues.setdefault(sub.queue, {}) if sub.queue else self.plain
        members[sub] = None

    def discard(self, sub: Entry) -> None:
        members = self.queues.get(sub.queue, {}) if sub.queue else self.plain
        members.pop(sub, None)
        if sub.queue and not members:
            self.queues.pop(sub.queue, None)


class Match(Generic[Entry]):
    """Result of a lookup: every plain subscription, and the members of each queue group.

    A group is known by its name alone, whatever patterns its members subscribed to.
    """

    __slots__ = ("_groups", "plain", "queues")

    def __init__(self) -> None:
        self.plain: list[Entry] = []
        self.queues: list[list[Entry]] = []
        self._groups: dict[bytes, list[Entry]] = {}  # of `queues`, by name

    def take(self, level: _Level[Entry]) -> None:
        """Add the entries of a level that matched."""
        if level.plain:
            self.plain += level.plain
        for name, members in level.queues.items():
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = []
                self.queues.append(group)
            group += members


class Sublist(Generic[Entry]):
    """The subscriptions of one subject space."""

    __slots__ = ("_literals", "_parents", "_root", "count", "insert_count", "remove_count")

    def __init__(self) -> None:
        self._literals: dict[bytes, _Level[Entry]] = {}
        # How many literal patterns begin with `key` (up to and with the last dot): tells whether
        # all subjects under a prefix lead to the same place.
        self._parents: dict[bytes, int] = {}
        self._root: _Level[Entry] = _Level()
        self.count = 0
        self.insert_count = 0
        self.remove_count = 0

    def insert(self, sub: Entry) -> None:
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

    def remove(self, sub: Entry) -> None:
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
            path: list[tuple[_Level[Entry], bytes]] = []
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
        """True if there is a subscription (of `queue`, if given) to just this subject; those with
        wildcards do not count."""
        level = self._literals.get(subject)
        return level is not None and bool(queue in level.queues if queue else level.plain)

    def match(self, subject: bytes) -> Match[Entry]:
        """Return the entries that match the literal `subject`."""
        found: Match[Entry] = Match()
        level = self._literals.get(subject)
        if level is not None:
            found.take(level)
        if self._root.children:
            levels = [self._root]
            for token in subject.split(b"."):
                following: list[_Level[Entry]] = []
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

    def match_under(self, prefix: bytes) -> Match[Entry] | None:
        """Return the entries that match every subject of the form `prefix` + one token.

        `prefix` ends with a dot. None when such subjects lead to different places.
        """
        if prefix in self._parents:
            return None
        found: Match[Entry] = Match()
        levels = [self._root]
        for token in prefix[:-1].split(b"."):
            following: list[_Level[Entry]] = []
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

    def all(self) -> Iterator[Entry]:
        """Every subscription, in no particular order."""
        stack = [*self._literals.values(), self._root]
        while stack:
            level = stack.pop()
            stack.extend(level.children.values())
            yield from level.plain
            for members in level.queues.values():
                yield from members
