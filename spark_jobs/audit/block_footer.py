"""The footer of a sealed block: is it whole, and does it tell what the records are?"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from crc32c import crc32c

from spark_jobs.audit.block_records import BadPlace
from spark_jobs.audit.block_task import BlockFindings
from spark_jobs.replica.record_rows import BlockRows, array_of, columns_of, pick, wrong_subject
from streamd.errors import CorruptionError
from streamd.offline.engine import TRAILER_BYTES, FooterColumns, decode_footer, footer_length


def footer_in(found: BlockFindings, blob: bytes, end: int) -> tuple[FooterColumns | None, int]:
    """The footer, if the block has one, and where the records end: at `end` without one."""
    task = found.task
    if task.is_judged and not task.is_sealed:
        return None, end
    length = footer_length(blob)
    if not task.is_judged and not length:
        return None, end
    at = task.end_offset if task.is_judged else len(blob) - length
    if task.is_judged and len(blob) < task.durable_end and not found:
        return None, end
    footer = read_footer(found, blob[at:], at)
    if footer is None:
        return None, min(end, at)
    return (footer if ends_at(found, footer, at) else None), at


def read_footer(found: BlockFindings, blob: bytes, at: int) -> FooterColumns | None:
    """The footer `blob`, which is at offset `at`; None if it is damaged."""
    try:
        footer = decode_footer(blob)
        trailer = len(blob) - TRAILER_BYTES
        if crc32c(blob[:trailer]) != struct.unpack_from("<I", blob, trailer + 4)[0]:
            raise CorruptionError("the trailer of the block is damaged")
    except (CorruptionError, struct.error, AssertionError, KeyError, IndexError) as err:
        if not found.has("block-short", "footer-damaged"):
            found.add("footer-damaged", offset=at, expected="a footer", got=str(err))
        return None
    return footer


def ends_at(found: BlockFindings, footer: FooterColumns, end_offset: int) -> bool:
    """True if the footer is of records up to `end_offset`; else it is another block's."""
    if footer.end_offset == end_offset:
        return True
    found.add(
        "footer-differs",
        offset=end_offset,
        expected=f"records up to {end_offset}",
        got=f"records up to {footer.end_offset}",
    )
    return False


def compare_footer(
    found: BlockFindings,
    footer: FooterColumns,
    rows: BlockRows,
    blob: bytes,
    bad: Sequence[BadPlace],
) -> None:
    """Every valid record against what the footer says of it."""
    end_offset = found.task.end_offset
    told = columns_of(footer)
    if bad:
        # Judge the rows that are there: one finding for one damaged record.
        at = np.searchsorted(told.offsets, rows.offsets)
        at = np.minimum(at, max(len(told.offsets) - 1, 0))
        keep = told.offsets[at] == rows.offsets if len(told.offsets) else np.zeros(0, bool)
        if len(keep) != len(rows.offsets) or not keep.all():
            return
        told = pick(told, at)
        ids = array_of(footer.subject_ids)[at]
    else:
        ids = array_of(footer.subject_ids)
    names = ("sequence", "crc", "offset", "length", "time")
    if len(told.seqs) != len(rows.seqs):
        found.add(
            "footer-differs",
            offset=end_offset,
            expected=f"{len(rows.seqs)} messages, as in the block",
            got=f"{len(told.seqs)} messages in the footer",
        )
        return
    for name, there, here in zip(names, told, rows, strict=True):
        wrong = np.flatnonzero(there != here)
        if len(wrong):
            row = int(wrong[0])
            found.add(
                "footer-differs",
                seq=int(rows.seqs[row]),
                offset=end_offset,
                expected=f"{name} {int(here[row])}, as in the record",
                got=f"{name} {int(there[row])} ({len(wrong)} rows differ)",
            )
            return
    row = wrong_subject(blob, rows, ids, list(footer.subjects))
    if row >= 0:
        found.add(
            "footer-differs",
            seq=int(rows.seqs[row]),
            offset=end_offset,
            expected="the subject of the record",
            got=footer.subjects[int(ids[row])].decode("utf-8", "replace"),
        )
