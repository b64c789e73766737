"""Credentials of a remote: a file with a user token and its seed, or a seed alone."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Final

from streamd.config.leaf_options import LeafRemote
from streamd.errors import TokenError
from streamd.net.leaf.leaf_session import Credentials

_BLOCK: Final = re.compile(r"-{3,}\s*BEGIN[^\n]*?-{3,}\s*\n\s*([^\s-][^\s]*)\s*\n-{3,}\s*END")
_FILE_BYTES_MAX: Final = 2 * 1024 * 1024


class CredentialsError(Exception):
    """The credentials of a remote can't be used; the text says why."""


def credentials_of(remote: LeafRemote) -> Credentials | None:
    """Return what signs for a remote; None: its URL has the login, if any. Raises
    CredentialsError."""
    if not (remote.credentials or remote.nkey_seed):
        return None
    jwt, seed = "", remote.nkey_seed
    if remote.credentials:
        jwt, seed = _read(remote.credentials)
    from streamd.tokens.nkeys import KeyPair  # OpenSSL costs a tenth of a second

    try:
        pair = KeyPair.from_seed(seed)
    except TokenError as err:
        raise CredentialsError(str(err)) from err
    return Credentials(partial(_sign, pair.sign), jwt=jwt, nkey=pair.public)


def _sign(sign: object, nonce: str) -> str:
    from streamd.tokens.nkeys import encode_signature

    return encode_signature(sign(nonce.encode()))  # type: ignore[operator]


def _read(path: str) -> tuple[str, str]:
    try:
        with Path(path).open("rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError as err:
        reason = (err.strerror or str(err)).lower()
        raise CredentialsError(f"open {path}: {reason}") from err
    found = _BLOCK.findall(text)
    if len(found) < 2:
        raise CredentialsError(f"{path}: there is no user token with its seed in it")
    return found[0], found[1]
