"""Runs rows against our server and, with `--peer`, a nats-server in two modes, interleaved.

    python -m benchmarks.suite --peer PATH                    # everything; into RESULTS.md
    python -m benchmarks.suite --rows pub_async_128,fetch_128 --runs 1 --peer PATH
    python -m benchmarks.suite --rows 'r3_*' --slow-sync 1 --peer PATH --out slow.md
    python -m benchmarks.suite --list

Every measurement has a fresh server and a fresh directory, and the load generator is a process of
its own. Runs of the servers alternate, so what the machine does meanwhile hits all alike; the
table shows medians and ratios of one run of this program, never figures of different days.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import doors, memory, replicated, report
from benchmarks.generator import Figures, RunFailed, generate
from benchmarks.rows import ROWS, Row
from benchmarks.servers import (
    ServerDied,
    ServerProcess,
    end_servers_on_sigterm,
    slow_syncs,
)

HERE = Path(__file__).parent


def measure(row: Row, target: str, binary: str, seconds: float) -> Figures:
    """Run of one row against one server. `target` is ours, ours_lazy, lazy or always."""
    if row.is_replicated:
        return replicated.measure(row, target, binary, seconds)
    sync = {"always": "always", "ours_lazy": "2m"}.get(target, "")
    with tempfile.TemporaryDirectory(prefix="streamd-door-") as directory:
        extra, door = doors.configure(row.door, Path(directory))
        server = ServerProcess(
            binary, extra=extra, is_jetstream=row.is_jetstream, jetstream=row.jetstream
        )
        with server:
            return _measure_one(row, server, sync, door, seconds)


def _measure_one(
    row: Row, server: ServerProcess, sync: str, door: dict[str, Any], seconds: float
) -> Figures:
    if row.call == "restart":
        return _restart(server, row.args, sync)
    if row.call == "idle":
        return _idle(server, row.args, sync)
    if row.call == "memory":
        return memory.measure(server, row.args, sync)
    if row.fill:
        _start(server, row)  # the peer would take minutes to fill in its `always` mode
        wanted = {"size": row.fill_size, "count": row.fill, "compression": row.compression}
        generate(server.port, "fill", wanted | {"door": door})
        server.stop()
    server.configure(sync=sync)
    _start(server, row)
    cpu_before = server.cpu_s()
    found = generate(server.port, row.call, {"seconds": seconds, "door": door} | row.args)
    cpu = server.cpu_s() - cpu_before
    found["cpu_s_per_m"] = cpu / found["count"] * 1e6
    found["memory_mb"] = server.memory_mb()[1]
    return found


def _start(server: ServerProcess, row: Row) -> None:
    """Start a server; behind a door that is not plain, its log says when it is there."""
    if not row.door:
        server.start()
        return
    before = server.log_file.read_text().count("Server is ready") if server.log_file.exists() else 0
    server.launch()
    server.wait_for_log("Server is ready", count=before + 1)


def _restart(server: ServerProcess, args: dict[str, Any], sync: str) -> Figures:
    server.start()
    generate(server.port, "fill", args)
    server.kill()
    server.configure(sync=sync)
    took = server.start(within_s=120)
    time.sleep(1.0)  # what is freed or loaded just after the start belongs to the figure
    now, peak = server.memory_mb()
    found = {"start_s": took, "rss_mb": now, "memory_mb": peak, "disk_mb": server.disk_mb()}
    server.stop()
    return found | {"clean_start_s": server.start(within_s=120)}


def _idle(server: ServerProcess, args: dict[str, Any], sync: str) -> Figures:
    server.configure(sync=sync)
    server.start()
    created = generate(server.port, "create_streams", {"count": args["count"]})
    time.sleep(2.0)
    before, began = server.cpu_s(), time.perf_counter()
    time.sleep(args["seconds"])
    share = (server.cpu_s() - before) / (time.perf_counter() - began)
    found = {"cpu_percent": max(share * 100, 0.1), "memory_mb": server.memory_mb()[1]}
    return found | {"creates_per_s": created["rate"]}


def median(runs: list[Figures]) -> Figures:
    """Return the median of every figure that all runs have."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: statistics.median(run[name] for run in runs) for name in names}


def run(
    rows: list[Row],
    targets: dict[str, str],
    *,
    runs: int,
    seconds: float,
    save: Callable[[dict[str, dict[str, Figures]]], None],
) -> dict[str, dict[str, Figures]]:
    """Measure; return the medians by row name and target, printing lines as they are known.

    After each row `save` gets those there are, so an interrupted run keeps what it has measured.
    """
    results: dict[str, dict[str, Figures]] = {}
    for row in rows:
        found: dict[str, list[Figures]] = {target: [] for target in targets}
        for _ in range(runs):
            for target, binary in targets.items():
                try:
                    found[target].append(measure(row, target, binary, seconds))
                except (RunFailed, ServerDied, subprocess.TimeoutExpired) as err:
                    print(f"{row.name} {target}: FAILED: {err}", file=sys.stderr, flush=True)
        results[row.name] = {target: median(each) for target, each in found.items() if each}
        print(report.line(row, results[row.name]), flush=True)
        save(results)
    return results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help="names or patterns, by comma (default: all)")
    parser.add_argument("--list", action="store_true", help="show the rows and stop")
    parser.add_argument("--ours", default=str(Path(sys.executable).parent / "streamd"))
    parser.add_argument("--peer", default="", help="path of a nats-server to compare with")
    parser.add_argument("--no-always", action="store_true", help="leave the peer's always mode out")
    parser.add_argument("--ours-lazy", action="store_true", help="also ours with sync_interval 2m")
    parser.add_argument(
        "--slow-sync", type=float, default=0.0, metavar="MS", help="longer syncs, by strace"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load per measurement")
    parser.add_argument("--out", default="", help="Markdown file for the table")
    parser.add_argument("--json", default="", help="also write all medians to this file")
    options = parser.parse_args(argv)
    if options.list:
        for row in ROWS.values():
            print(f"{row.name:20} {row.title}")
        return 0
    patterns = [name.strip() for name in options.rows.split(",") if name.strip()]
    rows = [
        row
        for row in ROWS.values()
        if not patterns or any(fnmatch.fnmatchcase(row.name, one) for one in patterns)
    ]
    if not rows:
        parser.error(f"no row is named like {options.rows!r}; --list shows them")
    targets: dict[str, str] = {}
    if options.ours != "none":
        targets["ours"] = options.ours
    if options.ours_lazy:
        targets["ours_lazy"] = options.ours
    if options.peer:
        targets["lazy"] = options.peer
        if not options.no_always:
            targets["always"] = options.peer
    if options.slow_sync:
        try:
            slow_syncs(options.slow_sync)
        except FileNotFoundError as err:
            parser.error(str(err))
    out = options.out or ("" if patterns else str(HERE / "RESULTS.md"))

    def save(results: dict[str, dict[str, Figures]]) -> None:
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
        if out:
            done = [row for row in rows if row.name in results]
            text = report.table(done, results, targets, runs=options.runs, seconds=options.seconds)
            if options.slow_sync:
                text += f"\nEach sync of every server took {options.slow_sync:g} ms longer.\n"
            report.write(Path(out), text)

    end_servers_on_sigterm()
    run(rows, targets, runs=options.runs, seconds=options.seconds, save=save)
    if out:
        print(f"written: {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
