"""Contexts for parts of a node that are tested alone: only what the part needs is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class QuietLog:
    """Log of a node that nobody reads."""

    def info(self, text: str, **facts: Any) -> None: ...

    def warn(self, text: str, **facts: Any) -> None: ...

    def error(self, text: str, **facts: Any) -> None: ...


def context_of(name: str = "a", **parts: Any) -> Any:
    """Return as much of the context of node `name` of a cluster as `parts` say."""
    life = SimpleNamespace(is_running=True, is_stopping=False, is_removed=False)
    return SimpleNamespace(
        **{"name": name, "is_clustered": True, "log": QuietLog(), "life": life, **parts}
    )
