"""The sdist and the wheel: built and checked by twine. `test_story.py` installs the wheel."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.e2e.installation import ROOT, packages, run

pytest.importorskip("twine", reason="not installed: streamd-server[dev]")

__all__ = ["packages"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # installs, on a machine that may be busy


def test_what_is_published_is_whole(packages: Path) -> None:
    """All sources are in both packages, and nothing of the tests."""
    (wheel,) = packages.glob("streamd_server-*-py3-none-any.whl")
    (sdist,) = packages.glob("streamd_server-*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    packed = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(file.relative_to(ROOT))
        for room in ("streamd", "spark_jobs", "pyspark_streamd")
        for file in (ROOT / room).rglob("*")
        if file.is_file() and file.suffix in (".py", ".json", ".html", ".js", ".css", ".svg")
    }
    assert sources - packed == set()
    assert not [name for name in packed if name.startswith(("tests/", "benchmarks/"))]
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/pyproject.toml") for name in archive.getnames())
