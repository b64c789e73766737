"""One block file against what the state says of it: every record, the footer, the delete map.

Runs in Spark tasks and needs no Spark. numpy does what is per message, except for a loop over the
records where something is damaged or no footer says where they are. What it returns is small:
findings, and a digest per `BUCKET` seqs.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from spark_jobs.audit_findings import Finding, finding
from spark_jobs.audit_rows import (
    I64,
    U64,
    BlockRows,
    array_of,
    columns_of,
    gather,
    mix,
    no_rows,
    numbers_at,
    pick,
    ranges_of,
    subject_sum_of,
    wrong_subject,
)
from spark_jobs.checksums import record_starts
from streamd.errors import CorruptionError
from streamd.machine.digest import MASK64
from streamd.store import format as fmt
from streamd.store.block import HEADER_BYTES
from streamd.store.footer import TRAILER_BYTES, FooterColumns, decode_footer, footer_length

QUICK: Final = "quick"
DIGEST: Final = "digest"
FULL: Final = "full"
LEVELS: Final = (QUICK, DIGEST, FULL)
FINDINGS_MAX: Final = 200  # of one block; what follows is counted in the last one
_SEARCH_BYTES: Final = 1 << 18  # looked through byte by byte for the record after a damaged one
_SEARCH_SEQS: Final = 64

_unpack_head = struct.Struct("<IB").unpack_from


class BlockTask(NamedTuple):
    """What one task must know to judge one block. Small and picklable."""

    replica: str
    stream: str
    uid: int
    path: str
    block_no: int
    first_seq: int  # of the messages stored in it; 0: none
    last_seq: int
    message_count: int  # ever stored in it
    live: int
    digest: int
    end_offset: int  # where its records end
    is_sealed: bool
    dead: tuple[tuple[int, int], ...]  # inclusive seq ranges that are not live
    durable_end: int  # the file must reach that far, the footer of a sealed block included
    tail: bytes = b""  # what follows `durable_end` and is, for certain, only in the log
    tail_at: int = 0  # where `tail` begins
    is_judged: bool = True  # False: no state is known, only the bytes are checked
    wants_subjects: bool = False  # count the live messages of each subject, as one sum


class Checked(NamedTuple):
    """What a check found."""

    findings: list[Finding]
    rows: BlockRows
    record_count: int  # messages looked at, dead ones too
    byte_count: int  # read from the file
    has_headers: bool
    subject_sum: int = -1  # see `subject_sum`; -1: not asked for, or not known


class _Bad(NamedTuple):
    """A place where no valid record is."""

    offset: int
    end: int  # the next valid record, or where the records end
    stored: int  # crc that stands there, 0: unknown
    found: int


def check_file(task: BlockTask, level: str) -> Checked:
    """Read the block and check it. Raises OSError for anything but a file that is not there."""
    reads_all = level == FULL or not task.is_sealed or bool(task.tail)
    try:
        with open(task.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if reads_all:
                blob = file.read()
                return _Check(task, level, blob, len(blob), len(blob)).run()
            head = file.read(HEADER_BYTES)
            file.seek(max(0, size - TRAILER_BYTES))
            length = footer_length(file.read(TRAILER_BYTES))
            footer = b""
            if HEADER_BYTES <= size - length < size:
                file.seek(size - length)
                footer = file.read(length)
    except FileNotFoundError:
        if not task.durable_end:
            return _Check(task, level, b"", 0, 0).run()
        return _nothing([_about(task, "block-missing", got="no file")])
    check = _Check(task, level, head, size, HEADER_BYTES + len(footer) + TRAILER_BYTES)
    return check.run_footer(footer, size)


def blob_of(task: BlockTask) -> bytes:
    """The block's bytes, with what only the log has of it."""
    try:
        with open(task.path, "rb") as file:
            blob = file.read()
    except FileNotFoundError:
        blob = b""
    return _with_tail(task, blob)


def _with_tail(task: BlockTask, blob: bytes) -> bytes:
    if not task.tail:
        return blob
    if task.tail_at == HEADER_BYTES:
        blob = fmt.encode_block_header(task.uid, task.block_no)
    return blob[: task.tail_at] + task.tail


def _nothing(findings: list[Finding]) -> Checked:
    return Checked(findings, no_rows(), 0, 0, False)


def _about(task: BlockTask, code: str, **fields: Any) -> Finding:
    """A finding about the whole block."""
    if task.first_seq and "seq" not in fields:
        fields |= {"seq": task.first_seq, "seq_hi": task.last_seq}
    return finding(code, replica=task.replica, stream=task.stream, file=task.path, **fields)


class _Check:
    """One check of one block."""

    def __init__(
        self, task: BlockTask, level: str, blob: bytes, size: int, byte_count: int
    ) -> None:
        self.task = task
        self.level = level
        self.blob = blob
        self.size = size
        self.byte_count = byte_count
        self.findings: list[Finding] = []
        self.bad: list[_Bad] = []
        self.is_whole = True  # nothing so far explains a difference to the state
        self.left_out = 0  # findings beyond FINDINGS_MAX

    def add(self, code: str, **fields: Any) -> None:
        if len(self.findings) == FINDINGS_MAX:
            self.left_out += 1
            return
        task = self.task
        fields.setdefault("file", task.path)
        self.findings.append(finding(code, replica=task.replica, stream=task.stream, **fields))

    def done(self, rows: BlockRows | None, count: int = 0, has_headers: bool = False) -> Checked:
        if self.left_out:
            last = self.findings[-1]
            self.findings[-1] = last._replace(
                got=f"{last.got}; and {self.left_out} more in this block"
            )
            self.left_out = 0
        if rows is None:
            rows = no_rows()
        return Checked(self.findings, rows, count, self.byte_count, has_headers)

    # --- everything -------------------------------------------------------------------------

    def run(self) -> Checked:
        task, blob = self.task, self.blob
        if len(blob) < task.durable_end:
            self._short()
        if not self._has_header():
            return self.done(None)
        end = self._compare_tail()
        if task.tail:
            # What the log has and the file has not, or not whole, is as good as stored.
            self.blob = blob = _with_tail(task, blob)
            end = task.end_offset if task.is_judged else len(blob)
        footer, end = self._footer(blob, end)
        offsets = _whole_messages(blob, end, footer)
        if offsets is None:
            offsets = np.array(self._walk(blob, end, footer), np.int64)
        rows = gather(blob, offsets)
        if footer is not None and self.level == FULL:
            self._compare_footer(footer, rows, blob)
        has_headers = bool(len(offsets)) and bool(numbers_at(blob, rows.offsets + 8, 4).any())
        live = self._judge(rows, footer)
        done = self.done(live, len(offsets) + len(self.bad), has_headers)
        if task.wants_subjects and not self.findings:
            return done._replace(subject_sum=subject_sum_of(blob, live, footer))
        return done

    def _short(self) -> None:
        task = self.task
        known = self.is_whole = False
        seqs = task.first_seq, task.last_seq
        kept = fmt.verified_length(self.blob[HEADER_BYTES:]) + HEADER_BYTES
        footer_only = task.is_sealed and kept == task.end_offset
        if footer_only:
            self.add(
                "footer-damaged",
                offset=task.end_offset,
                expected=f"{task.durable_end - task.end_offset} bytes of footer",
                got=f"{self.size - task.end_offset}",
            )
            self.is_whole = True
            return
        if kept > HEADER_BYTES:
            last = 0
            for record in fmt.scan(self.blob[HEADER_BYTES:kept], HEADER_BYTES):
                if record.type == fmt.MSG:
                    last = record.seq
            known = True
            seqs = (max(last + 1, task.first_seq), task.last_seq)
        self.add(
            "block-short",
            seq=seqs[0] or None,
            seq_hi=seqs[1] or None,
            offset=kept if known else len(self.blob),
            expected=f"{task.durable_end} bytes",
            got=f"{len(self.blob)} bytes",
        )

    def _has_header(self) -> bool:
        """Check the header; False if the records after it are not worth a look."""
        task, blob = self.task, self.blob
        if len(blob) < HEADER_BYTES and task.durable_end < HEADER_BYTES:
            return bool(task.tail)
        try:
            fmt.check_block_header(blob[:HEADER_BYTES], task.uid, task.block_no)
            return True
        except CorruptionError as err:
            if not task.durable_end:
                if len(blob) > HEADER_BYTES or blob.strip(b"\0"):
                    self.add("torn-tail", offset=0, got="a block's header, torn")
                return False
            if len(blob) < task.durable_end and len(blob) < HEADER_BYTES:
                return False  # told already: the block is short
            self.is_whole = False
            is_other = len(blob) >= HEADER_BYTES and crc32c(blob[:HEADER_BYTES]) == fmt.RESIDUE
            goes_on = not is_other and fmt.verify_at(blob, HEADER_BYTES) > 0
            fields: dict[str, Any] = {}
            if not goes_on and task.first_seq:
                fields = {"seq": task.first_seq, "seq_hi": task.last_seq}
            self.add(
                "block-header",
                offset=0,
                expected=f"block {task.block_no} of stream uid {task.uid}",
                got=str(err).partition(": ")[2] if is_other else blob[:32].hex(),
                **fields,
            )
            return goes_on

    def _compare_tail(self) -> int:
        """Judge what lies behind `durable_end`. Returns where the records to check end."""
        task, blob = self.task, self.blob
        end = min(len(blob), task.durable_end)
        if task.is_judged and (not task.is_sealed or task.durable_end < task.end_offset):
            self._judge_tail(end)
        return min(end, task.end_offset) if task.is_judged else len(blob)

    def _judge_tail(self, end: int) -> None:
        """Nothing from `end` on is durable by itself: torn, as the log says, or another."""
        task, blob = self.task, self.blob
        if len(blob) <= end:
            return
        wanted, at = task.tail, 0
        base = task.tail_at if task.tail else end
        while base + at < len(blob):
            length = fmt.verify_at(wanted, at) if at < len(wanted) else 0
            if not length:  # behind all that is known
                self._judge_unknown(base + at)
                return
            part = blob[base + at : base + at + length]
            if part != wanted[at : at + length]:
                seq = _seq_of(wanted, at)
                if fmt.verify_at(blob, base + at):
                    self.add(
                        "log-store-mismatch",
                        seq=seq,
                        offset=base + at,
                        expected=f"crc {_stored_crc(wanted, at, length):#010x}, from the log",
                        got=f"a record with crc {_crc_there(blob, base + at):#010x}",
                    )
                elif self._goes_on(base + at + length, wanted, at + length):
                    self.add(
                        "record-crc",
                        seq=seq,
                        offset=base + at,
                        expected=f"crc {_stored_crc(wanted, at, length):#010x}",
                        got=f"crc {crc32c(part[:-4]):#010x}",
                        advice="the log still holds it: the next start writes it again",
                    )
                else:
                    self._torn(base + at, f"{len(blob) - base - at} bytes of no whole record")
                return
            at += length

    def _goes_on(self, pos: int, wanted: bytes, at: int) -> bool:
        """True if the next record of the log is in the file where it should be."""
        length = fmt.verify_at(wanted, at) if at < len(wanted) else 0
        return bool(length) and self.blob[pos : pos + length] == wanted[at : at + length]

    def _judge_unknown(self, pos: int) -> None:
        """Records that were written after the log was read, or not known to be committed."""
        pos += fmt.verified_length(self.blob[pos:])
        left = len(self.blob) - pos
        if left and not footer_length(self.blob):
            self._torn(pos, f"{left} bytes of no whole record")

    def _torn(self, offset: int, got: str) -> None:
        self.add("torn-tail", offset=offset, expected="a whole record", got=got)

    # --- records ----------------------------------------------------------------------------

    def _footer(self, blob: bytes, end: int) -> tuple[FooterColumns | None, int]:
        """The footer, if the block has one, and where the records end."""
        task = self.task
        if task.is_judged and not task.is_sealed:
            return None, end
        length = footer_length(blob)
        if not task.is_judged and not length:
            return None, end
        at = task.end_offset if task.is_judged else len(blob) - length
        if task.is_judged and len(blob) < task.durable_end and not self.findings:
            return None, end
        try:
            footer = decode_footer(blob[at:] if at < len(blob) else b"")
            record_end = len(blob) - TRAILER_BYTES
            if crc32c(blob[at:record_end]) != struct.unpack_from("<I", blob, record_end + 4)[0]:
                raise CorruptionError("its trailer is damaged")
        except (CorruptionError, struct.error, AssertionError, KeyError, IndexError) as err:
            if not any(each.code in ("block-short", "footer-damaged") for each in self.findings):
                self.add("footer-damaged", offset=at, expected="a footer", got=str(err))
            return None, min(end, at)
        if footer.end_offset != at:
            self.add(
                "footer-differs",
                offset=at,
                expected=f"records up to {at}",
                got=f"records up to {footer.end_offset}",
            )
            return None, at
        return footer, at

    def _walk(self, blob: bytes, end: int, footer: FooterColumns | None) -> list[int]:
        """Offsets of the valid message records; `bad` gets the places of the others."""
        offsets: list[int] = []
        add = offsets.append
        checksum = crc32c
        unpack = _unpack_head
        residue, overhead, first_bad_kind = fmt.RESIDUE, fmt.RECORD_OVERHEAD_BYTES, fmt.FOOTER
        pos = HEADER_BYTES
        last = end - overhead
        while pos < end:
            while pos <= last:
                length, kind = unpack(blob, pos)
                after = pos + length
                if (
                    length < overhead
                    or not 0 < kind < first_bad_kind
                    or after > end
                    or checksum(blob[pos:after]) != residue
                ):
                    break
                if kind == 1:
                    add(pos)
                pos = after
            if pos < end:
                pos = self._pass_bad(blob, pos, end, footer, offsets)
        return offsets

    def _pass_bad(
        self,
        blob: bytes,
        pos: int,
        end: int,
        footer: FooterColumns | None,
        offsets: list[int],
    ) -> int:
        """Note the bad place at `pos`; return where the next record begins, or `end`."""
        after = self._next_record(blob, pos, end, footer, offsets)
        stored = found = 0
        if after - pos >= fmt.RECORD_OVERHEAD_BYTES:
            stored = int.from_bytes(blob[after - 4 : after], "little")
            found = crc32c(blob[pos : after - 4])
        self.bad.append(_Bad(pos, after, stored, found))
        return after

    def _next_record(
        self,
        blob: bytes,
        pos: int,
        end: int,
        footer: FooterColumns | None,
        offsets: list[int],
    ) -> int:
        length = _unpack_head(blob, pos)[0] if pos + 5 <= end else 0
        if length >= fmt.RECORD_OVERHEAD_BYTES and pos + length <= end:
            after: int = pos + length
            if after == end or fmt.verify_at(blob, after):
                return after
        if footer is not None and len(footer.offsets):
            told = np.frombuffer(footer.offsets, dtype=f"<u{footer.offsets.itemsize}")
            row = int(np.searchsorted(told, pos, side="right"))
            if row < len(told):
                return int(told[row])  # whatever is there: it is looked at next
            return end
        seq = (_seq_of(blob, offsets[-1]) or 0) if offsets else self.task.first_seq - 1
        for each in range(seq + 1, seq + 1 + _SEARCH_SEQS):
            at = blob.find(struct.pack("<Q", each), pos + 1, end)
            if at - 12 > pos and fmt.verify_at(blob, at - 12):
                return at - 12
        for at in range(pos + 1, min(end, pos + _SEARCH_BYTES)):
            if fmt.verify_at(blob, at):
                return at
        return end

    def _compare_footer(self, footer: FooterColumns, rows: BlockRows, blob: bytes) -> None:
        """Every valid record against what the footer says of it."""
        told = columns_of(footer)
        if self.bad:
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
            self.add(
                "footer-differs",
                offset=self.task.end_offset,
                expected=f"{len(rows.seqs)} messages, as in the block",
                got=f"{len(told.seqs)} messages in the footer",
            )
            return
        for name, there, here in zip(names, told, rows, strict=True):
            wrong = np.flatnonzero(there != here)
            if len(wrong):
                row = int(wrong[0])
                self.add(
                    "footer-differs",
                    seq=int(rows.seqs[row]),
                    offset=self.task.end_offset,
                    expected=f"{name} {int(here[row])}, as in the record",
                    got=f"{name} {int(there[row])} ({len(wrong)} rows differ)",
                )
                return
        row = wrong_subject(blob, rows, ids, list(footer.subjects))
        if row >= 0:
            self.add(
                "footer-differs",
                seq=int(rows.seqs[row]),
                offset=self.task.end_offset,
                expected="the subject of the record",
                got=footer.subjects[int(ids[row])].decode("utf-8", "replace"),
            )

    # --- against the state ------------------------------------------------------------------

    def _judge(self, rows: BlockRows, footer: FooterColumns | None) -> BlockRows:
        """Compare with the delete map and the digest; returns the live rows, the damaged ones
        with the crc that the footer has of them."""
        task = self.task
        if not task.is_judged:
            for bad in self.bad:
                self._add_bad(bad, None, None)
            return rows
        ordered = len(rows.seqs) < 2 or bool((rows.seqs[1:] > rows.seqs[:-1]).all())
        outside = (rows.seqs < task.first_seq) | (rows.seqs > task.last_seq)
        if not ordered:
            outside[1:] |= rows.seqs[1:] <= np.maximum.accumulate(rows.seqs)[:-1]
        for row in np.flatnonzero(outside):
            self.add(
                "seq-extra",
                seq=int(rows.seqs[row]),
                offset=int(rows.offsets[row]),
                expected=f"sequences {task.first_seq} to {task.last_seq}, ascending",
                got=f"sequence {int(rows.seqs[row])}",
            )
        if outside.any():
            self.is_whole = False
            rows = pick(rows, ~outside)
        wanted = live_seqs(task)
        if len(wanted) == len(rows.seqs) and bool((wanted == rows.seqs).all()):
            live, missing = rows, wanted[:0]
        else:
            live = pick(rows, np.isin(rows.seqs, wanted, assume_unique=True))
            missing = np.setdiff1d(wanted, live.seqs, assume_unique=True)
        self._explain(missing, rows, footer)
        if self.bad:
            self.is_whole = False
            live = self._with_damaged(live, footer)
        elif self.is_whole and not len(missing):
            self._compare_digest(live, len(rows.seqs))
        return live

    def _compare_digest(self, live: BlockRows, stored_count: int) -> None:
        task = self.task
        digest = int(mix(live.seqs, live.crcs).sum(dtype=np.uint64)) & MASK64
        if digest != task.digest:
            self.add(
                "block-digest",
                seq=task.first_seq,
                seq_hi=task.last_seq,
                expected=f"digest {task.digest:016x} of {task.live} live messages",
                got=f"digest {digest:016x} of {len(live.seqs)}",
            )
        elif stored_count != task.message_count:
            self.add(
                "block-digest",
                seq=task.first_seq,
                seq_hi=task.last_seq,
                expected=f"{task.message_count} messages, dead ones too",
                got=f"{stored_count}",
            )

    def _explain(self, missing: U64, rows: BlockRows, footer: FooterColumns | None) -> None:
        """Name the seqs of bad places; what is missing elsewhere is a gap."""
        told = columns_of(footer) if footer is not None else None
        unexplained = missing
        for bad in self.bad:
            after = int(np.searchsorted(rows.offsets, bad.offset))
            low = int(rows.seqs[after - 1]) if after else self.task.first_seq - 1
            high = int(rows.seqs[after]) if after < len(rows.seqs) else self.task.last_seq + 1
            here = missing[(missing > low) & (missing < high)]
            if told is not None:
                inside = (told.offsets >= bad.offset) & (told.offsets < bad.end)
                here = told.seqs[inside]
            unexplained = np.setdiff1d(unexplained, here)
            if any(each.code == "block-short" for each in self.findings):
                continue
            first = int(here[0]) if len(here) else None
            self._add_bad(bad, first, int(here[-1]) if len(here) else None)
        if any(each.code == "block-short" for each in self.findings):
            return
        for low, high in ranges_of(unexplained):
            self.add(
                "seq-gap",
                seq=low,
                seq_hi=high,
                expected="a record of each: the state has not deleted them",
                got="none",
            )

    def _add_bad(self, bad: _Bad, first: int | None, last: int | None) -> None:
        self.add(
            "record-crc",
            seq=first,
            seq_hi=last,
            offset=bad.offset,
            expected=f"crc {bad.found:#010x} of these bytes" if bad.found else "a whole record",
            got=f"crc {bad.stored:#010x} in the record"
            if bad.found
            else f"{bad.end - bad.offset} bytes that are none",
        )

    def _with_damaged(self, live: BlockRows, footer: FooterColumns | None) -> BlockRows:
        """Add the damaged live rows as the footer knows them, so that their bucket still compares:
        damage is told where it is, not a second time as drift."""
        if footer is None:
            return live
        told = columns_of(footer)
        inside = np.zeros(len(told.seqs), bool)
        for bad in self.bad:
            inside |= (told.offsets >= bad.offset) & (told.offsets < bad.end)
        inside &= np.isin(told.seqs, live_seqs(self.task), assume_unique=True)
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

    # --- sealed blocks by their footer ------------------------------------------------------

    def run_footer(self, footer_bytes: bytes, size: int) -> Checked:
        """Header and footer only: the footer's columns stand for the records."""
        task = self.task
        if size < task.durable_end:
            self.add(
                "block-short",
                seq=task.first_seq or None,
                seq_hi=task.last_seq or None,
                offset=size,
                expected=f"{task.durable_end} bytes",
                got=f"{size} bytes",
            )
            return self.done(None)
        if not self._has_header() and self.findings:
            return self.done(None)
        try:
            footer = decode_footer(footer_bytes)
            stored = struct.unpack_from("<I", footer_bytes, len(footer_bytes) - 12)[0]
            if crc32c(footer_bytes[:-TRAILER_BYTES]) != stored:
                raise CorruptionError("its trailer is damaged")
        except (CorruptionError, struct.error, AssertionError, KeyError, IndexError) as err:
            self.add("footer-damaged", offset=task.end_offset, expected="a footer", got=str(err))
            return self.done(None)
        if footer.end_offset != task.end_offset:
            self.add(
                "footer-differs",
                offset=task.end_offset,
                expected=f"records up to {task.end_offset}",
                got=f"records up to {footer.end_offset}",
            )
            return self.done(None)
        rows = columns_of(footer)
        live = self._judge(rows, footer)
        done = self.done(live, len(rows.seqs), bool((array_of(footer.lengths) >> 31).any()))
        if task.wants_subjects and not self.findings:
            return done._replace(subject_sum=subject_sum_of(b"", live, footer))
        return done


def _whole_messages(blob: bytes, end: int, footer: FooterColumns | None) -> I64 | None:
    """Offsets of the messages of an undamaged block, of which the footer says where they are;
    None if it is for the walk to tell."""
    if footer is None or not len(footer.offsets):
        return None
    told = columns_of(footer)
    starts = record_starts(
        blob, told.offsets, told.offsets + told.lengths, first=HEADER_BYTES, end=end
    )
    if starts is None:
        return None
    kinds = numbers_at(blob, starts + 4, 1)
    if not kinds.min() or kinds.max() >= fmt.FOOTER:
        return None
    return np.asarray(starts[kinds == fmt.MSG])


def live_seqs(task: BlockTask) -> U64:
    """The seqs that are live in this block, ascending."""
    if not task.first_seq or not task.live:
        return np.empty(0, np.uint64)
    seqs = np.arange(task.first_seq, task.last_seq + 1, dtype=np.uint64)
    keep = np.ones(len(seqs), bool)
    for low, high in task.dead:
        low, high = max(low, task.first_seq), min(high, task.last_seq)
        if low <= high:
            keep[low - task.first_seq : high - task.first_seq + 1] = False
    return seqs[keep]


def _seq_of(blob: bytes, pos: int) -> int | None:
    """The seq of the message record at `pos`; None if it is no message."""
    if blob[pos + 4] != fmt.MSG:
        return None
    return int(struct.unpack_from("<Q", blob, pos + 12)[0])


def _stored_crc(blob: bytes, pos: int, length: int) -> int:
    return int.from_bytes(blob[pos + length - 4 : pos + length], "little")


def _crc_there(blob: bytes, pos: int) -> int:
    return _stored_crc(blob, pos, fmt.verify_at(blob, pos))
