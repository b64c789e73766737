"""/metrics in Prometheus' text format, from the documents that /varz and /jsz show.

Metric names are those of prometheus-nats-exporter, so dashboards made for it keep working. The
text is made in pieces, of one stream each: there may be thousands, and nobody can page here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from streamd.latency_histogram import BOUNDS_S, LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Row = Mapping[str, object]
"""A JSON object of /varz or /jsz, at any depth."""

_STREAM_GAUGES = {
    "jetstream_stream_total_messages": "messages",
    "jetstream_stream_total_bytes": "bytes",
    "jetstream_stream_first_seq": "first_seq",
    "jetstream_stream_last_seq": "last_seq",
    "jetstream_stream_consumer_count": "consumer_count",
    "jetstream_stream_subject_count": "num_subjects",
}
_CONSUMER_GAUGES = {
    "jetstream_consumer_delivered_consumer_seq": ("delivered", "consumer_seq"),
    "jetstream_consumer_delivered_stream_seq": ("delivered", "stream_seq"),
    "jetstream_consumer_ack_floor_consumer_seq": ("ack_floor", "consumer_seq"),
    "jetstream_consumer_ack_floor_stream_seq": ("ack_floor", "stream_seq"),
    "jetstream_consumer_num_ack_pending": ("num_ack_pending",),
    "jetstream_consumer_num_redelivered": ("num_redelivered",),
    "jetstream_consumer_num_waiting": ("num_waiting",),
    "jetstream_consumer_num_pending": ("num_pending",),
}
# Of the `lag` of a consumer, in ns.
_LAG_GAUGES = {
    "streamd_consumer_oldest_unprocessed_age_seconds": (
        "unprocessed_age",
        "Age of the oldest message that is not acked yet, delivered or not",
    ),
    "streamd_consumer_lag_seconds": (
        "undelivered_age",
        "Age of the oldest message that is not delivered yet",
    ),
}
# Of this node's replica; only in a cluster, as what it is made of.
_REPLICA_GAUGES: dict[str, Callable[[Row], float]] = {
    "streamd_replica_is_leader": lambda stream: stream["role"] == "leader",
    "streamd_replica_current": lambda stream: _number(stream["current"]),
    "streamd_replica_lag": lambda stream: _number(stream["lag"]),
    "streamd_replica_applied": lambda stream: _number(stream["applied"]),
    "streamd_replica_equal": lambda stream: _checkpoint(stream, "equal"),
    "streamd_replica_differing": lambda stream: _checkpoint(stream, "differing"),
}
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
_SERVER_GAUGES = {
    "jetstream_server_total_streams": "streams",
    "jetstream_server_total_consumers": "consumers",
    "jetstream_server_total_messages": "messages",
    "jetstream_server_total_message_bytes": "bytes",
}


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
    jsz: Row,
    care: dict[str, int] | None = None,
    latencies: Mapping[str, LatencyHistogram] | None = None,
) -> bytes:
    """Return the exposition of one moment."""
    return "".join(pieces(varz, jsz, care, latencies)).encode()


def pieces(
    varz: Row,
    jsz: Row,
    care: dict[str, int] | None = None,
    latencies: Mapping[str, LatencyHistogram] | None = None,
) -> Iterator[str]:
    """Iterate over the exposition of one moment; an empty piece is a pause.

    The samples of a metric must stand together, and the rows of `jsz` are made but once: so lines
    are collected by metric, then told.
    """
    server = str(varz["server_id"])
    families: dict[str, _Family] = {}

    def gauge(name: str, text: str, value: float, labels: tuple[tuple[str, str], ...]) -> None:
        family = families.get(name)
        if family is None:
            family = families[name] = _Family("gauge", name, text)
        family.add(value, labels)

    here = (("server_id", server),)
    for name, value in _numbers("gnatsd_varz", varz):
        gauge(name, name.removeprefix("gnatsd_"), value, here)
    requests = families["requests"] = _Family(
        "counter", "streamd_http_requests_total", "Requests to the monitoring port"
    )
    for path, count in _row(varz["http_req_stats"]).items():
        requests.add(_number(count), (("path", path),))
    for key, count in (care or {}).items():
        if key in _CARE_GAUGES:
            gauge(*_CARE_GAUGES[key], count, here)
            continue
        name, text = _CARE_COUNTERS[key]
        families[key] = _Family("counter", f"{name}_total", text)
        families[key].add(count, here)
    is_disabled = bool(jsz.get("disabled"))
    gauge("jetstream_server_jetstream_disabled", "JetStream disabled", is_disabled, here)
    if not is_disabled:
        for name, key in _SERVER_GAUGES.items():
            gauge(name, key, _number(jsz[key]), here)
        in_cluster = jsz.get("meta_cluster") is not None
        if in_cluster:
            meta = _row(jsz["meta_cluster"])
            of_meta = (("cluster", str(meta["name"])), *here)
            for name, key in _META_GAUGES.items():
                gauge(name, f"Meta group {key}", _number(meta[key]), of_meta)
            leads = meta.get("leader") == varz["server_name"]
            gauge("streamd_meta_is_leader", "Leads the meta group", leads, of_meta)
        for account in _rows(jsz, "account_details"):
            of_account = ("account", str(account["name"]))
            for stream in _rows(account, "stream_detail"):
                yield ""
                of_stream = (of_account, *here, ("stream_name", str(stream["name"])))
                _of_stream(gauge, stream, of_stream, in_cluster=in_cluster)
                for consumer in _rows(stream, "consumer_detail"):
                    yield ""
                    of_consumer = (of_account, ("consumer_name", str(consumer["name"])))
                    _of_consumer(gauge, consumer, of_consumer + of_stream[1:])
    for key, histogram in (latencies or {}).items():
        families[key] = _histogram(*_LATENCIES[key], histogram, server)
    for family in families.values():
        yield from family.pieces()


def _histogram(name: str, text: str, histogram: LatencyHistogram, server: str) -> _Family:
    """Return a family of the buckets, the sum and the count of a histogram."""
    family = _Family("histogram", name, text)
    here = ("server_id", server)
    totals = histogram.cumulative()
    for bound, total in zip((*map(repr, BOUNDS_S), "+Inf"), totals, strict=True):
        family.add(total, (here, ("le", bound)), suffix="_bucket")
    family.add(histogram.sum_s, (here,), suffix="_sum")
    family.add(totals[-1], (here,), suffix="_count")
    return family


_Gauge = Callable[[str, str, float, tuple[tuple[str, str], ...]], None]


class _Family:
    """Metric with its samples, as lines of text."""

    __slots__ = ("_head", "_lines", "_name")

    def __init__(self, kind: str, name: str, text: str) -> None:
        self._name = name
        self._head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self._lines: list[str] = []

    def add(self, value: float, labels: tuple[tuple[str, str], ...], suffix: str = "") -> None:
        """Add a sample."""
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
        self._lines.append(f"{self._name}{suffix}{{{shown}}} {float(value)!r}\n")

    def pieces(self) -> Iterator[str]:
        """Iterate over the text, some hundred samples a piece."""
        yield self._head
        for at in range(0, len(self._lines), 256):
            yield "".join(self._lines[at : at + 256])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _of_stream(
    gauge: _Gauge, stream: Row, labels: tuple[tuple[str, str], ...], *, in_cluster: bool
) -> None:
    state = _row(stream["state"])
    for name, key in _STREAM_GAUGES.items():
        gauge(name, f"Stream {key}", _number(state.get(key, 0)), labels)
    if "blocks" in stream:
        blocks = _row(stream["blocks"])
        text = "Bytes of the stream's block files here: {}"
        for key, what in (("bytes", "their content"), ("stored_bytes", "on disk")):
            gauge(f"streamd_block_{key}", text.format(what), _number(blocks[key]), labels)
    if "dead_letters" in stream:
        text = "Dead letters that are not stored yet where they are to go"
        gauge("streamd_dead_letters_waiting", text, _number(stream["dead_letters"]), labels)
    if in_cluster and "role" in stream:
        for name, of in _REPLICA_GAUGES.items():
            gauge(name, f"Replica here: {name}", float(of(stream)), labels)


def _of_consumer(gauge: _Gauge, consumer: Row, labels: tuple[tuple[str, str], ...]) -> None:
    for name, path in _CONSUMER_GAUGES.items():
        value: object = consumer
        for key in path:
            value = _row(value)[key]
        gauge(name, "Consumer " + " ".join(path), _number(value), labels)
    if "lag" in consumer:
        lag = _row(consumer["lag"])
        for name, (key, text) in _LAG_GAUGES.items():
            gauge(name, text, _number(lag[key]) / 1e9, labels)


def _checkpoint(stream: Row, key: str) -> float:
    """Return how many other replicas were equal, or differing, when they were last compared."""
    return _number(_row(stream["checkpoint"])[key])


def _number(value: object) -> float:
    assert isinstance(value, int | float), value
    return value


def _row(value: object) -> Row:
    assert isinstance(value, Mapping), value
    return value


def _rows(row: Row, key: str) -> Iterable[Row]:
    rows = row.get(key, ())
    assert isinstance(rows, Iterable), rows
    return rows


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
