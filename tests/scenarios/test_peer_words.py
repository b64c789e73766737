"""What a peer says that makes no sense: refused at the door, and the cluster serves as before."""

from __future__ import annotations

from typing import Any

from streamd.machine import commands
from streamd.protocol import peer_schemas
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.types import META_UID, NodeId
from tests.scenarios.driver import Cluster

_CLIENT = ["n2", 7, "127.0.0.1", 1, 1, "", "", "python3", "2.0"]
_START = ["log", 3, "which", ["before"], [0, [[3, "which"]]]]
_HELLO = {
    "cluster_id": "", "incarnation": "i", "is_virgin": True, "voters": ["n1"],
    "facts": {"tags": ["t"], "storage_max": 1}, "removal": 0, "removals": {"n9": 3},
    "start": _START, "seen": {"n8": _START},
}  # fmt: skip

# One of each, as a peer may say it of a stream that is not here.
NOTES: dict[str, list[Any]] = {
    "leaders": [[999, 1, False]],
    "digests": [[999, 1, 1]],
    "facts": [{"tags": ["t"], "storage_max": 1}],
    "stored": [[999, 1]],
    "hello": [_HELLO],
    "meta": [[commands.MOVED, 1, 999, ["n1"]]],
    "publish": [999, 1, [[b"s.a", b"", b"x"]], [b"reply"]],
    "pubacks": [999, [0], [["e", 500, 1, "no"]]],
    "given_back": [999, [0], [[b"s.a", b"", b"x"]]],
    "pull": [999, "C", b"reply", b"", b"1"],
    "acks": [999, [b"$JS.ACK.S.C.1.1.1.1.0"], [b"reply"], [b"+ACK"]],
    "flow": [999, "C", b"$JS.FC.S.C.x", b""],
    "api.request": [b"$JS.API.STREAM.INFO.none", b"reply", b"", b"", _CLIENT, 1, "$G"],
    "api.answer": ["$G", b"reply", b"", b"{}", 0],
    "net.conns": [["$G", 1, 1]],
    "net.sub": ["$G", True, [[b"a.>", b"q", 1]]],
    "net.msgs": ["$G", [[b"a", b"x", b"", b"", [b"q"], b"L"], [b"a", [b"x", b"y"]], [b"a", b"x"]]],
    "net.trace": [
        "$G",
        ["A", b"to", False, "1", b"a", b"reply", b"NATS/1.0\r\n\r\n", b"x", [b"q"], "L"],
    ],
    "net.deliver": ["$G", b"to", b"", [[b"a", b"", b"", b"x"]], b"L"],
    "net.run": ["$G", b"to", b"ack.%d.%d.%d.%d", [b"a"], [b"x"], [[1], [1], [1], [1]]],
    "net.full": ["$G", b"to"],
    "net.room": ["$G", [b"to"]],
    "gate.want": ["$G"],
    "gate.subjects": ["$G", True, [b"a.>"], [b"b"]],
    "gate.msgs": ["$G", _CLIENT, [[b"s.a", b"reply", b"", b"x", True]]],
    "net.peers": [{"n2": "127.0.0.1:1"}],
    "net.urls": ["127.0.0.1:4222"],
    "net.ws_urls": ["127.0.0.1:8080"],
}
CALLS: dict[str, list[Any]] = {
    "bootstrap": ["id", ["n8", "n9"]],
    "configured": [999, 1],
    "has_left": [999],
    "recall": [],
    "stand_in": [999, ["n1"], 5],
    "terms": [999],
    "held": [999, [[1, 1, 1]]],
    "manifest": [999, 1, [1]],
    "block": [999, 1, 1, 0, 10],
    "api.request": NOTES["api.request"],
    "api.stream_infos": [[999], True],
    "api.offenders": [999, {"max_ack_pending": 1}],
    "api.usage": ["$G"],
    "judge": [999, b"s.a", b"", b"x"],
    "api.restore": ["$G", 999, b"reply", "n1", _CLIENT],
    "api.restored": [999],
    "api.restore_failed": [999],
    "dashboard.node": [],
    "dashboard.rows": [999],
    "dashboard.consumers": [999],
    "dashboard.page": ["messages", "$G", "S", {"seq": "1"}],
    "dashboard.verify": [],
}
WRONG = (None, -1, 1.5, "x", b"x", [], [None], [["x"]], {}, {"tags": 3}, {3: 3}, True, 2**63)
# Values inside of what is not looked into: the command of a proposal, for who would propose it.
OPEN = ("meta",)


def wrong(value: Any) -> list[Any]:
    """`value` with each part of it, at any depth, replaced by what it is not, or left out."""
    found: list[Any] = []
    if type(value) is list:
        for at, part in enumerate(value):
            found.append(value[:at] + value[at + 1 :])
            found += [[*value[:at], other, *value[at + 1 :]] for other in wrong(part)]
        found.append([*value, None])
    elif type(value) is dict:
        for key, part in value.items():
            found += [value | {key: other} for other in wrong(part)]
    return found + [other for other in WRONG if type(other) is not type(value)]


class Door:
    """Notes and calls of a link without the link itself (net/route/link.py)."""

    def __init__(
        self, cluster: Cluster, name: NodeId, sender: NodeId, *, is_raising: bool = True
    ) -> None:
        """`is_raising`: as no link is, so that a test sees what a handler raises."""
        self._is_raising = is_raising
        self._handler = cluster.node(name)
        self._sender = sender
        self.refused = self.passed = 0

    def note(self, kind: str, args: Any) -> None:
        try:
            peer_schemas.check_note(kind, args)
            if not kind.startswith(("net.", "gate.")):  # core NATS' own, see test_remote
                self._handler.on_note(self._sender, kind, args)
            self.passed += 1
        except MalformedArgs:
            self.refused += 1
        except Exception:
            if self._is_raising:
                raise

    def call(self, method: str, args: Any) -> None:
        try:
            peer_schemas.check_call(method, args)
            self._handler.on_call(self._sender, method, args, lambda outcome: None)
            self.passed += 1
        except MalformedArgs:
            self.refused += 1
        except Exception:
            if self._is_raising:
                raise


def test_every_note_and_call_has_a_shape_and_a_sample() -> None:
    """A new one must be here, or it is not tried."""
    assert peer_schemas.kinds() == (tuple(NOTES), tuple(CALLS))
    for kind, args in NOTES.items():
        peer_schemas.check_note(kind, args)
    for method, args in CALLS.items():
        peer_schemas.check_call(method, args)


def test_a_malformed_message_of_a_peer_does_no_harm(cluster: Cluster) -> None:
    """Each note and call with each part replaced by something of another type, left out or one too
    many, at the leader of everything and at a follower. Nothing but MalformedArgs is raised, no
    group stops, and what is asked of the cluster afterwards is done."""
    cluster.create()
    cluster.consumer()
    cluster.publish(5)
    cluster.until_whole()
    leader = cluster.leader("S")
    follower = next(name for name in cluster.names if name != leader)
    failed = cluster.events("stopped")
    for name, sender in ((leader, follower), (follower, leader)):
        door = Door(cluster, name, sender)
        for kind, args in NOTES.items():
            for each in wrong(args):
                if type(each) is list:  # else the frame is malformed, see test_peer
                    door.note(kind, each)
        for method, args in CALLS.items():
            for each in wrong(args):
                if type(each) is list:
                    door.call(method, each)
        assert door.refused > 1000 and door.refused > 3 * door.passed
    cluster.run_ms(2000)
    assert cluster.events("stopped") == failed
    cluster.publish(5)
    assert cluster.consume(10) == list(range(1, 11))
    cluster.until_whole()
    cluster.create("T")
    cluster.publish(1, "T")


def test_a_senseless_message_about_an_existing_group_does_no_harm(cluster: Cluster) -> None:
    """Of the right types, of a stream and a consumer that exist: subjects that are none, acks of
    what was never sent, parts of chunks that are not there, blocks and snapshots that never were.
    What a handler raises ends that message; no group stops, and the next message is stored."""
    uid = cluster.create()
    cluster.consumer()
    cluster.publish(3)
    cluster.until_whole()
    leader = cluster.leader("S")
    sender = cluster.followers("S")[0]
    failed = cluster.events("stopped")
    ack = b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.0"
    notes: list[tuple[str, list[Any]]] = [
        ("publish", [uid, 0, [], None]),
        (
            "publish",
            [uid, 7, [[b"", b"", b""], [b"s..a", b"", b"x"], [b"s.>", b"junk", b"x"]], None],
        ),
        ("publish", [uid, 8, [[b"s.a", b"NATS/1.0\r\nNats-Msg-Id\r\n", b"x"]], [b"not a reply"]]),
        ("publish", [uid, 9, [[b"s.a", b"\xff" * 9, b""], [b"\x00 \r\n", b"", b"x"]], None]),
        ("acks", [uid, [b"no ack"], None, [b"+ACK"]]),
        ("acks", [uid, [ack % (99, 99), b"no ack"], [b"r", b""], [b"+ACK", b"-NAK {"]]),
        ("acks", [uid, [ack % (2**63, 2**63)], None, [b'-NAK {"delay": 1e99}']]),
        ("acks", [uid, [b"$JS.ACK.S.C.x.y.z.0.0"], [b"r"], [b"+WPI"]]),
        ("acks", [uid, [b"$JS.ACK.T.D.1.1.1.1.0"], [b"r"], [b"+NXT x"]]),
        ("pull", [uid, "none", b"r", b"", b"1"]),
        ("pull", [uid, "C", b"", b"", b'{"batch": -1}']),
        ("pull", [uid, "C", b"\xff", b"\xff", b"\xff"]),
        ("pull", [uid, "\x00", b"r", b"", b""]),
        ("flow", [uid, "C", b"$JS.FC.S.C.x", b"junk"]),
        ("pubacks", [2**40, [99], ["run", 5, 1]]),
        ("pubacks", [1, None, []]),
        ("given_back", [1, [99], []]),
        ("digests", [[uid, 2**40, 1], [uid, 0, 0], [0, 2**40, 7]]),
        ("leaders", [[uid, 0, False], [2**40, 1, True]]),
        ("api.request", [b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"\xff", b"\xff", [], 1, "$G"]),
        ("api.request", [b"no api", b"r", b"", b"", [], 2**40, ""]),
        ("api.answer", ["none", b"", b"", b"", 2**40]),
    ]
    calls: list[tuple[str, list[Any]]] = [
        ("block", [uid, 1, 99, 0, 10]), ("block", [uid, 1, -9, 0, 10]),
        ("block", [uid, 2**40, 1, -1, 2**40]), ("block", [0, 0, 0, 0, 1]),
        ("manifest", [uid, 0, [-9, 2**40]]), ("manifest", [uid, 2**40, []]),
        ("configured", [uid, 2**40]), ("stand_in", [uid, ["n9"]]), ("stand_in", [uid, [], 2**40]),
        ("has_left", [uid]), ("bootstrap", ["other", [leader]]),
        ("api.offenders", [uid, {"max_ack_pending": 1}]),
        ("api.stream_infos", [[uid, uid, 2**40], False]),
    ]  # fmt: skip
    for name, from_ in ((leader, sender), (sender, leader)):
        door = Door(cluster, name, from_, is_raising=False)
        for kind, args in notes:
            door.note(kind, args)
            cluster.run_ms(20)
        for method, args in calls:
            door.call(method, args)
            cluster.run_ms(20)
        assert door.refused == 0
    cluster.run_ms(2000)
    assert cluster.events("stopped") == failed
    assert all(not cluster.group(name, "S").failure for name in cluster.names)  # type: ignore[union-attr]
    before = cluster.info()["state"]["last_seq"]
    cluster.publish(5)
    assert cluster.info()["state"]["last_seq"] == before + 5


def test_a_peer_proposes_nothing_that_is_not_its_own_to_say(cluster: Cluster) -> None:
    """Not to the meta group: a command nobody knows, one of another kind, or a report on a stream
    that another node leads."""
    uid = cluster.create()
    cluster.until_whole()
    meta = cluster.leader_name(META_UID)
    sender = next(n for n in cluster.names if n not in (meta, cluster.leader("S")))
    node = cluster.node(meta)
    before = node.meta.applied
    door = Door(cluster, meta, sender)
    for command in (
        [999], [], ["x"], [commands.DELETE_STREAM, 1, "S", 0], [commands.REMOVE_SERVER, 1, "n1"],
        [commands.MOVED, 1, uid], [commands.MOVED, 1, uid, "n1"], [commands.MOVED, 1, uid, [1]],
        [commands.MOVED, 1, uid, ["n1"]], [commands.MOVED, 1, 999, ["n1"]],
        [commands.ADMIT_SERVER, 1, "n9"],
    ):  # fmt: skip
        door.note("meta", [command])
    assert (door.refused, door.passed) == (8, 3)
    cluster.run_ms(1000)
    assert node.meta.applied == before
    assert sorted(node.meta.streams_by_key) == [("$G", "S")]
