"""Curve keys: what is sealed opens for its recipient alone, unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import TokenError
from streamd.tokens.nkeys import KeyKind, KeyPair, decode_public, encode_public
from streamd.tokens.xkeys import CurveKeyPair, is_sealed

ALICE, BOB, EVE = (CurveKeyPair(bytes([number]) * 32) for number in (1, 2, 3))
NONCE = bytes(range(24))


@given(content=st.binary(max_size=500), nonce=st.binary(min_size=24, max_size=24))
def test_what_is_sealed_opens_for_its_recipient(content: bytes, nonce: bytes) -> None:
    sealed = ALICE.seal(content, BOB.public, nonce)
    assert is_sealed(sealed)
    assert sealed[4:28] == nonce
    assert len(sealed) == len(content) + 44
    assert BOB.open(sealed, ALICE.public) == content
    for pair, sender in ((EVE, ALICE), (BOB, EVE)):
        with pytest.raises(TokenError, match="could not decrypt"):
            pair.open(sealed, sender.public)


def test_bytes_are_those_of_nacl_box() -> None:
    """Keys of RFC 7748, 6.1, and the nonce and message of NaCl's own test, begun."""
    alice, bob = (
        CurveKeyPair(bytes.fromhex(secret))
        for secret in (
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        )
    )
    publics = [decode_public(pair.public)[1].hex() for pair in (alice, bob)]
    assert publics == [
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ]
    nonce = bytes.fromhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37")
    message = bytes.fromhex(
        "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffc"
        "e5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f41db66cce314adb31"
        "0e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde"
        "048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f93776384864"
        "5e0705"
    )
    sealed = alice.seal(message, bob.public, nonce)
    assert sealed[:4] == b"xkv1"
    assert sealed[4:28] == nonce
    assert sealed[28:44].hex() == "f3ffc7703f9400e52a7dfb4b3d3305d9"
    assert sealed[44:60].hex() == "8e993b9f48681273c29650ba32fc76ce"


@given(at=st.integers(0, 59), bit=st.integers(0, 7))
def test_a_changed_bit_is_noticed(at: int, bit: int) -> None:
    sealed = bytearray(ALICE.seal(b"sixteen letters!", BOB.public, NONCE))
    sealed[at] ^= 1 << bit
    with pytest.raises(TokenError):
        BOB.open(bytes(sealed), ALICE.public)


@given(st.binary(max_size=80).flatmap(lambda tail: st.sampled_from([tail, b"xkv1" + tail])))
def test_any_other_message_is_refused(message: bytes) -> None:
    with pytest.raises(TokenError):
        BOB.open(message, ALICE.public)


def test_keys_of_other_kinds_are_refused() -> None:
    user = KeyPair(KeyKind.USER, bytes(32))
    with pytest.raises(TokenError, match="is not a curve key"):
        ALICE.seal(b"", user.public, NONCE)
    with pytest.raises(TokenError, match="not the seed of a curve key"):
        CurveKeyPair.from_seed(user.seed)
    with pytest.raises(TokenError, match="is a weak key"):
        ALICE.seal(b"", encode_public(KeyKind.CURVE, bytes(32)), NONCE)
    with pytest.raises(TokenError, match="a nonce of 11 bytes, not of 24"):
        ALICE.seal(b"", BOB.public, bytes(11))
    with pytest.raises(TokenError, match="a key of 31 bytes, not of 32"):
        CurveKeyPair(bytes(31))


def test_a_seed_is_the_pair() -> None:
    assert ALICE.seed.startswith("SX")
    assert CurveKeyPair.from_seed(ALICE.seed).public == ALICE.public
    assert ALICE.seed not in repr(ALICE)
