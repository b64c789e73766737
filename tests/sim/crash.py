"""Crash one node at random points, again and again, and check what is left each time.

    python -m tests.sim.crash --points 10000 [--first-seed S]

Per seed: a stream with a random config, a random workload through the real group (publishes plain
and with ids, atomic batches, deletes, purges, a consumer that pulls and double-acks), and a series
of crashes at random disk operations or named crash points; un-synced bytes are kept, lost or torn.
After each recovery: every acked message is there under its seq with its bytes, unless a committed
command removed it; nothing acked is renumbered; every double-acked message is acked; and the whole
state equals the fold of the log up to the applied index.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, cast
from unittest.mock import patch

from streamd import limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import REWRITTEN
from streamd.node.groups import inbox
from streamd.node.stream_groups import stream_inbox
from streamd.store.blocks.record_format import decode_fields
from streamd.types import Entry, Index, Seq
from tests.sim.disk import SimCrash, SimDisk, SimThread
from tests.sim.node import SimClock, SimNode, fold

SEGMENT_BYTES = 64 * 1024
BLOCK_BYTES = 16 * 1024


class Inbox:
    """A client's inbox as a DeliverSink."""

    def __init__(self, wires: SimWires) -> None:
        self._wires = wires

    def deliver(self, batch: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        self._wires.delivered.extend(batch)

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        self._wires.statuses += 1

    def is_open(self) -> bool:
        return True

    def is_congested(self) -> bool:
        return False


class SimWires:
    """Core NATS with one client that listens to everything."""

    def __init__(self) -> None:
        self.delivered: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.statuses = 0
        self.published: list[bytes] = []

    def sink(self, subject: bytes, queue: bytes = b"") -> Inbox:
        return Inbox(self)

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.published.append(subject)

    def has_interest(self, subject: bytes) -> bool:
        return True

    def watch(self, subject: bytes, queue: bytes, on_change: Any) -> object:
        on_change(True)
        return object()

    def unwatch(self, token: object) -> None:
        """Nothing to forget."""


class Publisher:
    """Remembers what it was promised: seq -> (subject, headers, payload)."""

    def __init__(self) -> None:
        self.acked: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.waiting: dict[bytes, tuple[bytes, bytes, bytes]] = {}
        self.refused = 0

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for reply, outcome in zip(replies, outcomes, strict=True):
            message = self.waiting.pop(reply, None)
            if isinstance(outcome, JsError):
                self.refused += 1
            elif isinstance(outcome, int) and message is not None:
                known = self.acked.get(outcome)
                assert known is None or known == message, f"seq {outcome} acked twice"
                self.acked[outcome] = message


class Workload(Protocol):
    """Work that a campaign does beside its own, and what it was promised."""

    config: dict[str, Any]

    def begin_life(self, campaign: Campaign, node: SimNode) -> None:
        """A node has started."""

    def act(self, campaign: Campaign, node: SimNode) -> None:
        """Do one random thing."""

    def check(self, read: Callable[[Seq], tuple[Any, ...] | None], node: SimNode) -> None:
        """Check what is stored, after a restart. `read`: the fields of a message by its seq."""

    def finish(self, campaign: Campaign, node: SimNode) -> None:
        """Check what is to hold when all may go on in peace."""


class Campaign:
    """One seed: one disk, many lives of a node."""

    def __init__(
        self,
        seed: int,
        *,
        seen_through: Callable[[SimDisk], Any] | None = None,
        features: Workload | None = None,
        make_wires: Callable[[], SimWires] = SimWires,
    ) -> None:
        self.make_wires = make_wires
        self.seed = seed
        self.features = features  # a workload beside this one
        self.seen_through = seen_through  # of each life anew: an encrypted disk, blocks are packed
        self.rng = random.Random(f"crash/{seed}")
        self.disk = SimDisk(seed)
        self.clock = SimClock()
        self.oracle: dict[Index, Entry] = {}
        self.publisher = Publisher()
        self.double_acked: set[int] = set()
        self.ack_waiting: dict[bytes, int] = {}
        self.counts: Counter[str] = Counter()
        self.ties = 0
        self.config = self._config()
        if features is not None:
            self.config |= cast(StreamConfig, features.config)

    def _config(self) -> StreamConfig:
        rng = self.rng
        return {
            "name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "file",
            "max_msgs": rng.choice((-1, -1, 40)), "max_bytes": -1, "max_age": 0,
            "max_msgs_per_subject": rng.choice((-1, -1, 1, 3)), "max_msg_size": -1,
            "max_consumers": -1, "discard": "old", "discard_new_per_subject": False,
            "num_replicas": 1, "no_ack": False, "duplicate_window": 120 * 10**9,
            "sealed": False, "deny_delete": False, "deny_purge": False,
            "allow_rollup_hdrs": False, "allow_direct": True, "allow_atomic": True,
            "allow_msg_ttl": False, "first_seq": 0, "subject_delete_marker_ttl": 0,
        }  # fmt: skip

    # --- the workload -----------------------------------------------------------------------

    def act(self, node: SimNode, wires: SimWires) -> None:
        """Do one random thing a client may do."""
        rng = self.rng
        post = node.monitor.post
        choice = rng.random()
        if choice < 0.55:
            self._publish(node)
        elif choice < 0.60:
            self._publish_batch(node)
        elif choice < 0.65:
            last = node.group.machine.index.last_seq
            seq = rng.randint(1, last + 2)
            command: list[Any] = [commands.DELETE_MSG, self.clock.now_ns(), seq, False]
            post(inbox.Propose(command, self._ignore, True))
        elif choice < 0.66:
            keep = rng.randint(0, 5)
            command = [commands.PURGE, self.clock.now_ns(), rng.choice((b"", b"s.1")), 0, keep]
            post(inbox.Propose(command, self._ignore, True))
        elif choice < 0.70:
            post(inbox.SnapshotWanted())
        elif choice < 0.74 and "C" not in node.group.machine.consumers:
            post(inbox.Propose(self._consumer(), self._ignore, True))
        elif choice < 0.85:
            post(stream_inbox.Pull(b"C", b"inbox.pull", b"", b'{"batch":10,"no_wait":true}'))
        else:
            self._ack(node, wires)

    def _consumer(self) -> list[Any]:
        config = {
            "durable_name": "C", "name": "C", "deliver_policy": "all", "ack_policy": "explicit",
            "ack_wait": 30 * 10**9, "max_deliver": -1, "max_ack_pending": 1000,
            "max_waiting": 512, "replay_policy": "instant", "inactive_threshold": 0,
            "filter_subject": "", "num_replicas": 0,
        }  # fmt: skip
        return [commands.CREATE_CONSUMER, self.clock.now_ns(), "C", config, "", False]

    def _ignore(self, outcome: Any) -> None:
        self.counts["refused" if isinstance(outcome, JsError) else "done"] += 1

    def _message(self) -> tuple[bytes, bytes, bytes]:
        self.ties += 1
        rng = self.rng
        headers = b""
        if rng.random() < 0.3:
            headers = b"NATS/1.0\r\nNats-Msg-Id: id%d\r\n\r\n" % rng.randint(0, self.ties)
        body = b"%d-" % self.ties + b"x" * rng.choice((0, 10, 200, 3000))
        subject = b"s.%d" % rng.randint(0, 4)
        if not self.ties % 20:
            subject = b"s.cold.%d" % self.ties  # stays where others go, so that blocks get sparse
        return (subject, headers, body)

    def _publish(self, node: SimNode) -> None:
        msgs = [self._message() for _ in range(self.rng.choice((1, 1, 5, 30)))]
        replies = []
        for at, message in enumerate(msgs):
            reply = b"r.%d.%d" % (self.ties, at)
            self.publisher.waiting[reply] = message
            replies.append(reply)
        node.monitor.post(stream_inbox.Publish(msgs, replies, self.publisher))

    def _publish_batch(self, node: SimNode) -> None:
        count = self.rng.randint(1, 4)
        self.ties += 1
        msgs = []
        for at in range(1, count + 1):
            headers = b"NATS/1.0\r\nNats-Batch-Id: b%d\r\nNats-Batch-Sequence: %d\r\n" % (
                self.ties,
                at,
            )
            if at == count:
                headers += b"Nats-Batch-Commit: 1\r\n"
            msgs.append((b"s.b", headers + b"\r\n", b"batch-%d-%d" % (self.ties, at)))
        node.monitor.post(stream_inbox.Publish(msgs, [b""] * count, self.publisher))
        self.counts["batches"] += 1

    def _ack(self, node: SimNode, wires: SimWires) -> None:
        if not wires.delivered:
            return
        _, reply, _, _ = wires.delivered.pop(self.rng.randrange(len(wires.delivered)))
        self.ties += 1
        answer = b"a.%d" % self.ties if self.rng.random() < 0.5 else b""
        if answer:
            self.ack_waiting[answer] = int(reply.split(b".")[5])
        node.monitor.post(stream_inbox.Acks([reply], [answer] if answer else None, [b"+ACK"]))

    # --- lives ------------------------------------------------------------------------------

    def live(self, crash_after: int) -> None:
        """Start a node, check what it recovered, work until the power goes."""
        disk = self.disk
        wires = self.make_wires()
        before = disk.operation_count
        disk.crash_at_operation = before + crash_after
        points = len(disk.points)
        if self.rng.random() < 0.3 and disk.points:
            disk.crash_at_point = self.rng.choice(disk.points)
        try:
            node = self._start(wires)
            node.settle()
            assert not node.errors, node.errors
            assert node.is_ready
            self._check(node)
            if self.features is not None:
                self.features.begin_life(self, node)
            while True:
                if self.rng.random() < 0.3:
                    if self.features is not None:
                        self.features.act(self, node)
                    else:
                        self.act(node, wires)
                node.step()
                assert not node.errors, node.errors
                for subject in wires.published:
                    seq = self.ack_waiting.pop(subject, None)
                    if seq is not None:
                        self.double_acked.add(seq)
                wires.published.clear()
        except SimCrash:
            pass
        new_points = disk.points[points:]
        self.counts.update(f"point {name}" for name in new_points)
        self.counts["crashes"] += 1
        disk.crash_at_point = None
        disk.crash_at_operation = None
        self.publisher.waiting.clear()
        self.ack_waiting.clear()
        if self.rng.random() < 0.2:
            disk.kill()
        else:
            disk.crash(keep=self.rng.choice((0.0, 0.3, 0.7)))

    def last_life(self) -> None:
        """Start a node once more, and check all that is to hold when it may work in peace."""
        assert self.features is not None
        node = self._start(self.make_wires())
        node.settle()
        self._check(node)
        self.features.finish(self, node)
        self._check(node)
        assert not node.errors, node.errors

    def _make_thread(self, post: Any) -> SimThread:
        """With every other seed the loop writes the log itself whenever it can."""
        return SimThread(is_quick=self.seed % 2 == 1)

    def _start(self, wires: SimWires) -> SimNode:
        disk: Any = self.disk
        if self.seen_through is not None:
            disk = self.seen_through(disk)
        return SimNode(
            disk, self._make_thread, packs=self.seen_through is not None,
            clock=self.clock, rng=self.rng, config=self.config,
            wires=wires, oracle=self.oracle, segment_bytes=SEGMENT_BYTES, block_bytes=BLOCK_BYTES,
        )  # fmt: skip

    def _check(self, node: SimNode) -> None:
        machine = node.group.machine
        want = fold(self.oracle, machine.applied, self.config, BLOCK_BYTES)
        assert machine.digest == want.digest, (machine.digest, want.digest, machine.applied)
        assert machine.state() == want.state(), (machine.state(), want.state())
        assert machine.tail == want.tail, (machine.tail, want.tail)
        have_c = {name: c.to_state() for name, c in machine.consumers.items()}
        want_c = {name: c.to_state() for name, c in want.consumers.items()}
        assert have_c == want_c, (have_c, want_c)
        assert machine.content.features_state() == want.content.features_state()
        assert machine.fingerprint() == want.fingerprint()
        for seq, message in self.publisher.acked.items():
            assert seq <= machine.index.last_seq, f"acked seq {seq} is lost"
            self._check_message(node, seq, message)
        if self.features is not None:
            self.features.check(lambda seq: self._fields(node, seq), node)
        consumer = machine.consumers.get("C")
        for seq in self.double_acked:
            assert consumer is not None, "the consumer is lost"
            assert seq not in consumer.pending, f"the ack of {seq} is lost"
        self.counts["checked"] += 1
        blocks = machine.index.blocks
        self.counts["rewritten"] += sum(block.block_no >= REWRITTEN for block in blocks)

    def _check_message(self, node: SimNode, seq: int, message: tuple[bytes, bytes, bytes]) -> None:
        """A live message has the bytes that were acked; the fold vouches for removed ones."""
        found = self._fields(node, seq)
        if found is not None:
            assert (found[0], *found[2:]) == (seq, *message), (seq, found, message)

    def _fields(self, node: SimNode, seq: int) -> tuple[Any, ...] | None:
        """Return (seq, ts, subject, headers, payload) of a live message."""
        loc = node.group.machine.index.locations.locate(seq)
        if loc is None:
            return None
        _, block_no, offset, length = loc
        chunk = node.store.chunk(block_no, offset)
        while chunk is None:
            node.store.read_chunk(block_no, offset, length, lambda: None)
            node.settle()
            chunk = node.store.chunk(block_no, offset)
        base, blob = chunk
        return decode_fields(blob, offset - base)


def SimThreadOf(post: Any) -> SimThread:
    """Threads of the simulation post by being stepped; the loop need not be told."""
    return SimThread()


def run(
    first_seed: int,
    points: int,
    crashes_per_seed: int = 12,
    *,
    seen_through: Callable[[SimDisk], Any] | None = None,
) -> Counter[str]:
    """Crash at `points` points; return what happened how often."""
    with ExitStack() as stack:
        for name, value in (("LOOK", 5), ("AFTER", 20), ("PAUSE", 5)):
            stack.enter_context(patch.object(limits, f"REWRITE_{name}_MS", value))
        for name, value in (("MSGS", 20), ("ROWS", 50)):
            stack.enter_context(patch.object(limits, f"TRIM_{name}", value))
        return _run(first_seed, points, crashes_per_seed, seen_through)


def _run(
    first_seed: int,
    points: int,
    crashes_per_seed: int,
    seen_through: Callable[[SimDisk], Any] | None,
) -> Counter[str]:
    counts: Counter[str] = Counter()
    seed = first_seed
    while counts["crashes"] < points:
        campaign = Campaign(seed, seen_through=seen_through)
        try:
            for _ in range(crashes_per_seed):
                campaign.live(campaign.rng.randint(1, 400))
        except AssertionError:
            print(f"python -m tests.sim.crash --points 1 --first-seed {seed}", file=sys.stderr)
            raise
        counts.update(campaign.counts)
        counts["acked"] += len(campaign.publisher.acked)
        counts["double acked"] += len(campaign.double_acked)
        counts["seeds"] += 1
        seed += 1
    return counts


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    counts = run(args.first_seed, args.points)
    for name, number in sorted(counts.items()):
        print(f"{name:40} {number}")


if __name__ == "__main__":
    main()
