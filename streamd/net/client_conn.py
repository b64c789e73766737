"""One client connection: handshake, rights, keep-alive, and its output buffer.

The parser turns chunks into events, `PubSub` routes what is published; what is left is here. An
object of this class is also where the acks of its publishes come back (`node.ports.PublishSink`).
Output is collected in `out` as lines without CRLF and written once per chunk or turn (`flush`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from streamd.limits import CONGESTED_BYTES, STALL_S
from streamd.net.auth import Check, Identity, UserRights
from streamd.net.pubacks import ack_body, ack_line, ack_run, shared_prefix
from streamd.net.pubsub import RESERVED_REPLIES
from streamd.net.sublist import Subscription
from streamd.protocol import client as protocol
from streamd.protocol.client import ClientParser, Event
from streamd.subjects import is_literal, is_valid, is_valid_literal

if TYPE_CHECKING:
    from streamd.net.listener import Listener

_BOOLS = ("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required")
_TEXTS = ("user", "pass", "auth_token", "name", "lang", "version", "jwt", "nkey", "sig")
_FIRST_PING_S = 2.0  # after CONNECT, so that the round trip time is known soon
_SILENT_REASONS = ("Client Closed", "Read Error", "Write Error")


class ClientConn(asyncio.Protocol):
    """The server's end of one client connection."""

    __slots__ = (
        "_auth_timer",
        "_connect",
        "_deadline_timer",
        "_first_ping_is_due",
        "_held",
        "_identity",
        "_is_stalled",
        "_judge",
        "_linger_timer",
        "_listener",
        "_loop",
        "_parser",
        "_ping_sent",
        "_ping_timer",
        "_pings_out",
        "_pubsub",
        "_transport",
        "cid",
        "has_echo",
        "has_headers",
        "in_bytes",
        "in_msgs",
        "ip",
        "is_closed",
        "is_congested",
        "is_dirty",
        "is_granting_replies",
        "is_pedantic",
        "is_told_no_responders",
        "is_verbose",
        "lang",
        "last_activity_ns",
        "name",
        "out",
        "out_bytes",
        "out_msgs",
        "port",
        "protocol_level",
        "reason",
        "rights",
        "rtt_ns",
        "start_ns",
        "stop_ns",
        "subs",
        "user",
        "version",
    )

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop | None = None) -> None:
        options = listener.options
        self._listener = listener
        self._pubsub = listener.pubsub
        self._loop = loop or asyncio.get_running_loop()
        self._transport: Any = None
        self._parser = ClientParser(
            max_payload=options.max_payload, max_control_line=options.max_control_line
        )
        # None until it is known who this is; a server without authentication knows at once.
        self._identity: Identity | None = listener.auth.no_auth_identity
        self._connect: dict[str, Any] | None = None
        self._judge = listener.auth  # of the last CONNECT
        self._held: list[Event] | None = None  # events behind a CONNECT whose password is checked
        self._first_ping_is_due = False  # the client's first PING is answered with an INFO too
        self._auth_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._ping_sent = 0.0
        self._pings_out = 0
        self._is_stalled = False
        self.cid = 0
        self.ip = ""
        self.port = 0
        self.name = self.lang = self.version = self.user = ""
        self.start_ns = self.last_activity_ns = time.time_ns()
        self.stop_ns = 0
        self.reason = ""
        self.rtt_ns = 0
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        self.subs: dict[bytes, Subscription] = {}
        self.rights: UserRights | None = None
        self.is_granting_replies = False
        # What a client gets that sends no CONNECT.
        self.is_verbose = self.is_pedantic = self.has_echo = True
        self.has_headers = self.is_told_no_responders = False
        self.protocol_level = 0
        self.out: list[bytes] = []
        self.is_dirty = False  # in PubSub's list of those to flush
        self.is_congested = False
        self.is_closed = False

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=CONGESTED_BYTES, low=CONGESTED_BYTES // 4)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.ip, self.port = peer[0], peer[1]
        refusal = self._listener.register(self)
        if refusal:
            self.close("Maximum Connections Exceeded", refusal)
            return
        self.out.append(self._listener.info_line(self))
        self.flush()
        options = self._listener.options
        if self._identity is None and options.auth_timeout_s > 0:
            self._auth_timer = self._loop.call_later(options.auth_timeout_s, self._on_auth_timeout)
        self._arm_ping(options.ping_interval_ns / 1e9)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self.last_activity_ns = time.time_ns()
        if self._identity is None and self._connect is None and data[0] not in b"cC":
            self._refuse()
            return
        events = self._parser.feed(data)
        if self._held is not None:
            self._held += events
        elif events and not (len(events) == 1 and self._publish_lone(events[0])):
            self._handle(events)

    def pause_writing(self) -> None:
        self.is_congested = True
        deadline_s = self._listener.options.write_deadline_ns / 1e9
        if deadline_s > 0 and self._deadline_timer is None:
            self._deadline_timer = self._loop.call_later(deadline_s, self._on_write_deadline)

    def resume_writing(self) -> None:
        self.is_congested = False
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._pubsub.on_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closed:
            self._forget("Read Error" if exc is not None else "Client Closed")
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._listener.gone(self)

    # --- events ---------------------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        pubsub = self._pubsub
        pubsub.begin_chunk()
        try:
            for at, event in enumerate(events):
                kind = event[0]
                if kind == protocol.PUBS:
                    self._on_publishes(event[1], event[2], event[3], event[4])
                elif kind == protocol.PING:
                    self._on_ping()
                elif kind == protocol.SUB:
                    self._on_sub(event[1], event[2], event[3])
                elif kind == protocol.UNSUB:
                    self._on_unsub(event[1], event[2])
                elif kind == protocol.PONG:
                    self._on_pong()
                elif kind == protocol.CONNECT:
                    self._on_connect(event[1])
                    if self._held is not None:
                        self._held = list(events[at + 1 :])
                        break
                elif kind == protocol.ERROR:
                    self._fail(event[2], event[1])
                else:
                    self._fail("Client Closed")
                if self.is_closed:
                    break
        finally:
            self._touch()
            pubsub.end_chunk(self)

    def _fail(self, reason: str, text: bytes = b"") -> None:
        # What the chunk published before the fault counts; it is only posted at the chunk's end.
        self._pubsub.post_collected(self)
        self.close(reason, text)

    def _touch(self) -> None:
        if self.out and not self.is_dirty:
            self.is_dirty = True
            self._pubsub.dirty.append(self)

    def _on_publishes(
        self,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> None:
        if self._identity is None:
            self._refuse()
            return
        self.in_msgs += len(payloads)
        self.in_bytes += sum(map(len, payloads))
        if headers is not None:
            self.in_bytes += sum(map(len, headers))
            if not self.has_headers:
                self._fail("Protocol Violation")
                return
        is_checked = self.is_verbose or self.is_pedantic or self.rights is not None
        if replies is not None and not is_checked:
            # All between these two begin with `_I` to `_Q`, so none is reserved: one look at the
            # extremes instead of one at each.
            if min(replies) < b"_H" or max(replies) >= b"_R":
                is_checked = any(reply.startswith(RESERVED_REPLIES) for reply in replies)
        if is_checked:
            self._publish_checked(subjects, replies, headers, payloads)
        else:
            self._pubsub.publish_batch(self, subjects, replies, headers, payloads)

    def _publish_lone(self, event: Event) -> bool:
        """Publish the only message of a chunk if that goes to a stream here and to nobody else;
        False: nothing was done. Clients that wait for each ack send nothing but such chunks."""
        if event[0] != protocol.PUBS or len(event[4]) != 1 or self._identity is None:
            return False
        if self.is_verbose or self.is_pedantic or self.rights is not None:
            return False
        _, (subject,), replies, headers, (payload,) = event
        reply = replies[0] if replies is not None else b""
        header = headers[0] if headers is not None else b""
        if reply.startswith(RESERVED_REPLIES) or (header and not self.has_headers):
            return False
        if not self._pubsub.publish_lone(self, subject, reply, header, payload):
            return False
        self.in_msgs += 1
        self.in_bytes += len(header) + len(payload)
        return True

    def _publish_checked(
        self,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> None:
        """Publish one by one, each with its own checks and its own `+OK` or `-ERR`."""
        now_ns = time.monotonic_ns()
        for at, subject in enumerate(subjects):
            reply = replies[at] if replies is not None else b""
            if self.is_pedantic and not is_valid_literal(subject):
                self._error(b"Invalid Publish Subject")
            if self.rights is not None and not self.rights.may_publish(subject, now_ns=now_ns):
                self._error(b'Permissions Violation for Publish to "%b"' % subject)
                continue
            if reply.startswith(RESERVED_REPLIES):
                self._error(b'Permissions Violation for Publish with Reply of "%b"' % reply)
                continue
            if self.is_verbose:
                self.out.append(b"+OK")
            self._pubsub.publish_batch(
                self,
                [subject],
                [reply] if reply else None,
                [headers[at]] if headers is not None and headers[at] else None,
                [payloads[at]],
            )
            if self.is_closed:
                return

    def _on_sub(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        if self._identity is None:
            self._refuse()
            return
        options = self._listener.options
        if not self._may_subscribe(subject, queue):
            self._forbid_subscription(subject, queue)
            return
        if options.max_sub_tokens and subject.count(b".") >= options.max_sub_tokens:
            self._error(
                b'Permissions Violation for Subscription to "%b", too many tokens' % subject
            )
            return
        if sid not in self.subs:
            if options.max_subscriptions > 0 and len(self.subs) >= options.max_subscriptions:
                self._error(b"maximum subscriptions exceeded")
                return
            if not is_valid(subject):
                self._error(b"Invalid Subject")
                return
            sub = Subscription(subject, queue, sid, self)
            sub.is_filtered = self._is_filtered(subject)
            self.subs[sid] = sub
            self._pubsub.subscribe(sub)
        if self.is_verbose:
            self.out.append(b"+OK")

    def _on_unsub(self, sid: bytes, max_msgs: int) -> None:
        if self._identity is None:
            self._refuse()
            return
        sub = self.subs.get(sid)
        if sub is not None:
            if max_msgs > sub.delivered_count:
                sub.max_msgs = max_msgs
            else:
                self.drop_subscription(sub)
        if self.is_verbose:
            self.out.append(b"+OK")

    def drop_subscription(self, sub: Subscription) -> None:
        """End a subscription: UNSUB, or its last message was delivered."""
        if sub.is_open:
            self.subs.pop(sub.sid, None)
            self._pubsub.unsubscribe(sub)

    # --- handshake ------------------------------------------------------------------------------

    def _on_connect(self, text: bytes) -> None:
        try:
            connect = json.loads(text)
        except ValueError:
            connect = None
        if not _is_connect(connect):
            self._fail("Protocol Violation")
            return
        assert isinstance(connect, dict)
        if self._connect is not None:
            for sub in list(self.subs.values()):
                self.drop_subscription(sub)
        self._connect = connect
        self._judge = self._listener.auth
        verdict = self._judge.judge(connect)
        if connect.get("account") or connect.get("new_account"):
            verdict = None
        if isinstance(verdict, Check):
            self._held = []
            self._transport.pause_reading()
            self.try_password(verdict, self._on_checked)
            return
        self._welcome(verdict)

    def try_password(
        self, check: Check, done: Callable[[asyncio.Future[Identity | None]], None]
    ) -> None:
        """Run `check` on another thread; `done` is called on the loop."""
        self._loop.run_in_executor(None, check.run).add_done_callback(done)

    def _on_checked(self, running: asyncio.Future[Identity | None]) -> None:
        """The password was checked on another thread; go on with what came behind CONNECT."""
        events, self._held = self._held or [], None
        if self.is_closed:
            return
        self._pubsub.begin_chunk()
        try:
            self._welcome(running.result())
        finally:
            self._touch()
            self._pubsub.end_chunk(self)
        if not self.is_closed:
            self._transport.resume_reading()
            self._handle(events)
        if self._judge is not self._listener.auth:  # a reload in between
            self._listener.recheck([self])

    def _welcome(self, identity: Identity | None) -> None:
        connect = self._connect
        assert connect is not None
        if identity is None:
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

    @property
    def identity(self) -> Identity | None:
        """Who this is; None: not known yet."""
        return self._identity

    @property
    def connect(self) -> dict[str, Any] | None:
        """What CONNECT said; None: there was none yet."""
        return self._connect

    @property
    def is_being_checked(self) -> bool:
        """True while another thread tries the password."""
        return self._held is not None

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
                self._pubsub.table.on_interest_changed(sub.pattern)
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

    def _refuse(self) -> None:
        self._listener.on_auth_refused(self)
        self._fail("Authentication Failure", b"Authorization Violation")

    def _on_auth_timeout(self) -> None:
        if not self.is_closed:
            self.close("Authentication Timeout", b"Authentication Timeout")

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
        silent_ns = time.time_ns() - self.last_activity_ns
        if not self.rtt_ns or silent_ns >= options.ping_interval_ns:
            if self._pings_out + 1 > options.ping_max:
                self._pubsub.stale_connections_count += 1
                self.close("Stale Connection", b"Stale Connection")
                return
            self._pings_out += 1
            self._ping_sent = self._loop.time()
            self.out.append(b"PING")
            self.flush()
        self._arm_ping(interval_s)

    # --- output ---------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Write what was collected. True if so much waits that whoever fills it should rest."""
        out = self.out
        if not out:
            return False
        out.append(b"")
        self._transport.write(b"\r\n".join(out))
        out.clear()
        return self.is_congested and self._is_near_limit()

    def send_blob(self, blob: bytes) -> None:
        """Send whole lines, CRLFs and all, behind what was collected before."""
        if self.is_closed or not blob:
            return
        if self.out or self._pubsub.is_in_chunk:
            self.out.append(blob[:-2])
            if not self._pubsub.is_in_chunk:
                self.flush()
            elif not self.is_dirty:
                self.is_dirty = True
                self._pubsub.dirty.append(self)
            return
        self._transport.write(blob)
        if self.is_congested:
            self._is_near_limit()

    def _is_near_limit(self) -> bool:
        waiting = self._transport.get_write_buffer_size()
        limit = self._listener.options.max_pending
        if waiting > limit and not self.is_closed:
            self._drop_slow("Slow Consumer (Pending Bytes)")
            return False
        return bool(waiting * 4 > limit * 3)

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the client to read them."""
        if self._transport is None or self.is_closed:
            return 0
        return int(self._transport.get_write_buffer_size())

    def _on_write_deadline(self) -> None:
        self._deadline_timer = None
        if not self.is_closed:
            self._drop_slow("Slow Consumer (Write Deadline)")

    def _drop_slow(self, reason: str) -> None:
        self._pubsub.slow_consumers_count += 1
        self._listener.on_slow_consumer(self, reason)
        self._forget(reason)
        self._transport.abort()

    def stall(self) -> None:
        """Read no more for a moment: a receiver of what this client publishes is far behind."""
        if not self._is_stalled and not self.is_closed and self._held is None:
            self._is_stalled = True
            self._transport.pause_reading()
            self._loop.call_later(STALL_S, self._unstall)

    def _unstall(self) -> None:
        self._is_stalled = False
        if not self.is_closed and self._held is None:
            self._transport.resume_reading()

    def _error(self, text: bytes) -> None:
        self.out.append(b"-ERR '%b'" % text)
        self._touch()

    def forbid_publish(self, subject: bytes) -> None:
        """Tell the client that nobody may publish to `subject`."""
        self._error(b'Permissions Violation for Publish to "%b"' % subject)

    def send_info(self, *, is_lame_duck: bool = False) -> None:
        """Tell the client how the server is now; not to clients that would not understand."""
        if self.protocol_level >= 1 and not self._first_ping_is_due and not self.is_closed:
            self.out.append(self._listener.info_line(self, is_lame_duck=is_lame_duck))
            if not self._pubsub.is_in_chunk:
                self.flush()

    # --- acks of what it published --------------------------------------------------------------

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        """Answer publishes: one write for all of them where the replies allow it."""
        if type(outcomes) is range:
            if len(replies) == 1:
                if self._answer_lone(stream, replies[0], outcomes[0]):
                    return
            elif self._answer_run(stream, replies, outcomes):
                return
        self._publish_acks_each(stream, replies, outcomes)

    def _answer_lone(self, stream: bytes, reply: bytes, seq: int) -> bool:
        sub = self._sole_receiver(reply[: reply.rfind(b".") + 1])
        if sub is None:
            return False
        blob, body_bytes = ack_line(stream, sub.sid, reply, seq, self._pubsub.domain_field)
        self.out_msgs += 1
        self.out_bytes += body_bytes
        sub.delivered_count += 1
        self.send_blob(blob)
        return True

    def _answer_run(self, stream: bytes, replies: list[bytes], seqs: range) -> bool:
        sub = self._sole_receiver(shared_prefix(replies))
        if sub is None:
            return False
        blob, body_bytes = ack_run(stream, sub.sid, replies, seqs, self._pubsub.domain_field)
        count = len(replies)
        self.out_msgs += count
        self.out_bytes += body_bytes
        sub.delivered_count += count
        self.send_blob(blob)
        return True

    def _sole_receiver(self, prefix: bytes | None) -> Subscription | None:
        """Return this connection's subscription if it alone receives all replies of `prefix`."""
        route = self._pubsub.table.find_under(prefix) if prefix else None
        if route is None or len(route.plain) != 1:
            return None
        if route.queues or route.streams or route.remote is not None:
            return None
        sub = route.plain[0]
        if sub.conn is not self or sub.max_msgs or sub.is_filtered or not sub.is_open:
            return None
        return sub

    def _publish_acks_each(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[Any]
    ) -> None:
        pubsub = self._pubsub
        find = pubsub.table.find
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply:
                body = ack_body(stream, outcome, pubsub.domain_field)
                pubsub.route_one(None, find(reply), reply, b"", b"", body)
        pubsub.flush_if_idle()

    # --- the end --------------------------------------------------------------------------------

    def close(self, reason: str, text: bytes = b"") -> None:
        """End the connection: what is buffered still goes out, with an `-ERR` if there is one."""
        if self.is_closed:
            return
        if text:
            self.out.append(b"-ERR '%b'" % text)
        if self.out:
            self.out.append(b"")
            self._transport.write(b"\r\n".join(self.out))
        self._forget(reason)
        self._transport.close()
        # A client that reads no more must not keep its buffer alive.
        linger_s = self._listener.options.write_deadline_ns / 1e9
        self._linger_timer = self._loop.call_later(linger_s, self._transport.abort)

    def cut_off(self) -> None:
        """Drop the socket with whatever is still buffered."""
        self._transport.abort()

    def _forget(self, reason: str) -> None:
        self.reason = reason
        self.stop_ns = time.time_ns()
        self._listener.closing(self)  # while its subscriptions can still be seen
        self.is_closed = True
        self.out = _Discard()
        for timer in (self._auth_timer, self._ping_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        for sub in list(self.subs.values()):
            self._pubsub.unsubscribe(sub)
        self.subs.clear()


class _Discard(list[bytes]):
    """Takes the place of a closed connection's output: nothing stays in it."""

    def append(self, item: bytes) -> None: ...

    def __iadd__(self, items: Any) -> _Discard:  # type: ignore[override, misc]
        return self


def _is_connect(connect: Any) -> bool:
    if not isinstance(connect, dict):
        return False
    for key in _BOOLS:
        if not isinstance(connect.get(key, False), bool):
            return False
    for key in _TEXTS:
        if not isinstance(connect.get(key, ""), str):
            return False
    level = connect.get("protocol", 0)
    return isinstance(level, int) and not isinstance(level, bool)
