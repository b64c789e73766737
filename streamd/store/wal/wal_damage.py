"""`Damage`: which groups are still proven after a part of the log was lost.

After a loss every group is suspect, in its votes and in its entries. Later records clear a group:
a hard state replaces all before it; entries are known again where a record proves their
predecessor (a reset, the tip at the start of a segment, an entry right after what a snapshot
covers). A group that stays suspect is damaged: the member may have forgotten votes or entries that
it acknowledged.
"""

from __future__ import annotations

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, is_refused
from streamd.store.wal import wal_format as wf
from streamd.store.wal.entry_index import GroupLog, apply
from streamd.types import Index, Term, Uid


class Damage:
    """Losses of one log, and the groups that they concern."""

    def __init__(self, disk: Disk) -> None:
        self.texts: list[str] = []
        self.reason = ""  # of the last loss; "": nothing was lost so far
        self.votes: dict[Uid, str] = {}  # suspect: group -> why
        self.entries: dict[Uid, str] = {}
        self.may_have_lost_groups = False  # nothing after the loss names all groups
        self.fds: dict[int, int] = {}  # segment -> file
        self._disk = disk

    def lose(self, groups: dict[Uid, GroupLog], reason: str) -> None:
        """Note a loss between the last record applied and the next one: all groups are suspect."""
        self.reason = reason
        self.may_have_lost_groups = True
        for uid in groups:
            self.votes.setdefault(uid, reason)
            self.entries.setdefault(uid, reason)

    def segment_started(self) -> None:
        """Note that the first batch of a segment was read: it names every group there was."""
        self.may_have_lost_groups = False

    def apply(self, groups: dict[Uid, GroupLog], record: wf.WalRecord, place: int) -> None:
        """Apply a record after a loss, as `entry_index.apply`, but leave out unproven entries."""
        kind, uid, term, index, chain = record[:5]
        if kind == wf.WITNESS:
            return
        if kind == wf.DESTROY:
            self.votes.pop(uid, None)
            self.entries.pop(uid, None)
        elif uid not in groups:
            groups[uid] = GroupLog()
            self.votes[uid] = self.entries[uid] = self.reason
        if kind == wf.HARD_STATE:
            self.votes.pop(uid, None)
        elif kind == wf.RESET:
            self.entries.pop(uid, None)
        elif uid in self.entries and not self._proves(groups[uid], kind, index, term, chain):
            return
        elif kind in (wf.ENTRY, wf.TIP):
            self.entries.pop(uid, None)
        apply(groups, record, place)

    def _proves(self, group: GroupLog, kind: int, index: Index, term: Term, chain: int) -> bool:
        """Cut what this record of a suspect group contradicts; return True to apply it."""
        if kind == wf.ENTRY:
            if index != group.base + 1:
                return False
            group.reset(group.base, group.base_term, group.base_chain)
        elif kind == wf.TIP:
            if not self._has(group, index, term, chain):
                return False
            group.truncate(index + 1)
        elif kind == wf.RELEASE and index < group.last and not self._has(group, index, term, chain):
            group.truncate(max(index, group.base) + 1)
        return True

    def _has(self, group: GroupLog, index: Index, term: Term, chain: int) -> bool:
        """Return True if the group's log up to `index` ends with exactly that entry."""
        if index == group.base:
            return (term, chain) == (group.base_term, group.base_chain)
        at = index - group.first
        if not 0 <= at < len(group.places):
            return False
        no, offset = group.places[at] >> 32, group.places[at] & 0xFFFFFFFF
        size = wf.RECORD_HEADER_BYTES + group.lengths[at]
        try:
            record = wf.decode_record(self._disk.pread(self.fds[no], size, offset), 0, offset=0)
        except OSError as err:
            if is_refused(err):
                raise
            return False
        return record is not None and (record.term, record.chain) == (term, chain)

    def close_gaps(self, directory: str, groups: dict[Uid, GroupLog], is_tolerant: bool) -> None:
        """Void the entries of a group that begin only after a gap, or raise CorruptionError."""
        for uid, group in groups.items():
            if group.first <= group.base + 1:
                continue
            text = (
                f"{directory}: group {uid}: entries {group.base + 1}..{group.first - 1} are "
                f"missing; the log goes on with {group.first}"
            )
            if not is_tolerant:
                raise CorruptionError(text)
            self.texts.append(text)
            self.entries[uid] = text
            group.reset(group.base, group.base_term, group.base_chain)

    def groups(self) -> dict[Uid, str]:
        """Return the groups whose votes or entries may be missing, and why."""
        return {**self.entries, **self.votes}
