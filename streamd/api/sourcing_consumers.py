"""Consumers that mirrors and sources of other streams make for themselves (`sourcing`).

Those of a stream with limits are ephemeral, and each has a name of its own. A stream that keeps
messages for its consumers gets a durable one instead, which acknowledges by flow control: what the
copy has stored may leave.
"""

from __future__ import annotations

from typing import Final

from streamd import errors
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.message_headers import get
from streamd.machine.rfc3339 import format_ns
from streamd.machine.streams.origins import short_hash

IDENTITY: Final = b"Nats-Stream-Identity"
_ACK_PENDING_MAX: Final = 1000


def identity_of(created_ns: int) -> str:
    """Return the eight characters by which a stream is told from another of its name."""
    return short_hash(format_ns(created_ns))


def check_identity(headers: bytes, created_ns: int) -> None:
    """Refuse a request that goes on with a stream of this name that is not there any more."""
    wanted = get(headers, IDENTITY) if headers else None
    identity = identity_of(created_ns)
    if wanted and wanted != identity.encode():
        raise errors.CONSUMER_STREAM_IDENTITY_MISMATCH(msg=identity)


def answer_headers(created_ns: int) -> bytes:
    """Return the headers of the answer: who copies remembers them."""
    return b"NATS/1.0\r\n%b: %b\r\n\r\n" % (IDENTITY, identity_of(created_ns).encode())


def adapted(config: ConsumerConfig, stream: StreamConfig, unused: str) -> ConsumerConfig:
    """Return the config that the consumer gets at a stream with this config. `unused`: characters
    that no other consumer's name ends with."""
    if not (config.get("sourcing") and config.get("direct") and config.get("name")):
        return config
    name = config["name"]
    made = config.copy()
    if stream["retention"] == "limits":
        made["name"] = f"{name}-{unused}"
        return made
    made["durable_name"] = name
    made["ack_policy"] = "flow_control"
    made["max_deliver"] = -1
    made["max_ack_pending"] = _ACK_PENDING_MAX
    made["deliver_policy"] = "all"
    made.pop("direct", None)
    made.pop("ack_wait", None)
    made.pop("inactive_threshold", None)
    made.pop("opt_start_seq", None)
    made.pop("opt_start_time", None)
    return made
