"""The `websocket` block: keys, aliases, refusals, and the options that follow for its clients."""

from __future__ import annotations

import pytest

from streamd.config import changes, grammar, reader
from streamd.config.options import Options, finish
from streamd.errors import ConfigError


def options(text: str) -> Options:
    return finish(reader.from_tree(grammar.parse(text, "t.conf", environ={})))


def test_every_setting_reaches_its_option() -> None:
    o = options(
        """
        authorization { user: a, password: b, timeout: 3 }
        ws {
            listen: "127.0.0.1:-1", advertise: "ws.test:443", no_tls: true, compress: true
            same_origin: true, origins: ["http://a.test", "https://b.test:8443"]
            handshake_timeout: "1500ms", ping_interval: "20s"
            headers { X-A: b, "X-C": "d e" }
            authorization { username: u, pass: p, timeout: "500ms" }
            user_cookie: uc, pass_cookie: pc, token_cookie: tc
        }
        """
    )
    ws = o.websocket
    assert (ws.host, ws.port, ws.advertise) == ("127.0.0.1", -1, "ws.test:443")
    assert (ws.is_compressing, ws.is_same_origin) == (True, True)
    assert ws.allowed_origins == ("http://a.test", "https://b.test:8443")
    assert (ws.handshake_timeout_ns, ws.ping_interval_ns) == (1_500_000_000, 20_000_000_000)
    assert ws.headers == (("X-A", "b"), ("X-C", "d e"))
    assert ws.cookies == {"user": "uc", "pass": "pc", "auth_token": "tc"}
    assert (o.warnings, o.unserved) == ([], [])
    view = o.for_websocket()
    assert (view.host, view.port, view.client_advertise) == ("127.0.0.1", -1, "ws.test:443")
    assert (view.username, view.password, view.token) == ("u", "p", "")
    assert (view.auth_timeout_s, view.ping_interval_ns) == (0.5, 20_000_000_000)
    assert (o.username, o.auth_timeout_s) == ("a", 3.0)


def test_what_is_not_given_is_as_for_other_clients() -> None:
    o = options(
        "authorization { users [{user: a}, {user: b}], timeout: 3 }\nno_auth_user: a\n"
        'ping_interval: "7s"\nwebsocket { port: 1, no_tls: true }'
    )
    view = o.for_websocket()
    assert (view.no_auth_user, view.auth_timeout_s, view.ping_interval_ns) == ("a", 3.0, 7 * 10**9)
    assert view.users is o.users
    single = options("authorization { token: t }\nwebsocket { port: 1, no_tls: true }")
    assert single.for_websocket().token == "t"
    other = options(
        "authorization { users [{user: a}, {user: b}] }\n"
        "websocket { port: 1, no_tls: true, no_auth_user: b }"
    )
    assert (other.no_auth_user, other.for_websocket().no_auth_user) == ("", "b")


def test_without_a_port_there_is_no_listener_and_nothing_to_check() -> None:
    o = options('websocket { same_origin: true, allowed_origins: [foo], jwt_cookie: "j" }')
    assert not o.websocket.is_enabled


PLAIN = "websocket { port: 1, no_tls: true, "


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("websocket { port: 1 }", "websocket requires TLS configuration"),
        (PLAIN + "foo: 1 }", 't.conf:1:36: unknown field "foo"'),
        (PLAIN + "authorization { users: [] } }", 'unknown field "users"'),
        (
            PLAIN + "allowed_origins: [foo] }",
            'unable to parse allowed origin: parse "foo": invalid URI for request',
        ),
        (
            PLAIN + 'allowed_origins: "ftp://x" }',
            'unable to parse allowed origin "ftp://x": allowed origins must be absolute URLs with'
            " http or https scheme",
        ),
        (PLAIN + "same_origin: 5 }", "must be true or false"),
        (
            PLAIN + "jwt_cookie: j }",
            "trusted operators or trusted keys configuration is required for JWT authentication"
            ' via cookie "j"',
        ),
        (PLAIN + "no_auth_user: x }", 'no_auth_user: "x" present'),
        (
            f"authorization {{ users [{{user: a}}] }}\n{PLAIN} authorization {{ user: j }} }}",
            "websocket authentication username not compatible with presence of users/nkeys",
        ),
        (
            f"authorization {{ users [{{user: a}}] }}\n{PLAIN} authorization {{ token: j }} }}",
            "websocket authentication token not compatible with presence of users/nkeys",
        ),
        (
            PLAIN + 'headers { "Sec-WebSocket-Foo": a } }',
            'websocket: invalid header "Sec-WebSocket-Foo", "Sec-WebSocket-" prefix not allowed',
        ),
        (
            PLAIN + "headers { Connection: a } }",
            'websocket: invalid header "Connection" not allowed',
        ),
        (
            PLAIN + 'headers { "a b": c } }',
            'websocket: invalid header name "a b"',
        ),
        (
            PLAIN + 'headers { a: "b\\r\\nc: d" } }',
            'websocket: invalid value of header "a"',
        ),
        (PLAIN + "advertise: 'a:99999' }", 'invalid websocket advertise value of "a:99999"'),
        (PLAIN + "handshake_timeout: 5x }", "handshake_timeout"),
    ],
)
def test_mistakes_are_named(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as found:
        options(text)
    assert wanted in str(found.value)


def test_what_tls_does_not_do_here_is_refused() -> None:
    block = "cert_file: c, key_file: k, connection_rate_limit: 3, verify: true"
    o = options(f"websocket {{ port: 1, tls {{ {block} }} }}")
    assert ["connection_rate_limit" in each for each in o.unserved] == [True]


def test_tls_is_the_listeners_own() -> None:
    o = options(
        "tls { cert_file: a, key_file: b }\nallow_non_tls: true\n"
        "websocket { port: 1, tls { cert_file: c, key_file: k, verify_and_map: true } }"
    )
    view = o.for_websocket()
    assert view.tls is not None and view.tls.certificates == (("c", "k"),)
    assert view.tls.is_mapping and not view.allows_non_tls
    clear = options("tls { cert_file: a, key_file: b }\nwebsocket { port: 1, no_tls: true }")
    assert clear.for_websocket().tls is None


def test_a_reload_changes_nothing_of_the_listener_and_tells_no_secret() -> None:
    old = options(PLAIN + "authorization { user: u, password: old } }")
    new = options(PLAIN + "authorization { user: u, password: new } }")
    with pytest.raises(ConfigError) as found:
        changes.refuse_fixed(old, new)
    assert str(found.value) == (
        "config reload not supported for Websocket: websocket.authorization.password changed"
    )
    changes.refuse_fixed(old, options("\n" + PLAIN + "authorization { user: u, password: old } }"))
