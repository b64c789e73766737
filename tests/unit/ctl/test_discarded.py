"""`streamctl discarded`: what was set aside, listed and shown; the headers of what is replayed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from streamd.ctl import app as ctl
from streamd.ctl.discarded_replay import headers_for
from streamd.offline.discarded_files import lines_of
from streamd.store.blocks.discarded_entries_file import (
    COMMITTED,
    TailFacts,
    TailWriter,
    file_name,
    text_fields,
)
from streamd.store.disk import OsDisk

FACTS = TailFacts(
    stream="S", group=2, node="n1", leader="n2", first_index=4, last_index=5, last_term=2,
    committed_to=4, applied_to=3, proof=COMMITTED, is_exact=True, set_aside="2026-01-01T00:00:00Z",
)  # fmt: skip


def write(directory: Path) -> Path:
    name = file_name(2, 4, 5, 0xABC)
    writer = TailWriter(OsDisk(), str(directory), name, FACTS)
    assert writer.begin()
    place = {"index": 4, "term": 2, "seq": 21, "time": "2026-01-01T00:00:00Z"}
    writer.add([place | text_fields(subject=b"S.x", headers=b"", payload=b"text")])
    writer.add([place | {"seq": 22} | text_fields(subject=b"S.x", headers=b"", payload=b"\xff")])
    writer.add([{"index": 5, "term": 2, "entry": "TERM"}])
    writer.finish()
    return directory / name


def test_a_file_is_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trash = tmp_path / "streamd" / "trash"
    trash.mkdir(parents=True)
    path = write(trash)
    assert ctl.main(["discarded", "list", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert str(path) in listed and "2 messages (21..22)" in listed and "committed" in listed
    assert ctl.main(["discarded", "list", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["facts"]["stream"] == "S"
    assert ctl.main(["discarded", "show", str(path)]) == 0
    assert "21 2026-01-01T00:00:00Z S.x 'text'" in capsys.readouterr().out
    assert ctl.main(["discarded", "show", str(path), "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # the facts, and a message
    assert ctl.main(["discarded", "show", str(path), "-n", "-1"]) == 2
    assert "-1" in capsys.readouterr().err


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert not TailWriter(OsDisk(), str(tmp_path), path.name, FACTS).begin()


def test_a_file_that_was_cut_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert ctl.main(["discarded", "show", str(path)]) == 1
    assert "not a readable file of discarded entries" in capsys.readouterr().err


def test_a_file_that_is_cut_while_it_is_read_ends(tmp_path: Path) -> None:
    """With the part of a line that was read, which is no entry."""
    path = tmp_path / "long"
    path.write_bytes(b"first\n" + b"x" * (3 << 20) + b"\n")
    lines = lines_of(str(path))
    assert next(lines) == b"first"
    os.truncate(path, 6)
    (rest,) = lines
    assert set(rest) == {ord("x")} and len(rest) < 2 << 20


def test_expectations_of_the_lost_publish_are_not_asked_again() -> None:
    """Expectations and roll-ups are left out; the rest stays, with an id."""
    before = b"NATS/1.0\r\nA: 1\r\nNats-Expected-Last-Sequence: 9\r\nNats-Rollup: sub\r\n\r\n"
    assert headers_for(before, b"id") == b"NATS/1.0\r\nA: 1\r\nNats-Msg-Id: id\r\n\r\n"
    own = b"NATS/1.0\r\nNats-Msg-Id: mine\r\n\r\n"
    assert headers_for(own, b"id") == own
    assert headers_for(b"", b"id") == b"NATS/1.0\r\nNats-Msg-Id: id\r\n\r\n"
