"""Entrance of clients into TLS, as a connection knows it. A server without TLS loads no more."""

from __future__ import annotations

import asyncio
from typing import Protocol

from streamd.net.tls.facts import TlsFacts, TlsFault


class Entering(Protocol):
    """A connection that is about to be served."""

    @property
    def is_closed(self) -> bool: ...

    def introduce(self, *, is_tls_first: bool = False) -> None:
        """Send INFO."""

    def write_to(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from here on, and end with it."""

    def serve(self, facts: TlsFacts | None) -> None:
        """Take bytes that come for the client's protocol."""

    def turn_away(self, fault: TlsFault) -> None:
        """End: there is no TLS."""

    def throttle(self) -> None:
        """End: there are too many handshakes."""

    def report_throttled(self, count: int) -> None:
        """Say that so many connections were throttled."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client's protocol."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything: the socket is closed."""

    def pause_writing(self) -> None:
        """Note that the client is behind."""

    def resume_writing(self) -> None:
        """Note that the client has caught up."""


class Entrance(Protocol):
    """Takes connections into TLS, or past it where that is allowed."""

    def enter(
        self, conn: Entering, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Take over the socket of `conn` until the client is served, or turned away."""

    def has_pinned(self, facts: TlsFacts) -> bool:
        """Return True if the client's key is one of those that are pinned, or none is."""
