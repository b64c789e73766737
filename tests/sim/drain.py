"""After the faults: every consumer gives what it owes, and nothing that was acked comes again.

The consumers of the plain workload begin with the first message and give up none. So once they owe
nothing more, somebody has acked each message that is left: what a consumer passed over, or took
for acked, would be missing here, and nowhere else, for all replicas agree on it. In varied worlds
`owed` follows each of them instead, and nothing is left that nobody wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from streamd.types import Uid
from tests.sim.workload import Client
from tests.sim.world import MS, SECOND, Violation, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

QUIET_US = SECOND  # what was on its way when the faults ended arrives
DRAINED_US = 20 * SECOND
LOOK_MS = 50
PULL_EVERY_US = 300 * MS
PULL = b'{"batch":200,"expires":250000000}'
GROUP_PULL = b'{"batch":200,"expires":250000000,"group":"g"}'


class Drain:
    """Pulls, and acks whatever any client is given, until nobody owes anything."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._ledger = cluster.ledger
        self._pull_at_us = 0

    def run(self) -> None:
        """Raises Violation."""
        cluster, world = self._cluster, self._world
        client = cluster.make_client(b"dr")
        cluster.clients[client.name] = client
        world.run(world.now_us + QUIET_US)
        for each in cluster.clients.values():
            each.delivered.clear()  # of long ago: some were given once more, and acked then
        look = cluster.every_ms(LOOK_MS, lambda: self._is_over(client))
        within_us = DRAINED_US * 2 if cluster.is_varied else DRAINED_US
        if not world.run(world.now_us + within_us, look):
            left = [(uid, name, given) for uid, name, _, given in self._owing()]
            raise Violation(f"{DRAINED_US / SECOND} s after the faults consumers owe {left}")
        self._examine()
        del cluster.clients[client.name]

    def _is_over(self, client: Client) -> bool:
        for each in self._cluster.clients.values():
            if each.process is None:
                each.connect()
            self._ack_all(each)
        owing = list(self._owing())
        if owing and self._world.now_us >= self._pull_at_us and client.process is not None:
            self._pull_at_us = self._world.now_us + PULL_EVERY_US
            for uid, name, stream, _ in owing:
                consumer = self._ledger.checkers.truths[uid].machine.consumers[name]
                handle = client.process.node.stream(stream)
                if consumer.paused_until_ns:
                    endpoint = f"CONSUMER.PAUSE.{stream}.{name}"
                    client.process.run(client.request, endpoint, None, lambda answer: None)
                if handle is not None and not consumer.is_push:
                    inbox = client.await_reply(lambda *message: None)
                    pull = GROUP_PULL if consumer.config.get("priority_groups") else PULL
                    client.process.run(handle.pull, name, inbox + b".", b"", pull)
        return not owing

    def _ack_all(self, client: Client) -> None:
        """Ack all that this client was given and has not acked."""
        process = client.process
        if process is None:
            return
        given, client.delivered[:] = client.delivered[:], []
        handles = {handle.uid: handle for handle in process.node.streams()}
        for uid, name, subject, seq in given:
            confirmed = self._ledger.double_acked.get(self._ledger.key(uid, name), ())
            if uid in self._ledger.checkers.forfeited:
                confirmed = ()  # a stream in memory that a majority has forgotten
            need(seq not in confirmed, f"{name} of {uid} gives {seq} again, whose ack it confirmed")
            if uid in handles:
                self._ledger.on_ack_asked(uid, name, seq)
                process.run(handles[uid].acks, [subject], None, [b"+ACK"])

    def _consumers(self) -> Iterator[tuple[Uid, str, Any]]:
        """Of each stream of which something can be said: (uid, stream, machine)."""
        checkers = self._ledger.checkers
        for asset in self._cluster.assets():
            truth = checkers.truths.get(asset.uid)
            if truth is not None and asset.uid not in checkers.forfeited:
                yield asset.uid, asset.name, truth

    def _owing(self) -> Iterator[tuple[Uid, str, str, Any]]:
        """(uid, consumer, stream, what it still has to give and waits for)."""
        for uid, stream, truth in self._consumers():
            for name, consumer in truth.machine.consumers.items():
                if consumer.num_pending or consumer.pending:
                    yield uid, name, stream, (consumer.num_pending, sorted(consumer.pending)[:5])

    def _examine(self) -> None:
        for uid, _, truth in self._consumers():
            if truth.owed is not None:
                need(
                    not truth.owed.unwanted(), f"nobody wants {truth.owed.unwanted()[:5]} of {uid}"
                )
                self._world.counts["consumers drained"] += len(truth.machine.consumers)
                continue
            live = [
                seq
                for seq in truth.content
                if truth.machine.index.locations.locate(seq) is not None
            ]
            given_up = truth.extensions.given_up_seqs() if truth.extensions is not None else ()
            for name, consumer in truth.machine.consumers.items():
                if consumer.is_ack_none:
                    continue
                asked = self._ledger.acks_asked.get(self._ledger.key(uid, name), ())
                missing = [seq for seq in live if seq not in asked and seq not in given_up]
                need(not missing, f"{name} of {uid} has given {missing[:5]} to nobody who acked it")
                self._world.counts["consumers drained"] += 1
