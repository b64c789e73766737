"""`Checkpoint`: the records that open each new segment, so that older segments can be freed."""

from __future__ import annotations

from collections.abc import Callable

from streamd.store.wal import wal_format as wf
from streamd.store.wal.entry_index import GroupLog
from streamd.store.wal.wal_format import Hints, Lazy, WalWrite
from streamd.types import HardState, Index, Term, Uid


class Checkpoint:
    """Every group's hard state, newest release and tip, as of the last batch written.

    Owned by the thread that writes: the event loop's `GroupLog`s lag behind by what is in flight.
    """

    def __init__(self, groups: dict[Uid, GroupLog]) -> None:
        self._hard_states = {uid: group.hard_state for uid, group in groups.items()}
        self._released = {
            uid: (group.base, group.base_term, group.base_chain) for uid, group in groups.items()
        }
        self._tips: dict[Uid, tuple[Index, Term, int]] = {}  # the last entry of each group
        self._hints = {uid: group.hint for uid, group in groups.items() if group.hint}
        self._unsaid: set[Uid] = set()  # groups that are committed further than a hint says yet

    def note(self, taken: list[tuple[list[WalWrite], list[Lazy], Hints]]) -> None:
        """Take over what a written batch said."""
        for writes, lazy, hints in taken:
            for kind, group, index, term, chain in lazy:
                if kind == wf.DESTROY:
                    self._released.pop(group, None)
                    self._hard_states.pop(group, None)
                    self._tips.pop(group, None)
                    self._hints.pop(group, None)
                    self._unsaid.discard(group)
                    continue
                self._released[group] = (index, term, chain)
                if kind == wf.RESET:
                    self._hints.pop(group, None)
                tip = self._tips.get(group)
                if kind == wf.RESET or (tip is not None and tip[0] <= index):
                    self._tips[group] = (index, term, chain)
            for (group, entries, hard_state, truncate_from), hint in zip(
                writes, hints, strict=True
            ):
                if hard_state is not None:
                    self._hard_states[group] = hard_state
                if truncate_from and truncate_from <= self._hints.get(group, 0):
                    self._hints[group] = truncate_from - 1
                if entries:
                    last = entries[-1]
                    self._tips[group] = (last.index, last.term, last.chain)
                    self._unsaid.add(group)
                    if hint:
                        self._hints[group] = min(hint, last.index)
                elif truncate_from:
                    self._tips.pop(group, None)  # unknown until the next entry

    def set_hard_state(self, uid: Uid, hard_state: HardState) -> None:
        """Set the hard state of `uid`; for recovery, before the first batch."""
        self._hard_states[uid] = hard_state

    def set_tip(self, uid: Uid, *, index: Index, term: Term, chain: int) -> None:
        """Set the last entry of `uid`, or the position its log continues after."""
        self._tips[uid] = (index, term, chain)

    def late_hints(self, commit_of: Callable[[Uid], Index], *, count_max: int) -> list[bytes]:
        """Return tip records of groups that were committed further since their last entry.

        Called only while nothing waits to be written: a commit could be of other entries.
        """
        records: list[bytes] = []
        for uid in sorted(self._unsaid)[:count_max]:
            tip = self._tips.get(uid)
            hint = min(commit_of(uid), tip[0]) if tip is not None else 0
            if tip is not None and hint > self._hints.get(uid, 0):
                self._hints[uid] = hint
                records.append(self._tip(uid, tip))
            if not hint or (tip is not None and hint == tip[0]):
                self._unsaid.discard(uid)  # all is said, or nothing will be: it is alone
        return records

    def _tip(self, uid: Uid, tip: tuple[Index, Term, int]) -> bytes:
        index, term, chain = tip
        lag = wf.lag_of(index, self._hints.get(uid, 0))
        return wf.encode_record(wf.TIP, uid, term=term, index=index, chain=chain, lag=lag)

    def records(self) -> list[bytes]:
        """Return the records that a new segment begins with.

        Hard states and releases are repeated, so older segments may be freed; each group's tip
        says where its log ends, so that a lost segment is noticed.
        """
        records = [
            wf.encode_hard_state(uid, state) for uid, state in sorted(self._hard_states.items())
        ]
        records += [
            wf.encode_record(wf.RELEASE, uid, term=term, index=index, chain=chain)
            for uid, (index, term, chain) in sorted(self._released.items())
            if index
        ]
        return records + [self._tip(uid, tip) for uid, tip in sorted(self._tips.items())]

    def size(self) -> int:
        """Return an upper bound for the bytes of a batch of `records`."""
        votes = sum(len(state.vote.encode()) for state in self._hard_states.values())
        records = len(self._hard_states) + len(self._released) + len(self._tips)
        return wf.padded(wf.BATCH_HEADER_BYTES + votes + records * wf.RECORD_HEADER_BYTES)
