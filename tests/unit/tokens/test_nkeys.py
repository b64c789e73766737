"""Keys as text, and signatures: against known pairs, the package `nkeys`, and any other text."""

from __future__ import annotations

import base64
from string import printable

import nkeys as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import TokenError
from streamd.tokens.nkeys import (
    KeyKind,
    KeyPair,
    _with_checksum,
    decode_public,
    decode_seed,
    decode_signature,
    encode_public,
    encode_seed,
    encode_signature,
    is_valid_public,
    nonce_text,
    verify,
)

# The pair of NATS's own documentation.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
SIGNING = [kind for kind in KeyKind if kind is not KeyKind.CURVE]
secrets = st.binary(min_size=32, max_size=32)


def test_a_seed_gives_its_documented_public_key() -> None:
    pair = KeyPair.from_seed(SEED)
    assert (pair.kind, pair.public, pair.seed) == (KeyKind.USER, PUBLIC, SEED)
    assert SEED not in repr(pair)


@pytest.mark.parametrize("kind", KeyKind, ids=lambda kind: kind.name)
@given(raw=secrets)
def test_keys_survive_being_text(kind: KeyKind, raw: bytes) -> None:
    """Any 32 bytes as public key and as seed, and back; the first letters tell the kind."""
    letter = {"SERVER": "N", "CURVE": "X"}.get(kind.name, kind.name[0])
    public, seed = encode_public(kind, raw), encode_seed(kind, raw)
    assert (len(public), public[0]) == (56, letter)
    assert (len(seed), seed[:2]) == (58, "S" + letter)
    assert decode_public(public) == (kind, raw)
    assert decode_seed(seed) == (kind, raw)
    assert [other for other in KeyKind if is_valid_public(other, public)] == [kind]
    assert not is_valid_public(kind, seed)


@pytest.mark.parametrize("kind", SIGNING, ids=lambda kind: kind.name)
@settings(max_examples=25, deadline=None)
@given(raw=secrets, content=st.binary(max_size=200))
def test_signatures_are_those_of_the_package_nkeys(
    kind: KeyKind, raw: bytes, content: bytes
) -> None:
    pair = KeyPair(kind, raw)
    theirs = reference.from_seed(bytearray(pair.seed.encode()))
    assert theirs.public_key.decode() == pair.public
    assert theirs.sign(content) == pair.sign(content)
    assert verify(pair.public, content, theirs.sign(content))
    assert not verify(pair.public, content + b"x", theirs.sign(content))


@given(at=st.integers(0, 55), letter=st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_one_wrong_letter_is_noticed(at: int, letter: str) -> None:
    changed = PUBLIC[:at] + letter + PUBLIC[at + 1 :]
    assert is_valid_public(KeyKind.USER, changed) is (changed == PUBLIC)


@given(st.text(max_size=70) | st.text(st.sampled_from(printable), max_size=70))
def test_other_text_is_no_key(text: str) -> None:
    for read in (decode_public, decode_seed):
        with pytest.raises(TokenError):
            read(text)
    assert not is_valid_public(KeyKind.USER, text)
    assert not verify(text, b"content", bytes(64))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (PUBLIC.lower(), "is not a public key of 56 characters"),
        (PUBLIC + "\n", "is not a public key of 56 characters"),
        ("U" * 10_000, r"'U{56}\.\.' is not a public key of 56 characters"),
        (PUBLIC[:-1] + "A", f"invalid checksum of '{PUBLIC[:-1]}A'"),
        (SEED, "is not a public key"),
    ],
)
def test_a_refused_public_key_is_named(text: str, error: str) -> None:
    with pytest.raises(TokenError, match=error):
        decode_public(text)


def test_a_refused_seed_is_not_named() -> None:
    """Secrets stay out of logs, also those with a misspelt letter."""
    for text in (SEED[:-1] + "A", SEED[:10], SEED + "A", "x" + SEED):
        with pytest.raises(TokenError) as raised:
            decode_seed(text)
        assert SEED[:10] not in str(raised.value)


def test_a_key_of_an_unknown_kind_is_refused() -> None:
    """P and others: the checksum is right, and the prefix none of a public key."""
    with pytest.raises(TokenError, match="its kind is unknown"):
        decode_public(_with_checksum(bytes((15 << 3,)) + bytes(32)))
    with pytest.raises(TokenError, match="its kind is unknown"):
        decode_seed(_with_checksum(bytes((18 << 3 | 7, 31 << 3)) + bytes(32)))


@pytest.mark.parametrize("make", [encode_public, encode_seed, KeyPair])
def test_keys_have_32_bytes(make: type) -> None:
    for size in (0, 31, 33):
        with pytest.raises(TokenError, match=f"a key of {size} bytes, not of 32"):
            make(KeyKind.USER, bytes(size))


def test_a_curve_key_signs_and_verifies_nothing() -> None:
    with pytest.raises(TokenError, match="signs nothing"):
        KeyPair.from_seed(encode_seed(KeyKind.CURVE, bytes(32)))
    pair = KeyPair.from_seed(SEED)
    as_curve = encode_public(KeyKind.CURVE, decode_public(PUBLIC)[1])
    assert verify(PUBLIC, b"x", pair.sign(b"x"))
    assert not verify(as_curve, b"x", pair.sign(b"x"))


def test_a_signature_is_read_in_two_forms_of_base64() -> None:
    """Raw for URLs, or padded standard; the padded one for URLs, as by nats-server, is refused."""
    signature = b"\xfb\xff" * 32  # its text has both characters in which the forms differ
    standard = base64.b64encode(signature).decode()
    for_urls = base64.urlsafe_b64encode(signature).decode()
    assert encode_signature(signature) == for_urls.rstrip("=")
    assert decode_signature(for_urls.rstrip("=")) == signature
    assert decode_signature(standard) == signature
    for text in (for_urls, standard.rstrip("="), standard + "=", "ä", "A", "AB CD", "AB\n"):
        with pytest.raises(TokenError, match="not base64"):
            decode_signature(text)
    with pytest.raises(TokenError, match="a signature of 1000 characters"):
        decode_signature("A" * 1000)


@given(st.text(max_size=140) | st.text(st.sampled_from("AZaz09+/-_="), max_size=90))
def test_any_signature_is_bytes_or_refused(text: str) -> None:
    try:
        signature = decode_signature(text)
    except TokenError:
        return
    assert len(signature) <= 96
    assert not verify(PUBLIC, b"content", signature)


def test_a_nonce_has_15_characters() -> None:
    assert nonce_text(bytes(range(11))) == "AAECAwQFBgcICQo"
    with pytest.raises(TokenError, match="a nonce of 12 bytes, not of 11"):
        nonce_text(bytes(12))
