"""Who belongs to a group: what a member in memory takes from meta, since its own log is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd import limits
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.reconfiguration_steps import (
    forgotten_members,
    has_wrong_members,
    next_membership,
)
from streamd.raft.core import MemberStart, RaftCore
from streamd.raft.membership import Membership
from streamd.raft.messages import Heartbeat
from streamd.types import HardState, LogState
from tests.unit.raft.cluster import Disk

LATER_MS = limits.LEADERLESS_MS


def member(voters: str, last_index: int, *, is_uncertain: bool = True) -> RaftCore:
    """The member "c" of a stream's group in memory, whose log is a snapshot at `last_index`."""
    log = LogState(HardState(1), last_index + 1, last_index, min(last_index, 1), 0)
    return RaftCore(MemberStart(
        group=7, node_id="c", voters=voters, log=log, reader=Disk(), now_ms=0, seed=1,
        applied=last_index, is_uncertain=is_uncertain, may_begin_anew=True,
    ))  # fmt: skip


def placed(members: str, peers: str = "") -> StreamAsset:
    """The stream as meta knows it: who belongs to the group, and who is wanted."""
    config: dict[str, Any] = {"storage": "memory"}
    return StreamAsset(7, "M", config, 0, 1, config, tuple(peers or members), tuple(members))


@pytest.mark.parametrize(
    ("voters", "last_index", "members", "peers", "is_wrong"),
    [
        ("abc", 0, "bc", "", True),  # opened before the news came
        ("abc", 0, "abc", "bc", False),
        ("abc", 52, "bc", "", True),  # a has left, and c waits for its vote: seed 60380
        ("abc", 52, "abc", "bc", False),  # ... it may be a member yet
        ("abc", 52, "bc", "abc", False),  # ... it is to be one again
        ("bc", 52, "abc", "", True),  # without a, c may not stand
        ("ab", 52, "bc", "", True),  # a learner grants no votes to shorter logs either
        ("abc", 52, "", "", False),  # meta says nothing
    ],
)
def test_a_recovering_voter_without_data_has_wrong_members_when_one_has_left(
    voters: str, last_index: int, members: str, peers: str, is_wrong: bool
) -> None:
    core = member(voters, last_index)
    assert has_wrong_members(core, placed(members, peers), LATER_MS) is is_wrong


def test_a_voter_that_hears_a_leader_keeps_its_members() -> None:
    core = member("abc", 52)
    assert not has_wrong_members(core, placed("bc"), 0)
    assert has_wrong_members(core, placed("bc"), LATER_MS)
    core.step("b", Heartbeat(1, 0, 1))
    assert not has_wrong_members(core, placed("bc"), LATER_MS)


def test_an_empty_voter_that_has_a_leader_is_not_opened_again() -> None:
    """Its leader may have been elected by its vote, which it would forget."""
    core = member("abc", 0)
    assert has_wrong_members(core, placed("bc"), LATER_MS)
    core.step("b", Heartbeat(1, 0, 1))
    assert not has_wrong_members(core, placed("bc"), LATER_MS)


def test_the_members_in_the_log_of_a_voter_that_is_not_recovering_count() -> None:
    core = member("abc", 52, is_uncertain=False)
    assert not has_wrong_members(core, placed("bc"), LATER_MS)


def test_a_recovering_voter_does_not_stand_without_the_members_that_the_meta_group_names() -> None:
    """By its log c is the only voter; a and b may have become voters since: seed 68321."""
    for named, is_leader in (("abc", False), ("c", True)):
        log = LogState(HardState(1), 53, 52, 1, 0)
        core = RaftCore(MemberStart(
            group=7, node_id="c", voters="c", log=log, reader=Disk(), now_ms=0, seed=1,
            applied=52, is_uncertain=True, may_begin_anew=True, named=frozenset(named),
        ))  # fmt: skip
        core.tick(10 * LATER_MS)
        assert (core.is_leader, core.term) == (is_leader, 1 + is_leader)
        assert has_wrong_members(core, placed("c", named), 10 * LATER_MS) is not is_leader


@pytest.mark.parametrize(
    ("members", "peers", "voters", "voters_out"),
    [("abc", "abc", "abc", ""), ("abc", "ab", "abc", ""), ("c", "abc", "abc", "c")],
)
def test_a_member_that_forgot_asks_former_and_wanted_members(
    members: str, peers: str, voters: str, voters_out: str
) -> None:
    found = forgotten_members(placed(members, peers))
    assert found.lists == (tuple(voters), tuple(voters_out), (), ())


@pytest.mark.parametrize(
    ("voters", "learners", "close", "wanted", "step"),
    [
        ("abc", "", "", "abc", None),
        ("a", "bc", "", "abc", None),
        ("a", "bc", "b", "abc", ("abc", "")),  # a and b are the majority it will be
        ("a", "bc", "bc", "abc", ("abc", "")),
        ("a", "bcde", "b", "abcde", None),  # two of five are not
        ("a", "bcde", "bc", "abcde", ("abcde", "")),
        ("abc", "de", "", "abcde", None),
        ("abc", "de", "d", "abcde", ("abcde", "")),  # one of four may fail, as of three
        ("ab", "c", "", "bc", None),
        ("abc", "", "", "abd", ("abc", "d")),  # who comes learns first
        ("abc", "d", "", "abd", None),  # ... and votes when it has nearly all
        ("abc", "d", "d", "abd", ("abd", "")),
        ("abc", "d", "d", "ade", ("abc", "de")),
        ("abc", "de", "d", "ade", ("abcd", "e")),  # of a, d and e none might fail
        ("abc", "de", "de", "ade", ("ade", "")),
        ("abc", "", "", "a", ("a", "")),
        ("abc", "d", "", "abc", ("abc", "")),  # it is wanted no more
    ],
)
def test_the_next_step_towards_the_wanted_members(
    voters: str, learners: str, close: str, wanted: str, step: tuple[str, str] | None
) -> None:
    raft: Any = SimpleNamespace(
        is_leader=True,
        members=Membership(tuple(voters), learners=tuple(learners)),
        log=SimpleNamespace(membership_index=7),
        commit=7,
        is_close=lambda name, lag: name in close,
        is_following=lambda name: True,
    )
    expected = None if step is None else (tuple(step[0]), tuple(step[1]))
    assert next_membership(raft, tuple(wanted)) == expected
    raft.commit = 6
    assert next_membership(raft, tuple(wanted)) is None, "one change at a time"
    raft.commit, raft.is_leader = 7, False
    assert next_membership(raft, tuple(wanted)) is None


@pytest.mark.parametrize(
    ("voters", "learners", "away", "wanted", "step"),
    [
        ("abc", "", "c", "c", None),  # nothing could be committed until it is back
        ("abc", "", "c", "bc", None),
        ("abc", "", "b", "ab", None),
        ("abc", "", "c", "ab", ("ab", "")),
        ("abc", "d", "c", "abd", ("abd", "")),
        ("abc", "d", "d", "abd", None),
        ("abc", "de", "be", "ade", ("ade", "")),  # none may fail either way
        ("abc", "de", "bde", "ade", None),
        ("abcde", "f", "f", "abf", None),
        ("abcde", "fg", "g", "afg", ("abcdef", "g")),
        ("abcde", "f", "b", "abf", ("abf", "")),
    ],
)
def test_no_step_leaves_fewer_to_spare_than_are_there(
    voters: str, learners: str, away: str, wanted: str, step: tuple[str, str] | None
) -> None:
    raft: Any = SimpleNamespace(
        is_leader=True,
        members=Membership(tuple(voters), learners=tuple(learners)),
        log=SimpleNamespace(membership_index=7),
        commit=7,
        is_close=lambda name, lag: name not in away,
        is_following=lambda name: name not in away,
    )
    expected = None if step is None else (tuple(step[0]), tuple(step[1]))
    assert next_membership(raft, tuple(wanted)) == expected


def test_a_meta_learner_becomes_a_voter_only_when_it_has_caught_up() -> None:
    """Nobody chose the nodes of the meta group: one that has come by may be gone again."""
    raft: Any = SimpleNamespace(
        is_leader=True,
        members=Membership(("a",), learners=("b", "c")),
        log=SimpleNamespace(membership_index=7),
        commit=7,
        is_close=lambda name, lag: name == "b",
        is_following=lambda name: True,
    )
    assert next_membership(raft, ("a", "b", "c"), are_all_wanted=False) == (("a", "b"), ("c",))
