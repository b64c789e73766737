"""`Locations.stretch` and the records it points at, against `Lookup.select`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.machine import commands
from streamd.store.blocks.record_format import decode_run
from tests.unit.machine.box import Box


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(
        st.lists(
            st.tuples(st.sampled_from((b"s.1", b"s.2", b"s.33")), st.integers(0, 2)), max_size=9
        ),
        max_size=8,
    ),
    deletes=st.lists(st.integers(1, 40), max_size=3),
    start=st.integers(1, 45),
    limit=st.integers(1, 50),
)
def test_a_stretch_that_decodes_is_what_select_finds(
    entries: list[list[tuple[bytes, int]]], deletes: list[int], start: int, limit: int
) -> None:
    """Whatever lengths lie in between: decoding either refuses, or gives the very messages."""
    box = Box(block_bytes=600)
    for entry in entries:
        if entry:
            box.store(*[(subject, b"", b"x" * size) for subject, size in entry])
    for seq in deletes:
        box.do(commands.DELETE_MSG, seq, False)
    index = box.machine.index
    found = index.locations.stretch(start, limit)
    if found is None:
        return
    seq, block_no, offset, length, count = found
    assert 1 <= count <= limit
    file = bytes(box.blocks.files[block_no])
    run = decode_run(file, offset, length=length, count=count)
    if run is None:
        return
    seqs, _, subjects, _ = run
    if seqs[0] != seq or seqs[-1] != seq + count - 1:
        return  # what the caller checks too
    locs, _ = index.lookup.select(start, None, count, 1000)
    assert list(seqs) == [loc[0] for loc in locs]
    assert list(subjects) == [index.locations.subject_at(each) for each in seqs]
