"""An ack implies durable on a quorum at that moment, by looking into every SimDisk.

Three questions. When a member says "durable here up to `index`": is it? When a leader gives out an
entry as committed: do the disks of a majority hold it? When the log lets go of entries: does a
durable snapshot, with the blocks it rests on, have them?

What an operator removes, or rot destroys, was there before. So a copy counts for a leader's quorum
also if that leader was told of it (which was checked) before the copy was destroyed, in the same
term; and rot excuses what a process says of its log only until that process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import pack
from typing import NamedTuple

from streamd.machine.meta import StreamAsset
from streamd.raft.core import RaftCore
from streamd.raft.messages import AppendReply, VoteReply
from streamd.store.blocks import snapshots
from streamd.store.blocks.footer import TRAILER_BYTES, footer_length
from streamd.store.blocks.record_format import REWRITTEN, block_number
from streamd.types import META_UID, Entry, Index, NodeId, Term, Uid
from tests.sim.decrypted import durable_content
from tests.sim.disk import SimDisk
from tests.sim.durable import durable_groups
from tests.sim.host import ROOT
from tests.sim.world import World, need

_WAL = ROOT + "/wal"


class Told(NamedTuple):
    """What a leader was told by a member: durable up to here."""

    leader: NodeId
    term: Term
    upto: Index


class Durability:
    """The checks of one run. They raise Violation."""

    def __init__(
        self, world: World, disks: dict[NodeId, SimDisk], assets: dict[Uid, StreamAsset]
    ) -> None:
        self._world = world
        self._disks = disks
        self._names = {id(disk): name for name, disk in disks.items()}
        self._assets = assets
        self._told: dict[tuple[Uid, NodeId], Told] = {}
        self._checked: dict[tuple[Uid, NodeId], Told] = {}  # the same, by the process that runs
        self._told_before: dict[tuple[Uid, NodeId], Told] = {}  # before the copy was destroyed
        self._doubtful: set[tuple[Uid, NodeId]] = set()  # members that lost their log
        self._rotten: set[NodeId] = set()  # since its process began

    # --- what faults say --------------------------------------------------------------------

    def copy_destroyed(self, name: NodeId, *, by_rot: bool = False) -> None:
        """Something durable of this node is about to go. What it said before was true."""
        for key, told in list(self._told.items()):
            if key[1] == name:
                self._told_before[key] = told
                del self._told[key]
        if by_rot:
            self._rotten.add(name)

    def log_lost(self, name: NodeId, uids: Iterable[Uid]) -> None:
        """This node has forgotten what it promised in these groups, votes included (I12)."""
        self._doubtful.update((uid, name) for uid in uids)

    def process_begins(self, name: NodeId) -> None:
        """A new process knows of its disk what it reads there."""
        self._rotten.discard(name)
        for key in [key for key in self._checked if key[1] == name]:
            del self._checked[key]

    # --- checks -----------------------------------------------------------------------------

    def on_reply(self, sender: NodeId, leader: NodeId, uid: Uid, reply: AppendReply) -> None:
        """A member says what it holds."""
        self._check_doubt(sender, uid, reply)
        if not reply.is_ok or self._is_in_memory(uid):
            return
        key = (uid, sender)
        known = self._checked.get(key)
        if known is not None and known[:2] == (leader, reply.term) and known.upto >= reply.index:
            return
        if sender not in self._rotten:
            need(
                self._holds_up_to(sender, uid, reply.index),
                f"{sender}/{uid} tells {leader} that it holds {reply.index}, which is not durable",
            )
            self._world.counts["acks of members checked"] += 1
        self._checked[key] = Told(leader, reply.term, reply.index)
        if not reply.is_uncertain:
            self._told[key] = self._checked[key]

    def on_vote(self, sender: NodeId, uid: Uid, reply: VoteReply) -> None:
        """A member grants a vote."""
        self._check_doubt(sender, uid, reply)

    def on_certify(self, member: NodeId, uid: Uid) -> None:
        """A leader says that a member may count again."""
        self._doubtful.discard((uid, member))

    def _check_doubt(self, sender: NodeId, uid: Uid, reply: AppendReply | VoteReply) -> None:
        if (uid, sender) in self._doubtful:
            need(
                reply.is_uncertain,
                f"{sender}/{uid} lost its log and answers as if it had not, before it is certified",
            )
            self._world.counts["answers in doubt"] += 1

    def on_committed(self, core: RaftCore, entry: Entry) -> None:
        """What a member gives out as committed is on the platters of a majority by now.

        A follower may know less of who belongs to the group; it is asked only if it is sure. A
        leader may have committed it before the members changed: with a slow disk it gives it out
        later than others do.
        """
        if self._is_in_memory(core.group):
            return
        members = core.log.membership  # in force from its append on, also for entries before it
        if not core.is_leader and (members.is_joint or len(core.log.open_memberships()) > 1):
            return
        self._world.counts["quorums checked"] += 1
        memberships = [members]
        if core.is_leader and core.log.membership_index > entry.index:
            memberships.append(core.log.membership_at(entry.index))
        names = dict.fromkeys(name for each in memberships for name in each.members())
        held = {
            name: self._counts(name, core) and self._has(name, core.group, entry) for name in names
        }

        def is_held() -> bool:
            return any(each.has_quorum(lambda name: held[name]) for each in memberships)

        if not is_held():
            for name in names:
                if not held[name] and self._had(name, core, entry):
                    held[name] = True
                    self._world.counts["copies destroyed after they were told of"] += 1
        need(
            is_held(),
            f"{core.node_id}/{core.group} commits {entry.index} of term {entry.term}, durable only "
            f"on {sorted(name for name in held if held[name])}",
        )

    def _counts(self, name: NodeId, core: RaftCore) -> bool:
        """False for a member in doubt: its copy is no promise to keep to the leader's term."""
        if name in self._rotten:  # its certificate may be behind the damage
            return (core.group, name) not in self._doubtful
        disk = self._disks.get(name)
        group = durable_groups(disk, _WAL).get(core.group) if disk is not None else None
        if group is None or not group.hard_state.is_uncertain:
            return True
        told = self._told.get((core.group, name))
        return told is not None and told[:2] == (core.leader_id, core.term)

    def _had(self, name: NodeId, core: RaftCore, entry: Entry) -> bool:
        """True if this leader was told of a copy that was destroyed since."""
        told = self._told_before.get((core.group, name))
        return told is not None and (
            told[:2] == (core.leader_id, core.term) and told.upto >= entry.index
        )

    def on_release(self, disk: SimDisk, uid: Uid, index: Index) -> None:
        """The log lets go of entries: a durable snapshot, and the blocks it rests on, have them."""
        disk = getattr(disk, "inner", disk)  # as the log sees it, it may be encrypted
        name = self._names.get(id(disk), "?")
        kind = "meta" if uid == META_UID else "stream"
        folder = _folder(uid)
        if index == 0 or self._is_in_memory(uid) or name in self._rotten:
            return
        saved = durable_content(disk, f"{folder}/{kind}-{index:016x}.snap")
        need(saved is not None, f"{name}/{uid} releases {index} without a durable snapshot of it")
        assert saved is not None
        snapshot = snapshots.decode(bytes(saved), name="snapshot", group=uid)
        self._world.counts["releases checked"] += 1
        last_block, offset = snapshot.tail
        for path in disk.paths:
            block = block_number(path.removeprefix(folder + "/"))
            if block is None or block in snapshot.doomed:
                continue
            if block >= REWRITTEN:
                if block > REWRITTEN + index:
                    continue
            elif block > last_block:
                continue
            if disk.keys is not None:
                held = durable_content(disk, path) or b""
                is_whole = len(held) >= offset if block == last_block else _has_footer(held)
                need(is_whole, f"{name}/{uid} releases {index}: block {block} is not durable")
                continue
            have, want = disk.durable_contents(path), disk.contents(path)
            end = offset if block == last_block else len(want)
            need(
                have is not None and have[:end] == want[:end],
                f"{name}/{uid} releases {index}: block {block} is not durable up to {end}",
            )

    # --- looking ----------------------------------------------------------------------------

    def _is_in_memory(self, uid: Uid) -> bool:
        asset = self._assets.get(uid)
        return asset is not None and asset.config.get("storage") == "memory"

    def _holds_up_to(self, name: NodeId, uid: Uid, index: Index) -> bool:
        disk = self._disks[name]
        group = durable_groups(disk, _WAL).get(uid)
        if group is not None and (index <= group.base or index in group.entries):
            return True
        if index == 0 or _snapshot_index(disk, uid) >= index:
            return True
        # The log began anew behind some damage, or entries were carried over: look at all of it.
        return _finds(disk, uid, index)

    def _has(self, name: NodeId, uid: Uid, entry: Entry) -> bool:
        disk = self._disks.get(name)
        if disk is None:
            return False
        group = durable_groups(disk, _WAL).get(uid)
        if group is not None and group.entries.get(entry.index) == (entry.term, entry.chain):
            return True
        if _snapshot_index(disk, uid) >= entry.index:
            return True
        record = pack("<QQQI", uid, entry.term, entry.index, entry.chain)
        return any(_is_entry(view, at) for view in _segments(disk) for at in _places(view, record))


def _has_footer(block: bytes | bytearray) -> bool:
    return footer_length(bytes(block[-TRAILER_BYTES:])) > 0


def _folder(uid: Uid) -> str:
    return f"{ROOT}/meta" if uid == META_UID else f"{ROOT}/streams/{uid}"


def _segments(disk: SimDisk) -> list[bytearray]:
    views = [
        durable_content(disk, path)
        for path in reversed(disk.durable_paths)
        if path.startswith(_WAL + "/") and path.endswith(".wal")
    ]
    return [view for view in views if view is not None]


def _finds(disk: SimDisk, uid: Uid, index: Index) -> bool:
    """True if some record of this entry, of any term, is in the log."""
    prefix, middle = pack("<Q", uid), pack("<Q", index)
    return any(
        view[at + 16 : at + 24] == middle and _is_entry(view, at)
        for view in _segments(disk)
        for at in _places(view, prefix)
    )


def _places(view: bytearray, found: bytes) -> Iterator[int]:
    at = view.find(found)
    while at >= 0:
        yield at
        at = view.find(found, at + 1)


def _is_entry(view: bytearray, at: int) -> bool:
    """True if the record whose group is there is an entry's, whatever it says of its commit."""
    return at >= 4 and view[at - 4 : at - 2] == b"\x01\x00"


def _snapshot_index(disk: SimDisk, uid: Uid) -> Index:
    """The index of the newest durable snapshot; -1: none."""
    kind = "meta" if uid == META_UID else "stream"
    head = f"{_folder(uid)}/{kind}-"
    return max(
        (
            int(path[len(head) : -len(".snap")], 16)
            for path in disk.durable_names()
            if path.startswith(head) and path.endswith(".snap")
        ),
        default=-1,
    )
