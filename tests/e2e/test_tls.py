"""TLS between real processes: nats-py's ways in, reloads of certificates, and the documents."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import nats
import pytest

from benchmarks.servers import ServerProcess
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
        connect_timeout=5,
        allow_reconnect=False,
        **options,
    )


def document(server: ServerProcess, path: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.http_port}{path}"
    with urllib.request.urlopen(url, timeout=5) as answer:
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
        assert len(await sub.fetch(50, timeout=5)) == 50
        (shown,) = document(server, "/connz?auth=1")["connections"]
        assert shown["tls_version"] == "1.3" and shown.get("tls_first", False) is is_first
        assert shown["tls_peer_certs"][0]["subject"] == "CN=carol"
        varz = document(server, "/varz")
        assert varz["tls_required"] and varz["tls_verify"]
        assert varz["tls_cert_not_after"].endswith("Z")
        await nc.close()

    run(body())
    assert server.stop() == 0
