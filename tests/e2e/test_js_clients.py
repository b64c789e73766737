"""The JavaScript clients (`@nats-io/*`) against our server, where Node exists."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent / "js"


@pytest.fixture(scope="session")
def modules() -> Path:
    """Where the packages are; installed on first use."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no Node here")
    wanted = HERE / "node_modules" / "@nats-io" / "obj"
    if not wanted.exists():
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, timeout=110, check=False
        )
        if done.returncode:
            pytest.skip(f"npm install failed: {done.stderr[-200:]}")
    return HERE


def test_javascript_clients_work(modules: Path, server: ServerProcess) -> None:
    done = subprocess.run(
        ["node", "all.mjs", server.url],
        cwd=modules,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
