"""What goes wrong in a simulated cluster, when, and how often: one swarm per seed.

Each seed draws which kinds of faults it has and how many of them. What would destroy the last copy
of something is left out: a copy is destroyed only while all others are whole.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from streamd.errors import JsError
from streamd.machine import commands
from streamd.types import META_UID, NodeId
from tests.sim import growth
from tests.sim.host import ROOT
from tests.sim.rot import Rot
from tests.sim.world import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.disk import SimDisk
    from tests.sim.host import Host

# Kind -> mean pause between two of them, in virtual seconds.
KINDS: dict[str, float] = {
    "bad network": 4.0,
    "broken connection": 2.0,
    "partition": 5.0,
    "one-way partition": 5.0,
    "isolated node": 6.0,
    "cut-off node": 6.0,
    "kill": 5.0,
    "power loss": 5.0,
    "power loss of all": 12.0,
    "crash within an operation": 6.0,
    "crash at a point": 8.0,
    "pause": 5.0,
    "stop": 7.0,
    "wipe": 9.0,
    "stream directory removed": 9.0,
    "log removed": 12.0,
    "block rot": 7.0,
    "log rot": 9.0,
    "snapshot rot": 9.0,
    "fsync error": 8.0,
    "read error": 9.0,
    "slow disk": 6.0,
    "disk full": 10.0,
    "clock jump": 8.0,
    "step-down": 4.0,
    "membership change": 6.0,
    "server removal": 5.0,
    "backup put back": 6.0,
}
DRAWN_APART = ("server removal", "backup put back")
# Of worlds of their own: one of a node's two disks.
OF_GROWTH: dict[str, float] = dict.fromkeys(growth.KINDS, 1.0)
OF_ONE_DISK: dict[str, float] = {"blocks' disk fails": 3.0, "log's disk fails": 6.0}
DISK_OF_LOG = (ROOT + "/wal",)
DISK_OF_BLOCKS = (ROOT + "/streams", ROOT + "/trash", ROOT + "/meta")
CHANGING = ("pwrite", "fdatasync", "truncate", "replace", "unlink", "mkdir", "sync_dir")
PUT_BACK = 0.15  # of the clusters: a node gets all of its directory back from an older copy
REMOVABLE = 0.25  # of the clusters of five: some of their servers go for good
REMOVAL_US = 4 * SECOND  # before the end of the faults at the latest
REMOVAL_WAIT_US = 2 * SECOND  # until an operator acts: who is left has elected by then, if it can
# What may come one upon the other.
STORMY = [
    "bad network", "broken connection", "one-way partition", "isolated node", "cut-off node",
    "kill",
    "power loss", "pause", "step-down", "membership change", "crash within an operation",
]  # fmt: skip
# What costs a copy of something, and what else a harsh world may have.
COSTLY = [
    "wipe", "stream directory removed", "log removed", "block rot", "log rot", "snapshot rot",
    "fsync error", "read error",
]  # fmt: skip
ROUGH = [*STORMY, "power loss of all", "stop", "partition", "crash at a point", "disk full"]
# What may happen to a single server that is to lose nothing.
LONELY = [
    "kill", "power loss", "crash within an operation", "crash at a point", "pause", "stop",
    "fsync error", "slow disk", "disk full", "clock jump",
]  # fmt: skip
# Replicas a stream has by its config -> how many a change of membership leaves it with.
MOVED_TO = {1: (1, 1, 1, 3), 3: (2, 3, 3, 3), 5: (3, 5)}
# Counted one by one as they happen; a campaign must have seen each.
SINGLE = ("raft frame lost", "raft frame doubled", "raft frame overtaken", "clog")


class DirectedWorld(NamedTuple):
    """A world with chosen faults, in which something rare is likely."""

    kinds: tuple[str, ...]
    pace: float = 0.3  # times the mean pause
    node_count: int = 0  # 0: as the seed says
    rest_ms: tuple[int, int] = (100, 2500)  # between the end of a process and the next
    caught_by: int = 0  # a seed that tells the variant of the server that this world is for
    actions: tuple[tuple[str, float], ...] = ()  # what varied clients do as well, and how often
    has_two_disks: bool = False  # blocks are written soon, read back often, and may queue up
    is_growing: bool = False  # on how many disks acks are is looked at (`growth`)
    is_varied: bool = False  # clients do all that varied ones do
    is_encrypted: bool = False  # files are, and the blocks of streams are packed


def encrypted_world(seed: int) -> DirectedWorld:
    """A harsh world of nodes with encrypted disks."""
    return harsh_world(seed)._replace(is_encrypted=True)


def harsh_world(seed: int) -> DirectedWorld:
    """A world in which a few kinds of faults follow each other fast, and copies are lost, one after
    the other: what comes back from one loss meets the next."""
    rng = random.Random(seed)
    kinds = rng.sample(COSTLY, rng.randint(1, 3)) + rng.sample(ROUGH, rng.randint(1, 4))
    return DirectedWorld(
        tuple(kinds),
        pace=rng.choice((0.15, 0.3, 0.5)),
        node_count=rng.choice((0, 3, 3)),
        rest_ms=rng.choice(((100, 2500), (100, 800), (5, 120))),
    )


def copies_world(seed: int) -> DirectedWorld | None:
    """Where links break often, so that deliveries are lost while both ends go on; or None: all
    kinds of faults."""
    if seed % 2 == 0:
        return None
    return DirectedWorld(("broken connection", "bad network", "step-down"), pace=0.1)


def disks_world(seed: int) -> DirectedWorld:
    """A world in which the blocks of a node and its log are on two disks, and one of them fails."""
    rng = random.Random(f"disks/{seed}")
    kinds = [*OF_ONE_DISK] if rng.random() < 0.4 else ["blocks' disk fails"]
    kinds += rng.sample([*STORMY, "power loss of all", "stop", "membership change"], 3)
    return DirectedWorld(
        tuple(kinds),
        pace=rng.choice((0.3, 0.6, 1.0)),
        node_count=rng.choice((3, 3, 5)),
        rest_ms=rng.choice(((100, 2500), (5, 120))),
        has_two_disks=True,
    )


def sizes_world(seed: int) -> DirectedWorld:
    """A world of five nodes in which streams get more and fewer replicas all the time, and move."""
    rng = random.Random(f"sizes/{seed}")
    kinds = rng.sample([*STORMY, "partition", "power loss of all", "stop", "slow disk"], 4)
    if rng.random() < 0.4:
        # No rot: a stream may shrink to the one copy of which nobody knows yet that it is damaged.
        kinds += rng.sample(["wipe", "stream directory removed", "log removed", "fsync error"], 2)
    return DirectedWorld(
        tuple(kinds),
        pace=rng.choice((0.15, 0.4, 0.8)),
        node_count=5,
        rest_ms=rng.choice(((100, 2500), (5, 120))),
        actions=(("resize", rng.choice((2.0, 5.0))), ("replace_peer", rng.choice((0.5, 3.0)))),
    )


def growth_world(seed: int) -> DirectedWorld:
    """A world in which streams get more replicas all the time, and one of them or their leader goes
    at the worst moment. Little else is wrong: what is slow for a reason is no fault."""
    rng = random.Random(f"growth/{seed}")
    kinds = rng.choice((growth.KINDS, growth.KINDS[:1], growth.KINDS[1:2], growth.KINDS[1:]))
    return DirectedWorld(
        (*kinds, *rng.sample(["step-down", "broken connection"], rng.randint(0, 1))),
        pace=rng.choice((0.5, 1.0)),
        node_count=rng.choice((3, 5, 5)),
        rest_ms=rng.choice(((100, 2500), (5, 120))),
        actions=(("resize", rng.choice((0.5, 2.0))),),
        is_growing=True,
        is_varied=True,
    )


class Faults:
    """Injects faults into one cluster until told to stop."""

    def __init__(self, cluster: SimCluster, directed: DirectedWorld | None = None) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.rng("faults")
        self._is_on = False
        share = self._rng.choice((0.2, 0.4, 0.7, 1.0))
        # Drawn apart: the other faults of a seed stay what they were before there was this one.
        drawn = [kind for kind in KINDS if kind not in DRAWN_APART]
        self.kinds = [kind for kind in drawn if self._rng.random() < share]
        if len(cluster.names) == 5 and cluster.world.rng("removals").random() < REMOVABLE:
            self.kinds.append("server removal")
        if len(cluster.names) > 1 and cluster.world.rng("backups").random() < PUT_BACK:
            self.kinds.append("backup put back")
        self._pace = self._rng.choice((0.6, 1.0, 2.0))  # times the mean pause
        self._rot = Rot(self._world.rng("rot"))
        self._rest_ms = (100, 2500)  # between the end of a process and the next
        self._backups: dict[NodeId, dict[str, bytes]] = {}  # of whole directories, by node
        self._end_us = 0
        storm = cluster.world.rng("storm")
        if storm.random() < 0.15:
            # A storm: little goes wrong at once, but without a pause, and all is back at once.
            self.kinds = storm.sample(STORMY, storm.randint(1, 4))
            self._pace = 0.15
            self._rest_ms = (5, 120)
        if len(cluster.names) == 1:
            self.kinds = [kind for kind in LONELY if storm.random() < 0.6]
        if directed is not None:
            self.kinds = list(directed.kinds)
            self._pace, self._rest_ms = directed.pace, directed.rest_ms
        self._growth: growth.GrowthFaults | None = None
        if directed is not None and directed.is_growing:
            self._growth = growth.GrowthFaults(cluster, self._world.rng("growth"))

    def start(self) -> None:
        self._is_on = True
        self._end_us = self._world.now_us + self._cluster.duration_us
        for kind in self.kinds:
            self._next(kind)

    def stop(self) -> None:
        """No more faults; all that was broken works again, all that was stopped starts."""
        self._is_on = False
        if self._growth is not None:
            self._growth.is_on = False
        net = self._cluster.net
        self._calm()
        net.heal()
        for host in self._cluster.hosts.values():
            heal_disk(host)
            process = host.process
            if process is not None and process.is_alive and process.is_paused:
                process.resume()
            if host.node is None and host.restart_wanted:
                host.boot()

    def _next(self, kind: str) -> None:
        pause_s = self._rng.expovariate(1.0) * (KINDS | OF_ONE_DISK | OF_GROWTH)[kind] * self._pace
        self._world.after(int(pause_s * SECOND) + 50 * MS, self._fire, kind)

    def _fire(self, kind: str) -> None:
        if self._is_on:
            what = getattr(self, "_" + kind.replace("'", "").replace(" ", "_").replace("-", "_"))()
            if what is not None:
                self._world.fault(kind, what)
            self._next(kind)

    def _later(self, seconds: tuple[float, float], callback: Callable[[], None]) -> None:
        """Undo something in a while, unless all is undone before."""

        def due() -> None:
            if self._is_on:
                callback()

        self._world.after(int(self._rng.uniform(*seconds) * SECOND), due)

    # --- helpers ----------------------------------------------------------------------------

    def _running(self) -> list[Host]:
        return [
            host
            for host in self._cluster.hosts.values()
            if host.process is not None and host.process.is_alive and not host.process.is_paused
        ]

    def _some(self, hosts: list[Host]) -> Host | None:
        """One of `hosts`; a leader more often than not."""
        if not hosts:
            return None
        leading = [host for host in hosts if self._cluster.leads_something(host)]
        return self._rng.choice(leading if leading and self._rng.random() < 0.5 else hosts)

    def _victim(self) -> Host | None:
        """A node whose copy may be destroyed: all others are whole and hold everything."""
        cluster = self._cluster
        if self._rot.is_open():
            return None
        if any(host.disk.will_fail("pread") for host in cluster.hosts.values()):
            return None  # what its next start can't read is as good as destroyed
        if not all(cluster.is_whole(host) for host in cluster.hosts.values()):
            return None
        spared = cluster.sole_holders()
        return self._some([host for host in self._running() if host.name not in spared])

    # --- the network ------------------------------------------------------------------------

    def _bad_network(self) -> str:
        weather, rng = self._cluster.net.weather, self._rng
        weather.loss = rng.choice((0.0, 0.02, 0.1, 0.3))
        weather.duplicate = rng.choice((0.0, 0.05, 0.2))
        weather.reorder = rng.choice((0.0, 0.05, 0.2))
        weather.clog = rng.choice((0.0, 0.005, 0.03))
        weather.mean_us = rng.choice((300, 2000, 15_000))
        self._later((0.5, 4.0), self._calm)
        return f"loss {weather.loss} doubled {weather.duplicate} overtaken {weather.reorder}"

    def _calm(self) -> None:
        weather = self._cluster.net.weather
        weather.loss = weather.duplicate = weather.reorder = weather.clog = 0.0
        weather.mean_us = 300

    def _broken_connection(self) -> str | None:
        a, b = self._rng.sample(self._cluster.names, 2)
        return f"{a}-{b}" if self._cluster.net.break_link(a, b) else None

    def _block(self, pairs: set[tuple[NodeId, NodeId]]) -> str:
        self._cluster.net.block(pairs)
        self._later((0.3, 6.0), self._cluster.net.heal)
        return " ".join(f"{a}>{b}" for a, b in sorted(pairs))

    def _partition(self) -> str:
        names = self._cluster.names
        side = set(self._rng.sample(names, self._rng.randint(1, len(names) - 1)))
        return self._block({(a, b) for a in names for b in names if (a in side) != (b in side)})

    def _one_way_partition(self) -> str:
        names = self._cluster.names
        side = set(self._rng.sample(names, self._rng.randint(1, len(names) - 1)))
        pairs = {(a, b) for a in names for b in names if a in side and b not in side}
        if self._rng.random() < 0.5:
            pairs = {self._rng.choice(sorted(pairs))}
        return self._block(pairs)

    def _isolated_node(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        one = host.name
        others = [name for name in self._cluster.names if name != one]
        return self._block({(one, b) for b in others} | {(b, one) for b in others})

    def _cut_off_node(self) -> str | None:
        """As an isolated one, but its connections break at once: the others need not wait."""
        host = self._some(self._running())
        if host is None:
            return None
        one = host.name
        others = [name for name in self._cluster.names if name != one]
        for other in others:
            self._cluster.net.break_link(one, other)
        return self._block({(one, b) for b in others} | {(b, one) for b in others})

    # --- processes and machines -------------------------------------------------------------

    def _kill(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        host.kill()
        host.boot_later(self._rng.randint(*self._rest_ms) * MS)
        return host.name

    def _power_loss(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        host.lose_power()
        host.boot_later(self._rng.randint(*self._rest_ms) * MS)
        return host.name

    def _power_loss_of_all(self) -> str:
        for host in self._cluster.hosts.values():
            if host.node is not None:
                host.lose_power()
        return "all"

    def _crash_within_an_operation(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        disk = host.disk
        disk.crash_at_operation = disk.operation_count + self._rng.randint(1, 150)
        return f"{host.name} {disk.crash_at_operation}"

    def _crash_at_a_point(self) -> str | None:
        host = self._some(self._running())
        points = sorted({name for h in self._cluster.hosts.values() for name in h.disk.points})
        if host is None or not points:
            return None
        host.disk.crash_at_point = self._rng.choice(points)
        return f"{host.name} {host.disk.crash_at_point}"

    def _pause(self) -> str | None:
        host = self._some(self._running())
        if host is None or host.process is None:
            return None
        process = host.process
        process.pause()

        def resume() -> None:
            if process.is_alive and process.is_paused:
                process.resume()

        self._later((0.2, 5.0), resume)
        return host.name

    def _stop(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        away_us = self._rng.randint(4500, 7000) * MS
        back_us = self._world.now_us + away_us

        def stopped() -> None:
            if not self._is_on or self._world.now_us >= back_us:
                host.boot_later(0)  # it was paused on its way, or handed over for long

        host.stop(stopped)
        host.boot_later(away_us)
        return host.name

    def _new_replica_lost(self) -> None:
        assert self._growth is not None
        self._growth.arm(growth.REPLICA_LOST)

    def _leader_lost_when_all_are_current(self) -> None:
        assert self._growth is not None
        self._growth.arm(growth.LEADER_LOST)

    def _leader_stopped_as_replicas_come(self) -> None:
        assert self._growth is not None
        self._growth.arm(growth.LEADER_STOPPED)

    def _clock_jump(self) -> str:
        host = self._cluster.hosts[self._rng.choice(self._cluster.names)]
        hour_ns = 3600 * 10**9
        host.clock.skew_ns = self._rng.randint(-hour_ns, hour_ns)
        return f"{host.name} {host.clock.skew_ns / 1e9:.0f} s off"

    # --- destroyed copies -------------------------------------------------------------------

    def _wipe(self) -> str | None:
        host = self._victim()
        if host is None:
            return None
        host.kill("to be wiped")
        self._destroy(host, ROOT)
        self._log_lost(host)
        host.boot_later(self._rng.randint(100, 3000) * MS)
        return host.name

    def _server_removal(self) -> str | None:
        """A machine is gone for good, and removed; then another one of its name joins."""
        host = self._victim()
        if host is None or self._world.now_us > self._end_us - REMOVAL_US:
            return None
        if not host.restart_wanted:
            return None  # removed already: it is to be replaced before it starts again
        for asset in self._cluster.assets():
            if len(asset.peers) < 3 and host.name in (*asset.peers, *asset.members):
                return None  # nobody else could take over what is in memory there
        host.restart_wanted = False
        host.kill("to be removed")
        has_data = self._rng.random() < 0.4
        if not has_data:
            self._destroy(host, ROOT)
            self._log_lost(host)
        before = self._removal_of(host)
        again = partial(self._remove, host, before, set(), has_data=has_data)
        self._world.after(REMOVAL_WAIT_US, again)
        return f"{host.name}{' with its data' * has_data}"

    def _removal_of(self, host: Host) -> int:
        meta = self._cluster.checkers.truths[META_UID].machine
        removals: dict[NodeId, int] = meta.removals
        return removals.get(host.name, 0)

    def _remove(self, host: Host, before: int, asked: set[int], *, has_data: bool) -> None:
        """Ask for it, of each meta leader until it takes it, until it is committed."""
        if self._removal_of(host) > before:
            if has_data:
                # It comes back, is sent away, and only then replaced.
                host.boot()
                self._world.after(self._rng.randint(100, 3000) * MS, self._replace, host)
            else:
                host.restart_wanted = True
                host.boot_later(self._rng.randint(100, 3000) * MS)
            return
        for other in self._running():
            node = other.node
            if node is None or other.process is None or not node.is_meta_leader:
                continue
            group = node.groups.meta_group
            term = group.raft.term if group is not None else 0
            is_up = node.peers is not None and host.name in node.peers.nodes()
            if not is_up and term not in asked:
                if node.removal_obstacle(host.name):
                    # It is refused, and somebody has the server come back instead.
                    self._world.counts["removals refused"] += 1
                    host.restart_wanted = True
                    host.boot()
                    if asked:
                        self._removed_after_all(host, before)
                    return
                asked.add(term)
                command = [commands.REMOVE_SERVER, other.clock.now_ns(), host.name]
                answered = partial(self._removal_answered, asked, term)
                other.process.run(node.propose_meta, command, answered)
        again = partial(self._remove, host, before, asked, has_data=has_data)
        self._world.after(200 * MS, again)

    def _removed_after_all(self, host: Host, before: int) -> None:
        """A leader before had taken it, and the next one finds that in its log."""
        if self._removal_of(host) > before:
            host.restart_wanted = False
            self._replace(host)
        else:
            self._world.after(50 * MS, self._removed_after_all, host, before)

    def _removal_answered(self, asked: set[int], term: int, outcome: Any) -> None:
        """A leader that still leads has not taken what it refused: it is asked again."""
        if isinstance(outcome, JsError):
            asked.discard(term)

    def _replace(self, host: Host) -> None:
        """Empty a removed server's disk, as soon as all others are whole, and start it. Streams in
        memory may wait for that: who forgot them stands with the votes of all."""
        cluster = self._cluster
        others = [other for other in cluster.hosts.values() if other is not host]
        if not all(cluster.is_whole(other, on_disk=True) for other in others):
            self._world.after(100 * MS, self._replace, host)
            return
        host.kill("to be replaced")
        self._destroy(host, ROOT)
        self._log_lost(host)
        host.restart_wanted = True
        host.boot()

    def _stream_directory_removed(self) -> str | None:
        host = self._victim()
        if host is None:
            return None
        host.kill("to lose a stream")
        uids = [name for name in host.disk.listdir(ROOT + "/streams") if name.isdigit()]
        if uids:
            self._destroy(host, f"{ROOT}/streams/{self._rng.choice(uids)}")
        host.boot_later(self._rng.randint(100, 3000) * MS)
        return f"{host.name} {uids}"

    def _log_removed(self) -> str | None:
        host = self._victim()
        if host is None:
            return None
        host.kill("to lose its log")
        self._destroy(host, ROOT + "/wal")
        self._log_lost(host)
        host.boot_later(self._rng.randint(100, 3000) * MS)
        return host.name

    def _backup_put_back(self) -> str | None:
        """First a copy of all that a node has, which it then starts from again; in the place of
        what it has by then, the next time. All others have seen that it started since."""
        host = self._victim()
        if host is None or host.restart_wanted is False:
            return None
        if host.name in self._backups and not self._is_seen(host):
            return None  # it promised nobody anything since, and nobody could tell
        backup = self._backups.pop(host.name, None)
        host.kill("to be copied" if backup is None else "to be put back")
        if backup is None:
            disk = host.disk
            files = [path for path in disk.paths if path.startswith(ROOT + "/")]
            self._backups[host.name] = {path: disk.contents(path) for path in files}
        else:
            self._destroy(host, ROOT)
            heal_disk(host)  # a copy that fails is begun again
            _put_back(host.disk, backup)
            self._log_lost(host)
            self._excuse(host, 60.0)  # it stops when it is told
        host.boot_later(self._rng.randint(100, 3000) * MS)
        return f"{host.name} {'copied' if backup is None else 'put back'}"

    def _is_seen(self, host: Host) -> bool:
        """True if all others remember the present start of `host`
        (node/identity/incarnations.py)."""
        assert host.node is not None
        identity = host.node.parts.context.identity.facts
        latest = [
            start for start in identity["starts"][1][1] if start[0] == identity["log_segment"]
        ]
        others = [other for other in self._cluster.hosts.values() if other is not host]
        return bool(latest) and all(
            other.node is not None
            and other.node.parts.context.identity.facts.get("seen", {}).get(host.name, [])[1:3]
            == latest[0]
            for other in others
        )

    def _destroy(self, host: Host, path: str) -> None:
        self._cluster.checkers.durability.copy_destroyed(host.name)
        host.disk.wipe(path)

    def _log_lost(self, host: Host) -> None:
        """All groups in which it may have promised anything."""
        uids = [
            asset.uid
            for asset in self._cluster.assets()
            if host.name in (*asset.peers, *asset.members) and asset.config["storage"] == "file"
        ]
        self._cluster.checkers.durability.log_lost(host.name, [META_UID, *uids])

    def _block_rot(self) -> str | None:
        return self._rots("block")

    def _log_rot(self) -> str | None:
        return self._rots("log")

    def _snapshot_rot(self) -> str | None:
        return self._rots("snapshot")

    def _rots(self, what: str) -> str | None:
        host = self._victim()
        if host is None:
            return None
        struck = self._rot.strike(host, what)
        if struck is None:
            return None
        self._cluster.checkers.durability.copy_destroyed(host.name, by_rot=True)
        if self._rng.random() < 0.6:
            host.kill("to read its disk again")
            host.boot_later(self._rng.randint(50, 500) * MS)
        return struck

    # --- disks ------------------------------------------------------------------------------

    def _fsync_error(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        self._excuse(host, 4.0)
        host.disk.fail("fdatasync", errno.EIO, under=self._rng.choice((ROOT, ROOT + "/streams")))
        self._later((0.5, 2.0), lambda: heal_disk(host))
        return host.name

    def _read_error(self) -> str | None:
        host = self._victim()
        if host is None:
            return None
        self._excuse(host, 4.0)
        under = self._rng.choice((ROOT + "/wal", ROOT + "/streams", ROOT + "/meta"))
        host.disk.fail("pread", errno.EIO, under=under, count=self._rng.randint(1, 3))
        self._later((0.5, 3.0), lambda: heal_disk(host))
        if self._rng.random() < 0.6:
            host.kill("to read its disk again")
            host.boot_later(50 * MS)
        return f"{host.name} {under}"

    def _slow_disk(self) -> str:
        host = self._cluster.hosts[self._rng.choice(self._cluster.names)]
        host.slowness = self._rng.choice((5, 30, 100))
        self._later((0.5, 4.0), lambda: heal_disk(host))
        return f"{host.name} x{host.slowness}"

    def _disk_full(self) -> str | None:
        host = self._some(self._running())
        if host is None:
            return None
        self._excuse(host, 6.0)
        host.disk.capacity = host.disk.used_bytes + self._rng.randint(0, 100_000)
        self._later((0.5, 3.0), lambda: heal_disk(host))
        return host.name

    def _blocks_disk_fails(self) -> str | None:
        """Of the streams' directories alone, or of all but the log."""
        under = DISK_OF_BLOCKS[: self._rng.choice((1, 3))]
        return self._one_disk_fails(under, "block")

    def _logs_disk_fails(self) -> str | None:
        return self._one_disk_fails(DISK_OF_LOG, "log")

    def _one_disk_fails(self, under: tuple[str, ...], thread: str) -> str | None:
        rng = self._rng
        how = rng.choice(("slow", "full", "write", "write", "read", "dead"))
        host = self._victim() if how in ("read", "dead") else self._some(self._running())
        if host is None:
            return None
        seconds, count = rng.uniform(0.3, 4.0), rng.choice((0, 0, 1, 3))
        # They are of one size, and fill up together.
        are_all = how == "full" and rng.random() < 0.3
        for each in self._running() if are_all else [host]:
            if how != "slow":
                self._excuse(each, seconds + 2.0)  # it may refuse to start
            slowness = rng.choice((30, 300, 1000))
            fail_one_disk(each, under, how, thread, count=count, slowness=slowness)
            self._later((seconds, seconds), partial(self._mend, each))
            if rng.random() < 0.3:
                each.kill("to read its disk again")
                each.boot_later(rng.randint(*self._rest_ms) * MS)
        return f"{'all' if are_all else host.name} {how} {count} {under[-1]}"

    def _mend(self, host: Host) -> None:
        """Somebody exchanges the disk, or makes room, and mostly restarts the server."""
        heal_disk(host)
        if host.restart_wanted and self._rng.random() < 0.7:
            host.kill("its disk is mended")
            host.boot_later(self._rng.randint(*self._rest_ms) * MS)

    def _excuse(self, host: Host, seconds: float) -> None:
        until_us = self._world.now_us + int(seconds * SECOND)
        host.excused_until_us = max(host.excused_until_us, until_us)

    # --- orders -----------------------------------------------------------------------------

    def _step_down(self) -> str | None:
        cluster = self._cluster
        uid = self._rng.choice([META_UID, *cluster.uids()])
        for host in self._running():
            node = host.node
            group = node.groups.group_of(uid) if node is not None else None
            if node is None or group is None or host.process is None:
                continue
            if group.is_ready:
                preferred = self._rng.choice(("", *cluster.names))
                host.process.run(node.step_down, uid, preferred, lambda result: None)
                return f"{host.name}/{uid} to {preferred or 'anybody'}"
        return None

    def _membership_change(self) -> str | None:
        cluster = self._cluster
        uids = cluster.uids()
        if not uids or not all(cluster.is_whole(host) for host in cluster.hosts.values()):
            return None
        uid = self._rng.choice(uids)
        asset = next(asset for asset in cluster.assets() if asset.uid == uid)
        sizes = MOVED_TO[asset.config["num_replicas"]]
        size = min(len(cluster.names), self._rng.choice(sizes))
        peers = sorted(random.Random(self._rng.random()).sample(cluster.names, size))
        for host in self._running():
            node = host.node
            if node is not None and node.is_meta_leader and host.process is not None:
                command = [commands.SET_PEERS, host.clock.now_ns(), uid, peers]
                host.process.run(node.propose_meta, command, lambda result: None)
                return f"{uid} on {' '.join(peers)}"
        return None


def fail_one_disk(
    host: Host, under: tuple[str, ...], how: str, thread: str, *, count: int = 0, slowness: int = 1
) -> None:
    """Have what is `under` one of a host's disks fail, `count` times (0: until it is healed), or
    what `thread` does there take its time."""
    if how == "slow":
        host.slowness, host.slow_thread = slowness, thread
        return
    code = errno.ENOSPC if how == "full" else errno.EIO
    operations = {"full": ("pwrite",), "write": CHANGING, "read": ("pread",)}
    for path in under:
        for operation in operations.get(how, (*CHANGING, "pread", "open")):
            # To make a directory that is there needs no disk.
            inside = path + "/" if operation == "mkdir" else path
            host.disk.fail(operation, code, under=inside, count=count)


def heal_disk(host: Host) -> None:
    """No more errors of a host's disks; they are quick, and have room."""
    host.slowness, host.slow_thread = 1, ""
    host.disk.capacity = 1 << 40
    host.disk.heal()
    host.disk.crash_at_operation = host.disk.crash_at_point = None


def _put_back(disk: SimDisk, files: dict[str, bytes]) -> None:
    """Make `files`, by path, all that there is below ROOT, durably."""
    for directory in sorted({path.rpartition("/")[0] for path in files}):
        made = ""
        for part in directory.strip("/").split("/"):
            made += "/" + part
            disk.make_dirs(made)
        mine = [path for path in files if path.rpartition("/")[0] == directory]
        for path in mine:
            fd = disk.open(path, create=True)
            disk.pwrite(fd, files[path], 0)
            disk.fdatasync(fd)
            disk.close(fd)
        disk.sync_dir(directory)
