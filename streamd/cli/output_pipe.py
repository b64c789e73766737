"""Standard output that may not take what is printed: its reader has gone, as that of `| head` has,
its disk is full, or it is closed. No traceback, and no complaint of the interpreter at its end."""

from __future__ import annotations

import os
import sys

from streamd.errors import describe


def print_whole(text: str) -> None:
    """Print a text at once, as far as it can be written."""
    try:
        print(text)
    except OSError as err:
        _drop_output(err)
    else:
        finish_output()


def finish_output() -> bool:
    """Write what was printed. Returns False if that can't be done: the rest is dropped."""
    if sys.stdout is None:  # it was closed when the program started, and took nothing
        return True
    try:
        sys.stdout.flush()
    except OSError as err:
        return _drop_output(err)
    return True


def _drop_output(err: OSError) -> bool:
    """Send standard output nowhere: the interpreter flushes it once more when it ends. All but the
    end of a reader is told on standard error."""
    if not isinstance(err, BrokenPipeError):
        print(f"standard output: {describe(err)}", file=sys.stderr)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return False
