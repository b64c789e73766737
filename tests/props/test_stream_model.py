"""StreamMachine against a small dict model: what is stored, counted, selected and restored."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.base import REWRITTEN
from streamd.machine.digest import MASK64, mix64
from streamd.machine.indexes import lookup
from streamd.machine.indexes.seqset import as_ranges
from streamd.machine.streams import trimming
from streamd.machine.streams.retention import Limits
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block_codec import BlockCodec
from streamd.subjects import Matcher, matches
from tests.unit.machine.box import Blocks, Box

SUBJECTS = [b"a.b", b"a.c", b"a.b.c", b"a.d.e"]
PATTERNS = [b"a.*", b"a.b", b"a.>", b"a.b.>", b"a.d.>", b"a.*.c", b"a.zz", b">"]
BLOCK_BYTES = 300  # so that most stories have sealed blocks
HEADER = b"NATS/1.0\r\nColour: red\r\n\r\n"

subjects = st.sampled_from(SUBJECTS)
msgs = st.tuples(subjects, st.sampled_from([b"", b"", HEADER]), st.binary(max_size=60))


class StreamModel(RuleBasedStateMachine):
    @initialize(
        max_msgs=st.sampled_from([-1, -1, 7]),
        max_bytes=st.sampled_from([-1, -1, 600]),
        per_subject=st.sampled_from([-1, -1, 1, 3]),
        storage=st.sampled_from(["file", "memory"]),
        block_count=st.sampled_from([0, 0, 4]),
    )
    def start(
        self, max_msgs: int, max_bytes: int, per_subject: int, storage: str, block_count: int
    ) -> None:
        self.box = Box(
            block_bytes=BLOCK_BYTES,
            max_msgs=max_msgs,
            max_bytes=max_bytes,
            max_msgs_per_subject=per_subject,
            storage=storage,
            allow_rollup_hdrs=True,
        )
        self.first_config = self.box.machine.config
        self.limits = (max_msgs, max_bytes, per_subject)
        self.live: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.left: dict[int, tuple[bytes, bytes, bytes]] = {}  # in steps, of something under way
        self.last = 0
        self.consumers: list[str] = []
        self.planned: list[Any] | None = None
        self.saved: tuple[bytes, bytes | None, Blocks, int] | None = None
        for _ in range(block_count):  # else few stories come as far as a block that is sealed
            self.store([(subject, b"", bytes(50)) for subject in SUBJECTS])

    def size(self, msg: tuple[bytes, bytes, bytes]) -> int:
        subject, headers, payload = msg
        if self.box.machine.config["storage"] == "memory":
            return 16 + len(subject) + len(headers) + len(payload)
        return 30 + len(subject) + len(payload) + (4 + len(headers) if headers else 0)

    def enforce(self) -> None:
        max_msgs, max_bytes, per_subject = self.limits
        if per_subject > 0:
            for subject in SUBJECTS:
                held = [seq for seq, msg in self.live.items() if msg[0] == subject]
                for seq in held[: max(len(held) - per_subject, 0)]:
                    del self.live[seq]
        while 0 < max_msgs < len(self.live) or (
            0 < max_bytes < sum(map(self.size, self.live.values()))
        ):
            del self.live[min(self.live)]

    @rule(batch=st.lists(msgs, min_size=1, max_size=9))
    def store(self, batch: list[tuple[bytes, bytes, bytes]]) -> None:
        first = self.last + 1
        outcome = self.box.store(*batch)
        assert list(outcome) == list(range(first, first + len(batch)))
        for msg in batch:
            self.last += 1
            self.live[self.last] = msg
        self.enforce()

    @rule(subject=subjects)
    def roll_up_subject(self, subject: bytes) -> None:
        self.last += 1
        assert self.box.put(subject, Rollup="sub") == self.last
        message = self.box.read(self.last)
        assert message is not None
        self.live[self.last] = (subject, message.headers, b"x")
        self.enforce()  # limits first, then what the rollup replaces: as nats-server
        self.live = {
            seq: msg for seq, msg in self.live.items() if msg[0] != subject or seq == self.last
        }

    @rule(subject=subjects)
    def roll_up_all(self, subject: bytes) -> None:
        self.last += 1
        assert self.box.put(subject, Rollup="all") == self.last
        message = self.box.read(self.last)
        self.live[self.last] = (subject, message.headers if message else b"", b"x")
        self.enforce()
        self.live = {seq: msg for seq, msg in self.live.items() if seq == self.last}
        assert bool(self.live) == (message is not None)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(1, self.last + 1))
        outcome = self.box.do(commands.DELETE_MSG, seq, False)
        if seq in self.live:
            assert outcome is True
            del self.live[seq]
        else:
            assert isinstance(outcome, JsError)

    @rule(pattern=st.sampled_from([b"", *PATTERNS]), seq=st.integers(0, 40), keep=st.integers(0, 4))
    def purge(self, pattern: bytes, seq: int, keep: int) -> None:
        if seq and keep:
            keep = 0
        if seq > self.last:
            seq = self.last
        gone = [
            each
            for each, msg in self.live.items()
            if (not pattern or matches(pattern, msg[0])) and (not seq or each < seq)
        ]
        if keep:
            gone = gone[: max(len(gone) - keep, 0)]
        assert self.box.do(commands.PURGE, pattern, seq, keep) == len(gone)
        for each in gone:
            del self.live[each]

    @rule(
        pattern=st.sampled_from([b"", *PATTERNS]),
        seq=st.integers(0, 40),
        keep=st.integers(0, 4),
        most=st.integers(1, 3),
        rows=st.integers(1, 9),
    )
    def purge_in_steps(self, pattern: bytes, seq: int, keep: int, most: int, rows: int) -> None:
        """What the steps find, and then the command, is what the command alone would."""
        if seq and keep:
            keep = 0
        search = trimming.Purged(self.box.machine.index, pattern, min(seq, self.last), keep)
        gone: list[int] = []
        for _ in range(1000):
            found = search.step(most, rows)
            assert len(found) <= most and set(found) <= set(self.live)
            gone += found
            if search.is_done:
                break
            self.remove_now(found)
        assert search.is_done
        self.put_back()
        wanted = [
            each
            for each, msg in sorted(self.live.items())
            if (not pattern or matches(pattern, msg[0])) and (not seq or each < min(seq, self.last))
        ]
        assert gone == wanted[: max(len(wanted) - keep, 0)]
        self.box.do(commands.PURGE, pattern, min(seq, self.last), keep)
        for each in gone:
            del self.live[each]

    def put_back(self) -> None:
        """Have the model know of what left in steps."""
        self.live = dict(sorted({**self.live, **self.left}.items()))
        self.left.clear()

    def remove_now(self, seqs: list[int]) -> None:
        ranges = [seq for pair in as_ranges(seqs) for seq in pair]
        assert self.box.do(commands.REMOVE, ranges) == len(seqs)
        for seq in seqs:
            self.left[seq] = self.live.pop(seq)

    @rule(
        max_msgs=st.sampled_from([-1, 3, 7]),
        max_bytes=st.sampled_from([-1, 300, 600]),
        per_subject=st.sampled_from([-1, 1, 2, 3]),
        most=st.integers(0, 3),
        rows=st.integers(1, 9),
    )
    def configure(
        self, max_msgs: int, max_bytes: int, per_subject: int, most: int, rows: int
    ) -> None:
        """New limits, with steps before them (`most` > 0) or without."""
        machine = self.box.machine
        self.limits = (max_msgs, max_bytes, per_subject)
        changes = {
            "max_msgs": max_msgs,
            "max_bytes": max_bytes,
            "max_msgs_per_subject": per_subject,
        }
        before, after = machine.limits, Limits(machine.config | changes)
        searches = trimming.reconfigured(machine.index, before, after, ())
        search = trimming.OneAfterAnother(searches)
        for _ in range(1000):
            if search.is_done or not most:
                break
            self.remove_now(search.step(most, rows))
        assert search.is_done or not most
        self.put_back()
        self.enforce()
        if most:
            assert self.box.live() == sorted(self.live)
        self.box.config(**changes)

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        up_to = data.draw(st.integers(0, self.last))
        named = data.draw(st.lists(st.integers(1, self.last + 1), max_size=3))
        self.box.do(commands.EXPIRE, up_to, named)
        self.live = {seq: msg for seq, msg in self.live.items() if seq > up_to and seq not in named}

    @precondition(lambda self: len(self.box.sealed()) > 0)
    @rule(data=st.data(), is_at_once=st.booleans())
    def rewrite(self, data: st.DataObject, is_at_once: bool) -> None:
        """At once, or what was planned some commands ago: meanwhile blocks may have died, been
        rewritten, or hold less."""
        sealed = self.box.sealed()
        if is_at_once or self.planned is None:
            first = data.draw(st.integers(0, len(sealed) - 1))
            last = data.draw(st.integers(first, len(sealed) - 1))
            self.planned = self.box.plan_rewrite(sealed[first : last + 1])
            if not is_at_once:
                return
        block_nos = self.planned[0]
        is_there = all(block_no in sealed for block_no in block_nos)
        assert self.box.do(commands.REWRITE, *self.planned) is is_there
        if is_there:
            assert not set(block_nos) & set(self.box.sealed())
            made = self.box.machine.applied + REWRITTEN
            assert made in self.box.sealed()
            assert len(self.box.blocks.files[made]) == 64 + len(self.planned[2])

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(filter_subject=st.sampled_from([b"", *PATTERNS]))
    def add_consumer(self, filter_subject: bytes) -> None:
        name = f"c{len(self.consumers)}"
        self.box.consumer(name, filter_subject=filter_subject.decode())
        self.consumers.append(name)

    @rule(with_index=st.booleans())
    def save(self, with_index: bool) -> None:
        machine = self.box.machine
        cache = machine.index_db() if with_index else None
        self.saved = machine.snapshot(), cache, deepcopy(self.box.blocks), len(self.box.log)

    @rule(with_index=st.booleans())
    def restore(self, with_index: bool) -> None:
        before = self.box.machine
        snapshot = before.snapshot()
        after = self.box.restored(with_index=with_index)
        assert after.snapshot() == snapshot
        assert after.tail == before.tail
        self.box.machine = after

    @invariant()
    def same_messages(self) -> None:
        if not hasattr(self, "box"):
            return
        index = self.box.machine.index
        assert self.box.live() == sorted(self.live)
        assert index.count == len(self.live)
        assert index.last_seq == self.last
        assert index.first_seq == (min(self.live) if self.live else self.last + 1)
        assert index.live.bytes == sum(map(self.size, self.live.values()))
        gone = {s for a, b in index.live.deleted.ranges() for s in range(a, b + 1)}
        assert gone == set(range(index.first_seq, self.last + 1)) - set(self.live)
        total = 0
        for seq, msg in self.live.items():
            found = self.box.read(seq)
            assert found is not None
            assert (found.subject, found.headers, found.payload) == msg
            assert index.locations.subject_at(seq) == msg[0]
            assert index.locations.ts_at(seq) == found.ts
            block_no, offset, length = index.locations.locate(seq)[1:]  # type: ignore[index]
            crc = self.box.blocks.files[block_no][offset + length - 4 : offset + length]
            total += mix64(seq, int.from_bytes(crc, "little"))
        assert index.live.digest == total & MASK64
        assert sum(block.digest for block in index.blocks) & MASK64 == index.live.digest
        assert sum(block.live for block in index.blocks) == index.count
        assert set(self.box.blocks.footers) == {b.block_no for b in index.blocks if b.is_sealed}

    @invariant()
    def same_answers(self) -> None:
        if not hasattr(self, "box"):
            return
        index = self.box.machine.index
        middle = (index.first_seq + self.last) // 2
        for pattern in PATTERNS:
            matcher = Matcher([pattern])
            mine = [seq for seq, msg in sorted(self.live.items()) if matches(pattern, msg[0])]
            assert [loc[0] for loc in index.lookup.select(0, matcher, 1 << 30, 1 << 30)[0]] == mine
            assert self.in_steps(matcher) == mine
            assert index.lookup.last_match(matcher) == (mine[-1] if mine else 0)
            before = [seq for seq in mine if seq < middle]
            assert index.lookup.last_match(matcher, before=middle) == (before[-1] if before else 0)
            rest = [seq for seq in mine if seq >= middle]
            assert index.lookup.count_from(middle, matcher) == len(rest)
            assert index.lookup.next_match(middle, matcher) == (rest[0] if rest else 0)
            lasts = {self.live[seq][0]: seq for seq in mine}
            assert index.lookup.last_seqs(matcher) == sorted(lasts.values())
            with patch.object(lookup, "NEAR_MSGS", 1):
                assert index.lookup.next_match(middle, matcher) == (rest[0] if rest else 0)
        counts = index.lookup.counts_matching(None)
        rows = index.lookup.subjects_matching(None)
        table = {name: (first, last, counts[name]) for name, first, last in rows}
        mine_table: dict[bytes, Any] = {}
        for seq, msg in sorted(self.live.items()):
            first, _, n = mine_table.get(msg[0], (seq, 0, 0))
            mine_table[msg[0]] = (first, seq, n + 1)
        assert table == mine_table

    def in_steps(self, matcher: Matcher) -> list[int]:
        index = self.box.machine.index
        found: list[int] = []
        seq = 0
        while seq <= index.last_seq:
            locs, after = index.lookup.select(seq, matcher, 2, 3)
            assert after > seq or not index.count
            found += [loc[0] for loc in locs]
            seq = max(after, seq + 1)
        return found

    @invariant()
    def consumers_count_right(self) -> None:
        if not hasattr(self, "box"):
            return
        for consumer in self.box.machine.consumers.values():
            matcher = consumer.matcher
            expected = [
                seq
                for seq, msg in self.live.items()
                if seq >= consumer.next_sseq and (matcher is None or matcher.matches(msg[0]))
            ]
            assert consumer.num_pending == len(expected), consumer.name

    def teardown(self) -> None:
        if not hasattr(self, "box"):
            return
        replica = Box(block_bytes=BLOCK_BYTES, **self.first_config)
        for data in self.box.log:
            replica.apply(data)
        assert replica.machine.digest == self.box.machine.digest
        assert replica.blocks.files == self.box.blocks.files
        assert replica.blocks.footers == self.box.blocks.footers
        assert replica.machine.snapshot() == self.box.machine.snapshot()
        if self.saved is not None:
            self.replay(*self.saved)

    def replay(self, state: bytes, cache: bytes | None, blocks: Blocks, position: int) -> None:
        """A crash after the snapshot: its blocks, its state and the rest of the log."""
        again = Box(block_bytes=BLOCK_BYTES)
        again.blocks = blocks
        again.machine = StreamMachine.restore(
            state,
            cache,
            codec=BlockCodec(),
            columns=blocks,
            scan=blocks.scan,
            block_bytes=BLOCK_BYTES,
        )
        for data in self.box.log[position:]:
            again.apply(data)
        assert again.blocks.files == self.box.blocks.files
        assert again.machine.snapshot() == self.box.machine.snapshot()


StreamModel.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStreamModel = StreamModel.TestCase
