"""Keys and signed tokens for tests: an operator, its accounts and their users, from fixed seeds."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from streamd.tokens.jwt import encode
from streamd.tokens.nkeys import KeyKind, KeyPair, encode_signature

UNLIMITED = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
    "wildcards": True,
}


def key(kind: KeyKind, label: str = "") -> KeyPair:
    """Return the pair of a kind and label, always the same."""
    return KeyPair(kind, hashlib.sha256(f"{kind}{label}".encode()).digest())


OPERATOR = key(KeyKind.OPERATOR)
OPERATOR_SIGNING = key(KeyKind.OPERATOR, "signing")
SYSTEM = key(KeyKind.ACCOUNT, "system")
ACCOUNT = key(KeyKind.ACCOUNT, "a")
ACCOUNT_SIGNING = key(KeyKind.ACCOUNT, "a signing")
OTHER_ACCOUNT = key(KeyKind.ACCOUNT, "b")
USER = key(KeyKind.USER)
REVOKED_USER = key(KeyKind.USER, "revoked")
SERVER = key(KeyKind.SERVER)


def mint(kind: str, subject: str, issuer: KeyPair, /, *, now_s: int = 0, **claims: Any) -> str:
    """Return a token; `claims` go into `nats`, those named here beside it."""
    beside = {name: claims.pop(name) for name in ("name", "exp", "nbf", "aud") if name in claims}
    document = {"sub": subject, **beside, "nats": {**claims, "type": kind}}
    return encode(document, issuer, issued_s=now_s or int(time.time()))


def operator(**claims: Any) -> str:
    claims.setdefault("system_account", SYSTEM.public)
    return mint("operator", OPERATOR.public, OPERATOR, name="O", **claims)


def account(pair: KeyPair = ACCOUNT, issuer: KeyPair = OPERATOR, **claims: Any) -> str:
    claims.setdefault("limits", UNLIMITED)
    claims.setdefault("name", "A")
    return mint("account", pair.public, issuer, **claims)


def user(pair: KeyPair = USER, issuer: KeyPair = ACCOUNT, **claims: Any) -> str:
    for limit in ("subs", "data", "payload"):
        claims.setdefault(limit, -1)
    claims.setdefault("name", "u")
    return mint("user", pair.public, issuer, **claims)


def scoped_user(pair: KeyPair = USER, issuer: KeyPair = ACCOUNT_SIGNING, **claims: Any) -> str:
    """Return the token of a user whose signing key gives its rights."""
    claims.setdefault("issuer_account", ACCOUNT.public)
    claims.setdefault("name", "scoped")
    return mint("user", pair.public, issuer, **claims)


def scope(pair: KeyPair = ACCOUNT_SIGNING, **template: Any) -> dict[str, Any]:
    return {"kind": "user_scope", "key": pair.public, "role": "r", "template": template}


def connect_options(token: str, nonce: str, pair: KeyPair | None = USER) -> dict[str, str]:
    """Return what a client puts into CONNECT; `pair` None: a bearer."""
    if pair is None:
        return {"jwt": token}
    return {"jwt": token, "sig": encode_signature(pair.sign(nonce.encode()))}


def operator_config(*accounts: tuple[KeyPair, str], operator_token: str = "") -> str:
    """Return the configuration of a server with an operator and accounts in its memory."""
    system = mint("account", SYSTEM.public, OPERATOR, name="SYS", limits=UNLIMITED)
    listed = [(SYSTEM, system), *accounts]
    preload = "\n".join(f"  {pair.public}: {token}" for pair, token in listed)
    return (
        f"operator: {operator_token or operator()}\nsystem_account: {SYSTEM.public}\n"
        f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
    )


def as_text(value: object) -> str:
    return json.dumps(value)
