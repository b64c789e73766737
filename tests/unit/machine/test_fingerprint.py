"""Fingerprints: equal for equal histories however memory holds them, different for the rest."""

from __future__ import annotations

from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.digest import chain64
from streamd.types import Entry
from tests.unit.machine.box import Box


def _worked() -> Box:
    """A stream with blocks, deletions and two consumers, one with pending messages."""
    box = Box(block_bytes=400)
    for n in range(9):
        box.put(b"a.%d" % (n % 3), b"payload %d" % n)
    box.do(commands.DELETE_MSG, 4, False)
    box.consumer("c")
    box.consumer("d")
    uid = box.machine.consumers["c"].uid
    box.do(commands.DELIVERED, uid, [[1, 3, 1, False]], 0)
    box.do(commands.ACKED, uid, [2])
    return box


def test_same_history_same_fingerprint() -> None:
    assert _worked().machine.fingerprint() == _worked().machine.fingerprint()


def test_restored_machines_have_it_too() -> None:
    """From a snapshot with its index and without: other objects in memory, the same state."""
    box = _worked()
    wanted = box.machine.fingerprint()
    assert box.restored().fingerprint() == wanted
    assert box.restored(with_index=False).fingerprint() == wanted


def test_block_layout_does_not_matter() -> None:
    wide = Box(block_bytes=100_000)
    narrow = Box(block_bytes=400)
    for box in (wide, narrow):
        for n in range(20):
            box.put(b"a.b", b"payload %d" % n)
    assert wide.machine.fingerprint() == narrow.machine.fingerprint()


def test_every_kind_of_change_shows() -> None:
    """Storing, deleting, delivering, acking, giving up, a consumer more, a config more: all."""
    box = _worked()
    seen = {box.machine.fingerprint()}
    uid = box.machine.consumers["c"].uid
    steps = (
        lambda: box.put(b"a.9"),
        lambda: box.do(commands.DELETE_MSG, 6, False),
        lambda: box.do(commands.DELIVERED, uid, [[5, 5, 4, False]], 0),
        lambda: box.do(commands.DELIVERED, uid, [[1, 1, 5, True]], 0),
        lambda: box.do(commands.ACKED, uid, [1]),
        lambda: box.do(commands.DEAD, uid, [3]),
        lambda: box.do(commands.ACKED, uid, [3]),
        lambda: box.consumer("e"),
        lambda: box.do(commands.DELETE_CONSUMER, "d", 0, ""),
        lambda: box.config(max_msgs=100),
        lambda: box.do(commands.PURGE, b"", 0, 0),
    )
    for count, step in enumerate(steps, 2):
        step()
        seen.add(box.machine.fingerprint())
        assert len(seen) == count, count


def test_the_ack_floor_shows_by_itself() -> None:
    """Acks of all before them move it over seqs that this consumer never got."""
    seen = set()
    for acked in (1, 2):
        box = Box()
        box.store((b"a.1", b"", b""), (b"a.2", b"", b""), (b"a.1", b"", b""))
        uid = box.consumer("c", ack_policy="all", filter_subject="a.1").uid
        box.do(commands.DELIVERED, uid, [[1, 1, 1, False], [3, 3, 2, False]], 0)
        box.do(commands.ACKED, uid, [acked])
        assert box.machine.consumers["c"].floor_sseq == acked
        seen.add(box.machine.fingerprint())
    assert len(seen) == 2


def test_checkpoint_tells_the_fingerprint_of_its_entry() -> None:
    """Whatever index and digest the proposer had: they are not judged."""
    box = _worked()
    machine = box.machine
    out = Effects()
    assert out.checkpoint is None
    data = commands.encode([commands.CHECKPOINT, 5, 1, 12345])
    machine.apply(Entry(1, machine.applied + 1, data), out)
    assert out.checkpoint == (machine.applied, machine.fingerprint())
    assert not out.events and not out.block_ops


def test_chain_depends_on_order_and_stays_in_64_bits() -> None:
    assert chain64((1, 2)) != chain64((2, 1))
    assert chain64(()) != chain64((0,)) != chain64((0, 0))
    assert all(chain64((n, n << 80)) < 1 << 64 for n in range(100))
