"""Offline reads of a stream with a damaged block: all there is, or an error; with
failOnDataLoss=false what is left, and the seqs that are lost are named."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from streamd.errors import CorruptionError
from streamd.offline.stream_view import StreamMissing
from tests.spark.audit_damage import flip, record_of
from tests.spark.audit_stores import Replica, small_blocks
from tests.spark.reads import Row, read_rows

COUNT = 120


class Stored:
    """A stream S of messages 1..COUNT, of which a snapshot and not the log tells, unless
    `is_in_log`; its newest block, which has no footer, and what is in it."""

    def __init__(self, directory: Path, *, is_in_log: bool = False) -> None:
        replica = Replica(directory)
        replica.fill(COUNT)
        if not is_in_log:
            replica.snapshot()
        self.newest = replica.block(replica.machine.index.blocks[-1].block_no)
        self.directory = replica.close()
        self.rows = self.read(withDebug=True)
        last = self.rows[-1]["block"]
        self.in_newest = [row for row in self.rows if row["block"] == last]
        assert len(self.rows) == COUNT
        assert 10 < len(self.in_newest) < COUNT / 2
        assert os.path.getsize(self.newest) < 4096

    def read(self, **options: Any) -> list[Row]:
        return read_rows(self.directory, "S", **options)

    def left(self) -> list[int]:
        return [row["seq"] for row in self.read(failOnDataLoss=False)]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    with small_blocks():
        yield Stored(tmp_path / "n1")


@pytest.mark.parametrize("at", [0, 5, -1])
@pytest.mark.parametrize(
    ("place", "mask"), [(4, 2), (0, 1), (2, 1), (40, 16)], ids=["type", "short", "long", "payload"]
)
def test_a_damaged_record_of_the_newest_block_is_not_passed_over(
    stored: Stored, at: int, place: int, mask: int, caplog: Any
) -> None:
    """A wrong type, or a length that leads elsewhere, hides a record, or all behind it."""
    row = stored.in_newest[at]
    flip(stored.newest, row["pos"] + place, mask)
    seq = row["seq"]
    with pytest.raises(CorruptionError, match=rf"seqs? {seq}\b"):
        stored.read()
    with caplog.at_level(logging.WARNING, "streamd.spark"):
        assert stored.left() == [one for one in range(1, COUNT + 1) if one != seq]
    assert f"{stored.newest.name}: offset " in caplog.text or "no whole record" in caplog.text
    assert f" {seq}\n" in caplog.text or f"record of seq {seq} " in caplog.text
    below = [one["seq"] for one in stored.read(endSeq=seq - 1)]
    assert below == list(range(1, seq)), "what was not asked for is not missed"


def test_an_older_message_is_not_taken_for_the_newest_of_its_subject(stored: Stored) -> None:
    """Where the newest block can't be walked, the block before it has other last messages."""
    newest = {row["subject"]: row["seq"] for row in stored.rows}
    flip(stored.newest, stored.in_newest[0]["pos"], 1)
    flip(stored.newest, stored.in_newest[-1]["pos"] + 4, 2)
    with pytest.raises(CorruptionError, match="no whole record"):
        stored.read(lastPerSubject=True)
    found = {row["subject"]: row["seq"] for row in stored.read(
        lastPerSubject=True, failOnDataLoss=False)}  # fmt: skip
    assert found == {subject: COUNT - 5 if seq == COUNT else seq for subject, seq in newest.items()}


def test_a_damaged_block_header_costs_no_message(stored: Stored, caplog: Any) -> None:
    flip(stored.newest, 0)
    with pytest.raises(CorruptionError, match="its header is damaged"):
        stored.read()
    assert stored.left() == list(range(1, COUNT + 1))
    assert "its header is damaged" in caplog.text


def test_records_of_the_log_are_read_behind_a_truncated_file(tmp_path: Path, caplog: Any) -> None:
    with small_blocks():
        replica = Replica(tmp_path)
        replica.fill(200)
        replica.snapshot()
        replica.fill(20, first=201)
        replica.close()
        path = replica.block(replica.machine.index.blocks[-1].block_no)
        os.truncate(path, record_of(path, 198).offset)
        found = [row["seq"] for row in read_rows(tmp_path, "S", failOnDataLoss=False)]
        assert found == [*range(1, 198), *range(201, 221)]
        assert "no whole record of seqs 198..200\n" in caplog.text
        path.unlink()
        found = [row["seq"] for row in read_rows(tmp_path, "S", failOnDataLoss=False)]
        assert found[-20:] == list(range(201, 221))


def test_a_stream_is_found_without_the_list_of_streams(tmp_path: Path) -> None:
    """The meta group's only snapshot is damaged, and its log was released."""
    replica = Replica(tmp_path)
    replica.fill(20)
    replica.snapshot()
    replica.meta_snapshot(releases=True)
    replica.close()
    (path,) = (replica.root / "meta").glob("*.snap")
    flip(path, 200)
    with pytest.raises(CorruptionError, match=path.name):
        read_rows(tmp_path, "S")
    found = [row["seq"] for row in read_rows(tmp_path, "S", failOnDataLoss=False)]
    assert found == list(range(1, 21))
    with pytest.raises(StreamMissing, match="no stream 'T'; streams there are: S"):
        read_rows(tmp_path, "T", failOnDataLoss=False)


def test_a_block_that_is_gone_is_named_with_its_seqs(stored: Stored, caplog: Any) -> None:
    first = stored.in_newest[0]["seq"]
    stored.newest.unlink()
    assert stored.left() == list(range(1, first))
    assert f"messages {first} to {COUNT}" in caplog.text


@pytest.mark.parametrize("is_in_log", [True, False])
def test_a_file_that_the_disk_does_not_give_is_named(
    tmp_path: Path, is_in_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing while the log has what is in it."""
    with small_blocks():
        stored = Stored(tmp_path / "n1", is_in_log=is_in_log)
        bad = str(stored.newest)

        def given(real: Any) -> Any:
            def read(fd: int, *what: Any) -> Any:
                if os.readlink(f"/proc/self/fd/{fd}") == bad:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return real(fd, *what)

            return read

        monkeypatch.setattr(os, "pread", given(os.pread))
        monkeypatch.setattr(os, "preadv", given(os.preadv))
        if is_in_log:
            assert stored.read(withDebug=True) == stored.rows
            return
        with pytest.raises(CorruptionError, match=r"\d.blk: the disk does not give all of it: In"):
            stored.read()
        assert stored.left() == list(range(1, stored.in_newest[0]["seq"]))
