"""Checks of Kubernetes manifests, however they were made: the configuration that is in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSIONS = ("1.27", "1.30", "1.33")
SECRETS = {
    "cluster-password": "0123456789abcdef" * 2,
    "client-user": "app",
    "client-password": "$2a$11$PkNqYqUqPZ8bxYd3pPzBKOxDjyXGM0JcHzFYgbzMHW2hhmZzcbOla",
}

Document = dict[str, Any]


def container_of(stateful_set: Document) -> Document:
    """Return the only container of a StatefulSet."""
    (found,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return dict(found)


def check_config(text: str, stateful_set: Document, secret: str, directory: Path) -> None:
    """Have `streamd -t --strict` read a configuration with exactly the variables that the pods of
    the StatefulSet set, those of the Secret of that name included."""
    file = directory / "streamd.conf"
    file.write_text(text.replace("/data", str(directory / "data")), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    for variable in container_of(stateful_set)["env"]:
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] == secret
            environment[variable["name"]] = SECRETS[source["secretKeyRef"]["key"]]
        else:
            environment[variable["name"]] = "streamd-0"
    done = subprocess.run(
        [sys.executable, "-m", "streamd.cli.server", "-t", "--strict", "-c", str(file)],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
