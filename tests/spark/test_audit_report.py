"""The page: the same findings give the same bytes, and a real browser lays it out.

STREAMD_REWRITE_GOLDEN=1 python -m pytest tests/spark/test_audit_report.py     # review the diff
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.audit.findings import CODES, DAMAGE, exit_status, finding, joined, unexplained
from spark_jobs.audit.next_steps import next_steps
from spark_jobs.audit.report import render
from streamd.store.blocks import record_format as fmt

GOLDEN = Path(__file__).parents[1] / "golden" / "spark"
PHONE, DESKTOP = (390, 844), (1280, 900)


def record(payload: bytes) -> str:
    records, _, _ = fmt.encode_batch(7, 1_780_000_000_000_000_000, [(b"orders.eu", b"", payload)])
    return records[0].hex()


def document(*findings: Any, verdict: str, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """As audit.document_of makes it."""
    replicas = [
        {
            "replica": node,
            "stream": "ORDERS",
            "uid": 2,
            "state": "compared",
            "applied": 1_204_511,
            "first_seq": 1,
            "last_seq": 1_000_000,
            "messages": 999_998,
            "digest": "93c1f0de57ab4410" if node != "n3" else "0123456789abcdef",
            "records_read": 1_000_000,
            "bytes_read": 160_000_000,
            "findings": sum(node == each.replica for each in findings),
        }
        for node in ("n1", "n2", "n3")
    ]
    made = {
        "format": 1,
        "verdict": verdict,
        "started": "2026-11-21T07:42:27+00:00",
        "elapsed_s": 2.5,
        "level": "full",
        "expect": "",
        "inputs": [
            {"replica": node, "kind": "directory", "path": f"/var/lib/streamd/{node}/streamd"}
            for node in ("n1", "n2", "n3")
        ],
        "records": 3_000_000,
        "bytes": 480_000_000,
        "replicas": replicas,
        "findings": [{**each.row(), "records": list(each.records)} for each in findings],
        "notes": list(notes),
    }
    return {**made, "next": next_steps(made)}


def damaged() -> dict[str, Any]:
    good, bad = record(b"paid: 100.00 EUR"), record(b"paid: 900.00 EUR")
    directory = "/var/lib/streamd/n3/streamd/streams/2"
    findings = [
        finding(
            "record-crc",
            replica="n2",
            stream="ORDERS",
            seq=7,
            file="/var/lib/streamd/n2/streamd/streams/2/1.blk",
            offset=718,
            expected="crc 0x11223344 of these bytes",
            got="crc 0x55667788 in the record",
        )._replace(records=(("n1", good), ("n2", bad), ("n3", good))),
        finding(
            "drift-missing",
            replica="n3",
            stream="ORDERS",
            seq=400_001,
            seq_hi=400_512,
            expected="crc 0x0a0b0c0d, time 1780000000000000000, as on n1, n2",
            got="512 messages; the first: no message",
        ),
        finding(
            "consumer-ahead",
            replica="n3",
            stream="ORDERS",
            seq=1_000_001,
            seq_hi=1_000_044,
            file=directory,
            expected="consumer <b>billing</b>: delivered up to 1000000 at most",
            got="delivered up to 1000044",
        ),
        finding(
            "torn-tail",
            replica="n1",
            stream="ORDERS",
            file="/var/lib/streamd/n1/streamd/streams/2/19.blk",
            offset=7_340_102,
            expected="a whole record",
            got="17 bytes of no whole record",
        ),
    ]
    return document(
        *joined(findings),
        verdict="damage",
        notes=("ORDERS: n2 has 11 log entries after the common index 1204511",),
    )


PAGES = {"audit_damage.html": damaged, "audit_clean.html": lambda: document(verdict="clean")}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_same_bytes(name: str) -> None:
    page = render(PAGES[name]())
    assert page == render(PAGES[name]())
    path = GOLDEN / name
    if os.environ.get("STREAMD_REWRITE_GOLDEN"):
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Which elements there are, and whether each is closed."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PAGES)
def test_a_page_stands_alone_and_its_tables_are_accessible(name: str) -> None:
    page = render(PAGES[name]())
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    tags = [tag for tag, _ in outline.tags]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    heads = [attrs for tag, attrs in outline.tags if tag == "th"]
    assert heads and all(attrs.get("scope") in ("col", "row") for attrs in heads)
    assert tags.count("caption") == tags.count("table") == 1
    assert ("html", {"lang": "en"}) in outline.tags
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_verdict_comes_first_and_only_differing_bytes_are_marked() -> None:
    page = render(damaged())
    assert page.index('class="verdict damage"') < page.index("What to do next")
    assert page.index("What to do next") < page.index("Replicas</h2>") < page.index("Findings</h2>")
    assert "<mark>39</mark>" in page and "<mark>31</mark>" in page  # 9 and 1
    good, bad = record(b"paid: 100.00 EUR"), record(b"paid: 900.00 EUR")
    differing = sum(a != b for a, b in zip(bytes.fromhex(good), bytes.fromhex(bad), strict=True))
    assert page.count("<mark>") == 4 * differing  # hex and text, on both sides


def test_text_from_data_is_escaped() -> None:
    page = render(damaged())
    assert "<b>billing" not in page and "&lt;b&gt;billing" in page
    odd = finding("torn-tail", replica="a\u202eb\x00", stream="<script>", got="\x1b[31m")
    page = render(document(odd, verdict="warnings"))
    assert "\u202e" not in page and "\x00" not in page and "\x1b" not in page
    assert "<script" not in page


def test_findings_beyond_the_limit_are_counted() -> None:
    many = [finding("record-crc", replica="n1", stream="S", seq=n, offset=n) for n in range(600)]
    page = render(document(*many, verdict="damage"))
    assert page.count("<article") == 500
    assert "100 more are in" in page


# --- findings -----------------------------------------------------------------------------------


def test_consecutive_seqs_become_one_finding_and_damage_comes_first() -> None:
    gaps = [finding("seq-gap", replica="n1", stream="S", seq=seq) for seq in (5, 4, 6, 9)]
    torn = finding("torn-tail", replica="a", stream="A")
    found = joined([torn, *gaps, gaps[0]])
    assert [(each.code, each.seq_lo, each.seq_hi) for each in found] == [
        ("seq-gap", 4, 6),
        ("seq-gap", 9, 9),
        ("torn-tail", None, None),
    ]
    assert [exit_status(each) for each in ([], [torn], found)] == [0, 1, 2]


def test_drift_that_damage_explains_is_left_out() -> None:
    local = [finding("block-missing", replica="n1", stream="S", seq=10, seq_hi=20)]
    drift = [
        finding("drift-missing", replica=node, stream="S", seq=low, seq_hi=high)
        for node, low, high in (("n1", 10, 20), ("n1", 19, 21), ("n2", 12, 13))
    ]
    assert unexplained(drift, local) == drift[1:]


def test_every_code_is_documented_with_its_severity() -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (damage|warning) \|", text, re.MULTILINE))
    assert told == {code: known.severity for code, known in CODES.items()}
    assert DAMAGE in told.values()


# --- in a browser -------------------------------------------------------------------------------

PROBE = """
<script>
addEventListener("load", () => {
  const wide = document.documentElement;
  const box = e => e.getBoundingClientRect();
  const articles = [...document.querySelectorAll("article")].map(box);
  const facts = {
    overflow: wide.scrollWidth - wide.clientWidth,
    verdict: Math.round(box(document.querySelector(".verdict")).top),
    articles: articles.filter(b => b.height > 60 && b.width > 200).length,
    overlaps: articles.filter((b, i) => i && b.top < articles[i - 1].bottom).length,
    scrolls: [...document.querySelectorAll(".scroll")].every(e => box(e).right <= innerWidth),
    dark: getComputedStyle(document.body).backgroundColor,
    font: parseFloat(getComputedStyle(document.body).fontSize),
  };
  document.body.setAttribute("data-facts", JSON.stringify(facts));
});
</script>
"""


def chromium(page: Path, scratch: Path, *flags: str, size: tuple[int, int]) -> str:
    """What chromium prints for `page`."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    done = subprocess.run(
        [
            binary, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={scratch}/profile",
            f"--window-size={size[0]},{size[1]}", *flags, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(("name", "articles"), [("audit_damage.html", 4), ("audit_clean.html", 0)])
@pytest.mark.parametrize("is_dark", [False, True])
def test_a_browser_lays_it_out(tmp_path: Path, name: str, articles: int, is_dark: bool) -> None:
    """On the width of a phone and of a desk, in light and in dark."""
    import html
    import json

    page = (GOLDEN / name).read_text(encoding="utf-8")
    size = PHONE if is_dark else DESKTOP
    # A window can't be narrower than 500 pixels, a frame can.
    (tmp_path / "inner.html").write_text(page.replace("</body>", PROBE + "</body>"))
    frame = (
        f'<!doctype html><body style="margin:0"><iframe src="inner.html" width="{size[0]}" '
        f'height="{size[1]}" style="border:0" onload="setTimeout(() => document.body.dataset.facts'
        '= this.contentDocument.body.dataset.facts)"></iframe></body>'
    )
    outer = tmp_path / "outer.html"
    outer.write_text(frame)
    flags = ["--dump-dom", "--allow-file-access-from-files", "--virtual-time-budget=3000"]
    if is_dark:
        flags.append("--blink-settings=preferredColorScheme=0")
    dom = chromium(outer, tmp_path, *flags, size=DESKTOP)
    told = re.search(r'data-facts="([^"]*)"', dom)
    assert told, dom[:500]
    facts = json.loads(html.unescape(told[1]))
    assert facts["overflow"] <= 0  # nothing makes the page scroll sideways
    assert facts["scrolls"]
    assert facts["verdict"] < 150
    assert facts["articles"] == articles
    assert facts["overlaps"] == 0
    assert facts["font"] >= 16
    assert facts["dark"] == ("rgb(15, 19, 24)" if is_dark else "rgb(255, 255, 255)")
