"""Events in the system account: of clients, of accounts, of the server."""

from __future__ import annotations

from typing import Any

from streamd.config.options import Options, User
from streamd.limits import MONITORING_PAGE, SYSTEM_EVENTS_MAX
from streamd.net.monitoring.stats import LeafRow
from tests.unit.net.bed import CONNECT
from tests.unit.net.system_bed import SERVER_ID, SystemBed


def words(bed: SystemBed, pass_s: float = 0) -> list[str]:
    return [message.subject for message in bed.events(pass_s)]


def test_a_client_that_comes_and_goes() -> None:
    bed = SystemBed()
    bed.listen("$SYS.ACCOUNT.>", "$SYS.SERVER.ACCOUNT.>")
    client = bed.client("a", name="app", lang="go", version="1")
    connect, old, new = sorted(bed.events(), key=lambda message: message.subject)
    assert connect.subject == "$SYS.ACCOUNT.A.CONNECT"
    told = connect.json()["client"]
    assert told.pop("start")
    assert told == {
        "host": "127.0.0.1", "id": 1, "acc": "A", "user": "a", "name": "app", "lang": "go",
        "ver": "1", "name_tag": "A", "kind": "Client", "client_type": "nats",
    }  # fmt: skip
    assert old.subject == "$SYS.ACCOUNT.A.SERVER.CONNS"
    assert new.subject == "$SYS.SERVER.ACCOUNT.A.CONNS"
    assert old.json() == new.json() and old.json()["conns"] == old.json()["total_conns"] == 1
    client.send(b"SUB x 1\r\nPUB x 5\r\nhello\r\n")
    client.leave()
    found = {message.subject: message.json() for message in bed.events()}
    assert found["$SYS.ACCOUNT.A.SERVER.CONNS"]["conns"] == 0
    assert found["$SYS.ACCOUNT.A.SERVER.CONNS"]["sent"]["msgs"] == 1
    gone = found["$SYS.ACCOUNT.A.DISCONNECT"]
    assert gone["reason"] == "Client Closed" and gone["client"]["stop"]
    assert gone["sent"] == gone["received"] == {"msgs": 1, "bytes": 5}


def test_a_client_that_is_not_let_in() -> None:
    bed = SystemBed()
    bed.listen("$SYS.ACCOUNT.>", "$SYS.SERVER.>")
    bed.client("evil", name="app")
    refused, gone = bed.events()
    assert refused.subject == f"$SYS.SERVER.{SERVER_ID}.CLIENT.AUTH.ERR"
    assert gone.subject == "$SYS.ACCOUNT.$G.DISCONNECT"
    for message in (refused, gone):
        event = message.json()
        assert event["reason"] == "Authentication Failure"
        assert (event["client"]["user"], event["client"]["acc"]) == ("evil", "$G")


def test_a_client_that_says_nothing_is_gone_all_the_same() -> None:
    bed = SystemBed()
    bed.listen("$SYS.ACCOUNT.>")
    bed.bed.peer(None).leave()
    assert words(bed) == ["$SYS.ACCOUNT.$G.DISCONNECT"]


def test_clients_without_an_account_are_told_of_but_not_counted() -> None:
    bed = SystemBed(Options())
    bed.listen("$SYS.ACCOUNT.>")
    bed.bed.peer(CONNECT)
    assert words(bed, 100) == ["$SYS.ACCOUNT.$G.CONNECT"]
    found = bed.ask("$SYS.REQ.ACCOUNT.$G.CONNS")
    assert found is not None and found.json()["conns"] == 1


def test_a_second_connect_may_move_a_client() -> None:
    bed = SystemBed()
    client = bed.client("a")
    bed.listen("$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.SERVER.CONNS")
    client.send(CONNECT.replace(b"{", b'{"user":"b","pass":"p",', 1))
    assert [(m.subject, m.json().get("conns")) for m in bed.events()] == [
        ("$SYS.ACCOUNT.B.CONNECT", None),
        ("$SYS.ACCOUNT.A.SERVER.CONNS", 0),
        ("$SYS.ACCOUNT.B.SERVER.CONNS", 1),
    ]


def test_connections_are_told_again_while_there_are_some() -> None:
    bed = SystemBed()
    client = bed.client("a")
    bed.listen("$SYS.ACCOUNT.*.SERVER.CONNS")
    assert words(bed, 29) == []
    assert len(words(bed, 2)) == 1
    assert len(words(bed, 60)) == 2
    client.leave()
    assert len(words(bed)) == 1
    assert words(bed, 100) == []


def test_leaf_links_count_among_the_connections_of_an_account() -> None:
    bed = SystemBed()
    bed.listen("$SYS.ACCOUNT.A.SERVER.CONNS")
    row = LeafRow(
        lid=1, name="L", is_spoke=False, is_isolated=False, account="A", ip="", port=0, rtt_ns=0,
        in_msgs=1, out_msgs=2, in_bytes=3, out_bytes=4, is_websocket=False, compression="off",
        subjects=[],
    )  # fmt: skip
    bed.stats.leafs_of = lambda account: [row] if account == "A" else []
    bed.account.account_events.links_changed("A")
    (event,) = (message.json() for message in bed.events())
    assert (event["conns"], event["leafnodes"], event["total_conns"]) == (0, 1, 1)
    assert event["sent"]["leafs"] == {"msgs": 2, "bytes": 4}
    assert event["received"] | {"leafs": 0} == {
        "msgs": 1, "bytes": 3, "leafs": 0, "routes": {"msgs": 0, "bytes": 0},
        "gateways": {"msgs": 0, "bytes": 0},
    }  # fmt: skip
    assert words(bed, 31) == ["$SYS.ACCOUNT.A.SERVER.CONNS"], "again, while there are some"
    bed.stats.leafs_of = lambda account: []
    bed.account.account_events.links_changed("A")
    assert words(bed) == ["$SYS.ACCOUNT.A.SERVER.CONNS"]
    assert not words(bed, 31)


def test_an_account_hears_of_logins_that_it_refuses() -> None:
    bed = SystemBed()
    client = bed.client("b")
    heard: list[Any] = []
    account = bed.accounts.get("A")
    assert account is not None
    refused = bed.account.connection_events.refused_by
    refused("A", client.conn, "nobody listens")
    subject = b"$SYS.ACCOUNT.CLIENT.AUTH.ERR"
    account.router.subscriptions.subscribe_internal(subject, lambda *got: heard.append(got[3]))
    refused("A", client.conn, "no such token")
    refused("ZZ", client.conn, "no such account")
    (body,) = heard
    assert b'"reason":"no such token"' in body and b'"acc":"A"' in body


def test_nothing_is_made_where_nobody_listens() -> None:
    bed = SystemBed()
    client = bed.client("a")
    client.leave()
    bed.client("evil")
    bed.account.start()
    bed.clock.advance(60)
    bed.account.lame_duck()
    bed.account.shutdown()
    assert bed.description.next()["seq"] == 1


def test_events_beyond_the_limit_are_lost_and_counted() -> None:
    bed = SystemBed()
    bed.listen("$SYS.ACCOUNT.*.DISCONNECT")
    outbox = bed.account.connection_events._outbox
    for _ in range(SYSTEM_EVENTS_MAX + 3):
        outbox.put("$SYS.ACCOUNT.A.DISCONNECT", {})
    assert len(bed.events()) == SYSTEM_EVENTS_MAX and outbox.lost_count == 3


def test_statistics_come_soon_and_then_less_often() -> None:
    bed = SystemBed()
    bed.listen("$SYS.SERVER.*.STATSZ")
    bed.account.start()
    times = []
    for tick in range(400):
        if bed.events(0.1):
            times.append(round((tick + 1) / 10, 1))
    assert times == [0.3, 0.8, 1.8, 3.8, 7.8, 15.8, 25.8, 35.8]
    bed.account.shutdown()
    assert bed.events(100) == []


def test_a_server_says_that_it_goes() -> None:
    bed = SystemBed()
    bed.listen("$SYS.SERVER.>")
    bed.account.lame_duck()
    bed.account.shutdown()
    duck, end = bed.events()
    assert duck.subject == f"$SYS.SERVER.{SERVER_ID}.LAMEDUCK"
    assert end.subject == f"$SYS.SERVER.{SERVER_ID}.SHUTDOWN"
    for message in (duck, end):
        assert message.json()["id"] == SERVER_ID and message.json()["ver"]


def test_a_reload_changes_the_description() -> None:
    bed = SystemBed()
    bed.account.reloaded(Options(users=[User("a", "p")], server_tags=["New"]))
    found = bed.ask("$SYS.REQ.SERVER.PING.VARZ", {"tags": ["new"]})
    assert found is not None and found.json()["server"]["tags"] == ["new"]


def test_many_changes_of_a_large_account_are_one_event() -> None:
    """Adding up the traffic of thousands of connections for each that comes would take the loop."""
    bed = SystemBed()
    for _ in range(MONITORING_PAGE):
        bed.client("a")
    bed.listen("$SYS.ACCOUNT.*.SERVER.CONNS")
    for _ in range(50):
        bed.client("a")
    (event,) = bed.events()
    assert event.json()["conns"] == MONITORING_PAGE + 50
    bed.client("a")
    assert bed.events() == []
    (event,) = bed.events(1)
    assert event.json()["conns"] == MONITORING_PAGE + 51
