"""The write-ahead log of a data directory, read beside a server that may be running.

Nothing is written and no lock is taken. What a reader holds are open files: the log's segments
may be freed or used again at any moment, which shows as a damaged record, and the caller reads
everything again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from streamd.errors import CorruptionError
from streamd.offline.engine import (
    HEADER_BYTES,
    REWRITTEN,
    GroupLog,
    Membership,
    block_name,
    block_number,
    membership,
    read_left,
    recover,
    segment_name,
)
from streamd.offline.engine import record_format as fmt
from streamd.offline.engine import wal_format as wf
from streamd.offline.log_index import LogIndex
from streamd.offline.read_only_disk import ReadOnlyDisk
from streamd.types import Entry, Index, Term, Uid

_WINDOW_BYTES = 1024 * 1024


class LogReader:
    """The groups of one log as they were when it was opened. Each is read when it is asked for,
    from those segments that have something of it; with `is_whole` all of the log is read at once.
    """

    def __init__(
        self, directory: Path, *, tolerate_damage: bool = False, is_whole: bool = False
    ) -> None:
        """Raises CorruptionError if something durable is damaged or missing in what is read; so do
        the methods that name a group. With `tolerate_damage` what is proven is taken instead, of
        all of the log."""
        self.directory = directory
        self.groups: dict[Uid, GroupLog] = {}  # those that were read
        self.damage: list[str] = []
        self.damaged_groups: dict[Uid, str] = {}
        self.torn_bytes = 0
        self.torn_at = ""  # segment and offset
        self._is_tolerant = tolerate_damage
        self._disk = ReadOnlyDisk()
        self._fds: dict[int, int] = {}
        self._index: LogIndex | None = None
        try:
            if is_whole:
                self._read_all()
            else:
                self._open_index()
        except BaseException:
            self._disk.close_all()
            raise

    def _open_index(self) -> None:
        try:
            self._index = LogIndex(self._disk, self.directory)
        except CorruptionError:
            if not self._is_tolerant:
                raise
            self._read_all()
        else:
            self._fds = self._index.fds

    def _read_all(self) -> None:
        self._index = None
        found = recover(self._disk, str(self.directory), tolerate_damage=self._is_tolerant)
        self.groups = found.groups
        self.damage = found.damage
        self.damaged_groups = found.damaged_groups
        self.torn_bytes = found.dropped_bytes
        self.torn_at = found.dropped_at
        self._fds = {segment.no: segment.fd for segment in found.segments}

    def close(self) -> None:
        self._disk.close_all()

    def group(self, uid: Uid) -> GroupLog | None:
        """Return the positions of a group's entries; None if the log knows no such group."""
        if self._index is not None and uid not in self.groups:
            try:
                found = self._index.group(uid)
            except CorruptionError:
                if not self._is_tolerant:
                    raise
                self._read_all()
            else:
                if found is not None:
                    self.groups[uid] = found
        return self.groups.get(uid)

    def first_index(self, uid: Uid) -> Index:
        """The first entry that is at hand, or the one that would come next."""
        group = self.group(uid)
        return group.first if group is not None else 1

    def last_index(self, uid: Uid) -> Index:
        """The last entry there is, released ones included; 0: none."""
        group = self.group(uid)
        return group.last if group is not None else 0

    def damage_of(self, uid: Uid) -> str:
        """Why entries of a group may be lost; "" if none are."""
        if self.group(uid) is not None:
            return self.damaged_groups.get(uid, "")
        return "; ".join(self.damage)

    def commit_hint(self, uid: Uid) -> Index:
        """An index that was known to be committed; it may lag far behind."""
        group = self.group(uid)
        return group.hard_state.commit if group is not None else 0

    def current_term(self, uid: Uid) -> Term:
        group = self.group(uid)
        return group.hard_state.term if group is not None else 0

    def entries(self, uid: Uid, first: Index, last: Index) -> Iterator[Entry]:
        """The entries first..last of a group that are at hand, each verified.

        Raises CorruptionError naming segment and offset.
        """
        group = self.group(uid)
        if group is None:
            return
        window, window_no, window_at = b"", -1, 0
        for at in range(max(0, first - group.first), min(last, group.last) + 1 - group.first):
            no, offset = group.places[at] >> 32, group.places[at] & 0xFFFFFFFF
            size = wf.RECORD_HEADER_BYTES + group.lengths[at]
            if no != window_no or not window_at <= offset <= window_at + len(window) - size:
                window = self._disk.pread(self._fds[no], max(size, _WINDOW_BYTES), offset)
                window_no, window_at = no, offset
            record = wf.decode_record(window, offset - window_at, offset=offset)
            index = group.first + at
            if record is None or (record.group, record.index) != (uid, index):
                raise CorruptionError(
                    f"{self.directory / segment_name(no)}: offset {offset}: entry {index} of "
                    f"group {uid} is damaged"
                )
            yield Entry(record.term, record.index, record.data, chain=record.chain)

    def mark_at(self, uid: Uid, index: Index) -> tuple[Term, int] | None:
        """(term, chain) of one entry, which stands for all entries before it; None: not at hand."""
        group = self.group(uid)
        if group is None:
            return None
        if index == group.base:
            return group.base_term, group.base_chain
        for entry in self.entries(uid, index, index):
            if index >= group.first:
                return entry.term, entry.chain
        return None

    def members_after(self, uid: Uid, start: Membership, index: Index) -> Membership:
        """The group's newest membership, given that it was `start` at `index`."""
        found = start
        for entry in self.entries(uid, index + 1, self.last_index(uid)):
            if membership.is_membership(entry.data):
                found = membership.decode(entry.data)
        return found


def last_frame_index(directory: Path, uid: Uid) -> Index:
    """The highest log index that the newest block files say was applied; 0: none.

    Only committed entries reach block files, so this is proof of a commit.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return 0
    numbers = [no for name in names if (no := block_number(name)) is not None]
    # A rewritten block has no frames; those of the others tell.
    for block_no in sorted((no for no in numbers if no < REWRITTEN), reverse=True):
        try:
            blob = read_left(ReadOnlyDisk(), str(directory / block_name(block_no)))
            fmt.check_block_header(blob, uid, block_no)
        except (OSError, CorruptionError):
            continue
        found = 0
        for record in fmt.scan(blob[HEADER_BYTES:], HEADER_BYTES):
            if record.type in (fmt.FRAME, fmt.TOMBSTONE, fmt.SKIP):
                found = fmt.index_of(record)
        if found:
            return found
    return 0
