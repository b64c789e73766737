"""Signed tokens: three parts of base64, the JSON in them, and the signature over them.

`take_apart` reads any text, and raises nothing but TokenError; the signature is checked afterwards,
by `check_signature`, because the claims tell which key is to have signed. `encode` is its reverse.
The meaning of claims is in `claims.py`.

Memory and time are linear in the length of a token, which is bounded, as is the depth of its JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamd.errors import TokenError
from streamd.limits import TOKEN_BYTES_MAX, TOKEN_DEPTH_MAX
from streamd.tokens.nkeys import KeyPair, encode_signature, verify

ALGORITHM: Final = "ed25519-nkey"
_OLD_ALGORITHM: Final = "ed25519"  # its signatures are over the claims alone
VERSION: Final = 2

_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9_-]")
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
_HEADER: Final = {"typ": "JWT", "alg": ALGORITHM}


@dataclass(frozen=True, slots=True)
class SignedText:
    """A token taken apart: its claims as JSON, and what is needed to check the signature."""

    claims: Mapping[str, Any]
    is_old: bool  # its header says so: the signature is over the claims alone
    header_text: str
    claims_text: str
    signature: bytes

    def check_signature(self, issuer: str, *, version: int) -> None:
        """Raise TokenError if the key `issuer` did not sign the token, of version 1 or 2."""
        content = self.claims_text if version <= 1 else f"{self.header_text}.{self.claims_text}"
        if not verify(issuer, content.encode("ascii"), self.signature):
            raise TokenError(f"claim failed V{1 if version <= 1 else 2} signature verification")


def take_apart(token: str) -> SignedText:
    """Return the parts of a token, whose signature is not checked yet."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenError(f"token of {len(token)} bytes exceeds the maximum of {TOKEN_BYTES_MAX}")
    chunks = token.split(".", 3)
    if len(chunks) != 3:
        raise TokenError("expected 3 chunks")
    header_text, claims_text, signature_text = chunks
    header = _object_of(header_text, "header")
    kind, algorithm = header.get("typ"), header.get("alg")
    if not isinstance(kind, str) or kind.upper() != "JWT":
        raise TokenError(f"not supported type {_shown(kind)}")
    if not isinstance(algorithm, str) or algorithm.lower() not in (ALGORITHM, _OLD_ALGORITHM):
        raise TokenError(f"unexpected {_shown(algorithm)} algorithm")
    claims = _object_of(claims_text, "claims")
    return SignedText(
        claims,
        algorithm.lower() == _OLD_ALGORITHM,
        header_text,
        claims_text,
        _from_base64(signature_text),
    )


def encode(claims: Mapping[str, Any], issuer: KeyPair, *, issued_s: int) -> str:
    """Return the token of these claims, signed by `issuer` at `issued_s` (unix time).

    `claims` need `sub` and, in `nats`, `type`; the rest of what a reader expects is put in.
    """
    full = dict(claims)
    full["iss"] = issuer.public
    full["iat"] = issued_s
    full["nats"] = {**claims.get("nats", {}), "version": VERSION}
    digest = hashlib.sha256(_as_json(full)).digest()
    full["jti"] = base64.b32encode(digest).rstrip(b"=").decode("ascii")
    content = f"{_to_base64(_as_json(_HEADER))}.{_to_base64(_as_json(full))}"
    if len(content) > TOKEN_BYTES_MAX - 2 * len(issuer.public):
        raise TokenError(f"token of {len(content)} bytes exceeds {TOKEN_BYTES_MAX}")
    return f"{content}.{encode_signature(issuer.sign(content.encode('ascii')))}"


def _as_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _to_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def _from_base64(text: str) -> bytes:
    """Return what base64 for URLs, without padding, stands for."""
    wrong = _NOT_BASE64.search(text)
    if wrong is not None or len(text) % 4 == 1:
        at = wrong.start() if wrong is not None else len(text) - 1
        raise TokenError(f"illegal base64 data at input byte {at}")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _object_of(text: str, part: str) -> dict[str, Any]:
    """Return the JSON object that a part of a token holds."""
    content = _from_base64(text).decode("utf-8", errors="replace")
    if content.count("{") + content.count("[") > TOKEN_DEPTH_MAX:
        _check_depth(content, part)
    try:
        value = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as err:
        raise TokenError(f"token {part}: not JSON: {err}") from None
    if not isinstance(value, dict):
        raise TokenError(f"token {part}: JSON, but not an object")
    return value


def _check_depth(content: str, part: str) -> None:
    depth = 0
    for match in _BRACKETS.finditer(content):
        bracket = match.group()
        if bracket in "{[":
            depth += 1
            if depth > TOKEN_DEPTH_MAX:
                raise TokenError(f"token {part}: nested more than {TOKEN_DEPTH_MAX} deep")
        elif bracket in "]}":
            depth -= 1


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return json.dumps(text if len(text) <= 64 else text[:64] + "..")
