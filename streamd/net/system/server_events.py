"""Events of a server: its statistics, its going, and that it stops taking clients.

$SYS.SERVER.<id>.STATSZ       0.25 s after the start, each time twice as late, up to every 10 s
$SYS.SERVER.<id>.LAMEDUCK     the server sends its clients away
$SYS.SERVER.<id>.SHUTDOWN     the server ends
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamd.limits import STATS_EVENT_FIRST_S, STATS_EVENT_S
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.sliced_pages import Document, Slicer, Steps
from streamd.net.system.event_outbox import EventOutbox
from streamd.net.system.server_description import ServerDescription


class Timer(Protocol):
    """Timer that `call_later` returns."""

    def cancel(self) -> None: ...


class ServerEvents:
    """Publishes the events of one server; builds its statistics (`ServerStatistics`)."""

    def __init__(
        self,
        outbox: EventOutbox,
        monitoring: Monitoring,
        description: ServerDescription,
        slicer: Slicer,
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._outbox = outbox
        self._monitoring = monitoring
        self._description = description
        self._slicer = slicer
        self._call_later = call_later
        self._subject = f"$SYS.SERVER.{description.server_id}."
        self._pause_s = STATS_EVENT_FIRST_S
        self._timer: Timer | None = None
        self._is_building = False

    def start(self) -> None:
        """Publish statistics from here on."""
        self._timer = self._call_later(self._pause_s, self._on_time)

    def stop(self) -> None:
        """Publish no more statistics."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def document(self) -> Steps[Document]:
        """Build the statistics."""
        return self._monitoring.statsz()

    def broadcast(self) -> None:
        """Publish statistics now, if anybody listens."""
        subject = self._subject + "STATSZ"
        if self._is_building or not self._outbox.has_interest(subject):
            return
        self._is_building = True

        def done(statistics: Document) -> None:
            self._is_building = False
            self._outbox.put(subject, {"server": self._description.next(), "statsz": statistics})

        def failed(err: Exception) -> None:
            self._is_building = False
            raise err

        self._slicer.start(self.document(), done, failed)

    def lame_duck(self) -> None:
        """Tell that clients are sent away."""
        self._put_bare("LAMEDUCK")

    def shutdown(self) -> None:
        """Tell that the server ends; nothing is told after that."""
        self.stop()
        self._put_bare("SHUTDOWN")
        self._outbox.flush()

    def _put_bare(self, name: str) -> None:
        if self._outbox.has_interest(self._subject + name):
            self._outbox.put(self._subject + name, self._description.next())

    def _on_time(self) -> None:
        self.broadcast()
        self._pause_s = min(STATS_EVENT_S, 2 * self._pause_s)
        self._timer = self._call_later(self._pause_s, self._on_time)
