"""S1: what one subscriber receives is the stream, in order and without gaps, old or new.

A subscriber is a cursor: replay and live are the same read, so there is no moment at which one
takes over from the other (what S1.1 to S1.4 and S1.6 to S1.8 are about). What is left is what a
cursor reads: blocks that are sealed meanwhile, times that order messages, and nothing that could
still be lost.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from streamd.machine.rfc3339 import format_ns
from streamd.types import Seq
from tests.scenarios.driver import Cluster
from tests.sim.world import MS

HOUR_NS = 3600 * 10**9


def test_s1_5_no_two_messages_share_a_time(cluster: Cluster) -> None:
    """S1.5: 2,000 messages in one moment, then a leader whose clock is an hour late, then one that
    is an hour early. A start time names one place in the stream, and all that follows arrives."""
    cluster.create(max_msgs=-1)
    cluster.hosts["n2"].clock.skew_ns = -HOUR_NS
    cluster.hosts["n3"].clock.skew_ns = HOUR_NS
    for name in ("n1", "n2", "n3", "n2", "n1"):
        cluster.lead("S", name)
        cluster.publish(400, at=name, chunk=400)
    cluster.until_whole()
    index = cluster.machine("n1", "S").index
    times = [index.locations.ts_at(seq) for seq in range(1, 2001)]
    assert all(earlier < later for earlier, later in pairwise(times))
    for seq in (1, 2, 399, 400, 401, 800, 801, 1201, 2000):
        for wanted, first in ((times[seq - 1], seq), (times[seq - 1] + 1, seq + 1)):
            name = f"C{seq}-{first}"
            cluster.consumer(
                name=name, deliver_policy="by_start_time", opt_start_time=format_ns(wanted)
            )
            got = [each.seq for each in cluster.pull(50, name=name)]
            assert got == list(range(first, min(first + 50, 2001))), (seq, first)


@pytest.mark.parametrize("replicas", [1, 3])
def test_s1_9_to_s1_11_a_reader_sees_what_stays(cluster: Cluster, replicas: int) -> None:
    """A reader follows a stream into which others publish, over blocks that are sealed under it,
    until the power of all nodes goes at any moment, 10 times.

    S1.9 and S1.10: what it is given is without gaps, and its numbers are the true difference.
    S1.11: whatever it was given is there afterwards, under the same seq with the same bytes.
    """
    rng = random.Random(11)
    cluster.create(replicas=replicas)
    seen: dict[Seq, bytes] = {}
    is_busy = True

    def load() -> None:
        leader = cluster.leader_name(cluster.uid("S"))
        if leader and is_busy:
            msgs = [(b"S.x", b"", cluster.body(400)) for _ in range(rng.randint(1, 20))]
            cluster.offer("S", msgs, leader)
        cluster.world.after(rng.randint(1, 10) * MS, load)

    load()
    block_counts = []
    for number in range(10):
        name = f"C{number}"
        cluster.leader("S")
        start = max(seen, default=0) // 2 + 1  # a good deal of it is old
        cluster.consumer(
            name=name, deliver_policy="by_start_sequence", opt_start_seq=start, ack_policy="none"
        )
        want = start
        for _ in range(rng.randint(10, 30)):
            for each in cluster.pull(rng.randint(1, 60), name=name):
                assert each.seq == want == start + each.consumer_seq - 1
                assert seen.setdefault(each.seq, each.payload) == each.payload
                want += 1
        block_counts.append(len(cluster.machine(cluster.leader("S"), "S").index.blocks))
        cluster.run_ms(rng.random() * 5)
        cluster.lose_power(*cluster.names)
        is_busy = False
        cluster.boot()
        cluster.until_whole()
        stored = cluster.read(cluster.leader("S"))
        assert {seq: stored.get(seq) for seq in seen} == seen
        is_busy = True
    assert len(seen) > 500
    assert block_counts[-1] > 20
    is_busy = False
    cluster.run_ms(500)
    cluster.until_whole()
    last = cluster.machine(cluster.leader("S"), "S").index.last_seq
    cluster.consumer(name="ALL", deliver_policy="all", ack_policy="none")
    got = 0
    while pulled := cluster.pull(200, name="ALL"):
        got += len(pulled)
        info = cluster.ask("CONSUMER.INFO.S.ALL")
        assert info["num_pending"] == last - got
    assert got == last
