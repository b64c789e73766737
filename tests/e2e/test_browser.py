"""A page in a real browser: Chromium, with the JavaScript client, over wss with a test authority.

The authority is in the certificate database of the browser's own home directory, as an operator's
own would be; without it the browser refuses the server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.certificates import Authority
from tests.e2e.conftest import Start
from tests.e2e.javascript import modules

pytestmark = pytest.mark.slow
__all__ = ["modules"]  # a fixture

LOADED_WITHIN_S = 60


class QuietFiles(SimpleHTTPRequestHandler):
    """Files of one directory, without a line for each on standard error."""

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def page_url(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A web server with a page that has the client's packages in one file."""
    bundler = modules / "node_modules" / ".bin" / "esbuild"
    if not bundler.exists():
        pytest.skip("esbuild is not installed")
    site = tmp_path_factory.mktemp("site")
    (site / "index.html").write_text("<!doctype html><script src='page.js'></script>ready")
    command = [str(bundler), "page.mjs", "--bundle", f"--outfile={site / 'page.js'}"]
    subprocess.run(command, cwd=modules, check=True, capture_output=True, timeout=60)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(site)))
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()
    server.server_close()
    serving.join()


MakeBrowser = Callable[..., Any]


@pytest.fixture
def make_browser(tmp_path: Path) -> Iterator[MakeBrowser]:
    """Makes browsers with homes of their own, each with the authorities that it is to trust."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver", "certutil")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (chromium-driver, libnss3-tools)")
    webdriver = pytest.importorskip("selenium.webdriver")
    made: list[Any] = []

    def make(*authorities: Authority) -> Any:
        home = tmp_path / f"home{len(made)}"
        database = home / ".pki" / "nssdb"
        database.mkdir(parents=True)
        certutil = ["certutil", "-d", f"sql:{database}"]
        subprocess.run([*certutil, "-N", "--empty-password"], check=True, timeout=60)
        for at, authority in enumerate(authorities):
            adding = ["-A", "-t", "C,,", "-n", f"test {at}", "-i", authority.cert]
            subprocess.run([*certutil, *adding], check=True, timeout=60)
        options = webdriver.ChromeOptions()
        options.binary_location = programs["chromium"]
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            f"--user-data-dir={home / 'profile'}",
        ):
            options.add_argument(flag)
        service = webdriver.ChromeService(
            executable_path=programs["chromedriver"], env=os.environ | {"HOME": str(home)}
        )
        browser = webdriver.Chrome(options=options, service=service)
        made.append(browser)
        browser.set_page_load_timeout(LOADED_WITHIN_S)
        browser.set_script_timeout(LOADED_WITHIN_S)
        return browser

    yield make
    for browser in made:
        browser.quit()


def run(browser: Any, page: str, url: str, login: dict[str, str]) -> list[str]:
    """Open the page, and have it use the server."""
    browser.get(page)
    script = "const done = arguments[2]; run(arguments[0], arguments[1]).then(done);"
    found: list[str] = browser.execute_async_script(script, url, login)
    return found


def serving(make_server: Start, block: str) -> tuple[ServerProcess, int]:
    port = free_port()
    listener = f'websocket {{ listen: "127.0.0.1:{port}", {block} }}'
    users = "authorization { users: [{user: page, password: secret}] }"
    server: ServerProcess = make_server(extra=f"{listener}\n{users}")
    server.launch()
    server.wait_for_log("Server is ready")
    return server, port


def test_a_page_in_chromium_uses_streams_over_wss(
    make_server: Start, make_browser: MakeBrowser, page_url: str, tmp_path: Path
) -> None:
    """With the authority; without it, with a wrong password, or from another origin: refused."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    origin = page_url.removesuffix("/index.html")
    block = f'tls {{ {pair.block} }}, compression: true, allowed_origins: ["{origin}"]'
    server, port = serving(make_server, block)
    url = f"wss://localhost:{port}"
    good = {"user": "page", "pass": "secret"}
    browser = make_browser(authority)
    assert run(browser, page_url, url, good) == ["connected as page", "request", "fetched 200"]
    (refused,) = run(browser, page_url, url, good | {"pass": "wrong"})
    assert refused.startswith("failed:") and "uthorization" in refused
    (refused,) = run(browser, page_url.replace("127.0.0.1", "localhost"), url, good)
    assert refused.startswith("failed:")
    assert "origin not allowed: not in the allowed list" in server.log_file.read_text()
    stranger = make_browser()
    (refused,) = run(stranger, page_url, url, good)
    assert refused.startswith("failed:")
