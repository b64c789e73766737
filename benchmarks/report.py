"""The table: medians, ratios to the peer, and whether what we mean to reach is reached."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.rows import Row

Figures = Mapping[str, float]
HEADING = "## The latest run"
NAMES = {"ours": "streamd", "ours_lazy": "streamd, lazy", "lazy": "peer", "always": "peer, always"}


def number(value: float) -> str:
    """Three digits that matter: 1.23M, 45.6k, 789, 4.56."""
    for limit, unit in ((1e6, "M"), (1e3, "k"), (1.0, "")):
        if value >= limit:
            shown = value / limit
            digits = 2 if shown < 10 else 1 if shown < 100 else 0
            return f"{shown:.{digits}f}{unit}"
    return f"{value:.2f}"


def figure(row: Row, found: Figures | None) -> str:
    """The main figure of one server in one row with its companions."""
    if not found:
        return "-"
    if row.measure == "start_s":
        return (
            f"{found['start_s']:.2f} s, clean {found['clean_start_s']:.2f} s, "
            f"RSS {found['rss_mb']:.0f} MiB"
        )
    if row.measure == "rss_mb":
        return (
            f"{found['rss_mb']:.0f} MiB (VmHWM {found['memory_mb']:.0f}), "
            f"at the end {found['end_mb']:.0f}, 10 s later {found['rest_mb']:.0f}, "
            f"restarted {found['restarted_mb']:.0f}, {number(found['publish_rate'])}/s"
        )
    if row.measure == "cpu_percent":
        return f"{found['cpu_percent']:.1f} %, {found['memory_mb']:.0f} MiB"
    if row.measure == "failover_ms":
        return f"{found['failover_ms']:.0f} ms, worst {found['worst_ms']:.0f} ms"
    if row.measure == "outage_s":
        return f"{found['outage_s']:.2f} s"
    if row.measure == "catch_up_s":
        return f"{found['catch_up_s']:.1f} s, {number(found['publish_rate'])}/s published meanwhile"
    cpu = f" (CPU {found['cpu_s_per_m']:.1f})" if "cpu_s_per_m" in found else ""
    if row.measure == "p50_us":
        return (
            f"{number(found['rate'])}/s, p50 {found['p50_us']:.0f} us, "
            f"p99 {found['p99_us']:.0f} us{cpu}"
        )
    if row.measure == "p999_us":
        return (
            f"p50 {found['p50_us']:.0f} us, p99.9 {found['p999_us'] / 1000:.0f} ms, "
            f"worst {found['max_us'] / 1000:.0f} ms, beside {number(found['beside_rate'])}/s"
        )
    return f"{number(found['rate'])}/s{cpu}"


def ratio(row: Row, results: Mapping[str, Figures], peer: str) -> float | None:
    """Ours to the peer's, above 1 is better than the peer; None where a figure is missing."""
    ours, theirs = results.get("ours"), results.get(peer)
    if not ours or not theirs or not ours.get(row.measure) or not theirs.get(row.measure):
        return None
    quotient = ours[row.measure] / theirs[row.measure]
    return 1 / quotient if row.is_time else quotient


def verdict(row: Row, results: Mapping[str, Figures], peer: str) -> str:
    """The ratio, and beside it what is meant to be reached."""
    found = ratio(row, results, peer)
    if found is None:
        return "-"
    wanted = row.reach_lazy if peer == "lazy" else row.reach_always
    text = f"{found:.2f}x"
    if wanted:
        text += f" ({'reached' if found >= wanted else 'MISSED'}: {wanted:g}x)"
    return text


def line(row: Row, results: Mapping[str, Figures]) -> str:
    """Row as plain text, for the terminal."""
    parts = [f"{NAMES[target]} {figure(row, found)}" for target, found in results.items()]
    ratios = [
        f"vs {NAMES[peer]} {verdict(row, results, peer)}"
        for peer in ("lazy", "always")
        if peer in results and "ours" in results
    ]
    return f"{row.name:16} " + " | ".join(parts + ratios)


def _version(binary: str) -> str:
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except OSError as err:
        return f"{binary}: {err}"
    return (done.stdout or done.stderr).strip().splitlines()[0]


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    system = f"{platform.system()} {platform.release()}"
    model = names[0] if names else platform.processor()
    return f"{model}, {len(names)} cores, {system}, CPython {platform.python_version()}"


def write(path: Path, text: str) -> None:
    """Write the page of a run to the end of `path`, in the place of the one that is there."""
    before = path.read_text().partition(f"{HEADING}\n")[0] if path.exists() else ""
    path.write_text(before.rstrip("\n") + "\n\n" * bool(before) + text)


def table(
    rows: list[Row],
    results: Mapping[str, Mapping[str, Figures]],
    targets: Mapping[str, str],
    *,
    runs: int,
    seconds: float,
) -> str:
    """The page of one run; its first line is `HEADING`."""
    shown = list(targets)
    peers = [peer for peer in ("lazy", "always") if peer in targets and "ours" in targets]
    lines = [
        HEADING,
        "",
        f"Written by `benchmarks/suite.py` on {time.strftime('%Y-%m-%d', time.gmtime())}: medians "
        f"of {runs} runs of {seconds:g} s, servers taking turns, load generator on the same cores.",
        f"Machine: {machine()}.",
    ]
    lines += [f"{NAMES[target]}: `{_version(targets[target])}`." for target in shown]
    lines += [
        "",
        "`peer` is its default, flushing every two minutes; `peer, always` has `sync_interval: "
        "always`, the setting that promises what streamd promises by default: an acked message is "
        "fsynced. CPU is the server's CPU seconds per million messages. Ratios above 1 are better "
        "than the peer (times are inverted). Compare ratios, not figures of different days.",
        "",
        "| row | " + " | ".join(NAMES[target] for target in shown) + " | "
        + " | ".join(f"ratio to {NAMES[peer]}" for peer in peers) + " |",
        "|---" * (1 + len(shown) + len(peers)) + "|",
    ]  # fmt: skip
    for row in rows:
        found = results.get(row.name, {})
        cells = [row.title, *(figure(row, found.get(target)) for target in shown)]
        cells += [verdict(row, found, peer) for peer in peers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
