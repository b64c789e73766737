"""What clients of a server without JetStream publish for streams, on both sides of the link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.net.route.jetstream_gateway import Gate, GatewayServer, GatewayStream
from tests.unit.net.bed import CONNECT, Bed, Node, Stream

API = [b"$JS.ACK.>", b"$JS.API.>", b"$JS.FC.>"]


class Links:
    """Links to other servers: what is noted is kept, and a test says what comes."""

    def __init__(self, *up: str) -> None:
        self.up = list(up)
        self.noted: list[tuple[str, str, list[Any]]] = []
        self.takes: dict[str, Callable[[str, str, list[Any]], None]] = {}
        self.downs: list[Callable[[str], None]] = []

    def on_note_prefix(self, prefix: str, take: Callable[[str, str, list[Any]], None]) -> None:
        self.takes[prefix] = take

    def on_up(self, on_change: Callable[[str], None]) -> None: ...

    def on_down(self, on_change: Callable[[str], None]) -> None:
        self.downs.append(on_change)

    def nodes(self) -> list[str]:
        return self.up

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.noted.append((node_id, kind, args))

    def comes(self, sender: str, kind: str, args: list[Any]) -> None:
        prefix = max((one for one in self.takes if kind.startswith(one)), key=len)
        self.takes[prefix](sender, kind, args)

    def sent(self) -> list[tuple[str, Any]]:
        """Whom messages went to, and what they were: (subject, payload) of each."""
        noted, self.noted = self.noted, []
        return [
            (node_id, [(one[0], one[3]) for one in args[2]])
            for node_id, kind, args in noted
            if kind == "gate.msgs"
        ]


def gated(*told: str) -> tuple[Bed, Links]:
    """A server without JetStream; those `told` have said what streams capture."""
    bed, links = Bed(), Links("b", "c")
    gate = Gate(links, lambda account: None)  # type: ignore[arg-type]
    gate.take_answers(links)  # type: ignore[arg-type]
    table, publish = bed.subscriptions.table, bed.router.publish
    gate.add("$G", GatewayStream("$G", table, publish, links, "a"))  # type: ignore[arg-type]
    assert [(node_id, kind) for node_id, kind, _ in links.noted] == [
        ("b", "gate.want"), ("c", "gate.want"),
    ]  # fmt: skip
    for node_id in told:
        links.comes(node_id, "gate.subjects", ["$G", True, [*API, b"s.>"], []])
    return bed, links


def test_messages_for_streams_go_to_one_server_in_order() -> None:
    bed, links = gated("c", "b")
    client = bed.peer(CONNECT)
    client.send(b"PUB s.1 1\r\nx\r\nPUB plain 1\r\ny\r\nPUB $JS.ACK.S.C.1.2.3.4.5 0\r\n\r\n")
    ack = (b"$JS.ACK.S.C.1.2.3.4.5", b"")
    assert links.sent() == [("b", [(b"s.1", b"x")]), ("b", [ack])]
    links.downs[0]("b")
    client.send(b"PUB s.2 1\r\nz\r\n")
    assert links.sent() == [("c", [(b"s.2", b"z")])]


def test_a_subject_that_only_one_server_knows_of_yet_goes_there() -> None:
    """The one that answered its creation has told of it before."""
    bed, links = gated("b", "c")
    links.comes("c", "gate.subjects", ["$G", False, [b"new"], []])
    client = bed.peer(CONNECT)
    client.send(b"PUB new 1\r\nx\r\nPUB s.1 1\r\ny\r\n")
    assert links.sent() == [("c", [(b"new", b"x")]), ("b", [(b"s.1", b"y")])]
    links.comes("c", "gate.subjects", ["$G", False, [], [b"new"]])
    sent = client.send(b"SUB in 1\r\nPUB new in 1\r\nx\r\n")
    assert b"NATS/1.0 503" in sent and links.sent() == []


def test_requests_get_no_responders_without_a_jetstream_server() -> None:
    bed, links = gated()
    sent = bed.peer(CONNECT).send(b"SUB in 1\r\nPUB $JS.API.INFO in 0\r\n\r\n")
    assert b"NATS/1.0 503" in sent and links.sent() == []


def test_a_message_names_its_client_and_whether_that_may_administer() -> None:
    bed, links = gated("b")
    client = bed.peer(CONNECT)
    links.noted.clear()
    client.send(b"PUB $JS.API.META.LEADER.STEPDOWN in 0\r\n\r\nPUB s.1 0\r\n\r\n")
    ((_, _, (_account, facts, messages)),) = links.noted
    assert facts[:2] == ["a", client.conn.cid]
    # Without users everybody may; of a publish it is not asked.
    assert [message[4] for message in messages] == [True, False]


def test_gateway_messages_reach_streams_acks_and_requests_alone() -> None:
    stream = Stream("S", ["s.>"])
    captured = ["s.>"]
    bed, links = Bed(node=Node(stream)), Links()
    soon: list[Callable[[], None]] = []
    gate = Gate(links, lambda account: None)  # type: ignore[arg-type]
    router = bed.router
    server = GatewayServer("$G", router, lambda: captured, links, soon.append, "hub")  # type: ignore[arg-type]
    gate.add("$G", server)
    asked: list[tuple[bytes, Any]] = []
    bed.subscriptions.subscribe_internal(
        b"$JS.API.>",
        lambda subject, reply, headers, payload, client: asked.append((subject, client)),
    )
    listener = bed.peer(CONNECT)
    listener.send(b"SUB s.> 1\r\n")
    links.comes("a", "gate.want", ["$G"])
    own = sorted([*API, b"$JS.hub.API.>", b"s.>"])
    assert links.noted == [("a", "gate.subjects", ["$G", True, own, []])]
    client = ["a", 7, "10.0.0.1", 1, 2, "u", "n", "py", "1"]
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    messages = [
        [b"s.1", b"in.1", b"", b"x", False],
        [b"s.2", b"in.2", b"", b"y", False],
        [ack, b"", b"", b"+ACK", False],
        [b"$JS.API.SERVER.REMOVE", b"in", b"", b"", True],
    ]
    links.comes("a", "gate.msgs", ["$G", client, messages])
    ((msgs, replies, _sink),) = stream.published
    assert msgs == [(b"s.1", b"", b"x"), (b"s.2", b"", b"y")] and replies == [b"in.1", b"in.2"]
    assert stream.acked == [(ack, b"", b"+ACK")]
    ((subject, facts),) = asked
    assert subject == b"$JS.API.SERVER.REMOVE"
    assert (facts.server, facts.cid, facts.may_administer(subject)) == ("a", 7, True)
    assert listener.take() == b""  # it was sent that by the client's server
    captured[:] = ["t"]
    server.streams_changed()
    server.streams_changed()
    (tell,) = soon
    tell()
    assert links.noted[-1] == ("a", "gate.subjects", ["$G", False, [b"t"], [b"s.>"]])
