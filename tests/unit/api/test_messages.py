"""STREAM.MSG.*, DIRECT.GET: which message is found, and how it is shown."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from streamd.api.router import Router, SoleAccount
from tests.unit.api.bed import Bed, Stream
from tests.unit.net.bed import Bed as ClientBed

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    stream = bed.make("T", subjects=["t.>"], allow_direct=True)
    for at in range(5):
        stream.store(f"t.{at}", b"x%d" % at, HEADERS if at == 2 else b"")
    stream.store("t.1", b"again")
    return bed


def found(bed: Bed, **request: Any) -> int:
    seq: int = bed.ask("STREAM.MSG.GET.T", request)["message"]["seq"]
    return seq


def test_get_by_every_selector(bed: Bed) -> None:
    message = bed.ask("STREAM.MSG.GET.T", {"seq": 3})["message"]
    assert message["subject"] == "t.2"
    assert base64.b64decode(message["hdrs"]) == HEADERS
    assert base64.b64decode(message["data"]) == b"x2"
    assert "hdrs" not in bed.ask("STREAM.MSG.GET.T", {"seq": 1})["message"]
    assert "hdrs" not in bed.ask("STREAM.MSG.GET.T", {"seq": 3, "no_hdr": True})["message"]
    assert found(bed, last_by_subj="t.1") == 6
    assert found(bed, last_by_subj="t.*") == 6
    assert found(bed, next_by_subj="t.1") == 2
    assert found(bed, next_by_subj="t.1", seq=3) == 6
    assert found(bed, start_time="2020-01-01T00:00:00Z") == 1
    assert found(bed, start_time="2020-01-01T00:00:00Z", next_by_subj="t.3") == 4
    assert found(bed, start_time=message["time"]) == 3


def test_unreadable_messages_are_not_called_missing(bed: Bed) -> None:
    stream = bed.node.stream("T")
    assert stream is not None
    stream.unreadable = [3]
    told = "the message is stored and can't be read"
    assert bed.error("STREAM.MSG.GET.T", {"seq": 3}) == (10077, told)
    status = (b"NATS/1.0 500 Message Can Not Be Read\r\n\r\n", b"")
    assert bed.ask_raw("DIRECT.GET.T", {"seq": 3}) == [status]
    assert bed.ask_raw("DIRECT.GET.T", {"seq": 1, "batch": 9})[-1] == status
    lost = bed.ask("STREAM.INFO.T")["state"]["lost"]
    assert lost == {"msgs": [3], "bytes": stream.machine.index.locations.size_of(3)}
    stream.unreadable = []
    assert "lost" not in bed.ask("STREAM.INFO.T")["state"]


@pytest.mark.parametrize(
    "request_",
    [
        {"seq": 99},
        {"last_by_subj": "zz"},
        {"last_by_subj": "t..1"},
        {"next_by_subj": "t.>", "seq": 7},
        {"next_by_subj": "a..b"},
        {"start_time": "2099-01-01T00:00:00Z"},
    ],
)
def test_get_finds_nothing(bed: Bed, request_: dict[str, Any]) -> None:
    assert bed.error("STREAM.MSG.GET.T", request_) == (10037, "no message found")
    missing = [(b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")]
    assert bed.ask_raw("DIRECT.GET.T", request_) == missing


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"seq": 0},
        {"seq": 1, "last_by_subj": "t.1"},
        {"seq": 1, "start_time": "2020-01-01T00:00:00Z"},
        {"last_by_subj": "t.1", "next_by_subj": "t.1"},
        {"seq": 1, "batch": 2},
        {"multi_last": ["t.1"]},
    ],
)
def test_get_refuses_contradictions(bed: Bed, request_: dict[str, Any]) -> None:
    assert bed.error("STREAM.MSG.GET.T", request_) == (10003, "bad request")


def test_delete_one_message(bed: Bed) -> None:
    assert bed.ask("STREAM.MSG.DELETE.T", {"seq": 3})["success"] is True
    assert bed.error("STREAM.MSG.DELETE.T", {"seq": 3}) == (10043, "sequence 3 not found")
    assert bed.error("STREAM.MSG.DELETE.T", {"seq": 7}) == (10057, "stream store EOF")
    assert bed.error("STREAM.MSG.DELETE.T", {"seq": 0}) == (10057, "no message found")
    assert bed.error("STREAM.MSG.DELETE.T")[0] == 10003
    assert bed.error("STREAM.MSG.DELETE.Z", {"seq": 1})[0] == 10059
    bed.make("D", deny_delete=True)
    assert bed.error("STREAM.MSG.DELETE.D", {"seq": 1}) == (10057, "message delete not permitted")


# --- direct -------------------------------------------------------------------------------------


def heads(replies: list[tuple[bytes, bytes]]) -> list[tuple[int, int, int]]:
    """(seq, num pending, last seq) of each message of a batch; the end of batch has seq 0."""
    out = []
    for block, _ in replies:
        lines = dict(line.split(b": ") for line in block.split(b"\r\n") if b": " in line)
        out.append(
            (
                int(lines.get(b"Nats-Sequence", 0)),
                int(lines[b"Nats-Num-Pending"]),
                int(lines[b"Nats-Last-Sequence"]),
            )
        )
    return out


def test_direct_get_one(bed: Bed) -> None:
    stamp = bed.ask("STREAM.MSG.GET.T", {"seq": 3})["message"]["time"].encode()
    block = (
        b"NATS/1.0\r\nA: b\r\nNats-Stream: T\r\nNats-Subject: t.2\r\nNats-Sequence: 3\r\n"
        b"Nats-Time-Stamp: " + stamp + b"\r\n\r\n"
    )
    assert bed.ask_raw("DIRECT.GET.T", {"seq": 3}) == [(block, b"x2")]
    assert bed.ask_raw("DIRECT.GET.T.t.2") == [(block, b"x2")]
    assert bed.ask_raw("DIRECT.GET.T.t.2", {"no_hdr": True}) == [(b"", b"x2")]
    assert bed.ask_raw("DIRECT.GET.T", {"zz": 1, "last_by_subj": "t.1"})[0][1] == b"again"


@pytest.mark.parametrize(
    ("subject", "request_", "status"),
    [
        ("T", b"", b"408 Empty Request"),
        ("T", b"{}", b"408 Empty Request"),
        ("T", b"x", b"408 Malformed Request"),
        ("T", {"seq": -1}, b"408 Malformed Request"),
        ("T", {"seq": 1, "last_by_subj": "t.1"}, b"408 Bad Request"),
        ("T", {"last_by_subj": "t.1", "batch": 3}, b"408 Bad Request"),
        ("T", {"multi_last": ["t.>"], "next_by_subj": "t.1"}, b"408 Bad Request"),
        (
            "T",
            {"multi_last": ["t.>"], "up_to_seq": 1, "up_to_time": "2030-01-01T00:00:00Z"},
            b"408 Bad Request",
        ),
        (
            "T",
            {"seq": 1, "up_to_seq": 1, "up_to_time": "2030-01-01T00:00:00Z"},
            b"408 Bad Request",
        ),
        ("T", {"multi_last": ["zz"]}, b"404 No Results"),
        ("T", {"multi_last": ["t.>"], "up_to_time": "2020-01-01T00:00:00Z"}, b"404 No Results"),
        ("T", {"batch": 3, "seq": 99}, b"404 Message Not Found"),
        ("T.t.1", {"seq": 1}, b"408 Bad Request"),
        ("T.t.zz", b"", b"404 Message Not Found"),
    ],
)
def test_direct_statuses(bed: Bed, subject: str, request_: Any, status: bytes) -> None:
    assert bed.ask_raw(f"DIRECT.GET.{subject}", request_) == [
        (b"NATS/1.0 " + status + b"\r\n\r\n", b"")
    ]


def test_direct_has_no_responders_where_not_allowed(bed: Bed) -> None:
    bed.make("N")
    for name in ("N", "Z"):
        assert bed.ask_raw(f"DIRECT.GET.{name}", {"seq": 1}) == [
            (
                b"NATS/1.0 503\r\nNats-Subject: $JS.API.DIRECT.GET." + name.encode() + b"\r\n\r\n",
                b"",
            )
        ]


def test_direct_batch(bed: Bed) -> None:
    bed.ask("STREAM.MSG.DELETE.T", {"seq": 3})

    def batch(**request: Any) -> list[tuple[int, int, int]]:
        return heads(bed.ask_raw("DIRECT.GET.T", request))

    assert batch(batch=2, seq=1) == [(1, 4, 0), (2, 3, 1), (0, 3, 2)]
    assert batch(batch=10, seq=3) == [(4, 2, 0), (5, 1, 4), (6, 0, 5), (0, 0, 6)]
    assert batch(batch=10, next_by_subj="t.1") == [(2, 1, 0), (6, 0, 2), (0, 0, 6)]
    assert batch(batch=10, seq=1, max_bytes=6) == [(1, 4, 0), (2, 3, 1), (0, 3, 2)]
    assert batch(batch=1, start_time="2020-01-01T00:00:00Z") == [(1, 4, 0), (0, 4, 1)]
    last = bed.ask_raw("DIRECT.GET.T", {"batch": 1, "seq": 6})[-1]
    assert last[0].startswith(b"NATS/1.0 204 EOB\r\n")


def test_direct_last_of_many(bed: Bed) -> None:
    def lasts(**request: Any) -> list[tuple[int, int, int]]:
        return heads(bed.ask_raw("DIRECT.GET.T", {"multi_last": ["t.0", "t.1"]} | request))

    assert lasts() == [(1, 1, 0), (6, 0, 1), (0, 0, 6)]
    assert lasts(up_to_seq=4) == [(1, 1, 0), (2, 0, 1), (0, 0, 2)]
    times = {seq: bed.ask("STREAM.MSG.GET.T", {"seq": seq})["message"]["time"] for seq in (2, 6)}
    assert lasts(up_to_time=times[6]) == lasts(up_to_seq=5)  # nothing of that very moment
    assert lasts(up_to_time=times[2]) == [(1, 0, 0), (0, 0, 1)]
    assert lasts(batch=1) == [(1, 1, 0), (0, 1, 1)]
    assert lasts(batch=-1) == lasts(batch=0) == lasts()
    assert lasts(seq=2) == [(6, 0, 0), (0, 0, 6)]
    assert lasts(seq=7) == [(0, 0, 0)]
    end = bed.ask_raw("DIRECT.GET.T", {"multi_last": ["t.>"], "up_to_seq": 4})[-1][0]
    assert b"Nats-UpTo-Sequence: 4\r\n" in end


def test_direct_last_of_too_many() -> None:
    bed = Bed()
    stream: Stream = bed.make("B", subjects=["b.>"], allow_direct=True)
    for at in range(1025):
        stream.store(f"b.{at}")
    assert bed.ask_raw("DIRECT.GET.B", {"multi_last": ["b.>"]}) == [
        (b"NATS/1.0 413 Too Many Results\r\n\r\n", b"")
    ]


def test_direct_batch_reads_in_chunks() -> None:
    bed = Bed()
    stream = bed.make("B", subjects=["b.>"], allow_direct=True)
    for at in range(600):
        stream.store(f"b.{at % 2}")
    seqs = [seq for seq, _, _ in heads(bed.ask_raw("DIRECT.GET.B", {"batch": 599, "seq": 2}))]
    assert seqs == [*range(2, 601), 0]


def test_an_answer_that_goes_to_the_api_asks_nothing(bed: Bed) -> None:
    """Who may only read could have the server itself ask for what only others may."""
    clients = ClientBed()
    node: Any = bed.node
    router = Router(
        node,
        SoleAccount(clients.router),
        server_version="2.14.0",
        clock=bed.node.clock,
        call_later=None,
    )
    router.attach(clients.subscriptions)
    peer = clients.peer()
    peer.send(b"PUB $JS.API.DIRECT.GET.T.none $JS.API.STREAM.DELETE.T 0\r\n\r\n")
    assert bed.node.stream("T") is not None
    peer.send(b"SUB in 1\r\nPUB $JS.API.STREAM.DELETE.T in 0\r\n\r\n")
    assert bed.node.stream("T") is None


def test_a_direct_get_that_asks_for_more_than_is_there_is_told_what_is(bed: Bed) -> None:
    """`Nats-Min-Last-Seq`: answered from message 6 on, else 412; no number is a bad request."""

    def ask(least: bytes, more: bytes = b"") -> tuple[bytes, bytes]:
        headers = b"NATS/1.0\r\nNats-Min-Last-Seq: %b\r\n%b\r\n" % (least, more)
        (answer,) = bed.ask_raw("DIRECT.GET.T.t.3", b"", headers)
        return answer

    for more in (b"", b"Nats-Linearizable: true\r\n"):
        assert ask(b"6", more)[1] == b"x3"
        assert ask(b"7", more)[0] == (
            b"NATS/1.0 412 Min Last Sequence\r\nNats-Last-Sequence: 6\r\n\r\n"
        )
        assert ask(b"x", more)[0] == b"NATS/1.0 408 Bad Request\r\n\r\n"


def test_a_linearizable_direct_get_waits_for_the_barrier(bed: Bed) -> None:
    """What is stored before the barrier is through is seen; the answer is the usual one."""
    asked = b"NATS/1.0\r\nNats-Linearizable: true\r\n\r\n"
    stream = bed.node.stream("T")
    assert isinstance(stream, Stream)
    held: list[Any] = []
    stream.read_barrier = lambda done, lost: held.append(done)  # type: ignore[method-assign]
    bed.router.handle(b"$JS.API.DIRECT.GET.T.t.1", b"r", asked, b"")
    assert not bed.wires.sent
    stream.store("t.1", b"newest")
    held[0]()
    assert bed.wires.sent[-1][3] == b"newest"


def test_a_client_that_asks_is_told_which_field_is_at_fault(bed: Bed) -> None:
    """`Nats-Error-Detail: true`: field and reason beside the standard error, which is as ever."""
    asked = b"NATS/1.0\r\nNats-Error-Detail: true\r\n\r\n"
    body = {"name": "U", "placement": {"tags": 5}}
    plain = bed.ask("STREAM.CREATE.U", body)["error"]
    told = bed.ask("STREAM.CREATE.U", body, asked)["error"]
    assert told == plain | {
        "detail": {"reason": plain["description"], "retriable": False, "field": "placement.tags"}
    }
    told = bed.ask("STREAM.CREATE.U", {"name": "U", "colour": "red"}, asked)["error"]
    assert told["detail"]["field"] == "colour"
    told = bed.ask("STREAM.INFO.NONE", b"", asked)["error"]
    assert told["detail"] == {"reason": "stream not found", "retriable": False}
