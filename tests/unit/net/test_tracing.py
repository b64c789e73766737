"""The protocol trace: the lines nats-server writes, and nothing that must not be in a log.

The lines of `test_lines_are_nats_servers` were written by nats-server 2.15.1 for the same bytes
(but for the number of blanks in a client's line, which is always one here).
"""

from __future__ import annotations

import io

import bcrypt
import pytest

from streamd.config.options import Options, User
from streamd.net.client.tracing import Tracer
from streamd.obs.server_log import Log
from tests.unit.net.bed import CONNECT, Bed, Node, Stream

WHO = "127.0.0.1:50000 - cid:1 - "


class TraceBed(Bed):
    """A listener whose connections are traced into `lines`."""

    def __init__(self, options: Options, node: Node | None = None) -> None:
        self._stream = io.StringIO()
        options.is_trace = True
        super().__init__(options, node, Log(stream=self._stream, is_trace=True, has_time=False))

    def lines(self) -> list[str]:
        """What was traced since the last look, without pid and level."""
        text = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return [line.partition("[TRC] ")[2] for line in text.splitlines() if "[TRC] " in line]


def traced(data: bytes, *, connect: bytes = CONNECT, options: Options | None = None) -> list[str]:
    """What a client is traced with that sends `data`, without its name."""
    bed = TraceBed(options or Options())
    peer = bed.peer(connect)
    bed.lines()
    peer.send(data)
    return [line.removeprefix(WHO) for line in bed.lines()]


def test_secrets_are_hidden_in_whatever_case_they_are_named() -> None:
    """CONNECT is read that way."""
    bed = TraceBed(Options(username="u", password="secret"))
    bed.peer(b'CONNECT {"User":"u","PASS":"secret"}\r\n')
    assert bed.lines()[0] == WHO + '<<- [CONNECT {"User":"u","PASS":"[REDACTED]"}]'


def test_lines_are_nats_servers() -> None:
    bed = TraceBed(Options())
    peer = bed.peer(
        b'CONNECT {"verbose":false,"pedantic":true,"user":"u","pass":"secret","auth_token":"tok",'
        b'"headers":true,"no_responders":true,"echo":true,"lang":"x"}\r\n'
    )
    assert bed.lines() == [
        WHO + '<<- [CONNECT {"verbose":false,"pedantic":true,"user":"u","pass":"[REDACTED]",'
        '"auth_token":"[REDACTED]","headers":true,"no_responders":true,"echo":true,"lang":"x"}]'
    ]
    peer.send(
        b"PING\r\nSUB a.* 1\r\nSUB q.* grp 2\r\nPUB a.x rep.ly 5\r\nhello\r\n"
        b"HPUB a.x r.r 24 29\r\nNATS/1.0\r\nA: b\r\nC: d\r\n\r\n12345\r\nPUB q.x  2 \r\nab\r\n"
        b"UNSUB 1 2\r\nUNSUB 2\r\nPUB nobody 0\r\n\r\nSUB bad..x 4\r\nSUB z 9\r\nPONG\r\nBLAH\r\n"
    )
    who = WHO + '"x" - "$G/user:u" - '
    assert [line.removeprefix(who) for line in bed.lines()] == [
        "<<- [PING]",
        "->> [PONG]",
        "<<- [SUB a.* 1]",
        "<<- [SUB q.* grp 2]",
        "<<- [PUB a.x rep.ly 5]",
        '<<- MSG_PAYLOAD: ["hello"]',
        "->> [MSG a.x 1 rep.ly 5]",
        '->> MSG_PAYLOAD: ["hello"]',
        "<<- [HPUB a.x r.r 24 29]",
        '<<- MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b\\r\\nC: d\\r\\n\\r\\n12345"]',
        "->> [HMSG a.x 1 r.r 24 29]",
        '->> MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b\\r\\nC: d\\r\\n\\r\\n12345"]',
        "<<- [PUB q.x 2]",
        '<<- MSG_PAYLOAD: ["ab"]',
        "->> [MSG q.x 2 2]",
        '->> MSG_PAYLOAD: ["ab"]',
        "<<- [UNSUB 1 2]",
        "<-> [DELSUB 1]",
        "<<- [UNSUB 2]",
        "<-> [DELSUB 2]",
        "<<- [PUB nobody 0]",
        "<<- [SUB bad..x 4]",
        "->> [-ERR Invalid Subject]",
        "<<- [SUB z 9]",
        "<<- [PONG]",
        "->> [-ERR Unknown Protocol Operation]",
        "<-> [DELSUB 9]",
    ]


@pytest.mark.parametrize(
    ("connect", "who"),
    [
        (b'{"name":"nm","lang":"py","version":"1.2"}', '"v1.2:py:nm" - '),
        (b'{"name":"n\\"m"}', '"n\\"m" - '),
        (b"{}", ""),
    ],
)
def test_lines_name_the_client(connect: bytes, who: str) -> None:
    lines = traced(b"PING\r\n", connect=b"CONNECT " + connect + b"\r\n")
    assert f"{who}<<- [PING]" in lines


def test_lines_name_account_and_user() -> None:
    """Of an nkey user the key."""
    key = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
    bed = TraceBed(Options(users=[User("a", "p", account="A")], no_auth_user="a"))
    peer = bed.peer(b'CONNECT {"user":"a","pass":"p","verbose":false}\r\n')
    bed.lines()
    peer.send(b"PING\r\n")
    assert bed.lines()[0] == WHO + '"A/user:a" - <<- [PING]'
    profile = peer.conn.profile
    assert profile.connect is not None
    profile.connect["nkey"] = profile.user = key
    tracer = Tracer(Log(stream=io.StringIO()), bed.options)
    tracer.begin(lambda data: None, profile)
    tracer.identified(profile)
    assert tracer._client == f' - "A/nkey:{key}"'


def test_a_verbose_client_is_answered_ok() -> None:
    lines = traced(b"SUB a 1\r\n", connect=b"CONNECT {}\r\n")
    assert lines == ["<<- [SUB a 1]", "->> [OK]"]


def test_no_secret_is_written() -> None:
    """However it is spelled; a CONNECT that is no JSON object is not shown at all."""
    bed = TraceBed(Options())
    for text in (
        b'{"pass":"S\\"ECRET","auth_token":"SECRET","sig":"SECRET","nkey":"SECRET"}',
        b'{"\\u0070ass" : "SECRET"}',
        b'{"pass":"SECRET"',
        b'["SECRET"]',
    ):
        bed.peer(b"CONNECT " + text + b"\r\n")
    found = bed.lines()
    assert sum("[CONNECT" in line for line in found) == 4
    assert "SECRET" not in "\n".join(found)


@pytest.mark.parametrize(
    ("most", "shown"), [(0, "0123456789"), (10, "0123456789"), (9, "012345678..."), (1, "0...")]
)
def test_long_payloads_are_cut(most: int, shown: str) -> None:
    """max_traced_msg_len, headers included."""
    lines = traced(
        b"SUB a 1\r\nPUB a 10\r\n0123456789\r\n", options=Options(max_traced_msg_len=most)
    )
    assert lines.count(f'<<- MSG_PAYLOAD: ["{shown}"]') == 1
    assert lines.count(f'->> MSG_PAYLOAD: ["{shown}"]') == 1


def test_headers_only() -> None:
    """trace_headers: no body of any message."""
    lines = traced(
        b"SUB a 1\r\nHPUB a 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nab\r\nPUB a 1\r\nx\r\n",
        options=Options(is_trace_headers=True),
    )
    assert lines == [
        "<<- [SUB a 1]",
        "<<- [HPUB a 18 20]",
        '<<- MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b"]',
        "->> [HMSG a 1 18 20]",
        '->> MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b"]',
        "<<- [PUB a 1]",
        "->> [MSG a 1 1]",
    ]


def test_bytes_are_quoted_as_go_quotes_them() -> None:
    """One line per message, whatever is in it."""
    payload = b'a\x00\n"\\\t' + "ä\u2028".encode() + b"\xff"
    (line,) = [
        line
        for line in traced(b"PUB a %d\r\n%b\r\n" % (len(payload), payload))
        if "PAYLOAD" in line
    ]
    assert line == '<<- MSG_PAYLOAD: ["a\\x00\\n\\"\\\\\\tä\\u2028\\xff"]'
    assert traced(b"SUB a\x1b[31m 1\r\n")[0] == "<<- [SUB a\\x1b[31m 1]"


def test_events_held_behind_a_password_are_traced_in_their_turn() -> None:
    """The check runs on another thread; what came behind CONNECT has the client's name by then."""
    hashed = bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode()
    bed = TraceBed(Options(username="joe", password=hashed))
    connect = b'CONNECT {"verbose":false,"user":"joe","pass":"pw"}\r\n'
    peer = bed.peer(connect + b"SUB a 1\r\nPUB a 1\r\nx\r\n")
    peer.send(b"PING\r\n")
    assert len(bed.lines()) == 1
    bed.clock.finish_jobs()
    assert [line.removeprefix(WHO + '"$G/user:joe" - ') for line in bed.lines()] == [
        "<<- [SUB a 1]",
        "<<- [PUB a 1]",
        '<<- MSG_PAYLOAD: ["x"]',
        "->> [MSG a 1 1]",
        '->> MSG_PAYLOAD: ["x"]',
        "<<- [PING]",
        "->> [PONG]",
    ]
    assert peer.take() == b"MSG a 1 1\r\nx\r\nPONG\r\n"


def test_acks_of_a_stream_are_traced() -> None:
    stream = Stream("S", ["s"])
    bed = TraceBed(Options(), Node(stream))
    peer = bed.peer()
    peer.send(b"SUB i.* 1\r\nPUB s i.1 1\r\nx\r\nPUB s i.2 1\r\ny\r\n")
    bed.lines()
    msgs = [msg for chunk, _, _ in stream.published for msg in chunk]
    replies = [reply for _, given, _ in stream.published for reply in given]
    assert len(msgs) == 2
    peer.conn.output.publish_acks(b"S", replies, range(1, 3))
    lines = [line.partition(WHO)[2] for line in bed.lines()]
    assert [line for line in lines if "MSG i" in line] == [
        "->> [MSG i.1 1 22]",
        "->> [MSG i.2 1 22]",
    ]


def test_a_connection_is_traced_from_its_beginning_or_not_at_all() -> None:
    """So that those who are not pay nothing; the choice is made anew for each, after a reload."""
    bed = TraceBed(Options())
    first = bed.peer()
    bed.listener.reload(Options())
    second = bed.peer()
    assert first.conn._tracer is not None
    assert second.conn._tracer is None
    bed.lines()
    second.send(b"PING\r\n")
    assert bed.lines() == []
