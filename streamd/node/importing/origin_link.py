"""Link to one origin: the consumer there, what came from it, what is proposed and acknowledged.

    waiting --(time)--> asking --(answer)--> taking --(gap, silence, no room)--> waiting
       ^                  |
       +---(error, none)--+

*Waiting*: until the next attempt, 2 s after the last one began at the earliest, and 10 s more for
each attempt that failed, up to 2 minutes. *Asking*: there is a subscription, and a consumer is
asked for; messages that overtake the answer are kept. *Taking*: messages come, and are proposed in
chunks.

Continuity. Each delivery has the consumer's own number. If one is not the last plus one, or a
heartbeat names another as the last, something was lost on the way, or another leader of the origin
numbers anew: a new consumer begins behind what was proposed. Messages at or before that are passed
over. A chunk names the position on which it follows; `apply` takes it only there.

The origin's flow control is answered when all that came before the request is applied: so no more
is under way than its window, and a leader that nobody follows any more stops by itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from streamd import limits
from streamd.machine import message_headers
from streamd.machine.commands import COPY, Command
from streamd.machine.message_headers import parse_number
from streamd.node.groups.turn import TurnTime
from streamd.node.importing import origin_requests
from streamd.node.importing.origin_messages import MessageForm
from streamd.node.importing.origin_requests import Made, Origin, Start
from streamd.types import Msg, Seq

_ACK: Final = b"$JS.ACK."
_STATUS: Final = b"NATS/1.0 100"
_ENDED: Final = b"NATS/1.0 409"
_LAST_CONSUMER: Final = b"Nats-Last-Consumer"
_STALLED: Final = b"Nats-Consumer-Stalled"
_ANSWER: Final = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"

Delivery = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply, headers, payload)"""


class LinkHost(Protocol):
    """Stream that copies, as a link to one of its origins uses it."""

    now: TurnTime

    def position(self, name: str, identity: str) -> Seq:
        """Return the replicated position in an origin."""

    def known_identity(self, name: str) -> str:
        """Return the identity of the origin's stream of which messages were taken; "": none."""

    def propose(self, command: Command) -> int:
        """Log a COPY; returns its bytes, 0: it can't be logged now."""

    def subscribe(self, link: OriginLink, token: str, deliver: bytes, reply: bytes) -> None:
        """Listen to messages on `deliver` and to the answer on `reply`, and to no others."""

    def unsubscribe(self, link: OriginLink) -> None:
        """End what `subscribe` began."""

    def request(self, origin: Origin, reply: bytes, request: tuple[bytes, bytes, bytes]) -> None:
        """Send (subject, headers, payload) to the origin."""

    def new_token(self) -> str:
        """Return eight characters that nobody had before."""


class LinkInfo(NamedTuple):
    """Facts about a link for StreamInfo."""

    lag: int
    active_ns: int  # since anything came from the origin; -1: nothing did
    error: dict[str, Any] | None
    seq: Seq  # the last of the origin's that was taken


class OriginLink:
    """Copies one origin, while this node leads the stream."""

    def __init__(self, origin: Origin, host: LinkHost) -> None:
        self.origin = origin
        self._host = host
        self._form = MessageForm(origin.source, is_mirror=origin.is_mirror)
        self.token = ""  # of the subscription; "": there is none
        self.error: dict[str, Any] | None = None
        self._identity = host.known_identity(origin.name)
        self._lag = 0
        self._heard_ms = -1
        self._is_asking = False
        self._is_plain = False
        self._fails = 0
        self._tried_ms = -limits.ORIGIN_RETRY_MS
        self._due_ms = host.now.ms  # next attempt, or the end of patience
        self._early: list[Delivery] = []  # came before the answer
        self._cseq = 0  # of the last delivery that was taken
        self._sseq: Seq = 0  # the origin's, of the same
        self._proposed: Seq = 0  # position behind all that is proposed
        self._flights = 0  # entries that are proposed and not applied
        self._flight_bytes = 0
        self._chunk = _Chunk()
        self._taken: Seq = 0  # position behind all that came
        self._owed: deque[tuple[Seq, bytes, int, Seq]] = deque()  # answers to flow control

    # --- time -------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int:
        """Return when `poll` has something to do."""
        return self._due_ms

    def poll(self) -> None:
        """Carry out what is due: ask, give up an attempt, or notice that the origin is silent."""
        now_ms = self._host.now.ms
        if now_ms < self._due_ms:
            return
        if not self.token:
            self._ask()
        elif self._is_asking:
            self._fail(None)
        elif now_ms - self._heard_ms > limits.ORIGIN_SILENT_MS:
            self.restart()
        else:
            self._due_ms = self._heard_ms + limits.ORIGIN_SILENT_MS + 1

    def _ask(self) -> None:
        host, now_ms = self._host, self._host.now.ms
        if self._flight_bytes > limits.ORIGIN_FLIGHT_BYTES_MAX:
            self._due_ms = now_ms + limits.ORIGIN_RETRY_MS  # nobody follows this leader
            return
        origin = self.origin
        self.token = token = host.new_token()
        self.error = None
        self._is_asking = True
        self._tried_ms = now_ms
        patience = limits.ORIGIN_RESET_MS if origin.own_consumer else limits.ORIGIN_ANSWER_MS
        self._due_ms = now_ms + patience
        self._early.clear()
        self._owed.clear()
        self._cseq, self._sseq = 0, 0
        if not self._flights:
            self._proposed = host.position(origin.name, self._identity)
        self._taken = self._proposed
        start = Start(self._taken + 1 if self._taken else 0, self._identity)
        if origin.own_consumer:
            request = origin_requests.reset_request(origin, start)
        else:
            request = origin_requests.create_request(origin, start, token, is_plain=self._is_plain)
        reply = b"$JSC.R." + token.encode()
        host.subscribe(self, token, origin.deliver_subject(token), reply)
        host.request(origin, reply, request)

    def restart(self, *, is_full: bool = False) -> None:
        """Ask for a consumer anew, behind what is proposed; soon, but not twice at once."""
        self._drop()
        wait_from = self._host.now.ms if is_full else self._tried_ms
        self._due_ms = max(self._host.now.ms, wait_from + limits.ORIGIN_RETRY_MS)

    def _fail(self, error: dict[str, Any] | None) -> None:
        self._drop()
        self.error = error
        self._fails += 1
        wait_ms = limits.ORIGIN_RETRY_MS + limits.ORIGIN_BACKOFF_MS * self._fails
        self._due_ms = self._host.now.ms + min(wait_ms, limits.ORIGIN_BACKOFF_MS_MAX)

    def _drop(self) -> None:
        """End the subscription. What came and is not proposed comes again."""
        if self.token:
            self._host.unsubscribe(self)
        self.token = ""
        self._is_asking = False
        self._early.clear()
        self._owed.clear()
        self._chunk = _Chunk()

    def stop(self) -> None:
        """End: this node leads no more, or the origin is none of the stream's any more."""
        self._drop()

    # --- answers ----------------------------------------------------------------------------

    def on_answer(self, token: str, headers: bytes, payload: bytes) -> None:
        """Take the answer to the request for a consumer."""
        if token != self.token or not self._is_asking:
            return
        if headers.startswith(b"NATS/1.0 503"):
            self._fail(None)
            return
        answer = origin_requests.read_answer(self.origin, headers, payload)
        if answer is None:
            self._fail({"code": 400, "err_code": 10025, "description": "invalid JSON"})
        elif isinstance(answer, Made):
            self._begin(answer)
        elif answer.is_unknown and not self._is_plain:
            self._is_plain = True
            self._drop()
            self._due_ms = self._host.now.ms
        elif answer.is_another and not self.origin.is_mirror:
            self._identity = answer.identity  # which has no position yet
            self.restart()
            self.error = answer.error
        elif answer.error.get("code") == 503:
            self.restart()  # nobody leads the origin at the moment
            self.error = answer.error
        else:
            self._fail(answer.error)

    def _begin(self, made: Made) -> None:
        host, origin = self._host, self.origin
        self._is_asking = False
        self._fails = 0
        self._heard_ms = host.now.ms
        self._due_ms = self._heard_ms + limits.ORIGIN_SILENT_MS + 1
        self._lag = made.pending
        if made.identity and not origin.is_mirror and made.identity != self._identity:
            is_behind = bool(self._taken and self._identity)
            self._identity = made.identity
            if is_behind:  # of a stream that was created anew, the beginning is wanted
                self.restart()
                return
        self._cseq, self._sseq = made.cseq, made.sseq
        if origin.is_mirror and not self._taken and made.sseq and not self._flights:
            # A mirror that never held anything begins where its origin does.
            self._taken = made.sseq
            self._propose(_Chunk(), made.sseq)
        early, self._early = self._early, []
        if early:
            self.on_messages(self.token, early)

    # --- messages ---------------------------------------------------------------------------

    def on_messages(self, token: str, batch: list[Delivery]) -> None:
        """Take what came on the deliver subject."""
        if token != self.token:
            return
        self._heard_ms = self._host.now.ms
        if self._is_asking:
            self._early += batch
            if len(self._early) > limits.ORIGIN_EARLY_MSGS_MAX:
                self.restart()
            return
        form, is_mirror, identity = self._form, self.origin.is_mirror, self._identity
        for subject, reply, headers, payload in batch:
            if not reply.startswith(_ACK):
                self._on_status(headers, reply)
                if self.token != token:
                    return
                continue
            tokens = reply.split(b".")
            try:
                at = 4 if len(tokens) == 9 else 6
                sseq, cseq, ts, pending = map(int, tokens[at + 1 : at + 5])
            except ValueError:
                continue
            if cseq != self._cseq + 1:
                self.restart()
                return
            self._cseq, self._sseq = cseq, sseq
            self._lag = pending - 1 if pending else 0
            if sseq <= self._taken:
                continue
            self._taken = sseq
            to = form.subject(subject, sseq)
            if to is None or not to:
                continue
            if headers or not is_mirror:
                headers = form.headers(headers, subject, sseq, identity)
            chunk = self._chunk
            chunk.seqs.append(sseq)
            chunk.msgs.append((to, headers, payload))
            if is_mirror:
                chunk.times.append(ts)
            chunk.byte_count += len(headers) + len(payload) + len(to)
            if (
                len(chunk.msgs) >= limits.STORE_BATCH_MSGS
                or chunk.byte_count >= limits.STORE_BATCH_BYTES
            ):
                self.flush()
                if self.token != token:
                    return

    def _on_status(self, headers: bytes, reply: bytes) -> None:
        if headers.startswith(_ENDED):
            self.restart()
            return
        if not headers.startswith(_STATUS):
            return
        if reply:
            self._owed.append((self._taken, reply, self._cseq, self._sseq))
            return
        last = message_headers.get(headers, _LAST_CONSUMER)
        if last is not None and parse_number(last) != self._cseq:
            self.restart()
            return
        stalled = message_headers.get(headers, _STALLED)
        if stalled and not any(owed[1] == stalled for owed in self._owed):
            self._owed.append((self._taken, stalled, self._cseq, self._sseq))

    # --- to the log, and back ---------------------------------------------------------------

    def flush(self) -> None:
        """Propose what is collected, and answer what may be answered."""
        if self._chunk.msgs:
            chunk, self._chunk = self._chunk, _Chunk()
            if not self._propose(chunk, self._taken):
                self.restart(is_full=True)
                return
        elif self._taken > self._proposed and not self.origin.is_mirror:
            if self._owed or self._taken - self._proposed > limits.STORE_BATCH_MSGS:
                self._propose(_Chunk(), self._taken)  # what is not wanted is passed over
        self._answer()

    def _propose(self, chunk: _Chunk, last: Seq) -> bool:
        name, identity = self.origin.name, "" if self.origin.is_mirror else self._identity
        command: Command = [
            COPY, self._host.now.ns, name, identity, self._proposed, last,
            chunk.seqs, chunk.times, chunk.msgs,
        ]  # fmt: skip
        logged = self._host.propose(command)
        if not logged:
            return False
        self._proposed = last
        self._flights += 1
        self._flight_bytes += logged
        return True

    def on_applied(self, command: Command, size: int) -> None:
        """Take note that an entry of this link was applied."""
        self._flights -= 1
        self._flight_bytes -= size
        position = self._host.position(self.origin.name, command[3])
        if position < command[5]:
            # There is no room for more, or not for this: what follows on it is void.
            if not self._flights:
                self._proposed = position
                self.restart(is_full=True)
            elif self.token:
                self._drop()
                self._due_ms = self._host.now.ms + limits.ORIGIN_RETRY_MS
            return
        self._answer()

    def _answer(self) -> None:
        owed = self._owed
        if not owed:
            return
        done = self._taken
        if self._flights or self._chunk.msgs:
            done = self._host.position(self.origin.name, self._identity)
        while owed and owed[0][0] <= done:
            _, reply, cseq, sseq = owed.popleft()
            answer = (reply, _ANSWER % (cseq, sseq), b"")
            self._host.request(self.origin, b"", answer)

    # --- facts ------------------------------------------------------------------------------

    def info(self) -> LinkInfo:
        """Return the facts for StreamInfo."""
        host = self._host
        active_ns = -1
        if self._heard_ms >= 0:
            active_ns = (host.now.ms - self._heard_ms) * 1_000_000
        seq = host.position(self.origin.name, self._identity)
        return LinkInfo(self._lag, active_ns, self.error, seq)


class _Chunk:
    """Messages that came and are not proposed yet."""

    __slots__ = ("byte_count", "msgs", "seqs", "times")

    def __init__(self) -> None:
        self.seqs: list[Seq] = []
        self.times: list[int] = []
        self.msgs: list[Msg] = []
        self.byte_count = 0
