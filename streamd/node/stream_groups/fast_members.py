"""Members of fast batches on their way into the log: what their reply subjects say.

    <anything>.<batch id>.<flow>.<ok|fail>.<sequence>.<operation>.$FI

A leader reads them when it proposes an entry; the protocol itself is the machine's
(`machine/streams/fast_batches.py`). What no pattern fits is answered at once and not proposed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.machine.commands import PublishOutcome
from streamd.machine.streams import fast_batches
from streamd.machine.streams.fast_batches import APPEND, COMMIT, END, FLOW_DEFAULT, PING, START
from streamd.machine.streams.stream import StreamMachine
from streamd.node.ports import PublishSink
from streamd.types import Msg

SUFFIX: Final = b".$FI"
_OPERATIONS: Final = {b"0": START, b"1": APPEND, b"2": COMMIT, b"3": END, b"4": PING}
_FLOW_MAX: Final = 65535
_LEVEL: Final = b"Nats-Required-Api-Level"
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"
_APPENDED: Final = b".1.$FI"
_TOKENS: Final = 6  # behind what the client put in front of them
_SEQ_DIGITS: Final = 20
_CHECK_MS: Final = 1000

Member = list[bytes | int]
"""See commands.STORE_FAST."""


def is_member(replies: Sequence[bytes]) -> bool:
    """True if one of these replies is that of a member of a fast batch."""
    return SUFFIX in b"".join(replies)


def read(reply: bytes) -> Member | JsError:
    """Return the member that a reply subject names, or why it names none."""
    tokens = reply.rsplit(b".", _TOKENS)
    if len(tokens) <= _TOKENS:
        return errors.BATCH_PUBLISH_INVALID_PATTERN()
    _, batch_id, flow_text, mode, seq_text, operation_text, _ = tokens
    operation = _OPERATIONS.get(operation_text)
    is_number = seq_text.isdigit() and len(seq_text) <= _SEQ_DIGITS
    seq = int(seq_text) if is_number else 0
    if operation is None or mode not in (b"ok", b"fail") or not 0 < seq < 1 << 64:
        return errors.BATCH_PUBLISH_INVALID_PATTERN()
    if (operation == START) != (seq == 1) and operation in (START, APPEND, END):
        if operation == START or seq == 1:
            return errors.BATCH_PUBLISH_INVALID_PATTERN()
    if len(batch_id) > limits.BATCH_ID_BYTES_MAX:
        return errors.BATCH_PUBLISH_INVALID_BATCH_ID()
    flow = int(flow_text) if flow_text.isdigit() and len(flow_text) < _SEQ_DIGITS else 0
    flow = min(flow, _FLOW_MAX) or FLOW_DEFAULT
    return [batch_id, int(mode == b"ok"), flow, seq, operation, 1]


class FastLot:
    """Members for one entry, and their receivers."""

    __slots__ = ("_replies", "_sinks", "_starts", "members", "msgs")

    def __init__(self) -> None:
        self.msgs: list[Msg] = []
        self.members: list[Member] = []
        self._replies: list[bytes] = []
        self._starts: list[int] = []  # positions at which another sink begins
        self._sinks: list[PublishSink] = []

    def add(
        self, name: bytes, msgs: Sequence[Msg], replies: list[bytes], sink: PublishSink
    ) -> None:
        """Add the messages of one chunk; those that are no members are answered."""
        self._starts.append(len(self.msgs))
        self._sinks.append(sink)
        head, following, count = b"", 0, 0
        for msg, reply in zip(msgs, replies, strict=True):
            # Most members are the next message of the batch before them.
            if head and not msg[1] and reply == b"%b%d%b" % (head, following, _APPENDED):
                following += 1
                count += 1
            else:
                member = read(reply)
                if isinstance(member, JsError):
                    sink.publish_acks(name, [reply], [member])
                    self._close(count)
                    head, count = b"", 0
                    continue
                if msg[1] and _LEVEL in msg[1]:
                    msg = self._without_level(msg, member)
                self._close(count)
                self.members.append(member)
                seq = member[3]
                assert isinstance(seq, int), member
                # A row begins behind a START: its own members are all alike then.
                is_alike = member[4] == APPEND and not msg[1]
                head = reply.rsplit(b".", 3)[0] + b"." if is_alike else b""
                following, count = seq + 1, 1
            self.msgs.append(msg)
            self._replies.append(reply)
        self._close(count)

    def _close(self, count: int) -> None:
        """The last row has so many members."""
        if count:
            self.members[-1][5] = count

    @staticmethod
    def _without_level(msg: Msg, member: Member) -> Msg:
        """Return the message without the header that asks for an API level, which is looked at
        here."""
        subject, headers, payload = msg
        level = message_headers.get(headers, _LEVEL)
        if level and not 0 <= message_headers.parse_number(level) <= limits.API_LEVEL:
            member[4] = fast_batches.TOO_NEW
        headers = message_headers.without(headers, _LEVEL)
        return subject, b"" if headers == _NO_HEADERS else headers, payload

    def answer(
        self,
        name: bytes,
        outcome: list[tuple[int, list[PublishOutcome]]] | JsError,
        *,
        has_acks: bool,
    ) -> None:
        """Tell the members that are answered. Without acks only the end of a batch is told."""
        if isinstance(outcome, JsError):
            outcome = [(at, [outcome]) for at in range(len(self._replies))]
        for position, answers in outcome:
            if not has_acks:
                answers = [each for each in answers if type(each) is tuple and each[0] >= 0]
            sink = self._sinks[bisect_right(self._starts, position) - 1]
            if answers:
                sink.publish_acks(name, [self._replies[position]] * len(answers), answers)


class FastIdle:
    """Fast batches of one stream in which nothing is done, on its leader."""

    __slots__ = ("_machine", "_seen_ms", "deadline_ms")

    def __init__(self, machine: StreamMachine) -> None:
        self._machine = machine
        self._seen_ms: dict[bytes, int] = {}
        self.deadline_ms = 0  # when `idle` has something to look at; 0: never

    def begin(self, now_ms: int) -> None:
        """Begin as leader: each batch under way has its time from now on."""
        self._seen_ms = dict.fromkeys(self._machine.content.fast_batches.ids(), now_ms)
        self.deadline_ms = now_ms + limits.BATCH_IDLE_MS_MAX if self._seen_ms else 0

    def end(self) -> None:
        """End as leader."""
        self._seen_ms = {}
        self.deadline_ms = 0

    def has_room_for(self, members: list[Member]) -> bool:
        """True if as many batches may be under way as there would be."""
        new = {member[0] for member in members if member[4] == START}
        return len(new | self._seen_ms.keys()) <= limits.FAST_BATCHES_PER_STREAM_MAX

    def note(self, members: list[Member], now_ms: int) -> None:
        """Something is done in these batches."""
        for member in members:
            batch_id = member[0]
            assert isinstance(batch_id, bytes), member
            self._seen_ms[batch_id] = now_ms
        if not self.deadline_ms:
            self.deadline_ms = now_ms + limits.BATCH_IDLE_MS_MAX

    def idle(self, now_ms: int) -> list[list[bytes | int]]:
        """Return the batches that idled too long: (id, up to which members are handled)."""
        batches = self._machine.content.fast_batches
        found: list[list[bytes | int]] = []
        kept: dict[bytes, int] = {}
        for batch_id, seen_ms in self._seen_ms.items():
            seq = batches.seq_of(batch_id)
            if seen_ms + limits.BATCH_IDLE_MS_MAX > now_ms:
                if seq >= 0 or seen_ms + _CHECK_MS > now_ms:
                    kept[batch_id] = seen_ms
            elif seq >= 0:
                found.append([batch_id, seq])
        self._seen_ms = kept
        self.deadline_ms = now_ms + _CHECK_MS if kept or found else 0
        return found
