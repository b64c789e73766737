"""Settings of ours in the metadata of streams and consumers, which no NATS server knows (ADR 0052).

Clients send `metadata` as they like, and older servers took these keys without a look. So there
are two readers: `apply` takes what it can read and goes by the default where it can't, and the API
refuses (`stream_mistake`, `consumer_mistake`) what does not make sense.
"""

from __future__ import annotations

from typing import Final

from streamd import limits
from streamd.durations import parse_duration
from streamd.machine.asset_configs import ConsumerConfig, Metadata, StreamConfig
from streamd.subjects import is_valid_literal

LINEARIZABLE_READS: Final = "streamd.linearizable_reads"
"""Setting of a stream, "true": every direct get is linearizable (api/direct_get.py)."""
PRODUCERS_MAX: Final = "streamd.producers_max"
"""Number of producers that a stream knows at a time."""
PRODUCER_EXPIRY: Final = "streamd.producer_expiry"
"""Silence after which a stream forgets a producer; a duration as Go has it."""
DEAD_LETTER: Final = "streamd.dead_letter"
"""Subject to which messages go that a consumer gives up."""
ACK_PENDING_PER_SUBJECT: Final = "streamd.max_ack_pending_per_subject"
"""Number of messages of one subject that a consumer has delivered and not acked at a time."""
LAG: Final = "streamd.lag"
"""Setting of a consumer, "true": its info tells how far it is behind in time, whoever asks."""
PURPOSE: Final = "streamd.purpose"
"""Note of a client: "lag" is of a consumer that stands where a Spark query has read to. It is
kept, and the server does nothing with it."""

_PREFIX: Final = "streamd."
_OF_STREAMS: Final = (LINEARIZABLE_READS, PRODUCERS_MAX, PRODUCER_EXPIRY)
_OF_CONSUMERS: Final = (DEAD_LETTER, ACK_PENDING_PER_SUBJECT, LAG)
_EXPIRY_NS_MIN: Final = 1_000_000_000
_RESERVED: Final = "$"


def producers_max(config: StreamConfig) -> int:
    """Return how many producers a stream knows at a time."""
    most = _number(config.get("metadata"), PRODUCERS_MAX)
    return most if 0 < most <= limits.PRODUCERS_MAX else limits.PRODUCERS_DEFAULT


def producer_expiry_ns(config: StreamConfig) -> int:
    """Return after which silence a producer is forgotten; 0: never."""
    text = (config.get("metadata") or {}).get(PRODUCER_EXPIRY)
    expiry_ns = parse_duration(text) if isinstance(text, str) else None
    return expiry_ns if expiry_ns is not None and expiry_ns >= _EXPIRY_NS_MIN else 0


def dead_letter(config: ConsumerConfig) -> bytes:
    """Return the subject to which a consumer's dead letters go; b"": it has none."""
    text = (config.get("metadata") or {}).get(DEAD_LETTER)
    subject = text.encode() if isinstance(text, str) else b""
    return subject if subject and is_valid_literal(subject) else b""


def ack_pending_per_subject(config: ConsumerConfig) -> int:
    """Return how many messages of one subject may wait for their acks at a time; 0: no limit."""
    most = _number(config.get("metadata"), ACK_PENDING_PER_SUBJECT)
    return most if most > 0 and config.get("ack_policy") == "explicit" else 0


def _number(metadata: Metadata | None, key: str) -> int:
    """Return a number of at most nine digits; -1: there is none."""
    text = (metadata or {}).get(key)
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_number and text is not None else -1


# --- checks of the API ----------------------------------------------------------------------------


def _unknown(metadata: Metadata, known: tuple[str, ...], whose: str) -> str:
    """Return what is wrong with a key of ours that means nothing: what it was to bring would not
    come, and nobody would know."""
    for key in metadata:
        if key.startswith(_PREFIX) and key not in known and key != PURPOSE:
            return f"metadata {key} is no setting of {whose}; there are {', '.join(known)}"
    return ""


def stream_mistake(config: StreamConfig) -> str:
    """Return what is wrong with the settings of ours in a stream's metadata; "": nothing."""
    metadata = config.get("metadata") or {}
    unknown = _unknown(metadata, _OF_STREAMS, "streams")
    if unknown:
        return unknown
    if (
        PRODUCERS_MAX in metadata
        and not 0 < _number(metadata, PRODUCERS_MAX) <= limits.PRODUCERS_MAX
    ):
        return (
            f"metadata {PRODUCERS_MAX} must be a number from 1 to {limits.PRODUCERS_MAX}, "
            f"not '{metadata[PRODUCERS_MAX]}'"
        )
    if metadata.get(PRODUCER_EXPIRY, "0") != "0" and not producer_expiry_ns(config):
        return (
            f"metadata {PRODUCER_EXPIRY} must be 0 or a duration of at least 1s, "
            f"not '{metadata[PRODUCER_EXPIRY]}'"
        )
    return ""


def consumer_mistake(config: ConsumerConfig) -> str:
    """Return what is wrong with the settings of ours in a consumer's metadata; "": nothing."""
    metadata = config.get("metadata") or {}
    unknown = _unknown(metadata, _OF_CONSUMERS, "consumers")
    if unknown:
        return unknown
    if DEAD_LETTER in metadata:
        subject = metadata[DEAD_LETTER]
        if not is_valid_literal(subject.encode()) or subject.startswith(_RESERVED):
            return (
                f"metadata {DEAD_LETTER} must be a subject without wildcards that does not begin "
                f"with '{_RESERVED}', not '{subject}'"
            )
        if config.get("ack_policy", "none") == "none":
            return f"metadata {DEAD_LETTER} requires an ack policy"
    if ACK_PENDING_PER_SUBJECT in metadata:
        most = limits.ACK_PENDING_PER_SUBJECT_MAX
        if not 0 < _number(metadata, ACK_PENDING_PER_SUBJECT) <= most:
            return (
                f"metadata {ACK_PENDING_PER_SUBJECT} must be a number from 1 to {most}, "
                f"not '{metadata[ACK_PENDING_PER_SUBJECT]}'"
            )
        if config.get("ack_policy") != "explicit":
            return f"metadata {ACK_PENDING_PER_SUBJECT} requires ack policy explicit"
    return ""
