"""Runs one row of the load generator in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GENERATOR_WITHIN_S = 600.0

Figures = dict[str, float]


class RunFailed(Exception):
    """Measurement without figures; the table shows a gap."""


def generate(port: int, call: str, args: dict[str, Any]) -> Figures:
    """Run one of `load_rows` against the server at `port`."""
    command = [sys.executable, "-m", "benchmarks.load_rows", "--port", str(port), "--row", call]
    done = subprocess.run(
        [*command, "--args", json.dumps(args)],
        capture_output=True,
        text=True,
        timeout=GENERATOR_WITHIN_S,
        cwd=HERE.parent,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": done.stderr[-500:]}
    if "error" in found:
        raise RunFailed(found["error"])
    return found
