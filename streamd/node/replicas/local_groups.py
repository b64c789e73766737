"""`LocalGroups`: this node's members of groups, by uid.

The replica set and the meta member put them in and take them out; all other parts of the node look
them up here. Nothing is started or stopped by it.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamd import errors
from streamd.machine.meta import MetaMachine
from streamd.node.groups import inbox
from streamd.node.groups.group import Group, MetaGroup
from streamd.node.groups.monitor import Monitor
from streamd.node.ports import Done
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import META_UID, NodeId, Uid


class LocalGroups:
    """Members of one node: one of the meta group, and a replica of each stream that is open here.

    The meta group's machine outlives its monitor: between the member's end and its new beginning
    the state of before is what the node knows.
    """

    def __init__(self) -> None:
        self.meta_group: MetaGroup | None = None
        self.meta_monitor: Monitor | None = None  # None: it does not run
        self.is_meta_fresh = False  # it has what was committed when this process began
        self.replicas: dict[Uid, LocalStream] = {}

    def __iter__(self) -> Iterator[LocalStream]:
        return iter(list(self.replicas.values()))

    def get(self, uid: Uid) -> LocalStream | None:
        """Return the open replica of a stream, whatever its role."""
        return self.replicas.get(uid)

    @property
    def meta(self) -> MetaMachine:
        """The state of the meta group; empty until it is decided which cluster this is."""
        if self.meta_group is None:
            return MetaMachine()
        return self.meta_group.machine

    @property
    def is_meta_leader(self) -> bool:
        """True if this node leads the meta group and has applied all before its term."""
        return self.meta_group is not None and self.meta_group.is_ready

    def monitor_of(self, uid: Uid) -> Monitor | None:
        """Return the monitor of this node's member of a group."""
        if uid == META_UID:
            return self.meta_monitor
        replica = self.replicas.get(uid)
        return replica.monitor if replica is not None else None

    def group_of(self, uid: Uid) -> Group | None:
        """Return this node's member of a group."""
        if uid == META_UID:
            return self.meta_group
        replica = self.replicas.get(uid)
        return replica.group if replica is not None else None

    def step_down(self, uid: Uid, preferred: NodeId, done: Done) -> None:
        """Transfer the leadership of a group that this node leads."""
        monitor = self.monitor_of(uid)
        if monitor is None:
            done(errors.CLUSTER_NOT_LEADER())
        else:
            monitor.post(inbox.StepDown(preferred, done))

    def unwritten_bytes(self) -> int:
        """Bytes that are in the log, and not yet in their blocks."""
        return sum(each.files.unwritten_bytes for each in self if each.files is not None)

    def used_bytes(self, account: str, replicas: int = 0) -> tuple[int, int]:
        """Return the bytes of the messages of an account's streams, or of those with so many
        replicas: in memory, on files."""
        used = [0, 0]
        for replica in self:
            if replica.account != account:
                continue
            if not replicas or replica.config.get("num_replicas", 1) == replicas:
                used[replica.is_file] += replica.machine.index.live.bytes
        return used[0], used[1]

    def stored_bytes(self, *, is_file: bool) -> int:
        """Bytes of the messages of all streams on files, or in memory."""
        return sum(
            replica.machine.index.live.bytes for replica in self if replica.is_file == is_file
        )
