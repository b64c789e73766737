"""Routes: everything that a subject leads to right now, and the cache of them.

A route joins subscriptions (plain, and queue groups), streams that capture the subject, and other
nodes whose clients want it. It is good until interest or the set of streams changes; then the table
drops what may be affected.
Reply subjects are many and short-lived, and so are subjects that carry an id: they share one route
per prefix where subscriptions and streams allow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from streamd.machine.commands import PublishOutcome
from streamd.net.pubsub.interest import RemoteSub
from streamd.net.pubsub.leaf_routes import LeafRoute, LeafSub, leaf_route
from streamd.net.pubsub.remote_routes import RemoteRoute, remote_route
from streamd.net.pubsub.subject_cache import SubjectCache
from streamd.net.pubsub.sublist import Match, Sublist, Subscription
from streamd.subjects import is_literal
from streamd.types import Msg

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.asset_configs import StreamConfig
    from streamd.node.ports import PublishSink


Place = tuple[bytes, bool]
"""(subject under which a stream keeps a message, whether it does: no consumer may be interested)"""

Judged = Callable[[PublishOutcome, Place], None]


class CapturingStream(Protocol):
    """A stream, as a route leads to it: takes the publishes on the subjects that it captures."""

    @property
    def name_bytes(self) -> bytes: ...

    @property
    def is_local(self) -> bool:
        """True if this node leads the stream."""

    @property
    def config(self) -> StreamConfig: ...

    def publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Store messages; the outcomes go to `sink`."""

    def judge(self, msg: Msg, done: Judged) -> None:
        """Find out what would become of a publish, and store nothing."""

    def place(self, subject: bytes) -> Place:
        """Return under which subject a message is kept, and whether it is kept."""


StreamsFor = Callable[[bytes], tuple[CapturingStream, ...]]
"""subject -> the streams that capture it."""

StreamsUnder = Callable[[bytes], tuple[CapturingStream, ...] | None]
"""prefix -> the streams that capture every subject of it and one more token; None: some capture
only a part of them."""

INBOX = b"_INBOX."
_FORBIDDEN = (b"_GR_.", b"$GR.", b"$NRG.")
"""Subjects of a cluster's own traffic; no client may publish there."""

_NEVER_CACHED = (b"$JS.ACK.", b"$JS.FC.")
"""Each is published once, and routing relies on not finding them among the known routes."""

_NEVER_SHARED = _FORBIDDEN + _NEVER_CACHED


class Route:
    """Everything that a published subject leads to."""

    __slots__ = (
        "is_forbidden",
        "leafs",
        "only_stream",
        "plain",
        "queues",
        "remote",
        "sole",
        "start",
        "streams",
    )

    def __init__(
        self,
        match: Match[Subscription],
        streams: tuple[CapturingStream, ...],
        subject: bytes = b"",
        is_forbidden: bool = False,
        remote: RemoteRoute | None = None,
        leafs: LeafRoute | None = None,
    ) -> None:
        self.plain: list[Subscription] = match.plain
        self.queues: list[list[Subscription]] = match.queues
        self.remote = remote  # None: no other node wants the subject
        self.leafs = leafs  # None: no leaf link wants it
        self.streams = streams
        self.is_forbidden = is_forbidden
        # The stream, when it is the only receiver of the subject: the commonest hot path.
        self.only_stream: CapturingStream | None = None
        if len(streams) == 1 and not (match.plain or match.queues or remote or leafs):
            self.only_stream = streams[0]
        # The subscription, when it alone gets the subject, and how its messages begin.
        self.sole: Subscription | None = None
        self.start = b""
        others = match.queues or streams or is_forbidden or remote or leafs
        if len(match.plain) == 1 and subject and not others:
            sub = match.plain[0]
            if sub.callback is None and not sub.is_filtered:
                self.sole = sub
                self.start = b"MSG %b %b " % (subject, sub.sid)

    def has_subscribers(self, queue: bytes = b"") -> bool:
        """True if a subscription (a member of `queue`, if given) would receive a message."""
        remote, leafs = self.remote, self.leafs
        if queue:
            if leafs is not None and queue in leafs.groups:
                return True
            if remote is not None and queue in remote.groups:
                return True
            return any(
                members[0].queue == queue and _is_any_open(members) for members in self.queues
            )
        if remote is not None or leafs is not None:
            return True
        return _is_any_open(self.plain) or any(map(_is_any_open, self.queues))

    def queue_names(self) -> list[bytes]:
        """The queue groups with members at this node."""
        return [members[0].queue for members in self.queues if _is_any_open(members)]


_NOWHERE = Route(Match(), ())
"""Route of subjects with an empty token, which match no pattern."""


class RouteTable:
    """Routes by subject, cached, bounded, and never stale."""

    __slots__ = (
        "_by_prefix",
        "_elsewhere",
        "_leafs",
        "_streams_for",
        "_streams_under",
        "_sublist",
        "routes",
    )

    def __init__(
        self,
        sublist: Sublist[Subscription],
        elsewhere: Sublist[RemoteSub] | None = None,
        leafs: Sublist[LeafSub] | None = None,
    ) -> None:
        self._sublist = sublist
        self._elsewhere: Sublist[RemoteSub] = elsewhere if elsewhere is not None else Sublist()
        self._leafs: Sublist[LeafSub] = leafs if leafs is not None else Sublist()
        self._streams_for: StreamsFor = no_streams
        self._streams_under: StreamsUnder = no_streams
        # Read directly by the hot path; `find` on a miss.
        self.routes: SubjectCache[Route] = SubjectCache()
        self._by_prefix: SubjectCache[Route | None] = SubjectCache()  # None: no common route

    def set_streams(self, streams_for: StreamsFor, streams_under: StreamsUnder) -> None:
        """Look streams up by these from here on: the set of streams changed."""
        self._streams_for = streams_for
        self._streams_under = streams_under
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.routes.clear()
        self._by_prefix.clear()

    def find(self, subject: bytes) -> Route:
        """Return the route of `subject`."""
        route = self.routes.get(subject)
        if route is not None:
            return route
        if b".." in subject or subject[:1] == b"." or subject[-1:] == b".":
            return _NOWHERE
        prefix = subject[: subject.rfind(b".") + 1]
        if prefix and not subject.startswith(_NEVER_SHARED):
            shared = self.find_under(prefix)
            if shared is not None:
                if shared.streams:
                    if not self.routes.is_full:
                        self.routes.remember(subject, shared)
                    return shared
                if subject.startswith(INBOX):
                    return shared
        route = Route(
            self._sublist.match(subject),
            self._streams_for(subject),
            subject,
            is_forbidden=subject.startswith(_FORBIDDEN),
            remote=remote_route(self._elsewhere.match(subject)) if self._elsewhere.count else None,
            leafs=leaf_route(self._leafs.match(subject)) if self._leafs.count else None,
        )
        if subject.startswith(_NEVER_CACHED):
            return route
        self.routes.remember(subject, route)
        return route

    def find_under(self, prefix: bytes) -> Route | None:
        """Return the route that all subjects of `prefix` (ends with a dot) and one more token
        have in common; None if they differ."""
        try:
            return self._by_prefix[prefix]
        except KeyError:
            pass
        match = there = leafs = None
        streams = self._streams_under(prefix)
        if streams is not None:
            match = self._sublist.match_under(prefix)
            there = self._elsewhere.match_under(prefix)
            leafs = self._leafs.match_under(prefix)
        shared = None
        if streams is not None and match is not None and there is not None and leafs is not None:
            shared = Route(match, streams, remote=remote_route(there), leafs=leaf_route(leafs))
        self._by_prefix.remember(prefix, shared)
        return shared

    def on_interest_changed(self, pattern: bytes) -> None:
        """Forget routes that a new or ended subscription to `pattern` may change."""
        if is_literal(pattern):
            self.routes.pop(pattern, None)
            self._by_prefix.pop(pattern[: pattern.rfind(b".") + 1], None)
            return
        fixed = _fixed_prefix(pattern)
        if not fixed:
            self.clear()
            return
        self.routes.forget_under(fixed)
        # A prefix may also be shorter than the pattern's: the pattern then sees some of its
        # subjects only, as `a.b.*` does of those under `a.`. Never deeper than one token, though.
        self._by_prefix.forget_under(fixed)


def _is_any_open(subs: list[Subscription]) -> bool:
    """True if one of them gets messages: those of a connection that just ended are still here."""
    return any(sub.is_open for sub in subs)


def _fixed_prefix(pattern: bytes) -> bytes:
    """Return the leading bytes that every subject matching `pattern` begins with."""
    tokens: list[bytes] = []
    for token in pattern.split(b"."):
        if token == b"*" or token == b">":
            break
        tokens.append(token)
    return b".".join(tokens) + b"." if tokens else b""


def no_streams(_subject: bytes) -> tuple[CapturingStream, ...]:
    """Find nothing: the account has no streams."""
    return ()
