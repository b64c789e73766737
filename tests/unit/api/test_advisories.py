"""Advisories, metrics and republished messages: made from events, only if somebody listens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.api.bed import Bed, check_schema


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    bed.wires.heard = (b"$JS.EVENT.",)
    return bed


def heard(bed: Bed) -> list[tuple[str, dict[str, Any]]]:
    """Advisories since the last call but for audits, checked against their schemas."""
    sent, bed.wires.sent = bed.wires.sent, []
    found = []
    for subject, _, _, payload in sent:
        document = json.loads(payload)
        checked = dict(document)
        if document["type"].endswith((".nak", ".terminated")):
            # The schemas say string; nats-server has always sent a number, as the clients expect.
            checked["consumer_seq"] = str(checked["consumer_seq"])
        check_schema("metric" if b".METRIC." in subject else "advisory", checked)
        if subject != b"$JS.EVENT.ADVISORY.API":
            rest = {k: v for k, v in document.items() if k not in ("type", "id", "timestamp")}
            found.append((subject.decode().removeprefix("$JS.EVENT."), rest))
    return found


def test_streams_and_consumers_come_and_go(bed: Bed) -> None:
    bed.make("T")
    bed.make("T")  # already there: not created again
    bed.ask("STREAM.UPDATE.T", {"name": "T", "max_msgs": 5})
    bed.make_consumer("T", "c")
    bed.ask("CONSUMER.PAUSE.T.c", {"pause_until": "2030-01-01T00:00:00Z"})
    bed.ask("CONSUMER.DELETE.T.c")
    bed.ask("STREAM.DELETE.T")
    assert heard(bed) == [
        ("ADVISORY.STREAM.CREATED.T", {"stream": "T", "action": "create"}),
        ("ADVISORY.STREAM.UPDATED.T", {"stream": "T", "action": "modify"}),
        ("ADVISORY.CONSUMER.CREATED.T.c", {"stream": "T", "consumer": "c", "action": "create"}),
        (
            "ADVISORY.CONSUMER.PAUSE.T.c",
            {"stream": "T", "consumer": "c", "paused": True, "pause_until": "2030-01-01T00:00:00Z"},
        ),
        ("ADVISORY.CONSUMER.DELETED.T.c", {"stream": "T", "consumer": "c", "action": "delete"}),
        ("ADVISORY.STREAM.DELETED.T", {"stream": "T", "action": "delete"}),
    ]


def test_a_consumer_that_runs_is_not_resumed(bed: Bed) -> None:
    bed.make("T")
    bed.make_consumer("T", "c")
    bed.ask("CONSUMER.PAUSE.T.c", {"pause_until": "2030-01-01T00:00:00Z"})
    heard(bed)
    for _ in range(2):
        assert bed.ask("CONSUMER.PAUSE.T.c")["paused"] is False
    told = {"stream": "T", "consumer": "c", "paused": False, "pause_until": "0001-01-01T00:00:00Z"}
    assert heard(bed) == [("ADVISORY.CONSUMER.PAUSE.T.c", told)]


def test_a_consumer_may_be_paused_from_the_start(bed: Bed) -> None:
    """It is told like a later pause; only the resumption was."""
    bed.make("T")
    bed.make_consumer("T", "past", pause_until="1980-01-01T00:00:00Z")
    heard(bed)
    bed.make_consumer("T", "c", pause_until="2030-01-01T00:00:00Z")
    paused = {"stream": "T", "consumer": "c", "paused": True, "pause_until": "2030-01-01T00:00:00Z"}
    created = {"stream": "T", "consumer": "c", "action": "create"}
    assert heard(bed) == [
        ("ADVISORY.CONSUMER.CREATED.T.c", created),
        ("ADVISORY.CONSUMER.PAUSE.T.c", paused),
    ]
    bed.make_consumer("T", "c", description="x")
    assert heard(bed) == []


def test_audit_holds_request_and_response(bed: Bed) -> None:
    bed.ask("STREAM.NAMES", b'{"subject":"x"}')
    (audit,) = [json.loads(payload) for _, _, _, payload in bed.wires.sent]
    check_schema("advisory", audit)
    assert audit["subject"] == "$JS.API.STREAM.NAMES"
    assert audit["request"] == '{"subject":"x"}'
    assert json.loads(audit["response"])["total"] == 0


def test_an_audit_advisory_names_the_client(bed: Bed) -> None:
    class Client:
        cid, ip, start_ns, rtt_ns = 7, "10.0.0.1", 1_600_000_000_000_000_000, 1000
        user, name, lang, version = "", "app", "python3", "2.9"

    bed.router.handle(b"$JS.API.INFO", b"", b"", b"", Client())
    (audit,) = [json.loads(payload) for _, _, _, payload in bed.wires.sent]
    check_schema("advisory", audit)
    assert audit["client"] == {
        "acc": "$G",
        "server": "bed",
        "kind": "Client",
        "start": "2020-09-13T12:26:40Z",
        "host": "10.0.0.1",
        "id": 7,
        "rtt": 1000,
        "client_type": "nats",
        "name": "app",
        "lang": "python3",
        "ver": "2.9",
    }


def test_advisories_without_a_listener_are_not_made(bed: Bed) -> None:
    bed.wires.heard = ()
    bed.make("T")
    assert bed.wires.sent == []


@pytest.mark.parametrize(
    ("kind", "fields", "subject"),
    [
        ("consumer_max_deliver", {}, "ADVISORY.CONSUMER.MAX_DELIVERIES.T.c"),
        ("consumer_naked", {}, "ADVISORY.CONSUMER.MSG_NAKED.T.c"),
        ("consumer_terminated", {"reason": "why"}, "ADVISORY.CONSUMER.MSG_TERMINATED.T.c"),
        ("consumer_ack", {"ack_time": 5}, "METRIC.CONSUMER.ACK.T.c"),
    ],
)
def test_deliveries_have_their_advisories(
    bed: Bed, kind: str, fields: dict[str, Any], subject: str
) -> None:
    stream = bed.make("T")
    heard(bed)
    event = {"stream": "T", "consumer": "c", "stream_seq": 7, "consumer_seq": 9, "deliveries": 2}
    bed.router.context.advisories.on_stream_event(stream, kind, event | fields)  # type: ignore[arg-type]
    ((found, body),) = heard(bed)
    assert found == subject
    assert body["stream_seq"] == 7 and body["deliveries"] == 2
    assert fields.items() <= body.items()


def test_abandoned_batch(bed: Bed) -> None:
    stream = bed.make("T")
    heard(bed)
    fields = {"batch": "b", "reason": "timeout"}
    bed.router.context.advisories.on_stream_event(stream, "batch_abandoned", fields)  # type: ignore[arg-type]
    body = {"stream": "T", "batch": "b", "reason": "timeout"}
    assert heard(bed) == [("ADVISORY.STREAM.BATCH_ABANDONED.T", body)]


def test_republish(bed: Bed) -> None:
    bed.wires.heard = (b"re.",)
    stream = bed.make("R", subjects=["r.>"], republish={"src": "r.*.a", "dest": "re.$1.x"})
    stream.store("r.1.a", b"one", b"NATS/1.0\r\nX: y\r\n\r\n")
    stream.store("r.1.b", b"two")
    stream.store("r.1.a", b"three")
    assert [(item[0], item[3]) for item in bed.wires.sent] == [
        (b"re.1.x", b"one"),
        (b"re.1.x", b"three"),
    ]
    first, second = (item[2].split(b"\r\n") for item in bed.wires.sent)
    assert first[:5] == [
        b"NATS/1.0",
        b"X: y",
        b"Nats-Stream: R",
        b"Nats-Subject: r.1.a",
        b"Nats-Sequence: 1",
    ]
    assert first[6] == b"Nats-Last-Sequence: 0"
    assert second[5] == b"Nats-Last-Sequence: 1"


def test_republish_headers_only(bed: Bed) -> None:
    bed.wires.heard = (b"h.",)
    republish = {"src": "r.>", "dest": "h.>", "headers_only": True}
    stream = bed.make("R", subjects=["r.>"], republish=republish)
    stream.store("r.1", b"hello")
    ((subject, _, headers, payload),) = bed.wires.sent
    assert (subject, payload) == (b"h.1", b"")
    assert headers.endswith(b"Nats-Msg-Size: 5\r\n\r\n")


def test_single_message_reads_are_not_audited(bed: Bed) -> None:
    """As in nats-server: whoever keeps the audits would keep one for each message that is read."""
    bed.make("T", subjects=["t"]).store("t", b"x")
    bed.wires.sent.clear()
    bed.ask("STREAM.MSG.GET.T", {"seq": 1})
    assert bed.wires.sent == []
    bed.ask("STREAM.INFO.T")
    assert [subject for subject, *_ in bed.wires.sent] == [b"$JS.EVENT.ADVISORY.API"]


def test_a_reason_that_was_not_given_is_left_out(bed: Bed) -> None:
    stream = bed.make("T")
    bed.wires.sent.clear()
    fields = {"consumer": "c", "consumer_seq": 1, "stream_seq": 1, "deliveries": 1, "reason": ""}
    bed.router.context.advisories.on_stream_event(stream, "consumer_terminated", fields)  # type: ignore[arg-type]
    assert "reason" not in json.loads(bed.wires.sent[0][3])
