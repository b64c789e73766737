"""From configuration text to Options: keys, aliases, warnings and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.config import duration_values, grammar, reader
from streamd.config.options import Options, ResponsePermission, finish
from streamd.errors import ConfigError
from streamd.store.blocks.record_format import SUBJECT_BYTES_MAX
from streamd.tokens.jwt import encode
from streamd.tokens.nkeys import KeyKind, KeyPair

USER = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
ACCOUNT_KEY = "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU"
OPERATOR = "OCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYOCS"
SIGNER = KeyPair(KeyKind.OPERATOR, bytes([1]) * 32)
TOKEN = encode({"sub": SIGNER.public, "nats": {"type": "operator"}}, SIGNER, issued_s=1)
ACCOUNT_TOKEN = encode({"sub": ACCOUNT_KEY, "nats": {"type": "account"}}, SIGNER, issued_s=1)
CALLOUT = f"authorization {{ auth_callout {{ issuer: {ACCOUNT_KEY}, users: [u] }} }}"


def options(text: str) -> Options:
    return reader.from_tree(grammar.parse(text, "t.conf", environ={}))


def test_every_setting_reaches_its_option() -> None:
    """A configuration that uses most keys, read back."""
    o = options(
        """
        listen: "127.0.0.1:-1"
        http: 0.0.0.0:8222
        server_name: n1
        server_tags: [a, b]
        server_metadata { zone: x }
        debug: true, trace: false
        logfile: /tmp/x.log
        pid_file: /tmp/x.pid
        ports_file_dir: /tmp
        max_payload: 2MB
        max_pending: 10MB
        max_connections: 100
        max_control_line: 2KB
        ping_interval: "5s"
        ping_max: 3
        write_deadline: "250ms"
        lame_duck_duration: "1m"
        lame_duck_grace_period: "2s"
        jetstream {
            store_dir: /data, max_mem: 64MB, max_file: "1GB", sync_interval: "10s"
            domain: hub, unique_tag: " AZ: ", limits { max_ack_pending: 5, max_ha_assets: 6
                max_request_batch: 8
                duplicate_window: "9s", batch {
                max_msgs: 7, timeout: "3s", max_inflight_per_stream: 11, max_inflight_total: 12 } }
        }
        """
    )
    assert (o.host, o.port, o.http_host, o.http_port) == ("127.0.0.1", -1, "0.0.0.0", 8222)
    assert (o.server_name, o.server_tags, o.server_metadata) == ("n1", ["a", "b"], {"zone": "x"})
    assert (o.is_debug, o.is_trace, o.log_file) == (True, False, "/tmp/x.log")
    assert (o.pid_file, o.ports_file_dir) == ("/tmp/x.pid", "/tmp")
    assert (o.max_payload, o.max_pending, o.max_control_line) == (2 << 20, 10 << 20, 2048)
    assert (o.max_connections, o.ping_interval_ns, o.ping_max) == (100, 5 * 10**9, 3)
    assert (o.write_deadline_ns, o.lame_duck_duration_ns) == (250_000_000, 60 * 10**9)
    js = o.jetstream
    assert (js.is_enabled, js.store_dir, js.domain) == (True, "/data", "hub")
    assert js.unique_tag == "az:"
    assert (js.max_memory, js.max_storage) == (64 << 20, 1 << 30)
    assert (js.sync_interval_ns, js.is_sync_always) == (10 * 10**9, False)
    assert (js.max_ack_pending, js.max_batch_msgs, js.batch_timeout_ns) == (5, 7, 3 * 10**9)
    assert js.batch_limits == (11, 12, 7, 3000)
    assert js.asset_limits == (5, 8, 9 * 10**9) and js.max_ha_assets == 6
    assert o.warnings == []


@pytest.mark.parametrize(
    ("text", "is_enabled"),
    [
        ("jetstream: enabled", True),
        ("jetstream: disabled", False),
        ("jetstream: true", True),
        ("jetstream {}", True),
        ("jetstream { enabled: false }", False),
        ("port: 1", False),
    ],
)
def test_jetstream_is_switched_on_in_every_form(text: str, is_enabled: bool) -> None:
    """A word, a boolean or a block."""
    assert options(text).jetstream.is_enabled is is_enabled


def test_fsync_before_ack_is_the_default() -> None:
    """Only an explicit interval makes acks weaker."""
    assert options("jetstream {}").jetstream.is_sync_always
    assert options("jetstream { sync_interval: always }").jetstream.is_sync_always
    assert not options("jetstream { sync: '2m' }").jetstream.is_sync_always


def test_users_with_permissions() -> None:
    """Lists, single subjects, allow and deny, responses, queue subscriptions, defaults."""
    o = options(
        """
        ADMIN = { publish: ">", subscribe: [">"] }
        authorization {
          default_permissions { publish: "sandbox.>" }
          timeout: 3
          users = [
            { user: admin, password: x, permissions: $ADMIN }
            { user: client, password: "12", permissions {
                publish: { allow: [a, "b.*"], deny: "b.c" }
                subscribe: ["foo", "bar q.*"]
                allow_responses { max: 5, expires: "1m" } } }
            { user: service, pass: y, permissions { allow_responses: true } }
            { username: other, pass: z }
          ]
        }
        no_auth_user: other
        """
    )
    admin, client, service, other = o.users
    assert o.auth_timeout_s == 3.0
    assert o.is_auth_required
    assert admin.permissions is not None
    assert admin.permissions.publish_allow == [b">"]
    assert (client.password, client.permissions and client.permissions.publish_deny) == (
        "12",
        [b"b.c"],
    )
    assert client.permissions is not None
    assert client.permissions.publish_allow == [b"a", b"b.*"]
    assert client.permissions.subscribe_allow == [b"foo", b"bar q.*"]
    assert client.permissions.allow_responses == ResponsePermission(5, 60 * 10**9)
    assert service.permissions is not None
    assert service.permissions.publish_allow == []
    assert service.permissions.allow_responses == ResponsePermission()
    assert other.permissions == o.default_permissions
    assert finish(o) is o


def test_no_control_line_is_longer_than_a_subject_may_be() -> None:
    """A record has 16 bits for the length of its subject: a longer one stopped its stream for good,
    on each replica, for the log has it."""
    o = options("max_control_line: 1MB")
    finish(o)
    assert o.max_control_line == 0xFFFF == SUBJECT_BYTES_MAX
    assert "max_control_line" in o.warnings[0]
    o = options("max_control_line: 65535")
    finish(o)
    assert (o.max_control_line, o.warnings) == (0xFFFF, [])


def test_keys_that_only_add_and_are_not_served_give_a_warning_that_names_them() -> None:
    """Warned, not refused, and not silently dropped."""
    o = options("port: 1\ngateway { name: x }\nmqtt { port: 8080 }\ncluster { pool_size: 3 }")
    assert o.warnings == [
        't.conf:2:1: "gateway" is not served by this version and is ignored',
        't.conf:3:1: "mqtt" is not served by this version and is ignored',
        't.conf:4:11: "cluster.pool_size" is not served by this version and is ignored',
    ]
    assert o.unserved == []


@pytest.mark.parametrize(
    ("text", "place", "key"),
    [
        ("port: 1\ntls { ocsp_peer: true }", "2:7", "tls.ocsp_peer"),
        ("ocsp { mode: always }", "1:1", "ocsp"),
        ("ocsp: true", "1:1", "ocsp"),
        ("ocsp { mode: must }", "1:1", "ocsp"),
        ("ocsp { mode: auto }", "1:1", "ocsp"),
        ("proxy_protocol: true", "1:1", "proxy_protocol"),
        ("jetstream { tpm { } }", "1:13", "jetstream.tpm"),
        ("jetstream { limits { default_max_consumers: 5 } }", "1:22", "default_max_consumers"),
        ("authorization { proxy_required: true }", "1:17", "authorization.proxy_required"),
        (
            "authorization { users [{user: u, proxy_required: true}] }",
            "1:34",
            "users.proxy_required",
        ),
        (
            "authorization { users [{user: u, connection_types: [MQTT]}] }",
            "1:34",
            "users.allowed_connection_types",
        ),
        ("cluster { permissions { import: a } }", "1:11", "cluster.permissions"),
        (
            "cluster { authorization { permissions {} } }",
            "1:27",
            "cluster.authorization.permissions",
        ),
        (
            "cluster { tls { cert_file: c, key_file: k, ocsp_peer: true } }",
            "1:44",
            "cluster.tls.ocsp_peer",
        ),
    ],
)
def test_keys_that_protect_and_are_not_served_are_refused(text: str, place: str, key: str) -> None:
    """Each is told with its place; nothing is in force that only looks protected."""
    o = options(text)
    (problem,) = o.unserved
    assert problem.startswith(f"t.conf:{place}: ")
    assert f'{key}"' in problem
    assert o.warnings == []


@pytest.mark.parametrize(
    "text",
    [
        "allow_non_tls: false",
        "ocsp: no",
        "ocsp { mode: never }",
        "ocsp { mode: Never }",
        "tls { ocsp_peer: no }",
        "allow_non_tls: true",
        "authorization { proxy_required: off, token: t }",
    ],
)
def test_a_protection_that_is_switched_off_asks_for_nothing(text: str) -> None:
    """As configurations made by tools write it."""
    o = options(text)
    assert (o.unserved, o.warnings) == ([], [])


def test_users_of_accounts_still_have_to_log_in() -> None:
    """Accounts never mean that anybody may connect."""
    o = options("accounts { A { users [{user: a, password: b}] }, B { users [{user: c}] } }")
    assert [(user.name, user.account) for user in o.users] == [("a", "A"), ("c", "B")]
    assert o.is_auth_required
    assert o.unserved == []


SYSTEM = "accounts { $SYS { users [{user: admin, password: b}] } }"


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        (SYSTEM, True),
        (SYSTEM.replace("$SYS", "S") + ", system_account: S", True),
        (SYSTEM.replace("$SYS", "S"), False),
        (SYSTEM + ", system_account: S", False),
        (SYSTEM + ", authorization { timeout: 1 }", False),
        (SYSTEM + f", operator: {TOKEN}", False),
        (SYSTEM[:-1] + ", A {} }", False),
    ],
)
def test_users_of_the_system_account_alone_do_not_close_the_server(
    text: str, is_open: bool
) -> None:
    """`accounts { $SYS { users [...] } }` is how monitoring is let in to a server without logins:
    nats-server takes clients that show no credentials as before. Here they were refused."""
    o = options(text)
    assert o.is_auth_required  # who shows credentials is still judged by them
    assert o.is_open_besides_system == is_open


@pytest.mark.parametrize(
    "text",
    [
        "no_sublist_cache: true",
        "ocsp_cache: true",
        "no_sys_acc: true",
        "jetstream { limits { default_max_consumers: 5 } }",
        "cluster { tls { cert_file: c, key_file: k, first: true, cert_match_skip_invalid: true } }",
    ],
)
def test_keys_that_nats_server_knows_by_other_names_are_no_errors(text: str) -> None:
    o = options(text)
    assert "is not served by this version" in (o.unserved + o.warnings)[0]


@pytest.mark.parametrize(
    "text",
    [
        CALLOUT,
        "authorization { users [{user: u, allowed_connection_types: [mqtt_ws, MQTT]}] }",
        f"operator: {TOKEN}",
        f"trusted_keys: [{OPERATOR}]",
    ],
)
def test_users_who_cannot_log_in_do_not_open_the_server(text: str) -> None:
    """Without those whom tokens, a service or MQTT let in nobody is left who has to log in: anybody
    who reaches the port would be let in, where nats-server admits those users only."""
    o = options(text)
    assert o.is_auth_required
    assert [each for each in o.unserved if "cannot log in" not in each] == []


def test_a_user_may_be_bound_to_kinds_of_connections() -> None:
    """Kinds that are served let the user in; beside one of them others do no harm."""
    for ways, wanted in (
        ("[STANDARD, websocket]", {"STANDARD", "WEBSOCKET"}),
        ("standard", {"STANDARD"}),
        ("[websocket, mqtt]", {"WEBSOCKET", "MQTT"}),
    ):
        o = options(f"authorization {{ users [{{user: u, allowed_connection_types: {ways}}}] }}")
        assert ([user.name for user in o.users], o.warnings, o.unserved) == (["u"], [], [])
        assert o.users[0].connection_types == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("port: 1\nfoo: 3", 't.conf:2:1: unknown field "foo"'),
        ("jetstream {\n  bar: 1 }", 't.conf:2:3: unknown field "bar"'),
        ("user: u", 't.conf:1:1: unknown field "user"'),
        (
            "authorization { users [{user: u, allowed_connection_types: [STANDARD, tcp]}] }",
            't.conf:1:34: invalid connection types ["tcp"]',
        ),
        ("port: abc", "\"port\" must be an integer, not a string ('abc')"),
        ("debug: 5", "\"debug\" must be true or false, not an integer ('5')"),
        (
            "server_name: 5",
            '"server_name" must be a string, not an integer (5): a text that looks like a number'
            " needs quotes",
        ),
        ("jetstream { stor_dir: x }", 'unknown field "stor_dir": did you mean "store_dir"?'),
        ("authorization { users [{user: a, permissions { pub { alow: x } }}] }", 'name "alow"'),
        ("listen: foo:bar", '"listen": "bar" is not a port'),
        ("listen: localhost", '"listen": "localhost" is not host:port or a port'),
        (
            "ping_interval: '5x'",
            '"ping_interval": "5x" is not a duration, such as "500ms" or "1h30m": unknown unit "x"',
        ),
        ("ping_interval: 2m", 'quote durations, as in "2m"'),
        ("lame_duck_duration: 1m", '"lame_duck_duration" must be a string, not an integer'),
        ("lame_duck_duration: '5s'", "invalid lame_duck_duration of 5s, minimum is 30 seconds"),
        ('server_name: "a b"', "server name cannot contain spaces"),
        ("jetstream: 5", '"jetstream" must be enabled, disabled or a block, not an integer'),
        ("jetstream: maybe", '"jetstream" must be enabled or disabled, not "maybe"'),
        ("max_payload: -1", "out of range"),
        ("max_payload: 100GB", "out of range"),
        ("authorization { user: a, users [{user: b}] }", "single user/pass and a users array"),
        ("authorization { token: a, user: b }", "Cannot have a user/pass and token"),
        ("authorization { users [{user: a}, {user: a}] }", 'Duplicate user "a" detected'),
        ("authorization { users [{user: a, permissions { publish: 'a..b' }}] }", "valid subject"),
        ("authorization { users: 5 }", "Expected users field to be an array, got 5"),
        ("authorization { user: a, password: 007 }", '"authorization.password" must be a string'),
        ("authorization { token: 5k }", '"authorization.token" must be a string'),
        ("authorization { users [{user: 1.5}] }", '"users.user" must be a string, not a number'),
        ("server_tags: [a, 1]", '"server_tags" must be a string, not an integer'),
        ("accounts: 5", '"accounts" must be a block, not an integer'),
        ("accounts { A: 5 }", "Expected map entries for accounts"),
        ("authorization { token: a, users [{user: b}] }", "Can not have a token and a users"),
        ("authorization { users [{password: c}] }", "User entry requires a user"),
        ("authorization { timeout: true }", "authorization config, 'timeout' wrong"),
        ("authorization { users [{user: a, permissions { pub: 'a.>.b' }}] }", "valid subject"),
        ("authorization { users [{user: a, permissions { pub: 'a q' }}] }", "valid subject"),
        ("authorization { users [{user: a, permissions { pub: '' }}] }", "valid subject"),
        ("authorization { users [{user: a, permissions { sub: 'a q r' }}] }", "valid subject"),
        ("authorization { users [{user: a, permissions { pub { foo: x } }}] }", "Unknown field"),
        ("lame_duck_grace_period: 5", '"lame_duck_grace_period" must be a string'),
        ("lame_duck_grace_period: '-5s'", "invalid lame_duck_grace_period, needs to be positive"),
        ("host: true", '"host" must be a string, not a boolean'),
        ("ocsp: x", "error parsing ocsp config: unsupported type string"),
        ("ocsp: 5", "error parsing ocsp config: unsupported type int64"),
        ("ocsp { mode: foo }", "error parsing ocsp config: unsupported ocsp mode string"),
        ("max_payload: 9223372036854775808", "does not fit in 64 bits"),
        ("jetstream { max_mem: x }", '"x" is not a size'),
        ("jetstream { sync_interval: '0s' }", "must be positive or always"),
        ('cluster { name: "a b" }', "cluster name cannot contain spaces"),
        ("cluster { authorization { token: x } }", "does not support tokens"),
        ("cluster { authorization { users: [] } }", "does not allow multiple users"),
        ("cluster { tls { cert_file: x } }", "missing 'key_file'"),
        ("cluster { tls { key_file: x } }", "missing 'cert_file'"),
    ],
)
def test_a_refusal_names_the_key_and_its_place(text: str, wanted: str) -> None:
    """In words that need no Go: the setting, what it has, what it must have."""
    with pytest.raises(ConfigError) as caught:
        options(text)
    assert wanted in str(caught.value)
    assert str(caught.value).startswith("t.conf:")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("max_payload: 2MB\nmax_pending: 1MB", "cannot be higher than max_pending"),
        ("lame_duck_grace_period: '3m'", "strictly lower than lame duck duration"),
        ("no_auth_user: nobody", 'no_auth_user: "nobody" present'),
    ],
)
def test_settings_that_contradict_each_other_are_refused(text: str, wanted: str) -> None:
    """Checked once everything is known."""
    with pytest.raises(ConfigError, match=wanted):
        finish(options(text))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("trace_verbose: true", {"is_trace": True, "is_trace_verbose": True}),
        ("trace_headers: true", {"is_trace": True, "is_trace_headers": True}),
        ("trace: true, trace_verbose: false", {"is_trace": True, "is_trace_verbose": False}),
        ("no_header_support: true", {"has_header_support": False}),
        ("server_tags: a", {"server_tags": ["a"]}),
        ("listen: 5", {"port": 5, "host": Options().host}),
        ("listen: '[::1]:5'", {"port": 5, "host": "::1"}),
        ("authorization { timeout: '1500ms' }", {"auth_timeout_s": 1.5}),
        ("authorization { timeout: 2 }", {"auth_timeout_s": 2}),
    ],
)
def test_forms_of_settings(text: str, wanted: dict[str, object]) -> None:
    o = options(text)
    assert {name: getattr(o, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("max_mem: '2GiB', max_file: '5k'", {"max_memory": 2 << 30, "max_storage": 5 << 10}),
        ("max_mem: 7, max_file: '7'", {"max_memory": 7, "max_storage": 7}),
        ("sync_interval: always", {"sync_interval_ns": 0}),
        ("sync: '2m'", {"sync_interval_ns": 120 * 10**9}),
    ],
)
def test_forms_of_jetstream_settings(text: str, wanted: dict[str, int]) -> None:
    js = options(f"jetstream {{ {text} }}").jetstream
    assert {name: getattr(js, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("false", None),
        ("{ max: 0, expires: '0s' }", ResponsePermission()),
        ("{ max: -1, expires: '-1s' }", ResponsePermission(-1, -(10**9))),
    ],
)
def test_forms_of_leave_to_answer(text: str, wanted: ResponsePermission | None) -> None:
    block = f"publish_allow_responses: {text}"
    o = options(f"authorization {{ users [{{user: a, permissions {{ {block} }}}}] }}")
    permissions = o.users[0].permissions
    assert permissions is not None and permissions.allow_responses == wanted
    assert permissions.publish_allow == (None if wanted is None else [])


def test_a_file_is_remembered_with_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "t.conf"
    path.write_text("port: 5")
    o = reader.load(str(path))
    assert (o.port, o.config_file) == (5, str(path))
    assert o.config_digest == grammar.digest(grammar.parse("port: 5"))


def test_0_means_the_default_where_0_makes_no_sense() -> None:
    """As in nats-server: a `ping_max` of 0 would end every client at its first ping."""
    zeros = """
        port: 0, max_payload: 0, max_control_line: 0, max_pending: 0, max_closed_clients: 0
        ping_interval: "0s", ping_max: 0, write_deadline: "0s", lame_duck_grace_period: "0s"
        authorization { timeout: 0 }
        """
    assert finish(options(zeros)) == finish(Options())


def test_much_may_wait_for_a_client() -> None:
    """`max_pending` has 64 bits."""
    assert finish(options("max_pending: 4GB")).max_pending == 4 << 30


def test_a_number_of_seconds_is_a_duration_with_a_warning() -> None:
    """The deprecated form still works."""
    o = options("ping_interval: 5")
    assert o.ping_interval_ns == 5 * 10**9
    assert o.warnings == ['t.conf:1:1: "ping_interval" is taken for 5 s: write "5s"']


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1h30m", 5400 * 10**9),
        ("250ms", 250 * 10**6),
        ("1.5s", 1_500_000_000),
        ("2m0s", 120 * 10**9),
        ("-1s", -(10**9)),
        ("100us", 100_000),
        ("7ns", 7),
        ("0", 0),
    ],
)
def test_durations(text: str, ns: int) -> None:
    """Go's duration syntax."""
    assert duration_values.parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it cannot be read"),
        ("5", "a unit is missing"),
        ("x", "it cannot be read"),
        ("1h5", "a unit is missing"),
        ("s", "it cannot be read"),
        ("1d", 'unknown unit "d"'),
        ("1.2.3s", "a unit is missing"),
        ("9223372037s", "it cannot be read"),
    ],
)
def test_invalid_durations_are_refused(text: str, why: str) -> None:
    """With ValueError; the caller knows the key."""
    with pytest.raises(ValueError, match=f'^"{text}" is not a duration, such as .*: {why}$'):
        duration_values.parse_duration(text)


def test_a_batch_may_not_be_larger_than_one_log_entry_is_to_be() -> None:
    o = options("jetstream { limits { batch { max_msgs: 20000, max_inflight_total: -1 } } }")
    finish(o)
    assert o.jetstream.batch_limits == (0, 0, 16_384, 0)
    (warning,) = o.warnings
    assert warning.startswith("jetstream.limits.batch.max_msgs (20000) is taken for 16384")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("https_port: 8443", "TLS cert and key required for HTTPS"),
        (
            "http_port: 8222, https_port: 8443, tls {}",
            "can't specify both HTTP (8222) and HTTPs (8443) ports",
        ),
    ],
)
def test_monitoring_is_in_clear_or_in_tls(text: str, error: str) -> None:
    """Not both, and not without certificates."""
    with pytest.raises(ConfigError) as caught:
        finish(options(text))
    assert caught.value.text == error
    o = finish(options("https: '127.0.0.1:8443', tls {}"))
    assert (o.http_host, o.http_port, o.https_port, o.has_http) == ("127.0.0.1", 0, 8443, True)


def test_the_time_for_a_login_begins_behind_the_handshake() -> None:
    """So it is a second longer, unless it is configured."""
    assert finish(options("port: 1")).auth_timeout_s == 2.0
    assert finish(options("tls { timeout: '500ms' }")).auth_timeout_s == 1.5
    assert finish(options("tls {}, authorization { timeout: 2 }")).auth_timeout_s == 2.0


def test_an_empty_list_of_subjects_allows_all_and_says_so() -> None:
    """As nats-server takes it; beside `allow_responses` it leaves the answers alone."""
    text = "authorization {{ users [{{user: a, permissions {{ {} }}}}] }}"
    for block in ("publish: []", "publish: {allow: []}"):
        o = options(text.format(block))
        assert o.users[0].permissions is not None
        assert o.users[0].permissions.publish_allow is None
        assert "an empty list allows every subject" in o.warnings[0]
    o = options(text.format("publish: [], allow_responses: true"))
    assert o.users[0].permissions is not None and o.users[0].permissions.publish_allow == []
