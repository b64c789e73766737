"""The next safe step from the members that a group has to the members that it should have.

New members come in as learners, and vote when they have nearly all of the log. None of them waits
for the others: as soon as those that are there make a majority of the wanted members, they vote.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from streamd import limits
from streamd.machine.meta import StreamAsset
from streamd.raft.core import RaftCore
from streamd.raft.membership import Membership
from streamd.types import NodeId

Step = tuple[tuple[NodeId, ...], tuple[NodeId, ...]]


def next_membership(
    raft: RaftCore, wanted: tuple[NodeId, ...], *, are_all_wanted: bool = True
) -> Step | None:
    """Return (voters, learners) to propose now; None: nothing to do, or not yet.

    A step never leaves fewer voters to spare than there were. With `are_all_wanted` a learner
    that is not ready yet may become a voter together with those that are: it was chosen, and the
    majority is no larger for it than it is to be in the end. Without, it stays a learner.
    """
    members = raft.members
    if not raft.is_leader or members.is_joint or raft.log.membership_index > raft.commit:
        return None
    voters, learners, target = set(members.voters), set(members.learners), set(wanted)
    missing = target - voters
    if voters == target and not learners:
        return None
    joining = missing - learners
    if joining:
        return members.voters, tuple(sorted(learners | joining))
    ready = {name for name in missing if raft.is_close(name, limits.LEARNER_LAG_ENTRIES)}
    there = ready | {name for name in voters if raft.is_following(name)}
    spare_now, spare_then = _spare(voters, there), _spare(target, there)
    if spare_then < min(spare_now, 0):
        return None  # a majority of them is not there, so nothing could be committed any more
    if ready == missing:
        return tuple(sorted(target)), ()
    if not ready or spare_then < 0:
        return None
    if are_all_wanted and spare_then >= spare_now:
        return tuple(sorted(target)), ()
    return tuple(sorted(voters | ready)), tuple(sorted(learners - ready))


def _spare(voters: AbstractSet[NodeId], there: AbstractSet[NodeId]) -> int:
    """Count how many of those `there` may fail before nothing is committed any more; < 0: one too
    many has."""
    return len(voters & there) - quorum_of(len(voters))


def quorum_of(voter_count: int) -> int:
    """Return the size of a majority of so many voters."""
    return voter_count // 2 + 1


def ack_disk_count(members: Membership) -> int:
    """Return on how many disks an entry is at least when it is committed."""
    return min(members.needed, members.majority) if members.needed else members.majority


def named_by(asset: StreamAsset) -> set[NodeId]:
    """Return the members of a group as far as the meta group knows, and those wanted in it: its
    leader may have made them voters by now, and its report is on the way."""
    return {*asset.members, *asset.peers}


def forgotten_members(asset: StreamAsset) -> Membership:
    """Return the membership with which a member in memory begins that has forgotten its log:
    whether the members it knew or those that are wanted decide by now it can't know, so both must
    agree."""
    before, wanted = tuple(sorted(asset.members)), tuple(sorted(asset.peers))
    if set(wanted) <= set(before):
        return Membership(before)
    return Membership(wanted, voters_out=before)


def has_wrong_members(raft: RaftCore, asset: StreamAsset, now_ms: int) -> bool:
    """True if a member in memory must be opened again, empty, with the members that meta knows:
    its own log, which would say who they are, is gone.

    Either it was opened, empty, with members of long ago, before this node had heard who they are
    now; unless somebody leads it, who may do so by its vote, and brings the group on from there.
    Or it was told a part of the log, and whoever told it has forgotten the rest: by that part
    it needs the vote of somebody who has left, or may not stand without those who have come, and it
    grants none to those who hold less. Nothing rests on a member whose acks do not count; as long
    as somebody may lead, it is told the rest.
    """
    members = raft.members
    asked = {*members.voters, *members.voters_out}
    named = named_by(asset)
    if not asset.members:
        return False
    if raft.last_index == 0:
        return raft.is_uncertain and raft.leader_id is None and asked != named
    is_counted = members.is_voter(raft.node_id) and not raft.is_uncertain
    is_led = raft.leader_id is not None or now_ms < raft.heard_ms + limits.LEADERLESS_MS
    if is_counted or is_led:
        return False
    return asked != named
