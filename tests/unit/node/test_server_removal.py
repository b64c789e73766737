"""When a server that is away can be removed without a stream losing its majority for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.node.cluster.server_removal import ServerRemoval
from tests.unit.node.contexts import context_of


def obstacle(
    *, peers: str, members: str, leader: str, here: str = "acd", has_peers: bool = True
) -> str:
    """What stands against the removal of b, asked at a."""
    asset = SimpleNamespace(uid=7, name="S", peers=tuple(peers), members=tuple(members))
    meta = SimpleNamespace(streams_by_uid={7: asset}, removals={})
    groups: Any = SimpleNamespace(meta=meta)
    leaders: Any = SimpleNamespace(leader_of=lambda uid: {7: leader}[uid])
    peers: Any = SimpleNamespace(nodes=lambda: list(here)) if has_peers else None
    facts: Any = None
    removal = ServerRemoval(
        context_of(), groups, leaders, facts, peers,
        renew_hello=lambda founders: None, on_removed_here=lambda err: None,
    )  # fmt: skip
    return removal.obstacle("b")


@pytest.mark.parametrize("leader", ["a", "c"])
def test_a_stream_with_a_leader_goes_on_without_it(leader: str) -> None:
    assert obstacle(peers="abc", members="abc", leader=leader) == ""


@pytest.mark.parametrize("leader", ["", "b", "e"])
def test_a_stream_whose_leader_is_not_here_blocks_the_removal_of_a_server(leader: str) -> None:
    assert obstacle(peers="abc", members="abc", leader=leader) == "S"
    assert obstacle(peers="acd", members="bc", leader=leader) == "S"  # it is being replaced
    assert obstacle(peers="abc", members="ac", leader=leader) == "S"  # it may have joined


def test_a_stream_that_it_has_no_part_in_is_no_obstacle() -> None:
    assert obstacle(peers="acd", members="acd", leader="") == ""


def test_its_only_copy_is_no_obstacle() -> None:
    """Such a stream stays as it is, without a leader: nobody else has its messages."""
    assert obstacle(peers="b", members="b", leader="") == ""
