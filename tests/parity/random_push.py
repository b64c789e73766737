"""Random stories of push consumers: `python -m tests.parity --push --random 100 [--first-seed S]`.

As in random_scenarios, but what consumers send is seen by subscriptions that come and go.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.parity.random_scenarios import MINUTE, NAMES, PATTERNS, SUBJECTS
from tests.parity.recorder import Recorder
from tests.parity.registry import Scenario
from tests.wire import Frame

QUIET_S = 0.08  # so long after the last delivery, there are no more for now
STEPS = 40


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    return lambda at: _Story(at, Random(seed)).run()


class _Story:
    def __init__(self, at: Recorder, rng: Random) -> None:
        self.at = at
        self.rng = rng
        self.held: list[Frame] = []
        self.early: list[Frame] = []  # came before a subscription was confirmed
        self.sids: dict[str, str] = {}  # of the subscriptions to d.<consumer>
        self.wire = at.connect()
        choice = rng.choice
        # Each its own for good: whom the peer serves after another one was set is an accident.
        self.groups = {name: choice(("",) * 4 + ("q",)) for name in NAMES}
        self.config: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.>"],
            "num_replicas": 1,
            "storage": choice(("file", "memory")),
            "retention": choice(("limits",) * 4 + ("interest", "workqueue")),
            "max_msgs": choice((-1, -1, 5)),
            "max_msgs_per_subject": choice((-1, -1, 2)),
        }

    def run(self) -> None:
        at, rng = self.at, self.rng
        at.api("STREAM.CREATE.S", self.config)
        weights = {
            self.publish: 30, self.create_consumer: 12, self.subscribe: 12, self.unsubscribe: 4,
            self.ack: 20, self.delete: 3, self.purge: 2, self.delete_consumer: 3, self.info: 6,
        }  # fmt: skip
        for action in rng.choices(list(weights), list(weights.values()), k=STEPS):
            action()
            self.look()
        at.api("STREAM.INFO.S")
        for name in NAMES:
            at.api(f"CONSUMER.INFO.S.{name}")

    def look(self) -> None:
        """Note what was delivered, each consumer's in its order."""
        wire = self.wire
        seen, self.early = self.early, []
        seen += wire.collect(count=1, within_s=QUIET_S)
        if seen:
            seen += wire.collect(within_s=2, quiet_s=QUIET_S)
        by_sid: dict[str, list[Frame]] = {}
        for frame in seen:
            by_sid.setdefault(frame.sid, []).append(frame)
        for name in NAMES:
            frames = by_sid.get(self.sids.get(name, "-"), [])
            if frames:
                self.at.note_frames(f"delivered to {name}", frames)
                self.held += [each for each in frames if each.reply.startswith("$JS.ACK")]

    def publish(self) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            self.at.pub(self.rng.choice(SUBJECTS), b"p" * self.rng.choice((1, 30)))

    def subscribe(self) -> None:
        name = self.rng.choice(NAMES)
        if name not in self.sids:
            queue = self.rng.choice(("", "", "q"))
            self.sids[name] = self.wire.subscribe(f"d.{name}", queue)
            self.early += self.wire.fence()

    def unsubscribe(self) -> None:
        name = self.rng.choice(NAMES)
        if name in self.sids:
            self.wire.unsubscribe(self.sids.pop(name))
            self.early += self.wire.fence()

    def create_consumer(self) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        policies = ("all", "all", "last", "new", "by_start_sequence")
        config: dict[str, Any] = {
            "durable_name": name,
            "deliver_subject": f"d.{name}",
            "ack_policy": rng.choice(("explicit", "explicit", "all", "none")),
            "deliver_policy": rng.choice(policies),
            "ack_wait": MINUTE,
        }
        if config["deliver_policy"] == "by_start_sequence":
            config["opt_start_seq"] = rng.randint(1, 9)
        if self.groups[name]:
            config["deliver_group"] = self.groups[name]
        if rng.random() < 0.4:
            config["filter_subject"] = rng.choice(PATTERNS)
        for share, key, values in (
            (0.2, "max_deliver", (1, 2)),
            (0.3, "max_ack_pending", (1, 2, 3)),
            (0.1, "headers_only", (True,)),
            (0.1, "idle_heartbeat", (MINUTE,)),
            (0.1, "sample_freq", ("100",)),
        ):
            if rng.random() < share:
                config[key] = rng.choice(values)
        self.at.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})

    def ack(self) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            if self.held:
                frame = self.held.pop(self.rng.randrange(len(self.held)))
                kinds = (b"+ACK", b"+ACK", b"+ACK", b"-NAK", b"+TERM", b"+WPI")
                self.at.ack(frame, self.rng.choice(kinds))

    def delete(self) -> None:
        self.at.api("STREAM.MSG.DELETE.S", {"seq": self.rng.randint(1, 20)})

    def purge(self) -> None:
        wanted = {"filter": self.rng.choice(PATTERNS)} if self.rng.random() < 0.5 else {}
        self.at.api("STREAM.PURGE.S", wanted)

    def delete_consumer(self) -> None:
        self.at.api(f"CONSUMER.DELETE.S.{self.rng.choice(NAMES)}")

    def info(self) -> None:
        self.at.api(f"CONSUMER.INFO.S.{self.rng.choice(NAMES)}")
