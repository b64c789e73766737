"""Accounts of a server: one subject space each, and connections that enter them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd.config.account_options import (
    AccountJetStream,
    AccountLimits,
    AccountOptions,
    JetStreamTier,
    default_accounts,
)
from streamd.config.options import Options, User
from streamd.net.accounts.account_spaces import Accounts
from tests.unit.net.bed import Bed


def options(**limits: int) -> Options:
    users = [User(name, name, account=name.upper()) for name in ("a", "b")]
    accounts = default_accounts() | {
        "A": AccountOptions("A", limits=AccountLimits(**limits)),
        "B": AccountOptions("B", jetstream=AccountJetStream()),
    }
    return Options(users=users, accounts=accounts)


class World(Bed):
    """A listener whose connections enter the accounts of their users."""

    def __init__(self, chosen: Options) -> None:
        super().__init__(chosen)
        self.spaces = Accounts(chosen.accounts)
        self.spaces.output_queue.clock = self.clock.time
        self.listener.spaces = self.spaces

    def client(self, user: str) -> Any:
        return self.peer(login(user))


def login(user: str) -> bytes:
    given = {"user": user, "pass": user, "verbose": False, "pedantic": False}
    return b"CONNECT " + json.dumps(given).encode() + b"\r\n"


def test_a_message_stays_in_the_account_of_its_publisher() -> None:
    world = World(options())
    a, b, other = world.client("a"), world.client("b"), world.client("a")
    for client in (a, b, other):
        client.send(b"SUB > 1\r\n")
        client.take()
    assert a.send(b"PUB x 1\r\n1\r\n") == b"MSG x 1 1\r\n1\r\n"
    assert other.take() == b"MSG x 1 1\r\n1\r\n" and b.take() == b""


def test_a_client_that_logs_in_again_takes_nothing_to_its_new_account() -> None:
    world = World(options())
    a, moving = world.client("a"), world.client("b")
    moving.send(b"SUB x 1\r\n")
    moving.send(login("a") + b"SUB y 2\r\nPUB y 1\r\n1\r\n")
    moving.take()
    a.send(b"PUB x 1\r\n1\r\nPUB y 1\r\n2\r\n")
    assert moving.take() == b"MSG y 2 1\r\n2\r\n"
    assert world.spaces.obtain("B").router.subscriptions.sublist.count == 0


def test_an_account_has_no_more_connections_than_it_may() -> None:
    world = World(options(max_connections=1))
    first = world.client("a")
    assert b"maximum account active connections exceeded" in world.client("a").take()
    world.client("b")
    first.conn.close("Client Closed")
    assert b"-ERR" not in world.client("a").take()


@pytest.mark.parametrize(("size", "is_good"), [(4, True), (5, False)])
def test_an_account_has_its_own_limit_of_payloads(size: int, is_good: bool) -> None:
    world = World(options(max_payload=4))
    sent = world.client("a").send(b"PUB x %d\r\n%b\r\nPING\r\n" % (size, b"x" * size))
    assert (b"PONG" in sent) is is_good
    assert (b"Maximum Payload Violation" in sent) is not is_good


def test_accounts_keep_their_subject_spaces_through_changes() -> None:
    """Another node may know an account before, or still: its name is enough."""
    accounts = Accounts(default_accounts())
    early = accounts.obtain("A").router
    made: list[str] = []
    accounts.on_made(lambda account: made.append(account.name))
    assert accounts.get("A") is None and accounts.names() == ["$G", "$SYS"]
    accounts.change(options().accounts)
    assert accounts.names() == ["$G", "$SYS", "A", "B"] and accounts.router("A") is early
    assert sorted(made) == ["$G", "$SYS", "A", "B"]
    assert (accounts.jetstream("A"), accounts.with_jetstream()) == (None, ["$G", "B"])
    accounts.change(default_accounts())
    assert accounts.get("A") is None and accounts.router("A") is early


def test_what_an_account_may_store_is_its_limit_or_that_of_the_tier() -> None:
    flat = AccountJetStream(JetStreamTier(max_storage=1000))
    tiers = {"R1": JetStreamTier(max_storage=500, max_memory=0), "R3": JetStreamTier()}
    accounts = Accounts(
        default_accounts()
        | {"A": AccountOptions("A", jetstream=flat)}
        | {"T": AccountOptions("T", jetstream=AccountJetStream(tiers=tiers))}
    )
    assert accounts.storage_limit("A", True, 3) == (1000, False)
    assert accounts.storage_limit("A", False, 3) is None
    assert accounts.storage_limit("T", True, 1) == (500, True)
    assert accounts.storage_limit("T", False, 1) == (0, True)
    assert accounts.storage_limit("T", True, 3) is None
    assert accounts.storage_limit("T", True, 5) is None
    assert accounts.storage_limit("$SYS", True, 1) is None
    assert accounts.storage_limit("$G", True, 1) is None
