"""Models of counters, schedules, fast batches and lives, beside the machine that applies a log.

A `FeatureModel` follows one stream's committed entries and what each has stored. It says what the
entries must have done by rules of its own, in sets and sums:

    counters   a stored total is the one before it plus the increment; an id is counted once
    schedules  each message that a schedule brings is of the time at which it was due, which has
               come, and no time is there twice
    batches    a member is stored if it is the next one, or behind a gap that is told in mode ok;
               a gap, or a refused member, ends a batch in mode fail
    lives      what leaves by age has outlived its own or the stream's, and no less
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.message_headers import get
from streamd.machine.rfc3339 import parse_ns
from streamd.store.blocks.record_format import Record
from streamd.types import Entry, Seq
from tests.sim.world import need

SECOND_NS = 10**9
NEVER_NS = -1
_APPEND, _COMMIT, _END, _PING = 1, 2, 3, 4
_PURGE = b"purge"


class _Open(NamedTuple):
    """A fast batch under way."""

    is_ok: bool
    handled: int


class FeatureModel:
    """One stream. `before` and `after` each of its entries raise Violation."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        # Counters.
        self.totals: dict[bytes, int] = {}
        self.increments: dict[bytes, tuple[Seq, bytes, int]] = {}  # id -> seq, subject, increment
        # Schedules, by their bodies.
        self.fired: dict[bytes, int] = defaultdict(int)  # how often
        self._due_ns: dict[bytes, int] = {}  # of the next one; 0: it has ended
        # Fast batches, by id.
        self.members: dict[bytes, dict[int, Seq]] = defaultdict(dict)  # member -> seq
        self.gaps: dict[bytes, set[tuple[int, int]]] = defaultdict(set)  # told: expected, came
        self.refused: dict[bytes, set[int]] = defaultdict(set)  # told
        self.handled: dict[bytes, int] = defaultdict(int)
        self.ended: dict[bytes, tuple[Seq, int]] = {}  # last seq of the stream, count
        self._open: dict[bytes, _Open] = {}
        # Lives.
        self._lives: dict[Seq, tuple[int, int | None]] = {}  # stored at, own life; None: none
        self._named: list[Seq] = []  # that live before an EXPIRE, and may not after it
        self.expired = 0

    # --- one entry ----------------------------------------------------------------------------

    def before(self, entry: Entry) -> None:
        """The next entry is about to be applied."""
        data = entry.data
        self._named = []
        if len(data) > 1 and data[0] == 0x94 and data[1] == commands.EXPIRE:
            _, _, up_to, seqs = commands.decode(data)
            live = self._machine.index.live
            older = live.seqs(self._machine.index.first_seq, up_to) if up_to else ()
            self._named = sorted({*older, *filter(live.has, seqs)})

    def after(self, command: commands.Command, stored: list[Record], out: Effects) -> None:
        """It has stored these messages."""
        kind = command[0]
        for record in stored:
            self._note_life(record)
            if self._machine.limits.is_counter:
                self._check_total(record)
        if kind == commands.EXPIRE:
            self._check_expired(command)
        elif kind == commands.FIRE:
            self._check_fired(command, stored)
        elif kind == commands.STORE_FAST:
            self._check_members(command, stored, out.outcomes[-1][1])
        elif kind == commands.DROP_FAST:
            for batch_id, seq in command[2]:
                batch = self._open.get(bytes(batch_id))
                if batch is not None and batch.handled == seq:
                    del self._open[bytes(batch_id)]
        if kind in (commands.STORE_SCHEDULED, commands.STORE_SCHEDULED_BATCH):
            self._note_schedules(command)

    # --- counters -----------------------------------------------------------------------------

    def _check_total(self, record: Record) -> None:
        increment = int(get(record.headers, b"Nats-Incr") or b"0")
        total = int(json.loads(record.payload)["val"])
        before = self.totals.get(record.subject, 0)
        need(
            total == before + increment,
            f"{record.subject!r} {record.seq}: {total} is not {before} and {increment} more",
        )
        self.totals[record.subject] = total
        msg_id = get(record.headers, b"Nats-Msg-Id") or b""
        known = self.increments.get(msg_id)
        need(known is None, f"{msg_id!r} is counted as {record.seq} and before as {known}")
        if msg_id:
            self.increments[msg_id] = (record.seq, record.subject, increment)

    # --- schedules ----------------------------------------------------------------------------

    def _note_schedules(self, command: commands.Command) -> None:
        is_batch = command[0] == commands.STORE_SCHEDULED_BATCH
        msgs, rows = (command[3], command[5]) if is_batch else (command[2], command[4])
        for position, due_ns, refused in rows:
            if not refused and due_ns:
                self._due_ns.setdefault(bytes(msgs[position][2]), due_ns)

    def due_ns(self, body: bytes) -> int:
        """Return when the next message of a schedule is due; 0: none is."""
        return self._due_ns.get(body, 0)

    def _check_fired(self, command: commands.Command, stored: list[Record]) -> None:
        for record in stored:
            due_ns = self._due_ns.get(record.payload)
            need(due_ns is not None, f"{record.seq} was brought by a schedule that nobody stored")
            need(
                due_ns, f"{record.seq} was brought by schedule {record.payload!r}, which has ended"
            )
            assert due_ns is not None
            item = next(each for each in command[2] if each[5] and each[5][2] == record.payload)
            text = f"{record.seq} of schedule {record.payload!r}"
            need(item[2] == due_ns, f"{text} is for {item[2]}, due was {due_ns}")
            need(command[1] >= due_ns, f"{text} came {due_ns - command[1]} ns early")
            following = get(record.headers, b"Nats-Schedule-Next") or b""
            next_ns = 0 if following == _PURGE else parse_ns(following.decode())
            need(not next_ns or next_ns > due_ns, f"{text}: {next_ns} follows {due_ns}")
            self._due_ns[record.payload] = next_ns
            self.fired[record.payload] += 1

    # --- fast batches -------------------------------------------------------------------------

    def _check_members(self, command: commands.Command, stored: list[Record], outcome: Any) -> None:
        if isinstance(outcome, JsError):
            return
        answers: dict[int, list[Any]] = {}
        for position, given in outcome:
            answers.setdefault(position, []).extend(given)
        seqs = {record.payload: record.seq for record in stored}
        position = 0
        for batch_id, is_ok, _, seq, operation, count in command[4]:
            for at in range(count):
                body = bytes(command[2][position][2])
                told = _Told(answers.pop(position, []))
                self._check_member(
                    bytes(batch_id), bool(is_ok), seq + at, operation if not at else _APPEND,
                    seqs.pop(body, 0), told,
                )  # fmt: skip
                position += 1
        need(not seqs and not answers, f"stored or answered for nobody: {seqs} {answers}")

    def _check_member(
        self, batch_id: bytes, is_ok: bool, seq: int, operation: int, stored: Seq, told: _Told
    ) -> None:
        text = f"member {seq} of {batch_id!r} ({operation=})"
        batch = self._open.get(batch_id)
        if batch is None:
            is_begun = operation == 0 or (operation == _COMMIT and seq == 1)
            need(is_begun or (told.error is not None and not stored), f"{text} is of no batch")
            if not is_begun:
                return
            batch = _Open(is_ok, 0)
        else:
            is_unknown = isinstance(told.error, JsError) and seq != 1
            need(not is_unknown, f"{text} is of a batch under way: {told.error}")
        expected = batch.handled + 1
        if operation == _PING:
            expected, seq = batch.handled + 1, seq + 1
        is_gap = seq != expected and not (operation == _PING and seq < expected)
        wanted = {(expected, seq)} if is_gap else set()
        need(told.gaps == wanted, f"{text} is told gaps {told.gaps}, not {wanted}")
        self.gaps[batch_id] |= told.gaps
        is_over = is_gap and (seq < expected or not batch.is_ok)
        if operation in (_PING, _END) or is_over:
            need(not stored, f"{text} is stored as {stored}")
            handled = seq - 1 if operation == _PING and not is_over else batch.handled
            is_over |= operation == _END
        else:
            is_refused = not stored
            need(not is_refused or told.error is not None, f"{text} is neither stored nor refused")
            handled = seq
            if is_refused:
                self.refused[batch_id].add(seq)
                handled = seq if batch.is_ok else batch.handled
                is_over = not batch.is_ok
            else:
                known = self.members[batch_id]
                need(seq not in known, f"{text} is stored as {stored} and {known.get(seq)}")
                known[seq] = stored
            is_over |= operation == _COMMIT
        handled = max(handled, batch.handled)
        self.handled[batch_id] = max(handled, self.handled[batch_id])
        for acked in told.acked:
            need(acked <= handled, f"{text} is told that {acked} are handled, of {handled}")
        if is_over:
            self._open.pop(batch_id, None)
        else:
            need(told.ended is None, f"{text} ended its batch: {told.ended}")
            self._open[batch_id] = _Open(batch.is_ok, handled)
        if told.ended is not None:
            self.ended[batch_id] = told.ended
            if not batch.is_ok:
                count = len(self.members[batch_id])
                need(told.ended[1] == count, f"{text}: {count} stored, told {told.ended}")

    def check_batches(self) -> None:
        """Check at the end what is stored of each batch."""
        for batch_id, members in self.members.items():
            found = list(members)
            need(found == sorted(found), f"{batch_id!r} is stored in the order {found}")
            seqs = list(members.values())
            need(seqs == sorted(seqs), f"{batch_id!r} is stored as {seqs}")
            gone = set(range(1, self.handled[batch_id] + 1)) - members.keys()
            told = self.refused[batch_id].union(
                *(range(expected, came) for expected, came in self.gaps[batch_id])
            )
            need(gone <= told, f"{batch_id!r} lacks {sorted(gone - told)}, which nobody was told")

    # --- lives --------------------------------------------------------------------------------

    def _note_life(self, record: Record) -> None:
        own = get(record.headers, b"Nats-TTL") if record.headers else None
        life_ns: int | None = None
        if own:
            life_ns = NEVER_NS if own == b"never" else int(own.rstrip(b"s")) * SECOND_NS
        self._lives[record.seq] = (record.ts, life_ns)

    def _check_expired(self, command: commands.Command) -> None:
        live, age_ns = self._machine.index.live, self._machine.limits.max_age_ns
        for seq in self._named:
            if live.has(seq):
                continue
            ts, life_ns = self._lives[seq]
            need(life_ns != NEVER_NS, f"{seq} was to live for ever")
            ends = [ts + each for each in (life_ns, age_ns) if each]
            need(ends, f"{seq} has expired, and had no age")
            early_ns = min(ends) - command[1]
            need(early_ns <= 0, f"{seq} has expired {early_ns} ns before its time")
            self.expired += 1


class _Told:
    """Answers to one member."""

    def __init__(self, answers: list[Any]) -> None:
        self.error: JsError | str | None = None
        self.gaps: set[tuple[int, int]] = set()
        self.acked: list[int] = []
        self.ended: tuple[Seq, int] | None = None
        for answer in answers:
            if isinstance(answer, JsError):
                self.error = answer
            elif answer[0] != commands.TOLD:
                self.ended = (answer[0], answer[1])
            else:
                self._read(json.loads(answer[2]))

    def _read(self, told: dict[str, Any]) -> None:
        if told["type"] == "gap":
            self.gaps.add((told["last_seq"], told["seq"]))
        elif told["type"] == "ack":
            self.acked.append(told["seq"])
        else:
            self.error = str(told["error"])
