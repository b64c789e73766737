"""The columns of a stream as Spark and Arrow know them.

`size` is the number of bytes of the payload. `ts` is `ts_ns` cut to microseconds. A header may
have several values, so a header's value is a list; equal keys keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    SCHEMA: StructType
    DEBUG_SCHEMA: StructType

ARROW_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("ts_ns", pa.int64()),
        pa.field("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
        pa.field("payload", pa.binary()),
        pa.field("size", pa.int32()),
    ]
)
DEBUG_ARROW_SCHEMA = pa.schema(
    [
        *ARROW_SCHEMA,
        pa.field("replica", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("pos", pa.int64()),
        pa.field("crc", pa.int64()),
    ]
)
COLUMNS: tuple[str, ...] = tuple(ARROW_SCHEMA.names)
DEBUG_COLUMNS: tuple[str, ...] = tuple(DEBUG_ARROW_SCHEMA.names[len(COLUMNS) :])
# Subjects of the sink's ledger (docs/adr/0018-spark-sink-ledger.md): no data, so a read leaves
# them out unless its option `subjects` asks for them.
LEDGER_PREFIX = b"$LEDGER."
_DDL = {
    "stream": "string",
    "subject": "string",
    "seq": "bigint",
    "ts": "timestamp",
    "ts_ns": "bigint",
    "headers": "map<string,array<string>>",
    "payload": "binary",
    "size": "int",
    "replica": "string",
    "block": "bigint",
    "pos": "bigint",
    "crc": "bigint",
}


def spark_schema(columns: Sequence[str]) -> StructType:
    """The StructType of `columns`, in that order."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "string": StringType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "map<string,array<string>>": MapType(StringType(), ArrayType(StringType())),
        "binary": BinaryType(),
        "int": IntegerType(),
    }
    return StructType([StructField(name, types[_DDL[name]]) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of `columns`, in that order."""
    return pa.schema([DEBUG_ARROW_SCHEMA.field(name) for name in columns])


def columns_of_schema(schema: StructType | None) -> tuple[str, ...]:
    """The names of a schema that a user gave; () for none.

    Raises ValueError naming the first column that a stream does not have, or has with another
    type.
    """
    if schema is None:
        return ()
    for field in schema.fields:
        wanted = _DDL.get(field.name)
        if wanted is None:
            raise ValueError(
                f"a stream has no column {field.name!r}; its columns are {', '.join(_DDL)}"
            )
        found = field.dataType.simpleString()
        if found != wanted:
            raise ValueError(f"column {field.name!r} has type {wanted}, the schema says {found}")
    return tuple(field.name for field in schema.fields)


def parse_headers(block: bytes) -> list[tuple[str, list[str]]]:
    """The (key, values) pairs of a header block, in order of each key's first line; [] for none.

    Bytes that are not UTF-8 become U+FFFD. The status line is not among them.
    """
    found: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon and key:
            text = value.strip(b" \t").decode("utf-8", "replace")
            found.setdefault(key.decode("utf-8", "replace"), []).append(text)
    return list(found.items())


def __getattr__(name: str) -> Any:
    # The Spark types are made on demand: offline decoding works without pyspark.
    if name == "SCHEMA":
        return spark_schema(COLUMNS)
    if name == "DEBUG_SCHEMA":
        return spark_schema((*COLUMNS, *DEBUG_COLUMNS))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
