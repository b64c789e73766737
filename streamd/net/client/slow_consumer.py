"""Rules about slow consumers: bounds on bytes, and on time, that wait for a client to read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamd.net.client.auth import ClientPolicy
from streamd.net.client.profile import after_end


class SlowConsumerGuard:
    """Decides when a client that reads too slowly is cut off, and tells `on_slow` the reason.

    Two rules: no more than `max_pending` bytes may wait, and what waits when the transport becomes
    congested must have been read when `write_deadline` is over. A client that keeps up with what
    it is sent, some way behind, may stay: then the deadline begins anew.
    """

    __slots__ = ("_loop", "_on_slow", "_policy", "_timer", "_transport", "_written_bytes")

    def __init__(
        self,
        policy: ClientPolicy,
        loop: asyncio.AbstractEventLoop,
        on_slow: Callable[[str], None],
    ) -> None:
        self._policy = policy
        self._loop = loop
        self._on_slow = on_slow
        self._transport: asyncio.Transport | None = None  # None: not yet open, or closed
        self._timer: asyncio.TimerHandle | None = None
        self._written_bytes = 0  # to the transport since the deadline began

    def open(self, transport: asyncio.Transport) -> None:
        """Begin to watch the buffer of `transport`."""
        self._transport = transport

    def close(self) -> None:
        """Watch no more; nothing waits from here on."""
        self._transport = None
        self._on_slow = after_end
        self.relax()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the client to read them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def begin_deadline(self) -> None:
        """Give the client until the write deadline to read what waits now."""
        if self._timer is None and self._transport is not None:
            self._start_timer()

    def count(self, size: int) -> None:
        """Note that `size` more bytes were given to the transport."""
        self._written_bytes += size

    def relax(self) -> None:
        """Clear the deadline: the transport has room again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_near_limit(self) -> bool:
        """Return True if publishers to this client should pause; cut the client off beyond the
        limit."""
        waiting = self.waiting_bytes
        limit = self._policy.options.max_pending
        if waiting > limit:
            self._on_slow("Slow Consumer (Pending Bytes)")
            return False
        return waiting * 4 > limit * 3

    def _start_timer(self) -> None:
        self._written_bytes = 0
        deadline_s = self._policy.options.write_deadline_ns / 1e9
        if deadline_s > 0:
            self._timer = self._loop.call_later(deadline_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        if self.waiting_bytes > self._written_bytes:
            self._on_slow("Slow Consumer (Write Deadline)")
        else:  # all that waits came later: the client reads as fast as it is sent messages
            self._start_timer()
