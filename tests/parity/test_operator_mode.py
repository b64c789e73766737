"""Operator mode, side by side: each server is asked the same, and says, logs and does the same."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streamd.tokens.nkeys import KeyKind
from tests.minted_tokens import (
    ACCOUNT,
    OPERATOR,
    OTHER_ACCOUNT,
    SYSTEM,
    account,
    connect_options,
    key,
    operator_config,
    user,
)
from tests.parity.login_bed import Servers, both, logged, outcome
from tests.parity.runner import ours_binary, peer_binary
from tests.parity.test_operator_logins import ACCOUNTS, CASES


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with both(tmp_path_factory.mktemp("operators"), operator_config(*ACCOUNTS.items())) as pair:
        yield pair


@pytest.mark.parametrize("case", CASES)
def test_a_login_comes_to_the_same(case: str, servers: Servers) -> None:
    """What the client is told, about itself too, and what the log says of it."""
    before = {id(server): server.log_file.stat().st_size for server in servers.all}
    told = servers.compare(lambda server: _once(outcome(server, CASES[case])))
    if "Authorization Violation" in str(told):
        servers.compare(lambda server: logged(server, before[id(server)]))


REFUSED = {
    "users of leaf nodes": "leafnodes { port: -1, authorization {users: [{user: a, pass: b}]} }",
    "a remote of $G": "leafnodes { remotes: [{url: 'nats://127.0.0.1:1'}] }",
    "a remote of no key": "leafnodes { remotes: [{url: 'nats://127.0.0.1:1', account: A}] }",
    "a leaf node's account": "leafnodes { port: -1, authorization {account: X} }",
    "no_auth_user": "no_auth_user: x",
    "accounts": "accounts { A {} }",
    "users": "authorization { users: [{user: a, password: b}] }",
    "trusted keys": f"trusted_keys: [{OPERATOR.public}]",
    "a sentinel that is none": "default_sentinel: x",
    "a sentinel with a key": f"default_sentinel: {user()}",
    "callouts": f"authorization {{ auth_callout {{issuer: {ACCOUNT.public}, users: [a]}} }}",
    "a pin that is no key": "resolver_pinned_accounts: [x]",
    "another system account": f"system_account: {OTHER_ACCOUNT.public}",
    "a web server that is not there": 'resolver: URL("http://127.0.0.1:1/x/")',
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_start_is_refused_alike(case: str, tmp_path: Path) -> None:
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    config = operator_config()
    if "resolver:" in REFUSED[case]:
        config = config[: config.index("resolver:")]
    file = tmp_path / "server.conf"
    file.write_text(f"listen: 127.0.0.1:-1\n{config}{REFUSED[case]}\n")
    said = []
    for binary in (peer_binary(), ours_binary()):
        done = subprocess.run(
            [binary, "-c", str(file)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        (line, *_) = reversed((done.stdout + done.stderr).strip().splitlines())
        said.append(line.partition("[FTL] ")[2] or line.partition(": ")[2])
    assert _reason(said[1]) == _reason(said[0])


def _reason(text: str) -> str:
    """Return a refusal without what a socket says in words of its own."""
    return text.partition(": Get ")[0] if "could not fetch" in text else text


class Tokens(BaseHTTPRequestHandler):
    """A web server of account tokens; others' paths are not found."""

    def do_GET(self) -> None:
        name = self.path.removeprefix("/accounts/")
        token = WEB.get(name)
        self.send_response(404 if token is None else 200)
        self.end_headers()
        self.wfile.write((token or "").encode())

    def log_message(self, *_: object) -> None:
        return


STRANGER = key(KeyKind.ACCOUNT, "of another operator")
WEB = {
    "": "",
    SYSTEM.public: account(SYSTEM, name="SYS"),
    ACCOUNT.public: account(),
    OTHER_ACCOUNT.public: account(),  # another account's
    STRANGER.public: account(STRANGER, issuer=key(KeyKind.OPERATOR, "stranger")),
}


def test_tokens_of_a_web_server(tmp_path: Path) -> None:
    """They are fetched when somebody logs in; those that are not right let nobody in."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_address[1]}/accounts/"
        config = operator_config()
        config = config[: config.index("resolver:")] + f'resolver: URL("{url}")\n'
        try:
            with both(tmp_path, config) as servers:
                for pair in (SYSTEM, ACCOUNT, OTHER_ACCOUNT, STRANGER, key(KeyKind.ACCOUNT, "x")):
                    token = user(issuer=pair)
                    servers.compare(
                        lambda server, token=token: outcome(
                            server, lambda nonce: connect_options(token, nonce)
                        )
                    )
        finally:
            web.shutdown()


def _once(told: list[Any]) -> list[Any]:
    """Return what was told without repetitions in lists, which templates of the real server make,
    and without the last digits of what is left of a login."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return sorted(set(value)) if isinstance(value, list) else value

    found = [plain(each) for each in told]
    for each in found:
        if isinstance(each, dict) and "expires" in each:
            each["expires"] = round(each["expires"] / 1e10)
    return found
