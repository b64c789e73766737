"""`Catalog`: the streams as clients find them on one node: by name, and by captured subject.

A name leads to the replica here or to the stream's leader elsewhere, whichever `place` was given
last. Lookups are cached until anything changes; callers that cache them longer compare
`topology_version`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamd import limits
from streamd.node.ports import StreamHandle


class Catalog:
    """Handles of the streams of one node. `capturing` names the streams that capture a subject, or
    any subject of a pattern, as far as the meta group knows."""

    def __init__(self, capturing: Callable[[bytes], Iterable[str]]) -> None:
        self._capturing = capturing
        self.topology_version = 0
        self._watchers: list[Callable[[], None]] = []
        self._handles: dict[str, StreamHandle] = {}
        self._sorted: list[StreamHandle] | None = []
        self._routes: dict[bytes, tuple[StreamHandle, ...]] = {}

    def stream(self, name: str) -> StreamHandle | None:
        """Return the handle of a stream; see ports.NodeHandle, also for the next three."""
        return self._handles.get(name)

    def streams(self) -> list[StreamHandle]:
        """Return all streams, sorted by name."""
        if self._sorted is None:
            self._sorted = sorted(self._handles.values(), key=lambda handle: handle.name)
        return self._sorted

    def streams_for(self, subject: bytes) -> tuple[StreamHandle, ...]:
        """Return the streams that capture `subject`."""
        found = self._routes.get(subject)
        if found is None:
            names = sorted(self._capturing(subject))
            handles = [self._handles.get(name) for name in names]
            found = tuple(
                handle
                for handle in handles
                if handle is not None
                and handle.captures(subject)
                and (handle.is_local or handle.is_expected)
            )
            if len(self._routes) >= limits.ROUTE_CACHE_MAX:
                self._routes.clear()
            self._routes[subject] = found
        return found

    def streams_under(self, prefix: bytes) -> tuple[StreamHandle, ...] | None:
        """Return the streams that capture all of a prefix; None: some capture a part of it."""
        found: list[StreamHandle] = []
        for name in sorted(self._capturing(prefix + b"*")):
            handle = self._handles.get(name)
            if handle is None or not (handle.is_local or handle.is_expected):
                continue
            if not handle.captures(prefix + b"*"):  # as a token like any: not by its literals
                return None
            found.append(handle)
        return tuple(found)

    def place(self, name: str, handle: StreamHandle | None) -> None:
        """Make `name` lead to `handle` from now on."""
        if handle is None:
            self._handles.pop(name, None)
        else:
            self._handles[name] = handle
        self.changed()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever anything about streams has changed."""
        self._watchers.append(on_change)

    def changed(self) -> None:
        """Drop what was looked up about streams."""
        self._sorted = None
        self._routes.clear()
        self.topology_version += 1
        for on_change in self._watchers:
            on_change()
