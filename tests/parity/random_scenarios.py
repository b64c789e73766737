"""Scenarios made up from a seed: `python -m tests.parity --random 100 [--first-seed S]`,
or with our server disturbed meanwhile (`--disturb N`), or a cluster (`--cluster`).

One stream of a random config, then requests of all kinds in random order; what is asked next
depends on the seed and on what was answered. Answers are compared whole, as in any scenario; of a
story that differs the first difference is shown, for somebody to judge. Not a part of the tests:
the peer has accidents too, such as a `last_per_subject` consumer that gets nothing any more when a
message of its list was removed.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

from tests.parity.compare import MISSING, Difference
from tests.parity.recorder import Recorder
from tests.parity.registry import Scenario
from tests.wire import Frame

MINUTE = 60 * 1_000_000_000
SUBJECTS = ("s.a", "s.b", "s.c.d")
PATTERNS = ("s.a", "s.b", "s.*", ">", "s.>", "s.c.*", "s.zz")
NAMES = ("c0", "c1", "c2")
STEPS = 50


def scenario(seed: int, *, disturbances: int = 0) -> Scenario:
    """The scenario of a seed, in which our server is disturbed about so many times."""
    return lambda at: _Story(at, Random(seed), disturbances).run(STEPS)


def unsettled(difference: Difference) -> str | None:
    """Why the two may differ here in a random story, though no scenario names it; None: they may
    not. Each was looked at once, and the peer's answer found to be accidental."""
    path = difference.path
    if path == "cluster" and difference.ours == MISSING:
        return "what a cluster says of itself is left out"
    if path.endswith((".reply", "num_pending")):
        if re.sub(r"\d+$", "", str(difference.ours)) == re.sub(r"\d+$", "", str(difference.peer)):
            return "the peer goes on counting messages that a new config took out"
    if path.endswith(("ack_floor.stream_seq", "delivered.stream_seq", "last_active")):
        return "how far a consumer is moved by a removal of what it had not been sent"
    if path.endswith(("state.first_seq", "state.deleted", "state.num_deleted")):
        if not difference.ours or difference.ours == MISSING:
            return "the peer counts a seq 0, or 1, of a stream that never held anything"
    if path.endswith("Nats-Last-Sequence") and difference.label.startswith("heard"):
        return "the peer makes room behind each message of a batch, not behind all of them"
    if difference.label.startswith("publish") and "Nats-Batch-Id" in difference.label:
        if any("maximum " in str(each) for each in (difference.ours, difference.peer)):
            return "the peer counts what a batch replaces as well, and looks at bytes first"
    if isinstance(difference.ours, dict) and difference.ours.get("status") == "404 No Messages":
        return "the peer says nothing to a no_wait request that max_ack_pending cuts short"
    return None


class _Story:
    def __init__(self, at: Recorder, rng: Random, disturbances: int) -> None:
        self.at = at
        self.rng = rng
        self.disturbances = disturbances
        self.last = 0
        self.held: list[Frame] = []  # to be acked later, or never
        choice = rng.choice
        self.config: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.>"],
            "num_replicas": 1,
            "storage": choice(("file", "memory")),
            "retention": choice(("limits",) * 4 + ("interest", "workqueue")),
            "discard": choice(("old", "old", "new")),
            "max_msgs": choice((-1, -1, 5, 8)),
            "max_msgs_per_subject": choice((-1, -1, 1, 2, 3)),
            "max_bytes": choice((-1, -1, -1, 400)),
            "max_msg_size": choice((-1, -1, 50)),
            "allow_direct": rng.random() < 0.7,
            "allow_msg_ttl": rng.random() < 0.2,
            "deny_delete": rng.random() < 0.05,
            "deny_purge": rng.random() < 0.05,
            "first_seq": choice((0,) * 9 + (10,)),
        }
        if disturbances:
            self.config["storage"] = "file"
        self.config["allow_rollup_hdrs"] = not self.config["deny_purge"] and rng.random() < 0.7

    def run(self, steps: int) -> None:
        at, rng = self.at, self.rng
        at.api("STREAM.CREATE.S", self.config)
        weights = {
            self.publish: 38, self.get: 10, self.direct: 5, self.delete: 5, self.purge: 3,
            self.update: 3, self.create_consumer: 8, self.pull: 13, self.ack_held: 2,
            self.consumer_info: 5, self.delete_consumer: 1, self.info: 5,
            self.disturb: self.disturbances * 100 // steps,
        }  # fmt: skip
        for action in rng.choices(list(weights), list(weights.values()), k=steps):
            action()
        at.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
        for name in NAMES:
            at.api(f"CONSUMER.INFO.S.{name}")

    def disturb(self) -> None:
        self.at.disturb(self.rng.random())

    # --- messages -------------------------------------------------------------------------------

    def publish(self) -> None:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            payload = b"p" * rng.choice((1, 5, 30, 60))
            told = self.at.pub(rng.choice(SUBJECTS), payload, headers=self._headers() or None)
            seq = told.get("seq")
            if isinstance(seq, int):
                self.last = max(self.last, seq)

    def _headers(self) -> dict[str, str]:
        rng, last = self.rng, self.last
        wanted = (
            (0.15, "Nats-Msg-Id", f"m{rng.randrange(5)}"),
            (0.07, "Nats-Expected-Last-Sequence", str(rng.choice((0, last, last, last + 1)))),
            (0.07, "Nats-Expected-Last-Subject-Sequence", str(rng.choice((0, last, 1, 2, 3)))),
            (0.04, "Nats-Expected-Last-Msg-Id", f"m{rng.randrange(5)}"),
            (0.04, "Nats-Expected-Stream", rng.choice("ST")),
            (0.08, "Nats-Rollup", rng.choice(("sub", "sub", "all"))),
            (0.05, "Nats-TTL", "1h"),
            (0.10, "X", "y"),
        )
        if self.config["retention"] == "interest":
            wanted = wanted[:5]  # the peer rolls up also for what it does not store
        return {name: value for share, name, value in wanted if rng.random() < share}

    def get(self) -> None:
        rng = self.rng
        wanted = rng.choice(
            (
                {"seq": rng.randint(0, self.last + 2)},
                {"last_by_subj": rng.choice(PATTERNS)},
                {"seq": rng.randint(0, self.last + 1), "next_by_subj": rng.choice(PATTERNS)},
            )
        )
        self.at.api("STREAM.MSG.GET.S", wanted)

    def direct(self) -> None:
        rng, at = self.rng, self.at
        seq = rng.randint(1, self.last + 1)
        kind = rng.randrange(5)
        if kind == 0:
            at.direct("S", subject=rng.choice(PATTERNS))
        elif kind == 1:
            at.direct("S", {"multi_last": rng.sample(PATTERNS, 2)})
        elif kind == 2:
            wanted = {"batch": rng.randint(1, 4), "seq": seq, "next_by_subj": rng.choice(PATTERNS)}
            at.direct("S", wanted)
        else:
            at.direct("S", {"seq": seq} if kind == 3 else {"last_by_subj": rng.choice(SUBJECTS)})

    def delete(self) -> None:
        wanted = {"seq": self.rng.randint(0, self.last + 2), "no_erase": self.rng.random() < 0.5}
        self.at.api("STREAM.MSG.DELETE.S", wanted)

    def purge(self) -> None:
        rng = self.rng
        wanted: dict[str, Any] = {"filter": rng.choice(PATTERNS)} if rng.random() < 0.5 else {}
        kind = rng.randrange(3)
        if kind == 0:
            wanted["seq"] = rng.randint(1, self.last + 2)
        elif kind == 1:
            wanted["keep"] = rng.randint(1, 3)
        self.at.api("STREAM.PURGE.S", wanted)

    # --- the stream -----------------------------------------------------------------------------

    def info(self) -> None:
        options = ({}, {"subjects_filter": self.rng.choice(PATTERNS)}, {"deleted_details": True})
        self.at.api("STREAM.INFO.S", self.rng.choice(options))

    def update(self) -> None:
        rng = self.rng
        changes: dict[str, Any] = {
            "max_msgs": rng.choice((-1, 3, 8)),
            "max_msgs_per_subject": rng.choice((-1, 1, 2)),
            "max_bytes": rng.choice((-1, 300)),
            "max_msg_size": rng.choice((-1, 40)),
            "max_age": rng.choice((0, 60 * MINUTE)),
            "discard": rng.choice(("old", "new")),
            "allow_direct": rng.random() < 0.5,
            "subjects": rng.choice((["s.>"], ["s.>", "t"])),
        }
        self.config.update({key: value for key, value in changes.items() if rng.random() < 0.25})
        self.at.api("STREAM.UPDATE.S", self.config)

    # --- consumers ------------------------------------------------------------------------------

    def create_consumer(self) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        policies = ("all", "all", "last", "new", "last_per_subject", "by_start_sequence")
        config: dict[str, Any] = {
            "durable_name": name,
            "ack_policy": rng.choice(("explicit", "explicit", "all", "none")),
            "deliver_policy": rng.choice(policies),
            "ack_wait": MINUTE,
        }
        if config["deliver_policy"] == "by_start_sequence":
            config["opt_start_seq"] = rng.randint(1, self.last + 3)
        if config["deliver_policy"] == "last_per_subject" or rng.random() < 0.4:
            config["filter_subject"] = rng.choice(PATTERNS)
        elif rng.random() < 0.2:
            config["filter_subjects"] = rng.sample(("s.a", "s.b", "s.c.*"), 2)
        for share, key, values in (
            (0.2, "max_deliver", (1, 2)),
            (0.2, "max_ack_pending", (1, 2, 3)),
            (0.1, "headers_only", (True,)),
            (0.1, "max_batch", (2,)),
            (0.1, "max_waiting", (1,)),
        ):
            if rng.random() < share:
                config[key] = rng.choice(values)
        body: dict[str, Any] = {"stream_name": "S", "config": config}
        if rng.random() < 0.4:
            body["action"] = rng.choice(("create", "update", ""))
        self.at.api(f"CONSUMER.CREATE.S.{name}", body)

    def pull(self) -> None:
        rng, at = self.rng, self.at
        batch = rng.randint(1, 4)
        wanted: dict[str, Any] = {"batch": batch, "no_wait": True}
        if rng.random() < 0.1:
            wanted["max_bytes"] = rng.choice((50, 120, 10_000))
        for frame in at.pull("S", rng.choice(NAMES), wanted, count=batch):
            if not frame.reply:
                continue
            answers = (b"+ACK", b"-NAK", b"+TERM", b"+WPI", b"later", b"never")
            answer = rng.choices(answers, (50, 10, 8, 4, 8, 20))[0]
            if answer == b"later":
                self.held.append(frame)
            elif answer != b"never":
                at.ack(frame, answer)

    def ack_held(self) -> None:
        if self.held:
            frame = self.held.pop(self.rng.randrange(len(self.held)))
            self.at.ack(frame, self.rng.choice((b"+ACK", b"-NAK", b"+TERM")))

    def consumer_info(self) -> None:
        self.at.api(f"CONSUMER.INFO.S.{self.rng.choice(NAMES)}")

    def delete_consumer(self) -> None:
        self.at.api(f"CONSUMER.DELETE.S.{self.rng.choice(NAMES)}")
