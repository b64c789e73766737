"""TLS between real processes: nats-py's ways in, reloads of certificates, and the documents."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import nats
import pytest
from cryptography import x509

from benchmarks.servers import ServerProcess, free_port
from tests.certificates import Authority, Pair
from tests.e2e.conftest import Run, Start

pytestmark = pytest.mark.slow


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.cert)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def secured(make_server: Start, block: str, *lines: str) -> ServerProcess:
    server: ServerProcess = make_server(extra="\n".join([f"tls {{ {block} }}", *lines]))
    server.launch()
    server.wait_for_log("Server is ready")
    return server


async def connected(server: ServerProcess, context: ssl.SSLContext, **options: Any) -> nats.NATS:
    return await nats.connect(
        f"tls://localhost:{server.port}",
        tls=context,
        connect_timeout=30,
        allow_reconnect=False,
        **options,
    )


def document(server: ServerProcess, path: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.http_port}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.mark.parametrize("is_first", [False, True])
def test_nats_py_upgrades_or_begins_with_tls(
    make_server: Start, run: Run, tmp_path: Path, is_first: bool
) -> None:
    """JetStream over TLS, with a certificate of the client's own, and what monitoring says."""
    authority = Authority(tmp_path)
    pair, mine = authority.issue("server"), authority.issue("client", "CN=carol")
    first = "handshake_first: true" if is_first else ""
    server = secured(
        make_server, f'{pair.block}, ca_file: "{authority.cert}", verify: true, {first}'
    )

    async def body() -> None:
        nc = await connected(server, client_context(authority, mine), tls_handshake_first=is_first)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s.>"])
        for at in range(50):
            await js.publish(f"s.{at}", b"x" * 20_000)
        sub = await js.pull_subscribe("s.>", "d")
        assert len(await sub.fetch(50, timeout=30)) == 50
        (shown,) = document(server, "/connz?auth=1")["connections"]
        assert shown["tls_version"] == "1.3" and shown.get("tls_first", False) is is_first
        assert shown["tls_peer_certs"][0]["subject"] == "CN=carol"
        varz = document(server, "/varz")
        assert varz["tls_required"] and varz["tls_verify"]
        assert varz["tls_cert_not_after"].endswith("Z")
        await nc.close()

    run(body())
    assert server.stop() == 0


def test_a_reload_changes_certificates_and_whether_tls_is_asked_for(
    make_server: Start, run: Run, tmp_path: Path
) -> None:
    """SIGHUP: those who are connected stay so, those who come see what holds now."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    server = secured(make_server, pair.block)
    file = server.config_file

    async def body() -> None:
        nc = await connected(server, client_context(authority))
        fresh = authority.issue("server")
        server.send(signal.SIGHUP)
        await asyncio.to_thread(server.wait_for_log, "Reloaded: tls = enabled")
        assert _certificate(server, authority) == fresh.certificate
        Path(fresh.key).write_text("nothing")
        server.send(signal.SIGHUP)
        await asyncio.to_thread(server.wait_for_log, "Failed to reload server configuration: ")
        assert "failed to find any PEM data in key input" in server.log_tail()
        assert _certificate(server, authority) == fresh.certificate
        file.write_text(file.read_text().replace("tls {", "# {"))
        server.send(signal.SIGHUP)
        await asyncio.to_thread(server.wait_for_log, "Reloaded: tls = disabled")
        plain = await nats.connect(server.url, allow_reconnect=False)
        await nc.flush(timeout=30)  # in TLS still
        await plain.close()
        await nc.close()

    run(body())
    assert server.stop() == 0


def _certificate(server: ServerProcess, authority: Authority) -> x509.Certificate:
    """Certificate that the server shows to a client that connects now."""
    with socket.create_connection(("127.0.0.1", server.port), 5) as plain:
        assert plain.recv(65536).startswith(b"INFO ")
        with client_context(authority).wrap_socket(plain, server_hostname="localhost") as tls:
            der = tls.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--tls"], "TLS Server certificate must be present and valid"),
        (["--tlscert", "{cert}"], "TLS Server private key must be present and valid"),
        (
            ["--tlscert", "/no", "--tlskey", "/no"],
            "error parsing X509 certificate/key pair: open /no: no such file or directory",
        ),
        (
            ["--tlscert", "{cert}", "--tlskey", "{key}", "--tlscacert", "/no"],
            "open /no: no such file or directory",
        ),
    ],
)
def test_flags_without_what_they_need_do_not_start(
    binary: str, tmp_path: Path, arguments: list[str], text: str
) -> None:
    """Status 1, and the reason in nats-server's words."""
    pair = Authority(tmp_path).issue("server")
    filled = [each.format(cert=pair.cert, key=pair.key) for each in arguments]
    done = subprocess.run(
        [binary, *filled], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f": {text}")


def test_flags_alone_bring_tls(make_server: Start, run: Run, tmp_path: Path) -> None:
    """Lines of the log that tools wait for."""
    pair = (authority := Authority(tmp_path)).issue("server")
    server = make_server(is_jetstream=False)
    server.launch("--tlscert", pair.cert, "--tlskey", pair.key)
    server.wait_for_log("[INF] TLS required for client connections")
    server.wait_for_log("Server is ready")

    async def body() -> None:
        nc = await connected(server, client_context(authority))
        await nc.close()

    run(body())


def test_monitoring_by_https(make_server: Start, tmp_path: Path) -> None:
    """With the certificates of clients' TLS; no client certificate is asked for there."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    port = free_port()
    server = make_server(
        is_jetstream=False,
        extra=f"https: 'localhost:{port}'\n"
        f'tls {{ {pair.block}, ca_file: "{authority.cert}", verify: true }}',
    )
    server.http_port = 0
    server.launch()
    server.wait_for_log(f"Starting https monitor on localhost:{port}")
    server.wait_for_log("Server is ready")
    url = f"https://localhost:{port}/varz"
    with urllib.request.urlopen(url, timeout=9, context=client_context(authority)) as answer:
        varz = json.load(answer)
    assert (varz["https_port"], varz["http_port"]) == (port, 0)
    with socket.create_connection(("localhost", port), 5) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = plain.recv(4096)
    assert said == (
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    )
    found = subprocess.run(
        [Path(server.binary).parent / "streamctl", "health", "--pid", str(server.pid)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert found.stdout.strip() == "ok"


def test_servers_meet_by_certificates(make_server: Start, run: Run, tmp_path: Path) -> None:
    """Messages cross a link in TLS; monitoring says so; fresh certificates take a signal."""
    authority = Authority(tmp_path)
    port = free_port()

    def member(name: str, listen: int, routes: str = "") -> ServerProcess:
        pair = authority.issue(name)
        server: ServerProcess = make_server(
            is_jetstream=False,
            extra=f"server_name: {name}\n"
            f"cluster {{ name: c, listen: '127.0.0.1:{listen}', routes: [{routes}]\n"
            f"  authorization {{ user: r, password: a-long-random-password }}\n"
            f'  tls {{ {pair.block}, ca_file: "{authority.cert}", min_version: "1.3" }} }}',
        )
        server.launch()
        server.wait_for_log("Server is ready")
        return server

    one = member("one", port)
    authority.issue("one")  # a fresh one in its place
    one.send(signal.SIGHUP)
    one.wait_for_log("Reloaded server configuration")
    two = member("two", free_port(), f"'nats://127.0.0.1:{port}'")

    async def body() -> None:
        left, right = await nats.connect(one.url), await nats.connect(two.url)
        sub = await left.subscribe("a")
        await left.flush()
        while True:  # until the interest has crossed
            await right.publish("a", b"hi")
            try:
                assert (await sub.next_msg(timeout=0.2)).data == b"hi"
                break
            except nats.errors.TimeoutError:
                continue
        cluster = document(two, "/varz")["cluster"]
        assert cluster["tls_required"] and cluster["tls_verify"]
        await left.close()
        await right.close()

    run(body())
