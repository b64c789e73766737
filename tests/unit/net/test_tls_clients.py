"""Clients and TLS, on real loopback sockets: each way in, and each way out."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from cryptography import x509

from streamd.config.options import Options
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.errors import ConfigError
from streamd.net.client.listener import Listener
from tests.certificates import Authority, Pair
from tests.unit.net.bed import make_listener

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\nPING\r\n'
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Log:
    """Lines of the log, by level."""

    is_debug = is_trace = False

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda text, **fields: self.lines.append((level, text))


class Side:
    """A listener with certificates, and clients of it."""

    def __init__(
        self,
        directory: Path,
        authority: Authority | None = None,
        *,
        allows_plain: bool = False,
        **tls: Any,
    ) -> None:
        self.authority = authority or Authority(directory)
        self.server = self.authority.issue("server")
        self.log = Log()
        pair = CertificatePair(self.server.cert, self.server.key)
        options = Options(
            host="127.0.0.1",
            port=-1,
            tls=TlsOptions((pair,), ca_file=self.authority.cert, **tls),
            allows_non_tls=allows_plain,
        )
        self.listener = make_listener(options, log=self.log)

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.cert)
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context

    async def plain(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.listener.port)

    async def first(self, pair: Pair | None = None) -> Streams:
        """A client that begins with TLS."""
        return await asyncio.open_connection(
            "127.0.0.1",
            self.listener.port,
            ssl=self.context(pair),
            server_hostname="localhost",
        )

    async def upgraded(self, pair: Pair | None = None) -> Streams:
        """A client that goes on with TLS after INFO."""
        reader, writer = await self.plain()
        assert "tls_required" in await info(reader)
        await writer.start_tls(self.context(pair), server_hostname="localhost")
        return reader, writer

    def reasons(self) -> list[str]:
        return [stats.reason for stats in self.listener.registry.closed]


async def info(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await reader.readline()
    assert line.startswith(b"INFO "), line
    found: dict[str, Any] = json.loads(line[5:])
    return found


async def is_served(streams: Streams) -> bool:
    reader, writer = streams
    writer.write(CONNECT)
    return await reader.readline() == b"PONG\r\n"


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the end, however it ends."""
    try:
        return await reader.read()
    except OSError:
        return b""


@asynccontextmanager
async def served(side: Side) -> AsyncIterator[Listener]:
    await side.listener.start()
    async with asyncio.timeout(20):
        yield side.listener
    await side.listener.close()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On the loop that a server runs on, and on the one it has where that is missing."""
    for loop_factory in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(body())


def test_a_client_upgrades_after_info_and_is_served(tmp_path: Path) -> None:
    """Messages of many records arrive whole, in both directions; monitoring knows what is
    spoken."""

    async def body() -> None:
        side = Side(tmp_path)
        async with served(side) as listener:
            one, other = await side.upgraded(), await side.upgraded()
            assert await is_served(one) and await is_served(other)
            assert "tls_required" in await info(one[0])
            payload = bytes(range(256)) * 4000
            one[1].write(b"SUB big 1\r\nPING\r\n")
            assert await one[0].readline() == b"PONG\r\n"
            await info(other[0])
            other[1].write(b"PUB big %d\r\n%b\r\n" % (len(payload), payload))
            wanted = b"MSG big 1 %d\r\n%b\r\n" % (len(payload), payload)
            assert await one[0].readexactly(len(wanted)) == wanted
            (stats, _) = listener.registry.open.values()
            assert stats.tls is not None and not stats.tls.is_first
            assert (stats.tls.version, stats.tls.certificates) == ("1.3", ())
            other[1].close()
            assert await rest(other[0]) == b""
            await listener.close()
            assert await rest(one[0]) == b""
        assert side.reasons() == ["Client Closed", "Server Shutdown"]

    run(body)


def test_a_hello_in_single_bytes_is_a_hello(tmp_path: Path) -> None:
    """What comes during a step of the handshake is not lost, nor its order."""

    async def body() -> None:
        side = Side(tmp_path)
        async with served(side):
            reader, writer = await side.plain()
            await info(reader)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = side.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            is_done = False
            while not is_done:
                try:
                    tls.do_handshake()
                    is_done = True
                    tls.write(CONNECT)
                except ssl.SSLWantReadError:
                    pass
                data = outgoing.read()
                for at in range(len(data)):
                    writer.write(data[at : at + 1])
                    await asyncio.sleep(0)
                if not is_done:
                    incoming.write(await reader.read(65536))
            said = b""
            while not said:
                incoming.write(await reader.read(65536))
                try:
                    said = tls.read(65536)
                except ssl.SSLWantReadError:  # tickets come first
                    continue
            assert said.startswith(b"PONG\r\n")
            writer.close()

    run(body)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (CONNECT, "tls: first record does not look like a TLS handshake"),
        (b"\x16\x03\x01\x00\x05hello", "tls: unexpected message"),
        (b"", "EOF"),
    ],
)
def test_who_does_not_speak_tls_is_told_nothing(tmp_path: Path, words: bytes, fault: str) -> None:
    """No word in clear after INFO, and none about a client that only speaks in clear."""

    async def body() -> None:
        side = Side(tmp_path)
        async with served(side):
            reader, writer = await side.plain()
            await info(reader)
            writer.write(words)
            if not words:
                writer.write_eof()
            said = await rest(reader)
            assert said == b"" or said[0] == 0x15  # an alert
        assert side.reasons() == ["TLS Handshake Failure"]
        ((level, text),) = side.log.lines
        assert (level, text.rpartition("error: ")[2]) == ("debug", fault)

    run(body)


def test_a_silent_client_is_closed_when_the_time_is_over(tmp_path: Path) -> None:
    """Without a word; the reason says why."""

    async def body() -> None:
        side = Side(tmp_path, timeout_s=0.05)
        async with served(side):
            reader, _ = await side.plain()
            await info(reader)
            assert await rest(reader) == b""
        assert side.reasons() == ["TLS Handshake Failure"]

    run(body)


def test_the_handshake_comes_first_if_it_is_so_configured(tmp_path: Path) -> None:
    """INFO comes in TLS alone."""

    async def body() -> None:
        side = Side(tmp_path, is_first=True, timeout_s=1)
        async with served(side) as listener:
            streams = await side.first()
            assert (await info(streams[0]))["tls_required"]
            assert await is_served(streams)
            (stats,) = listener.registry.open.values()
            assert stats.tls is not None and stats.tls.is_first
            reader, writer = await side.plain()
            writer.write(CONNECT)
            assert await rest(reader) == b""
        assert side.reasons()[0] == "TLS Handshake Failure"

    run(body)


def test_a_delay_decides_whether_the_handshake_is_first(tmp_path: Path) -> None:
    """Who says nothing is sent INFO in clear and goes on from there; a first byte means TLS."""

    async def body() -> None:
        side = Side(tmp_path, is_first=True, first_delay_ns=100_000_000)
        async with served(side) as listener:
            first, late = await side.first(), await side.upgraded()
            await info(first[0])
            assert await is_served(first) and await is_served(late)
            shown = [conn.tls for conn in listener.registry.open.values()]
            assert [facts is not None and facts.is_first for facts in shown] == [True, False]
            reader, writer = await side.plain()
            writer.write(CONNECT)
            assert await rest(reader) == b""

    run(body)


def test_plain_clients_are_served_beside_if_that_is_allowed(tmp_path: Path) -> None:
    """The first byte tells; a client that is silent for the time of a handshake is a plain one."""

    async def body() -> None:
        side = Side(tmp_path, allows_plain=True, timeout_s=0.2)
        async with served(side) as listener:
            plain = await side.plain()
            said = await info(plain[0])
            assert said["tls_available"] and "tls_required" not in said
            assert await is_served(plain)
            reader, writer = secure = await side.plain()
            await info(reader)
            await writer.start_tls(side.context(), server_hostname="localhost")
            assert await is_served(secure)
            silent = await side.plain()
            await info(silent[0])
            await _becomes_plain(listener, cid=3)
            assert await is_served(silent)
            conns = listener.registry.open.values()
            assert [conn.tls is not None for conn in conns] == [False, True, False]

    run(body)


async def _becomes_plain(listener: Listener, *, cid: int) -> None:
    """Wait until the connection's own protocol has its socket."""
    conn: Any = listener.registry.open[cid]
    while conn._transport.get_protocol() is not conn:
        await asyncio.sleep(0)


def test_verify_lets_only_known_certificates_in(tmp_path: Path) -> None:
    """None, and one of nobody's, end with an alert and a line that an operator sees."""

    async def body() -> None:
        side = Side(tmp_path, is_verifying=True)
        (tmp_path / "other").mkdir(exist_ok=True)
        stranger = Authority(tmp_path / "other").issue("x")
        async with served(side) as listener:
            known = side.authority.issue("known", "CN=carol,O=Acme")
            streams = await side.upgraded(known)
            assert await is_served(streams)
            (stats,) = listener.registry.open.values()
            assert stats.tls is not None
            shown = stats.tls.certificates[0]
            assert (shown.subject.text, shown.spki_sha256) == ("CN=carol,O=Acme", known.pin)
            for pair in (None, stranger):
                reader, writer = await side.plain()
                assert (await info(reader))["tls_verify"]
                try:
                    await writer.start_tls(side.context(pair), server_hostname="localhost")
                    assert not await is_served((reader, writer))
                except OSError:
                    pass
        assert [level for level, _ in side.log.lines] == ["error", "error"]
        assert "tls: client didn't provide a certificate" in side.log.lines[0][1]
        assert "tls: failed to verify certificate: x509: " in side.log.lines[1][1]

    run(body)


def test_only_pinned_keys_are_served(tmp_path: Path) -> None:
    """The handshake is over before a key is looked at: the client sees an end, not an alert."""

    async def body() -> None:
        authority = Authority(tmp_path)
        pinned = authority.issue("pinned")
        side = Side(tmp_path, authority, is_verifying=True, pinned_certs=frozenset({pinned.pin}))
        async with served(side):
            assert await is_served(await side.upgraded(pinned))
            reader, writer = await side.upgraded(authority.issue("other"))
            writer.write(CONNECT)
            assert await rest(reader) == b""
        ((level, text),) = side.log.lines
        assert level == "error" and text.endswith("TLS handshake error: certificate not pinned")
        assert side.reasons() == ["TLS Handshake Failure", "Server Shutdown"]

    run(body)


def test_too_many_handshakes_in_a_second_are_throttled_in_clear(tmp_path: Path) -> None:
    """The text comes after INFO; the log says how many, once."""

    async def body() -> None:
        side = Side(tmp_path, connections_per_s_max=2)
        async with served(side):
            streams = [await side.plain() for _ in range(4)]
            for reader, _ in streams:
                await info(reader)
            text = b"-ERR 'Connection throttling is active. Please try again later.'\r\n"
            for reader, _ in streams[2:]:
                assert await rest(reader) == text
            while not side.log.lines:
                await asyncio.sleep(0.01)
        assert side.log.lines[0] == (
            "warning",
            "Rejected 2 connections due to TLS rate limiting",
        )
        assert side.reasons()[:2] == ["Maximum Connections Exceeded"] * 2

    run(body)


def test_nothing_is_said_in_clear_while_hands_are_shaken(tmp_path: Path) -> None:
    """An end with a text, as a reload may bring, is a silent one then."""

    async def body() -> None:
        side = Side(tmp_path)
        async with served(side) as listener:
            reader, _ = await side.plain()
            await info(reader)
            (conn,) = listener.registry.open.values()
            conn.close("Maximum Connections Exceeded", b"maximum connections exceeded")
            assert await rest(reader) == b""
        assert side.reasons() == ["Maximum Connections Exceeded"]

    run(body)


def test_a_client_that_is_gone_costs_no_handshake(tmp_path: Path) -> None:
    """Steps in the queue of a connection that was closed are not run."""

    async def body() -> None:
        side = Side(tmp_path)
        steps: list[Any] = []
        side.listener._handshakes = SimpleNamespace(  # type: ignore[assignment]
            run=lambda loop, step, *, is_gone, done: steps.append((step, is_gone, done)),
            close=lambda: None,
        )
        side.listener.policy.tls = side.listener._entrance(side.listener.policy.options)
        async with served(side) as listener:
            reader, writer = await side.plain()
            await info(reader)
            writer.write(b"\x16\x03\x01")
            while not steps:
                await asyncio.sleep(0)
            assert not steps[0][1]()
            (conn,) = listener.registry.open.values()
            conn.close("Server Shutdown")
            assert steps[0][1]()
            writer.close()

    run(body)


def test_a_reload_takes_new_certificates_and_drops_nobody(tmp_path: Path) -> None:
    """Sessions stay, also when TLS goes; files that do not serve change nothing."""

    async def body() -> None:
        side = Side(tmp_path)
        async with served(side) as listener:
            options = listener.policy.options
            assert options.tls is not None
            old = await side.upgraded()
            old_certificate = _shown(old[1])
            fresh = side.authority.issue("server")  # in the place of the old files
            listener.reload(options)
            new = await side.upgraded()
            assert _shown(new[1]) == fresh.certificate != old_certificate
            Path(fresh.key).write_text("")
            with pytest.raises(ConfigError, match="failed to find any PEM data in key input"):
                listener.reload(options)
            assert _shown((await side.upgraded())[1]) == fresh.certificate
            listener.reload(replace(options, tls=None))
            plain = await side.plain()
            assert "tls_required" not in await info(plain[0])
            assert await is_served(plain) and await is_served(old) and await is_served(new)

    run(body)


def test_a_reload_of_pinned_keys_ends_connections_with_others(tmp_path: Path) -> None:
    """Without a text; the log says how many they were."""

    async def body() -> None:
        side = Side(tmp_path, is_verifying=True)
        async with served(side) as listener:
            options = listener.policy.options
            assert options.tls is not None
            kept, other = side.authority.issue("kept"), side.authority.issue("other")
            one, two = await side.upgraded(kept), await side.upgraded(other)
            assert await is_served(one) and await is_served(two)
            await info(two[0])
            tls = replace(options.tls, pinned_certs=frozenset({kept.pin}))
            listener.reload(replace(options, tls=tls))
            assert await rest(two[0]) == b""
            one[1].write(b"PING\r\n")
            await info(one[0])
            assert await one[0].readline() == b"PONG\r\n"
        assert side.log.lines == [("info", "Disconnect 1 clients due to pinned certs reload")]
        assert side.reasons() == ["TLS Handshake Failure", "Server Shutdown"]

    run(body)


def _shown(writer: asyncio.StreamWriter) -> x509.Certificate:
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der)
