"""A short campaign of tests/sim/crash.py, on seeds that once found something and on others."""

from __future__ import annotations

from functools import partial

from streamd.store.frames import frame_format as ff
from streamd.store.frames.framed_disk import FramedDisk
from streamd.store.frames.keyring import Keyring
from tests.sim.crash import run


def test_nothing_acked_is_lost_wherever_the_power_goes() -> None:
    """72 crashes over 6 seeds; seed 9 once recovered a consumer with a lower ack floor."""
    counts = run(first_seed=7, points=72)
    assert counts["crashes"] >= 72
    assert counts["acked"] > 1000
    assert counts["double acked"] > 20
    assert counts["rewritten"] > 0
    assert counts["point SNAPSHOT_RENAMED"] > 0
    assert counts["point WAL_SEGMENT_FREED"] > 0


def test_nothing_acked_is_lost_on_an_encrypted_disk_with_packed_blocks() -> None:
    """The same campaign where all files are encrypted and sealed blocks packed."""
    encrypted = partial(FramedDisk, keys=Keyring(bytes(32), ff.CHACHA))
    counts = run(first_seed=700, points=60, seen_through=encrypted)
    assert counts["crashes"] >= 60
    assert counts["acked"] > 800
    assert counts["point SNAPSHOT_RENAMED"] > 0
    assert counts["point BLOCK_PACKED_RENAMED"] > 0
    assert counts["point WAL_SEGMENT_FREED"] > 0
