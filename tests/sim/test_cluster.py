"""Whole clusters under faults, in one thread on virtual time: the simulator's own ways."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.sim.checkers import Probes
from tests.sim.cluster import SimCluster, small_limits
from tests.sim.faults import DirectedWorld
from tests.sim.world import SECOND, Violation, World


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--seeds", "2"], ["--seeds", "1", "--origins"]])
def test_one_seed_is_one_story(options: list[str]) -> None:
    """The trace of a seed is the same in processes that hash strings differently."""
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.sim", *options, "--hashes"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout[-2000:]
        hashes.add(tuple(line for line in done.stdout.splitlines() if line.startswith("seed ")))
    assert len(hashes) == 1, hashes


def test_an_event_that_repeats_in_no_time_is_reported() -> None:
    """Nothing that happens takes no time at all: a run in which time stands still would not end."""
    world = World(1)

    def again() -> None:
        world.after(0, again)

    world.after(SECOND, again)
    with pytest.raises(Violation, match="time stands still"):
        world.run(2 * SECOND)


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
        return host.node is not None and bool(host.node.parts.context.life.is_removed)

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
