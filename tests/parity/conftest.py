"""Both servers, started once per session; and what comparisons see, if a run is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.compatibility import peer as peer_tables
from tests.parity.observed import Observed
from tests.parity.recording import FILE, Results
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import Wire


def _serve(binary: str, directory: Path) -> Iterator[ServerProcess]:
    with ServerProcess(binary, directory=directory) as server:
        server.start()
        yield server


def pytest_configure(config: pytest.Config) -> None:
    """Watch the tests of a process, and collect from all processes in the first."""
    if FILE:
        observed = Observed(peer_tables.REQUESTS, peer_tables.SYSTEM_SUBJECTS, ours_binary())
        Wire.observer = observed
        ServerProcess.on_configured = observed.configured
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Results(FILE), "parity results")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that compare, so that `make parity` runs them."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.comparison)


@pytest.fixture(autouse=True)
def _observed(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Hand on what the test has seen, with what its fixtures have for it and those after it."""
    yield
    if isinstance(Wire.observer, Observed):
        record_property("observed", Wire.observer.take())
        record_property("versions", Wire.observer.versions)


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    binary = peer_binary()
    if not binary:
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    yield from _serve(binary, tmp_path_factory.mktemp("peer"))


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    yield from _serve(binary, tmp_path_factory.mktemp("ours"))
