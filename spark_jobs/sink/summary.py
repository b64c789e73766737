"""Outcome of a whole write, told in a file or on a subject.

A file is for a driver on this machine. Under Spark Connect the driver is elsewhere and the client
has no file in common with it, but both reach the servers: the driver publishes the summary, and
`Listener` in the client receives it.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.client.wire import Wire, WireError, with_retries
from spark_jobs.sink.sink_options import SinkOptions

if TYPE_CHECKING:
    from spark_jobs.client.options import ConnectOptions

TELL_WITHIN_S: Final = 30.0
TOLD_WITHIN_S: Final = 10.0  # after the write; the driver tells it before the write is over
_SUBSCRIBED_WITHIN_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
_PAUSE_S: Final = 0.5

log = logging.getLogger(__name__)


def tell(options: SinkOptions, summary: dict[str, Any]) -> None:
    """Write `summary` where options summaryFile and summarySubject say. A server that can't be
    reached is a warning: the rows are in the stream already."""
    text = json.dumps(summary)
    if options.summary_file:
        Path(options.summary_file).write_text(text, encoding="utf-8")
    if not options.summary_subject:
        return

    def publish(wire: Wire) -> None:
        wire.publish(options.summary_subject, text.encode())
        wire.ping()

    try:
        with_retries(options.connection, publish, deadline_s=TELL_WITHIN_S)
    except WireError as err:
        log.warning("the counts of a write to %s could not be reported: %s", options.stream, err)


class Listener:
    """Waits on `subject`, which nobody else uses, for the summary of one write. A connection that
    is lost meanwhile is made again: a write may take hours."""

    def __init__(self, connection: ConnectOptions) -> None:
        self.subject = f"_INBOX.{uuid.uuid4().hex}"
        self._connection = connection
        self._is_subscribed = threading.Event()
        self._is_told = threading.Event()
        self._is_over = threading.Event()
        self._summary: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._listen, name="summary", daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        self._is_subscribed.wait(_SUBSCRIBED_WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def summary(self, timeout_s: float = TOLD_WITHIN_S) -> dict[str, Any]:
        """Return what the driver told, once the write is over; {} if nothing came."""
        self._is_told.wait(timeout_s)
        return self._summary

    def _listen(self) -> None:
        while not self._is_over.is_set():
            try:
                with Wire.connect(self._connection) as wire:
                    wire.subscribe(self.subject)
                    wire.ping()
                    self._is_subscribed.set()
                    while not self._is_over.is_set():
                        for _, message in wire.receive(_LOOK_EVERY_S):
                            self._summary = json.loads(message.payload)
                            self._is_told.set()
                            return
            except WireError:
                self._is_over.wait(_PAUSE_S)
