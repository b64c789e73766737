"""What a filter costs: a key-value bucket has more subjects than anybody should look at."""

from __future__ import annotations

import pytest

from streamd.machine import commands
from streamd.machine.indexes.columns import ColumnsCache
from streamd.machine.indexes.subject_names import SubjectNames
from streamd.subjects import Matcher
from tests.unit.machine.box import Box


class Counting(Matcher):
    """A Matcher that counts how many subjects it was asked about."""

    __slots__ = ("asked",)

    def __init__(self, *patterns: bytes) -> None:
        super().__init__(patterns)
        self.asked = 0
        test = self.test

        def counted(subject: bytes) -> object:
            self.asked += 1
            return test(subject)

        self.test = counted


def bucket() -> Box:
    """100 keys; a second value of one of them is deleted."""
    box = Box(subjects=[">"])
    box.store(*[(b"$KV.B.user.%d" % i, b"", b"x") for i in range(100)])
    box.store((b"$KV.B.user.7", b"", b"y"))
    box.do(commands.DELETE_MSG, 101, False)
    return box


@pytest.mark.parametrize("patterns", [(b"$KV.B.>",), (b"$KV.>",), (b"x", b"$KV.B.user.>")])
def test_a_filter_for_all_that_is_there_asks_about_nothing(patterns: tuple[bytes, ...]) -> None:
    index, everything = bucket().machine.index, Counting(*patterns)
    assert index.lookup.count_from(1, everything) == index.lookup.count_from(0, everything) == 100
    assert index.lookup.count_from(50, everything) == 51
    assert index.lookup.last_seqs(everything) == list(range(1, 101))
    assert index.lookup.spread(everything)[0] == 100
    assert index.lookup.next_match(9, everything) == 9
    assert index.lookup.last_match(everything) == 100
    assert [loc[0] for loc in index.lookup.select(99, everything, 10, 10)[0]] == [99, 100]
    assert everything.asked == 0


def test_a_subject_that_comes_beside_them_is_told_apart() -> None:
    box, everything = bucket(), Counting(b"$KV.B.>")
    index = box.machine.index
    assert index.lookup.count_from(1, everything) == 100
    box.store((b"$KV.C.x", b"", b"x"), (b"$KV.B.y", b"", b"x"))
    assert (index.count, index.lookup.count_from(1, everything)) == (102, 101)
    assert 102 not in index.lookup.last_seqs(everything)
    again = box.restored().index
    assert again.lookup.count_from(1, everything) == 101


def test_a_watcher_may_be_there_before_the_keys() -> None:
    box, everything = Box(subjects=[">"]), Counting(b"$KV.B.>")
    assert box.machine.index.lookup.last_seqs(everything) == []
    box.store((b"$KV.B.x", b"", b"x"), (b"$KV.B.y", b"", b"x"))
    assert box.machine.index.lookup.count_from(1, everything) == 2
    assert everything.asked == 0


@pytest.mark.parametrize("pattern", [b">", b"$KV.>", b"$KV.B.user.*", b"$KV.*.user.7", b"none"])
def test_pages_of_counts_are_what_all_counts_are_cut_into(pattern: bytes) -> None:
    """Also when subjects came and went since the last page, and beyond the end."""
    box = bucket()
    index = box.machine.index
    for step in range(3):
        whole = sorted(index.lookup.counts_matching(Matcher([pattern])).items())
        pages = [index.lookup.counts_page(Matcher([pattern]), at, 7) for at in range(0, 140, 7)]
        assert {total for total, _ in pages} == {len(whole)}
        assert [item for _, page in pages for item in page.items()] == whole
        assert index.lookup.counts_page(Matcher([pattern]), (1 << 63) - 1, 7) == (len(whole), {})
        box.store((b"$KV.B.a%d" % step, b"", b"x"), (b"$KV.B.user.7", b"", b"y"))
        box.do(commands.DELETE_MSG, 20 + step, False)
        box.store((b"$KV.B.user.19", b"", b"back"))


def test_a_page_of_all_counts_brings_no_names_in_order_that_are() -> None:
    """The names of a million subjects, sorted anew for each of ten pages, held the loop."""
    index = bucket().machine.index
    index.lookup.counts_page(Matcher([b">"]), 0, 10)
    before = index.subjects.names.in_order()
    index.lookup.counts_page(Matcher([b">"]), 90, 10)
    assert index.subjects.names.in_order() is before


def test_names_with_a_prefix_follow_what_comes() -> None:
    subjects = dict.fromkeys([b"a.b.1", b"a.b.2"])
    names = SubjectNames(subjects)
    assert not names.is_asked
    assert names.all_begin_with(b"a.b.") and names.is_asked
    assert not names.all_begin_with(b"a.b.1")
    assert not names.all_begin_with(())
    for name in (b"a.c.1", b"b"):
        subjects[name] = None
        names.note(name)
    assert not names.all_begin_with((b"a.b.", b"a."))
    assert names.all_begin_with(b"")
    assert names.beginning_with(b"a.") == [b"a.b.1", b"a.b.2", b"a.c.1"]
    subjects[b"a.b.0"] = None
    names.note(b"a.b.0")
    assert names.beginning_with(b"a.b.") == [b"a.b.0", b"a.b.1", b"a.b.2"]


def test_the_last_of_a_subject_is_its_first_where_one_is_left() -> None:
    """Its second message is deleted, and the first one is far back: all blocks between were read
    to find it."""
    box = Box(block_bytes=500)
    box.put(b"a.x")
    for _ in range(10):
        box.store(*[(b"a.%d" % number, b"", b"x") for number in range(20)])
    box.do(commands.DELETE_MSG, box.put(b"a.x"), False)
    index = box.machine.index
    index.blocks.use_cache(ColumnsCache())
    box.blocks.footers.clear()
    assert index.lookup.last_of(b"a.x") == index.lookup.first_of(b"a.x") == 1
