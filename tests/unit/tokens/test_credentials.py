"""Files of credentials: token and seed, and errors that name neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import TokenError
from streamd.limits import TOKEN_BYTES_MAX
from streamd.tokens.credentials import format_credentials, parse_credentials, plain_token
from tests.minted_tokens import ACCOUNT, REVOKED_USER, USER, operator, user

TOKEN = user()
FILE = f"""-----BEGIN NATS USER JWT-----
{TOKEN}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{USER.seed}
------END USER NKEY SEED------

*************************************************************
"""


@pytest.mark.parametrize(
    "text",
    [FILE, FILE.replace("\n", "\r\n"), FILE.rstrip("*\n"), format_credentials(TOKEN, USER)],
    ids=["as nsc writes it", "with CRLF", "without an end", "as written here"],
)
def test_a_file_holds_token_and_seed(text: str) -> None:
    found = parse_credentials(text)
    assert (found.token, found.key.public) == (TOKEN, USER.public)
    assert found.claims.account == ACCOUNT.public


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "0 of two decorated parts"),
        (TOKEN, "0 of two decorated parts"),
        (FILE.split("*")[0], "1 of two decorated parts"),
        (FILE.replace(TOKEN, "x"), "expected 3 chunks"),
        (FILE.replace(TOKEN, operator()), "not user claim"),
        (FILE.replace(USER.seed, "SUxx"), "not a seed of 58 characters"),
        (FILE.replace(USER.seed, ACCOUNT.seed), "the seed is not that of a user"),
        (FILE.replace(USER.seed, REVOKED_USER.seed), "the seed is not that of the token's user"),
        ("-" * (2 * TOKEN_BYTES_MAX), "bytes exceed"),
    ],
)
def test_other_files_are_refused(text: str, error: str) -> None:
    with pytest.raises(TokenError, match=error) as raised:
        parse_credentials(text)
    assert USER.seed not in str(raised.value)


def test_the_token_of_an_operator_may_be_decorated() -> None:
    token = operator()
    for text in (
        token,
        f"\n  {token}\n",
        f"-----BEGIN NATS OPERATOR JWT-----\n{token}\n------END NATS OPERATOR JWT------\n",
    ):
        assert plain_token(text) == token


@given(st.text(max_size=200) | st.text(st.sampled_from("-\nABE "), max_size=300))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(TokenError):
        parse_credentials(text)
    plain_token(text)
