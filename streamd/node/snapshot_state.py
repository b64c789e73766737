"""The state part of a group's snapshot: who belonged to the group, and the machine's bytes.

A group's membership comes from its log; once a snapshot has replaced the log up to an index, the
snapshot must say who belonged to the group at that index.
"""

from __future__ import annotations

from streamd.errors import CorruptionError
from streamd.raft import membership
from streamd.raft.membership import Membership

_LENGTH_BYTES = 4


def wrap(members: Membership, state: bytes) -> bytes:
    """Return `state` with the membership before it."""
    head = membership.encode(members)
    return head[:1] + len(head).to_bytes(_LENGTH_BYTES, "little") + head[1:] + state


def unwrap(blob: bytes) -> tuple[Membership | None, bytes]:
    """Inverse of `wrap`. A state that was saved without a membership: (None, state)."""
    if blob[:1] != membership.MARK:
        return None, blob
    size = int.from_bytes(blob[1 : 1 + _LENGTH_BYTES], "little")
    start = 1 + _LENGTH_BYTES
    end = start + size - 1
    if end > len(blob):
        raise CorruptionError(f"snapshot state: membership of {size} bytes in {len(blob)}")
    return membership.decode(blob[:1] + blob[start:end]), blob[end:]
