"""Comparison of one block file with the state: every record, the footer, the delete map.

Runs in Spark tasks and needs no Spark. What it returns is small: findings, and the live messages
as columns. Its parts: `block_records`, `block_tail`, `block_footer` and `block_content`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_jobs.audit.block_content import judge_content
from spark_jobs.audit.block_footer import compare_footer, ends_at, footer_in, read_footer
from spark_jobs.audit.block_records import find_messages, records_at
from spark_jobs.audit.block_tail import judge_tail
from spark_jobs.audit.block_task import BlockFindings, BlockTask, blob_of, with_tail
from spark_jobs.audit.findings import Finding
from spark_jobs.replica.record_rows import (
    BlockRows,
    array_of,
    columns_of,
    gather,
    no_rows,
    numbers_at,
    subject_sum_of,
)
from streamd.errors import CorruptionError
from streamd.offline.engine import HEADER_BYTES, TRAILER_BYTES, FooterColumns, footer_length
from streamd.offline.engine import record_format as fmt
from streamd.offline.read_only_disk import content_of

QUICK: Final = "quick"
DIGEST: Final = "digest"
FULL: Final = "full"
LEVELS: Final = (QUICK, DIGEST, FULL)


class Checked(NamedTuple):
    """Outcome of the check of a block."""

    findings: list[Finding]
    rows: BlockRows  # live messages
    record_count: int  # messages looked at, dead ones too
    byte_count: int  # read from the file
    has_headers: bool
    subject_sum: int = -1  # see `subject_sum`; -1: not asked for, or not known


def check_file(task: BlockTask, level: str) -> Checked:
    """Read the block and check it. Raises OSError for anything but a file that is not there or
    that the disk does not give back."""
    reads_all = level == FULL or not task.is_sealed or bool(task.tail)
    try:
        with content_of(task.path) as file:
            size = file.size
            if reads_all:  # also where there is nothing to read: the disk may say so
                return _Check(task, file.read(max(size, HEADER_BYTES), 0)).run(level)
            head = file.read(HEADER_BYTES, 0)
            length = footer_length(file.read(TRAILER_BYTES, max(0, size - TRAILER_BYTES)))
            footer = b""
            if HEADER_BYTES <= size - length < size:
                footer = file.read(length, size - length)
            if size < task.durable_end or not _is_usable(footer, size - length, task):
                # Its records tell what is left of it: what is whole must not count as missing.
                return _Check(task, file.read(size, 0)).run(level)
    except FileNotFoundError:
        if not task.durable_end:
            return _Check(task, b"").run(level)
        found = BlockFindings(task)
        found.add_about_all("block-missing", got="no file")
        return Checked(found.told(), no_rows(), 0, 0, False)
    except OSError as err:
        if err.errno != errno.EIO:
            raise
        found = BlockFindings(task)
        found.add_about_all("block-unreadable", got=str(err.strerror))
        return Checked(found.told(), no_rows(), 0, 0, False)
    return _Check(task, head).run_footer(footer, size)


def _is_usable(footer: bytes, footer_at: int, task: BlockTask) -> bool:
    """Whether the columns of a footer can stand for the records of its block."""
    found = BlockFindings(task)
    columns = read_footer(found, footer, footer_at)
    return columns is not None and ends_at(found, columns, task.end_offset)


def stored_messages(task: BlockTask) -> Iterator[fmt.Record]:
    """Every valid message of a block, dead ones too. Says nothing of damage and goes on behind
    it. Raises OSError as `check_file`."""
    blob = blob_of(task)
    end = min(len(blob), task.end_offset) if task.is_judged else len(blob)
    footer, end = footer_in(BlockFindings(task), blob, end)
    offsets, _ = find_messages(blob, end=end, first_seq=task.first_seq, footer=footer)
    yield from records_at(blob, offsets)


class _Check:
    """A check of one block, of which `blob` is what was read."""

    def __init__(self, task: BlockTask, blob: bytes) -> None:
        self.task = task
        self.blob = blob
        self.found = BlockFindings(task)

    # --- every record -----------------------------------------------------------------------

    def run(self, level: str) -> Checked:
        """Check the whole file."""
        task, found, blob = self.task, self.found, self.blob
        byte_count = len(blob)
        if len(blob) < task.durable_end:
            self._add_short()
        if not self._has_header():
            return self._nothing(byte_count)
        end = len(blob)
        if task.is_judged:
            if not task.is_sealed or task.durable_end < task.end_offset:
                judge_tail(found, blob)
            end = min(len(blob), task.durable_end, task.end_offset)
        if task.tail:
            # What the log has and the file has not, or not whole, is as good as stored.
            blob = with_tail(task, blob)
            end = task.end_offset if task.is_judged else len(blob)
        footer, end = footer_in(found, blob, end)
        offsets, bad = find_messages(blob, end=end, first_seq=task.first_seq, footer=footer)
        rows = gather(blob, offsets)
        if footer is not None and level == FULL:
            compare_footer(found, footer, rows, blob, bad)
        has_headers = bool(len(offsets)) and bool(numbers_at(blob, rows.offsets + 8, 4).any())
        live = judge_content(found, rows, bad, footer)
        return self._done(blob, live, footer, len(offsets) + len(bad), byte_count, has_headers)

    def _add_short(self) -> None:
        task, found = self.task, self.found
        size = len(self.blob)
        kept = fmt.verified_length(self.blob[HEADER_BYTES:]) + HEADER_BYTES
        if task.is_sealed and kept == task.end_offset:
            found.add(
                "footer-damaged",
                offset=task.end_offset,
                expected=f"{task.durable_end - task.end_offset} bytes of footer",
                got=f"{size - task.end_offset}",
            )
            return
        found.is_whole = False
        first_seq, offset = task.first_seq, size
        if kept > HEADER_BYTES:
            last = 0
            for record in fmt.scan(self.blob[HEADER_BYTES:kept], HEADER_BYTES):
                if record.type == fmt.MSG:
                    last = record.seq
            first_seq, offset = max(last + 1, task.first_seq), kept
        found.add(
            "block-short",
            seq=first_seq or None,
            seq_hi=_last_before_tail(task) or None,
            offset=offset,
            expected=f"{task.durable_end} bytes",
            got=f"{size} bytes",
        )

    def _has_header(self) -> bool:
        """Check the header; False if the records after it are not worth a look."""
        task, found, blob = self.task, self.found, self.blob
        if len(blob) < HEADER_BYTES and task.durable_end < HEADER_BYTES:
            return bool(task.tail)
        try:
            fmt.check_block_header(blob[:HEADER_BYTES], task.uid, task.block_no)
            return True
        except CorruptionError as err:
            if not task.durable_end:
                if len(blob) > HEADER_BYTES or blob.strip(b"\0"):
                    found.add("torn-tail", offset=0, got="a block's header, torn")
                return False
            if len(blob) < task.durable_end and len(blob) < HEADER_BYTES:
                return False  # told already: the block is short
            found.is_whole = False
            is_other = len(blob) >= HEADER_BYTES and crc32c(blob[:HEADER_BYTES]) == fmt.RESIDUE
            goes_on = not is_other and fmt.verify_at(blob, HEADER_BYTES) > 0
            add = found.add if goes_on else found.add_about_all
            add(
                "block-header",
                offset=0,
                expected=f"block {task.block_no} of stream uid {task.uid}",
                got=str(err).partition(": ")[2] if is_other else blob[:32].hex(),
            )
            return goes_on

    # --- sealed blocks by their footer ------------------------------------------------------

    def run_footer(self, footer_bytes: bytes, size: int) -> Checked:
        """Header and footer only, of a file of `size` bytes: the footer's columns stand for the
        records."""
        task, found = self.task, self.found
        byte_count = HEADER_BYTES + len(footer_bytes) + TRAILER_BYTES
        if size < task.durable_end:
            found.add(
                "block-short",
                seq=task.first_seq or None,
                seq_hi=task.last_seq or None,
                offset=size,
                expected=f"{task.durable_end} bytes",
                got=f"{size} bytes",
            )
            return self._nothing(byte_count)
        if not self._has_header() and found:
            return self._nothing(byte_count)
        footer = read_footer(found, footer_bytes, task.end_offset)
        if footer is None or not ends_at(found, footer, task.end_offset):
            return self._nothing(byte_count)
        rows = columns_of(footer)
        live = judge_content(found, rows, (), footer)
        has_headers = bool((array_of(footer.lengths) >> 31).any())
        return self._done(b"", live, footer, len(rows.seqs), byte_count, has_headers)

    def _nothing(self, byte_count: int) -> Checked:
        return Checked(self.found.told(), no_rows(), 0, byte_count, False)

    def _done(
        self,
        blob: bytes,
        live: BlockRows,
        footer: FooterColumns | None,
        record_count: int,
        byte_count: int,
        has_headers: bool,
    ) -> Checked:
        done = Checked(self.found.told(), live, record_count, byte_count, has_headers)
        if self.task.wants_subjects and not self.found:
            return done._replace(subject_sum=subject_sum_of(blob, live, footer))
        return done


def _last_before_tail(task: BlockTask) -> int:
    """The last seq of the block that the log does not give back."""
    for record in fmt.scan(task.tail):
        if record.type == fmt.MSG:
            return record.seq - 1
    return task.last_seq
