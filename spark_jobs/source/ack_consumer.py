"""A durable consumer that stands where a streaming query is, so that dashboards show its lag."""

from __future__ import annotations

from typing import Final

from spark_jobs.client.wire import ApiError, Wire, WireError
from spark_jobs.source.online_read import filters_of
from spark_jobs.source.read_options import ReadOptions

_CONSUMER_NOT_FOUND: Final = 10014


def move_consumer(wire: Wire, options: ReadOptions, seq: int) -> None:
    """Make the consumer `options.ack_consumer` if there is none, and have it begin at `seq`.

    It delivers nothing to anybody: its `num_pending` is what the query has yet to read. Raises
    WireError for a stream whose consumers decide what is kept, ApiError.
    """
    stream, name = options.stream, options.ack_consumer
    try:
        info = wire.api(f"CONSUMER.INFO.{stream}.{name}")
    except ApiError as err:
        if err.err_code != _CONSUMER_NOT_FOUND:
            raise
        _create(wire, options)
    else:
        if info["config"].get("metadata", {}).get("streamd.purpose") != "lag":
            raise WireError(
                f"option ackConsumer: stream {stream!r} has a consumer {name!r} that this query "
                "did not make; choose another name"
            )
    wire.api(f"CONSUMER.RESET.{stream}.{name}", {"seq": seq})


def _create(wire: Wire, options: ReadOptions) -> None:
    stream, name = options.stream, options.ack_consumer
    retention = wire.api(f"STREAM.INFO.{stream}")["config"].get("retention", "limits")
    if retention != "limits":
        raise WireError(
            f"option ackConsumer: stream {stream!r} has {retention} retention, a consumer would "
            "change what it keeps"
        )
    config = {
        "durable_name": name,
        "name": name,
        "description": "lag of a Spark query",
        "metadata": {"streamd.purpose": "lag"},
        "deliver_policy": "all",
        "ack_policy": "explicit",
        **filters_of(options.subjects),
    }
    body = {"stream_name": stream, "config": config, "action": "create"}
    wire.api(f"CONSUMER.CREATE.{stream}.{name}", body)
