"""Replicas that an audit of directories names beside a sequence."""

from __future__ import annotations

import pytest

from streamd.offline.directory_audit import _odd_by_seq
from streamd.offline.replica_state import ReplicaState


def replica(name: str, crc: int | None, *, is_damaged: bool = False) -> ReplicaState:
    """A replica of one message, whose record has this checksum; None: it has no such message."""
    state = ReplicaState(name, applied=7, digest=0, first_seq=1, last_seq=1, messages=1)
    if is_damaged:
        state.fault_seqs.append(1)
    elif crc is not None:
        state.crcs[1] = crc
    return state


@pytest.mark.parametrize(
    ("states", "odd"),
    [
        ([replica("a", 5), replica("b", 5), replica("c", 6)], ["c"]),
        ([replica("a", 5), replica("b", None), replica("c", 5)], ["b"]),
        ([replica("a", 5), replica("b", 6)], ["a", "b"]),
        ([replica("a", 5), replica("b", None, is_damaged=True)], ["b"]),
        ([replica("a", 5), replica("b", 5), replica("c", None, is_damaged=True)], ["c"]),
        ([replica("a", 5), replica("b", 6), replica("c", None, is_damaged=True)], ["a", "b", "c"]),
        ([replica("a", None, is_damaged=True)], ["a"]),
    ],
)
def test_a_damaged_record_makes_no_whole_one_odd(
    states: list[ReplicaState], odd: list[str]
) -> None:
    """A record that is not whole says nothing of what the others hold."""
    assert _odd_by_seq(states, [1, 2]) == {1: odd}
