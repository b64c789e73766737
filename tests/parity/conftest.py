"""Both servers, started once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary, peer_binary


def _serve(binary: str, directory: Path) -> Iterator[ServerProcess]:
    with ServerProcess(binary, directory=directory) as server:
        server.start()
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that compare, so that `make parity` runs them."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.comparison)


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
