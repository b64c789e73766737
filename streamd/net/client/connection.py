"""Client connection: a socket, its timers, and the parts that serve the client behind it.

The parser turns chunks into events, the session turns events into actions, the router carries
messages, and the output sends. The connection owns these parts and moves values between them; it
also decides when to read: not while a login is undecided, not beyond the client's share of the
loop, and not while a receiver of its publishes is far behind.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from streamd.config.account_options import AccountLimits
from streamd.limits import CLIENT_SHARE_S, CONGESTED_BYTES
from streamd.net.client import session as actions
from streamd.net.client.auth import (
    Approach,
    Check,
    ClientPolicy,
    Consultation,
    Identity,
    TokenFacts,
    Verdict,
)
from streamd.net.client.keep_alive import KeepAlive
from streamd.net.client.login_expiry import LoginExpiry
from streamd.net.client.open_connections import OpenConnections
from streamd.net.client.output import Output
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.client.profile import ClientProfile
from streamd.net.client.server_info import ServerInfo
from streamd.net.client.session import LATER, PUBLISH, Action, Session, State, last_of
from streamd.net.client.slow_consumer import SlowConsumerGuard
from streamd.net.client.tracing import Tracer
from streamd.net.monitoring.stats import LoginStats
from streamd.net.pubsub.message_router import RESERVED_REPLIES, MessageRouter
from streamd.net.pubsub.sublist import Subscription
from streamd.net.pubsub.traced_delivery import TracedMsg
from streamd.net.sockets import peer_address
from streamd.net.tls.facts import TlsFacts, TlsFault
from streamd.protocol import client_protocol as protocol
from streamd.protocol.client_protocol import ClientParser, Event
from streamd.protocol.connect_options import ConnectOptions
from streamd.tokens.nkeys import NONCE_BYTES, nonce_text
from streamd.types import ACCOUNT

_STRANGER: Final = State.STRANGER
TOO_MANY_OF_ACCOUNT: Final = (
    "Maximum Account Connections Exceeded",
    b"maximum account active connections exceeded",
)
"""Reason and text with which a client ends that its account has no place for."""


class SubjectSpaces(Protocol):
    """The subject spaces of a server, as connections use them."""

    def router(self, name: str) -> MessageRouter:
        """Return the subject space of an account."""

    def enter(self, cid: int, name: str) -> bool:
        """Count a connection among the clients of an account; False: there are too many."""

    def limits(self, name: str) -> AccountLimits:
        """Return the limits of an account's clients."""

    def leave(self, cid: int, name: str) -> None:
        """Take a connection out of the clients of an account."""

    def resume_deliveries(self) -> None:
        """Resume deliveries that wait for room, in any subject space."""


class Connection(asyncio.Protocol):
    """The server's end of one client connection."""

    __slots__ = (
        "_account",
        "_auth_timer",
        "_connections",
        "_expiry",
        "_guard",
        "_held",
        "_is_stalled",
        "_keep_alive",
        "_linger_timer",
        "_loop",
        "_parser",
        "_passwords",
        "_router",
        "_spaces",
        "_tracer",
        "_transport",
        "info",
        "last_read_ns",
        "output",
        "policy",
        "profile",
        "reason",
        "session",
        "stop_ns",
    )

    def __init__(
        self,
        policy: ClientPolicy,
        spaces: SubjectSpaces,
        connections: OpenConnections,
        passwords: PasswordChecks,
        info: ServerInfo,
        loop: asyncio.AbstractEventLoop,
        tracer: Tracer | None,
    ) -> None:
        """`tracer`: of the log's protocol trace; None: this connection is not traced."""
        self.policy = policy
        self._spaces = spaces
        self._connections = connections
        self._passwords = passwords
        self.info = info
        self._loop = loop
        self._tracer = tracer
        options = policy.options
        self._parser = ClientParser(
            max_payload=options.max_payload, max_control_line=options.max_control_line
        )
        self._guard = SlowConsumerGuard(policy, loop, self._on_slow)
        self.last_read_ns = time.time_ns()  # when anything came
        profile = ClientProfile(policy.auth.no_auth_identity, start_ns=self.last_read_ns)
        self.profile = profile
        # Of the account of a client that says nothing, until it does.
        known = profile.identity
        self._account = ""  # in which the client is counted
        self._router = router = spaces.router(known.account if known is not None else ACCOUNT)
        self.output = Output(
            router,
            self._guard,
            profile,
            resume=spaces.resume_deliveries,
            drop_subscription=self._drop_subscription,
            stall=self._stall,
        )
        self.session = Session(policy, profile, self.output, router.output_queue, time.monotonic_ns)
        self._keep_alive = KeepAlive(
            policy,
            profile,
            loop,
            heard_ns=lambda: self.last_read_ns,
            send_ping=self._send_ping,
            on_stale=self._on_stale,
        )
        self._expiry: LoginExpiry | None = None  # None: the login does not end
        self._transport: asyncio.Transport
        self._auth_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        # Events that wait: behind a CONNECT that is not decided yet, or for their turn.
        self._held: list[Event] | None = None
        self._is_stalled = False
        self.reason = ""
        self.stop_ns = 0  # 0: still open

    # --- the socket -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, and introduce the server to the client."""
        # uvloop's transport does what asyncio's does, but is no subclass of it.
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=CONGESTED_BYTES, low=CONGESTED_BYTES // 4)
        profile = self.profile
        profile.ip, profile.port = peer_address(transport)
        refusal = self._connections.admit(self)
        self.write_to(transport)
        if refusal:
            self.close("Maximum Connections Exceeded", refusal)
            return
        if profile.identity is not None and not self._enter(profile.identity.account):
            return
        tls = self.policy.tls
        if tls is not None:
            tls.enter(self, transport, self._loop)
            return
        self.introduce()
        self._begin_service()

    def _begin_service(self) -> None:
        """Start the timers of a client that may speak its protocol."""
        options = self.policy.options
        if self.policy.auth.is_required and options.auth_timeout_s > 0:
            self._auth_timer = self._loop.call_later(options.auth_timeout_s, self._on_auth_timeout)
        self._keep_alive.start()

    def data_received(self, data: bytes) -> None:
        """Parse a chunk and handle its events, or hold them."""
        if self.output.is_closed:
            return
        self.last_read_ns = time.time_ns()
        session = self.session
        if session.state is _STRANGER and data[0] not in b"cC":
            # The first byte tells that a login was not given; CONNECT itself may come in pieces.
            if self.profile.connect is None and not self._parser.buffered_bytes:
                self._refuse()
                return
        events = self._parser.feed(data)
        if self._held is not None:
            # Not before: while nothing is read, nobody notices that a client is gone.
            self._transport.pause_reading()
            self._held += events
        elif events:
            if len(events) == 1 and session.is_plain and self._publish_lone(events[0]):
                return
            if self._tracer is None:
                self._handle(events)
            else:
                self._handle_traced(self._tracer, events)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything: the socket is closed."""
        if not self.output.is_closed:
            self._end("Read Error" if exc is not None else "Client Closed")
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._connections.release(self)

    def pause_writing(self) -> None:
        """Note that the client is behind (called by the transport)."""
        self.output.congest()

    def resume_writing(self) -> None:
        """Note that the client has caught up (called by the transport)."""
        self.output.relax()

    # --- the way into TLS (`entrance.Entering`) -------------------------------------------------

    def introduce(self, *, is_tls_first: bool = False) -> None:
        """Send INFO."""
        if self.policy.auth.needs_nonce:
            self.profile.nonce = nonce_text(secrets.token_bytes(NONCE_BYTES))
        line = self.info.line(
            cid=self.cid,
            ip=self.ip,
            nonce=self.profile.nonce,
            is_tls_first=is_tls_first,
            is_first=True,
        )
        self.output.out.append(line)
        self.output.flush()

    def write_to(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from here on, and end with it."""
        self._transport = transport
        self._guard.open(transport)
        write: Callable[[bytes], None] = transport.write
        if self._tracer is not None:
            write = self._tracer.begin(write, self.profile)
        self.output.open(write)

    def serve(self, facts: TlsFacts | None) -> None:
        """Take bytes that come for the client's protocol."""
        self.profile.tls = facts
        self._begin_service()

    def turn_away(self, fault: TlsFault) -> None:
        """End the connection: there is no TLS."""
        self._connections.report_no_tls(fault, cid=self.cid, ip=self.ip, port=self.port)
        self.close("TLS Handshake Failure")

    def throttle(self) -> None:
        """End the connection: too many handshakes begin."""
        text = b"Connection throttling is active. Please try again later."
        self.close("Maximum Connections Exceeded", text)

    def report_throttled(self, count: int) -> None:
        """Log how many connections were throttled in a second."""
        self._connections.report_throttled(count)

    # --- the end --------------------------------------------------------------------------------

    def close(self, reason: str, text: bytes = b"") -> None:
        """End the connection: buffered output still goes out, with an `-ERR` if there is one."""
        if self.output.is_closed:
            return
        if text:
            self.output.out.append(b"-ERR '%b'" % text)
        self.output.write_last()
        self._end(reason)
        self._transport.close()
        # A client that reads no more must not keep its buffer alive.
        linger_s = self.policy.options.write_deadline_ns / 1e9
        self._linger_timer = self._loop.call_later(linger_s, self._transport.abort)

    def cut_off(self) -> None:
        """Drop the socket, buffered output and all."""
        self._transport.abort()

    def _fail(self, reason: str, text: bytes = b"") -> None:
        # Publishes of the chunk before the fault count; they are only posted at the chunk's end.
        self._router.post_collected(self.output)
        self.close(reason, text)

    def _refuse(self) -> None:
        self._connections.refused(self)
        self._fail("Authentication Failure", b"Authorization Violation")

    def _on_auth_timeout(self) -> None:
        self._auth_timer = None
        # A client that is served without a login (`no_auth_user`) has to say something, too.
        is_silent = self.last_read_ns == self.start_ns
        if not self.is_closed and (self.profile.identity is None or is_silent):
            self.close("Authentication Timeout", b"Authentication Timeout")

    def _on_expired(self) -> None:
        self.close("Authentication Expired", b"User Authentication Expired")

    def _on_slow(self, reason: str) -> None:
        self._connections.report_slow(
            reason, cid=self.cid, ip=self.ip, name=self.name, pending=self.pending_bytes
        )
        self._end(reason)
        self._transport.abort()

    def _on_stale(self) -> None:
        self._connections.count_stale()
        self.close("Stale Connection", b"Stale Connection")

    def _end(self, reason: str) -> None:
        """Release all that this connection holds: it has ended, if not its socket."""
        self.reason = reason
        self.stop_ns = time.time_ns()
        if self._tracer is not None:
            self._tracer.dropped(self.session.subs)
        self._leave()
        self._connections.close(self)  # while its subscriptions can still be seen
        self.output.close()
        self._guard.close()
        self._keep_alive.close()
        if self._expiry is not None:
            self._expiry.close()
        self._stop_auth_timer()
        subs = self.session.end()
        for sub in subs:
            sub.is_open = False
        # From the end: members of groups first, whose messages others would get.
        subs.sort(key=lambda sub: sub.queue)
        self._unsubscribe(subs)

    def _unsubscribe(self, subs: list[Subscription]) -> None:
        """Take out subscriptions that are not open any more: as many as the client's share of the
        loop allows, for it may have had a million, and the rest when others had theirs."""
        unsubscribe, clock = self._router.subscriptions.unsubscribe, self._router.output_queue.clock
        until = clock() + CLIENT_SHARE_S
        while subs:
            unsubscribe(subs.pop())
            if not len(subs) % 64 and clock() >= until:
                break
        if subs:
            self._loop.call_later(0, self._unsubscribe, subs)

    # --- events and actions ---------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        """Pass events to the session one by one, and carry out the actions of each."""
        router, output, session = self._router, self.output, self.session
        turn = router.output_queue
        router.begin_chunk()
        try:
            for at, event in enumerate(events):
                rest: Event | None = None  # to be received again when others had their turn
                for action in session.receive(event, self.last_read_ns):
                    kind = action[0]
                    if kind == PUBLISH:
                        payloads = action[4]
                        done = router.publish_batch(
                            output, action[1], action[2], action[3], payloads
                        )
                        if done < len(payloads):
                            rest = last_of(action, len(payloads) - done)
                            session.take_back(rest)
                    elif kind == LATER:
                        rest = action[1]
                    else:
                        self._ACTIONS[kind](self, *action[1:])
                        if self._router is not router:  # a CONNECT named another account
                            router.end_chunk(output)
                            router = self._router
                            router.begin_chunk()
                    if output.is_closed:
                        return
                if rest is not None:
                    self._go_on_later([rest, *events[at + 1 :]])
                    return
                if self._held is not None:
                    self._held = events[at + 1 :]
                    return
                if at + 1 < len(events) and turn.clock() >= turn.until:
                    self._go_on_later(events[at + 1 :])
                    return
        finally:
            output.touch()
            router.end_chunk(output)

    def _handle_traced(self, tracer: Tracer, events: list[Event]) -> None:
        """Trace and handle events message by message; those that must wait are held."""
        for at, event in enumerate(events):
            for each in tracer.one_by_one(event):
                self._handle([each])
                if self.is_closed:
                    return
            if self._held is not None:  # behind a CONNECT that is not decided yet
                self._held += events[at + 1 :]
                return

    def _carry_out(self, todo: Iterable[Action]) -> None:
        """Carry out actions that follow from no event, in order, until the connection is closed."""
        for action in todo:
            self._ACTIONS[action[0]](self, *action[1:])
            if self.output.is_closed:
                return

    def _publish_traced(self, msg: TracedMsg) -> None:
        self._router.publish_trace(self.output, msg)

    def _send(self, line: bytes) -> None:
        self.output.out.append(line)

    def _send_error(self, text: bytes) -> None:
        self.output.send_error(text)

    def _subscribe(self, sub: Subscription) -> None:
        self._router.subscriptions.subscribe(sub)

    def _drop_subscription(self, sub: Subscription) -> None:
        """End a subscription: UNSUB, or its last message was delivered."""
        if not sub.is_open:
            return
        if self._tracer is not None:
            self._tracer.dropped((sub.sid,))
        self.session.subs.pop(sub.sid, None)
        self._router.subscriptions.unsubscribe(sub)

    def _reroute(self, pattern: bytes) -> None:
        self._router.subscriptions.table.on_interest_changed(pattern)

    def _stop_auth_timer(self) -> None:
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None

    def _on_identified(self) -> None:
        self._stop_auth_timer()
        identity = self.profile.identity
        assert identity is not None  # that is what was found out
        if not self._enter(identity.account):
            return
        if identity.token is not None:
            self._use_token(identity.token)
            if self.is_closed:
                return
        named = (self.profile.connect or {}).get("user")
        if named and self.policy.auth.is_mapping:
            self._connections.report_other_name(named, cid=self.cid, ip=self.ip)
        if self._tracer is not None:
            self._tracer.identified(self.profile)
        self._keep_alive.on_identified()
        self._connections.identified(self)

    def _enter(self, account: str) -> bool:
        """Be a client of an account from here on; False: it has too many, and the connection has
        ended."""
        if self._account != account:
            self._leave()
            if not self._spaces.enter(self.cid, account):
                self._fail(*TOO_MANY_OF_ACCOUNT)
                return False
            self._account = account
            self._router = self._spaces.router(account)
            self.output.enter(self._router)
            self._apply_limits()
        return True

    def _apply_limits(self) -> None:
        """Use the limits of the server and of the client's account from here on."""
        options = self.policy.options
        self._parser.limit(
            max_payload=self._max_payload(), max_control_line=options.max_control_line
        )
        token = self._token
        limits = [self._account_limits().max_subscriptions]
        if token is not None:
            limits.append(token.max_subscriptions)
        self.session.limit_subscriptions(min((n for n in limits if n >= 0), default=-1))
        self.session.look_at_mappings()

    @property
    def _token(self) -> TokenFacts | None:
        identity = self.profile.identity
        return identity.token if identity is not None else None

    def _account_limits(self) -> AccountLimits:
        return self._spaces.limits(self._account) if self._account else AccountLimits()

    def _max_payload(self) -> int:
        """Return the most bytes of one message of this client."""
        limits = [self._account_limits().max_payload]
        if self._token is not None:
            limits.append(self._token.max_payload)
        return min([self.policy.options.max_payload, *(n for n in limits if n >= 0)])

    def _use_token(self, token: TokenFacts) -> None:
        """Hold to the limits of the user's token, and end with it."""
        self._apply_limits()
        if self._expiry is None and token.expires_ns:
            self._expiry = LoginExpiry(self._loop.call_later, self._on_expired)
        if self._expiry is not None:
            self._expiry.start(token.expires_ns)

    def _leave(self) -> None:
        if self._account:
            self._spaces.leave(self.cid, self._account)
            self._account = ""

    def _tell_no_responders(self, reply: bytes) -> None:
        self._router.fanout.tell_no_responders(self.output, b"", reply)

    def _note_pong(self) -> None:
        self._keep_alive.on_pong()

    def _publish_lone(self, event: Event) -> bool:
        """Publish the only message of a chunk if that goes to a stream here and to nobody else;
        False: nothing was done. Clients that wait for each ack send nothing but such chunks.

        Only for a plain session, whose publishes need no check but these.
        """
        if event[0] != protocol.PUBS or len(event[4]) != 1 or self._tracer is not None:
            return False
        _, (subject,), replies, headers, (payload,) = event
        reply = replies[0] if replies is not None else b""
        header = headers[0] if headers is not None else b""
        output = self.output
        if reply.startswith(RESERVED_REPLIES) or (header and not output.has_headers):
            return False
        if not self._router.publish_lone(output, subject, reply, header, payload):
            return False
        session = self.session
        session.last_activity_ns = self.last_read_ns
        session.in_msgs += 1
        session.in_bytes += len(header) + len(payload)
        return True

    # --- passwords ------------------------------------------------------------------------------

    def _try_connect(self, check: Check) -> None:
        if not self._passwords.has_room():
            # Not "violation": nobody has looked, and clients come again after a timeout.
            self._fail("Authentication Timeout", b"Authentication Timeout")
            return
        self._held = []
        self.try_password(check, self._on_checked)

    def try_password(self, check: Check, done: Callable[[Identity | None], None]) -> None:
        """Run `check` on another thread; `done` is called on the loop, with None for a connection
        that was closed before it began."""
        self._passwords.submit(
            self._loop, self.ip, check, is_gone=lambda: self.output.is_closed, done=done
        )

    def _on_checked(self, identity: Identity | None) -> None:
        if not self.is_closed:
            self._go_on_decided(self.session.password_checked(identity))

    def _go_on_decided(self, todo: Iterable[Action]) -> None:
        """Go on with the events behind CONNECT, which is decided: after its actions."""
        self._router.begin_chunk()
        try:
            self._carry_out(todo)
        finally:
            self.output.touch()
            self._router.end_chunk(self.output)
        self._go_on()
        if self.session.is_judged_by_old_policy:
            self._connections.reauthenticate([self])

    def judge_again(self, identity: Identity | None) -> None:
        """Go on as `identity` after a reload, or end (None)."""
        self._carry_out(self.session.judge_again(identity))
        if identity is not None and identity.token is not None and not self.is_closed:
            self._use_token(identity.token)
        self.output.flush()

    # --- logins that others decide upon ---------------------------------------------------------

    def _consult(self, consultation: Consultation) -> None:
        self._stop_auth_timer()  # those who are asked have a time of their own
        self._held = []
        consultation.begin(self._on_consulted)

    def _on_consulted(self, verdict: Verdict) -> None:
        if not self.is_closed:
            self._go_on_decided(self.session.consulted(verdict))

    # --- others first ---------------------------------------------------------------------------

    def after_others(self, action: Callable[[], None]) -> None:
        """Call `action` when others had their turn of the loop."""
        self._loop.call_later(0, action)

    def _go_on_later(self, events: list[Event]) -> None:
        """Hold events until others had their turn: the client's share of the loop is used up."""
        self._held = events
        self._transport.pause_reading()
        self.after_others(self._go_on)

    def _go_on(self) -> None:
        """Handle the events that were held, unless there is still a reason to hold them; then read
        again."""
        if self.is_closed or self.is_being_checked or self._is_stalled:
            return
        events, self._held = self._held, None
        self._transport.resume_reading()
        if events:
            if self._tracer is None:
                self._handle(events)
            else:
                self._handle_traced(self._tracer, events)

    def _stall(self, rest_s: float) -> None:
        """Read no more for a moment: a receiver of this client's publishes is far behind."""
        if not self._is_stalled and not self.is_closed and not self.is_being_checked:
            self._is_stalled = True
            self._transport.pause_reading()
            self._loop.call_later(rest_s, self._unstall)

    def _unstall(self) -> None:
        self._is_stalled = False
        self._go_on()

    # --- for the server -------------------------------------------------------------------------

    def apply_options(self) -> None:
        """Use the limits of a configuration that was read again."""
        self._apply_limits()
        most = self._account_limits().max_subscriptions
        if 0 <= most < len(self.session.subs):
            self.close("Maximum Subscriptions Exceeded", b"maximum subscriptions exceeded")

    def send_info(self, *, is_lame_duck: bool = False) -> None:
        """Tell the client how the server is now; not a client that would not understand."""
        if self.session.is_told_infos and not self.is_closed:
            line = self.info.line(cid=self.cid, ip=self.ip, is_lame_duck=is_lame_duck)
            self.output.out.append(line)
            if self._router.output_queue.is_in_chunk:  # of any client
                self.output.touch()
            else:
                self.output.flush()

    def _send_connect_info(self) -> None:
        profile = self.profile
        line = self.info.line(
            cid=profile.cid,
            ip=profile.ip,
            nonce=profile.nonce,
            account=self._account,
            max_payload=self._max_payload(),
        )
        self.output.out.append(line)

    def _send_ping(self) -> None:
        self.output.out.append(b"PING")
        self.output.flush()

    # --- for monitoring -------------------------------------------------------------------------

    @property
    def tls(self) -> TlsFacts | None:
        return self.profile.tls

    @property
    def approach(self) -> Approach:
        return self.profile.approach

    @property
    def cid(self) -> int:
        return self.profile.cid

    @property
    def ip(self) -> str:
        return self.profile.ip

    @property
    def port(self) -> int:
        return self.profile.port

    @property
    def is_websocket(self) -> bool:
        return self.profile.is_websocket

    @property
    def is_closed(self) -> bool:
        return self.output.is_closed

    @property
    def is_being_checked(self) -> bool:
        """True while a CONNECT is not decided yet."""
        return self.session.state in (State.CHECKING, State.CONSULTING)

    @property
    def connect(self) -> ConnectOptions | None:
        """Options of the client's CONNECTs; None: there was none yet."""
        return self.profile.connect

    @property
    def start_ns(self) -> int:
        return self.profile.start_ns

    @property
    def last_activity_ns(self) -> int:
        """When messages last came or went, or subscriptions changed; a PING is no activity."""
        return max(self.session.last_activity_ns, self.output.last_sent_ns)

    @property
    def rtt_ns(self) -> int:
        return self.profile.rtt_ns

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the client to read them."""
        return self._guard.waiting_bytes

    @property
    def in_msgs(self) -> int:
        return self.session.in_msgs

    @property
    def in_bytes(self) -> int:
        return self.session.in_bytes

    @property
    def out_msgs(self) -> int:
        return self.output.out_msgs

    @property
    def out_bytes(self) -> int:
        return self.output.out_bytes

    @property
    def subs(self) -> dict[bytes, Subscription]:
        """Open subscriptions by sid."""
        return self.session.subs

    @property
    def login(self) -> LoginStats:
        token = self._token
        if token is None:
            return LoginStats()
        return LoginStats((self.connect or {}).get("jwt", ""), token.issuer_key, token.tags)

    @property
    def user(self) -> str:
        return self.profile.user

    @property
    def account(self) -> str:
        identity = self.profile.identity
        return identity.account if identity is not None else ACCOUNT

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def lang(self) -> str:
        return self.profile.lang

    @property
    def version(self) -> str:
        return self.profile.version

    _ACTIONS: Final[dict[int, Callable[..., None]]] = {
        actions.PUBLISH_TRACED: _publish_traced,
        actions.SUBSCRIBE: _subscribe,
        actions.UNSUBSCRIBE: _drop_subscription,
        actions.REROUTE: _reroute,
        actions.SEND: _send,
        actions.SEND_ERROR: _send_error,
        actions.SEND_INFO: _send_connect_info,
        actions.IDENTIFIED: _on_identified,
        actions.NO_RESPONDERS: _tell_no_responders,
        actions.TRY_PASSWORD: _try_connect,
        actions.CONSULT: _consult,
        actions.NOTE_PONG: _note_pong,
        actions.REFUSE: _refuse,
        actions.FAIL: _fail,
    }
