"""The dashboard while something is wrong: a node goes, a block is damaged, streams are many."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from streamd.limits import DASHBOARD_LIVE_MAX
from tests.browser import Browser
from tests.e2e.cluster import api
from tests.e2e.ui.dashboard_bed import Page, store, ui_url
from tests.parity.runner import ours_binary
from tests.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STREAMS = 5000
TOGETHER = 100  # requests that wait for an answer


def blocks_of(node: ServerProcess, marker: bytes) -> list[Path]:
    """Files of blocks that hold `marker`."""
    found = []
    for path in node.store_dir.rglob("*.blk"):
        with contextlib.suppress(FileNotFoundError):  # a replica that is made anew
            if marker in path.read_bytes():
                found.append(path)
    return found


def flip(path: Path, marker: bytes) -> None:
    """Change a byte of the first payload that has `marker`; a second time, change it back."""
    content = bytearray(path.read_bytes())
    at = content.index(marker[:-1]) + len(marker) - 1
    content[at] ^= 4
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content[at : at + 1])


def test_damage_is_shown_and_so_is_its_end(page: Page, ui_cluster: ClusterProcess) -> None:
    """A byte of a stream's only copy turns: after a scrub the block is crossed and the stream's
    health says why; once the byte is back, another scrub ends it."""
    api(ui_cluster, "STREAM.CREATE.ROTTEN", {"name": "ROTTEN", "subjects": ["rotten"]})
    marker = b"the payload that rots"
    with Wire(ui_cluster.nodes["n1"].port) as wire:
        for number in range(50):
            store(wire, "rotten", marker if number == 20 else b"whole")
    leader = ui_cluster.nodes[ui_cluster.leader("ROTTEN")]
    there = Page(page.browser, ui_url(leader))
    there.open("streams/%24G/ROTTEN")
    there.see("#blocks", "no damage known")
    there.confirm("scrub", "ROTTEN")  # which has it written
    (block,) = ui_cluster.wait_until(lambda: blocks_of(leader, marker), "written")
    flip(block, marker)
    there.confirm("scrub", "ROTTEN")
    there.see("#blocks", "1 damaged")
    assert "DAMAGED" in there.run(
        "return document.querySelector('.block.damaged').getAttribute('aria-label')"
    )
    flip(block, marker)
    there.confirm("scrub", "ROTTEN")
    there.see("#blocks", "no damage known")


def test_a_damaged_replica_is_healed_by_the_others(page: Page, ui_cluster: ClusterProcess) -> None:
    """A byte of a follower's block turns; a scrub finds it, a peer has it right, and the events of
    that node tell of both."""
    config = {"name": "HEALED", "subjects": ["healed"], "num_replicas": 3}
    api(ui_cluster, "STREAM.CREATE.HEALED", config)
    marker = b"the payload that is healed"
    with Wire(ui_cluster.nodes["n1"].port) as wire:
        for number in range(50):
            store(wire, "healed", marker if number == 20 else b"whole")
    ui_cluster.wait_until(lambda: ui_cluster.is_whole("HEALED"), "whole")
    led = ui_cluster.leader("HEALED")
    node = next(node for name, node in ui_cluster.nodes.items() if name != led)
    there = Page(page.browser, ui_url(node))
    there.open("streams/%24G/HEALED")
    there.see("#replicas", "current")
    there.confirm("scrub", "HEALED")  # which has it written
    (block,) = ui_cluster.wait_until(lambda: blocks_of(node, marker), "written")
    flip(block, marker)
    there.confirm("scrub", "HEALED")
    there.open("events")
    there.see("#events", "is damaged")
    there.open("streams/%24G/HEALED")
    there.see("#blocks", "no damage known")
    there.until(
        "return document.querySelector('#replicas').innerText.split('equal').length === 4",
        what="three equal digests",
    )

    def is_written() -> list[Path]:
        there.confirm("scrub", "HEALED")  # which has what is held written
        return blocks_of(node, marker)

    ui_cluster.wait_until(is_written, "healed")


def test_a_node_that_dies_is_told_and_the_page_goes_on_at_another(
    ui_browser: Any, ui_cluster: ClusterProcess
) -> None:
    """The banner names the node; then the same page is open at a node that lives. A node that
    comes back is live again by itself."""
    page = Page(ui_browser, ui_url(ui_cluster.nodes["n2"]))
    page.open("streams/%24G/ORDERS")
    page.see("#replicas", "n3")
    ui_cluster.kill("n2")
    try:
        page.see("#banner", "n2 does not answer")
        page.until("return !location.href.startsWith(arguments[0])", page.url)
        page.see("h1", "ORDERS")
        page.see("#live", ": live")
        assert page.run("return location.hash") == "#/streams/%24G/ORDERS"
        page.browser.get(f"{page.run('return location.href').partition('#')[0]}#/overview")
        page.see("#nodes", "away")
    finally:
        ui_cluster.start()
    page.see("#health", "Healthy")
    page.log()  # refused connections


def test_a_node_that_hangs_is_left_as_well(ui_browser: Any, ui_cluster: ClusterProcess) -> None:
    """The node takes connections and answers none of them."""
    node = ui_cluster.nodes["n3"]
    page = Page(ui_browser, ui_url(node))
    page.open("streams")
    page.see("tbody", "ORDERS")
    node.send(signal.SIGSTOP)
    try:
        page.see("#banner", "n3 does not answer")
        page.until("return !location.href.startsWith(arguments[0])", page.url)
        page.see("tbody", "ORDERS")
    finally:
        node.send(signal.SIGCONT)
    ui_cluster.start()
    page.log()  # requests that were given up


def test_a_page_that_is_refused_its_events_asks_at_a_pace(
    ui_browser: Any, alone: ServerProcess
) -> None:
    """A server serves so many event streams: one more page asks once a second, not as fast as it is
    refused, and is live as soon as others have gone."""
    page = Page(ui_browser, ui_url(alone))
    with contextlib.ExitStack() as others:
        for _ in range(DASHBOARD_LIVE_MAX):
            others.enter_context(Browser(alone.http_port).stream("live")).wait("overview")
        page.browser.get(f"{page.url}#/streams")
        asked = page.until(
            "const asked = performance.getEntriesByType('resource')"
            ".filter((entry) => entry.name.endsWith('/api/session'));"
            "return asked.length >= 5 && asked.map((entry) => entry.startTime)"
        )
        assert asked[4] - asked[1] > 2500
    page.see("#live", ": live")
    page.log()  # the refusals


def test_a_tail_goes_on_once_its_stream_is_back(ui_browser: Any, alone: ServerProcess) -> None:
    """The stream is deleted, so the server refuses its tail; then it is created again."""
    config = {"name": "BACK", "subjects": ["back"]}
    page = Page(ui_browser, ui_url(alone))
    with Wire(alone.port) as wire:
        wire.api("STREAM.CREATE.BACK", config)
        page.open("streams/%24G/BACK?tab=tail")
        page.see("[role=status]", "Listening")
        wire.api("STREAM.DELETE.BACK")
        page.see("[role=status]", "trying again")
        # Once refused, which is the second time, a browser by itself asks no more.
        page.until(
            "return performance.getEntriesByType('resource')"
            ".filter((entry) => entry.name.includes('/BACK/tail')).length >= 3"
        )
        wire.api("STREAM.CREATE.BACK", config)
        page.see("[role=status]", "Listening")
    page.log()  # the refusals


@pytest.fixture
def crowded(ui_browser: Any, tmp_path: Path) -> Iterator[ServerProcess]:
    """One server with 5,000 streams."""
    server = ServerProcess(ours_binary(), directory=tmp_path / "crowded")
    try:
        server.start()
        with Wire(server.port) as wire:
            wire.subscribe(f"{wire.inbox}.*")
            for first in range(0, STREAMS, TOGETHER):
                for number in range(first, first + TOGETHER):
                    name, subjects = f"S{number:04}", [f"crowd.{number}"]
                    config = {"name": name, "subjects": subjects, "storage": "memory"}
                    body = json.dumps(config).encode()
                    wire.publish(f"$JS.API.STREAM.CREATE.{name}", body, reply=f"{wire.inbox}.c")
                answers = wire.collect(count=TOGETHER, within_s=60)
                assert len(answers) == TOGETHER
                assert not [each for each in answers if b'"error"' in each.payload]
        yield server
    finally:
        server.close()


def test_five_thousand_streams_are_paged_by_the_server(
    ui_browser: Any, crowded: ServerProcess
) -> None:
    """Fifty rows are fetched, sorted and filtered there; the address keeps the place."""
    page = Page(ui_browser, ui_url(crowded))
    page.open("streams")
    page.see(".range", "1–50 of 5,000")
    assert page.count("tbody tr") == 50
    page.click("[aria-label='Last page']")
    page.see(".range", "4,951–5,000 of 5,000")
    page.see("tbody", "S4999")
    page.browser.refresh()
    page.see("tbody", "S4999")
    page.click("th[data-sort=name] button")
    page.see("tbody tr", "S4999")
    page.see(".range", "1–50 of 5,000")
    page.fill("#filter", "S123")
    page.see(".range", "1–10 of 10")
    page.until("return document.querySelectorAll('tbody tr').length === 10")
    assert page.log() == []
