"""Snapshots of the machines and the blocks a stream lays out, byte for byte.

A changed file needs a version bump and an ADR: a snapshot on disk must stay readable, and replicas
of different releases must lay out equal blocks. `python -m tests.golden.test_machine_bytes` writes
the files anew; review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.meta import MetaMachine, PlacementChange
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block_codec import BlockCodec
from streamd.types import Entry
from tests.unit.machine.box import SECOND, START_NS, Box

HERE = Path(__file__).parent / "machine"


def stream() -> Box:
    """A stream with two blocks, deletions, ids, a TTL and several subjects."""
    box = Box(block_bytes=400, allow_msg_ttl=True, max_msgs_per_subject=3)
    for n in range(9):
        box.put(b"a.%d" % (n % 4), b"payload %d" % n)
    box.put(b"a.1", b"", Msg_Id="id-1")
    box.put(b"a.2", b"", TTL="1h")
    box.do(commands.DELETE_MSG, 5, False)
    return box


def consumers() -> Box:
    """The same stream with consumers: all, filtered, the last of each subject, refiltered."""
    box = stream()
    uid = box.consumer("all", max_deliver=5).uid
    box.do(commands.DELIVERED, uid, [(1, 4, 1, False), (6, 6, 5, False)], 0)
    box.do(commands.DELIVERED, uid, [(4, 4, 6, True)], 0)
    box.do(commands.NAKED, uid, [[6, 5 * SECOND]])
    uid = box.consumer("some", filter_subject="a.1").uid
    box.do(commands.DELIVERED, uid, [(2, 2, 1, False)], 0)
    box.do(commands.ACKED, uid, [2])
    uid = box.consumer("last", deliver_policy="last_per_subject").uid
    box.do(commands.DELIVERED, uid, [(8, 8, 1, False)], 0)
    box.consumer("again", filter_subjects=["a.0", "a.2"])
    box.consumer("again", filter_subjects=["a.1", "a.2"])
    box.do(commands.PAUSE_CONSUMER, "again", START_NS * 2)
    return box


def meta() -> MetaMachine:
    """Two streams, one of them changed since."""
    machine = MetaMachine()
    for index, command in enumerate(
        (
            [commands.CREATE_STREAM, START_NS, {"name": "A", "subjects": ["a"]}],
            [commands.CREATE_STREAM, START_NS + 1, {"name": "B", "subjects": ["b"]}],
            [commands.UPDATE_STREAM, START_NS + 2, "A", {"name": "A", "subjects": ["c"]}],
        ),
        1,
    ):
        machine.apply(Entry(1, index, commands.encode(command)), Effects())
    return machine


def meta_with_removals() -> MetaMachine:
    """A stream on three nodes, one of which was removed; another came back with empty hands."""
    machine = MetaMachine()
    config = {"name": "A", "subjects": ["a"], "num_replicas": 3}
    for index, command in enumerate(
        (
            [commands.CREATE_STREAM, START_NS, config, ["n1", "n2", "n3"]],
            [commands.REMOVE_SERVER, START_NS + 1, "n3"],
            [commands.REMOVE_SERVER, START_NS + 2, "n4"],
            [commands.ADMIT_SERVER, START_NS + 3, "n4"],
        ),
        1,
    ):
        machine.apply(Entry(1, index, commands.encode(command)), Effects())
    return machine


def meta_placed() -> MetaMachine:
    """A stream on three nodes."""
    machine = MetaMachine()
    config = {"name": "A", "subjects": ["a"], "num_replicas": 3}
    command = [commands.CREATE_STREAM, START_NS, config, ["n1", "n2", "n3"]]
    machine.apply(Entry(1, 1, commands.encode(command)), Effects())
    return machine


def meta_with_losses() -> MetaMachine:
    """The log lost its end after entry 1; entry 2 was there all the same."""
    machine = meta()
    command = [commands.ACCEPT_LOSS, START_NS + 3, 1, 9]
    machine.apply(Entry(2, machine.applied + 1, commands.encode(command)), Effects())
    return machine


def meta_with_changes() -> MetaMachine:
    """A stream of which one replica moves, and another one that has moved."""
    machine = MetaMachine()
    for index, command in enumerate(
        (
            [commands.CREATE_STREAM, START_NS, {"name": "A", "num_replicas": 1}, ["n1"]],
            [commands.CREATE_STREAM, START_NS + 1, {"name": "B", "num_replicas": 1}, ["n1"]],
            [commands.SET_PEERS, START_NS + 2, 1, ["n2"]],
            [commands.SET_PEERS, START_NS + 3, 2, ["n2"]],
            [commands.MOVED, START_NS + 4, 2, ["n2"]],
            [commands.UPDATE_STREAM, START_NS + 5, "A", {"name": "A", "num_replicas": 2},
             ["n2", "n3"]],
        ),
        1,
    ):  # fmt: skip
        machine.apply(Entry(1, index, commands.encode(command)), Effects())
    return machine


def made() -> dict[str, bytes]:
    box = stream()
    return {
        "stream.state": box.machine.snapshot(),
        "stream.index": box.machine.index_db(),
        "stream.1.blk": bytes(box.blocks.files[1]) + box.blocks.footers[1],
        "stream.consumers.state": consumers().machine.snapshot(),
        "meta.state": meta().snapshot(),
        "meta.removals.state": meta_with_removals().snapshot(),
        "meta.losses.state": meta_with_losses().snapshot(),
        "meta.changes.state": meta_with_changes().snapshot(),
    }


@pytest.mark.parametrize(
    "name",
    [
        "stream.state",
        "stream.index",
        "stream.1.blk",
        "stream.consumers.state",
        "meta.state",
        "meta.removals.state",
        "meta.losses.state",
        "meta.changes.state",
    ],
)
def test_bytes_equal_the_golden_file(name: str) -> None:
    """Written today, the same bytes as on the day the file was made."""
    assert made()[name] == (HERE / name).read_bytes()


def test_old_snapshots_can_be_read() -> None:
    """The files of that day give today's machines."""
    box = stream()
    again = StreamMachine.restore(
        (HERE / "stream.state").read_bytes(),
        (HERE / "stream.index").read_bytes(),
        codec=BlockCodec(),
        columns=box.blocks,
        scan=box.blocks.scan,
    )
    assert again.digest == box.machine.digest
    mine = box.machine.index
    assert list(again.index.lookup.subjects_matching(None)) == list(
        mine.lookup.subjects_matching(None)
    )
    assert again.index.lookup.counts_matching(None) == mine.lookup.counts_matching(None)
    old = MetaMachine.restore((HERE / "meta.state").read_bytes())
    assert old.streams_by_key == meta().streams_by_key
    # Written before streams had accounts: they are of the main one.
    assert list(old.streams_by_key) == [("$G", "A"), ("$G", "B")]
    want = meta_with_removals()
    old = MetaMachine.restore((HERE / "meta.removals.state").read_bytes())
    assert (old.streams_by_key, old.removals, old.out, old.thin) == (
        want.streams_by_key,
        {"n3": 2, "n4": 3},
        {"n3"},
        {1},
    )
    assert old.fingerprint() == want.fingerprint()
    old = MetaMachine.restore((HERE / "meta.losses.state").read_bytes())
    assert old.losses == [(1, 9, (2,))]
    assert old.fingerprint() == meta_with_losses().fingerprint() != meta().fingerprint()
    old = MetaMachine.restore((HERE / "meta.changes.state").read_bytes())
    assert old.changes == {1: PlacementChange(START_NS + 5, 1, None)} == meta_with_changes().changes
    assert old.fingerprint() == meta_with_changes().fingerprint()


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("meta.1.state", meta()),
        ("meta.2.state", meta_placed()),
        ("meta.3.state", meta_with_removals()),
        ("meta.4.state", meta_with_losses()),
    ],
)
def test_a_meta_state_without_its_empty_fields_is_the_state_made_anew(
    name: str, machine: MetaMachine
) -> None:
    """Each layout that was written while its last fields were empty; none of them can be told from
    the whole one once it is read: replicas compare what they hold."""
    old = MetaMachine.restore((HERE / name).read_bytes())
    assert old.fingerprint() == machine.fingerprint()
    assert old.snapshot() == machine.snapshot() != (HERE / name).read_bytes()


def test_a_meta_state_of_a_later_version_is_refused() -> None:
    state = bytearray(meta().snapshot())
    state[1] += 2
    with pytest.raises(CorruptionError, match="meta snapshot has unknown version 6"):
        MetaMachine.restore(bytes(state))


def test_consumers_of_old_snapshots_decode_unchanged() -> None:
    box = consumers()
    again = StreamMachine.restore(
        (HERE / "stream.consumers.state").read_bytes(),
        None,
        codec=BlockCodec(),
        columns=box.blocks,
        scan=box.blocks.scan,
    )
    assert again.fingerprint() == box.machine.fingerprint()
    assert [each.to_state() for each in again.consumers.values()] == [
        each.to_state() for each in box.machine.consumers.values()
    ]
    assert [each.num_pending for each in again.consumers.values()] == [5, 2, 3, 6]


if __name__ == "__main__":
    for file_name, content in made().items():
        (HERE / file_name).write_bytes(content)
