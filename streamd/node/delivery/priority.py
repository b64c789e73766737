"""Priority groups of pull consumers: overflow, prioritized, pinned client."""

from __future__ import annotations

from streamd.machine.asset_configs import ConsumerConfig
from streamd.machine.consumers.consumer import Consumer
from streamd.node.delivery.pulls import PIN_MISMATCH, PullOptions, PullRequest, bad_request

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def priority_refusal(options: PullOptions, config: ConsumerConfig) -> bytes | None:
    """A 400 status if the pull does not fit the consumer's priority policy."""
    policy = config.get("priority_policy") or "none"
    if policy != "overflow" and (options.min_pending or options.min_ack_pending):
        return bad_request("Not a Overflow Priority consumer")
    if policy != "pinned_client" and options.pin_id:
        return bad_request("Not a Pinned Client Priority consumer")
    if options.priority and not 0 <= options.priority <= 9:
        return bad_request("Priority must be between 0 and 9")
    groups = config.get("priority_groups") or []
    if policy != "none":
        if not options.group:
            return bad_request("Priority Group missing")
        if options.group not in groups:
            return bad_request("Invalid Priority Group")
    return None


def is_eligible(options: PullOptions, *, num_pending: int, num_ack_pending: int) -> bool:
    """Overflow: is there enough work for this pull to take some of it?"""
    if options.min_pending <= 0 and options.min_ack_pending <= 0:
        return True
    if 0 < options.min_pending <= num_pending:
        return True
    return 0 < options.min_ack_pending <= num_ack_pending


class Pin:
    """Place of the client that has the consumer for itself, if any."""

    __slots__ = ("pin_id", "since_ns", "timeout_ms", "until_ms")

    def __init__(self) -> None:
        self.timeout_ms = 0
        self.clear()

    def clear(self) -> None:
        self.pin_id = ""
        self.since_ns = 0
        self.until_ms = 0

    def refusal(self, options: PullOptions, now_ms: int) -> bytes | None:
        """A 423 status for a pull that names another pin; its own pin is prolonged. While nobody
        is pinned, it waits, and is told so with the next message."""
        if not options.pin_id or not self.pin_id:
            return None
        if options.pin_id != self.pin_id:
            return PIN_MISMATCH
        self._prolong(now_ms)
        return None

    def serves(self, request: PullRequest) -> bool:
        """True for pulls of the pinned client."""
        return bool(self.pin_id) and request.pin_id == self.pin_id

    def is_of_another(self, request: PullRequest) -> bool:
        """True for pulls of a client that was pinned, and no longer is."""
        return bool(request.pin_id) and request.pin_id != self.pin_id

    def assign(self, request: PullRequest, consumer: Consumer, now_ms: int, now_ns: int) -> str:
        """Pin the client of `request`; returns the new id."""
        value = now_ns * 1024 + consumer.uid % 1024
        text = ""
        for _ in range(22):
            value, digit = divmod(value, 62)
            text = _DIGITS[digit] + text
        self.pin_id = request.pin_id = text
        self.since_ns = now_ns
        self._prolong(now_ms)
        return text

    def _prolong(self, now_ms: int) -> None:
        self.until_ms = now_ms + self.timeout_ms if self.timeout_ms else 0

    def is_over(self, now_ms: int) -> bool:
        """True if the pinned client has not pulled for too long."""
        return 0 < self.until_ms <= now_ms

    def mark(self, headers: bytes) -> bytes:
        """`headers` of a message delivered to the pinned client."""
        pin_id = self.pin_id.encode()
        if headers:
            return b"%bNats-Pin-Id: %b\r\n\r\n" % (headers[:-2], pin_id)
        return b"NATS/1.0\r\nNats-Pin-Id: %b\r\n\r\n" % pin_id
