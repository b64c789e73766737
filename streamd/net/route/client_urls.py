"""Client URLs: the addresses at which clients reach the servers of the cluster."""

from __future__ import annotations

from collections.abc import Callable

from streamd.types import NodeId


class ClientUrls:
    """Addresses of this server's clients and of the others', each told by its own server."""

    __slots__ = ("_of_others", "_on_change", "own")

    def __init__(self) -> None:
        self.own: list[str] = []  # that others are told; empty: none, or it is not to be told
        self._of_others: dict[NodeId, list[str]] = {}
        self._on_change: list[Callable[[list[str]], None]] = []

    def on_change(self, tell: Callable[[list[str]], None]) -> None:
        """Call `tell` with all addresses whenever they may have changed."""
        self._on_change.append(tell)

    def all(self) -> list[str]:
        """Return the addresses, this server's first."""
        others = [url for name in sorted(self._of_others) for url in self._of_others[name]]
        return list(dict.fromkeys(self.own + others))

    def learn(self, sender: NodeId, urls: list[str]) -> None:
        """Take in the addresses that another server told."""
        self._of_others[sender] = urls
        self.changed()

    def forget(self, sender: NodeId) -> None:
        """Drop the addresses of a server that is gone."""
        if self._of_others.pop(sender, None):
            self.changed()

    def changed(self) -> None:
        """Call the followers with all addresses."""
        urls = self.all()
        for tell in self._on_change:
            tell(urls)
