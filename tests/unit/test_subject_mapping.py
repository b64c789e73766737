"""Subject mappings: what subjects become, which rules are refused and in which words, and weights.

The expected results were seen on a real nats-server; `tests/parity/test_mappings.py` asks one
again.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from streamd.config.account_options import MappingDestination, SubjectMapping
from streamd.subject_mapping import (
    SubjectMappingError,
    SubjectTransform,
    WeightedMappings,
    as_pattern,
    check,
    check_mapping,
    first_transform,
    fnv1a_32,
    mark_wildcards,
    reversed_import,
)

MAPPED = [
    ("s.*", "b.$1", "s.x", "b.x"),
    ("s.*", "b.{{wildcard(1)}}", "s.x", "b.x"),
    ("s.*", "b.{{ Wildcard ( 1 ) }}", "s.x", "b.x"),
    ("s.*", "b.$0", "s.x", "b.s"),
    ("s.*", "b.{{wildcard(-1)}}", "s.x", "b.s"),
    ("s.*", "b.$+1", "s.x", "b.x"),
    ("s.*", "b.$x", "s.x", "b.$x"),
    ("s.*", "b.x{{wildcard(1)}}", "s.x", "b.x{{wildcard(1)}}"),
    ("s.*", "b.{{wildcard(1)}}x", "s.x", "b.{{wildcard(1)}}x"),
    ("s.*", "b.{{}}", "s.x", "b.{{}}"),
    ("s.*", "b.100%", "s.x", "b.100%"),
    ("s.*", "b.{{x{{wildcard(1)}}", "s.x", "b.x"),
    ("s.*.*", "b.$2.c.$1", "s.x.y", "b.y.c.x"),
    ("s.*.*", "b.$2", "s.x.y", "b.y"),
    ("s9.*", "b.{{partition(10)}}", "s9.x", "b.1"),
    ("s10", "b.{{partition(10)}}", "s10", "b.1"),
    ("s1", "b.{{partition(10,0)}}", "s1", "b.9"),
    ("s2", "b.{{partition(10,2,1)}}", "s2", "b.1"),
    ("s11.>", "b.{{partition(10)}}.>", "s11.x.y", "b.1.x.y"),
    ("s.*.*", "b.{{partition(10,1,2)}}", "s.x.y", "b.2"),
    ("s.*.*", "b.{{Partition(10,2,1)}}", "s.x.y", "b.4"),
    ("s14.*.*", "b.{{partition(10,0)}}", "s14.x.y", "b.7"),
    ("s.*", "b.{{partition(0,1)}}", "s.x", "b.0"),
    ("s.*", "b.{{partition(-5,1)}}", "s.x", "b.4245442695"),
    ("s.*", "b.{{split(1,-)}}", "s.a-b", "b.a.b"),
    ("s.*", "b.{{split(1,-)}}", "s.-a--b-", "b.a.b"),
    ("s.*", "b.{{split(1,-)}}", "s.--a", "b..a"),
    ("s.*", "b.{{split(1,-)}}", "s.-", "b."),
    ("s.*", "b.{{split(1,)}}", "s.abc", "b.a.b.c"),
    ("s.*", "b.{{split(1,ab)}}", "s.xabyab", "b.x.y"),
    ("s.*", "b.{{split(1, -)}}", "s.a-b", "b.a.b"),
    ("s22.*", "b.{{split(0,-)}}", "s22.a-b", "b.s22"),
    ("s.*", "b.{{split(1,.)}}", "s.a-b", "b.{{split(1,.)}}"),
    ("s.*", "b.{{splitfromleft(1,3)}}", "s.12345", "b.123.45"),
    ("s.*", "b.{{SplitFromLeft(1,5)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{splitfromleft(1,0)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{splitfromleft(1,-1)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{splitfromright(1,3)}}", "s.12345", "b.12.345"),
    ("s.*", "b.{{splitFromRight(1,9)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{slicefromleft(1,3)}}", "s.1234567", "b.123.456.7"),
    ("s.*", "b.{{sliceFromLeft(1,3)}}", "s.123456", "b.123.456"),
    ("s.*", "b.{{slicefromleft(1,3)}}", "s.123", "b.123"),
    ("s.*", "b.{{slicefromleft(1,0)}}", "s.123", "b.123"),
    ("s.*", "b.{{slicefromright(1,3)}}", "s.1234567", "b.1.234.567"),
    ("s.*", "b.{{SliceFromRight(1,3)}}", "s.123456", "b.123.456"),
    ("s.*", "b.{{slicefromright(1,-3)}}", "s.123456", "b.123456"),
    ("s.*", "b.{{left(1,3)}}", "s.12345", "b.123"),
    ("s.*", "b.{{left(1,0)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{Left(1,9)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{right(1,3)}}", "s.12345", "b.345"),
    ("s.*", "b.{{right(1,-2)}}", "s.12345", "b.12345"),
    ("s.*", "b.{{Right(1,9)}}", "s.12345", "b.12345"),
    ("s", "b.{{random(1)}}.$x", "s", "b.0.$x"),
    ("s.>", "b.{{random(1)}}.>", "s.y.z", "b.0.y.z"),
    ("s.>", "b.>", "s.y.z", "b.y.z"),
    ("s.>", ">", "s.y.z", "y.z"),
    (">", "r.>", "a.b", "r.a.b"),
    ("", "r.>", "a", "r.a"),
    (">", ">", "a.b", "a.b"),
    ("s.*.>", "b.$1.>", "s.y.z.w", "b.y.z.w"),
    ("s.*.>", "b.>", "s.y.z.w", "b.z.w"),
    ("s.*", "b", "s.y", "b"),
    ("s.*", "", "s.y", "s.y"),
    ("s", "b", "s", "b"),
    ("s.*", "b.$1", "s.*", "b.*"),
    ("s.>", "b.>", "s.*.>", "b.*.>"),
]
UNMATCHED = [
    ("s.*", "b.$1", "s.x.y"),
    ("s.*", "b.$1", "s."),
    ("s.*", "b.$1", "s"),
    ("s.*", "b.$1", "s.>"),
    ("s.*", "b", "t.x"),
    ("s.*", "", "t.x"),
    ("s.>", "b.>", "s"),
    ("s.>", "b.>", "s..c"),
    ("s.>", "b.>", "s.a."),
    ("s", "b", "t"),
    ("s", "b.{{partition(3)}}", "t"),
    ("s.*", "b.{{left(1,2)}}", "s"),
]
DESTINATION = "invalid mapping destination: "
RANGE = DESTINATION + "wildcard index out of range in "
FEW = DESTINATION + "not enough arguments passed to the function in "
MANY = DESTINATION + "too many arguments passed to the function in "
MALFORMED = DESTINATION + "function argument is invalid or in the wrong format in "
UNKNOWN = DESTINATION + "unknown function in "
REFUSED = [
    ("a.*", "b.{{wildcard(2)}}", RANGE + "{{wildcard(2)}}: [2]"),
    ("a.*", "b.$2", RANGE + "$2: [2]"),
    ("a.>", "b.$1.>", RANGE + "$1: [1]"),
    ("a", "b.$1", RANGE + "$1"),
    ("a", "b.$0", RANGE + "$0"),
    ("a", "b.{{wildcard(1)}}", RANGE + "{{wildcard(1)}}"),
    ("a", "b.{{split(1,-)}}", RANGE + "{{split(1,-)}}"),
    ("a.*", "b.{{partition(3,2)}}", RANGE + "{{partition(3,2)}}: [2]"),
    ("a.>", "b.{{partition(3,1)}}.>", RANGE + "{{partition(3,1)}}: [1]"),
    ("a.*", "b.{{split(2,-)}}", RANGE + "{{split(2,-)}}: [2]"),
    ("a.*", "b.{{wildcard(9)}}.{{left(1)}}", RANGE + "{{wildcard(9)}}: [9]"),
    ("a.*", "b.{{wildcard()}}", FEW + "{{wildcard()}}"),
    ("a.*", "b.{{split(1)}}", FEW + "{{split(1)}}"),
    ("a.*", "b.{{splitfromleft(1)}}", FEW + "{{splitfromleft(1)}}"),
    ("a.*", "b.{{left()}}", FEW + "{{left()}}"),
    ("a.*", "b.{{random(1,2)}}", FEW + "{{random(1,2)}}"),
    ("a", "b.{{split(1)}}", FEW + "{{split(1)}}"),
    ("a.*", "b.{{wildcard(1,2)}}", MANY + "{{wildcard(1,2)}}"),
    ("a.*", "b.{{split(1,-,x)}}", MANY + "{{split(1,-,x)}}"),
    ("a.*", "b.{{left(1,2,3)}}", MANY + "{{left(1,2,3)}}"),
    ("a.*", "b.{{wildcard(x)}}", MALFORMED + "{{wildcard(x)}}"),
    ("a.*", "b.{{wildcard( )}}", MALFORMED + "{{wildcard( )}}"),
    ("a.*", "b.{{partition()}}", MALFORMED + "{{partition()}}"),
    ("a.*", "b.{{partition(x)}}", MALFORMED + "{{partition(x)}}"),
    ("a.*", "b.{{partition(3,x)}}", MALFORMED + "{{partition(3,x)}}"),
    ("a.*", "b.{{partition(3,)}}", MALFORMED + "{{partition(3,)}}"),
    ("a.*", "b.{{partition(2147483648)}}", MALFORMED + "{{partition(2147483648)}}"),
    ("a.*", "b.{{split(x,-)}}", MALFORMED + "{{split(x,-)}}"),
    ("a.*", "b.{{split(1,- -)}}", MALFORMED + "{{split(1,- -)}}"),
    ("a.*", "b.{{splitfromleft(1,x)}}", MALFORMED + "{{splitfromleft(1,x)}}"),
    ("a.*", "b.{{splitfromleft(x,1)}}", MALFORMED + "{{splitfromleft(x,1)}}"),
    ("a.*", "b.{{left(1,99999999999)}}", MALFORMED + "{{left(1,99999999999)}}"),
    ("a.*", "b.{{random()}}", MALFORMED + "{{random()}}"),
    ("a.*", "b.{{random(x)}}", MALFORMED + "{{random(x)}}"),
    ("a.*", "b.{{random(99999999999)}}", MALFORMED + "{{random(99999999999)}}"),
    ("a.*", "b.{{foo(1)}}", UNKNOWN + "{{foo(1)}}"),
    ("a.*", "b.{{foo(1)}}.*", UNKNOWN + "{{foo(1)}}"),
    ("a.>", "b.{{foo(1)}}", UNKNOWN + "{{foo(1)}}"),
    ("a.*", "b.{{x}}", UNKNOWN + "{{x}}"),
    ("a.*", "b.{{}}}", UNKNOWN + "{{}}}"),
    ("a.*", "b.{{WILDCARD(1)}}", UNKNOWN + "{{WILDCARD(1)}}"),
    ("a.*", "b.{{SPLITFROMLEFT(1,3)}}", UNKNOWN + "{{SPLITFROMLEFT(1,3)}}"),
    ("a.*", "b.{{SliceFRomLeft(1,1)}}", UNKNOWN + "{{SliceFRomLeft(1,1)}}"),
    ("a.*", "b.{{left(1)}}.{{foo()}}", UNKNOWN + "{{foo()}}"),
    ("a", "c d", DESTINATION + "invalid transform"),
    ("a", "c..d", DESTINATION + "invalid transform"),
    ("a.>", "b.>.c", DESTINATION + "invalid transform in c"),
    ("a.>", "b", "invalid subject"),
    ("a", "b.>", "invalid subject"),
    ("a.*", "b.*", "invalid subject"),
    ("a.*", "b.>", "invalid subject"),
    ("*", "{{wildcard(1)}}.>", "invalid subject"),
    ("a..b", "c", "invalid subject"),
    ("a.>.b", "c", "invalid subject"),
]
IMPORT_REFUSED = [
    ("s.*", "q", DESTINATION + "not using all of the token wildcard(s) in q"),
    ("s.*.*", "q.$1", DESTINATION + "not using all of the token wildcard(s) in q.$1"),
    (
        "s.*",
        "q.{{partition(3,1)}}",
        DESTINATION
        + "the only mapping function allowed for import transforms is {{Wildcard()}}"
        + " in {{partition(3,1)}}",
    ),
    (
        "s.*",
        "q.{{random(3)}}.$1",
        DESTINATION
        + "the only mapping function allowed for import transforms is {{Wildcard()}}"
        + " in {{random(3)}}",
    ),
]


@pytest.mark.parametrize(("source", "destination", "subject", "expected"), MAPPED)
def test_a_subject_becomes(source: str, destination: str, subject: str, expected: str) -> None:
    transform = SubjectTransform(source.encode(), destination.encode())
    assert transform.apply(subject.encode()) == expected.encode()
    assert transform.is_repeatable == ("random" not in destination)


@pytest.mark.parametrize(("source", "destination", "subject"), UNMATCHED)
def test_other_subjects_are_left_alone(source: str, destination: str, subject: str) -> None:
    assert SubjectTransform(source.encode(), destination.encode()).apply(subject.encode()) is None


@pytest.mark.parametrize(("source", "destination", "text"), REFUSED)
def test_a_rule_is_refused_in_the_peers_words(source: str, destination: str, text: str) -> None:
    with pytest.raises(SubjectMappingError) as refused:
        check(source.encode(), destination.encode())
    assert str(refused.value) == text


@pytest.mark.parametrize(("source", "destination", "text"), IMPORT_REFUSED)
def test_an_import_must_be_reversible(source: str, destination: str, text: str) -> None:
    check(source.encode(), destination.encode())
    with pytest.raises(SubjectMappingError) as refused:
        SubjectTransform(source.encode(), destination.encode(), is_import=True)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("source", "destination", "local", "remote"),
    [
        ("s.*", "q.*", "q.x", "s.x"),
        ("s.*", "q.$1", "q.x", "s.x"),
        ("s.*.*", "q.$2.{{wildcard(1)}}", "q.x.y", "s.y.x"),
        ("s.*.a.>", "q.$1.>", "q.x.y.z", "s.x.a.y.z"),
        ("s.>", "p.s.>", "p.s.x", "s.x"),
        ("s", "q", "q", "s"),
        ("s.*", "q.$1.$1", "q.x.x", "s.x"),
    ],
)
def test_an_import_is_reversed(source: str, destination: str, local: str, remote: str) -> None:
    back = reversed_import(source.encode(), destination.encode())
    assert back.apply(local.encode()) == remote.encode()


def test_wildcards_are_marked_and_made_patterns_again() -> None:
    assert mark_wildcards(b"a.*.b.*.>") == b"a.$1.b.$2.>"
    assert as_pattern(b"a.$2.{{ wildcard(1) }}.$x.>") == b"a.*.*.$x.>"


def test_the_hash_is_fnv_1a() -> None:
    assert fnv1a_32(b"") == 0x811C9DC5
    assert fnv1a_32(b"foobar") == 0xBF9CF968  # of the published test vectors


def test_chance_comes_from_the_source_that_was_given() -> None:
    asked: list[int] = []

    def below(count: int) -> int:
        asked.append(count)
        return count - 1

    transform = SubjectTransform(b"s", b"a.{{random(7)}}.{{random(-3)}}", below)
    assert transform.apply(b"s") == b"a.6.2" and asked == [7, 3]


# --- mappings of an account -----------------------------------------------------------------------


def rule(source: str, *destinations: tuple[str, int] | tuple[str, int, str]) -> SubjectMapping:
    return SubjectMapping(source, tuple(MappingDestination(*each) for each in destinations))


def counts(mappings: WeightedMappings, subject: bytes, count: int = 10_000) -> dict[bytes, float]:
    got = Counter(mappings.map(subject) or b"dropped" for _ in range(count))
    return {key: 100 * value / count for key, value in got.items()}


def test_weights_are_shares_and_the_rest_stays_on_the_source() -> None:
    below = random.Random(7).randrange
    got = counts(WeightedMappings([rule("a.*", ("b.$1", 20), ("c.$1", 30))], below), b"a.x")
    assert set(got) == {b"b.x", b"c.x", b"a.x"}
    assert abs(got[b"b.x"] - 20) < 2 and abs(got[b"c.x"] - 30) < 2


def test_the_rest_is_dropped_if_the_source_is_listed() -> None:
    below = random.Random(8).randrange
    got = counts(WeightedMappings([rule("a", ("a", 50), ("b", 25))], below), b"a")
    assert set(got) == {b"a", b"b", b"dropped"} and abs(got[b"dropped"] - 25) < 2


def test_destinations_of_the_own_cluster_stand_in_for_the_others() -> None:
    mapping = rule("a", ("b", 100), ("c", 100, "east"), ("d", 40, "west"))
    below = random.Random(9).randrange
    assert WeightedMappings([mapping], below).map(b"a") == b"b"
    assert WeightedMappings([mapping], below, cluster="north").map(b"a") == b"b"
    assert WeightedMappings([mapping], below, cluster="east").map(b"a") == b"c"
    got = counts(WeightedMappings([mapping], below, cluster="west"), b"a")
    assert set(got) == {b"a", b"d"} and abs(got[b"d"] - 40) < 2


def test_an_exact_source_goes_before_patterns_and_those_in_their_order() -> None:
    table = [rule("a.*", ("1.$1", 100)), rule("a.>", ("2.>", 100)), rule("a.x", ("3", 100))]
    mappings = WeightedMappings(table, random.Random(1).randrange)
    assert bool(mappings) and not WeightedMappings([], random.Random(1).randrange)
    subjects = (b"a.x", b"a.y", b"a.y.z", b"b", b"a", b"a..b")
    assert list(map(mappings.map, subjects)) == [b"3", b"1.y", b"2.y.z", b"b", b"a", b"a..b"]


def test_a_destination_of_no_weight_is_never_chosen() -> None:
    mappings = WeightedMappings([rule("a", ("b", 0), ("c", 100))], random.Random(1).randrange)
    assert {mappings.map(b"a") for _ in range(1000)} == {b"c"}


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (rule("a", ("b", 60), ("c", 60)), "total weight needs to be <= 100"),
        (rule("a", ("b", 101)), "individual weights need to be <= 100"),
        (rule("a", ("b", 10), ("b", 10)), 'duplicate entry for "b"'),
        (rule("a", ("b", 10, "x"), ("b", 10, "y")), 'duplicate entry for "b"'),
        (rule("a", ("", 100)), "a mapping destination is empty"),
        (rule("a", ("$1", 100)), RANGE + "$1"),
    ],
)
def test_a_mapping_is_refused(mapping: SubjectMapping, text: str) -> None:
    for attempt in (
        lambda: check_mapping(mapping),
        lambda: WeightedMappings([mapping], random.Random(1).randrange),
    ):
        with pytest.raises(SubjectMappingError) as refused:
            attempt()
        assert str(refused.value) == text


def test_weights_of_different_clusters_are_added_up_apart() -> None:
    check_mapping(rule("a", ("b", 100), ("c", 100, "x"), ("d", 100, "y")))


def test_first_matching_rule_decides_and_what_matches_none_is_left_out() -> None:
    apply = first_transform([(b"a.x", b""), (b"a.*", b"b.$1"), (b"c", b"d")])
    assert [apply(one) for one in (b"a.x", b"a.y", b"c", b"e")] == [b"a.x", b"b.y", b"d", None]
    assert first_transform([])(b"a") is None
