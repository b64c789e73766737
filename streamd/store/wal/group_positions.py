"""Where the entries of each group are in the log, and what each record changes in that."""

from __future__ import annotations

from array import array

from streamd.errors import CorruptionError
from streamd.store.wal import wal_format as wf
from streamd.types import HardState, Index, LogState, Term, Uid


class GroupLog:
    """Where the entries of one group are. Entries run from `base + 1`; `base` is released."""

    __slots__ = (
        "base",
        "base_chain",
        "base_term",
        "first",
        "hard_state",
        "hint",
        "lengths",
        "places",
    )

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.hint: Index = 0  # the group was committed up to here, when the log was written
        self.base: Index = 0
        self.base_term: Term = 0
        self.base_chain = 0
        self.first: Index = 1  # index of places[0]
        self.places = array("Q")  # segment_no << 32 | offset of the record
        self.lengths = array("I")  # of the data

    @property
    def last(self) -> Index:
        return self.first + len(self.places) - 1

    def add(self, index: Index, place: int, length: int) -> None:
        """An entry was written; it replaces what was at `index` and all after it."""
        if index != self.first + len(self.places):
            if index <= self.last:
                self.truncate(index)
            if index != self.last + 1:
                # Earlier entries were released, and their segment freed, before this was scanned.
                self.jump(index)
        self.places.append(place)
        self.lengths.append(length)

    def truncate(self, index: Index) -> None:
        """Entries from `index` on are void."""
        self.hint = min(self.hint, index - 1)
        keep = max(0, index - self.first)
        del self.places[keep:]
        del self.lengths[keep:]

    def release(self, index: Index, term: Term, chain: int) -> None:
        """A snapshot covers all up to `index`."""
        if index < self.base:
            return
        self.base, self.base_term, self.base_chain = index, term, chain
        passed = index + 1 - self.first
        if passed >= len(self.places):
            del self.places[:]
            del self.lengths[:]
            self.first = index + 1
        elif passed > 0:
            del self.places[:passed]
            del self.lengths[:passed]
            self.first = index + 1

    def reset(self, index: Index, term: Term, chain: int) -> None:
        """All entries are void; the log goes on after `index`, also if that is backwards."""
        self.base, self.base_term, self.base_chain = index, term, chain
        self.hint = 0  # of other entries
        del self.places[:]
        del self.lengths[:]
        self.first = index + 1

    def jump(self, index: Index) -> None:
        """The next entry will be `index`; what is missing before it may turn out as released."""
        self.first = index
        del self.places[:]
        del self.lengths[:]

    def state(self) -> LogState:
        return LogState(self.hard_state, self.base + 1, self.last, self.base_term, self.base_chain)


def apply(groups: dict[Uid, GroupLog], record: wf.WalRecord, place: int) -> None:
    """One record of the log, in order. `place` is its segment's number << 32."""
    kind, uid, term, index, chain, offset, length, data, flags, lag = record
    if kind == wf.WITNESS:
        return
    if kind == wf.DESTROY:
        groups.pop(uid, None)
        return
    group = groups.get(uid)
    if group is None:
        group = groups[uid] = GroupLog()
    if kind == wf.ENTRY:
        if index > group.base:
            group.add(index, place | offset, length)
            if lag:
                group.hint = max(group.hint, index - lag + 1)
    elif kind == wf.HARD_STATE:
        is_uncertain = bool(flags & wf.IS_UNCERTAIN)
        group.hard_state = HardState(term, data.decode(), index, is_uncertain)
    elif kind == wf.TRUNCATE:
        group.truncate(index)
    elif kind == wf.RELEASE:
        group.release(index, term, chain)
    elif kind == wf.RESET:
        group.reset(index, term, chain)
    elif kind == wf.TIP:
        if index != group.last:
            group.jump(index + 1)  # entries up to there were in segments that are not here
        if lag:
            group.hint = max(group.hint, index - lag + 1)
    else:
        raise CorruptionError(f"log record of unknown type {kind} for group {uid}")
