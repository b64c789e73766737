"""Keys of a terminal, each as it is pressed: `pressed_keys`."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_READ_BYTES: Final = 256


@contextmanager
def pressed_keys(take: Callable[[str], None]) -> Iterator[None]:
    """Hand keys to `take` as they are pressed, in a running event loop; lines are not edited and
    nothing is echoed meanwhile. Does nothing where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    number, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(number)

    def read() -> None:
        try:
            data = os.read(number, _READ_BYTES)
        except OSError:
            data = b""
        if data:
            take(data.decode(errors="ignore"))
        else:  # the terminal is gone
            loop.remove_reader(number)

    tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
