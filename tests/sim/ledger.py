"""What all clients were promised, and what follows from it for what they see."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from streamd.types import Msg, Seq, Uid
from tests.sim.world import World, need

if TYPE_CHECKING:
    from tests.sim.checkers import Checkers, Truth


LONG_NS = 3600 * 10**9
Key = tuple[Uid, str, Uid, int]
"""A consumer from one beginning to the next: stream, name, its uid, how often it was reset."""


class Ledger:
    """Promises of one run. Streams in memory whose copies are all gone are forgiven."""

    def __init__(self, world: World, checkers: Checkers) -> None:
        self.world = world
        self.checkers = checkers
        self.acked: dict[Uid, dict[Seq, Msg]] = {}
        self.last_acked: dict[Uid, Seq] = {}
        self.double_acked: dict[Key, set[Seq]] = {}
        self.acks_asked: dict[Key, set[Seq]] = {}  # confirmed or not
        self.asked: dict[tuple[Uid, str], set[Seq]] = {}  # whatever the consumer was then
        self.terminated: set[tuple[Uid, str, Seq]] = set()
        self.refused: set[bytes] = set()  # bodies that were definitely not stored
        self.ids: dict[tuple[Uid, bytes], Seq] = {}  # message id -> where it is
        self.bodies = count(1)
        self.has_deletions = False  # of consumers

    def _truth(self, uid: Uid) -> Truth | None:
        """What is committed, unless nothing can be said of it."""
        return None if uid in self.checkers.forfeited else self.checkers.truths.get(uid)

    def on_ack(self, uid: Uid, seq: Seq, msg: Msg) -> None:
        """The cluster said that `msg` is stored as `seq`."""
        self.world.counts["acked"] += 1
        if uid in self.checkers.forfeited:
            return
        acked = self.acked.setdefault(uid, {})
        known = acked.get(seq)
        need(known is None or known == msg, f"stream {uid}: seq {seq} acked twice: {known} {msg}")
        truth = self._truth(uid)
        stored = truth.content.get(seq) if truth is not None else None
        need(stored == msg, f"stream {uid}: {msg[2][:20]!r} acked as {seq}, which holds {stored}")
        acked[seq] = msg
        self.last_acked[uid] = max(seq, self.last_acked.get(uid, 0))

    def on_id(self, uid: Uid, msg_id: bytes, seq: Seq) -> None:
        """A message with this id is stored as `seq`."""
        window_ns = self.checkers.assets[uid].created_config["duplicate_window"]
        if uid not in self.checkers.forfeited and window_ns > LONG_NS:
            known = self.ids.setdefault((uid, msg_id), seq)
            need(known == seq, f"id {msg_id!r} is stored as {known} and as {seq}")

    def check_read(self, uid: Uid, last: Seq, acked: Seq) -> None:
        """A linearizable read found `last`; `acked` was acked before it began."""
        if uid not in self.checkers.forfeited:
            need(last >= acked, f"a read of stream {uid} sees {last}, acked was {acked}")
            self.world.counts["reads"] += 1

    def check_message(self, uid: Uid, seq: Seq, found: Msg) -> None:
        """Somebody read this message."""
        truth = self._truth(uid)
        if truth is not None:
            stored = truth.content.get(seq)
            need(found == stored, f"stream {uid}: {seq} is read as {found}, it holds {stored}")
            self.world.counts["messages got"] += 1

    def check_payload(self, uid: Uid, seq: Seq, payload: bytes) -> None:
        """Somebody read a message of this payload."""
        truth = self._truth(uid)
        if truth is not None:
            stored = truth.content.get(seq)
            need(
                stored is not None and stored[2] == payload,
                f"stream {uid}: {seq} is read as {payload[:20]!r}, it holds {stored}",
            )
            self.world.counts["messages got directly"] += 1

    def check_gone(self, uid: Uid, seq: Seq) -> None:
        """A linearizable read says that there is no such message (any more)."""
        truth = self._truth(uid)
        if truth is not None and seq in self.acked.get(uid, ()):
            is_live = truth.machine.index.locations.locate(seq) is not None
            need(not is_live, f"stream {uid}: acked seq {seq} is said not to be there")
            self.world.counts["messages gone"] += 1

    def key(self, uid: Uid, consumer: str) -> Key:
        """That consumer as it is committed now."""
        truth = self.checkers.truths.get(uid)
        held = truth.machine.consumers.get(consumer) if truth is not None else None
        return (uid, consumer, held.uid, held.resets) if held is not None else (uid, consumer, 0, 0)

    def on_ack_asked(
        self, uid: Uid, consumer: str, seq: Seq, *, is_terminating: bool = False
    ) -> None:
        """A client acks, or terminates, what a consumer gave it."""
        if is_terminating:
            self.terminated.add((uid, consumer, seq))
        self.acks_asked.setdefault(self.key(uid, consumer), set()).add(seq)
        self.asked.setdefault((uid, consumer), set()).add(seq)

    def on_double_ack(self, key: Key, seq: Seq) -> None:
        """The cluster confirmed an ack, asked for when the consumer was `key`."""
        self.world.counts["double acked"] += 1
        if key[2] and self.key(key[0], key[1]) == key:  # else: did the one or the other take it?
            self.double_acked.setdefault(key, set()).add(seq)

    def examine(self, uid: Uid) -> None:
        """At the end: every promise about this stream is kept."""
        truth = self._truth(uid)
        if truth is None:
            return
        if truth.owed is not None:
            for name, acked in truth.owed.acked.items():
                odd = sorted(acked - self.asked.get((uid, name), set()))
                need(not odd, f"{name} of {uid} has acks of {odd[:5]}, which nobody acked")
        for seq, msg in self.acked.get(uid, {}).items():
            need(truth.content.get(seq) == msg, f"stream {uid}: acked seq {seq} is lost")
        bodies = {msg[2] for msg in truth.content.values()}
        for body in sorted(self.refused & bodies):
            need(False, f"stream {uid} holds {body[:20]!r}, which was refused")
        for key, seqs in sorted(self.double_acked.items()):
            of, name, *_ = key
            if of != uid or (self.has_deletions and self.key(uid, name) != key):
                continue
            consumer = truth.machine.consumers.get(name)
            need(consumer is not None, f"consumer {name} of {uid} is lost")
            for seq in sorted(seqs):
                need(seq not in consumer.pending, f"stream {uid}: {name}'s ack of {seq} is lost")
