"""The bytes behind a finding: the record in question, and the same record on another replica."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from spark_jobs.audit.findings import Finding
from spark_jobs.audit.replica_files import View
from streamd.errors import StreamdError
from streamd.offline.engine import block_name
from streamd.offline.read_only_disk import content_of

RECORD_BYTES_MAX: Final = 512  # shown of one record
FINDINGS_MAX: Final = 50  # that get their records
_CODES: Final = frozenset(
    {
        "record-crc",
        "seq-gap",
        "drift-content",
        "drift-time",
        "drift-missing",
        "drift-extra",
        "log-store-mismatch",
    }
)


def with_records(findings: Sequence[Finding], views: Sequence[View]) -> list[Finding]:
    """The findings, those about one record with its bytes on each replica that has it."""
    out = []
    left = FINDINGS_MAX
    for each in findings:
        if each.code in _CODES and each.seq_lo is not None and left:
            left -= 1
            records = tuple(
                (view.label, blob.hex())
                for view in views
                if view.name == each.stream
                and (blob := record_at(view, each.seq_lo, each)) is not None
            )
            each = each._replace(records=records)
            whole = [label for label, _ in records if label not in each.replica.split(", ")]
            if whole and each.code in ("record-crc", "seq-gap"):
                each = each._replace(advice=f"{', '.join(whole)} has it; {each.advice}")
        out.append(each)
    return out


def record_at(view: View, seq: int, about: Finding) -> bytes | None:
    """The bytes of the record of `seq` as they are in this replica's files; None: it has none."""
    if view.machine is None:
        return None
    try:
        found = view.machine.index.locations.locate(seq)
    except (StreamdError, OSError, AssertionError, LookupError, ValueError):
        return None
    if found is None:
        return None
    _, block_no, offset, length = found
    if about.replica == view.label and about.code in ("seq-gap", "drift-missing"):
        return None
    tail_at, tail = view.tails.get(block_no, (0, b""))
    is_suspect = about.replica == view.label and about.code in ("record-crc", "log-store-mismatch")
    if tail and offset >= tail_at and not is_suspect:
        return tail[offset - tail_at :][: min(length, RECORD_BYTES_MAX)]
    path = os.path.join(view.files.store.directory(view.uid), block_name(block_no))
    try:
        with content_of(path) as file:
            return file.read(min(length, RECORD_BYTES_MAX), offset)
    except OSError:
        return None
