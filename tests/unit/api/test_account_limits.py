"""Limits of accounts: refused at create and update, bound to the command, shown by INFO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamd.config.account_options import AccountJetStream, JetStreamTier
from streamd.machine import commands
from streamd.types import AssetLimits
from tests.unit.api.bed import Bed
from tests.unit.api.cluster_bed import World

STREAMS, CONSUMERS, MEMORY, STORAGE, REQUIRED, NO_TIER, TOO_LARGE = (
    10027, 10026, 10028, 10047, 10113, 10120, 10122,
)  # fmt: skip


def flat(**limits: Any) -> AccountJetStream:
    return AccountJetStream(JetStreamTier(**limits))


def bed_with(jetstream: AccountJetStream | None, **options: Any) -> Bed:
    return Bed(accounts={"A": jetstream}, **options)


def create(bed: Bed, name: str, **config: Any) -> int:
    """Create a stream of A; returns the error, 0 if there is none."""
    answer = bed.ask(f"STREAM.CREATE.{name}", {"name": name} | config, account="A")
    return int(answer.get("error", {}).get("err_code", 0))


def update(bed: Bed, name: str, **config: Any) -> int:
    answer = bed.ask(f"STREAM.UPDATE.{name}", {"name": name} | config, account="A")
    return int(answer.get("error", {}).get("err_code", 0))


def consumer(bed: Bed, stream: str, name: str, **config: Any) -> dict[str, Any]:
    full = {"durable_name": name, "ack_policy": "explicit"} | config
    given = {"stream_name": stream, "config": full}
    return bed.ask(f"CONSUMER.CREATE.{stream}.{name}", given, account="A")


@pytest.mark.parametrize(
    ("limits", "config", "want"),
    [
        ({"max_bytes_required": True}, {}, REQUIRED),
        ({"max_bytes_required": True}, {"max_bytes": 1}, 0),
        ({"storage_max_stream_bytes": 100}, {"max_bytes": 101}, TOO_LARGE),
        ({"storage_max_stream_bytes": 100}, {"max_bytes": 100}, 0),
        ({"storage_max_stream_bytes": 100}, {"max_bytes": 101, "storage": "memory"}, 0),
        ({"memory_max_stream_bytes": 100}, {"max_bytes": 101, "storage": "memory"}, TOO_LARGE),
        ({"storage_max_stream_bytes": 0}, {"max_bytes": 101}, 0),
        ({"max_consumers": 2}, {"max_consumers": 3}, CONSUMERS),
        ({"max_consumers": 2}, {"max_consumers": -1}, 0),
        ({"max_storage": 100}, {"max_bytes": 101}, STORAGE),
        ({"max_storage": 100}, {"max_bytes": 101, "storage": "memory"}, 0),
        ({"max_memory": 100}, {"max_bytes": 101, "storage": "memory"}, MEMORY),
        ({"max_storage": 0}, {}, STORAGE),
        ({"max_memory": 0}, {"storage": "memory"}, MEMORY),
        ({"max_streams": 0}, {}, 0),
    ],
)
def test_stream_is_refused_for_what_it_is(
    limits: dict[str, Any], config: dict[str, Any], want: int
) -> None:
    """At creation, and where an update would make the same of it."""
    bed = bed_with(flat(**limits))
    assert create(bed, "S", **config) == want
    assert bed.make("S", "$G", **config)  # which has no limits
    if not want or config.get("storage") == "memory":
        return
    bed = bed_with(flat())
    assert create(bed, "S") == 0
    bed.accounts.given["A"] = flat(**limits)
    assert update(bed, "S", **config) == want


def test_streams_of_other_accounts_do_not_count() -> None:
    bed = Bed(accounts={"A": flat(max_streams=1, max_storage=100), "B": flat()})
    bed.make("S", "B", max_bytes=100)
    bed.make("T", "B")
    assert create(bed, "S", max_bytes=100) == 0
    assert create(bed, "T") == STREAMS
    assert create(bed, "S", max_bytes=100) == 0  # the one there is
    assert bed.ask("STREAM.DELETE.S", account="A")["success"]
    assert create(bed, "T") == 0


def test_update_may_use_what_the_stream_itself_set_aside() -> None:
    bed = bed_with(flat(max_storage=100))
    assert create(bed, "S", max_bytes=60) == create(bed, "T", max_bytes=30) == 0
    assert update(bed, "S", max_bytes=71) == STORAGE
    assert update(bed, "S", max_bytes=70) == 0
    assert create(bed, "U", max_bytes=1) == create(bed, "U") == STORAGE
    assert update(bed, "T", max_bytes=29) == 0
    assert create(bed, "U") == 0


def test_bounds_go_with_the_command_and_hold_in_the_order_of_the_log() -> None:
    """Two requests that were both let through: the second is refused when it is applied."""
    bed = bed_with(flat(max_streams=1, max_storage=100))
    proposed: list[list[Any]] = []
    decide = bed.node.propose_meta
    bed.node.propose_meta = lambda command, done: proposed.append(command)  # type: ignore[method-assign]
    for name in ("S", "T"):
        bed.ask_raw(f"STREAM.CREATE.{name}", {"name": name, "max_bytes": 10}, account="A")
    assert [command[4] for command in proposed] == [[1, 100, 0]] * 2
    outcomes: list[Any] = []
    for command in proposed:
        decide(command, outcomes.append)
    assert outcomes[0].name == "S" and outcomes[1].err_code == STREAMS


def test_commands_of_an_account_without_limits_are_what_they_were() -> None:
    """No field more: what is replicated does not change."""
    bed = Bed()
    proposed: list[list[Any]] = []
    decide = bed.node.propose_meta

    def propose(command: list[Any], done: Any) -> None:
        proposed.append(command)
        decide(command, done)

    bed.node.propose_meta = propose  # type: ignore[method-assign]
    stream = bed.make("S")
    assert [command[0] for command in proposed] == [commands.CREATE_STREAM]
    assert len(proposed[0]) == 3
    taken: list[list[Any]] = []
    stream.propose = lambda command, done: taken.append(command)  # type: ignore[method-assign]
    bed.ask_raw("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c"}})
    assert len(taken[0]) == 6


def test_consumers_of_each_stream_are_limited() -> None:
    """Counted for a stream alone; the narrower of two limits holds; one that exists may change."""
    bed = bed_with(flat(max_consumers=2))
    for name, most in (("S", -1), ("T", 1)):
        bed.make(name, "A", max_consumers=most)
    assert "error" not in consumer(bed, "S", "a") | consumer(bed, "S", "b")
    assert consumer(bed, "S", "c")["error"]["err_code"] == CONSUMERS
    assert "error" not in consumer(bed, "S", "b", description="x")
    assert "error" not in consumer(bed, "T", "a")
    assert consumer(bed, "T", "b")["error"]["err_code"] == CONSUMERS


@pytest.mark.parametrize(
    ("server", "account", "want"), [(0, 50, 50), (30, 50, 30), (70, 50, 50), (30, -1, 30)]
)
def test_pending_acks_have_the_narrower_limit(server: int, account: int, want: int) -> None:
    bed = bed_with(flat(max_ack_pending=account), asset_limits=AssetLimits(ack_pending_max=server))
    bed.make("S", "A")
    assert consumer(bed, "S", "a")["config"]["max_ack_pending"] == want
    refused = consumer(bed, "S", "b", max_ack_pending=want + 1)["error"]
    text = f"consumer max ack pending exceeds system limit of {want}"
    assert (refused["err_code"], refused["description"]) == (10121, text)
    assert consumer(bed, "S", "b", max_ack_pending=want)["config"]["max_ack_pending"] == want


def test_info_shows_limits_usage_and_what_is_set_aside() -> None:
    limits = JetStreamTier(100, 9000, 3, 4, 5, 6, 7000, True)
    bed = bed_with(AccountJetStream(limits))
    stream = bed.make("S", "A", max_bytes=5000)
    bed.make("S", "$G", max_bytes=777)
    stream.store("S", b"payload")
    consumer(bed, "S", "c")
    shown = bed.ask("INFO", account="A")
    used = stream.machine.index.live.bytes
    assert used > 0
    assert {key: shown[key] for key in shown if key not in ("type", "api")} == {
        "memory": 0,
        "storage": used,
        "reserved_memory": 0,
        "reserved_storage": 5000,
        "streams": 1,
        "consumers": 1,
        "limits": {
            "max_memory": 100,
            "max_storage": 9000,
            "max_streams": 3,
            "max_consumers": 4,
            "max_ack_pending": 5,
            "memory_max_stream_bytes": 6,
            "storage_max_stream_bytes": 7000,
            "max_bytes_required": True,
        },
    }
    assert set(bed.ask("INFO")["limits"].values()) == {-1, False}


# --- tiers ----------------------------------------------------------------------------------------

R1 = JetStreamTier(max_storage=100, max_streams=2)
R3 = JetStreamTier(max_storage=50, max_streams=1, max_bytes_required=True)


@pytest.fixture
def world() -> World:
    return World("n1", "n2", "n3", accounts={"A": AccountJetStream(tiers={"R1": R1, "R3": R3})})


def refusal(world: World, name: str, **config: Any) -> int:
    answer = world.ask("n2", f"STREAM.CREATE.{name}", {"name": name} | config, "A")
    return int(answer.get("error", {}).get("err_code", 0))


def test_tiers_have_limits_of_their_own(world: World) -> None:
    """A stream of three replicas counts once in its tier; no tier, no stream."""
    assert refusal(world, "S", num_replicas=3) == REQUIRED
    assert refusal(world, "S", num_replicas=3, max_bytes=51) == STORAGE
    assert refusal(world, "S", num_replicas=3, max_bytes=50) == 0
    assert refusal(world, "T", num_replicas=3, max_bytes=1) == STREAMS
    assert refusal(world, "T", max_bytes=100) == 0
    assert refusal(world, "U", max_bytes=1) == STORAGE
    assert refusal(world, "U") == STORAGE
    assert refusal(world, "U", num_replicas=5, max_bytes=1) == NO_TIER
    assert refusal(world, "U", storage="memory") == 0
    assert refusal(world, "V", storage="memory") == STREAMS
    scaled = {"name": "T", "num_replicas": 3, "max_bytes": 1}
    assert world.error("n1", "STREAM.UPDATE.T", scaled, "A")[0] == STORAGE


def test_info_shows_tiers_and_no_limits_beside_them(world: World) -> None:
    assert refusal(world, "S", num_replicas=3, max_bytes=40) == 0
    assert refusal(world, "T", max_bytes=30) == 0
    shown = world.ask("n3", "INFO", account="A")
    assert set(shown["limits"].values()) == {0}
    assert (shown["streams"], shown["reserved_storage"]) == (2, 0)
    assert set(shown["tiers"]) == {"R1", "R3"}
    for name, limits, reserved in (("R1", R1, 30), ("R3", R3, 40)):
        tier = shown["tiers"][name]
        assert (tier["streams"], tier["reserved_storage"]) == (1, reserved)
        assert tier["limits"]["max_storage"] == limits.max_storage


def test_flat_limits_count_every_replica() -> None:
    world = World("n1", "n2", "n3", accounts={"A": flat(max_storage=100)})
    assert refusal(world, "S", num_replicas=3, max_bytes=34) == STORAGE
    assert refusal(world, "S", num_replicas=3, max_bytes=33) == 0
    assert refusal(world, "T", max_bytes=2) == STORAGE
    assert refusal(world, "T", max_bytes=1) == 0
    assert world.ask("n1", "INFO", account="A")["reserved_storage"] == 100


def test_limits_that_change_hold_at_once() -> None:
    """What exists stays; the next stream is judged by the limits of now."""
    bed = bed_with(flat())
    assert create(bed, "S") == create(bed, "T") == 0
    bed.accounts.given["A"] = flat(max_streams=1)
    assert create(bed, "U") == STREAMS
    assert create(bed, "T") == 0
    bed.accounts.given["A"] = AccountJetStream(replace(JetStreamTier(), max_streams=3))
    assert create(bed, "U") == 0
