"""Subjects: validity, matching and the relations between patterns, by example."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd import subjects
from streamd.subjects import (
    Matcher,
    collides,
    is_literal,
    is_subset,
    is_valid,
    is_valid_literal,
    matches,
)


@pytest.mark.parametrize("subject", [b"a", b"a.b", b"a.*", b"*.b", b">", b"a.>", b"foo*", b">a.b"])
def test_valid_subjects(subject):
    assert is_valid(subject)


@pytest.mark.parametrize(
    "subject",
    [b"", b".", b"a.", b".a", b"a..b", b"a b", b"a\tb", b"a\r", b">.a", b"a.>.b", b"a\x0c"],
)
def test_invalid_subjects(subject):
    assert not is_valid(subject)


def test_a_token_that_only_contains_a_wildcard_is_text():
    assert is_literal(b"foo*.b>")
    assert is_valid_literal(b"foo*")
    assert not is_valid_literal(b"foo.*")
    assert not matches(b"foo*", b"foobar")


@pytest.mark.parametrize(
    ("pattern", "subject", "wanted"),
    [
        (b"a.b", b"a.b", True),
        (b"a.*", b"a.b", True),
        (b"a.*", b"a.b.c", False),
        (b"a.*", b"a", False),
        (b"a.>", b"a.b.c", True),
        (b"a.>", b"a", False),
        (b">", b"a", True),
        (b"*.*", b"a.b", True),
        (b"*", b"a.b", False),
    ],
)
def test_matches(pattern, subject, wanted):
    assert matches(pattern, subject) is wanted


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (b"a.*", b"*.b", True),
        (b"a.>", b"a", False),
        (b"a.>", b"a.*.c", True),
        (b"a.b", b"a.c", False),
        (b">", b"a", True),
        (b"a.*", b"a.b.c", False),
    ],
)
def test_collides_both_ways(a, b, wanted):
    assert collides(a, b) is wanted
    assert collides(b, a) is wanted


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (b"a.b", b"a.*", True),
        (b"a.*", b"a.b", False),
        (b"a.>", b"a.*", False),
        (b"a.*", b"a.>", True),
        (b"a.*.c", b"a.>", True),
        (b"a", b"a.>", False),
        (b">", b"*", False),
        (b"*", b">", True),
    ],
)
def test_is_subset(a, b, wanted):
    assert is_subset(a, b) is wanted


def test_matcher_knows_when_it_is_all_or_one_literal():
    assert Matcher([]).is_all and Matcher([]).matches(b"x.y")
    assert Matcher([b"a", b">"]).is_all
    assert Matcher([b"a.b"]).literal == b"a.b"
    assert Matcher([b"a.*"]).literal is None
    matcher = Matcher([b"a.*", b"c"])
    assert matcher.matches(b"a.b") and matcher.matches(b"c") and not matcher.matches(b"d")
    assert pickle.loads(pickle.dumps(matcher)).patterns == matcher.patterns


@pytest.mark.parametrize(
    ("patterns", "prefix"),
    [
        ([b"a.b.*"], b"a.b."),
        ([b"a.b.>"], b"a.b."),
        ([b"a.b"], b"a."),
        ([b"a"], b""),
        ([b"*.a"], b""),
        ([b"a.*.c"], b"a."),
        ([b"a.b.c", b"a.b.*"], b"a.b."),
        ([b"a.b.c", b"a.bb.*"], b"a."),
        ([b"a.b.c", b"a"], b""),
        ([b">"], b""),
        ([], b""),
    ],
)
def test_the_common_prefix_of_all_matches(patterns, prefix):
    assert Matcher(patterns).prefix == prefix


TOKENS = st.sampled_from([b"a", b"b", b"ab", b"+", b"(", b"a\n", b"$K", b"a*"])
NAMES = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
WILD = st.tuples(
    st.lists(st.one_of(TOKENS, st.just(b"*")), min_size=1, max_size=3), st.booleans()
).map(lambda made: b".".join([*made[0], b">"] if made[1] else made[0]))


@pytest.mark.parametrize("regex_max", [64, 0])
@given(st.lists(WILD, max_size=4), st.lists(NAMES | WILD, max_size=20))
def test_a_matcher_says_what_its_patterns_say(regex_max, patterns, names):
    """Few patterns, or many. A name may read like a pattern: it is text."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subjects, "_REGEX_PATTERNS_MAX", regex_max)
        matcher = Matcher(patterns)
    want = [not patterns or any(matches(pattern, name) for pattern in patterns) for name in names]
    assert [matcher.matches(name) for name in names] == want
    assert matcher.count(names) == sum(want)
    assert all(n.startswith(matcher.prefix) for n, fits in zip(names, want, strict=True) if fits)
