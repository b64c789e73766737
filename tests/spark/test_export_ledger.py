"""The export's ledger without Spark: what a reader sees after a crash at any step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.export.export_ledger import (
    COMPACT,
    EXPORT,
    STAGING,
    Commit,
    DataFile,
    Ledger,
    LedgerError,
    Source,
    committed_files,
)
from spark_jobs.export.files import DirectoryBusy, LocalFiles

SOURCE = Source("ORDERS", "2026-01-01T00:00:00Z", (), ("date",), 1)


class Crash(Exception):
    """The process ends here."""


class CrashingFiles(LocalFiles):
    """Ends with `Crash` before the change number `crash_at`, counted from 1."""

    def __init__(self, root: Path, crash_at: int = 0) -> None:
        super().__init__(root)
        self.changes = 0
        self._crash_at = crash_at
        for name in ("create", "rename", "remove"):
            setattr(self, name, self._counted(getattr(self, name)))

    def _counted(self, change: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any) -> None:
            self.changes += 1
            if self.changes == self._crash_at:
                raise Crash
            change(*args)

        return counted


def staged(ledger: Ledger, rows: dict[str, list[int]], removed: tuple[str, ...] = ()) -> Commit:
    """A commit whose files are written; a file's content is its seqs."""
    number = ledger.next_number
    made = []
    for path, seqs in rows.items():
        content = ",".join(map(str, seqs)).encode()
        target = Path(ledger.files.url.removeprefix("file://")) / STAGING / f"{number:012d}" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        made.append(DataFile(path, len(seqs), len(content), seqs[0], seqs[-1], f"{sum(seqs):016x}"))
    seqs = sorted(seq for each in rows.values() for seq in each)
    return Commit(
        number=number,
        kind=COMPACT if removed else EXPORT,
        source=SOURCE,
        first_seq=seqs[0],
        last_seq=seqs[-1],
        rows=len(seqs),
        digest=f"{sum(seqs):016x}",
        files=tuple(made),
        removed=removed,
    )


def visible(root: Path) -> list[int]:
    """The seqs that a reader of the directory sees, sorted."""
    found: list[int] = []
    for path in root.rglob("*.parquet"):
        if not any(part[0] in "_." for part in path.relative_to(root).parts):
            found += map(int, path.read_text().split(","))
    return sorted(found)


def run_all(files: LocalFiles) -> None:
    """Two exports and a compaction, each only if it did not happen yet: what a job does."""
    ledger = Ledger.open(files)
    ledger.recover()
    if ledger.next_number == 1:
        ledger.commit(staged(ledger, {"date=a/1.parquet": [1, 2], "date=b/1.parquet": [3]}))
    if ledger.next_number == 2:
        ledger.commit(staged(ledger, {"date=a/2.parquet": [4], "date=b/2.parquet": [5, 6]}))
    if ledger.next_number == 3:
        old = ("date=a/1.parquet", "date=a/2.parquet")
        ledger.commit(staged(ledger, {"date=a/3.parquet": [1, 2, 4]}, removed=old))


def test_a_crash_before_any_change_loses_no_row_and_doubles_none(tmp_path: Path) -> None:
    whole = CrashingFiles(tmp_path / "whole")
    run_all(whole)
    assert visible(whole.root) == [1, 2, 3, 4, 5, 6]
    assert whole.changes > 10
    for crash_at in range(1, whole.changes + 1):
        root = tmp_path / str(crash_at)
        with pytest.raises(Crash):
            run_all(CrashingFiles(root, crash_at))
        seen = visible(root)
        assert len(set(seen)) == len(seen), (crash_at, seen)
        again = CrashingFiles(root)
        run_all(again)
        assert visible(root) == [1, 2, 3, 4, 5, 6], crash_at
        ledger = Ledger.open(again)
        ledger.check_files()
        assert (ledger.rows, ledger.last_seq, len(ledger.commits)) == (6, 6, 3)
        assert ledger.digest == f"{sum(range(7)):016x}"
        assert ledger.strays() == []
        assert again.names(STAGING) == []


def test_a_second_crash_during_the_recovery_of_the_first_changes_nothing(tmp_path: Path) -> None:
    whole = CrashingFiles(tmp_path / "whole")
    run_all(whole)
    for first in range(1, whole.changes + 1, 2):
        for second in (1, 2):
            root = tmp_path / f"{first}-{second}"
            with pytest.raises(Crash):
                run_all(CrashingFiles(root, first))
            try:
                run_all(CrashingFiles(root, second))
            except Crash:
                seen = visible(root)
                assert len(set(seen)) == len(seen), (first, second, seen)
            run_all(CrashingFiles(root))
            assert visible(root) == [1, 2, 3, 4, 5, 6], (first, second)


def test_a_record_that_is_missing_damaged_or_of_another_version_is_refused(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    run_all(files)
    record = tmp_path / "_streamd_ledger" / "000000000002.json"
    kept = record.read_bytes()
    record.unlink()
    with pytest.raises(LedgerError, match=r"000000000002\.json is missing"):
        Ledger.open(files)
    record.write_bytes(kept[:-10])
    with pytest.raises(LedgerError, match="is not a record"):
        Ledger.open(files)
    record.write_bytes(kept.replace(b'"v": 1', b'"v": 9'))
    with pytest.raises(LedgerError, match="version 9, this program reads 1"):
        Ledger.open(files)


def test_a_file_that_is_gone_or_cut_is_named(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    run_all(files)
    ledger = Ledger.open(files)
    path = tmp_path / "date=b/1.parquet"
    path.write_text("3,")
    with pytest.raises(LedgerError, match=r"date=b/1\.parquet has 2 bytes, the ledger says 1"):
        ledger.check_files()
    path.unlink()
    with pytest.raises(LedgerError, match=r"date=b/1\.parquet is missing"):
        ledger.check_files()


def test_two_writers_are_not_let_in(tmp_path: Path) -> None:
    first, second = LocalFiles(tmp_path).lock(), LocalFiles(tmp_path).lock()
    with first, pytest.raises(DirectoryBusy, match="another export"), second:
        pass
    with LocalFiles(tmp_path).lock():
        pass


def test_a_record_that_another_writer_made_first_is_not_replaced(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    run_all(files)
    late = Ledger.open(files)
    late.commits.pop()
    with pytest.raises(LedgerError, match="another export writes to this directory"):
        late.commit(staged(late, {"date=c/1.parquet": [7]}))
    assert visible(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_committed_files_are_the_live_ones(tmp_path: Path) -> None:
    run_all(LocalFiles(tmp_path))
    found = sorted(str(Path(each).relative_to(tmp_path)) for each in committed_files(str(tmp_path)))
    assert found == ["date=a/3.parquet", "date=b/1.parquet", "date=b/2.parquet"]
