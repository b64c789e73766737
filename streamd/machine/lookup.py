"""Reading a stream's index: where messages are, which match, how many, since when.

The state lives here, in `IndexLookup`; `index.StreamIndex` adds what changes it. Everybody but the
stream's machine sees only these questions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from streamd import errors
from streamd.machine.base import HAS_HEADERS, LENGTH_MASK, ColumnSource, RecordCodec
from streamd.machine.columns import Block, Columns, ColumnsCache
from streamd.machine.seqset import SeqSet
from streamd.subjects import Matcher
from streamd.types import Msg, Seq

Loc = tuple[Seq, int, int, int]
"""Where a message is: (seq, block_no, offset, length of its record)."""

_SIZES_AT_ONCE: Final = 256  # mostly few are asked for
_UNSORTED_NAMES_MAX: Final = 100_000  # of subjects that came since somebody asked for some
_STALE_NAMES_MAX: Final = 1000  # subjects that are gone and still in the sorted list
NEAR_MSGS: Final = 4096  # looked at one after another before all subjects are asked
SEQ_LIST_MAX: Final = 256  # per-subject limits up to this keep a list of each subject's seqs

# A subject's row: [first, last, count, block its local id belongs to, local id, seqs or None].
# first and last are exact if live, else a lower and an upper bound.
FIRST, LAST, COUNT, ID_BLOCK, LOCAL_ID, SEQS = range(6)
SubjectRow = list[Any]

Rescan = Callable[[int, int], Columns]
"""(block_no, end_offset) -> the block's columns read from its records, if its footer is bad."""


class IndexLookup:
    """The messages of a stream, to be asked about."""

    def __init__(
        self,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int,
        is_memory: bool,
        first_seq: Seq = 1,
    ) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.count = 0
        self.bytes = 0
        self.digest = 0
        self.last_ts = 0
        self.deleted = SeqSet()  # not live, between first_seq and last_seq
        self.subjects: dict[bytes, SubjectRow] = {}
        self.blocks: list[Block] = [Block(1)]
        self.active = self.blocks[0]
        self.active.columns = Columns()
        self.rescan: Rescan | None = None
        self.tracks_seqs = False
        self.has_dead_blocks = False  # sealed ones, to be dropped before the entry ends
        self._codec = codec
        self._source = columns
        self.block_bytes = block_bytes  # from here on the next message begins another
        # What NATS counts for a message, from the length of its record: file 30 + subject +
        # payload (+ 4 + headers), memory 16 + all; a record is 32 + all.
        self._size_less = 16 if is_memory else 2
        self._header_extra = 0 if is_memory else 4
        # Names in order, once somebody asked for those with a prefix; and those that came since.
        self._sorted: list[bytes] = []
        self._unsorted: list[bytes] | None = None
        self._starts: list[Seq] = [0]  # first_seq of each block, for bisect
        self._ids: dict[bytes, int] = {}  # subject -> local id in the active block
        self._cache = ColumnsCache()
        self._cache_key = self._cache.key()
        self._just_made: list[Block] = []  # sealed by the last entry, with their columns

    def use_cache(self, cache: ColumnsCache) -> None:
        """Keep columns in `cache` from now on, together with other streams of this thread. Not from
        the start: recovery runs in another thread."""
        self._cache = cache
        self._cache_key = cache.key()

    # --- asking about a seq ---------------------------------------------------------------------

    def is_live(self, seq: Seq) -> bool:
        """True if `seq` is stored and not deleted."""
        return self.first_seq <= seq <= self.last_seq and (
            not self.deleted or seq not in self.deleted
        )

    def locate(self, seq: Seq) -> Loc | None:
        """Where the live message `seq` is; None if there is none."""
        if not self.is_live(seq):
            return None
        block = self._block_of(seq)
        columns = self._columns(block)
        at = columns.position(seq)
        return seq, block.block_no, columns.offsets[at], columns.lengths[at] & LENGTH_MASK

    def subject_at(self, seq: Seq) -> bytes:
        """The subject of the live message `seq`."""
        columns = self._columns(self._block_of(seq))
        subject: bytes = columns.subjects[columns.subject_ids[columns.position(seq)]]
        return subject

    def ts_at(self, seq: Seq) -> int:
        """When the live message `seq` was stored."""
        columns = self._columns(self._block_of(seq))
        return columns.base_ts + int(columns.ts_deltas[columns.position(seq)])

    def flags_at(self, seq: Seq) -> int:
        """The flags of the live message `seq` (machine.base: HAS_HEADERS ...)."""
        columns = self._columns(self._block_of(seq))
        return int(columns.lengths[columns.position(seq)]) & ~LENGTH_MASK

    def next_live(self, seq: Seq) -> Seq:
        """The first live seq >= `seq`; last_seq + 1 if there is none."""
        if seq <= self.first_seq:
            return self.first_seq
        if seq > self.last_seq:
            return self.last_seq + 1
        return self.deleted.next_absent(seq) if self.deleted else seq

    def seq_at_time(self, ts_ns: int) -> Seq:
        """The first live seq stored at or after `ts_ns`; last_seq + 1 if there is none."""
        if not self.count or ts_ns > self.last_ts:
            return self.last_seq + 1
        for block in self.blocks:
            if not block.count or block.last_ts < ts_ns or block.last_seq < self.first_seq:
                continue
            if block.first_ts >= ts_ns:
                return self.next_live(block.first_seq)
            columns = self._columns(block)
            at = bisect_left(columns.ts_deltas, ts_ns - columns.base_ts)
            return self.next_live(columns.seq_at(at))
        return self.last_seq + 1

    # --- asking about many ----------------------------------------------------------------------

    def select(
        self, start: Seq, matcher: Matcher | None, limit: int, scan_limit: int
    ) -> tuple[list[Loc], Seq]:
        """Live matching messages from `start` on, in order, at most `limit`, after looking at no
        more than about `scan_limit`. The second result is the seq up to which (exclusive) all was
        looked at: where to go on."""
        found: list[Loc] = []
        seq = max(start, self.first_seq)
        if matcher is not None and matcher.is_all:
            matcher = None
        if matcher is not None and seq <= self.last_seq and not self._may_match(matcher, seq):
            return found, self.last_seq + 1
        while seq <= self.last_seq and limit > 0 and scan_limit > 0:
            block = self._block_from(seq)
            if block is None:
                seq = self.last_seq + 1
                break
            if not block.live:
                seq = block.last_seq + 1
                continue
            columns = self._columns(block)
            low = columns.position(seq)
            high = min(len(columns), low + scan_limit)
            if matcher is None and not self._has_deleted(columns, low, high):
                high = min(high, low + limit)
                found += _run(columns, block.block_no, low, high)
                limit -= high - low
                scan_limit -= high - low
            else:
                had = len(found)
                stop = self._pick(columns, block.block_no, low, high, matcher, limit, found)
                limit -= len(found) - had
                scan_limit -= stop - low
                high = stop
            seq = columns.seq_at(high) if high < len(columns) else block.last_seq + 1
        return found, max(seq, start)

    def stretch(self, start: Seq, limit: int) -> tuple[Seq, int, int, int, int] | None:
        """Live messages from `start` on whose records seem to be of one length, one behind
        another: (first seq, block_no, offset, record length, count). None if there are none or
        they are hard to tell. Lengths in between are not looked at: who reads them must check.
        """
        seq = max(start, self.first_seq)
        block = self._block_from(seq) if seq <= self.last_seq else None
        if block is None or not block.live:
            return None
        columns = self._columns(block)
        if columns.seqs is not None:
            return None
        low = columns.position(seq)
        high = min(len(columns), low + limit)
        if self._has_deleted(columns, low, high):
            return None
        offsets = columns.offsets
        first = offsets[low]
        length = columns.lengths[low] & LENGTH_MASK
        good, bad = 1, high - low + 1  # that many fit; that many do not
        if offsets[high - 1] - first == (high - low - 1) * length:
            good = high - low
        else:
            while bad - good > 1:
                middle = (good + bad) // 2
                if offsets[low + middle - 1] - first == (middle - 1) * length:
                    good = middle
                else:
                    bad = middle
        return columns.seq_at(low), block.block_no, first, length, good

    def _pick(
        self,
        columns: Columns,
        block_no: int,
        low: int,
        high: int,
        matcher: Matcher | None,
        limit: int,
        found: list[Loc],
    ) -> int:
        """Collect live matching rows of low..high-1 until `limit` more are found; return the row
        after the last one looked at."""
        rows: Iterable[int] = range(low, high)
        if matcher is not None:
            rows = _matching_rows(columns, columns.wanted(matcher), low, high)
        offsets, lengths = columns.offsets, columns.lengths
        first_seq, deleted = self.first_seq, self.deleted
        has_deleted = len(deleted) > 0
        room = limit
        for at in rows:
            seq = columns.seq_at(at)
            if seq < first_seq or (has_deleted and seq in deleted):
                continue
            found.append((seq, block_no, offsets[at], lengths[at] & LENGTH_MASK))
            room -= 1
            if not room:
                return at + 1
        return high

    def next_match(self, start: Seq, matcher: Matcher | None) -> Seq:
        """The first live matching seq >= `start`; 0 if there is none."""
        if matcher is None or matcher.is_all:
            seq = self.next_live(start)
            return seq if seq <= self.last_seq else 0
        if matcher.literal is not None:
            row = self.subjects.get(matcher.literal)
            if row is None or row[LAST] < start:
                return 0
            if row[FIRST] >= start and self.is_live(row[FIRST]):
                return int(row[FIRST])
        found, after = self.select(start, matcher, 1, NEAR_MSGS)
        if not found and after <= self.last_seq:
            # Not near: the subjects may know how far it is.
            firsts = [(row[FIRST], row[LAST]) for _, row in self._rows(matcher)]
            ahead = [first for first, last in firsts if last >= after]
            if not ahead:
                return 0
            found, _ = self.select(max(after, min(ahead)), matcher, 1, 1 << 62)
        return found[0][0] if found else 0

    def last_match(self, matcher: Matcher | None, before: Seq | None = None) -> Seq:
        """The last live matching seq (below `before`, if given); 0 if there is none."""
        if not self.count:
            return 0
        if before is None or before > self.last_seq:
            if matcher is None or matcher.is_all:
                return max(self.deleted.prev_absent(self.last_seq), 0)
            if matcher.literal is not None:
                return self.last_of(matcher.literal)
            rows = [(row[LAST], name) for name, row in self._rows(matcher)]
            rows.sort(reverse=True)
            best = 0
            for last, name in rows:  # `last` is an upper bound, so a settled better one ends it
                if last <= best:
                    break
                best = max(best, self.last_of(name))
            return best
        if matcher is not None and matcher.is_all:
            matcher = None
        return self._search_back(before - 1, matcher)

    def last_of(self, subject: bytes) -> Seq:
        """The last live seq of `subject`; 0 if there is none."""
        row = self.subjects.get(subject)
        if row is None:
            return 0
        if not self.is_live(row[LAST]):
            row[LAST] = self._search_back(row[LAST] - 1, Matcher([subject]))
        return int(row[LAST])

    def first_of(self, subject: bytes) -> Seq:
        """The first live seq of `subject`; 0 if there is none."""
        row = self.subjects.get(subject)
        if row is None:
            return 0
        if not self.is_live(row[FIRST]):
            if row[COUNT] == 1:
                row[FIRST] = self.last_of(subject)
            else:
                found, _ = self.select(row[FIRST] + 1, Matcher([subject]), 1, 1 << 62)
                row[FIRST] = found[0][0]
        return int(row[FIRST])

    def count_of(self, subject: bytes) -> int:
        """How many live messages `subject` has."""
        row = self.subjects.get(subject)
        return int(row[COUNT]) if row is not None else 0

    def subjects_matching(self, matcher: Matcher | None) -> list[tuple[bytes, Seq, Seq, int]]:
        """(subject, first seq, last seq, count) of every matching subject with messages."""
        return [
            (name, self.first_of(name), self.last_of(name), row[COUNT])
            for name, row in self._rows(matcher)
        ]

    def subject_counts(self, matcher: Matcher | None) -> list[tuple[bytes, int]]:
        """(subject, count) of every matching subject: cheaper than `subjects_matching`."""
        return [(name, row[COUNT]) for name, row in self._rows(matcher)]

    def last_seqs(self, matcher: Matcher | None) -> list[Seq]:
        """The last seq of every matching subject, ascending."""
        return sorted(self.last_of(name) for name, _ in self._rows(matcher))

    def count_from(self, seq: Seq, matcher: Matcher | None) -> int:
        """How many live matching messages have a seq >= `seq`."""
        if seq > self.last_seq:
            return 0
        if matcher is None or matcher.is_all:
            if seq <= self.first_seq:
                return self.count
            return self.count - (seq - self.first_seq - self.deleted.count_below(seq))
        matching = 0
        above = 0  # messages of subjects that lie wholly at or above seq
        is_split = False  # some subject lies on both sides
        for _, row in self._rows(matcher):
            matching += row[COUNT]
            if row[FIRST] >= seq:
                above += row[COUNT]
            elif row[LAST] >= seq:
                is_split = True
        if not is_split:
            return above
        if self.last_seq - seq <= seq - self.first_seq:
            return self._count_between(seq, self.last_seq, matcher)
        return matching - self._count_between(self.first_seq, seq - 1, matcher)

    def _count_between(self, first: Seq, last: Seq, matcher: Matcher) -> int:
        total = 0
        for block in self.blocks:
            if not block.live or block.last_seq < first or block.first_seq > last:
                continue
            columns = self._columns(block)
            low, high = columns.position(max(first, self.first_seq)), columns.position(last + 1)
            wanted = columns.wanted(matcher)
            if not wanted:
                continue
            if not self._has_deleted(columns, low, high):
                ids = columns.subject_ids[low:high]
                if len(wanted) == 1:
                    total += ids.count(next(iter(wanted)))
                else:
                    total += sum(map(wanted.__contains__, ids))
            else:
                total += sum(
                    self.is_live(columns.seq_at(at))
                    for at in _matching_rows(columns, wanted, low, high)
                )
        return total

    def deleted_ranges(self) -> Iterator[tuple[Seq, Seq]]:
        """Deleted seqs between first_seq and last_seq, as ascending inclusive ranges."""
        return self.deleted.ranges()

    def live_seqs(self, first: Seq, last: Seq) -> Iterator[Seq]:
        """Live seqs in first..last inclusive, ascending."""
        seq = self.next_live(first)
        last = min(last, self.last_seq)
        if not self.deleted:
            yield from range(seq, last + 1)
            return
        while seq <= last:
            yield seq
            seq = self.next_live(seq + 1)

    def live_subjects(self) -> Iterator[tuple[Seq, bytes]]:
        """(seq, subject) of every live message, in order. Walks everything: rare."""
        seq = self.first_seq
        while seq <= self.last_seq:
            rows, seq = self.rows_from(seq, 1 << 62)
            yield from rows

    def rows_from(self, start: Seq, most: int) -> tuple[list[tuple[Seq, bytes]], Seq]:
        """(seq, subject) of the live ones among the `most` stored messages from `start` on, of one
        block at most; and the seq where to go on."""
        seq = max(start, self.first_seq)
        block = self._block_from(seq) if seq <= self.last_seq else None
        if block is None:
            return [], self.last_seq + 1
        if not block.live:
            return [], block.last_seq + 1
        columns = self._columns(block)
        low = columns.position(seq)
        high = min(len(columns), low + most)
        subjects = map(columns.subjects.__getitem__, columns.subject_ids[low:high])
        rows = list(zip(columns.seqs_between(low, high), subjects, strict=True))
        if self._has_deleted(columns, low, high):
            rows = [row for row in rows if self.is_live(row[0])]
        return rows, columns.seq_at(high) if high < len(columns) else block.last_seq + 1

    def live_sizes(self) -> Iterator[tuple[Seq, int]]:
        """(seq, what it counts in `bytes`) of every live message, in order."""
        seq = self.first_seq
        less, extra = self._size_less, self._header_extra
        while seq <= self.last_seq:
            block = self._block_from(seq)
            if block is None:
                return
            columns = self._columns(block)
            low = columns.position(seq)
            high = min(len(columns), low + _SIZES_AT_ONCE)
            seqs = columns.seqs_between(low, high)
            has_deleted = self._has_deleted(columns, low, high)
            for seq, length in zip(seqs, columns.lengths[low:high], strict=True):
                if has_deleted and not self.is_live(seq):
                    continue
                if length > LENGTH_MASK:
                    more = extra if length & HAS_HEADERS else 0
                    yield seq, (length & LENGTH_MASK) - less + more
                else:
                    yield seq, length - less
            seq += 1

    def spread(self, matcher: Matcher | None) -> tuple[int, Seq, Seq]:
        """How many live messages match, and seqs between which all of them lie: (count, first,
        last)."""
        if matcher is None or matcher.is_all:
            return self.count, self.first_seq, self.last_seq
        rows = [row for _, row in self._rows(matcher)]
        if not rows:
            return 0, self.last_seq + 1, self.last_seq
        return (
            sum(row[COUNT] for row in rows),
            max(self.first_seq, min(row[FIRST] for row in rows)),
            max(row[LAST] for row in rows),
        )

    def size_as_stored(self, msg: Msg) -> int:
        """What `msg` will count in `bytes`."""
        subject, headers, payload = msg
        extra = self._header_extra if headers else 0
        fixed = 32 - self._size_less
        return fixed + len(subject) + len(headers) + len(payload) + extra

    def size_of(self, seq: Seq) -> int:
        """What the live message `seq` counts in `bytes`."""
        columns = self._columns(self._block_of(seq))
        length = columns.lengths[columns.position(seq)]
        extra = self._header_extra if length & HAS_HEADERS else 0
        return int(length & LENGTH_MASK) - self._size_less + extra

    def crc_at(self, seq: Seq) -> int:
        """What the record of the live message `seq` ends with."""
        columns = self._columns(self._block_of(seq))
        crc: int = columns.crcs[columns.position(seq)]
        return crc

    def seq_at_place(self, block_no: int, offset: int) -> Seq:
        """The message whose record begins at `offset` of a block of this index."""
        columns = self._columns(next(block for block in self.blocks if block.block_no == block_no))
        return columns.seq_at(bisect_left(columns.offsets, offset))

    def columns_of(self, block: Block) -> Columns:
        """The columns of a block of this index."""
        return self._columns(block)

    # --- below ----------------------------------------------------------------------------------

    def _block_of(self, seq: Seq) -> Block:
        """The block that holds the stored `seq`."""
        return self.blocks[bisect_right(self._starts, seq) - 1]

    def _block_from(self, seq: Seq) -> Block | None:
        """The block with the first stored seq >= `seq`."""
        at = max(bisect_right(self._starts, seq) - 1, 0)
        while at < len(self.blocks):
            block = self.blocks[at]
            if block.count and block.last_seq >= seq:
                return block
            at += 1
        return None

    def _columns(self, block: Block) -> Columns:
        """The columns of `block`, from memory or its footer."""
        if block.columns is not None:
            return block.columns
        columns = self._cache.get(self._cache_key, block.block_no)
        if columns is None:
            try:
                columns = self._read_columns(block)
            except errors.CorruptionError as err:
                err.block_no = block.block_no
                raise
            self._cache.put(self._cache_key, block.block_no, columns)
        return columns

    def _read_columns(self, block: Block) -> Columns:
        try:
            view = self._codec.decode_footer(self._source.load_footer(block.block_no))
        except errors.CorruptionError:
            # The footer is a copy of what the records say, and each record has its own crc.
            if self.rescan is None:
                raise
            columns = self.rescan(block.block_no, block.end_offset)
        else:
            columns = Columns.from_view(view)
        if len(columns) != block.count:
            raise errors.CorruptionError(
                f"block {block.block_no}: {len(columns)} messages, expected {block.count}"
            )
        return columns

    def _has_deleted(self, columns: Columns, low: int, high: int) -> bool:
        """True if any row of low..high-1 is not live."""
        if low >= high:
            return False
        first = columns.seq_at(low)
        if first < self.first_seq:
            return True
        return bool(self.deleted) and self.deleted.has_any(first, columns.seq_at(high - 1))

    def _rows(self, matcher: Matcher | None) -> Iterable[tuple[bytes, SubjectRow]]:
        if matcher is None or matcher.is_all:
            return self.subjects.items()
        if matcher.literal is not None:
            row = self.subjects.get(matcher.literal)
            return [] if row is None else [(matcher.literal, row)]
        names: Iterable[bytes] = self.subjects
        if matcher.prefix:
            names = self._named(matcher.prefix)
        rows = self.subjects
        return [(name, rows[name]) for name in filter(matcher.test, names) if name in rows]

    def _note_name(self, name: bytes) -> None:
        """A subject is there that was not, or not always."""
        assert self._unsorted is not None
        if len(self._unsorted) < _UNSORTED_NAMES_MAX:
            self._unsorted.append(name)
        else:
            self._sorted, self._unsorted = [], None  # nobody seems to ask any more

    def _named(self, prefix: bytes) -> list[bytes]:
        """All subjects that begin with `prefix`, which ends with a dot; and some that were."""
        names, new = self._sorted, self._unsorted
        if new is None or len(names) + len(new) > 2 * len(self.subjects) + _STALE_NAMES_MAX:
            names, self._unsorted = sorted(self.subjects), []
        elif new:
            names += new
            names.sort()  # two runs: hardly more than a merge
            names = list(dict.fromkeys(names))
            self._unsorted = []
        self._sorted = names
        return names[bisect_left(names, prefix) : bisect_left(names, prefix[:-1] + b"/")]

    def _may_match(self, matcher: Matcher, start: Seq) -> bool:
        """False if surely nothing from `start` on matches (asked of literal filters only)."""
        if matcher.literal is None:
            return True
        row = self.subjects.get(matcher.literal)
        return row is not None and row[LAST] >= start

    def _search_back(self, seq: Seq, matcher: Matcher | None) -> Seq:
        """The last live matching seq <= `seq`; 0 if there is none."""
        for block in reversed(self.blocks):
            if not block.live or block.first_seq > seq:
                continue
            if block.last_seq < self.first_seq:
                break
            columns = self._columns(block)
            ids = columns.subject_ids
            wanted = None if matcher is None else columns.wanted(matcher)
            if wanted is not None and not wanted:
                continue
            for at in range(columns.position(seq + 1) - 1, -1, -1):
                if wanted is None or ids[at] in wanted:
                    found = columns.seq_at(at)
                    if self.is_live(found):
                        return found
        return 0


def _run(columns: Columns, block_no: int, low: int, high: int) -> Iterable[Loc]:
    """Locations of rows low..high-1, all live: no Python code per message."""
    lengths: Any = columns.lengths[low:high]
    if columns.has_flags:
        lengths = [length & LENGTH_MASK for length in lengths]
    return zip(
        columns.seqs_between(low, high),
        repeat(block_no),
        columns.offsets[low:high],
        lengths,
        strict=False,
    )


def _matching_rows(columns: Columns, wanted: frozenset[int], low: int, high: int) -> Iterator[int]:
    """Rows of low..high-1 whose subject id is in `wanted`."""
    ids = columns.subject_ids
    if not wanted:
        return
    if len(wanted) == 1:
        (local,) = wanted
        at = low
        while True:
            try:
                at = ids.index(local, at, high)
            except ValueError:
                return
            yield at
            at += 1
    if len(wanted) == len(columns.subjects):
        yield from range(low, high)
        return
    for at, local in enumerate(ids[low:high], low):
        if local in wanted:
            yield at
