"""Log of one group, as its core sees it: a tail in memory, the rest through `LogReader`.

Holds entries that storage has not reported yet, those not yet emitted as committed, and (for a
group with peers) a trailing window for slow followers. Of every other entry it knows the term,
by runs, and reads the rest when asked. Does not write anything.

Cursors, all inclusive: base <= emitted <= min(commit, stable), stable <= written <= last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import Protocol

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.limits import (
    RAFT_ENTRY_MEMORY_BYTES,
    RAFT_LOAD_BYTES,
    RAFT_READ_BYTES,
    RAFT_TRAILING_BYTES,
    RAFT_TRAILING_ENTRIES,
    RAFT_WINDOW_STEP_BYTES,
    RAFT_WINDOWS_BYTES,
)
from streamd.memory_share import MemoryShare
from streamd.raft.history import History, LogPosition
from streamd.raft.membership import Membership, decode, is_membership
from streamd.types import Entry, Index, LogState, NodeId, Term

pack_identity = Struct("<IQQ").pack  # previous chain, term, index


class LogReader(Protocol):
    """Durable entries of this group, wherever the shell keeps them."""

    def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        """Entries lo <= index < hi, without gaps; at least one, then up to `max_bytes`."""


def next_chain(previous: int, term: Term, index: Index, data: bytes) -> int:
    """The hash chain: equal chains at an index mean equal logs up to it."""
    chain: int = crc32c(data, crc32c(pack_identity(previous, term, index)))
    return chain


class RaftLog:
    """Entries of one log, as the module says. The core moves `commit` and the cursors."""

    __slots__ = (
        "_first",
        "_first_prev",
        "_history",
        "_memory_bytes",
        "_noted_bytes",
        "_reader",
        "_windows",
        "base",
        "commit",
        "emit_to",
        "emitted",
        "entries",
        "is_in_memory",
        "is_sole",
        "last_chain",
        "last_index",
        "last_term",
        "memberships",
        "needed",
        "snapshot",
        "stable",
        "truncated_from",
        "written",
    )

    def __init__(
        self,
        state: LogState,
        reader: LogReader,
        *,
        applied: Index,
        membership: Membership,
        windows: MemoryShare | None = None,
        history: Iterable[LogPosition] = (),
    ) -> None:
        self._reader = reader
        self._windows = windows or MemoryShare(RAFT_WINDOWS_BYTES)
        self._noted_bytes = 0  # by the windows, of what is held; 0: nothing of this log is
        base = state.first_index - 1
        if state.last_index < applied:
            raise CorruptionError(
                f"the log ends at index {state.last_index}, before the snapshot at {applied}"
            )
        if base > applied:
            raise CorruptionError(
                f"the log starts at index {state.first_index}, the snapshot ends at {applied}"
            )
        # The entry before the first that can be had; peers that need it need a snapshot.
        self.base = LogPosition(base, state.prev_term, state.prev_chain)
        self.last_index: Index = base
        self.last_term: Term = state.prev_term
        self.last_chain = state.prev_chain
        # entries[i].index == _first + i; _first_prev is the identity of the entry before.
        self.entries: list[Entry] = []
        self._first: Index = base + 1
        self._first_prev = (state.prev_term, state.prev_chain)
        self._memory_bytes = 0
        self._history = History(history, self.base)
        # Memberships by the index that brought each; the first is the snapshot's.
        self.memberships: list[tuple[Index, Membership]] = [(applied, membership)]
        self.needed = 0  # of each membership: see there
        self.is_sole = False
        self.is_in_memory = False  # what is dropped before a snapshot has it can't be read back
        self.truncated_from: Index = 0  # lowest index voided since the last write; 0: none
        self.snapshot = LogPosition(applied, state.prev_term, state.prev_chain)
        self._load(state.last_index, applied)
        if base < applied:
            self._raise_base()  # the reader has it still, and may release it at any time
        self.written = self.stable = self.last_index
        self.emitted: Index = applied
        self.emit_to: Index = applied  # up to here entries may be emitted: committed and stable
        self.commit: Index = max(applied, min(state.hard_state.commit, self.last_index))

    # --- facts -----------------------------------------------------------------------------------

    @property
    def base_index(self) -> Index:
        return self.base.index

    @property
    def base_term(self) -> Term:
        return self.base.term

    @property
    def base_chain(self) -> int:
        return self.base.chain

    @property
    def snapshot_index(self) -> Index:
        return self.snapshot.index

    # --- questions ------------------------------------------------------------------------------

    def term_at(self, index: Index) -> Term:
        """The term of the entry at `index`, base_index <= index <= last_index. Never reads."""
        assert self.base.index <= index <= self.last_index, (
            index,
            self.base.index,
            self.last_index,
        )
        if index == self.base.index:
            return self.base.term
        return self._history.run_terms[bisect_right(self._history.run_starts, index) - 1]

    def entry_id(self, index: Index) -> tuple[Term, int]:
        """(term, chain) of the entry at `index`, base_index <= index <= last_index."""
        if index == self.last_index:
            return self.last_term, self.last_chain
        if index == self.base.index:
            return self.base.term, self.base.chain
        first = self._first
        if index >= first:
            entry = self.entries[index - first]
            return entry.term, entry.chain
        if index == first - 1:
            return self._first_prev
        entry = self._read(index, index + 1, 0)[0]
        return entry.term, entry.chain

    def last_with_term_up_to(self, index: Index, term: Term) -> Index:
        """The highest index <= `index` whose term is <= `term`; base_index if there is none."""
        index = min(index, self.last_index)
        while index > self.base.index and self.term_at(index) > term:
            run = bisect_right(self._history.run_starts, index) - 1
            index = self._history.run_starts[run] - 1
        return max(index, self.base.index)

    def history(self, last: Index) -> list[LogPosition]:
        """Return positions of this log up to `last`, as far back as they are known: snapshots say
        those of what they cover."""
        return self._history.up_to(last)

    def slice(self, lo: Index, *, last: Index, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `lo` to `last` inclusive, bounded; at least one if there is one."""
        if lo > last:
            return []
        first = self._first
        if lo < first:
            return self._read(lo, min(last + 1, first, lo + max_entries), max_bytes)
        start = lo - first
        stop = min(start + max_entries, last + 1 - first)
        memory = self.entries
        size = 0
        position = start
        for position in range(start, stop):
            size += len(memory[position].data)
            if size > max_bytes and position > start:
                return memory[start:position]
        return memory[start:stop]

    def unwritten(self) -> list[Entry]:
        """Entries that no write has carried yet."""
        start = self.written + 1 - self._first
        return self.entries[start:] if start else self.entries[:]

    @property
    def membership(self) -> Membership:
        """The one in force: the last appended, committed or not."""
        return self.memberships[-1][1]

    @property
    def membership_index(self) -> Index:
        """Which entry brought the membership in force."""
        return self.memberships[-1][0]

    def membership_at(self, index: Index) -> Membership:
        """Return the membership in force at `index`; a snapshot at `index` must hold it."""
        found = self._in_force_at(index)
        return found._replace(needed=0) if found.needed else found

    def _in_force_at(self, index: Index) -> Membership:
        found = self.memberships[0][1]
        for since, membership in self.memberships:
            if since > index:
                break
            found = membership
        return found

    def take_for_enough(self, needed: int) -> None:
        """Set `needed` of the memberships here, and of those to come; 0: none but a majority."""
        self.needed = needed
        self.memberships = [
            (since, membership._replace(needed=needed)) for since, membership in self.memberships
        ]

    def open_memberships(self) -> list[Membership]:
        """The last one known to be committed, and all after it."""
        later = [members for since, members in self.memberships if since > self.commit]
        return [self.membership_at(self.commit), *later]

    def has_vote(self, node_id: NodeId) -> bool:
        """True if `node_id` votes whichever membership turns out to be in force.

        A voter that a joint phase brings in does not yet: until the phase is over nothing is
        decided without the voters of before, however many of the new ones are whole.
        """
        return all(node_id in (m.voters_out or m.voters) for m in self.open_memberships())

    # --- changes --------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Add the next entry, whose term, index and chain are set."""
        assert entry.index == self.last_index + 1, (entry.index, self.last_index)
        history = self._history
        if (
            entry.index == history.next_index
            or entry.term != self.last_term
            or not history.run_terms
        ):
            history.note(LogPosition(entry.index, entry.term, entry.chain))
        self.entries.append(entry)
        self._memory_bytes += len(entry.data)
        self.last_index = entry.index
        self.last_term = entry.term
        self.last_chain = entry.chain
        if is_membership(entry.data):
            self.memberships.append((entry.index, decode(entry.data)._replace(needed=self.needed)))

    def truncate(self, from_index: Index) -> list[Entry]:
        """Void the entries from `from_index` on; return those that were in memory."""
        assert from_index > self.commit, (from_index, self.commit)
        assert from_index <= self.last_index, (from_index, self.last_index)
        term, chain = self.entry_id(from_index - 1)
        if from_index >= self._first:
            voided = self.entries[from_index - self._first :]
            del self.entries[from_index - self._first :]
        else:
            voided = self.entries
            self.entries = []
            self._first = from_index
            self._first_prev = (term, chain)
        self._memory_bytes -= sum(len(entry.data) for entry in voided)
        self.last_index, self.last_term, self.last_chain = from_index - 1, term, chain
        self._history.truncate(self.last_index)
        while len(self.memberships) > 1 and self.memberships[-1][0] >= from_index:
            self.memberships.pop()
        if from_index <= self.written:
            # Storage has (or will have) the voided entries: the next write must void them there.
            self.written = from_index - 1
            if not self.truncated_from or from_index < self.truncated_from:
                self.truncated_from = from_index
        self.stable = min(self.stable, from_index - 1)
        return voided

    def open_entries(self) -> list[Entry]:
        """Return the entries that are not emitted: they may be committed or not."""
        return self.entries[max(0, self.emitted + 1 - self._first) :]

    def forget_emitted(self) -> None:
        """Drop from memory what is emitted, but for the trailing window of a group with peers."""
        self.forget(self.emitted)

    def forget(self, index: Index) -> None:
        """Drop from memory what is not after `index` nor in the trailing window."""
        if self.is_in_memory and not self.is_sole:
            index = min(index, self.snapshot.index)
        count = index + 1 - self._first
        if count <= 0:
            return
        if not self.is_sole:
            if self._held_bytes() - self._noted_bytes >= RAFT_WINDOW_STEP_BYTES:
                self._note_window()
            memory = self.entries
            window = RAFT_TRAILING_ENTRIES
            if len(memory) <= window and self._memory_bytes <= RAFT_TRAILING_BYTES:
                return
            # Down to half of the window, so that this is rare.
            window //= 2
            excess = self._memory_bytes - RAFT_TRAILING_BYTES // 2
            position = 0
            while position < count and (excess > 0 or len(memory) - position > window):
                excess -= len(memory[position].data)
                position += 1
            count = position
        self._drop_first(count)
        if self._noted_bytes:
            self._note_window()

    def _note_window(self) -> None:
        if self.is_sole:
            self.let_go()
        else:
            self._noted_bytes = self._held_bytes()
            self._windows.note(self, self._noted_bytes)

    def _held_bytes(self) -> int:
        return self._memory_bytes + RAFT_ENTRY_MEMORY_BYTES * len(self.entries)

    def give_up(self) -> int:
        """Keep in memory only what is not emitted, and what is nowhere else, which is not counted:
        0."""
        last = min(self.emitted, self.snapshot.index) if self.is_in_memory else self.emitted
        self._drop_first(last + 1 - self._first)
        self.let_go()
        return 0

    def let_go(self) -> None:
        """Hold nothing of the windows: nothing is left that counts, or this log's group ends."""
        self._noted_bytes = 0
        self._windows.forget(self)

    def compact(self, index: Index, term: Term, chain: int) -> None:
        """The snapshot covers all up to `index`: the reader may no longer have it."""
        assert index <= self.emitted, (index, self.emitted)
        if index <= self.snapshot.index:
            return
        if index >= self._first:  # below, it may be gone from the reader already
            assert self.entry_id(index) == (term, chain), (index, term, chain)
        later = [brought for brought in self.memberships if brought[0] > index]
        self.memberships = [(index, self._in_force_at(index)), *later]
        self.snapshot = LogPosition(index, term, chain)
        if self._first == index + 1:
            self._first_prev = (term, chain)
        if self.is_sole:
            self._drop_first(index + 1 - self._first)
        self._raise_base()  # memory still serves peers that are a little behind

    def lose_stored(self) -> bool:
        """Treat entries that only the reader has, and can't read, as if they were compacted.

        False: some of that is not emitted yet, and this member can't do without it.
        """
        if self._first - 1 > self.emitted:
            return False
        self.base = LogPosition(self._first - 1, *self._first_prev)
        self._history.forget_runs(self.base.index, last=self.last_index)
        return True

    # --- helpers --------------------------------------------------------------------------------

    def _drop_first(self, count: int) -> None:
        """Drop the `count` oldest entries from memory."""
        if count <= 0:
            return
        memory = self.entries
        if count == len(memory):
            dropped = memory
            self.entries = []
            self._memory_bytes = 0
        else:
            dropped = memory[:count]
            del memory[:count]
            for entry in dropped:
                self._memory_bytes -= len(entry.data)
        newest = dropped[-1]
        self._first_prev = (newest.term, newest.chain)
        self._first = newest.index + 1
        if self.base.index < self.snapshot.index or self.is_in_memory:
            self._raise_base()  # what was compacted could be had from memory only

    def _read(self, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        entries = self._reader.read(lo, hi, max_bytes)
        if not entries or entries[0].index != lo or entries[-1].index >= hi:
            got = [entry.index for entry in entries]
            raise CorruptionError(f"entries {lo}..{hi - 1} asked of the log, got {got[:3]}")
        return entries

    def _load(self, last: Index, applied: Index) -> None:
        """Walk the durable log once: check its chain, learn terms and memberships.

        A small log stays in memory, so that recovery reads it once; of a large one nothing does.
        """
        kept: list[Entry] | None = []
        kept_bytes = 0
        kept_prev = (self.base.term, self.base.chain)
        index = self.base.index
        term, chain = kept_prev
        past = self._history
        while index < last:
            for entry in self._read(index + 1, last + 1, RAFT_READ_BYTES):
                index += 1
                chain = next_chain(chain, entry.term, index, entry.data)
                if entry.index != index or entry.chain != chain or entry.term < term:
                    raise CorruptionError(
                        f"log entry {index}: term {entry.term} after {term}, chain "
                        f"{entry.chain:#010x}, expected {chain:#010x}"
                    )
                if index == past.next_index or entry.term != term or not past.run_terms:
                    term = entry.term
                    past.note(LogPosition(index, term, chain))
                if is_membership(entry.data) and index > applied:
                    self.memberships.append((index, decode(entry.data)))
                if index <= applied:
                    kept_prev = (term, chain)
                    if index == applied:
                        self.snapshot = LogPosition(index, term, chain)
                elif kept is not None:
                    kept.append(entry)
                    kept_bytes += len(entry.data)
                    if kept_bytes > RAFT_LOAD_BYTES:
                        kept = None
        self.last_index, self.last_term, self.last_chain = index, term, chain
        if kept is None:
            self._first, self._first_prev = index + 1, (term, chain)
        else:
            self.entries = kept
            self._memory_bytes = kept_bytes
            self._first = index + 1 - len(kept)
            self._first_prev = kept_prev

    def _raise_base(self) -> None:
        """Entries up to the snapshot are to be had only as far as memory reaches back."""
        if self._first <= self.snapshot.index or self.is_in_memory:
            self.base = LogPosition(self._first - 1, *self._first_prev)
        elif self.base.index < self.snapshot.index:  # else see `lose_stored`
            self.base = self.snapshot
        self._history.forget_runs(self.base.index, last=self.last_index)
