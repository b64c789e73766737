"""A client's session: who it is, what it may do, and whether it is still there.

CONNECT and the check of its password, the rights that follow, INFO, and pings both ways. Passwords
are checked on another thread; what a client sends behind CONNECT waits until that is done.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd.api.decoding import Shape, decode_one
from streamd.errors import JsError
from streamd.net.client.auth import Check, Identity, UserRights
from streamd.net.client.output import ClientOutput
from streamd.net.pubsub.sublist import Subscription
from streamd.protocol.client_protocol import Event
from streamd.subjects import is_literal

if TYPE_CHECKING:
    from streamd.net.client.listener import Listener

_CONNECT = Shape(
    "ClientOpts",
    {
        **dict.fromkeys(("verbose", "pedantic", "echo", "headers", "no_responders"), "bool"),
        **dict.fromkeys(("tls_required", "new_account"), "bool"),
        **dict.fromkeys(("user", "pass", "auth_token", "jwt", "nkey", "sig"), "string"),
        **dict.fromkeys(("name", "lang", "version", "account", "remote_account"), "string"),
        "proxy_sig": "string",
        "protocol": "int",
    },
)
_FIRST_PING_S = 2.0  # after CONNECT, so that the round trip time is known soon


class ClientSession(ClientOutput):
    """The part of `ClientConn` that knows whom it serves."""

    __slots__ = (
        "_auth_timer",
        "_connect",
        "_first_ping_is_due",
        "_has_rtt",
        "_held",
        "_identity",
        "_is_stalled",
        "_judge",
        "_ping_sent",
        "_ping_timer",
        "_pings_out",
        "has_echo",
        "has_headers",
        "in_bytes",
        "in_msgs",
        "is_being_checked",
        "is_granting_replies",
        "is_pedantic",
        "is_told_no_responders",
        "is_verbose",
        "lang",
        "last_read_ns",
        "protocol_level",
        "rights",
        "rtt_ns",
        "start_ns",
        "subs",
        "user",
        "version",
    )

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(listener, loop)
        # None until it is known who this is; a server without authentication knows at once.
        self._identity: Identity | None = listener.auth.no_auth_identity
        self._connect: dict[str, Any] | None = None
        self._judge = listener.auth  # of the last CONNECT
        # Events that wait: behind a CONNECT whose password is being checked, or for their turn.
        self._held: list[Event] | None = None
        self.is_being_checked = False  # another thread tries the password
        self._first_ping_is_due = False  # the client's first PING is answered with an INFO too
        self._auth_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ping_sent = 0.0
        self._pings_out = 0
        self._is_stalled = False
        self.lang = self.version = self.user = ""
        self.start_ns = self.last_read_ns = self.last_activity_ns  # when anything came
        self.rtt_ns = 0
        self._has_rtt = False  # by a PING; before that it is what CONNECT took to come
        self.in_msgs = self.in_bytes = 0
        self.subs: dict[bytes, Subscription] = {}
        self.rights: UserRights | None = None
        self.is_granting_replies = False
        # What a client gets that sends no CONNECT.
        self.is_verbose = self.is_pedantic = self.has_echo = True
        self.has_headers = self.is_told_no_responders = False
        self.protocol_level = 0

    def _handle(self, events: list[Event]) -> None:
        """Subclasses take what the client sent."""

    # --- handshake ------------------------------------------------------------------------------

    def _on_connect(self, text: bytes) -> None:
        self.last_activity_ns = self.last_read_ns
        try:
            connect = decode_one(text, _CONNECT)
        except JsError:
            self._fail("Protocol Violation")
            return
        if self._connect is not None:
            connect = {**self._connect, **connect}  # what it does not say again still holds
            for sub in list(self.subs.values()):
                self.drop_subscription(sub)
        else:
            self.rtt_ns = max(1, self.last_read_ns - self.start_ns)
        self._connect = connect
        self._judge = self._listener.auth
        verdict = self._judge.judge(connect)
        if connect.get("account") or connect.get("new_account"):
            verdict = None
        if isinstance(verdict, Check):
            if not self._listener.passwords.has_room():
                # Not "violation": nobody has looked, and clients come again after a timeout.
                self._fail("Authentication Timeout", b"Authentication Timeout")
                return
            self._held = []
            self.is_being_checked = True
            self.try_password(verdict, self._on_checked)
            return
        self._welcome(verdict)

    def try_password(self, check: Check, done: Callable[[Identity | None], None]) -> None:
        """Run `check` on another thread; `done` is called on the loop, with None for who is gone
        before it began."""
        self._listener.passwords.submit(
            self._loop, self.ip, check, is_gone=lambda: self.is_closed, done=done
        )

    def _on_checked(self, identity: Identity | None) -> None:
        """The password was checked on another thread; go on with what came behind CONNECT."""
        self.is_being_checked = False
        if self.is_closed:
            return
        self._router.begin_chunk()
        try:
            self._welcome(identity)
        finally:
            self._touch()
            self._router.end_chunk(self)
        self._go_on()
        if self._judge is not self._listener.auth:  # a reload in between
            self._listener.recheck([self])

    def _welcome(self, identity: Identity | None) -> None:
        connect = self._connect
        assert connect is not None
        if identity is None:
            self.user = connect.get("user", "")  # whom the log names
            self._refuse()
            return
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None
        self._take(identity)
        self.protocol_level = connect.get("protocol", 0)
        if self.protocol_level not in (0, 1):
            self._fail("Bad Client Protocol Version", b"invalid client protocol")
            return
        self.is_verbose = connect.get("verbose", True)
        self.is_pedantic = connect.get("pedantic", True)
        self.has_echo = connect.get("echo", True)
        self.has_headers = (
            connect.get("headers", False) and self._listener.options.has_header_support
        )
        self.is_told_no_responders = connect.get("no_responders", False)
        self.name = connect.get("name", "")
        self.lang = connect.get("lang", "")
        self.version = connect.get("version", "")
        if self.is_told_no_responders and not self.has_headers:
            self._fail("No Responders Requires Headers", b"no responders requires headers support")
            return
        if self.is_verbose:
            self.out.append(b"+OK")
        self._first_ping_is_due = True
        interval = min(_FIRST_PING_S, self._listener.options.ping_interval_ns / 1e9)
        self._arm_ping(interval * (1 + 0.2 * random.random()))

    def _take(self, identity: Identity) -> None:
        """Be `identity` from now on."""
        self._identity = identity
        self.user = identity.user
        self.rights = None if identity.permissions is None else UserRights(identity.permissions)
        self.is_granting_replies = self.rights is not None and self.rights.is_granting_replies

    def _refuse(self) -> None:
        self._listener.on_auth_refused(self)
        self._fail("Authentication Failure", b"Authorization Violation")

    def _on_auth_timeout(self) -> None:
        # Who is served without a login (`no_auth_user`) has to say something nevertheless.
        is_silent = self.last_read_ns == self.start_ns
        if not self.is_closed and (self._identity is None or is_silent):
            self.close("Authentication Timeout", b"Authentication Timeout")

    def send_info(self, *, is_lame_duck: bool = False) -> None:
        """Tell the client how the server is now; not to clients that would not understand."""
        if self.protocol_level >= 1 and not self._first_ping_is_due and not self.is_closed:
            self.out.append(self._listener.info_line(self, is_lame_duck=is_lame_duck))
            if not self._output_queue.is_in_chunk:
                self.flush()

    @property
    def identity(self) -> Identity | None:
        """Who this is; None: not known yet."""
        return self._identity

    def may_administer(self, subject: bytes) -> bool:
        """True if this client may ask for what concerns the whole cluster."""
        return self._identity is not None and self._identity.may_administer(subject)

    @property
    def connect(self) -> dict[str, Any] | None:
        """What CONNECT said; None: there was none yet."""
        return self._connect

    # --- subscriptions and rights ---------------------------------------------------------------

    def judged_again(self, identity: Identity | None) -> None:
        """The configuration was read again: go on as who this is by it, or end (None)."""
        before = self._identity
        if self.is_closed or before is None:
            return
        if identity is None:
            if self._connect is None and not (self.subs or self.in_msgs):
                self._identity = None  # nothing was asked yet: whoever it is must say so
            else:
                self._refuse()
            return
        if identity == before:
            return
        self._take(identity)
        for sub in list(self.subs.values()):
            if not self._may_subscribe(sub.pattern, sub.queue):
                self._forbid_subscription(sub.pattern, sub.queue, b' (sid "%b")' % sub.sid)
                self.drop_subscription(sub)
                continue
            is_filtered = self._is_filtered(sub.pattern)
            if sub.is_filtered != is_filtered:
                sub.is_filtered = is_filtered
                self._router.subscriptions.table.on_interest_changed(sub.pattern)
        self.flush()

    def _may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        return queue != b"_sys_" and (
            self.rights is None or self.rights.may_subscribe(subject, queue)
        )

    def _is_filtered(self, pattern: bytes) -> bool:
        """True if some of what `pattern` matches must not be delivered."""
        rights = self.rights
        return rights is not None and rights.has_subscribe_deny and not is_literal(pattern)

    def _forbid_subscription(self, subject: bytes, queue: bytes, which: bytes = b"") -> None:
        text = b'Permissions Violation for Subscription to "%b"' % subject
        self._error(text + (b' using queue "%b"' % queue if queue else b"") + which)

    def drop_subscription(self, sub: Subscription) -> None:
        """End a subscription: UNSUB, or its last message was delivered."""
        if sub.is_open:
            self.subs.pop(sub.sid, None)
            self._router.subscriptions.unsubscribe(sub)

    # --- keep-alive -----------------------------------------------------------------------------

    def _on_ping(self) -> None:
        if self._identity is None:
            self._refuse()
            return
        self.out.append(b"PONG")
        if self._first_ping_is_due:
            self._first_ping_is_due = False
            if self.protocol_level >= 1:
                self.out.append(self._listener.info_line(self, is_connect_info=True))

    def _on_pong(self) -> None:
        self._pings_out = 0
        if self._ping_sent:
            self.rtt_ns = int((self._loop.time() - self._ping_sent) * 1e9)
            self._ping_sent = 0.0
            self._has_rtt = True

    def _arm_ping(self, after_s: float) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None
        if self._listener.options.ping_interval_ns > 0:
            self._ping_timer = self._loop.call_later(after_s, self._on_ping_due)

    def _on_ping_due(self) -> None:
        self._ping_timer = None
        if self.is_closed:
            return
        options = self._listener.options
        interval_s = options.ping_interval_ns / 1e9
        silent_ns = time.time_ns() - self.last_read_ns
        if not self._has_rtt or silent_ns >= options.ping_interval_ns:
            if self._pings_out + 1 > options.ping_max:
                self._listener.registry.stale_connections_count += 1
                self.close("Stale Connection", b"Stale Connection")
                return
            self._pings_out += 1
            self._ping_sent = self._loop.time()
            self.out.append(b"PING")
            self.flush()
        self._arm_ping(interval_s)

    # --- others first ---------------------------------------------------------------------------

    def after_others(self, action: Callable[[], None]) -> None:
        """Do it when others had their turn of the loop."""
        self._loop.call_later(0, action)

    def _go_on_later(self, events: list[Event]) -> None:
        """Its share of the loop is used up: handle these when others had theirs."""
        self._held = events
        self._transport.pause_reading()
        self.after_others(self._go_on)

    def _go_on(self) -> None:
        """Handle what was held, unless there is still a reason to hold it; then read again."""
        if self.is_closed or self.is_being_checked or self._is_stalled:
            return
        events, self._held = self._held, None
        self._transport.resume_reading()
        if events:
            self._handle(events)

    def stall(self, rest_s: float) -> None:
        """Read no more for a moment: a receiver of what this client publishes is far behind."""
        if not self._is_stalled and not self.is_closed and not self.is_being_checked:
            self._is_stalled = True
            self._transport.pause_reading()
            self._loop.call_later(rest_s, self._unstall)

    def _unstall(self) -> None:
        self._is_stalled = False
        self._go_on()
