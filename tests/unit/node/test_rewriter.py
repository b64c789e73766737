"""`Compaction`: which blocks it chooses, when, and what becomes of what it asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd import errors, limits
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.base import REWRITTEN
from streamd.machine.indexes.columns import ColumnsCache
from streamd.node.stream_groups.compaction import Compaction
from tests.unit.machine.box import Box

BLOCK_BYTES = 4096


class Blocks:
    """Reads what a box holds, at once; or says that it is damaged."""

    reclaimable_bytes = 0

    def __init__(self, box: Box) -> None:
        self._box = box
        self.damaged: set[int] = set()
        self.reads: list[int] = []

    def read_spans(
        self, block_no: int, spans: list[tuple[int, int]], done: Callable[[Any], None]
    ) -> None:
        self.reads.append(block_no)
        if block_no in self.damaged:
            done(CorruptionError(f"{block_no}"))
            return
        file = self._box.blocks.files[block_no]
        done(b"".join(bytes(file[at : at + length]) for at, length in spans))


class World:
    """A stream, its rewriter, and a clock."""

    def __init__(self, **config: Any) -> None:
        self.box = Box(block_bytes=BLOCK_BYTES, **config)
        self.blocks = Blocks(self.box)
        self.proposed: list[list[int]] = []
        self.outcome: Any = None  # None: what the machine says
        self.now_ms = 1000
        self.woken = 0
        self.rewriter = Compaction(
            self.box.machine.index,
            self.blocks,  # type: ignore[arg-type]
            self.propose,
            self.wake,
        )

    def wake(self) -> None:
        self.woken += 1

    def propose(
        self, block_nos: list[int], ranges: list[int], records: bytes, done: Callable[[Any], None]
    ) -> None:
        self.proposed.append(block_nos)
        outcome = self.outcome
        if outcome is None:
            outcome = self.box.do(commands.REWRITE, block_nos, ranges, records)
        done(outcome)

    def fill(self, count: int, *, keep_one_in: int) -> None:
        """Blocks of 10 messages of 400 bytes; but for one in so many they are deleted."""
        first = self.box.machine.index.last_seq + 1
        for _ in range(count):
            self.box.put(b"a.x", bytes(370))
        for seq in range(first, first + count):
            if seq % keep_one_in:
                self.box.do(commands.DELETE_MSG, seq, False)

    def run(self, ms: int) -> None:
        """Pass time as a group does: by deadlines."""
        end = self.now_ms + ms
        self.rewriter.tick(self.now_ms)
        while True:
            due = self.rewriter.deadline_ms()
            if not due or due > end:
                break
            self.now_ms = max(due, self.now_ms)
            self.rewriter.tick(self.now_ms)
        self.now_ms = end


def test_sparse_blocks_become_few_after_a_while_and_then_there_is_rest() -> None:
    world = World()
    world.fill(200, keep_one_in=10)
    before = world.box.live()
    world.run(limits.REWRITE_AFTER_MS - 1)
    assert world.proposed == []
    world.run(limits.REWRITE_AFTER_MS)
    assert world.box.live() == before
    assert len(world.box.sealed()) <= 6
    assert sum(map(len, world.proposed)) > 15
    assert world.rewriter.deadline_ms() == 0
    assert world.woken == len(world.proposed)


def test_blocks_of_which_more_than_half_is_live_stay() -> None:
    world = World()
    world.fill(100, keep_one_in=1)
    for seq in range(1, 100, 3):
        world.box.do(commands.DELETE_MSG, seq, False)
    world.run(10 * limits.REWRITE_AFTER_MS)
    assert world.proposed == []
    assert world.rewriter.deadline_ms() == 0


def test_a_queue_whose_blocks_die_soon_is_let_alone() -> None:
    world = World()
    for _ in range(20):
        first = world.box.machine.index.last_seq + 1
        world.fill(30, keep_one_in=4)
        world.run(limits.REWRITE_AFTER_MS // 2)
        world.box.do(commands.EXPIRE, first + 10, [])
    assert world.proposed == []


def test_a_stream_that_loses_its_oldest_messages_is_let_alone() -> None:
    world = World(max_msgs=45)
    for _ in range(40):
        world.fill(7, keep_one_in=1)
        world.run(limits.REWRITE_AFTER_MS)
    assert world.proposed == []


def test_compaction_proposals_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BLOCKS", 3), ("ROWS", 1000), ("MSGS", 1000)):
        monkeypatch.setattr(limits, f"REWRITE_{name}_MAX", value)
    world = World()
    world.fill(300, keep_one_in=10)
    world.run(4 * limits.REWRITE_AFTER_MS)
    assert world.proposed and max(map(len, world.proposed)) == 3
    monkeypatch.setattr(limits, "REWRITE_MSGS_MAX", 2)
    world = World()
    world.fill(300, keep_one_in=10)
    world.run(4 * limits.REWRITE_AFTER_MS)
    assert world.proposed and max(map(len, world.proposed)) <= 2


def test_a_block_that_can_not_be_read_stays_as_it_is() -> None:
    world = World()
    world.fill(200, keep_one_in=10)
    bad = world.box.sealed()[5]
    world.blocks.damaged.add(bad)
    world.run(5 * limits.REWRITE_AFTER_MS)
    assert world.blocks.reads.count(bad) == 1
    assert bad in world.box.sealed()
    assert len([block for block in world.box.sealed() if block >= REWRITTEN]) >= 2


def test_a_block_of_which_not_even_the_messages_are_known_stays_as_it_is() -> None:
    """Neither footer nor records say what it holds. Mere maintenance came to it, and that ended the
    group: the only copy stopped, or a replica was made anew for one block."""
    world = World()
    world.fill(200, keep_one_in=10)
    index = world.box.machine.index
    bad = world.box.sealed()[5]
    world.box.blocks.footers[bad] = b"?"
    index.blocks.rescan = None
    index.blocks.use_cache(ColumnsCache())  # what was known of it was not needed for a while
    world.run(5 * limits.REWRITE_AFTER_MS)
    assert bad in world.box.sealed()
    assert len([block for block in world.box.sealed() if block >= REWRITTEN]) >= 2


def test_a_refusal_is_asked_again_later() -> None:
    world = World()
    world.outcome = errors.INSUFFICIENT_RESOURCES()
    world.fill(200, keep_one_in=10)
    world.run(5 * limits.REWRITE_AFTER_MS)
    assert 1 < len(world.proposed) <= 5, "each costs a read of blocks, or even log and links"
    world.outcome = None
    world.run(2 * limits.REWRITE_AFTER_MS)
    assert [block for block in world.box.sealed() if block >= REWRITTEN]


def test_a_new_leadership_begins_anew() -> None:
    world = World()
    world.outcome = False
    world.rewriter._propose = lambda *args: None  # lost with the leadership
    world.fill(200, keep_one_in=10)
    world.run(5 * limits.REWRITE_AFTER_MS)
    assert world.rewriter.deadline_ms() == 0
    world.rewriter._propose = world.propose
    world.outcome = None
    world.rewriter.restart()
    world.run(2 * limits.REWRITE_AFTER_MS)
    assert [block for block in world.box.sealed() if block >= REWRITTEN]


def test_a_damaged_block_is_replaced_whole_as_it_is() -> None:
    """Whatever its size and how much of it is live; once it is sealed."""
    world = World()
    world.fill(25, keep_one_in=1)
    index = world.box.machine.index
    sealed, newest = index.blocks[1].block_no, index.blocks[-1].block_no
    before = world.box.live()
    world.rewriter.renew(newest)
    world.rewriter.renew(sealed)
    world.run(limits.REWRITE_AFTER_MS)
    assert world.proposed == [[sealed]]
    world.fill(25, keep_one_in=1)
    world.box.do(commands.DELETE_MSG, 1, False)
    world.run(limits.REWRITE_AFTER_MS)
    assert world.proposed == [[sealed], [newest]]
    assert [row for row in world.box.live() if row in before] == before[1:]
    world.run(10 * limits.REWRITE_AFTER_MS)
    assert len(world.proposed) == 2


def test_a_block_with_something_unreadable_is_tried_again_when_that_is_gone() -> None:
    world = World()
    world.fill(100, keep_one_in=10)
    block_no = world.box.machine.index.blocks[2].block_no
    world.blocks.damaged.add(block_no)
    world.run(10 * limits.REWRITE_AFTER_MS)
    assert block_no in world.blocks.reads
    assert all(block_no not in block_nos for block_nos in world.proposed)
    world.blocks.damaged.clear()
    world.rewriter.renew(block_no)
    world.run(limits.REWRITE_AFTER_MS)
    assert [block_no] in world.proposed
