"""The JavaScript clients (`@nats-io/*`) against our server, where Node exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess
from tests.e2e.javascript import modules, run_node

__all__ = ["modules"]  # a fixture
pytestmark = pytest.mark.slow


def test_javascript_clients_work(modules: Path, server: ServerProcess) -> None:
    run_node(modules, "all.mjs", server.url)
