"""Nkeys: Ed25519 and X25519 keys as text, and signatures made and checked with them.

The text of a public key is base32 without padding of a prefix byte, the 32 bytes of the key and a
CRC-16 (XMODEM, least byte first): 56 characters, the first of which tells the kind of the key. A
seed, from which a key pair is made, has two prefix bytes, the bits of `S` and of its kind, and
hence 58 characters.

Neither clock nor random source is used: entropy is an argument. All cryptography is that of the
package `cryptography`. It is loaded with the first signature, for that takes a tenth of a second: a
configuration that only names keys needs none. Encryption with curve keys is in `xkeys.py`.
"""

from __future__ import annotations

import base64
import binascii
import re
from enum import IntEnum
from typing import Final

from streamd.errors import TokenError

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
NONCE_BYTES: Final = 11  # 15 characters
PUBLIC_CHARS: Final = 56
SEED_CHARS: Final = 58

_SEED_PREFIX: Final = 18 << 3  # S
_PUBLIC: Final = re.compile(r"[A-Z2-7]{56}")
_SEED: Final = re.compile(r"S[A-Z2-7]{57}")
_URL_BASE64: Final = re.compile(r"[A-Za-z0-9_-]*")
_PADDED_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class KeyKind(IntEnum):
    """Kind of a key: its value is the prefix byte, which the first character of the text shows."""

    ACCOUNT = 0  # A
    CLUSTER = 2 << 3  # C
    SERVER = 13 << 3  # N
    OPERATOR = 14 << 3  # O
    USER = 20 << 3  # U
    CURVE = 23 << 3  # X; encrypts, and signs nothing


_KINDS: Final = frozenset(KeyKind)


class KeyPair:
    """Ed25519 key pair of one kind, made from a seed; signs."""

    __slots__ = ("_private", "_raw", "kind", "public")

    def __init__(self, kind: KeyKind, entropy: bytes) -> None:
        """Make the pair whose seed holds these 32 secret bytes."""
        if kind is KeyKind.CURVE:
            raise TokenError("nkeys: a curve key signs nothing")
        _check_size(entropy)
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.kind = kind
        self._raw = entropy
        self._private = Ed25519PrivateKey.from_private_bytes(entropy)
        self.public: str = encode_public(kind, self._private.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: str) -> KeyPair:
        """Return the pair of a seed's text; raise TokenError if it is none that signs."""
        return cls(*decode_seed(seed))

    @property
    def seed(self) -> str:
        """Text from which the pair can be made again: the secret."""
        return encode_seed(self.kind, self._raw)

    def sign(self, content: bytes) -> bytes:
        """Return the 64 bytes of the signature over `content`."""
        return self._private.sign(content)

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


def encode_public(kind: KeyKind, raw: bytes) -> str:
    """Return the text of a public key's 32 bytes."""
    _check_size(raw)
    return _with_checksum(bytes((kind,)) + raw)


def decode_public(text: str) -> tuple[KeyKind, bytes]:
    """Return kind and bytes of a public key; raise TokenError if `text` is none."""
    if not _PUBLIC.fullmatch(text):
        raise TokenError(f"nkeys: {_shown(text)} is not a public key of {PUBLIC_CHARS} characters")
    content = _checked(text)
    if content[0] not in _KINDS:
        raise TokenError(f"nkeys: {_shown(text)} is not a public key: its kind is unknown")
    return KeyKind(content[0]), content[1:]


def is_valid_public(kind: KeyKind, text: str) -> bool:
    """Return True if `text` is a public key of this kind."""
    try:
        return decode_public(text)[0] is kind
    except TokenError:
        return False


def encode_seed(kind: KeyKind, raw: bytes) -> str:
    """Return the text of a seed: of 32 secret bytes."""
    _check_size(raw)
    return _with_checksum(bytes((_SEED_PREFIX | kind >> 5, (kind & 31) << 3)) + raw)


def decode_seed(text: str) -> tuple[KeyKind, bytes]:
    """Return kind and secret bytes of a seed. The text is not in the error if it is none."""
    if not _SEED.fullmatch(text):
        raise TokenError(f"nkeys: not a seed of {SEED_CHARS} characters")
    content = _checked(text, is_secret=True)
    kind = (content[0] & 7) << 5 | content[1] >> 3
    if content[0] & 248 != _SEED_PREFIX or kind not in _KINDS:
        raise TokenError("nkeys: invalid seed: its kind is unknown")
    return KeyKind(kind), content[2:]


def verify(public: str, content: bytes, signature: bytes) -> bool:
    """Return True if the pair of the key `public` signed `content`; False for a key that is none.

    A curve key signs nothing, so that its text verifies nothing.
    """
    try:
        kind, raw = decode_public(public)
    except TokenError:
        return False
    if kind is KeyKind.CURVE or len(signature) != SIGNATURE_BYTES:
        return False
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def decode_signature(text: str) -> bytes:
    """Return the bytes of a signature as clients send it: base64 for URLs without padding, or
    standard base64 with it. Raise TokenError for any other text."""
    if len(text) > 2 * SIGNATURE_BYTES:
        raise TokenError(f"nkeys: a signature of {len(text)} characters: it has {SIGNATURE_BYTES}")
    if _URL_BASE64.fullmatch(text) and len(text) % 4 != 1:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _PADDED_BASE64.fullmatch(text) and len(text) % 4 == 0:
        return base64.b64decode(text)
    raise TokenError("nkeys: the signature is not base64")


def encode_signature(signature: bytes) -> str:
    """Return a signature as clients send it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode("ascii")


def nonce_text(entropy: bytes) -> str:
    """Return the nonce that a client is to sign, of 11 random bytes: 15 characters.

    The signature covers these characters, not the bytes that they stand for.
    """
    if len(entropy) != NONCE_BYTES:
        raise TokenError(f"nkeys: a nonce of {len(entropy)} bytes, not of {NONCE_BYTES}")
    return encode_signature(entropy)


def _check_size(raw: bytes) -> None:
    if len(raw) != KEY_BYTES:
        raise TokenError(f"nkeys: a key of {len(raw)} bytes, not of {KEY_BYTES}")


def _with_checksum(content: bytes) -> str:
    checksum = binascii.crc_hqx(content, 0).to_bytes(2, "little")
    return base64.b32encode(content + checksum).rstrip(b"=").decode("ascii")


def _checked(text: str, *, is_secret: bool = False) -> bytes:
    """Return what a text in base32 holds, without the checksum, which must be right."""
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    content, checksum = raw[:-2], raw[-2:]
    if binascii.crc_hqx(content, 0).to_bytes(2, "little") != checksum:
        shown = "the seed" if is_secret else _shown(text)
        raise TokenError(f"nkeys: invalid checksum of {shown}")
    return content


def _shown(text: str) -> str:
    return repr(text if len(text) <= PUBLIC_CHARS else text[:PUBLIC_CHARS] + "..")
