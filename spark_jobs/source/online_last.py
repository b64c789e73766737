"""The newest message of each subject, read from servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.client.stream_facts import same_stream
from spark_jobs.client.wire import ApiError, Wire, WireError, lent
from spark_jobs.source import online_read
from spark_jobs.source.online_columns import batch_of
from spark_jobs.source.online_frames import Frames, Rows
from spark_jobs.source.online_read import (
    MENDABLE,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    check_status,
    receive,
)
from spark_jobs.source.read_options import ReadOptions

log = logging.getLogger(__name__)


class LastPerSubjectRead:
    """The last message of each subject, each subject once, in stream order.

    One task reads them all over one connection, as they are when it begins. A message that is
    replaced before it was read is read as what replaced it. When the connection, the server or the
    consumer is gone in the middle, the read begins anew and leaves out the subjects that it has
    had; it keeps them in memory for that.
    """

    def __init__(self, options: ReadOptions, created: str, server_name: str = "") -> None:
        self._options = options
        self._created = created
        self._server_name = server_name
        self._had: list[pa.Array] = []  # subjects that were read, until `_seen` is needed
        self._seen: set[bytes] | None = None  # the same, once one may come again

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches. Raises StreamChanged, ApiError, or the last fault of a connection when
        nothing could be read for `GIVES_UP_S`."""
        avoid: list[str] = []
        server_name = self._server_name
        pause_s = PAUSE_S_MIN
        deadline = time.monotonic() + online_read.GIVES_UP_S
        while True:
            place = ""
            try:
                with lent(self._options.connection, avoid=avoid, server_name=server_name) as wire:
                    place = str(wire.address)
                    for batch in self._attempt(wire):
                        yield batch
                        pause_s = PAUSE_S_MIN
                        deadline = time.monotonic() + online_read.GIVES_UP_S
                    return
            except MENDABLE as err:
                fault: WireError = err
            except ApiError as err:
                if not err.is_temporary:
                    raise
                fault = err
            if time.monotonic() + pause_s > deadline:
                raise fault
            log.warning("read of the last messages of %s goes on: %s", self._options.stream, fault)
            avoid, server_name = [place] if place else [], ""
            self._expect_repeats()
            time.sleep(pause_s)  # servers that elect or start are not asked all the time
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _attempt(self, wire: Wire) -> Iterator[pa.RecordBatch]:
        """Yield what was not read yet, over one connection."""
        stream, batch_rows = self._options.stream, self._options.batch_rows
        facts = same_stream(wire, stream, self._created)
        if facts.retention != "limits":
            raise WireError(
                f"option lastPerSubject needs a stream with limits retention, {stream!r} has "
                "another"
            )
        sid = wire.subscribe(inbox := wire.inbox())
        name = ""
        try:
            made = wire.api(f"CONSUMER.CREATE.{stream}", self._consumer(stream))
            name = made["name"]
            subject = wire.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{name}")
            frames = Frames(sid, wire.on_line)
            # The consumer has these messages, then all that are new. If one of these is replaced
            # before it comes, what replaced it is among the new ones.
            left = int(made["num_pending"])
            while left > 0 and frames.status is None:
                is_behind = frames.last_seq > facts.last_seq
                asked = batch_rows if is_behind else min(left, batch_rows)
                wire.publish(subject, b'{"batch":%d,"no_wait":true}' % asked, reply=inbox)
                self._receive(wire, frames, frames.received + asked)
                if frames.last_seq > facts.last_seq:
                    self._expect_repeats()
                rows = frames.take()
                left -= sum(int((piece.seqs <= facts.last_seq).sum()) for piece in rows)
                rows = self._new_of(rows)
                if rows:
                    yield batch_of(
                        rows,
                        self._options.columns,
                        stream=stream,
                        server=wire.server_name,
                        with_ledger=bool(self._options.subjects),
                    )
        finally:
            with suppress(WireError):
                wire.unsubscribe(sid)
                if name:
                    wire.publish(wire.api_subject(f"CONSUMER.DELETE.{stream}.{name}"), b"")

    def _receive(self, wire: Wire, frames: Frames, until: int) -> None:
        """Take what a pull brings: `until` messages since the beginning, or a status."""
        while frames.received < until and frames.status is None:
            receive(wire, frames)
        check_status(wire, frames)

    def _expect_repeats(self) -> None:
        """From now on look at each subject whether it was read."""
        if self._seen is None:
            self._seen = {subject for piece in self._had for subject in piece.to_pylist()}
            self._had.clear()

    def _new_of(self, pieces: Sequence[Rows]) -> list[Rows]:
        """The messages of subjects that were not read yet, which now they are."""
        if self._seen is None:
            self._had += [piece.subjects for piece in pieces]
            return list(pieces)
        found = []
        for piece in pieces:
            is_new = np.zeros(len(piece.seqs), bool)
            for at, subject in enumerate(piece.subjects.to_pylist()):
                if subject not in self._seen:
                    self._seen.add(subject)
                    is_new[at] = True
            if is_new.any():
                found.append(piece.pick(is_new))
        return found

    def _consumer(self, stream: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "deliver_policy": "last_per_subject",
            "filter_subjects": list(self._options.subjects) or [">"],
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60_000_000_000,
        }
        return {"stream_name": stream, "config": config}
