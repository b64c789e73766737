"""Ways to damage a data directory, each with just one thing wrong afterwards."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.footer import FooterColumns, decode_footer, encode_footer, footer_length
from tests.spark.audit_stores import Replica


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Change bits of one byte; a negative offset counts from the end."""
    blob = bytearray(path.read_bytes())
    blob[offset] ^= mask
    path.write_bytes(blob)


def records_of(path: Path) -> list[fmt.Record]:
    """The records of a block file, without the footer."""
    found = fmt.scan(path.read_bytes()[HEADER_BYTES:], HEADER_BYTES)
    return [record for record in found if record.type != fmt.FOOTER]


def record_of(path: Path, seq: int) -> fmt.Record:
    """The message record of `seq`."""
    return next(r for r in records_of(path) if r.type == fmt.MSG and r.seq == seq)


def put(path: Path, offset: int, blob: bytes) -> None:
    """Overwrite bytes in place."""
    content = bytearray(path.read_bytes())
    assert offset + len(blob) <= len(content), (offset, len(blob), len(content))
    content[offset : offset + len(blob)] = blob
    path.write_bytes(content)


def filler(length: int) -> bytes:
    """A valid record of `length` bytes that is no message."""
    return fmt.encode_record(fmt.FRAME, 1, 0, bytes(length - fmt.RECORD_OVERHEAD_BYTES))


def replace_record(path: Path, seq: int, *, payload: bytes | None = None) -> fmt.Record:
    """Put another valid message under `seq`, of the same length; returns the old one."""
    old = record_of(path, seq)
    new = payload if payload is not None else bytes(b ^ 1 for b in old.payload)
    pieces, lengths, _ = fmt.encode_batch(seq, old.ts, [(old.subject, old.headers, new)])
    assert lengths == [old.length]
    put(path, old.offset, b"".join(pieces))
    return old


def drop_record(path: Path, seq: int) -> None:
    """Make the message of `seq` a record that is none."""
    old = record_of(path, seq)
    put(path, old.offset, filler(old.length))


def change_footer(path: Path, change: Callable[[FooterColumns], None]) -> None:
    """Write the footer of a sealed block anew, whole and valid, after `change`."""
    blob = path.read_bytes()
    length = footer_length(blob)
    footer = decode_footer(blob[len(blob) - length :])
    change(footer)
    path.write_bytes(blob[: len(blob) - length] + encode_footer(footer))


def footer_again(path: Path) -> None:
    """Write the footer of a sealed block anew from its records."""
    messages = [record for record in records_of(path) if record.type == fmt.MSG]

    def change(footer: FooterColumns) -> None:
        flags = dict(
            zip(footer.offsets, (length & ~0x3FFFFFF for length in footer.lengths), strict=True)
        )
        names = list(dict.fromkeys(record.subject for record in messages))
        footer.seqs = array("Q", [record.seq for record in messages])
        footer.offsets = array("I", [record.offset for record in messages])
        footer.lengths = array("I", [r.length | flags[r.offset] for r in messages])
        footer.ts_deltas = array("Q", [record.ts - footer.base_ts for record in messages])
        footer.crcs = array("I", [record.crc for record in messages])
        footer.subject_ids = array("I", [names.index(record.subject) for record in messages])
        footer.subjects = names

    change_footer(path, change)


def swap(one: Path, other: Path) -> None:
    """Exchange two files."""
    blob = one.read_bytes()
    shutil.copyfile(other, one)
    other.write_bytes(blob)


def index_with(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Write index.db anew with another body and the checksum of that."""
    blob = path.read_bytes()
    body = change(blob[40:])
    head = bytearray(blob[:40])
    head[24:32] = len(body).to_bytes(8, "little")
    head[32:36] = crc32c(body).to_bytes(4, "little")
    path.write_bytes(bytes(head) + body)


def snapshots_of(replica: Replica) -> list[Path]:
    """The stream's snapshot files, newest first."""
    return sorted(replica.stream_dir.glob("*.snap"), reverse=True)


def cut(path: Path, at: int) -> None:
    """Truncate a file."""
    with path.open("r+b") as file:
        file.truncate(at)
