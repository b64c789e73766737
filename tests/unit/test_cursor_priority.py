"""Priority groups: overflow thresholds, priorities, the pinned client."""

from __future__ import annotations

import json

from tests.unit.consumer_bed import Bed

SECOND = 1_000_000_000


def req(**fields: object) -> bytes:
    return json.dumps({"group": "g", **fields}).encode()


def bed_with(policy: str, **config: object) -> Bed:
    bed = Bed()
    bed.create(priority_policy=policy, priority_groups=["g"], **config)
    return bed


def test_group_is_checked() -> None:
    bed = bed_with("overflow")
    assert bed.pull(b"1", reply=b"1").log == [b"400 Bad Request - Priority Group missing"]
    assert bed.pull(req(group="x"), reply=b"2").log == [b"400 Bad Request - Invalid Priority Group"]
    assert bed.pull(req(id="x"), reply=b"3").log == [
        b"400 Bad Request - Not a Pinned Client Priority consumer"
    ]
    assert bed.pull(req(priority=11), reply=b"4").log == [
        b"400 Bad Request - Priority must be between 0 and 9"
    ]


def test_overflow_serves_only_when_there_is_enough() -> None:
    bed = bed_with("overflow")
    spill = bed.pull(req(batch=5, min_pending=3), reply=b"spill")
    bed.store(b"a", b"a")
    assert spill.seqs() == []
    main = bed.pull(req(batch=1), reply=b"main")
    assert main.seqs() == [1]
    bed.store(b"a", b"a")
    assert spill.seqs() == [2]


def test_overflow_counts_what_is_to_be_sent_again() -> None:
    """Who asks for one that waits would else never see it again where nothing new comes."""
    bed = bed_with("overflow")
    bed.store(b"a", b"a")
    first = bed.pull(req(batch=2, min_pending=1), reply=b"first")
    assert first.seqs() == [1, 2]
    one = bed.pull(req(batch=5, min_pending=1), reply=b"one")
    two = bed.pull(req(batch=5, min_pending=2), reply=b"two")
    bed.ack(1, b"-NAK")
    assert (one.seqs(), two.seqs()) == ([1], [])


def test_lower_priority_numbers_go_first() -> None:
    bed = bed_with("prioritized")
    late = bed.pull(req(batch=2, priority=5), reply=b"late")
    first = bed.pull(req(batch=2, priority=1), reply=b"first")
    other = bed.pull(req(batch=2, priority=1), reply=b"other")
    bed.store(*[b"a"] * 5)
    assert (first.seqs(), other.seqs(), late.seqs()) == ([1, 3], [2, 4], [5])


def test_unpinned_by_hand_the_next_is_pinned() -> None:
    bed = bed_with("pinned_client")
    bed.store(*[b"a"] * 3)
    assert not bed.cursors["C"].unpin("admin")
    bed.pull(req(batch=1), reply=b"one")
    two = bed.pull(req(batch=1), reply=b"two")
    assert two.seqs() == []
    assert bed.cursors["C"].unpin("admin")
    assert bed.woken == [bed.cursors["C"]]
    bed.turn()
    assert two.seqs() == [2]
    assert [fields.get("reason") for _, fields in bed.advices] == [None, "admin", None]


def test_pinned_client_has_it_alone_until_it_is_late() -> None:
    bed = bed_with("pinned_client", priority_timeout=2 * SECOND)
    bed.store(*[b"a"] * 6)
    one = bed.pull(req(batch=2), reply=b"one")
    assert one.seqs() == [1, 2]
    pin_id = bed.cursors["C"].pinned_id
    assert {m[2] for m in one.msgs} == {b"NATS/1.0\r\nNats-Pin-Id: %b\r\n\r\n" % pin_id.encode()}
    two = bed.pull(req(batch=2), reply=b"two")
    assert two.seqs() == []
    assert bed.pull(req(id="wrong"), reply=b"w").log == [b"423 Nats-Pin-Id mismatch"]
    assert bed.pull(req(id=pin_id), reply=b"one").seqs() == [1, 2, 3]
    bed.advance(1900)
    assert two.seqs() == []
    bed.advance(200)
    assert two.seqs() == [4, 5]
    assert [kind for kind, _ in bed.advices] == [
        "consumer_pinned",
        "consumer_unpinned",
        "consumer_pinned",
    ]
    assert bed.advices[1][1]["reason"] == "timeout"
    assert bed.cursors["C"].pinned_id != pin_id


def test_a_client_that_gets_nothing_is_not_pinned() -> None:
    """A pull that no message fits into is told of no pin: nobody could name it, nor be served."""
    bed = bed_with("pinned_client")
    bed.store(*[b"a"] * 2)
    small = bed.pull(req(batch=1, max_bytes=1), reply=b"small")
    assert small.log == [b"409 Message Size Exceeds MaxBytes"]
    assert (bed.cursors["C"].pinned_id, bed.advices) == ("", [])
    assert bed.pull(req(batch=1), reply=b"one").seqs() == [1]
    assert bed.pull(req(batch=1), reply=b"two").seqs() == []
    assert [kind for kind, _ in bed.advices] == ["consumer_pinned"]


def test_a_pull_that_does_not_wait_is_answered_though_others_get_what_is_there() -> None:
    bed = bed_with("overflow")
    bed.store(*[b"a"] * 3)
    spill = bed.pull(req(batch=2, min_pending=9, no_wait=True), reply=b"spill")
    assert spill.log == [b"404 No Messages"]
    some = bed.pull(req(batch=3, min_pending=3, no_wait=True), reply=b"some")
    assert some.log == [b"1", b"404 No Messages"]
    pinned = bed_with("pinned_client")
    pinned.store(*[b"a"] * 3)
    assert pinned.pull(req(batch=1), reply=b"one").seqs() == [1]
    two = pinned.pull(req(batch=1, no_wait=True), reply=b"two")
    assert two.log == [b"404 No Messages"]
    assert pinned.cursors["C"].num_waiting == 0


def test_unpinned_while_it_waits_first_it_makes_way() -> None:
    """And is told so, that it may come again without its pin; so is a pin that nobody knows."""
    bed = bed_with("pinned_client")
    bed.store(b"a")
    bed.pull(req(batch=1), reply=b"one")
    pin_id = bed.cursors["C"].pinned_id
    one = bed.pull(req(batch=3, id=pin_id), reply=b"again")
    two = bed.pull(req(batch=1), reply=b"two")
    assert bed.cursors["C"].unpin("admin")
    bed.store(b"a")
    assert two.seqs() == [2]
    assert one.log == [b"423 Nats-Wrong-Pin-Id"]
    assert b"Nats-Pending-Messages: 3\r\n" in one.statuses[0]
    assert bed.cursors["C"].unpin("admin")
    bed.store(b"a")
    assert bed.pull(req(batch=1, id=pin_id), reply=b"old").log == [b"423 Nats-Wrong-Pin-Id"]
