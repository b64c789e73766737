"""The meta machine: who gets a name and which subjects, decided by the order of the log."""

from __future__ import annotations

from typing import Any

from streamd import errors
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.types import Entry


class MetaBox:
    def __init__(self, **options: Any) -> None:
        self.machine = MetaMachine(**options)
        self.events: list[str] = []

    def do(self, *command: Any) -> Any:
        out = Effects()
        data = commands.encode(list(command))
        self.machine.apply(Entry(1, self.machine.applied + 1, data, tag="t"), out)
        self.events += [kind for kind, _ in out.events]
        return out.outcomes[0][1]

    def create(self, name: str, *subjects: str, **config: Any) -> Any:
        full = {"name": name, "subjects": list(subjects), **config}
        return self.do(commands.CREATE_STREAM, 5, full)


def test_uid_is_the_entry_that_created_it() -> None:
    box = MetaBox()
    box.create("A", "a")
    asset = box.create("B", "b")
    assert isinstance(asset, StreamAsset)
    assert (asset.uid, asset.name, asset.created_ns, asset.update_index) == (2, "B", 5, 2)
    box.do(commands.DELETE_STREAM, 6, "B", 0)
    assert box.create("B", "b").uid == 4
    assert box.events == ["stream_created", "stream_created", "stream_deleted", "stream_created"]


def test_equal_config_is_the_same_stream() -> None:
    box = MetaBox()
    first = box.create("A", "a", metadata={"_nats.req.level": "0", "x": "y"})
    assert box.create("A", "a", metadata={"x": "y", "_nats.ver": "2"}) == first
    assert box.create("A", "b", metadata={"x": "y"}) == errors.STREAM_NAME_EXIST()


def test_subjects_may_not_overlap() -> None:
    box = MetaBox()
    box.create("A", "a.*", "b.>")
    assert box.create("B", "a.x") == errors.STREAM_SUBJECT_OVERLAP()
    assert box.create("B", ">") == errors.STREAM_SUBJECT_OVERLAP()
    box.create("B", "c")
    config = {"name": "B", "subjects": ["c", "b.c"]}
    assert box.do(commands.UPDATE_STREAM, 6, "B", config) == errors.STREAM_SUBJECT_OVERLAP()


def test_update_keeps_uid_and_first_config() -> None:
    box = MetaBox()
    made = box.create("A", "a")
    changed = box.do(commands.UPDATE_STREAM, 6, "A", {"name": "A", "subjects": ["b"]})
    assert changed.uid == made.uid and changed.update_index == 2
    assert changed.created_config == made.config and changed.config["subjects"] == ["b"]
    assert box.do(commands.UPDATE_STREAM, 6, "Z", {}) == errors.STREAM_NOT_FOUND()


def test_what_no_update_changes() -> None:
    box = MetaBox()
    box.create("A", "a", storage="file", retention="workqueue")
    base = {"name": "A", "subjects": ["a"], "storage": "file", "retention": "workqueue"}
    for change in ({"storage": "memory"}, {"retention": "limits"}, {"name": "B"}):
        assert box.do(commands.UPDATE_STREAM, 6, "A", base | change).err_code == 10052


def test_delete_names_the_uid() -> None:
    """A delete that was meant for an earlier stream of this name does nothing."""
    box = MetaBox()
    box.create("A", "a")
    assert box.do(commands.DELETE_STREAM, 6, "A", 99) == errors.STREAM_NOT_FOUND()
    assert box.do(commands.DELETE_STREAM, 6, "A", 1) is True
    assert box.machine.digest == 0


def test_limit_of_streams() -> None:
    box = MetaBox(max_streams=1)
    box.create("A", "a")
    assert box.create("B", "b") == errors.MAXIMUM_STREAMS_LIMIT()
    assert isinstance(box.create("A", "a"), StreamAsset)


def test_snapshot_round_trip() -> None:
    box = MetaBox()
    box.create("A", "a")
    box.do(commands.UPDATE_STREAM, 6, "A", {"name": "A", "subjects": ["b"]})
    again = MetaMachine.restore(box.machine.snapshot())
    assert again.streams_by_name == box.machine.streams_by_name
    assert (again.applied, again.digest) == (box.machine.applied, box.machine.digest)
    assert again.snapshot() == box.machine.snapshot()
