"""What `$SYS.REQ.ACCOUNT.PING` says; tests/parity asks nats-server the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd.config.options import Options
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.monitoring.stats import connection_stats
from streamd.net.system.account_requests import OwnRequests
from streamd.net.system.answers import Answers
from streamd.net.system.server_description import ServerDescription
from tests.unit.net.bed import CONNECT, Bed
from tests.unit.net.mesh import Mesh


def serve(bed: Bed, name: str) -> None:
    """Have a server answer."""
    stats = ServerStats(bed.registry, bed.accounts, bed.clients.of)
    monitoring = Monitoring(bed.options, stats=stats, server_id=name, server_name=name)
    description = ServerDescription(
        bed.options, server_id=name, server_name=name, has_jetstream=True
    )
    answers = Answers(
        bed.router.publish,
        description,
        Slicer(bed.clock.call_soon),
    )
    OwnRequests(bed.subscriptions, "$G", monitoring, answers)


def ask(subject: str, payload: bytes = b"") -> dict[str, Any]:
    bed = Bed(Options())
    serve(bed, "bed")
    bed.peer(CONNECT)  # somebody else
    request = b"SUB in 1\r\nPUB $SYS.REQ.ACCOUNT.PING.%b in %d\r\n%b\r\n"
    client = bed.peer(CONNECT)
    sent = client.send(request % (subject.encode(), len(payload), payload))
    bed.clock.advance(0)
    sent += client.take()
    head, body, end = sent.split(b"\r\n")
    assert head == b"MSG in 1 %d" % len(body) and not end
    answer: dict[str, Any] = json.loads(body)
    assert answer.pop("server")["name"] == "bed"
    return answer


def test_connections_are_those_of_the_account() -> None:
    data = ask("CONNZ")["data"]
    assert (data["num_connections"], data["total"], data["limit"]) == (2, 2, 1024)
    assert "subscriptions_list" not in data["connections"][1]
    asked = b'{"subscriptions":true,"limit":1,"offset":1,"acc":"$SYS","sort":"subs","zz":1}'
    data = ask("CONNZ", asked)["data"]
    assert (data["num_connections"], data["total"], data["limit"]) == (1, 2, 1)
    assert ask("CONNZ", b'{"state":1}')["data"]["connections"] == []
    detailed = ask("CONNZ", b'{"subscriptions_detail":true,"cid":2}')["data"]["connections"]
    assert [sub["subject"] for sub in detailed[0]["subscriptions_list_detail"]] == ["in"]


def test_statistics_are_those_of_the_account() -> None:
    (stats,) = ask("STATZ", b'{"accounts":["X"]}')["data"]["account_statz"]
    assert (stats["acc"], stats["conns"]) == ("$G", 2)


@pytest.mark.parametrize("payload", [b"{bad", b"\xff", b"[1", b"[" * 100_000])
def test_invalid_json_is_refused(payload: bytes) -> None:
    for subject in ("CONNZ", "STATZ"):
        assert ask(subject, payload)["error"]["code"] == 400


@pytest.mark.parametrize(
    ("payload", "code", "text"),
    [
        (b'{"sort":"zz"}', 500, "invalid sorting option: zz"),
        (b'{"state":9}', 500, "Error decoding state for 9"),
        (b'{"sort":"\\ud800"}', 500, "invalid sorting option: \ufffd"),
        (b'{"state":[1]}', 400, "json: cannot unmarshal array into Go struct field"),
        (b'{"limit":"x"}', 400, "json: cannot unmarshal string into Go struct field"),
        (b'{"limit":1.5}', 400, "json: cannot unmarshal number 1.5 into Go struct field"),
        (b'{"sort":{"a":1}}', 400, "json: cannot unmarshal object into Go struct field"),
        (b'{"limit":"\\ud800"}', 400, "json: cannot unmarshal string into Go struct field"),
    ],
)
def test_meaningless_queries_are_refused(payload: bytes, code: int, text: str) -> None:
    answer = ask("CONNZ", payload)
    assert answer["error"]["code"] == code and answer.get("data") is None
    assert answer["error"]["description"].startswith(text)


def test_half_a_character_is_in_no_subject() -> None:
    asked = b'{"filter_subject":"\\ud800"}'
    assert ask("CONNZ", asked)["data"]["connections"] == []


def test_every_node_answers_with_its_own() -> None:
    """The asker's, and those that another node passes it on to."""
    mesh = Mesh(3)
    for name, bed in mesh.beds.items():
        serve(bed, name)
    mesh.settle()
    client = mesh.beds["b"].peer(CONNECT)
    sent = client.send(b"SUB in 1\r\nPUB $SYS.REQ.ACCOUNT.PING.CONNZ in 0\r\n\r\n")
    mesh.settle()
    for bed in mesh.beds.values():
        bed.clock.advance(0)
    mesh.settle()
    sent += client.take()
    answers = [json.loads(line) for line in sent.split(b"\r\n") if line.startswith(b"{")]
    assert {one["data"]["server_id"]: one["data"]["total"] for one in answers} == {
        "a": 0,
        "b": 1,
        "c": 0,
    }


@pytest.mark.parametrize(
    ("connect", "user"),
    [(b'{"user":"x","pass":"y"}', "x"), (b'{"auth_token":"secret"}', "[REDACTED]"), (b"{}", "")],
)
def test_a_client_is_shown_with_the_name_that_it_gives(connect: bytes, user: str) -> None:
    """Also where nobody asks, as by nats-server; a token is a secret."""
    peer = Bed(Options()).peer(b"CONNECT %b\r\n" % connect)
    assert connection_stats(peer.conn).user == user
