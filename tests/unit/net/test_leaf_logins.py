"""Logins of leaf nodes at a hub, and what a remote logs in with."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest

from streamd.config.leaf_options import LeafOptions, LeafRemote
from streamd.config.options import Options, User
from streamd.net.client.auth import Approach, Check, ClientPolicy, Identity
from streamd.net.leaf.leaf_credentials import CredentialsError, credentials_of
from streamd.net.leaf.leaf_logins import LeafLogins
from streamd.tokens.nkeys import decode_signature, verify
from tests.unit.tokens.test_credentials import FILE, TOKEN, USER

HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


@pytest.mark.parametrize("stored", ["secret", HASHED], ids=["plain", "bcrypt"])
@pytest.mark.parametrize(("placed", "account"), [("", "A"), ("B", "B")])
def test_account_of_the_block_holds_for_logins_of_clients(
    stored: str, placed: str, account: str
) -> None:
    options = Options(users=(User("u", stored, account="A"),))
    logins = LeafLogins(LeafOptions(account=placed), ClientPolicy.of(options))
    for is_known in (False, True):  # a password that was right is not hashed again
        verdict = logins.judge({"user": "u", "pass": "secret"}, Approach(nonce="nonce"))
        assert isinstance(verdict, Check) == (stored == HASHED and not is_known)
        identity = verdict.run() if isinstance(verdict, Check) else verdict
        assert isinstance(identity, Identity)
        assert identity.account == "A", "the client's own login has changed"
        assert logins.account_of(identity) == account


def test_a_remote_signs_with_its_file_of_credentials(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text(FILE)
    found = credentials_of(LeafRemote(credentials=str(file)))
    assert found is not None
    assert (found.jwt, found.nkey) == (TOKEN, USER.public)
    assert verify(USER.public, b"nonce", decode_signature(found.sign("nonce")))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "no such file"),
        ("", "0 of two decorated parts"),
        (FILE.replace(USER.seed, "SU"), "not a seed of"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str | None, error: str) -> None:
    file = tmp_path / "user.creds"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CredentialsError, match=error) as raised:
        credentials_of(LeafRemote(credentials=str(file)))
    assert str(file) in str(raised.value)
    assert USER.seed not in str(raised.value)
