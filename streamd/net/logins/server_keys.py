"""Keys of this server: the one that its id is, which signs questions about logins, and a curve key,
with which they are sealed.

A server that asks nobody makes no keys, for the cryptography costs a tenth of a second: its id is a
public key of which nobody has the seed.
"""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import TYPE_CHECKING

from streamd.tokens.nkeys import KEY_BYTES, KeyKind, KeyPair, encode_public

if TYPE_CHECKING:
    from streamd.tokens.xkeys import CurveKeyPair


class ServerKeys:
    """The key pairs of one server, new with each start."""

    def __init__(self, *, signs: bool) -> None:
        """`signs`: the server asks services about logins."""
        self._pair = KeyPair(KeyKind.SERVER, _entropy()) if signs else None
        self.server_id = (
            self._pair.public
            if self._pair is not None
            else encode_public(KeyKind.SERVER, _entropy())
        )

    @property
    def pair(self) -> KeyPair:
        """The pair that `server_id` names."""
        assert self._pair is not None, "this server signs nothing"
        return self._pair

    @cached_property
    def xkey(self) -> CurveKeyPair:
        """The curve key pair."""
        from streamd.tokens.xkeys import CurveKeyPair  # loads a library that few need

        return CurveKeyPair(_entropy())

    @property
    def xkey_public(self) -> str:
        """Public curve key, as INFO tells it; "": the server seals nothing."""
        return "" if self._pair is None else self.xkey.public


def _entropy() -> bytes:
    return secrets.token_bytes(KEY_BYTES)
