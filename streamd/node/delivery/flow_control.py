"""Limits of a push consumer: flow control, a rate limit, original replay speed."""

from __future__ import annotations

from streamd import limits
from streamd.machine.asset_configs import StreamConfig

_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FLOW_REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class FlowWindow:
    """Bytes that may be under way to a client that answers flow-control requests.

    Starts small and doubles with each answer, as clients and nats-server expect.
    """

    __slots__ = (
        "_asked_bytes",
        "_ids",
        "_prefix",
        "asked_cseq",
        "reply",
        "unanswered_bytes",
        "window_bytes",
    )

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._ids = 0
        self._asked_bytes = 0
        self.reply = b""  # subject of the outstanding request; b"": none
        self.unanswered_bytes = 0
        self.asked_cseq = -1  # what had been sent when its acks were asked for
        self.window_bytes = limits.FLOW_WINDOW_BYTES_MIN

    @property
    def is_stalled(self) -> bool:
        """True until the client answers."""
        return self.unanswered_bytes > self.window_bytes

    def room_bytes(self) -> int:
        """Return how many bytes more may go before the client must answer."""
        return max(0, self.window_bytes - self.unanswered_bytes)

    def sent(self, size: int) -> bool:
        """Count a message; True if a flow-control request must follow it."""
        self.unanswered_bytes += size
        return not self.reply and self.unanswered_bytes > self.window_bytes // 2

    def request(self) -> bytes:
        """Return the reply subject of a new request."""
        self._ids += 1
        value = self._ids
        text = bytearray()
        for _ in range(4):
            value, digit = divmod(value, 62)
            text.append(_DIGITS[digit])
        self.reply = self._prefix + bytes(text[::-1])
        self._asked_bytes = self.unanswered_bytes
        return self.reply

    def answered(self, subject: bytes) -> bool:
        """The client has processed all that was sent before the request `subject` names."""
        if not self.reply or subject != self.reply:
            return False
        self.window_bytes = min(self.window_bytes * 2, limits.FLOW_WINDOW_BYTES_MAX)
        self.unanswered_bytes = max(0, self.unanswered_bytes - self._asked_bytes)
        self.reply = b""
        self._asked_bytes = 0
        return True


class RateLimit:
    """A token bucket in bytes, filled continuously."""

    __slots__ = ("_at_ms", "_burst", "_bytes_per_s", "_tokens")

    def __init__(self, bits_per_s: int, burst: int, now_ms: int) -> None:
        self._bytes_per_s = max(1, bits_per_s // 8)
        self._burst = burst
        self._tokens = burst * 1000  # in thousandths, so that it stays whole numbers
        self._at_ms = now_ms

    def delay_ms(self, size: int, now_ms: int) -> int:
        """Take `size` bytes and return 0, or take nothing and return how long to wait."""
        passed = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        full = self._burst * 1000
        self._tokens = min(full, self._tokens + passed * self._bytes_per_s)
        wanted = min(size * 1000, full)  # what is bigger than the bucket waits for a full one
        if self._tokens >= wanted:
            self._tokens -= wanted
            return 0
        return max(1, (wanted - self._tokens + self._bytes_per_s - 1) // self._bytes_per_s)


class Replay:
    """Replay at the original speed, until what was stored at the start has been sent."""

    __slots__ = ("_last_sent_ms", "_last_ts", "until_sseq")

    def __init__(self, until_sseq: int) -> None:
        self.until_sseq = until_sseq
        self._last_ts = 0
        self._last_sent_ms = 0

    def due_ms(self, ts: int, now_ms: int) -> int:
        """When a message stored at `ts` should go out; not after `now_ms` means now."""
        if not self._last_ts:
            return now_ms
        return self._last_sent_ms + max(0, ts - self._last_ts) // 1_000_000

    def sent(self, ts: int, now_ms: int) -> None:
        self._last_ts = ts
        self._last_sent_ms = now_ms


def burst_bytes(stream_config: StreamConfig, max_payload: int) -> int:
    """The rate limit's bucket: one message of the greatest allowed size."""
    size = stream_config.get("max_msg_size") or 0
    return size if size > 0 else max_payload
