"""`Hello` and `Facts`: what a node says of itself when a link comes up, and again and again.

`peer_schemas` checks both before anybody looks inside; keys may be missing.
"""

from __future__ import annotations

from typing import Any, TypedDict

from streamd.types import Index, NodeId

Start = list[Any]
"""Start of a node, as JSON has it: log, segment of it that this start began, a random number (which
start: none if it could not be written down), the logs the node had before, and what it has told:
the first segment from which on each start that anybody was told of is here, and each of these,
[segment, which]. The last is missing if it stands for two lives. See node/identity/incarnations.py.
"""


class Facts(TypedDict, total=False):
    """Limits, tags and load of a node."""

    server_id: str
    tags: list[str]
    storage_max: int
    memory_max: int
    ha_assets_max: int
    unique_tag: str
    storage_used: int
    memory_used: int
    streams: int
    ha_assets: int


class Removals(TypedDict, total=False):
    """Removals of servers, as one node knows them."""

    removal: Index  # the last of this node's name that was before its data began
    removals: dict[NodeId, Index]  # the last of each name


class Starts(TypedDict, total=False):
    """Starts of a node and of those it met, by which an older copy of a directory is found out."""

    start: Start
    seen: dict[NodeId, Start]


class Hello(Removals, Starts, total=False):
    """Greeting of a node; of a server without JetStream it is empty."""

    cluster_id: str
    incarnation: str
    is_virgin: bool
    voters: list[NodeId]
    facts: Facts
