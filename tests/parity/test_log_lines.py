"""Lines of the log that operators look for: a real nats-server writes the same.

Each case is a configuration, what clients do, and words; lines with one of the words are compared,
without the process, the time, ports and connections, which stand at another place in our lines.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509

from benchmarks.servers import ServerProcess, free_port
from streamd.tokens.nkeys import encode_signature
from tests.certificates import Authority
from tests.minted_tokens import SYSTEM, USER, account, operator
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow


@dataclass
class Place:
    """What a case has to make its configuration from."""

    authority: Authority
    pair: str
    client: tuple[str, str]
    port: int = 0


Do = Callable[[ServerProcess, Place], None]


def nothing(server: ServerProcess, place: Place) -> None:
    """No client comes."""


def log_in_by_certificate(server: ServerProcess, place: Place) -> None:
    """A client whose certificate maps to a user, and who says that it is another."""
    context = ssl.create_default_context(cafile=place.authority.cert)
    context.load_cert_chain(*place.client)
    plain = socket.create_connection(("127.0.0.1", server.port), 10)
    assert plain.recv(65536).startswith(b"INFO ")
    with context.wrap_socket(plain, server_hostname="localhost") as secure:
        secure.sendall(b'CONNECT {"user":"zed","verbose":false}\r\nPING\r\n')
        seen = b""
        while b"PONG" not in seen:
            chunk = secure.recv(65536)
            assert chunk, seen
            seen += chunk


def fail_to_log_in(server: ServerProcess, place: Place) -> None:
    """Logins that are refused, with and without a name."""
    for login in ({"user": "a", "pass": "wrong"}, {"user": "nobody", "pass": "x"}, {}):
        with Wire(server.port, CONNECT | login) as wire:
            assert wire.next(10).op in ("-ERR", "CLOSED")


def log_in_as_many(server: ServerProcess, place: Place) -> None:
    """Clients of accounts, by name, by key and by nothing."""
    with Wire(server.port, CONNECT | {"user": "a", "pass": "b", "name": "n"}) as wire:
        wire.subscribe("by.name")
        wire.fence()
    with Wire(server.port, None) as wire:
        signature = encode_signature(USER.sign(wire.info["nonce"].encode()))
        options = json.dumps(CONNECT | {"nkey": USER.public, "sig": signature})
        wire.send(f"CONNECT {options}\r\n".encode())
        wire.subscribe("by.key")
        assert wire.fence() == []
    with Wire(server.port, {"verbose": False}) as wire:
        wire.subscribe("by.nothing")
        wire.fence()


def come_and_go_as_a_leaf_node(server: ServerProcess, place: Place) -> None:
    """A leaf node that hangs up, and one that is not let in."""
    for password, reason in (("p", "Client Closed"), ("wrong", "Authentication Failure")):
        raw = socket.create_connection(("127.0.0.1", place.port), 10)
        with raw, raw.makefile("rb") as reader:
            assert reader.readline().startswith(b"INFO ")
            connect = {"name": "X", "server_id": "NX", "version": "2.15.1", "cluster": "X"}
            connect |= {"user": "l", "pass": password}
            raw.sendall(f"CONNECT {json.dumps(connect)}\r\nPING\r\n".encode())
            while not (line := reader.readline()).startswith((b"PONG", b"-ERR")):
                assert line, "the end"
        server.wait_for_log(f"eafnode connection closed: {reason}")


CASES: dict[str, tuple[str, Do, tuple[str, ...], str]] = {
    # name: (configuration, what happens, words, the words that come last)
    "TLS is required": ("tls {{ {pair} }}", nothing, ("TLS",), "Server is ready"),
    "TLS is available": (
        "tls {{ {pair} }}\nallow_non_tls: true",
        nothing,
        ("TLS",),
        "Server is ready",
    ),
    "handshake first": (
        "tls {{ {pair}, handshake_first: true }}",
        nothing,
        ("TLS",),
        "Server is ready",
    ),
    "handshake first after a while": (
        'tls {{ {pair}, handshake_first: "50ms" }}',
        nothing,
        ("TLS",),
        "Server is ready",
    ),
    "WebSocket in clear": (
        "websocket {{ host: 127.0.0.1, port: {port}, no_tls: true }}",
        nothing,
        ("ebsocket",),
        "Server is ready",
    ),
    "WebSocket in TLS": (
        "websocket {{ host: 127.0.0.1, port: {port}, tls {{ {pair} }} }}",
        nothing,
        ("ebsocket",),
        "Server is ready",
    ),
    "passwords in clear": (
        "authorization {{ users: [{{user: a, password: b}}] }}",
        fail_to_log_in,
        ("Plaintext", "authentication error"),
        'authentication error - User "nobody"',
    ),
    "a full directory of tokens": (
        f"operator: {operator()}\nresolver: {{{{type: full, dir: '{{directory}}/jwt'}}}}\n"
        f"resolver_preload: {{{{ {SYSTEM.public}: {account(SYSTEM, name='SYS')} }}}}",
        nothing,
        ("Managing",),
        "Server is ready",
    ),
    "a cache of tokens": (
        f"operator: {operator()}\nresolver: {{{{type: cache, dir: '{{directory}}/jwt'}}}}\n"
        f"resolver_preload: {{{{ {SYSTEM.public}: {account(SYSTEM, name='SYS')} }}}}",
        nothing,
        ("Managing",),
        "Server is ready",
    ),
    "clients in the trace": (
        "trace: true\nno_auth_user: a\naccounts {{ A {{ users: [{{user: a, password: b}}] }}\n"
        f" B {{{{ users: [{{{{nkey: {USER.public}}}}}] }}}} }}}}",
        log_in_as_many,
        ("<<- [SUB by.",),
        "[SUB by.nothing",
    ),
    "leaf nodes that come and go": (
        "leafnodes {{ listen: '127.0.0.1:{port}', compression: off\n"
        " authorization {{ user: l, password: p }} }}",
        come_and_go_as_a_leaf_node,
        ("Leafnode connection closed",),
        "Leafnode connection closed: Authentication Failure",
    ),
    "credentials that are not there": (
        "leafnodes {{ remotes: [ {{ url: 'nats-leaf://127.0.0.1:{port}',"
        " credentials: '/no/such.creds' }} ] }}",
        nothing,
        ("Error reading LeafNode Remote Credentials",),
        "Error reading LeafNode Remote Credentials",
    ),
    "another name than the certificate's": (
        "tls {{ {pair}, ca_file: '{ca}', verify_and_map: true }}\n"
        "authorization {{ users: [{{user: alice@acme.test}}] }}",
        log_in_by_certificate,
        ("found in connect proto", "TLS required"),
        "found in connect proto",
    ),
}


def lines(binary: str, directory: Path, name: str, place: Place) -> list[str]:
    """The compared lines of one server."""
    text, do, words, last = CASES[name]
    place.port = free_port()
    text = text.format(
        pair=place.pair, port=place.port, ca=place.authority.cert, directory=directory
    )
    server = ServerProcess(binary, directory=directory, extra=text, is_jetstream=False)
    with server:
        server.launch()
        server.wait_for_log("Server is ready")
        do(server, place)
        server.wait_for_log(last)
        found = server.log_file.read_text().splitlines()
    compared = []
    for line in found:
        line = re.sub(r"^\[\d+\] \S+ \S+ ", "", line)
        if any(word in line for word in words):
            line = line.replace(str(place.port), "PORT").replace(str(directory), "DIR")
            line = re.sub(r"127\.0\.0\.1:\d+ - [cl]id:\d+ - ", "", line)
            compared.append(re.sub(r" cid=\d+ ip=\S+$", "", line))
    return sorted(set(compared))


@pytest.mark.parametrize("name", CASES)
def test_log_lines_are_the_same(name: str, tmp_path: Path) -> None:
    if not ours_binary() or not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    authority = Authority(tmp_path)
    client = authority.issue("client", "CN=alice", [x509.RFC822Name("alice@acme.test")])
    place = Place(authority, authority.issue("server").block, (client.cert, client.key))
    ours, peers = (
        lines(binary, tmp_path / str(at), name, place)
        for at, binary in enumerate((ours_binary(), peer_binary()))
    )
    assert peers and ours == peers
