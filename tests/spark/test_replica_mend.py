"""Replicas damaged in different places give, together, every record that one of them has whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from streamd.errors import CorruptionError
from tests.spark.audit_damage import flip, record_of, replace_record
from tests.spark.audit_stores import CLUSTER, Replica, small_blocks
from tests.spark.reads import Row, read_rows

COUNT = 200


class Three:
    """Three equal replicas of stream S, and the files of their blocks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.replicas = {}
        for node in CLUSTER:
            replica = Replica(directory / node, node=node, peers=CLUSTER)
            replica.fill(COUNT)
            replica.snapshot()
            self.replicas[node] = replica
        blocks = self.replicas["n1"].machine.index.blocks
        self.spans = [(block.first_seq, block.last_seq) for block in blocks]
        for replica in self.replicas.values():
            replica.close()
        self.rows = self.read()
        assert len(self.rows) == COUNT
        assert len(self.spans) > 3

    def read(self, **options: Any) -> list[Row]:
        return read_rows(self.directory, "S", **options)

    def block(self, node: str, number: int) -> Path:
        return self.replicas[node].block(number)

    def flip(self, node: str, number: int, seq: int) -> None:
        path = self.block(node, number)
        flip(path, record_of(path, seq).offset + 35)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with small_blocks():
        yield Three(tmp_path)


def test_each_record_comes_from_whichever_copy_is_whole(three: Three, caplog: Any) -> None:
    """In one block each replica has another damaged record; one misses a block, one's is cut."""
    first = three.spans[0][0]
    for at, node in enumerate(CLUSTER):
        three.flip(node, 1, first + 1 + at)
    three.block("n1", 2).unlink()
    with three.block("n2", 2).open("r+b") as file:
        file.truncate(200)
    three.flip("n3", 3, three.spans[2][0])
    with three.block("n1", 3).open("r+b") as file:
        file.truncate(100)
    newest = len(three.spans)
    for node in ("n1", "n2"):
        three.flip(node, newest, COUNT)
    assert three.read() == three.rows
    assert "read from other replicas too" in caplog.text
    assert [row["seq"] for row in three.read(startSeq=first + 1, endSeq=first + 3)] == [
        first + 1,
        first + 2,
        first + 3,
    ]
    assert len(three.read(lastPerSubject=True)) == len({row["subject"] for row in three.rows})


@pytest.mark.parametrize("number", [1, -1])
def test_blocks_whole_on_no_copy_are_named(three: Three, number: int) -> None:
    number = number if number > 0 else len(three.spans)
    seq = sum(three.spans[number - 1]) // 2
    three.flip("n1", number, seq + 1)
    for node in CLUSTER:
        three.flip(node, number, seq)
    with pytest.raises(CorruptionError, match=str(seq)):
        three.read()
    left = three.read(failOnDataLoss=False)
    assert left == [row for row in three.rows if row["seq"] != seq]


def test_records_that_are_whole_and_others_are_not_believed(three: Three) -> None:
    """Two replicas have another message there, with a right checksum; the state knows better."""
    seq = three.spans[0][0] + 2
    three.flip("n1", 1, seq)
    for node in ("n2", "n3"):
        replace_record(three.block(node, 1), seq, payload=None)
    with pytest.raises(CorruptionError, match=r"together give digest|does not match"):
        three.read()


def test_a_replica_that_was_asked_for_is_read_alone(three: Three) -> None:
    three.flip("n2", 1, three.spans[0][0] + 2)
    with pytest.raises(CorruptionError, match="n2"):
        three.read(readFrom="n2")
