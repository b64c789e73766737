"""The end of a block that is still written: what lies behind its last durable byte.

Nothing there is durable by itself: it may be torn, or as the log says, or something else.
"""

from __future__ import annotations

from crc32c import crc32c

from spark_jobs.audit.block_records import seq_of, stored_crc
from spark_jobs.audit.block_task import BlockFindings
from streamd.offline.engine import footer_length
from streamd.offline.engine import record_format as fmt


def judge_tail(found: BlockFindings, blob: bytes) -> None:
    """Compare the bytes of the file behind `durable_end` with those that the log has."""
    task = found.task
    end = min(len(blob), task.durable_end)
    if len(blob) <= end:
        return
    wanted, at = task.tail, 0
    base = task.tail_at if task.tail else end
    while base + at < len(blob):
        length = fmt.verify_at(wanted, at) if at < len(wanted) else 0
        if not length:  # behind all that is known
            _judge_unknown(found, blob, base + at)
            return
        part = blob[base + at : base + at + length]
        if part != wanted[at : at + length]:
            _judge_difference(found, blob, base, at, length)
            return
        at += length


def _judge_difference(found: BlockFindings, blob: bytes, base: int, at: int, length: int) -> None:
    """The record at `base + at` is not the one of `length` bytes that the log has at `at`."""
    wanted = found.task.tail
    offset = base + at
    seq = seq_of(wanted, at)
    if there := fmt.verify_at(blob, offset):
        found.add(
            "log-store-mismatch",
            seq=seq,
            offset=offset,
            expected=f"crc {stored_crc(wanted, at, length):#010x}, from the log",
            got=f"a record with crc {stored_crc(blob, offset, there):#010x}",
        )
    elif _goes_on(blob, offset + length, wanted, at + length):
        found.add(
            "record-crc",
            seq=seq,
            offset=offset,
            expected=f"crc {stored_crc(wanted, at, length):#010x}",
            got=f"crc {crc32c(blob[offset : offset + length - 4]):#010x}",
            advice="the log still holds it: the next start writes it again",
        )
    else:
        _add_torn(found, offset, f"{len(blob) - offset} bytes of no whole record")


def _goes_on(blob: bytes, pos: int, wanted: bytes, at: int) -> bool:
    """True if the next record of the log is in the file where it should be."""
    length = fmt.verify_at(wanted, at) if at < len(wanted) else 0
    return bool(length) and blob[pos : pos + length] == wanted[at : at + length]


def _judge_unknown(found: BlockFindings, blob: bytes, pos: int) -> None:
    """Records that were written after the log was read, or not known to be committed."""
    pos += fmt.verified_length(blob[pos:])
    left = len(blob) - pos
    if left and not footer_length(blob):
        _add_torn(found, pos, f"{left} bytes of no whole record")


def _add_torn(found: BlockFindings, offset: int, got: str) -> None:
    found.add("torn-tail", offset=offset, expected="a whole record", got=got)
