"""Requests in the system account: documents, options, filters, errors, compression."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tests.unit.net.system_bed import SERVER_ID, SystemBed

PING = "$SYS.REQ.SERVER.PING"
OWN = f"$SYS.REQ.SERVER.{SERVER_ID}"
DOCUMENTS = {
    "VARZ": "version", "SUBSZ": "num_subscriptions", "CONNZ": "connections", "ROUTEZ": "num_routes",
    "GATEWAYZ": "outbound_gateways", "LEAFZ": "leafs", "ACCOUNTZ": "accounts", "JSZ": "disabled",
    "HEALTHZ": "status_code", "PROFILEZ": "profile", "EXPVARZ": "memstats",
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_answers_under_both_subjects(name: str) -> None:
    bed = SystemBed()
    for start in (PING, OWN):
        assert DOCUMENTS[name] in bed.answer(f"{start}.{name}")["data"]


@pytest.mark.parametrize("name", ["IPQUEUESZ", "RAFTZ"])
def test_no_streams_no_queues_and_groups(name: str) -> None:
    assert SystemBed().answer(f"{PING}.{name}") == {"data": {}}


def test_an_answer_describes_the_server() -> None:
    bed = SystemBed()
    found = bed.ask(f"{PING}.VARZ")
    assert found is not None
    server = found.json()["server"]
    assert server.pop("time").endswith("Z") and server.pop("ver")
    assert not any(server.pop("feature_flags").values())
    assert server == {
        "name": "bed", "host": "0.0.0.0", "id": SERVER_ID, "cluster": "c3", "tags": ["az:1", "big"],
        "metadata": {"rack": "r1"}, "jetstream": False, "flags": 0, "seq": 1,
    }  # fmt: skip
    again = bed.ask(f"{PING}.VARZ")
    assert again is not None and again.json()["server"]["seq"] == 2


def test_identity_is_bare_and_has_no_filter() -> None:
    bed = SystemBed()
    for body in (b"", b"{bad", {"server_name": "other"}):
        found = bed.ask(f"{PING}.IDZ", body)
        assert found is not None
        assert found.json() == {"name": "bed", "host": "0.0.0.0", "id": SERVER_ID}


def test_statistics_have_a_key_of_their_own() -> None:
    bed = SystemBed()
    bed.client()
    for subject in (PING, f"{PING}.STATSZ", f"{OWN}.STATSZ"):
        statistics = bed.answer(subject)["statsz"]
        assert (statistics["connections"], statistics["active_accounts"]) == (1, 1)
    assert bed.ask(PING, {"server_name": "other"}) is None
    assert bed.answer(PING, b"{bad")["error"]["code"] == 400


def test_no_reply_no_answer_but_statistics_for_all() -> None:
    bed = SystemBed()
    bed.listen("$SYS.SERVER.>")
    for subject in (f"{PING}.VARZ", f"{PING}.IDZ", "$SYS.REQ.ACCOUNT.A.INFO"):
        bed.system.publish(subject.encode(), b"", b"", b"")
    assert bed.events() == []
    bed.system.publish(PING.encode(), b"", b"", b"")
    (event,) = bed.events()
    assert event.subject == f"$SYS.SERVER.{SERVER_ID}.STATSZ"


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        ({"server_name": "be"}, True),
        ({"server_name": "be", "exact_match": True}, False),
        ({"server_name": "bed", "exact_match": True}, True),
        ({"host": "0.0"}, True),
        ({"host": "0.0", "exact_match": True}, False),
        ({"cluster": "c"}, True),
        ({"cluster": "d"}, False),
        ({"cluster": "", "exact_match": True}, True),
        ({"tags": ["AZ:1", "big"]}, True),
        ({"tags": ["az:1", "no"]}, False),
        ({"tags": ["az"]}, False),
        ({"tags": []}, True),
        ({"tags": None}, True),
        ({"domain": "x"}, False),
        ({"domain": ""}, True),
        ({"SERVER_NAME": "other"}, False),
    ],
)
def test_a_filter_says_which_servers_answer(wanted: dict[str, Any], is_meant: bool) -> None:
    bed = SystemBed()
    for subject in (f"{PING}.VARZ", "$SYS.REQ.ACCOUNT.A.INFO", PING):
        assert (bed.ask(subject, wanted) is not None) == is_meant, subject


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("VARZ", b"{bad", "invalid character 'b' looking for beginning of object key string"),
        ("VARZ", b" ", "unexpected end of JSON input"),
        ("VARZ", b"{} x", "invalid character 'x' after top-level value"),
        (
            "VARZ",
            b"[]",
            "json: cannot unmarshal array into Go value of type server.VarzEventOptions",
        ),
        (
            "CONNZ",
            b'{"limit":1.5}',
            "json: cannot unmarshal number 1.5 into Go struct field ConnzEventOptions.limit"
            " of type int",
        ),
        (
            "CONNZ",
            b'{"state":"x"}',
            "json: cannot unmarshal string into Go struct field ConnzEventOptions.state"
            " of type server.ConnState",
        ),
        (
            "HEALTHZ",
            b'{"tags":"x"}',
            "json: cannot unmarshal string into Go struct field HealthzEventOptions.tags"
            " of type []string",
        ),
    ],
)
def test_options_that_cannot_be_read_are_refused(name: str, body: bytes, text: str) -> None:
    assert SystemBed().answer(f"{PING}.{name}", body) == {
        "error": {"code": 400, "description": text}
    }


@pytest.mark.parametrize(
    ("subject", "body", "text"),
    [
        (f"{PING}.CONNZ", {"sort": "zz"}, "invalid sorting option: zz"),
        (
            f"{PING}.CONNZ",
            {"filter_subject": "x"},
            "filter by subject only valid with account filtering",
        ),
        (
            f"{PING}.SUBSZ",
            {"test": "a..b"},
            "invalid test subject, must be valid publish subject: a..b",
        ),
        (f"{PING}.ACCOUNTZ", {"account": "ZZ"}, "Account ZZ does not exist"),
        ("$SYS.REQ.ACCOUNT.ZZ.INFO", b"", "Account ZZ does not exist"),
        ("$SYS.REQ.ACCOUNT.ZZ.JSZ", b"", 'account "ZZ" not found'),
        ("$SYS.REQ.ACCOUNT.SYS.JSZ", b"", 'account "SYS" not jetstream enabled'),
    ],
)
def test_what_cannot_be_served_says_why(subject: str, body: Any, text: str) -> None:
    assert SystemBed().answer(subject, body) == {
        "data": None,
        "error": {"code": 500, "description": text},
    }


def test_answers_are_compressed_as_the_request_accepts() -> None:
    import cramjam

    bed = SystemBed()
    for accepted, encoding in (
        ("snappy", b"snappy"), ("S2", b"snappy"), ("gzip", b"gzip"), ("gzip, snappy", b"snappy"),
        ("br", b"identity"), ("", b""),
    ):  # fmt: skip
        headers = f"NATS/1.0\r\nAccept-Encoding: {accepted}\r\n\r\n".encode()
        found = bed.ask(f"{PING}.VARZ", headers=headers)
        assert found is not None
        expected = b"NATS/1.0\r\nContent-Encoding: %b\r\n\r\n" % encoding
        assert found.headers == (expected if encoding else b"")
        if encoding == b"snappy":
            found = found._replace(body=bytes(cramjam.snappy.decompress(found.body)))
        assert found.json()["data"]["server_name"] == "bed"
        for name in ("IDZ", "STATSZ"):
            plain = bed.ask(f"{PING}.{name}", headers=headers)
            assert plain is not None and plain.headers == b"" and plain.json()


def test_operators_reload_kick_and_send_away() -> None:
    bed = SystemBed()
    assert bed.answer(f"{OWN}.RELOAD") == {}
    assert bed.answer(f"{OWN}.RELOAD", b"{bad")["error"]["code"] == 400
    bed.controls.failure = "f:1:2: no"
    assert bed.answer(f"{OWN}.RELOAD") == {"error": {"code": 500, "description": "f:1:2: no"}}
    assert bed.answer(f"{OWN}.KICK", {"cid": 7}) == {}
    error = {"code": 500, "description": "no such client or leafnode id"}
    assert bed.answer(f"{OWN}.KICK", {"cid": 100}) == {"error": error}
    assert bed.answer(f"{OWN}.LDM", {"cid": 7}) == {}
    error = {"code": 500, "description": "no such client id"}
    assert bed.answer(f"{OWN}.LDM", {"cid": 100}) == {"error": error}
    done = [("reload", 0), ("reload", 0), ("kick", 7), ("kick", 100), ("send away", 7)]
    assert bed.controls.done == [*done, ("send away", 100)]
    for body in (b"", b"{bad", {"cid": "x"}, b"[]"):
        assert bed.ask(f"{OWN}.KICK", body) is None and bed.ask(f"{OWN}.LDM", body) is None
    for name in ("RELOAD", "KICK", "LDM", "STATZ", "ACCSTATZ", "FOO"):
        assert bed.ask(f"{PING}.{name}") is None
    assert len(bed.controls.done) == 6


def test_operators_drain_and_scrub() -> None:
    """One server, never all at once: PING subjects do not have them."""
    bed = SystemBed()
    assert bed.answer(f"{OWN}.STREAMD.SCRUB") == {"data": {"rounds": 1}}
    assert bed.answer(f"{OWN}.STREAMD.SCRUB", {"begin": True}) == {"data": {"rounds": 1}}
    assert bed.answer(f"{OWN}.STREAMD.DRAIN") == {}
    assert bed.controls.done == [("scrub", False), ("scrub", True), ("drain", 0)]
    bed.controls.failure = "no JetStream"
    error = {"code": 500, "description": "JetStream not enabled"}
    assert bed.answer(f"{OWN}.STREAMD.SCRUB") == {"data": None, "error": error}
    for name in ("SCRUB", "DRAIN"):
        assert bed.ask(f"{PING}.STREAMD.{name}") is None
    assert bed.answer(f"{OWN}.STREAMD.DRAIN", b"{bad")["error"]["code"] == 400
    assert len(bed.controls.done) == 4


def test_operators_look_into_the_trash_and_empty_it() -> None:
    """One server, never all at once."""
    bed = SystemBed()
    assert bed.answer(f"{OWN}.STREAMD.TRASH") == {"data": {"names": []}}
    body = {"action": "purge", "names": ["a", "b"]}
    assert bed.answer(f"{OWN}.STREAMD.TRASH", body) == {"data": {"names": ["a", "b"]}}
    assert bed.controls.done == [("list", 0), ("purge", 2)]
    bed.controls.failure = "'a' is not in the trash"
    found = bed.answer(f"{OWN}.STREAMD.TRASH", body)
    assert found == {"data": None, "error": {"code": 500, "description": "'a' is not in the trash"}}
    assert bed.ask(f"{PING}.STREAMD.TRASH") is None
    assert bed.answer(f"{OWN}.STREAMD.TRASH", {"names": 1})["error"]["code"] == 400


def test_digests_need_streams() -> None:
    error = {"code": 500, "description": "JetStream not enabled"}
    assert SystemBed().answer(f"{OWN}.STREAMD.DIGESTS") == {"data": None, "error": error}


def test_profiles() -> None:
    bed = SystemBed()

    async def with_a_loop() -> Any:
        return bed.answer(f"{PING}.PROFILEZ", {"name": "goroutine", "debug": 1})["data"]

    data = asyncio.run(with_a_loop())
    assert "thread" in base64.b64decode(data["profile"]).decode().lower() and not data["error"]
    for name, text in (("", "Profile name not specified"), ("zz", 'Profile "zz" not found')):
        data = bed.answer(f"{PING}.PROFILEZ", {"name": name})["data"]
        assert data == {"profile": None, "error": text}


# --- accounts -------------------------------------------------------------------------------------


def test_connections_of_an_account_whatever_is_asked() -> None:
    bed = SystemBed()
    bed.client("a", name="x")
    bed.client("b")
    data = bed.answer("$SYS.REQ.ACCOUNT.A.CONNZ", {"acc": "B", "auth": True})["data"]
    (row,) = data["connections"]
    assert (row["name"], row["account"], row["authorized_user"]) == ("x", "A", "a")
    data = bed.answer(f"{PING}.CONNZ", {"acc": "B", "auth": True})["data"]
    assert [row["name_tag"] for row in data["connections"]] == ["Bee"]
    assert bed.answer(f"{PING}.CONNZ", {"cid": 2})["data"]["total"] == 2
    for subject in ("$SYS.REQ.ACCOUNT.ZZ.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"):
        unknown = bed.answer(subject, {"acc": "A"})["data"]
        assert (unknown["server_id"], unknown["connections"]) == ("", None)


def test_subscriptions_of_an_account() -> None:
    bed = SystemBed()
    bed.client("a").send(b"SUB foo.* 1\r\nSUB q grp 2\r\n")
    data = bed.answer("$SYS.REQ.ACCOUNT.A.SUBSZ", {"subscriptions": False})["data"]
    assert {sub["subject"] for sub in data["subscriptions_list"]} == {"foo.*", "q"}
    assert {sub["account"] for sub in data["subscriptions_list"]} == {"A"}
    data = bed.answer("$SYS.REQ.ACCOUNT.A.SUBSZ", {"test": "foo.x", "limit": 1})["data"]
    assert (data["total"], data["limit"], data["num_subscriptions"]) == (1, 1, 2)
    assert bed.answer("$SYS.REQ.ACCOUNT.ZZ.SUBSZ")["data"]["num_subscriptions"] == 0
    assert (
        bed.answer(f"{PING}.SUBSZ", {"account": "B", "subscriptions": True})["data"]["total"] == 0
    )


def test_an_account_is_described_as_it_is_configured() -> None:
    bed = SystemBed()
    a = bed.answer("$SYS.REQ.ACCOUNT.A.INFO")["data"]
    assert a["mappings"] == {
        "w.*": [
            {"subject": "x.$1", "weight": 50, "cluster": "c9"},
            {"subject": "y.$1", "weight": 100},
        ]
    }
    assert a["exports"] == [
        {
            "subject": "svc.>", "type": "service", "response_type": "Streamed",
            "approved_accounts": ["B"],
        },
        {"subject": "ev.>", "type": "stream"},
        {
            "subject": "lat", "type": "service", "response_type": "Singleton",
            "service_latency": {"sampling": 50, "results": "lat.out"},
        },
    ]  # fmt: skip
    b = bed.answer("$SYS.REQ.ACCOUNT.B.INFO")["data"]
    flags = {"invalid": False, "tracking": False}
    assert b["imports"][:2] == [
        {
            "subject": "ev.>", "account": "A", "local_subject": "pp.ev.>", "type": "stream",
            "share": False, **flags,
        },
        {
            "subject": "svc.x", "account": "A", "to": "local.x", "local_subject": "local.x",
            "type": "service", "share": True, **flags,
        },
    ]  # fmt: skip
    assert {one["to"] for one in b["imports"][2:]} == {
        "$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ",
        "$SYS.REQ.ACCOUNT.PING.STATZ",
    }  # fmt: skip
    system = bed.answer("$SYS.REQ.ACCOUNT.SYS.INFO")["data"]
    assert system["is_system"] and len(system["exports"]) == 5 and len(system["imports"]) == 1
    assert (
        bed.answer(f"{PING}.ACCOUNTZ", {"account": "A"})["data"]["account_detail"].keys()
        == a.keys()
    )


def test_statistics_are_of_accounts_in_use() -> None:
    bed = SystemBed()
    bed.client("a").send(b"PUB x 5\r\nhello\r\n")
    bed.client("a").leave()

    def names(subject: str, body: Any = b"") -> list[str] | None:
        found = bed.ask(subject, body)
        if found is None:
            return None
        return [row["acc"] for row in found.json()["data"]["account_statz"]]

    (row,) = bed.answer("$SYS.REQ.ACCOUNT.A.STATZ", {"accounts": ["B"]})["data"]["account_statz"]
    assert (row["acc"], row["conns"], row["received"]["msgs"]) == ("A", 1, 1)
    assert row["received"]["bytes"] == 5
    ping, unused = "$SYS.REQ.ACCOUNT.PING.STATZ", {"include_unused": True}
    assert names(ping) == ["A"]
    assert names(ping, unused) == ["$G", "SYS", "A", "B"]
    assert names(ping, {"accounts": ["B", "ZZ"], "include_unused": True}) == ["B"]
    assert names(ping, {"accounts": ["B"]}) is None
    for account in ("B", "$G", "ZZ"):
        assert names(f"$SYS.REQ.ACCOUNT.{account}.STATZ") is None
    assert names("$SYS.REQ.ACCOUNT.ZZ.STATZ", unused) == []
    assert names("$SYS.REQ.ACCOUNT.B.STATZ", unused) == ["B"]


def test_an_account_asks_about_itself() -> None:
    """In its own subject space, with nothing of others in the answer."""
    bed = SystemBed()
    account = bed.accounts.get("A")
    assert account is not None
    bed.account.serve_account(account)
    client = bed.client("a")
    bed.client("b")
    for subject in ("ACCOUNT.PING.CONNZ", "SERVER.PING.CONNZ", "ACCOUNT.PING.STATZ", "USER.INFO"):
        body = b'{"acc":"B","accounts":["B"]}'
        request = b"SUB in 1\r\nPUB $SYS.REQ.%b in %d\r\n%b\r\nUNSUB 1\r\n"
        sent = client.send(request % (subject.encode(), len(body), body))
        bed.clock.advance(0)
        sent += client.take()
        if "USER" not in subject:  # asked again: the answer came after UNSUB
            sent = client.send(request[:-9] % (subject.encode(), len(body), body))
            bed.clock.advance(0)
            sent += client.take()
            client.send(b"UNSUB 1\r\n")
        data = json.loads(sent.split(b"\r\n")[1])["data"]
        text = json.dumps(data)
        assert '"A"' in text or data["total"] == 1
        assert '"B"' not in text
    assert client.send(b"SUB in 1\r\nPUB $SYS.REQ.SERVER.PING.VARZ in 0\r\n\r\n").count(b"503") == 1


def test_too_many_requests_at_once_are_refused() -> None:
    from streamd.limits import MONITORING_PINGS_MAX

    bed = SystemBed()
    found: list[bytes] = []
    bed.system.subscriptions.subscribe_internal(b"in", lambda *got: found.append(got[3]))
    for _ in range(MONITORING_PINGS_MAX + 1):
        bed.system.publish(f"{PING}.VARZ".encode(), b"in", b"", b"")
    (refused,) = found
    assert json.loads(refused)["error"]["code"] == 500
    bed.clock.advance(0)
    assert len(found) == MONITORING_PINGS_MAX + 1


def test_users_are_those_that_an_import_tells() -> None:
    bed = SystemBed()
    assert bed.ask("$SYS.REQ.USER.A.INFO") is None  # the server itself


def test_subscribers_are_counted_in_the_account_that_asks() -> None:
    bed = SystemBed()
    bed.client("a").send(b"SUB foo.* 1\r\nSUB foo.* 2\r\nSUB q grp 3\r\n")
    of_a = b'NATS/1.0\r\nNats-Request-Info: {"acc":"A"}\r\n\r\n'

    def count(body: bytes, headers: bytes = of_a) -> int:
        found = bed.ask("$SYS.DEBUG.SUBSCRIBERS", body, headers)
        assert found is not None
        return int(found.body)

    assert (count(b"foo.x"), count(b"foo.x", b""), count(b" foo.x ")) == (2, 0, 2)
    assert (count(b"q grp"), count(b"q other"), count(b"q"), count(b">")) == (1, 0, 1, 3)
    assert count(b"") == count(b"a..b") == 0
    for body, expected in (
        ({"acc": "A", "subject": "foo.x"}, "2"),
        ({"acc": "A", "subject": "q", "queue": base64.b64encode(b"grp").decode()}, "1"),
        ({"acc": "A", "subject": "foo.>"}, "2"),
    ):
        found = bed.ask("$SYS.REQ.ACCOUNT.NSUBS", body)
        assert found is not None and found.body.decode() == expected
    for silent in (b"bad", {"acc": "ZZ", "subject": "x"}, {"acc": "B", "subject": "x"}, b"[1]"):
        assert bed.ask("$SYS.REQ.ACCOUNT.NSUBS", silent) is None
