"""Tests run in several processes at once (`-n`, see the Makefile); each has its own ports."""

from __future__ import annotations

import os

from benchmarks.servers import share_ports


def pytest_configure() -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        share_ports(int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
