"""The system account answers and tells what a real nats-server's does.

Answers are compared by what operators' tools read: whether and under which headers they come, the
envelope, the keys of documents, and errors word for word. Values of each server's own are not.
"""

from __future__ import annotations

import base64
import gzip
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import pytest

from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.parity.test_pages import ABSENT, OURS_ALONE, is_below, paths
from tests.wire import CONNECT, Frame, Wire

CONFIG = """
server_name: par
server_tags: ["az:1", "Big"]
server_metadata { rack: r1 }
accounts {
  A {
    users: [{user: a, password: p}], jetstream: enabled
    exports: [{service: "svc.>", accounts: [B], response_type: stream}, {stream: "ev.>"}]
    mappings: {m1: m2, "w.*": [{destination: "x.$1", weight: 100}]}
  }
  B {
    users: [{user: b, password: p}]
    imports: [{stream: {account: A, subject: "ev.>"}, prefix: pp}]
  }
  C { users: [{user: c, password: p}] }
  SYS { users: [{user: s, password: p}] }
}
system_account: SYS
"""
PING = "$SYS.REQ.SERVER.PING"
OWN = "$SYS.REQ.SERVER.{id}"
ACCOUNT = "$SYS.REQ.ACCOUNT"


class Bed(NamedTuple):
    """A server with clients of the system account and of accounts A and B."""

    server: ServerProcess
    clients: dict[str, Wire]
    server_id: str

    def ask(
        self, user: str, subject: str, body: Any = b"", accept: str | None = None
    ) -> list[Frame]:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Accept-Encoding": accept} if accept is not None else None
        wire = self.clients[user]
        name = subject.replace("{id}", self.server_id)
        frames = wire.ask(name, payload, headers=headers, within_s=0.2)
        assert len(frames) <= 1
        return frames


def start(server: ServerProcess) -> None:
    """Start a server that separates accounts."""
    server.launch()
    server.wait()


def login(server: ServerProcess, user: str, **said: Any) -> Wire:
    return Wire(server.port, CONNECT | {"user": user, "pass": "p"} | said)


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bed]]:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    found: dict[str, Bed] = {}
    directory = tmp_path_factory.mktemp("system")
    servers = {"theirs": peer_binary(), "ours": ours_binary()}
    processes = []
    try:
        for name, binary in servers.items():
            server = ServerProcess(binary, directory=directory / name, extra=CONFIG)
            processes.append(server)
            start(server)
            clients = {user: login(server, user, name=f"app-{user}") for user in "sab"}
            a = clients["a"]
            a.subscribe("foo.*")
            a.subscribe("q", "grp")
            a.fence()
            assert "error" not in a.api("STREAM.CREATE.S", {"name": "S", "subjects": ["st.>"]})
            config = {"durable_name": "d", "ack_policy": "explicit"}
            a.api("CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": config})
            identity = clients["s"].ask(f"{PING}.IDZ")[0].json()
            found[name] = Bed(server, clients, identity["id"])
        yield found
    finally:
        for bed in found.values():
            for wire in bed.clients.values():
                wire.close()
        for server in processes:
            server.kill()


def unpacked(frame: Frame) -> Any:
    encoding, body = frame.pairs.get("Content-Encoding"), frame.payload
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "snappy":
        body = bytes(cramjam.snappy.decompress(body))
    return json.loads(body)


def seen(frames: list[Frame]) -> Any:
    """What a tool reads of an answer: the keys of its data, and its error as it is."""
    if not frames:
        return "silence"
    (frame,) = frames
    if frame.op != "MSG" or frame.status:
        return (frame.op, frame.status)
    document = unpacked(frame)
    if not isinstance(document, dict):
        return document
    data = document.get("data", {})
    return {
        "encoding": frame.pairs.get("Content-Encoding"),
        "envelope": list(document),
        "server": list(document.get("server", {})),
        "error": document.get("error"),
        "data": data if not isinstance(data, dict) else sorted(set(paths(data))),
        "statsz": sorted(set(paths(document.get("statsz", {})))),
    }


# Pages of the monitoring port, whose differences are named there.
PAGES = {"VARZ": "/varz", "JSZ": "/jsz", "EXPVARZ": "/debug/vars"}
KNOWN = {
    "STATSZ": {"jetstream.limits.default_max_consumers"},
    # One inbox a group, by its own name, where nats-server has one for each kind of work.
    "IPQUEUESZ": {"System recvQ", "System recvQ.pending", "System recvQ.in_progress"},
}
OURS = {"STATSZ": {"jetstream.config.sync_always"}, "EXPVARZ": {"memstats.*"}}


def without_known(name: str, found: Any, *, is_ours: bool) -> Any:
    if not isinstance(found, dict):
        return found
    pages, more = (OURS_ALONE, OURS) if is_ours else (ABSENT, KNOWN)
    known = pages.get(PAGES.get(name, ""), set()) | more.get(name, set())
    for key in ("data", "statsz"):
        if isinstance(found[key], list):
            # There once a PING was answered, as may be or not.
            known_here = known | {"connections[].rtt"}
            found[key] = [path for path in found[key] if not is_below(path, known_here)]
    return found


Case = tuple[str, str, Any, str | None]
"""(user, subject, body, Accept-Encoding)"""

NAMES = (
    "IDZ", "STATSZ", "VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ",
    "HEALTHZ", "PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ",
)  # fmt: skip
CASES: list[Case] = [
    *[("s", f"{start}.{name}", b"", None) for start in (PING, OWN) for name in NAMES],
    ("s", PING, b"", None),
    # Whom a request is for.
    *[
        ("s", f"{PING}.{name}", wanted, None)
        for name in ("VARZ", "STATSZ", "IDZ")
        for wanted in (
            {"server_name": "pa"}, {"server_name": "pa", "exact_match": True},
            {"server_name": "par", "exact_match": True}, {"server_name": "other"},
            {"host": "127"}, {"host": "127", "exact_match": True}, {"cluster": "x"},
            {"tags": ["AZ:1", "big"]}, {"tags": ["az:1", "no"]}, {"tags": ["az"]}, {"domain": "x"},
        )
    ],
    # Options.
    *[
        ("s", f"{PING}.{name}", body, None)
        for name, body in (
            ("VARZ", b"{bad"), ("VARZ", b"[]"), ("VARZ", b"3"), ("VARZ", b"null"),
            ("VARZ", b'"x"'), ("VARZ", b" "), ("VARZ", b"{} x"), ("VARZ", {"server_name": 3}),
            ("VARZ", {"tags": "x"}),
            ("VARZ", {"exact_match": "x"}), ("VARZ", {"unknown": 1}), ("STATSZ", b"{bad"),
            ("IDZ", b"{bad"), ("EXPVARZ", b"{bad"), ("ROUTEZ", {"subscriptions": True}),
            ("CONNZ", {"limit": "x"}), ("CONNZ", {"limit": 1.5}), ("CONNZ", {"state": "x"}),
            ("CONNZ", {"sort": "zz"}), ("CONNZ", {"SORT": "zz"}), ("CONNZ", {"sort": "stop"}),
            ("CONNZ", {"sort": "stop", "state": 2}), ("CONNZ", {"cid": 999}),
            ("CONNZ", {"acc": "A", "auth": True}), ("CONNZ", {"acc": "ZZ"}),
            ("CONNZ", {"user": "a", "auth": True}), ("CONNZ", {"filter_subject": "foo.x"}),
            ("CONNZ", {"filter_subject": "foo.x", "acc": "A"}), ("CONNZ", {"mqtt_client": "x"}),
            ("CONNZ", {"filter_subject": "none.x", "acc": "A"}),
            ("CONNZ", {"subscriptions": True, "acc": "A"}),
            ("CONNZ", {"subscriptions_detail": True, "acc": "A"}),
            ("SUBSZ", {"subscriptions": True, "account": "A"}), ("SUBSZ", {"test": "a..b"}),
            ("SUBSZ", {"subscriptions": True, "account": "ZZ"}), ("SUBSZ", {"account": "A"}),
            ("ACCOUNTZ", {"account": "A"}), ("ACCOUNTZ", {"account": "SYS"}),
            ("ACCOUNTZ", {"account": "$G"}), ("ACCOUNTZ", {"account": "ZZ"}),
            ("JSZ", {"account": "A", "streams": True, "consumer": True, "config": True}),
            ("JSZ", {"account": "ZZ"}), ("JSZ", {"account": "B"}), ("JSZ", {"leader_only": True}),
            ("JSZ", {"accounts": True}), ("HEALTHZ", {"stream": "S"}),
            ("HEALTHZ", {"account": "A", "stream": "nope"}), ("HEALTHZ", {"details": True}),
            (
                "HEALTHZ",
                {"account": "A", "stream": "S", "consumer": "zz", "details": True},
            ),
            ("HEALTHZ", {"account": "ZZ", "stream": "x", "details": True}),
            ("HEALTHZ", {"js-enabled-only": True}), ("PROFILEZ", {"name": "zz"}),
            ("PROFILEZ", {"name": "goroutine", "debug": 1}), ("RAFTZ", {"group": "x"}),
            ("RAFTZ", {"account": "A"}), ("GATEWAYZ", {"name": "x", "accounts": True}),
            ("LEAFZ", {"subscriptions": True, "account": "A"}),
        )
    ],
    # Compression.
    *[
        ("s", f"{PING}.VARZ", b"", accept)
        for accept in ("snappy", "s2", "gzip", "gzip, snappy", "SNAPPY", "br", "identity", "")
    ],
    ("s", f"{PING}.IDZ", b"", "gzip"),
    ("s", f"{PING}.STATSZ", b"", "gzip"),
    ("s", f"{PING}.VARZ", b"{bad", "gzip"),
    ("s", f"{PING}.CONNZ", {"sort": "zz"}, "gzip"),
    ("s", f"{ACCOUNT}.A.CONNZ", b"", "gzip"),
    ("s", f"{ACCOUNT}.A.CONNS", b"", "gzip"),
    ("a", f"{ACCOUNT}.PING.CONNZ", b"", "gzip"),
    # Accounts.
    *[
        ("s", f"{ACCOUNT}.{account}.{name}", b"", None)
        for name in ("SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS", "FOO")
        for account in ("A", "B", "C", "SYS", "$G", "ZZ", "PING")
    ],
    *[
        ("s", f"{ACCOUNT}.{rest}", body, None)
        for rest, body in (
            ("A.CONNZ", {"auth": True, "acc": "B"}), ("A.CONNZ", {"sort": "zz"}),
            ("A.SUBSZ", {"test": "foo.x", "limit": 1}), ("A.SUBSZ", {"test": "foo.*"}),
            ("A.INFO", b"{bad"), ("A.INFO", {"server_name": "other"}), ("A.CONNZ", b"{bad"),
            ("A.STATZ", b"{bad"), ("A.CONNS", b"{bad"), ("A.STATZ", {"accounts": ["B"]}),
            ("PING.STATZ", {"accounts": ["A", "ZZ"]}), ("PING.STATZ", {"accounts": ["ZZ"]}),
            ("PING.STATZ", {"include_unused": True}), ("ZZ.STATZ", {"include_unused": True}),
            ("C.STATZ", {"include_unused": True}), ("PING.CONNZ", {"acc": "A"}),
            ("A.JSZ", {"streams": True, "consumer": True, "config": True}),
            ("NSUBS", {"acc": "A", "subject": "foo.x"}),
            ("NSUBS", {"acc": "A", "subject": "q", "queue": base64.b64encode(b"grp").decode()}),
            ("NSUBS", {"acc": "ZZ", "subject": "x"}), ("NSUBS", b"bad"),
            ("NSUBS", {"acc": "C", "subject": "x"}),
        )
    ],
    *[
        ("s", "$SYS.DEBUG.SUBSCRIBERS", body, None)
        for body in (b"foo.x", b"foo.>", b"", b"q grp", b"a..b", b"  foo.x ")
    ],
    # What other accounts may ask.
    *[
        (user, subject, b"", None)
        for user in "ab"
        for subject in (
            PING, f"{PING}.IDZ", f"{PING}.VARZ", f"{PING}.CONNZ", f"{OWN}.VARZ", f"{OWN}.KICK",
            f"{ACCOUNT}.PING.CONNZ", f"{ACCOUNT}.PING.STATZ", f"{ACCOUNT}.A.CONNZ",
            f"{ACCOUNT}.A.INFO", "$SYS.DEBUG.SUBSCRIBERS", "$SYS.REQ.USER.INFO",
            "$SYS.REQ.USER.A.INFO",
        )
    ],
    ("a", f"{ACCOUNT}.PING.CONNZ", {"acc": "B"}, None),
    ("s", "$SYS.REQ.USER.INFO", b"", None),
    ("s", "$SYS.REQ.USER.A.INFO", b"", None),
    # Changes.
    *[
        ("s", f"{OWN}.{name}", body, None)
        for name, body in (
            ("KICK", b"{bad"), ("KICK", b""), ("KICK", {"cid": 9999}), ("KICK", {"cid": "x"}),
            ("LDM", b"{bad"), ("LDM", {"cid": 9999}), ("RELOAD", b"{bad"), ("RELOAD", b""),
            ("FOO", b""),
        )
    ],
    *[("s", f"{PING}.{name}", b"", None) for name in ("RELOAD", "KICK", "LDM", "FOO", "STATZ")],
]  # fmt: skip


def test_requests_are_answered_alike(beds: dict[str, Bed]) -> None:
    assert len(CASES) > 200
    faults = []
    for user, subject, body, accept in CASES:
        name = subject.rpartition(".")[2]
        name = "STATSZ" if name == "PING" else name
        theirs, ours = (
            without_known(name, seen(beds[side].ask(user, subject, body, accept)), is_ours=is_ours)
            for side, is_ours in (("theirs", False), ("ours", True))
        )
        if theirs != ours:
            faults.append((user, subject, body, accept, difference(theirs, ours)))
    assert not faults, "\n".join(map(str, faults))


def difference(theirs: Any, ours: Any) -> Any:
    if not (isinstance(theirs, dict) and isinstance(ours, dict)):
        return theirs, ours
    found = {}
    for key, value in theirs.items():
        if value != ours[key]:
            found[key] = (value, ours[key])
            if isinstance(value, list) and isinstance(ours[key], list):
                lacking = [one for one in value if one not in ours[key]]
                found[key] = (lacking, [one for one in ours[key] if one not in value])
    return found


JETSTREAM = (
    "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.S", "STREAM.CREATE.X", "CONSUMER.NAMES.S",
    "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.STREAM.MOVE.A.S", "META.PEER.REMOVE",
    "SERVER.STREAM.MOVE", "SERVER.EVACUATE", "META.RESCUE", "SERVER", "META.LEADER", "NONE.SUCH",
    "STREAM.TEMPLATE.NAMES", "ACCOUNT.NONE", "CONSUMER.MSG.NEXT.S.C", "DIRECT.GET.S",
    "STREAM.CREATE", "META.LEADER.STEPDOWN.X",
)  # fmt: skip


def test_jetstream_of_the_system_account_is_answered_alike(beds: dict[str, Bed]) -> None:
    """It has none: requests for its streams say so; a single server has nothing to operate."""

    def told(bed: Bed, request: str) -> list[Any]:
        frames = bed.ask("s", f"$JS.API.{request}")
        return [frame.json() if frame.payload else frame.status for frame in frames]

    for request in JETSTREAM:
        assert told(beds["ours"], request) == told(beds["theirs"], request), request


# --- events ---------------------------------------------------------------------------------------


def told(bed: Bed, act: Callable[[ServerProcess], object]) -> list[Any]:
    """What a watcher in the system account is told while `act` runs: subjects, keys, reasons."""
    with login(bed.server, "s", name="watch") as watch:
        watch.subscribe("$SYS.ACCOUNT.>")
        watch.subscribe("$SYS.SERVER.>")
        watch.fence()
        watch.collect(within_s=0.4, quiet_s=0.1)  # of its own coming
        act(bed.server)
        frames = watch.collect(within_s=0.6, quiet_s=0.25)
    found = []
    for frame in frames:
        subject = frame.subject.replace(bed.server_id, "{id}")
        if frame.op != "MSG" or subject.endswith("STATSZ"):
            continue
        event = frame.json()
        client = event.get("client", {})
        values = [client.get(key) for key in ("acc", "user", "name", "kind", "client_type")]
        counts = [event.get(key) for key in ("reason", "acc", "conns", "total_conns", "sent")]
        counts = counts if "reason" in event else counts[:4]
        found.append(
            (subject, frame.reply, frame.headers, sorted(set(paths(event))), values, counts)
        )
    return sorted(found, key=lambda each: (each[0], str(each[5])))


def comes_and_goes(server: ServerProcess) -> None:
    with login(server, "c", name="x") as wire:
        wire.subscribe("t")
        wire.publish("t", b"hello")
        wire.fence()


def is_refused(server: ServerProcess) -> None:
    with Wire(server.port, CONNECT | {"user": "c", "pass": "no", "name": "x"}, is_ready=False) as w:
        w.collect(within_s=0.2)


def has_no_login(server: ServerProcess) -> None:
    with Wire(server.port, CONNECT, is_ready=False) as wire:
        wire.collect(within_s=0.2)


def says_nothing(server: ServerProcess) -> None:
    Wire(server.port, None).close()


def is_kicked(server: ServerProcess) -> None:
    with login(server, "c") as wire, login(server, "s") as operator:
        server_id, cid = wire.info["server_id"], wire.info["client_id"]
        body = b'{"cid":%5d}' % cid  # of one size: bytes are counted
        operator.ask(f"$SYS.REQ.SERVER.{server_id}.KICK", body)
        frames = wire.collect(within_s=1)
        assert [frame.op for frame in frames] == ["CLOSED"], frames


FLOWS = (comes_and_goes, is_refused, has_no_login, says_nothing, is_kicked)


@pytest.mark.parametrize("act", FLOWS, ids=lambda act: act.__name__)
def test_clients_are_told_of_alike(
    beds: dict[str, Bed], act: Callable[[ServerProcess], None]
) -> None:
    theirs, ours = told(beds["theirs"], act), told(beds["ours"], act)
    assert ours == theirs and ours


def test_a_client_is_sent_away_alike(beds: dict[str, Bed]) -> None:
    for bed in beds.values():
        with login(bed.server, "c") as wire:
            subject = f"$SYS.REQ.SERVER.{bed.server_id}.LDM"
            cid = wire.ask("$SYS.REQ.ACCOUNT.PING.CONNZ")[0].json()["data"]["connections"][0]["cid"]
            wire.info = {}  # INFO is shown from here on
            bed.clients["s"].ask(subject, json.dumps({"cid": cid}).encode())
            infos = [frame for frame in wire.collect(within_s=0.3) if frame.op == "INFO"]
            assert json.loads(infos[-1].text)["ldm"] is True


def ended(binary: str, directory: Path) -> list[str]:
    """Subjects of events of a server that is sent into lame duck mode, and of one that stops."""
    found = []
    for how in (signal.SIGUSR2, signal.SIGTERM):
        server = ServerProcess(binary, directory=directory / how.name, extra=CONFIG)
        start(server)
        try:
            with login(server, "s") as wire:
                server_id = wire.info["server_id"]
                wire.subscribe("$SYS.SERVER.*.LAMEDUCK")
                wire.subscribe("$SYS.SERVER.*.SHUTDOWN")
                wire.fence()
                server.send(how)
                (frame,) = [f for f in wire.collect(within_s=2, count=1) if f.op == "MSG"]
                found.append(frame.subject.replace(server_id, "{id}"))
                assert frame.json()["id"] == server_id
        finally:
            server.kill()
    return found


def test_the_end_of_a_server_is_told_alike(tmp_path: Path) -> None:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    theirs = ended(peer_binary(), tmp_path / "theirs")
    assert ended(ours_binary(), tmp_path / "ours") == theirs
    assert theirs == ["$SYS.SERVER.{id}.LAMEDUCK", "$SYS.SERVER.{id}.SHUTDOWN"]


def test_a_client_hears_its_own_words_alone_below_sys(beds: dict[str, Bed]) -> None:
    """It may subscribe there: what the server tells is for the system account."""

    def heard(bed: Bed) -> list[str]:
        with login(bed.server, "c") as wire, login(bed.server, "b") as other:
            wire.subscribe("$SYS.>")
            wire.fence()
            comes_and_goes(bed.server)
            other.publish("$SYS.x", b"another account's")
            other.fence()
            wire.publish("$SYS.x", b"its own")
            return [frame.subject or frame.text for frame in wire.fence()]

    assert heard(beds["ours"]) == heard(beds["theirs"]) == ["$SYS.x"]


COUNTS = """
accounts {
  SYS { users: [{user: s, password: p}], exports: [{service: "$SYS.DEBUG.SUBSCRIBERS"}] }
  A { users: [{user: a, password: p}]
      imports: [{service: {account: SYS, subject: "$SYS.DEBUG.SUBSCRIBERS"}}] }
  B { users: [{user: b, password: p}] }
}
system_account: SYS
"""


def test_who_imports_the_count_of_subscribers_may_ask_for_it(tmp_path: Path) -> None:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    seen = []
    for binary in (peer_binary(), ours_binary()):
        directory = tmp_path / str(len(seen))
        server = ServerProcess(binary, directory=directory, extra=COUNTS, is_jetstream=False)
        with server:
            start(server)
            found = []
            for user in ("a", "b"):
                with login(server, user) as wire:
                    wire.subscribe("foo.x")
                    wire.fence()
                    frames = wire.ask("$SYS.DEBUG.SUBSCRIBERS", b"foo.x", within_s=3)
                    found.append([frame.status or frame.payload for frame in frames])
            seen.append(found)
    assert seen[0] == seen[1]


def test_requests_and_advisories_of_jetstream_stay_in_their_account(beds: dict[str, Bed]) -> None:
    """Who hears everything in an account hears them there, answers too. nats-server has the system
    account hear all requests as well: docs/accounts.md."""

    def heard(bed: Bed) -> dict[str, list[str]]:
        watchers = {user: login(bed.server, user) for user in "abs"}
        for wire in watchers.values():
            wire.subscribe(">")
            wire.fence()
        asking = bed.clients["a"]
        assert "error" not in asking.api("STREAM.CREATE.T", {"name": "T", "subjects": ["tt.>"]})
        assert asking.api("STREAM.DELETE.T")["success"]
        frames: dict[str, list[Frame]] = {user: [] for user in watchers}
        told: list[str] = []
        while told.count("$JS.EVENT.ADVISORY.API") < 2:  # the last that is told of a request
            frames["a"].append(watchers["a"].next(30))
            told = [frame.subject for frame in frames["a"]]
        found = {}
        for user, wire in watchers.items():
            subjects = {each.subject for each in frames[user] + wire.fence(30)}
            inboxes = {"answer" for each in subjects if each.startswith(asking.inbox)}
            found[user] = sorted({each for each in subjects if each.startswith("$JS.")} | inboxes)
            wire.close()
        return found

    theirs, ours = heard(beds["theirs"]), heard(beds["ours"])
    seen_by_operators = theirs.pop("s")
    assert ours.pop("s") == [] and "$JS.API.STREAM.CREATE.T" in seen_by_operators
    assert not [each for each in seen_by_operators if each.startswith("$JS.EVENT.")]
    assert ours == theirs
    assert "$JS.API.STREAM.CREATE.T" in ours["a"] and ours["b"] == []
