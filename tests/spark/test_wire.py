"""The blocking connection, against real servers: what arrives, and what is said when it fails."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make spark")

from spark_jobs.client import wire as wires
from spark_jobs.client.dial import servers_of
from spark_jobs.client.options import ConnectOptions
from spark_jobs.client.wire import (
    ApiError,
    Msg,
    NoResponders,
    Wire,
    WireError,
    WireLost,
    WireTimeout,
    encode_headers,
    lent,
    with_retries,
)
from spark_jobs.client.wire_parser import Address, header, parse_address, parse_frames
from tests.spark.conftest import StartServer
from tests.spark.servers import SparkTestServer


def to(*servers: str, **more: str) -> ConnectOptions:
    return ConnectOptions(servers=servers, **more)


@pytest.fixture
def wire(server: SparkTestServer) -> Iterator[Wire]:
    with Wire.connect(to(server.address)) as connection:
        yield connection


@pytest.fixture(autouse=True)
def no_kept_connections() -> Iterator[None]:
    yield
    for _, _, kept in wires._idle:
        kept.close()
    wires._idle.clear()


def receive(wire: Wire, count: int) -> list[tuple[int, Msg]]:
    found: list[tuple[int, Msg]] = []
    while len(found) < count:
        arrived = wire.receive(5)
        assert arrived, f"{len(found)} of {count} arrived"
        found += arrived
    return found


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("127.0.0.1", Address("127.0.0.1", 4222, False)),
        ("nats://host:1", Address("host", 1, False)),
        ("tls://host:1", Address("host", 1, True)),
        ("nats://a:b%40c@h:1", Address("h", 1, False, "a", "b@c")),
        ("nats://secret@h:1", Address("h", 1, False, token="secret")),
        ("[::1]:5", Address("::1", 5, False)),
    ],
)
def test_an_address_is_read_from_its_url(url: str, wanted: Address) -> None:
    assert parse_address(url) == wanted


@pytest.mark.parametrize("url", ["ws://h:1", "nats://:1", "h:port", "h:70000", ""])
def test_a_url_that_is_no_server_is_refused_by_name(url: str) -> None:
    with pytest.raises(WireError, match="server"):
        parse_address(url)


FRAMES = (
    b"MSG a 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG a.b 2 _INBOX.x 0\r\n\r\n"
    b"HMSG c 1 18 21\r\nNATS/1.0\r\nA: b\r\n\r\nMSG\r\n"
    b"HMSG d 7 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n"
    b"+OK\r\n"
)


def test_frames_are_the_same_wherever_the_bytes_are_split() -> None:
    data = FRAMES
    whole: list[tuple[int, Msg]] = []
    lines: list[bytes] = []
    assert parse_frames(data, lines.append, whole) == (len(data), 0)
    assert lines == [b"PING", b"+OK"]
    assert [sid for sid, _ in whole] == [1, 2, 1, 7]
    assert whole[0][1] == Msg("a", "", b"", b"hello", 0, "")
    assert whole[1][1].reply == "_INBOX.x"
    assert whole[2][1].payload == b"MSG"
    assert header(whole[2][1].headers, b"A") == b"b"
    assert whole[3][1][4:] == (404, "No Messages")
    for at in range(len(data)):
        found: list[tuple[int, Msg]] = []
        used, needed = parse_frames(data[:at], lines.append, found)
        assert used <= at
        assert needed == 0 or used + needed > at
        parse_frames(data[used:], lines.append, found)
        assert found == whole


@pytest.mark.parametrize(
    "data", [b"MSG a 1 x\r\n", b"MSG a 1\r\n", b"MSG a one 1\r\nb\r\n", b"MSG a 1 1\r\nbcd\r\n"]
)
def test_a_malformed_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError, match="frame"):
        parse_frames(data, lambda line: None, [])


def test_headers_that_would_break_the_block_are_refused() -> None:
    assert encode_headers([("A", "b"), ("A", "")]) == b"NATS/1.0\r\nA: b\r\nA: \r\n\r\n"
    assert encode_headers([]) == b""
    for pair in (("A b", "c"), ("", "c"), ("A:", "c"), ("A", "b\r\nC: d"), ("A", "b\nc")):
        with pytest.raises(WireError, match="header"):
            encode_headers([pair])


# --- one server -----------------------------------------------------------------------------------


def test_messages_come_back_as_they_were_sent(wire: Wire) -> None:
    sid = wire.subscribe("x.>")
    block = encode_headers([("Key", "value"), ("Key", "ü")])
    wire.publish("x.ü", b"", reply="to.you")
    wire.publish("x.y", b"\r\nMSG x.y 1 5\r\n", headers=block)
    assert receive(wire, 2) == [
        (sid, Msg("x.ü", "to.you", b"", b"", 0, "")),
        (sid, Msg("x.y", "", block, b"\r\nMSG x.y 1 5\r\n", 0, "")),
    ]


def test_a_subject_with_a_blank_is_refused_before_it_is_sent(wire: Wire) -> None:
    for subject in ("a b", "", "a\r\nPUB b 0\r\n"):
        with pytest.raises(WireError, match="subject"):
            wire.publish(subject, b"")
    wire.ping()


def test_after_unsubscribe_nothing_comes(wire: Wire) -> None:
    sid = wire.subscribe("a")
    wire.publish("a", b"1")
    assert len(receive(wire, 1)) == 1
    wire.unsubscribe(sid)
    wire.publish("a", b"2")
    wire.ping()
    assert wire.receive(0) == []


def test_a_subscription_ends_by_itself_after_max_msgs(wire: Wire) -> None:
    wire.subscribe("a", max_msgs=2)
    for number in range(4):
        wire.publish("a", b"%d" % number)
    wire.ping()
    assert [message.payload for _, message in wire.receive(0)] == [b"0", b"1"]


def test_large_messages_and_a_full_socket_do_not_lock_up(wire: Wire) -> None:
    # 60 MiB come back while they are being written; nobody reads in between.
    sid = wire.subscribe("big")
    body = os.urandom(1024) * 1000
    for _ in range(60):
        wire.publish("big", body)
    found = receive(wire, 60)
    assert [number for number, _ in found] == [sid] * 60
    assert {message.payload for _, message in found} == {body}


def test_a_message_above_the_limit_names_both_sizes(wire: Wire) -> None:
    with pytest.raises(WireError, match=r"1048577 bytes on 'a'.*at most 1048576"):
        wire.publish("a", bytes(1_048_577))
    wire.publish("a", bytes(1_048_576))
    wire.ping()


def test_a_request_without_responders_fails_at_once(wire: Wire) -> None:
    with pytest.raises(NoResponders, match=r"nobody\.home"):
        wire.request("nobody.home", timeout_s=30)
    # The answer of the one before is not taken for this one's.
    wire.subscribe("slow")
    with pytest.raises(WireTimeout, match="slow"):
        wire.request("slow", timeout_s=0.05)
    assert "streams" in wire.api("STREAM.NAMES")


def test_an_api_refusal_carries_its_codes_and_survives_pickling(wire: Wire) -> None:
    with pytest.raises(ApiError) as caught:
        wire.api("STREAM.INFO.NONE")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.code, error.err_code, error.description) == (404, 10059, "stream not found")
    assert str(error) == "STREAM.INFO.NONE: stream not found (code 404, error 10059)"
    assert isinstance(pickle.loads(pickle.dumps(WireLost("gone"))), WireLost)
    assert str(pickle.loads(pickle.dumps(NoResponders("a")))) == str(NoResponders("a"))


def test_pings_are_answered_while_waiting(start_server: StartServer) -> None:
    server = start_server(extra='ping_interval: "100ms"\nping_max: 2')
    with Wire.connect(to(server.address)) as wire:
        assert wire.receive(1.0) == []
        wire.ping()


def test_a_killed_server_is_a_lost_connection(server: SparkTestServer) -> None:
    wire = Wire.connect(to(server.address))
    server.kill()
    with pytest.raises(WireLost, match=f"connection to {server.address} is gone"):
        wire.receive(5)
    with pytest.raises(WireLost):
        wire.ping()


# --- who may connect ------------------------------------------------------------------------------

USERS = """
authorization { users: [
  { user: joe, password: secret,
    permissions: { publish: ["ok", "$JS.API.>"], subscribe: "_INBOX.>" } }
] }
"""


def test_credentials_come_from_options_or_the_url(start_server: StartServer) -> None:
    server = start_server(extra=USERS)
    Wire.connect(to(server.address, user="joe", password="secret")).close()
    Wire.connect(to(f"nats://joe:secret@{server.address}")).close()
    for wrong in ({}, {"user": "joe", "password": "wrong"}, {"token": "secret"}):
        with pytest.raises(WireError, match=r"refused.*Authorization Violation") as caught:
            Wire.connect(to(server.address, **wrong))
        assert not isinstance(caught.value, WireLost)


def test_a_token_opens_a_server_that_wants_one(start_server: StartServer) -> None:
    server = start_server(extra='authorization { token: "t0p" }')
    Wire.connect(to(server.address, token="t0p")).close()
    with pytest.raises(WireError, match="Authorization Violation"):
        Wire.connect(to(server.address))


def test_denied_subjects_are_reported_and_the_connection_stays(start_server: StartServer) -> None:
    server = start_server(extra=USERS)
    with Wire.connect(to(server.address, user="joe", password="secret")) as wire:
        wire.publish("forbidden", b"")
        with pytest.raises(WireError, match=r'Permissions Violation for Publish to "forbidden"'):
            wire.ping()
        assert "streams" in wire.api("STREAM.NAMES")


# --- several servers ------------------------------------------------------------------------------


def test_the_next_server_is_taken_when_one_does_not_answer(server: SparkTestServer) -> None:
    with Wire.connect(to("127.0.0.1:1", server.address)) as wire:
        assert str(wire.address) == server.address
    with pytest.raises(WireLost, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: ") as caught:
        Wire.connect(to("127.0.0.1:1", "127.0.0.1:2"))
    assert "no server could be reached" in str(caught.value)


def test_something_else_on_the_port_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as link:
                link.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(WireError, match="no NATS server: its first line is b'220 mail"):
            Wire.connect(to(f"127.0.0.1:{other.getsockname()[1]}"))
        thread.join()


def test_a_silent_port_is_given_up_in_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(WireLost, match="timed out"),
    ):
        Wire.connect(to(f"127.0.0.1:{other.getsockname()[1]}"), timeout_s=0.1)


def test_a_server_may_be_chosen_by_name(start_server: StartServer) -> None:
    one = start_server("one", extra="server_name: one")
    two = start_server("two", extra="server_name: two")
    both = to(one.address, two.address)
    with Wire.connect(both, server_name="two") as wire:
        assert (wire.server_name, str(wire.address)) == ("two", two.address)
    with Wire.connect(both, avoid=[one.address]) as wire:
        assert wire.server_name == "two"
    words = r"no server named 'three'.*this server is 'one'.*this server is 'two'"
    with pytest.raises(WireLost, match=words):
        Wire.connect(both, server_name="three")


def test_work_that_loses_its_server_is_done_again_on_another(start_server: StartServer) -> None:
    one, two = start_server("one"), start_server("two")
    two.create_stream("S")
    seen: list[str] = []

    def work(wire: Wire) -> Any:
        seen.append(str(wire.address))
        if len(seen) == 1:
            one.kill()
        return wire.api("STREAM.INFO.S")["config"]["name"]

    assert with_retries(to(one.address, two.address), work) == "S"
    assert seen == [one.address, two.address]


def test_a_refusal_is_not_tried_again(server: SparkTestServer) -> None:
    calls = itertools.count()

    def work(wire: Wire) -> None:
        next(calls)
        wire.api("STREAM.INFO.NONE")

    with pytest.raises(ApiError):
        with_retries(to(server.address), work)
    assert next(calls) == 1


def test_retries_end_with_the_last_fault(server: SparkTestServer) -> None:
    calls = itertools.count()

    def work(wire: Wire) -> None:
        next(calls)
        wire.request("nobody")

    with pytest.raises(NoResponders, match="nobody"):
        with_retries(to(server.address), work, tries=3)
    assert next(calls) == 3


# --- kept connections -----------------------------------------------------------------------------


def test_a_connection_is_kept_for_the_next_and_a_broken_one_is_not(server: SparkTestServer) -> None:
    options = to(server.address)
    with lent(options) as first:
        first.api("STREAM.NAMES")
    with lent(options) as again:
        assert again is first
        again.subscribe("left.over")
    with lent(options) as third:
        assert third is not first, "it still had a subscription"
    assert first.is_closed
    with pytest.raises(ValueError, match="mine"), lent(options) as third:
        raise ValueError("mine")
    assert third.is_closed
    with lent(options) as fourth:
        pass
    server.kill()
    server.start()
    with lent(options) as fifth:
        assert fifth is not fourth
        fifth.ping()


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(certificate, key) of 127.0.0.1, signed by itself."""
    place = tmp_path_factory.mktemp("tls")
    cert, key = str(place / "cert.pem"), str(place / "key.pem")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return cert, key


class TlsFront:
    """Puts TLS in front of a server: INFO in clear, saying that TLS is required, then TLS."""

    def __init__(self, port: int, certificate: tuple[str, str]) -> None:
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._behind)) as server:
            info = server.recv(65536)
            client.sendall(info.replace(b"INFO {", b'INFO {"tls_required":true,', 1))
            try:
                secured = self._context.wrap_socket(client, server_side=True)
            except OSError:
                return
            with secured:
                back = threading.Thread(target=self._copy, args=(server, secured), daemon=True)
                back.start()
                self._copy(secured, server)
                back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


@pytest.fixture
def tls_front(server: SparkTestServer, certificate: tuple[str, str]) -> Iterator[TlsFront]:
    front = TlsFront(server.port, certificate)
    yield front
    front.close()


def test_tls_is_spoken_when_the_server_requires_it(
    tls_front: TlsFront, certificate: tuple[str, str]
) -> None:
    with Wire.connect(to(tls_front.address, tls_ca=certificate[0])) as wire:
        wire.subscribe("a")
        body = os.urandom(500_000)
        wire.publish("a", body)
        assert receive(wire, 1)[0][1].payload == body
        assert wire.receive(0.05) == []
        assert "streams" in wire.api("STREAM.NAMES")


def test_a_certificate_of_an_unknown_authority_is_refused(tls_front: TlsFront) -> None:
    with pytest.raises(WireError, match=r"TLS handshake failed.*certificate") as caught:
        Wire.connect(to(tls_front.address))
    assert not isinstance(caught.value, WireLost)


def test_tls_that_is_asked_for_is_never_left_out(
    server: SparkTestServer, certificate: tuple[str, str], tmp_path: Path
) -> None:
    for options in (to(f"tls://{server.address}"), to(server.address, tls_ca=certificate[0])):
        with pytest.raises(WireError, match="offers no TLS"):
            Wire.connect(options)


def test_a_missing_certificate_file_is_named(tls_front: TlsFront, tmp_path: Path) -> None:
    with pytest.raises(WireError, match=r"TLS files .*none\.pem"):
        Wire.connect(to(tls_front.address, tls_ca=str(tmp_path / "none.pem")))


def test_servers_are_tried_in_order_and_only_once() -> None:
    found = servers_of(to("b:1", "a:2", "b:1"))
    assert [str(one) for one in found][:2] == ["b:1", "a:2"]
    with pytest.raises(WireError, match="no server given"):
        servers_of(to())
