"""Tests run in several processes at once (`-n`, see the Makefile); each has its own ports."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import pytest

from benchmarks.servers import share_ports

WORKERS_MAX = 4
LOOP_WITHIN_S = 60.0  # for a test that is a coroutine function


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), LOOP_WITHIN_S))
    return True


def pytest_configure() -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        share_ports(int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are cores: tests of real servers mostly wait."""
    return min(WORKERS_MAX, (os.cpu_count() or 1) + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the tests of Spark first, all to one process, where they share one JVM, and those of
    the dashboard to one, where they share a browser and a cluster; each other test goes to
    whichever process is idle."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = ("tests/spark/", "tests/e2e/ui/")
            return next((place for place in shared if nodeid.startswith(place)), nodeid)

    return Scheduling(config, log)
