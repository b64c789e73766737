"""`FastBatches`: the fast batches under way in a stream (`allow_batched`), as replicated state.

A member of a fast batch says by its reply subject which batch it belongs to, its sequence in it,
and what it does. Members are stored as they come; the server acks every so many of them, and tells
of gaps. All of it is decided where the entry is applied, so that the next leader, or the same one
after a restart, goes on where the batch is.

    START (seq 1)      opens the batch                     ack with seq 0
    APPEND             a message                           ack once `every` more are handled
    COMMIT, END        the last message; none               publish ack, with the count
    PING               no message: is something missing?   the last ack again, or a gap
    TOO_NEW            asks for an API level that is not served: the batch is dropped

Mode *fail*: at the first gap or refused message the batch ends. Mode *ok*: both are told, and it
goes on. A sequence that was there before ends it in either mode.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from streamd import errors
from streamd.errors import JsError
from streamd.machine.commands import DUPLICATE, TOLD, PublishOutcome
from streamd.types import Seq

START: Final = 0
APPEND: Final = 1
COMMIT: Final = 2
END: Final = 3
PING: Final = 4
TOO_NEW: Final = 5
FLOW_DEFAULT: Final = 10
EVERY_MAX: Final = 500  # messages between two acks, shared by the batches of a stream

Answers = list[PublishOutcome]
"""Answers to one member, in order."""

Row = Sequence[bytes | int]
"""(id, is ok, flow, seq, operation, count): members that follow each other in one batch. All but
the first of them are APPEND."""

FastState = Iterable[Sequence[bytes | int]]
"""Rows of a snapshot: (id, is ok, flow, seq, acked, every, last)."""


class FastBatch:
    """Batch of one publisher."""

    __slots__ = ("acked", "batch_id", "every", "flow", "is_ok", "last", "seq")

    def __init__(self, batch_id: bytes, *, is_ok: bool, flow: int, every: int) -> None:
        self.batch_id = batch_id
        self.is_ok = is_ok
        self.flow = flow
        self.every = every
        self.seq = 0  # up to which members are handled
        self.acked = 0
        self.last: Seq = 0  # of the stream: its message stored last

    def ack(self) -> PublishOutcome:
        """Return the flow ack that holds now."""
        return _told(type="ack", seq=self.acked, msgs=self.every)

    def end(self, count: int) -> PublishOutcome:
        """Return the publish ack that ends the batch."""
        return self.last, count, self.batch_id.decode("utf-8", "replace")


class FastBatches:
    """Fast batches of one stream."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[bytes, FastBatch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ids(self) -> list[bytes]:
        """Return the ids of all batches under way."""
        return list(self._open)

    def clear(self) -> None:
        """Forget all: the stream has no fast batches any more."""
        self._open.clear()

    def drop(self, batch_id: bytes, seq: int) -> bool:
        """Forget a batch in which nothing was done behind `seq`."""
        batch = self._open.get(batch_id)
        if batch is None or batch.seq != seq:
            return False
        del self._open[batch_id]
        return True

    def seq_of(self, batch_id: bytes) -> int:
        """Return up to which members of a batch are handled; -1: there is no such batch."""
        batch = self._open.get(batch_id)
        return -1 if batch is None else batch.seq

    # --- one member ---------------------------------------------------------------------------

    def admit(self, row: Row, answers: Answers) -> FastBatch | None:
        """Return the batch for which the first member of `row` is to be stored; None: it is not."""
        batch_id, is_ok, flow, seq, operation, _ = row
        assert isinstance(batch_id, bytes) and isinstance(flow, int), row
        assert isinstance(seq, int), row
        batch = self._open.get(batch_id)
        if operation == TOO_NEW:
            self._open.pop(batch_id, None)
            answers.append(errors.REQUIRED_API_LEVEL())
            return None
        if batch is None:
            if operation != START and (operation != COMMIT or seq != 1):
                answers.append(errors.BATCH_PUBLISH_UNKNOWN_BATCH_ID())
                return None
            flow = flow if flow > 0 else FLOW_DEFAULT
            every = 1 if self._open else min(EVERY_MAX, flow)
            batch = FastBatch(batch_id, is_ok=bool(is_ok), flow=flow, every=every)
            if operation == START:
                self._open[batch_id] = batch
                answers.append(batch.ack())
            return batch
        if operation == PING:
            self._ping(batch, seq, answers)
            return None
        expected = batch.seq + 1
        if seq != expected:
            answers.append(_told(type="gap", last_seq=expected, seq=seq))
            if seq < expected or not batch.is_ok:
                self._end(batch, batch.seq, answers)
                return None
        if operation == END:
            self._end(batch, seq - 1, answers)
            return None
        return batch

    def _ping(self, batch: FastBatch, seq: int, answers: Answers) -> None:
        if seq > batch.seq:
            answers.append(_told(type="gap", last_seq=batch.seq + 1, seq=seq + 1))
            if not batch.is_ok:
                self._end(batch, batch.seq, answers)
                return
            batch.seq = seq
        answers.append(batch.ack())

    def _end(self, batch: FastBatch, count: int, answers: Answers) -> None:
        self._open.pop(batch.batch_id, None)
        answers.append(batch.end(count))

    def settle(self, batch: FastBatch, row: Row, outcome: PublishOutcome, answers: Answers) -> None:
        """Record what became of the first member of `row`, which `admit` has let in."""
        seq, operation = row[3], row[4]
        assert isinstance(seq, int), row
        if isinstance(outcome, JsError):
            self._refuse(batch, seq, operation == COMMIT, outcome, answers)
            return
        is_first = not batch.seq
        batch.seq = seq
        is_due = seq >= batch.acked + batch.every
        before: Seq | None = None  # where the stream has it already
        if isinstance(outcome, int):
            batch.last = outcome
        elif outcome[0] != DUPLICATE:
            batch.last = outcome[1]  # of a counter
        else:
            before = outcome[1]
        if is_due and (operation != COMMIT or before is not None):  # as nats-server has it
            answers.append(self._advance(batch))
        if operation != COMMIT:
            return
        if before is not None and is_first and not batch.is_ok:
            # One message that was there before: told as such.
            text = batch.batch_id.decode("utf-8", "replace")
            answers.append((DUPLICATE, before, text))
        else:
            self._end(batch, seq, answers)

    def _refuse(
        self, batch: FastBatch, seq: int, is_last: bool, error: JsError, answers: Answers
    ) -> None:
        if not batch.is_ok and not batch.seq:
            self._open.pop(batch.batch_id, None)
            answers.append(error)
            return
        answers.append(_told(type="err", seq=seq, error=error.as_json()))
        if not batch.is_ok:
            self._end(batch, batch.seq, answers)
            return
        if is_last:
            self._end(batch, seq - 1, answers)
        batch.seq = seq

    def _advance(self, batch: FastBatch) -> PublishOutcome:
        """Ack what is handled; the next ack comes after twice as many, or half, up to its share."""
        share = max(1, min(batch.flow, EVERY_MAX // max(1, len(self._open))))
        if batch.every < share:
            batch.every = min(share, 2 * batch.every)
        elif batch.every > share:
            batch.every = max(share, batch.every // 2)
        batch.acked = batch.seq
        return batch.ack()

    # --- members that follow each other -------------------------------------------------------

    def run_of(self, row: Row) -> FastBatch | None:
        """Return the batch of a row of APPENDs that are the next ones; None: look at each."""
        batch_id, _, _, seq, operation, _ = row
        assert isinstance(batch_id, bytes), row
        batch = self._open.get(batch_id)
        is_next = batch is not None and operation == APPEND and seq == batch.seq + 1
        return batch if is_next else None

    def settle_run(
        self, batch: FastBatch, first: Seq, count: int
    ) -> Iterable[tuple[int, PublishOutcome]]:
        """Record that the next `count` members are stored, as `first` and on. Yields the acks, each
        with the place of its member. The first may be owed since a member that was refused."""
        before, until = batch.seq, batch.seq + count
        while batch.acked + batch.every <= until:
            batch.seq = max(batch.seq, batch.acked + batch.every)
            yield max(0, batch.seq - before - 1), self._advance(batch)
        batch.seq = until
        batch.last = first + count - 1

    # --- snapshots ----------------------------------------------------------------------------

    def to_state(self) -> list[list[bytes | int]]:
        """Return the batches, equal on all replicas."""
        return [
            [each.batch_id, int(each.is_ok), each.flow, each.seq, each.acked, each.every, each.last]
            for _, each in sorted(self._open.items())
        ]

    def load(self, state: FastState) -> None:
        """Take over what `to_state` gave."""
        for batch_id, is_ok, flow, seq, acked, every, last in state:
            assert isinstance(batch_id, bytes) and isinstance(flow, int), batch_id
            assert isinstance(seq, int) and isinstance(acked, int), batch_id
            assert isinstance(every, int) and isinstance(last, int), batch_id
            batch = FastBatch(batch_id, is_ok=bool(is_ok), flow=flow, every=every)
            batch.seq, batch.acked, batch.last = seq, acked, last
            self._open[batch_id] = batch


def _told(**fields: object) -> PublishOutcome:
    return TOLD, 0, json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
