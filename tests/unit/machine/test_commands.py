"""The vocabulary of log entries as bytes."""

from __future__ import annotations

import msgpack
import pytest

from streamd.machine import commands

MSG = (b"a.b", b"NATS/1.0\r\nA: b\r\n\r\n")


@pytest.mark.parametrize("count", [1, 15, 16, 300])
@pytest.mark.parametrize("later", [0, 255, 256, 4095, 4096, 65_535, 65_536])
def test_large_payloads_are_packed_like_small_ones(count: int, later: int) -> None:
    msgs = [(*MSG, bytes(4096))] + [(b"c", b"", bytes(later))] * (count - 1)
    command = [commands.STORE, 1_700_000_000_000_000_000, msgs]
    packed = commands.encode_store(command)
    assert packed == msgpack.packb(command)
    assert commands.decode(packed) == [*command[:2], [list(msg) for msg in msgs]]
