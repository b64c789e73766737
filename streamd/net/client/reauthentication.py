"""Reauthentication after a reload: connections are judged by the new configuration.

A connection ends if its user is gone, or has another password; one whose permissions changed goes
on with the new ones, without the subscriptions that they no longer allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamd.limits import CLIENT_SHARE_S
from streamd.net.client.auth import (
    Approach,
    Authenticator,
    Check,
    Consultation,
    Identity,
    Refusal,
    Verdict,
)
from streamd.protocol.connect_options import ConnectOptions


class Judged(Protocol):
    """A connection that may be judged again."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_being_checked(self) -> bool:
        """True while its login is undecided; it is judged again by itself afterwards."""

    @property
    def connect(self) -> ConnectOptions | None:
        """The options of its CONNECTs; None: there was none yet."""

    @property
    def approach(self) -> Approach:
        """Facts about the connection that logins are judged by."""

    def judge_again(self, identity: Identity | None) -> None:
        """Go on as `identity`, or end (None)."""

    def try_password(self, check: Check, done: Callable[[Identity | None], None]) -> None:
        """Run `check` on another thread; call `done` on the loop."""

    def after_others(self, action: Callable[[], None]) -> None:
        """Call `action` when others had their turn of the loop."""


class Reauthentication:
    """Judges connections one after the other: a changed bcrypt hash costs a check on another
    thread, and many connections may share it."""

    def __init__(
        self,
        conns: list[Judged],
        auth: Authenticator,
        is_current: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`is_current` becomes false when the configuration has been read once more."""
        self._conns = conns
        self._auth = auth
        self._is_current = is_current
        self._clock = clock
        self._refused: set[tuple[str, str]] = set()  # (hash, secret)

    def go_on(self) -> None:
        """Judge until a password has to be tried, or a client's share of the loop is used up; then
        again when that is done, or others had theirs."""
        until = self._clock() + CLIENT_SHARE_S
        while self._conns and self._is_current():
            if self._clock() >= until:
                self._conns[-1].after_others(self.go_on)
                return
            conn = self._conns.pop()
            if conn.is_closed or conn.is_being_checked:
                continue
            if conn.connect is None:
                conn.judge_again(self._auth.no_auth_identity)
                continue
            verdict = self._auth.judge(conn.connect, conn.approach)
            if isinstance(verdict, Consultation):
                self._consult(conn, verdict)
            elif isinstance(verdict, Refusal):
                conn.judge_again(None)
            elif not isinstance(verdict, Check):
                conn.judge_again(verdict)
            elif verdict.key in self._refused:
                conn.judge_again(None)
            else:
                self._try(conn, verdict)
                return

    def _consult(self, conn: Judged, consultation: Consultation) -> None:
        """Let others decide; the next connections do not wait for that."""
        connect = conn.connect

        def decided(verdict: Verdict) -> None:
            if self._is_current() and conn.connect is connect and not conn.is_closed:
                conn.judge_again(None if isinstance(verdict, Refusal) else verdict)

        consultation.begin(decided)

    def _try(self, conn: Judged, check: Check) -> None:
        connect = conn.connect

        def tried(identity: Identity | None) -> None:
            if identity is None and not conn.is_closed:
                self._refused.add(check.key)
            if self._is_current():
                if conn.connect is connect:  # else it was judged by a later CONNECT
                    conn.judge_again(identity)
                self.go_on()

        conn.try_password(check, tried)
