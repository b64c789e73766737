"""The short ways of atomic batches decide as the long ones do, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.streams import publish
from streamd.node.stream_groups.atomic_batches import BatchStager
from tests.unit.machine.box import Box

CONFIG: dict[str, Any] = {"allow_atomic": True, "max_msg_size": 300}


def message(seq: int, *lines: str, batch: str = "b", payload: bytes = b"x") -> Any:
    whole = ["NATS/1.0", f"Nats-Batch-Id: {batch}", f"Nats-Batch-Sequence: {seq}", *lines]
    return b"t.a", ("\r\n".join(whole) + "\r\n\r\n").encode(), payload


RUNS: dict[str, list[Any]] = {
    "plain": [message(n) for n in range(1, 6)],
    "commit inside": [message(1), message(2), message(3, "Nats-Batch-Commit: 1"), message(4)],
    "gap": [message(1), message(2), message(4)],
    "two batches": [message(1), message(1, batch="c"), message(2), message(2, batch="c")],
    "too big": [message(1), message(2), message(3, payload=b"x" * 300), message(4)],
    "api level": [message(1), message(2), message(3, "Nats-Required-Api-Level: 99")],
    "second sequence": [message(1), message(2, "Nats-Batch-Sequence: 9")],
    "too many": [message(n) for n in range(1, limits.BATCH_MSGS_MAX + 3)],
}


@pytest.mark.parametrize("name", RUNS)
def test_staging_a_run_is_staging_each(name: str) -> None:
    def state(stager: BatchStager) -> Any:
        batches = {key: (one.msgs, one.byte_count) for key, one in stager._batches.items()}
        return batches, stager._byte_count, stager.deadline_ms

    msgs = RUNS[name]
    one_by_one, in_runs = BatchStager(), BatchStager()
    wanted: list[Any] = []
    found: list[Any] = []
    for msg in msgs:
        wanted.append(one_by_one.stage(msg, CONFIG, now_ms=5, advices=[]))
    at = taken = 0
    while at < len(msgs):
        until = in_runs.stage_run(msgs, [b""] * len(msgs), at, CONFIG, now_ms=5)
        if until > at:
            found += [None] * (until - at)
            taken += until - at
            at = until
            continue
        found.append(in_runs.stage(msgs[at], CONFIG, now_ms=5, advices=[]))
        at += 1
    assert [_shown(each) for each in found] == [_shown(each) for each in wanted]
    assert state(in_runs) == state(one_by_one)
    assert taken  # else this test compares nothing


def _shown(result: Any) -> Any:
    return result.err_code if isinstance(result, errors.JsError) else result


SLOW = [("KV-Operation: PURGE",), ("Nats-Msg-Id:",), ("Nats-Msg-Id:",)]


@pytest.mark.parametrize(
    "lines",
    [
        [(), ("Nats-Msg-Id: a",), ("K: v",), ("Nats-Msg-Id: b", "K: v")],
        [("Nats-Msg-Id: a",), ("Nats-Msg-Id: a",)],
        [("Nats-Msg-Id: seen",)],
        [("Nats-Msg-Id: KV-Operation: PURGE",), ("Nats-Msg-Id: x", "KV-Operation: PURGE")],
        [("Nats-Msg-Id: a",), ("Nats-Rollup: sub",)],
        [(), ("Nats-Expected-Last-Sequence: 1",)],
        [("Nats-Msg-Id:  spaced ",), ("Nats-Msg-Id: spaced",)],
        [(), ("Note: Nats-Msg-Id: z",), ("Nats-Msg-Id: z",)],
        SLOW,
    ],
)
def test_the_short_way_decides_as_the_long_one(lines: list[tuple[str, ...]]) -> None:
    """Each batch twice, into equal streams: once with another header first, which the short way
    leaves to the long one."""
    outcomes = []
    for is_short in (True, False):
        msgs = [message(at + 1, *some) for at, some in enumerate(lines)]
        if not is_short:
            msgs = [
                (subject, headers.replace(b"NATS/1.0\r\n", b"NATS/1.0\r\nA: 1\r\n"), payload)
                for subject, headers, payload in msgs
            ]
        assert (len(publish.simple_batch_ids(msgs, 1000)) > 0) == (is_short and lines != SLOW)
        box = Box(duplicate_window=10**12)
        box.do(commands.STORE, [(b"t.z", b"NATS/1.0\r\nNats-Msg-Id: seen\r\n\r\n", b"")])
        outcome = _shown(box.do(commands.STORE_BATCH, "b", msgs))
        machine = box.machine
        state = machine.state()
        state.pop("bytes")
        outcomes.append((outcome, state, machine.last_msg_id, machine.content.dedupe.to_state()))
    assert outcomes[0] == outcomes[1]
