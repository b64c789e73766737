"""Operators of a server: their tokens, the trust in them, and the system account that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamd.errors import TokenError
from streamd.tokens.claims import OperatorClaims, decode_operator, decode_user
from streamd.tokens.issues import quoted
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.tokens.validation import Trust

_INTEGER: Final = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_PARTS: Final = ("major", "minor", "update")


@dataclass(frozen=True, slots=True)
class Operators:
    """Operators whose accounts a server serves."""

    claims: tuple[OperatorClaims, ...]
    trust: Trust
    system_account: str  # "": none is named


def read_operators(
    tokens: Iterable[str],
    trusted_keys: Iterable[str] = (),
    *,
    server_version: str,
    system_account: str = "",
    pinned_accounts: frozenset[str] = frozenset(),
    default_sentinel: str = "",
) -> Operators:
    """Return the operators of these tokens, and the trust in them and in further keys.

    `system_account` is that of the configuration; accounts are pinned beside it, if any are;
    `default_sentinel`, the token of clients that show none, is checked to be a bearer's.
    Raises TokenError, in the words with which a server refuses to start.
    """
    claims = tuple(decode_operator(token) for token in tokens)
    for operator in claims:
        _check_version(operator, server_version)
    named = next((each.system_account for each in claims if each.system_account), "")
    if named and system_account and named != system_account:
        raise TokenError("system_account in config and operator JWT must be identical")
    system_account = system_account or named
    pinned = pinned_accounts | {system_account} if pinned_accounts else None
    trust = Trust.of(claims, trusted_keys, pinned)
    for key in sorted(trust.keys):
        if not is_valid_public(KeyKind.OPERATOR, key):
            raise TokenError(
                f"trusted Keys {quoted(key)} are required to be a valid public operator nkey"
            )
    if default_sentinel and not decode_user(default_sentinel).rights.is_bearer:
        raise TokenError("default sentinel must be a bearer token")
    return Operators(claims, trust, system_account)


def _check_version(operator: OperatorClaims, server_version: str) -> None:
    """Raise TokenError if the operator wants a newer server than this."""
    wanted = operator.assert_server_version
    if not wanted:
        return
    name = operator.registered.subject
    try:
        numbers = _version_of(wanted)
    except ValueError as err:
        raise TokenError(
            f"operator {name} expects version {wanted[:64]} got error instead: {err}"
        ) from None
    own = _version_of(server_version.partition("-")[0])
    for part, number, here in zip(_PARTS, numbers, own, strict=True):
        if number > here:
            raise TokenError(
                f"operator {name} expected {part} version {number} > server {part} version {here}"
            )
        if number < here:
            return


def _version_of(text: str) -> list[int]:
    """Return the three numbers of `2.15.1`; raise ValueError for other texts."""
    parts = text.split(".")
    if len(parts) != 3:
        raise ValueError("asserted server version must be of the form <major>.<minor>.<update>")
    for part in parts:
        if not _INTEGER.fullmatch(part):
            raise ValueError(f"asserted server version cant parse {part[:64]} to int")
    numbers = [int(part) for part in parts]
    if min(numbers) < 0:
        raise ValueError(f"asserted server version can'b contain negative values: {text}")
    return numbers
