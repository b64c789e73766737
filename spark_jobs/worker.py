"""What a task does first in the Python process that Spark lends it: `settle`."""

from __future__ import annotations

import gc
import sys
from functools import cache
from typing import Any, Final

import pyarrow as pa

_BEGINS: Final = "Traceback (most recent call last):"
_FROM: Final = "pyspark/daemon.py"


@cache  # once per process: to ask how much is frozen takes as long as collecting
def settle() -> None:
    """Leave the modules of this process out of garbage collection from here on.

    Spark's worker collects garbage after each task (pyspark/daemon.py). It would walk what pandas,
    pyarrow and we have imported every time: 30 ms, of which nothing is ever garbage.
    """
    pa.array([])  # its first call imports pandas
    sys.stderr = _WithoutBrokenPipes(sys.stderr)
    gc.freeze()


class _WithoutBrokenPipes:
    """Standard error without the traceback that pyspark/daemon.py prints when Spark has closed the
    pipe of a task that has given it enough rows, which is how every limit ends."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held: list[str] = []  # a traceback whose last line has not come

    def write(self, text: str) -> int:
        if self._held or text.startswith(_BEGINS):
            self._held.append(text)
            if not text or text.startswith((" ", _BEGINS)):  # print writes its end, too
                return len(text)
            whole, self._held = "".join(self._held), []
            if not (text.startswith("BrokenPipeError") and _FROM in whole):
                self._stream.write(whole)
            return len(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
