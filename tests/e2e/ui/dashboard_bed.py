"""The dashboard in Chromium: a browser, a page of it, a cluster with something to see.

`Page` waits on what the page itself shows, never on time.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e.cluster import api
from tests.wire import CONNECT, Wire

SHOWN_WITHIN_S = 60.0
POLL_S = 0.05
HOSTILE = "<img/src=x/onerror=hacked=1>"
"""A word that is markup: as a token of a subject, a key, a client's name."""
_SEVERE = "SEVERE"

# Colours of all text that is seen, as [text, ground, words]; grounds may be transparent.
_CONTRASTS = """
const seen = [];
const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const words = walker.currentNode.textContent.trim();
  const holder = walker.currentNode.parentElement;
  if (!words || !holder.checkVisibility({ visibilityProperty: true })) continue;
  if (holder.closest("svg, :disabled, noscript, .skip")) continue;
  let ground = holder;
  const back = (one) => parse(getComputedStyle(one).backgroundColor);
  while (ground && (back(ground)[3] ?? 1) === 0) ground = ground.parentElement;
  const behind = ground ? back(ground) : [255, 255, 255];
  seen.push([parse(getComputedStyle(holder).color), behind, words.slice(0, 40)]);
}
return seen;
"""


def find_programs() -> tuple[str, str] | None:
    """The browser and its driver; None if one is not installed."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    return (found[0], found[1]) if found[0] and found[1] else None


@contextmanager
def chromium(home: Path) -> Iterator[Any]:
    """A browser without a window, whose files are all in `home`."""
    from selenium import webdriver

    programs = find_programs()
    assert programs is not None
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--force-color-profile=srgb",
        "--window-size=1280,900",
        f"--user-data-dir={home / 'profile'}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    home.mkdir(parents=True, exist_ok=True)
    service = webdriver.ChromeService(
        executable_path=programs[1], env=os.environ | {"HOME": str(home), "TZ": "UTC"}
    )
    browser = webdriver.Chrome(options=options, service=service)
    try:
        browser.set_page_load_timeout(SHOWN_WITHIN_S)
        browser.set_script_timeout(SHOWN_WITHIN_S)
        yield browser
    finally:
        browser.quit()


def ui_url(server: ServerProcess) -> str:
    """Address of a server's dashboard."""
    return f"http://127.0.0.1:{server.http_port}/ui/"


class Page:
    """A dashboard as a person has it: addresses, texts, clicks, keys."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        self.url = url
        browser.get("about:blank")  # the page of an earlier test may still ask a server that ended
        self.log()

    def open(self, route: str = "overview") -> None:
        """Go to `#/route` and wait until the page is live there."""
        self.browser.get(f"{self.url}#/{route}")
        self.see("#live", ": live")

    def run(self, script: str, *given: Any) -> Any:
        """The value that a function body of JavaScript returns."""
        return self.browser.execute_script(script, *given)

    def until(self, script: str, *given: Any, what: str = "") -> Any:
        """Run a function body again and again until it returns something that is true."""
        from selenium.common.exceptions import WebDriverException

        deadline = time.monotonic() + SHOWN_WITHIN_S
        while True:
            try:
                found = self.run(script, *given)
            except WebDriverException as err:  # the page is being left for another
                found = None
                if "javascript error" not in str(err) and "unload" not in str(err):
                    raise
            if found:
                return found
            if time.monotonic() > deadline:
                shown = self.run("return document.body.innerText")
                raise AssertionError(f"never: {what or script} {given}\n{self.log()}\n{shown}")
            time.sleep(POLL_S)

    def see(self, selector: str, words: str) -> str:
        """Wait until an element's text has `words`; return the text."""
        return str(
            self.until(
                "const all = [...document.querySelectorAll(arguments[0])].map((e) => e.innerText);"
                "return all.find((text) => text.includes(arguments[1]))",
                selector,
                words,
            )
        )

    def gone(self, selector: str) -> None:
        """Wait until nothing matches."""
        self.until("return !document.querySelector(arguments[0])", selector)

    def texts(self, selector: str) -> list[str]:
        """Texts of all elements that match."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)"
        found: list[str] = self.run(script, selector)
        return found

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str) -> None:
        """Click as a mouse does, once the element is there."""
        found = self.until("return document.querySelector(arguments[0])", selector)
        found.click()

    def fill(self, selector: str, words: str) -> None:
        """Type into an empty input."""
        found = self.until("return document.querySelector(arguments[0])", selector)
        found.clear()
        found.send_keys(words)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.browser.switch_to.active_element.send_keys(*keys)

    def focused(self, script: str = "return document.activeElement.innerText") -> str:
        return str(self.run(script))

    def confirm(self, verb: str, name: str) -> None:
        """Click an action, type the name, say yes, wait until it is done."""
        self.click(f"[data-action={verb}]")
        self.fill("#confirm-name", name)
        self.click("dialog button[type=submit]")
        self.gone("dialog")

    def log(self) -> list[str]:
        """Errors of the console since the last call; violations of the CSP are among them."""
        return [each["message"] for each in self.browser.get_log("browser") if _is_error(each)]

    def cdp(self, command: str, **given: Any) -> None:
        self.browser.execute_cdp_cmd(command, given)

    @contextmanager
    def narrow(self, width: int = 360) -> Iterator[None]:
        """The width of a small telephone."""
        metrics = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)
        try:
            yield
        finally:
            self.cdp("Emulation.clearDeviceMetricsOverride")

    def scheme(self, name: str) -> None:
        """Prefer "dark" or "light" colours, as a system does."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.cdp("Emulation.setEmulatedMedia", features=[feature])

    def low_contrasts(self, least: float = 4.5) -> list[str]:
        """Texts of which the contrast to their ground is too low."""
        found: list[tuple[list[float], list[float], str]] = self.run(_CONTRASTS)
        assert len(found) > 10, found
        ratios = [(_contrast(text, ground), words) for text, ground, words in found]
        return [f"{ratio:.2f}: {words}" for ratio, words in ratios if ratio < least]


def _is_error(entry: dict[str, Any]) -> bool:
    return entry["level"] == _SEVERE or "Content Security Policy" in entry["message"]


def _contrast(one: list[float], other: list[float]) -> float:
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: list[float]) -> float:
    """Relative luminance by WCAG 2."""
    parts = [value / 255 for value in colour[:3]]
    lit = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * lit[0] + 0.7152 * lit[1] + 0.0722 * lit[2]


def fill_cluster(cluster: ClusterProcess, *, replicas: int = 3) -> None:
    """A stream of orders with a consumer that lags, a bucket, and hostile words in all of them."""
    config = {"subjects": ["orders.>"], "num_replicas": replicas, "allow_direct": True}
    config |= {"description": f"Orders {HOSTILE}", "metadata": {HOSTILE: HOSTILE}}
    api(cluster, "STREAM.CREATE.ORDERS", {"name": "ORDERS"} | config)
    bucket = {"subjects": ["$KV.SETTINGS.>"], "num_replicas": replicas, "allow_direct": True}
    bucket |= {"max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "deny_delete": True}
    bucket |= {"discard": "new"}
    api(cluster, "STREAM.CREATE.KV_SETTINGS", {"name": "KV_SETTINGS"} | bucket)
    consumer = {"durable_name": "billing", "ack_policy": "explicit", "description": HOSTILE}
    consumer |= {"ack_wait": 3_600_000_000_000}
    body = {"stream_name": "ORDERS", "config": consumer}
    api(cluster, "CONSUMER.CREATE.ORDERS.billing", body)
    with Wire(next(iter(cluster.nodes.values())).port) as wire:
        for number in range(60):
            order = {"order": number, "price": 10 + number / 4, "note": "</script><b>bold</b>"}
            store(wire, f"orders.{('eu', 'us')[number % 2]}", json.dumps(order).encode())
        store(wire, "orders.binary", bytes(range(256)), {"Content-Type": "application/x-test"})
        store(wire, f"orders.{HOSTILE}", HOSTILE.encode(), {"X-Hostile": HOSTILE})
        for number in range(3):
            store(wire, "$KV.SETTINGS.theme", b'{"dark":%d}' % number)
        store(wire, "$KV.SETTINGS.limit", b"100")
        store(wire, f"$KV.SETTINGS.{HOSTILE}", HOSTILE.encode())
        store(wire, "$KV.SETTINGS.old", b"", {"KV-Operation": "DEL"})
        ask = b'{"batch":5,"expires":1000000000}'
        wire.ask("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", ask, count=5, within_s=20)


def store(
    wire: Wire, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
) -> int:
    """Publish one message and return its sequence."""
    (answer,) = wire.ask(subject, payload, headers=headers, within_s=20)
    found = answer.json()
    assert "error" not in found, found
    return int(found["seq"])


def hostile_client(port: int) -> Wire:
    """A connection whose name and language are markup."""
    return Wire(port, CONNECT | {"name": HOSTILE, "lang": HOSTILE, "version": HOSTILE})
