"""Random histories of one stream and its consumers, told to the real group, beside simple sums.

    python -m tests.sim.histories FIRST LAST

Per seed: publishes of all kinds, deletes, purges, consumers that come, change and go, pulls, acks
of all kinds, slow and absent receivers, time, and restarts from a snapshot and the log. Looked at
after each action: what consumers say is left is what the index counts; bounds hold; of each
consumer the receivers see consecutive numbers, first deliveries in order, each message as often as
its header says and no more often than allowed, and nothing whose double ack was answered. In the
end everybody pulls and acks: then nothing may wait, every pull has ended once, and who took over,
and a fold of the log, must have the state of who lived through it.
"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from json import dumps
from typing import Any
from unittest.mock import patch

from streamd import limits
from streamd.machine import commands
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams import stream_consumers
from streamd.machine.streams.trimming import Unwanted
from streamd.node.groups import inbox
from streamd.node.stream_groups import delivery_hub, stream_inbox
from streamd.types import Entry, Index, Seq, Uid
from tests.sim.crash import Campaign
from tests.sim.disk import SimDisk, SimThread
from tests.sim.node import SimClock, SimNode, fold

SECOND_NS = 10**9
SUBJECTS = (b"s.1", b"s.2", b"s.3", b"s.1.x")
FILTERS = ("", "s.1", "s.*", "s.2", "s.1.>", "s.3")
OWN_FILTERS = ("s.1", "s.2", "s.1.>", "s.3")  # which do not overlap, for work queues
ACKS = (b"", b"+ACK", b"+ACK", b"-NAK", b"-NAK", b'-NAK {"delay": 700000000}', b"+WPI", b"+TERM")
STARTS = ("all", "all", "new", "last", "last_per_subject")
BLOCK_BYTES = 2048
EXPIRES_MS = 3000


class Inbox:
    """Where a client listens, as a DeliverSink."""

    def __init__(self, history: History, subject: bytes, pulled: int = 0) -> None:
        self._history = history
        self.subject = subject
        self.is_there = True
        self.is_full = False
        self.left = pulled  # of a pull: how many messages may come
        self.is_pull = pulled > 0
        self.is_sized = False  # by max_bytes, too: may be complete without a word
        self.end = b""  # the status that ended the pull

    def deliver(self, batch: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        for _, reply, _, _ in batch:
            self._take(reply)

    def deliver_run(self, ack: bytes, subjects: Any, payloads: Any, numbers: Any) -> None:
        for row in zip(*numbers, strict=True):
            self._take(ack % row)

    def _take(self, reply: bytes) -> None:
        assert self.is_there
        if self.is_pull:
            assert self.left and not self.end, (self.left, self.end)
            self.left -= 1
        self._history.on_delivered(reply)

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        if self.is_pull and not headers.startswith(b"NATS/1.0 100"):
            assert not self.end, (self.end, headers)
            assert self.left or b"Completed" in headers, headers
            self.end = headers

    def is_open(self) -> bool:
        return self.is_there

    def is_congested(self) -> bool:
        return self.is_full


class _Seen:
    """What receivers saw of one consumer since it was made or reset, under one leader."""

    def __init__(self) -> None:
        self.cseq = 0
        self.newest: Seq = 0
        self.counts: dict[Seq, int] = {}


class History:
    """One seed. It is the wires of its node, too."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(f"history/{seed}")
        self.disk = SimDisk(seed)
        self.clock = SimClock()
        self.oracle: dict[Index, Entry] = {}
        self.config = Campaign(1)._config() | {
            "retention": rng.choice(("limits", "limits", "interest", "interest", "workqueue")),
            "max_msgs": rng.choice((-1, -1, 12)), "max_msgs_per_subject": rng.choice((-1, -1, 2)),
            "max_age": rng.choice((0, 0, 20)) * SECOND_NS, "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
        }  # fmt: skip
        self.is_queue = self.config["retention"] == "workqueue"
        self.boxes: dict[bytes, Inbox] = {}
        self.asked: dict[bytes, tuple[Uid, int, Seq]] = {}  # double acks, by reply
        self.acked: set[tuple[Uid, int, Seq]] = set()  # and those that were answered
        self.given: list[tuple[Uid, int, str, Seq, bytes]] = []  # deliveries that may be acked
        self.deliveries = 0
        self.ties = 0
        self.when_room: list[Any] = []
        self._begin()

    # --- Wires ------------------------------------------------------------------------------

    def sink(self, subject: bytes, queue: bytes = b"") -> Inbox | None:
        box = self.boxes.get(subject)
        return box if box is not None and box.is_there else None

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if subject in self.asked:
            self.acked.add(self.asked.pop(subject))

    def has_interest(self, subject: bytes) -> bool:
        return self.sink(subject) is not None

    def watch(self, subject: bytes, queue: bytes, on_change: Any) -> object:
        watch = (subject, on_change)
        self.watches[id(watch)] = watch
        on_change(self.has_interest(subject))
        return watch

    def unwatch(self, token: object) -> None:
        self.watches.pop(id(token), None)

    def when_drained(self, tell: Any) -> None:
        self.when_room.append(tell)

    def _listen(self, subject: bytes, is_there: bool) -> None:
        self.boxes.setdefault(subject, Inbox(self, subject)).is_there = is_there
        for watched, on_change in list(self.watches.values()):
            if watched == subject:
                on_change(is_there)

    def _make_room(self) -> None:
        waiting, self.when_room = self.when_room, []
        for tell in waiting:
            tell()

    def on_delivered(self, reply: bytes) -> None:
        """A message came, wherever. Whether it may have."""
        tokens = reply.split(b".")
        name = tokens[3].decode()
        count, sseq, cseq, _, _ = map(int, tokens[4:])
        consumer = self.machine.consumers[name]
        life = (consumer.uid, consumer.resets)
        seen = self.seen.setdefault(life, _Seen())
        assert seen.cseq in (0, cseq - 1), (name, cseq, seen.cseq)
        seen.cseq = cseq
        if count == 1:
            assert sseq > seen.newest, (name, sseq, seen.newest)
            seen.newest = sseq
        else:
            assert count == seen.counts.get(sseq, count - 1) + 1, (name, sseq, count)
        seen.counts[sseq] = count
        most = self.deliver_max.get(consumer.uid, -1)
        assert most < 0 or count <= most, (name, sseq, count, most)
        assert (*life, sseq) not in self.acked, (name, sseq)
        self.deliveries += 1
        if not consumer.is_ack_none:
            self.given.append((*life, name, sseq, reply))

    # --- lives ------------------------------------------------------------------------------

    @property
    def machine(self) -> Any:
        return self.node.group.machine

    def _begin(self) -> None:
        self.seen: dict[tuple[Uid, int], _Seen] = {}
        self.watches: dict[int, Any] = {}
        self.when_room = []
        self.deliver_max: dict[Uid, int] = {}  # of those for whom it never changed
        self.asked.clear()
        for box in self.boxes.values():
            box.is_there &= not box.is_pull  # nobody knows of them any more
        self.node = SimNode(
            self.disk, lambda post: SimThread(is_quick=self.rng.random() < 0.5), clock=self.clock,
            rng=self.rng, config=self.config, wires=self, oracle=self.oracle,
            segment_bytes=64 * 1024, block_bytes=BLOCK_BYTES,
        )  # fmt: skip
        self._settle()
        self._compare()

    def _restart(self) -> None:
        if self.rng.random() < 0.5:
            self.disk.kill()
        else:
            self.disk.crash(keep=self.rng.choice((0.0, 0.3, 0.7)))
        self._begin()

    def _compare(self) -> None:
        machine = self.machine
        want = fold(self.oracle, machine.applied, self.config, BLOCK_BYTES)
        assert (machine.digest, machine.state()) == (want.digest, want.state())
        for have, other in ((machine, want), (want, machine)):
            for name, consumer in have.consumers.items():
                assert consumer.to_state() == other.consumers[name].to_state()
                assert consumer.num_pending == other.consumers[name].num_pending

    def _settle(self) -> None:
        self.node.settle()
        assert not self.node.errors, self.node.errors

    def _pass_time(self, ms: int) -> None:
        for _ in range(0, ms, 25):
            self.clock.ms += 25
            self._settle()

    # --- what is looked at ------------------------------------------------------------------

    def _check(self) -> None:
        group, index = self.node.group, self.machine.index
        is_at_end = not group._proposals and self.machine.applied == group.raft.last_index
        for consumer in self.machine.consumers.values():
            left = len(consumer.remaining.initial) - consumer.remaining.initial_at
            left += index.lookup.count_from(consumer.next_sseq, consumer.matcher)
            assert consumer.num_pending == left, (consumer.name, consumer.num_pending, left)
            assert all(map(index.live.has, (*consumer.pending, *consumer.redelivered)))
            most = consumer.config["max_ack_pending"]
            # An ack of before a reset, of what is on its way again, makes room for a moment.
            if most > 0 and not consumer.is_ack_none and not consumer.resets:
                assert len(consumer.pending) <= most, (consumer.name, len(consumer.pending), most)
            cursor = group.cursor(consumer.name)
            if cursor is not None and is_at_end and not cursor.holds_position:
                counted = cursor.pending.num_pending()
                assert counted == left, (consumer.name, counted, left)
                assert cursor.pending.num_ack_pending() == len(consumer.pending)
                assert not cursor.pending.acking and not cursor.pending.ahead_counts

    def _check_pulls(self) -> None:
        self._pass_time(EXPIRES_MS + 100)
        for box in self.boxes.values():
            is_over = box.end or not box.left or box.is_sized or not box.is_there
            assert is_over or not box.is_pull, (box.subject, box.left)

    # --- what may happen --------------------------------------------------------------------

    def act(self) -> None:
        """Do one random thing."""
        self.ties += 1
        kinds, weights = zip(*_ACTIONS.items(), strict=True)
        self.rng.choices(kinds, weights)[0](self)

    def _propose(self, kind: int, *fields: Any) -> None:
        command = [kind, self.clock.now_ns(), *fields]
        self.node.monitor.post(inbox.Propose(command, lambda outcome: None, True))

    def _some_consumer(self) -> Consumer | None:
        names = sorted(self.machine.consumers)
        return self.machine.consumers[self.rng.choice(names)] if names else None

    def _store(self) -> None:
        class Sink:
            def publish_acks(self, stream: bytes, replies: Any, outcomes: Any) -> None:
                """Nobody looks."""

        rng = self.rng
        msgs = []
        count = rng.choice((1, 1, 3, 40))
        for _ in range(count):
            special = b""
            if count < 40 and rng.random() < 0.13:
                special = rng.choice((b"Nats-Rollup: sub", b"Nats-TTL: 2s", b"Nats-Rollup: all"))
            headers = b"NATS/1.0\r\n%b\r\n\r\n" % special if special else b""
            msgs.append((rng.choice(SUBJECTS), headers, b"x%06d" % self.ties))
        self.node.monitor.post(stream_inbox.Publish(msgs, [b""] * count, Sink()))

    def _delete(self) -> None:
        seq = self.rng.randint(1, self.machine.index.last_seq + 1)
        self._propose(commands.DELETE_MSG, seq, False)

    def _purge(self) -> None:
        rng = self.rng
        seq, keep = 0, 0
        if rng.random() < 0.3:
            seq = rng.randint(1, self.machine.index.last_seq + 2)
        elif rng.random() < 0.5:
            keep = rng.randint(0, 4)
        self._propose(commands.PURGE, rng.choice((b"", b"s.1", b"s.*")), seq, keep)

    def _make_consumer(self) -> None:
        rng = self.rng
        number = rng.randint(0, 3)
        config: dict[str, Any] = {
            "durable_name": f"c{number}", "deliver_policy": "all",
            "ack_policy": rng.choice(("explicit", "explicit", "explicit", "all", "none")),
            "ack_wait": rng.choice((1, 2)) * SECOND_NS, "filter_subject": rng.choice(FILTERS),
            "max_ack_pending": rng.choice((-1, 1, 2, 5)),
            "max_deliver": rng.choice((-1, -1, 1, 2, 3)),
        }  # fmt: skip
        if self.is_queue:
            config |= {"ack_policy": "explicit", "filter_subject": OWN_FILTERS[number]}
        else:
            # What is stored for the only one that wants it, before its start, stays: as elsewhere.
            is_late = self.config["retention"] == "limits" and rng.random() < 0.15
            policies = ("by_start_sequence",) if is_late else STARTS
            config["deliver_policy"] = rng.choice(policies)
            if config["deliver_policy"] == "by_start_sequence":
                config["opt_start_seq"] = rng.randint(1, 30)
        is_explicit = config["ack_policy"] == "explicit"
        if is_explicit and rng.random() < 0.15:
            config |= {"backoff": [SECOND_NS // 2, SECOND_NS], "max_deliver": rng.choice((2, 4))}
        if rng.random() < 0.4:
            config["deliver_subject"] = f"push.c{number}.{rng.randint(0, 1)}"
        elif is_explicit and rng.random() < 0.25:
            policy = rng.choice(("overflow", "pinned_client", "prioritized"))
            config |= {"priority_policy": policy, "priority_groups": ["g"]}
            config["priority_timeout"] = SECOND_NS if policy == "pinned_client" else 0
        if rng.random() < 0.1:
            config["inactive_threshold"] = 5 * SECOND_NS
        self._propose(commands.CREATE_CONSUMER, f"c{number}", config, "create", False)

    def _change_consumer(self) -> None:
        consumer, rng = self._some_consumer(), self.rng
        if consumer is None:
            return
        config = dict(consumer.config)
        what = rng.randint(0, 3)
        if what == 0 and not self.is_queue:
            config["filter_subject"] = rng.choice(FILTERS)
        elif what == 1 and "backoff" not in config:
            config["ack_wait"] = rng.choice((1, 3)) * SECOND_NS
        elif what == 2 and "backoff" not in config:
            config["max_deliver"] = rng.choice((-1, 3, 5))
            self.deliver_max[consumer.uid] = -1
        elif what == 3 and consumer.is_push:
            config["deliver_subject"] = f"push.{consumer.name}.{rng.randint(0, 1)}"
        self._propose(commands.CREATE_CONSUMER, consumer.name, config, "update", False)

    def _delete_consumer(self) -> None:
        consumer = self._some_consumer()
        if consumer is not None:
            self._propose(commands.DELETE_CONSUMER, consumer.name, 0, "")

    def _pause(self) -> None:
        consumer = self._some_consumer()
        if consumer is not None:
            until_ns = self.clock.now_ns() + self.rng.randint(1, 2000) * 10**6
            self._propose(commands.PAUSE_CONSUMER, consumer.name, self.rng.choice((0, until_ns)))

    def _reset(self) -> None:
        consumer = self._some_consumer()
        if consumer is not None:
            seq = self.rng.randint(1, self.machine.index.last_seq + 1)
            self._propose(commands.RESET_CONSUMER, consumer.name, self.rng.choice((0, seq)))

    def _receive(self) -> None:
        consumer, rng = self._some_consumer(), self.rng
        if consumer is None:
            return
        if consumer.is_push:
            self._listen(consumer.config["deliver_subject"].encode(), rng.random() < 0.7)
            return
        request: dict[str, Any] = {"batch": rng.choice((1, 2, 5, 50)), "expires": 300 * 10**6}
        if rng.random() < 0.3:
            request |= {"no_wait": True, "expires": rng.choice((0, 300 * 10**6))}
        elif rng.random() < 0.5:
            request["expires"] = EXPIRES_MS * 10**6
        policy = consumer.config.get("priority_policy")
        if policy == "prioritized":
            request["priority"] = rng.randint(0, 3)
        elif policy == "overflow" and rng.random() < 0.5:
            request["min_pending"] = rng.randint(1, 4)
        if rng.random() < 0.15:
            request["max_bytes"] = rng.choice((50, 200, 400))
        self._pull(consumer, request)

    def _pull(self, consumer: Consumer, request: dict[str, Any]) -> None:
        reply = b"p.%d.%b" % (self.ties, consumer.name.encode())
        if consumer.config.get("priority_policy"):
            request["group"] = "g"
        box = self.boxes[reply] = Inbox(self, reply, request["batch"])
        # Who does not wait stays, as with other servers, while no more may be sent before an ack.
        box.is_sized = "max_bytes" in request or request["expires"] == 0
        payload = dumps(request).encode()
        self.node.monitor.post(stream_inbox.Pull(consumer.name.encode(), reply, b"", payload))

    def _ack(self) -> None:
        rng = self.rng
        for _ in range(min(rng.choice((1, 1, 4)), len(self.given))):
            late = min(int(rng.expovariate(0.3)), len(self.given) - 1)
            uid, resets, _, sseq, subject = self.given[-1 - late]
            payload, reply = rng.choice(ACKS), b""
            consumer = self.machine.consumers_by_uid.get(uid)
            if consumer is None:
                continue
            if payload in (b"", b"+ACK", b"+TERM") and rng.random() < 0.5:
                reply = b"a.%d.%d" % (self.ties, rng.randrange(10**9))
                if consumer.resets == resets:
                    self.asked[reply] = (uid, resets, sseq)
            self.node.monitor.post(
                stream_inbox.Acks([subject], [reply] if reply else None, [payload])
            )

    def _fill(self) -> None:
        if self.boxes:
            box = self.rng.choice(list(self.boxes.values()))
            box.is_full = not box.is_full
            if not box.is_full:
                self._make_room()

    def _save(self) -> None:
        self.node.monitor.post(inbox.SnapshotWanted())

    def _wait(self) -> None:
        self.clock.ms += self.rng.choice((1, 11, 300, 1100, 2500))
        self.node.monitor.post(inbox.Tick())

    # --- from the beginning to the end ------------------------------------------------------

    def run(self) -> None:
        """Tell it. Raises AssertionError."""
        rng = self.rng
        for life in range(rng.choice((1, 2, 4))):
            if life:
                self._restart()
            for _ in range(rng.choice((40, 150))):
                self.act()
                if rng.random() < 0.3:
                    self._settle()
                for _ in range(rng.randint(0, 12)):
                    self.node.step()
                assert not self.node.errors, self.node.errors
                for consumer in self.machine.consumers.values():
                    most = consumer.config["max_deliver"]
                    self.deliver_max.setdefault(consumer.uid, most)
                self._check()
            self._check_pulls()
        self._drain()

    def _drain(self) -> None:
        """Everybody receives and acks until nothing is left."""
        for box in self.boxes.values():
            box.is_full = False
        self._make_room()
        for name in sorted(self.machine.consumers):
            self._propose(commands.PAUSE_CONSUMER, name, 0)
        for _ in range(600):
            self.ties += 1
            for consumer in self.machine.consumers.values():
                if consumer.is_push:
                    self._listen(consumer.config["deliver_subject"].encode(), True)
                else:
                    self._pull(consumer, {"batch": 1000, "expires": 300 * 10**6})
            self._pass_time(150)
            given, self.given = self.given, []
            for _, _, _, _, subject in given:
                self.node.monitor.post(stream_inbox.Acks([subject], None, [b"+ACK"]))
            self._pass_time(200)
            consumers = self.machine.consumers.values()
            if not any(each.pending or each.num_pending for each in consumers):
                break
        else:
            raise AssertionError([(each.config, each.to_state()) for each in consumers])
        self._check_pulls()
        self._compare()
        if self.config["retention"] == "interest":
            assert not Unwanted(self.machine.index, self.machine.interest()).step()


_ACTIONS: dict[Any, float] = {
    History._store: 25, History._delete: 4, History._purge: 3, History._make_consumer: 5,
    History._change_consumer: 4, History._delete_consumer: 1, History._pause: 1.5,
    History._reset: 1, History._receive: 15, History._ack: 25, History._fill: 1,
    History._save: 1, History._wait: 6,
}  # fmt: skip


def run(first_seed: int, last_seed: int) -> int:
    """Tell the histories of these seeds; return how many messages were delivered."""
    deliveries = 0
    small = {
        "TRIM_MSGS": 5, "TRIM_ROWS": 9, "STRETCH_MSGS_MIN": 4, "DELIVER_BUDGET_MSGS": 8,
        "REWRITE_LOOK_MS": 5, "REWRITE_AFTER_MS": 20, "REWRITE_PAUSE_MS": 5,
    }  # fmt: skip
    for seed in range(first_seed, last_seed + 1):
        few = 0 if seed % 2 else 16  # consumers are found by their filters, or all asked
        with ExitStack() as stack:
            for name, value in small.items():
                stack.enter_context(patch.object(limits, name, value))
            stack.enter_context(patch.object(stream_consumers, "_FEW_CONSUMERS", few))
            stack.enter_context(patch.object(delivery_hub, "_FEW_CURSORS", few))
            history = History(seed)
            try:
                history.run()
            except AssertionError:
                print(f"python -m tests.sim.histories {seed} {seed}", file=sys.stderr)
                raise
            deliveries += history.deliveries
    return deliveries


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])), "deliveries")
