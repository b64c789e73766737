"""The `leafnodes` block: keys, aliases, refusals, and what its remotes come to."""

from __future__ import annotations

import pytest

from streamd.config import grammar
from streamd.config.key_blocks import KeyBlocks
from streamd.config.leaf_options import (
    LeafCompression,
    LeafOptions,
    LeafUrl,
    LeafUser,
    parse_leaf_url,
)
from streamd.config.leaf_reader import read_leafnodes
from streamd.config.options import Options
from streamd.errors import ConfigError
from streamd.tokens.nkeys import KeyKind, KeyPair

ACCOUNTS = ("$G", "$SYS", "A")
USER_KEY = KeyPair(KeyKind.USER, bytes(range(32)))
ACCOUNT_KEY = KeyPair(KeyKind.ACCOUNT, bytes(32))


def read(text: str) -> tuple[LeafOptions, Options]:
    root = grammar.parse("leafnodes " + text, "t.conf", environ={})
    options = Options()
    block = root.raw["leafnodes"]  # type: ignore[index]
    leaf = read_leafnodes(block, KeyBlocks(options))
    leaf.check(ACCOUNTS, has_operators=False)
    return leaf, options


def test_every_setting_of_the_listener_reaches_its_option() -> None:
    leaf, options = read(
        """{
            listen: "127.0.0.1:-1", advertise: "leaf.test:7422", no_advertise: true
            authorization { timeout: "3s", users: [ {user: a, pass: b}, {user: c, account: A} ] }
            reconnect: "2s", min_version: "2.9.1", compression: off
            isolate_leafnode_interest: true, write_deadline: "4s"
            tls { cert_file: c, key_file: k }
        }"""
    )
    assert (leaf.host, leaf.port, leaf.advertise) == ("127.0.0.1", -1, "leaf.test:7422")
    assert (leaf.has_advertise, leaf.is_isolating, leaf.min_version) == (False, True, "2.9.1")
    assert leaf.users == (LeafUser("a", "b"), LeafUser("c", "", "A"))
    assert (leaf.auth_timeout_s, leaf.reconnect_ns) == (3.0, 2 * 10**9)
    assert leaf.write_deadline_ns == 4 * 10**9
    assert leaf.tls is not None and leaf.tls.certificates[0].cert_file == "c"
    assert leaf.has_own_logins
    assert (options.warnings, options.unserved) == ([], [])


def test_every_setting_of_a_remote_reaches_its_option() -> None:
    leaf, options = read(
        """{ remotes: [ {
            urls: ["nats-leaf://u:p%40@h1", "nats://h2:2"], account: A, hub: true, disabled: true
            deny_imports: "a.>", deny_exports: ["b", "c.*"], request_isolation: true
            no_randomize: true, ignore_discovered_servers: true, compression: "off"
            first_info_timeout: "5s", dial_timeout: "6s", nkey: SEED, credentials: "/x.creds"
        } ] }""".replace("SEED", USER_KEY.seed)
    )
    (remote,) = leaf.remotes
    assert remote.urls == (
        LeafUrl("nats-leaf", "h1", 7422, "u", "p@"),
        LeafUrl("nats", "h2", 2),
    )
    assert (remote.account, remote.is_hub, remote.is_disabled) == ("A", True, True)
    assert remote.deny_imports == (b"a.>",) and remote.deny_exports == (b"b", b"c.*")
    assert (remote.is_isolated, remote.is_randomized, remote.ignores_discovered) == (
        True,
        False,
        True,
    )
    assert (remote.first_info_timeout_ns, remote.dial_timeout_ns) == (5 * 10**9, 6 * 10**9)
    assert (remote.nkey_seed, remote.credentials) == (USER_KEY.seed, "/x.creds")
    assert not leaf.is_enabled and not leaf.has_own_logins
    assert options.warnings == []


def test_settings_have_other_names() -> None:
    leaf, options = read(
        """{
            authorization { username: u, pass: p, account: A, timeout: 3 }
            minimum_version: "2.8.0", isolate: true, compression: s2_auto
            remotes: [ { url: "nats-leaf://h", local: A, creds: "/x", deny_import: "a",
                deny_export: "b", dont_randomize: true } ]
        }"""
    )
    (remote,) = leaf.remotes
    assert (leaf.username, leaf.account, leaf.auth_timeout_s) == ("u", "A", 3.0)
    assert (leaf.min_version, leaf.is_isolating) == ("2.8.0", True)
    assert leaf.compression.mode == "s2_auto"
    assert (remote.account, remote.credentials) == ("A", "/x")
    assert (remote.deny_imports, remote.deny_exports) == ((b"a",), (b"b",))
    assert not remote.is_randomized and options.warnings == []
    leaf, _ = read(f'{{ remotes: [ {{ url: "nats://h:2", seed: {USER_KEY.seed} }} ] }}')
    assert leaf.remotes[0].nkey_seed == USER_KEY.seed


@pytest.mark.parametrize(
    ("text", "port", "path", "is_websocket", "asks_for_tls"),
    [
        ("nats-leaf://h", 7422, "", False, False),
        ("tls://h:1/ignored", 1, "", False, True),
        ("ws://h", 80, "", True, False),
        ("wss://h/some/path/", 443, "/some/path", True, True),
    ],
)
def test_urls(text: str, port: int, path: str, is_websocket: bool, asks_for_tls: bool) -> None:
    url = parse_leaf_url(text)
    assert (url.port, url.path) == (port, path)
    assert (url.is_websocket, url.asks_for_tls) == (is_websocket, asks_for_tls)


REMOTE = '{ remotes: [ { url: "nats://h:2", %s } ] }'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("5", "Expected map to define a leafnode, got an integer"),
        ("{ foo: 1 }", 'unknown field "foo"'),
        ('{ min_version: "2.7.9" }', "the minimum version should be at least 2.8.0"),
        ("{ min_version: abc }", "invalid leafnode's minimum version: invalid semver"),
        ("{ compression: foo }", 'unsupported compression mode "foo"'),
        (
            "{ authorization { user: a, users: [{user: b}] } }",
            "can not have a single user/pass and a users array",
        ),
        (
            "{ authorization { users: [{user: c}, {user: c}] } }",
            'duplicate user "c" detected in leafnode authorization',
        ),
        ("{ authorization { users: {user: c} } }", "Expected users field to be an array, got a"),
        ("{ authorization { users: [{password: c}] } }", "User entry requires a user"),
        ("{ authorization { token: x } }", 'unknown field "token"'),
        ("{ authorization { nkey: foo } }", "Not a valid public nkey for leafnode authorization"),
        (
            "{ authorization { account: NOPE } }",
            'cannot find local account "NOPE" specified in leafnode authorization',
        ),
        (
            "{ authorization { users: [{user: a, account: NOPE}] } }",
            'cannot find local account "NOPE" specified in leafnode authorization',
        ),
        ('{ reconnect: "x" }', "reconnect"),
        ('{ reconnect: "0s" }', "must be more than nothing"),
        ("{ advertise: 'h:99999' }", 'invalid leafnodes advertise value of "h:99999"'),
        ("{ remotes: {} }", "Expected remotes field to be an array, got a block"),
        ("{ remotes: [ 5 ] }", "Expected remote leafnode entry to be a map/struct, got 5"),
        ("{ remotes: [ { url: foo } ] }", '"foo" is not the URL of a server'),
        ('{ remotes: [ { url: "nats://h:99999" } ] }', "out of range"),
        (
            '{ remotes: [ { urls: ["nats://h:2", "ws://h:3"] } ] }',
            "remote leaf node configuration cannot have a mix of websocket and non-websocket urls:"
            ' ["nats://h:2" "ws://h:3"]',
        ),
        (
            '{ remotes: [ { url: "nats://h:2" }, { url: "nats://h:2" } ] }',
            'duplicate remote urls=["nats://h:2"], account="$G"',
        ),
        (REMOTE % "account: NOPE", 'cannot find local account "NOPE" specified in leafnode remote'),
        (REMOTE % "nkey: SUxx", "Remote leafnode nkey is not a valid seed"),
        (REMOTE % f"nkey: {ACCOUNT_KEY.seed}", "Remote leafnode nkey is not a valid seed"),
        (REMOTE % "deny_imports: 'a..b'", 'subject "a..b" is not a valid subject'),
        (REMOTE % "deny_exports: 5", "Expected subject permissions to be a subject, or array"),
        (REMOTE % "compression: foo", 'unsupported compression mode "foo"'),
        (REMOTE % "hub: 5", '"leafnodes.remotes.hub" must be true or false'),
    ],
)
def test_refusals(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert error in str(refused.value)
    assert ACCOUNT_KEY.seed not in str(refused.value)


def test_what_is_not_served_says_so() -> None:
    _, options = read(REMOTE % 'proxy { url: "http://x:1" }')
    assert len(options.unserved) == 1 and '"leafnodes.remotes.proxy"' in options.unserved[0]
    leaf, options = read(REMOTE % "compression: { mode: s2_auto, rtt_thresholds: ['1ms'] }")
    assert not options.warnings
    assert leaf.remotes[0].compression == LeafCompression("s2_auto", (1_000_000,))
    assert leaf.compression == LeafCompression()
    _, options = read(REMOTE % "jetstream_cluster_migrate: true")
    assert "is not served by this version and is ignored" in options.warnings[0]
    _, options = read("{ port: 1, dial_timeout: '2s', write_timeout: close }")
    assert len(options.warnings) == 2
    _, options = read("{ port: 1, authorization { user: a, proxy_required: true } }")
    assert len(options.unserved) == 1 and "proxy_required" in options.unserved[0]
    _, options = read("{ port: 1, tls { cert_file: c, key_file: k, handshake_first: true } }")
    assert '"leafnodes.tls.handshake_first"' in options.unserved[0]
