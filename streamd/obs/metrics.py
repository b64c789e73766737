"""/metrics in Prometheus' text format, from the documents that /varz and /jsz show.

Metric names are those of prometheus-nats-exporter, so dashboards made for it keep working. The
library is imported at the first scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST

_STREAM_LABELS = ("server_id", "account", "stream_name")
_CONSUMER_LABELS = (*_STREAM_LABELS, "consumer_name")
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
# Of this node's replica; only in a cluster, as what it is made of.
_REPLICA_GAUGES: dict[str, Callable[[dict[str, Any]], float]] = {
    "streamd_replica_is_leader": lambda stream: stream["role"] == "leader",
    "streamd_replica_current": lambda stream: stream["current"],
    "streamd_replica_lag": lambda stream: stream["lag"],
    "streamd_replica_applied": lambda stream: stream["applied"],
}
_META_GAUGES = {
    "streamd_meta_cluster_size": "cluster_size",
    "streamd_meta_quorum_needed": "quorum_needed",
    "streamd_meta_pending": "pending",
}
_CARE_COUNTERS = {
    "incarnation_conflicts": (
        "streamd_incarnation_conflicts",
        "Files or snapshots of another incarnation of a stream, met and not used",
    ),
    "damages": ("streamd_damages", "Damaged or missing files of streams found"),
    "scrubbed_bytes": ("streamd_scrubbed_bytes", "Bytes of files read to verify them"),
}
_CARE_GAUGES = {
    "lost_streams": ("streamd_lost_streams", "Streams whose only copy is lost or damaged"),
}
_SERVER_GAUGES = {
    "jetstream_server_total_streams": "streams",
    "jetstream_server_total_consumers": "consumers",
    "jetstream_server_total_messages": "messages",
    "jetstream_server_total_message_bytes": "bytes",
}


def render(varz: dict[str, Any], jsz: dict[str, Any], care: dict[str, int] | None = None) -> bytes:
    """Return the exposition of one moment."""
    return generate_latest(_Moment(varz, jsz, care or {}))


class _Moment(Collector):
    """A collector over documents that were just built; nothing is kept between scrapes."""

    def __init__(self, varz: dict[str, Any], jsz: dict[str, Any], care: dict[str, int]) -> None:
        self._varz = varz
        self._jsz = jsz
        self._care = care
        self._server = varz["server_id"]

    def collect(self) -> Iterator[Metric]:
        for name, value in _numbers("gnatsd_varz", self._varz):
            family = GaugeMetricFamily(name, name.removeprefix("gnatsd_"), labels=("server_id",))
            family.add_metric((self._server,), value)
            yield family
        requests = CounterMetricFamily(
            "streamd_http_requests", "Requests to the monitoring port", labels=("path",)
        )
        for path, count in self._varz["http_req_stats"].items():
            requests.add_metric((path,), count)
        yield requests
        for key, count in self._care.items():
            if key in _CARE_GAUGES:
                name, text = _CARE_GAUGES[key]
                care: Metric = GaugeMetricFamily(name, text, labels=("server_id",))
            else:
                name, text = _CARE_COUNTERS[key]
                care = CounterMetricFamily(name, text, labels=("server_id",))
            care.add_metric((self._server,), count)  # type: ignore[attr-defined]
            yield care
        yield from self._jetstream()

    def _jetstream(self) -> Iterator[Metric]:
        disabled = GaugeMetricFamily(
            "jetstream_server_jetstream_disabled", "JetStream disabled", labels=("server_id",)
        )
        disabled.add_metric((self._server,), float(bool(self._jsz.get("disabled"))))
        yield disabled
        if self._jsz.get("disabled"):
            return
        for name, key in _SERVER_GAUGES.items():
            family = GaugeMetricFamily(name, key, labels=("server_id",))
            family.add_metric((self._server,), self._jsz[key])
            yield family
        streams = [
            (account["name"], stream)
            for account in self._jsz.get("account_details", ())
            for stream in account.get("stream_detail", ())
        ]
        for name, key in _STREAM_GAUGES.items():
            family = GaugeMetricFamily(name, f"Stream {key}", labels=_STREAM_LABELS)
            for account, stream in streams:
                labels = (self._server, account, stream["name"])
                family.add_metric(labels, stream["state"].get(key, 0))
            yield family
        yield from self._cluster(streams)
        for name, path in _CONSUMER_GAUGES.items():
            family = GaugeMetricFamily(name, "Consumer " + " ".join(path), labels=_CONSUMER_LABELS)
            for account, stream in streams:
                for consumer in stream.get("consumer_detail", ()):
                    value: Any = consumer
                    for key in path:
                        value = value[key]
                    owner = (self._server, account, stream["name"], consumer["name"])
                    family.add_metric(owner, value)
            yield family

    def _cluster(self, streams: list[tuple[str, dict[str, Any]]]) -> Iterator[Metric]:
        meta = self._jsz.get("meta_cluster")
        if meta is None:
            return
        labels: tuple[str, ...] = ("server_id", "cluster")
        here = (self._server, meta["name"])
        for name, key in _META_GAUGES.items():
            family = GaugeMetricFamily(name, f"Meta group {key}", labels=labels)
            family.add_metric(here, meta[key])
            yield family
        leading = GaugeMetricFamily("streamd_meta_is_leader", "Leads the meta group", labels=labels)
        leading.add_metric(here, float(meta.get("leader") == self._varz["server_name"]))
        yield leading
        for name, of in _REPLICA_GAUGES.items():
            family = GaugeMetricFamily(name, f"Replica here: {name}", labels=_STREAM_LABELS)
            for account, stream in streams:
                if "role" in stream:
                    family.add_metric((self._server, account, stream["name"]), float(of(stream)))
            yield family


def _numbers(prefix: str, document: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every numeric leaf of the document, with the path to it as its name."""
    for key, value in document.items():
        if key == "http_req_stats" or isinstance(value, bool | str | list):
            continue
        name = f"{prefix}_{key}"
        if isinstance(value, dict):
            yield from _numbers(name, value)
        else:
            yield name, value
