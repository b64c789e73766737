"""/metrics in Prometheus' text format: numbers of /varz, and those of each stream.

Metric names are those of prometheus-nats-exporter, so dashboards made for it keep working. The
text is made in pieces, of one stream each: there may be thousands, and nobody can page here. They
are read each few seconds, so streams come as lines that are kept while nothing changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from streamd.latency_histogram import BOUNDS_S, LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Gauges = Sequence[tuple[str, str]]
"""Names of metrics, each with its help text, in the order of the numbers that come for them."""


class Lines(NamedTuple):
    """Samples of one thing, a line for each metric of a table of gauges."""

    gauges: Gauges
    lines: Sequence[str]


class StreamSamples(NamedTuple):
    """Samples of this node's replica of a stream, and of its consumers; a None among those is a
    pause."""

    numbers: Sequence[float]  # in the order of `STREAM_GAUGES`
    groups: Sequence[Lines]
    consumers: Iterable[Sequence[Lines] | None] = ()


Row = Mapping[str, object]
"""A JSON object of /varz or /jsz, at any depth."""

STREAM_GAUGES: Final[Gauges] = (
    ("jetstream_stream_total_messages", "Stream messages"),
    ("jetstream_stream_total_bytes", "Stream bytes"),
    ("jetstream_stream_first_seq", "Stream first_seq"),
    ("jetstream_stream_last_seq", "Stream last_seq"),
    ("jetstream_stream_consumer_count", "Stream consumer_count"),
    ("jetstream_stream_subject_count", "Stream num_subjects"),
)
BLOCK_GAUGES: Final[Gauges] = (
    ("streamd_block_bytes", "Bytes of the stream's block files here: their content"),
    ("streamd_block_stored_bytes", "Bytes of the stream's block files here: on disk"),
)
# Of this node's replica; only in a cluster.
REPLICA_GAUGES: Final[Gauges] = (
    ("streamd_replica_is_leader", "Replica here: streamd_replica_is_leader"),
    ("streamd_replica_current", "Replica here: streamd_replica_current"),
    ("streamd_replica_lag", "Replica here: streamd_replica_lag"),
    ("streamd_replica_applied", "Replica here: streamd_replica_applied"),
    ("streamd_replica_equal", "Replica here: streamd_replica_equal"),
    ("streamd_replica_differing", "Replica here: streamd_replica_differing"),
)
LETTER_GAUGES: Final[Gauges] = (
    (
        "streamd_dead_letters_waiting",
        "Dead letters that are not stored yet where they are to go",
    ),
)
CONSUMER_GAUGES: Final[Gauges] = (
    ("jetstream_consumer_delivered_consumer_seq", "Consumer delivered consumer_seq"),
    ("jetstream_consumer_delivered_stream_seq", "Consumer delivered stream_seq"),
    ("jetstream_consumer_ack_floor_consumer_seq", "Consumer ack_floor consumer_seq"),
    ("jetstream_consumer_ack_floor_stream_seq", "Consumer ack_floor stream_seq"),
    ("jetstream_consumer_num_ack_pending", "Consumer num_ack_pending"),
    ("jetstream_consumer_num_redelivered", "Consumer num_redelivered"),
    ("jetstream_consumer_num_waiting", "Consumer num_waiting"),
    ("jetstream_consumer_num_pending", "Consumer num_pending"),
)
LAG_GAUGES: Final[Gauges] = (
    (
        "streamd_consumer_oldest_unprocessed_age_seconds",
        "Age of the oldest message that is not acked yet, delivered or not",
    ),
    ("streamd_consumer_lag_seconds", "Age of the oldest message that is not delivered yet"),
)
_LINES_A_PIECE: Final = 32  # some 20 us: lines lie apart in memory
_META_GAUGES = {
    "streamd_meta_cluster_size": "cluster_size",
    "streamd_meta_quorum_needed": "quorum_needed",
    "streamd_meta_pending": "pending",
}
_CARE_COUNTERS = {
    "incarnation_conflicts": (
        "streamd_incarnation_conflicts",
        "Files or snapshots of another stream of the same name, found and not used",
    ),
    "damages": ("streamd_damages", "Damaged or missing files of streams found"),
    "repaired_blocks": (
        "streamd_repaired_blocks",
        "Damaged blocks that whole ones of other servers took the place of",
    ),
    "renewed_replicas": (
        "streamd_renewed_replicas",
        "Damaged or differing replicas that were begun anew from other servers",
    ),
    "drifted_replicas": (
        "streamd_drifted_replicas",
        "Replicas here that did not hold what a majority of their group holds",
    ),
    "scrubbed_bytes": ("streamd_scrubbed_bytes", "Bytes of files read to verify them"),
    "scrub_rounds": ("streamd_scrub_rounds", "Times that all files were read to verify them"),
    "tails_set_aside": (
        "streamd_tails_set_aside",
        "Times that log entries which were acknowledged, or may have been, went to trash/",
    ),
    "tails_open": (
        "streamd_tails_open",
        "Times that log entries went to trash/ that may or may not have been committed",
    ),
    "ignored_entries": (
        "streamd_ignored_entries",
        "Log entries that are no valid command, which every replica ignores",
    ),
    "peer_messages_failed": (
        "streamd_peer_messages_failed",
        "Messages of other servers that could not be handled and were ignored",
    ),
}
_CARE_GAUGES = {
    "scrub_files": ("streamd_scrub_files", "Files to verify in this round, or in the last one"),
    "scrub_files_left": ("streamd_scrub_files_left", "Files not yet verified in this round"),
    "scrub_skipped": (
        "streamd_scrub_skipped_files",
        "Files that could not be read at the moment in this round, or in the last one",
    ),
    "damaged_streams": (
        "streamd_damaged_streams",
        "Streams whose copy here is damaged and not repaired yet",
    ),
    "tails_kept": ("streamd_tails_kept", "Files of log entries that lie in trash/ now"),
    "lost_streams": ("streamd_lost_streams", "Streams whose only copy is lost or damaged"),
}
# Sums over the streams here.
_SERVER_GAUGES: Final[Gauges] = (
    ("jetstream_server_total_streams", "streams"),
    ("jetstream_server_total_consumers", "consumers"),
    ("jetstream_server_total_messages", "messages"),
    ("jetstream_server_total_message_bytes", "bytes"),
)
_LATENCIES = {
    "log_write": (
        "streamd_log_write_seconds",
        "Writes of the log, each with its fsync unless sync_interval is an interval",
    ),
    "turn": (
        "streamd_turn_seconds",
        "Turns of groups: Raft, apply of committed entries, and what they set going",
    ),
    "apply": (
        "streamd_apply_seconds",
        "Parts of turns, from the inbox to the outcomes, that applied committed entries",
    ),
}


def render(
    varz: Row,
    jetstream: Row,
    streams: Iterable[StreamSamples | None] = (),
    care: Mapping[str, int] | None = None,
    latencies: Mapping[str, LatencyHistogram] | None = None,
) -> bytes:
    """Return the exposition of one moment."""
    return "".join(pieces(varz, jetstream, streams, care, latencies)).encode()


def pieces(
    varz: Row,
    jetstream: Row,
    streams: Iterable[StreamSamples | None],
    care: Mapping[str, int] | None = None,
    latencies: Mapping[str, LatencyHistogram] | None = None,
    kept: KeptText | None = None,
) -> Iterator[str]:
    """Iterate over the exposition of one moment; an empty piece is a pause, and so is a None among
    `streams`. `jetstream` has `disabled`, or in a cluster `meta_cluster`, as /jsz has them. `kept`
    is text of the expositions before this one.

    The samples of a metric must stand together, and each stream is looked at but once: so lines are
    collected by metric, then told.
    """
    server = str(varz["server_id"])
    families: dict[str, _Family] = {}

    def put(gauges: Gauges, values: Iterable[float], labels: str) -> None:
        for (name, text), value in zip(gauges, values, strict=True):
            family = families.get(name)
            if family is None:
                family = families[name] = _Family("gauge", name, text)
            family.add(value, labels)

    tables: dict[int, _Table] = {}
    kept, fresh = kept or KeptText(), KeptText()

    def collect(group: Lines, text: KeptText) -> None:
        table = tables.get(id(group.gauges))
        if table is None:
            chunks = text.chunks(group.gauges)
            table = tables[id(group.gauges)] = _Table(group.gauges, chunks)
        table.rows.append(group.lines)

    here = labels_of(server_id=server)
    for name, value in _numbers("gnatsd_varz", varz):
        put(((name, name.removeprefix("gnatsd_")),), (value,), here)
    requests = families["requests"] = _Family(
        "counter", "streamd_http_requests_total", "Requests to the monitoring port"
    )
    for path, count in _row(varz["http_req_stats"]).items():
        requests.add(_number(count), labels_of(path=path))
    for key, count in (care or {}).items():
        if key in _CARE_GAUGES:
            put((_CARE_GAUGES[key],), (count,), here)
            continue
        name, text = _CARE_COUNTERS[key]
        families[key] = _Family("counter", f"{name}_total", text)
        families[key].add(count, here)
    is_disabled = bool(jetstream.get("disabled"))
    disabled = ("jetstream_server_jetstream_disabled", "JetStream disabled")
    put((disabled,), (is_disabled,), here)
    if jetstream.get("meta_cluster") is not None:
        meta = _row(jetstream["meta_cluster"])
        of_meta = labels_of(cluster=str(meta["name"])) + "," + here
        for name, key in _META_GAUGES.items():
            put(((name, f"Meta group {key}"),), (_number(meta[key]),), of_meta)
        leads = meta.get("leader") == varz["server_name"]
        put((("streamd_meta_is_leader", "Leads the meta group"),), (leads,), of_meta)
    stream_count = consumer_count = message_count = byte_count = 0.0
    for stream in streams:
        if stream is None:
            yield ""
            continue
        messages, size, _, _, consumers, _ = stream.numbers
        stream_count += 1
        consumer_count += consumers
        message_count += messages
        byte_count += size
        for group in stream.groups:
            collect(group, kept)
        for consumer in stream.consumers:
            if consumer is None:
                yield ""
                continue
            for group in consumer:
                collect(group, fresh)  # ages change all the time
    if not is_disabled:
        totals = (stream_count, consumer_count, message_count, byte_count)
        put(_SERVER_GAUGES, totals, here)
    for key, histogram in (latencies or {}).items():
        families[key] = _histogram(*_LATENCIES[key], histogram, here)
    for family in families.values():
        yield from family.pieces()
    for table in tables.values():
        yield from table.pieces()
    kept.forget_all_but(tables)


def lines_of(gauges: Gauges, values: Iterable[float], labels: str) -> Lines:
    """Return the samples of one thing. `labels` are as `labels_of` makes them."""
    return Lines(
        gauges,
        [
            f"{name}{{{labels}}} {float(value)!r}\n"
            for (name, _), value in zip(gauges, values, strict=True)
        ],
    )


def labels_of(**texts: str) -> str:
    """Return labels with their values, as they stand in a sample."""
    return ",".join(f'{name}="{_escaped(text)}"' for name, text in texts.items())


def _histogram(name: str, text: str, histogram: LatencyHistogram, here: str) -> _Family:
    """Return a family of the buckets, the sum and the count of a histogram."""
    family = _Family("histogram", name, text)
    totals = histogram.cumulative()
    for bound, total in zip((*map(repr, BOUNDS_S), "+Inf"), totals, strict=True):
        family.add(total, f'{here},le="{bound}"', suffix="_bucket")
    family.add(histogram.sum_s, here, suffix="_sum")
    family.add(totals[-1], here, suffix="_count")
    return family


class _Family:
    """Metric with its samples, as lines of text."""

    __slots__ = ("_head", "_lines", "_name")

    def __init__(self, kind: str, name: str, text: str) -> None:
        self._name = name
        self._head = _head(kind, name, text)
        self._lines: list[str] = []

    def add(self, value: float, labels: str, suffix: str = "") -> None:
        """Add a sample."""
        self._lines.append(f"{self._name}{suffix}{{{labels}}} {float(value)!r}\n")

    def pieces(self) -> Iterator[str]:
        """Iterate over the text, some dozens of samples a piece."""
        yield self._head
        for at in range(0, len(self._lines), _LINES_A_PIECE):
            yield "".join(self._lines[at : at + _LINES_A_PIECE])


class _Chunk:
    """Rows of lines that stand behind each other, and their text by the place of a metric."""

    __slots__ = ("_texts", "rows")

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self.rows = rows
        self._texts: dict[int, str] = {}

    def text(self, at: int) -> str:
        """Return the text of the metric at that place."""
        found = self._texts.get(at)
        if found is None:
            found = self._texts[at] = "".join([row[at] for row in self.rows])
        return found


class KeptText:
    """Text of streams that is the same in the next exposition, if none of their lines changes: of
    thousands most are quiet, and joining their lines took a quarter of a scrape."""

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, _Chunk]] = {}

    def chunks(self, gauges: Gauges) -> dict[int, _Chunk]:
        """Return the chunks of a table of gauges, by their numbers."""
        return self._chunks.setdefault(id(gauges), {})

    def forget_all_but(self, tables: Container[int]) -> None:
        """Forget the text of tables of gauges that nothing had samples of."""
        for gone in [each for each in self._chunks if each not in tables]:
            del self._chunks[gone]


class _Table:
    """Metrics of many things, each of which has a sample of every one: rows of lines."""

    __slots__ = ("_chunks", "_gauges", "rows")

    def __init__(self, gauges: Gauges, chunks: dict[int, _Chunk]) -> None:
        self._gauges = gauges
        self._chunks = chunks  # pages that are made at the same time share them
        self.rows: list[Sequence[str]] = []

    def pieces(self) -> Iterator[str]:
        """Iterate over the text, metric by metric, some dozens of samples a piece."""
        starts = range(0, len(self.rows), _LINES_A_PIECE)
        for at, (name, text) in enumerate(self._gauges):
            yield _head("gauge", name, text)
            for number, start in enumerate(starts):
                rows = self.rows[start : start + _LINES_A_PIECE]
                chunk = self._chunks.get(number)
                if chunk is None or chunk.rows != rows:
                    chunk = self._chunks[number] = _Chunk(rows)
                yield chunk.text(at)
        for number in [number for number in self._chunks if number >= len(starts)]:
            del self._chunks[number]


def _head(kind: str, name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: object) -> float:
    assert isinstance(value, int | float), value
    return value


def _row(value: object) -> Row:
    assert isinstance(value, Mapping), value
    return value


def _numbers(prefix: str, document: Row) -> Iterator[tuple[str, float]]:
    """Every numeric leaf of the document, with the path to it as its name."""
    for key, value in document.items():
        if key == "http_req_stats" or isinstance(value, bool | str | list):
            continue
        name = f"{prefix}_{key}"
        if isinstance(value, Mapping):
            yield from _numbers(name, value)
        else:
            yield name, _number(value)
