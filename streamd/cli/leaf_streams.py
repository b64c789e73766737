"""Interest of JetStream, as leaf links are told of it: subjects of streams, acks, and the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from streamd.net.leaf.leaf_space import StreamInterest

if TYPE_CHECKING:  # a server without streams does not load that room
    from streamd.node.local_node import LocalNode

_API: Final = (
    *(b"INFO", b"STREAM.>", b"CONSUMER.>", b"DIRECT.>", b"META.>", b"SERVER.>", b"ACCOUNT.>"),
    *(b"$KV.>", b"$OBJ.>"),
)
"""Requests that a domain is asked from afar."""


def finder(
    node: LocalNode | None, domain: str, has_jetstream: Callable[[str], bool]
) -> Callable[[str], StreamInterest]:
    """Return the function from an account to the patterns of its JetStream."""

    def streams_of(account: str) -> StreamInterest:
        if node is None or not has_jetstream(account):
            return StreamInterest()
        here: set[bytes] = set()
        elsewhere: set[bytes] = set()
        if domain:
            # One node of a cluster serves a request, so hubs are told of it by one alone.
            asked = here if node.is_meta_leader else elsewhere
            asked.update(b"$JS.%b.API.%b" % (domain.encode(), request) for request in _API)
        for asset in list(node.meta.streams_of(account)):
            name: str = asset.config["name"]
            stream = node.account(account).stream(name)
            patterns = here if stream is None or stream.is_local else elsewhere
            patterns.update(each.encode() for each in asset.config.get("subjects") or ())
            for prefix in (b"$JS.ACK.", b"$JS.FC."):
                patterns.add(prefix + name.encode() + b".>")
        return StreamInterest(frozenset(here), frozenset(elsewhere))

    return streams_of
