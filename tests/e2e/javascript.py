"""JavaScript clients (`@nats-io/*`): their packages, and programs that use them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "js"


@pytest.fixture(scope="session")
def modules() -> Path:
    """Directory with the packages; they are installed on first use, by one process of the tests."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no Node here")
    lock = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = HERE / "node_modules"
        if not all((packages / each).exists() for each in ("@nats-io/obj", "esbuild")):
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
            done = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, timeout=110, check=False
            )
            if done.returncode:
                pytest.skip(f"npm install failed: {done.stderr[-200:]}")
    finally:
        os.close(lock)
    return HERE


def run_node(modules: Path, *arguments: str) -> None:
    """Run a program of `modules` with Node; it must end well."""
    done = subprocess.run(
        ["node", *arguments],
        cwd=modules,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
