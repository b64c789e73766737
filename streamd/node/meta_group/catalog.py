"""The streams as clients find them on one node: by name, and by the subjects they capture.

A name leads to the replica here or to the stream's leader elsewhere, whichever `place` was told
last. What was looked up is kept until anything changes, and who keeps it longer compares
`topology_version`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from streamd import limits
from streamd.callbacks import ignore
from streamd.node.stream_groups.remote_stream import RemoteStream
from streamd.node.stream_groups.stream_handle import LocalStream


class Catalog:
    """See the module. `capturing` names the streams that capture a subject, or any subject of a
    pattern, as far as the meta group knows."""

    def __init__(self, capturing: Callable[[bytes], Iterable[str]]) -> None:
        self._capturing = capturing
        self.topology_version = 0
        self.on_change: Callable[[], None] = ignore
        self._handles: dict[str, LocalStream | RemoteStream] = {}
        self._sorted: list[LocalStream | RemoteStream] | None = []
        self._routes: dict[bytes, tuple[LocalStream | RemoteStream, ...]] = {}

    def stream(self, name: str) -> Any:
        """See ports.NodeHandle; so are the next three."""
        return self._handles.get(name)

    def streams(self) -> list[Any]:
        if self._sorted is None:
            self._sorted = sorted(self._handles.values(), key=lambda handle: handle.name)
        return self._sorted

    def streams_for(self, subject: bytes) -> tuple[Any, ...]:
        found = self._routes.get(subject)
        if found is None:
            names = sorted(self._capturing(subject))
            handles: list[Any] = [self._handles.get(name) for name in names]
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

    def streams_under(self, prefix: bytes) -> tuple[Any, ...] | None:
        found: list[Any] = []
        for name in sorted(self._capturing(prefix + b"*")):
            handle: Any = self._handles.get(name)
            if handle is None or not (handle.is_local or handle.is_expected):
                continue
            if not handle.captures(prefix + b"*"):  # as a token like any: not by its literals
                return None
            found.append(handle)
        return tuple(found)

    def place(self, name: str, handle: LocalStream | RemoteStream | None) -> None:
        """Have `name` lead to `handle` from now on."""
        if handle is None:
            self._handles.pop(name, None)
        else:
            self._handles[name] = handle
        self.changed()

    def changed(self) -> None:
        """Forget what was looked up about streams."""
        self._sorted = None
        self._routes.clear()
        self.topology_version += 1
        self.on_change()
