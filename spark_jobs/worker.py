"""What a task does first in the Python process that Spark lends it."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa


@cache  # once per process: to ask how much is frozen takes as long as collecting
def settle() -> None:
    """Leave the modules of this process out of garbage collection from here on.

    Spark's worker collects garbage after each task (pyspark/daemon.py). It would walk what pandas,
    pyarrow and we have imported every time: 30 ms, of which nothing is ever garbage.
    """
    pa.array([])  # its first call imports pandas
    gc.freeze()
