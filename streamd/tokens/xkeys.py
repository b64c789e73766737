"""Curve keys (`X...`): X25519 pairs that encrypt messages between two of their holders.

A sealed message is `xkv1`, a nonce of 24 bytes and a box of NaCl. The nonce is an argument: random
bytes, as two keys may not use one twice. All cryptography is that of PyNaCl.
"""

from __future__ import annotations

from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from streamd.errors import TokenError
from streamd.tokens.nkeys import KEY_BYTES, KeyKind, decode_public, decode_seed, encode_public
from streamd.tokens.nkeys import encode_seed as encode_any_seed

VERSION: Final = b"xkv1"
SEAL_NONCE_BYTES: Final = 24
_HEAD_BYTES: Final = len(VERSION) + SEAL_NONCE_BYTES


class CurveKeyPair:
    """X25519 key pair: seals messages to others' public keys and opens those sealed to its own."""

    __slots__ = ("_private", "public")

    def __init__(self, entropy: bytes) -> None:
        """Make the pair whose seed holds these 32 secret bytes."""
        if len(entropy) != KEY_BYTES:
            raise TokenError(f"xkeys: a key of {len(entropy)} bytes, not of {KEY_BYTES}")
        self._private = PrivateKey(entropy)
        self.public: str = encode_public(KeyKind.CURVE, bytes(self._private.public_key))

    @classmethod
    def from_seed(cls, seed: str) -> CurveKeyPair:
        """Return the pair of a seed's text; raise TokenError if it is none of a curve key."""
        kind, raw = decode_seed(seed)
        if kind is not KeyKind.CURVE:
            raise TokenError("xkeys: not the seed of a curve key")
        return cls(raw)

    @property
    def seed(self) -> str:
        """Text from which the pair can be made again: the secret."""
        return encode_any_seed(KeyKind.CURVE, bytes(self._private))

    def seal(self, content: bytes, recipient: str, nonce: bytes) -> bytes:
        """Return `content` encrypted so that only the holder of the key `recipient` reads it."""
        if len(nonce) != SEAL_NONCE_BYTES:
            raise TokenError(f"xkeys: a nonce of {len(nonce)} bytes, not of {SEAL_NONCE_BYTES}")
        box = self._box_with(recipient)
        return VERSION + bytes(box.encrypt(content, nonce))

    def open(self, sealed: bytes, sender: str) -> bytes:
        """Return the content of a message that the holder of the key `sender` sealed to this pair.

        Raise TokenError if it is no such message, or was changed.
        """
        if len(sealed) <= _HEAD_BYTES:
            raise TokenError(f"xkeys: an encrypted message of {len(sealed)} bytes is too short")
        if not is_sealed(sealed):
            raise TokenError("xkeys: unknown version of an encrypted message")
        try:
            return self._box_with(sender).decrypt(sealed[len(VERSION) :])
        except CryptoError:
            raise TokenError("xkeys: could not decrypt the message") from None

    def _box_with(self, public: str) -> Box:
        kind, raw = decode_public(public)
        if kind is not KeyKind.CURVE:
            raise TokenError(f"xkeys: {public} is not a curve key")
        try:
            return Box(self._private, PublicKey(raw))
        except CryptoError:  # a point of small order, with which any secret gives the same key
            raise TokenError(f"xkeys: {public} is a weak key") from None

    def __repr__(self) -> str:
        return f"CurveKeyPair({self.public})"


def is_sealed(content: bytes) -> bool:
    """Return True if `content` begins as an encrypted message does."""
    return content.startswith(VERSION)
