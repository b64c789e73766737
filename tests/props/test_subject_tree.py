"""`SubjectTree` against asking every pattern in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamd.subject_tree import SubjectTree
from streamd.subjects import collides, is_subset

TOKENS = st.sampled_from([b"a", b"b", b"*"])
PATTERNS = st.builds(
    lambda tokens, has_rest: b".".join([*tokens, b">"] if has_rest else tokens),
    st.lists(TOKENS, min_size=1, max_size=4),
    st.booleans(),
) | st.just(b">")


@given(st.lists(st.tuples(PATTERNS, st.integers(0, 3)), max_size=12), st.data(), PATTERNS)
def test_a_subject_tree_finds_the_values_that_a_scan_of_all_patterns_finds(pairs, data, asked):
    tree = SubjectTree()
    for pattern, value in pairs:
        tree.add(pattern, value)
    gone = data.draw(st.sets(st.integers(0, len(pairs) - 1))) if pairs else set()
    for at in gone:
        tree.remove(*pairs[at])
    left = [pair for at, pair in enumerate(pairs) if at not in gone]
    wanted = [value for pattern, value in left if collides(pattern, asked)]
    assert sorted(tree.overlapping(asked)) == sorted(wanted)
    wanted = [value for pattern, value in left if is_subset(asked, pattern)]
    assert sorted(tree.covering(asked)) == sorted(wanted)
    for pattern, value in left:
        tree.remove(pattern, value)
    assert tree.overlapping(b">") == []
    assert not tree._root.children  # nothing is left behind
