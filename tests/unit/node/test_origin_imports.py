"""Copies of a full account: nothing goes into the log that would change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.machine.commands import COPY
from streamd.node.groups.group_shell import GroupShell
from streamd.node.groups.turn import TurnTime
from streamd.node.importing.origin_imports import OriginImports
from tests.unit.machine.box import Box

WITH_ID = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"


class Bed:
    """The imports of a stream, and a log and an account that keep what they are told."""

    is_handing_over = False
    is_leader = True

    def __init__(self, left: int | None, **config: Any) -> None:
        self.left = left
        self.log: list[list[Any]] = []
        self.held: dict[int, int] = {}
        anything: Any = self
        self.imports = OriginImports(
            anything, Box(**({"retention": "limits"} | config)).machine, GroupShell(), TurnTime(),
            wires=anything, has_room=lambda size: True, share=anything, domain="",
        )  # fmt: skip
        self.imports._links = {"": anything, "O": anything}

    @property
    def last_index(self) -> int:
        return len(self.log)

    def room(self, wanted: int) -> int | None:
        return self.left

    def hold(self, index: int, byte_count: int) -> None:
        self.held[index] = byte_count

    def propose(self, data: bytes, command: list[Any], tag: Any) -> None:
        self.log.append(command)

    def bring(self, name: str, headers: bytes = b"") -> int:
        msgs = [(b"a.x", headers, b"x" * 50), (b"a.x", b"", b"x")]
        return self.imports.propose([COPY, 1, name, "", 0, 2, [1, 2], [1, 1], msgs])


@pytest.mark.parametrize("name", ["", "O"])
def test_what_is_left_stands_in_the_entry_and_is_held(name: str) -> None:
    bed = Bed(100, duplicate_window=10**9)
    assert bed.bring(name)
    assert bed.log[0][9:] == [100] and bed.held == {1: 100}
    bed.left = 10**6
    assert bed.bring(name)
    assert bed.log[1][9:] == [] and 100 < bed.held[2] < 1000
    bed.left = None
    assert bed.bring(name)
    assert bed.log[2][9:] == [] and 3 not in bed.held


@pytest.mark.parametrize("name", ["", "O"])
def test_a_first_message_without_room_is_not_logged(name: str) -> None:
    """A window for ids changes nothing: without an id it can't be one that was there before."""
    bed = Bed(10, duplicate_window=10**9)
    assert not bed.bring(name)
    assert not bed.log and not bed.held


def test_what_may_be_passed_over_is_logged() -> None:
    """By its id, for want of interest, or as a counter's that is left out: only `apply` knows."""
    assert Bed(0, duplicate_window=10**9).bring("O", WITH_ID)
    assert not Bed(0, duplicate_window=10**9).bring("", WITH_ID)
    assert Bed(0, retention="interest").bring("")
    assert Bed(0, allow_msg_counter=True).bring("O")
