"""`ignore`: the callback of a caller that has no use for the result."""

from __future__ import annotations


def ignore(*values: object) -> None:
    """Take any result and drop it."""
