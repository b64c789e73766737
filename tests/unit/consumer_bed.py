"""A small stream, group and wires for consumer tests: virtual time, commands applied on demand."""

from __future__ import annotations

import bisect
from types import SimpleNamespace
from typing import Any

from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_checks import check_create
from streamd.node.delivery.cursor import Cursor
from streamd.subjects import Matcher, matches

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000


class ListIndex:
    """The obvious implementation of what consumers and cursors ask of a stream's index: all the
    parts of one in one."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, bytes]] = []  # live: (seq, ts, subject)
        self.first_seq = 1
        self.last_seq = 0
        self.live = self.locations = self.lookup = self

    @property
    def count(self) -> int:
        return len(self.rows)

    def _at(self, seq: int) -> int:
        return bisect.bisect_left(self.rows, (seq, 0, b""))

    def has(self, seq: int) -> bool:
        at = self._at(seq)
        return at < len(self.rows) and self.rows[at][0] == seq

    def locate(self, seq: int) -> tuple[int, int, int, int] | None:
        return (seq, 1, seq, 1) if self.has(seq) else None

    def subject_at(self, seq: int) -> bytes:
        return self.rows[self._at(seq)][2]

    def ts_at(self, seq: int) -> int:
        return self.rows[self._at(seq)][1]

    def next_match(self, start: int, matcher: Matcher | None) -> int:
        found, _ = self.select(start, matcher, 1, 1 << 62)
        return found[0][0] if found else 0

    def select(
        self, start: int, matcher: Matcher | None, limit: int, scan_limit: int
    ) -> tuple[list[Any], int]:
        found = []
        at = self._at(start)
        while at < len(self.rows) and scan_limit > 0:
            seq, _, subject = self.rows[at]
            if matcher is None or matcher.matches(subject):
                found.append((seq, 1, seq, 1))
                if len(found) == limit:
                    return found, seq + 1
            at += 1
            scan_limit -= 1
        if at < len(self.rows):
            return found, self.rows[at][0]
        return found, self.last_seq + 1

    def stretch(self, start: int, limit: int) -> None:
        """Nothing lies one behind another here: messages go out one by one."""

    def count_from(self, seq: int, matcher: Matcher | None) -> int:
        rows = self.rows[self._at(seq) :]
        return sum(1 for row in rows if matcher is None or matcher.matches(row[2]))

    def count_between(self, first: int, last: int, matcher: Matcher | None) -> int:
        return self.count_from(first, matcher) - self.count_from(last + 1, matcher)

    def seq_at_time(self, ts_ns: int) -> int:
        return next((row[0] for row in self.rows if row[1] >= ts_ns), self.last_seq + 1)

    def last_match(self, matcher: Matcher | None, before: int | None = None) -> int:
        rows = [r[0] for r in self.rows if matcher is None or matcher.matches(r[2])]
        return rows[-1] if rows else 0

    def last_seqs(self, matcher: Matcher | None) -> list[int]:
        lasts = {s: seq for seq, _, s in self.rows if matcher is None or matcher.matches(s)}
        return sorted(lasts.values())


class Inbox:
    """A DeliverSink that keeps what it gets."""

    def __init__(self) -> None:
        self.msgs: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.statuses: list[bytes] = []
        self.log: list[Any] = []
        self.replies: list[bytes] = []
        self.is_gone = False
        self.is_full = False

    def deliver(self, batch: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        self.msgs += batch
        self.log += [payload for _, _, _, payload in batch]

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        assert headers.startswith(b"NATS/1.0 ") and headers.endswith(b"\r\n\r\n")
        self.statuses.append(headers)
        self.replies.append(reply)
        self.log.append(headers.split(b"\r\n")[0][9:])

    def is_open(self) -> bool:
        return not self.is_gone

    def is_congested(self) -> bool:
        return self.is_full

    def seqs(self) -> list[int]:
        return [ack_of(msg)["sseq"] for msg in self.msgs]


def ack_of(msg: tuple[bytes, bytes, bytes, bytes]) -> dict[str, int]:
    """The numbers of a delivery's ack reply."""
    tokens = msg[1].split(b".")
    names = ("delivered", "sseq", "cseq", "ts", "pending")
    assert len(tokens) == 9
    return dict(zip(names, map(int, tokens[4:]), strict=True))


class Bed:
    """A stream machine, its group and its clients, in one; implements CursorHost."""

    def __init__(self, **stream_config: Any) -> None:
        self.name = "S"
        self.config: dict[str, Any] = {"name": "S", "subjects": ["s.>"], **stream_config}
        self.index = ListIndex()
        self.machine: Any = self
        self.max_payload = 1 << 20
        self.at_ms = 1000
        self.bodies: dict[int, tuple[int, bytes, bytes, bytes]] = {}
        self.consumers: dict[str, Consumer] = {}
        self.cursors: dict[str, Cursor] = {}
        self.proposed: list[tuple[list[Any], Any]] = []
        self.forced = 0
        self.effects = Effects()
        self.inboxes: dict[bytes, Inbox] = {}
        self.watches: dict[Cursor, tuple[bytes, bytes]] = {}
        self.wakes: dict[Cursor, int] = {}
        self.emptied: list[bytes] = []
        self.woken: list[Cursor] = []
        self.held_back_count = 0  # how often a receiver was found congested
        self.advices: list[tuple[str, dict[str, Any]]] = []
        self.acked: list[tuple[str, list[int]]] = []
        self.is_auto = True
        self.missing_chunks: set[int] = set()

    # --- CursorHost

    def now_ns(self) -> int:
        return START_NS + self.at_ms * MS

    def now_ms(self) -> int:
        return self.at_ms

    def chunk(self, block_no: int, offset: int) -> Any:
        return None if offset in self.missing_chunks else (0, range(offset + 1))

    def decode_fields(self, blob: Any, position: int) -> tuple[int, int, bytes, bytes, bytes]:
        return (position, *self.bodies[position])

    def propose(self, command: list[Any], *, is_forced: bool, tag: Any = None) -> None:
        self.forced += is_forced
        self.proposed.append((commands.decode(commands.encode(command)), tag))

    def sink(self, subject: bytes, queue: bytes = b"") -> Inbox | None:
        box = self.inboxes.get(subject)
        return box if box is not None and box.is_open() else None

    def watch_interest(self, subject: bytes, queue: bytes, cursor: Cursor) -> None:
        self.watches[cursor] = (subject, queue)

    def unwatch_interest(self, cursor: Cursor) -> None:
        self.watches.pop(cursor, None)

    def advise(self, kind: str, fields: dict[str, Any]) -> None:
        self.advices.append((kind, fields))

    def wake_at(self, monotonic_ms: int, cursor: Cursor) -> None:
        if cursor not in self.wakes or monotonic_ms < self.wakes[cursor]:
            self.wakes[cursor] = monotonic_ms

    def wait_for_room(self) -> None:
        self.held_back_count += 1

    def wake_soon(self, cursor: Cursor) -> None:
        self.woken.append(cursor)

    def reply_empty(self, reply: bytes) -> None:
        self.emptied.append(reply)

    def on_acked(self, consumer: Consumer, sseqs: Any) -> None:
        self.acked.append((consumer.name, list(sseqs)))

    # --- what a test does

    def inbox(self, subject: bytes) -> Inbox:
        return self.inboxes.setdefault(subject, Inbox())

    def store(self, *subjects: bytes, payload: bytes | None = None, headers: bytes = b"") -> None:
        first = self.index.last_seq + 1
        if not self.index.rows:
            self.index.first_seq = first
        for subject in subjects:
            seq = self.index.last_seq + 1
            ts = self.now_ns() + seq
            self.index.last_seq = seq
            self.index.rows.append((seq, ts, subject))
            body = payload if payload is not None else b"%d" % seq
            self.bodies[seq] = (ts, subject, headers, body)
        for consumer in self.consumers.values():
            if consumer.remaining.needs_store_hook:
                consumer.remaining.on_stored_batch(first, list(subjects))
        self.turn()

    def remove(self, *seqs: int) -> None:
        gone = [row for row in self.index.rows if row[0] in seqs]
        self.index.rows = [row for row in self.index.rows if row[0] not in seqs]
        self._fix_first()
        for consumer in self.consumers.values():
            consumer.on_removed([g[0] for g in gone], [g[2] for g in gone], self.effects)
        for cursor in self.cursors.values():
            cursor.on_removed()
        self.turn()

    def purge(self, below: int, pattern: bytes = b">") -> None:
        rows = self.index.rows
        self.index.rows = [r for r in rows if r[0] >= below or not matches(pattern, r[2])]
        self._fix_first()
        for consumer in self.consumers.values():
            consumer.on_purged()
        for cursor in self.cursors.values():
            cursor.on_removed()
        self.turn()

    def _fix_first(self) -> None:
        rows = self.index.rows
        self.index.first_seq = rows[0][0] if rows else self.index.last_seq + 1

    def create(self, name: str = "C", **config: Any) -> Cursor:
        full = {"name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
        refusal = check_create(name, full, "", stream_config=self.config, consumers=self.consumers)
        if refusal is not None:
            raise refusal
        uid = 100 + len(self.consumers)
        consumer = Consumer.create(
            uid=uid, name=name, config=full, created_ns=self.now_ns(), stream=self
        )
        self.consumers[name] = consumer
        return self.lead(name)

    def lead(self, name: str = "C") -> Cursor:
        """This node leads from now on: a new cursor on what is applied."""
        cursor = self.cursors[name] = Cursor(self.consumers[name], self)
        self.turn()
        return cursor

    def pull(self, payload: bytes = b"", name: str = "C", reply: bytes = b"in") -> Inbox:
        box = self.inbox(reply)
        self.cursors[name].requests.on_pull(reply, b"", payload)
        self.turn()
        return box

    def ack(self, sseq: int, payload: bytes = b"", reply: bytes = b"", name: str = "C") -> None:
        self.cursors[name].requests.on_ack(sseq, payload, reply)
        self.turn()

    def interest(self, has: bool = True, name: str = "C") -> Inbox:
        cursor = self.cursors[name]
        subject, _ = self.watches[cursor]
        box = self.inbox(subject)
        box.is_gone = not has
        cursor.on_interest(has)
        self.turn()
        return box

    def turn(self) -> None:
        """Plan until nothing happens; apply what is proposed (unless `is_auto` is off)."""
        while True:
            for cursor in list(self.cursors.values()):
                rounds = 0
                while cursor.plan(64):
                    rounds += 1
                    assert rounds < 1000, "plans for ever"
            if not (self.is_auto and self.proposed):
                return
            self.apply()

    def apply(self) -> None:
        while self.proposed:
            command, tag = self.proposed.pop(0)
            self.apply_one(command, tag)

    def apply_one(self, command: list[Any], tag: Any = None) -> None:
        kind = command[0]
        if kind == commands.DELETE_CONSUMER:
            consumer = self.consumers.pop(command[2])
            assert consumer.uid == command[3]
            self.cursors.pop(command[2]).stop(b"409 Consumer Deleted")
            return
        if kind in (commands.PAUSE_CONSUMER, commands.RESET_CONSUMER):
            consumer = self.consumers[command[2]]
            if kind == commands.PAUSE_CONSUMER:
                consumer.pause(command[3], now_ns=command[1])
            else:
                consumer.reset(command[3])
        else:
            consumer = next(c for c in self.consumers.values() if c.uid == command[2])
            consumer.apply(command, self.effects)
        self.cursors[consumer.name].on_applied(command, tag)

    def advance(self, ms: int) -> None:
        """Let time pass, waking cursors when they asked for it."""
        end = self.at_ms + ms
        rounds = 0
        while True:
            due = [at for at in self.wakes.values() if at <= end]
            if not due:
                break
            self.at_ms = max(self.at_ms, min(due))
            for cursor in [c for c, at in self.wakes.items() if at <= self.at_ms]:
                del self.wakes[cursor]
                if cursor in self.cursors.values():
                    cursor.on_tick(self.at_ms)
            self.turn()
            rounds += 1
            assert rounds < 10_000, "wakes for ever"
        self.at_ms = end
        self.turn()

    def info(self, name: str = "C") -> SimpleNamespace:
        self.cursors[name].flush()
        self.apply()
        numbers = self.consumers[name].info()
        return SimpleNamespace(
            delivered=tuple(numbers["delivered"].values()),
            floor=tuple(numbers["ack_floor"].values()),
            ack_pending=numbers["num_ack_pending"],
            redelivered=numbers["num_redelivered"],
            pending=numbers["num_pending"],
        )
