"""The Python processes that Spark lends to tasks and plans: `settle`, `quiet_broken_pipes`."""

from __future__ import annotations

import gc
import sys
from functools import cache
from typing import Any, Final

import pyarrow as pa

_BEGINS: Final = "Traceback (most recent call last):"
_DAEMON: Final = "pyspark.daemon"
_FROM: Final = "pyspark/daemon.py"


@cache  # once per process: to ask how much is frozen takes as long as collecting
def settle() -> None:
    """Leave the modules of this process out of garbage collection from here on.

    Spark's worker collects garbage after each task (pyspark/daemon.py). It would walk what pandas,
    pyarrow and we have imported every time: 30 ms, of which nothing is ever garbage.
    """
    pa.array([])  # its first call imports pandas
    quiet_broken_pipes()
    gc.freeze()


def quiet_broken_pipes() -> None:
    """Keep the end of a pipe off this process's standard error, if Spark's daemon started it.

    Spark closes the pipe of a planning process, too, as soon as it has the plan.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_lent = main is not None and main.name == _DAEMON
    if is_lent and not isinstance(sys.stderr, _WithoutBrokenPipes):
        sys.stderr = _WithoutBrokenPipes(sys.stderr)


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
