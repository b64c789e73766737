"""The monitoring port over a real socket: lazy start, formats, errors, metrics."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from streamd import limits
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.net.monitoring import http
from streamd.net.monitoring.http import HttpServer
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.monitoring.stacks import command_line
from streamd.net.sockets import listening_socket
from streamd.net.tls.acceptor import TlsAcceptor
from streamd.net.tls.handshakes import Handshakes
from streamd.obs.server_log import Log
from tests.certificates import Authority
from tests.unit.net.test_monitoring import monitoring, with_streams

Get = Callable[[str], Awaitable[tuple[int, str, str]]]


def serve(check: Callable[[Get, HttpServer], Awaitable[None]], **changes: str) -> None:
    """Run `check` against a server that stops afterwards."""

    async def main() -> None:
        listening = listening_socket("127.0.0.1", -1, backlog=9)
        log = Log(stream=io.StringIO())
        async with asyncio.TaskGroup() as tasks:
            m = with_streams() if not changes.pop("plain", "") else monitoring()
            slicer = Slicer(asyncio.get_running_loop().call_soon)
            server = HttpServer(listening, m.monitoring, slicer, log, **changes)
            server.start(tasks)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

                async def get(path: str) -> tuple[int, str, str]:
                    async with session.get(path) as answer:
                        return answer.status, answer.content_type, await answer.text()

                await check(get, server)
            await server.close()

    asyncio.run(main())


def test_documents_are_indented_json() -> None:
    """As nats-server sends them; the first request also brings the library up."""

    async def check(get: Get, server: HttpServer) -> None:
        status, kind, text = await get("/varz")
        assert (status, kind) == (200, "application/json")
        assert text.startswith('{\n  "server_id": "NID",\n')
        assert json.loads(text)["http_req_stats"] == {"/varz": 1}
        for path in ("/connz", "/subsz", "/subscriptionsz", "/jsz?consumers=1", "/accountz",
                     "/accstatz", "/routez", "/gatewayz", "/leafz",
                     "/ipqueuesz?all=1", "/debug/vars"):  # fmt: skip
            status, kind, text = await get(path)
            assert (status, kind) == (200, "application/json"), path
            json.loads(text)
        assert (await get("/healthz")) == (200, "application/json", '{"status":"ok"}')
        assert (await get("/"))[1] == "text/html"

    serve(check)


def test_errors_have_a_status_and_a_text() -> None:
    """404 for unknown paths, 400 for bad queries."""

    async def check(get: Get, server: HttpServer) -> None:
        assert await get("/nope") == (404, "text/plain", "404 page not found\n")
        status, _, text = await get("/connz?limit=x")
        assert (status, text[:18]) == (400, "Error decoding int")
        assert (await get("/varz?callback=alert(1)"))[0] == 400
        assert (await get("/healthz?account=x"))[0] == 404

    serve(check)


def test_any_method_is_a_question() -> None:
    """As in nats-server. HAProxy's `option httpchk /healthz` asks with OPTIONS."""

    async def check(get: Get, server: HttpServer) -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            for method in ("OPTIONS", "POST", "PUT", "DELETE"):
                async with session.request(method, "/healthz", data=b"x") as answer:
                    assert (answer.status, await answer.text()) == (200, '{"status":"ok"}')
            async with session.head("/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "")

    serve(check)


def test_garbage_is_not_logged_as_a_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Each gave a traceback on stderr, from whoever reaches the port."""

    async def check(get: Get, server: HttpServer) -> None:
        await get("/healthz")
        for request in (
            b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 9000),
            b"nonsense\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            assert (await reader.read()).startswith(b"HTTP/1.0 400 Bad Request")
            writer.close()

    serve(check)
    assert capfd.readouterr().err == ""


def test_jsonp_and_base_path() -> None:
    """`callback` wraps; `http_base_path` moves everything."""

    async def check(get: Get, server: HttpServer) -> None:
        status, kind, text = await get("/base/connz?callback=f")
        assert (status, kind, text[:2], text[-1]) == (200, "application/javascript", "f(", ")")
        assert (await get("/connz"))[0] == 404

    serve(check, base_path="base")


def test_metrics_parse_as_prometheus_text() -> None:
    """Parsed by Prometheus' own parser; names are the exporter's."""

    async def check(get: Get, server: HttpServer) -> None:
        status, _, text = await get("/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        (sample,) = families["jetstream_stream_total_messages"].samples
        assert (sample.labels["stream_name"], sample.value) == ("S", 4)
        assert families["gnatsd_varz_in_msgs"].samples[0].value == 1
        assert "gnatsd_varz_jetstream_stats_storage" in families
        for name in ("log_write", "turn", "apply"):
            name = f"streamd_{name}_seconds"
            assert families[name].type == "histogram"
            assert families[name].samples[-1].name == f"{name}_count"
        assert families["streamd_repaired_blocks"].type == "counter"
        assert families["streamd_scrub_files_left"].type == "gauge"

    serve(check)


def test_stacks_are_text() -> None:
    """Each thread and each task, with where it is."""

    async def check(get: Get, server: HttpServer) -> None:
        status, kind, text = await get("/stacksz")
        assert (status, kind) == (200, "text/plain")
        assert "thread MainThread:" in text and " tasks\n" in text and "test_http.py" in text

    serve(check)


def test_a_command_line_is_shown_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["streamd", "-js", "--user", "u", "--pass=hidden", "--routes", "nats://r:hidden@x:1"]
    monkeypatch.setattr("sys.argv", [*words, "-p", "4222"])
    assert command_line() == [
        "streamd", "-js", "--user", "[REDACTED]", "--pass=[REDACTED]", "--routes", "[REDACTED]",
        "-p", "4222",
    ]  # fmt: skip


def test_a_long_page_is_sent_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunked, and whole; a short one has its length."""
    monkeypatch.setattr(http, "HTTP_PIECE_BYTES", 100)

    async def check(get: Get, server: HttpServer) -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            async with session.get("/varz") as answer:
                assert answer.headers["Transfer-Encoding"] == "chunked"
                assert (await answer.json())["server_id"] == "NID"
            async with session.get("/healthz") as answer:
                assert answer.headers["Content-Length"] == "15"

    serve(check)


def test_a_crowd_that_only_connects_is_bounded() -> None:
    """Each connection is a file; those beyond the bound end, and who goes makes room."""

    async def check(get: Get, server: HttpServer) -> None:
        assert (await get("/varz"))[0] == 200  # one connection, kept open
        crowd = [
            await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(limits.HTTP_CONNECTIONS_MAX + 10)
        ]
        ended = [await reader.read() for reader, _ in crowd[limits.HTTP_CONNECTIONS_MAX - 1 :]]
        assert ended == [b""] * 11
        assert (await get("/healthz"))[0] == 200
        for _, writer in crowd[:5]:
            writer.close()
        reader, writer = crowd[5]
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        late, late_writer = await asyncio.open_connection("127.0.0.1", server.port)
        late_writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await late.read()).startswith(b"HTTP/1.1 200")
        late_writer.close()
        for _, writer in crowd:
            writer.close()

    serve(check)


def test_a_connection_that_asks_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a crowd that only connects keeps all others off; who has asked may rest."""
    monkeypatch.setattr(http, "HTTP_FIRST_REQUEST_S", 0.05)

    async def check(get: Get, server: HttpServer) -> None:
        assert (await get("/varz"))[0] == 200
        asking, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asking.readuntil(b"not found\n")).startswith(b"HTTP/1.1 404")
        crowd = [
            await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(limits.HTTP_CONNECTIONS_MAX - 2)
        ]
        for reader, silent in crowd:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            silent.close()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asking.read()).startswith(b"HTTP/1.1 200")
        writer.close()

    serve(check)


def test_an_idle_server_can_be_closed() -> None:
    """Without the library ever having been loaded."""

    async def check(get: Get, server: HttpServer) -> None:
        return

    serve(check, plain="1")


def test_https_shows_the_same_and_tells_who_speaks_in_clear(tmp_path: Path) -> None:
    """Handshakes come before any request; who sends none is told what is wrong, as Go tells it; a
    fresh certificate is for who comes later."""
    authority = Authority(tmp_path)

    async def main() -> None:
        listening = listening_socket("127.0.0.1", -1, backlog=9)
        log = Log(stream=io.StringIO())
        pair = authority.issue("server")
        tls = TlsOptions((CertificatePair(pair.cert, pair.key),))
        acceptor = TlsAcceptor(tls, Handshakes(), waiting_max=2, to_plain=b"clear!")
        context = ssl.create_default_context(cafile=authority.cert)
        async with asyncio.TaskGroup() as tasks:
            slicer = Slicer(asyncio.get_running_loop().call_soon)
            m = with_streams().monitoring
            server = HttpServer(listening, m, slicer, log, secure=acceptor.accept)
            server.start(tasks)
            url = f"https://localhost:{server.port}/varz"
            async with aiohttp.ClientSession() as session:
                async with session.get(url, ssl=context) as answer:
                    assert (await answer.json())["server_id"] == "NID"
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET /varz HTTP/1.0\r\n\r\n")
                assert await reader.read() == b"clear!"
                silent = [await _connect(server) for _ in range(3)]
                assert await silent[2][0].read() == b""  # one more than may wait
                for _, writer in silent:
                    writer.close()
                while acceptor.waiting_count:
                    await asyncio.sleep(0)
                fresh = authority.issue("server")
                acceptor.renew(tls)
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
                )
                der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                assert x509.load_der_x509_certificate(der) == fresh.certificate
                writer.close()
            await server.close()

    asyncio.run(main())


async def _connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)
