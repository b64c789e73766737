"""`Moment`: tells whether numbers of a stream that monitoring keeps are still those of the stream.

All that a stream's state machine holds is made by its log, so its numbers are the same as long as
it is the same machine, with the same entries applied.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.streams.stream import StreamMachine


class Moment:
    """State machine of a stream, and the last entry that it had applied.

    The machine is not kept alive: nobody may ask again, and a deleted stream must leave memory.
    """

    __slots__ = ("_applied", "_machine")

    def __init__(self, machine: StreamMachine) -> None:
        self._machine = weakref.ref(machine)
        self._applied = machine.applied

    def is_of(self, machine: StreamMachine) -> bool:
        """True if that machine has applied nothing since."""
        return self._applied == machine.applied and self._machine() is machine
