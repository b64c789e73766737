"""Operations of the system account on streams of any account: ACCOUNT.PURGE, ACCOUNT.STREAM.*."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd import errors, limits
from streamd.config.account_options import AccountJetStream
from streamd.types import SYSTEM_ACCOUNT
from tests.unit.api.bed import Bed, check_schema
from tests.unit.api.cluster_bed import World


@pytest.fixture
def world() -> World:
    accounts = {"A": AccountJetStream(), "B": AccountJetStream(), SYSTEM_ACCOUNT: None}
    return World("n1", "n2", "n3", "n4", accounts=accounts)


def told(world: World) -> list[tuple[str, str]]:
    """Advisories of streams so far: subject, action."""
    sent = [item for item in world.wires.sent if b"ADVISORY.STREAM" in item[0]]
    found = []
    for item in sent:
        document = json.loads(item[3])
        check_schema("advisory", document)
        found.append((item[0].decode().rpartition("STREAM.")[2], document["action"]))
    return found


def asked(world: World, subject: str, body: Any = b"", node: str = "n2") -> dict[str, Any]:
    return world.ask(node, f"ACCOUNT.{subject}", body, SYSTEM_ACCOUNT)


def refused(world: World, subject: str, body: Any = b"") -> tuple[int, str]:
    return world.error("n2", f"ACCOUNT.{subject}", body, SYSTEM_ACCOUNT)


def test_purge_deletes_the_streams_of_one_account(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "API_PURGED_AT_ONCE", 2)
    world.wires.heard = (b"$JS.EVENT.ADVISORY.STREAM.",)
    for at in range(5):
        world.make(f"S{at}", account="A", subjects=[f"s{at}"], num_replicas=3)
    kept = world.make("S0", account="B", subjects=["s0"])
    assert asked(world, "PURGE.A")["initiated"] is True
    assert world.meta.streams_of("A") == [] and world.meta.streams_of("B") == [kept]
    assert told(world)[-5:] == [(f"DELETED.S{at}", "delete") for at in range(5)]
    assert world.make("S0", account="A", subjects=["s0"]).uid != kept.uid


def test_purge_of_an_account_that_is_not_there(world: World) -> None:
    assert asked(world, "PURGE.NOBODY", b"{")["initiated"] is True
    for account in ("a/b", "a\\b"):
        # Its published schema fits no error: of two forms that exclude each other it has both.
        reply = world.send("n2", f"ACCOUNT.PURGE.{account}", account=SYSTEM_ACCOUNT)
        ((_, payload),) = world.replies(reply)
        error = json.loads(payload)["error"]
        text = "account name can not contain path separators"
        assert (error["err_code"], error["description"]) == (10051, text)


def test_a_purge_that_is_not_decided_says_so(world: World) -> None:
    """Whoever asks again deletes what is left."""
    world.make("S", account="A")
    leader = world.nodes["n1"]
    proposed: list[Any] = []
    propose = leader.propose_meta
    leader.propose_meta = lambda command, done: proposed.append(done)  # type: ignore[method-assign]
    reply = world.send("n1", "ACCOUNT.PURGE.A", account=SYSTEM_ACCOUNT)
    assert world.replies(reply) == []
    proposed[0](errors.CLUSTER_NOT_AVAIL())
    world.run()
    assert b"10008" in world.replies(reply)[0][1]
    leader.propose_meta = propose  # type: ignore[method-assign]
    assert asked(world, "PURGE.A")["initiated"] and not world.meta.streams_of("A")


def test_purge_of_one_server() -> None:
    """It needs no cluster; the requests that do are silent there, as nats-server's."""
    bed = Bed()
    bed.make("S")
    assert bed.ask_raw("ACCOUNT.PURGE.$G") == []
    ((_, payload),) = bed.ask_raw("ACCOUNT.PURGE.$G", account=SYSTEM_ACCOUNT)
    assert json.loads(payload)["initiated"] is True
    assert bed.ask("STREAM.NAMES")["total"] == 0
    for subject in ("ACCOUNT.STREAM.MOVE.$G.S", "ACCOUNT.STREAM.CANCEL_MOVE.$G.S"):
        assert bed.ask_raw(subject, account=SYSTEM_ACCOUNT) == []


@pytest.mark.parametrize("verb", ["PURGE.A", "STREAM.MOVE.A.S", "STREAM.CANCEL_MOVE.A.S"])
def test_other_accounts_are_not_heard(world: World, verb: str) -> None:
    asset = world.make("S", account="A")
    for account in ("A", "B"):
        for node in ("n1", "n2"):
            assert world.replies(world.send(node, f"ACCOUNT.{verb}", account=account)) == []
    assert world.meta.streams_of("A") == [asset]


def test_what_no_server_serves_is_refused_in_the_system_account(world: World) -> None:
    """In one form, whatever it is; in other accounts nobody answers."""
    for subject in ("META.PEER.REMOVE", "SERVER.STREAM.MOVE", "SERVER.X", "NONE", "STREAM.INFO.S"):
        reply = world.send("n2", subject, account=SYSTEM_ACCOUNT)
        ((_, payload),) = world.replies(reply)
        answer = json.loads(payload)
        assert answer["type"] == "io.nats.jetstream.api.v1.system_response"
        assert answer["error"]["err_code"] == 10039
        if subject != "STREAM.INFO.S":
            assert world.replies(world.send("n2", subject, account="A")) == []
    assert world.replies(world.send("n2", "ACCOUNT.NONE", account=SYSTEM_ACCOUNT)) == []
    for subject in ("META.RESCUE", "SERVER.EVACUATE", "META.LEADER.STEPDOWN"):
        assert Bed().ask_raw(subject, account=SYSTEM_ACCOUNT) == []


def test_move_and_its_end(world: World) -> None:
    """One replica goes elsewhere: by name, by hash, or whichever the tags do not want."""
    world.wires.heard = (b"$JS.EVENT.ADVISORY.STREAM.",)
    asset = world.make("S", account="A", num_replicas=3)
    assert asset.peers == ("n1", "n2", "n3")
    moved = asked(world, "STREAM.MOVE.A.S", {"server": "n2"})
    assert moved["type"].endswith("v1.stream_update_response") and moved["config"]["name"] == "S"
    assert world.meta.stream("S", "A").peers == ("n1", "n3", "n4")  # type: ignore[union-attr]
    assert told(world)[-1] == ("UPDATED.S", "modify")
    assert refused(world, "STREAM.MOVE.A.S", {"server": "n2"})[0] == 10124
    assert refused(world, "STREAM.MOVE.A.S", {"server": "n3"})[0] == 10124
    kept = asked(world, "STREAM.CANCEL_MOVE.A.S")
    check_schema("api", kept | {"type": "io.nats.jetstream.api.v1.stream_update_response"})
    assert set(world.meta.stream("S", "A").peers) == {"n1", "n2", "n3"}  # type: ignore[union-attr]
    assert refused(world, "STREAM.CANCEL_MOVE.A.S")[0] == 10129


def test_move_by_tags_leaves_the_placement_as_it_is(world: World) -> None:
    for name in ("n1", "n4"):
        world.facts[name]["tags"] = ["ssd"]
    world.make("S", account="A", num_replicas=3)
    asked(world, "STREAM.MOVE.A.S", {"tags": ["ssd"]})
    asset = world.meta.stream("S", "A")
    assert asset is not None and asset.peers == ("n1", "n3", "n4")
    assert not asset.config.get("placement")


def test_move_is_refused(world: World) -> None:
    world.make("S", account="A", num_replicas=3)

    def code(subject: str, body: Any = b"") -> int:
        return refused(world, f"STREAM.{subject}", body)[0]

    assert code("MOVE.NOBODY.S") == code("CANCEL_MOVE.NOBODY.S") == 10035
    assert code("MOVE.B.S") == code("CANCEL_MOVE.B.S") == code(f"MOVE.{SYSTEM_ACCOUNT}.S") == 10059
    assert code("MOVE.NOBODY.S", b"{") == code("MOVE.A.S", {"unknown": 1}) == 10025
    assert code("MOVE.A.S", {"server": "n9"}) == 10044
    assert code("MOVE.A.S", {"server": "n1", "cluster": "other"}) == 10044
    assert code("MOVE.A.S", {"server": "n4"}) == 10040
    text = "no suitable peers for placement, tags not matched ['az:9']"
    wanted = {"server": "n1", "tags": ["az:9"]}
    assert refused(world, "STREAM.MOVE.A.S", wanted) == (10005, text)
    text = "no suitable peers for placement"
    assert refused(world, "STREAM.MOVE.A.S", {"cluster": "other"}) == (10005, text)
    asset = world.meta.stream("S", "A")
    assert asset is not None and asset.peers == ("n1", "n2", "n3")
