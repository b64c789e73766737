"""Worlds of many kinds of streams and consumers: what the plain workload leaves out.

Work queues, interest, ages, lives of single messages, rollups, small windows and full streams;
consumers with filters, of all ack policies, that are changed, paused, reset and deleted while they
deliver; configs and replica counts that change under way. All of it is drawn per seed.
"""

from __future__ import annotations

import random
from typing import Any

from streamd.machine.rfc3339 import format_ns
from streamd.types import Seq, Uid
from tests.sim.plan import COMING_AND_GOING, Document, Plan
from tests.sim.workload import REPLIES, Client
from tests.sim.world import MS

SECOND_NS = 10**9
QUEUE, INTEREST, AGING = "W", "I", "A"
CONSUMERS = 4  # names per stream
GROUP = "g"

# Action of a client -> how often, relative to the others.
ACTIONS: dict[str, float] = {
    "publish": 8.0,
    "publish_with_id": 2.0,
    "publish_expecting": 1.0,
    "publish_batch": 1.5,
    "publish_special": 4.0,
    "delete_msg": 1.0,
    "purge": 0.2,
    "make_consumer": 2.0,
    "change_consumer": 0.7,
    "delete_consumer": 0.4,
    "pause_consumer": 0.3,
    "reset_consumer": 0.5,
    "unpin_consumer": 0.2,
    "pull": 8.0,
    "ack": 12.0,
    "ack_much": 4.0,
    "read_last": 1.0,
    "get_message": 1.0,
    "get_directly": 1.0,
    "create_stream": 0.4,
    "delete_stream": 0.2,
    "update_stream": 0.5,
    "remove_peer": 0.2,
    "step_down": 0.2,
}


def draw_varied(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one varied seed."""
    sizes = {1: [1], 3: [1, 3, 3, 3]}.get(node_count, [1, 3, 3, 5])
    configs: dict[str, Document] = {}
    for name in ("S1", QUEUE, INTEREST, AGING, COMING_AND_GOING):
        if name in ("S1", INTEREST) or rng.random() < 0.6:
            configs[name] = _stream(rng, name, rng.choice(sizes))
    actions = {
        action: weight * rng.choice((0.0, 1.0, 1.0, 2.0)) if action not in _NEEDED else weight
        for action, weight in ACTIONS.items()
    }
    if rng.random() < 0.3:  # readers that lag behind
        actions["ack"] = actions["ack_much"] = 1.0
    return Plan(configs, actions)


_NEXT_SIZES = {1: (3,), 3: (1, 5), 5: (3,)}
_NEEDED = ("publish", "make_consumer", "pull", "ack")


def _stream(rng: random.Random, name: str, replica_count: int) -> Document:
    retention = {QUEUE: "workqueue", INTEREST: "interest"}.get(name, "limits")
    if name == COMING_AND_GOING:
        retention = rng.choice(("limits", "interest", "workqueue"))
    config: Document = {
        "name": name,
        "subjects": [name + ".>"],
        "retention": retention,
        "storage": "memory" if rng.random() < 0.15 else "file",
        "num_replicas": replica_count,
        "duplicate_window": rng.choice((SECOND_NS, 10**6 * SECOND_NS)),
        "allow_direct": True,
        "allow_atomic": True,
        "allow_rollup_hdrs": True,
        "discard": "old",
        **_limits(rng, retention),
    }
    if name == AGING:
        config["duplicate_window"] = SECOND_NS
        config["max_age"] = rng.choice((0, 1, 3)) * SECOND_NS
        config["allow_msg_ttl"] = True
        config["subject_delete_marker_ttl"] = rng.choice((0, SECOND_NS))
    return config


def _limits(rng: random.Random, retention: str) -> Document:
    found: Document = {
        "max_msgs": rng.choice((-1, -1, 40)),
        "max_bytes": rng.choice((-1, -1, 40_000)),
        "max_msgs_per_subject": rng.choice((-1, -1, 1, 4)),
    }
    if rng.random() < 0.2:
        found["discard"] = "new"
        found["max_msgs"] = 40
        found["discard_new_per_subject"] = found["max_msgs_per_subject"] > 0
    if retention == "interest" and rng.random() < 0.6:  # only who wants it decides
        found = {"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
    return found


def _consumer(
    rng: random.Random, client: bytes, stream: str, name: str, retention: str
) -> Document:
    """The config of a consumer, as a client asks for it."""
    config: Document = {
        "durable_name": name,
        "deliver_policy": "all",
        "ack_policy": rng.choice(("explicit", "explicit", "explicit", "all", "none")),
        "ack_wait": rng.choice((1, 2, 4)) * SECOND_NS,
        "max_ack_pending": rng.choice((-1, 5, 50, 1000)),
    }
    number = int(name[1:])
    if retention == "workqueue":
        config["ack_policy"] = "explicit"
        config["filter_subject"] = f"{stream}.{number}"
    else:
        config["deliver_policy"] = rng.choice(("all", "all", "new", "last", "last_per_subject"))
        if rng.random() < 0.1:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": rng.randint(1, 80)}
        config |= _filter(rng, stream)
    if rng.random() < 0.3 and config["ack_policy"] != "none":
        config["max_deliver"] = rng.choice((1, 2, 3))
    if rng.random() < 0.15 and config["ack_policy"] == "explicit":
        config["backoff"] = [SECOND_NS // 2, SECOND_NS]
        config["max_deliver"] = rng.choice((2, 4))
        config.pop("ack_wait")
    if rng.random() < 0.1:
        config["sample_freq"] = "50"
    if rng.random() < 0.1:
        config["headers_only"] = True
    if rng.random() < 0.1:
        config["inactive_threshold"] = 2 * SECOND_NS
    if rng.random() < 0.3:
        config["deliver_subject"] = f"{client.decode()}.push.{stream}"
    elif config["ack_policy"] == "explicit" and rng.random() < 0.25:
        policy = rng.choice(("overflow", "pinned_client", "prioritized"))
        config |= {"priority_policy": policy, "priority_groups": [GROUP]}
        if policy == "pinned_client":
            config["priority_timeout"] = SECOND_NS
    return config


def _filter(rng: random.Random, stream: str) -> Document:
    kind = rng.randint(0, 3)
    if kind == 0:
        return {"filter_subject": f"{stream}.{rng.randint(0, 4)}"}
    if kind == 1:
        return {"filter_subjects": [f"{stream}.{n}" for n in sorted(rng.sample(range(5), 2))]}
    return {}


class VariedClient(Client):
    """A client that uses all there is."""

    # --- publishing -------------------------------------------------------------------------

    def publish_special(self) -> None:
        """Messages with headers that mean something."""
        handle = self.some_handle()
        if handle is None:
            return
        msgs = []
        for _ in range(self.rng.choice((1, 1, 3))):
            subject = self.some_subject(handle)
            added = self.rng.choice(
                (
                    b"Nats-Rollup: sub\r\n",
                    b"Nats-Rollup: all\r\n" if self.rng.random() < 0.04 else b"X: y\r\n",
                    b"Nats-TTL: 1s\r\n",
                    b"Nats-TTL: 2s\r\n",
                    b"Nats-TTL: never\r\n",
                    b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
                )
            )
            if b"TTL" in added and not handle.config.get("allow_msg_ttl"):
                added = b"X: z\r\n"
            msgs.append(self._message(subject, REPLIES + added + b"\r\n"))
        self._send(handle, msgs)

    # --- consumers --------------------------------------------------------------------------

    def _some_consumer(self) -> tuple[Any, str]:
        """A stream and the name of one of its consumers; (None, "") and over: there is none."""
        handle = self.some_handle()
        if handle is None:
            return None, ""
        truth = self.ledger.checkers.truths.get(handle.uid)
        names = sorted(truth.machine.consumers) if truth is not None else []
        if not names:
            self.finish()
            return None, ""
        return handle, self.rng.choice(names)

    def make_consumer(self) -> None:
        handle = self.some_handle()
        if handle is None:
            return
        name = f"v{self.rng.randint(0, CONSUMERS - 1)}"
        retention = handle.config["retention"]
        config = _consumer(self.rng, self.name, handle.name, name, retention)
        document = {"stream_name": handle.name, "config": config, "action": "create"}
        self._order(f"CONSUMER.CREATE.{handle.name}.{name}", document, "consumers")

    def change_consumer(self) -> None:
        """Another filter, wait, or bound, while it delivers."""
        handle, name = self._some_consumer()
        if handle is None:
            return
        truth = self.ledger.checkers.truths[handle.uid]
        consumer = truth.machine.consumers[name]
        config = {k: v for k, v in consumer.config.items() if k not in ("metadata", "pause_until")}
        what = self.rng.randint(0, 3)
        if what == 0 and handle.config["retention"] != "workqueue":
            config.pop("filter_subject", None)
            config.pop("filter_subjects", None)
            config |= _filter(self.rng, handle.name)
        elif what == 1:
            config["max_ack_pending"] = self.rng.choice((-1, 3, 100))
        elif what == 2 and not config.get("backoff"):
            config["ack_wait"] = self.rng.choice((1, 3)) * SECOND_NS
        elif not config.get("backoff"):
            config["max_deliver"] = self.rng.choice((-1, 2, 5))
        document = {"stream_name": handle.name, "config": config, "action": "update"}
        self._order(f"CONSUMER.CREATE.{handle.name}.{name}", document, "consumers changed")

    def delete_consumer(self) -> None:
        handle, name = self._some_consumer()
        if handle is not None:
            self._order(f"CONSUMER.DELETE.{handle.name}.{name}", None, "consumers deleted")

    def pause_consumer(self) -> None:
        handle, name = self._some_consumer()
        process = self.process
        if handle is None or process is None:
            return
        document: Document = {}
        if self.rng.random() < 0.7:
            until_ns = process.clock.now_ns() + self.rng.randint(100, 3000) * 10**6
            document = {"pause_until": format_ns(until_ns)}
        self._order(f"CONSUMER.PAUSE.{handle.name}.{name}", document, "pauses")

    def reset_consumer(self) -> None:
        handle, name = self._some_consumer()
        if handle is None:
            return
        last = self.ledger.last_acked.get(handle.uid, 0)
        document = {"seq": self.rng.choice((0, self.rng.randint(1, last + 1)))}
        self._order(f"CONSUMER.RESET.{handle.name}.{name}", document, "resets")

    def unpin_consumer(self) -> None:
        handle, name = self._some_consumer()
        if handle is not None:
            self._order(f"CONSUMER.UNPIN.{handle.name}.{name}", {"group": GROUP}, "unpins")

    def pull(self) -> None:
        handle, name = self._some_consumer()
        if handle is None:
            return
        inbox = b"%b.p.%d" % (self.name, next(self._replies))
        batch = self.rng.choice((1, 10, 50))
        request = self.rng.choice(
            (
                b'{"batch":%d,"expires":300000000}',
                b'{"batch":%d,"expires":300000000,"group":"g"}',
                b'{"batch":%d,"no_wait":true,"group":"g"}',
                b'{"batch":%d,"no_wait":true}',
                b'{"batch":%d,"max_bytes":4000,"expires":300000000}',
                b'{"batch":%d,"expires":300000000,"group":"g","priority":2}',
            )
        )
        if not handle.pull(name, inbox, b"", request % batch):
            self.finish()
            return
        self.world.after(self.rng.choice((20, 350)) * MS, self._pulled, self._operation)

    # --- acks -------------------------------------------------------------------------------

    def ack_much(self) -> None:
        """Plain acks of most of what it was given."""
        process = self.process
        given, self.delivered[:] = self.delivered[:], []
        if process is not None:
            handles = {handle.uid: handle for handle in process.node.streams()}
            for uid, name, subject, seq in given:
                if uid in handles and self.rng.random() < 0.9:
                    self.ledger.on_ack_asked(uid, name, seq)
                    handles[uid].acks([subject], None, [b"+ACK"])
        self.finish()

    def some_verb(self) -> bytes:
        delay = b"-NAK %d" % (self.rng.randint(10, 2000) * 10**6)
        verbs = (b"+ACK", b"-NAK", delay, b"+WPI", b"+TERM why", b"+NXT")
        return self.rng.choice(verbs)

    def _is_of(self, truth: Any, seq: Seq, payload: bytes) -> bool:
        return seq in truth.content and payload in (b"", truth.content[seq][2])

    def _take_delivery(self, uid: Uid, consumer: str, reply: bytes, seq: Seq) -> None:
        held = self.ledger.checkers.truths[uid].machine.consumers.get(consumer)
        if held is not None and held.is_push:
            self.world.counts["pushed"] += 1
        if held is not None and not held.is_ack_none:
            self.delivered.append((uid, consumer, reply, seq))

    # --- streams ----------------------------------------------------------------------------

    def update_stream(self) -> None:
        """Other limits, another size, another retention."""
        handle = self.some_handle()
        if handle is None:
            return
        uid: Uid = handle.uid
        asset = self.ledger.checkers.assets.get(uid)
        if asset is None:
            self.finish()
            return
        config = asset.config.copy()
        config.pop("metadata", None)
        what = self.rng.randint(0, 3)
        if what == 0:
            config["num_replicas"] = self.rng.choice((1, 3, 3))
        elif what == 1 and config["retention"] != "workqueue":
            config["retention"] = self.rng.choice(("limits", "interest"))
        elif what == 2 and config["allow_msg_ttl"]:
            config["max_age"] = self.rng.choice((0, 2, 4)) * SECOND_NS
        else:
            config |= {
                "max_msgs": self.rng.choice((-1, 30, 60)),
                "max_msgs_per_subject": self.rng.choice((-1, 1, 3)),
                "discard": "old",
                "discard_new_per_subject": False,
            }
        self._order(f"STREAM.UPDATE.{handle.name}", {**config}, "stream updates")

    def resize(self) -> None:
        """One step up or down: of 1, 3, 5 replicas."""
        handle = self.some_handle()
        if handle is None:
            return
        asset = self.ledger.checkers.assets.get(handle.uid)
        if asset is None:
            self.finish()
            return
        config = asset.config.copy()
        config.pop("metadata", None)
        config["num_replicas"] = self.rng.choice(_NEXT_SIZES[config["num_replicas"]])
        self._order(f"STREAM.UPDATE.{handle.name}", {**config}, "resizes")

    def replace_peer(self) -> None:
        """As `remove_peer`, of one that has a replica, whatever else is wrong."""
        handle = self.some_handle()
        if handle is None:
            return
        asset = self.ledger.checkers.assets.get(handle.uid)
        peer = self.rng.choice(asset.peers if asset is not None else self.cluster.names)
        self._order(f"STREAM.PEER.REMOVE.{handle.name}", {"peer": peer}, "peers removed")

    def remove_peer(self) -> None:
        """Have another node take the place of one replica."""
        name = self.rng.choice(self.cluster.names)
        stream = self.rng.choice(self.cluster.plan.names)
        if all(self.cluster.is_whole(host) for host in self.cluster.hosts.values()):
            self._order(f"STREAM.PEER.REMOVE.{stream}", {"peer": name}, "peers removed")
        else:
            self.finish()
