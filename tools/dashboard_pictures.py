"""Pictures of the dashboard for docs/: `python -m tools.dashboard_pictures` writes docs/images.

Starts three nodes on loopback with some streams and a little traffic, opens the pages in Chromium
and takes each once. Needs chromium, chromedriver and selenium, as the tests of the dashboard do.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.cluster import ClusterProcess
from tests.e2e.cluster import api
from tests.e2e.ui.dashboard_bed import Page, chromium, find_programs, store, ui_url
from tests.parity.runner import ours_binary
from tests.wire import CONNECT, Wire

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1200, "height": 820, "deviceScaleFactor": 1, "mobile": False}
SAMPLES = 20  # seconds of rates in the pictures

# Name, route, scheme; what is there once the page is whole, what is clicked, what is there then.
PICTURES = [
    ("dashboard-overview", "overview", "light", ("#nodes", "n3"), "", ("#nodes", "n3")),
    (
        "dashboard-stream",
        "streams/%24G/ORDERS",
        "dark",
        ("#replicas", "n3"),
        ".block",
        ("#blocks", "Last scrub"),
    ),
    (
        "dashboard-messages",
        "streams/%24G/ORDERS?tab=messages",
        "light",
        ("#messages", "orders.eu"),
        "#messages summary",
        ("#messages pre", '"order"'),
    ),
]


def main() -> int:
    """Write the pictures; the exit status."""
    if find_programs() is None:
        print("not installed: chromium, chromedriver", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        ClusterProcess(ours_binary(), directory=Path(directory) / "nodes") as cluster,
        chromium(Path(directory) / "home") as browser,
    ):
        cluster.start()
        _fill(cluster)
        is_over = threading.Event()
        traffic = threading.Thread(target=_publish, args=(cluster, is_over))
        traffic.start()
        try:
            _take(Page(browser, ui_url(cluster.nodes["n1"])))
        finally:
            is_over.set()
            traffic.join()
    return 0


def _fill(cluster: ClusterProcess) -> None:
    """Some streams, a consumer that lags, a bucket."""
    for name, subject in (("ORDERS", "orders.>"), ("PAYMENTS", "payments.>"), ("LOGS", "logs.>")):
        config = {"name": name, "subjects": [subject], "num_replicas": 3}
        api(cluster, f"STREAM.CREATE.{name}", config)
    consumer = {"durable_name": "billing", "ack_policy": "explicit"}
    body = {"stream_name": "ORDERS", "config": consumer}
    api(cluster, "CONSUMER.CREATE.ORDERS.billing", body)
    with Wire(cluster.nodes["n1"].port) as wire:
        for number in range(60_000):
            order = {"order": number, "total": 10 + number % 90, "items": ["tea", "cup"]}
            subject = f"orders.{('eu', 'us', 'asia')[number % 3]}"
            wire.publish(subject, json.dumps(order).encode())
        wire.fence(60)
        store(wire, "orders.eu", b'{"order": 60000}')


def _publish(cluster: ClusterProcess, is_over: threading.Event) -> None:
    """A little traffic, until it is over."""
    node = cluster.nodes["n1"]
    with Wire(node.port, CONNECT | {"name": "shop"}) as wire:
        number = 0
        while not is_over.wait(0.05):
            for name in ("orders.eu", "payments.card", "logs.web"):
                wire.publish(name, b'{"number": %d}' % number)
            number += 1
            wire.fence(60)


def _take(page: Page) -> None:
    page.cdp("Emulation.setDeviceMetricsOverride", **SIZE)
    page.open("overview")
    page.until(
        "window.samples = (window.samples ?? new Set());"
        "window.samples.add(document.querySelector('#nodes')?.innerText);"
        f"return window.samples.size >= {SAMPLES}"
    )
    for name, route, scheme, before, clicked, after in PICTURES:
        page.scheme(scheme)
        page.open(route)
        page.see(*before)
        if clicked:
            page.click(clicked)
        page.see(*after)
        path = IMAGES / f"{name}.png"
        path.write_bytes(page.browser.get_screenshot_as_png())
        print(f"{path.relative_to(IMAGES.parents[1])}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
