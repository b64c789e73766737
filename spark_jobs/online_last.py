"""The newest message of each subject, read from servers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_jobs.online_columns import batch_of
from spark_jobs.online_frames import Frames
from spark_jobs.online_read import SILENCE_S
from spark_jobs.options import ReadOptions
from spark_jobs.stream_facts import same_stream
from spark_jobs.wire import Wire, WireError, WireTimeout, lent


class LastPerSubjectRead:
    """The last message of each subject at the moment the task begins, in stream order.

    One task reads them all over one connection. A connection that breaks fails the task: the
    server cannot go on in the middle of such a list, which changes with every message.
    """

    def __init__(self, options: ReadOptions, created: str, server_name: str = "") -> None:
        self._options = options
        self._created = created
        self._server_name = server_name

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches. Raises WireError, ApiError, StreamChanged."""
        stream = self._options.stream
        with lent(self._options.connection, server_name=self._server_name) as wire:
            if same_stream(wire, stream, self._created).retention != "limits":
                raise WireError(
                    f"option lastPerSubject needs a stream with limits retention, {stream!r} has "
                    "another"
                )
            sid = wire.subscribe(inbox := wire.inbox())
            made = wire.api(f"CONSUMER.CREATE.{stream}", self._consumer(stream))
            left = int(made["num_pending"])
            frames = Frames(sid, wire.on_line)
            batch = self._options.batch_rows
            subject = wire.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{made['name']}")
            while left > 0:
                asked = min(left, batch)
                left -= asked
                wire.publish(subject, b'{"batch":%d,"no_wait":true}' % asked, reply=inbox)
                self._receive(wire, frames, frames.received + asked)
                if not frames.count:
                    break
                yield batch_of(
                    frames.take(),
                    self._options.columns,
                    stream=stream,
                    server=wire.server_name,
                    with_ledger=bool(self._options.subjects),
                )
            wire.unsubscribe(sid)
            wire.publish(wire.api_subject(f"CONSUMER.DELETE.{stream}.{made['name']}"), b"")

    def _receive(self, wire: Wire, frames: Frames, until: int) -> None:
        while frames.received < until and frames.status is None:
            data = wire.read_chunk(SILENCE_S)
            if not data:
                raise WireTimeout(f"{wire.address} sent nothing for {SILENCE_S:g} s")
            used, needed = frames.feed(data)
            if used < len(data):
                wire.keep(data[used:], needed=needed)
            wire.check()
            if frames.last_cseq != frames.received:
                raise WireError(f"{wire.address} left out deliveries before {frames.last_cseq}")
        if frames.status is not None and frames.status[0] != 404:
            raise WireError(f"{wire.address} ended a pull: {frames.status[0]} {frames.status[1]}")

    def _consumer(self, stream: str) -> dict[str, object]:
        config: dict[str, object] = {
            "deliver_policy": "last_per_subject",
            "filter_subjects": list(self._options.subjects) or [">"],
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60_000_000_000,
        }
        return {"stream_name": stream, "config": config}
