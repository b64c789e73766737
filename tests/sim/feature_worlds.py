"""Worlds of five nodes: clients count, schedule, send fast batches and messages that expire.

Beside what the clients hear, a model follows each stream's log (`feature_models`). At the end all
increments in doubt are sent again; then each counter stands at the sum of all that was asked for,
no schedule is overdue, and what was promised of batches and schedules is there.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.rfc3339 import format_ns
from streamd.machine.streams.stream import StreamMachine
from streamd.types import Msg, Seq, Uid
from tests.sim import plan
from tests.sim.plan import COMING_AND_GOING, Document, Plan
from tests.sim.workload import REPLIES, Client
from tests.sim.world import MS, SECOND, Violation, need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.feature_models import FeatureModel

NODES = 5
SECOND_NS = 10**9
COUNTERS, SCHEDULES, BATCHES, LIVES = "K", "H", "B", "T"
PLAIN = ("S1", COMING_AND_GOING, BATCHES, LIVES)  # of these, what all clients do
SETTLED_US = 20 * SECOND
RESEND_US = SECOND
LATE_NS = 2 * SECOND_NS

# Action of a client -> how often, relative to the others.
ACTIONS: dict[str, float] = {
    "publish": 3.0,
    "publish_with_id": 1.0,
    "publish_batch": 1.0,
    "add": 8.0,
    "add_together": 1.0,
    "schedule": 4.0,
    "send_members": 12.0,
    "publish_living": 6.0,
    "delete_msg": 0.5,
    "purge": 0.1,
    "create_consumer": 0.5,
    "pull": 2.0,
    "ack": 3.0,
    "read_last": 1.0,
    "get_message": 1.0,
    "get_directly": 1.0,
    "create_stream": 0.3,
    "delete_stream": 0.2,
    "step_down": 0.2,
}


def draw_features(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    size = min(node_count, 3)
    configs: dict[str, Document] = {}
    for name in ("S1", COMING_AND_GOING):
        configs[name] = plan.stream_config(rng, name, size)
    counters = _stream(COUNTERS, size, allow_msg_counter=True)
    counters["max_msgs_per_subject"] = rng.choice((-1, -1, 3, 1))
    schedules = _stream(SCHEDULES, size, allow_msg_schedules=True, allow_msg_ttl=True)
    batches = _stream(BATCHES, size, allow_batched=True)
    batches["max_msgs"] = rng.choice((-1, -1, 60))
    lives = _stream(LIVES, rng.choice((size, size, 1)), allow_msg_ttl=True)
    lives["max_age"] = rng.choice((0, 0, 3)) * SECOND_NS
    lives["subject_delete_marker_ttl"] = rng.choice((0, SECOND_NS))
    lives["max_msgs_per_subject"] = rng.choice((-1, 3))
    lives["duplicate_window"] = SECOND_NS
    for config in (counters, schedules, batches, lives):
        configs[config["name"]] = config
    actions = {
        action: weight * rng.choice((0.0, 1.0, 1.0, 2.0)) if action not in _NEEDED else weight
        for action, weight in ACTIONS.items()
    }
    return Plan(configs, actions)


_NEEDED = ("publish", "add", "schedule", "send_members", "publish_living")


def _stream(name: str, size: int, **features: bool) -> Document:
    return {
        "name": name,
        "subjects": [name + ".>"],
        "storage": "file",
        "num_replicas": size,
        "duplicate_window": 10**6 * SECOND_NS,
        "allow_direct": True,
        "allow_atomic": True,
        "allow_rollup_hdrs": not features.get("allow_msg_counter"),
        **features,
    }


class _Batch:
    """A client's fast batch."""

    def __init__(self, batch_id: bytes, *, is_ok: bool) -> None:
        self.batch_id = batch_id
        self.is_ok = is_ok
        self.sent = 0
        self.is_over = False
        self.sent_us = 0


class FeatureClient(Client):
    """A client that also counts, schedules, and sends fast batches."""

    def __init__(self, name: bytes, cluster: SimCluster, promises: FeaturePromises) -> None:
        super().__init__(name, cluster, cluster.ledger)
        self._promises = promises
        self._batches: dict[bytes, _Batch] = {}
        self._batch_count = 0

    def _some_name(self) -> str:
        return self.rng.choice([name for name in PLAIN if name in self.cluster.plan.configs])

    # --- counters -----------------------------------------------------------------------------

    def add(self) -> None:
        """An increment, new or one of which nobody knows whether it was counted."""
        handle = self._handle_of(COUNTERS)
        if handle is None:
            return
        msg_id = self._promises.some_increment(self.name, self.rng)

        def done(outcome: Any) -> None:
            self._promises.on_increment(msg_id, outcome)
            self.finish()

        reply = self.await_reply(done)
        handle.publish([self._promises.increment_msg(msg_id)], [reply], self.connection)

    def add_together(self) -> None:
        """Several increments in an atomic batch: all of them count, or none."""
        handle = self._handle_of(COUNTERS)
        if handle is None:
            return
        ids = self._promises.new_increments(self.name, self.rng, self.rng.randint(2, 4))
        batch_id = next(self.ledger.bodies)
        msgs: list[Msg] = []
        for at, msg_id in enumerate(ids, 1):
            subject, headers, _ = self._promises.increment_msg(msg_id)
            added = b"Nats-Batch-Id: k%d\r\nNats-Batch-Sequence: %d\r\n" % (batch_id, at)
            if at == len(ids):
                added += b"Nats-Batch-Commit: 1\r\n"
            msgs.append((subject, headers[:-2] + added + b"\r\n", b""))

        def done(outcome: Any) -> None:
            self._promises.on_together(ids, outcome)
            self.finish()

        replies = [b""] * (len(msgs) - 1) + [self.await_reply(done)]
        handle.publish(msgs, replies, self.connection)

    # --- schedules ----------------------------------------------------------------------------

    def schedule(self) -> None:
        """A message that is to come once, soon, or again and again."""
        handle = self._handle_of(SCHEDULES)
        process = self.process
        if handle is None or process is None:
            return
        body = b"plan-%d" % next(self.ledger.bodies)
        at_ns = 0
        pattern = self.rng.choice((b"@every 1s", b"@every 2s"))
        if self.rng.random() < 0.6:
            at_ns = process.clock.now_ns() + self.rng.randint(100, 4000) * 10**6
            pattern = b"@at " + format_ns(at_ns).encode()
        subject = b"%b.plan.%d" % (handle.name_bytes, self.rng.randint(0, 5))
        target = b"%b.out.%d" % (handle.name_bytes, self.rng.randint(0, 2))
        head = REPLIES + b"Nats-Schedule: %b\r\nNats-Schedule-Target: %b\r\n" % (pattern, target)
        if self.rng.random() < 0.2:
            head += b"Nats-Schedule-TTL: 1s\r\n"

        def done(outcome: Any) -> None:
            self._promises.on_schedule(handle.uid, body, subject, at_ns, outcome)
            self.finish()

        reply = self.await_reply(done)
        handle.publish([(subject, head + b"\r\n", body)], [reply], self.connection)

    # --- fast batches -------------------------------------------------------------------------

    def send_members(self) -> None:
        """The next members of a fast batch; some are lost on the way, some are to be refused."""
        handle = self._handle_of(BATCHES)
        if handle is None:
            return
        rng = self.rng
        batch = self._some_batch()
        msgs: list[Msg] = []
        replies: list[bytes] = []
        mode = b"ok" if batch.is_ok else b"fail"
        for _ in range(rng.choice((1, 3, 12))):
            if batch.is_over:
                break
            batch.sent += 2 if batch.sent and rng.random() < 0.02 else 1
            headers, operation = b"", 0 if batch.sent == 1 else 1
            if rng.random() < 0.03:
                headers = REPLIES + b"Nats-Expected-Stream: X\r\n\r\n"
                self.ledger.refused.add(_member(batch.batch_id, batch.sent))
            if batch.sent > 1 and rng.random() < 0.03:
                operation = rng.choice((2, 2, 3))
                batch.is_over = True
            msgs.append((b"B.fast", headers, _member(batch.batch_id, batch.sent)))
            replies.append(_reply(batch.batch_id, mode, batch.sent, operation))
        if rng.random() < 0.2 and not batch.is_over:
            msgs.append((b"B.fast", b"", b""))
            replies.append(_reply(batch.batch_id, mode, batch.sent, 4))
        batch.sent_us = self.world.now_us
        handle.publish(msgs, replies, self.connection)
        self.world.after(rng.choice((5, 40, 400)) * MS, self._pulled, self._operation)

    def _some_batch(self) -> _Batch:
        idle_us = limits.BATCH_IDLE_MS_MAX * MS // 2
        self._batches = {
            each.batch_id: each
            for each in self._batches.values()
            if not each.is_over and self.world.now_us - each.sent_us < idle_us
        }
        if len(self._batches) < 2:
            self._batch_count += 1
            batch_id = b"%b-%d" % (self.name, self._batch_count)
            self._batches[batch_id] = _Batch(batch_id, is_ok=self.rng.random() < 0.5)
        return self.rng.choice(list(self._batches.values()))

    def on_outcome(self, reply: bytes, outcome: Any) -> None:
        """The answer to a publish; a member of a fast batch may get several."""
        if not reply.endswith(b".$FI"):
            super().on_outcome(reply, outcome)
            return
        batch_id = reply.split(b".")[1]
        if self._promises.on_member(batch_id, outcome) and batch_id in self._batches:
            self._batches[batch_id].is_over = True

    # --- lives --------------------------------------------------------------------------------

    def publish_living(self) -> None:
        """Messages with lives of their own."""
        handle = self._handle_of(LIVES)
        if handle is None:
            return
        msgs: list[Msg] = []
        for _ in range(self.rng.choice((1, 1, 4))):
            life = self.rng.choice((b"1s", b"1s", b"2s", b"4s", b"never", b""))
            headers = REPLIES + b"Nats-TTL: %b\r\n\r\n" % life if life else b""
            msgs.append(self._message(self.some_subject(handle), headers))
        self._send(handle, msgs)


def _member(batch_id: bytes, number: int) -> bytes:
    return b"%b:%d" % (batch_id, number)


def _reply(batch_id: bytes, mode: bytes, number: int, operation: int) -> bytes:
    return b"in.%b.8.%b.%d.%d.$FI" % (batch_id, mode, number, operation)


class _Schedule:
    """A schedule that was acked."""

    def __init__(self, subject: bytes, at_ns: int, seq: Seq) -> None:
        self.subject = subject
        self.at_ns = at_ns  # 0: again and again
        self.seq = seq


class FeaturePromises:
    """Requests of all clients of a run, what they were promised, and whether it was kept.
    Implements ports.PublishSink, for what is sent again at the end."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._checkers = cluster.checkers
        self._world = cluster.world
        self._asked: dict[bytes, tuple[bytes, int]] = {}  # id -> subject, increment
        self._in_doubt: dict[bytes, None] = {}
        self._together: list[list[bytes]] = []  # ids that count all, or none
        self._schedules: dict[bytes, _Schedule] = {}  # by body
        self._sent_us = -RESEND_US

    # --- counters -----------------------------------------------------------------------------

    def some_increment(self, client: bytes, rng: random.Random) -> bytes:
        """Return the id of an increment, new or in doubt."""
        apart = {each for ids in self._together for each in ids}  # sent again at the end alone
        mine = [each for each in self._in_doubt if each.startswith(client + b"-")]
        mine = [each for each in mine if each not in apart]
        if mine and rng.random() < 0.6:
            return rng.choice(mine)
        return self.new_increments(client, rng, 1)[0]

    def new_increments(self, client: bytes, rng: random.Random, count: int) -> list[bytes]:
        """Return ids of new increments."""
        ids: list[bytes] = []
        for _ in range(count):
            msg_id = b"%b-%d" % (client, len(self._asked))
            subject = b"K.count.%d" % rng.randint(0, 2)
            self._asked[msg_id] = (subject, rng.choice((1, -1, 7, 10**30)))
            self._in_doubt[msg_id] = None
            ids.append(msg_id)
        if count > 1:
            self._together.append(ids)
        return ids

    def increment_msg(self, msg_id: bytes) -> Msg:
        """Return what is published for an increment."""
        subject, amount = self._asked[msg_id]
        head = REPLIES + b"Nats-Incr: %d\r\nNats-Msg-Id: %b\r\n\r\n" % (amount, msg_id)
        return (subject, head, b"")

    def on_increment(self, msg_id: bytes, outcome: Any) -> None:
        """A publish of this increment was answered."""
        if isinstance(outcome, JsError):
            self._world.counts["refused"] += 1
            return
        kind, seq, *total = outcome
        self._check_counted(msg_id, seq)
        if kind == commands.COUNTED:
            self._check_told(seq, total[0])
        else:
            self._world.counts["increments found again"] += 1
        self._acked(msg_id, seq)

    def _check_counted(self, msg_id: bytes, seq: Seq) -> None:
        stored = self._model(COUNTERS).increments.get(msg_id, (0,))[0]
        need(stored == seq, f"{msg_id!r} is acked as {seq}, and stored as {stored}")

    def _check_told(self, seq: Seq, total: str) -> None:
        body = json.loads(self._checkers.truth_of(COUNTERS).content[seq][2])["val"]
        need(body == total, f"{COUNTERS} {seq} is told to be {total}, and is {body}")

    def _acked(self, msg_id: bytes, seq: Seq) -> None:
        uid = self._checkers.uid_of(COUNTERS)
        self._cluster.ledger.on_ack(uid, seq, self._checkers.truth_of(COUNTERS).content[seq])
        self._in_doubt.pop(msg_id, None)
        self._world.counts["increments"] += 1

    def on_together(self, ids: list[bytes], outcome: Any) -> None:
        """An atomic batch of increments was answered."""
        if isinstance(outcome, JsError):
            self._world.counts["refused"] += 1
            return
        last = outcome[0]
        for seq, msg_id in zip(range(last - len(ids) + 1, last + 1), ids, strict=True):
            self._check_counted(msg_id, seq)
            self._acked(msg_id, seq)
        self._world.counts["increments together"] += 1

    # --- schedules ----------------------------------------------------------------------------

    def on_schedule(self, uid: Uid, body: bytes, subject: bytes, at_ns: int, outcome: Any) -> None:
        """A schedule was answered."""
        if isinstance(outcome, JsError):
            self._world.counts["refused"] += 1
            return
        need(type(outcome) is int, f"schedule {body!r} is answered {outcome}")
        stored = self._checkers.truth_of(SCHEDULES).content.get(outcome)
        need(
            stored is not None and stored[0] == subject and stored[2] == body,
            f"schedule {body!r} is acked as {outcome}, which holds {stored}",
        )
        assert stored is not None
        self._cluster.ledger.on_ack(uid, outcome, stored)
        self._schedules[body] = _Schedule(subject, at_ns, outcome)
        self._world.counts["schedules"] += 1

    # --- fast batches -------------------------------------------------------------------------

    def on_member(self, batch_id: bytes, outcome: Any) -> bool:
        """A member was answered: by what the log says; True if the batch is over."""
        truth = self._checkers.named(BATCHES)
        if isinstance(outcome, JsError):
            self._world.counts["refused"] += 1
            return True
        need(truth is not None and truth.features is not None, f"{batch_id!r} is acked by nobody")
        assert truth is not None and truth.features is not None
        model: FeatureModel = truth.features
        if outcome[0] != commands.TOLD:
            told = (outcome[0], outcome[1])
            known = model.ended.get(batch_id)
            need(told == known, f"{batch_id!r} is told to have ended {told}, and has {known}")
            self._world.counts["fast batches ended"] += 1
            return True
        told_of = json.loads(outcome[2])
        if told_of["type"] == "ack":
            handled = model.handled[batch_id]
            need(told_of["seq"] <= handled, f"{batch_id!r}: {told_of} is told of {handled}")
            self._world.counts["fast acks"] += 1
        elif told_of["type"] == "gap":
            gap = (told_of["last_seq"], told_of["seq"])
            need(gap in model.gaps[batch_id], f"{batch_id!r} is told of {gap}, which is none")
            self._world.counts["fast gaps"] += 1
        else:
            is_known = told_of["seq"] in model.refused[batch_id]
            need(is_known, f"{batch_id!r}: {told_of} is told of a member that is stored")
            self._world.counts["fast refusals"] += 1
        return False

    # --- the end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Send again what is in doubt, and wait until no schedule is overdue."""
        counters = self._checkers.named(COUNTERS)
        stored = self._model(COUNTERS).increments if counters is not None else {}
        for ids in self._together:
            counted = [each for each in ids if each in stored]
            need(len(counted) in (0, len(ids)), f"of {ids} only {counted} count")
        is_settled = self._cluster.every_ms(50, lambda: not self._unsettled())
        if not self._world.run(self._world.now_us + SETTLED_US, is_settled):
            raise Violation(f"{SETTLED_US / SECOND} s after the faults: {self._unsettled()}")
        self._check_sums()
        self._check_schedules()
        for name in (BATCHES, SCHEDULES, LIVES):
            truth = self._checkers.named(name)
            if truth is not None and truth.features is not None:
                truth.features.check_batches()
                self._world.counts["expired"] += truth.features.expired
                self._world.counts["fired"] += sum(truth.features.fired.values())
                self._world.counts["fast members"] += sum(map(len, truth.features.members.values()))

    def _unsettled(self) -> str:
        if self._in_doubt:
            self._send_again()
            return f"{len(self._in_doubt)} increments are in doubt"
        return self._overdue()

    def _send_again(self) -> None:
        if self._world.now_us < self._sent_us + RESEND_US:
            return
        self._sent_us = self._world.now_us
        host = self._cluster.leader_of(self._checkers.uid_of(COUNTERS))
        if host is None or host.process is None or host.node is None:
            return
        handle = host.node.stream(COUNTERS)
        if handle is not None:
            ids = list(self._in_doubt)
            msgs = [self.increment_msg(each) for each in ids]
            host.process.run(handle.publish, msgs, ids, self)

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        for msg_id, outcome in zip(replies, outcomes, strict=True):
            self.on_increment(msg_id, outcome)

    def _overdue(self) -> str:
        """A schedule whose time is over, by the clock of the leader: as the server knows it, and
        of those that were acked, as the model does."""
        uid = self._checkers.uid_of(SCHEDULES)
        host = self._cluster.leader_of(uid)
        group = host.node.groups.group_of(uid) if host is not None and host.node else None
        if host is None or group is None:
            return f"nobody leads {SCHEDULES}"
        machine = group.machine
        assert isinstance(machine, StreamMachine)
        past_ns = host.clock.now_ns() - LATE_NS
        if late := machine.content.schedules.first(past_ns, 1):
            return f"{late} should have fired at {host.name}"
        model, index = self._model(SCHEDULES), self._checkers.truth_of(SCHEDULES).machine.index
        for body, schedule in self._schedules.items():
            is_newest = index.lookup.last_of(schedule.subject) == schedule.seq
            if is_newest and 0 < model.due_ns(body) <= past_ns:
                return f"schedule {body!r} should have fired at {host.name}"
        return ""

    def _check_sums(self) -> None:
        sums: dict[bytes, int] = defaultdict(int)
        for subject, amount in self._asked.values():
            sums[subject] += amount
        for subject, wanted in sorted(sums.items()):
            totals = self._model(COUNTERS).totals
            need(
                totals.get(subject) == wanted,
                f"{subject!r} stands at {totals.get(subject)}, asked for was {wanted}",
            )

    def _check_schedules(self) -> None:
        truth = self._checkers.named(SCHEDULES)
        if truth is None or truth.features is None:
            return
        fired, index = truth.features.fired, truth.machine.index
        for body, schedule in self._schedules.items():
            count = fired[body]
            need(count <= 1 or not schedule.at_ns, f"{body!r} was to come once, and came {count}")
            if count or index.live.has(schedule.seq):
                continue  # not yet: the clock of who leads now is behind
            after = [
                seq
                for seq, msg in truth.content.items()
                if seq > schedule.seq and msg[0] == schedule.subject
            ]
            need(after, f"schedule {body!r} ({schedule.seq}) is gone, and never came")

    def _model(self, name: str) -> FeatureModel:
        model = self._checkers.truth_of(name).features
        assert model is not None, name
        return model
