"""Frame writer: the bytes of a link on their way to its socket."""

from __future__ import annotations

import asyncio

from streamd.limits import PEER_FLUSH_BYTES


class FrameWriter:
    """Collects the frames of one iteration of the loop and writes them at once.

    Takes frames before `open` too; after `close` or `abort` it takes none.
    """

    __slots__ = (
        "_is_closed",
        "_is_scheduled",
        "_loop",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "out_bytes",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None  # None: not open yet
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_scheduled = False
        self._is_closed = False
        self.out_bytes = 0  # given to the socket since the start

    def open(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from here on."""
        self._transport = transport

    @property
    def is_open(self) -> bool:
        """True between `open` and `close` or `abort`."""
        return self._transport is not None and not self._is_closed

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the other side has not been sent yet."""
        if self._transport is None:
            return 0
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Queue a frame: those of one iteration of the loop leave in one write."""
        if self._is_closed:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > PEER_FLUSH_BYTES:
            self._flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._is_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._waiting and self._transport is not None:
            if self._transport.is_closing():
                self._waiting = []  # the connection broke; `connection_lost` is on its way
                self._waiting_bytes = 0
                return
            self.out_bytes += self._waiting_bytes
            self._transport.writelines(self._waiting)
            self._waiting = []
            self._waiting_bytes = 0

    def stop(self) -> None:
        """Write the queued frames, and take no more; the socket stays open until `close`."""
        self._flush()
        self._is_closed = True

    def discard(self) -> None:
        """Drop the queued frames, and take no more: the connection is lost."""
        self._is_closed = True
        self._waiting = []
        self._waiting_bytes = 0

    def close(self) -> None:
        """Close the socket when all is sent."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once; queued frames are lost."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
