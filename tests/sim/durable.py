"""What a node's log durably holds, seen from outside: look into a SimDisk while the node runs.

For checks after every step ("an ack implies durable on a quorum at that moment"), so it reads only
what became durable since it was asked last.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from streamd.store.wal import wal_format as wf
from streamd.store.wal.wal_format import SUFFIX
from streamd.types import HardState, Index, Term, Uid
from tests.sim.decrypted import durable_content
from tests.sim.disk import SimDisk


class DurableGroup:
    """One group: what a crash now could not take from it."""

    __slots__ = ("base", "entries", "hard_state")

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.base: Index = 0  # a durable snapshot covers all up to here
        self.entries: dict[Index, tuple[Term, int]] = {}  # index -> (term, chain)

    @property
    def last(self) -> Index:
        return max(self.entries, default=self.base)

    def has(self, index: Index, term: Term) -> bool:
        """True if the entry is durable here, in the log or in a snapshot."""
        if index <= self.base:
            return True
        found = self.entries.get(index)
        return found is not None and found[0] == term

    def apply(self, record: wf.WalRecord) -> None:
        kind, index = record.type, record.index
        if kind == wf.ENTRY:
            if index in self.entries:
                self._drop_from(index)
            if index > self.base:
                self.entries[index] = (record.term, record.chain)
        elif kind == wf.HARD_STATE:
            is_uncertain = bool(record.flags & wf.IS_UNCERTAIN)
            self.hard_state = HardState(record.term, record.data.decode(), index, is_uncertain)
        elif kind == wf.TRUNCATE:
            self._drop_from(index)
        elif kind == wf.RELEASE and index >= self.base:
            self.base = index
            for old in [old for old in self.entries if old <= index]:
                del self.entries[old]
        elif kind == wf.RESET:
            self.base = index
            self.entries.clear()

    def _drop_from(self, index: Index) -> None:
        for old in [old for old in self.entries if old >= index]:
            del self.entries[old]


class _Log:
    """What was read so far of one log."""

    def __init__(self, rewrites: int) -> None:
        self.groups: dict[Uid, DurableGroup] = {}
        self.rewrites = rewrites  # of the disk, when this began to read
        self.syncs = -1  # of the disk, when this read last
        self.no = 0
        self.wal_id = 0
        self.offset = 0
        self.next_batch = 0

    def read(self, disk: SimDisk, directory: str) -> None:
        if self.syncs == disk.syncs:
            return
        self.syncs = disk.syncs
        prefix = directory.rstrip("/") + "/"
        numbers = sorted(
            int(path[len(prefix) : -len(SUFFIX)], 16)
            for path in disk.durable_names()
            if path.startswith(prefix) and path.endswith(SUFFIX) and "/" not in path[len(prefix) :]
        )
        for no in numbers:
            if no < self.no:
                continue
            content = durable_content(disk, f"{prefix}{no:016x}{SUFFIX}")
            assert content is not None
            if no != self.no:
                header = wf.decode_segment_header(bytes(content[: wf.SEGMENT_HEADER_BYTES]))
                if header is None or header.segment_no != no:
                    return
                if not header.prev_end:  # the log begins anew here
                    self.groups.clear()
                self.no, self.wal_id = no, header.wal_id
                self.offset, self.next_batch = wf.SEGMENT_HEADER_BYTES, header.first_batch
            self._read_segment(content)

    def _read_segment(self, content: bytearray) -> None:
        while True:
            header = wf.decode_batch_header(
                bytes(content[self.offset : self.offset + wf.BATCH_HEADER_BYTES]), 0,
                wal_id=self.wal_id, segment_no=self.no, offset=self.offset,
            )  # fmt: skip
            if header is None or header.batch_no != self.next_batch:
                return
            at = self.offset + wf.BATCH_HEADER_BYTES
            blob = memoryview(bytes(content[at : at + header.length]))
            records = wf.decode_batch(blob, header, offset=at)
            if records is None:
                return
            for record in records:
                if record.type == wf.DESTROY:
                    self.groups.pop(record.group, None)
                elif record.type not in (wf.TIP, wf.WITNESS):
                    self.groups.setdefault(record.group, DurableGroup()).apply(record)
            self.offset += wf.padded(wf.BATCH_HEADER_BYTES + header.length)
            self.next_batch += 1


_logs: WeakKeyDictionary[SimDisk, dict[str, _Log]] = WeakKeyDictionary()


def durable_groups(disk: SimDisk, directory: str) -> dict[Uid, DurableGroup]:
    """The groups of the log in `directory`, as they would be found after losing the power now.

    Not for keeping: it changes with the disk. Bytes on the platter only; damage ends the log.
    """
    logs = _logs.setdefault(disk, {})
    log = logs.get(directory)
    if log is None or log.rewrites != disk.rewrites:
        log = logs[directory] = _Log(disk.rewrites)
    log.read(disk, directory)
    return log.groups
