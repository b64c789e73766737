"""Leaf links that are refused, lost, looped or narrowed: real servers, a nats-server among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess, free_port
from streamd.tokens.credentials import format_credentials
from streamd.tokens.nkeys import KeyPair
from tests.certificates import Authority
from tests.leaf_bed import Ends, LeafPair, Sides, page, shown
from tests.minted_tokens import (
    ACCOUNT,
    OTHER_ACCOUNT,
    SYSTEM,
    USER,
    account,
    connect_options,
    operator_config,
    user,
)
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow
KINDS = ("ours-peer", "peer-ours", pytest.param("ours-ours", marks=pytest.mark.proof))
Make = Callable[..., LeafPair]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    pairs: list[LeafPair] = []

    def make_pair(kinds: str, sides: Sides, **how: bool) -> LeafPair:
        binaries = {"ours": ours_binary(), "peer": peer_binary()}
        hub, _, leaf = kinds.partition("-")
        if not binaries[hub] or not binaries[leaf]:
            pytest.skip("no nats-server to join (STREAMD_PEER)")
        pair = LeafPair((binaries[hub], binaries[leaf]), tmp_path / str(len(pairs)), sides)
        pairs.append(pair)
        return pair.start(**how)

    yield make_pair
    for pair in pairs:
        pair.close()


def crossing(sender: ServerProcess, receiver: ServerProcess, *subjects: str) -> list[str]:
    """Publish on `subjects`, each of which a client there wants; which of them arrived?"""
    wires = [Wire(server.port) for server in (sender, receiver)]
    ends = Ends(*wires)
    for subject in subjects:
        ends.receiver.subscribe(subject)
    ends.sync()
    for subject in subjects:
        ends.sender.publish(subject)
    found = [frame[0] for frame in shown(ends.arrived())]
    for wire in wires:
        wire.close()
    return found


@pytest.mark.parametrize("kinds", KINDS)
def test_a_link_comes_back_whichever_side_restarts(make: Make, kinds: str) -> None:
    pair = make(kinds, Sides())
    for server, other in ((pair.hub, pair.leaf), (pair.leaf, pair.hub)):
        server.stop()
        if other is pair.hub:
            until(lambda: page(pair.hub, "leafz")["leafnodes"] == 0, "the link is gone")
        server.start()
        pair.wait_joined()
        assert crossing(pair.hub, pair.leaf, "down") == ["down"]
        assert crossing(pair.leaf, pair.hub, "up") == ["up"]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_wrong_password_is_refused(make: Make, kinds: str) -> None:
    users = "authorization { users: [ {user: l, password: right} ] }"
    wrong = Sides(listener=users, url="nats-leaf://l:wrong@127.0.0.1:{port}")
    pair = make(kinds, wrong, is_joined=False)
    pair.leaf.wait_for_log("Leafnode Error 'Authorization Violation'", count=2)
    assert page(pair.hub, "leafz")["leafnodes"] == 0
    pair = make(kinds, wrong._replace(url="nats-leaf://l:right@127.0.0.1:{port}"))
    assert crossing(pair.hub, pair.leaf, "down") == ["down"]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_user_brings_its_permissions(make: Make, kinds: str) -> None:
    own = '"sync.>", "last.>"'
    publish = f'{{ allow: ["up.>", {own}], deny: "up.no" }}'
    rights = f'{{ publish: {publish}, subscribe: ["down.>", {own}] }}'
    users = f"users: [ {{user: any}}, {{user: l, password: p, permissions: {rights} }} ]"
    hub = f"authorization {{ {users} }}\nno_auth_user: any"
    pair = make(kinds, Sides(hub=hub, url="nats-leaf://l:p@127.0.0.1:{port}"))
    assert crossing(pair.leaf, pair.hub, "up.1", "up.no", "other") == ["up.1"]
    assert crossing(pair.hub, pair.leaf, "down.1", "up.1", "other") == ["down.1"]


@pytest.mark.parametrize("kinds", KINDS)
def test_deny_lists_of_a_remote_narrow_the_link(make: Make, kinds: str) -> None:
    pair = make(kinds, Sides(remote='deny_imports: "in.no", deny_exports: ["out.>"]'))
    assert crossing(pair.hub, pair.leaf, "in.yes", "in.no", "out.1") == ["in.yes", "out.1"]
    assert crossing(pair.leaf, pair.hub, "in.no", "out.1", "free") == ["free", "in.no"]


@pytest.mark.parametrize("compression", ["", "ws_compression: true"])
@pytest.mark.parametrize("kinds", KINDS)
def test_a_link_may_be_in_websocket_frames(make: Make, kinds: str, compression: str) -> None:
    port = free_port()
    listener = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true, compression: true }}'
    url = f"ws://127.0.0.1:{port}/some/path"
    pair = make(kinds, Sides(hub=listener, url=url, remote=compression))
    assert page(pair.hub, "leafz")["leafs"][0]["websocket"] is True
    assert crossing(pair.hub, pair.leaf, "down") == ["down"]
    assert crossing(pair.leaf, pair.hub, "up") == ["up"]
    wires = [Wire(pair.hub.port), Wire(pair.leaf.port)]
    ends = Ends(*wires)
    ends.receiver.subscribe("big")
    ends.sync()
    ends.sender.publish("big", bytes(range(256)) * 3000)
    (frame,) = ends.arrived()
    assert frame.payload == bytes(range(256)) * 3000
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("kinds", KINDS)
def test_a_link_may_be_in_tls(make: Make, kinds: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("server")
    pair = make(
        kinds,
        Sides(
            listener=f"tls {{ {pem.block} }}",
            remote=f'tls {{ ca_file: "{authority.cert}" }}',
            url="tls://127.0.0.1:{port}",
        ),
    )
    assert crossing(pair.hub, pair.leaf, "down") == ["down"]
    assert crossing(pair.leaf, pair.hub, "up") == ["up"]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_remote_may_be_the_hub(make: Make, kinds: str) -> None:
    pair = make(kinds, Sides(remote="hub: true"))
    assert page(pair.hub, "leafz")["leafs"][0]["is_spoke"] is True
    assert crossing(pair.hub, pair.leaf, "down") == ["down"]
    assert crossing(pair.leaf, pair.hub, "up") == ["up"]


@pytest.mark.parametrize("kinds", KINDS)
def test_an_nkey_signs_the_nonce(make: Make, kinds: str) -> None:
    from streamd.tokens.nkeys import KeyKind, KeyPair

    pair_of_keys = KeyPair(KeyKind.USER, bytes(range(32)))
    sides = Sides(
        listener=f"authorization {{ nkey: {pair_of_keys.public} }}",
        remote=f"nkey: {pair_of_keys.seed}",
    )
    pair = make(kinds, sides)
    assert crossing(pair.hub, pair.leaf, "down") == ["down"]


@pytest.mark.parametrize("kinds", KINDS)
def test_servers_that_are_hubs_of_each_other_notice_it(tmp_path: Path, kinds: str) -> None:
    binaries = {"ours": ours_binary(), "peer": peer_binary()}
    names = kinds.split("-")
    if not all(binaries[name] for name in names):
        pytest.skip("no nats-server to join (STREAMD_PEER)")
    ports = [free_port(), free_port()]
    servers = []
    for at, name in enumerate(names):
        text = (
            f'server_name: S{at}\nleafnodes {{ listen: "127.0.0.1:{ports[at]}", compression: off,'
            f' remotes: [ {{ url: "nats-leaf://127.0.0.1:{ports[1 - at]}", compression: off }} ] }}'
        )
        server = ServerProcess(
            binaries[name], directory=tmp_path / str(at), extra=text, is_jetstream=False
        )
        servers.append(server)
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait()
        words = "Loop detected for leafnode account"
        until(
            lambda: any(words in server.log_file.read_text() for server in servers),
            "a loop that is noticed",
        )
    finally:
        for server in servers:
            server.close()


def test_a_link_to_a_port_of_clients_is_no_link(tmp_path: Path) -> None:
    hub = ServerProcess(ours_binary(), directory=tmp_path / "hub", is_jetstream=False)
    hub.start()
    text = f'leafnodes {{ remotes: [ {{ url: "nats-leaf://127.0.0.1:{hub.port}" }} ] }}'
    leaf = ServerProcess(ours_binary(), directory=tmp_path / "leaf", extra=text, is_jetstream=False)
    leaf.start()
    try:
        leaf.wait_for_log("attempted to connect to wrong port")
    finally:
        leaf.close()
        hub.close()


ACCOUNTS = (
    "accounts {{ {0} {{ users: [ {{user: {0}, password: p}} ] }}, OTHER {{ users: [ {{user: o,"
    " password: p}} ] }} }}"
)


def login(user: str) -> dict[str, object]:
    return {**CONNECT, "user": user, "pass": "p"}


@pytest.mark.parametrize("own_logins", [False, True])
@pytest.mark.parametrize("kinds", KINDS)
def test_a_link_joins_one_account_of_each_side(make: Make, kinds: str, own_logins: bool) -> None:
    listener = "authorization { users: [ {user: l, password: p, account: A} ] }"
    user = "l" if own_logins else "A"
    sides = Sides(
        hub=ACCOUNTS.format("A"),
        leaf=ACCOUNTS.format("X"),
        listener=listener if own_logins else "",
        remote="account: X",
        url=f"nats-leaf://{user}:p@127.0.0.1:{{port}}",
    )
    pair = make(kinds, sides)
    assert [page(server, "leafz")["leafs"][0]["account"] for server in pair.servers] == ["A", "X"]
    a, x = Wire(pair.hub.port, login("A")), Wire(pair.leaf.port, login("X"))
    others = [Wire(server.port, login("o")) for server in pair.servers]
    for wire in others:
        wire.subscribe("to.>")
        wire.fence()
    for sender, receiver in ((a, x), (x, a)):
        ends = Ends(sender, receiver)
        receiver.subscribe("to.*")
        ends.sync()
        sender.publish("to.1", b"here")
        assert [frame.payload for frame in ends.arrived()] == [b"here"]
    assert [frame for wire in others for frame in wire.fence()] == []
    for wire in (a, x, *others):
        wire.close()


def test_an_account_has_as_many_leaf_nodes_as_it_may(make: Make) -> None:
    hub = "accounts { A { users: [ {user: A, password: p} ], limits { max_leafnodes: 0 } } }"
    url = "nats-leaf://A:p@127.0.0.1:{port}"
    pair = make("ours-ours", Sides(hub=hub, url=url), is_joined=False)
    pair.leaf.wait_for_log("maximum account active connections exceeded")
    assert page(pair.hub, "leafz")["leafnodes"] == 0


@pytest.mark.parametrize("kinds", KINDS)
def test_a_link_logs_in_with_credentials(make: Make, kinds: str, tmp_path: Path) -> None:
    """Of a user of the hub's operator; the leaf node's account is one of its own tokens. The link
    ends when the user is revoked there."""
    file = tmp_path / "leaf.creds"
    narrow = {"pub": {"deny": ["no.>"]}}
    file.write_text(format_credentials(user(issuer=ACCOUNT, **narrow), USER))
    hub, leaf = (
        operator_config((ACCOUNT, account())),
        operator_config((OTHER_ACCOUNT, account(OTHER_ACCOUNT, name="B"))),
    )
    remote = f'credentials: "{file}", account: {OTHER_ACCOUNT.public}'
    pair = make(kinds, Sides(hub=hub, leaf=leaf, remote=remote))
    (link,) = page(pair.hub, "leafz")["leafs"]
    assert link["account"] == ACCOUNT.public
    with _member(pair.leaf, OTHER_ACCOUNT) as below, _member(pair.hub, ACCOUNT) as above:
        ends = Ends(below, above)
        for subject in ("yes.1", "no.1"):
            above.subscribe(subject)
        ends.sync()
        for subject in ("yes.1", "no.1"):
            below.publish(subject)
        assert [frame[0] for frame in shown(ends.arrived())] == ["yes.1"]
    with _member(pair.hub, SYSTEM) as operating:
        revoked = account(revocations={"*": 2_000_000_000})
        subject = f"$SYS.REQ.ACCOUNT.{ACCOUNT.public}.CLAIMS.UPDATE"
        answer = operating.ask(subject, revoked.encode(), within_s=20)[0].json()
        assert answer["data"]["message"] == "jwt updated"
    until(lambda: page(pair.hub, "leafz")["leafnodes"] == 0, "the link is gone")


def _member(server: ServerProcess, issuer: KeyPair) -> Wire:
    wire = Wire(server.port, None)
    options = connect_options(user(issuer=issuer), wire.info["nonce"])
    wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
    assert wire.fence(20) == []
    return wire
