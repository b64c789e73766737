"""The messages of a block against the state: sequences, what is deleted, the digest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_jobs.audit.block_records import BadPlace
from spark_jobs.audit.block_task import BlockFindings, BlockTask, live_seqs
from spark_jobs.replica.record_rows import U64, BlockRows, columns_of, mix, pick, ranges_of
from streamd.offline.engine import MASK64, FooterColumns


def judge_content(
    found: BlockFindings, rows: BlockRows, bad: Sequence[BadPlace], footer: FooterColumns | None
) -> BlockRows:
    """Compare with the delete map and the digest; returns the live rows, the damaged ones
    with the crc that the footer has of them."""
    task = found.task
    if not task.is_judged:
        for place in bad:
            _add_bad(found, place, None, None)
        return rows
    rows = _without_strangers(found, rows)
    wanted = live_seqs(task)
    if len(wanted) == len(rows.seqs) and bool((wanted == rows.seqs).all()):
        live, missing = rows, wanted[:0]
    else:
        live = pick(rows, np.isin(rows.seqs, wanted, assume_unique=True))
        missing = np.setdiff1d(wanted, live.seqs, assume_unique=True)
    _explain(found, missing, rows, bad, footer)
    if bad:
        found.is_whole = False
        if footer is not None:
            live = _with_damaged(task, live, bad, footer)
    elif found.is_whole and not len(missing):
        _compare_digest(found, live, len(rows.seqs))
    return live


def _without_strangers(found: BlockFindings, rows: BlockRows) -> BlockRows:
    """The rows whose seqs belong into this block and ascend."""
    task = found.task
    ordered = len(rows.seqs) < 2 or bool((rows.seqs[1:] > rows.seqs[:-1]).all())
    outside = (rows.seqs < task.first_seq) | (rows.seqs > task.last_seq)
    if not ordered:
        outside[1:] |= rows.seqs[1:] <= np.maximum.accumulate(rows.seqs)[:-1]
    for row in np.flatnonzero(outside):
        found.add(
            "seq-extra",
            seq=int(rows.seqs[row]),
            offset=int(rows.offsets[row]),
            expected=f"sequences {task.first_seq} to {task.last_seq}, ascending",
            got=f"sequence {int(rows.seqs[row])}",
        )
    if not outside.any():
        return rows
    found.is_whole = False
    return pick(rows, ~outside)


def _compare_digest(found: BlockFindings, live: BlockRows, stored_count: int) -> None:
    task = found.task
    digest = int(mix(live.seqs, live.crcs).sum(dtype=np.uint64)) & MASK64
    if digest != task.digest:
        found.add(
            "block-digest",
            seq=task.first_seq,
            seq_hi=task.last_seq,
            expected=f"digest {task.digest:016x} of {task.live} live messages",
            got=f"digest {digest:016x} of {len(live.seqs)}",
        )
    elif stored_count != task.message_count:
        found.add(
            "block-digest",
            seq=task.first_seq,
            seq_hi=task.last_seq,
            expected=f"{task.message_count} messages, dead ones too",
            got=f"{stored_count}",
        )


def _explain(
    found: BlockFindings,
    missing: U64,
    rows: BlockRows,
    bad: Sequence[BadPlace],
    footer: FooterColumns | None,
) -> None:
    """Name the seqs of bad places; what is missing elsewhere is a gap."""
    if found.has("block-short"):
        return
    task = found.task
    told = columns_of(footer) if footer is not None else None
    unexplained = missing
    for place in bad:
        after = int(np.searchsorted(rows.offsets, place.offset))
        low = int(rows.seqs[after - 1]) if after else task.first_seq - 1
        high = int(rows.seqs[after]) if after < len(rows.seqs) else task.last_seq + 1
        here = missing[(missing > low) & (missing < high)]
        if told is not None:
            inside = (told.offsets >= place.offset) & (told.offsets < place.end)
            here = told.seqs[inside]
        unexplained = np.setdiff1d(unexplained, here)
        first = int(here[0]) if len(here) else None
        _add_bad(found, place, first, int(here[-1]) if len(here) else None)
    for low, high in ranges_of(unexplained):
        found.add(
            "seq-gap",
            seq=low,
            seq_hi=high,
            expected="a record of each: the state has not deleted them",
            got="none",
        )


def _add_bad(found: BlockFindings, place: BadPlace, first: int | None, last: int | None) -> None:
    found.add(
        "record-crc",
        seq=first,
        seq_hi=last,
        offset=place.offset,
        expected=f"crc {place.found:#010x} of these bytes" if place.found else "a whole record",
        got=f"crc {place.stored:#010x} in the record"
        if place.found
        else f"{place.end - place.offset} bytes that are none",
    )


def _with_damaged(
    task: BlockTask, live: BlockRows, bad: Sequence[BadPlace], footer: FooterColumns
) -> BlockRows:
    """Add the damaged live rows as the footer knows them, so that their bucket still compares:
    damage is told where it is, not a second time as drift."""
    told = columns_of(footer)
    inside = np.zeros(len(told.seqs), bool)
    for place in bad:
        inside |= (told.offsets >= place.offset) & (told.offsets < place.end)
    inside &= np.isin(told.seqs, live_seqs(task), assume_unique=True)
    inside &= ~np.isin(told.seqs, live.seqs, assume_unique=True)
    more = pick(told, inside)
    joined = BlockRows(
        np.concatenate((live.seqs, more.seqs)),
        np.concatenate((live.crcs, more.crcs)),
        np.concatenate((live.offsets, more.offsets)),
        np.concatenate((live.lengths, more.lengths)),
        np.concatenate((live.tss, more.tss)),
    )
    return pick(joined, np.argsort(joined.seqs, kind="stable"))
