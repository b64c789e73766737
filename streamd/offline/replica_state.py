"""A replica of a stream read whole: its state, and every live record verified in its files.

`read_replica` reads all blocks at one log index, message by message: for directories of moderate
size. The Spark audit reads large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streamd.errors import CorruptionError, StreamdError
from streamd.offline.blocks import OTHER
from streamd.offline.engine import HEADER_BYTES, MASK64, mix64
from streamd.offline.engine import record_format as fmt
from streamd.offline.stream_view import BlockView, StreamView
from streamd.types import Seq

_SHOWN_MAX: Final = 20  # faults of one replica


class Message(NamedTuple):
    """A live message of a block, as its record has it."""

    seq: Seq
    ts_ns: int
    subject: bytes
    headers: bytes
    payload: bytes
    crc: int
    offset: int  # of its record in the block


@dataclass(slots=True)
class ReplicaState:
    """State of one replica at a log index, and what its files have of it."""

    replica: str
    applied: int
    digest: int
    first_seq: Seq
    last_seq: Seq
    messages: int
    crcs: dict[Seq, int] = field(default_factory=dict)  # of the live records that are whole
    faults: list[str] = field(default_factory=list)
    fault_seqs: list[Seq] = field(default_factory=list)  # live messages without a whole record
    blocks: int = 0
    read_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """True if every live message has a whole record, and the blocks' digests are right."""
        return not self.faults and not self.fault_seqs


def messages_of(block: BlockView) -> Iterator[Message]:
    """Yield the live messages of a block in order. Raises CorruptionError at damage, and
    FileNotFoundError if the file is gone."""
    blob = bytes(block.read()[: block.end_offset])
    dead = iter((*block.dead, (1 << 63, 1 << 63)))
    low, high = next(dead)
    end = HEADER_BYTES
    for record in fmt.scan(blob[HEADER_BYTES:], HEADER_BYTES):
        end = record.offset + record.length
        if record.type != fmt.MSG:
            continue
        while record.seq > high:
            low, high = next(dead)
        if record.seq < low:
            yield Message(
                record.seq,
                record.ts,
                record.subject,
                record.headers,
                record.payload,
                record.crc,
                record.offset,
            )
    if end < block.end_offset:
        raise CorruptionError(
            f"{block.path}: offset {end}: a record is damaged or missing; the block goes on to "
            f"{block.end_offset}"
        )


def read_replica(view: StreamView) -> ReplicaState:
    """Return the state of a replica, with every live record read and verified."""
    index = view.machine.index
    found = ReplicaState(
        view.replica, view.applied, view.digest, view.first_seq, view.last_seq, view.messages
    )
    torn = {each.block_no: each for each in view.torn if each.reason == OTHER}
    for block in view.blocks:
        if not block.live:
            continue
        found.blocks += 1
        total, torn_seq, seen = 0, 0, set()
        other = torn.get(block.block_no)  # the log has it right, and was read instead
        if other is not None:
            found.faults.append(f"{other}; a start writes it again from the log")
        try:
            for message in messages_of(block):
                found.crcs[message.seq] = message.crc
                seen.add(message.seq)
                total += mix64(message.seq, message.crc)
                if other is not None and message.offset <= other.offset:
                    torn_seq = message.seq
            if torn_seq:
                found.fault_seqs.append(torn_seq)
        except (StreamdError, OSError) as err:
            found.faults.append(str(err))
        else:
            found.read_bytes += block.byte_count
            if total & MASK64 != block.digest:
                found.faults.append(f"{block.path}: its records are not those of the state")
        if len(seen) != block.live:
            lacking = [
                seq
                for seq in range(block.first_seq, block.last_seq + 1)
                if seq not in seen and index.live.has(seq)
            ]
            found.fault_seqs += lacking
    return found


def differing_seqs(states: list[ReplicaState]) -> list[Seq]:
    """Return the sequences of which these replicas have different records, or not all have one."""
    first = states[0].crcs
    found: set[Seq] = set()
    for other in states[1:]:
        if other.crcs != first:
            seqs = first.keys() | other.crcs.keys()
            found |= {seq for seq in seqs if first.get(seq) != other.crcs.get(seq)}
    for state in states:
        found |= set(state.fault_seqs)
    return sorted(found)


def ranges_text(seqs: list[Seq]) -> str:
    """Return sequences as `3, 7..9`, the first of them if there are many."""
    parts: list[str] = []
    at = 0
    while at < len(seqs) and len(parts) < _SHOWN_MAX:
        end = at
        while end + 1 < len(seqs) and seqs[end + 1] == seqs[end] + 1:
            end += 1
        parts.append(str(seqs[at]) if end == at else f"{seqs[at]}..{seqs[end]}")
        at = end + 1
    return ", ".join(parts) + (f" and {len(seqs) - at} more" if at < len(seqs) else "")
