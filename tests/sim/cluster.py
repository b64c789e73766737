"""One seed: a cluster that is born, works while everything goes wrong, heals, and is examined."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from streamd import limits
from streamd.api import consumer_configs
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.base import IS_NEVER
from streamd.machine.meta import StreamAsset
from streamd.machine.streams import stream_consumers
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.monitor import Monitor
from streamd.node.stream_groups import delivery_hub
from streamd.store.blocks import block_writer
from streamd.store.blocks.tail_cache import CacheBudget, TailCache
from streamd.store.frames.keyring import EncryptionKeys
from streamd.types import META_UID, Msg, NodeId, StoredMsg, Uid
from tests.sim.archives import ArchivesClient, await_none_restoring, draw_archives
from tests.sim.checkers import Checkers, Probes
from tests.sim.copies import CopyChecks, await_copied, draw_copies
from tests.sim.drain import Drain
from tests.sim.extension_worlds import ExtensionClient, ExtensionPromises, draw_extensions
from tests.sim.faults import DISK_OF_BLOCKS, DirectedWorld, Faults, fail_one_disk, heal_disk
from tests.sim.feature_worlds import NODES, FeatureClient, FeaturePromises, draw_features
from tests.sim.growth import AckDisks
from tests.sim.host import Host, SimProcess
from tests.sim.ledger import Ledger
from tests.sim.net import SimNet
from tests.sim.origins import OriginChecks, OriginsClient, draw_origins
from tests.sim.plan import ARCHIVES, COPIES, EXTENSIONS, FEATURES, ORIGINS
from tests.sim.plan import draw as draw_plain
from tests.sim.varied import VariedClient, draw_varied
from tests.sim.wires import SimWires
from tests.sim.workload import Client
from tests.sim.world import MS, SECOND, Violation, World, need

LIVENESS_US = 10 * SECOND
ALONE_SHARE = 0.2  # of the varied worlds: a single server
FEW = (1, 2, 16)  # so many consumers are asked one by one: a stream here has up to four
LATE_NS = 2 * 10**9
STORE_FAILED = 10077  # a stream that discards new messages is full
LAST_NEWS_US = SECOND  # what a fault did to a write in its last moment is told by then
QUIET_US = 3 * SECOND  # long enough for groups to come to rest
BORN_US = 20 * SECOND
DRAINED_SHARE = 0.3
SCRUB_EVERY_S = (0.5, 3.0, 60.0)  # one of them for a run; the last is longer than it

_DRAW = {
    COPIES: draw_copies,
    ORIGINS: draw_origins,
    FEATURES: draw_features,
    EXTENSIONS: draw_extensions,
    ARCHIVES: draw_archives,
}
_OF_FIVE = (ORIGINS, FEATURES, EXTENSIONS, ARCHIVES)  # worlds of as many nodes


class SimCluster:
    """All of one run."""

    def __init__(
        self,
        seed: int,
        *,
        is_verbose: bool = False,
        directed: DirectedWorld | None = None,
        is_varied: bool = False,
        about: str = "",
    ) -> None:
        """`about`: see plan."""
        self.world = World(seed, is_verbose=is_verbose)
        rng = self.rng = self.world.rng("cluster")
        self.net = SimNet(self.world)
        node_count = rng.choice((3, 3, 3, 5))
        if is_varied and self.world.rng("alone").random() < ALONE_SHARE:
            node_count = 1
        if about in _OF_FIVE:
            node_count = NODES
        if directed is not None and directed.node_count:
            node_count = directed.node_count
        self.names: list[NodeId] = [f"n{at}" for at in range(1, 1 + node_count)]
        self.hosts = {name: Host(name, self.world, self.net, self.names) for name in self.names}
        self.checkers = Checkers(self.world, {name: h.disk for name, h in self.hosts.items()})
        self.is_varied = is_varied
        self._about = about
        self._copies: CopyChecks | OriginChecks | None = None
        if about == COPIES:
            self._copies = CopyChecks(self)
        elif about == ORIGINS:
            self._copies = OriginChecks(self)
        draw = _DRAW.get(about, draw_varied if is_varied else draw_plain)
        self.plan = draw(self.world.rng("plan"), len(self.names))
        self.has_two_disks = directed is not None and directed.has_two_disks
        if directed is not None:
            self.plan.actions.update(directed.actions)
        self.checkers.sees_owed = is_varied
        self.checkers.sees_features = about == FEATURES
        self.checkers.voters = self._voters
        self.ledger = Ledger(self.world, self.checkers)
        self.ledger.has_deletions = is_varied
        self._features = FeaturePromises(self) if about == FEATURES else None
        self._extensions = ExtensionPromises(self) if about == EXTENSIONS else None
        self.clients: dict[bytes, Client] = {}
        self._listeners: dict[bytes, SimWires] = {}  # streams that copy, by their subjects
        for at in range(rng.randint(2, 4)):
            name = b"c%d" % at
            self.clients[name] = self.make_client(name)
        if directed is not None and directed.is_growing:
            self.checkers.ack_disks = AckDisks(self)
        self.is_encrypted = directed is not None and directed.is_encrypted
        if self.is_encrypted:
            self._encrypt()
        self.faults = Faults(self, directed)
        self.duration_us = rng.choice((6, 10, 15)) * SECOND
        for host in self.hosts.values():
            host.after_turn = self._after_turn
            host.on_process = self._on_process
            host.on_send = self._on_send
            host.on_end = self.checkers.process_ended

    # --- what others ask --------------------------------------------------------------------

    def choose_action(self, rng: random.Random) -> str:
        actions = self.plan.actions
        return rng.choices(list(actions), list(actions.values()))[0]

    def make_client(self, name: bytes) -> Client:
        if self._features is not None:
            return FeatureClient(name, self, self._features)
        if self._extensions is not None:
            return ExtensionClient(name, self, self._extensions)
        if self._about == ARCHIVES:
            return ArchivesClient(name, self)
        if self._about == ORIGINS:
            return OriginsClient(name, self, self.ledger)
        kind = VariedClient if self.is_varied else Client
        return kind(name, self, self.ledger)

    def is_asset(self, name: str, uid: Uid) -> bool:
        """True if the stream of this name is the one with this uid, by what is committed."""
        asset = self.checkers.truths[META_UID].machine.streams_by_uid.get(uid)
        return asset is not None and asset.name == name

    def assets(self) -> list[StreamAsset]:
        """Streams that exist, by what is committed."""
        return list(self.checkers.truths[META_UID].machine.streams_by_uid.values())

    def homes(self, asset: StreamAsset) -> tuple[NodeId, ...]:
        """Where a stream is wanted: a single server has no names for it."""
        return tuple(asset.peers) if len(self.names) > 1 else tuple(self.names)

    def uids(self) -> list[Uid]:
        return sorted(asset.uid for asset in self.assets())

    def leads_something(self, host: Host) -> bool:
        node = host.node
        if node is None:
            return False
        return any(
            (group := node.groups.group_of(uid)) is not None and group.is_ready
            for uid in (META_UID, *self.uids())
        )

    def sole_holders(self) -> set[NodeId]:
        """Nodes that hold streams which too few others hold, or vote in their groups with too few:
        while a stream grows, learners are among those whom the meta group names, and what its only
        voter forgets nobody may stand in for."""
        spared = set()
        for asset in self.assets():
            if asset.config["storage"] == "file":
                voters = self._voters(asset.uid)
                if min(len(asset.peers), len(asset.members), len(voters)) < 3:
                    spared |= {*asset.peers, *asset.members, *voters}
        return spared

    def _voters(self, uid: Uid) -> set[NodeId]:
        """Whose acks commit entries now, by the smallest membership that any member may go by."""
        held = [
            members
            for host in self.hosts.values()
            if host.node is not None and (group := host.node.groups.group_of(uid)) is not None
            for members in group.raft.log.open_memberships()
        ]
        halves = [set(half) for m in held for half in (m.voters, m.voters_out) if half]
        return min(halves, key=lambda half: (len(half), sorted(half)), default=set())

    def is_whole(self, host: Host, *, on_disk: bool = False) -> bool:
        """True if the node has all that it should have (`on_disk`: there), and doubts nothing."""
        return not self.missing_at(host, is_current=False, on_disk=on_disk)

    def missing_at(self, host: Host, *, is_current: bool, on_disk: bool = False) -> str:
        """What keeps the node from being whole, or (`is_current`) from being up to date."""
        node = host.node
        if node is None or host.process is None or not host.process.is_started:
            return "not running"
        if node.is_stopping:
            return "stopping"
        for asset in (None, *self.assets()):
            uid = asset.uid if asset is not None else META_UID
            if asset is not None and host.name not in self.homes(asset):
                continue
            if asset is not None and on_disk and asset.config["storage"] == "memory":
                continue
            group = node.groups.group_of(uid)
            if group is None:
                return f"no group {uid}"
            if group.failure:
                return f"group {uid} failed: {group.failure}"
            raft = group.raft
            if raft.is_uncertain or raft.is_incomplete or raft.status()["has_diverged"]:
                return f"group {uid} is uncertain, incomplete or diverged"
            if node.parts.recovery.catchups.is_running(uid):
                return f"group {uid} catches up"
            truth = self.checkers.truths.get(uid)
            is_known = truth is not None and uid not in self.checkers.forfeited
            last = truth.last if truth is not None and is_known else 0
            if is_current and group.machine.applied < last:
                return f"group {uid} has applied {group.machine.applied} of {last}"
            if not is_current and raft.last_index == 0:
                return f"group {uid} is empty"
        return ""

    # --- what hosts tell --------------------------------------------------------------------

    def _after_turn(self, process: SimProcess, monitor: Monitor) -> None:
        self.checkers.after_turn(process.name, monitor._group)

    def _on_process(self, process: SimProcess) -> None:
        self.checkers.durability.process_begins(process.name)
        process.wires.attach(self.clients, self._listeners)

    def _on_send(self, process: SimProcess) -> Any:
        def on_send(receiver: NodeId, uid: Uid, messages: list[Any]) -> None:
            self.checkers.on_send(process.name, receiver, uid, messages)

        return on_send

    # --- a run ------------------------------------------------------------------------------

    def _encrypt(self) -> None:
        """Have all nodes keep their files encrypted, each with a key of its own, and streams their
        blocks packed."""
        for name, host in self.hosts.items():
            host.encryption = EncryptionKeys("chacha", f"key of {name}", scrypt_n=2)
        for config in self.plan.configs.values():
            config["compression"] = "s2"

    def run(self) -> None:
        """Everything. Raises Violation."""
        scrub_every_s = self.world.rng("scrub").choice(SCRUB_EVERY_S)
        if len(self.names) == 1:
            self.world.counts["single servers"] += 1
        few = self.world.rng("few").choice(FEW) if self.is_varied else 16
        with ExitStack() as stack:
            stack.enter_context(Probes(self.checkers))
            stack.enter_context(small_limits())
            stack.enter_context(scrubbing(scrub_every_s))
            stack.enter_context(few_are(few))
            stack.enter_context(drawn_names(self.world.rng("names")))
            if self.has_two_disks:
                stack.enter_context(little_memory())
            self._be_born()
            for client in self.clients.values():
                client.start()
            self.faults.start()
            self.world.run(self.world.now_us + self.duration_us)
            self.world.note("faults end")
            self.faults.stop()
            for client in self.clients.values():
                client.is_working = False
            self._recover()
            if self.rng.random() < 0.35:
                self._lose_one()
            if self._copies is not None:
                await_copied(self, self._copies.missing)
                self._copies.check()
            if self._features is not None:
                self._features.settle()
            if self._extensions is not None:
                self._extensions.settle()
            if self._about == ARCHIVES:
                await_none_restoring(self)
            share = 2 * DRAINED_SHARE if self.is_varied else DRAINED_SHARE
            is_drained = self.world.rng("drain").random() < share
            if is_drained and self._about not in (FEATURES, EXTENSIONS, ARCHIVES):
                Drain(self).run()
            self._examine()
        for host in self.hosts.values():
            host.count_points()

    def _be_born(self) -> None:
        for host in self.hosts.values():
            host.boot_later(self.rng.randint(0, 1500) * MS)
        self._await("a meta leader", BORN_US, lambda: self.leader_of(META_UID) is not None)
        operator = self.make_client(b"op")
        self.clients[operator.name] = operator
        for name in self.plan.lasting:
            self._create(operator, name)
            self.world.counts[f"streams of {self.plan.configs[name]['num_replicas']}"] += 1
            if self.plan.configs[name]["storage"] == "memory":
                self.world.counts["streams in memory"] += 1
        for name in self.plan.copies:
            self._create(operator, name)
        del self.clients[operator.name]

    def _create(self, operator: Client, name: str) -> None:
        """Have a stream made; who asks before the nodes know each other asks again."""
        answers: list[Any] = []
        asked_us = -SECOND

        def is_made() -> bool:
            nonlocal asked_us
            if self.world.now_us >= asked_us + SECOND:
                asked_us = self.world.now_us
                operator.connect()
                if operator.process is not None:
                    document = (self.plan.configs | self.plan.copies)[name]
                    operator.request(f"STREAM.CREATE.{name}", document, answers.append)
                    operator.process.run(lambda: None)
            return bool(answers) and "error" not in answers[-1]

        self._await(f"stream {name}: {answers}", BORN_US, is_made)

    def leader_of(self, uid: Uid) -> Host | None:
        for host in self.hosts.values():
            group = host.node.groups.group_of(uid) if host.node is not None else None
            if group is not None and group.is_ready and not group.failure:
                return host
        return None

    def _await(self, what: str, within_us: int, is_true: Any) -> None:
        if not self.world.run(self.world.now_us + within_us, is_true):
            raise Violation(f"no {what} within {within_us / SECOND} s")

    # --- the end ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """With all faults over, everything works again within ten seconds."""
        began_us = self.world.now_us
        probes = _Probes(self)
        probes.start()

        def is_recovered() -> bool:
            if self.world.now_us <= began_us + LAST_NEWS_US:
                self._restart_failed()
            return probes.is_recovered()

        if not self.world.run(began_us + LIVENESS_US, self.every_ms(20, is_recovered)):
            raise Violation(f"after 10 s without faults: {probes.missing()}")
        took_us = self.world.now_us - began_us
        self.world.counts["recovery ms"] += took_us // MS
        probes.is_over = True

    def _restart_failed(self) -> None:
        """What an operator does once it is told of streams that were stopped by a fault."""
        for host in self.hosts.values():
            if host.node is not None and host.node.failed and host.restart_wanted:
                self.world.counts["restarts by an operator"] += 1
                host.kill("stopped streams")
                host.boot()

    def _lose_one(self) -> None:
        """All is quiet, and a leader goes for good: what has a majority left works on."""
        self.world.run(self.world.now_us + QUIET_US)
        leaders = [host for host in self.hosts.values() if self.leads_something(host)]
        if not leaders:
            return
        lost = self.rng.choice(leaders)
        if self.has_two_disks:
            how = self.rng.choice(("full", "write", "read", "dead", "slow"))
            fail_one_disk(lost, DISK_OF_BLOCKS[:1], how, "block", slowness=3000)
            self.world.note(f"{lost.name} has no disk for blocks any more: {how}")
            self.world.counts["disks of blocks lost for good"] += 1
        else:
            lost.restart_wanted = False
            lost.kill("lost for good")
            self.world.counts["nodes lost for good"] += 1
        probes = _Probes(self, lost.name)
        probes.start()
        until_us = self.world.now_us + LIVENESS_US
        if not self.world.run(until_us, self.every_ms(20, probes.is_answered)):
            raise Violation(f"10 s after {lost.name} was lost: {probes.missing()}")
        probes.is_over = True
        if self.has_two_disks:
            heal_disk(lost)
            lost.kill("its disk is mended")
        lost.restart_wanted = True
        lost.boot()
        whole = _Probes(self)
        whole.start()
        until_us = self.world.now_us + LIVENESS_US
        if not self.world.run(until_us, self.every_ms(20, whole.is_recovered)):
            raise Violation(f"10 s after {lost.name} came back: {whole.missing()}")
        whole.is_over = True

    def every_ms(self, period_ms: int, is_true: Any) -> Any:
        """A condition that costs something is looked at now and then."""
        next_us = 0

        def look() -> bool:
            nonlocal next_us
            if self.world.now_us < next_us:
                return False
            next_us = self.world.now_us + period_ms * MS
            return bool(is_true())

        return look

    def _examine(self) -> None:
        """Read everything back from every node."""
        for asset in self.assets():
            self._examine_ages(asset)
            for name in self.homes(asset):
                if self.is_asset(asset.name, asset.uid):  # else it was deleted meanwhile
                    self._examine_replica(self.hosts[name], asset.uid)
            self.ledger.examine(asset.uid)
        for host in self.hosts.values():
            assert host.node is not None and host.node.groups.meta_group is not None
            self.checkers.check_equal(host.name, host.node.groups.meta_group)

    def _examine_ages(self, asset: StreamAsset) -> None:
        """Nothing is there whose time has long been over, by the clock of who leads."""
        host = self.leader_of(asset.uid)
        group = host.node.groups.group_of(asset.uid) if host is not None and host.node else None
        if host is None or group is None or asset.uid in self.checkers.forfeited:
            return
        machine = group.machine
        assert isinstance(machine, StreamMachine)
        index, age_ns = machine.index, machine.limits.max_age_ns
        before_ns = host.clock.now_ns() - age_ns - LATE_NS
        for seq in index.live.seqs(index.first_seq, index.last_seq) if age_ns else ():
            if (
                index.locations.ts_at(seq) < before_ns
                and not index.locations.flags_at(seq) & IS_NEVER
            ):
                text = (
                    f"{before_ns - index.locations.ts_at(seq) + LATE_NS} ns too old at {host.name}"
                )
                raise Violation(f"stream {asset.uid}: {seq} is {text}")
        plan = machine.plan_expiry(host.clock.now_ns() - LATE_NS)
        need(plan is None, f"stream {asset.uid}: {host.name} has yet to do {plan}")
        self.world.counts["ages looked at"] += 1

    def _examine_replica(self, host: Host, uid: Uid) -> None:
        truth = self.checkers.truths.get(uid)
        if truth is None or uid in self.checkers.forfeited:
            return
        replica = self._whole_replica(host, uid)
        self.checkers.check_equal(host.name, replica.group)
        index = replica.machine.index
        seqs = [seq for seq in truth.content if index.locations.locate(seq) is not None]
        found: list[list[StoredMsg | None]] = []
        asked_us = -SECOND

        def answered(messages: list[StoredMsg | None] | None) -> None:
            if messages is not None:  # else it found damage; the replica is made anew, asked again
                found.append(messages)

        def is_answered() -> bool:
            nonlocal asked_us
            if found or self.world.now_us < asked_us + SECOND or host.process is None:
                return bool(found)
            # Consumers deliver on, in step with the seconds: not asked means looked at again soon.
            if not self.missing_at(host, is_current=True):
                if asked_us > 0:
                    self.world.counts["reads asked again"] += 1
                asked_us = self.world.now_us
                host.process.run(self._whole_replica(host, uid).read, seqs, answered)
            return bool(found)

        self._await(f"answer to a read of {uid} at {host.name}", LIVENESS_US, is_answered)
        for seq, message in zip(seqs, found[0], strict=True):
            if message is None and truth.machine.index.locations.locate(seq) is None:
                continue  # its time was over, or it was acked, while it was being read
            need(message is not None, f"{host.name}/{uid}: seq {seq} is gone")
            assert message is not None
            have = (message.subject, message.headers, message.payload)
            need(have == truth.content[seq], f"{host.name}/{uid}: seq {seq} is {have[2][:20]!r}")
        self.world.counts["messages read back"] += len(seqs)

    def _whole_replica(self, host: Host, uid: Uid) -> Any:
        replica = host.node.replica(uid) if host.node is not None else None
        need(replica is not None, f"{host.name} has no replica of {uid}")
        return replica


class _Probes:
    """After the faults: can every node publish to every stream, and is everybody up to date?

    With a node `lost`: every other node, to every stream of which a majority is left.
    """

    def __init__(self, cluster: SimCluster, lost: NodeId = "") -> None:
        self._cluster = cluster
        self._lost = lost
        self._open: set[tuple[NodeId, str]] = set()
        self.is_over = False

    def start(self) -> None:
        for name in self._cluster.names:
            for asset in self._cluster.assets():
                if asset.name in self._cluster.plan.copies or asset.config.get("restoring"):
                    continue  # nobody publishes there
                if not self._lost or (self._lost != name and self._has_majority(asset)):
                    self._open.add((name, asset.name))
        self._send()

    def _send(self) -> None:
        if self.is_over or not self._open:
            return
        cluster = self._cluster
        for node_name, stream in sorted(self._open):
            node, process = cluster.hosts[node_name].node, cluster.hosts[node_name].process
            handle = node.stream(stream) if node is not None else None
            if handle is not None and process is not None:
                msg = _probe_of(stream, handle.config)
                reply = f"{node_name}/{stream}".encode()
                process.run(handle.publish, [msg], [reply], self)
        cluster.world.after(700 * MS, self._send)

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            is_full = isinstance(outcome, JsError) and outcome.err_code == STORE_FAILED
            is_counted = type(outcome) is tuple and outcome[0] == commands.COUNTED
            if type(outcome) is int or is_full or is_counted:
                node_name, name = reply.decode().split("/")
                self._open.discard((node_name, name))

    def _has_majority(self, asset: StreamAsset) -> bool:
        if asset.config["storage"] == "memory" or set(asset.peers) != set(asset.members):
            return False
        left = [name for name in asset.peers if name != self._lost]
        return len(left) * 2 > len(asset.peers)

    def is_answered(self) -> bool:
        """True when every publish that can succeed has."""
        return not self._open

    def is_recovered(self) -> bool:
        return not self.missing()

    def missing(self) -> str:
        """What is not well yet."""
        streams = {asset.name for asset in self._cluster.assets()}
        self._open = {row for row in self._open if row[1] in streams}  # one may still be deleted
        if self._open:
            return f"no ack for {sorted(self._open)}; {self._states()}"
        cluster = self._cluster
        for host in cluster.hosts.values():
            missing = cluster.missing_at(host, is_current=True)
            if missing:
                return f"{host.name}: {missing}; {self._states()}"
        for asset in cluster.assets():
            if set(asset.members) != set(asset.peers):
                return f"group {asset.uid} is on {asset.members}, wanted on {asset.peers}"
        return ""

    def _states(self) -> str:
        cluster = self._cluster
        texts = []
        for host in cluster.hosts.values():
            whole = cluster.missing_at(host, is_current=True) or "well"
            leads = [
                uid
                for uid in (META_UID, *cluster.uids())
                if host.node is not None
                and (group := host.node.groups.group_of(uid)) is not None
                and group.raft.is_leader
            ]
            node = host.node
            known = {} if node is None else {u: node.leader_of(u) for u in (0, *cluster.uids())}
            texts.append(f"{host.name} leads {leads}, {whole}, knows leaders {known}")
        return "; ".join(texts)


def _probe_of(stream: str, config: Mapping[str, Any]) -> Msg:
    if config.get("allow_msg_counter"):
        return (f"{stream}.probe".encode(), b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n", b"")
    return (f"{stream}.probe".encode(), b"", b"probe")


@contextmanager
def small_limits() -> Iterator[None]:
    """Small segments, blocks and windows, so that a short run passes through all there is."""
    with ExitStack() as stack:
        for name, value in (
            ("WAL_SEGMENT_BYTES", 128 * 1024),
            ("WAL_SEGMENT_BYTES_MIN", 128 * 1024),
            ("SNAPSHOT_AT_STOP_BYTES", 4 * 1024),
            ("MEMORY_SNAPSHOT_BYTES", 32 * 1024),
            ("REWRITE_LOOK_MS", 100),
            ("REWRITE_AFTER_MS", 500),
            ("REWRITE_PAUSE_MS", 20),
            ("TRIM_MSGS", 20),
            ("TRIM_ROWS", 50),
        ):
            stack.enter_context(_set(limits, name, value))
        from streamd.raft import log, replication
        from streamd.store.wal import entry_index

        stack.enter_context(_set(entry_index, "SEGMENTS_MAX", 6))
        stack.enter_context(_set(replication, "RAFT_APPEND_ENTRIES", 4))
        stack.enter_context(_set(replication, "RAFT_INFLIGHT_APPENDS", 4))

        if hasattr(log, "RAFT_TRAILING_ENTRIES"):
            stack.enter_context(_set(log, "RAFT_TRAILING_ENTRIES", 64))
        for function in (StreamMachine.__init__, StreamMachine.restore.__func__):  # type: ignore[attr-defined]
            stack.enter_context(_block_bytes(function, 16 * 1024))
        yield


@contextmanager
def drawn_names(rng: random.Random) -> Iterator[None]:
    """Have names of consumers that were given none drawn by the seed: they are in the log."""

    def new_name() -> str:
        return f"{rng.getrandbits(32):08x}"

    with _set(consumer_configs, "new_name", new_name):
        yield


@contextmanager
def little_memory() -> Iterator[None]:
    """Have blocks written after a few messages, and read back from their files after some more."""
    with ExitStack() as stack:
        stack.enter_context(_set(block_writer, "FLUSH_BYTES", 4 * 1024))
        stack.enter_context(_set(TailCache.__init__, "__defaults__", (8 * 1024,)))
        few = dict(CacheBudget.__init__.__kwdefaults__ or {}) | {"queue_bytes_max": 16 * 1024}
        stack.enter_context(_set(CacheBudget.__init__, "__kwdefaults__", few))
        yield


@contextmanager
def scrubbing(every_s: float) -> Iterator[None]:
    """Have nodes read their files in rounds of so many virtual seconds."""
    with ExitStack() as stack:
        for name, value in (
            ("SCRUB_FIRST_S", every_s / 5),
            ("SCRUB_EVERY_S", every_s),
            ("SCRUB_PAUSE_S", 0.002),
            ("SCRUB_BYTES_PER_S", 1 << 30),
            ("SCRUB_LOG_BYTES_PER_S", 1 << 30),
        ):
            stack.enter_context(_set(limits, name, value))
        yield


@contextmanager
def few_are(count: int) -> Iterator[None]:
    """Have no more consumers than so many asked one by one who wants a message."""
    with (
        _set(stream_consumers, "_FEW_CONSUMERS", count),
        _set(delivery_hub, "_FEW_CURSORS", count),
    ):
        yield


@contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _block_bytes(function: Any, value: int) -> Iterator[None]:
    before = dict(function.__kwdefaults__)
    function.__kwdefaults__["block_bytes"] = value
    try:
        yield
    finally:
        function.__kwdefaults__.update(before)
