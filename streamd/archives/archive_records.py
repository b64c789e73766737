"""Records of which every archive of a stream consists, in the order in which a reader gives them:
the state or the configuration, consumers, messages, what was deleted among them, the end. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from streamd.errors import StreamdError
from streamd.types import Seq


class ArchiveError(StreamdError):
    """Bytes that are no archive, or a damaged one."""


Row: TypeAlias = tuple[Seq, int, bytes, bytes, bytes]
"""A message: (seq, time in ns, subject, headers, payload)."""


class ArchivedState(NamedTuple):
    """Numbers of the stream as its server had them: of the first kind of archive alone."""

    first_seq: Seq
    last_seq: Seq
    message_count: int
    byte_count: int
    consumer_count: int


class ArchivedConfig(NamedTuple):
    """Configuration of the stream, as the archive has it: a tar alone."""

    config: dict[str, Any]


class ArchivedConsumer(NamedTuple):
    """A consumer: its configuration as the API has it, and how far it had come.

    `pending` are (stream seq, consumer seq, time of the last delivery), `redelivered` (stream seq,
    deliveries) of what was delivered more than once.
    """

    name: str
    config: dict[str, Any]
    delivered: tuple[int, Seq] = (0, 0)  # consumer seq, stream seq
    floor: tuple[int, Seq] = (0, 0)
    pending: Sequence[tuple[Seq, int, int]] = ()
    redelivered: Sequence[tuple[Seq, int]] = ()


class ArchivedMessages(NamedTuple):
    """Messages with ascending seqs, beyond all before them. What is missing was deleted."""

    rows: list[Row]


class ArchivedRemoval(NamedTuple):
    """Inclusive range of seqs that were deleted; messages of them may have come before."""

    first: Seq
    last: Seq


class ArchivedEnd(NamedTuple):
    """The last seq that the stream had used up, deleted ones included; 0: that of the last
    message."""

    last_seq: Seq


Record: TypeAlias = (
    ArchivedState
    | ArchivedConfig
    | ArchivedConsumer
    | ArchivedMessages
    | ArchivedRemoval
    | ArchivedEnd
)
