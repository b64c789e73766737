"""Index of the log: the place of each group's entries, and the segments that these entries pin.

A segment is *pinned* while the first live entry of some group is in it. The oldest segment can be
freed once no group pins it: entries of one group follow one another in the segments.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, read_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.wal_format import segment_name
from streamd.types import Entry, HardState, Index, LogState, Term, Uid

SEGMENTS_UNHURRIED = 4  # as many may be in use before groups that pin the oldest are named
SEGMENTS_MAX = 16  # before the entries of a stopped group are rewritten
_WINDOW_BYTES = 256 * 1024  # read at once, at most


class GroupLog:
    """Places of the entries of one group. Entries run from `base + 1`; `base` is released."""

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
        """Index of the last entry, or of the one before the first."""
        return self.first + len(self.places) - 1

    def add(self, index: Index, place: int, length: int) -> None:
        """Add a written entry; it replaces the one at `index` and all after that."""
        if index != self.first + len(self.places):
            if index <= self.last:
                self.truncate(index)
            if index != self.last + 1:
                # Earlier entries were released, and their segment freed, before this was scanned.
                self.jump(index)
        self.places.append(place)
        self.lengths.append(length)

    def truncate(self, index: Index) -> None:
        """Void the entries from `index` on."""
        self.hint = min(self.hint, index - 1)
        keep = max(0, index - self.first)
        del self.places[keep:]
        del self.lengths[keep:]

    def release(self, index: Index, term: Term, chain: int) -> None:
        """Drop the entries up to `index`, which a snapshot covers."""
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
        """Void every entry; the log continues after `index`, also if that is backwards."""
        self.base, self.base_term, self.base_chain = index, term, chain
        self.hint = 0  # of other entries
        del self.places[:]
        del self.lengths[:]
        self.first = index + 1

    def jump(self, index: Index) -> None:
        """Expect `index` as the next entry; those missing before it may turn out to be released."""
        self.first = index
        del self.places[:]
        del self.lengths[:]

    def state(self) -> LogState:
        """Return the group's log as the raft core sees it."""
        return LogState(self.hard_state, self.base + 1, self.last, self.base_term, self.base_chain)


def apply(groups: dict[Uid, GroupLog], record: wf.WalRecord, place: int) -> None:
    """Apply one record of the log, in order. `place` is its segment's number << 32."""
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


class Segment(NamedTuple):
    """Segment in use."""

    no: int
    fd: int
    end: int  # where its batches end
    unproven: int  # from here on nothing says that they were ever synced


class PinnedSegments:
    """Files of all segments in use, the newest included, and the groups that pin each.

    Used on the event loop alone. Segment numbers are consecutive from `oldest` to `newest`.
    """

    def __init__(self, disk: Disk, segments: list[Segment], groups: Iterable[GroupLog]) -> None:
        self._disk = disk
        self._fds = {segment.no: segment.fd for segment in segments}
        self._pins: dict[int, int] = {}  # segment -> groups whose first live entry is there
        self.oldest = min(self._fds, default=0)
        self.newest = max(self._fds, default=0)
        self._retired = 0  # this segment and all before it should go
        for log in groups:
            self.pin(log, 1)

    def add(self, no: int, *, fd: int) -> None:
        """Add the new segment that is written to."""
        if not self._fds:
            self.oldest = no
        self._fds[no] = fd
        self.newest = no

    def pin(self, log: GroupLog, change: int) -> None:
        """Count the pin of `log`: call before (-1) and after (1) a change of its first entry."""
        if log.places:
            no = log.places[0] >> 32
            self._pins[no] = self._pins.get(no, 0) + change

    def has_free(self) -> bool:
        """Return True if no group pins the oldest segment and it is not the newest."""
        return self.oldest != self.newest and not self._pins.get(self.oldest)

    def is_newest_linked(self) -> bool:
        """Return True while the file of the newest segment has a name."""
        return not self._fds or self._disk.is_linked(self._fds[self.newest])

    def drop_oldest(self) -> tuple[int, int]:
        """Take the oldest segment out of use; return (number, file)."""
        no = self.oldest
        self._pins.pop(no, None)
        self.oldest = no + 1
        return no, self._fds.pop(no)

    def is_crowded(self) -> bool:
        """Return True while so many are in use that `pinning_groups` should take snapshots."""
        return len(self._fds) > SEGMENTS_UNHURRIED

    def is_overcrowded(self) -> bool:
        """Return True if so many are in use that the oldest must go, or a retired one is in use."""
        return len(self._fds) > SEGMENTS_MAX or self.is_renewing

    def pinning_groups(self, groups: dict[Uid, GroupLog]) -> list[Uid]:
        """Return groups that pin a retired segment, or the oldest while many are in use."""
        last = self.oldest if self.is_crowded() else self.oldest - 1
        last = max(last, self._retired)
        if last < self.oldest:
            return []
        return [
            uid for uid, log in sorted(groups.items()) if log.places and log.places[0] >> 32 <= last
        ]

    def retire_all(self) -> None:
        """Retire every segment in use: each goes once no group pins it."""
        self._retired = self.newest

    @property
    def is_renewing(self) -> bool:
        """True while a retired segment is in use."""
        return self.oldest <= self._retired

    def kept(self) -> range:
        """Return the numbers of the segments that are not retired."""
        return range(max(self.oldest, self._retired + 1), self.newest + 1)

    def read(self, uid: Uid, log: GroupLog, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        """Return the entries lo..hi-1 of `uid`, whose log is `log`, at most about `max_bytes`.

        At least one, if there is one. Raises CorruptionError, of which ReadError is a kind.
        """
        at = lo - log.first
        end = min(hi - log.first, len(log.places))
        if at < 0:
            raise CorruptionError(f"group {uid}: entry {lo} is not in the log any more")
        entries: list[Entry] = []
        total = 0
        window, window_no, window_at = b"", 0, 0
        while at < end:
            place = log.places[at]
            size = wf.RECORD_HEADER_BYTES + log.lengths[at]
            total += size
            if total > max_bytes and entries:
                break
            no, offset = place >> 32, place & 0xFFFFFFFF
            if no != window_no or not window_at <= offset <= window_at + len(window) - size:
                wanted = max(size, min(max_bytes, _WINDOW_BYTES) if end - at > 1 else size)
                window = self._read_at(no, offset, wanted, size)
                window_no, window_at = no, offset
            record = wf.decode_record(window, offset - window_at, offset=offset)
            if record is None or (record.group, record.index) != (uid, log.first + at):
                raise CorruptionError(
                    f"{segment_name(no)}: offset {offset}: entry {log.first + at} of group "
                    f"{uid} is damaged"
                )
            entries.append(Entry(record.term, record.index, record.data, chain=record.chain))
            at += 1
        return entries

    def _read_at(self, no: int, offset: int, wanted: int, size: int) -> bytes:
        """Read `wanted` bytes, or only the `size` needed ones if those after are unreadable."""
        try:
            return self._disk.pread(self._fds[no], wanted, offset)
        except OSError as err:
            if wanted > size:
                return self._read_at(no, offset, size, size)
            raise read_error("reading the log", segment_name(no), err) from err

    def replace_all(self) -> None:
        """Close and forget all segments: the log begins anew in the next one that is added."""
        self.close()
        self._fds.clear()
        self._pins.clear()

    def close(self, *others: int) -> None:
        """Close all files, and `others` that were not added yet."""
        for fd in {*self._fds.values(), *others}:
            self._disk.close(fd)
