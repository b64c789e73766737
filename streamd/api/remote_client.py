"""`RemoteClient`: facts about a client of another node, and their place in messages of servers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from streamd.types import NodeId


class ClientFacts(Protocol):
    """Facts about the client that made a request: a connection of `net`, or a `RemoteClient`."""

    @property
    def cid(self) -> int: ...

    @property
    def ip(self) -> str: ...

    @property
    def start_ns(self) -> int: ...

    @property
    def rtt_ns(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def lang(self) -> str: ...

    @property
    def version(self) -> str: ...


class RemoteClient(NamedTuple):
    """`ClientFacts` of a client of another node, as that node told them."""

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


def facts_of(client: ClientFacts, server: NodeId) -> list[object]:
    """Return what another node is told of `client`, a client of `server`. Inverse: `client_of`."""
    facts = RemoteClient(
        server=server,
        cid=client.cid,
        ip=client.ip,
        start_ns=client.start_ns,
        rtt_ns=client.rtt_ns,
        user=client.user,
        name=client.name,
        lang=client.lang,
        version=client.version,
    )
    return list(facts[:-1])


def client_of(facts: list[Any]) -> RemoteClient | None:
    """Return the client that another node's note describes."""
    return RemoteClient(*facts) if facts else None
