"""Whole clusters under faults, in one thread on virtual time; and that the simulator can see."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.sim.__main__ import run_seed, run_seeds
from tests.sim.checkers import Probes
from tests.sim.cluster import SimCluster, small_limits
from tests.sim.faults import DirectedWorld
from tests.sim.mutants import MUTANTS, RARE, hunt
from tests.sim.world import SECOND

SEEDS = int(os.environ.get("STREAMD_SEEDS", "300"))

# Seeds that once found something, in the worlds of their day.
FINDERS = (
    6, 17, 22, 24, 62, 78, 79, 113, 130, 146, 169, 197, 246, 390, 629, 768, 3004, 3070,
    20031, 20057, 20353, 20369, 20546, 20709, 20884, 21110, 21222, 21316, 21822, 21924,
    30111, 31157, 31457, 31667, 50158, 50728, 60380, 61423, 66314, 68321,
    711349, 721152, 910720,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_promise_is_broken_whatever_fails() -> None:
    """Swarms of faults over clusters of 3 and 5 nodes, on as many cores as there are, up to two.

    What every fault, order and named point must have done at least once is counted as well.
    """
    campaign = run_seeds(range(1, SEEDS + 1), jobs=min(2, os.cpu_count() or 1))
    campaign.report()
    print(campaign.last_line())
    assert campaign.violations == 0, "see the output for the command that replays it"
    assert campaign.counts["acked"] > 80 * SEEDS
    assert campaign.counts["quorums checked"] > 40 * SEEDS
    if SEEDS >= 100:
        assert not campaign.missing()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_promise_is_broken_where_loss_follows_loss() -> None:
    """Few kinds of faults, but fast; one copy after the other is destroyed."""
    campaign = run_seeds(range(1, SEEDS // 6 + 2), jobs=min(2, os.cpu_count() or 1), is_harsh=True)
    campaign.report()
    print(campaign.last_line())
    assert campaign.violations == 0, "see the output for the command that replays it"
    assert campaign.counts["acked"] > 40 * campaign.seeds


@pytest.mark.slow
@pytest.mark.parametrize("seed", FINDERS)
def test_a_seed_that_found_a_bug_finds_none(seed: int) -> None:
    """What was found stays mended (as far as the same seed still leads there)."""
    outcome = run_seed(seed)
    assert not outcome.violation, outcome.violation


def test_one_seed_is_one_story() -> None:
    """The trace of a seed is the same in processes that hash strings differently."""
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.sim", "--seeds", "2", "--hashes"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout[-2000:]
        hashes.add(tuple(line for line in done.stdout.splitlines() if line.startswith("seed ")))
    assert len(hashes) == 1, hashes


def test_a_replica_that_is_behind_when_a_second_begins_is_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Consumers that deliver again every second left it a few ms behind at each look, for it was
    looked at once a second, also if it was not asked then: seed 69021."""
    cluster = SimCluster(1, directed=DirectedWorld((), node_count=3))
    looked_us = -SECOND

    def missing_at(host: Any, *, is_current: bool) -> str:
        nonlocal looked_us
        since_us, looked_us = cluster.world.now_us - looked_us, cluster.world.now_us
        return "behind" if since_us >= SECOND else ""

    with Probes(cluster.checkers), small_limits():
        cluster._be_born()
        monkeypatch.setattr(cluster, "missing_at", missing_at)
        cluster._examine()


def test_a_removed_server_is_replaced_before_it_is_removed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then it may run with its data, and seems to lack nothing. Removed once more, it was to
    start again after it had been told, which it rightly refuses: seed 81468."""
    cluster = SimCluster(1, directed=DirectedWorld((), node_count=5))
    host, faults = cluster.hosts["n1"], cluster.faults

    def is_told() -> bool:
        return host.node is not None and bool(host.node.removals.reason)

    with Probes(cluster.checkers), small_limits():
        cluster._be_born()
        faults.start()
        monkeypatch.setattr(faults, "_victim", lambda: host)
        host.restart_wanted = False
        host.kill()
        faults._remove(host, 0, set(), has_data=True)
        cluster._await("word of the removal", 5 * SECOND, is_told)
        assert cluster.is_whole(host)
        assert faults._server_removal() is None
        cluster._await("a replacement", 10 * SECOND, lambda: host.restart_wanted)
        cluster._await("a member", 10 * SECOND, lambda: cluster.is_whole(host))


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_server_is_caught(name: str) -> None:
    """Each deliberately broken variant breaks a promise that the simulator notices."""
    seed, text = hunt(name)
    assert seed, f"{name} got away"
    assert text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, world in RARE.items() if world.caught_by])
def test_a_broken_server_is_caught_where_its_faults_meet(name: str) -> None:
    """Some need a rare meeting of faults: a world that has little else, seeds near one that tells.

    Without what is broken, the same seeds find nothing.
    """
    world = RARE[name]
    seed, text = hunt(name, first_seed=world.caught_by, seeds=1, world=world)
    assert seed, f"{name} got away"
    assert text
    assert not run_seed(world.caught_by, world=world).violation
