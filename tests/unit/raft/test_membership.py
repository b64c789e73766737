"""Majorities, simple and joint, and the way from one membership to another."""

from __future__ import annotations

import pytest

from streamd.raft import membership
from streamd.raft.membership import Membership, simple


@pytest.mark.parametrize(
    ("voters", "match", "index"),
    [
        ("a", {"a": 5}, 5),
        ("ab", {"a": 5, "b": 3}, 3),
        ("abc", {"a": 5, "b": 3, "c": 0}, 3),
        ("abc", {"a": 5}, 0),
        ("abcd", {"a": 9, "b": 8, "c": 7, "d": 0}, 7),
        ("abcde", {"a": 9, "b": 8, "c": 7, "d": 0, "e": 0}, 7),
    ],
)
def test_quorum_index(voters: str, match: dict[str, int], index: int) -> None:
    members = simple(voters)
    assert members.quorum_index(lambda node_id: match.get(node_id, 0)) == index
    assert members.has_quorum(lambda node_id: match.get(node_id, 0) >= index)


def test_joint_decisions_need_both_halves() -> None:
    members = Membership(("a", "b", "c"), voters_out=("c", "d", "e"))
    reached = {"a": 9, "b": 9, "c": 9, "d": 2, "e": 1}
    assert members.quorum_index(reached.__getitem__) == 2
    assert not members.has_quorum("abc".__contains__)
    assert not members.has_quorum("de".__contains__)
    assert members.has_quorum("abde".__contains__)
    assert members.has_quorum("acd".__contains__)


def test_one_voter_at_a_time_is_a_simple_change() -> None:
    assert simple("abc").changed_to("abcd", "e") == simple("abcd", "e")
    assert simple("abc").changed_to("ab", "c") == simple("ab", "c")
    assert simple("abc", "d").changed_to("abc", "") == simple("abc")


def test_replacing_a_voter_goes_through_a_joint_phase() -> None:
    joint = simple("abc", "d").changed_to("abd", "c")
    assert joint == Membership(("a", "b", "d"), ("a", "b", "c"), (), ("c",))
    assert joint.is_joint
    assert joint.members() == ("a", "b", "c", "d")
    assert joint.is_voter("c")
    assert joint.left_joint() == simple("abd", "c")


def test_survives_encoding_and_is_no_command() -> None:
    joint = simple("abc", "d").changed_to("abd", "c")
    data = membership.encode(joint)
    assert membership.is_membership(data)
    assert membership.decode(data) == joint
    assert not membership.is_membership(b"")
    assert not membership.is_membership(b"\x93\x01\x02\x03")
