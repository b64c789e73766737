"""Installation of this checkout as a user has it: sources that git knows, wheel, environment."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def outside(**more: str) -> dict[str, str]:
    """Return the environment without this checkout on the path of modules, and `more`."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def run(*words: object, cwd: Path | None = None) -> str:
    """Run a program without this checkout on its path; return its output."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env=outside(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (words, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory that `make` has filled: once, in one of the processes that run tests."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    directory, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)  # of a process that failed at it
            directory.mkdir()
            make(directory)
            done.touch()
    return directory


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the sdist and the wheel that is made of it, from the files that git knows."""
    pytest.importorskip("build", reason="not installed: streamd-server[dev]")
    return made_once(tmp_path_factory, "packages", _build) / "dist"


def _build(root: Path) -> None:
    source = root / "source"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    if not names:
        pytest.skip("not a git checkout")
    for name in filter(None, names.split("\0")):
        file = ROOT / name
        if file.is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(file.read_bytes())
    run(sys.executable, "-m", "build", "--outdir", root / "dist", source)


def install(dist: Path, venv: Path) -> Path:
    """Install the wheel, and what it needs from the package index, into a new environment; return
    the directory of its programs. As in the image: by this interpreter's pip, there is none in it;
    and modules are compiled as they are imported, most never are."""
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (wheel,) = dist.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-compile", wheel)
    return venv / "bin"
