"""Reload: each setting of a configuration is changed while the server runs, or refused by name, as
by a real nats-server.

Both servers run with all settings of `BASE`; a case puts another text in the place of one of them,
and asks for a reload by `$SYS.REQ.SERVER.<id>.RELOAD`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.certificates import Authority
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow

REMOTE = '{{ url: "nats-leaf://l:p@127.0.0.1:{other_port}", account: A, deny_imports: ["d.>"] }}'
# Text of each setting at the start; `{..}` is filled in for each server.
BASE: dict[str, str] = {
    "server_name": "server_name: one",
    "server_tags": "server_tags: [a]",
    "server_metadata": "server_metadata: {{k: v}}",
    "client_advertise": 'client_advertise: "127.0.0.1:4222"',
    "debug": "debug: false",
    "trace": "trace: false",
    "trace_verbose": "trace_verbose: false",
    "logtime": "logtime: true",
    "logtime_utc": "logtime_utc: false",
    "logfile_size_limit": "logfile_size_limit: 100mb",
    "logfile_max_num": "logfile_max_num: 5",
    "max_traced_msg_len": "max_traced_msg_len: 100",
    "pid_file": 'pid_file: "{directory}/pid"',
    "ports_file_dir": 'ports_file_dir: "{directory}"',
    "max_control_line": "max_control_line: 4096",
    "max_payload": "max_payload: 1mb",
    "max_pending": "max_pending: 64mb",
    "max_connections": "max_connections: 1000",
    "max_subscriptions": "max_subscriptions: 1000",
    "max_sub_tokens": "max_sub_tokens: 16",
    "max_closed_clients": "max_closed_clients: 1000",
    "ping_interval": "ping_interval: '2m'",
    "ping_max": "ping_max: 2",
    "write_deadline": "write_deadline: '10s'",
    "lame_duck_duration": "lame_duck_duration: '30s'",
    "lame_duck_grace_period": "lame_duck_grace_period: '1s'",
    "no_header_support": "no_header_support: false",
    "authorization": "authorization {{ timeout: 2 }}",
    "accounts": (
        "accounts {{ SYS {{ users: [{{user: admin, password: p}}] }}\n"
        "  A {{ users: [{{user: a, password: p}}, {{user: b, password: p}}]\n"
        "       exports: [{{stream: x}}], mappings: {{m: n}}, limits {{ max_conn: 10 }} }} }}"
    ),
    "system_account": "system_account: SYS",
    "no_auth_user": "no_auth_user: a",
    "jetstream": (
        'jetstream {{ store_dir: "{directory}/js", max_mem: 64mb, max_file: 1gb, domain: d }}'
    ),
    "cluster": (
        'cluster {{ name: c, listen: "127.0.0.1:{route_port}", pool_size: -1,'
        " compression: off, no_advertise: false }}"
    ),
    "leafnodes": (
        'leafnodes {{ listen: "127.0.0.1:{leaf_port}", reconnect: "2s", compression: off,'
        " authorization {{ users: [{{user: l, password: p, account: A}}] }}\n"
        f"  remotes: [ {REMOTE} ] }}}}"
    ),
    "websocket": (
        'websocket {{ listen: "127.0.0.1:{ws_port}", no_tls: true, compression: false,'
        " same_origin: false }}"
    ),
    "tls": 'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 2 }}',
    "allow_non_tls": "allow_non_tls: true",
}


class Case(NamedTuple):
    """Another text for a setting; `old`: the part of it that is replaced (the whole, if empty)."""

    key: str
    text: str
    old: str = ""


SILENT = ("no change", "logfile", "tls.min_version", "tls.verify", "cluster.pool_size")
"""Nothing is changed; or the log goes elsewhere; or the certificates' line says it."""
STRICTER = ("cluster.name", "cluster.no_advertise", "cluster.authorization")
"""Names and passwords of a cluster are what its members know each other by, and their data."""
CASES: dict[str, Case] = {
    key: Case(key.partition(".")[0], text)
    for key, text in {
        "server_name": "server_name: two",
        "server_tags": "server_tags: [a, b]",
        "server_metadata": "server_metadata: {{k: w}}",
        "client_advertise": 'client_advertise: "127.0.0.1:5222"',
        "debug": "debug: true",
        "trace": "trace: true",
        "trace_verbose": "trace_verbose: true",
        "logtime": "logtime: false",
        "logtime_utc": "logtime_utc: true",
        "logfile_size_limit": "logfile_size_limit: 200mb",
        "logfile_max_num": "logfile_max_num: 6",
        "max_traced_msg_len": "max_traced_msg_len: 200",
        "pid_file": 'pid_file: "{directory}/pid2"',
        "ports_file_dir": 'ports_file_dir: "{directory}/js"',
        "max_control_line": "max_control_line: 2048",
        "max_payload": "max_payload: 2mb",
        "max_pending": "max_pending: 32mb",
        "max_connections": "max_connections: 2000",
        "max_subscriptions": "max_subscriptions: 2000",
        "max_sub_tokens": "max_sub_tokens: 8",
        "max_closed_clients": "max_closed_clients: 2000",
        "ping_interval": "ping_interval: '1m'",
        "ping_max": "ping_max: 3",
        "write_deadline": "write_deadline: '5s'",
        "lame_duck_duration": "lame_duck_duration: '40s'",
        "lame_duck_grace_period": "lame_duck_grace_period: '2s'",
        "no_header_support": "no_header_support: true",
        "authorization.timeout": "authorization {{ timeout: 3 }}",
        "system_account": "system_account: A",
        "no_auth_user": "no_auth_user: b",
        "allow_non_tls": "",
    }.items()
}
CASES |= {
    f"{key}.{name}": Case(key, text, old)
    for key, name, old, text in (
        ("accounts", "user added", "{{user: b,", "{{user: c, password: p}}, {{user: b,"),
        ("accounts", "user removed", ", {{user: b, password: p}}", ""),
        ("accounts", "password", "{{user: b, password: p}}", "{{user: b, password: q}}"),
        ("accounts", "exports", "{{stream: x}}", "{{stream: y}}"),
        ("accounts", "mappings", "{{m: n}}", "{{m: o}}"),
        ("accounts", "limits", "max_conn: 10", "max_conn: 11"),
        ("accounts", "added", "accounts {{ SYS", "accounts {{ B {{ }}, SYS"),
        ("accounts", "msg_trace", "exports:", "msg_trace: t, exports:"),
        ("accounts", "jetstream", "exports:", "jetstream: enabled, exports:"),
        ("jetstream", "store_dir", "/js", "/js2"),
        ("jetstream", "max_mem", "64mb", "63mb"),
        ("jetstream", "max_file", "1gb", "900mb"),
        ("jetstream", "domain", "domain: d", "domain: e"),
        ("cluster", "name", "name: c", "name: e"),
        ("cluster", "listen", "{route_port}", "{other_port}"),
        ("cluster", "no_advertise", "no_advertise: false", "no_advertise: true"),
        ("cluster", "routes", "pool_size", 'routes: ["nats://127.0.0.1:1"], pool_size'),
        ("cluster", "pool_size", "pool_size: -1", "pool_size: 4"),
        ("cluster", "authorization",
         "pool_size", "authorization {{user: u, password: p}}, pool_size"),
        ("leafnodes", "listen", "{leaf_port}", "{free_port}"),
        ("leafnodes", "reconnect", '"2s"', '"3s"'),
        ("leafnodes", "compression", "compression: off", "compression: s2_fast"),
        ("leafnodes", "remote compression", "deny_imports", "compression: s2_best, deny_imports"),
        ("leafnodes", "password",
         "{{user: l, password: p, account", "{{user: l, password: q, account"),
        ("leafnodes", "user added", "users: [", "users: [{{user: k, password: p, account: A}}, "),
        ("leafnodes", "authorization timeout",
         "authorization {{ users", "authorization {{ timeout: 9, users"),
        ("leafnodes", "remote added", "remotes: [",
         'remotes: [{{ url: "nats-leaf://l:p@127.0.0.1:{free_port}", account: A }}, '),
        ("leafnodes", "remote removed", REMOTE, ""),
        ("leafnodes", "remote account", "account: A, deny", "account: SYS, deny"),
        ("leafnodes", "remote disabled", 'account: A, deny', 'account: A, disabled: true, deny'),
        ("leafnodes", "remote deny_imports", '"d.>"', '"e.>"'),
        ("leafnodes", "remote deny_exports", "deny_imports", 'deny_exports: ["f"], deny_imports'),
        ("leafnodes", "remote hub", "deny_imports", "hub: true, deny_imports"),
        ("leafnodes", "remote password", "//l:p@", "//l:q@"),
        ("leafnodes", "remote no_randomize", "deny_imports", "no_randomize: true, deny_imports"),
        ("leafnodes", "remote tls", "deny_imports", "tls {{ timeout: 3 }}, deny_imports"),
        ("leafnodes", "isolate", "reconnect", "isolate_leafnode_interest: true, reconnect"),
        ("leafnodes", "min_version", "reconnect", "min_version: 2.9.0, reconnect"),
        ("leafnodes", "advertise", "reconnect", 'advertise: "1.2.3.4:5", reconnect'),
        ("leafnodes", "no_advertise", "reconnect", "no_advertise: true, reconnect"),
        ("leafnodes", "write_deadline", "reconnect", 'write_deadline: "5s", reconnect'),
        ("leafnodes", "tls",
         "reconnect", 'tls {{ cert_file: "{cert}", key_file: "{key}" }}, reconnect'),
        ("websocket", "listen", "{ws_port}", "{free_port}"),
        ("websocket", "compression", "compression: false", "compression: true"),
        ("websocket", "same_origin", "same_origin: false", "same_origin: true"),
        ("websocket", "allowed_origins",
         "same_origin", 'allowed_origins: ["http://a"], same_origin'),
        ("websocket", "no_auth_user", "same_origin", "no_auth_user: b, same_origin"),
        ("websocket", "handshake_timeout", "same_origin", 'handshake_timeout: "3s", same_origin'),
        ("websocket", "jwt_cookie", "same_origin", 'jwt_cookie: c, same_origin'),
        ("tls", "timeout", "timeout: 2", "timeout: 3"),
        ("tls", "verify", "timeout: 2", 'timeout: 2, ca_file: "{ca}", verify: true'),
        ("tls", "handshake_first", "timeout: 2", "timeout: 2, handshake_first: auto"),
        ("tls", "min_version", "timeout: 2", 'timeout: 2, min_version: "1.3"'),
        ("tls", "connection_rate_limit", "timeout: 2", "timeout: 2, connection_rate_limit: 9"),
        ("tls", "removed", "tls {{ cert_file: \"{cert}\", key_file: \"{key}\", timeout: 2 }}", ""),
        ("tls", "unreadable", "{cert}", "{directory}/no.pem"),
    )
}  # fmt: skip
CASES |= {
    "http_base_path": Case("debug", 'debug: false\nhttp_base_path: "/x"'),
    "port": Case("listen", "listen: 127.0.0.1:{free_port}\nhttp: 127.0.0.1:{http_port}"),
    "host": Case("listen", "listen: 127.0.0.2:{port}\nhttp: 127.0.0.1:{http_port}"),
    "http_port": Case("listen", "listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{free_port}"),
    "logfile": Case("debug", 'debug: false\nlogfile: "{directory}/other.log"'),
    "unknown key": Case("debug", "debug: false\nno_such_key: 1"),
    "syntax": Case("debug", "debug: {{"),
    "no change": Case("debug", "debug: false"),
    "mappings": Case("debug", "debug: false\nmappings: {{a: b}}"),
    "no_system_account": Case("system_account", "no_system_account: true"),
    "cluster removed": Case("cluster", ""),
    "leafnodes removed": Case("leafnodes", ""),
    "websocket removed": Case("websocket", ""),
    "jetstream removed": Case("jetstream", ""),
    "operator": Case("debug", "debug: false\ntrusted_keys: [OAAAA]"),
}


class Subject:
    """Server whose configuration is changed."""

    def __init__(self, binary: str, directory: Path, without: str) -> None:
        """`without`: a setting that this server does not have."""
        self._base = {key: text for key, text in BASE.items() if key != without}
        authority = Authority(directory)
        pair = authority.issue("server")
        ports = ("route_port", "leaf_port", "other_port", "ws_port", "free_port")
        self._fields: dict[str, Any] = {
            "directory": directory,
            "cert": pair.cert,
            "key": pair.key,
            "ca": authority.cert,
            **{name: free_port() for name in ports},
        }
        self._server = ServerProcess(
            binary, directory=directory, extra=self._text(self._base), is_jetstream=False
        )
        self._fields |= {"port": self._server.port, "http_port": self._server.http_port}
        self._base["listen"] = "listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{http_port}"
        self._wire: Wire | None = None

    def start(self) -> None:
        self._server.launch()
        self._server.wait_for_log("Server is ready")

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._server.close()

    def _text(self, settings: dict[str, str]) -> str:
        return "\n".join(settings.values()).format(**self._fields)

    def _reload(self) -> str:
        if self._wire is None:
            self._wire = Wire(self._server.port, CONNECT | {"user": "admin", "pass": "p"})
        subject = f"$SYS.REQ.SERVER.{self._wire.info['server_id']}.RELOAD"
        frames = self._wire.ask(subject, within_s=20)
        answer = (
            frames[0].json()
            if frames and frames[0].op == "MSG"
            else {"error": {"description": str(frames)}}
        )
        if not self._wire.info or any(f.op in ("CLOSED", "-ERR") for f in frames):
            self._wire = None
        error: str = answer.get("error", {}).get("description", "")
        return error

    def change(self, case: Case) -> tuple[str, list[str]]:
        """Reload with another text of a setting, and then with the first one again; returns why
        the change was refused, and what the log says was changed."""
        text = case.text
        if case.old:
            assert case.old in BASE[case.key], case
            text = BASE[case.key].replace(case.old, case.text, 1)
        before = len(self._server.log_file.read_text())
        file = self._server.config_file
        file.write_text(self._text(self._base | {case.key: text}) + "\n")
        error = self._reload()
        log = self._server.log_file.read_text()[before:]
        file.write_text(self._text(self._base) + "\n")
        if not error:
            restored = self._reload()
            assert not restored, (case, restored)
        return error, re.findall(r"Reloaded: (.*)", log)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[Subject]]]:
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    started: dict[str, list[Subject]] = {}

    def pair(without: str) -> list[Subject]:
        if without not in started:
            started[without] = [
                Subject(binary, tmp_path_factory.mktemp("reload"), without) for binary in binaries
            ]
            for each in started[without]:
                each.start()
        return started[without]

    yield pair
    for each in itertools.chain(*started.values()):
        each.close()


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_refused_or_taken_as_by_the_peer(
    name: str, subjects: Callable[[str], list[Subject]]
) -> None:
    case = CASES[name]
    # A cluster is not joined here: of a server alone that replicates streams nothing else works.
    pair = subjects("jetstream" if case.key == "cluster" else "cluster")
    (refusal, told), (expected, _) = (subject.change(case) for subject in pair)
    if name in STRICTER:
        assert refusal and not expected, (refusal, expected)
    else:
        assert bool(refusal) == bool(expected), (refusal, expected)
    assert refusal or name in SILENT or set(told) - {"tls = enabled"}, "the log says what changed"
