"""Verification of whole blocks: every record, the footer, and each against the other. Pure."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.footer import TRAILER_BYTES, FooterColumns, decode_footer
from streamd.store.blocks.record_format import block_name
from streamd.types import Seq, Uid

_unpack = Struct("<IB7xQ").unpack_from  # length, type, seq
_unpack_crc = Struct("<I").unpack_from
assert fmt.RECORD_OVERHEAD_BYTES == 32  # 28 before the subject, of which `_unpack` reads 20


class BlockRows(NamedTuple):
    """Messages in a block's records, dead ones included, in order."""

    seqs: list[Seq]
    crcs: list[int]
    end_offset: int  # where the last record ends
    is_sealed: bool


def check_block(blob: bytes, uid: Uid, block_no: int) -> int:
    """Raise CorruptionError unless all of `blob` is that block; return where its records end.

    A block is header, records, and a whole footer or none. The footer is not compared with the
    records.
    """
    fmt.check_block_header(blob, uid, block_no)
    end = HEADER_BYTES + fmt.verified_length(blob[HEADER_BYTES:])
    if end != len(blob):
        _footer_of(blob, block_no, end)
    return end


def rows_of(blob: bytes, uid: Uid, block_no: int) -> BlockRows:
    """Check a block as `check_block`, and every record against the footer; return its rows."""
    fmt.check_block_header(blob, uid, block_no)
    seqs: list[Seq] = []
    crcs: list[int] = []
    offsets: list[int] = []
    lengths: list[int] = []
    pos = HEADER_BYTES
    last = len(blob) - fmt.RECORD_OVERHEAD_BYTES
    while pos <= last:
        length, kind, seq = _unpack(blob, pos)
        end = pos + length
        if length < fmt.RECORD_OVERHEAD_BYTES or not 0 < kind < fmt.FOOTER or end > len(blob):
            break
        if crc32c(blob[pos:end]) != fmt.RESIDUE:
            break
        if kind == fmt.MSG:
            seqs.append(seq)
            crcs.append(_unpack_crc(blob, end - 4)[0])
            offsets.append(pos)
            lengths.append(length)
        pos = end
    if pos == len(blob):
        return BlockRows(seqs, crcs, pos, False)
    footer = _footer_of(blob, block_no, pos)
    count = len(footer.offsets)
    told = footer.seqs or range(footer.first_seq, footer.first_seq + count)
    mask = (1 << 26) - 1  # the top bits are the machine's flags: see machine/base.py
    if (
        list(footer.offsets) != offsets
        or [length & mask for length in footer.lengths] != lengths
        or list(footer.crcs) != crcs
        or list(told) != seqs
    ):
        raise CorruptionError(f"{block_name(block_no)}: the footer belongs to other records")
    return BlockRows(seqs, crcs, pos, True)


def _footer_of(blob: bytes, block_no: int, end: int) -> FooterColumns:
    """Return the footer that must begin at `end` and be the rest of `blob`."""
    try:
        footer = decode_footer(blob[end:])
    except CorruptionError as err:
        raise CorruptionError(
            f"{block_name(block_no)}: offset {end}: neither a valid record nor the footer"
        ) from err
    record_end = len(blob) - TRAILER_BYTES
    if crc32c(blob[end:record_end]) != _unpack_crc(blob, record_end + 4)[0]:
        raise CorruptionError(f"{block_name(block_no)}: offset {record_end}: trailer damaged")
    if footer.end_offset != end:
        raise CorruptionError(
            f"{block_name(block_no)}: records end at {end}, the footer says {footer.end_offset}"
        )
    return footer
