"""Files to a stream: JSON lines, CSV, Parquet or text; each row one message, each exactly once.

    streamd-spark ingest --stream FLIGHTS --create --format parquet --from ./flights \\
        --subject-template 'flights.{carrier}.{origin}' --id-columns year,month,day,flight
    streamd-spark ingest --stream LOGS --format text --from 'logs/*.txt' --subject-template logs.raw
    streamd-spark ingest ... --dry-run           # shows what would be sent, and sends nothing
    streamd-spark ingest ... --job-id nightly    # again with the same id: the rest only

A message's payload is the row as JSON, or --payload-columns of it; one such column that is a string
or binary goes as it is with --raw (text is always raw). Values in a subject have white space and
. * > replaced by _; a null is _ too. Ids, made of --id-columns, become Nats-Msg-Id.

A record that does not parse as its schema says is never sent as something else: without --dlq the
job sends nothing and names the first ones; with it they go there with file, line and the text as
it stood, and the others are sent. --dlq is a subject, stream:NAME, or dir:PATH (also /PATH, ./PATH)
for files of JSON lines. Rows that the stream refuses end the job, or go to --dlq if that is a
subject or a stream.

A job resumes by its --job-id through the ledger in the stream
(docs/adr/0018-spark-sink-ledger.md): same input, same settings, else it refuses.

Exit status: 0, 1 some records are malformed or some rows went to the dead letters, 3 could not run
or not to the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.ingest.malformed import Malformed, check_directory, directory_of, run_name
from spark_jobs.ingest.read import FORMATS, read_input
from spark_jobs.ingest.sources import Source
from spark_jobs.jobs.command import (
    EXIT_OK,
    EXIT_WARNINGS,
    JobError,
    connect_options,
    job_parser,
    run_job,
    session_from,
)
from spark_jobs.jobs.stream_writing import (
    plan_of,
    prepared,
    sink_arguments,
    sink_options,
    write_stream,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHOWN_ROWS: Final = 10
_SHOWN_BYTES: Final = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    return run_job(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("ingest", __doc__)
    group = parser.add_argument_group("input")
    group.add_argument("--from", dest="paths", metavar="PATH", nargs="+", required=True)
    group.add_argument("--format", choices=FORMATS, required=True)
    group.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of Spark's reader, such as header=true, multiLine=true; may be repeated",
    )
    group.add_argument("--schema", metavar="DDL", help="such as 'id long, name string'")
    group.add_argument("--where", metavar="SQL", help="only rows for which this is true")
    group = parser.add_argument_group("messages")
    group.add_argument("--stream", required=True, metavar="NAME")
    group.add_argument(
        "--subject-template", required=True, metavar="TEXT", help="such as 'orders.{region}'"
    )
    group.add_argument(
        "--payload-columns", metavar="A,B", help="columns of the payload (default: all)"
    )
    group.add_argument(
        "--raw", action="store_true", help="publish one payload column as it is, not as JSON"
    )
    group.add_argument(
        "--id-columns", metavar="A,B", help="columns that make the Nats-Msg-Id, as a:b"
    )
    group.add_argument("--headers", metavar="A,B", help="columns that become headers")
    group.add_argument(
        "--ttl-column", metavar="A", help="column with the TTL of a message, such as 30s"
    )
    group.add_argument("--dry-run", action="store_true", help="show some messages, publish none")
    sink_arguments(parser)
    return parser


def _work(args: argparse.Namespace) -> int:
    directory = directory_of(args.dlq)
    check_directory(directory)
    began = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    spark = session_from(args, "streamd ingest")
    found = read_input(spark, _source(args))
    malformed = Malformed(found.malformed)
    try:
        if malformed.count and not args.dlq and not args.dry_run:
            return _refuse(malformed)
        source = found.rows.where(args.where) if args.where else found.rows
        messages = messages_of(
            source,
            args.subject_template,
            payload_columns=_names(args.payload_columns),
            is_raw=args.raw or args.format == "text",
            id_columns=_names(args.id_columns),
            headers=_names(args.headers),
            ttl_column=args.ttl_column or "",
        )
        options = connect_options(args) | sink_options(args)
        if directory:
            del options["dlq"]
        if args.dry_run:
            return _show(args, options, messages, malformed)
        pattern = _pattern(args.subject_template)
        connection = prepared(args, options, default_subjects=[pattern])
        if args.job_id:
            settings = {name: json.dumps(getattr(args, name)) for name in _PLANNED}
            options["planId"] = plan_of(settings, messages)
        kept = ""
        if malformed.count:  # before anything is sent: nothing is lost if this ends in the middle
            run = run_name(args.job_id, args.paths, began)
            kept = malformed.keep(args.dlq, options, run=run)
        label = f"ingest {args.stream}"
        status = write_stream("ingest", messages, options, args, label=label, connection=connection)
        if not malformed.count:
            return status
        print(f"ingest: {malformed.count:,} malformed records went to {kept}")
        malformed.tell()
        return EXIT_WARNINGS
    finally:
        malformed.close()


def _refuse(malformed: Malformed) -> int:
    """Say that nothing is sent, and why; return the exit status."""
    print(
        f"streamd-spark ingest: {malformed.count:,} records do not parse as their schema says, and "
        "nothing was sent; --dlq keeps them and sends the others",
        file=sys.stderr,
    )
    malformed.tell()
    return EXIT_WARNINGS


def _source(args: argparse.Namespace) -> Source:
    """The input that the arguments name. Raises JobError."""
    options: dict[str, str] = {}
    for each in args.option:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise JobError(f"--option {each!r} is not KEY=VALUE")
        options[key] = value
    return Source(args.format, args.paths, options, args.schema or "")


_PLANNED: Final = (
    "format", "option", "schema", "where", "stream", "subject_template", "payload_columns", "raw",
    "id_columns", "headers", "ttl_column",
)  # fmt: skip


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def messages_of(
    source: DataFrame,
    template: str,
    *,
    payload_columns: Sequence[str] = (),
    is_raw: bool = False,
    id_columns: Sequence[str] = (),
    headers: Sequence[str] = (),
    ttl_column: str = "",
) -> DataFrame:
    """`source` with the columns that the sink takes. Raises JobError naming a column that is not
    there."""
    from pyspark.sql import functions as f

    known = list(source.columns)
    payload = list(payload_columns) or known
    for option, names in (
        ("--subject-template", _fields(template)),
        ("--payload-columns", payload),
        ("--id-columns", id_columns),
        ("--headers", headers),
        ("--ttl-column", [ttl_column] if ttl_column else []),
    ):
        for name in names:
            if name not in known:
                raise JobError(f"{option}: no column {name!r}; there are {', '.join(known)}")
    if is_raw:
        if len(payload) != 1:
            raise JobError(f"--raw needs one payload column, there are {', '.join(payload)}")
        body = f.col(_quoted(payload[0]))
        if source.schema[payload[0]].dataType.simpleString() not in ("string", "binary"):
            raise JobError(f"--raw: column {payload[0]} is neither string nor binary")
    else:
        body = f.to_json(f.struct(*[f.col(_quoted(name)) for name in payload]))
    columns = [_subject(template).alias("subject"), body.alias("payload")]
    if headers:
        pairs: list[Column] = []
        for name in headers:
            pairs += [f.lit(name), f.coalesce(f.col(_quoted(name)).cast("string"), f.lit(""))]
        columns.append(f.create_map(*pairs).alias("headers"))
    if id_columns:
        parts = [f.coalesce(f.col(_quoted(name)).cast("string"), f.lit("")) for name in id_columns]
        columns.append(f.concat_ws(":", *parts).alias("msg_id"))
    if ttl_column:
        columns.append(f.col(_quoted(ttl_column)).cast("string").alias("ttl"))
    return source.select(*columns)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _pieces(template: str) -> list[tuple[str, bool]]:
    """(text, whether it is a column) in order. Raises JobError for unbalanced braces."""
    found: list[tuple[str, bool]] = []
    rest = template
    while rest:
        text, brace, rest = rest.partition("{")
        if "}" in text:
            raise JobError(f"--subject-template {template!r}: a }} without its {{")
        if text:
            found.append((text, False))
        if brace:
            name, brace, rest = rest.partition("}")
            if not brace or not name.strip():
                raise JobError(f"--subject-template {template!r}: {{ must enclose a column's name")
            found.append((name.strip(), True))
    if not found:
        raise JobError("--subject-template is empty")
    return found


def _fields(template: str) -> list[str]:
    return [text for text, is_column in _pieces(template) if is_column]


def _subject(template: str) -> Column:
    from pyspark.sql import functions as f

    parts: list[Column] = []
    for text, is_column in _pieces(template):
        if is_column:
            value = f.col(_quoted(text)).cast("string")
            clean = f.regexp_replace(value, r"[\s.*>\x00-\x1f]", "_")
            blank = clean.isNull() | (clean == f.lit(""))
            parts.append(f.when(blank, f.lit("_")).otherwise(clean))
        else:
            parts.append(f.lit(text))
    return f.concat(*parts)


def _pattern(template: str) -> str:
    """Return the subject for a new stream to capture: a `*` for each token that holds a column."""
    whole = "".join("\x00" if is_column else text for text, is_column in _pieces(template))
    return ".".join("*" if "\x00" in token else token for token in whole.split("."))


def _show(
    args: argparse.Namespace,
    options: dict[str, str],
    messages: DataFrame,
    malformed: Malformed,
) -> int:
    """Print the first messages, and which of them the sink itself would refuse."""
    from spark_jobs.jobs.stream_writing import refused_rows

    sample = messages.limit(SHOWN_ROWS).collect()
    pattern = _pattern(args.subject_template)
    note, refused = refused_rows(args, options, sample, default_subjects=pattern)
    print(f"the first {len(sample)} messages of {', '.join(args.paths)}; nothing is sent")
    for at, row in enumerate(sample):
        line: dict[str, Any] = {"subject": row["subject"]}
        for name in ("msg_id", "headers", "ttl"):
            if name in row:
                line[name] = row[name]
        payload = row["payload"]
        if isinstance(payload, bytes | bytearray):
            payload = payload.decode("utf-8", "replace")
        is_long = payload is not None and len(payload) > _SHOWN_BYTES
        line["payload"] = payload[:_SHOWN_BYTES] + "..." if is_long else payload
        print(json.dumps(line, ensure_ascii=False))
        if at in refused:
            print(f"  would be refused: {refused[at]}")
    print(note)
    if malformed.count:
        print(f"{malformed.count:,} records are malformed and would go to {args.dlq or 'nowhere'}")
        malformed.tell()
    return EXIT_WARNINGS if refused or malformed.count else EXIT_OK
