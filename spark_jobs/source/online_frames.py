"""Deliveries of a consumer, as they come from the socket, to columns.

A chunk of a consumer's messages mostly has long runs of frames laid out alike: equal lengths of
subject, numbers, headers and payload. Such a run is taken apart as a matrix of bytes, one row per
frame; what is not alike, in a loop. Neither makes objects that outlive the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.client.wire_errors import WireError
from spark_jobs.client.wire_parser import LINE_BYTES_MAX, status_of

RUN_MIN: Final = 16  # frames alike; fewer cost more as a matrix than one by one
_LOOK_AGAIN_MIN: Final = 32  # frames taken one by one before the next look for a run, first time
_LOOK_AGAIN_MAX: Final = 2048  # the same after several looks in vain
_ACK_TOKENS: Final = 9  # $JS.ACK.<stream>.<consumer>.<deliveries>.<sseq>.<cseq>.<ts>.<pending>
_ACK_TOKENS_V2: Final = 11  # with domain and account in front of the stream
_POWERS: Final = 10 ** np.arange(18, -1, -1, dtype=np.int64)


Longs = np.ndarray[Any, np.dtype[np.int64]]


class Rows(NamedTuple):
    """Messages in the order of their seqs. The arrays have one element per message."""

    seqs: Longs
    ts_ns: Longs
    subjects: pa.Array  # binary
    headers: pa.Array  # binary: whole blocks, b"" for none
    payloads: pa.Array  # binary

    def cut(self, count: int) -> Rows:
        """Return the first `count` messages."""
        return Rows(*(column[:count] for column in self))

    def pick(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """Return the messages where `keep` is true."""
        mask = pa.array(keep)
        arrays = (column.filter(mask) for column in (self.subjects, self.headers, self.payloads))
        return Rows(self.seqs[keep], self.ts_ns[keep], *arrays)


class Frames:
    """Takes chunks and collects the rows of one subscription, `sid`.

    After each `feed`: `count` and `size` (bytes of headers and payloads) of what `take` would
    return; `last_seq`, `last_cseq` (stream and consumer sequence) and `pending` (messages that the
    consumer has after it) of the last message; `status`, (code, text), of a header-only answer.
    """

    def __init__(self, sid: int, on_line: Callable[[bytes], None]) -> None:
        self._sid = b"%d" % sid
        self._on_line = on_line
        self._rows: list[Rows] = []
        # Frames taken one by one that are not in `_rows` yet.
        self._subjects: list[bytes] = []
        self._acks: list[bytes] = []
        self._blocks: list[bytes] = []
        self._payloads: list[bytes] = []
        self._look_again = _LOOK_AGAIN_MIN
        self.count = 0
        self.size = 0
        self.received = 0  # messages since the beginning
        self.received_size = 0  # and their headers and payloads, bytes
        self.last_seq = 0
        self.last_cseq = 0
        self.pending = 0
        self.status: tuple[int, str] | None = None

    def take(self) -> list[Rows]:
        """Return the rows collected so far and begin anew."""
        self._seal()
        found, self._rows = self._rows, []
        self.count = self.size = 0
        return found

    def feed(self, data: bytes) -> tuple[int, int]:
        """Collect what is whole in `data`.

        Returns (bytes used, bytes the next frame needs in all, 0 while unknown). Raises WireError
        for what is no delivery.
        """
        pos = 0
        while True:
            used = self._take_run(data, pos)
            if used:
                pos += used
                self._look_again = _LOOK_AGAIN_MIN
                continue
            used, needed, is_over = self._take_singly(data, pos)
            pos += used
            if is_over:
                break
            self._look_again = min(self._look_again * 2, _LOOK_AGAIN_MAX)
        if self._acks:
            self.last_seq, self.last_cseq, _, self.pending = ack_numbers(self._acks[-1])
        return pos, needed

    # --- frames one by one ------------------------------------------------------------------

    def _take_singly(self, data: bytes, pos: int) -> tuple[int, int, bool]:
        """Take some frames from `pos` on: (bytes used, needed, nothing whole is left)."""
        begin = pos
        find, sid, length = data.find, self._sid, len(data)
        subjects, acks = self._subjects, self._acks
        blocks, payloads = self._blocks, self._payloads
        had = len(acks)
        until = had + self._look_again
        needed = size = 0
        is_over = False
        while len(acks) < until:
            eol = find(b"\r\n", pos)
            if eol < 0:
                if length - pos > LINE_BYTES_MAX:
                    raise WireError(f"the server sent a line of more than {LINE_BYTES_MAX} bytes")
                is_over = True
                break
            fields = data[pos:eol].split()
            verb = fields[0] if fields else b""
            if verb != b"MSG" and verb != b"HMSG":
                if fields:
                    self._on_line(data[pos:eol])
                pos = eol + 2
                continue
            start = eol + 2
            try:
                end = start + int(fields[-1])
                body = start + int(fields[-2]) if verb == b"HMSG" else start
            except ValueError:
                raise WireError(f"the server sent a malformed frame: {fields!r}") from None
            if end + 2 > length:
                needed = end + 2 - pos
                is_over = True
                break
            pos = end + 2
            if fields[2] != sid:
                continue  # of a subscription that is over
            if len(fields) < (6 if verb == b"HMSG" else 5):
                self.status = status_of(data[start:body])
                continue
            subjects.append(fields[1])
            acks.append(fields[3])
            blocks.append(data[start:body])
            payloads.append(data[body:end])
            size += end - start
        self.size += size
        self.received_size += size
        self.count += len(acks) - had
        self.received += len(acks) - had
        return pos - begin, needed, is_over

    def _seal(self) -> None:
        """Turn what was taken one by one into columns."""
        if not self._acks:
            return
        seqs, ts_ns = _ack_columns(self._acks)
        self._rows.append(
            Rows(
                seqs,
                ts_ns,
                pa.array(self._subjects, pa.binary()),
                pa.array(self._blocks, pa.binary()),
                pa.array(self._payloads, pa.binary()),
            )
        )
        self._subjects, self._acks = [], []
        self._blocks, self._payloads = [], []

    # --- runs of frames laid out alike ------------------------------------------------------

    def _take_run(self, data: bytes, pos: int) -> int:
        """Take frames that look like the one at `pos`; return the bytes used, 0 for no run."""
        layout = _layout_of(data, pos, self._sid)
        if layout is None:
            return 0
        size = layout.size
        count = (len(data) - pos) // size
        # Cheap and mostly right: is there one that begins and ends in the same places?
        far = pos + (RUN_MIN - 1) * size
        if count < RUN_MIN or data[far : far + 4] != data[pos : pos + 4]:
            return 0
        matrix = np.frombuffer(data, np.uint8, count * size, pos).reshape(count, size)
        fixed = matrix[:, layout.fixed]
        first = layout.numbers[0][0]
        digits = matrix[:, first : layout.numbers[-1][1]] - 48  # no digit wraps round, above 9
        spans = [(low - first, high - first) for low, high in layout.numbers]
        checks = [
            fixed == fixed[0],
            matrix[:, layout.subject[0] : layout.subject[1]] > 32,
            *(digits[:, low:high] <= 9 for low, high in spans),
        ]
        # Mostly all are alike, and to ask for all at once is many times faster than row by row.
        if not all(each.all() for each in checks):
            is_alike = np.stack([each.all(axis=1) for each in checks]).all(axis=0)
            count = int(np.flatnonzero(~is_alike)[0])
        if count < RUN_MIN:
            return 0
        seqs, ts_ns = (
            digits[:count, low:high].astype(np.int64) @ _POWERS[low - high :]
            for low, high in (spans[0], spans[2])
        )
        last = pos + (count - 1) * size
        cseq, pending = (
            int(data[last + low : last + high])
            for low, high in (layout.numbers[1], layout.numbers[3])
        )
        rows = Rows(
            seqs,
            ts_ns,
            _column(matrix[:count], layout.subject),
            _column(matrix[:count], layout.headers),
            _column(matrix[:count], layout.payload),
        )
        self._seal()
        self._rows.append(rows)
        self.count += count
        self.received += count
        self.size += count * (size - layout.headers[0])
        self.received_size += count * (size - layout.headers[0])
        self.last_seq, self.last_cseq, self.pending = int(seqs[-1]), cseq, pending
        return count * size


class _Layout(NamedTuple):
    """Places of the fields in a frame of `size` bytes, as (first, after the last) offsets."""

    size: int
    fixed: list[int]  # offsets of the bytes that are the same in each frame of a run
    subject: tuple[int, int]
    numbers: tuple[tuple[int, int], ...]  # stream seq, consumer seq, time, pending
    headers: tuple[int, int]
    payload: tuple[int, int]


def _layout_of(data: bytes, pos: int, sid: bytes) -> _Layout | None:
    """Return the layout of the frame at `pos`; None if it is no whole delivery to `sid`."""
    eol = data.find(b"\r\n", pos)
    if eol < 0 or data[pos : pos + 4] not in (b"MSG ", b"HMSG"):
        return None
    line = data[pos:eol]
    fields = line.split(b" ")
    is_plain = fields[0] == b"MSG"
    if len(fields) != (5 if is_plain else 6) or fields[2] != sid:
        return None
    tokens = fields[3].split(b".")
    # Longer numbers than a signed 64-bit integer has room for are left to the loop.
    if len(tokens) != _ACK_TOKENS or max(map(len, tokens[5:])) > len(_POWERS):
        return None
    start = eol + 2 - pos
    try:
        body = start if is_plain else start + int(fields[4])
        end = start + int(fields[-1])
    except ValueError:
        return None
    if pos + end + 2 > len(data):
        return None
    subject_at = len(fields[0]) + 1
    subject_end = subject_at + len(fields[1])
    at = subject_end + 1 + len(sid) + 1 + sum(map(len, tokens[:5])) + 5
    fixed = [*range(subject_at), *range(subject_end, at)]
    numbers = []
    for token in tokens[5:]:
        numbers.append((at, at + len(token)))
        at += len(token) + 1
        fixed.append(at - 1)
    fixed += range(at, start)  # the sizes and the line's end, behind the last number
    fixed += (end, end + 1)
    return _Layout(
        size=end + 2,
        fixed=fixed,
        subject=(subject_at, subject_end),
        numbers=tuple(numbers),
        headers=(start, body),
        payload=(body, end),
    )


def _column(matrix: np.ndarray[Any, np.dtype[np.uint8]], span: tuple[int, int]) -> pa.Array:
    """Return bytes `span` of each row as a binary array."""
    count, size = len(matrix), span[1] - span[0]
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    values = matrix[:, span[0] : span[1]].tobytes()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _ack_columns(acks: list[bytes]) -> tuple[Longs, Longs]:
    """Return (stream seqs, times in ns) of deliveries' reply subjects."""
    prefix = acks[0].rsplit(b".", 4)[0] + b"."
    joined = b".".join(acks)
    if acks[0].count(b".") == _ACK_TOKENS - 1 and joined.count(prefix) == len(acks):
        text = joined.replace(prefix, b"").replace(b".", b" ").decode("ascii", "replace")
        numbers = np.fromstring(text, np.int64, sep=" ")
        if len(numbers) == 4 * len(acks):
            return numbers[0::4], numbers[2::4]
    rows = [ack_numbers(ack) for ack in acks]
    return np.array([row[0] for row in rows], np.int64), np.array([row[2] for row in rows], "i8")


def ack_numbers(reply: bytes) -> tuple[int, int, int, int]:
    """Return (stream seq, consumer seq, time in ns, pending) of a delivery's reply subject.

    Raises WireError if it is none.
    """
    tokens = reply.split(b".")
    at = 5 if len(tokens) == _ACK_TOKENS else 7
    try:
        if len(tokens) != _ACK_TOKENS and len(tokens) < _ACK_TOKENS_V2:
            raise ValueError
        sseq, cseq, ts_ns, pending = map(int, tokens[at : at + 4])
    except ValueError:
        raise WireError(f"a delivery has the reply subject {reply!r}, no $JS.ACK") from None
    return sseq, cseq, ts_ns, pending
