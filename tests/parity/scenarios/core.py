"""The client protocol below JetStream, byte by byte."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario
from tests.wire import CONNECT

VERBOSE = CONNECT | {"verbose": True}
PEDANTIC = CONNECT | {"pedantic": True}
PLAIN = {"verbose": False, "pedantic": False}

RAW: dict[str, tuple[bytes, dict[str, Any] | None]] = {
    "ping": (b"PING\r\n", CONNECT),
    "lower_case": (b"ping\r\nsub a 1\r\npub a 1\r\nx\r\n", CONNECT),
    "mixed_case": (b"Sub a 1\r\nPuB a 1\r\nx\r\n", CONNECT),
    "newline_only": (b"PING\n", CONNECT),
    "echo_self": (b"SUB a 1\r\nPUB a 2\r\nhi\r\n", CONNECT),
    "no_echo": (b"SUB a 1\r\nPUB a 2\r\nhi\r\n", CONNECT | {"echo": False}),
    "empty_payload": (b"SUB a 1\r\nPUB a 0\r\n\r\n", CONNECT),
    "reply": (b"SUB a 1\r\nPUB a r.1 2\r\nhi\r\n", CONNECT),
    "tabs_and_spaces": (b"SUB  a\t1\r\nPUB \t a  2\r\nhi\r\n", CONNECT),
    "wildcards": (b"SUB a.* 1\r\nSUB a.> 2\r\nPUB a.b 1\r\nx\r\n", CONNECT),
    "queue": (b"SUB a q 1\r\nPUB a 1\r\nx\r\n", CONNECT),
    "unsub": (b"SUB a 1\r\nUNSUB 1\r\nPUB a 1\r\nx\r\n", CONNECT),
    "unsub_max": (b"SUB a 1\r\nUNSUB 1 2\r\n" + b"PUB a 1\r\nx\r\n" * 4, CONNECT),
    "unsub_max_reached": (b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1 1\r\nPUB a 1\r\nx\r\n", CONNECT),
    "unsub_unknown": (b"UNSUB 99\r\n", CONNECT),
    "sub_same_sid": (b"SUB a 1\r\nSUB b 1\r\nPUB a 1\r\nx\r\nPUB b 1\r\ny\r\n", CONNECT),
    "sub_twice": (b"SUB a 1\r\nSUB a 2\r\nPUB a 1\r\nx\r\n", CONNECT),
    "no_responders": (b"SUB i 1\r\nPUB none i 0\r\n\r\n", CONNECT),
    "no_responders_off": (b"SUB i 1\r\nPUB none i 0\r\n\r\n", PLAIN),
    "headers": (b"SUB a 1\r\nHPUB a 20 22\r\nNATS/1.0\r\nA: bcd\r\n\r\nhi\r\n", CONNECT),
    "headers_with_reply": (b"SUB a 1\r\nHPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", CONNECT),
    "headers_off": (b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", PLAIN),
    "headers_to_plain": (b"SUB a 1\r\nPUB a 2\r\nhi\r\n", PLAIN),
    "header_larger_than_total": (b"HPUB a 14 12\r\nNATS/1.0\r\n\r\nhi\r\n", CONNECT),
    "header_garbage": (b"SUB a 1\r\nHPUB a 4 6\r\nzzzzhi\r\n", CONNECT),
    "unknown_word": (b"HELLO\r\n", CONNECT),
    "unknown_word_close": (b"ZZZZZZZZZZ a b c\r\n", CONNECT),
    "pub_no_size": (b"PUB a\r\n", CONNECT),
    "pub_bad_size": (b"PUB a x\r\n", CONNECT),
    "pub_negative": (b"PUB a -1\r\n", CONNECT),
    "pub_too_many": (b"PUB a b c 1\r\nx\r\n", CONNECT),
    "pub_short_body": (b"PUB a 2\r\nhello\r\n", CONNECT),
    "pub_invalid_subject": (b"SUB a..b 1\r\nPUB a..b 1\r\nx\r\n", CONNECT),
    "pub_wildcard": (b"SUB a.* 1\r\nPUB a.* 1\r\nx\r\n", CONNECT),
    "pub_wildcard_pedantic": (b"SUB a.* 1\r\nPUB a.* 1\r\nx\r\n", PEDANTIC),
    "pub_too_large": (b"PUB a 2000000\r\n", CONNECT),
    "sub_no_sid": (b"SUB a\r\n", CONNECT),
    "sub_invalid": (b"SUB a..b 1\r\n", CONNECT),
    "sub_invalid_wildcard": (b"SUB a.>.b 1\r\n", CONNECT),
    "sub_half_wildcard": (b"SUB a.b* 1\r\nPUB a.b* 1\r\nx\r\nPUB a.bc 1\r\nx\r\n", CONNECT),
    "sub_too_many": (b"SUB a b c d\r\n", CONNECT),
    "sub_empty": (b"SUB \r\n", CONNECT),
    "sub_trailing_dot": (b"SUB a. 1\r\n", CONNECT),
    "unsub_empty": (b"UNSUB\r\n", CONNECT),
    "unsub_bad_max": (b"SUB a 1\r\nUNSUB 1 x\r\n", CONNECT),
    "verbose": (b"SUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\n", VERBOSE),
    "verbose_invalid": (b"SUB a..b 1\r\n", VERBOSE),
    "connect_twice": (b'CONNECT {"verbose":true}\r\nSUB a 1\r\n', CONNECT),
    "connect_bad_json": (b"CONNECT {bad\r\n", None),
    "connect_empty": (b"CONNECT \r\n", None),
    "connect_not_object": (b"CONNECT 5\r\n", None),
    "connect_unknown_fields": (b'CONNECT {"zzz":1,"verbose":true}\r\n', None),
    "connect_wrong_type": (b'CONNECT {"verbose":"yes"}\r\n', None),
    "connect_bad_protocol": (b'CONNECT {"protocol":7}\r\n', None),
    "no_connect": (b"SUB a 1\r\nPUB a 1\r\nx\r\n", None),
    "long_control_line": (b"SUB " + b"a" * 5000 + b" 1\r\n", CONNECT),
    "long_line_without_end": (b"SUB " + b"a" * 10000, CONNECT),
    "info_from_client": (b"INFO {}\r\n", CONNECT),
    "ok_from_client": (b"+OK\r\n", CONNECT),
    "err_from_client": (b"-ERR 'x'\r\n", CONNECT),
    "msg_from_client": (b"MSG a 1 1\r\nx\r\n", CONNECT),
    "binary": (bytes(range(1, 32)) + b"\r\n", CONNECT),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None),
    "empty_line": (b"\r\n", CONNECT),
    "pong_unasked": (b"PONG\r\nPONG\r\n", CONNECT),
    "big_sid": (b"SUB a 99999999999999999999\r\nPUB a 1\r\nx\r\n", CONNECT),
    "text_sid": (b"SUB a abc\r\nPUB a 1\r\nx\r\n", CONNECT),
    "leading_zero_size": (b"SUB a 1\r\nPUB a 002\r\nhi\r\n", CONNECT),
    "unicode_subject": ("SUB é 1\r\nPUB é 1\r\nx\r\n".encode(), CONNECT),
    "dollar_subject": (b"SUB $a.b 1\r\nPUB $a.b 1\r\nx\r\n", CONNECT),
}


def _raw(data: bytes, connect: dict[str, Any] | None) -> Any:
    def run(at: Recorder) -> None:
        at.raw("answers", data, connect=connect)

    return run


for _key, (_data, _connect) in RAW.items():
    add(f"core.raw_{_key}", _raw(_data, _connect))


@scenario
def info_fields(at: Recorder) -> None:
    wanted = ("proto", "headers", "max_payload", "jetstream", "auth_required", "tls_required")
    at.note("values", {key: at.wire.info.get(key) for key in wanted})
    needed = ("server_id", "server_name", "version", "go", "host", "port", "client_id", "client_ip")
    at.note("types", {key: type(at.wire.info.get(key)).__name__ for key in needed})


@scenario
def queue_spreads(at: Recorder) -> None:
    """Every message reaches exactly one member of each group, and every plain subscriber."""
    wire = at.connect()
    for _ in range(3):
        wire.subscribe("a", "q")
    wire.subscribe("a", "other")
    wire.subscribe("a")
    for _ in range(30):
        wire.publish("a", b"x")
    frames = wire.fence()
    sids = [int(frame.sid) for frame in frames]
    at.note("counts", [sum(sid <= 3 for sid in sids), sids.count(4), sids.count(5)])


@scenario
def order_between_connections(at: Recorder) -> None:
    reader, writer = at.connect(), at.connect()
    reader.subscribe("a.>")
    reader.fence()
    for number in range(200):
        writer.publish(f"a.{number % 7}", b"%d" % number)
    writer.fence()
    frames = reader.collect(count=200, within_s=ANSWER_S)
    at.note("order", [frame.payload.decode() for frame in frames])


@scenario
def request_reply(at: Recorder) -> None:
    service = at.connect()
    service.subscribe("service")
    service.fence()
    at.wire.subscribe(at.wire.inbox)
    at.wire.publish("service", b"question", reply=at.wire.inbox)
    asked = service.next(2)
    service.publish(asked.reply, b"answer", headers={"A": "b"})
    at.collect("answer", 1)


@scenario
def large_payload(at: Recorder) -> None:
    wire = at.connect()
    wire.subscribe("a")
    body = bytes(range(256)) * 4096
    wire.publish("a", body)
    frames = wire.collect(count=1, within_s=ANSWER_S)
    at.note("same", [frame.payload == body for frame in frames])


@scenario
def split_bytes(at: Recorder) -> None:
    """One byte at a time."""
    wire = at.connect()
    for at_byte in b"SUB a 1\r\nPUB a 5\r\nhello\r\n":
        wire.send(bytes([at_byte]))
    at.note_frames("message", wire.collect(count=1, within_s=ANSWER_S))


@scenario
def subscribe_to_everything(at: Recorder) -> None:
    wire = at.connect()
    wire.subscribe(">")
    wire.fence()
    at.wire.publish("a.b", b"x")
    at.wire.publish("$x", b"y")
    at.note_frames("seen", wire.collect(count=2, within_s=ANSWER_S))
