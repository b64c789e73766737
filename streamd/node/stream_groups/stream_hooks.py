"""Hooks of a stream's group: what the node does for it, or is told by it."""

from __future__ import annotations

from collections.abc import Callable

from streamd.callbacks import ignore
from streamd.errors import StreamdError
from streamd.node.ports import PublishSink
from streamd.types import Msg


class StreamHooks:
    """Callbacks of one stream to its node; they do nothing unless the node sets them."""

    __slots__ = ("is_disk_short", "on_damaged", "on_mended", "pass_on")

    def __init__(self) -> None:
        self.release()

    def release(self) -> None:
        """Lead to the node no more."""
        # Publishes that another member is to take. Where no other node can lead, nobody answers
        # them: the client's timeout is the honest answer.
        self.pass_on: Callable[[list[Msg], list[bytes], PublishSink], None] = ignore
        # Something is damaged: (error, is it news, in which block if that is known).
        self.on_damaged: Callable[[StreamdError, bool, int], object] = ignore
        self.on_mended: Callable[[], object] = ignore  # nothing is damaged any more
        self.is_disk_short: Callable[[], bool] = _never


def _never() -> bool:
    return False
