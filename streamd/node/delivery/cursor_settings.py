"""Settings of a cursor: what a consumer's config means for the delivery of its messages."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.machine.consumers.consumer import Consumer
from streamd.machine.extension_settings import ack_pending_per_subject

_MS = 1_000_000  # ns


@dataclass(slots=True, frozen=True)
class CursorSettings:
    """Config of one consumer, decoded once per change of it."""

    is_push: bool
    has_acks: bool
    ack_pending_max: int  # 0: no limit
    per_subject_max: int  # pending acks of one subject; 0: no limit
    max_deliver: int  # -1: no limit
    is_acked_by_flow: bool  # answers to flow-control requests are the acks
    is_headers_only: bool
    inactive_ms: int  # 0: the consumer stays however long it is unused
    heartbeat_ms: int  # 0: none
    priority_policy: str
    pin_timeout_ms: int
    deliver_subject: bytes
    deliver_group: bytes
    has_flow_control: bool
    rate_limit_bps: int  # 0: no limit

    @classmethod
    def of(cls, consumer: Consumer) -> CursorSettings:
        """Decode the config that `consumer` has now."""
        config = consumer.config
        has_acks = not consumer.is_ack_none
        most = config.get("max_ack_pending") or 0
        return cls(
            is_push=consumer.is_push,
            has_acks=has_acks,
            ack_pending_max=most if has_acks and most > 0 else 0,
            per_subject_max=ack_pending_per_subject(config),
            max_deliver=config.get("max_deliver") or -1,
            is_acked_by_flow=config.get("ack_policy") == "flow_control",
            is_headers_only=bool(config.get("headers_only")),
            inactive_ms=(config.get("inactive_threshold") or 0) // _MS,
            heartbeat_ms=(config.get("idle_heartbeat") or 0) // _MS,
            priority_policy=config.get("priority_policy") or "none",
            pin_timeout_ms=(config.get("priority_timeout") or 0) // _MS,
            deliver_subject=(config.get("deliver_subject") or "").encode(),
            deliver_group=(config.get("deliver_group") or "").encode(),
            has_flow_control=bool(config.get("flow_control")),
            rate_limit_bps=config.get("rate_limit_bps") or 0,
        )


class Activity:
    """Times at which a consumer was last used, by which an unused one is removed."""

    __slots__ = ("active_ms", "is_removal_proposed", "last_acked_ns", "last_delivered_ns")

    def __init__(self, consumer: Consumer, now_ms: int) -> None:
        self.active_ms = now_ms
        self.is_removal_proposed = False
        self.last_delivered_ns = consumer.delivered_ns  # under an earlier leader
        self.last_acked_ns = consumer.acked_ns


class Hold:
    """Time before which the consumer sends nothing new; the latest reason to wait counts."""

    __slots__ = ("until_ms",)

    def __init__(self) -> None:
        self.until_ms = 0  # 0: nothing holds it back
