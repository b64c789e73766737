"""`ScheduleFiring`: what a stream's leader does for its message schedules.

It judges patterns of what is published (`verdicts`), and proposes what schedules bring once they
are due (FIRE). Only the leader has a clock and time zones; what it found is in the entry. A
schedule fires once, whoever leads: an entry names the time for which it fires, and applies only if
the schedule is still due at that time.

In one turn at most FIRED_PER_TURN_MAX schedules are looked at, and one FIRE is under way at a time.
"""

from __future__ import annotations

from typing import Final

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine import commands, message_headers
from streamd.machine.rfc3339 import format_ns
from streamd.machine.streams import producers, publish
from streamd.machine.streams.schedules import UNKNOWN_DUE, Due
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.group_shell import GroupShell, Proposer
from streamd.node.groups.turn import Turn, TurnTime
from streamd.node.stream_groups import schedule_patterns
from streamd.node.stream_groups.ingest_transform import IngestTransform
from streamd.node.stream_groups.message_reader import MessageReader, SingleReads
from streamd.types import Msg, Seq

Item = list[object]
"""Item of a FIRE: see commands.FIRE."""

_ZONE_WORD: Final = publish.SCHEDULE_ZONE
_HEAD: Final = b"Nats-Schedule"
_LEFT_OUT: Final = (publish.MSG_ID, publish.TTL, publish.ROLLUP)
_LEFT_OUT_HEADS: Final = (_HEAD, b"Nats-Expected-", producers.HEADS)


def verdicts(msgs: list[Msg], now_ns: int) -> list[tuple[int, int, int]]:
    """Return what the patterns of messages are worth: (position, when it is due first, err_code)
    of each that is a schedule or names a time zone."""
    found: list[tuple[int, int, int]] = []
    for position, (_, headers, _) in enumerate(msgs):
        if not headers or _HEAD not in headers:
            continue
        pattern = message_headers.get(headers, publish.SCHEDULE)
        zone = message_headers.get(headers, _ZONE_WORD)
        if not pattern and zone is None:
            continue
        if not pattern:
            if schedule_patterns.zone_of((zone or b"").decode("utf-8", "replace")) is None:
                found.append((position, 0, errors.MESSAGE_SCHEDULES_TIME_ZONE_INVALID.err_code))
            continue
        schedule = schedule_patterns.read(pattern, zone)
        if isinstance(schedule, JsError):
            found.append((position, 0, schedule.err_code))
        else:
            found.append((position, schedule.following(0, now_ns), 0))
    return found


class ScheduleFiring:
    """Schedules of one stream, on its leader."""

    def __init__(
        self,
        machine: StreamMachine,
        reader: MessageReader,
        proposer: Proposer,
        shell: GroupShell,
        now: TurnTime,
    ) -> None:
        self._machine = machine
        self._reads = SingleReads(machine.index, reader, shell)
        self._proposer = proposer
        self._now = now
        self._transform = IngestTransform()
        self._at_ns = 0  # when the next one is due; 0: look it up
        self._retry_ms = 0  # not before then: something could not be read, or proposed
        self._is_proposed = False

    def forget(self) -> None:
        """Look up anew what is due: something was applied, or this member leads no more."""
        self._at_ns = 0
        self._is_proposed = False

    @property
    def _has_any(self) -> bool:
        """True if there are schedules, in a stream that all may see."""
        return bool(self._machine.content.schedules) and not self._machine.limits.is_restoring

    def deadline_ms(self) -> int:
        """Return when `poll` has something to do, monotonic ms; 0: never, or once it is told."""
        if not self._has_any or self._is_proposed or self._reads.is_reading:
            return 0
        now = self._now
        due_ms = self._retry_ms
        if self._at_ns:
            due_ms = max(due_ms, now.ms + max(0, self._at_ns - now.ns) // 1_000_000 + 1)
        return due_ms

    def poll(self, turn: Turn) -> None:
        """Propose what is due."""
        schedules = self._machine.content.schedules
        if not self._has_any or self._is_proposed or self._reads.is_reading:
            return
        now = self._now
        if self._retry_ms and now.ms < self._retry_ms:
            return
        self._retry_ms = 0
        if schedules.is_changed or not self._at_ns:
            due_ns = schedules.next_due_ns()
            if due_ns is None:
                return
            self._at_ns = max(1, due_ns)
        if self._at_ns > now.ns or self._machine.limits.is_sealed:
            return
        self._at_ns = 0
        items: list[Item] = []
        for due in schedules.first(now.ns, limits.FIRED_PER_TURN_MAX):
            item = self._item(due)
            if item is None:
                break
            items.append(item)
        if items:
            command = [commands.FIRE, now.ns, items]
            self._is_proposed = self._proposer.propose(command, None)
            turn.more |= self._is_proposed
            if not self._is_proposed:
                self._retry_ms = now.ms + limits.FIRE_RETRY_MS

    # --- one schedule -------------------------------------------------------------------------

    def _item(self, due: Due) -> Item | None:
        """Return what a schedule that is due brings; None: it has to be read first."""
        stored = self._read(due.seq)
        if stored is None:
            return None
        _, headers, payload = stored
        fields = publish.fields_of(headers, commands.PUBLISH_RULES)
        zone = fields.get(_ZONE_WORD)
        schedule = schedule_patterns.read(fields.get(publish.SCHEDULE, b""), zone)
        now_ns = self._now.ns
        if isinstance(schedule, JsError):  # what was a time zone once is none here
            return [due.subject, due.seq, due.ns, now_ns + limits.UNSURE_SCHEDULE_NS, [], None]
        if due.ns == UNKNOWN_DUE:
            first_ns = schedule.following(0, now_ns)
            return [due.subject, due.seq, due.ns, first_ns, [], None]
        source: list[object] = []
        source_subject = fields.get(publish.SCHEDULE_SOURCE)
        if source_subject:
            seq = self._machine.index.lookup.last_of(source_subject)
            if seq:
                found = self._read(seq)
                if found is None:
                    return None
                _, headers, payload = found
                source = [source_subject, seq]
        next_ns = schedule.following(due.ns, now_ns)
        fired = _fired_headers(headers, due.subject, next_ns, fields)
        msg = fields.get(publish.SCHEDULE_TARGET, b""), fired, payload
        msg = self._transform.apply(self._machine.config, [msg], now_ns)[0]
        return [due.subject, due.seq, due.ns, next_ns, source, list(msg)]

    def _read(self, seq: Seq) -> Msg | None:
        """Return a stored message; None: it is not there, or has to be read from the disk first,
        and `poll` is called again."""
        found = self._reads.get(seq)
        self._retry_ms = self._reads.retry_ms or self._retry_ms
        return found


def _fired_headers(headers: bytes, scheduler: bytes, next_ns: int, fields: publish.Fields) -> bytes:
    """Return the headers of what a schedule brings: those of the message that gives the body, but
    for what they asked of the stream, and then the schedule's word."""
    lines = [
        line
        for line in headers[:-4].split(b"\r\n")
        if not line.startswith(_LEFT_OUT_HEADS) and line.partition(b":")[0] not in _LEFT_OUT
    ]
    if not headers:
        lines = [message_headers.VERSION]
    following = format_ns(next_ns).encode() if next_ns else b"purge"
    lines += [publish.SCHEDULER + b": " + scheduler, publish.SCHEDULE_NEXT + b": " + following]
    ttl, rollup = fields.get(publish.SCHEDULE_TTL), fields.get(publish.SCHEDULE_ROLLUP)
    if ttl:
        lines.append(publish.TTL + b": " + ttl)
    if rollup:
        lines.append(publish.ROLLUP + b": " + rollup)
    return b"\r\n".join(lines) + b"\r\n\r\n"
