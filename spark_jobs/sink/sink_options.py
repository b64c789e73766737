"""Options of a write, and the columns of the written DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_jobs.client.options import (
    CONNECT_NAMES,
    ConnectOptions,
    OptionError,
    check_names,
    lowered,
    parse_bool,
    parse_int,
)
from spark_jobs.sink import ledger
from streamd.subjects import is_valid_literal

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
BATCH_MSGS_MAX: Final = 1000  # messages of one atomic batch, the ledger's included
WINDOW_ROWS: Final = 10_000
TIMEOUT_S: Final = 60

SINK_NAMES: Final = (
    "stream",
    "delivery",
    "jobId",
    "planId",
    "dlq",
    "rowIds",
    "prepareStream",
    "batchRows",
    "windowRows",
    "timeoutSeconds",
    "rate",
    "paceColumn",
    "paceStartNs",
    "paceSpeed",
    "paceBeganNs",
    "summaryFile",
    "summarySubject",
)
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
_TAKES: Final = {
    "subject": "string",
    "payload": "string or binary",
    "data": "string or binary",
    "headers": "map<string,string> or map<string,array<string>>",
    "msg_id": "string",
    "ttl": "string (30s, 1h, never) or a number of whole seconds",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of the sink's columns in a row; -1: not given."""

    subject: int
    payload: int
    headers: int = -1
    msg_id: int = -1
    ttl: int = -1
    pace: int = -1

    @classmethod
    def of(cls, schema: StructType, *, pace_column: str = "") -> Layout:
        """Find the columns, whatever their case. Raises OptionError naming column and types."""
        found: dict[str, int] = {}
        for at, each in enumerate(schema.fields):
            name = each.name.lower()
            if pace_column and name == pace_column.lower():
                if each.dataType.typeName() not in ("long", "bigint"):
                    raise OptionError(
                        f"column {each.name} has type {each.dataType.simpleString()}, as "
                        "paceColumn it must be bigint (ns)"
                    )
                name = "pace"
            elif name not in _TAKES:
                raise OptionError(
                    f"column {each.name} is none that a stream takes; select or rename to: "
                    + ", ".join(f"{key} ({types})" for key, types in _TAKES.items())
                )
            elif not _fits(name, each.dataType):
                raise OptionError(
                    f"column {each.name} has type {each.dataType.simpleString()}, must be "
                    f"{_TAKES[name]}"
                )
            name = "payload" if name == "data" else name
            if name in found:
                other = schema.fields[found[name]].name
                raise OptionError(f"columns {other} and {each.name} mean the same: give one")
            found[name] = at
        for name in ("subject", "payload"):
            if name not in found:
                have = ", ".join(each.name for each in schema.fields) or "none"
                raise OptionError(
                    f"column {name} ({_TAKES[name]}) is missing; the columns are {have}"
                )
        if pace_column and "pace" not in found:
            raise OptionError(f"option paceColumn: there is no column {pace_column}")
        return cls(**found)


def _literal(name: str, subject: str) -> str:
    if subject and not is_valid_literal(subject.encode()):
        raise OptionError(f"option {name} is {subject!r}, which is no subject to publish to")
    return subject


def _fits(name: str, kind: DataType) -> bool:
    text = kind.simpleString()
    if name in ("payload", "data"):
        return text in ("string", "binary")
    if name == "headers":
        return text in ("map<string,string>", "map<string,array<string>>")
    if name == "ttl":
        return text in ("string", "int", "bigint", "smallint")
    return text == "string"


@dataclass(frozen=True, slots=True)
class Pace:
    """When rows may be sent. `rows_per_s`: of one task, 0 for no bound. With `speed` a row whose
    pace column is t waits until `began_ns` + (t - `start_ns`) / `speed`; 0 for either: that of the
    first row."""

    rows_per_s: float = 0.0
    speed: float = 0.0
    start_ns: int = 0
    began_ns: int = 0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """A write to one stream."""

    stream: str
    connection: ConnectOptions = field(default_factory=ConnectOptions)
    is_exact: bool = True
    job: str = ""  # "" until a batch write is given one; a streaming query has its own id
    is_made_up: bool = False  # nobody but this write knows `job`
    plan: str = ""
    dlq: str = ""
    has_row_ids: bool = True
    may_prepare: bool = False
    batch_rows: int = BATCH_MSGS_MAX - 1
    window_rows: int = WINDOW_ROWS
    timeout_s: float = TIMEOUT_S
    pace: Pace = field(default_factory=Pace)
    pace_column: str = ""
    summary_file: str = ""
    summary_subject: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check all of `options`. Raises OptionError naming the option and the rule."""
        check_names(options, (*SINK_NAMES, *CONNECT_NAMES, *_SPARKS_OWN))
        given = lowered(options)
        stream = given.get("stream", "").strip()
        if not stream:
            raise OptionError('option stream is missing: .option("stream", "NAME")')
        if any(char in stream for char in ". *>/\\\t\r\n"):
            raise OptionError(f"option stream is {stream!r}, which is no stream's name")
        delivery = given.get("delivery", EXACTLY_ONCE).strip().lower()
        if delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
            raise OptionError(
                f"option delivery is {delivery!r}, must be {EXACTLY_ONCE} or {AT_LEAST_ONCE}"
            )

        def number(name: str, default: int, high: int, low: int = 1) -> int:
            text = given.get(name.lower(), "")
            return parse_int(name, text, low=low, high=high) if text else default

        def real(name: str) -> float:
            text = given.get(name.lower(), "").strip()
            if not text:
                return 0.0
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not 0 < value < 1e12:
                raise OptionError(f"option {name} is {text!r}, must be a number above 0")
            return value

        pace_column = given.get("pacecolumn", "").strip()
        speed = real("paceSpeed")
        if bool(pace_column) != bool(speed):
            raise OptionError("options paceColumn and paceSpeed go together, one is missing")
        job = given.get("jobid", "").strip()
        return cls(
            stream=stream,
            connection=ConnectOptions.parse(given),
            is_exact=delivery == EXACTLY_ONCE,
            job=ledger.check_job(job) if job else "",
            plan=given.get("planid", "").strip(),
            dlq=given.get("dlq", "").strip(),
            has_row_ids=parse_bool("rowIds", given.get("rowids") or "true"),
            may_prepare=parse_bool("prepareStream", given.get("preparestream") or "false"),
            batch_rows=number("batchRows", BATCH_MSGS_MAX - 1, BATCH_MSGS_MAX - 1),
            window_rows=number("windowRows", WINDOW_ROWS, 1_000_000),
            timeout_s=number("timeoutSeconds", TIMEOUT_S, 86_400),
            pace=Pace(
                rows_per_s=real("rate"),
                speed=speed,
                start_ns=number("paceStartNs", 0, (1 << 63) - 1, 0),
                began_ns=number("paceBeganNs", 0, (1 << 63) - 1, 0),
            ),
            pace_column=pace_column,
            summary_file=given.get("summaryfile", "").strip(),
            summary_subject=_literal("summarySubject", given.get("summarysubject", "").strip()),
        )
