"""Atomic batches on their way in: messages wait here, on the leader, until their batch commits.

A batch is a run of messages with one `Nats-Batch-Id` and `Nats-Batch-Sequence` 1, 2, 3 ...; the
last carries `Nats-Batch-Commit`. Nothing of it is logged before the commit; then all of it goes
into one log entry, so it is stored as a whole or not at all. What waits here is lost with the
leader, as a client that has no ack for its commit must assume.

Whether the messages are acceptable (expectations, duplicates, limits) is decided when the entry is
applied, against the state before the batch; here only the framing is checked. Pure.
"""

from __future__ import annotations

from typing import TypeAlias

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.message_headers import get, parse_number
from streamd.types import BatchLimits, Msg

Staged: TypeAlias = tuple[str, list[Msg]]
"""(batch id, messages) of a batch that commits."""

Advices: TypeAlias = list[tuple[str, dict[str, object]]]

_AS_USUAL = BatchLimits()
_COMMIT = b"Nats-Batch-Commit"
_ID_HEAD = b"NATS/1.0\r\nNats-Batch-Id: "
_SEQ_HEAD = b"\r\nNats-Batch-Sequence: "


class BatchBudget:
    """Budget of a server's batches: how many more may wait at once, with how much in memory, and
    what each may take. Shared by its streams' stagers."""

    def __init__(self, allowed: BatchLimits = _AS_USUAL) -> None:
        self.left = allowed.per_server_max or limits.BATCHES_PER_SERVER_MAX
        self.bytes_left = limits.BATCHES_BYTES_MAX
        self.per_stream_max = allowed.per_stream_max or limits.BATCHES_PER_STREAM_MAX
        self.msgs_max = allowed.msgs_max or limits.BATCH_MSGS_MAX
        self.idle_ms_max = allowed.idle_ms_max or limits.BATCH_IDLE_MS_MAX


class _Batch:
    __slots__ = ("byte_count", "due_ms", "msgs")

    def __init__(self) -> None:
        self.msgs: list[Msg] = []
        self.byte_count = 0
        self.due_ms = 0


class BatchStager:
    """The open batches of one stream."""

    def __init__(self, budget: BatchBudget | None = None) -> None:
        self.deadline_ms = 0  # when the first batch is dropped; 0: none waits
        self._budget = budget or BatchBudget()
        self._batches: dict[bytes, _Batch] = {}  # the one longest idle first
        self._byte_count = 0

    def stage(
        self, msg: Msg, config: StreamConfig, *, now_ms: int, advices: Advices
    ) -> Staged | JsError | None:
        """Take one message that has batch headers.

        Returns None if it waits (its reply gets an empty message), the batch if this commits it,
        or why it was refused. What is too large or has no sequence is not a part of the batch,
        which goes on without it; any other refusal ends the batch as well.
        """
        headers = msg[1]
        batch_id = get(headers, b"Nats-Batch-Id")
        if not batch_id:
            return "", [msg]  # a plain message, whatever other batch headers say
        refusal = self._check_framing(msg, batch_id, config)
        if refusal is not None:
            return refusal
        seq = _parse_seq(get(headers, b"Nats-Batch-Sequence"))
        batch = self._batches.get(batch_id)
        commit = get(headers, _COMMIT)
        stored = seq - (commit == b"eob")  # that one is not
        is_too_many = stored > self._budget.msgs_max
        if batch is None:
            if is_too_many:
                return self._too_large()
            if seq != 1:
                return errors.ATOMIC_PUBLISH_INCOMPLETE_BATCH()
            if self._is_full() and not commit:
                return errors.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT()
            batch = self._open(batch_id)
        if commit is not None and commit not in (b"1", b"eob"):
            self._close(batch_id)  # by its own client's word: nobody is told
            return errors.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT()
        level = get(headers, b"Nats-Required-Api-Level")
        if level is not None and not 0 <= parse_number(level) <= limits.API_LEVEL:
            self._give_up(batch_id, "unsupported", advices)
            return errors.REQUIRED_API_LEVEL()
        if seq != len(batch.msgs) + 1 or (seq == 1 and commit == b"eob"):  # a batch of nothing
            self._give_up(batch_id, "incomplete", advices)
            return errors.ATOMIC_PUBLISH_INCOMPLETE_BATCH()
        if is_too_many:
            self._give_up(batch_id, "large", advices)
            return self._too_large()
        if commit == b"eob":
            subject, last_headers, payload = batch.msgs[-1]
            batch.msgs[-1] = (subject, _mark_last(last_headers), payload)
        else:
            batch.msgs.append(msg)
            self._count(batch, 1, len(msg[0]) + len(headers) + len(msg[2]))
            is_too_much = self._byte_count > limits.BATCH_BYTES_MAX or self._budget.bytes_left < 0
            if is_too_much and not commit:
                self._give_up(batch_id, "large", advices)
                return self._too_large()
        if commit:
            self._close(batch_id)
            return batch_id.decode("utf-8", "replace"), batch.msgs
        self._touch(batch_id, batch, now_ms)
        return None

    def stage_run(
        self,
        msgs: list[Msg],
        replies: list[bytes],
        start: int,
        config: StreamConfig,
        *,
        now_ms: int,
    ) -> int:
        """Take messages from `start` on that go on with an open batch in the usual spelling: its
        id and sequence first, no commit, no reply wanted. Returns where the first one is that is
        not taken, and that `stage` must see; all before it would have waited there too.
        """
        headers = msgs[start][1]
        if not headers.startswith(_ID_HEAD):
            return start
        id_end = headers.find(b"\r\n", len(_ID_HEAD))
        batch_id = headers[len(_ID_HEAD) : id_end]
        batch = self._batches.get(batch_id)
        if batch is None or not config.get("allow_atomic"):
            return start
        head = headers[:id_end] + _SEQ_HEAD
        size_max = config.get("max_msg_size", -1)
        bytes_left = limits.BATCH_BYTES_MAX - self._byte_count
        memory_left = self._budget.bytes_left
        taken = batch.msgs
        first = seq = len(taken) + 1
        byte_count = 0
        for at in range(start, min(len(msgs), start + self._budget.msgs_max + 1 - first)):
            msg = msgs[at]
            headers = msg[1]
            if not headers.startswith(head + b"%d\r\n" % seq) or replies[at]:
                break
            if _COMMIT in headers or b"Nats-Required-Api-Level" in headers:
                break
            size = len(headers) + len(msg[2])
            if 0 <= size_max < size:
                break
            size += len(msg[0])
            memory_left -= size + limits.BATCH_MSG_MEMORY_BYTES
            if byte_count + size > bytes_left or memory_left < 0:
                break
            byte_count += size
            taken.append(msg)
            seq += 1
        count = seq - first
        if count:
            self._count(batch, count, byte_count)
            self._touch(batch_id, batch, now_ms)
        return start + count

    def expire(self, now_ms: int, advices: Advices) -> None:
        """Drop batches that nothing was added to for too long; only an advisory tells of it."""
        for batch_id in [key for key, batch in self._batches.items() if batch.due_ms <= now_ms]:
            self._give_up(batch_id, "timeout", advices)

    def clear(self) -> None:
        """Forget all batches: the stream is gone, or no longer led here."""
        for batch_id in list(self._batches):
            self._close(batch_id)

    # --- checks ---------------------------------------------------------------------------------

    def _check_framing(self, msg: Msg, batch_id: bytes, config: StreamConfig) -> JsError | None:
        headers = msg[1]
        if config.get("sealed"):
            return errors.STREAM_SEALED()
        size_max = config.get("max_msg_size", -1)
        if 0 <= size_max < len(headers) + len(msg[2]):
            return errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
        if not config.get("allow_atomic"):
            self.clear()  # opened before the stream's config was changed: nobody is told
            return errors.ATOMIC_PUBLISH_DISABLED()
        if len(batch_id) > limits.BATCH_ID_BYTES_MAX:
            return errors.ATOMIC_PUBLISH_INVALID_BATCH_ID()
        if _parse_seq(get(headers, b"Nats-Batch-Sequence")) < 0:
            return errors.ATOMIC_PUBLISH_MISSING_SEQ()
        return None

    # --- the table ------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        """True if no other batch may wait here."""
        budget = self._budget
        is_too_many = len(self._batches) >= budget.per_stream_max
        return is_too_many or budget.left <= 0 or budget.bytes_left <= 0

    def _count(self, batch: _Batch, msgs: int, size: int) -> None:
        """So many messages of `size` bytes are added to a batch, or (negative) go with it."""
        batch.byte_count += size
        self._byte_count += size
        self._budget.bytes_left -= size + msgs * limits.BATCH_MSG_MEMORY_BYTES

    def _open(self, batch_id: bytes) -> _Batch:
        batch = _Batch()
        self._batches[batch_id] = batch
        self._budget.left -= 1
        return batch

    def _touch(self, batch_id: bytes, batch: _Batch, now_ms: int) -> None:
        # To the end: the dict is ordered by when a batch was last added to.
        del self._batches[batch_id]
        self._batches[batch_id] = batch
        batch.due_ms = now_ms + self._budget.idle_ms_max
        self._set_deadline()

    def _close(self, batch_id: bytes) -> None:
        batch = self._batches.pop(batch_id)
        self._count(batch, -len(batch.msgs), -batch.byte_count)
        self._budget.left += 1
        self._set_deadline()

    def _give_up(self, batch_id: bytes, reason: str, advices: Advices) -> None:
        if batch_id not in self._batches:
            return
        self._close(batch_id)
        fields: dict[str, object] = {"batch": batch_id.decode("utf-8", "replace"), "reason": reason}
        advices.append(("batch_abandoned", fields))

    def _set_deadline(self) -> None:
        first = next(iter(self._batches.values()), None)
        self.deadline_ms = 0 if first is None else first.due_ms

    def _too_large(self) -> JsError:
        return errors.ATOMIC_PUBLISH_TOO_LARGE_BATCH(size=self._budget.msgs_max)


def _parse_seq(text: bytes | None) -> int:
    """Return the sequence, or -1 if there is none."""
    if text is None or not text.isdigit() or len(text) > 20:
        return -1
    seq = int(text)
    return seq if seq < 1 << 64 else -1


def _mark_last(headers: bytes) -> bytes:
    """Return `headers` as of a message that commits: the commit itself was not to be stored."""
    return headers[:-2] + _COMMIT + b": 1\r\n\r\n"
