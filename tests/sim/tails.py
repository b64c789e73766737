"""A world in which what was acknowledged is lost: is it told, and is all of it kept?

Three replicas. n1 leads and acknowledges with n2 what n3 is away for. Then n2 gets an older copy of
all it has, or its log loses its last batches, as if they were torn; it elects a leader with n3, and
n1 comes back. That some is lost nobody can help. Checked is: each message that was acknowledged is
in the stream or in a file that a node has set aside, in one of the two only, and whoever has such a
file says so.

`python -m tests.sim --tails`. The rest of the simulator never makes these faults.
"""

from __future__ import annotations

import json
import random
from typing import Any

from streamd.store.blocks.discarded_entries_file import bytes_field, is_tail
from streamd.store.wal import wal_format as wf
from streamd.types import META_UID
from tests.scenarios.driver import Cluster
from tests.scenarios.files import copy_of, put_all_back
from tests.sim.disk import SimDisk
from tests.sim.host import ROOT
from tests.sim.world import World, need

Document = dict[str, Any]
POINTS = ("TAIL_SYNCED", "TAIL_SET_ASIDE")


class TailsWorld:
    """One seed."""

    def __init__(self, seed: int, *, is_verbose: bool = False) -> None:
        self._rng = random.Random(f"tails/{seed}")
        self._cluster = Cluster(3, seed=seed)
        self._cluster.world._is_verbose = is_verbose
        self._acked: set[bytes] = set()
        self._uid = 0
        self._held = 0  # entries of n1 before it came away

    @property
    def world(self) -> World:
        return self._cluster.world

    def run(self) -> None:
        """Raises Violation."""
        with self._cluster as cluster:
            cluster.boot()
            self._uid = cluster.create()
            self._publish(self._rng.randint(1, 40))
            cluster.lead("S", "n1")
            cluster.until_whole()
            self._lose()
            self._go_on()
            self._come_back()
            self._examine()

    def _publish(self, count: int, at: str = "") -> None:
        cluster, rng = self._cluster, self._rng
        while count > 0:
            amount = min(count, rng.randint(1, 40))
            msgs = [(b"S.x", b"", cluster.body(rng.choice((10, 100, 3000)))) for _ in range(amount)]
            outcomes = cluster.publish_raw("S", msgs, at)
            self._acked |= {msg[2] for msg, got in zip(msgs, outcomes, strict=True) if _is_seq(got)}
            cluster.world.counts["acked"] += sum(map(_is_seq, outcomes))
            count -= amount
            if rng.random() < 0.1:
                cluster.run_ms(rng.randint(1, 300))

    def _lose(self) -> None:
        """What n1 and n2 acknowledge, n2 forgets."""
        cluster, rng = self._cluster, self._rng
        is_copied = rng.random() < 0.7
        backup = copy_of(cluster.hosts["n2"].disk, ROOT)
        cluster.kill("n3")
        leader = rng.choice(("n1", "n1", "n2"))
        if leader == "n2":
            # Its copy is of before it led this term, which is led twice then.
            cluster.lead("S", "n2")
            cluster.world.counts["a term led twice"] += 1
        self._publish(rng.choice((1, 5, 60, 200)), leader)
        if rng.random() < 0.3:
            cluster.save(self._uid, "n1")
            self._publish(rng.randint(0, 20), leader)
        if rng.random() < 0.3:
            cluster.run_ms(3000)
        self._held = self._last_index("n1")
        how = rng.choice(("kill", "power", "stop", "cut off"))
        if how == "stop":
            for name in ("n2", "n1"):
                cluster.stop(name, 10)
        elif how == "cut off":
            cluster.isolate("n1")  # and runs all the time; it may not know yet what is committed
        cluster.kill("n2")
        if how == "power":
            cluster.lose_power("n1")
        if how != "cut off":
            cluster.kill("n1")
        elif rng.random() < 0.5:
            cluster.run_ms(3000)  # a link is given up, with what it held
        cluster.checkers.forfeited |= {self._uid, META_UID}  # nobody promises anything any more
        cluster.checkers.durability.copy_destroyed("n2")
        disk = cluster.hosts["n2"].disk
        if is_copied:
            put_all_back(disk, backup)
            cluster.world.fault("old copy put back", f"n2, n1 ends by {how}")
        else:
            count = _tear(disk, rng.randint(1, 3))
            cluster.world.fault("last batches torn", f"{count} of n2, n1 ends by {how}")

    def _go_on(self) -> None:
        """n2 and n3 do so alone."""
        cluster, rng = self._cluster, self._rng
        cluster.boot("n2", "n3")
        cluster.until("a leader", self._is_led_without_n1, 30)
        self._publish(rng.choice((0, 3, 60, 200)), cluster.leader_name(self._uid))
        if cluster.world.counts["a term led twice"]:
            # The same terms, and chains that nobody compares, until the leader has more than n1.
            while self._last_index(cluster.leader_name(self._uid)) <= self._held:
                self._publish(1, cluster.leader_name(self._uid))
        if rng.random() < 0.4:
            cluster.save(self._uid, "n2", "n3")
            cluster.world.counts["logs let go"] += 1
        if rng.random() < 0.3:
            cluster.kill("n2", "n3")
            cluster.boot("n2", "n3")
            cluster.until("a leader", self._is_led_without_n1, 30)

    def _last_index(self, name: str) -> int:
        group = self._cluster.group(name, "S")
        assert group is not None
        return group.raft.last_index

    def _is_led_without_n1(self) -> bool:
        return self._cluster.leader_name(self._uid) not in ("", "n1")

    def _come_back(self) -> None:
        cluster, rng = self._cluster, self._rng
        disk = cluster.hosts["n1"].disk
        if rng.random() < 0.3:
            disk.crash_at_point = rng.choice(POINTS)
        elif rng.random() < 0.2 and cluster.hosts["n1"].node is None:
            disk.fail("pwrite", 28, under=f"{ROOT}/trash")
            cluster.boot("n1")
            cluster.run_ms(3000)
            cluster.kill("n1")
            disk.heal()
            cluster.world.counts["no room to set aside"] += 1

        def is_current() -> bool:
            if cluster.hosts["n1"].node is None:
                cluster.boot("n1")  # it came to a crash point
                return False
            group, leader = cluster.group("n1", "S"), cluster.leader_name(self._uid)
            return (
                bool(leader)
                and group is not None
                and not (group.failure or group.raft.is_uncertain or group.raft.is_incomplete)
                and group.machine.applied == cluster.machine(leader, "S").applied
            )

        cluster.net.heal()
        if cluster.hosts["n1"].node is None:
            cluster.boot("n1")
        cluster.until("n1 current", is_current, 60)
        # A group at rest may not have noticed yet: two logs may be of one length.
        self._publish(3, cluster.leader_name(self._uid))
        cluster.run_ms(1000)
        cluster.until("n1 current", is_current, 60)
        cluster.run_ms(1000)

    def _examine(self) -> None:
        cluster = self._cluster
        stored = set(cluster.read(cluster.leader("S")).values())
        kept: set[bytes] = set()
        for name in cluster.names:
            tails = _tails(cluster.hosts[name].disk)
            kept |= self._check(name, tails, stored)
        lost = self._acked - stored
        cluster.world.counts["acked and lost"] += len(lost)
        missing = lost - kept
        need(
            not missing,
            f"{len(missing)} of {len(lost)} lost messages are in no file: {sorted(missing)[:2]}",
        )

    def _check(self, name: str, tails: list[Document], stored: set[bytes]) -> set[bytes]:
        """What is kept at a node; it has said so."""
        cluster = self._cluster
        node = cluster.node(name)
        of_stream = [tail for tail in tails if tail["group"] == self._uid]
        told = {
            tail.facts.first_index
            for tail in node.parts.integrity.discarded.found
            if tail.facts.stream == "S"
        }
        found: set[bytes] = set()
        for tail in of_stream:
            cluster.world.counts[f"set aside: {tail['proof']}"] += 1
            need(tail["first_index"] in told, f"{name} does not know of {tail['first_index']}")
            payloads = {bytes_field(row, "payload") for row in tail["records"] if "seq" in row}
            need(tail["end"]["messages"] == len(payloads), f"{name}: {tail['end']}")
            both = payloads & stored
            is_right = not (both and tail["is_exact"])
            need(is_right, f"{name}: {len(both)} of a file are in the stream")
            found |= payloads
        if any(tail["proof"] != "open" for tail in of_stream):
            health = cluster.health(name)
            need("has lost messages" in health.text, f"{name}: healthz says {health.text!r}")
        return found


def _is_seq(outcome: Any) -> bool:
    return type(outcome) is int


def _tails(disk: SimDisk) -> list[Document]:
    found = []
    for path, blob in sorted(copy_of(disk, f"{ROOT}/trash").items()):
        if is_tail(path):
            head, *records, end = map(json.loads, blob.splitlines())
            found.append(head | end | {"records": records})
    return found


def _tear(disk: SimDisk, count: int) -> int:
    """Have the last batches of the log look as if the power had gone within the first of them."""
    path = max(path for path in disk.paths if path.startswith(f"{ROOT}/wal/") and ".wal" in path)
    blob = disk.contents(path)
    header = wf.decode_segment_header(blob[: wf.SEGMENT_HEADER_BYTES])
    assert header is not None
    at, places = wf.SEGMENT_HEADER_BYTES, []
    while True:
        batch = wf.decode_batch_header(
            blob, at, wal_id=header.wal_id, segment_no=header.segment_no, offset=at
        )
        if batch is None:
            break
        places.append(at)
        at += wf.padded(wf.BATCH_HEADER_BYTES + batch.length)
    torn = places[1:][-count:]  # the first one makes the segment
    for place in torn:
        disk.zero(path, place, at - place)
    return len(torn)
