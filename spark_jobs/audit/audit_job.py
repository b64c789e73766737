"""Audit replicas, live nodes and backups: damage, drift, loss.

    streamd-spark audit --data /var/lib/streamd                         one node, or n1/ n2/ n3/
    streamd-spark audit --replica n1=/mnt/n1 --replica n2=/mnt/n2 --replica backup=/backups/tue
    streamd-spark audit --live n1=nats://10.0.0.1:4222,http://10.0.0.1:8222 --replica b=/backups/tue

Reads only, also beside running servers. Exit status: 0 clean, 1 warnings only, 2 damage, 3 could
not run. What each code means and what to do about it: docs/audit.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from spark_jobs.jobs.command import (
    JobError,
    connect_arguments,
    connect_options,
    job_parser,
    run_job,
    session_from,
    spark_arguments,
)

FORMAT: Final = 1  # of findings.json
TABLE_ROWS_MAX: Final = 50  # findings shown on the terminal


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    from spark_jobs.audit.block_check import FULL, LEVELS

    parser = job_parser("audit", __doc__)
    what = parser.add_argument_group("what to audit (at least one of the first three)")
    what.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="LABEL=DIR",
        help="one node's data directory, or a backup of one; may be repeated",
    )
    what.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="DIR",
        help="a directory that holds one or several data directories",
    )
    what.add_argument(
        "--live",
        action="append",
        default=[],
        metavar="LABEL=URL[,MONITOR]",
        help="a running node: nats://HOST:PORT and, for exact comparison, its monitoring URL",
    )
    what.add_argument(
        "--stream",
        action="append",
        default=[],
        metavar="NAME",
        help="only this stream; may be repeated",
    )
    what.add_argument(
        "--expect", metavar="FILE", help="acked publishes (Parquet or JSON) to look for"
    )
    what.add_argument(
        "--level",
        choices=LEVELS,
        default=FULL,
        help="quick: headers and footers; digest: and digests; full: every record (default)",
    )
    what.add_argument(
        "--throttle", type=float, default=0.0, metavar="MB/S", help="read at most this fast"
    )
    what.add_argument(
        "--output",
        metavar="DIR",
        help="write findings.parquet, findings.json and report.html to this directory",
    )
    connect_arguments(parser, without=("servers",), title="connection of --live [or: environment]")
    spark_arguments(parser)
    return run_job(parser, _work, argv)


def _work(args: argparse.Namespace) -> int:
    from spark_jobs.audit import run as audit_run
    from spark_jobs.audit.findings import exit_status
    from spark_jobs.jobs.progress import follow

    request = request_from(args)
    output = Path(args.output) if args.output else None
    if output is not None:
        _check_output(output, request)
    started = datetime.now(UTC)
    spark = session_from(args, "streamd audit")
    outcome = audit_run.audit(
        spark, request, lambda label: follow(spark, label, is_quiet=args.quiet)
    )
    if not outcome.rows and not outcome.findings:
        named = f" {', '.join(request.streams)}" if request.streams else ""
        raise JobError(f"nothing to audit: none of the inputs has a file stream{named}")
    document = document_of(request, outcome, started=started.isoformat(timespec="seconds"))
    if output is not None:
        write_output(output, document)
    print(table_of(document))
    if output is not None:
        print(f"report: {output / 'report.html'}")
    return exit_status(outcome.findings)


def request_from(args: argparse.Namespace) -> Any:
    """The audit that the arguments describe. Raises JobError naming what is wrong."""
    from spark_jobs.audit.live_nodes import LiveNode
    from spark_jobs.audit.run import Request
    from spark_jobs.client.options import ConnectOptions, OptionError
    from streamd.offline.stream_view import StoreDir, find_stores

    stores: list[tuple[str, StoreDir]] = []
    for text in args.replica:
        label, equals, path = text.partition("=")
        if not equals or not label or not path:
            raise JobError(f"--replica {text!r} is not LABEL=DIR")
        found = _stores(find_stores, path)
        if len(found) > 1:
            names = ", ".join(store.server_name for store in found)
            raise JobError(
                f"--replica {text!r}: {path} holds {len(found)} data directories ({names}): name "
                "one of them, or use --data"
            )
        stores.append((label, found[0]))
    for path in args.data:
        stores += [(store.server_name, store) for store in _stores(find_stores, path)]
    live = []
    for text in args.live:
        label, equals, urls = text.partition("=")
        if not equals or not label or not urls:
            raise JobError(f"--live {text!r} is not LABEL=URL or LABEL=URL,MONITORING-URL")
        servers = [url for url in urls.split(",") if not url.startswith(("http://", "https://"))]
        monitors = [url for url in urls.split(",") if url not in servers]
        if len(servers) != 1 or len(monitors) > 1:
            raise JobError(f"--live {text!r}: give one node's URL, and its monitoring URL if any")
        try:
            options = ConnectOptions.parse({**connect_options(args), "servers": servers[0]})
        except OptionError as err:
            raise JobError(f"--live {text!r}: {err}") from err
        live.append(LiveNode(label, options, monitors[0] if monitors else ""))
    labels = [label for label, _ in stores] + [node.label for node in live]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise JobError(f"label {twice[0]!r} is given twice: each replica needs one of its own")
    if not labels:
        raise JobError("nothing to audit: give --data DIR, --replica LABEL=DIR or --live LABEL=URL")
    if args.throttle < 0:
        raise JobError(f"--throttle {args.throttle}: must be more than 0 MB/s, or 0 for no limit")
    if args.expect:
        if len(args.stream) != 1:
            raise JobError("--expect needs one --stream: the one that was published to")
        if not os.path.exists(args.expect):
            raise JobError(f"--expect {args.expect}: no such file")
    return Request(
        stores,
        live,
        args.level,
        tuple(args.stream),
        args.throttle,
        args.expect or "",
        args.stream[0] if args.expect else "",
    )


def _stores(find: Any, path: str) -> list[Any]:
    try:
        return list(find(path))
    except OSError as err:
        raise JobError(str(err)) from err


def _check_output(output: Path, request: Any) -> None:
    """Never write into what is audited."""
    target = output.resolve()
    for label, place in request.stores:
        if target == place.path.resolve() or place.path.resolve() in target.parents:
            raise JobError(f"--output {output} is inside the data directory of {label}")
    output.mkdir(parents=True, exist_ok=True)


def document_of(request: Any, outcome: Any, *, started: str) -> dict[str, Any]:
    """Build the content of findings.json, which the report shows as well."""
    from spark_jobs.audit.findings import EXIT_CLEAN, EXIT_WARNINGS, exit_status
    from spark_jobs.audit.next_steps import next_steps

    status = exit_status(outcome.findings)
    inputs = [
        {"replica": label, "kind": "directory", "path": str(place.path)}
        for label, place in request.stores
    ]
    for node in request.live:
        where = ", ".join(_without_password(url) for url in node.connection.servers)
        inputs.append({"replica": node.label, "kind": "live node", "path": where})
    document = {
        "format": FORMAT,
        "verdict": {EXIT_CLEAN: "clean", EXIT_WARNINGS: "warnings"}.get(status, "damage"),
        "started": started,
        "elapsed_s": round(outcome.elapsed_s, 3),
        "level": request.level,
        "expect": request.expect,
        "inputs": inputs,
        "records": outcome.records,
        "bytes": outcome.bytes,
        "replicas": [vars(row) for row in outcome.rows],
        "findings": [
            {**each.row(), "records": [list(record) for record in each.records]}
            for each in outcome.findings
        ],
        "notes": outcome.notes,
    }
    return {**document, "next": next_steps(document)}


def _without_password(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{host}"


def write_output(output: Path, document: dict[str, Any]) -> None:
    """findings.parquet, findings.json and report.html, each whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from spark_jobs.audit.findings import FIELDS
    from spark_jobs.audit.report import render

    longs = {"seq_lo", "seq_hi", "offset"}
    schema = pa.schema([(name, pa.int64() if name in longs else pa.string()) for name in FIELDS])
    rows = [{name: each[name] for name in FIELDS} for each in document["findings"]]
    table = pa.Table.from_pylist(rows, schema=schema)
    _replace(output / "findings.parquet", lambda path: pq.write_table(table, path))
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    _replace(output / "findings.json", lambda path: path.write_text(text, encoding="utf-8"))
    page = render(document)
    _replace(output / "report.html", lambda path: path.write_text(page, encoding="utf-8"))


def _replace(path: Path, write: Any) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    write(scratch)
    scratch.replace(path)


def table_of(document: dict[str, Any]) -> str:
    """The result as text for a terminal."""
    rate = document["records"] / max(document["elapsed_s"], 0.001)
    lines = [
        f"{document['verdict']}: {len(document['findings'])} findings; "
        f"{document['records']:,} records, {document['bytes'] / 1e6:,.1f} MB in "
        f"{document['elapsed_s']:.1f} s ({rate:,.0f} records/s, level {document['level']})"
    ]
    heads = ("stream", "replica", "state", "applied", "last_seq", "messages", "digest", "findings")
    rows = [[_shown(row[head]) for head in heads] for row in document["replicas"]]
    lines += ["", *_columns([list(heads), *rows])]
    found = document["findings"]
    if found:
        titles = ["severity", "code", "replica", "stream", "seq", "place", "found"]
        rows = [_finding_row(each) for each in found[:TABLE_ROWS_MAX]]
        lines += ["", *_columns([titles, *rows])]
        if len(found) > TABLE_ROWS_MAX:
            lines.append(f"... and {len(found) - TABLE_ROWS_MAX} more: --output DIR has all")
    if document["next"]:
        lines += ["", "what to do next:"]
        lines += [f"{at}. {step}" for at, step in enumerate(document["next"], 1)]
    if document["notes"]:
        lines += ["", *(f"note: {note}" for note in document["notes"])]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _finding_row(each: dict[str, Any]) -> list[str]:
    seq = "" if each["seq_lo"] is None else str(each["seq_lo"])
    if each["seq_hi"] not in (None, each["seq_lo"]):
        seq += f"-{each['seq_hi']}"
    place = each["file"].rpartition("/")[2]
    if each["offset"] is not None:
        place += f"@{each['offset']}"
    got = each["got"] if each["got"].isprintable() else repr(each["got"])
    return [
        each["severity"], each["code"], each["replica"], each["stream"], seq, place, got[:60],
    ]  # fmt: skip


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
