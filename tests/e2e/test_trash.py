"""A deleted stream's bytes leave the disk; a directory of no known stream does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.e2e.conftest import Start
from tests.wire import Wire


def _wait_until_empty(path: Path, timeout_s: float = 10.0) -> None:
    """The unlinking is a job of the disk thread; the directory itself is the only signal."""
    deadline = time.monotonic() + timeout_s
    while list(path.iterdir()):
        assert time.monotonic() < deadline, list(path.iterdir())
        os.sched_yield()


def test_deleted_streams_are_unlinked_and_orphans_are_kept(make_server: Start) -> None:
    """Delete one stream; plant a directory; after a restart only the planted one is in trash."""
    server = make_server()
    server.start()
    wire = Wire(server.port)
    wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    wire.api("STREAM.DELETE.S")
    root = server.store_dir / "streamd"
    assert not list((root / "streams").iterdir())
    _wait_until_empty(root / "trash")
    server.stop()
    (root / "streams" / "99").mkdir()
    (root / "streams" / "99" / "1.blk").write_bytes(b"somebody's")
    foreign = [root / "streams" / "\N{SUPERSCRIPT TWO}"]  # a digit, and no number
    foreign += [root / "streams" / "notes.txt", root / "wal" / "backup.wal"]
    foreign[0].mkdir()
    foreign[1].write_bytes(b"somebody's")
    foreign[2].write_bytes(b"somebody's")
    server.start()
    kept = sorted((root / "trash").iterdir())
    names = [path.name.rsplit("-", 1)[0] for path in kept]
    assert names == ["orphan-99"]
    assert (kept[0] / "1.blk").read_bytes() == b"somebody's"
    for path in foreign:
        assert path.is_dir() or path.read_bytes() == b"somebody's"
        text = f"an unknown file in the store directory is left alone path={path}"
        assert server.log_file.read_text().count(text) == 1
