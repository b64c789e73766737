"""Interest and workqueue streams: a message is stored exactly as long as somebody needs it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamd.machine import commands
from streamd.machine.indexes.seqset import as_ranges
from streamd.machine.streams.trimming import Unwanted
from streamd.subjects import matches
from tests.unit.machine.box import Box

SUBJECTS = [b"a.b", b"a.c", b"a.b.c"]
FILTERS = ["", "a.b", "a.*", "a.c"]


class InterestModel(RuleBasedStateMachine):
    """The model holds, per message, the names of the consumers that have not acked it."""

    @initialize(retention=st.sampled_from(["interest", "workqueue"]))
    def start(self, retention: str) -> None:
        self.box = Box(block_bytes=600, retention=retention)
        self.is_workqueue = retention == "workqueue"
        self.needs: dict[int, set[str]] = {}
        self.subject: dict[int, bytes] = {}
        self.filters: dict[str, str] = {}
        self.made = 0

    def matching(self, subject: bytes) -> set[str]:
        return {
            name
            for name, pattern in self.filters.items()
            if not pattern or matches(pattern.encode(), subject)
        }

    @rule(names=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=5))
    def store(self, names: list[bytes]) -> None:
        first = self.box.machine.index.last_seq + 1
        outcome = self.box.store(*[(name, b"", b"x") for name in names])
        assert list(outcome) == list(range(first, first + len(names)))
        for seq, name in enumerate(names, first):
            self.subject[seq] = name
            needed = self.matching(name)
            if needed or self.is_workqueue:
                self.needs[seq] = needed

    @precondition(lambda self: len(self.filters) < 3)
    @rule(pattern=st.sampled_from(FILTERS))
    def add_consumer(self, pattern: str) -> None:
        self.made += 1
        name = f"c{self.made}"
        made = self.box.consumer(name, filter_subject=pattern)
        if not hasattr(made, "uid"):
            assert self.is_workqueue  # refused: overlaps another
            return
        self.filters[name] = pattern
        for seq, needed in self.needs.items():
            if name in self.matching(self.subject[seq]):
                needed.add(name)

    @precondition(lambda self: self.filters)
    @rule(data=st.data(), in_steps=st.booleans())
    def remove_consumer(self, data: st.DataObject, in_steps: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.filters)))
        assert self.box.do(commands.DELETE_CONSUMER, name, 0, "", in_steps) is True
        if in_steps and not self.is_workqueue:
            search = Unwanted(self.box.machine.index, self.box.machine.interest())
            most, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
            while not search.is_done:
                ranges = [seq for pair in as_ranges(search.step(most, rows)) for seq in pair]
                self.box.do(commands.REMOVE, ranges)
        del self.filters[name]
        for seq, needed in list(self.needs.items()):
            needed.discard(name)
            if not needed and not self.is_workqueue:
                del self.needs[seq]

    @precondition(lambda self: self.filters)
    @rule(data=st.data(), count=st.integers(1, 4))
    def deliver(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.filters)))
        consumer = self.box.machine.consumers[name]
        locs, _ = self.box.machine.index.lookup.select(
            consumer.next_sseq, consumer.matcher, count, 1 << 30
        )
        cseq = consumer.delivered_cseq
        items = [(loc[0], loc[0], cseq + at + 1, False) for at, loc in enumerate(locs)]
        self.box.do(commands.DELIVERED, consumer.uid, items, consumer.resets)

    @precondition(lambda self: self.filters)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.filters)))
        consumer = self.box.machine.consumers[name]
        if not consumer.pending:
            return
        seqs = data.draw(st.lists(st.sampled_from(list(consumer.pending)), unique=True))
        self.box.do(commands.ACKED, consumer.uid, seqs)
        for seq in seqs:
            self.needs[seq].discard(name)
            if not self.needs[seq] or self.is_workqueue:
                del self.needs[seq]

    @rule(seq=st.integers(1, 20))
    def delete(self, seq: int) -> None:
        self.box.do(commands.DELETE_MSG, seq, False)
        self.needs.pop(seq, None)

    @rule(with_index=st.booleans())
    def restore(self, with_index: bool) -> None:
        before = self.box.machine.snapshot()
        self.box.machine = self.box.restored(with_index=with_index)
        assert self.box.machine.snapshot() == before

    @invariant()
    def stored_is_needed(self) -> None:
        if not hasattr(self, "box"):
            return
        assert self.box.live() == sorted(self.needs)
        if not self.is_workqueue:
            machine = self.box.machine
            assert Unwanted(machine.index, machine.interest()).step() == []
        for consumer in self.box.machine.consumers.values():
            assert consumer.floor_sseq <= consumer.delivered_sseq
            assert set(consumer.pending) <= set(self.needs)
            expected = sum(
                seq >= consumer.next_sseq and consumer.name in self.matching(self.subject[seq])
                for seq in self.needs
            )
            assert consumer.num_pending == expected


InterestModel.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestInterestModel = InterestModel.TestCase
