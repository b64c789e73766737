"""Clusters for the scenarios. STREAMD_SEED chooses other dice for links, disks and elections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.scenarios.driver import Cluster

Make = Callable[..., Cluster]
ROUNDS = int(os.environ.get("STREAMD_ROUNDS", "0"))


def proof(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a long proof, run by `make prove`; STREAMD_ROUNDS makes it shorter or longer."""
    return pytest.mark.proof(pytest.mark.timeout(3600)(test))


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes running clusters of simulated nodes."""
    with ExitStack() as stack:

        def made(size: int = 3) -> Cluster:
            seed = int(os.environ.get("STREAMD_SEED", "1"))
            cluster = stack.enter_context(Cluster(size, seed=seed))
            cluster.boot()
            return cluster

        yield made


@pytest.fixture
def cluster(make: Make) -> Cluster:
    """Three nodes."""
    return make()
