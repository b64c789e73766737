"""The connection of one writer: made when it is needed, and again when it is lost, for so long."""

from __future__ import annotations

import time
from typing import Final

from spark_jobs.client.wire import NoResponders, Wire, WireError, WireLost, WireTimeout
from spark_jobs.sink.ledger import StreamFacts
from spark_jobs.sink.sink_options import SinkOptions
from spark_jobs.sink.task import Task

FAULTS: Final = (WireLost, WireTimeout, NoResponders)  # after these the writer may go on
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0


class SinkWire:
    """At most one connection at a time, to the stream's leader if possible. Answers come on
    subjects that begin with `inbox` and a dot; `inbox` is another for each connection."""

    def __init__(self, options: SinkOptions, facts: StreamFacts, task: Task) -> None:
        self._options = options
        self._task = task
        self._wire: Wire | None = None
        self._avoid: list[str] = []
        self._preferred = facts.leader
        self._deadline = 0.0
        self._pause_s = _PAUSE_S
        self.inbox = ""

    def wire(self) -> Wire:
        """The connection; a new one if there is none. Raises WireError."""
        if self._wire is not None and not self._wire.is_closed:
            return self._wire
        options = self._options.connection
        wire: Wire | None = None
        if self._preferred:
            try:
                wire = Wire.connect(options, avoid=self._avoid, server_name=self._preferred)
            except WireError:
                self._preferred = ""  # it is down, or not to be reached from here: any will do
        if wire is None:
            wire = Wire.connect(options, avoid=self._avoid)
        self.inbox = wire.inbox()
        wire.subscribe(f"{self.inbox}.>")
        self._wire = wire
        return wire

    def progressed(self) -> None:
        """Something was done: there is the options' whole timeout for the next."""
        self._deadline = time.monotonic() + self._options.timeout_s
        self._pause_s = _PAUSE_S

    def is_too_late(self) -> bool:
        """True if there is no time left for another try."""
        return time.monotonic() + self._pause_s > self._deadline

    def wait(self) -> None:
        """Close the connection and wait a moment, longer each time, before the next try."""
        self.close()
        time.sleep(self._pause_s)  # servers that elect or start are not asked all the time
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)

    def wait_after(self, fault: WireError) -> None:
        """As `wait`; a server that broke the connection is avoided. Raises WireTimeout if it is
        too late."""
        if self.is_too_late():
            raise WireTimeout(
                f"stream {self._options.stream}, {self._task}: no progress within "
                f"{self._options.timeout_s:g} s: {fault}"
            )
        if self._wire is not None:
            self._avoid = [str(self._wire.address)] if isinstance(fault, WireLost) else []
        self.wait()

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
