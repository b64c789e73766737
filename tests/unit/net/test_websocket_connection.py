"""WebSocket connections without sockets: the client's connection behind frames, to its end."""

from __future__ import annotations

import gc
import zlib
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from streamd.config.options import Options, User
from streamd.config.websocket_options import WebSocketOptions
from streamd.limits import (
    CONGESTED_BYTES,
    WEBSOCKET_CHUNK_BYTES,
    WEBSOCKET_HANDSHAKE_S,
    WEBSOCKET_STRANGER_BYTES,
)
from streamd.net.websocket.websocket_listener import WebSocketListener
from tests.unit.net.bed import CONNECT, Bed, Transport
from tests.unit.net.test_websocket_framing import client_frame, frames_of
from tests.unit.net.test_websocket_handshake import request

SETTINGS: dict[str, Any] = {"host": "127.0.0.1", "port": 8080, "has_no_tls": True}


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def trace(self, text: str, **_facts: Any) -> None:
        self.lines.append(text)

    info = warning = error = debug = trace


class Room:
    """A listener for WebSocket beside that of the bed."""

    def __init__(
        self, options: Options | None = None, log: Log | None = None, **settings: Any
    ) -> None:
        """`settings` are of the `websocket` block."""
        self.log = log
        options = options or Options()
        options.websocket = WebSocketOptions(**SETTINGS | settings)
        self.bed = Bed(options, log=log)
        self.clock = self.bed.clock
        self.listener = WebSocketListener(
            options, self.bed.listener, server_id="N1", server_name="bed", has_jetstream=False
        )
        self.bed.listener.others.append(self.listener)

    def socket(self) -> Socket:
        return Socket(self)

    def client(self, connect: bytes | None = CONNECT, **headers: str) -> Socket:
        socket = Socket(self)
        socket.send(request(**headers))
        socket.info = socket.taken()
        if connect is not None:
            socket.send(client_frame(connect))
        return socket


class Socket:
    """The client's end of one socket."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.transport = Transport()
        self.conn = room.listener.make_connection(room.clock)  # type: ignore[arg-type]
        self.transport.conn = self
        self.conn.connection_made(self.transport)
        self.info = b""

    # What the fake transport tells its connection.
    @property
    def output(self) -> Any:
        return self.client.output

    def pause_writing(self) -> None:
        self.conn.pause_writing()

    def resume_writing(self) -> None:
        self.conn.resume_writing()

    @property
    def client(self) -> Any:
        return self.conn._client

    def send(self, data: bytes) -> None:
        self.conn.data_received(data)
        self._room.clock.advance(0)

    def written(self) -> bytes:
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data

    def frames(self) -> list[tuple[Opcode, bytes]]:
        return [(opcode, data) for opcode, _, data in frames_of(self.written())]

    def taken(self) -> bytes:
        """Content of the frames since the last look, without the answer to the handshake."""
        data = self.written()
        if data.startswith(b"HTTP/"):
            data = data.partition(b"\r\n\r\n")[2]
        return b"".join(content for _, _, content in frames_of(data))

    def lose(self) -> None:
        self.conn.connection_lost(None)


def test_a_client_is_served_through_frames() -> None:
    room = Room()
    one, other = room.client(), room.client()
    assert one.info.startswith(b"INFO {")
    assert b'"host":"127.0.0.1","port":8080' in one.info
    one.send(client_frame(b"SUB a 1\r\nPING\r\n"))
    assert one.taken().startswith(b"PONG\r\nINFO ")
    message = client_frame(b"PUB a 2\r\nhi\r\n")
    for at in range(len(message)):
        other.send(message[at : at + 1])
    assert one.taken() == b"MSG a 1 2\r\nhi\r\n"
    assert other.client.in_msgs == one.client.out_msgs == 1


def test_plain_and_websocket_clients_share_subjects_and_numbers() -> None:
    room = Room()
    plain, framed = room.bed.peer(), room.client()
    assert list(room.bed.registry.open) == [1, 2]
    plain.send(b"SUB a 7\r\n")
    framed.send(client_frame(b"PUB a 1\r\nx\r\n"))
    assert plain.take() == b"MSG a 7 1\r\nx\r\n"
    stats = [conn.is_websocket for conn in room.bed.registry.open.values()]
    assert stats == [False, True]


def test_a_ping_of_the_protocol_below_is_answered_in_its_place() -> None:
    socket = Room().client()
    socket.send(client_frame(b"PI", fin=False) + client_frame(b"abc", Opcode.PING))
    socket.send(client_frame(b"", Opcode.PONG) + client_frame(b"NG\r\n", Opcode.CONT))
    ping, answer = socket.frames()
    assert ping == (Opcode.PONG, b"abc")
    assert answer[1].startswith(b"PONG\r\n")


def test_pings_of_a_client_that_reads_nothing_are_not_collected() -> None:
    socket = Room().client()
    socket.transport.waiting = CONGESTED_BYTES
    socket.send(client_frame(b"abc", Opcode.PING))
    assert socket.frames() == []


def test_the_client_ends_the_connection() -> None:
    room = Room()
    socket = room.client()
    socket.send(client_frame(b"PING\r\n") + client_frame(b"\x03\xe8bye", Opcode.CLOSE))
    assert socket.frames()[-1] == (Opcode.CLOSE, b"\x03\xe8bye")
    assert socket.transport.is_closing
    socket.lose()
    assert [closed.reason for closed in room.bed.registry.closed] == ["Client Closed"]


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b"FOO\r\n", 1002, b"Protocol Violation"),
        (b"PUB a 99999999\r\n", 1009, b"Maximum Message Payload Exceeded"),
        (b"PUB %b 1\r\n" % (b"a" * 9000), 1008, b"Maximum Control Line Exceeded"),
        (b'CONNECT {"protocol":9}\r\n', 1002, b"Bad Client Protocol Version"),
        (
            b'CONNECT {"headers":false,"no_responders":true}\r\n',
            1011,
            b"No Responders Requires Headers",
        ),
    ],
)
def test_the_server_ends_the_connection_with_the_reason_as_text(
    data: bytes, code: int, text: bytes
) -> None:
    socket = Room().client()
    socket.send(client_frame(data))
    frames = socket.frames()
    assert frames[-1] == (Opcode.CLOSE, code.to_bytes(2, "big") + text)
    assert frames[0][1].startswith(b"-ERR '")
    assert socket.transport.is_closing


def test_broken_framing_is_a_read_error_and_what_came_before_counts() -> None:
    room = Room()
    listening, socket = room.bed.peer(), room.client()
    listening.send(b"SUB a 1\r\n")
    socket.send(client_frame(b"PUB a 1\r\nx\r\n") + b"\x83\x80\0\0\0\0")
    assert listening.take() == b"MSG a 1 1\r\nx\r\n"
    assert socket.frames()[-1][1][:2] == b"\x03\xea"
    assert room.bed.registry.closed[-1].reason == "Read Error"


def test_a_lost_socket_ends_the_client() -> None:
    room = Room()
    socket = room.client(b"SUB a 1\r\n")
    assert room.bed.subscriptions.sublist.count == 1
    socket.lose()
    assert room.bed.subscriptions.sublist.count == 0
    assert not room.bed.registry.open
    assert not room.bed.listener.connections.all
    socket.send(client_frame(b"PING\r\n"))  # comes from a transport's buffer, and goes nowhere
    assert socket.written() == b"" or b"PONG" not in socket.written()


# --- handshake ----------------------------------------------------------------------------------


def test_a_request_that_does_not_come_in_time_is_cut_off() -> None:
    room = Room()
    socket = room.socket()
    room.clock.advance(WEBSOCKET_HANDSHAKE_S - 0.1)
    socket.send(request()[:-2])
    assert not socket.transport.is_aborted
    room.clock.advance(0.2)
    assert socket.transport.is_aborted
    assert socket.written() == b""
    assert not room.bed.registry.open  # no client yet: it has no number
    assert room.bed.registry.connections_total == 0


def test_the_time_for_a_request_is_configured_and_ends_with_it() -> None:
    room = Room(handshake_timeout_ns=500_000_000)
    slow, quick = room.socket(), room.client(None)
    room.clock.advance(0.6)
    assert slow.transport.is_aborted
    assert not quick.transport.is_aborted


def test_a_refused_request_is_logged_with_its_address() -> None:
    room = Room(log=Log())
    socket = room.socket()
    socket.send(request("PUT / HTTP/1.1"))
    assert socket.written().startswith(b"HTTP/1.1 405 ")
    assert socket.transport.is_closing
    assert room.log is not None
    assert room.log.lines == [
        "127.0.0.1:50000 - websocket handshake error: request method must be GET"
    ]


def test_a_leaf_is_granted_and_sent_away() -> None:
    room = Room(log=Log())
    socket = room.socket()
    socket.send(request("GET /leafnode HTTP/1.1"))
    assert socket.written().startswith(b"HTTP/1.1 101 ")
    assert socket.transport.is_closing
    assert not room.bed.registry.open


def test_too_many_handshakes_are_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.net.websocket.framed_connection.WEBSOCKET_HANDSHAKES_MAX", 2)
    room = Room()
    first, second, third = room.socket(), room.socket(), room.socket()
    assert third.transport.is_aborted
    third.lose()
    first.send(request())  # is over, so there is room for another
    fourth = room.socket()
    assert not (second.transport.is_aborted or fourth.transport.is_aborted)


def test_too_many_connections_are_told_so() -> None:
    room = Room(Options(max_connections=1))
    room.client()
    surplus = room.socket()
    surplus.send(request())
    data = surplus.written().partition(b"\r\n\r\n")[2]
    assert [(kind, content) for kind, _, content in frames_of(data)] == [
        (Opcode.BINARY, b"-ERR 'maximum connections exceeded'\r\n"),
        (Opcode.CLOSE, b"\x03\xf0Maximum Connections Exceeded"),
    ]


# --- pace ---------------------------------------------------------------------------------------


def test_frames_wait_in_order_while_the_client_connection_reads_nothing() -> None:
    """A publisher is stalled by a slow receiver: frames that were read already come later."""
    room = Room()
    listening, socket = room.bed.peer(), room.client()
    listening.send(b"SUB a 1\r\n")
    socket.client._stall(0.01)
    assert socket.transport.is_paused
    socket.send(client_frame(b"PUB a 1\r\n1\r\n") + client_frame(b"PUB a 1\r\n2\r\nPING\r\n"))
    assert listening.take() == b""
    room.clock.advance(0.02)
    assert listening.take() == b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n"
    assert socket.taken().startswith(b"PONG\r\n")
    assert not socket.transport.is_paused


def test_a_large_frame_is_handled_in_turns_with_others() -> None:
    room = Room()
    socket = room.client()
    chunks = 3
    count = chunks * WEBSOCKET_CHUNK_BYTES // len(b"PUB a 1\r\nx\r\n")
    socket.conn.data_received(client_frame(b"PUB a 1\r\nx\r\n" * count))
    first = socket.client.in_msgs
    assert 0 < first < count
    assert socket.transport.is_paused  # the rest is as much as may wait
    room.clock.advance(0)
    assert socket.client.in_msgs == count
    assert not socket.transport.is_paused


def test_compressed_content_is_handled_in_turns_with_others() -> None:
    room = Room(is_compressing=True)
    socket = room.socket()
    socket.send(request(**{"Sec-WebSocket-Extensions": "permessage-deflate"}))
    socket.send(client_frame(CONNECT))
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(b"PUB a 1\r\nx\r\n" * 20_000) + packer.flush(zlib.Z_SYNC_FLUSH)
    one = Frame(Opcode.BINARY, packed[:-4]).serialize(mask=True)
    frame = bytes([one[0] | 0x40]) + one[1:]
    socket.conn.data_received(frame * 10)
    assert socket.client.in_msgs <= 2 * 20_000
    room.clock.advance(0)
    assert socket.client.in_msgs == 10 * 20_000


def test_a_stranger_may_send_little_at_once() -> None:
    room = Room(Options(users=[User("u", "p")]))
    socket = room.client(None)
    socket.send(client_frame(bytes(WEBSOCKET_STRANGER_BYTES + 1)))
    assert socket.frames() == [(Opcode.CLOSE, b"\x03\xf1frame is too large")]
    known = room.client(b'CONNECT {"user":"u","pass":"p","verbose":false}\r\n')
    known.send(client_frame(b"PUB a 70000\r\n" + bytes(70_000) + b"\r\nPING\r\n"))
    assert known.taken() == b"PONG\r\n"


def test_a_slow_reader_is_cut_off_as_on_a_plain_socket() -> None:
    room = Room(Options(max_pending=3 << 20))
    socket, publisher = room.client(b"SUB a 1\r\n"), room.bed.peer()
    socket.transport.is_stuck = True
    for _ in range(8):
        publisher.send(b"PUB a %d\r\n%b\r\n" % (1 << 20, bytes(1 << 20)))
    assert socket.transport.is_aborted
    assert room.bed.registry.closed[-1].reason == "Slow Consumer (Pending Bytes)"


# --- logins -------------------------------------------------------------------------------------


def test_cookies_fill_what_connect_leaves_out() -> None:
    room = Room(
        Options(users=[User("u", "p"), User("v", "q")]), user_cookie="name", pass_cookie="word"
    )
    cookie = {"Cookie": "name=u; word=p"}
    one = room.client(b"CONNECT {}\r\nPING\r\n", **cookie)
    assert one.client.user == "u"
    other = room.client(b'CONNECT {"user":"v","pass":"q"}\r\n', **cookie)
    assert other.client.user == "v"
    mixed = room.client(b'CONNECT {"user":"v"}\r\n', **cookie)
    assert mixed.frames()[-1] == (Opcode.CLOSE, b"\x03\xf0Authentication Failure")


def test_a_login_of_its_own_replaces_the_others_and_leaves_them_theirs() -> None:
    room = Room(Options(username="u", password="p"), token="ws")
    assert b'"auth_required":true' in room.client(None).info
    assert room.client(b'CONNECT {"auth_token":"ws"}\r\n').client.is_closed is False
    login = b'CONNECT {"user":"u","pass":"p"}\r\n'
    assert room.client(login).client.is_closed
    assert room.bed.peer(login).conn.is_closed is False


def test_a_login_of_its_own_leaves_plain_clients_without_one() -> None:
    room = Room(token="ws")
    plain = room.bed.peer(b'CONNECT {"verbose":false}\r\n')
    assert b"auth_required" not in plain.info and plain.send(b"PING\r\n") == b"PONG\r\n"
    assert room.client(b"CONNECT {}\r\n").client.is_closed


def test_info_asks_for_a_login_also_where_none_is_needed() -> None:
    """As nats-server's, which leaves that out on plain sockets alone."""
    room = Room(Options(users=[User("a")], no_auth_user="a"))
    assert b'"auth_required":true' in room.client(None).info
    assert b"auth_required" not in room.bed.peer(None).info


def test_users_connect_in_the_ways_that_they_may() -> None:
    users = [
        User("both", "p"),
        User("plain", "p", connection_types=frozenset({"STANDARD"})),
        User("framed", "p", connection_types=frozenset({"WEBSOCKET", "MQTT"})),
    ]
    room = Room(Options(users=users))
    let_in = []
    for name in ("both", "plain", "framed"):
        connect = b'CONNECT {"user":"%b","pass":"p"}\r\n' % name.encode()
        let_in.append(
            (
                not room.bed.peer(connect).conn.is_closed,
                not room.client(connect).client.is_closed,
            )
        )
    assert let_in == [(True, True), (True, False), (False, True)]


def test_the_user_without_login_may_be_another_one_here() -> None:
    room = Room(Options(users=[User("a"), User("b")]), no_auth_user="b")
    socket = room.client(b"PING\r\n")
    assert socket.client.profile.identity.user == "b"
    assert b"Authorization Violation" in room.bed.peer(None).send(b"PING\r\n")


def test_the_login_has_a_time_of_its_own() -> None:
    room = Room(Options(users=[User("u", "p")]), auth_timeout_s=0.5)
    socket = room.client(None)
    room.clock.advance(0.6)
    assert socket.frames() == [
        (Opcode.BINARY, b"-ERR 'Authentication Timeout'\r\n"),
        (Opcode.CLOSE, b"\x03\xf0Authentication Timeout"),
    ]


def test_a_reload_judges_clients_by_the_rules_of_their_own_listener() -> None:
    plain_only = User("u", "p", connection_types=frozenset({"STANDARD"}))
    room = Room(Options(users=[User("u", "p")]))
    connect = b'CONNECT {"user":"u","pass":"p","verbose":false}\r\n'
    plain, framed = room.bed.peer(connect), room.client(connect)
    fresh = Options(users=[plain_only], websocket=room.bed.options.websocket)
    room.bed.listener.reload(fresh)
    assert not plain.conn.is_closed
    assert framed.frames()[-1] == (Opcode.CLOSE, b"\x03\xf0Authentication Failure")


# --- the server -----------------------------------------------------------------------------------


def test_urls_of_other_servers_are_those_of_their_websocket_listeners() -> None:
    room = Room()
    connect = b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'
    plain, framed = room.bed.peer(connect), room.client(connect)
    plain.take(), framed.taken()
    room.listener.set_connect_urls(["10.0.0.1:8080"])
    assert b'"connect_urls":["10.0.0.1:8080"]' in framed.taken()
    assert plain.take() == b""


def test_lines_of_the_trace_name_the_kind_and_the_proxy() -> None:
    log = Log()
    room = Room(Options(is_trace=True), log)
    proxied = room.client(b"PING\r\n", **{"X-Forwarded-For": "10.1.2.3"})
    room.client(b"PING\r\n")
    assert b'"client_ip":"127.0.0.1"' in proxied.info  # there, and in connz, the socket's
    assert proxied.client.ip == "127.0.0.1"
    received = [line for line in log.lines if line.endswith("<<- [PING]")]
    assert received == [
        "10.1.2.3/127.0.0.1:50000 - wid:1 - <<- [PING]",
        "127.0.0.1:50000 - wid:2 - <<- [PING]",
    ]


@pytest.mark.parametrize(("interval_s", "first_s"), [(1, 1), (20, 2)])
def test_the_first_ping_comes_after_two_seconds_at_most(interval_s: int, first_s: int) -> None:
    room = Room(ping_interval_ns=interval_s * 10**9)
    socket = room.client()
    socket.taken()
    room.clock.advance(first_s - 0.1)
    assert socket.taken() == b""
    room.clock.advance(0.1 + first_s / 4)  # not all come at the same moment
    assert socket.taken() == b"PING\r\n"


def test_silence_is_answered_with_pings_and_an_end_as_on_a_plain_socket() -> None:
    room = Room(Options(ping_max=1), ping_interval_ns=10**9)
    socket = room.client()
    socket.taken()
    room.clock.advance(5)
    frames = socket.frames()
    assert frames[0] == (Opcode.BINARY, b"PING\r\n")
    assert frames[-2:] == [
        (Opcode.BINARY, b"-ERR 'Stale Connection'\r\n"),
        (Opcode.CLOSE, b"\x03\xe9Stale Connection"),
    ]


def count_of_parts() -> int:
    kinds = {"WebSocketConnection", "FramedTransport", "Connection"}
    return sum(type(each).__name__ in kinds for each in gc.get_objects())


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_closed_connection_is_freed_without_the_garbage_collector(is_ended: bool) -> None:
    """Whether the client ends it or its socket is lost."""
    room = Room()
    gc.collect()
    gc.disable()
    try:
        before = count_of_parts()
        socket = room.client(b"SUB a 1\r\n")
        assert count_of_parts() == before + 3
        if is_ended:
            socket.send(client_frame(b"", Opcode.CLOSE))
        socket.lose()
        room.clock.advance(300)
        room.clock.timers.clear()
        socket.transport.conn = None
        del socket
        assert count_of_parts() == before
    finally:
        gc.enable()


def test_listening_ends_for_handshakes_too() -> None:
    room = Room()
    waiting, served = room.socket(), room.client()
    room.bed.listener.stop_listening()
    assert waiting.transport.is_aborted
    assert not served.transport.is_aborted
