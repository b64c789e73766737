"""Names the command that installs a missing part of this program, from where its user stands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

DISTRIBUTION = "streamd-server"  # on a package index; `streamd` there is another project's
_EXTRAS_OF_TARGET = {"setup": {"demo", "dev"}, "spark": {"demo", "dev", "spark", "connect"}}


def how_to_install(*extras: str) -> str:
    """Return the command that installs the optional parts `extras`: `make spark` in a checkout,
    pip with this very interpreter elsewhere."""
    root = Path(__file__).parents[1]
    if (root / "Makefile").exists() and (root / "pyproject.toml").exists():
        for target, brought in _EXTRAS_OF_TARGET.items():
            if brought.issuperset(set(extras) - {"java"}):
                where = "" if Path.cwd() == root else f" -C {shlex.quote(str(root))}"
                return f"make{where} {target}"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install '{DISTRIBUTION}[{','.join(extras)}]'"
