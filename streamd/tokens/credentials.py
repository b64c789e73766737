"""Files of credentials (`.creds`): a user's token and the seed that its signatures need.

Either is one line between two that are decorated, `-----BEGIN NATS USER JWT-----` and
`------END NATS USER JWT------`; text around them is for people. Files with an operator's or an
account's token alone are decorated alike, or hold nothing but the token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from streamd.errors import TokenError
from streamd.limits import TOKEN_BYTES_MAX
from streamd.tokens.claims import UserClaims, decode_user
from streamd.tokens.nkeys import KeyKind, KeyPair

_DECORATED: Final = re.compile(
    r"^-{3,}[^\n]{1,80}-{3,}\r?\n([\w\-.=]+)[ \t]*\r?\n[ \t]*-{3,}[^\n]{1,80}-{3,}[ \t]*\r?$",
    re.MULTILINE | re.ASCII,
)
_FILE_BYTES_MAX: Final = TOKEN_BYTES_MAX + 16 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's token, and the key pair that it names."""

    token: str
    claims: UserClaims
    key: KeyPair


def parse_credentials(text: str) -> Credentials:
    """Return what a `.creds` file holds; raise TokenError if that is no user who can log in."""
    found = _decorated(text)
    if len(found) < 2:
        raise TokenError(f"credentials: {len(found)} of two decorated parts, token and seed, found")
    token, seed = found[0], found[1]
    claims = decode_user(token)
    key = KeyPair.from_seed(seed)
    if key.kind is not KeyKind.USER:
        raise TokenError("credentials: the seed is not that of a user")
    if key.public != claims.registered.subject and not claims.rights.is_bearer:
        raise TokenError("credentials: the seed is not that of the token's user")
    return Credentials(token, claims, key)


def plain_token(text: str) -> str:
    """Return the token of a file that is decorated, or holds nothing else."""
    found = _decorated(text)
    return found[0] if found else text.strip()


def format_credentials(token: str, key: KeyPair) -> str:
    """Return the text of a `.creds` file."""
    parts = (("NATS USER JWT", token), ("USER NKEY SEED", key.seed))
    return "\n".join(
        f"-----BEGIN {name}-----\n{content}\n------END {name}------\n" for name, content in parts
    )


def _decorated(text: str) -> list[str]:
    if len(text) > _FILE_BYTES_MAX:
        raise TokenError(f"credentials: {len(text)} bytes exceed {_FILE_BYTES_MAX}")
    return _DECORATED.findall(text)
