"""The sdist and the wheel: built, checked by twine, installed into a clean environment, started.

The packages that the wheel needs come from the package index, as for a user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.servers import free_port

pytest.importorskip("build", reason="not installed: streamd-server[dev]")
pytest.importorskip("twine", reason="not installed: streamd-server[dev]")

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # installs, on a machine that may be busy


def run(*words: object, cwd: Path | None = None) -> str:
    """Run a program without this checkout on its path; its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (words, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what is published, made from the files that git knows."""
    root = tmp_path_factory.mktemp("packages")
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
    return root / "dist"


def check_content(dist: Path) -> None:
    """Both packages are whole: all sources, and nothing of the tests."""
    (wheel,) = dist.glob("streamd_server-*-py3-none-any.whl")
    (sdist,) = dist.glob("streamd_server-*.tar.gz")
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


def test_what_is_published_is_whole_and_serves(dist: Path, tmp_path: Path) -> None:
    """No extra is needed: the server starts, a stream is made and read with `streamctl`, and the
    server stops."""
    check_content(dist)
    run(sys.executable, ROOT / "tools" / "make_venv.py", tmp_path / "venv")
    (wheel,) = dist.glob("*.whl")
    installed = tmp_path / "venv" / "bin"
    run(installed / "python", "-m", "pip", "install", "--quiet", wheel)
    assert "streamd" in run(installed / "streamd", "--version", cwd=tmp_path).lower()
    port = free_port()
    server = subprocess.Popen(
        [
            str(installed / "streamd"), "-js", "-sd", str(tmp_path / "data"),
            "-a", "127.0.0.1", "-p", str(port),
        ],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    try:
        assert server.stderr is not None
        said: list[str] = []
        for line in server.stderr:
            said.append(line)
            if "Server is ready" in line:
                break
        else:
            pytest.fail("".join(said))
        streamctl = (installed / "streamctl", "--server", f"nats://127.0.0.1:{port}")
        run(*streamctl, "stream", "add", "ORDERS", "--subject", "orders.>", cwd=tmp_path)
        run(*streamctl, "pub", "orders.1", "hello", "--stream", cwd=tmp_path)
        shown = run(*streamctl, "stream", "info", "ORDERS", "--output", "json", cwd=tmp_path)
        assert '"last_seq": 1' in shown
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
