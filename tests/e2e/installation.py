"""Installation of this checkout as a user has it: sources that git knows, wheel, environment."""

from __future__ import annotations

import os
import subprocess
import sys
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


def build(root: Path, *kinds: str) -> Path:
    """Build the packages of `kinds` (as `--wheel`; none: all) from the files that git knows; return
    the directory with them."""
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
    run(sys.executable, "-m", "build", *kinds, "--outdir", root / "dist", source)
    return root / "dist"


def install(dist: Path, venv: Path) -> Path:
    """Install the wheel, and what it needs from the package index, into a new environment; return
    the directory of its programs."""
    run(sys.executable, ROOT / "tools" / "make_venv.py", venv)
    (wheel,) = dist.glob("*.whl")
    run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    return venv / "bin"
