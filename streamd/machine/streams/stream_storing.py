"""`StreamStoring`: stores the messages of a STORE one by one, of a STORE_BATCH all or none.

The hot path is `apply_store`: messages without headers, in a stream that has nothing to check, cost
a few C loops for all of them. Others are checked (`publish`), and stored in runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamd import errors
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.base import HAS_HEADERS, Effects
from streamd.machine.commands import Command, PublishOutcome
from streamd.machine.streams import fast_batches, publish
from streamd.machine.streams.counters import write_integer
from streamd.machine.streams.entry_changes import EntryChanges
from streamd.machine.streams.fast_batches import APPEND, Answers
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.stream_removal import StreamRemoval
from streamd.types import Entry, Index, Msg, Seq


class StreamStoring:
    """Stores messages in a stream. Has no state of its own."""

    def __init__(
        self,
        content: StreamContent,
        changes: EntryChanges,
        consumers: StreamConsumers,
        removal: StreamRemoval,
    ) -> None:
        self._content = content
        self._index = content.index
        self._dedupe = content.dedupe
        self._changes = changes
        self._consumers = consumers
        self._removal = removal

    # --- one by one -----------------------------------------------------------------------------

    def apply_store(self, entry: Entry, command: Command, out: Effects) -> Sequence[PublishOutcome]:
        msgs: list[Msg] = command[2]
        if not self._content.has_seqs_for(len(msgs)):
            return [_no_seq_left()] * len(msgs)
        self._changes.make_room()
        limits = self._content.limits
        ts = max(command[1], self._index.live.last_ts + 1)
        room: int | None = command[4] if len(command) > 4 else None
        if limits.is_plain and room is None:
            size_max = limits.size_max
            for _, headers, payload in msgs:
                if headers or len(payload) > size_max:
                    break
            else:
                self._dedupe.forget_before(ts)  # there may be no other messages any more
                first = self._changes.write(ts, msgs, None)
                self._content.last_msg_id = b""
                self._removal.enforce(msgs)
                return range(first, first + len(msgs))
        rules = command[3] if len(command) > 3 else 0
        return self._store_checked(ts, msgs, entry.index, rules, room)

    def apply_store_scheduled(
        self, entry: Entry, command: Command, out: Effects
    ) -> Sequence[PublishOutcome]:
        """`apply_store` with schedules among the messages: these are checked one by one."""
        msgs: list[Msg] = command[2]
        if not self._content.has_seqs_for(len(msgs)):
            return [_no_seq_left()] * len(msgs)
        self._changes.make_room()
        ts = max(command[1], self._index.live.last_ts + 1)
        room: int | None = command[5] if len(command) > 5 else None
        return self._store_checked(ts, msgs, entry.index, command[3], room, _verdicts(command[4]))

    def _store_checked(
        self,
        ts: int,
        msgs: list[Msg],
        index: Index,
        rules: int,
        room: int | None,
        verdicts: Mapping[int, publish.Verdict] = publish.NO_VERDICTS,
    ) -> list[PublishOutcome]:
        """Store what passes the checks, in runs as long as no check needs to see them stored.
        `room`: bytes that the account has left; None: enough. `verdicts`: on schedules, by their
        places."""
        self._dedupe.forget_before(ts)
        if self._content.producers:
            self._content.forget_producers(ts)
        outcomes: list[PublishOutcome] = []
        run = Run(self._content, ts)
        limits = self._content.limits
        is_plain = limits.is_plain and room is None
        size_max = limits.size_max
        find = self._dedupe.find
        simple_id = publish.simple_id if rules else publish.simple_id_trimmed
        for at, msg in enumerate(msgs):
            _, headers, payload = msg
            if is_plain and len(headers) + len(payload) <= size_max:
                # Most messages have no header that means anything here, or just an id.
                msg_id = simple_id(headers) if headers else b""
                if msg_id is not None:
                    seen = find(msg_id) if msg_id else 0
                    if seen:
                        outcomes.append((commands.DUPLICATE, seen))
                    else:
                        outcomes.append(run.add_simple(msg, msg_id))
                    continue
            fields: publish.Fields = {}
            if headers and b"Nats-" in headers:
                fields = publish.fields_of(headers, rules)
            if run.msgs and (limits.checks_room or (fields and publish.needs_state(fields))):
                self.store_run(run)
            is_wanted = not self.is_uninteresting(msg[0])
            verdict = publish.check(
                self._content,
                msg,
                fields,
                last_seq=run.last_seq,
                last_msg_id=self._content.last_msg_id,
                needs_room=is_wanted,
                account_room=room,
                rules=rules,
                verdict=verdicts.get(at),
            )
            if not isinstance(verdict, publish.Admitted):
                outcomes.append(verdict)
                if isinstance(verdict, tuple):
                    claim = publish.claim_of_duplicate(self._content, fields, rules)
                    if claim is not None:
                        self._content.producers.note(claim, seq=verdict[1], ts=run.next_ts)
                continue
            if not is_wanted:
                self.store_run(run)
                outcomes.append(self.skip_one(run, verdict, index))
                continue
            if room is not None:
                room -= self._index.sizes.of_message(verdict.msg)
            seq = run.add(verdict)
            total = verdict.total
            outcomes.append(
                seq
                if total is None
                else (commands.COUNTED, seq, write_integer(total.value).decode())
            )
            if verdict.rollup or verdict.ends:
                self.store_run(run)
                self._after_stored(verdict, seq)
        self.store_run(run)
        return outcomes

    def _after_stored(self, stored: publish.Admitted, seq: Seq) -> None:
        """Remove what the message `seq` has replaced: by a roll-up, or by ending a schedule."""
        if stored.rollup:
            self._removal.roll_up(stored.rollup, stored.msg[0], seq)
        schedule = self._content.schedules.find(stored.ends) if stored.ends else None
        if schedule is not None:
            self._changes.remove([schedule.seq])
            self._content.schedules.forget(schedule.subject)

    def begin_run(self, ts: int) -> Run:
        """Return a run of messages that is empty; the first is stored at `ts`."""
        return Run(self._content, ts)

    def store_run(self, run: Run) -> None:
        """Write the messages of a run, and begin it anew."""
        msgs = run.msgs
        if msgs:
            lasts = self._last_seqs_before(msgs) if self._content.limits.republish else []
            first = self._changes.write(run.first_ts, msgs, run.flags if any(run.flags) else None)
            assert first + len(msgs) - 1 == run.last_seq, (first, run.last_seq)
            if lasts:
                times = range(run.first_ts, run.first_ts + len(msgs))
                self._republish(first, times, msgs, lasts)
            self._removal.enforce(msgs)
        run.restart()

    def store_timed(self, times: list[int], msgs: list[Msg], flags: list[int]) -> None:
        """Write messages, admitted already, that have a time each."""
        lasts = self._last_seqs_before(msgs) if self._content.limits.republish else []
        first = self._changes.write_timed(times, msgs, flags if any(flags) else None, is_told=True)
        if lasts:
            self._republish(first, times, msgs, lasts)
        self._removal.enforce(msgs)

    def is_uninteresting(self, subject: bytes) -> bool:
        """True if nobody wants a message on `subject` that the stream keeps for interest alone."""
        return self._content.limits.is_interest and not self._consumers.takers(subject)

    def skip_one(self, run: Run, verdict: publish.Admitted, index: Index) -> Seq:
        """Interest retention without interest: the seq is used up, nothing is stored."""
        seq = self._index.last_seq + 1
        self._changes.skip(seq, seq, index)
        self._index.live.last_ts = run.first_ts
        self._content.last_msg_id = verdict.msg_id
        if verdict.msg_id:
            self._dedupe.remember(verdict.msg_id, seq=seq, ts=run.first_ts)
        if verdict.claim is not None:
            self._content.producers.note(verdict.claim, seq=seq, ts=run.first_ts)
        run.restart()
        return seq

    # --- all or none ----------------------------------------------------------------------------

    def apply_store_batch(
        self, entry: Entry, command: Command, out: Effects
    ) -> tuple[Seq, int] | JsError:
        room: int | None = command[5] if len(command) > 5 else None
        return self._store_batch(entry, command, room)

    def apply_store_scheduled_batch(
        self, entry: Entry, command: Command, out: Effects
    ) -> tuple[Seq, int] | JsError:
        """`apply_store_batch` with schedules among the messages."""
        room: int | None = command[6] if len(command) > 6 else None
        return self._store_batch(entry, command, room, _verdicts(command[5]))

    def _store_batch(
        self,
        entry: Entry,
        command: Command,
        room: int | None,
        verdicts: Mapping[int, publish.Verdict] = publish.NO_VERDICTS,
    ) -> tuple[Seq, int] | JsError:
        msgs: list[Msg] = [tuple(msg) for msg in command[3]]
        if not self._content.has_seqs_for(len(msgs)):
            return _no_seq_left()
        self._changes.make_room()
        ts = max(command[1], self._index.live.last_ts + 1)
        self._dedupe.forget_before(ts)
        rules = command[4] if len(command) > 4 else 0
        simple, admitted, refused = publish.check_batch(self._content, msgs, rules, room, verdicts)
        if refused is not None:
            return refused
        run = Run(self._content, ts)
        seqs: list[Seq] = []
        if simple:
            run.add_all_simple(msgs[: len(simple)], simple)
        for one in admitted:
            if self.is_uninteresting(one.msg[0]):
                self.store_run(run)
                seqs.append(self.skip_one(run, one, entry.index))
                continue
            seqs.append(run.add(one))
        self.store_run(run)
        for one, seq in zip(admitted, seqs, strict=True):
            if one.rollup or one.ends:
                self._after_stored(one, seq)
        return (seqs[-1] if seqs else self._index.last_seq), len(msgs)

    # --- fast batches ---------------------------------------------------------------------------

    def apply_store_fast(
        self, entry: Entry, command: Command, out: Effects
    ) -> list[tuple[int, Answers]] | JsError:
        """Store what members of fast batches bring, and say what each is answered."""
        _, command_ts, msgs, rules, members, verdict_rows, *more = command
        content = self._content
        if not content.has_seqs_for(len(msgs)):
            return _no_seq_left()
        self._changes.make_room()
        batches, limits = content.fast_batches, content.limits
        room: int | None = more[0] if more else None
        verdicts = _verdicts(verdict_rows)
        is_plain = limits.is_plain and room is None
        found: list[tuple[int, Answers]] = []
        position = 0
        for row in members:
            count = row[5]
            part: list[Msg] = msgs[position : position + count]
            ts = max(command_ts, self._index.live.last_ts + 1)
            batch = batches.run_of(row) if is_plain and limits.allows_batched else None
            if batch is not None and _are_simple(part, limits.size_max):
                self._dedupe.forget_before(ts)
                first = self._changes.write(ts, part, None)
                content.last_msg_id = b""
                self._removal.enforce(part)
                for at, ack in batches.settle_run(batch, first, count):
                    found.append((position + at, [ack]))
                position += count
                continue
            for at, msg in enumerate(part):
                # Behind the first of a row all are APPEND.
                member = (*row[:3], row[3] + at, row[4] if not at else APPEND, 1)
                answers: Answers = []
                verdict = verdicts.get(position)
                used = self._store_member(
                    ts, msg, member, answers, entry.index, rules, room, verdict
                )
                if room is not None:
                    room -= used
                if answers:
                    found.append((position, answers))
                position += 1
        return found

    def _store_member(
        self,
        ts: int,
        msg: Msg,
        member: fast_batches.Row,
        answers: Answers,
        index: Index,
        rules: int,
        room: int | None,
        verdict: publish.Verdict | None,
    ) -> int:
        """Store one message of a fast batch, if it is one; return the bytes that it takes."""
        batches, limits = self._content.fast_batches, self._content.limits
        size = len(msg[1]) + len(msg[2])
        if limits.is_sealed:
            answers.append(errors.STREAM_SEALED())
            return 0
        if 0 <= limits.max_msg_size < size and not limits.is_counter:
            answers.append(errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM())
            return 0
        if not limits.allows_batched:
            answers.append(errors.BATCH_PUBLISH_DISABLED())
            return 0
        batch = batches.admit(member, answers)
        if batch is None:
            return 0
        judged = {0: verdict} if verdict is not None else publish.NO_VERDICTS
        (outcome,) = self._store_checked(ts, [msg], index, rules, room, judged)
        batches.settle(batch, member, outcome, answers)
        is_stored = isinstance(outcome, int)
        return self._index.sizes.of_message(msg) if is_stored and room is not None else 0

    def apply_drop_fast(self, entry: Entry, command: Command, out: Effects) -> int:
        """Forget fast batches that their clients left alone."""
        batches = self._content.fast_batches
        return sum(batches.drop(batch_id, seq) for batch_id, seq in command[2])

    # --- what schedules bring -------------------------------------------------------------------

    def apply_fire(self, entry: Entry, command: Command, out: Effects) -> int:
        """Store what schedules bring that are due, each once: the next time that it is due, or its
        end, comes with it."""
        content, index = self._content, self._index
        items: list[tuple[bytes, Seq, int, int, Sequence[Any], Msg | None]] = command[2]
        count = 0
        if content.limits.is_sealed or not content.has_seqs_for(len(items)):
            return count
        self._changes.make_room()
        for subject, seq, due, next_due, source, given in items:
            schedule = content.schedules.find(subject)
            if schedule is None or (schedule.seq, schedule.ns) != (seq, due):
                continue
            if source and index.lookup.last_of(source[0]) != source[1]:
                continue  # it is read anew
            fired = publish.admit_fired(content, given) if given is not None else None
            if fired is not None:
                self._store_fired(fired, max(command[1], index.live.last_ts + 1), entry.index)
                count += 1
            if not next_due:
                if index.live.has(seq):
                    self._changes.remove([seq])
                content.schedules.forget(subject)
            elif content.schedules.find(subject) == schedule:  # it did not replace itself
                content.schedules.note(subject, seq, next_due)
        return count

    def _store_fired(self, fired: publish.Admitted, ts: int, index: Index) -> None:
        run = Run(self._content, ts)
        if self.is_uninteresting(fired.msg[0]):
            self.skip_one(run, fired, index)
            return
        seq = run.add(fired)
        self.store_run(run)
        if fired.rollup:
            self._removal.roll_up(fired.rollup, fired.msg[0], seq)

    # --- passing on what was stored -------------------------------------------------------------

    def _last_seqs_before(self, msgs: list[Msg]) -> list[Seq]:
        """For each of `msgs`, stored next: the last seq of its subject before it; 0: none. Known
        now; once they are stored it would have to be looked for."""
        lasts: dict[bytes, Seq] = {}
        found: list[Seq] = []
        for seq, (subject, _, _) in enumerate(msgs, self._index.last_seq + 1):
            found.append(
                lasts[subject] if subject in lasts else self._index.lookup.last_of(subject)
            )
            lasts[subject] = seq
        return found

    def _republish(
        self, first: Seq, times: Sequence[int], msgs: list[Msg], lasts: list[Seq]
    ) -> None:
        events = self._changes.out.events
        for at, (subject, headers, payload) in enumerate(msgs):
            fields = {
                "stream": self._content.name,
                "subject": subject,
                "seq": first + at,
                "ts": times[at],
                "last_seq": lasts[at],
                "headers": headers,
                "payload": payload,
            }
            events.append(("republish", fields))


def _no_seq_left() -> errors.JsError:
    return errors.STREAM_STORE_FAILED(err="no sequence is left")


def _are_simple(msgs: list[Msg], size_max: int) -> bool:
    """True if no message has headers, nor more than `size_max` bytes."""
    return not any(headers or len(payload) > size_max for _, headers, payload in msgs)


def _verdicts(rows: Sequence[Sequence[int]]) -> dict[int, publish.Verdict]:
    return {position: (due, err_code) for position, due, err_code in rows}


class Run:
    """Admitted messages with consecutive seqs, not yet written."""

    __slots__ = ("_content", "first_ts", "flags", "last_seq", "msgs")

    def __init__(self, content: StreamContent, ts: int) -> None:
        self._content = content
        self.first_ts = ts
        self.last_seq = content.index.last_seq
        self.msgs: list[Msg] = []
        self.flags: list[int] = []

    @property
    def next_ts(self) -> int:
        """The time of the message that comes next."""
        return self.first_ts + len(self.msgs)

    def add(self, admitted: publish.Admitted) -> Seq:
        """Give the next seq to a message."""
        content = self._content
        ts = self.next_ts
        seq = self.last_seq = self.last_seq + 1
        self.msgs.append(admitted.msg)
        self.flags.append(admitted.flags)
        content.last_msg_id = admitted.msg_id
        if admitted.msg_id:
            content.dedupe.remember(admitted.msg_id, seq=seq, ts=ts)
        if admitted.ttl_ns:
            content.expiry.watch(seq, ts + admitted.ttl_ns)
        if admitted.due_ns:
            content.schedules.note(admitted.msg[0], seq, admitted.due_ns)
        if admitted.total is not None:
            content.counters.note(admitted.msg[0], admitted.total)
        if admitted.claim is not None:
            content.producers.note(admitted.claim, seq=seq, ts=ts)
        return seq

    def add_simple(self, msg: Msg, msg_id: bytes) -> Seq:
        """As `add`, for a message with at most an id and headers of its own."""
        content = self._content
        msgs = self.msgs
        seq = self.last_seq = self.last_seq + 1
        if msg_id:
            content.dedupe.remember(msg_id, seq=seq, ts=self.first_ts + len(msgs))
        content.last_msg_id = msg_id
        msgs.append(msg)
        self.flags.append(HAS_HEADERS if msg[1] else 0)
        return seq

    def add_all_simple(self, msgs: list[Msg], msg_ids: list[bytes]) -> None:
        """As `add_simple` of each message, all of them with headers."""
        content = self._content
        ts = self.first_ts + len(self.msgs)
        seq = self.last_seq + 1
        if content.dedupe.window_ns > 0:
            remember = content.dedupe.remember
            for at, msg_id in enumerate(msg_ids):
                if msg_id:
                    remember(msg_id, seq=seq + at, ts=ts + at)
        content.last_msg_id = msg_ids[-1]
        self.msgs += msgs
        self.flags += [HAS_HEADERS] * len(msgs)
        self.last_seq += len(msgs)

    def restart(self) -> None:
        """Begin anew after what was stored."""
        index = self._content.index
        self.first_ts = max(self.first_ts, index.live.last_ts + 1)
        self.last_seq = index.last_seq
        self.msgs = []
        self.flags = []
