"""Tests run in several processes at once (`-n`, see the Makefile); each has its own ports."""

from __future__ import annotations

import asyncio
import inspect
import os
import zlib

import pytest

from benchmarks.servers import share_ports

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one file in one process, and those of Spark in half of the processes: each
    starts a JVM, which is what they wait for most."""
    jvm_count = max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) // 2)
    for item in items:
        path = item.nodeid.partition("::")[0]
        if path.startswith("tests/spark/"):
            path = f"tests/spark {zlib.crc32(path.encode()) % jvm_count}"
        item.add_marker(pytest.mark.xdist_group(path))
