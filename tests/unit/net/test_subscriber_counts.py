"""Subscribers are counted over the cluster: other servers with interest are asked."""

from __future__ import annotations

from streamd.config.account_options import AccountOptions
from streamd.limits import SUBSCRIBERS_ASKED_MAX, SUBSCRIBERS_WAIT_S
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.system.server_description import ServerDescription
from streamd.net.system.subscriber_counts import SubscriberCounts
from tests.unit.net.bed import CONNECT, Bed, PlainAccount, PlainAccounts
from tests.unit.net.mesh import Mesh

ASK = b"PUB $SYS.DEBUG.SUBSCRIBERS in %d\r\n%b\r\n"


def serve(bed: Bed, name: str) -> None:
    """Have a server count: its clients are in the system account themselves."""
    account = PlainAccount("SYS", AccountOptions("SYS"), bed.router, 1)
    SubscriberCounts(
        bed.router,
        PlainAccounts(account, account),
        ServerDescription(bed.options, server_id=name, server_name=name, has_jetstream=False),
        Slicer(bed.clock.call_soon),
        has_clients=lambda _: bool(bed.registry.open),
        call_later=bed.clock.call_later,
    )


def mesh_of(count: int) -> Mesh:
    mesh = Mesh(count)
    for name, bed in mesh.beds.items():
        serve(bed, name)
    mesh.settle()
    return mesh


def asked(mesh: Mesh, body: bytes, *, pass_s: float = 0) -> bytes:
    """Return what a client of `a` is answered."""
    client = mesh.beds["a"].peer(CONNECT)
    sent = client.send(b"SUB in 9\r\n" + ASK % (len(body), body))
    for seconds in (0, 0, 0, pass_s):  # the own count, the question, the answers of the others
        mesh.settle()
        for bed in mesh.beds.values():
            bed.clock.advance(seconds)
    sent += client.take()
    client.leave()
    return sent.split(b"\r\n")[1] if sent else b""


def test_subscribers_of_all_servers_are_counted() -> None:
    mesh = mesh_of(3)
    for name, subscriptions in (
        ("a", b"SUB foo.* 1\r\n"),
        ("b", b"SUB foo.* 1\r\nSUB foo.* 2\r\nSUB q g 3\r\n"),
        ("c", b"SUB foo.x 1\r\nSUB q g 2\r\nSUB q h 3\r\n"),
    ):
        mesh.beds[name].peer(CONNECT).send(subscriptions)
    mesh.settle()
    assert asked(mesh, b"foo.x") == b"4"
    assert asked(mesh, b"foo.>") == b"4"
    assert (asked(mesh, b"q g"), asked(mesh, b"q h"), asked(mesh, b"q")) == (b"2", b"1", b"3")
    assert asked(mesh, b"nothing") == b"0"


def test_a_server_that_does_not_answer_is_waited_for_half_a_second() -> None:
    mesh = mesh_of(2)
    client = mesh.beds["b"].peer(CONNECT)
    client.send(b"SUB foo.x 1\r\n")
    mesh.settle()
    mesh.beds["b"].registry.open.clear()  # it has no clients, as far as it knows
    assert asked(mesh, b"foo.x") == b""
    assert asked(mesh, b"foo.x", pass_s=SUBSCRIBERS_WAIT_S) == b"0"


def test_beyond_so_many_counts_at_a_time_nothing_is_said() -> None:
    mesh = mesh_of(1)
    client = mesh.beds["a"].peer(CONNECT)
    client.send(b"SUB in 9\r\n" + ASK % (3, b"foo") * (SUBSCRIBERS_ASKED_MAX + 5))
    mesh.beds["a"].clock.advance(0)
    assert client.take().count(b"MSG in 9") == SUBSCRIBERS_ASKED_MAX
