"""What a node set aside is a finding: with stream, sequences, file, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.audit.discarded_entries import tail_findings
from spark_jobs.audit.findings import DAMAGE, WARNING
from streamd.store.blocks.discarded_entries_file import (
    COMMITTED,
    LED,
    OPEN,
    TailFacts,
    TailWriter,
    file_name,
)
from streamd.store.disk import OsDisk


@pytest.mark.parametrize(
    ("proof", "code", "severity"),
    [
        (COMMITTED, "tail-set-aside", DAMAGE),
        (LED, "tail-set-aside", DAMAGE),
        (OPEN, "tail-open", WARNING),
    ],
)
def test_entries_set_aside_are_found(tmp_path: Path, proof: str, code: str, severity: str) -> None:
    trash = tmp_path / "trash"
    trash.mkdir()
    facts = TailFacts(
        stream="S", group=2, node="n1", leader="n2", first_index=4, last_index=5, last_term=2,
        committed_to=4, applied_to=3, proof=proof, is_exact=True, set_aside="",
    )  # fmt: skip
    writer = TailWriter(OsDisk(), str(trash), file_name(2, 4, 5, 1), facts)
    assert writer.begin()
    writer.add([{"seq": seq, "time": "", "subject": "s", "payload": ""} for seq in (21, 22)])
    writer.finish()
    (found,) = tail_findings(str(tmp_path), "n1")
    assert (found.code, found.severity, found.replica, found.stream) == (code, severity, "n1", "S")
    assert (found.seq_lo, found.seq_hi) == (21, 22)
    assert found.file == writer.path and "streamctl discarded" in found.advice


def test_a_directory_without_trash_has_none(tmp_path: Path) -> None:
    assert tail_findings(str(tmp_path), "n1") == []
