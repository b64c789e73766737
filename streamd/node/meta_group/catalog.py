"""Catalogs: the streams as clients find them on one node, by account: by name, and by captured
subject.

A name leads to the replica here or to the stream's leader elsewhere, whichever `place` was given
last. Lookups are cached until anything changes; callers that cache them longer compare
`topology_version`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamd import limits
from streamd.node.ports import StreamHandle

Capturing = Callable[[bytes, str], Iterable[str]]
"""(pattern, account): names of the account's streams that capture the subject, or any subject of
the pattern, as far as the meta group knows."""


class Catalog:
    """Handles of the streams of one account on one node; see ports.AccountStreams."""

    def __init__(self, account: str, capturing: Capturing, changed: Callable[[], None]) -> None:
        """`changed` tells the catalogs' watchers."""
        self._account = account
        self._capturing = capturing
        self._changed = changed
        self.topology_version = 0
        self._handles: dict[str, StreamHandle] = {}
        self._sorted: list[StreamHandle] | None = []
        self._routes: dict[bytes, tuple[StreamHandle, ...]] = {}

    def stream(self, name: str) -> StreamHandle | None:
        """Return the handle of a stream; see ports.AccountStreams, also for the next three."""
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
            names = sorted(self._capturing(subject, self._account))
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
        for name in sorted(self._capturing(prefix + b"*", self._account)):
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
        self.forget_lookups()
        self._changed()

    def forget_lookups(self) -> None:
        """Drop what was looked up about streams."""
        self._sorted = None
        self._routes.clear()
        self.topology_version += 1


class Catalogs:
    """The catalogs of all accounts on one node."""

    def __init__(self, capturing: Capturing) -> None:
        self._capturing = capturing
        self._by_account: dict[str, Catalog] = {}
        self._sorted: list[StreamHandle] | None = []
        self._watchers: list[Callable[[], None]] = []

    def of(self, account: str) -> Catalog:
        """Return the catalog of an account, which stays the same object."""
        catalog = self._by_account.get(account)
        if catalog is None:
            catalog = Catalog(account, self._capturing, self._tell)
            self._by_account[account] = catalog
        return catalog

    def streams(self) -> list[StreamHandle]:
        """Return the streams of all accounts, sorted by account and name."""
        if self._sorted is None:
            by_account = sorted(self._by_account.items())
            self._sorted = [one for _, catalog in by_account for one in catalog.streams()]
        return self._sorted

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever anything about streams has changed."""
        self._watchers.append(on_change)

    def changed(self) -> None:
        """Drop what was looked up about streams of all accounts."""
        for catalog in self._by_account.values():
            catalog.forget_lookups()
        self._tell()

    def _tell(self) -> None:
        self._sorted = None
        for on_change in self._watchers:
            on_change()
