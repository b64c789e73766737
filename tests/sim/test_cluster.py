"""Whole clusters under faults, in one thread on virtual time; and that the simulator can see."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.__main__ import Campaign, run_seed
from tests.sim.mutants import MUTANTS, hunt

# Seeds that once found something.
FINDERS = (6, 17, 22, 24, 62, 79, 113, 130, 146, 197, 246, 390, 629, 768)


@pytest.mark.slow
def test_no_promise_is_broken_whatever_fails() -> None:
    """Two dozen swarms of faults over clusters of 3 and 5 nodes."""
    campaign = Campaign()
    for seed in range(1, 25):
        campaign.add(run_seed(seed))
    assert campaign.violations == 0, "see the output for the command that replays it"
    assert campaign.counts["acked"] > 2000
    assert campaign.counts["double acked"] > 50
    assert campaign.counts["quorums checked"] > 1000


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


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_server_is_caught(name: str) -> None:
    """Each deliberately broken variant breaks a promise that the simulator notices."""
    seed, text = hunt(name)
    assert seed, f"{name} got away"
    assert text
