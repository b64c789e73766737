"""What the first batch of a segment says of every group, so that older segments may be freed."""

from __future__ import annotations

from streamd.store import wal_format as wf
from streamd.store.wal_batch import Lazy, WalWrite
from streamd.store.wal_groups import GroupLog
from streamd.types import HardState, Index, Term, Uid


class Checkpoint:
    """Every group's hard state, newest release and tip, as the batches so far say. Who writes
    keeps it: the event loop's `GroupLog`s are behind by what is in flight."""

    def __init__(self, groups: dict[Uid, GroupLog]) -> None:
        self._hard_states = {uid: group.hard_state for uid, group in groups.items()}
        self._released = {
            uid: (group.base, group.base_term, group.base_chain) for uid, group in groups.items()
        }
        self._tips: dict[Uid, tuple[Index, Term, int]] = {}  # the last entry of each group

    def note(self, taken: list[tuple[list[WalWrite], list[Lazy]]]) -> None:
        """A batch that says this was written."""
        for writes, lazy in taken:
            for kind, group, index, term, chain in lazy:
                if kind == wf.DESTROY:
                    self._released.pop(group, None)
                    self._hard_states.pop(group, None)
                    self._tips.pop(group, None)
                    continue
                self._released[group] = (index, term, chain)
                tip = self._tips.get(group)
                if kind == wf.RESET or (tip is not None and tip[0] <= index):
                    self._tips[group] = (index, term, chain)
            for group, entries, hard_state, truncate_from in writes:
                if hard_state is not None:
                    self._hard_states[group] = hard_state
                if entries:
                    last = entries[-1]
                    self._tips[group] = (last.index, last.term, last.chain)
                elif truncate_from:
                    self._tips.pop(group, None)  # unknown until the next entry

    def set_hard_state(self, uid: Uid, hard_state: HardState) -> None:
        """What is known of `uid` since the log was read."""
        self._hard_states[uid] = hard_state

    def set_tip(self, uid: Uid, *, index: Index, term: Term, chain: int) -> None:
        """The last entry of `uid`, or what its log goes on after."""
        self._tips[uid] = (index, term, chain)

    def records(self) -> list[bytes]:
        """What older segments say of hard states and releases, again: they may be freed now. And
        where every group's log ends, so that it is noticed if one is lost."""
        records = [
            wf.encode_hard_state(uid, state) for uid, state in sorted(self._hard_states.items())
        ]
        for kind, facts in ((wf.RELEASE, self._released), (wf.TIP, self._tips)):
            records += [
                wf.encode_record(kind, uid, term=term, index=index, chain=chain)
                for uid, (index, term, chain) in sorted(facts.items())
                if index or kind == wf.TIP
            ]
        return records

    def size(self) -> int:
        """How long a batch of `records` is at most."""
        votes = sum(len(state.vote.encode()) for state in self._hard_states.values())
        records = len(self._hard_states) + len(self._released) + len(self._tips)
        return wf.padded(wf.BATCH_HEADER_BYTES + votes + records * wf.RECORD_HEADER_BYTES)
