"""The archive of nats-server 2.15, `NATSARC1`: messages one by one, of any storage. Pure.

Behind the magic come entries: uvarint length of the name, zigzag varint time, uvarint seq, uvarint
length of headers, uvarint length of the payload, then name, headers, payload. The first is
`state.json`, then one a consumer, `consumers/<name>`, then the messages by seq, named by their
subjects; an entry of five zeros ends the archive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from streamd.archives.archive_records import (
    ArchivedConsumer,
    ArchivedEnd,
    ArchivedMessages,
    ArchivedRemoval,
    ArchivedState,
    ArchiveError,
    Record,
    Row,
)
from streamd.types import Seq

MAGIC: Final = b"NATSARC1"
_STATE: Final = b"state.json"
_REMOVALS: Final = b"deleted.json"
_CONSUMERS: Final = b"consumers/"
_END: Final = bytes(5)
_HEAD_BYTES_MAX: Final = 5 * 10  # five varints
_NAME_BYTES_MAX: Final = 64 * 1024
_BODY_BYTES_MAX: Final = 1 << 30  # of headers and payload: no length that is believed is longer
_ROWS_MAX: Final = 512  # in one record
_GROUPS: Final = 1 << 14  # numbers whose varints are kept


# --- writing ------------------------------------------------------------------------------------


def begin(state: Mapping[str, Any], now_ns: int) -> bytes:
    """Return the head of an archive. `state`: the StreamState as the API shows it, with
    `first_seq` 1 or more, and the number of consumers that follow."""
    return MAGIC + _entry(_STATE, now_ns, 0, b"", _json(state))


def encode_consumer(consumer: ArchivedConsumer, now_ns: int) -> bytes:
    """Return a consumer's entry."""
    state = {
        "delivered": _position(consumer.delivered),
        "ack_floor": _position(consumer.floor),
        "pending": {
            str(seq): {"Sequence": cseq, "Timestamp": ts} for seq, cseq, ts in consumer.pending
        },
        # nats-server counts the deliveries after the first.
        "redelivered": {str(seq): count - 1 for seq, count in consumer.redelivered},
    }
    body = _json({"config": consumer.config, "state": state})
    return _entry(_CONSUMERS + consumer.name.encode(), now_ns, 0, b"", body)


def encode_removals(ranges: Sequence[tuple[Seq, Seq]], now_ns: int) -> bytes:
    """Return the entry that tells what was deleted among messages that are left out, inclusive
    ranges: only of the archive that an increment of a backup asks for, which no other reads."""
    return _entry(_REMOVALS, now_ns, 0, b"", _json([list(each) for each in ranges]))


def encode_messages(rows: Sequence[Row]) -> bytes:
    """Return the entries of messages."""
    pieces: list[bytes] = []
    short, continued = _groups()
    for seq, ts, subject, headers, payload in rows:
        pieces += (
            _uvarint(len(subject), short, continued),
            _uvarint(ts << 1, short, continued),
            _uvarint(seq, short, continued),
            _uvarint(len(headers), short, continued),
            _uvarint(len(payload), short, continued),
            subject,
            headers,
            payload,
        )
    return b"".join(pieces)


def end() -> bytes:
    """Return the end of an archive."""
    return _END


def _position(of: tuple[int, Seq]) -> dict[str, int]:
    return {"consumer_seq": of[0], "stream_seq": of[1]}


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _entry(name: bytes, ts: int, seq: Seq, headers: bytes, payload: bytes) -> bytes:
    return encode_messages([(seq, ts, name, headers, payload)])


def _uvarint(value: int, short: Sequence[bytes], continued: Sequence[bytes]) -> bytes:
    """Return a number as varint. The tables are those of `_groups`."""
    if value < _GROUPS:
        return short[value]
    made = continued[value & _GROUPS - 1]
    value >>= 14
    while value >= _GROUPS:
        made += continued[value & _GROUPS - 1]
        value >>= 14
    return made + short[value]


@cache
def _groups() -> tuple[list[bytes], list[bytes]]:
    """Return the varints of all numbers of 14 bits, and the same with more to follow. Made when an
    archive is: a loop over the bytes of each number took a third of a backup's time."""
    low = [bytes((value,)) for value in range(128)]
    continued = [bytes((value & 127 | 128, value >> 7 | 128)) for value in range(_GROUPS)]
    short = [bytes((value & 127 | 128, value >> 7)) for value in range(128, _GROUPS)]
    return low + short, continued


def read_messages(blob: bytes) -> Iterator[Row]:
    """Yield the messages of entries that `encode_messages` has made. Raises ArchiveError."""
    pos = 0
    while pos < len(blob):
        found = _read_entry(blob, pos)
        if not isinstance(found, tuple):
            raise ArchiveError("EOF")
        row, pos = found
        yield row


# --- reading ------------------------------------------------------------------------------------


class MessageArchiveReader:
    """Reads what follows the magic, in pieces of any size."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0
        self._wanted = 1  # so many bytes must be there before another entry can be read
        self._last_seq: Seq = 0
        self._state: ArchivedState | None = None
        self._consumers_left = 0
        self._is_over = False

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that are complete with `data`. Raises ArchiveError."""
        self._waiting.append(data)
        self._size += len(data)
        if self._size < self._wanted or self._is_over:
            if self._is_over and self._size:
                raise ArchiveError("bytes behind the end of the archive")
            return
        blob = b"".join(self._waiting)
        pos = 0
        rows: list[Row] = []
        while pos < len(blob) and not self._is_over:
            found = _read_entry(blob, pos)
            if type(found) is int:
                self._wanted = found
                break
            assert type(found) is tuple
            row, pos = found
            if self._state is not None and not self._consumers_left and row[0]:
                if row[0] <= self._last_seq:
                    raise ArchiveError(f"message sequence {row[0]} out of order")
                self._last_seq = row[0]
                rows.append(row)
                if len(rows) < _ROWS_MAX:
                    continue
            if rows:
                yield ArchivedMessages(rows)
                rows = []
            if self._state is None or self._consumers_left or not row[0]:
                yield from self._others(row)
            self._wanted = 1
        else:
            self._wanted = 1
        if rows:
            yield ArchivedMessages(rows)
        rest = blob[pos:]
        if self._is_over and rest:
            raise ArchiveError("bytes behind the end of the archive")
        self._waiting, self._size = ([rest] if rest else []), len(rest)

    def _others(self, row: Row) -> Iterator[Record]:
        if row[2] == _REMOVALS and self._state is not None and not self._consumers_left:
            yield from _decode_removals(row[4])
        else:
            yield self._other(row)

    def _other(self, row: Row) -> Record:
        _, _, name, headers, payload = row
        if self._state is None:
            if name != _STATE:
                raise ArchiveError(f"expected {_STATE.decode()}, found {_shown(name)}")
            self._state = _decode_state(payload)
            self._consumers_left = self._state.consumer_count
            self._last_seq = self._state.first_seq - 1
            return self._state
        if self._consumers_left:
            if not name.startswith(_CONSUMERS):
                raise ArchiveError(f"expected consumer, found {_shown(name)}")
            self._consumers_left -= 1
            return _decode_consumer(name[len(_CONSUMERS) :].decode("utf-8", "replace"), payload)
        if name or headers or payload or row[1]:
            raise ArchiveError("expected message sequence")
        self._is_over = True
        return ArchivedEnd(self._state.last_seq)

    def finish(self) -> None:
        """Raise ArchiveError unless the archive came to its end."""
        if not self._is_over:
            raise ArchiveError("EOF")


def _shown(name: bytes) -> str:
    return json.dumps(name[:80].decode("utf-8", "replace"), ensure_ascii=False)


def _read_entry(blob: bytes, pos: int) -> tuple[Row, int] | int:
    """Return (the entry at `pos` as a message, where it ends); or how many bytes from `pos` on
    must be there, at least, for that."""
    at, size = pos + 1, len(blob)
    try:
        name_size = blob[pos]
        if name_size > 127:
            name_size, at = _read_on(blob, at, name_size)
        ts, at = _read_on(blob, at + 1, blob[at])
        seq, at = _read_on(blob, at + 1, blob[at])
        headers_size = blob[at]
        at += 1
        if headers_size > 127:
            headers_size, at = _read_on(blob, at, headers_size)
        payload_size = blob[at]
        at += 1
        if payload_size > 127:
            payload_size, at = _read_on(blob, at, payload_size)
    except IndexError:
        if size - pos > _HEAD_BYTES_MAX:
            raise ArchiveError("an entry's head is damaged") from None
        return size - pos + 1
    if name_size > _NAME_BYTES_MAX or headers_size + payload_size > _BODY_BYTES_MAX:
        raise ArchiveError("an entry's head is damaged: it is too long")
    headers_at = at + name_size
    payload_at = headers_at + headers_size
    end_at = payload_at + payload_size
    if end_at > size:
        return end_at - pos
    row = (
        seq,
        ts >> 1 if not ts & 1 else -(ts >> 1) - 1,
        blob[at:headers_at],
        blob[headers_at:payload_at],
        blob[payload_at:end_at],
    )
    return row, end_at


def _read_on(blob: bytes, at: int, byte: int) -> tuple[int, int]:
    """Return (a varint of which `byte` was read, where it ends). Raises IndexError if its end is
    not there."""
    value, shift = byte & 0x7F, 7
    while byte > 127:
        if shift > 63:
            raise ArchiveError("an entry's head is damaged")
        byte = blob[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at


def _decode_json(body: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        raise ArchiveError(f"{what} is no JSON") from None
    if not isinstance(document, dict):
        raise ArchiveError(f"{what} is no JSON object")
    return document


def folded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return `document` with lower keys: nats-server writes some with capitals, and reads any."""
    return {key.lower(): value for key, value in document.items()}


def _decode_state(body: bytes) -> ArchivedState:
    fields = folded(_decode_json(body, "state.json"))
    numbers = [
        fields.get(key, 0)
        for key in ("first_seq", "last_seq", "messages", "bytes", "consumer_count")
    ]
    if any(type(number) is not int or not 0 <= number < 1 << 64 for number in numbers):
        raise ArchiveError("state.json: a number is not one")
    state = ArchivedState(*numbers)
    if not state.first_seq:
        raise ArchiveError("message sequence 0 out of order")
    return state


def _decode_removals(body: bytes) -> Iterator[ArchivedRemoval]:
    try:
        for first, last in json.loads(body):
            yield ArchivedRemoval(_number(first), _number(last))
    except (ValueError, TypeError):
        raise ArchiveError("deleted.json: a range is none") from None


def _decode_consumer(name: str, body: bytes) -> ArchivedConsumer:
    fields = folded(_decode_json(body, f'consumer "{name}"'))
    config, state = fields.get("config"), fields.get("state")
    for what, found in (("config", config), ("state", state)):
        if not isinstance(found, dict):
            raise ArchiveError(f'consumer "{name}" is missing {what}')
    assert isinstance(config, dict) and isinstance(state, dict)
    try:
        return _consumer_of(name, config, folded(state))
    except (TypeError, ValueError, KeyError, AttributeError):
        raise ArchiveError(f'consumer "{name}": its state is damaged') from None


def _consumer_of(name: str, config: dict[str, Any], state: Mapping[str, Any]) -> ArchivedConsumer:
    def position(key: str) -> tuple[int, Seq]:
        found = folded(state.get(key) or {})
        return _number(found.get("consumer_seq", 0)), _number(found.get("stream_seq", 0))

    pending = []
    for seq, entry in sorted((state.get("pending") or {}).items(), key=lambda item: int(item[0])):
        held = folded(entry)
        pending.append((int(seq), _number(held["sequence"]), _number(held["timestamp"])))
    redelivered = sorted(
        (int(seq), _number(count) + 1) for seq, count in (state.get("redelivered") or {}).items()
    )
    return ArchivedConsumer(
        name, config, position("delivered"), position("ack_floor"), pending, redelivered
    )


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
