"""Operators: versions they ask for, keys they trust, the system account they name.

The texts are those with which nats-server 2.15.1 refuses to start.
"""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import TokenError
from streamd.tokens.nkeys import KeyKind
from streamd.tokens.operators import Operators, read_operators
from tests.minted_tokens import (
    ACCOUNT,
    OPERATOR,
    OPERATOR_SIGNING,
    SYSTEM,
    account,
    key,
    operator,
    user,
)

VERSION = "2.15.1"
NEGATIVE = "got error instead: asserted server version can'b contain negative values: "


def _read(*tokens: str, **options: Any) -> Operators:
    return read_operators(tokens, server_version=VERSION, **options)


@pytest.mark.parametrize("version", ["", "2.15.1", "2.0.99", "1.99.0", "0.0.0", "2.15.+1"])
def test_older_versions_are_good_enough(version: str) -> None:
    assert _read(operator(assert_server_version=version)).claims
    token = operator(assert_server_version=version)
    assert read_operators([token], server_version="2.15.1-beta.3").claims


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("3.0.0", "expected major version 3 > server major version 2"),
        ("2.99.0", "expected minor version 99 > server minor version 15"),
        ("2.15.99", "expected update version 99 > server update version 1"),
        ("x", "expects version x got error instead: asserted server version must be of the form"),
        ("2.15", "must be of the form <major>.<minor>.<update>"),
        ("2.15.1-beta", "asserted server version cant parse 1-beta to int"),
        ("v2.15.1", "cant parse v2 to int"),
        ("2.-1.0", f"expects version 2.-1.0 {NEGATIVE}2.-1.0"),
    ],
)
def test_a_newer_version_is_refused(version: str, error: str) -> None:
    with pytest.raises(TokenError) as raised:
        _read(operator(assert_server_version=version))
    assert error in str(raised.value)
    assert str(raised.value).startswith(f"operator {OPERATOR.public} expect")


def test_keys_of_operators_are_trusted() -> None:
    other = key(KeyKind.OPERATOR, "other").public
    token = operator(signing_keys=[OPERATOR_SIGNING.public])
    found = _read(token, trusted_keys=[other])
    assert found.trust.keys == {OPERATOR.public, OPERATOR_SIGNING.public, other}
    assert found.trust.pinned_accounts is None
    with pytest.raises(TokenError, match='trusted Keys "x" are required to be a valid public op'):
        _read(operator(signing_keys=["x"]))
    with pytest.raises(TokenError, match="are required to be a valid public operator nkey"):
        _read(trusted_keys=[ACCOUNT.public])


def test_the_system_account_is_the_operators_or_the_configurations() -> None:
    assert _read(operator()).system_account == SYSTEM.public
    assert _read(operator(), system_account=SYSTEM.public).system_account == SYSTEM.public
    none = operator(system_account="")
    assert _read(none).system_account == ""
    assert _read(none, system_account=ACCOUNT.public).system_account == ACCOUNT.public
    assert _read(none, operator()).system_account == SYSTEM.public
    with pytest.raises(TokenError, match="must be identical"):
        _read(operator(), system_account=ACCOUNT.public)


def test_the_system_account_is_pinned_with_others() -> None:
    found = _read(operator(), pinned_accounts=frozenset({ACCOUNT.public}))
    assert found.trust.pinned_accounts == {ACCOUNT.public, SYSTEM.public}


def test_a_default_sentinel_is_a_bearer() -> None:
    assert _read(operator(), default_sentinel=user(bearer_token=True))
    with pytest.raises(TokenError, match="default sentinel must be a bearer token"):
        _read(operator(), default_sentinel=user())
    with pytest.raises(TokenError, match="not user claim"):
        _read(operator(), default_sentinel=account())


def test_other_tokens_are_no_operators() -> None:
    with pytest.raises(TokenError, match="not operator claim"):
        _read(account())
    with pytest.raises(TokenError, match="expected 3 chunks"):
        _read("x")
