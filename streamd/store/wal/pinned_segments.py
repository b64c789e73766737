"""The segments in use: entries are read from them, and the oldest goes once nobody needs it."""

from __future__ import annotations

from collections.abc import Iterable

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, read_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.group_positions import GroupLog
from streamd.store.wal.wal_recovery import Segment, segment_name
from streamd.types import Entry, Index, Uid

SEGMENTS_UNHURRIED = 4  # as many may be in use before their groups are called stragglers
SEGMENTS_MAX = 16  # before entries that nobody will release soon are written again
_WINDOW_BYTES = 256 * 1024  # read at once, at most


class SegmentsInUse:
    """The files of all segments, the one being written too, and who needs each. The event loop's.

    Their numbers follow one another from `oldest` to `newest`.
    """

    def __init__(self, disk: Disk, segments: list[Segment], groups: Iterable[GroupLog]) -> None:
        self._disk = disk
        self._fds = {segment.no: segment.fd for segment in segments}
        self._pins: dict[int, int] = {}  # segment -> groups whose first live entry is there
        self.oldest = min(self._fds, default=0)
        self.newest = max(self._fds, default=0)
        self._given_up = 0  # this segment and all before it
        for log in groups:
            self.pin(log, 1)

    def add(self, no: int, *, fd: int) -> None:
        """A new segment is written to."""
        if not self._fds:
            self.oldest = no
        self._fds[no] = fd
        self.newest = no

    def pin(self, log: GroupLog, change: int) -> None:
        """Before (-1) and after (1) a change to where the entries of `log` begin."""
        if log.places:
            no = log.places[0] >> 32
            self._pins[no] = self._pins.get(no, 0) + change

    def has_free(self) -> bool:
        """True if no group needs the oldest. Never of the one being written."""
        return self.oldest != self.newest and not self._pins.get(self.oldest)

    def is_newest_linked(self) -> bool:
        """True while the file of the newest has a name."""
        return not self._fds or self._disk.is_linked(self._fds[self.newest])

    def drop_oldest(self) -> tuple[int, int]:
        """Let go of the oldest; return (number, file)."""
        no = self.oldest
        self._pins.pop(no, None)
        self.oldest = no + 1
        return no, self._fds.pop(no)

    def is_crowded(self) -> bool:
        """True while so many are in use that groups should be told (`stragglers`)."""
        return len(self._fds) > SEGMENTS_UNHURRIED

    def is_overcrowded(self) -> bool:
        """True if there are so many that the oldest must go, or one that is given up."""
        return len(self._fds) > SEGMENTS_MAX or self.is_renewing

    def stragglers(self, groups: dict[Uid, GroupLog]) -> list[Uid]:
        """Groups whose entries keep one that is given up, or, while it is crowded, the oldest."""
        last = self.oldest if self.is_crowded() else self.oldest - 1
        last = max(last, self._given_up)
        if last < self.oldest:
            return []
        return [
            uid for uid, log in sorted(groups.items()) if log.places and log.places[0] >> 32 <= last
        ]

    def give_up(self) -> None:
        """All that are in use should go."""
        self._given_up = self.newest

    @property
    def is_renewing(self) -> bool:
        """True while one that is given up is in use."""
        return self.oldest <= self._given_up

    def kept(self) -> range:
        """Numbers of those that are not given up."""
        return range(max(self.oldest, self._given_up + 1), self.newest + 1)

    def read(self, uid: Uid, log: GroupLog, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        """Return the entries lo..hi-1 of `uid`, whose log is `log`, at most about `max_bytes`.

        At least one, if there is one. Raises CorruptionError; a ReadError is one too.
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
        """Read `wanted` bytes, or only the `size` that are needed if those after are unreadable."""
        try:
            return self._disk.pread(self._fds[no], wanted, offset)
        except OSError as err:
            if wanted > size:
                return self._read_at(no, offset, size, size)
            raise read_error("reading the log", segment_name(no), err) from err

    def replace_all(self) -> None:
        """Close all files: the log begins anew, in what is added next. Then each `pin`s again."""
        self.close()
        self._fds.clear()
        self._pins.clear()

    def close(self, *others: int) -> None:
        """Close all files, and `others` that are not known here yet."""
        for fd in {*self._fds.values(), *others}:
            self._disk.close(fd)
