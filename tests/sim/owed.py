"""Who still wants which message: the log folded once more, by sets, where retention depends on it.

A stream that keeps what somebody wants must have exactly that: nothing that is wanted leaves by an
ack or with a consumer, and nothing stays that nobody wants, but for what the leader still sweeps.
"""

from __future__ import annotations

from typing import Any

from streamd.machine import commands
from streamd.subjects import matches
from streamd.types import Entry, Seq, Uid
from tests.sim.world import need

# What these take was wanted by somebody, maybe; REMOVE may be a part of one of them.
_TAKING = frozenset(
    (
        commands.STORE, commands.STORE_BATCH, commands.PURGE, commands.DELETE_MSG, commands.EXPIRE,
        commands.CONFIGURE, commands.REMOVE,
    )
)  # fmt: skip


class _Wants:
    """One consumer: what it has yet to get, and what it has got and not acked."""

    def __init__(self, consumer: Any, live: set[Seq]) -> None:
        self.configure(consumer.config)
        self.begin(consumer, live)

    def configure(self, config: dict[str, Any]) -> None:
        single = config.get("filter_subject")
        self.filters = [single] if single else list(config.get("filter_subjects") or ())
        self.is_ack_all = config["ack_policy"] == "all"
        self._known: dict[bytes, bool] = {}

    def begin(self, consumer: Any, live: set[Seq]) -> None:
        # The last of each subject, found when it began; another filter changes nothing about them.
        initial = self.initial = set(consumer.remaining.initial)
        self.start: Seq = consumer.next_sseq
        self.owing = {seq for seq in live if seq >= self.start or seq in initial}
        self.pending: set[Seq] = set()
        self.dead: set[Seq] = set()
        self.delivered: Seq = 0
        self.early: set[Seq] = set()  # stored before the seq at which it is to begin

    def takes(self, subject: bytes) -> bool:
        found = self._known.get(subject)
        if found is None:
            filters = self.filters
            found = not filters or any(matches(each.encode(), subject) for each in filters)
            self._known[subject] = found
        return found

    def passed_over(self, first: Seq) -> list[Seq]:
        """What is owed before `first`, which is delivered now."""
        return [seq for seq in sorted(self.owing) if self.delivered < seq < first]

    def deliver(self, first: Seq, last: Seq) -> None:
        first = max(first, self.delivered + 1)
        self.pending.update(seq for seq in range(first, last + 1) if seq in self.owing)
        self.pass_to(last)

    def pass_to(self, last: Seq) -> None:
        self.delivered = max(self.delivered, last)
        held = self.pending | self.dead
        self.owing = {seq for seq in self.owing if seq > last or seq in held}

    def ack(self, seqs: list[Seq]) -> set[Seq]:
        """Returns what it does not want any more."""
        if self.is_ack_all:
            most = max(seqs, default=0)
            held = self.pending | self.dead
            acked = {seq for seq in held if seq <= most <= self.delivered}
        else:
            acked = {seq for seq in seqs if seq in self.pending or seq in self.dead}
        self.drop(acked)
        return acked

    def drop(self, seqs: set[Seq]) -> None:
        self.owing -= seqs
        self.pending -= seqs
        self.dead -= seqs

    def keep(self, live: set[Seq], consumer: Any) -> None:
        """Messages were purged; a position may have gone on over what does not match it."""
        self.owing &= live
        self.pending &= live
        self.dead &= live
        held = self.pending | self.dead | set(consumer.remaining.initial)
        self.owing = {s for s in self.owing if s >= consumer.next_sseq or s in held}
        self.delivered = max(self.delivered, consumer.delivered_sseq)


class Owed:
    """Beside one stream's machine: tell it of each entry that was applied there."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._wants: dict[Uid, _Wants] = {}
        self._live: set[Seq] = set()
        self._subjects: dict[Seq, bytes] = {}
        self.acked: dict[str, set[Seq]] = {}  # by consumer, unless an ack is of all before it

    def note(self, entry: Entry) -> None:
        """Raises Violation."""
        command = entry.command
        if command is None:
            return
        machine, kind = self._machine, command[0]
        index = machine.index
        if kind in (commands.CHECKPOINT, commands.REWRITE, commands.PROGRESS, commands.NAKED):
            return
        live = set(index.live.seqs(index.first_seq, index.last_seq))
        gone, new = self._live - live, live - self._live
        self._live = live
        for seq in new:
            self._subjects[seq] = index.locations.subject_at(seq)
        for wants in self._wants.values():
            wants.owing.update(seq for seq in new if seq >= wants.start)
            wants.early.update(seq for seq in new if seq < wants.start)
        acked = self._follow(entry.index, command)
        retention = machine.config["retention"]
        if retention == "workqueue":
            self._check_queue(kind, gone, acked)
        elif retention == "interest":
            self._check_interest(kind, gone)
        for wants in self._wants.values():
            wants.drop(gone)
        for seq in gone:
            del self._subjects[seq]

    def _follow(self, index: int, command: list[Any]) -> set[Seq]:
        """Returns what was acked."""
        machine, kind = self._machine, command[0]
        if kind in (commands.CREATE_CONSUMER, commands.RESET_CONSUMER):
            consumer = machine.consumers.get(command[2])
            if consumer is None:
                return set()
            wants = self._wants.get(consumer.uid)
            if wants is None:
                self._wants[consumer.uid] = _Wants(consumer, self._live)
            elif kind == commands.CREATE_CONSUMER:
                wants.configure(consumer.config)
            elif not consumer.delivered_cseq and not consumer.pending:
                wants.begin(consumer, self._live)
                wants.delivered = consumer.delivered_sseq
        elif kind == commands.DELETE_CONSUMER:
            for uid in [uid for uid in self._wants if uid not in machine.consumers_by_uid]:
                del self._wants[uid]
        elif kind == commands.PURGE:
            for uid, wants in self._wants.items():
                wants.keep(self._live, machine.consumers_by_uid[uid])
        elif command[0] in _OF_CONSUMER and command[2] in self._wants:
            return self._follow_one(self._wants[command[2]], command)
        return set()

    def _follow_one(self, wants: _Wants, command: list[Any]) -> set[Seq]:
        kind, consumer = command[0], self._machine.consumers_by_uid[command[2]]
        if kind == commands.DELIVERED:
            if command[4] == consumer.resets:
                for first, last, _, is_redelivery in command[3]:
                    if not is_redelivery:
                        if command[5:] == ([consumer.refilters] if consumer.refilters else []):
                            self._check_delivery(wants, first, last)
                        wants.deliver(first, last)
        elif kind == commands.POSITION:
            if command[5] == consumer.resets:
                wants.pass_to(command[3])
        elif kind == commands.ACKED:
            acked = wants.ack(command[3])
            if not wants.is_ack_all:
                self.acked.setdefault(consumer.name, set()).update(acked)
            return acked
        elif kind == commands.TERMED:
            termed = {seq for seq, _ in command[3] if seq in wants.pending}
            wants.drop(termed)
            self.acked.setdefault(consumer.name, set()).update(termed)
            return termed
        elif kind == commands.DEAD:
            dead = wants.pending.intersection(command[3])
            wants.pending -= dead
            wants.dead |= dead
        return set()

    def _check_delivery(self, wants: _Wants, first: Seq, last: Seq) -> None:
        subjects = self._subjects
        left = [seq for seq in wants.passed_over(first) if wants.takes(subjects[seq])]
        need(not left, f"{self._who()}: {left[:5]} passed over, {first} delivered")
        others = [
            seq
            for seq in range(first, last + 1)
            if seq in self._live and not (wants.takes(subjects[seq]) or seq in wants.initial)
        ]
        need(not others, f"{self._who()}: {others[:5]} delivered, though it is not asked for")

    def _wanted(self, seq: Seq) -> bool:
        subject = self._subjects[seq]
        return any(seq in each.owing and each.takes(subject) for each in self._wants.values())

    def _check_queue(self, kind: int, gone: set[Seq], acked: set[Seq]) -> None:
        stay = acked & self._live
        need(not stay, f"{self._who()}: acked {sorted(stay)[:5]} and still there")
        if kind not in _TAKING:
            lost = gone - acked
            need(not lost, f"{self._who()}: {sorted(lost)[:5]} left, acked by nobody, by {kind}")

    def _check_interest(self, kind: int, gone: set[Seq]) -> None:
        if kind not in _TAKING:
            lost = [seq for seq in gone if self._wanted(seq)]
            need(not lost, f"{self._who()}: {sorted(lost)[:5]} left by {kind}, and was wanted")

    def unwanted(self) -> list[Seq]:
        """What nobody wants, in a stream that keeps what somebody does. What was stored for a
        consumer that is to begin later stays, as it does on other servers."""
        if self._machine.config["retention"] != "interest":
            return []
        early = {seq for each in self._wants.values() for seq in each.early}
        return [seq for seq in sorted(self._live - early) if not self._wanted(seq)]

    def differences(self) -> str:
        """What consumers wait for, if that is not what they say."""
        for uid, wants in self._wants.items():
            consumer = self._machine.consumers_by_uid[uid]
            if not consumer.is_ack_none and set(consumer.pending) != wants.pending:
                have = sorted(set(consumer.pending) ^ wants.pending)
                return f"{self._who()}: {consumer.name} waits for other acks: {have[:5]}"
            index, matcher = self._machine.index, consumer.matcher
            left = len(consumer.remaining.initial) - consumer.remaining.initial_at
            left += index.lookup.count_from(consumer.next_sseq, matcher)
            if left != consumer.num_pending:
                return f"{self._who()}: {consumer.name} has {consumer.num_pending} left, not {left}"
        return ""

    def _who(self) -> str:
        return f"stream {self._machine.name} ({self._machine.uid}) at {self._machine.applied}"


_OF_CONSUMER = frozenset(
    (
        commands.DELIVERED, commands.POSITION, commands.ACKED, commands.TERMED, commands.DEAD,
    )
)  # fmt: skip
