"""BatchStager: what is refused before it is logged, and that a batch leaves whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import limits
from streamd.errors import JsError
from streamd.node.stream_groups.atomic_batches import BatchBudget, BatchStager
from streamd.types import BatchLimits

CONFIG: dict[str, Any] = {"allow_atomic": True, "max_msg_size": 250}


def header_block(batch_id: str, seq: int) -> bytes:
    return f"NATS/1.0\r\nNats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: {seq}\r\n\r\n".encode()


class Publisher:
    """Publishes batch messages to a stager, one second apart."""

    def __init__(self, budget: BatchBudget | None = None) -> None:
        self.stager = BatchStager(budget)
        self.advices: list[tuple[str, dict[str, Any]]] = []
        self.now_ms = 1000

    def send(
        self,
        batch_id: str | None,
        seq: object = None,
        commit: str | None = None,
        *,
        payload: bytes = b"x",
        config: dict[str, Any] = CONFIG,
        **more: str,
    ) -> Any:
        fields = {
            "Nats-Batch-Id": batch_id,
            "Nats-Batch-Sequence": seq,
            "Nats-Batch-Commit": commit,
        } | {key.replace("_", "-"): value for key, value in more.items()}
        lines = [f"{key}: {value}\r\n" for key, value in fields.items() if value is not None]
        headers = ("NATS/1.0\r\n" + "".join(lines) + "\r\n").encode()
        return self.stager.stage(
            (b"t", headers, payload), config, now_ms=self.now_ms, advices=self.advices
        )

    def refused(self, *args: Any, **more: Any) -> int:
        outcome = self.send(*args, **more)
        assert isinstance(outcome, JsError), outcome
        return outcome.err_code


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def test_batch_leaves_whole_at_its_commit(publisher: Publisher) -> None:
    assert publisher.send("a", 1) is None
    assert publisher.send("b", 1) is None  # batches may be interleaved
    assert publisher.send("a", 2) is None
    batch_id, msgs = publisher.send("a", 3, "1", payload=b"last")
    assert (batch_id, len(msgs), msgs[-1][2]) == ("a", 3, b"last")
    assert publisher.refused("a", 4) == 10176  # over
    assert len(publisher.send("b", 2, "1")[1]) == 2
    assert publisher.stager.deadline_ms == 0


def test_commit_by_end_of_batch_is_not_stored_but_marks_the_last(publisher: Publisher) -> None:
    publisher.send("a", 1)
    publisher.send("a", 2)
    _, msgs = publisher.send("a", 3, "eob")
    assert len(msgs) == 2
    assert msgs[0][1].count(b"Nats-Batch-Commit") == 0
    assert msgs[1][1].endswith(b"Nats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n\r\n")
    assert publisher.refused("b", 1, "eob") == 10176


def test_gap_or_repeat_gives_the_batch_up(publisher: Publisher) -> None:
    for wrong in (3, 1, 0):
        publisher.send("a", 1)
        assert publisher.refused("a", wrong) == 10176
        assert publisher.refused("a", 2, "1") == 10176
        assert publisher.advices.pop() == (
            "batch_abandoned",
            {"batch": "a", "reason": "incomplete"},
        )
    assert publisher.refused("unknown", 2) == 10176
    assert publisher.advices == []


def test_framing_is_checked(publisher: Publisher) -> None:
    assert publisher.refused("a", 1, config={"allow_atomic": False}) == 10174
    for bad in (None, "x", -1):
        assert publisher.refused("a", bad) == 10175
    assert publisher.refused("x" * 65, 1) == 10179
    assert publisher.refused("a", 1, "2") == 10200
    any_size = {"allow_atomic": True}
    for level in ("99", "9" * 5000):
        assert publisher.refused("a", 1, config=any_size, Nats_Required_Api_Level=level) == 10185
    assert publisher.refused("a", 1, payload=b"x" * 300) == 10054
    assert publisher.refused("a", 1001) == 10199
    assert publisher.stager.deadline_ms == 0


def test_first_message_that_is_refused_may_be_told_as_a_batch_given_up(
    publisher: Publisher,
) -> None:
    assert publisher.refused("a", 1, Nats_Required_Api_Level="99") == 10185
    assert publisher.refused("b", 1, "zzz") == 10200  # by its client's own word
    assert publisher.refused("c", 1, "eob") == 10176
    assert publisher.refused("d", 2, "zzz") == 10176
    told = [(advice["batch"], advice["reason"]) for _, advice in publisher.advices]
    assert told == [("a", "unsupported"), ("c", "incomplete")]
    assert publisher.stager.deadline_ms == 0


def test_batches_end_where_they_are_no_longer_taken(publisher: Publisher) -> None:
    assert publisher.send("a", 1) is None
    assert publisher.refused("a", 2, "1", config={}) == 10174
    assert publisher.refused("a", 2, "1") == 10176


def test_batch_without_id_is_a_plain_message(publisher: Publisher) -> None:
    for batch_id in (None, ""):
        found, msgs = publisher.send(batch_id, 1)
        assert found == "" and len(msgs) == 1


def test_batch_of_the_largest_size(publisher: Publisher) -> None:
    for seq in range(1, limits.BATCH_MSGS_MAX):
        assert publisher.send("a", seq) is None
    assert len(publisher.send("a", limits.BATCH_MSGS_MAX, "1")[1]) == limits.BATCH_MSGS_MAX


def test_batch_of_the_largest_size_may_end_by_a_message_that_is_not_stored(
    publisher: Publisher,
) -> None:
    for seq in range(1, limits.BATCH_MSGS_MAX + 1):
        assert publisher.send("a", seq) is None
    _, msgs = publisher.send("a", limits.BATCH_MSGS_MAX + 1, "eob")
    assert len(msgs) == limits.BATCH_MSGS_MAX
    assert publisher.stager.deadline_ms == 0


def test_batch_goes_on_without_what_never_was_a_part_of_it(publisher: Publisher) -> None:
    publisher.send("a", 1)
    assert publisher.refused("a", 2, payload=b"x" * 300) == 10054
    assert publisher.refused("a", None) == 10175
    assert len(publisher.send("a", 2, "1")[1]) == 2
    assert publisher.advices == []


def test_gap_is_told_before_a_sequence_that_no_batch_has(publisher: Publisher) -> None:
    publisher.send("a", 1)
    assert publisher.refused("a", limits.BATCH_MSGS_MAX + 1) == 10176
    assert publisher.advices == [("batch_abandoned", {"batch": "a", "reason": "incomplete"})]


def test_open_batches_are_bounded_per_stream_and_server() -> None:
    budget = BatchBudget(BatchLimits(per_server_max=60))
    one, other = Publisher(budget), Publisher(budget)
    for at in range(limits.BATCHES_PER_STREAM_MAX):
        assert one.send(f"b{at}", 1) is None
    assert one.refused("more", 1) == 10210
    assert len(one.send("single", 1, "1")[1]) == 1  # needs no room
    for at in range(10):
        assert other.send(f"b{at}", 1) is None
    assert other.refused("more", 1) == 10210
    one.send("b0", 2, "1")
    assert other.send("more", 1) is None
    one.stager.clear()
    assert budget.left == 49


def test_the_bounds_are_what_the_server_allows() -> None:
    """Also where a run of messages is taken at once."""
    allowed = BatchLimits(per_stream_max=2, per_server_max=3, msgs_max=3, idle_ms_max=1500)
    budget = BatchBudget(allowed)
    one, other = Publisher(budget), Publisher(budget)
    assert one.send("a", 1) is None and one.send("b", 1) is None
    assert one.refused("c", 1) == 10210  # the stream's are two
    assert other.send("a", 1) is None
    assert other.refused("b", 1) == 10210  # the server's are three
    assert one.stager.deadline_ms == 1000 + 1500
    one.stager.expire(2500, one.advices)
    assert budget.left == 2 and other.stager.deadline_ms == 2500
    assert [one.send("a", seq) for seq in (1, 2, 3)] == [None] * 3
    refusal = one.send("a", 4)
    assert (refusal.err_code, refusal.description[-3:]) == (10199, ": 3")
    run = [(b"t", header_block("b", seq), b"x") for seq in range(1, 7)]
    one.send("b", 1)
    assert one.stager.stage_run(run, [b""] * 6, 1, CONFIG, now_ms=1000) == 3
    assert one.refused("b", 4) == 10199


def test_idle_batches_are_given_up(publisher: Publisher) -> None:
    publisher.send("a", 1)
    publisher.now_ms = 2000
    publisher.send("b", 1)
    publisher.now_ms = 3000
    publisher.send("a", 2)  # now b is the one longest idle
    assert publisher.stager.deadline_ms == 2000 + limits.BATCH_IDLE_MS_MAX
    publisher.stager.expire(2000 + limits.BATCH_IDLE_MS_MAX, publisher.advices)
    assert publisher.advices == [("batch_abandoned", {"batch": "b", "reason": "timeout"})]
    assert publisher.stager.deadline_ms == 3000 + limits.BATCH_IDLE_MS_MAX
    assert publisher.send("a", 3, "1") is not None


def test_staged_bytes_are_bounded(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 500)
    publisher.send("a", 1, payload=b"x" * 100)
    publisher.send("b", 1, payload=b"x" * 100)
    assert publisher.refused("a", 2, payload=b"x" * 150) == 10199
    assert publisher.send("b", 2, payload=b"x" * 150) is None


def test_staged_bytes_of_all_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred streams with half of their bytes each would be 3 GiB."""
    message_bytes = limits.BATCH_MSG_MEMORY_BYTES + 1 + len(header_block("a", 1))
    monkeypatch.setattr(limits, "BATCHES_BYTES_MAX", 3 * (message_bytes + 100) - 1)
    budget = BatchBudget()
    one, two, three = (Publisher(budget) for _ in range(3))
    for _ in range(2):
        for each in (one, two):
            assert each.send("a", 1, payload=bytes(100)) is None
        run = [(b"t", header_block("a", seq), bytes(100)) for seq in (2, 3)]
        assert one.stager.stage_run(run, [b"", b""], 0, CONFIG, now_ms=1) == 0
        assert three.send("a", 1, "1", payload=bytes(100)) is not None  # it does not wait
        assert two.refused("a", 2, payload=bytes(100)) == 10199
        assert two.advices.pop() == ("batch_abandoned", {"batch": "a", "reason": "large"})
        assert one.stager.stage_run(run, [b"", b""], 0, CONFIG, now_ms=1) == 1
        assert three.send("a", 1, payload=bytes(99)) is None
        assert three.refused("b", 1) == 10210
        for each in (one, three):
            each.stager.clear()
        assert budget.bytes_left == limits.BATCHES_BYTES_MAX
