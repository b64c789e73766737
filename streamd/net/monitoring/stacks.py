"""Stacks of each thread and task of the server, as text; and its command line, without secrets."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from itertools import islice

from streamd.limits import MONITORING_PAGE
from streamd.net.monitoring.sliced_pages import Steps

_SHOWN = 6  # frames of a task, the innermost last
_SECRET = ("pass", "auth", "user", "route", "cluster", "token", "key")


def stacks() -> Steps[str]:
    """Write down the stack of each thread, then of the first tasks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, ident)}:\n{lines}")
        yield
    tasks = asyncio.all_tasks()
    parts.append(f"{len(tasks)} tasks\n")
    for task in islice(tasks, MONITORING_PAGE):
        yield
        frames = task.get_stack(limit=_SHOWN)
        lines = "".join(
            f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}\n"
            for frame in frames
        )
        parts.append(f"task {task.get_name()}:\n{lines}")
    return "\n".join(parts)


def command_line() -> list[str]:
    """Return what the process was called with, without the values of flags that may be secret."""
    shown: list[str] = []
    is_secret = False
    for word in sys.argv:
        flag, has_value, _ = word.partition("=")
        names_secret = word.startswith("-") and any(part in flag for part in _SECRET)
        if is_secret and not word.startswith("-"):
            shown.append("[REDACTED]")
        elif names_secret and has_value:
            shown.append(f"{flag}=[REDACTED]")
        else:
            shown.append(word)
        is_secret = names_secret and not has_value
    return shown
