"""Counters, schedules and fast batches on one node that loses its power again and again.

`Features` is a workload for `crash.Campaign`, with its checkers:

    counters   each stored total is the one before it plus the increment; in the end a total is the
               sum of what was asked for, each increment once, however often it was sent
    schedules  no schedule brings the same time twice, and each goes on
    batches    in mode fail what is stored of a batch is its beginning, without a hole; what an ack
               covers is stored; a batch under way is known after a restart
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.message_headers import get
from streamd.machine.streams import publish
from streamd.machine.streams.counters import CounterTotals, Total
from streamd.machine.streams.dedupe import DedupeWindow
from streamd.machine.streams.fast_batches import Answers, FastBatch, FastBatches, Row
from streamd.machine.streams.schedules import Schedules
from streamd.node.stream_groups import stream_inbox
from streamd.types import Msg, Seq
from tests.sim.node import SimNode

if TYPE_CHECKING:
    from tests.sim.crash import Campaign

SECOND_MS = 1000
SNAPSHOT_EVERY_BYTES = 3000  # of log


class _Batch:
    """A client's fast batch."""

    def __init__(self, number: int, *, is_ok: bool) -> None:
        self.number = number
        self.is_ok = is_ok
        self.sent = 0
        self.acked = 0  # up to which members an ack said that they are handled
        self.is_known = False  # its start was acked
        self.is_over = False
        self.sent_ms = 0
        self.may_be_over = False  # something was sent that ends it, or will have been missed
        self.left_out: set[int] = set()  # members that were to be refused


class Features:
    """The workload of one seed, and what it was promised."""

    def __init__(self, *, is_counter: bool) -> None:
        self.is_counter = is_counter
        self.config: dict[str, Any] = {
            "max_msgs": -1, "allow_batched": True, "allow_msg_counter": is_counter,
            "allow_msg_schedules": not is_counter, "allow_rollup_hdrs": not is_counter,
        }  # fmt: skip
        self._count = 0
        self._increments: dict[bytes, tuple[bytes, int]] = {}  # by id
        self._in_doubt: set[bytes] = set()
        self._ids: dict[bytes, bytes] = {}  # by reply
        self._batches: dict[int, _Batch] = {}
        self._schedules = 0

    # --- answers ------------------------------------------------------------------------------

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply.endswith(b".$FI"):
                self._on_member(reply, outcome)
            elif reply in self._ids:
                msg_id = self._ids.pop(reply)
                assert not isinstance(outcome, JsError), f"a counter refuses: {outcome.description}"
                self._in_doubt.discard(msg_id)

    def _on_member(self, reply: bytes, outcome: Any) -> None:
        _, number, _, _, _, operation, _ = reply.split(b".")
        batch = self._batches[int(number)]
        if isinstance(outcome, JsError):
            assert operation != b"4", f"batch {batch.number} is under way and unknown"
            batch.is_over = True
        elif outcome[0] == commands.TOLD:
            told = json.loads(outcome[2])
            batch.is_known |= told["type"] == "ack"
            if told["type"] == "ack":
                batch.acked = max(batch.acked, told["seq"])
        else:
            batch.is_over = True
            batch.acked = max(batch.acked, outcome[1])

    def begin_life(self, campaign: Campaign, node: SimNode) -> None:
        """Ask for the batches under way, as a client does that lost its connection."""
        node.group.snapshot_every_bytes = SNAPSHOT_EVERY_BYTES
        for batch in self._batches.values():
            is_idle = campaign.clock.ms - batch.sent_ms >= limits.BATCH_IDLE_MS_MAX
            if batch.is_known and not (batch.is_over or batch.may_be_over or is_idle):
                reply = b"in.%d.8.ok.1.4.$FI" % batch.number
                self._post(node, [(b"s.fast", b"", b"")], [reply])
            batch.may_be_over |= not batch.is_ok  # what was on its way will have been missed
        node.settle()

    # --- the workload -------------------------------------------------------------------------

    def act(self, campaign: Campaign, node: SimNode) -> None:
        """Do one random thing."""
        rng = campaign.rng
        choice = rng.random()
        if choice < 0.15:
            campaign.clock.ms += rng.choice((100, 400, 1100))
        elif choice < 0.5 and self.is_counter:
            self._add(campaign, node)
        elif choice < 0.3:
            self._schedule(node)
        else:
            self._send_members(campaign, node)

    def _post(self, node: SimNode, msgs: list[Msg], replies: list[bytes]) -> None:
        node.monitor.post(stream_inbox.Publish(msgs, replies, self))

    def _add(self, campaign: Campaign, node: SimNode) -> None:
        rng = campaign.rng
        if self._in_doubt and rng.random() < 0.5:
            msg_id = rng.choice(sorted(self._in_doubt))
        else:
            self._count += 1
            msg_id = b"i%d" % self._count
            amount = rng.choice((1, -1, 7, 10**30))
            self._increments[msg_id] = (b"s.count.%d" % rng.randint(0, 2), amount)
            self._in_doubt.add(msg_id)
        self._send_increment(node, msg_id)

    def _send_increment(self, node: SimNode, msg_id: bytes) -> None:
        subject, amount = self._increments[msg_id]
        self._count += 1
        reply = b"c.%d" % self._count
        self._ids[reply] = msg_id
        head = b"NATS/1.0\r\nNats-Incr: %d\r\nNats-Msg-Id: %b\r\n\r\n" % (amount, msg_id)
        self._post(node, [(subject, head, b"")], [reply])

    def _schedule(self, node: SimNode) -> None:
        if self._schedules < 4:
            self._schedules += 1
            head = b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Schedule-Target: s.out.%d\r\n\r\n"
            msg = (b"s.plan.%d" % self._schedules, head % self._schedules, b"fired")
            self._post(node, [msg], [b""])

    def _send_members(self, campaign: Campaign, node: SimNode) -> None:
        rng = campaign.rng
        batches = [batch for batch in self._batches.values() if not batch.is_over]
        if len(batches) < 3:
            batch = _Batch(len(self._batches), is_ok=rng.random() < 0.4)
            self._batches[batch.number] = batch
        else:
            batch = rng.choice(batches)
        msgs: list[Msg] = []
        replies: list[bytes] = []
        for _ in range(rng.choice((1, 3, 12))):
            is_lost = rng.random() < 0.02  # one, on its way
            batch.sent += 2 if is_lost else 1
            refused = b"NATS/1.0\r\nNats-Expected-Stream: X\r\n\r\n"
            is_refused = rng.random() < 0.03
            if is_refused:
                batch.left_out.add(batch.sent)
            operation = 0 if batch.sent == 1 else 2 if rng.random() < 0.03 else 1
            batch.may_be_over |= operation == 2 or (not batch.is_ok and (is_lost or is_refused))
            payload = b"%d:%d" % (batch.number, batch.sent)
            headers, body = (refused if is_refused else b""), payload
            if self.is_counter:
                note = b"" if is_refused else b"Of: %b\r\nNats-Incr: 1\r\n" % payload
                headers, body = (headers or b"NATS/1.0\r\n" + note + b"\r\n"), b""
            msgs.append((b"s.fast", headers, body))
            mode = b"ok" if batch.is_ok else b"fail"
            replies.append(b"in.%d.8.%b.%d.%d.$FI" % (batch.number, mode, batch.sent, operation))
        batch.sent_ms = campaign.clock.ms
        self._post(node, msgs, replies)

    # --- checks -------------------------------------------------------------------------------

    def check(self, read: Callable[[Seq], tuple[Any, ...] | None], node: SimNode) -> None:
        """What is stored, after a restart, keeps what was promised. `read`: the fields of a message
        by its seq."""
        index = node.group.machine.index
        members: dict[int, list[int]] = defaultdict(list)
        totals: dict[bytes, int] = {}
        fired: set[tuple[bytes, bytes]] = set()
        for seq in index.live.seqs(index.first_seq, index.last_seq):
            found = read(seq)
            assert found is not None, seq
            _, _, subject, headers, payload = found
            if b"Nats-Incr" in headers:
                self._check_total(subject, headers, payload, totals)
                payload = get(headers, b"Of") or b""
            if subject == b"s.fast" and payload:
                number, member = payload.split(b":")
                members[int(number)].append(int(member))
            if subject.startswith(b"s.out."):
                brought = get(headers, publish.SCHEDULER), get(headers, publish.SCHEDULE_NEXT)
                assert brought[0] is not None and brought[1] is not None, headers
                assert brought not in fired, f"fired twice: {brought}"
                fired.add((brought[0], brought[1]))
        if node.group.machine.limits.max_per_subject < 0:
            self._check_members(members)

    def _check_total(
        self, subject: bytes, headers: bytes, payload: bytes, totals: dict[bytes, int]
    ) -> None:
        total = int(json.loads(payload)["val"])
        amount = int(get(headers, publish.INCR) or b"")
        before = totals.get(subject)
        assert before is None or total == before + amount, f"{subject!r}: {before} + {amount}"
        totals[subject] = total

    def _check_members(self, members: dict[int, list[int]]) -> None:
        for number, batch in self._batches.items():
            stored = members.get(number, [])
            assert stored == sorted(set(stored)), f"batch {number} is stored as {stored}"
            assert not batch.left_out & set(stored), f"batch {number}: refused ones are stored"
            if not batch.is_ok:
                assert stored == list(range(1, len(stored) + 1)), f"batch {number}: {stored}"
                assert batch.acked <= len(stored), f"batch {number}: acked {batch.acked}: {stored}"

    def finish(self, campaign: Campaign, node: SimNode) -> None:
        """Send again what is in doubt; then the sums are exact, and every schedule goes on."""
        for msg_id in sorted(self._in_doubt):
            self._send_increment(node, msg_id)
        node.settle()
        assert not self._in_doubt
        machine = node.group.machine
        sums: dict[bytes, int] = defaultdict(int)
        for subject, amount in self._increments.values():
            sums[subject] += amount
        for subject, expected in sums.items():
            total = machine.content.counters.of(subject)
            assert total is not None, f"{subject!r} is broken"
            assert total.value == expected, f"{subject!r}: {total.value}, asked for {expected}"
        before = self._brought(node)
        for _ in range(5):
            campaign.clock.ms += SECOND_MS
            node.settle()
            node.monitor.post(stream_inbox.Publish([(b"s.1", b"", b"")], [b""], self))
            node.settle()
        after = self._brought(node)
        for number, count in before.items():
            is_planned = machine.index.subjects.count_of(b"s.plan.%d" % number)
            assert not is_planned or after[number] > count, f"schedule {number} fires no more"

    def _brought(self, node: SimNode) -> dict[int, int]:
        index = node.group.machine.index
        last = index.lookup.last_of
        return {number: last(b"s.out.%d" % number) for number in range(1, self._schedules + 1)}


# --- broken variants ------------------------------------------------------------------------------

Patch = tuple[Any, str, Any]


def _refuse_and_go_on(
    batches: FastBatches,
    batch: FastBatch,
    seq: int,
    is_last: bool,
    error: JsError,
    answers: Answers,
) -> None:
    batch.seq = seq


_admit, _of, _note = FastBatches.admit, CounterTotals.of, Schedules.note


def _admit_over_gaps(batches: FastBatches, row: Row, answers: Answers) -> FastBatch | None:
    batch = batches._open.get(bytes(row[0]))
    if batch is not None and isinstance(row[3], int) and row[3] > batch.seq:
        batch.seq = row[3] - 1
    return _admit(batches, row, answers)


def _of_or_nothing(totals: CounterTotals, subject: bytes) -> Total | None:
    return _of(totals, subject) or Total(0, 0, b"")


_again: set[tuple[int, bytes, int]] = set()


def _note_late(schedules: Schedules, subject: bytes, seq: Seq, due_ns: int) -> None:
    """Each time holds for two entries."""
    known = schedules._rows.get(subject)
    if known is not None and (id(schedules), subject, known.ns) not in _again:
        _again.add((id(schedules), subject, known.ns))
        due_ns = known.ns
    _note(schedules, subject, seq, due_ns)


def _load_nothing(owner: Any, state: Any) -> None:
    """Nothing comes back from a snapshot."""


MUTANTS: dict[str, list[Patch]] = {
    "totals_forgotten": [(CounterTotals, "load", _load_nothing)],
    "totals_begin_anew": [
        (CounterTotals, "load", _load_nothing), (CounterTotals, "of", _of_or_nothing),
    ],
    "counted_again": [(DedupeWindow, "find", lambda window, msg_id: 0)],
    "fired_again": [(Schedules, "note", _note_late)],
    "schedules_forgotten": [(Schedules, "load", _load_nothing)],
    "batches_forgotten": [(FastBatches, "load", _load_nothing)],
    "refused_and_gone_on": [(FastBatches, "_refuse", _refuse_and_go_on)],
    "gaps_passed_over": [(FastBatches, "admit", _admit_over_gaps)],
}  # fmt: skip
"""Variants of the server that the checkers must catch."""
