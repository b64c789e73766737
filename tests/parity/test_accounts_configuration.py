"""Configurations of accounts and identities: a real nats-server refuses what streamd refuses, in
the same words and at the same place, and takes what streamd takes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from streamd.cli.server import main
from streamd.config import changes, reader
from streamd.config.options import finish
from streamd.errors import ConfigError
from streamd.tokens.jwt import encode
from streamd.tokens.nkeys import KeyKind, KeyPair
from tests.parity.runner import peer_binary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_peer")]


@pytest.fixture(scope="module")
def _peer() -> None:
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")


USER = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
USER_2 = "UCATS5YOVB6ROX2WUNKGNQ2MP3GMXDMKSG2O4N5CLX3A6W4PZGZZJPJO"
ACCOUNT = "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU"
OPERATOR = "OCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYOCS"
CURVE = "XCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYX6Z"


def account(members: str) -> str:
    return f"accounts {{ A {{ {members} }} }}"


def export(members: str) -> str:
    return account(f"exports: [ {{{members}}} ]")


def shared(imports: str, exports: str) -> str:
    """A imports, B exports."""
    return f"accounts {{ A {{ imports: [{imports}] }}, B {{ exports: [{exports}] }} }}"


def stream(subject: str, more: str = "") -> str:
    return f'{{stream: {{account: B, subject: "{subject}"}}{more}}}'


def service(subject: str, more: str = "") -> str:
    return f'{{service: {{account: B, subject: "{subject}"}}{more}}}'


def user(members: str) -> str:
    return f"authorization {{ users: [ {{{members}}} ] }}"


def permissions(members: str) -> str:
    return user(f"user: x, permissions: {{{members}}}")


def callout(members: str) -> str:
    return f"authorization {{ auth_callout: {{{members}}} }}"


CALLOUT = f"issuer: {ACCOUNT}, auth_users: [a]"

# --- found by reading the file --------------------------------------------------------------------

NAMES = [
    "accounts { $G { } }",
    'accounts: ["$G"]',
    "accounts: [A, B, A]",
    "accounts: [A, B]",
    "accounts { A: 5 }",
    "accounts { }",
    "X: { }\naccounts { A: $X }",
    account("foo: 1"),
    account('nkey: "x"'),
    account(f"nkey: {USER}"),
    account(f"nkey: {ACCOUNT}"),
    "system_account: 5",
]
LIMITS = [
    account("limits { foo: 1 }"),
    account("limits: 3"),
    account("limits { max_conn: 5, max_subs: 6, max_pay: 7, max_leafs: 8 }"),
    account("jetstream: foo"),
    account("jetstream: 5"),
    account("jetstream: {foo: 1}"),
    account('jetstream: {max_mem: "5"}'),
    account("jetstream: {max_bytes: 5}"),
    account("jetstream: {max_streams: true}"),
    account("jetstream: {cluster_traffic: x}"),
    account("jetstream: {cluster_traffic: 5}"),
    account("jetstream: {mem: 1K, store: 1G, streams: 5, max_bytes: true, cluster_traffic: owner}"),
    account("jetstream: {memory: 1K, disk: 1G, consumers: 5, max_stream_bytes: true}"),
    account("jetstream: {memory_max_stream_bytes: 5, store_max_stream_bytes: 5}"),
    account("jetstream: {max_stream_bytes: 5}"),
    account("jetstream: {R1: {max_mem: 5}}"),
    account("jetstream: {tiers: {R1: {max_mem: 5}}}"),
    account("jetstream: disabled"),
    account("msg_trace: 5"),
    account('msg_trace: "a.*"'),
    account("msg_trace: a.b"),
    account("msg_trace: {dest: 5}"),
    account('msg_trace: {dest: "a.*"}'),
    account("msg_trace: {dest: a, sampling: 0}"),
    account('trace_dest: {dest: a, sampling: "x%"}'),
    account('trace_dest: {dest: a, sampling: "50%"}'),
    account("msg_trace: {dest: a, sampling: true}"),
    account("msg_trace: {dest: a, foo: true}"),
]
EXPORTS = [
    account("exports: { }"),
    account("exports: [\n 5\n ]"),
    export("service: x, response: foo"),
    export("service: x, response: 5"),
    export("stream: x, response: stream"),
    export("stream: x, latency: l"),
    export("stream: x, allow_trace: true"),
    export("service: x, threshold: 5"),
    export("service: x, threshold: '5'"),
    export("service: x, threshold: '5s', response: chunk, allow_trace: true"),
    export("service: x, response_threshold: '5s', response_type: single"),
    export("service: x, response_max_time: '5s', response_type: singleton"),
    export("service: x, response_time: '5s', response: Chunked"),
    export("service: x, response_time: 5"),
    export("service: x, response: stream, token_req: true"),
    export("stream: x, token_req: true"),
    export("service: x, latency: {sampling: '50%', subject: q, headers: true}"),
    export("service: x, latency: {sampling: 100, subject: q}"),
    export("service: x, latency: {sampling: 101, subject: q}"),
    export("service: x, latency: {sampling: 0, subject: q}"),
    export("service: x, latency: {sampling: '0%', subject: q}"),
    export("service: x, latency: {sampling: 'x%', subject: q}"),
    export("service: x, latency: {sampling: true, subject: q}"),
    export("service: x, latency: {sampling: headers, subject: q}"),
    export("service: x, latency: {sampling: 5}"),
    export("service: x, latency: {subject: 5}"),
    export("service: x, latency: 5"),
    export("service: x, latency: 'a.*'"),
    export("service: x, latency: x"),
    export("service: x, latency: y, response: stream"),
    export("service: 's.*', account_token_position: 1"),
    export("stream: 's.*', account_token_position: 3"),
    export("stream: 's.*', account_token_position: 2"),
    export("stream: s, accounts: [Z]"),
    export("service: s, accounts: [Z]"),
    export("stream: 5"),
    export("service: 5"),
    export("service: x, zzz: 5"),
    export("stream: a..b"),
]
IMPORTS = [
    account("imports: 5"),
    account("imports: [{stream: 5}]"),
    account("imports: [{service: x}]"),
    account("imports: [{service: {account: B}}]"),
    account("imports: [{zzz: 1}]"),
    account("imports: [{stream: {account: B, subject: s}}]"),
    account("imports: [{service: {account: B, subject: s}}]"),
    shared(stream("s"), ""),
    shared(service("s"), ""),
    shared(stream("s", ", prefix: 'a.*'"), "{stream: s}"),
    shared(stream("s", ", prefix: 'a.'"), "{stream: s}"),
    shared(stream("s", ", prefix: a"), "{stream: s}"),
    shared(stream("s", ", to: 'a.*'"), "{stream: s}"),
    shared(stream("s.*", ", to: q"), "{stream: 's.*'}"),
    shared(stream("s.*", ", to: 'q.*'"), "{stream: 's.*'}"),
    shared(stream("s.*", ", to: 'q.$1'"), "{stream: 's.*'}"),
    shared(stream("s.*", ", to: 'q.$2'"), "{stream: 's.*'}"),
    shared(stream("s.*", ", to: 'q.{{partition(3,1)}}'"), "{stream: 's.*'}"),
    shared(stream("s.*.*", ", to: 'q.$2.$1'"), "{stream: 's.*.*'}"),
    shared(stream("s.>", ", to: q"), "{stream: 's.>'}"),
    shared(stream("s.>", ", to: 'q.>'"), "{stream: 's.>'}"),
    shared(stream("s.a"), "{stream: 's.*'}"),
    shared(stream("s.*"), "{stream: s.a}"),
    shared(f"{stream('s')}, {stream('s')}", "{stream: s}"),
    shared(f"{stream('s', ', to: x')}, {stream('s', ', to: y')}", "{stream: s}"),
    shared(f"{service('s', ', to: x')}, {service('t', ', to: x')}", "{service: s}, {service: t}"),
    shared(service("s", ", to: q..x"), "{service: s}"),
    shared(service("s", ", to: 'q.*'"), "{service: s}"),
    shared(service("s.*", ", to: q"), "{service: 's.*'}"),
    shared(service("s.*", ", to: 'q.$1'"), "{service: 's.*'}"),
    shared(service("s.*", ", to: 'q.$2'"), "{service: 's.*'}"),
    shared(service("s.$1", ", to: 'q.*'"), "{service: 's.*'}"),
    shared(service("s.*.*", ", to: 'q.$2.$1'"), "{service: 's.*.*'}"),
    shared(service("s", ", allow_trace: true"), "{service: s}"),
    shared(service("a..b"), "{service: a..b}"),
    shared(stream("a..b"), "{stream: a..b}"),
    shared(stream("s.A"), "{stream: 's.*', account_token_position: 2}"),
    shared(stream("s.C"), "{stream: 's.*', account_token_position: 2}"),
    shared(stream("s.*"), "{stream: 's.*', account_token_position: 2}"),
    shared(stream("s"), "{stream: s, accounts: [B]}"),
    shared(stream("s"), "{stream: s, accounts: [A]}"),
    shared(stream("s"), "{stream: s, accounts: []}"),
    shared(stream("s"), "{stream: s}, {stream: s, accounts: [B]}"),
    account("imports: [{stream: {account: '$G', subject: s}}]"),
    account("imports: [{service: {account: '$SYS', subject: s}}]"),
    account("exports: [{stream: s}], imports: [{stream: {account: A, subject: s}}]"),
    account("exports: [{service: s}], imports: [{service: {account: A, subject: s}, to: q}]"),
    "accounts { A { exports: [{service: s}], imports: [{service: {account: B, subject: s}}] },"
    " B {exports: [{service: s}], imports: [{service: {account: A, subject: s}}] } }",
    "accounts { A { exports: [{stream: s}], imports: [{stream: {account: B, subject: s}}] },"
    " B {exports: [{stream: s}], imports: [{stream: {account: A, subject: s}}] } }",
    "accounts { A { exports: [{stream: s}] },"
    " B {exports: [{stream: s}], imports: [{stream: {account: A, subject: s}}] },"
    " C { imports: [{stream: {account: B, subject: s}}] } }",
]
MAPPINGS = [
    "mappings: { a: b }",
    "mappings: { a..b: c }",
    "mappings: { a: b..c }",
    "mappings: { 'a.*': b.$2 }",
    "mappings: { 'a.*': b }",
    "mappings: { a: 'b.{{foo(1)}}' }",
    "mappings: { a: [ {dest: b} ] }",
    "mappings: { a: {dest: b} }",
    "mappings: { a: {dest: b, weight: x} }",
    "mappings: { a: {dest: b, weight: '101%'} }",
    "mappings: { a: {dest: b, weight: -1} }",
    "mappings: { a: {dest: b, weight: true} }",
    "mappings: { a: {dest: b, weight: 50, foo: x} }",
    "mappings: { a: [ {dest: b, weight: 50}, {dest: b, weight: 10} ] }",
    "mappings: { a: [ {dest: b, weight: 50}, {dest: c, weight: 60} ] }",
    "mappings: { a: [ {dest: b, weight: 50}, {dest: c, weight: 60, cluster: x} ] }",
    "mappings: { a: 5 }",
    "mappings: { a: [ 5\n ] }",
    "mappings: { a: [] }",
    account("mappings: { a: 'b.*' }"),
    account("maps: { 'foo.*': 'b.>' }"),
    account("maps: { 'foo.*.>': 'b.$1.>' }"),
]
USERS = [
    "authorization { nkeys: [{nkey: U}] }",
    "authorization { users: 5 }",
    "authorization { timeout: x }",
    "authorization { timeout: '5' }",
    "authorization { timeout: true }",
    account("users: 5"),
    account("users: [{}]"),
    account("default_permissions: 5"),
    user("nkey: U1"),
    user("pass: x"),
    user("user: a, zzz: 1"),
    user(f"nkey: {USER}"),
    user("user: x, connection_types: [FOO]"),
    user("user: x, connection_types: [FOO, standard, BAR]"),
    user("user: x, connection_types: [standard, LeafNode]"),
    user(
        "user: x, connection_types:"
        " [STANDARD, WEBSOCKET, MQTT, MQTT_WS, LEAFNODE, LEAFNODE_WS, IN_PROCESS]"
    ),
    user("user: x, allowed_connection_types: [in_process, Leafnode_ws, LEAF]"),
    user("user: x, connection_types: 5"),
    user("user: x, permissions: 5"),
    permissions("foo: 5"),
    permissions("publish: a..b"),
    permissions("publish: 5"),
    permissions("publish: {allow: a..b}"),
    permissions("publish: {allow: 5}"),
    permissions("publish: {foo: 5}"),
    permissions('publish: "a b c"'),
    permissions('publish: "a b"'),
    permissions('subscribe: "a b"'),
    permissions("allow_responses: 5"),
    permissions("allow_responses: {foo: 5}"),
    permissions("allow_responses: {expires: 5}"),
    permissions("allow_responses: {expires: '5'}"),
    permissions("allow_responses: {expires: '5x'}"),
    permissions("allow_responses: {expires: '5s', max: 4}"),
]
AT_ANY_PLACE = [  # which of two members or accounts is told of is chance there
    "accounts { A { users: [{user: x}] }, B { users: [{user: x}] } }",
    f"accounts {{ A {{ users: [{{nkey: {USER}}}] }}, B {{ users: [{{nkey: {USER}}}] }} }}",
    user(f"nkey: {USER}, user: a"),
    callout(f"issuer: {ACCOUNT}, auth_users: []"),
]
TOGETHER = [
    "authorization { users: [ {user: a}, {user: a} ] }",
    f"authorization {{ users: [ {{nkey: {USER}}}, {{nkey: {USER}}} ] }}",
    f"authorization {{ users: [ {{nkey: {USER}}}, {{nkey: {USER_2}}}, {{user: a}} ] }}",
    "authorization { user: a, password: b, token: c }",
    "authorization { password: b, token: c }",
    "authorization { user: a, users: [] }",
    "authorization { password: a, users: [{user: u}] }",
    "authorization { token: a, users: [] }",
    *AT_ANY_PLACE,
    "accounts { A { users: [{user: x}] }, B { users: [{user: y}] } }",
]
OPERATORS = [
    f"trusted_keys: {USER}",
    f"trusted_keys: [{OPERATOR}]",
    "trusted: 5",
    "operator: /nope",
    "operator: 5",
    "operator: eyJhbc",
    'operator: ""',
    "operator: []",
    "resolver: MEM",
    "resolver: foo",
    "resolver: 5",
    "resolver: {type: full, dir: store, ttl: '1s'}",
    "resolver: {type: full, dir: store, hard_delete: true}",
    f"trusted: {OPERATOR}\nresolver: {{type: full, dir: store, allow_delete: true, limit: 5}}",
    "resolver: {type: cache, dir: store, interval: '1s'}",
    "resolver: {type: cache, dir: store, allow_delete: true}",
    "resolver: {type: cache, dir: store, hard_delete: true}",
    "resolver: {type: cache, dir: store, ttl: x}",
    f"trusted: {OPERATOR}\nresolver: {{type: cache, dir: store, ttl: '5m', timeout: '1s'}}",
    "resolver: {type: foo, dir: store}",
    "resolver: {dir: store}",
    "resolver: {type: mem}",
    "resolver_tls: {}",
    "resolver_preload: 5",
    "resolver_preload: {A: 5}",
    "resolver_preload: {A: x}",
    "resolver_pinned_accounts: 5",
    f"resolver_pinned_accounts: [{ACCOUNT}]",
]
CALLOUTS = [
    "authorization { auth_callout: 5 }",
    callout(""),
    callout(f"issuer: {ACCOUNT}"),
    callout(f"issuer: {USER}"),
    callout("auth_users: [a]"),
    callout(f"issuer: {ACCOUNT}, auth_users: a"),
    callout(CALLOUT),
    callout(f"{CALLOUT}, xkey: zz"),
    callout(f"{CALLOUT}, xkey: {CURVE}, account: AUTH"),
    callout(f"{CALLOUT}, zzz: 1"),
    callout(f"{CALLOUT}, allowed_accounts: x"),
    callout(f"{CALLOUT}, allowed_accounts: [B]") + "\naccounts { A {} }",
    callout(f"{CALLOUT}, allowed_accounts: [$G]") + "\naccounts { A {} }",
    callout(f"{CALLOUT}, allowed_accounts: [A]") + "\naccounts { A {} }",
]
STAPLING = [
    "ocsp: false",
    "ocsp: x",
    "ocsp: 5",
    "ocsp { mode: NEVER }",
    "ocsp { mode: must }",
    "ocsp { mode: foo }",
    "ocsp_cache: true",
    "allow_non_tls: true",
]
FOUND_IN_THE_FILE = [
    *(*NAMES, *LIMITS, *EXPORTS, *IMPORTS, *MAPPINGS, *USERS, *TOGETHER, *OPERATORS, *CALLOUTS),
    *STAPLING,
]


class Told:
    """One server's words on a configuration: its place, if it has one, and the text behind it."""

    def __init__(self, status: int, output: str) -> None:
        self.is_refused = status != 0
        found = re.match(r"\S+: (?:.*a\.conf:(\d+:\d+): )?(.*)", output.strip())
        self.place = found and found[1]
        self.text = found and found[2]

    def shown(self) -> object:
        return self.is_refused and (self.place, self.text)


def ours(file: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    status = main(["-t", "--ignore-unserved", "-c", str(file)])
    return Told(status, capsys.readouterr().err)


@pytest.mark.parametrize("text", FOUND_IN_THE_FILE)
def test_a_configuration_is_judged_in_the_same_words(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their server counts the columns of a first line from 0, those of others from 1."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.conf"
    file.write_text(f"port: -1\n{text}\n")
    done = subprocess.run(
        [peer_binary(), "-t", "-c", str(file)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    peer, mine = Told(done.returncode, done.stderr), ours(file, capsys)
    if peer.place is None or text in AT_ANY_PLACE:
        mine.place = peer.place  # it does not know the place of everything
    assert mine.shown() == peer.shown()


# --- found by starting ----------------------------------------------------------------------------

JETSTREAM = "jetstream { store_dir: js }\n"
OPERATOR_KEY = KeyPair(KeyKind.OPERATOR, bytes([1]) * 32)
SYSTEM = KeyPair(KeyKind.ACCOUNT, bytes([3]) * 32)


def token(key: KeyPair, kind: str, signer: KeyPair = OPERATOR_KEY, **nats: object) -> str:
    return encode({"sub": key.public, "nats": {"type": kind, **nats}}, signer, issued_s=1)


def operated(more: str, resolver: str = "MEM", **nats: object) -> str:
    operator = token(OPERATOR_KEY, "operator", **nats)
    return f"operator: {operator}\nresolver: {resolver}\n{more}"


def sentinel(**nats: object) -> str:
    user = KeyPair(KeyKind.USER, bytes([5]) * 32)
    return f"default_sentinel: {token(user, 'user', SYSTEM, **nats)}"


WITH_OPERATORS = [
    operated(""),
    operated("", system_account=SYSTEM.public),
    operated(f"resolver_preload: {{{SYSTEM.public}: {token(SYSTEM, 'account')}}}"),
    operated(f"system_account: {ACCOUNT}", system_account=SYSTEM.public),
    operated("system_account: X"),
    operated("", assert_server_version="x"),
    operated("", assert_server_version="3.0.0"),
    operated("", "{type: full, dir: store}"),
    operated("", "{type: full, dir: store}", system_account=SYSTEM.public),
    operated("", "{type: cache, dir: store}", system_account=SYSTEM.public),
    operated("accounts { A {} }"),
    operated("accounts: []"),
    operated("mappings { a: b }"),
    operated("authorization { users: [{user: a}] }"),
    operated("authorization { user: a, password: b }"),
    operated(callout(CALLOUT)),
    operated("no_auth_user: x"),
    operated(f"trusted: {OPERATOR}"),
    operated("resolver_pinned_accounts: x"),
    operated("default_sentinel: x"),
    operated(sentinel()),
    operated(sentinel(bearer_token=True)),
    operated(f"resolver_preload: {{A: {token(OPERATOR_KEY, 'operator')}}}"),
    operated("", signing_keys=["x"]),
    f"operator: {token(OPERATOR_KEY, 'operator')}",
    f"operator: {token(SYSTEM, 'account')}\nresolver: MEM",
    f"operator: {token(OPERATOR_KEY, 'operator')[:-4]}AAAA\nresolver: MEM",
    f"trusted: {OPERATOR}\nsystem_account: X",
    f"trusted: {OPERATOR}\naccounts {{ A {{}} }}",
]
FOUND_AT_START = [
    *WITH_OPERATORS,
    "no_auth_user: x",
    "authorization { users: [{user: y}] }\nno_auth_user: x",
    "authorization { users: [{user: y}] }\nno_auth_user: y",
    f"accounts {{ A {{ users: [{{nkey: {USER}}}] }} }}\nno_auth_user: {USER}",
    "system_account: X",
    'system_account: "$SYS"',
    "system_account: A\naccounts { A {} }",
    'system_account: "$G"',
    "no_system_account: true\nsystem_account: A\naccounts { A {} }",
    JETSTREAM + "system_account: A\naccounts { A { jetstream: enabled } }",
    JETSTREAM + "accounts { $SYS { jetstream: enabled } }",
    JETSTREAM + "accounts { $SYS { jetstream: disabled }, A { jetstream: enabled } }",
    "resolver: {type: full, dir: store}",
    "resolver: {type: cache, dir: store}",
    "resolver: MEM\naccounts { A {} }",
    "default_sentinel: x",
]


@pytest.mark.parametrize("text", FOUND_AT_START)
def test_settings_that_exclude_each_other_are_refused_in_the_same_words(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their server looks at these when it starts; here a test of the file finds them."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.conf"
    file.write_text(f"port: -1\nhost: 127.0.0.1\n{text}\n")
    wanted = peer_start(file)
    mine = ours(file, capsys)
    assert (mine.is_refused and mine.text) == wanted


def peer_start(file: Path) -> str | bool:
    """Start their server; return the last words of one that ends, False for one that serves."""
    process = subprocess.Popen(
        [peer_binary(), "-c", str(file)], stderr=subprocess.PIPE, text=True, cwd=file.parent
    )
    assert process.stderr is not None
    try:
        last = ""
        for line in process.stderr:
            if "Server is ready" in line:
                return False
            last = line.strip() or last
        assert process.wait(10) != 0
        return re.sub(
            r"^(nats-server: (\S+\.conf:\S+ )?|\[\d+\] \S+ \S+ \[FTL\] )", "", last.strip()
        )
    finally:
        if process.poll() is None:
            os.kill(process.pid, 9)
        process.wait(10)
        process.stderr.close()


# --- reload ---------------------------------------------------------------------------------------

LOGIN = "authorization { users: [{user: a}] }"
ASKING = f"authorization {{ users: [{{user: a}}], auth_callout {{ {CALLOUT} }} }}"
RELOADS = [
    ("port: -1", "accounts { A { users: [{user: a}] } }"),
    ("accounts { A {} }", "accounts { A { limits { max_conn: 5 } }, B {} }"),
    (LOGIN, user(f"nkey: {USER}")),
    ("port: -1", "mappings { a: c }"),
    ("port: -1", 'accounts { "$SYS" { users: [{user: s}] } }'),
    (LOGIN, LOGIN + "\nno_auth_user: a"),
    (LOGIN + "\nno_auth_user: a", LOGIN),
    ("accounts { A {}, B {} }", "accounts { A {}, B {} }\nsystem_account: A"),
    ("accounts { A {}, B {} }\nsystem_account: A", "accounts { A {}, B {} }\nsystem_account: B"),
    ("port: -1", "no_system_account: true"),
    (LOGIN, ASKING),
    (ASKING, LOGIN),
    (ASKING, ASKING.replace("[a] }", f"[a], xkey: {CURVE}, allowed_accounts: [A] }}")),
    ("port: -1", f"trusted: {OPERATOR}"),
    ("port: -1", "resolver: MEM"),
    ("resolver: MEM", "port: -1"),
]


@pytest.mark.parametrize(("old", "new"), RELOADS)
def test_a_reload_is_refused_in_the_same_words(old: str, new: str, tmp_path: Path) -> None:
    """Accounts and their users reload; how a client is known does not."""
    if "allowed_accounts" in new:
        old, new = (f"{text}\naccounts {{ A {{}} }}" for text in (old, new))
    file = tmp_path / "a.conf"
    file.write_text(f"host: 127.0.0.1\nport: -1\n{old}\n")
    before = finish(reader.load(str(file)))
    process = subprocess.Popen(
        [peer_binary(), "-c", str(file)], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stderr is not None
    try:
        assert any("Server is ready" in line for line in process.stderr)
        file.write_text(f"host: 127.0.0.1\nport: -1\n{new}\n")
        os.kill(process.pid, signal.SIGHUP)
        told = next(
            re.split(r"\[(?:ERR|INF)\] ", line.strip())[-1]
            for line in process.stderr
            if "Failed to reload" in line or "Reloaded server configuration" in line
        )
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()
    refusal = re.fullmatch(r"Failed to reload server configuration: (.*)", told)
    try:
        changes.refuse_fixed(before, finish(reader.load(str(file))))
    except ConfigError as err:
        assert refusal is not None and str(err) == refusal[1]
    else:
        assert refusal is None, told
