"""Create the virtual environment at the path given, also where Python lacks `ensurepip`.

Some distributions split `ensurepip` off, and then `python3 -m venv` fails or leaves an environment
without pip. In that case this script gets pip from wherever there is one: a pip or virtualenv of
the system, uv, or, last, the official bootstrap script.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

OLDEST = (3, 11)
BOOTSTRAP = "https://bootstrap.pypa.io/get-pip.py"


def main() -> int:
    if sys.version_info < OLDEST:
        newer = next((path for minor in range(14, 10, -1) if (path := _which(minor))), None)
        if newer is None:
            wanted = ".".join(map(str, OLDEST))
            print(f"Python {wanted} or newer is needed, this is {sys.version}", file=sys.stderr)
            return 1
        return subprocess.call([newer, *sys.argv])
    target = Path(sys.argv[1])
    if _has_pip(target):
        return 0
    for build in (_with_venv, _with_virtualenv, _with_uv, _with_system_pip, _with_bootstrap):
        if build(target) and _has_pip(target):
            return 0
    print("no way to get pip into a virtual environment: install python3-venv", file=sys.stderr)
    return 1


def _which(minor: int) -> str | None:
    """A Python 3.<minor> that really starts: version managers leave shims for absent ones."""
    path = shutil.which(f"python3.{minor}")
    return path if path and _runs([path, "-c", ""]) else None


def _runs(command: list[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _python(target: Path) -> str:
    return str(target / "bin" / "python")


def _has_pip(target: Path) -> bool:
    return _runs([_python(target), "-m", "pip", "--version"])


def _with_venv(target: Path) -> bool:
    return _runs([sys.executable, "-m", "venv", "--clear", str(target)])


def _with_virtualenv(target: Path) -> bool:
    return _runs([sys.executable, "-m", "virtualenv", "--clear", str(target)])


def _with_uv(target: Path) -> bool:
    uv = shutil.which("uv")
    command = [uv or "uv", "venv", "--clear", "--seed", "--python", sys.executable, str(target)]
    return uv is not None and _runs(command)


def _bare(target: Path) -> bool:
    """An environment without pip: that much works without ensurepip."""
    return _runs([sys.executable, "-m", "venv", "--clear", "--without-pip", str(target)])


def _with_system_pip(target: Path) -> bool:
    if not _bare(target):
        return False
    return _runs([sys.executable, "-m", "pip", "--python", _python(target), "install", "pip"])


def _with_bootstrap(target: Path) -> bool:
    if not _bare(target):
        return False
    with tempfile.TemporaryDirectory() as directory:
        script = os.path.join(directory, "get-pip.py")
        try:
            urllib.request.urlretrieve(BOOTSTRAP, script)
        except OSError as err:
            print(f"{BOOTSTRAP}: {err}", file=sys.stderr)
            return False
        return _runs([_python(target), script])


if __name__ == "__main__":
    sys.exit(main())
