"""Options of a read or a connection: a user's names and texts to typed values.

Names are matched without regard to case. An unknown name is an error that names the nearest known
one; so is a value out of its range. Values of readers and connections are plain and picklable.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from spark_jobs import schema as columns_of_streams
from streamd import subjects

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EARLIEST, LATEST = "earliest", "latest"
LEADER, ANY = "leader", "any"
DEFAULT_PORT = 4222
BATCH_ROWS_MAX = 1_000_000
PARTITION_BYTES = 128 * 1024 * 1024  # as Spark's own spark.sql.files.maxPartitionBytes
SEQ_MAX = (1 << 63) - 1

CONNECT_NAMES = (
    "servers",
    "user",
    "password",
    "token",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "domain",
    "name",
)
READ_NAMES = (
    "stream",
    "path",
    "paths",
    "subjects",
    "subject",
    "startSeq",
    "startTime",
    "startingPosition",
    "endSeq",
    "endTime",
    "lastPerSubject",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "maxMsgsPerTrigger",
    "maxBytesPerTrigger",
    "minMsgsPerTrigger",
    "failOnDataLoss",
    "columns",
    "includeHeaders",
    "batchRows",
    "readFrom",
    "pushdown",
    "ackConsumer",
    "withDebug",
    "verify",
)
_UNSUPPORTED = {
    "creds": "use user and password, or token",
    "nkey": "use user and password, or token",
    "url": "the servers' addresses are option servers",
}
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}


class OptionError(ValueError):
    """A value that a user gave is wrong; the text names it and the rule."""


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """`options` with lower-case names and text values; None is as good as absent."""
    return {str(key).lower(): str(value) for key, value in options.items() if value is not None}


def check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise OptionError for the first name that is not among `known`."""
    by_lower = {name.lower(): name for name in known}
    for name in options:
        lower = name.lower()
        if lower in by_lower:
            continue
        if lower in _UNSUPPORTED:
            raise OptionError(f"option {name} is not supported: {_UNSUPPORTED[lower]}")
        near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.6)
        hint = f"; did you mean {by_lower[near[0]]}?" if near else f"; known: {', '.join(known)}"
        raise OptionError(f"unknown option {name}{hint}")


def parse_bool(name: str, text: str) -> bool:
    """true or false. Raises OptionError."""
    lower = text.strip().lower()
    if lower in _TRUE:
        return True
    if lower in _FALSE:
        return False
    raise OptionError(f"option {name} is {text!r}, must be true or false")


def parse_int(name: str, text: str, *, low: int, high: int = SEQ_MAX) -> int:
    """An integer of low..high. Raises OptionError."""
    try:
        value = int(text.strip())
    except ValueError:
        raise OptionError(f"option {name} is {text!r}, must be an integer") from None
    if not low <= value <= high:
        raise OptionError(f"option {name} is {value}, must be in {low}..{high}")
    return value


def parse_size(name: str, text: str) -> int:
    """Bytes of `67108864`, `64m`, `64 MiB`, `64MB` (all binary). Raises OptionError."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise OptionError(f"option {name} is {text!r}, must be bytes, such as 67108864 or 64MiB")
    shift = " kmgt".index((found[2] or " ").lower()) * 10
    value = int(found[1]) << shift
    if not 0 < value <= SEQ_MAX:
        raise OptionError(f"option {name} is {text!r}, must be above 0")
    return value


def parse_time(name: str, text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 text (UTC if it says nothing) or such a number.

    What no message can have is the nearest time that one can: 1 ns after 1970 (0 is no bound), or
    the end of 2^63 ns in 2262. Raises OptionError, also for a number that looks like seconds,
    milli- or microseconds.
    """
    text = text.strip()
    if text.isdigit():
        value = int(text)
        if not 10**17 <= value <= SEQ_MAX:
            raise OptionError(
                f"option {name} is {text}, a number must be nanoseconds since 1970 (19 digits)"
            )
        return value
    fraction = re.search(r"\.(\d{1,9})", text)
    plain = text if fraction is None else text[: fraction.start()] + text[fraction.end() :]
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise OptionError(
            f"option {name} is {text!r}, must be like 2026-01-31T12:00:00Z or nanoseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    nanos = int(fraction[1].ljust(9, "0")) if fraction else 0
    value = round(moment.timestamp()) * 1_000_000_000 + nanos
    return min(max(1, value), SEQ_MAX - 1)  # whoever looks for what is behind it adds 1


def _servers(text: str) -> tuple[tuple[str, ...], str, str]:
    """(host:port ..., user, password) of a comma-separated list of addresses or nats:// URLs."""
    found: list[str] = []
    user = password = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            url = urlsplit(part if "://" in part else f"nats://{part}")
            port = url.port or DEFAULT_PORT
        except ValueError as err:
            raise OptionError(f"option servers: {part!r} is no host:port: {err}") from None
        if url.scheme not in ("nats", "tls") or not url.hostname:
            raise OptionError(f"option servers: {part!r} must be host:port or nats://host:port")
        user = user or unquote(url.username or "")
        password = password or unquote(url.password or "")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        prefix = "tls://" if url.scheme == "tls" else ""
        found.append(f"{prefix}{host}:{port}")
    if not found:
        raise OptionError("option servers is empty, must be host:port, more separated by commas")
    return tuple(found), user, password


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Address and credentials of a server. `servers` are "host:port", or "tls://host:port"; tried
    in order."""

    servers: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    domain: str = ""
    name: str = "spark"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ConnectOptions:
        """Take the connection's options out of `options`; others are left alone."""
        given = lowered(options)
        servers, user, password = _servers(given.get("servers", f"127.0.0.1:{DEFAULT_PORT}"))
        made = cls(
            servers=servers,
            user=given.get("user", user),
            password=given.get("password", password),
            token=given.get("token", ""),
            tls_ca=given.get("tls.ca", ""),
            tls_cert=given.get("tls.cert", ""),
            tls_key=given.get("tls.key", ""),
            domain=given.get("domain", ""),
            name=given.get("name", "spark"),
        )
        if bool(made.tls_cert) != bool(made.tls_key):
            raise OptionError("options tls.cert and tls.key go together, one of them is missing")
        if made.token and made.user:
            raise OptionError("give option token, or user and password, not both")
        return made


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A read of one stream. 0, "" and () mean not given; times are ns, bounds inclusive."""

    stream: str
    connection: ConnectOptions = field(default_factory=ConnectOptions)
    paths: tuple[str, ...] = ()  # data directories: read files instead of asking servers
    subjects: tuple[str, ...] = ()  # wildcards; (): all
    start_seq: int = 0
    start_time_ns: int = 0
    starting_position: str = EARLIEST
    end_seq: int = 0
    end_time_ns: int = 0
    last_per_subject: bool = False
    min_partitions: int = 0
    max_records_per_partition: int = 1_000_000
    max_bytes_per_partition: int = PARTITION_BYTES
    max_msgs_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_msgs_per_trigger: int = 0
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = columns_of_streams.COLUMNS  # what the read yields, in this order
    batch_rows: int = 10_000
    read_from: str = ""  # online: leader, any or a server's name; offline: a replica's name
    pushdown: bool = False
    ack_consumer: str = ""
    verify: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType | None = None) -> ReadOptions:
        """Check all of `options`. `schema` is one that the user gave: it names the columns.

        Raises OptionError naming the option and the rule.
        """
        check_names(options, (*READ_NAMES, *CONNECT_NAMES))
        given = lowered(options)
        stream = given.get("stream", "").strip()
        if not stream:
            raise OptionError('option stream is missing: .option("stream", "NAME")')

        def number(name: str, default: int = 0, low: int = 1, high: int = SEQ_MAX) -> int:
            text = given.get(name.lower(), "")
            return parse_int(name, text, low=low, high=high) if text else default

        def size(name: str, default: int = 0) -> int:
            text = given.get(name.lower(), "")
            return parse_size(name, text) if text else default

        def flag(name: str, default: bool) -> bool:
            text = given.get(name.lower(), "")
            return parse_bool(name, text) if text else default

        def moment(name: str) -> int:
            text = given.get(name.lower(), "")
            return parse_time(name, text) if text else 0

        start_seq, start_time = number("startSeq"), moment("startTime")
        position = given.get("startingposition", "").lower()
        if position not in ("", EARLIEST, LATEST):
            raise OptionError(
                f"option startingPosition is {position!r}, must be {EARLIEST} or {LATEST}"
            )
        if sum(map(bool, (start_seq, start_time, position))) > 1:
            raise OptionError("give one of startSeq, startTime and startingPosition, not several")
        end_seq, end_time = number("endSeq"), moment("endTime")
        if end_seq and end_time:
            raise OptionError("give one of endSeq and endTime, not both")
        if end_seq and start_seq > end_seq:
            raise OptionError(f"startSeq {start_seq} is after endSeq {end_seq}")
        if end_time and start_time > end_time:
            raise OptionError(f"startTime {given['starttime']} is after endTime {given['endtime']}")
        return cls(
            stream=stream,
            connection=ConnectOptions.parse(given),
            paths=_paths(given),
            subjects=_subjects(given),
            start_seq=start_seq,
            start_time_ns=start_time,
            starting_position=position or EARLIEST,
            end_seq=end_seq,
            end_time_ns=end_time,
            last_per_subject=flag("lastPerSubject", False),
            min_partitions=number("minPartitions", high=1_000_000),
            max_records_per_partition=number("maxRecordsPerPartition", 1_000_000),
            max_bytes_per_partition=size("maxBytesPerPartition", PARTITION_BYTES),
            max_msgs_per_trigger=number("maxMsgsPerTrigger"),
            max_bytes_per_trigger=size("maxBytesPerTrigger"),
            min_msgs_per_trigger=number("minMsgsPerTrigger"),
            fail_on_data_loss=flag("failOnDataLoss", True),
            columns=_columns(
                given,
                columns_of_streams.columns_of_schema(schema),
                with_headers=flag("includeHeaders", True),
                with_debug=flag("withDebug", False),
            ),
            batch_rows=number("batchRows", 10_000, high=BATCH_ROWS_MAX),
            read_from=given.get("readfrom", "").strip(),
            pushdown=flag("pushdown", False),
            ack_consumer=given.get("ackconsumer", "").strip(),
            verify=flag("verify", True),
        )

    @property
    def is_offline(self) -> bool:
        return bool(self.paths)

    def check_batch(self) -> None:
        """Raise OptionError for an option that a batch read would ignore."""
        for name, value in (
            ("maxMsgsPerTrigger", self.max_msgs_per_trigger),
            ("maxBytesPerTrigger", self.max_bytes_per_trigger),
            ("minMsgsPerTrigger", self.min_msgs_per_trigger),
            ("ackConsumer", self.ack_consumer),
        ):
            if value:
                raise OptionError(
                    f"option {name} is for spark.readStream: a batch read has no triggers and "
                    "reads all at once; startSeq and endSeq bound it"
                )

    @property
    def with_debug(self) -> bool:
        return any(name in columns_of_streams.DEBUG_COLUMNS for name in self.columns)


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """`path`, comma-separated, and `paths`, the JSON list that `load([...])` makes."""
    found = [part.strip() for part in given.get("path", "").split(",") if part.strip()]
    if given.get("paths"):
        try:
            more = json.loads(given["paths"])
        except ValueError:
            raise OptionError(f"option paths is {given['paths']!r}, must be a JSON list") from None
        if not isinstance(more, list):
            raise OptionError(f"option paths is {given['paths']!r}, must be a JSON list")
        found += [str(path) for path in more]
    plain: list[str] = []
    for path in found:
        scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):", path)
        if scheme and scheme[1].lower() != "file":
            raise OptionError(
                f"option path: {path!r} is not a local directory; every executor must see it "
                "under the same local path"
            )
        if scheme:
            path = re.sub(r"^file:(//[^/]*)?", "", path)
        plain.append(path)
    return tuple(plain)


def _subjects(given: Mapping[str, str]) -> tuple[str, ...]:
    text = ",".join(filter(None, (given.get("subjects", ""), given.get("subject", ""))))
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for subject in found:
        if not subjects.is_valid(subject.encode()):
            raise OptionError(f"option subjects: {subject!r} is not a valid subject or wildcard")
    return found


def _columns(
    given: Mapping[str, str], named: tuple[str, ...], *, with_headers: bool, with_debug: bool
) -> tuple[str, ...]:
    """The columns to read: the user's schema, else option `columns`, else the usual ones."""
    if named:
        return named
    known = (*columns_of_streams.COLUMNS, *columns_of_streams.DEBUG_COLUMNS)
    text = given.get("columns", "")
    if text.strip():
        wanted = tuple(part.strip() for part in text.split(",") if part.strip())
        for name in wanted:
            if name not in known:
                raise OptionError(
                    f"option columns: a stream has no column {name!r}; its columns are "
                    + ", ".join(known)
                )
        if len(set(wanted)) < len(wanted):
            raise OptionError(f"option columns: {text!r} names a column twice")
    else:
        wanted = columns_of_streams.COLUMNS
    if not with_headers:
        wanted = tuple(name for name in wanted if name != "headers")
    if with_debug:
        wanted += tuple(name for name in columns_of_streams.DEBUG_COLUMNS if name not in wanted)
    return wanted
