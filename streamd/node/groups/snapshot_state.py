"""The state part of a group's snapshot: who belonged to the group, the history of its log, and
the machine's bytes.

A group's membership comes from its log; once a snapshot has replaced the log up to an index, the
snapshot must say who belonged to the group at that index. And whoever is given the snapshot in the
place of entries must see whether its own log led to it (`raft/history.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgpack

from streamd.errors import CorruptionError
from streamd.raft import membership
from streamd.raft.history import LogPosition
from streamd.raft.membership import Membership

_LENGTH_BYTES = 4
_MARK = membership.MARK  # no state of a machine begins so


def wrap(members: Membership, state: bytes, history: Iterable[LogPosition] = ()) -> bytes:
    """Return `state` with the membership before it, and the history if there is any."""
    head = _part(membership.encode(members)[1:])
    rows = list(history)
    return head + (_part(msgpack.packb(rows)) if rows else b"") + state


def unwrap(blob: bytes) -> tuple[Membership | None, bytes]:
    """Inverse of `wrap`, but for the history. A state that was saved without a membership: (None,
    state)."""
    parts, start = _parts(blob)
    if not parts:
        return None, blob
    return membership.decode(_MARK + parts[0]), blob[start:]


def history_of(blob: bytes) -> tuple[LogPosition, ...]:
    """Return the history that `wrap` was given; a row without a chain has an unknown one."""
    parts, _ = _parts(blob)
    return tuple(LogPosition(*row) for row in msgpack.unpackb(parts[1])) if parts[1:] else ()


def _part(body: bytes) -> bytes:
    return _MARK + (len(body) + 1).to_bytes(_LENGTH_BYTES, "little") + body


def _parts(blob: bytes) -> tuple[list[bytes], int]:
    """Return the parts before the machine's bytes, and where these begin."""
    parts: list[bytes] = []
    at = 0
    while len(parts) < 2 and blob[at : at + 1] == _MARK:
        size = int.from_bytes(blob[at + 1 : at + 1 + _LENGTH_BYTES], "little")
        start = at + 1 + _LENGTH_BYTES
        at = start + size - 1
        if at > len(blob):
            raise CorruptionError(f"snapshot state: membership of {size} bytes in {len(blob)}")
        parts.append(blob[start:at])
    return parts, at
