"""S4: what a majority holds at an index is the truth; who holds anything else has drifted."""

from __future__ import annotations

from streamd.node.integrity.consistency_check import Fingerprints, Verdict

THREE = ("a", "b", "c")


def test_equal_once_a_majority_has_spoken() -> None:
    fingerprints = Fingerprints("a")
    assert fingerprints.add(7, 10, "a", 111, THREE) is Verdict.OPEN
    assert fingerprints.add(7, 10, "b", 111, THREE) is Verdict.EQUAL
    assert fingerprints.latest(7) == (10, 111)


def test_a_differing_replica_learns_it_whichever_digest_comes_first() -> None:
    fingerprints = Fingerprints("a")
    assert fingerprints.add(7, 10, "b", 222, THREE) is Verdict.OPEN
    assert fingerprints.add(7, 10, "c", 222, THREE) is Verdict.OPEN
    assert fingerprints.add(7, 10, "a", 111, THREE) is Verdict.DRIFTED


def test_the_others_go_on_when_one_differs() -> None:
    fingerprints = Fingerprints("b")
    assert fingerprints.add(7, 10, "b", 222, THREE) is Verdict.OPEN
    assert fingerprints.add(7, 10, "a", 111, THREE) is Verdict.OPEN
    assert fingerprints.add(7, 10, "c", 222, THREE) is Verdict.EQUAL


def test_three_that_hold_three_things_are_split() -> None:
    fingerprints = Fingerprints("a")
    fingerprints.add(7, 10, "a", 1, THREE)
    fingerprints.add(7, 10, "b", 2, THREE)
    assert fingerprints.add(7, 10, "c", 3, THREE) is Verdict.SPLIT


def test_votes_of_different_indexes_are_not_mixed() -> None:
    fingerprints = Fingerprints("a")
    fingerprints.add(7, 10, "a", 1, THREE)
    assert fingerprints.add(7, 11, "b", 1, THREE) is Verdict.OPEN
    assert fingerprints.add(8, 10, "b", 1, THREE) is Verdict.OPEN


def test_a_learner_is_not_judged_and_does_not_judge() -> None:
    fingerprints = Fingerprints("a")
    fingerprints.add(7, 10, "d", 9, THREE)
    fingerprints.add(7, 10, "a", 1, THREE)
    assert fingerprints.add(7, 10, "b", 1, THREE) is Verdict.EQUAL
    learner = Fingerprints("d")
    assert learner.add(7, 10, "d", 9, THREE) is Verdict.OPEN


def _told(index: int, votes: dict[str, int], voters: tuple[str, ...] = THREE) -> Fingerprints:
    fingerprints = Fingerprints("a")
    for node_id, fingerprint in votes.items():
        fingerprints.add(7, index, node_id, fingerprint, voters)
    return fingerprints


def test_a_digest_is_disputed_while_as_many_voters_hold_another_one() -> None:
    five = ("a", "b", "c", "d", "e")
    assert _told(10, {"a": 1, "b": 2}).is_disputed(7, THREE)
    assert not _told(10, {"a": 1, "b": 1}).is_disputed(7, THREE)
    assert not _told(10, {"a": 1, "b": 2, "c": 1}).is_disputed(7, THREE)
    assert not _told(10, {"a": 1, "b": 2, "c": 1}, five).is_disputed(7, five)
    assert _told(10, {"a": 1, "b": 2, "c": 1, "d": 2}, five).is_disputed(7, five)
    assert not _told(10, {"a": 1, "d": 2}).is_disputed(7, THREE)  # of a learner
    assert not _told(10, {"b": 1, "c": 2}).is_disputed(7, THREE)  # nothing is known of us


def test_a_dispute_ends_when_digests_agree_again_or_the_differing_replica_begins_anew() -> None:
    fingerprints = _told(10, {"a": 1, "b": 2})
    fingerprints.add(7, 11, "a", 3, THREE)
    assert fingerprints.is_disputed(7, THREE)
    fingerprints.add(7, 11, "b", 3, THREE)
    assert not fingerprints.is_disputed(7, THREE)
    fingerprints = _told(10, {"a": 1, "b": 2})
    fingerprints.forgive(7, "c")
    assert fingerprints.is_disputed(7, THREE)
    fingerprints.forgive(7, "b")
    assert not fingerprints.is_disputed(7, THREE)


def test_an_earlier_equal_digest_still_counts_for_its_holder() -> None:
    fingerprints = _told(10, {"a": 1, "c": 1})
    fingerprints.forgive(7, "c")
    fingerprints.add(7, 10, "b", 2, THREE)
    assert not fingerprints.is_disputed(7, THREE)


def test_the_newest_comparison_says_who_agrees() -> None:
    """Of each other node by the newest checkpoint in common; one that only it had says nothing."""
    assert Fingerprints("a").agreement(7) == {}
    fingerprints = _told(10, {"a": 1, "b": 1, "c": 2})
    assert fingerprints.agreement(7) == {"b": True, "c": False}
    fingerprints.add(7, 11, "b", 3, THREE)
    assert fingerprints.agreement(7) == {"b": True, "c": False}
    fingerprints.add(7, 11, "c", 3, THREE)
    fingerprints.add(7, 11, "a", 3, THREE)
    assert fingerprints.agreement(7) == {"b": True, "c": True}


def test_old_checkpoints_are_forgotten() -> None:
    fingerprints = Fingerprints("a")
    for index in range(1, 50):
        fingerprints.add(7, index, "a", index, THREE)
    assert fingerprints.latest(7) == (49, 49)
    fingerprints.forget(7)
    assert fingerprints.latest(7) == (0, 0)
