"""Session of one client: a state machine without I/O. Events of the parser in, actions out.

The session knows who the client is, what it may do and which subscriptions it has. It decides; the
connection acts. It reads no clock, opens no socket and starts no thread: time comes with each
event; a password that takes long to check, and a login that others decide upon, leave as actions
and come back as calls.

States::

                        CONNECT: judged at once
                  +-------------------------------------+
                  |                                     v
    start --> STRANGER <----------------------------- SERVED <-- start, if no login is required
                  |     reload: a login is required,    |  ^
                  |     and nothing was asked yet       |  |
          CONNECT:|                             CONNECT:|  | password_checked: good
         bcrypt   |                             bcrypt  |  |
                  +------------> CHECKING <-------------+  |
                                    |   +------------------+
                                    |
      end (from any state) ---------+----> CLOSED

- STRANGER: a login is required and the client has not given one.
- CHECKING: another thread tries the password of the last CONNECT.
- CONSULTING: others are asked about the last CONNECT: where account tokens are, or a service that
  decides on logins. It lies where CHECKING does, and comes to an end by `consulted`.
- SERVED: the identity of the client is known; for most servers from the first byte on.
- CLOSED: the connection has ended. Nothing is received, nobody is judged.

Operations by state (`_OPERATIONS` below is this table)::

                             CHECKING,
                 STRANGER    CONSULTING  SERVED         CLOSED
    PUBS         refuse      (held)      publish        -
    SUB          refuse      (held)      subscribe      -
    UNSUB        refuse      (held)      unsubscribe    -
    PING         refuse      (held)      pong           -
    PONG         note        (held)      note           -
    CONNECT      connect     (held)      connect        -
    CLIENT_ERROR leave       (held)      leave          -
    ERROR        violate     (held)      violate        -

Callers: the connection alone. It passes one event at a time to `receive`, and carries out all
actions of that event before it passes the next one: a publish may end a subscription of its own
client, so an action must not be put off. In CHECKING and CONSULTING it holds the events; in CLOSED
it drops them. `password_checked` answers the action TRY_PASSWORD, `consulted` the action CONSULT,
`judge_again` follows a reload or another token of the account, `end` the end of the socket.

Invariants:

- `profile.identity` is None in STRANGER and never None in SERVED.
- A publish or subscription leaves as an action only if the permissions of that moment allow it.
- Each open subscription of the client is in `subs`, and nothing else is.
- Lines (`SEND`) and messages reach the client in the order of the events that caused them.
- `is_plain` implies SERVED: such a client's publishes need no check but that of their replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, cast

from streamd.api.decoding import Shape, decode_one
from streamd.errors import JsError
from streamd.net.client.auth import (
    Check,
    ClientPolicy,
    Consultation,
    Identity,
    Refusal,
    UserRights,
    Verdict,
)
from streamd.net.client.profile import ClientProfile
from streamd.net.pubsub.message_router import RESERVED_REPLIES
from streamd.net.pubsub.message_trace import MessageTrace
from streamd.net.pubsub.sublist import Receiver, Subscription
from streamd.net.pubsub.traced_delivery import TracedMsg
from streamd.protocol import client_protocol as protocol
from streamd.protocol.client_protocol import Event
from streamd.protocol.connect_options import ConnectOptions
from streamd.subjects import is_literal, is_valid, is_valid_literal

Action: TypeAlias = tuple[Any, ...]
"""A kind and its arguments. Kinds:"""

PUBLISH: Final = protocol.PUBS
"""(PUBLISH, subjects, replies, headers, payloads): route these; the columns of an event PUBS."""
PUBLISH_TRACED: Final = 30
"""(PUBLISH_TRACED, msg): route a `TracedMsg`."""
SUBSCRIBE: Final = 11  # (SUBSCRIBE, sub)
UNSUBSCRIBE: Final = 12  # (UNSUBSCRIBE, sub): end it; the connection takes it out of `subs`
REROUTE: Final = 13  # (REROUTE, pattern): routes of its subscriptions are to be made again
SEND: Final = 14  # (SEND, line)
SEND_ERROR: Final = 15  # (SEND_ERROR, text): tell of a fault; the connection goes on
SEND_INFO: Final = 16  # (SEND_INFO,): the INFO that answers a client's first PING
IDENTIFIED: Final = 17  # (IDENTIFIED,): a CONNECT was accepted
TRY_PASSWORD: Final = 18  # (TRY_PASSWORD, check): hold events, run it, call `password_checked`
NOTE_PONG: Final = 19  # (NOTE_PONG,): the client answered a PING
LATER: Final = 20  # (LATER, event): the turn is over; receive this when others had theirs
REFUSE: Final = 21  # (REFUSE,): the client is not let in; end the connection
NO_RESPONDERS: Final = 23  # (NO_RESPONDERS, reply): a mapping dropped a request; tell its client
CONSULT: Final = 24  # (CONSULT, consultation): hold events, begin it, call `consulted`
FAIL: Final = 22  # (FAIL, reason, text): end the connection, with an `-ERR` if there is a text

_CONNECT: Final = Shape(
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
_OK: Final[Action] = (SEND, b"+OK")
_PONG: Final[Action] = (SEND, b"PONG")
_REFUSED: Final = ((REFUSE,),)
_VIOLATION: Final[Action] = (FAIL, "Protocol Violation", b"")


class State(Enum):
    """States of a session; see the page above."""

    STRANGER = "stranger"
    CHECKING = "checking"
    CONSULTING = "consulting"
    SERVED = "served"
    CLOSED = "closed"


class Deliveries(Receiver, Protocol):
    """The client as deliveries see it; the session alone changes these settings of it."""

    has_echo: bool
    has_headers: bool
    is_told_no_responders: bool
    rights: UserRights | None
    is_granting_replies: bool

    @property
    def is_mapped(self) -> bool:
        """True if publishes of the client's account may go to other subjects."""

    def map(self, subject: bytes) -> bytes | None:
        """Return the subject that a publish goes to; None: it is dropped."""

    def may_be_traced(self, headers: list[bytes]) -> bool:
        """Return True if publishes with some of these headers may have to be traced."""

    def begin_trace(
        self, subject: bytes, header: bytes, payload: bytes
    ) -> tuple[MessageTrace | None, bytes]:
        """Return the trace of a publish, None if it has none, and its headers as they go on."""

    def trace_mapping(self, trace: MessageTrace, before: bytes, after: bytes | None) -> None:
        """Note what mappings made of a subject, if one is for it."""


class Turn(Protocol):
    """The client's share of the loop: over when `clock()` has reached `until`."""

    until: float
    clock: Callable[[], float]


class Session:
    """Everything that one client is and has, apart from its socket."""

    __slots__ = (
        "_deliveries",
        "_is_first_ping_due",
        "_is_pedantic",
        "_is_verbose",
        "_judge",
        "_monotonic_ns",
        "_operations",
        "_policy",
        "_subs_max",
        "_turn",
        "in_bytes",
        "in_msgs",
        "is_plain",
        "last_activity_ns",
        "profile",
        "protocol_level",
        "state",
        "subs",
    )

    def __init__(
        self,
        policy: ClientPolicy,
        profile: ClientProfile,
        deliveries: Deliveries,
        turn: Turn,
        monotonic_ns: Callable[[], int],
    ) -> None:
        """`deliveries` stands for the client in its subscriptions (`Subscription.conn`)."""
        self._policy = policy
        self._judge = policy.auth  # of the last CONNECT
        self._deliveries = deliveries
        self._turn = turn
        self._monotonic_ns = monotonic_ns
        self._is_verbose = self._is_pedantic = True  # as of a client that sends no CONNECT
        self._is_first_ping_due = False  # the client's first PING is answered with an INFO too
        self._subs_max = -1  # of the client's account
        self.profile = profile
        self.protocol_level = 0
        self.last_activity_ns = profile.start_ns
        self.in_msgs = self.in_bytes = 0
        self.subs: dict[bytes, Subscription] = {}  # by sid
        self.is_plain = False
        self._enter(State.STRANGER if profile.identity is None else State.SERVED)

    def _enter(self, state: State) -> None:
        self.state = state
        self._operations = _OPERATIONS[state]
        self.look_at_mappings()

    def look_at_mappings(self) -> None:
        """Find out whether publishes need a look each: the client's account is another, or has
        other mappings."""
        deliveries = self._deliveries
        is_checked = self._is_verbose or self._is_pedantic or deliveries.rights is not None
        self.is_plain = self.state is State.SERVED and not (is_checked or deliveries.is_mapped)

    def limit_subscriptions(self, count: int) -> None:
        """Allow so many subscriptions, if that is fewer than the server allows; -1: no limit."""
        self._subs_max = count

    def receive(self, event: Event, now_ns: int) -> Iterable[Action]:
        """Take the next event, which came at `now_ns`, and return the actions that follow."""
        return self._operations[event[0]](self, event, now_ns)

    def end(self) -> list[Subscription]:
        """Close the session; returns the subscriptions that it had."""
        subs = list(self.subs.values())
        self.subs.clear()
        self._enter(State.CLOSED)
        return subs

    @property
    def is_told_infos(self) -> bool:
        """True if the client understands an INFO that it did not ask for."""
        return self.protocol_level >= 1 and not self._is_first_ping_due

    @property
    def is_judged_by_old_policy(self) -> bool:
        """True if the configuration was read again since the last CONNECT was judged."""
        return self._judge is not self._policy.auth

    # --- handshake ------------------------------------------------------------------------------

    def _connect(self, event: Event, now_ns: int) -> Iterable[Action]:
        self.last_activity_ns = now_ns
        try:
            given = decode_one(event[1], _CONNECT)
        except JsError:
            return (_VIOLATION,)
        profile = self.profile
        for key, value in profile.login.items():
            given[key] = given.get(key) or value
        connect = cast(ConnectOptions, given)
        actions: list[Action] = []
        if profile.connect is not None:
            connect = {**profile.connect, **connect}  # options that are not named again still hold
            actions += [(UNSUBSCRIBE, sub) for sub in self.subs.values()]
        else:
            profile.rtt_ns = max(1, now_ns - profile.start_ns)
        profile.connect = connect
        self._judge = self._policy.auth
        verdict = self._judge.judge(connect, profile.approach)
        if connect.get("account") or connect.get("new_account"):
            verdict = None
        if isinstance(verdict, Check):
            self._enter(State.CHECKING)
            actions.append((TRY_PASSWORD, verdict))
        elif isinstance(verdict, Consultation):
            self._enter(State.CONSULTING)
            actions.append((CONSULT, verdict))
        else:
            actions += self._go_on(verdict)
        return actions

    def password_checked(self, identity: Identity | None) -> Iterable[Action]:
        """Go on with the CONNECT behind TRY_PASSWORD: as `identity`, or refused (None)."""
        assert self.state is State.CHECKING, self.state
        return self._welcome(identity)

    def consulted(self, verdict: Verdict) -> Iterable[Action]:
        """Go on with the CONNECT behind CONSULT."""
        assert self.state is State.CONSULTING, self.state
        return self._go_on(verdict)

    def _go_on(self, verdict: Verdict) -> Iterable[Action]:
        self.profile.refusal = None
        if isinstance(verdict, Refusal):
            self.profile.refusal = verdict
            verdict = None
        return self._welcome(verdict)

    def _welcome(self, identity: Identity | None) -> Iterable[Action]:
        profile, deliveries = self.profile, self._deliveries
        connect = profile.connect
        assert connect is not None
        if identity is None:
            profile.user = connect.get("user", "")  # for the log
            return _REFUSED
        self._set_identity(identity)
        actions: list[Action] = [(IDENTIFIED,)]
        self.protocol_level = connect.get("protocol", 0)
        if self.protocol_level not in (0, 1):
            actions.append((FAIL, "Bad Client Protocol Version", b"invalid client protocol"))
            return actions
        self._is_verbose = connect.get("verbose", True)
        self._is_pedantic = connect.get("pedantic", True)
        deliveries.has_echo = connect.get("echo", True)
        deliveries.has_headers = (
            connect.get("headers", False) and self._policy.options.has_header_support
        )
        deliveries.is_told_no_responders = connect.get("no_responders", False)
        profile.name = connect.get("name", "")
        profile.lang = connect.get("lang", "")
        profile.version = connect.get("version", "")
        self._is_first_ping_due = True
        self._enter(State.SERVED)
        if deliveries.is_told_no_responders and not deliveries.has_headers:
            text = b"no responders requires headers support"
            actions.append((FAIL, "No Responders Requires Headers", text))
        elif self._is_verbose:
            actions.append(_OK)
        return actions

    def _set_identity(self, identity: Identity) -> None:
        profile, deliveries = self.profile, self._deliveries
        profile.identity = identity
        profile.user = identity.user
        rights = None if identity.permissions is None else UserRights(identity.permissions)
        deliveries.rights = rights
        deliveries.is_granting_replies = rights is not None and rights.is_granting_replies
        self._enter(State.SERVED)

    def judge_again(self, identity: Identity | None) -> Iterable[Action]:
        """Go on as `identity`, the verdict of a configuration that was read again; None: end.

        The subscriptions that it no longer allows end.
        """
        if self.state is not State.SERVED:
            return ()
        if identity is None:
            if self.profile.connect is None and not (self.subs or self.in_msgs):
                self.profile.identity = None  # nothing was asked yet: the client may still log in
                self._enter(State.STRANGER)
                return ()
            return _REFUSED
        before = self.profile.identity
        if identity == before:
            return ()
        if before is not None and identity.account != before.account:
            return ((FAIL, "Client Closed", b""),)  # its subscriptions belong to the other account
        self._set_identity(identity)
        actions: list[Action] = []
        for sub in self.subs.values():
            if not self._may_subscribe(sub.pattern, sub.queue):
                which = b' (sid "%b")' % sub.sid
                actions.append((SEND_ERROR, _forbidden(sub.pattern, sub.queue, which)))
                actions.append((UNSUBSCRIBE, sub))
                continue
            is_filtered = self._is_filtered(sub.pattern)
            if sub.is_filtered != is_filtered:
                sub.is_filtered = is_filtered
                actions.append((REROUTE, sub.pattern))
        return actions

    # --- publishes ------------------------------------------------------------------------------

    def _publish(self, event: Event, now_ns: int) -> Iterable[Action]:
        _, _, replies, headers, payloads = event
        self.last_activity_ns = now_ns
        self.in_msgs += len(payloads)
        self.in_bytes += sum(map(len, payloads))
        if headers is not None:
            self.in_bytes += sum(map(len, headers))
            if not self._deliveries.has_headers:
                return (_VIOLATION,)
        if not self.is_plain:
            return self._publish_checked(event)
        # All between these two begin with `_I` to `_Q`, so none is reserved: one look at the
        # extremes instead of one at each.
        if replies is not None and (min(replies) < b"_H" or max(replies) >= b"_R"):
            if any(reply.startswith(RESERVED_REPLIES) for reply in replies):
                return self._publish_checked(event)
        return (event,)

    def _publish_checked(self, event: Event) -> Iterator[Action]:
        """Publish one by one, each with its own checks and its own `+OK` or `-ERR`."""
        _, subjects, replies, headers, payloads = event
        now_ns = self._monotonic_ns()
        turn = self._turn
        rights = self._deliveries.rights
        # Permissions are those for the subject that the published one stands for.
        is_mapped = self._deliveries.is_mapped or rights is not None
        may_be_traced = headers is not None and self._deliveries.may_be_traced(headers)
        for at, subject in enumerate(subjects):
            if at and turn.clock() >= turn.until:
                rest = last_of(event, len(payloads) - at)
                self.take_back(rest)
                yield (LATER, rest)
                return
            reply = replies[at] if replies is not None else b""
            if self._is_pedantic and not is_valid_literal(subject):
                yield (SEND_ERROR, b"Invalid Publish Subject")
            if may_be_traced and headers is not None and headers[at]:
                header = headers[at]
                trace, header = self._deliveries.begin_trace(subject, header, payloads[at])
                if trace is not None:
                    msg = TracedMsg(trace, subject, reply, header, payloads[at])
                    yield from self._publish_traced(msg, now_ns)
                    continue
                headers[at] = header
            if is_mapped:
                mapped = self._deliveries.map(subject)
                if mapped is None:
                    if self._is_verbose:
                        yield _OK
                    if reply and self._deliveries.is_told_no_responders:
                        yield (NO_RESPONDERS, reply)
                    continue
                subject = mapped
            if rights is not None and not rights.may_publish(subject, now_ns=now_ns):
                yield (SEND_ERROR, b'Permissions Violation for Publish to "%b"' % subject)
                continue
            if reply.startswith(RESERVED_REPLIES):
                text = b'Permissions Violation for Publish with Reply of "%b"' % reply
                yield (SEND_ERROR, text)
                continue
            if self._is_verbose:
                yield _OK
            yield (
                PUBLISH,
                [subject],
                [reply] if reply else None,
                [headers[at]] if headers is not None and headers[at] else None,
                [payloads[at]],
            )

    def _publish_traced(self, msg: TracedMsg, now_ns: int) -> Iterator[Action]:
        """Publish a message, and note in its trace what becomes of it here."""
        trace, published, reply, header, payload = msg
        rights, deliveries = self._deliveries.rights, self._deliveries
        to = trace.destination
        if rights is not None and to and not trace.is_external:
            if not rights.may_publish(to, now_ns=now_ns):
                yield (SEND_ERROR, b'Permissions Violation for Publish to "%b"' % to)
                return
        subject = deliveries.map(published)
        deliveries.trace_mapping(trace, published, subject)
        if subject is None:
            trace.finish()
            if self._is_verbose:
                yield _OK
            if reply and deliveries.is_told_no_responders:
                yield (NO_RESPONDERS, reply)
            return
        text = b""
        if rights is not None and not rights.may_publish(subject, now_ns=now_ns):
            text = b'Permissions Violation for Publish to "%b"' % subject
        elif reply.startswith(RESERVED_REPLIES):
            text = b'Permissions Violation for Publish with Reply of "%b"' % reply
        if text:
            trace.refused(text.decode(errors="replace"))
            trace.finish()
            yield (SEND_ERROR, text)
            return
        if self._is_verbose:
            yield _OK
        yield (PUBLISH_TRACED, TracedMsg(trace, subject, reply, header, payload))

    def take_back(self, event: Event) -> None:
        """Count publishes as not received yet: they will be received again."""
        _, _, _, headers, payloads = event
        self.in_msgs -= len(payloads)
        self.in_bytes -= sum(map(len, payloads))
        if headers is not None:
            self.in_bytes -= sum(map(len, headers))

    # --- subscriptions --------------------------------------------------------------------------

    def _subscribe(self, event: Event, now_ns: int) -> Iterable[Action]:
        _, subject, queue, sid = event
        self.last_activity_ns = now_ns
        options = self._policy.options
        if not self._may_subscribe(subject, queue):
            return ((SEND_ERROR, _forbidden(subject, queue)),)
        if options.max_sub_tokens and subject.count(b".") >= options.max_sub_tokens:
            text = b'Permissions Violation for Subscription to "%b", too many tokens' % subject
            return ((SEND_ERROR, text),)
        actions: list[Action] = []
        if sid not in self.subs:
            if options.max_subscriptions > 0 and len(self.subs) >= options.max_subscriptions:
                return ((SEND_ERROR, b"maximum subscriptions exceeded"),)
            if 0 <= self._subs_max <= len(self.subs):
                return ((SEND_ERROR, b"maximum subscriptions exceeded"),)
            if not is_valid(subject):
                return ((SEND_ERROR, b"Invalid Subject"),)
            sub = Subscription(subject, queue, sid, self._deliveries)
            sub.is_filtered = self._is_filtered(subject)
            self.subs[sid] = sub
            actions.append((SUBSCRIBE, sub))
        if self._is_verbose:
            actions.append(_OK)
        return actions

    def _unsubscribe(self, event: Event, now_ns: int) -> Iterable[Action]:
        _, sid, max_msgs = event
        self.last_activity_ns = now_ns
        actions: list[Action] = []
        sub = self.subs.get(sid)
        if sub is not None:
            if max_msgs > sub.delivered_count:
                sub.max_msgs = max_msgs
            else:
                actions.append((UNSUBSCRIBE, sub))
        if self._is_verbose:
            actions.append(_OK)
        return actions

    def _may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        rights = self._deliveries.rights
        return queue != b"_sys_" and (rights is None or rights.may_subscribe(subject, queue))

    def _is_filtered(self, pattern: bytes) -> bool:
        """Return True if some subjects that `pattern` matches must not be delivered."""
        rights = self._deliveries.rights
        return rights is not None and rights.has_subscribe_deny and not is_literal(pattern)

    # --- the rest -------------------------------------------------------------------------------

    def _ping(self, _event: Event, _now_ns: int) -> Iterable[Action]:
        if self._is_first_ping_due:
            self._is_first_ping_due = False
            if self.protocol_level >= 1:
                return (_PONG, (SEND_INFO,))
        return (_PONG,)

    def _note_pong(self, _event: Event, _now_ns: int) -> Iterable[Action]:
        return ((NOTE_PONG,),)

    def _refuse(self, _event: Event, _now_ns: int) -> Iterable[Action]:
        return _REFUSED

    def _leave(self, _event: Event, _now_ns: int) -> Iterable[Action]:
        return ((FAIL, "Client Closed", b""),)

    def _violate(self, event: Event, _now_ns: int) -> Iterable[Action]:
        _, text, reason = event
        return ((FAIL, reason, text),)


def last_of(event: Event, count: int) -> Event:
    """Return the last `count` publishes of a batch, as an event of their own."""
    columns = [column and column[-count:] for column in event[1:]]
    return (protocol.PUBS, *columns)


def _forbidden(subject: bytes, queue: bytes, which: bytes = b"") -> bytes:
    text = b'Permissions Violation for Subscription to "%b"' % subject
    return text + (b' using queue "%b"' % queue if queue else b"") + which


_Operation: TypeAlias = Callable[[Session, Event, int], Iterable[Action]]

_ANYBODY: Final[dict[int, _Operation]] = {
    protocol.CONNECT: Session._connect,
    protocol.PONG: Session._note_pong,
    protocol.CLIENT_ERROR: Session._leave,
    protocol.ERROR: Session._violate,
}
_OPERATIONS: Final[dict[State, dict[int, _Operation]]] = {
    State.STRANGER: {
        **_ANYBODY,
        protocol.PUBS: Session._refuse,
        protocol.SUB: Session._refuse,
        protocol.UNSUB: Session._refuse,
        protocol.PING: Session._refuse,
    },
    State.CHECKING: {},  # the connection holds all events
    State.CONSULTING: {},  # likewise
    State.SERVED: {
        **_ANYBODY,
        protocol.PUBS: Session._publish,
        protocol.SUB: Session._subscribe,
        protocol.UNSUB: Session._unsubscribe,
        protocol.PING: Session._ping,
    },
    State.CLOSED: {},  # the connection drops all events
}
"""Operations that are legal in each state: an event without one is a fault of the connection."""
