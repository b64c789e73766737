"""A stream's snapshot without the blocks that are lost, where that is accepted."""

from __future__ import annotations

import pytest

from streamd.machine import commands
from streamd.machine.indexes.columns import Columns
from streamd.machine.snapshot import decode_stream
from streamd.machine.streams.loss import Loss
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block_codec import BlockCodec
from tests.unit.machine.box import Box


def without(box: Box, first: int, last: int) -> tuple[StreamMachine, set[int]]:
    """The machine without the blocks that hold any of these seqs, and what is lost with them."""
    state = box.machine.snapshot()
    loss = Loss(decode_stream(state).messages)
    lost: set[int] = set()
    for block in loss.blocks:
        if block.count and block.first_seq <= last and block.last_seq >= first:
            lost.update(loss.live_seqs(block))
            loss.leave(block, Columns())
    machine = StreamMachine.restore(
        state,
        None,
        codec=BlockCodec(),
        columns=box.blocks,
        scan=box.blocks.scan,
        block_bytes=box.block_bytes,
        loss=loss,
    )
    return machine, lost


@pytest.mark.parametrize(("first", "last"), [(71, 100), (40, 60), (88, 88), (1, 100)])
def test_a_consumer_goes_on_with_what_is_left(first: int, last: int) -> None:
    """S2.4: acked up to 50, 51 to 90 wait for acks, two were sent again. What is lost is no longer
    waited for; nothing acked comes again, no number of a delivery is given out twice."""
    box = Box(block_bytes=800)
    box.store(*[(b"a.1", b"", b"%100d" % at) for at in range(1, 11)])
    for at in range(11, 101):
        box.put(b"a.1", b"%100d" % at)
    uid = box.consumer("C").uid
    box.do(commands.DELIVERED, uid, [(1, 90, 1, False)], 0)
    box.do(commands.ACKED, uid, list(range(1, 51)))
    box.do(commands.DELIVERED, uid, [(60, 60, 91, True), (88, 88, 92, True)], 0)
    box.do(commands.DELIVERED, uid, [(88, 88, 93, True)], 0)
    machine, lost = without(box, first, last)
    assert set(range(first, last + 1)) <= lost
    consumer = machine.consumers["C"]
    assert machine.index.last_seq == 100
    assert list(consumer.pending) == [seq for seq in range(51, 91) if seq not in lost]
    sent = {60: 2, 88: 3}
    assert consumer.redelivered == {seq: n for seq, n in sent.items() if seq not in lost}
    assert consumer.delivered_cseq == 93
    assert consumer.num_pending == sum(seq not in lost for seq in range(91, 101))
    assert consumer.floor_sseq <= consumer.delivered_sseq <= 100
    floor = min(consumer.pending, default=consumer.delivered_sseq + 1) - 1
    assert consumer.floor_sseq == floor
    assert consumer.next_sseq > 90
    restored = without(box, first, last)[0]
    assert restored.fingerprint() == machine.fingerprint()
