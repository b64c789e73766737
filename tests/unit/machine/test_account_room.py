"""Room that the account leaves a stream: written into the entry, so all replicas refuse alike."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import errors
from streamd.machine import commands
from streamd.machine.command_shapes import why_malformed
from tests.unit.machine.box import Box

FULL = errors.ACCOUNT_RESOURCES_EXCEEDED()


def store(box: Box, room: int | None, *msgs: tuple[bytes, bytes, bytes]) -> Any:
    box.now += 1_000_000
    command: list[Any] = [commands.STORE, box.now, list(msgs), commands.PUBLISH_RULES]
    command += [] if room is None else [room]
    assert not why_malformed(command, (commands.STORE,))
    data = commands.encode_store(command)
    assert commands.decode(data)[4:] == command[4:]
    return list(box.apply(data))


def codes(outcomes: list[Any]) -> list[Any]:
    return [each.err_code if isinstance(each, errors.JsError) else each for each in outcomes]


def test_messages_are_stored_as_long_as_they_fit() -> None:
    """A small one behind one that does not fit may fit."""
    box = Box()
    size = box.machine.index.sizes.of_message((b"a.b", b"", bytes(100)))
    large, small = (b"a.b", b"", bytes(100)), (b"a.b", b"", b"")
    assert codes(store(box, 2 * size - 1, large, large, small)) == [1, 10002, 2]
    assert codes(store(box, 0, small)) == [10002]
    assert codes(store(box, None, small)) == [3]
    assert codes(store(box, 10**6, large, large)) == [4, 5]


def test_large_payloads_carry_the_room_too() -> None:
    box = Box(block_bytes=1 << 20)
    assert codes(store(box, 8000, (b"a.b", b"", bytes(5000)), (b"a.b", b"", bytes(5000)))) == [
        1,
        10002,
    ]


def test_what_is_refused_or_seen_before_for_itself_needs_no_room() -> None:
    box = Box(max_msg_size=1000)
    headers = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"
    wrong = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 9\r\n\r\n"
    assert codes(store(box, None, (b"a.b", headers, b"x"))) == [1]
    outcomes = store(
        box, 0, (b"a.b", headers, b"x"), (b"a.b", b"", bytes(1001)), (b"a.b", wrong, b""),
    )  # fmt: skip
    assert codes(outcomes) == [(commands.DUPLICATE, 1), 10054, 10071]


def test_a_refused_message_is_not_remembered_by_its_id() -> None:
    box = Box()
    headers = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"
    assert codes(store(box, 0, (b"a.b", headers, b"x"))) == [10002]
    assert codes(store(box, None, (b"a.b", headers, b"x"))) == [1]


def test_without_interest_no_room_is_needed() -> None:
    box = Box(retention="interest")
    assert codes(store(box, 0, (b"a.b", b"", b"x"))) == [1]


@pytest.mark.parametrize("headers", [b"", b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"])
def test_an_atomic_batch_fits_as_a_whole_or_not_at_all(headers: bytes) -> None:
    box = Box(allow_atomic=True, allow_rollup_hdrs=True)
    msgs = [(b"a.%d" % at, headers, bytes(100)) for at in range(3)]
    needed = sum(map(box.machine.index.sizes.of_message, msgs))

    def commit(room: int) -> Any:
        box.now += 1_000_000
        command = [commands.STORE_BATCH, box.now, "b", msgs, commands.PUBLISH_RULES, room]
        assert not why_malformed(command, (commands.STORE_BATCH,))
        return box.apply(commands.encode(command))

    refused = commit(needed - 1)
    assert refused.err_code == FULL.err_code and box.machine.index.count == 0
    assert commit(needed) == (3, 3)


def test_a_member_of_a_fast_batch_needs_room_too() -> None:
    """What does not fit is told as an error of that member, and the batch goes on if it may."""
    box = Box(allow_batched=True)
    msgs = [(b"a.b", b"", bytes(100))] * 3
    needed = box.machine.index.sizes.of_message(msgs[0])
    members = [[b"b", 1, 4, 1, 0, 1], [b"b", 1, 4, 2, 1, 1], [b"b", 1, 4, 3, 2, 1]]
    box.now += 1_000_000
    rules = commands.PUBLISH_RULES
    command = [commands.STORE_FAST, box.now, msgs, rules, members, [], 2 * needed]
    assert not why_malformed(command, (commands.STORE_FAST,))
    told = box.apply(commands.encode(command))
    assert box.machine.index.count == 2
    assert "10002" in str(told)
