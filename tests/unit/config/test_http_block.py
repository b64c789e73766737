"""The `http` block: an address as ever, or a block that has the dashboard's logins as well."""

from __future__ import annotations

import pytest

from streamd.config import changes, grammar, reader
from streamd.config.http_options import HttpLogins, HttpUser
from streamd.config.options import Options
from streamd.errors import ConfigError


def options(text: str) -> Options:
    return reader.from_tree(grammar.parse(text, "t.conf", environ={}))


def test_a_block_has_an_address_and_logins() -> None:
    o = options(
        """
        http { listen: "127.0.0.1:8222", token: "abc"
               users: [ { user: ops, password: "p", role: administrator }
                        { username: see, pass: "q", account: A } ] }
        """
    )
    assert (o.http_host, o.http_port, o.https_port) == ("127.0.0.1", 8222, 0)
    assert o.http_logins == HttpLogins(
        users=(HttpUser("ops", "p", True), HttpUser("see", "q", False, "A")), token="abc"
    )
    o = options("https { host: h, port: 8443, users: [{ user: a, password: b }] }")
    assert (o.http_host, o.http_port, o.https_port) == ("h", 0, 8443)
    assert [user.name for user in o.http_logins.users] == ["a"]
    o = options("http_port: 8222\nhttp { token: t }")
    assert (o.http_port, o.http_logins.token) == (8222, "t")
    for text in ("http { token: t }\nhttps { port: 1 }", "https { port: 1 }\nhttp { token: t }"):
        o = options(f"{text}\ntls {{ cert_file: c, key_file: k }}")
        assert (o.https_port, o.http_logins.token) == (1, "t")
    for text in ("http: 8222", 'http: "0.0.0.0:8222"', "http {}"):
        assert not options(text).http_logins


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http { users: x }", '"http.users" must be a list of users, not a string'),
        ("http { users: [x] }", 'a user of "http.users" must be a block, not a string'),
        ("http { users: [{ user: a }] }", "requires a user and a password"),
        ("http { users: [{ password: a }] }", "requires a user and a password"),
        ("http { users: [{ user: a, password: 123 }] }", "must be a string, not an integer"),
        ("http { users: [{ user: a, password: '' }] }", "must not be empty"),
        ("http { token: 123 }", "must be a string, not an integer"),
        (
            "http { users: [{ user: a, password: b, role: root }] }",
            'must be "reader" or "administrator", not "root"',
        ),
        (
            "http { users: [{ user: a, password: b }, { user: a, password: c }] }",
            'Duplicate user "a" detected',
        ),
        (
            "http { users: [{ user: a, password: b, account: '' }] }",
            '"http.users.account" must not be empty',
        ),
        (
            "http { token: a }, https { token: b }",
            "must not have logins beside another block's",
        ),
        ("http { user: a }", 'unknown field "user": did you mean "users"?'),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(text)
    assert words in str(caught.value) and "t.conf:1" in str(caught.value)


def test_a_reload_may_change_logins_and_tells_no_secret() -> None:
    old, new = options("http { token: geheim }"), options("http { token: verborgen }")
    changes.refuse_fixed(old, new)
    assert changes.describe(old, new) == ["http.users and http.token changed"]
    assert changes.describe(options(""), new) == ["http.users and http.token set"]
    assert changes.describe(old, options("")) == ["http.users and http.token removed"]
