"""Actions of an administrator on the dashboard, each after a name was typed; logins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e.cluster import api
from tests.e2e.ui.dashboard_bed import Page, store, ui_url
from tests.parity.runner import ours_binary
from tests.wire import CONNECT, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

USERS = """
accounts {
  APP { users: [{user: app, password: p}], jetstream: enabled }
  SYS { users: [{user: admin, password: p}] }
}
system_account: SYS
"""
LOGINS = "users: [{user: boss, password: b, role: administrator}, {user: eye, password: e}]"


def test_a_purge_asks_for_the_name(page: Page, ui_cluster: ClusterProcess) -> None:
    """Another name does nothing; the right one removes all messages, and the page says so."""
    api(ui_cluster, "STREAM.CREATE.PURGED", {"name": "PURGED", "subjects": ["purged"]})
    with Wire(ui_cluster.nodes["n1"].port) as wire:
        store(wire, "purged", b"x")
    page.open("streams/%24G/PURGED")
    page.see(".facts", "1 (1 to 1)")
    page.click("[data-action=purge]")
    page.see("dialog", "PURGED")
    page.fill("#confirm-name", "PURGE")
    assert page.run("return document.querySelector('dialog button[type=submit]').disabled")
    page.fill("#confirm-name", "PURGED")
    page.click("dialog button[type=submit]")
    page.gone("dialog")
    page.see(".facts", "0 (2 to 1)")
    assert page.texts(".note")
    assert api(ui_cluster, "STREAM.INFO.PURGED")["state"]["messages"] == 0


def test_leaders_step_down(page: Page, ui_cluster: ClusterProcess) -> None:
    """Leaders of a stream and of the meta group: another node leads then, and the page shows it."""
    config = {"name": "MOVED", "subjects": ["moved"], "num_replicas": 3}
    api(ui_cluster, "STREAM.CREATE.MOVED", config)
    page.open("streams/%24G/MOVED")
    before = ui_cluster.leader("MOVED")
    page.see(".facts", before)
    page.confirm("step_down", "MOVED")
    after = ui_cluster.leader("MOVED", but=before)
    page.until(
        "return [...document.querySelectorAll('.facts div')].some("
        "(row) => row.innerText.startsWith('Leader') && row.innerText.includes(arguments[0]))",
        after,
    )
    page.open("overview")
    leading = "return document.querySelector('.tag')?.closest('tr').dataset.key"
    led = page.until(leading)
    page.confirm("meta-step-down", led)
    page.until(f"{leading} !== arguments[0] && {leading.removeprefix('return ')}", led)


def test_a_consumer_pauses_and_resumes(page: Page, ui_cluster: ClusterProcess) -> None:
    """Pauses last until a time that the dialog asks for."""
    config = {"durable_name": "halted", "ack_policy": "explicit"}
    api(ui_cluster, "CONSUMER.CREATE.ORDERS.halted", {"stream_name": "ORDERS", "config": config})
    page.open("consumers/%24G/ORDERS/halted")
    page.see(".facts", "running")
    page.confirm("pause", "halted")
    page.see(".facts", "paused")
    assert api(ui_cluster, "CONSUMER.INFO.ORDERS.halted")["paused"]
    page.confirm("resume", "halted")
    page.see(".facts", "running")


@pytest.fixture
def guarded(ui_browser: Any, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose dashboard has users of its own."""
    server = ServerProcess(ours_binary(), directory=tmp_path / "server")
    port, server.http_port = server.http_port, 0  # the address stands in the block with the users
    server.configure(extra=f"{USERS}\nhttp {{ listen: 127.0.0.1:{port}, {LOGINS} }}")
    try:
        server.launch()
        server.wait_for_log("Server is ready")
        server.http_port = port
        yield server
    finally:
        server.close()


def test_a_login_is_asked_for_and_a_reader_only_reads(
    ui_browser: Any, guarded: ServerProcess
) -> None:
    """A wrong password is refused in words; a reader has no buttons; a logout ends the page."""
    with Wire(guarded.port, CONNECT | {"user": "app", "pass": "p"}) as wire:
        wire.api("STREAM.CREATE.OWN", {"name": "OWN", "subjects": ["own"]})
    page = Page(ui_browser, ui_url(guarded))
    page.browser.get(f"{page.url}#/streams/APP/OWN")
    page.see("h1", "Log in")
    log_in(page, "eye", "wrong")
    page.see(".error", " ")
    log_in(page, "eye", "e")
    page.see("#user", "eye (read only)")
    page.see("#replicas", "current")
    assert not page.count("[data-action]")
    page.click("#logout")
    page.see("h1", "Log in")
    log_in(page, "boss", "b")
    page.see("#user", "boss (administrator)")
    page.see("[data-action=purge]", "Purge")
    page.log()  # refusals are in the console as well


def log_in(page: Page, user: str, password: str) -> None:
    page.fill("#login-user", user)
    page.fill("#login-password", password)
    page.click("form button[type=submit]")
