"""That the simulator can see: servers that are broken on purpose are caught."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import run_seed
from tests.sim.mutants import MUTANTS, RARE, hunt
from tests.sim.mutants_varied import VARIED


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*MUTANTS, *VARIED])
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
