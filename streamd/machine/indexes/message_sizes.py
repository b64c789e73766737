"""`MessageSizes`: bytes that NATS counts for a message, from the length of its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamd.machine.base import HAS_HEADERS, LENGTH_MASK
from streamd.types import Msg

_RECORD_OVERHEAD: Final = 32


class MessageSizes:
    """Rule of one stream. A record is 32 bytes + subject + headers + payload. In memory a message
    counts 16 + all three; in a file 30 + subject + payload, and 4 + headers if it has any."""

    __slots__ = ("header_extra", "less")

    def __init__(self, is_memory: bool) -> None:
        self.less = 16 if is_memory else 2  # than the record
        self.header_extra = 0 if is_memory else 4

    def of_record(self, length: int) -> int:
        """Return the size of the message whose record has this length, flags on top."""
        size = (length & LENGTH_MASK) - self.less
        return size + self.header_extra if length & HAS_HEADERS else size

    def of_message(self, msg: Msg) -> int:
        """Return the size that `msg` will have once it is stored."""
        subject, headers, payload = msg
        size = _RECORD_OVERHEAD - self.less + len(subject) + len(headers) + len(payload)
        return size + self.header_extra if headers else size

    def of_records(self, record_bytes: int, count: int, flags: Sequence[int] | None = None) -> int:
        """Return the size of `count` messages whose records are `record_bytes` together; `flags`
        of each, or None if none has any."""
        size = record_bytes - self.less * count
        return size + self.extra_of(flags) if flags else size

    def extra_of(self, flags: Sequence[int]) -> int:
        """Return what messages with these flags count beyond those without headers."""
        with_headers = flags.count(HAS_HEADERS)  # most have this flag or none
        if with_headers < len(flags):
            with_headers = sum([1 for flag in flags if flag & HAS_HEADERS])
        return self.header_extra * with_headers
