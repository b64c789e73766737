"""Imports in a cluster: each account's subject space spans the nodes, and each node joins them."""

from __future__ import annotations

import random

from streamd.config.account_options import AccountOptions
from streamd.net.accounts.account_links import AccountLinks
from streamd.net.accounts.request_info import ServerFacts
from streamd.net.pubsub.message_router import MessageRouter
from tests.unit.net.account_bed import account, asks, service, stream, takes
from tests.unit.net.bed import Clock, Node, Peer, Stream
from tests.unit.net.mesh import Mesh
from tests.unit.net.test_message_router import msg, pub
from tests.unit.net.test_service_imports import request_of


class _Account:
    def __init__(self, options: AccountOptions, router: MessageRouter) -> None:
        self.name = options.name
        self.options = options
        self.router = router


class Cluster:
    """A mesh for each account; at each node the accounts are linked."""

    def __init__(
        self, *options: AccountOptions, nodes: dict[str, dict[str, Node]] | None = None
    ) -> None:
        self.meshes = {each.name: Mesh(3, (nodes or {}).get(each.name)) for each in options}
        self.clock = Clock()
        for node in ("a", "b", "c"):
            links = AccountLinks(
                "$SYS",
                server=ServerFacts(node),
                monotonic_ns=lambda: int(self.clock.now * 1e9),
                wall_ns=lambda: int(self.clock.now * 1e9),
                call_later=self.clock.call_later,
                random_below=random.Random(1).randrange,
                has_system_services=False,
            )
            refused = links.apply(
                {
                    each.name: _Account(each, self.meshes[each.name].beds[node].router)
                    for each in options
                }
            )
            assert not refused
        self.settle()

    def client(self, name: str, node: str, *subjects: bytes) -> Peer:
        peer = self.meshes[name].peer(node)
        for at, subject in enumerate(subjects):
            peer.send(b"SUB %b %d\r\n" % (subject, at + 1))
        self.settle()
        return peer

    def settle(self) -> None:
        for _ in range(3):  # what arrives in one account may be sent on in another
            for mesh in self.meshes.values():
                mesh.settle()


def test_messages_reach_importers_at_all_nodes_once() -> None:
    cluster = Cluster(account("A", stream("s.>")), account("B", takes("A", "s.>", "p.s.>")))
    importers = [cluster.client("B", node, b"p.>", b"p.s.x") for node in "abc"]
    publisher = cluster.client("A", "b")
    publisher.send(pub(b"s.x", b"x", b"back") + pub(b"s.y") * 5)
    cluster.settle()
    wanted = [msg(b"p.s.x", sid, b"x", b"back") for sid in (b"1", b"2")]
    for peer in importers:
        got = peer.take()
        assert all(got.count(each) == 1 for each in wanted)
        assert got.count(msg(b"p.s.y", b"1")) == 5 and len(got) == len(
            b"".join(wanted) + msg(b"p.s.y", b"1") * 5
        )


def test_a_queue_group_is_one_across_accounts_and_nodes() -> None:
    cluster = Cluster(account("A", stream("s.>")), account("B", takes("A", "s.>")))
    members = [cluster.client("A", "a"), cluster.client("B", "b"), cluster.client("B", "c")]
    for peer in members:
        peer.send(b"SUB s.x g 1\r\n")
    cluster.settle()
    cluster.client("A", "c").send(pub(b"s.x", b"x", b"back") * 50)
    cluster.settle()
    assert sum(peer.take().count(b"MSG s.x 1 ") for peer in members) == 50


def test_a_service_at_another_node_answers() -> None:
    cluster = Cluster(
        account("A", service("q", response="stream")), account("B", asks("A", "q", "lq"))
    )
    responder = cluster.client("A", "b", b"q")
    requester = cluster.client("B", "a", b"in.*")
    elsewhere = cluster.client("B", "c", b"in.*")
    assert requester.send(pub(b"lq", b"hello", b"in.1")) == b""
    cluster.settle()
    subject, _, reply, info, payload = request_of(responder)
    assert (subject, info["acc"], payload) == (b"q", "B", b"hello")
    responder.send(pub(reply, b"answer") * 10 + pub(reply, b"", b""))
    cluster.settle()
    wanted = msg(b"in.1", b"1", b"answer") * 10 + msg(b"in.1", b"1", b"")
    assert requester.take() == wanted
    # Both listen to the inbox, as in one account.
    assert elsewhere.take() == wanted
    responder.send(pub(reply, b"late"))
    cluster.settle()
    assert requester.take() == b""


def test_no_responder_is_told_though_another_account_has_one() -> None:
    cluster = Cluster(account("A", service("q")), account("B", asks("A", "q")), account("C"))
    cluster.client("C", "b", b"q")
    requester = cluster.client("B", "a", b"in.*")
    assert b"503" in requester.send(pub(b"q", b"", b"in.1"))


def test_a_request_is_taken_at_one_node_alone() -> None:
    cluster = Cluster(account("A", service("q")), account("B", asks("A", "q")))
    responders = [cluster.client("A", node, b"q") for node in "abc"]
    cluster.client("B", "a", b"in.*").send(pub(b"q", b"", b"in.1"))
    cluster.settle()
    replies = {request_of(each)[2] for each in responders}
    assert len(replies) == 1  # each responder got the request once, under one reply subject


def test_a_request_is_no_message_of_an_imported_stream_at_another_node() -> None:
    cluster = Cluster(
        account("A", service("q.x"), stream("q.>")),
        account("B", asks("A", "q.x", "lq"), takes("A", "q.>")),
    )
    importer = cluster.client("B", "b", b"q.>")
    responder = cluster.client("A", "b", b"q.x")
    cluster.client("B", "a", b"in.*").send(pub(b"lq", b"", b"in.1"))
    cluster.settle()
    assert importer.take() == b"" and request_of(responder)[0] == b"q.x"


def test_a_stream_of_the_importer_captures_once() -> None:
    stored = {node: Stream("S", ["s.>"]) for node in "abc"}
    nodes = {"B": {node: Node(stored[node]) for node in "abc"}}
    cluster = Cluster(account("A", stream("s.>")), account("B", takes("A", "s.>")), nodes=nodes)
    cluster.client("A", "b").send(pub(b"s.x"))
    cluster.settle()
    assert [len(stored[node].published) for node in "abc"] == [0, 1, 0]


def test_pulled_messages_come_back_to_the_requesters_node() -> None:
    cluster = Cluster(account("A", service("q", response="stream")), account("B", asks("A", "q")))
    responder = cluster.client("A", "b", b"q")
    requester = cluster.client("B", "a", b"in.*")
    requester.send(pub(b"q", b"", b"in.1"))
    cluster.settle()
    reply = request_of(responder)[2]
    sink = cluster.meshes["A"].beds["b"].router.sink(reply)  # of a consumer whose leader is there
    assert sink is not None
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    sink.deliver([(b"x", ack, b"", b"payload")])
    sink.deliver_run(b"$JS.ACK.S.C.1.%d.%d.%d.%d", [b"x"], [b"p"], ([2], [3], [4], [5]))
    cluster.settle()
    assert requester.take() == msg(b"x", b"1", b"payload", ack) + msg(b"x", b"1", b"p", ack)
