"""Many messages removed at once leave just what they leave when removed one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.machine.box import Box


def filled(rng: random.Random, per_subject: int) -> Box:
    """Some blocks of messages with and without headers, and holes."""
    box = Box(block_bytes=2048, max_msgs_per_subject=per_subject, allow_msg_ttl=True)
    names = [b"a.%d" % number for number in range(rng.choice((4, 9, 40)))]
    for _ in range(20):
        msgs = []
        for _ in range(rng.randint(1, 40)):
            headers = b"NATS/1.0\r\nA: b\r\n\r\n" if rng.random() < 0.3 else b""
            if rng.random() < 0.1:
                headers = b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n"
            msgs.append((rng.choice(names), headers, bytes(rng.randint(0, 90))))
        box.store(*msgs)
    index = box.machine.index
    for _ in range(rng.choice((0, 0, 30))):
        index.remove([rng.randint(1, index.last_seq)])
    return box


def state(box: Box) -> dict[str, Any]:
    index = box.machine.index
    return {
        "counts": (
            index.count,
            index.live.bytes,
            index.live.digest,
            index.first_seq,
            index.last_seq,
        ),
        "deleted": list(index.live.deleted.ranges()),
        "subjects": {
            name: [*row[:5], None if row[5] is None else list(row[5])]
            for name, row in index.subjects.rows.items()
        },
        "blocks": [(block.block_no, block.live, block.digest) for block in index.blocks],
        "dead": index.blocks.has_dead,
        "state": index.to_state(),
    }


@pytest.mark.parametrize("seed", range(60))
def test_many_at_once_are_one_by_one(seed: int) -> None:
    per_subject = random.Random(seed).choice((-1, 9))  # a small limit lists each subject's seqs
    at_once, one_by_one = (filled(random.Random(seed), per_subject) for _ in range(2))
    assert len(at_once.machine.index.blocks) > 1
    rng = random.Random(seed + 1000)
    last = at_once.machine.index.last_seq
    for share in (0.05, 0.5, 0.9, 1.0):
        start = rng.choice((0, 0, last // 3))
        seqs = [seq for seq in range(start, last + 5) if rng.random() < share]
        gone: list[Any] = [[], [], []]
        for seq in seqs:
            for known, more in zip(gone, one_by_one.machine.index.remove([seq]), strict=True):
                known += more
        assert list(at_once.machine.index.remove(seqs)) == gone
        assert state(at_once) == state(one_by_one)
        if not at_once.machine.index.count:
            break


def test_seqs_in_any_order_are_removed() -> None:
    boxes = [filled(random.Random(7), -1) for _ in range(2)]
    seqs = list(range(2, boxes[0].machine.index.last_seq, 3))
    mixed = random.Random(1).sample(seqs, len(seqs))
    assert boxes[0].machine.index.remove(mixed)[0] == mixed
    assert boxes[1].machine.index.remove(seqs)[0] == seqs
    assert state(boxes[0]) == state(boxes[1])
