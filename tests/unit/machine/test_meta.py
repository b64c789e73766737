"""The meta machine: who gets a name and which subjects, decided by the order of the log."""

from __future__ import annotations

from collections import Counter
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


def test_streams_created_in_lost_entries_do_not_count_as_deleted() -> None:
    """The log went to entry 4, of which the last two may never have been committed; entries up to
    8 may have been there."""
    box = MetaBox()
    box.create("A", "a")
    box.create("B", "b")
    box.create("C", "c")
    box.do(commands.DELETE_STREAM, 6, "A", 0)
    box.events.clear()
    assert box.do(commands.ACCEPT_LOSS, 7, 2, 8) is True
    machine = box.machine
    assert [uid for uid in range(12) if machine.is_lost(uid)] == [4, 5, 6, 7, 8]
    assert box.create("D", "d") == errors.CLUSTER_NOT_AVAIL()
    assert box.do(commands.REMOVE_SERVER, 8, "n1") == errors.CLUSTER_NOT_AVAIL()
    assert box.do(commands.ACCEPT_LOSS, 9, 8, 8) is True
    assert box.events == ["loss_accepted"]
    assert machine.applied == machine.used_to == 8
    assert machine.is_deleted(1) and not machine.is_deleted(7)
    assert box.create("D", "d").uid == 9
    box.do(commands.DELETE_STREAM, 10, "C", 0)
    assert machine.is_deleted(3)
    again = MetaMachine.restore(machine.snapshot())
    assert again.fingerprint() == machine.fingerprint()
    assert again.losses == machine.losses == [(2, 8, (3,))]


def test_a_stream_is_adopted_under_its_uid() -> None:
    box = MetaBox()
    box.create("A", "a")
    box.do(commands.CHECKPOINT, 5, 0, 0)
    adopted = box.do(commands.ADOPT_STREAM, 7, 2, {"name": "B", "subjects": ["b"]}, 2)
    assert (adopted.uid, adopted.name, adopted.created_ns, adopted.update_index) == (2, "B", 7, 2)
    assert box.machine.streams_by_uid[2] is adopted
    for uid, name, subject, error in (
        (1, "C", "c", errors.STREAM_NAME_EXIST()),
        (9, "A", "c", errors.STREAM_NAME_EXIST()),
        (9, "C", "b", errors.STREAM_SUBJECT_OVERLAP()),
    ):
        config = {"name": name, "subjects": [subject]}
        assert box.do(commands.ADOPT_STREAM, 8, uid, config, uid) == error
    again = MetaMachine.restore(box.machine.snapshot())
    assert again.fingerprint() == box.machine.fingerprint()
    assert again.streams_by_uid.keys() == {1, 2}


def test_equal_config_is_the_same_stream() -> None:
    box = MetaBox()
    first = box.create("A", "a", metadata={"_nats.req.level": "0", "x": "y"})
    assert box.create("A", "a", metadata={"x": "y", "_nats.ver": "2"}) == first
    assert box.create("A", "b", metadata={"x": "y"}) == errors.STREAM_NAME_EXIST()


def test_no_stream_is_made_that_lives_nowhere() -> None:
    """Asked for while the name was taken, applied when it was free again: simulator seed 20884."""
    box = MetaBox()
    config = {"name": "A", "subjects": ["a"]}
    asset = box.do(commands.CREATE_STREAM, 5, config, ["n1"])
    assert box.do(commands.CREATE_STREAM, 5, config, []) == asset
    box.do(commands.DELETE_STREAM, 6, "A", asset.uid)
    assert box.do(commands.CREATE_STREAM, 5, config, []) == errors.CLUSTER_NOT_AVAIL()
    assert not box.machine.streams_by_key


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
    assert box.do(commands.UPDATE_STREAM, 6, "Z", {"name": "Z"}) == errors.STREAM_NOT_FOUND()


def test_fields_that_no_update_changes_stay() -> None:
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
    assert again.streams_by_key == box.machine.streams_by_key
    assert (again.applied, again.digest) == (box.machine.applied, box.machine.digest)
    assert again.snapshot() == box.machine.snapshot()


def test_peers_are_wanted_until_the_leader_reports_them() -> None:
    """SET_PEERS says where replicas should be, MOVED where they are; until then both may exist."""
    box = MetaBox()
    config = {"name": "A", "subjects": ["a"], "num_replicas": 3}
    asset = box.do(commands.CREATE_STREAM, 5, config, ["n1", "n2", "n3"])
    assert asset.peers == asset.members == asset.created_peers == ("n1", "n2", "n3")
    wanted = box.do(commands.SET_PEERS, 6, 1, ["n1", "n2", "n4"])
    assert (wanted.peers, wanted.members) == (("n1", "n2", "n4"), ("n1", "n2", "n3"))
    assert not any(wanted.may_be_dropped_by(node) for node in ("n1", "n2", "n3", "n4"))
    assert wanted.update_index == asset.update_index  # the config is what it was
    moved = box.do(commands.MOVED, 7, 1, ["n1", "n2", "n4"])
    assert moved.may_be_dropped_by("n3") and not moved.may_be_dropped_by("n4")
    assert moved.created_peers == asset.created_peers
    assert (
        box.machine.streams_by_uid
        == {1: moved}
        == {moved.uid: box.machine.streams_by_key["$G", "A"]}
    )
    assert box.events == ["stream_created", "stream_updated", "stream_moved"]
    for kind in (commands.SET_PEERS, commands.MOVED):
        assert box.do(kind, 8, 99, ["n1"]) == errors.STREAM_NOT_FOUND()


def test_a_decision_counts_only_for_the_stream_it_rests_on() -> None:
    box = MetaBox()
    config = {"name": "A", "subjects": ["a"], "num_replicas": 3}
    asset = box.do(commands.CREATE_STREAM, 5, config, ["n1", "n2", "n3"])
    basis = asset.basis
    moved = box.do(commands.SET_PEERS, 6, 1, ["n1", "n2", "n4"], basis)
    assert moved.peers == ("n1", "n2", "n4")
    assert box.do(commands.SET_PEERS, 7, 1, ["n1", "n3", "n4"], basis) == (
        errors.STREAM_MOVE_IN_PROGRESS()
    )
    changed = config | {"subjects": ["b"]}
    for late in (basis, [2, *moved.peers]):
        assert box.do(commands.UPDATE_STREAM, 8, "A", changed, None, late) == (
            errors.STREAM_MOVE_IN_PROGRESS()
        )
    assert box.machine.streams_by_key["$G", "A"] == moved
    assert box.do(commands.UPDATE_STREAM, 9, "A", changed, None, moved.basis).config == changed


def test_wanted_members_stay_until_the_leader_reports() -> None:
    """The group may have moved to n4 and n5, with the report on its way, when others are wanted:
    who dropped its copy then was a voter, and what it had acked was gone."""
    box = MetaBox()
    config = {"name": "A", "subjects": ["a"], "num_replicas": 3}
    box.do(commands.CREATE_STREAM, 5, config, ["n1", "n2", "n3"])
    box.do(commands.SET_PEERS, 6, 1, ["n1", "n4", "n5"])
    back = box.do(commands.SET_PEERS, 7, 1, ["n1", "n2", "n3"])
    assert not any(back.may_be_dropped_by(node) for node in ("n1", "n2", "n3", "n4", "n5"))
    late = box.do(commands.MOVED, 8, 1, ["n1", "n4", "n5"])  # of what was wanted before
    assert late == back
    moved = box.do(commands.MOVED, 9, 1, ["n1", "n2", "n3"])
    assert moved.may_be_dropped_by("n4") and moved.may_be_dropped_by("n5")


def test_no_stream_loses_its_last_peer() -> None:
    box = MetaBox()
    box.do(commands.CREATE_STREAM, 5, {"name": "A", "subjects": ["a"]}, ["n1"])
    assert box.do(commands.SET_PEERS, 6, 1, []) == errors.PEER_REMAP()


def test_a_stream_without_placement_is_dropped_by_no_node() -> None:
    """A single node's streams have no peers; it keeps them all the same."""
    asset = MetaBox().create("A", "a")
    assert asset.peers == () and not asset.may_be_dropped_by("n1")


def test_update_may_place_anew() -> None:
    box = MetaBox()
    config = {"name": "A", "subjects": ["a"]}
    box.do(commands.CREATE_STREAM, 5, config, ["n1"])
    assert box.do(commands.UPDATE_STREAM, 6, "A", config, None).peers == ("n1",)
    assert box.do(commands.UPDATE_STREAM, 6, "A", config).peers == ("n1",)
    wide = box.do(commands.UPDATE_STREAM, 7, "A", config | {"num_replicas": 2}, ["n1", "n2"])
    assert (wide.peers, wide.members, wide.update_index) == (("n1", "n2"), ("n1",), 4)


def test_snapshot_with_peers() -> None:
    box = MetaBox()
    box.do(commands.CREATE_STREAM, 5, {"name": "A", "subjects": ["a"]}, ["n1", "n2", "n3"])
    box.do(commands.SET_PEERS, 6, 1, ["n1"])
    again = MetaMachine.restore(box.machine.snapshot())
    assert again.streams_by_key == box.machine.streams_by_key
    assert again.streams_by_uid == box.machine.streams_by_uid
    assert again.fingerprint() == box.machine.fingerprint()
    assert again.snapshot() == box.machine.snapshot()


def test_digest_sees_placement_and_a_deletion_takes_it_back() -> None:
    box = MetaBox()
    box.do(commands.CREATE_STREAM, 5, {"name": "A", "subjects": ["a"]}, ["n1", "n2"])
    seen = {box.machine.fingerprint()}
    box.do(commands.SET_PEERS, 6, 1, ["n2", "n3"])
    seen.add(box.machine.fingerprint())
    box.do(commands.MOVED, 7, 1, ["n2", "n3"])
    seen.add(box.machine.fingerprint())
    assert len(seen) == 3
    box.do(commands.DELETE_STREAM, 8, "A", 1)
    assert box.machine.digest == 0 and not box.machine.streams_by_uid


def test_checkpoint_takes_the_fingerprint() -> None:
    machine = MetaMachine()
    out = Effects()
    machine.apply(Entry(1, 1, commands.encode([commands.CHECKPOINT, 5, 0, 0])), out)
    assert out.checkpoint == (1, machine.fingerprint())


# --- servers that are removed -------------------------------------------------------------------


def placed(box: MetaBox, name: str, *peers: str, replicas: int = 3) -> StreamAsset:
    config = {"name": name, "subjects": [name], "num_replicas": replicas}
    asset = box.do(commands.CREATE_STREAM, 5, config, list(peers))
    assert isinstance(asset, StreamAsset)
    return asset


def test_removed_server_leaves_its_streams() -> None:
    """All but those that nobody else has; the membership of their groups follows by itself."""
    box = MetaBox()
    made = placed(box, "A", "n1", "n2", "n3")
    alone = placed(box, "B", "n3", replicas=1)
    other = placed(box, "C", "n1", "n2", "n4")
    box.events.clear()
    assert box.do(commands.REMOVE_SERVER, 6, "n3") is True
    left = box.machine.stream("A")
    assert left is not None
    assert left.peers == ("n1", "n2") and left.members == made.members
    assert (box.machine.stream("B"), box.machine.stream("C")) == (alone, other)
    assert box.events == ["server_removed", "stream_updated"]
    assert box.machine.thin == {made.uid}
    assert box.do(commands.SET_PEERS, 7, made.uid, ["n1", "n2", "n4"]).peers[-1] == "n4"
    assert box.machine.thin == set()


def test_loads_of_nodes_are_those_of_their_streams() -> None:
    """Counted along, through all that changes it: placing a stream must not look at all others."""
    box = MetaBox()
    machine = box.machine

    def is_right(found: MetaMachine) -> bool:
        counted = Counter(
            (node_id, len(asset.peers) > 1)
            for asset in found.streams_by_uid.values()
            for node_id in asset.peers
        )
        return +found.carried == counted

    made = placed(box, "A", "n1", "n2", "n3")
    placed(box, "B", "n3", replicas=1)
    placed(box, "C", "n1", "n2", "n4")
    assert machine.carried["n1", True] == 2 and machine.carried["n3", False] == 1
    assert is_right(machine) and is_right(MetaMachine.restore(machine.snapshot()))
    box.do(commands.SET_PEERS, 6, made.uid, ["n1"])  # of several replicas to one
    assert machine.carried["n1", False] == 1 and is_right(machine)
    box.do(commands.UPDATE_STREAM, 6, "B", made.config | {"name": "B", "subjects": ["B"]}, ["n2"])
    assert is_right(machine)
    box.do(commands.REMOVE_SERVER, 7, "n2")
    assert is_right(machine)
    box.do(commands.DELETE_STREAM, 8, "C", 0)
    assert is_right(machine) and is_right(MetaMachine.restore(machine.snapshot()))
    assert machine.carried["n4", True] == 0


def test_nothing_is_placed_on_a_removed_server() -> None:
    """Whatever was chosen before the removal was known; until it is let in again."""
    box = MetaBox()
    box.do(commands.REMOVE_SERVER, 5, "n3")
    made = placed(box, "A", "n1", "n2", "n3")
    assert made.peers == made.members == made.created_peers == ("n1", "n2")
    changed = box.do(commands.SET_PEERS, 6, made.uid, ["n3", "n4", "n1"])
    assert changed.peers == ("n4", "n1")
    update = [commands.UPDATE_STREAM, 6, "A", made.config, ["n3", "n2", "n1"]]
    assert box.do(*update).peers == ("n2", "n1")
    assert box.do(commands.ADMIT_SERVER, 7, "n3") is True
    assert box.do(*update).peers == ("n3", "n2", "n1")
    box.do(commands.DELETE_STREAM, 8, "A", 0)
    assert box.machine.thin == set()


def test_removals_are_part_of_state_and_fingerprint() -> None:
    box, prints = MetaBox(), set()
    placed(box, "A", "n1", "n2", "n3")
    for command in (
        [commands.CHECKPOINT, 5, 0, 0],
        [commands.REMOVE_SERVER, 5, "n3"],
        [commands.ADMIT_SERVER, 5, "n3"],
        [commands.REMOVE_SERVER, 5, "n3"],
    ):
        box.do(*command)
        again = MetaMachine.restore(box.machine.snapshot())
        assert again.removals == box.machine.removals
        assert (again.out, again.thin) == (box.machine.out, box.machine.thin)
        assert again.fingerprint() == box.machine.fingerprint()
        prints.add(again.fingerprint())
    assert len(prints) == 4


def test_only_a_removal_makes_a_stream_short_of_replicas() -> None:
    """Not a command that places it on fewer nodes; and fewer wanted replicas are enough."""
    box = MetaBox()
    made = placed(box, "A", "n1", "n2", "n3")
    box.do(commands.SET_PEERS, 6, made.uid, ["n1"])
    assert box.machine.thin == set()
    box.do(commands.SET_PEERS, 6, made.uid, ["n1", "n2", "n3"])
    box.do(commands.REMOVE_SERVER, 7, "n3")
    assert box.machine.thin == {made.uid}
    config = made.config | {"num_replicas": 2}
    box.do(commands.UPDATE_STREAM, 8, "A", config, None)
    assert box.machine.thin == set()
