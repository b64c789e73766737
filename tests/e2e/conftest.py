"""A server per test, on its own directory and ports.

STREAMD_BINARY chooses another binary: most of these tests hold for a real nats-server as well.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary

Start = Callable[..., ServerProcess]
MakeCluster = Callable[..., ClusterProcess]
Run = Callable[[Coroutine[Any, Any, None]], None]
_LOSSY = """#!{python}
import sys

sys.path.insert(0, {root!r})
from streamd.cli.server import main
from streamd.node import env
from tests.sim.overlay import OverlayDisk

assert env.OsDisk
env.OsDisk = OverlayDisk
sys.exit(main())
"""


@pytest.fixture
def binary() -> str:
    """The server under test."""
    found = ours_binary()
    if not found:
        pytest.skip("streamd is not installed beside this interpreter")
    return found


@pytest.fixture
def make_server(tmp_path: Path, binary: str) -> Iterator[Start]:
    """Makes servers (not started); they are killed at the end."""
    made: list[ServerProcess] = []

    def make(**options: Any) -> ServerProcess:
        directory = options.pop("directory", tmp_path / f"server{len(made)}")
        options.setdefault("binary", binary)
        made.append(ServerProcess(directory=directory, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def make_cluster(tmp_path: Path, binary: str) -> Iterator[MakeCluster]:
    """Makes running clusters; they are killed at the end."""
    made: list[ClusterProcess] = []

    def make(**options: Any) -> ClusterProcess:
        options.setdefault("binary", binary)
        made.append(ClusterProcess(directory=tmp_path / f"c{len(made)}", **options))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def lossy_binary(tmp_path: Path) -> str:
    """A streamd that loses, when it is killed, all that it did not sync: with an `OverlayDisk`."""
    if "STREAMD_BINARY" in os.environ:
        return ours_binary()
    program = tmp_path / "lossy-streamd"
    program.write_text(_LOSSY.format(python=sys.executable, root=str(Path(__file__).parents[2])))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def server(make_server: Start) -> ServerProcess:
    """One running server with JetStream."""
    made = make_server()
    made.start()
    return made


@pytest.fixture
def run() -> Run:
    """Runs one coroutine, within a minute."""

    def in_time(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 60))

    return in_time
