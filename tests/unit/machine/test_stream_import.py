"""Entries of archives: what they store, whatever is missing between the messages."""

from __future__ import annotations

from streamd.machine import commands
from tests.unit.machine.box import START_NS, Box


def test_an_entry_with_gaps_that_fills_a_block_goes_on_in_it() -> None:
    """Each run of messages behind a gap looked for room, and began another block while the records
    of the entry were those of the one before: the group ended, on every replica."""
    box = Box(block_bytes=4096, restoring=True)
    rows = [(seq, START_NS + seq, b"a.x", b"", b"%d" % seq * 300) for seq in range(2, 60, 2)]
    assert box.do(commands.IMPORT, rows[:20], 0) is True
    assert box.do(commands.IMPORT, rows[20:], 70) is True
    assert box.live() == [row[0] for row in rows]
    assert box.machine.index.last_seq == 70
    assert len(box.machine.index.blocks) > 1
    assert box.restored().snapshot() == box.machine.snapshot()
