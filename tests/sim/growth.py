"""Streams that get more replicas while one of them, or their leader, goes: faults and a checker.

The faults strike when it matters, not at random: a new replica is killed as it comes, and the
leader ends as soon as it calls all others current. The checker is told of every commit: a stream
whose acks are on fewer disks than a majority of the replicas asked for must get more voters as soon
as enough replicas are there, whatever becomes of the others.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.raft.core import RaftCore
from streamd.types import META_UID, NodeId, Uid
from tests.sim.host import SimProcess
from tests.sim.world import MS, SECOND, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.host import Host

REPLICA_LOST = "new replica lost"
LEADER_LOST = "leader lost when all are current"
LEADER_STOPPED = "leader stopped as replicas come"
KINDS = (REPLICA_LOST, LEADER_LOST, LEADER_STOPPED)
LOOK_US = MS
READY_LAG = 32  # entries: a learner this close has caught up
GRACE_US = SECOND  # within which a replica that is there is to vote
GAP_US = 300 * MS  # between two commits: what was in between is not known
LED_US = 4 * SECOND


class _Thin(NamedTuple):
    """A stream could have had its acks on enough disks since."""

    leader: NodeId
    there: frozenset[NodeId]
    since_us: int
    seen_us: int


class AckDisks:
    """On how many disks acks are, and on how many they could be."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._thin: dict[Uid, _Thin] = {}

    def on_committed(self, core: RaftCore) -> None:
        """The leader has committed entries of its term."""
        uid, now_us = core.group, self._cluster.world.now_us
        meta: MetaMachine = self._cluster.checkers.truths[META_UID].machine
        asset = meta.streams_by_uid.get(uid)
        if asset is None or not asset.peers:
            return
        members = core.members
        wanted = _majority(asset.config["num_replicas"])
        if max(_majority(len(members.voters)), _majority(len(members.voters_out))) >= wanted:
            self._thin.pop(uid, None)
            return
        self._cluster.world.counts["commits on too few disks"] += 1
        there = frozenset(name for name in asset.peers if self._is_there(core, name))
        before = self._thin.get(uid)
        if len(there) < wanted:
            self._thin.pop(uid, None)
            return
        is_same = (
            before is not None
            and before.leader == core.node_id
            and len(before.there & there) >= wanted
            and now_us - before.seen_us <= GAP_US
        )
        since_us = before.since_us if before is not None and is_same else now_us
        self._thin[uid] = _Thin(core.node_id, there, since_us, now_us)
        need(
            now_us - since_us <= GRACE_US,
            f"{core.node_id}/{uid} acks with voters {members.voters} for "
            f"{(now_us - since_us) / SECOND} s, while {sorted(there)} are there",
        )

    def _is_there(self, core: RaftCore, name: NodeId) -> bool:
        if name == core.node_id:
            return True
        process = self._cluster.hosts[name].process
        is_running = process is not None and process.is_alive and not process.is_paused
        return is_running and core.is_close(name, READY_LAG)


def _majority(count: int) -> int:
    return count // 2 + 1


class GrowthFaults:
    """Waits for streams that grow, and strikes."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng
        self._armed: list[str] = []
        self.is_on = True
        cluster.checkers.on_asset.append(self._on_asset)

    def arm(self, kind: str) -> None:
        """Let this strike the next stream that grows."""
        self._armed.append(kind)

    def _on_asset(self, kind: str, asset: StreamAsset) -> None:
        fresh = [name for name in asset.peers if name not in asset.members]
        if not self.is_on or not self._armed or not fresh or len(asset.peers) < 3:
            return
        what = self._armed.pop(0)
        if what == REPLICA_LOST:
            count = self._rng.randint(1, max(1, len(fresh) - 1))
            for name in self._rng.sample(fresh, count):
                delay_us = self._rng.randint(0, 30) * MS
                self._world.after(delay_us, self._lose_replica, name, asset.uid)
        elif what == LEADER_LOST:
            self._await_current(asset, self._world.now_us + 3 * SECOND)
        else:
            delay_us = self._rng.randint(0, 12) * MS
            self._world.after(delay_us, self._stop_leader, asset)

    def _lose_replica(self, name: NodeId, uid: Uid) -> None:
        host = self._cluster.hosts[name]
        if self.is_on and _is_running(host):
            self._world.fault(REPLICA_LOST, f"{name}/{uid}")
            host.kill("as its replica came")
            host.boot_later(self._rng.randint(1500, 4000) * MS)

    def _await_current(self, asset: StreamAsset, until_us: int) -> None:
        if not self.is_on or self._world.now_us > until_us:
            return
        leader = self._cluster.leader_of(asset.uid)
        if leader is None or not self._are_all_current(leader, asset):
            self._world.after(LOOK_US, self._await_current, asset, until_us)
            return
        is_killed = self._rng.random() < 0.6
        self._world.fault(
            LEADER_LOST, f"{leader.name}/{asset.uid} {'kill' if is_killed else 'stop'}"
        )
        self._end(leader, asset, is_killed=is_killed)

    def _stop_leader(self, asset: StreamAsset) -> None:
        """It was told to stop: it finishes the change that makes voters of the others first."""
        leader = self._cluster.leader_of(asset.uid)
        if self.is_on and leader is not None:
            self._world.fault(LEADER_STOPPED, f"{leader.name}/{asset.uid}")
            self._end(leader, asset, is_killed=False)

    def _end(self, leader: Host, asset: StreamAsset, *, is_killed: bool) -> None:
        others = {
            name: process
            for name in asset.peers
            if name != leader.name and (process := self._cluster.hosts[name].process) is not None
        }
        if is_killed:
            leader.kill("all others are current")
        else:
            leader.stop()
        leader.boot_later(LED_US + self._rng.randint(500, 3000) * MS)
        self._world.after(LED_US, self._check_led, leader.name, asset, others)

    def _are_all_current(self, leader: Host, asset: StreamAsset) -> bool:
        info = leader.node.group_info(asset.uid) if leader.node is not None else None
        rows = info["peers"] if info is not None else []
        return {row["name"] for row in rows if row["current"]} == set(asset.peers) - {leader.name}

    def _check_led(
        self, gone: NodeId, asset: StreamAsset, others: dict[NodeId, SimProcess]
    ) -> None:
        """Nobody else has gone meanwhile, so whoever was called current leads."""
        hosts, uid = self._cluster.hosts, asset.uid
        if any(hosts[name].process is not process for name, process in others.items()):
            return
        now = self._cluster.checkers.truths[META_UID].machine.streams_by_uid.get(uid)
        if now is None or (now.update_index, now.peers) != (asset.update_index, asset.peers):
            return  # it may have had one replica again meanwhile
        if not all(map(_is_alive, others.values())):
            return
        leader = self._cluster.leader_of(uid)
        self._world.counts["led when all were current"] += 1
        need(
            leader is not None,
            f"stream {uid}: {gone} ended when all others were current, and nobody leads",
        )


def _is_running(host: Host) -> bool:
    return host.process is not None and _is_alive(host.process)


def _is_alive(process: SimProcess) -> bool:
    return process.is_alive and not process.is_paused
