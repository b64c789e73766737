"""Stream imports: clients of one account receive messages of another, under their own names."""

from __future__ import annotations

import pytest

from tests.unit.net.account_bed import AccountBed, account, mapping, stream, takes, without_imports
from tests.unit.net.bed import CONNECT, Node, Stream
from tests.unit.net.test_message_router import msg, pub


def bed_of(to: str, remote: str = "s.>") -> AccountBed:
    return AccountBed(account("A", stream(remote)), account("B", takes("A", remote, to)))


@pytest.mark.parametrize(
    ("remote", "to", "wanted", "published", "seen"),
    [
        ("s.>", "", b"s.x", b"s.x", b"s.x"),
        ("s.>", "p.s.>", b"p.s.*", b"s.x", b"p.s.x"),
        ("s.>", "p.s.>", b">", b"s.x.y", b"p.s.x.y"),
        ("s.>", "p.s.>", b"*.s.x", b"s.x", b"p.s.x"),
        ("s.*", "q.*", b"q.x", b"s.x", b"q.x"),
        ("s.*.*", "q.$2.$1", b"q.y.*", b"s.x.y", b"q.y.x"),
        ("s.*.*", "q.{{wildcard(2)}}.a.$1", b"q.>", b"s.x.y", b"q.y.a.x"),
        ("s", "q", b"q", b"s", b"q"),
        ("s.*", "q.$1.$1", b"q.x.*", b"s.x", b"q.x.x"),
    ],
)
def test_a_message_comes_once_under_its_local_name(
    remote: str, to: str, wanted: bytes, published: bytes, seen: bytes
) -> None:
    bed = bed_of(to, remote)
    b, a = bed["B"].client(wanted), bed["A"].client()
    a.send(pub(published, b"1", b"back") + pub(published, b"2") + pub(b"other.x"))
    assert b.take() == msg(seen, b"1", b"1", b"back") + msg(seen, b"1", b"2")


@pytest.mark.parametrize(
    ("remote", "to", "wanted", "published"),
    [
        ("s.>", "p.s.>", b"s.x", b"s.x"),
        ("s.>", "p.s.>", b"p.s.y", b"s.x"),
        ("s.*", "q.$1.$1", b"q.x.y", b"s.x"),
        ("s.>", "", b"t.>", b"t.x"),
        ("s.>", "", b">", b"t.x"),
    ],
)
def test_nothing_else_is_seen(remote: str, to: str, wanted: bytes, published: bytes) -> None:
    bed = bed_of(to, remote)
    b, a = bed["B"].client(wanted), bed["A"].client()
    a.send(pub(published) * 3)
    assert b.take() == b""


def test_the_exporter_does_not_see_what_the_importer_publishes() -> None:
    bed = bed_of("")
    a, b = bed["A"].client(b"s.>"), bed["B"].client(b"s.>")
    assert b.send(pub(b"s.x")) == msg(b"s.x", b"1")
    assert a.take() == b""


def test_headers_and_runs_arrive_as_they_were_sent() -> None:
    bed = bed_of("p.s.>")
    b, a = bed["B"].client(b"p.>"), bed["A"].client()
    a.send(b"HPUB s.x 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
    assert b.take() == b"HMSG p.s.x 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n"
    a.send(pub(b"s.x", b"y" * 90) * 50)
    assert b.take() == msg(b"p.s.x", b"1", b"y" * 90) * 50


def test_unsub_after_max_counts_imported_messages() -> None:
    bed = bed_of("p.s.>")
    b, a = bed["B"].client(b"p.>"), bed["A"].client()
    b.send(b"UNSUB 1 3\r\n" + pub(b"p.own"))
    assert b.take() == b""
    a.send(pub(b"s.x") * 9)
    assert b.take() == msg(b"p.s.x", b"1") * 2
    assert bed["A"].subscriptions.sublist.count == 0 == bed["B"].subscriptions.sublist.count


@pytest.mark.parametrize("leave", ["unsub", "end"])
def test_the_second_subscription_ends_with_the_first(leave: str) -> None:
    bed = bed_of("p.s.>")
    b, a = bed["B"].client(b"p.>", b"p.s.*"), bed["A"].client()
    assert bed["A"].subscriptions.sublist.count == 2
    if leave == "unsub":
        b.send(b"UNSUB 1\r\nUNSUB 2\r\n")
    else:
        b.leave()
    assert bed["A"].subscriptions.sublist.count == 0
    a.send(pub(b"s.x"))
    assert b.take() == b""


def test_a_queue_group_is_one_across_accounts() -> None:
    bed = bed_of("p.s.>")
    own = bed["A"].client()
    own.send(b"SUB s.x g 1\r\n")
    others = [bed["B"].client(), bed["B"].client()]
    for peer in others:
        peer.send(b"SUB p.s.* g 1\r\n")
    bed["A"].client().send(pub(b"s.x") * 300)
    counts = [own.take().count(b"MSG s.x 1 "), *(p.take().count(b"MSG p.s.x 1 ") for p in others)]
    assert sum(counts) == 300 and all(60 < each < 140 for each in counts)


def test_no_receiver_is_told_only_without_importers() -> None:
    bed = bed_of("p.s.>")
    a = bed["A"].client(b"in.*")
    assert b"503" in a.send(pub(b"s.x", b"x", b"in.1"))
    b = bed["B"].client(b"p.>")
    assert a.send(pub(b"s.x", b"x", b"in.1")) == b""
    assert b.take() == msg(b"p.s.x", b"1", b"x", b"in.1")


def test_imports_are_not_exported_on() -> None:
    bed = AccountBed(
        account("A", stream("s.>")),
        account("B", takes("A", "s.>", "b.>"), stream("b.>")),
        account("C", takes("B", "b.>", "c.>")),
    )
    a, b, c = bed["A"].client(), bed["B"].client(b">"), bed["C"].client(b">")
    a.send(pub(b"s.x"))
    assert b.take() == msg(b"b.x", b"1") and c.take() == b""
    b.send(pub(b"b.y"))
    assert c.take() == msg(b"c.y", b"1")


def test_an_account_may_import_from_itself() -> None:
    bed = AccountBed(account("A", stream("s.>"), takes("A", "s.>", "p.s.>")))
    peer = bed["A"].client(b"p.>", b"s.x")
    got = peer.send(pub(b"s.x"))
    assert sorted(got.split(b"\r\nx\r\n")) == [b"", b"MSG p.s.x 1 1", b"MSG s.x 2 1"]


def test_two_imports_under_one_name_are_two_sources() -> None:
    bed = AccountBed(
        account("A", stream("s.>")),
        account("C", stream("s.>")),
        account("B", takes("A", "s.>"), takes("C", "s.>")),
    )
    b = bed["B"].client(b"s.*")
    bed["A"].client().send(pub(b"s.x", b"a"))
    bed["C"].client().send(pub(b"s.x", b"c"))
    assert b.take() == msg(b"s.x", b"1", b"a") + msg(b"s.x", b"1", b"c")


# --- streams --------------------------------------------------------------------------------------


def test_streams_of_the_importer_capture_imported_messages_once() -> None:
    bed = bed_of("p.s.>")
    own, imported = Stream("OWN", ["s.>"]), Stream("IMPORTED", ["p.>"])
    bed["A"].router.attach(Node(own))  # type: ignore[arg-type]
    bed["B"].router.attach(Node(imported))  # type: ignore[arg-type]
    a = bed["A"].client(b"in.*")
    a.send(pub(b"s.x", b"1", b"in.1") + pub(b"t.x", b"2"))
    assert [msgs for msgs, _, _ in own.published] == [[(b"s.x", b"", b"1")]]
    ((msgs, replies, sink),) = imported.published
    assert msgs == [(b"p.s.x", b"", b"1")] and replies == [b"in.1"]
    sink.publish_acks(b"IMPORTED", [b"in.1"], [7])
    assert a.take() == b""  # the ack goes to the importing account
    waiting = bed["B"].client(b"in.*")
    sink.publish_acks(b"IMPORTED", [b"in.1"], [7])
    assert b'"stream":"IMPORTED"' in waiting.take()


def test_streams_that_come_later_capture_too() -> None:
    bed = bed_of("")
    node = Node()
    bed["B"].router.attach(node)  # type: ignore[arg-type]
    a = bed["A"].client(b"in.*")
    assert b"503" in a.send(pub(b"s.x", b"1", b"in.1"))
    late = Stream("LATE", ["s.>"])
    node.all.append(late)
    node.topology_version += 1
    a.send(pub(b"s.x", b"2", b"in.1") + pub(b"s.x", b"3", b"in.1"))
    assert [msg[2] for msgs, _, _ in late.published for msg in msgs] == [b"2", b"3"]
    bed.change("B", without_imports)
    assert b"503" in a.send(pub(b"s.x", b"4", b"in.1"))


# --- reload ---------------------------------------------------------------------------------------


def test_imports_come_and_go_while_clients_listen() -> None:
    bed = AccountBed(account("A", stream("s.>")), account("B"))
    a, b = bed["A"].client(), bed["B"].client(b"s.>")
    a.send(pub(b"s.x", b"1"))
    bed.apply(account("A", stream("s.>")), account("B", takes("A", "s.>")))
    a.send(pub(b"s.x", b"2"))
    before = list(bed["A"].subscriptions.sublist.all())
    bed.apply(account("A", stream("s.>")), account("B", takes("A", "s.>"), takes("A", "s.q", "q")))
    assert list(bed["A"].subscriptions.sublist.all()) == before  # what stays is not interrupted
    a.send(pub(b"s.x", b"3"))
    bed.change("B", without_imports)
    a.send(pub(b"s.x", b"4"))
    assert b.take() == msg(b"s.x", b"1", b"2") + msg(b"s.x", b"1", b"3")
    assert bed["A"].subscriptions.sublist.count == 0


def test_an_export_that_is_gone_ends_its_imports() -> None:
    bed = bed_of("")
    b = bed["B"].client(b"s.>")
    bed.change("A", lambda options: account("A"))
    bed["A"].client().send(pub(b"s.x"))
    assert b.take() == b""
    assert bed.refused == ['account "B" may not import stream "s.>" of account "A"']


def test_an_account_that_is_gone_takes_its_links_along() -> None:
    bed = bed_of("")
    b = bed["B"].client(b"s.>")
    old = bed["A"]
    bed.apply(account("B"))
    assert old.subscriptions.sublist.count == 0
    b.leave()


def test_routers_without_imports_have_no_observers_that_matter() -> None:
    bed = AccountBed(account("A", stream("s.>")), account("B"))
    bed["A"].client(b"s.x", connect=CONNECT)
    route = bed["A"].router.subscriptions.table.find(b"s.x")
    assert route.sole is not None  # the hot path is the one of a server without accounts
    bed["A"].router.attach(Node(Stream("S", ["t.>"])))  # type: ignore[arg-type]
    assert bed["A"].router._streams is bed["A"].router.own_streams


def test_an_account_that_changes_is_linked_with_those_that_import_of_it() -> None:
    """Before and after; whatever comes first. No other account is looked at."""
    bed = AccountBed(
        account("B", takes("A", "s.>", "p.s.>")), account("C", mapping("m", "n")), account("D")
    )
    untouched = bed["C"].router.mappings
    assert len(bed.refused) == 1 and '"B" may not import' in bed.refused[0]
    bed.change_alone(account("A", stream("s.>")))
    b, a = bed["B"].client(b"p.s.*"), bed["A"].client()
    a.send(pub(b"s.x", b"1"))
    assert b.take() == msg(b"p.s.x", b"1", b"1")
    bed.change_alone(account("A", stream("t.>")))
    assert len(bed.refused) == 1
    a.send(pub(b"s.x", b"2"))
    assert b.take() == b""
    bed.change_alone(account("A", stream("t.>")), account("B", takes("A", "t.>", "p.s.>")))
    a.send(pub(b"t.x", b"3"))
    assert b.take() == msg(b"p.s.x", b"1", b"3")
    bed.change_alone(gone=("A",))
    assert len(bed.refused) == 1
    bed.change_alone(gone=("B",))
    assert bed.refused == []
    assert bed["C"].router.mappings is untouched
