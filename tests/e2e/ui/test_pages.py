"""Each page of the dashboard in Chromium: its content, in both schemes, wide, narrow, by keys."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e.cluster import api
from tests.e2e.ui.dashboard_bed import HOSTILE, Page, hostile_client, store, ui_url
from tests.waiting import until
from tests.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STREAM = "streams/%24G/ORDERS"
CONSUMER = "consumers/%24G/ORDERS/billing"
BUCKET = "kv/%24G/SETTINGS"
LOADED = "table[data-loaded]"
# Route, and what is there once the page is whole: a selector and words.
ROUTES = [
    ("overview", "#nodes", "n3"),
    ("streams", LOADED, "ORDERS"),
    (STREAM, "#replicas", "n3"),
    (f"{STREAM}?tab=messages", "#messages", "orders.eu"),
    (f"{STREAM}?tab=tail", "[role=status]", "Listening"),
    (f"{STREAM}?tab=config", "#config", "max_msgs"),
    ("consumers", LOADED, "billing"),
    (CONSUMER, "main", "In flight"),
    ("kv", LOADED, "SETTINGS"),
    (BUCKET, LOADED, "theme"),
    (f"{BUCKET}?key=theme", "main", "dark"),
    ("connections", LOADED, "Connections"),
    ("groups", LOADED, "ORDERS"),
    ("events", "main", "Events"),
]


def open_whole(page: Page, route: str, selector: str, words: str) -> None:
    page.open(route)
    page.see(selector, words)


def test_the_overview_says_how_the_cluster_is(page: Page, ui_cluster: ClusterProcess) -> None:
    """Health in words, each node with what it leads, the meta leader, latencies, the disk."""
    page.open("overview")
    page.see("#health", "Healthy")
    rows = page.see("#nodes", "n3")
    assert all(name in rows for name in ui_cluster.nodes)
    assert rows.count("meta leader") == 1
    assert rows.count("this node") == 1
    for title in ("Messages in", "Log fsync", "Apply", "Memory", "Disk", "Streams"):
        page.see(".tile", title)
    page.see(".tile", "consumer")


def test_a_stream_shows_blocks_replicas_and_subjects(page: Page) -> None:
    """Equal digests once all copies are current; a block picked by keys tells what it holds."""
    page.open(STREAM)
    page.see("h1", "ORDERS")
    page.see("#replicas", "current")
    page.until(
        "return document.querySelector('#replicas').innerText.split('equal').length === 4",
        what="three equal digests",
    )
    page.see("#subjects", "orders.eu")
    page.click(".block")
    page.see("#blocks", "Sequences")
    page.see("#blocks", "no damage known")
    assert "Block 1: sequences 1 to 62" in page.run(
        "return document.querySelector('.block').getAttribute('aria-label')"
    )


def test_messages_are_read_by_sequence_subject_and_time(page: Page) -> None:
    """JSON indented, bytes in hex, headers; forth and back."""
    page.open(f"{STREAM}?tab=messages")
    page.see("#messages", "orders.eu")
    assert page.count("#messages details") == 25
    page.click("#newer")
    page.until("return document.querySelector('#messages details').dataset.seq === '26'")
    page.click("#older")
    page.until("return document.querySelector('#messages details').dataset.seq === '1'")
    page.click("#messages summary")
    page.see("#messages pre", '"order": 0')
    page.fill("#subject", "orders.binary")
    page.click("form button[type=submit]")
    page.until("return document.querySelectorAll('#messages details').length === 1")
    page.click("#messages summary")
    page.see("#messages pre", "00000010  10 11 12 13")
    page.see("#messages .headers", "application/x-test")
    page.click("#newest")
    page.until("return document.querySelectorAll('#messages details').length === 1")
    page.run("const by = document.querySelector('#by'); by.value = 'time';"
             "by.dispatchEvent(new Event('change'))")  # fmt: skip
    page.run("document.querySelector('#from').value = '2001-01-01T00:00:00'")
    page.fill("#subject", "orders.us")
    page.click("form button[type=submit]")
    page.until("return document.querySelector('#messages details')?.dataset.seq === '2'")
    page.fill("#subject", "orders..bad")
    page.click("form button[type=submit]")
    page.until("return [...document.querySelectorAll('.error')].some((e) => e.innerText)")
    page.log()  # the refusal is in the console as well


def test_a_tail_shows_what_is_stored_now(page: Page, ui_cluster: ClusterProcess) -> None:
    """Messages that its filter matches, and no others."""
    config = {"name": "TAILED", "subjects": ["tailed.>"], "num_replicas": 3}
    api(ui_cluster, "STREAM.CREATE.TAILED", config)
    page.open("streams/%24G/TAILED?tab=tail")
    page.fill("#tail-subject", "tailed.yes.*")
    page.click("form button[type=submit]")
    page.see("[role=status]", "Listening")
    with Wire(ui_cluster.nodes["n2"].port) as wire:
        # What is stored before the server has the tail is not in it: again until one is seen.
        def publish_seen() -> Any:
            store(wire, "tailed.no", b"not this")
            store(wire, "tailed.yes.x", b"this one")
            return page.count("#tail details")

        ui_cluster.wait_until(publish_seen, "in the tail")
    page.see("#tail", "this one")
    assert "not this" not in "".join(page.texts("#tail"))


def test_older_and_newer_lead_back_from_where_nothing_is(
    ui_browser: Any, alone: ServerProcess
) -> None:
    """Beyond the last message, and before the first that is still there."""
    with Wire(alone.port) as wire:
        wire.api("STREAM.CREATE.SHORT", {"name": "SHORT", "subjects": ["short"], "first_seq": 11})
        for _ in range(60):
            store(wire, "short", b"x")
    page = Page(ui_browser, ui_url(alone))
    page.open("streams/%24G/SHORT?tab=messages")
    first = "return document.querySelector('#messages details')?.dataset.seq === arguments[0]"
    page.until(first, "11")
    page.click("#older")
    page.see("[role=status]", "No messages there")
    page.click("#newer")
    page.until(first, "11")
    page.click("#newest")
    page.until(first, "46")
    page.click("#newer")
    page.see("[role=status]", "No messages there")
    page.click("#older")
    page.until(first, "46")


def test_a_filtered_tail_says_that_messages_were_left_out(
    ui_browser: Any, alone: ServerProcess
) -> None:
    """More of them match than a page can show: the server does not count them, so it is "some"."""
    with Wire(alone.port) as wire:
        wire.api("STREAM.CREATE.RUSH", {"name": "RUSH", "subjects": ["rush.>"]})
        page = Page(ui_browser, ui_url(alone))
        page.open("streams/%24G/RUSH?tab=tail")
        page.fill("#tail-subject", "rush.*")
        page.click("form button[type=submit]")
        page.see("[role=status]", "Listening")

        def publish_seen() -> bool:
            # In one chunk, hence one entry of the log: no look comes between them.
            wire.send(b"PUB rush.x 1\r\nx\r\n" * 300)
            wire.fence(20)
            return "some left out" in "".join(page.texts("[role=status]"))

        until(publish_seen, "left out")


def test_names_that_look_alike_have_a_row_each(ui_browser: Any, alone: ServerProcess) -> None:
    """Two keys that are no UTF-8 are shown as the same text: two rows, however often they are
    fetched."""
    with Wire(alone.port) as wire:
        wire.api("STREAM.CREATE.KV_RAW", {"name": "KV_RAW", "subjects": ["$KV.RAW.>"]})
        wire.send(b"PUB $KV.RAW.a\xff 1\r\nx\r\nPUB $KV.RAW.a\xfe 1\r\nx\r\n")
        wire.fence(20)
    page = Page(ui_browser, ui_url(alone))
    page.open("kv/%24G/RAW")
    page.see(LOADED, "a\ufffd")
    page.until(
        "return performance.getEntriesByType('resource')"
        ".filter((entry) => entry.name.includes('/keys?')).length >= 3"
    )
    assert page.count(f"{LOADED} tbody tr") == 2


def test_the_order_of_a_table_outlives_a_reload(ui_browser: Any, alone: ServerProcess) -> None:
    """Ascending too, where a table is descending at first."""
    page = Page(ui_browser, ui_url(alone))
    page.open("connections")
    order = "return document.querySelector('[data-sort=pending]').getAttribute('aria-sort')"
    page.until(f"{order} === 'descending'")
    page.click("[data-sort=pending] button")
    page.until(f"{order} === 'ascending'")
    page.browser.refresh()
    page.see("#live", ": live")
    page.see(LOADED, "Pending")
    assert page.run(order) == "ascending"


def test_objects_and_long_histories_are_shown(ui_browser: Any, alone: ServerProcess) -> None:
    """From the list of buckets to an object, by clicks; it shows what its client told of it. Of a
    key more revisions than clients let a bucket keep come when they are asked for."""
    meta = {"name": HOSTILE, "size": 3072, "chunks": 2, "digest": "SHA-256=abc", "description": "A"}
    name = base64.urlsafe_b64encode(HOSTILE.encode()).decode()
    with Wire(alone.port) as wire:
        wire.api("STREAM.CREATE.OBJ_FILES", {"name": "OBJ_FILES", "subjects": ["$O.FILES.>"]})
        store(wire, f"$O.FILES.M.{name}", json.dumps(meta).encode())
        wire.api("STREAM.CREATE.KV_LONG", {"name": "KV_LONG", "subjects": ["$KV.LONG.>"]})
        for number in range(70):
            store(wire, "$KV.LONG.k", b"%d" % number)
    page = Page(ui_browser, ui_url(alone))
    page.open("kv")
    page.see(LOADED, "object store")
    page.click(f"{LOADED} tbody tr:first-child a")
    page.see(LOADED, "3\u00a0KiB")
    page.see("caption", "Objects of FILES")
    page.click(f"{LOADED} tbody a")
    page.see("main .facts", "SHA-256=abc")
    page.see("h1", HOSTILE)
    page.see("main pre", '"chunks": 2')
    assert page.count("#history details") == 0
    assert_harmless(page)
    page.open("kv/%24G/LONG?key=k")
    page.until("return document.querySelectorAll('#history details').length === 64")
    page.click("#older")
    page.until("return document.querySelectorAll('#history details').length === 70")
    page.gone("#older")


def test_consumers_buckets_connections_and_groups(page: Page, ui_cluster: ClusterProcess) -> None:
    """Messages that wait and are in flight; keys and their history; clients; positions of Raft."""
    page.open(CONSUMER)
    page.see("main", "5 delivered, not acknowledged yet")
    page.see("#config", '"billing"')
    page.open(BUCKET)
    page.see(LOADED, "theme")
    rows = page.texts(f"{LOADED} tbody tr")
    assert len(rows) == 4
    assert any("deleted" in row for row in rows)
    page.open(f"{BUCKET}?key=theme")
    page.see("main pre", '"dark": 2')
    page.see("#history", "History")
    assert page.count("#history details") == 3
    with hostile_client(ui_cluster.nodes["n1"].port):
        page.open("connections")
        page.see("main", HOSTILE)
    page.open("groups")
    page.see(LOADED, "ORDERS")
    assert all("ready" in row for row in page.texts(f"{LOADED} tbody tr"))


def test_names_that_are_markup_are_shown_as_text(page: Page, ui_cluster: ClusterProcess) -> None:
    """Descriptions, metadata, subjects, headers, payloads, keys, names of clients: no element is
    made of them, and no script runs."""
    with hostile_client(ui_cluster.nodes["n1"].port):
        for route, selector in (
            (STREAM, "main .facts"),
            (STREAM, "#subjects"),
            (f"{STREAM}?tab=config", "#config"),
            (BUCKET, LOADED),
            ("connections", "main"),
            (CONSUMER, "#config"),
        ):
            page.open(route)
            page.see(selector, HOSTILE)
            assert_harmless(page)
    page.open(f"{STREAM}?tab=messages")
    page.click("#newest")
    hostile = "#messages details[data-seq='62']"
    page.click(f"{hostile} summary")
    page.see(f"{hostile} pre", HOSTILE)
    page.see(f"{hostile} .headers", HOSTILE)
    assert_harmless(page)
    page.open("streams")
    page.fill("#filter", HOSTILE)
    page.see("main", f"Nothing matches “{HOSTILE}”.")
    assert_harmless(page)


def assert_harmless(page: Page) -> None:
    found = page.run(
        "return [typeof hacked, document.querySelectorAll('img:not([alt=\"\"]), main img').length]"
    )
    assert found == ["undefined", 0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_has_contrast(page: Page, scheme: str) -> None:
    """4.5 to 1 at least, for all text, by the system's scheme; and the headings are in order."""
    page.scheme(scheme)
    for route, selector, words in ROUTES:
        open_whole(page, route, selector, words)
        assert page.low_contrasts() == [], route
        assert page.count("h1") == 1, route


def test_the_scheme_can_be_chosen(page: Page) -> None:
    """The choice goes before the system's, and holds for the next visit."""
    page.open("overview")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.click("#theme")
    assert page.run(ground) != light
    page.browser.refresh()
    page.see("#live", ": live")
    assert page.run(ground) != light
    page.click("#theme")
    assert page.run(ground) == light


def test_each_page_fits_a_narrow_screen(page: Page) -> None:
    """360 pixels: nothing is cut off at the side, and each cell says what it is."""
    with page.narrow():
        for route, selector, words in ROUTES:
            open_whole(page, route, selector, words)
            assert page.run("return document.documentElement.scrollWidth") <= 360, route
        page.open("streams")
        label = "return getComputedStyle(document.querySelector('td'), '::before').content"
        page.see(LOADED, "ORDERS")
        assert json.loads(page.run(label)) == "Stream"


def test_everything_is_reached_by_keys(page: Page) -> None:
    """The skip link comes first; / is the filter, arrows are rows, Enter opens, Esc closes."""
    from selenium.webdriver.common.keys import Keys

    page.open("streams")
    page.see(LOADED, "ORDERS")
    page.press(Keys.TAB)
    assert page.focused() == "Skip to the content"
    page.press(Keys.ENTER)
    assert page.focused("return document.activeElement.id") == "main"
    page.press("/")
    assert page.focused("return document.activeElement.id") == "filter"
    page.press("ORD")
    page.until("return document.querySelectorAll('tbody tr').length === 1")
    page.press(Keys.ESCAPE)
    page.until("return document.querySelectorAll('tbody tr').length > 1")
    page.run(
        "const rows = [...document.querySelectorAll('tbody tr')];"
        "const orders = rows.findIndex((row) => row.innerText.startsWith('ORDERS'));"
        "rows[orders - 1].focus()"
    )
    page.press(Keys.ARROW_DOWN)
    assert page.focused().startswith("ORDERS")
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.focused(outline) == "solid"
    page.press(Keys.ENTER)
    page.see("h1", "ORDERS")
    page.click("[data-action=purge]")
    page.see("dialog", "cannot be undone")
    page.press(Keys.ESCAPE)
    page.gone("dialog")
    page.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    page.press(Keys.ARROW_RIGHT)
    page.see("#messages", "orders.eu")


def test_a_page_that_was_left_gives_its_connection_away(page: Page) -> None:
    """A browser has six to a server and keeps pages to go back to: the eighth visit waits for no
    connection. With live streams left open it waited 50 seconds."""
    for _ in range(8):
        page.browser.get("about:blank")
        page.open("streams")
        page.see(LOADED, "ORDERS")
    waited = page.run(
        "return Math.max(...performance.getEntriesByType('resource')"
        ".filter((entry) => entry.name.includes('/api/streams'))"
        ".map((entry) => entry.requestStart - entry.startTime))"
    )
    assert waited < 10_000


def test_numbers_and_bytes_as_people_read_them(page: Page) -> None:
    """Units, ages, hex; and JSON keeps each digit of a number that no double holds."""
    page.open("overview")
    found = page.browser.execute_async_script(
        r"""
        const done = arguments[0];
        import("./static/format.js").then((f) => {
          const data = (text) => new TextEncoder().encode(text);
          done({
            bytes: [0, 1023, 1536, 5e9].map(f.bytes),
            rate: [0, 0.5, 12345, 1234567].map(f.rate),
            duration: [0, 1500, 1.5e6, 2e9, 90e9, 90061e9].map(f.duration),
            json: f.jsonOf(data('{"a":12345678901234567890,"b":[],"c":"x\\"y{"}')),
            none: [f.jsonOf(data("12")), f.jsonOf(data("{")), f.textOf(Uint8Array.of(255))],
            hex: f.hexOf(data("0123456789abcdefg")),
            never: f.time("0001-01-01T00:00:00Z"),
          });
        });
        """
    )
    assert found == {
        "bytes": ["0\u00a0B", "1023\u00a0B", "1.50\u00a0KiB", "4.66\u00a0GiB"],
        "rate": ["0/s", "0.50/s", "12.3 k/s", "1.23 M/s"],
        "duration": ["0 ns", "1.50 µs", "1.50 ms", "2 s", "1m 30s", "1d 1h"],
        "json": '{\n  "a": 12345678901234567890,\n  "b": [],\n  "c": "x\\"y{"\n}',
        "none": [None, None, None],
        "hex": "00000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "00000010  67                                                g",
        "never": "never",
    }
