"""Streams of several accounts: each account has its own names and subjects, and sees its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd.config.account_options import AccountJetStream
from streamd.machine.meta import MetaMachine
from tests.unit.api.bed import Bed
from tests.unit.api.cluster_bed import World

ACCOUNTS = {"A": AccountJetStream(), "B": AccountJetStream()}


@pytest.fixture
def bed() -> Bed:
    return Bed(accounts=ACCOUNTS)


@pytest.fixture
def world() -> World:
    return World("n1", "n2", "n3", accounts=ACCOUNTS)


def mentions_account(document: object) -> bool:
    return '"account"' in json.dumps(document)


def test_accounts_have_streams_of_the_same_name_and_subjects(bed: Bed) -> None:
    """Created, filled, changed and shown apart; the config that is shown names no account."""
    streams = {account: bed.make("S", account, subjects=["s.>"]) for account in ("A", "B", "$G")}
    assert len({stream.uid for stream in streams.values()}) == 3
    streams["A"].store("s.1")
    streams["A"].store("s.2")
    streams["B"].store("s.1")
    changed = {"name": "S", "subjects": ["s.>", "t"], "max_msgs": 7}
    answer = bed.ask("STREAM.UPDATE.S", changed, account="B")
    assert answer["config"]["max_msgs"] == 7 and not mentions_account(answer)
    found = {}
    for account in streams:
        shown = bed.ask("STREAM.INFO.S", account=account)
        assert not mentions_account(shown)
        found[account] = (shown["state"]["messages"], shown["config"]["max_msgs"])
        assert bed.ask("STREAM.NAMES", account=account)["streams"] == ["S"]
        listed = bed.ask("STREAM.LIST", account=account)["streams"]
        assert not mentions_account(listed)
        assert [row["state"]["messages"] for row in listed] == [found[account][0]]
    assert found == {"A": (2, -1), "B": (1, 7), "$G": (0, -1)}


def test_config_names_the_account_for_the_meta_group_unless_it_is_the_main_one(bed: Bed) -> None:
    for account in ("A", "$G"):
        bed.make("S", account)
        bed.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 3}, account=account)
    assets = bed.node.meta.streams_by_key
    assert assets["A", "S"].config["account"] == assets["A", "S"].created_config["account"] == "A"
    assert "account" not in assets["$G", "S"].config | assets["$G", "S"].created_config
    again = MetaMachine.restore(bed.node.meta.snapshot())
    assert again.streams_by_key == assets


@pytest.mark.parametrize("given", ["A", "B", "$G", 1, None])
@pytest.mark.parametrize("verb", ["CREATE", "UPDATE"])
def test_account_that_a_client_names_is_an_unknown_field(bed: Bed, verb: str, given: Any) -> None:
    """Whoever the client is: neither its own account nor another is taken from a request."""
    if verb == "UPDATE":
        bed.make("S", "A")
    before = dict(bed.node.meta.streams_by_key)
    request = {"name": "S", "account": given}
    assert bed.error(f"STREAM.{verb}.S", request, account="A") == (
        10025,
        'invalid JSON: json: unknown field "account"',
    )
    assert bed.node.meta.streams_by_key == before


def test_create_again_finds_the_accounts_own_stream(bed: Bed) -> None:
    """Equal configs are the same stream within an account only; others are refused there only."""
    bed.make("S", "A", max_msgs=5)
    assert "did_create" in bed.ask("STREAM.CREATE.S", {"name": "S"}, account="B")
    again = bed.ask("STREAM.CREATE.S", {"name": "S", "max_msgs": 5}, account="A")
    assert again["config"]["max_msgs"] == 5
    assert bed.error("STREAM.CREATE.S", {"name": "S", "max_msgs": 6}, account="A")[0] == 10058
    assert len(bed.node.meta.streams_by_key) == 2


def test_delete_of_one_leaves_the_others(bed: Bed) -> None:
    for account in ("A", "B", "$G"):
        bed.make("S", account)
    assert bed.ask("STREAM.DELETE.S", account="A")["success"]
    assert bed.error("STREAM.INFO.S", account="A")[0] == 10059
    assert bed.error("STREAM.UPDATE.S", {"name": "S"}, account="A")[0] == 10059
    assert sorted(bed.node.meta.streams_by_key) == [("$G", "S"), ("B", "S")]
    assert bed.ask("STREAM.INFO.S", account="B")["config"]["name"] == "S"


def test_cluster_keeps_accounts_apart(world: World) -> None:
    """Asked at any node, whichever leads: the same name in two accounts is two streams."""
    made = {}
    for node, account in (("n1", "A"), ("n2", "B"), ("n3", "$G")):
        asset = world.make("S", node, account, subjects=["s"], num_replicas=3)
        made[account] = asset
    world.lead(made["A"].uid, "n2")
    world.lead(made["B"].uid, "n3")
    changed = world.ask("n1", "STREAM.UPDATE.S", {"name": "S", "num_replicas": 3}, "B")
    assert changed["config"]["subjects"] == ["S"] and not mentions_account(changed)
    world.machines[made["A"].uid]["n2"].store("s")
    for node in world.nodes:
        shown = world.ask(node, "STREAM.INFO.S", account="A")
        assert shown["state"]["messages"] == 1 and not mentions_account(shown)
        assert world.ask(node, "STREAM.INFO.S", account="B")["state"]["messages"] == 0
        assert not mentions_account(world.ask(node, "STREAM.LIST", account="A"))
    assert world.ask("n3", "STREAM.DELETE.S", account="B")["success"]
    assert world.error("n1", "STREAM.INFO.S", account="B")[0] == 10059
    assert world.ask("n1", "STREAM.INFO.S", account="A")["config"]["subjects"] == ["s"]
    overlap = {"name": "T", "subjects": ["s"]}
    assert world.error("n1", "STREAM.CREATE.T", overlap, "A")[0] == 10065
    assert world.ask("n1", "STREAM.CREATE.T", overlap, "B")["did_create"]
