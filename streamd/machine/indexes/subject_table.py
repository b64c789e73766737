"""`SubjectTable`: a row for each subject of a stream: how many messages it has, between which seqs.

A subject's first and last seq are bounds that are corrected when somebody asks (`lookup`), because
most deletes are never asked about.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from streamd.machine.indexes.columns import Columns
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.subject_names import SubjectNames
from streamd.subjects import Matcher
from streamd.types import Msg, Seq

# A subject's row: [first, last, count, block its local id belongs to, local id, seqs or None].
# first and last are exact if live, else a lower and an upper bound. Where seqs are listed, last is
# exact, and there is a list of more than one: of a million keys most have one.
FIRST, LAST, COUNT, ID_BLOCK, LOCAL_ID, SEQS = range(6)
SubjectRow = list[Any]
SEQ_LIST_MAX: Final = 256  # per-subject limits up to this keep a list of each subject's seqs


class IndexCache(NamedTuple):
    """Part of an index that the blocks say as well, as `index.db` has it."""

    names: list[bytes]
    firsts: bytes  # u64 each, as the next two
    lasts: bytes
    counts: bytes
    footer: bytes  # of the newest block; empty: it holds no message


class SubjectTable:
    """Subjects of one stream. Changed by `StreamIndex` and its `Removal`; `lookup` corrects
    bounds."""

    def __init__(self, live: LiveMessages) -> None:
        self.rows: dict[bytes, SubjectRow] = {}
        self.names = SubjectNames(self.rows)
        self.tracks_seqs = False
        self._live = live

    def count_of(self, subject: bytes) -> int:
        """Count the live messages of `subject`."""
        row = self.rows.get(subject)
        return int(row[COUNT]) if row is not None else 0

    # --- storing ----------------------------------------------------------------------------------

    def append(self, msgs: Sequence[Msg], first: Seq, block_no: int, columns: Columns) -> None:
        """Enter the subjects of messages with the seqs from `first` on, and append their ids to the
        columns of the block that holds them."""
        seq = first
        get = self.rows.get
        add_id = columns.subject_ids.append
        if not self.tracks_seqs:
            for subject, _, _ in msgs:
                row = get(subject)
                if row is None or row[3] != block_no:
                    row = self._enter(subject, row, seq, block_no, columns)
                row[1] = seq
                row[2] += 1
                add_id(row[4])
                seq += 1
            return
        for subject, _, _ in msgs:
            row = get(subject)
            if row is None or row[ID_BLOCK] != block_no:
                row = self._enter(subject, row, seq, block_no, columns)
            if row[COUNT]:
                if row[SEQS] is None:
                    row[SEQS] = [row[LAST]]
                row[SEQS].append(seq)
            row[LAST] = seq
            row[COUNT] += 1
            add_id(row[LOCAL_ID])
            seq += 1

    def _enter(
        self, subject: bytes, row: SubjectRow | None, seq: Seq, block_no: int, columns: Columns
    ) -> SubjectRow:
        """Give `subject` an id in the block, and a row if it has none."""
        ids = columns.local_ids
        local = ids.get(subject)
        if local is None:
            local = ids[subject] = len(columns.subjects)
            columns.added.append(subject)
        if row is None:
            row = self.rows[subject] = [seq, 0, 0, block_no, local, None]
            if self.names.is_asked:
                self.names.note(subject)
        else:
            row[ID_BLOCK] = block_no
            row[LOCAL_ID] = local
        return row

    # --- removal ----------------------------------------------------------------------------------

    def leave(self, subject: bytes, count: int, last: Seq) -> None:
        """Take out `count` messages of `subject` that are no longer live, `last` the last one."""
        row = self.rows[subject]
        row[COUNT] -= count
        if not row[COUNT]:
            del self.rows[subject]
        elif row[SEQS] is not None:
            row[SEQS] = list(filter(self._live.has, row[SEQS]))
            _note_bounds(row)
        elif row[COUNT] == 1 and row[LAST] > last and self._live.has(row[LAST]):
            row[FIRST] = row[LAST]  # else the next one to ask would have to look for it

    def leave_front(self, subject: bytes, count: int, last: Seq) -> None:
        """Take out the `count` oldest messages of `subject`; all of them are up to `last`."""
        row = self.rows[subject]
        row[COUNT] -= count
        if not row[COUNT]:
            del self.rows[subject]
        elif row[SEQS] is not None:
            del row[SEQS][:count]
            _note_bounds(row)
        elif row[COUNT] == 1 and row[LAST] > last and self._live.has(row[LAST]):
            row[FIRST] = row[LAST]

    def leave_one(self, subject: bytes, seq: Seq) -> None:
        """Take out the message `seq` of `subject`."""
        row = self.rows[subject]
        row[COUNT] -= 1
        if not row[COUNT]:
            del self.rows[subject]
        elif row[SEQS] is not None:
            row[SEQS].remove(seq)
            _note_bounds(row)
        elif row[COUNT] == 1 and row[LAST] > seq and self._live.has(row[LAST]):
            row[FIRST] = row[LAST]

    def clear(self) -> None:
        """Take out everything."""
        self.rows.clear()

    def keep_only(self, subject: bytes, seq: Seq) -> None:
        """Take out everything but the message `seq` of `subject`."""
        row = self.rows[subject]
        row[FIRST] = row[LAST] = seq
        row[COUNT] = 1
        row[SEQS] = None
        self.rows.clear()
        self.rows[subject] = row

    # --- which subjects match ---------------------------------------------------------------------

    # No pair is made of a name and its row: a million new tuples have the garbage collector look
    # at all that lives, over and over, which takes longer than all else.

    def rows_matching(self, matcher: Matcher | None) -> Collection[SubjectRow]:
        """Return the rows of the subjects that match."""
        rows = self.rows
        matcher = self.telling_apart(matcher)
        if matcher is None:
            return rows.values()
        if matcher.literal is None and self.names.all_begin_with(matcher.prefix):
            test = matcher.test
            return [row for name, row in rows.items() if test(name)]
        return [rows[name] for name in self.names_matching(matcher)]

    def names_matching(self, matcher: Matcher | None) -> Collection[bytes]:
        """Return the subjects that match."""
        rows = self.rows
        matcher = self.telling_apart(matcher)
        if matcher is None:
            return rows.keys()
        if matcher.literal is not None:
            return [matcher.literal] if matcher.literal in rows else []
        if self.names.all_begin_with(matcher.prefix):
            return list(filter(matcher.test, rows))
        named = filter(matcher.test, self.names.beginning_with(matcher.prefix))
        return [name for name in named if name in rows]

    def telling_apart(self, matcher: Matcher | None) -> Matcher | None:
        """Return `matcher`, or None if every subject there is matches."""
        if matcher is None or matcher.is_all or self.names.all_begin_with(matcher.whole):
            return None
        return matcher

    # --- the lists of seqs ------------------------------------------------------------------------

    def track_seqs(self, is_on: bool) -> bool:
        """Begin or end to keep the list of each subject's seqs. Returns True if the lists are to be
        filled now (`fill_seqs`)."""
        if is_on == self.tracks_seqs:
            return False
        self.tracks_seqs = is_on
        for row in self.rows.values():
            row[SEQS] = None
        return is_on

    def fill_seqs(self, messages: Iterable[tuple[Seq, bytes]]) -> None:
        """Fill the lists from all live messages, (seq, subject). Where every subject has one, as in
        a bucket that is to remember more from now on, nothing is read for it."""
        lists: dict[bytes, list[Seq]] = {
            name: []
            for name, row in self.rows.items()
            if row[COUNT] > 1 or not self._live.has(row[LAST])
        }
        if not lists:
            return
        for seq, subject in messages:
            if subject in lists:
                lists[subject].append(seq)
        for name, held in lists.items():
            row = self.rows[name]
            row[FIRST], row[LAST] = held[0], held[-1]
            row[SEQS] = held if len(held) > 1 else None

    # --- persistence ------------------------------------------------------------------------------

    def to_cache(self, footer: bytes) -> IndexCache:
        """Return the table, and beside it the footer of the newest block."""
        rows = list(self.rows.values())
        return IndexCache(
            list(self.rows),
            array("Q", [row[FIRST] for row in rows]).tobytes(),
            array("Q", [row[LAST] for row in rows]).tobytes(),
            array("Q", [row[COUNT] for row in rows]).tobytes(),
            footer,
        )

    def load(self, cache: IndexCache) -> None:
        """Take over `to_cache`."""
        names, firsts, lasts, counts, _ = cache
        table = zip(names, array("Q", firsts), array("Q", lasts), array("Q", counts), strict=True)
        self._replace({name: [f, z, n, 0, 0, None] for name, f, z, n in table})

    def rebuild(self, blocks: Iterable[tuple[Columns, bool]]) -> None:
        """Make the table anew from the columns of all blocks in order, each with True if all of its
        messages are live."""
        table: dict[bytes, SubjectRow] = {}
        is_live = self._live.has
        for columns, is_whole in blocks:
            names = list(columns.subjects)
            rows: list[SubjectRow | None] = [None] * len(names)  # by local id
            pairs = zip(columns.subject_ids, columns.seqs_between(0, len(columns)), strict=True)
            for local, seq in pairs:
                if not is_whole and not is_live(seq):
                    continue
                row = rows[local]
                if row is None:
                    row = table.get(names[local])
                    if row is None:
                        row = table[names[local]] = [seq, seq, 0, 0, 0, None]
                    rows[local] = row
                row[LAST] = seq
                row[COUNT] += 1
        self._replace(table)
        assert sum(row[COUNT] for row in table.values()) == self._live.count, self._live.count

    def _replace(self, rows: dict[bytes, SubjectRow]) -> None:
        self.rows = rows
        self.names = SubjectNames(rows)


def _note_bounds(row: SubjectRow) -> None:
    """Correct a subject's bounds after some, and not all, of its messages have left its list."""
    held = row[SEQS]
    row[FIRST], row[LAST] = held[0], held[-1]
    if len(held) == 1:
        row[SEQS] = None
