"""What to type when a part is missing: it must work from where the user stands."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import streamd
from streamd import installation
from streamd.installation import DISTRIBUTION, how_to_install

ROOT = Path(__file__).parents[2]


def test_the_distribution_is_the_one_that_is_built() -> None:
    """And its extras are those that messages name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    named = set().union(*installation._EXTRAS_OF_TARGET.values()) | {"java"}
    assert named == set(project["optional-dependencies"])


def test_a_checkout_is_told_to_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the directory, unless that is where the user is. The targets are there."""
    monkeypatch.chdir(ROOT)
    assert how_to_install("demo") == "make setup"
    assert how_to_install("spark", "java") == "make spark"
    monkeypatch.chdir(tmp_path)
    assert how_to_install("spark") == f"make -C {ROOT} spark"
    made = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in made for target in installation._EXTRAS_OF_TARGET)


def test_an_installed_package_is_told_to_pip(tmp_path: Path) -> None:
    """With the interpreter that runs, by the name of the distribution."""
    shutil.copytree(Path(streamd.__file__).parent, tmp_path / "streamd")
    code = "from streamd.installation import how_to_install; print(how_to_install('spark', 'java'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{sys.executable} -m pip install '{DISTRIBUTION}[spark,java]'\n"
