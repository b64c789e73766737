"""The vocabulary of log entries as bytes."""

from __future__ import annotations

import msgpack
import pytest

from streamd.machine import commands
from streamd.machine.base import APPEND, Effects
from streamd.store.blocks.record_format import encode_batch, encode_frame
from streamd.types import Entry
from tests.unit.machine.box import START_NS, Box

MSG = (b"a.b", b"NATS/1.0\r\nA: b\r\n\r\n")


@pytest.mark.parametrize("count", [1, 15, 16, 300])
@pytest.mark.parametrize("later", [0, 255, 256, 4095, 4096, 65_535, 65_536])
def test_large_payloads_are_packed_like_small_ones(count: int, later: int) -> None:
    msgs = [(*MSG, bytes(4096))] + [(b"c", b"", bytes(later))] * (count - 1)
    command = [commands.STORE, 1_700_000_000_000_000_000, msgs, commands.PUBLISH_RULES]
    packed = commands.encode_store(command)
    assert packed == msgpack.packb(command)
    rules = commands.PUBLISH_RULES
    assert commands.decode(packed) == [*command[:2], [list(msg) for msg in msgs], rules]


@pytest.mark.parametrize(("size", "is_copied"), [(100, True), (20_000, False)])
def test_bulky_messages_leave_in_pieces_that_are_the_same_bytes(size: int, is_copied: bool) -> None:
    box = Box(block_bytes=1 << 20)
    msgs = [
        (b"a.b", b"NATS/1.0\r\nA: b\r\n\r\n" if n == 2 else b"", bytes([n]) * size)
        for n in range(4)
    ]
    command = [commands.STORE, START_NS, [list(msg) for msg in msgs]]
    out = Effects()
    box.machine.apply(Entry(1, 1, commands.encode(command)), out)
    ((kind, _, _, blob),) = out.block_ops
    assert (kind, isinstance(blob, bytes)) == (APPEND, is_copied)
    records, _, _ = encode_batch(1, START_NS, msgs)
    assert bytes(blob) == b"".join([*records, encode_frame(1, START_NS)])
    assert len(blob) == len(bytes(blob))
    box.blocks.apply(out.block_ops)
    assert [box.read(seq).payload for seq in range(1, 5)] == [msg[2] for msg in msgs]
