"""Entries that are no commands: passed over on every replica alike, told, and nothing changes."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd import errors
from streamd.machine import command_shapes, commands
from streamd.machine.base import Effects
from streamd.machine.meta import MetaMachine
from streamd.types import Entry
from tests.unit.machine.box import Box

STREAM = {"name": "S", "subjects": ["s.>"], "num_replicas": 1}
CONSUMER = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.a"}

META: dict[int, list[Any]] = {
    commands.CREATE_STREAM: [STREAM, ["n1", "n2"]],
    commands.UPDATE_STREAM: ["S", STREAM, None, [3, "n1"]],
    commands.DELETE_STREAM: ["S", 0, False],
    commands.SET_PEERS: [1, ["n1"], [1, "n1"]],
    commands.MOVED: [1, ["n1"]],
    commands.REMOVE_SERVER: ["n1"],
    commands.ADMIT_SERVER: ["n1"],
    commands.ADOPT_STREAM: [7, STREAM, 7],
    commands.ACCEPT_LOSS: [0, 0],
    commands.CHECKPOINT: [0, 0],
}
OF_STREAM: dict[int, list[Any]] = {
    commands.STORE: [[(b"s.a", b"", b"x")], 1],
    commands.STORE_BATCH: ["id", [(b"s.a", b"", b"x")], 1],
    commands.DELIVERED: [1, [(1, 1, 1, False)], 0],
    commands.ACKED: [1, [1]],
    commands.NAKED: [1, [(1, 0)]],
    commands.TERMED: [1, [(1, "why")]],
    commands.PROGRESS: [1, [1]],
    commands.DEAD: [1, [1]],
    commands.POSITION: [1, 1, 1, 0],
    commands.EXPIRE: [1, [1]],
    commands.PURGE: [b"", 0, 0],
    commands.DELETE_MSG: [1, True],
    commands.CONFIGURE: [STREAM, 5],
    commands.CREATE_CONSUMER: ["C", CONSUMER, "", False],
    commands.DELETE_CONSUMER: ["C", 0, ""],
    commands.PAUSE_CONSUMER: ["C", 0],
    commands.RESET_CONSUMER: ["C", 0],
    commands.CHECKPOINT: [0, 0],
    commands.REWRITE: [[1], [1, 1], b""],
    commands.REMOVE: [[1, 1]],
    commands.IMPORT: [[(7, 5, b"s.a", b"", b"x")], 9],
    commands.IMPORT_CONSUMER: ["C", CONSUMER, 5, [2, 3, 1, 1, [(2, 2, 5)], [(2, 2)]]],
    commands.STORE_SCHEDULED: [[(b"s.a", b"", b"x")], 1, [(0, 5, 0)]],
    commands.STORE_SCHEDULED_BATCH: ["id", [(b"s.a", b"", b"x")], 1, [(0, 5, 0)]],
    commands.FIRE: [[(b"s.a", 1, 5, 0, [], (b"s.b", b"", b"x"))]],
    commands.COPY: ["", "", 0, 1, [1], [5], [(b"s.a", b"", b"x")], 99],
    commands.STORE_FAST: [[(b"s.a", b"", b"x")], 1, [(b"b", 1, 10, 1, 0, 1)], []],
    commands.DROP_FAST: [[(b"b", 1)]],
    commands.LETTERS_SENT: [[1, 2]],
}
WRONG = st.one_of(
    st.none(), st.integers(-5, -1), st.text(max_size=3), st.binary(max_size=3), st.floats(),
    st.lists(st.none() | st.text(max_size=2) | st.floats(), max_size=4),
    st.dictionaries(st.text(max_size=2) | st.integers(0, 3), st.none(), max_size=2),
)  # fmt: skip


def apply_to(machine: Any, data: bytes) -> Effects:
    out = Effects()
    machine.apply(Entry(1, machine.applied + 1, data, tag="t"), out)
    return out


def machines() -> tuple[MetaMachine, Any]:
    meta, box = MetaMachine(), Box(**STREAM)
    apply_to(meta, commands.encode([commands.CREATE_STREAM, 5, STREAM]))
    for kind in (commands.CREATE_CONSUMER, commands.STORE):
        apply_to(box.machine, commands.encode([kind, 5, *OF_STREAM[kind]]))
    return meta, box.machine


@pytest.mark.parametrize("kind", sorted(META))
def test_each_command_of_the_meta_group_has_a_shape(kind: int) -> None:
    """And is applied."""
    meta, _ = machines()
    assert not apply_to(meta, commands.encode([kind, 9, *META[kind]])).ignored


@pytest.mark.parametrize("kind", sorted(OF_STREAM))
def test_each_command_of_a_stream_has_a_shape(kind: int) -> None:
    """All kinds that a stream's machine knows are here."""
    _, stream = machines()
    assert sorted(stream._handlers) == sorted(OF_STREAM)
    assert not command_shapes.why_malformed([kind, 9, *OF_STREAM[kind]], stream._handlers)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00", b"\x93\x01", b"\xff" * 9, b"plain", msgpack.packb([]), msgpack.packb(["x", 1]),
        msgpack.packb([-1, 1, 2]), msgpack.packb({1: 2}), msgpack.packb([0, 1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("which", [0, 1])
def test_entries_that_are_no_command_are_ignored(data: bytes, which: int) -> None:
    """Bytes of something else. They raised KeyError on every member at once."""
    machine, twin = machines()[which], machines()[which]
    before = machine.fingerprint()
    for each in (machine, twin):
        out = apply_to(each, data)
        ((index, reason),) = out.ignored
        assert index == each.applied and reason
        assert out.outcomes == [("t", errors.BAD_REQUEST())]
        assert not out.events and not out.block_ops
    assert machine.fingerprint() == twin.fingerprint() == before
    assert machine.snapshot() == twin.snapshot()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([999, 1, 2], "entry 2 holds command 999, which this release does not know"),
        ([commands.CHECKPOINT, 9, 0, 0, 5], "command 18 with 4 fields, of which this release know"),
    ],
)
def test_a_command_of_a_later_release_stops_the_group(
    which: int, command: list[int], told: str
) -> None:
    """Passed over, this replica would differ from those that know it."""
    machine = machines()[which]
    at = machine.applied
    before = machine.snapshot()
    told = told.replace("entry 2", f"entry {at + 1}")
    with pytest.raises(errors.NewerEntryError, match=told):
        apply_to(machine, commands.encode(command))
    assert machine.applied == at and machine.snapshot() == before


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_field_of_another_type_changes_nothing(data: st.DataObject) -> None:
    """Each field of each command, replaced by what it is not, or left out. Either it is a value
    that the field may have, or the entry is passed over."""
    which = data.draw(st.sampled_from([0, 1]))
    table = (META, OF_STREAM)[which]
    kind = data.draw(st.sampled_from(sorted(table)))
    command = [kind, 9, *table[kind]]
    at = data.draw(st.integers(1, len(command) - 1))
    if data.draw(st.booleans()):
        command[at] = data.draw(WRONG)
    else:
        del command[at]
    machine = machines()[which]
    reason = command_shapes.why_malformed(command, machine._handlers)
    if not reason:
        return
    before = machine.snapshot()
    out = apply_to(machine, commands.encode(command))
    assert out.ignored and not out.events and not out.block_ops
    machine.applied -= 1
    assert machine.snapshot() == before


@pytest.mark.parametrize(
    "row",
    [
        dict.fromkeys((7, 5, b"s.a", b"", b"x")), (7, 5, b"s.a", b""), (7, 5, b"s.a", b"", b"x", 1),
        (-7, 5, b"s.a", b"", b"x"), (7, -5, b"s.a", b"", b"x"), (7, True, b"s.a", b"", b"x"),
        (7, 5, "s.a", b"", b"x"), (7, 5, b"s.a", b"", None), 7, b"seven",
    ],
)  # fmt: skip
def test_rows_of_an_archive_that_are_none_are_told(row: object) -> None:
    _, stream = machines()
    command = [commands.IMPORT, 9, [(6, 5, b"s.a", b"", b"x"), row], 9]
    assert command_shapes.why_malformed(command, stream._handlers)


def test_a_config_that_no_replica_could_read_is_passed_over() -> None:
    """The keys that a machine reads are looked at, in a stream's config and a consumer's."""
    meta, stream = machines()
    for wrong in (
        {"subjects": [1]}, {"subjects": "a"}, {"num_replicas": "3"}, {"max_bytes": "much"},
        {"storage": "tape"}, {"retention": 1}, {"name": ""}, {"name": None}, {"republish": 1},
    ):  # fmt: skip
        config = STREAM | {"name": "T", "subjects": ["t"]} | wrong
        out = apply_to(meta, commands.encode([commands.CREATE_STREAM, 6, config]))
        assert out.ignored, wrong
        assert apply_to(
            stream, commands.encode([commands.CONFIGURE, 6, STREAM | wrong, 8])
        ).ignored, wrong
    for wrong in (
        {"deliver_policy": "some"}, {"deliver_policy": "by_start_time"},
        {"filter_subjects": [b"a"]},
        {"max_ack_pending": None}, {"pause_until": "soon"}, {"opt_start_time": 3},
    ):  # fmt: skip
        command = [commands.CREATE_CONSUMER, 6, "D", CONSUMER | wrong, "", False]
        assert apply_to(stream, commands.encode(command)).ignored, wrong
    assert sorted(meta.streams_by_key) == [("$G", "S")] and sorted(stream.consumers) == ["C"]


def test_the_proposer_passes_over_what_its_followers_pass_over() -> None:
    """It holds the command decoded, and looks at it all the same."""
    meta, _ = machines()
    out = Effects()
    command = [commands.REMOVE_SERVER, 6, 7]
    data = commands.encode(command)
    meta.apply(Entry(1, meta.applied + 1, data, command, "t"), out)
    assert out.ignored == [(2, "command 106: field 2 is not what it should be")]
    assert not meta.removals


@pytest.mark.parametrize("kind", sorted(command_shapes._TRUSTED))
def test_the_proposer_ignores_the_same_entries_as_the_others(kind: int) -> None:
    """A proposer holds its commands decoded and trusts what is in them, but not how much: one that
    every follower passes over, applied by its leader alone, made all replicas differ."""
    command = [kind, 1]
    known = set(OF_STREAM)
    for entry in (Entry(1, 5, b"", command), Entry(1, 5, commands.encode(command))):
        out = Effects()
        assert command_shapes.admit(entry, known, out) is None
        assert [index for index, _ in out.ignored] == [5]


@pytest.mark.parametrize("kind", sorted(command_shapes._TRUSTED))
def test_the_proposer_stops_at_what_stops_the_others(kind: int) -> None:
    """Fields that it does not know, in a command of its own."""
    command = [kind, 1, *OF_STREAM[kind], *[0] * 9]
    for entry in (Entry(1, 5, b"", command), Entry(1, 5, commands.encode(command))):
        with pytest.raises(errors.NewerEntryError):
            command_shapes.admit(entry, set(OF_STREAM), Effects())
