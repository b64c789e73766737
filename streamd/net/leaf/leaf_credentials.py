"""Credentials of a remote: a file with a user token and its seed, or a seed alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from streamd.config.leaf_options import LeafRemote
from streamd.errors import TokenError
from streamd.net.leaf.leaf_session import Credentials

_FILE_BYTES_MAX: Final = 2 * 1024 * 1024


class CredentialsError(Exception):
    """The credentials of a remote can't be used; the text says why."""


def credentials_of(remote: LeafRemote) -> Credentials | None:
    """Return what signs for a remote; None: its URL has the login, if any. Raises
    CredentialsError."""
    if not (remote.credentials or remote.nkey_seed):
        return None
    # OpenSSL costs a tenth of a second.
    from streamd.tokens.credentials import parse_credentials
    from streamd.tokens.nkeys import KeyPair

    jwt, place = "", ""
    try:
        if remote.credentials:
            place = f"{remote.credentials}: "
            read = parse_credentials(_read(remote.credentials))
            jwt, pair = read.token, read.key
        else:
            pair = KeyPair.from_seed(remote.nkey_seed)
    except TokenError as err:
        raise CredentialsError(f"{place}{err}") from err
    return Credentials(partial(_sign, pair.sign), jwt=jwt, nkey=pair.public)


def _sign(sign: object, nonce: str) -> str:
    from streamd.tokens.nkeys import encode_signature

    return encode_signature(sign(nonce.encode()))  # type: ignore[operator]


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError as err:
        reason = (err.strerror or str(err)).lower()
        raise CredentialsError(f"open {path}: {reason}") from err
