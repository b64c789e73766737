"""What a reload says that it changed, and what it refuses to change."""

from __future__ import annotations

import pytest

from streamd.config import changes, grammar, reader
from streamd.config.options import Options, finish
from streamd.errors import ConfigError
from streamd.tokens.jwt import encode
from streamd.tokens.nkeys import KeyKind, KeyPair


def options(text: str) -> Options:
    return finish(reader.from_tree(grammar.parse(text, "t.conf", environ={})))


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("port: 1", "port: 1", []),
        ("max_payload: 1MiB", "max_payload: 2MiB", ["max_payload = 2097152 (was 1048576)"]),
        ("debug: false", "debug: true", ["debug = true (was false)"]),
        ("port: 1", "ping_interval: '5s', port: 1", ["ping_interval = 5s (was 2m0s)"]),
        ("port: 1", "logfile: /a, port: 1", ['logfile = "/a" (was "")']),
        (
            "server_tags: a",
            "server_tags: [a, b]",
            ["server_tags = ['a', 'b'] (was ['a']), for placement at the next start"],
        ),
        (
            "authorization { users [{user: a, password: x}, {user: b}, {user: c}] }",
            "authorization { users [{user: a, password: y}, {user: b}, {user: d}] }",
            ["users added: d", "users removed: c", "users changed: a"],
        ),
        (
            "authorization { user: a, password: secret1 }",
            "authorization { user: a, password: secret2 }",
            ["authorization.password changed"],
        ),
        ("authorization { token: secret1 }", "port: 4222", ["authorization.token removed"]),
        (
            "cluster { name: c, port: 1 }",
            "cluster { name: c, port: 1, routes: ['nats://u:secret@h:1'] }",
            ["cluster routes"],
        ),
    ],
)
def test_every_change_is_told_and_no_secret_is(old: str, new: str, wanted: list[str]) -> None:
    """One text per setting, with both values."""
    assert changes.describe(options(old), options(new)) == wanted


@pytest.mark.parametrize(
    ("new", "key"),
    [
        ("port: 5", "port"),
        ("listen: 'h:4222'", "host"),
        ("http: 8222", "http"),
        ("http_base_path: /x", "http_base_path"),
        ("max_closed_clients: 5", "max_closed_clients"),
        ("no_header_support: true", "no_header_support"),
        ("jetstream { store_dir: /x }", "JetStream: jetstream.enabled changed"),
        ("cluster { port: 5 }", "the cluster, but for its routes: cluster.port changed"),
        ("cluster { no_advertise: true }", "the cluster, .*: cluster.no_advertise changed"),
        ("store_dir: /x", "JetStream: jetstream.store_dir changed"),
    ],
)
def test_settings_that_cannot_change_are_refused_by_name(new: str, key: str) -> None:
    """A reload that would be carried out in part is not carried out."""
    with pytest.raises(ConfigError, match=f"config reload not supported for {key}"):
        changes.refuse_fixed(options("port: 4222"), options(new))


def test_jetstream_settings_that_cannot_change_are_named_by_key() -> None:
    old = options("jetstream {}")
    for key, text in [
        ("max_file_store", "max_file: 5"),
        ("max_memory_store", "max_mem: 5"),
        ("sync_interval", "sync: '2s'"),
        ("strict", "strict: false"),
        ("limits.batch.timeout", "limits { batch { timeout: '1s' } }"),
    ]:
        with pytest.raises(ConfigError, match=f"jetstream.{key} changed"):
            changes.refuse_fixed(old, options(f"jetstream {{ {text} }}"))


def test_every_option_is_judged() -> None:
    """A setting that is added later is either told of or refused, never passed over."""
    old = Options()
    for name in Options.__slots__:  # type: ignore[attr-defined]
        if name in {*changes._APART, *changes._FIXED}:
            continue
        new = Options()
        setattr(new, name, object())
        assert len(changes.describe(old, new)) == 1, name


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("port: 1", "port: 1, tls {}", ["auth_timeout_s = 3.0 (was 2.0)", "tls = enabled"]),
        ("tls {}", "tls {}", ["tls = enabled"]),
        ("tls {}", "authorization { timeout: 3 }", ["tls = disabled"]),
        (
            "tls { timeout: 2 }, authorization { timeout: 3 }",
            "tls { timeout: 5 }, authorization { timeout: 3 }",
            ["tls = enabled", "tls timeout = 5"],
        ),
        (
            "tls {}",
            "tls { handshake_first: auto }",
            [
                "tls = enabled",
                "Client TLS handshake first: true",
                "Client TLS handshake first fallback delay: 50ms",
            ],
        ),
        (
            "tls {}",
            f"tls {{ pinned_certs: [{'ab' * 32}] }}",
            ["tls = enabled", "1 pinned_certs"],
        ),
    ],
)
def test_tls_is_told_of_in_nats_servers_words(old: str, new: str, wanted: list[str]) -> None:
    """Also if no key changed: the files were read again."""
    found = changes.describe(options(old), options(new))
    assert [line.replace("authorization.timeout", "auth_timeout_s") for line in found] == wanted


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("port: 1", "port: 1, allow_non_tls: true", "allow_non_tls"),
        ("tls {}", "tls { connection_rate_limit: 5 }", "tls.connection_rate_limit"),
        ("port: 1", "port: 1, tls { verify_and_map: true }", "tls.verify_and_map"),
    ],
)
def test_what_decides_who_a_client_is_stays(old: str, new: str, key: str) -> None:
    """As in nats-server."""
    with pytest.raises(ConfigError, match=f"config reload not supported for {key}: old="):
        changes.refuse_fixed(options(old), options(new))


ISSUER = "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU"
KEY = "OCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYOCS"
SIGNER = KeyPair(KeyKind.OPERATOR, bytes([1]) * 32)
TOKEN = encode({"sub": SIGNER.public, "nats": {"type": "operator"}}, SIGNER, issued_s=1)
LOGIN = "authorization { users: [{user: a}] }"
CALLOUT = f"authorization {{ users: [{{user: a}}], auth_callout {{issuer: {ISSUER}, users: [a]}} }}"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("accounts { A {} }", "accounts { A {} }", []),
        ("port: 1", "accounts { A {} }, port: 1", ["accounts"]),
        ("accounts { A {} }", "accounts { A { limits { max_conn: 5 } } }", ["accounts"]),
        ("mappings { a: b }", "mappings { a: c }", ["accounts"]),
        (
            "accounts { A { users: [{user: x}] } }",
            "accounts { A { users: [{user: y}] } }",
            ["users added: y", "users removed: x"],
        ),
        (
            "accounts { A { users: [{user: x}] }, B {} }",
            "accounts { A {}, B { users: [{user: x}] } }",
            ["users changed: x"],
        ),
    ],
)
def test_accounts_and_their_users_reload(old: str, new: str, wanted: list[str]) -> None:
    before, after = options(old), options(new)
    changes.refuse_fixed(before, after)
    assert changes.describe(before, after) == wanted


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (LOGIN, LOGIN + ", no_auth_user: a", "NoAuthUser: old=, new=a"),
        (LOGIN + ", no_auth_user: a", LOGIN, "NoAuthUser: old=a, new="),
        (
            "accounts { A {}, B {} }",
            "accounts { A {}, B {} }, system_account: A",
            "SystemAccount: old=, new=A",
        ),
        (
            "accounts { A {}, B {} }, system_account: A",
            "accounts { A {}, B {} }, system_account: B",
            "SystemAccount: old=A, new=B",
        ),
        ("port: 1", "port: 1, no_system_account: on", "NoSystemAccount: old=false, new=true"),
        (LOGIN, CALLOUT, f"AuthCallout: old=<nil>, new=&{{{ISSUER} $G [a]  []}}"),
        (CALLOUT, LOGIN, f"AuthCallout: old=&{{{ISSUER} $G [a]  []}}, new=<nil>"),
        ("port: 1", f"port: 1, trusted: {KEY}", f"TrustedKeys: old=[], new=[{KEY}]"),
        (
            "resolver: MEM",
            f"resolver: MEM, operator: {TOKEN}",
            f"TrustedOperators: old=[], new=[{TOKEN}]",
        ),
    ],
)
def test_how_clients_are_known_stays(old: str, new: str, wanted: str) -> None:
    """In nats-server's words; the system account's default has no name there."""
    with pytest.raises(ConfigError) as told:
        changes.refuse_fixed(options(old), options(new))
    assert str(told.value) == f"config reload not supported for {wanted}"


def test_account_tokens_are_looked_up_or_not_for_good() -> None:
    for old, new in (("port: 1", "port: 1, resolver: MEM"), ("resolver: MEM", "port: 4222")):
        with pytest.raises(ConfigError, match="moving to or from an account resolver"):
            changes.refuse_fixed(options(old), options(new))
