"""`RemoteClient`: facts about a client of another node, and their place in messages of servers."""

from __future__ import annotations

from typing import Any, NamedTuple

from streamd.types import NodeId


class RemoteClient(NamedTuple):
    """Facts about a client of another node: see advisories.ClientFacts."""

    server: NodeId
    cid: int
    ip: str
    start_ns: int
    rtt_ns: int
    user: str
    name: str
    lang: str
    version: str
    is_administrator: bool = False  # as its server says of a request that comes by the gate

    def may_administer(self, subject: bytes) -> bool:
        """Return True if the client may have this request served, which not every user may."""
        return self.is_administrator

    def forbid_publish(self, subject: bytes) -> None:
        """See `Output` in `net/client`. Its connection is elsewhere; the answer says it."""


_SAID = RemoteClient._fields[1:-1]  # of the client itself


def facts_of(client: Any, server: NodeId) -> list[Any]:
    """Return what another node is told of `client`, a client of `server`. Inverse: `client_of`."""
    return [server, *(getattr(client, field) for field in _SAID)]


def client_of(facts: list[Any]) -> RemoteClient | None:
    """Return the client that another node's note describes."""
    return RemoteClient(*facts) if facts else None
