"""Standard output whose reader may have gone, as that of `| head` has: no traceback, and no
complaint of the interpreter at its end."""

from __future__ import annotations

import os
import sys


def print_whole(text: str) -> bool:
    """Print a text at once. Returns False if nobody reads it any more."""
    try:
        print(text)
    except BrokenPipeError:
        return _drop_output()
    return finish_output()


def finish_output() -> bool:
    """Write what was printed. Returns False if nobody reads it any more: the rest is dropped."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _drop_output()
    return True


def _drop_output() -> bool:
    """Send standard output nowhere: the interpreter flushes it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return False
