"""REWRITE: what one block in the place of others holds, and when the entry is void."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.machine import commands
from streamd.machine.base import HAS_HEADERS, HAS_TTL, IS_NEVER, REWRITTEN
from tests.unit.machine.box import SECOND, Box


@pytest.fixture
def box() -> Box:
    """Blocks of eight messages; one message in three is left."""
    box = Box(block_bytes=500, allow_msg_ttl=True)
    for number in range(1, 61):
        box.put(b"a.%d" % (number % 7), b"%d" % number, TTL="3600s" if number % 2 else "never")
    for seq in range(1, 61):
        if seq % 3:
            box.do(commands.DELETE_MSG, seq, False)
    return box


def content(box: Box) -> list[Any]:
    return [box.read(seq) for seq in box.live()]


def test_one_block_takes_the_place_of_others(box: Box) -> None:
    before, sealed = content(box), box.sealed()
    flags = [box.machine.index.locations.flags_at(seq) for seq in box.live()]
    digest, count = box.machine.digest, box.machine.index.count
    old = box.machine.index.blocks[1:4]
    assert box.do(commands.REWRITE, *box.plan_rewrite(sealed[1:4])) is True
    made = REWRITTEN + box.machine.applied
    assert box.sealed() == [sealed[0], made, *sealed[4:]]
    assert [block.live for block in old] == [0, 0, 0], "the scrubber may have them in its queue"
    assert content(box) == before
    assert [box.machine.index.locations.flags_at(seq) for seq in box.live()] == flags
    assert {HAS_HEADERS | HAS_TTL, HAS_HEADERS | IS_NEVER} <= set(flags)
    assert (box.machine.digest, box.machine.index.count) == (digest, count)
    block = next(block for block in box.machine.index.blocks if block.block_no == made)
    assert (block.live, block.count) == (block.live, block.live)
    for with_index in (True, False):
        assert box.restored(with_index=with_index).snapshot() == box.machine.snapshot()


def test_a_rewritten_block_is_rewritten_with_others_and_dies_as_any(box: Box) -> None:
    sealed = box.sealed()
    assert box.do(commands.REWRITE, *box.plan_rewrite(sealed[:2])) is True
    assert box.do(commands.REWRITE, *box.plan_rewrite(box.sealed()[:2])) is True
    assert box.sealed() == [REWRITTEN + box.machine.applied, *sealed[3:]]
    box.do(commands.PURGE, b"", 46, 0)
    assert not [block_no for block_no in box.sealed() if block_no >= REWRITTEN]
    assert box.live() == [48, 51, 54, 57, 60]
    assert set(box.blocks.files) >= set(box.sealed())


def test_messages_deleted_during_compaction_stay_deleted(box: Box) -> None:
    planned = box.plan_rewrite(box.sealed()[1:5])
    box.do(commands.DELETE_MSG, 12, False)
    box.do(commands.PURGE, b"", 7, 0)
    before = content(box)
    assert box.do(commands.REWRITE, *planned) is True
    assert content(box) == before
    block = box.machine.index.blocks[0]
    assert (block.first_seq, block.count - block.live) == (6, 2)
    assert box.restored(with_index=False).snapshot() == box.machine.snapshot()


def test_messages_that_are_neighbours_need_no_list_of_seqs() -> None:
    box = Box(block_bytes=500)
    for number in range(40):
        box.put(b"a.x", b"%d" % number)
    assert box.do(commands.REWRITE, *box.plan_rewrite(box.sealed()[:2])) is True
    block = box.machine.index.blocks[0]
    assert box.machine.index.blocks.columns(block).seqs is None
    assert box.live() == list(range(1, 41))


def void_unknown(plan: list[Any], sealed: list[int]) -> None:
    plan[0] = [sealed[0], sealed[1] + 1000]


def void_not_neighbours(plan: list[Any], sealed: list[int]) -> None:
    plan[0] = [sealed[0], sealed[2]]


def void_reversed(plan: list[Any], sealed: list[int]) -> None:
    plan[0] = plan[0][::-1]


def void_with_the_newest(plan: list[Any], sealed: list[int]) -> None:
    plan[0] = [sealed[-1], sealed[-1] + 1]


def void_without_a_live_message(plan: list[Any], sealed: list[int]) -> None:
    first, last, *_ = plan[1]
    assert first == last
    plan[1] = plan[1][2:]
    plan[2] = plan[2][-len(plan[2]) * (len(plan[1]) // 2) // (len(plan[1]) // 2 + 1) :]


def void_with_a_seq_of_another_block(plan: list[Any], sealed: list[int]) -> None:
    plan[1] = [*plan[1], 60, 60]


def void_cut_short(plan: list[Any], sealed: list[int]) -> None:
    plan[2] = plan[2][:-1]


def void_empty(plan: list[Any], sealed: list[int]) -> None:
    plan[1:] = [[], b""]


@pytest.mark.parametrize(
    "spoil",
    [
        void_unknown, void_not_neighbours, void_reversed, void_with_the_newest,
        void_without_a_live_message, void_with_a_seq_of_another_block, void_cut_short, void_empty,
    ],
)  # fmt: skip
def test_an_entry_that_is_not_of_these_blocks_changes_nothing(box: Box, spoil: Any) -> None:
    sealed = box.sealed()
    planned = box.plan_rewrite(sealed[:2])
    spoil(planned, sealed)
    before, files = content(box), dict(box.blocks.files)
    fingerprint = box.machine.fingerprint()
    assert box.do(commands.REWRITE, *planned) is False
    assert (box.sealed(), content(box), box.machine.fingerprint()) == (sealed, before, fingerprint)
    assert box.blocks.files == files


def test_each_key_of_a_bucket_is_found_after_all_blocks_were_rewritten() -> None:
    box = Box(block_bytes=400, max_msgs_per_subject=1, max_age=100 * SECOND)
    for number in range(200):
        box.put(b"a.%d" % (number % 50 if number % 3 else number))
    want = {box.machine.index.locations.subject_at(seq): seq for seq in box.live()}
    assert box.do(commands.REWRITE, *box.plan_rewrite(box.sealed())) is True
    assert {name: box.machine.index.lookup.last_of(name) for name in want} == want
    assert {name: box.machine.index.lookup.first_of(name) for name in want} == want
    for name in want:
        box.put(name)
    assert [block for block in box.sealed() if block >= REWRITTEN] == []
