"""Groups under random faults: nothing committed is lost or differs, and they recover.

Each seed is one run of a few hundred random steps (takes, partial persists, deliveries out of
order, repeated, lost, cuts, crashes, membership changes, snapshots, transfers, reads) over the
in-memory `Cluster`, which checks Raft's safety properties at every step.
"""

from __future__ import annotations

import random

import pytest

from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from tests.unit.raft.cluster import Cluster, Disk

STEPS = 500


class Chaos:
    may_change_members = True

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size = self.random.choice([1, 2, 3, 3, 5])
        names = list("abcde")
        self.cluster = Cluster(names[:size], seed=seed, extra=names[size : size + 2])
        self.cluster.has_links = seed % 2 == 1
        self.cluster.tell_links()
        self.down: dict[str, Disk] = {}
        self.has_forgotten = 0
        self.next_payload = 0
        self.asked: dict[int, int] = {}  # read context -> highest index committed when asked
        self.answered: set[int] = set()

    def some_node(self) -> str | None:
        up = list(self.cluster.members)
        return self.random.choice(up) if up else None

    def step(self) -> None:
        cluster = self.cluster
        rnd = self.random
        roll = rnd.random()
        node_id = self.some_node()
        if node_id is None or (self.down and rnd.random() < 0.02):
            back = rnd.choice(sorted(self.down))
            cluster.boot(back, self.down.pop(back))
            return
        member = cluster.members[node_id]
        core = member.core
        try:
            if roll < 0.01:
                if len(self.down) < 2:
                    self.down[node_id] = cluster.crash(node_id)
            elif roll < 0.014:
                if self.may_forget():
                    self.has_forgotten += 1
                    cluster.wipe(node_id)
            elif roll < 0.018:
                if self.may_forget():
                    self.has_forgotten += 1
                    cluster.damage(node_id)
            elif roll < 0.15:
                self.calm_round()
            elif roll < 0.30:
                cluster.take(node_id)
            elif roll < 0.45:
                if member.disk.writes:
                    cluster.persist(node_id)
            elif roll < 0.72:
                if cluster.wire:
                    at = rnd.randrange(min(len(cluster.wire), 12))
                    if rnd.random() < 0.03:
                        cluster.wire.append(cluster.wire[at])  # twice
                    if rnd.random() < 0.04:
                        cluster.wire.pop(at)  # never
                    else:
                        cluster.deliver(at)
            elif roll < 0.84:
                cluster.tick(rnd.choice([10, 50, 200]))
            elif roll < 0.91:
                leader = cluster.leader()
                if leader is not None:
                    self.next_payload += 1
                    leader.propose(b"p%d" % self.next_payload, tag=str(self.next_payload))
            elif roll < 0.915:
                cluster.cut(node_id)
            elif roll < 0.94:
                cluster.heal()
            elif roll < 0.95:
                self.leader_or(core).transfer(rnd.choice(list(cluster.members)))
            elif roll < 0.965 and self.may_change_members:
                everybody = [*cluster.members, *self.down]
                voters = rnd.sample(everybody, rnd.randint(1, len(everybody)))
                learners = [n for n in everybody if n not in voters and rnd.random() < 0.5]
                self.leader_or(core).propose_membership(voters, learners)
            elif roll < 0.98:
                if core.applied > core.log.snapshot_index:
                    cluster.compact(node_id, rnd.randint(core.log.snapshot_index + 1, core.applied))
            elif roll < 0.985:
                if member.wanted is not None:
                    cluster.install(node_id)
            else:
                context = len(self.asked) + 1
                self.asked[context] = max(cluster.committed, default=0)
                core.read_index(context)
        except (NotLeader, ProposalRejected):
            pass
        self.check_members()

    def may_forget(self) -> bool:
        """True if after one more loss a majority of any membership in use is still whole."""
        if self.down:
            return False  # what they have in force is not seen here
        cores = [member.core for member in self.cluster.members.values()]
        lacking = sum(core.is_uncertain or core.is_incomplete for core in cores)
        return all(
            lacking + 1 <= (len(half) - 1) // 2
            for core in cores
            for _, in_force in core.log.memberships
            for half in (in_force.voters, in_force.voters_out)
            if half
        )

    def leader_or(self, core: RaftCore) -> RaftCore:
        return self.cluster.leader() or core

    def calm_round(self) -> None:
        """Some part of everything that is under way goes through, in order."""
        cluster = self.cluster
        for node_id in list(cluster.members):
            cluster.take(node_id)
            writes = cluster.members[node_id].disk.writes
            for _ in range(self.random.randint(0, len(writes))):
                cluster.persist(node_id)
        for _ in range(len(cluster.wire)):
            cluster.deliver()

    def check_members(self) -> None:
        for member in self.cluster.members.values():
            assert not member.alerts
            for context, index in member.read_states:
                assert index == 0 or index >= self.asked[context], "a read would miss a write"
            member.read_states.clear()

    def settle(self) -> None:
        """No more faults: everybody comes back."""
        for node_id, disk in sorted(self.down.items()):
            self.cluster.boot(node_id, disk)
        self.down.clear()
        self.cluster.heal()
        for _ in range(10):
            self.cluster.pass_time(1000, step_ms=100)
            if self.cluster.leader() is not None:
                break
        self.cluster.pass_time(2000, step_ms=100)


class Forgetful(Chaos):
    """Fixed voters, one of them wiped or damaged at the worst moment, again and again: when it is
    one of a bare majority that has something, and the other one is about to be cut off."""

    may_change_members = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cluster = Cluster(list("abcde")[: 3 + 2 * (seed % 2)], seed=seed)
        self.cluster.has_links = seed % 4 < 2
        self.cluster.tell_links()

    def step(self) -> None:
        cluster = self.cluster
        rnd = self.random
        leader = cluster.leader()
        roll = rnd.random()
        if roll < 0.03:
            cluster.heal()
        elif roll < 0.05:
            # Who lags, or is to lag; a majority goes on without it.
            cluster.heal()
            cluster.cut(rnd.choice(sorted(cluster.members)))
        elif roll < 0.07 and leader is not None and self.may_forget():
            self.has_forgotten += 1
            others = [n for n in cluster.members if n != leader.node_id]
            victim = max(others, key=lambda n: (cluster.core(n).last_index, rnd.random()))
            if rnd.random() < 0.7:
                cluster.wipe(victim)
            else:
                cluster.damage(victim)
            if rnd.random() < 0.7:
                cluster.heal()
                cluster.cut(leader.node_id)
                if rnd.random() < 0.3:
                    cluster.boot(leader.node_id, cluster.crash(leader.node_id))
        elif roll < 0.35:
            self.calm_round()
        elif roll < 0.37:
            cluster.campaign(rnd.choice(sorted(cluster.members)))
        else:
            super().step()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("storm", [Chaos, Forgetful])
def test_no_fault_loses_or_forks_what_is_committed(storm: type[Chaos], seed: int) -> None:
    """After the storm one leader leads, and all its members have the same log, which contains
    every entry that anybody ever applied."""
    chaos = storm(seed)
    for _ in range(STEPS):
        chaos.step()
    chaos.settle()
    cluster = chaos.cluster
    leader = cluster.leader()
    assert leader is not None, "no leader although nothing fails any more"
    index = leader.propose(b"after the storm")
    cluster.pass_time(1000, step_ms=100)
    assert leader.commit >= index
    chaos.check_members()
    for node_id in leader.members.members():
        core = cluster.core(node_id)
        assert core.applied == leader.applied, node_id
        assert core.log.entry_id(core.applied) == leader.log.entry_id(leader.applied)
    assert set(cluster.committed) == set(range(1, leader.applied + 1))
