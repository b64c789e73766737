"""`LetterSending`: sends a stream's dead letters to where they are stored, on the stream's leader.

Letters (see machine/streams/dead_letters.py) to one subject form a lane. A lane sends its letters
in the order of their numbers, some ahead of the answers, as a producer: each names the one before
it, so that the stream that stores them takes none out of order, and none twice. What is stored is
proposed as sent (LETTERS_SENT). After an answer that is an error, or none, the lane begins anew
with what is not known to be stored, a while later. Each letter is stored by its own answer alone: a
nats-server behind a leaf link knows no producers, and may have taken a later one and lost this.

    waiting --(poll)--> flying --(ack)--> stored --(LETTERS_SENT applied)--> gone
       ^                  |
       +--(error, silence)+

Nothing here is replicated. The next leader sends again what it finds; what was stored is answered
as a duplicate.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Final

from streamd import limits
from streamd.machine import commands, message_headers
from streamd.machine.rfc3339 import format_ns
from streamd.machine.streams import producers, publish
from streamd.machine.streams.dead_letters import Letter
from streamd.machine.streams.origins import short_hash
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.group_shell import GroupShell, Proposer
from streamd.node.groups.inbox import InboxMessage
from streamd.node.groups.turn import Turn, TurnTime
from streamd.node.ports import Wires
from streamd.node.stream_groups.message_reader import MessageReader, SingleReads

_OWN_HEADS: Final = b"Nats-"
_TOO_LARGE: Final = (10054, 10097)  # err_codes: of a message, of its headers
_ANSWERS: Final = b"$JSC.L."
_STATUS: Final = b"NATS/1.0 "
_BODY_GONE: Final = b"gone"
_BODY_TOO_LARGE: Final = b"too large"

Delivery = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply, headers, payload)"""


@dataclass(slots=True)
class LetterAnswers(InboxMessage):
    """Answers to letters came; `token` says to which subscription."""

    token: str
    batch: list[Delivery]


class _Lane:
    """Letters to one subject."""

    __slots__ = (
        "bare", "due_ms", "error", "fails", "flying", "previous", "refused", "retry_ms", "stored",
        "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()  # numbers, ascending
        self.flying: deque[int] = deque()  # likewise, all below those
        self.previous = 0  # number of the letter sent last; 0: begin anew
        self.stored = 0  # highest number of the letters that were answered as stored
        self.due_ms = 0  # until then the answer to the first that flies must come
        self.retry_ms = 0  # nothing is sent before
        self.fails = 0  # in a row
        self.error = ""  # of the last failure, until a letter is stored
        self.bare: dict[int, bytes] = {}  # sent without their body, and why
        self.refused: dict[int, tuple[int, str]] = {}  # of those that fly: err_code, text

    def take_back(self, now_ms: int, error: str) -> None:
        """Send all again that is not known to be stored, a while later."""
        self.waiting.extendleft(reversed(self.flying))
        self.flying.clear()
        self.refused.clear()
        self.previous = 0
        self.error = error
        wait_ms = limits.DEAD_LETTER_RETRY_MS << min(self.fails, 10)
        self.fails += 1
        self.retry_ms = now_ms + min(wait_ms, limits.DEAD_LETTER_RETRY_MS_MAX)


class LetterSending:
    """Dead letters of one stream on their way, while this node leads it."""

    __slots__ = (
        "_lanes",
        "_lives",
        "_machine",
        "_now",
        "_propose_ms",
        "_proposer",
        "_reads",
        "_seen",
        "_shell",
        "_stored",
        "_subscription",
        "_token",
        "_wires",
    )

    def __init__(
        self,
        machine: StreamMachine,
        reader: MessageReader,
        proposer: Proposer,
        shell: GroupShell,
        now: TurnTime,
        *,
        wires: Wires,
    ) -> None:
        self._machine = machine
        self._reads = SingleReads(machine.index, reader, shell)
        self._proposer = proposer
        self._shell = shell
        self._now = now
        self._wires = wires
        self._lanes: dict[bytes, _Lane] = {}
        self._seen = 0  # letters up to this number are in a lane, or gone
        self._stored: list[int] = []  # to be proposed as sent
        self._propose_ms = 0  # not before then
        self._token = ""  # of the subscription for answers; "": there is none
        self._subscription: object | None = None
        self._lives = 0

    # --- begin and end ----------------------------------------------------------------------

    def end(self) -> None:
        """Forget all: this node leads no more."""
        self._lanes.clear()
        self._stored.clear()
        self._seen = 0
        self._propose_ms = 0
        if self._token:
            self._token = ""
            self._shell.call_soon(self._unsubscribe)

    def error_of(self, subject: bytes) -> str:
        """Return why letters to a subject could not be stored lately; "": they can."""
        lane = self._lanes.get(subject)
        return lane.error if lane is not None else ""

    # --- the turn ---------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """Return when `poll` has something to do, monotonic ms; 0: never, or once it is told."""
        soonest = self._propose_ms if self._stored else 0
        for lane in self._lanes.values():
            retry_ms = lane.retry_ms if lane.waiting and not self._reads.is_reading else 0
            due_ms = lane.due_ms if lane.flying else retry_ms
            if due_ms and (not soonest or due_ms < soonest):
                soonest = due_ms
        return soonest

    def poll(self, turn: Turn) -> None:
        """Take letters that are new, send what may be sent, and propose what is stored as sent."""
        letters = self._machine.content.letters
        if self._seen < letters.last_number:
            for letter in letters.after(self._seen):
                lane = self._lanes.get(letter.subject)
                if lane is None:
                    lane = self._lanes[letter.subject] = _Lane()
                lane.waiting.append(letter.number)
            self._seen = letters.last_number
        if not (self._lanes or self._stored):
            return
        now_ms = self._now.ms
        left = limits.DEAD_LETTERS_PER_TURN_MAX
        for subject, lane in list(self._lanes.items()):
            if lane.flying and now_ms >= lane.due_ms:
                lane.take_back(
                    now_ms, "no answer: no stream stores this subject, or it has no leader"
                )
            if lane.waiting and now_ms >= lane.retry_ms and not self._reads.is_reading:
                lane.retry_ms = 0
                left -= self._send(subject, lane, left)
            elif not (lane.waiting or lane.flying):
                del self._lanes[subject]
        turn.more |= left <= 0
        if self._stored and now_ms >= self._propose_ms:
            command = [commands.LETTERS_SENT, self._now.ns, self._stored]
            if self._proposer.propose(command, None):
                self._stored = []
                turn.more = True
            else:
                self._propose_ms = now_ms + limits.DEAD_LETTER_RETRY_MS

    def _send(self, subject: bytes, lane: _Lane, most: int) -> int:
        """Send letters of a lane, as many as may be under way; returns how many."""
        letters = self._machine.content.letters
        count, is_flying = 0, bool(lane.flying)
        while lane.waiting and count < most:
            if len(lane.flying) >= limits.DEAD_LETTERS_UNDER_WAY_MAX:
                break
            number = lane.waiting[0]
            letter = letters.find(number)
            if letter is None:  # an earlier leader had it stored
                lane.waiting.popleft()
                continue
            message = self._message(letter, lane)
            if message is None:
                break
            lane.waiting.popleft()
            lane.flying.append(number)
            lane.previous = number
            headers, payload = message
            reply = b"%b%b.%d" % (_ANSWERS, self._subscribed().encode(), number)
            self._shell.call_soon(self._wires.publish, subject, reply, headers, payload)
            count += 1
        if count and not is_flying:
            lane.due_ms = self._now.ms + limits.DEAD_LETTER_ANSWER_MS
        return count

    # --- a letter ---------------------------------------------------------------------------

    def _message(self, letter: Letter, lane: _Lane) -> tuple[bytes, bytes] | None:
        """Return headers and payload of a letter; None: its message has to be read first."""
        body = lane.bare.get(letter.number)
        if body is None and not self._machine.index.live.has(letter.sseq):
            body = _BODY_GONE
        if body is not None:
            return self._headers(letter, lane, b"", b"", body), b""
        found = self._reads.get(letter.sseq)
        if found is None:
            lane.retry_ms = self._reads.retry_ms
            return None
        subject, headers, payload = found
        return self._headers(letter, lane, subject, headers, body), payload

    def _headers(
        self, letter: Letter, lane: _Lane, subject: bytes, headers: bytes, body: bytes | None
    ) -> bytes:
        """Return the headers of a letter: those of the message that are no server's, then ours."""
        machine = self._machine
        lane_name = short_hash(letter.subject.decode("utf-8", "replace")).encode()
        producer = b"$DL.%d.%d.%b" % (machine.uid, machine.created_ns, lane_name)
        last = lane.previous
        if last and letter.number > lane.stored:
            last = max(last, lane.stored)  # those in between were stored the first time
        previous = b"%d" % last if last else producers.ANY
        lines = [
            line
            for line in headers[:-4].split(b"\r\n")[1:]
            if line and not line.startswith(_OWN_HEADS)
        ]
        ours = [
            (publish.MSG_ID, b"%b.%d" % (producer, letter.number)),  # for who knows no producers
            (producers.ID, producer),
            (producers.SEQUENCE, b"%d" % letter.number),
            (producers.PREVIOUS, previous),
            (b"Nats-Dead-Letter-Reason", letter.reason),
            (b"Nats-Dead-Letter-Stream", machine.name.encode()),
            (b"Nats-Dead-Letter-Consumer", letter.consumer),
            (b"Nats-Dead-Letter-Sequence", b"%d" % letter.sseq),
            (b"Nats-Dead-Letter-Deliveries", b"%d" % letter.deliveries),
            (b"Nats-Dead-Letter-Time", format_ns(letter.ts).encode()),
            (b"Nats-Dead-Letter-Subject", subject),
            (b"Nats-Dead-Letter-Text", b" ".join(letter.text.split())),
            (b"Nats-Dead-Letter-Body", body or b""),
        ]
        lines += [key + b": " + value for key, value in ours if value]
        return b"\r\n".join([message_headers.VERSION, *lines, b"", b""])

    # --- answers ----------------------------------------------------------------------------

    def _subscribed(self) -> str:
        """Return the token of the subscription for answers, which there is from now on."""
        if not self._token:
            self._lives += 1
            machine, now = self._machine, self._now
            self._token = short_hash(f"{machine.uid} {now.ns} {self._lives} letters")
            self._shell.call_soon(self._subscribe, self._token)
        return self._token

    def _subscribe(self, token: str) -> None:
        post = self._shell.post

        def on_messages(batch: list[Delivery]) -> None:
            post(LetterAnswers(token, batch))

        self._unsubscribe()
        pattern = b"%b%b.*" % (_ANSWERS, token.encode())
        self._subscription = self._wires.subscribe(pattern, on_messages)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            self._wires.unsubscribe(subscription)

    def on_answers(self, message: LetterAnswers) -> None:
        """Take answers of those who store letters."""
        if message.token != self._token:
            return
        for subject, _, headers, payload in message.batch:
            number = message_headers.parse_number(subject.rpartition(b".")[2])
            letter = self._machine.content.letters.find(number)
            lane = self._lanes.get(letter.subject) if letter is not None else None
            if lane is None or number not in lane.flying:
                continue
            err_code, error = _refusal(headers, payload)
            if error:
                lane.refused[number] = err_code, error
            else:
                self._on_stored(lane, number)
            # One that is not the first: what becomes of those before it decides, or silence.
            if lane.flying and lane.flying[0] in lane.refused:
                self._on_refused(lane, lane.flying[0])

    def _on_stored(self, lane: _Lane, number: int) -> None:
        """Take a letter for stored, and wait anew for the answer to the one before all others."""
        if number == lane.flying[0]:
            lane.due_ms = self._now.ms + limits.DEAD_LETTER_ANSWER_MS
        lane.flying.remove(number)
        lane.refused.pop(number, None)
        lane.bare.pop(number, None)
        lane.stored = max(lane.stored, number)
        self._stored.append(number)
        lane.fails = 0
        lane.error = ""

    def _on_refused(self, lane: _Lane, number: int) -> None:
        """Begin anew with a letter that is refused, while all before it are stored."""
        err_code, error = lane.refused[number]
        is_bare = err_code in _TOO_LARGE and number not in lane.bare
        if is_bare:
            lane.bare[number] = _BODY_TOO_LARGE
            lane.fails = 0
        lane.take_back(self._now.ms, error)
        if is_bare:
            lane.retry_ms = 0  # it is another message now


def _refusal(headers: bytes, payload: bytes) -> tuple[int, str]:
    """Return (err_code, text) of an answer that is no publish ack; (0, ""): it is one."""
    if headers.startswith(_STATUS):
        status = headers[len(_STATUS) : headers.find(b"\r\n")].decode("utf-8", "replace")
        if status:
            return 0, status
    try:
        document = json.loads(payload)
        error = document.get("error")
        if error:
            return int(error.get("err_code", 0)), str(error.get("description") or error)
        if document["seq"] > 0 and document["stream"]:
            return 0, ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return 0, "an answer that is no publish ack"
