"""Output of the chunk being handled: the connections with lines that wait to be written.

A chunk is what one read of a client's socket brought. While it is handled (`is_in_chunk`) nothing
is written at once: lines wait in the connections, and each connection with lines is entered in
`dirty`. The end of the chunk writes them, one write a connection.

The queue belongs to the server, not to a subject space: a chunk may reach connections of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from streamd.limits import CLIENT_SHARE_S, FANOUT_BYTES

Item = TypeVar("Item")


class Writable(Protocol):
    """A connection that holds lines to be written."""

    is_dirty: bool
    """True while it is entered in `OutputQueue.dirty`."""

    def flush(self) -> bool:
        """Write the lines; True if so many bytes wait that their source should rest."""


class OutputQueue:
    """The connections whose lines wait to be written, and the chunk that they wait for.

    `dirty` is the same list for good, so that the parts that fill it keep it at hand. `until`, by
    `clock`, is when the client of the chunk has used up its share of the loop. `gathered` is how
    many bytes wait, about; a delivery to many receivers adds to it.
    """

    __slots__ = ("_has_slow_receiver", "clock", "dirty", "gathered", "is_in_chunk", "until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.dirty: list[Writable] = []
        self.is_in_chunk = False
        self.clock = clock
        self.until = 0.0
        self.gathered = 0
        self._has_slow_receiver = False

    def begin_chunk(self) -> None:
        """Hold output back from here on."""
        assert not self.is_in_chunk
        self.is_in_chunk = True
        self.until = self.clock() + CLIENT_SHARE_S
        self._has_slow_receiver = False

    def end_chunk(self, publisher: Writable) -> bool:
        """Write the chunk's output; True if a receiver other than `publisher` is far behind."""
        self.is_in_chunk = False
        if self.dirty:
            self.write_out(publisher)
        return self._has_slow_receiver

    def write_out(self, publisher: Writable | None) -> None:
        """Write the output that connections hold so far."""
        self.gathered = 0
        dirty = self.dirty[:]
        self.dirty.clear()
        for receiver in dirty:
            receiver.is_dirty = False
            if receiver.flush() and receiver is not publisher:
                self._has_slow_receiver = True

    def in_parts(self, publisher: Writable | None, items: list[Item], size: int) -> Iterator[Item]:
        """Yield receivers of `size` bytes each; output is written whenever it is much."""
        step = max(1, FANOUT_BYTES // size)
        for at in range(0, len(items), step):
            yield from items[at : at + step]
            self.write_out(publisher)
