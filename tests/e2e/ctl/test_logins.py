"""Logins and transports of `streamctl`: nkeys, credentials, certificates, WebSockets, contexts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess, free_port
from streamd.tokens.credentials import format_credentials
from streamd.tokens.nkeys import KeyKind
from tests.certificates import Authority
from tests.e2e.conftest import Start
from tests.e2e.ctl.conftest import run_ctl
from tests.minted_tokens import ACCOUNT, UNLIMITED, USER, account, key, operator_config, user

pytestmark = pytest.mark.slow


def started(make_server: Start, extra: str) -> ServerProcess:
    server = make_server(extra=extra)
    server.start()
    return server


def test_an_nkey_a_password_and_a_token_let_in(
    make_server: Start, own_home: Path, tmp_path: Path
) -> None:
    """Each by its flag, and by a context; a wrong one is told with the server's reason."""
    pair = key(KeyKind.USER, "ctl")
    users = f"{{ nkey: {pair.public} }}, {{ user: app, password: p }}"
    server = started(make_server, f"authorization {{ users: [{users}] }}")
    seed = tmp_path / "user.nk"
    seed.write_text(pair.seed + "\n")
    url = ["-s", server.url]
    assert run_ctl(*url, "--nkey", str(seed), "stream", "list").status == 0
    assert run_ctl("stream", "list", *url, "--user", "app", "--password", "p").status == 0
    wrong = run_ctl(*url, "--user", "app", "--password", "x", "stream", "list")
    assert wrong.status == 1
    assert "no connection to" in wrong.err and "Authorization Violation" in wrong.err
    gone = run_ctl(*url, "--nkey", str(tmp_path / "none"), "stream", "list")
    assert gone.status == 1 and "--nkey" in gone.err and "No such file" in gone.err
    saved = run_ctl(*url, "--nkey", str(seed), "context", "save", "here", "--select")
    assert saved.status == 0
    assert run_ctl("stream", "list").status == 0
    assert run_ctl("--user", "app", "--password", "x", "stream", "list").status == 1
    server.stop()
    server.configure(extra="authorization { token: s3cret }")
    server.start()
    assert run_ctl(*url, "--user", "s3cret", "stream", "list").status == 0
    assert "s3cret" not in run_ctl("-s", "nats://s3cret@127.0.0.1:9", "stream", "list").err


def test_credentials_of_an_operator_let_in(
    make_server: Start, own_home: Path, tmp_path: Path
) -> None:
    """A `.creds` file; one that is no such file is a clear error."""
    limits = {**UNLIMITED, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    server = started(make_server, operator_config((ACCOUNT, account(limits=limits))))
    creds = tmp_path / "user.creds"
    creds.write_text(format_credentials(user(), USER))
    url = ["-s", server.url]
    assert run_ctl(*url, "--creds", str(creds), "stream", "list").status == 0
    assert run_ctl(*url, "stream", "list").status == 1
    creds.write_text("nonsense")
    broken = run_ctl(*url, "--creds", str(creds), "stream", "list")
    assert broken.status == 1 and "holds no seed of a user" in broken.err


def test_certificates_are_verified_and_shown(
    make_server: Start, own_home: Path, tmp_path: Path
) -> None:
    """With the authority the server is trusted; without, or without an own certificate, not."""
    authority = Authority(tmp_path)
    pair, own = authority.issue("server"), authority.issue("client", "CN=ctl")
    tls = f'tls {{ {pair.block}, ca_file: "{authority.cert}", verify: true }}'
    server = make_server(extra=tls)
    server.launch()
    server.wait_for_log("Server is ready")
    url = ["-s", f"tls://127.0.0.1:{server.port}", "--timeout", "5s"]
    mine = ["--tlscert", own.cert, "--tlskey", own.key]
    trusted = run_ctl(*url, "--tlsca", authority.cert, *mine, "stream", "list")
    assert trusted.status == 0, trusted
    stranger = run_ctl(*url, *mine, "stream", "list")
    assert stranger.status == 1 and "certificate" in stranger.err.lower()
    half = run_ctl(*url, "--tlsca", authority.cert, "--tlscert", own.cert, "stream", "list")
    assert half.status == 1 and "belong together" in half.err
    no_file = run_ctl(*url, "--tlsca", str(tmp_path / "none"), "stream", "list")
    assert no_file.status == 1 and "certificates can't be used" in no_file.err


def test_websockets_are_a_transport(make_server: Start, own_home: Path) -> None:
    port = free_port()
    started(make_server, f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}')
    url = f"ws://127.0.0.1:{port}"
    assert run_ctl("-s", url, "stream", "add", "WS", "--subject", "ws").status == 0
    assert run_ctl("-s", url, "stream", "list", "--names").out == "WS\n"
