"""Hostile clients, a few of each kind: the server ends them, serves others, and keeps its memory.

The campaign with thousands of each is `python -m benchmarks.hostile`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.hostile import Attacked
from benchmarks.hostile_attacks import ATTACKS, Foe, Outcome
from tests.parity.runner import ours_binary
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow

MEMORY_MB = 80  # above what an idle server has: far less than what the attacks would have it keep
MAX_PENDING = 16 << 20  # a third of what `readers_that_read_nothing` are sent, each
ENDED_WITHIN_S = 60.0
COUNTS = {
    "silent": 60,
    "slow_handshakes": 40,
    "half_open_tls": 40,
    "giant_connects": 4,
    "giant_tokens": 4,
    "guesses": 8,
    "slow_upgrades": 40,
    "unmasked_frames": 10,
    "broken_frames": 10,
    "endless_frames": 2,
    "endless_fragments": 2,
    "compression_bombs": 4,
    "leaf_bombs": 4,
    "leaf_floods": 1,
    "subscriptions": 20_000,
    "readers_that_read_nothing": 2,
}
STAYING = ("leaf_floods", "subscriptions")
"""Attacks by clients that may stay: others do not suffer, and what they take is bounded."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    made = Attacked(binary, tmp_path_factory.mktemp("hostile"), login_s=1, max_pending=MAX_PENDING)
    try:
        made.start()
        yield made
    finally:
        made.server.close()


def run(attacked: Attacked, name: str) -> Outcome:
    """Run an attack; its connections stay until the server has ended them, if it is to do that."""

    async def hold(foes: Sequence[Foe]) -> None:
        if name not in STAYING:
            async with asyncio.timeout(ENDED_WITHIN_S):
                for foe in foes:
                    await foe.read_to_end()

    return asyncio.run(ATTACKS[name][0](attacked.target, COUNTS[name], hold))


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_clients_end_and_others_are_served(attacked: Attacked, name: str) -> None:
    login = CONNECT | {"user": "good", "pass": "good"}
    with Wire(attacked.target.port, login) as honest:
        honest.subscribe("honest")
        before_mb, _ = attacked.server.memory_mb()
        files = attacked.files()
        outcome = run(attacked, name)
        honest.publish("honest", b"still here")
        assert [frame.payload for frame in honest.fence(60)] == [b"still here"]
        until(
            lambda: attacked.server.memory_mb()[0] < before_mb + MEMORY_MB,
            f"less than {before_mb + MEMORY_MB:.0f} MiB, and {before_mb:.0f} before",
        )
        if name not in STAYING:
            until(lambda: attacked.files() <= files, f"{files} files, as before")
    assert outcome.opened
    if name not in STAYING:
        assert outcome.ended == outcome.opened
    if name == "guesses":
        assert set(outcome.errors) <= {"Authorization Violation", "Authentication Timeout"}


def test_every_attack_has_a_small_version() -> None:
    assert list(COUNTS) == list(ATTACKS)
