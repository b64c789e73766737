"""`Sessions`: who is logged in at the dashboard.

A session is a secret in a cookie, and a second one, of which pages that are not ours never learn,
that each action has to show. Sessions end by themselves, unused or old; all are bounded in number,
and the one that was unused for longest gives way. None outlives the words of the configuration that
let it in (`end_where`), nor the time for which a service did. What streams to a session is told
when it ends.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from streamd.limits import DASHBOARD_SESSION_IDLE_S, DASHBOARD_SESSION_S, DASHBOARD_SESSIONS_MAX
from streamd.net.dashboard.grants import Grant


class Session:
    """A login that holds. `watch` is told once when it does not any more."""

    __slots__ = ("_watchers", "began_s", "csrf", "grant", "is_ended", "used_s")

    def __init__(self, grant: Grant, now_s: float) -> None:
        self.grant = grant
        self.csrf = secrets.token_urlsafe(32)
        self.began_s = self.used_s = now_s
        self.is_ended = False
        self._watchers: dict[object, Callable[[], None]] = {}

    def is_over(self, now_s: float) -> bool:
        """True if it is too old, or was unused for too long, or its login was for a time."""
        return (
            self.is_ended
            or 0 < self.grant.expires_ns <= time.time_ns()
            or now_s - self.began_s >= DASHBOARD_SESSION_S
            or now_s - self.used_s >= DASHBOARD_SESSION_IDLE_S
        )

    def has_csrf(self, token: str) -> bool:
        """True if `token` is the one that actions have to show."""
        return hmac.compare_digest(self.csrf.encode(), token.encode(errors="replace"))

    def watch(self, on_end: Callable[[], None]) -> object:
        """Call `on_end` when the session ends. Returns a token for `unwatch`."""
        token = object()
        self._watchers[token] = on_end
        return token

    def unwatch(self, token: object) -> None:
        """Take back a `watch`."""
        self._watchers.pop(token, None)

    def end(self) -> None:
        """End it, and whatever streams to it."""
        self.is_ended = True
        watchers, self._watchers = self._watchers, {}
        for on_end in watchers.values():
            on_end()


class Sessions:
    """Sessions by their secrets, of which only digests are kept. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_digest: OrderedDict[bytes, Session] = OrderedDict()  # last used comes last

    def __len__(self) -> int:
        return len(self._by_digest)

    def begin(self, grant: Grant) -> tuple[str, Session]:
        """Return a new session and its secret, for the cookie."""
        self.sweep()
        while len(self._by_digest) >= DASHBOARD_SESSIONS_MAX:
            self._by_digest.popitem(last=False)[1].end()
        secret = secrets.token_urlsafe(32)
        session = Session(grant, self._clock())
        self._by_digest[_digest(secret)] = session
        return secret, session

    def find(self, secret: str) -> Session | None:
        """Return the session of a cookie, which is used by that; None: there is none, or it is
        over."""
        digest = _digest(secret)
        session = self._by_digest.get(digest)
        if session is None:
            return None
        now_s = self._clock()
        if session.is_over(now_s):
            del self._by_digest[digest]
            session.end()
            return None
        session.used_s = now_s
        self._by_digest.move_to_end(digest)
        return session

    def end(self, secret: str) -> None:
        """End the session of a cookie, if there is one."""
        session = self._by_digest.pop(_digest(secret), None)
        if session is not None:
            session.end()

    def sweep(self) -> None:
        """End the sessions that are over."""
        now_s = self._clock()
        self.end_where(lambda session: session.is_over(now_s))

    def end_where(self, is_meant: Callable[[Session], bool]) -> None:
        """End the sessions that are meant."""
        for digest, session in list(self._by_digest.items()):
            if is_meant(session):
                del self._by_digest[digest]
                session.end()

    def end_all(self) -> None:
        """End every session: the server stops."""
        self.end_where(lambda session: True)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
