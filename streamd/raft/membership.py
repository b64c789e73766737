"""Membership of a group, and what a majority of it is: simple, or joint while it changes.

A membership travels in the log as an entry whose data starts with a byte no command starts with.
It counts from the moment it is appended, on every member, and is undone with its entry. A change
of more than one voter goes through a joint membership, in which every decision needs a majority
of both the old and the new voters; the leader leaves it by itself once it is committed.

`needed` is no part of what travels: an operator has this member take fewer than a majority for
enough, for a while (`RaftCore.rescue`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgpack

from streamd.types import Index, NodeId

MARK = b"\xc1"  # the one byte msgpack never uses, so no command begins with it


class Membership(NamedTuple):
    """`voters` decide; `voters_out` (joint only) decide too; learners only receive.

    `learners_next` are voters_out that become learners when the joint phase ends.
    """

    voters: tuple[NodeId, ...]
    voters_out: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    needed: int = 0  # voters that are enough where a majority is more; 0: only a majority is

    @property
    def lists(self) -> tuple[tuple[NodeId, ...], ...]:
        """The group's own fields, as they travel."""
        return self.voters, self.voters_out, self.learners, self.learners_next

    @property
    def is_joint(self) -> bool:
        return bool(self.voters_out)

    def is_voter(self, node_id: NodeId) -> bool:
        return node_id in self.voters or node_id in self.voters_out

    def members(self) -> tuple[NodeId, ...]:
        """Return all nodes that receive the log, each once, sorted."""
        return tuple(sorted({*self.voters, *self.voters_out, *self.learners}))

    def has_quorum(self, holds: Callable[[NodeId], bool]) -> bool:
        """True if `holds` for a majority (of both halves when joint)."""
        return _has_majority(self.voters, holds, self.needed) and (
            not self.voters_out or _has_majority(self.voters_out, holds, self.needed)
        )

    def quorum_index(self, match: Callable[[NodeId], Index]) -> Index:
        """The highest index that a majority (of both halves when joint) has reached."""
        index = _majority_index(self.voters, match, self.needed)
        if self.voters_out:
            index = min(index, _majority_index(self.voters_out, match, self.needed))
        return index

    @property
    def majority(self) -> int:
        """Voters that a decision takes, of the larger half when joint, but for `needed`."""
        return max(len(self.voters), len(self.voters_out)) // 2 + 1

    def changed_to(self, voters: Iterable[NodeId], learners: Iterable[NodeId]) -> Membership:
        """Return the membership to append on the way to (voters, learners): joint if more than
        one voter changes, because two majorities could otherwise decide apart."""
        assert not self.is_joint, self
        new_voters = tuple(sorted(set(voters)))
        new_learners = tuple(sorted(set(learners) - set(new_voters)))
        assert new_voters, "a group needs a voter"
        if len(set(new_voters) ^ set(self.voters)) <= 1:
            return Membership(new_voters, learners=new_learners)
        demoted = tuple(node_id for node_id in new_learners if node_id in self.voters)
        return Membership(
            new_voters,
            voters_out=self.voters,
            learners=tuple(node_id for node_id in new_learners if node_id not in demoted),
            learners_next=demoted,
        )

    def left_joint(self) -> Membership:
        """The membership that ends the joint phase."""
        assert self.is_joint, self
        learners = tuple(sorted({*self.learners, *self.learners_next}))
        return Membership(self.voters, learners=learners)


def simple(voters: Iterable[NodeId], learners: Iterable[NodeId] = ()) -> Membership:
    """A membership outside of any change, in canonical order."""
    return Membership(tuple(sorted(set(voters))), learners=tuple(sorted(set(learners))))


def encode(membership: Membership) -> bytes:
    """The data of the log entry that makes `membership` the group's."""
    packed: bytes = msgpack.packb(membership.lists)
    return MARK + packed


def decode(data: bytes) -> Membership:
    """Inverse of `encode`."""
    assert data[:1] == MARK, data[:1]
    voters, voters_out, learners, learners_next = msgpack.unpackb(data[1:])
    return Membership(tuple(voters), tuple(voters_out), tuple(learners), tuple(learners_next))


def is_membership(data: bytes) -> bool:
    """True if `data` is a membership's, not a command's or a no-op's."""
    return data[:1] == MARK


def _has_majority(voters: tuple[NodeId, ...], holds: Callable[[NodeId], bool], needed: int) -> bool:
    count = sum(1 for node_id in voters if holds(node_id))
    return count > len(voters) // 2 or 0 < needed <= count


def _majority_index(
    voters: tuple[NodeId, ...], match: Callable[[NodeId], Index], needed: int
) -> Index:
    reached = sorted(map(match, voters), reverse=True)
    place = len(voters) // 2
    return reached[min(place, needed - 1) if needed else place]
