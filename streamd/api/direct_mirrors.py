"""Mirrors that answer direct gets for their origin (`mirror_direct`).

An origin that allows direct gets answers them itself: it has all that a mirror may still lack.
"""

from __future__ import annotations

from streamd.machine.streams.origins import MIRROR
from streamd.node.ports import AccountStreams, StreamHandle


class DirectMirrors:
    """Mirrors of one account by the name of their origin."""

    __slots__ = ("_by_origin", "_streams", "_version")

    def __init__(self, streams: AccountStreams) -> None:
        self._streams = streams
        self._version = -1
        self._by_origin: dict[str, list[StreamHandle]] = {}

    def serving(self, name: str) -> str:
        """Return the stream that answers direct gets of the stream `name`: itself, or a mirror."""
        own = self._streams.stream(name)
        if own is not None and own.config["allow_direct"]:
            return name
        version = self._streams.topology_version
        if version != self._version:
            self._version, self._by_origin = version, self._found()
        for mirror in self._by_origin.get(name, ()):
            if not mirror.is_local or mirror.is_close_mirror:
                return mirror.name
        return name

    def _found(self) -> dict[str, list[StreamHandle]]:
        found: dict[str, list[StreamHandle]] = {}
        for handle in self._streams.streams():
            mirror = handle.config.get("mirror")
            if mirror and handle.config.get("mirror_direct"):
                found.setdefault(mirror.get("name", MIRROR), []).append(handle)
        return found
