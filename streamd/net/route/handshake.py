"""Handshake of a link, sans-IO: the frames of both sides, and their proofs.

    dialer   HELLO ->                   AUTH ->            WELCOME -> (up)
    acceptor          <- HELLO AUTH             <- WELCOME                 (up)

`route_proof` says why in this order. The link decides whether the other side is wanted.
"""

from __future__ import annotations

import secrets

from streamd.protocol import peer_frames, route_proof
from streamd.protocol.peer_frames import Frame, ProtocolError
from streamd.protocol.route_proof import Proofs
from streamd.types import NodeId


class Handshake:
    """Both HELLOs of one link and the proofs that follow from them; the other side's identity."""

    __slots__ = (
        "_hellos",
        "_key",
        "_proofs",
        "address",
        "boot",
        "is_dialer",
        "is_proven",
        "name",
        "server_id",
    )

    def __init__(self, key: bytes, *, is_dialer: bool) -> None:
        self._key = key
        self.is_dialer = is_dialer  # this side dialed
        self._hellos = [b"", b""]  # the dialer's and the acceptor's, as sent
        self._proofs: Proofs | None = None  # None: the other side was not found acceptable yet
        self.is_proven = False  # the other side has proven itself
        # The other side by its own words, true once it is proven. Empty before its HELLO.
        self.name: NodeId = ""
        self.boot = ""  # drawn at each start of a process
        self.server_id = ""
        self.address = ("", 0)  # at which it can be dialed

    def hello(self, facts: dict[str, object]) -> bytes:
        """Return this side's HELLO."""
        data = peer_frames.hello(facts | {"nonce": secrets.token_bytes(16)})
        self._hellos[0 if self.is_dialer else 1] = data[4:]
        return data

    def on_hello(self, frame: Frame, ip: str) -> dict[str, object]:
        """Take in the other side's HELLO, sent from `ip`; returns its facts. Raises
        ProtocolError."""
        facts = peer_frames.check_hello(frame)
        name, boot, host = facts.get("name"), facts.get("boot"), facts.get("host")
        port, server_id = facts.get("port"), facts.get("id")
        if (
            not isinstance(name, str) or not 0 < len(name) <= 255 or not isinstance(boot, str)
            or not isinstance(host, str) or not isinstance(port, int)
            or not isinstance(server_id, str)
        ):  # fmt: skip
            raise ProtocolError("HELLO without a name and an address")
        self.name, self.boot, self.server_id = name, boot, server_id
        self.address = (host or ip, port)
        # The proofs cover the very bytes that were sent: packing is deterministic.
        self._hellos[1 if self.is_dialer else 0] = peer_frames.hello(facts)[4:]
        return facts

    def begin_proofs(self) -> None:
        """Work out both proofs: both HELLOs are here, and the other side is acceptable."""
        self._proofs = route_proof.proofs(self._key, *self._hellos)

    @property
    def is_proof_due(self) -> bool:
        """True while the other side has yet to prove itself."""
        return self._proofs is not None and not self.is_proven

    def proof(self) -> bytes:
        """Return this side's AUTH frame."""
        assert self._proofs is not None
        own = self._proofs.dialer if self.is_dialer else self._proofs.acceptor
        return peer_frames.frame(peer_frames.AUTH, own)

    def on_proof(self, given: bytes) -> bool:
        """Judge the other side's proof; False: it does not know the password."""
        assert self._proofs is not None
        expected = self._proofs.acceptor if self.is_dialer else self._proofs.dialer
        self.is_proven = route_proof.is_proof(given, expected)
        return self.is_proven
