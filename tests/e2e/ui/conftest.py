"""A cluster, a browser and a page for all tests of the dashboard: they run in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e.ui.dashboard_bed import Page, chromium, fill_cluster, find_programs, ui_url
from tests.parity.runner import ours_binary


@pytest.fixture(scope="session")
def ui_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium; skips where it, its driver or selenium is not installed."""
    if find_programs() is None:
        pytest.skip("not installed: chromium, chromedriver (apt-get install chromium-driver)")
    pytest.importorskip("selenium.webdriver", reason="not installed: selenium")
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="session")
def ui_cluster(
    ui_browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """Three nodes with streams, a bucket and a consumer. A test leaves the nodes running."""
    if not ours_binary():
        pytest.skip("streamd is not installed beside this interpreter")
    found = ClusterProcess(ours_binary(), directory=tmp_path_factory.mktemp("ui"))
    try:
        found.start()
        fill_cluster(found)
        yield found
    finally:
        found.close()


@pytest.fixture
def alone(ui_browser: Any, tmp_path: Path) -> Iterator[ServerProcess]:
    """Server of its own for a test, with nothing in it."""
    if not ours_binary():
        pytest.skip("streamd is not installed beside this interpreter")
    with ServerProcess(ours_binary(), directory=tmp_path / "alone") as server:
        server.start()
        yield server


@pytest.fixture
def page(ui_browser: Any, ui_cluster: ClusterProcess) -> Iterator[Page]:
    """The dashboard of n1, wide and light; nothing may be left in the console that is an error."""
    found = Page(ui_browser, ui_url(ui_cluster.nodes["n1"]))
    found.scheme("light")
    ui_browser.get("about:blank")
    found.log()
    yield found
    assert found.log() == []
