"""Random stories of publishers: `python -m tests.parity --publish --random 100 [--first-seed S]`.

Every header that a stream understands, right, stale and wrong, alone and within atomic batches;
what the stream republishes, and what it announces of its batches, is seen by a listener.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.parity.random_scenarios import MINUTE, SUBJECTS
from tests.parity.recorder import Recorder
from tests.parity.registry import Scenario

STEPS = 60
QUIET_S = 0.1
BATCHES = ("b0", "b1")
ODD_NUMBERS = ("", "x", "-1", "1.0", "+1", "01", " 1", str(2**63))


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    return lambda at: _Story(at, Random(seed)).run()


class _Story:
    def __init__(self, at: Recorder, rng: Random) -> None:
        self.at = at
        self.rng = rng
        self.last = 0
        self.parts = dict.fromkeys(BATCHES, 0)
        choice = rng.choice
        self.config: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.>"],
            "num_replicas": 1,
            "storage": choice(("file", "memory")),
            "retention": choice(("limits",) * 6 + ("workqueue", "interest")),
            "discard": choice(("old", "new")),
            "max_msgs": choice((-1, -1, 6)),
            "max_msgs_per_subject": choice((-1, -1, 1, 2)),
            "max_bytes": choice((-1, -1, 600)),
            "max_msg_size": choice((-1, -1, 150)),
            "allow_msg_ttl": rng.random() < 0.5,
            "allow_rollup_hdrs": rng.random() < 0.5,
            "allow_atomic": rng.random() < 0.8,
            "first_seq": choice((0, 0, 0, 1, 7)),
        }
        if self.config["discard"] == "new" and self.config["max_msgs_per_subject"] > 0:
            self.config["discard_new_per_subject"] = rng.random() < 0.5
        if rng.random() < 0.4:
            dest = choice(("r.>", "r", "r.>", "r.{{wildcard(1)}}"))
            source = {"r.>": choice((">", "s.>", "")), "r": "s.a"}.get(dest, "s.*")
            self.config["republish"] = {
                "src": source, "dest": dest, "headers_only": rng.random() < 0.4
            }  # fmt: skip

    def run(self) -> None:
        at, rng = self.at, self.rng
        at.api("STREAM.CREATE.S", self.config)
        if self.config["retention"] == "interest":
            config = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.*"}
            at.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        listener = at.connect()
        for subject in ("r.>", "r", "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>"):
            listener.subscribe(subject)
        listener.fence()
        weights = {self.publish: 45, self.batch: 40, self.delete: 5, self.update: 4, self.purge: 2}
        for action in rng.choices(list(weights), list(weights.values()), k=STEPS):
            action()
        at.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
        for seq in range(1, self.last + 2):
            at.api("STREAM.MSG.GET.S", {"seq": seq})
        heard = at.frames(listener.collect(within_s=2, quiet_s=QUIET_S))
        for start in ("r", "$"):
            some = [self._stable(each) for each in heard if each["subject"].startswith(start)]
            at.note(f"heard of {start}", some)

    def _stable(self, seen: dict[str, Any]) -> dict[str, Any]:
        payload = seen.get("payload")
        if isinstance(payload, dict) and "id" in payload:
            return seen | {"payload": payload | {"id": "<id>"}}
        return seen

    def publish(self) -> None:
        self._send(self._headers(0.12))

    def batch(self) -> None:
        """A part of a batch: mostly the next one."""
        rng = self.rng
        name = rng.choice(BATCHES)
        number = self.parts[name] + 1
        if rng.random() < 0.06:
            number = rng.choice((1, number + 1, max(number - 1, 0), 0))
        self.parts[name] = number
        headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
        if rng.random() < 0.03:
            headers["Nats-Batch-Sequence"] = rng.choice(ODD_NUMBERS)
        if rng.random() < 0.3:
            headers["Nats-Batch-Commit"] = rng.choice(("1",) * 6 + ("eob",) * 3 + ("0", "x", ""))
            self.parts[name] = 0
        told = self._send(headers | self._headers(0.05))
        if "error" in told:
            self.parts[name] = rng.choice((0, 0, number))

    def _send(self, headers: dict[str, str]) -> dict[str, Any]:
        rng = self.rng
        payload = b"p" * rng.choice((0, 1, 5, 30, 60, 160))
        told = self.at.pub(rng.choice(SUBJECTS), payload, headers=headers or None)
        self.at.steps[-1] = (f"publish {len(payload)} {headers}", self.at.steps[-1][1])
        seq = told.get("seq")
        if isinstance(seq, int):
            self.last = max(self.last, seq)
        return told

    def _headers(self, share: float) -> dict[str, str]:
        rng, last = self.rng, self.last
        some = (str(last), str(last), str(last + 1), "0", str(rng.randint(0, last + 1)))
        wanted = (
            (1, "Nats-Msg-Id", (*(f"m{n}" for n in range(8)), "")),
            (1, "Nats-Expected-Last-Sequence", (*some, rng.choice(ODD_NUMBERS))),
            (1, "Nats-Expected-Last-Subject-Sequence", (*some, rng.choice(ODD_NUMBERS))),
            (1, "Nats-Expected-Last-Subject-Sequence-Subject", ("s.a", "s.*", "s.>", "t", "s..a")),
            (0.4, "Nats-Expected-Last-Msg-Id", (*(f"m{n}" for n in range(8)), "")),
            (0.4, "Nats-Expected-Stream", ("S", "S", "T", "")),
            (0.6, "Nats-Rollup", ("sub", "sub", "all", "zzz", "")),
            (0.6, "Nats-TTL", ("1h", "3600", "never", "0", "1ms", "-1", "x", "")),
            (0.1, "Nats-Required-Api-Level", ("0", "1", "99", "x")),
            (0.1, "Nats-Incr", ("1",)),
            (0.1, "Nats-Schedule", ("@every 1s",)),
            (0.1, "Nats-Schedule-Target", ("s.b",)),
            (0.5, "X", ("y",)),
        )
        if self.config["retention"] == "interest":
            wanted = tuple(each for each in wanted if each[1] != "Nats-Rollup")
        return {name: rng.choice(of) for part, name, of in wanted if rng.random() < share * part}

    def delete(self) -> None:
        self.at.api("STREAM.MSG.DELETE.S", {"seq": self.rng.randint(1, self.last + 1)})

    def purge(self) -> None:
        wanted: dict[str, Any] = {"filter": self.rng.choice(("s.a", "s.*", "s.c.>"))}
        wanted |= self.rng.choice(({}, {"keep": 1}, {"seq": self.rng.randint(1, self.last + 1)}))
        self.at.api("STREAM.PURGE.S", wanted)

    def update(self) -> None:
        rng = self.rng
        changes: dict[str, Any] = {
            "max_msgs": rng.choice((-1, 4, 8)),
            "max_msgs_per_subject": rng.choice((-1, 1, 3)),
            "max_msg_size": rng.choice((-1, 100)),
            "discard": rng.choice(("old", "new")),
            "duplicate_window": rng.choice((MINUTE, 2 * MINUTE)),
            "allow_rollup_hdrs": rng.random() < 0.5,
            "allow_atomic": rng.random() < 0.8,
            "republish": rng.choice((None, {"src": "s.>", "dest": "r.>"})),
        }
        self.config.update({key: value for key, value in changes.items() if rng.random() < 0.25})
        self.at.api("STREAM.UPDATE.S", self.config)
