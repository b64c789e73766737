"""Requests to an origin's API and their answers: the consumer that sends a stream's messages.

As nats-server makes them, so that either may be the origin of the other. Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from streamd import errors
from streamd.machine import message_headers
from streamd.machine.asset_configs import StreamConfig, StreamSource
from streamd.machine.streams.origins import MIRROR, index_name, short_hash
from streamd.types import ACCOUNT, Seq

_API: Final = "$JS.API"
_SECOND_NS: Final = 1_000_000_000
_LEVEL: Final = "4"
_IDENTITY: Final = "Nats-Stream-Identity"
_UNKNOWN_LEVEL: Final = errors.REQUIRED_API_LEVEL.err_code
_UNKNOWN_FIELD: Final = errors.INVALID_JSON.err_code
_IDENTITY_MISMATCH: Final = errors.CONSUMER_STREAM_IDENTITY_MISMATCH.err_code


class Origin(NamedTuple):
    """Origin of a mirror, or of one source of a stream, as the stream's leader asks it."""

    name: str  # its index name; MIRROR
    source: StreamSource
    consumer: str  # name of the consumer there
    metadata: dict[str, str]

    @property
    def is_mirror(self) -> bool:
        return self.name == MIRROR

    @property
    def is_external(self) -> bool:
        """True if the origin is reached by other subjects than those of this account's API."""
        return "external" in self.source

    @property
    def own_consumer(self) -> str:
        """Name of the consumer that a user made for this, "": the stream makes its own."""
        return self.source.get("consumer", {}).get("name", "")

    def api(self, rest: str) -> bytes:
        """Return a subject of the origin's API."""
        prefix = self.source.get("external", {}).get("api") or _API
        return f"{prefix}.{rest}".encode()

    def deliver_subject(self, token: str) -> bytes:
        """Return the subject to which the origin's messages are to be sent."""
        given = self.source.get("consumer", {}).get("deliver_subject")
        if given:
            return given.encode()
        prefix = self.source.get("external", {}).get("deliver") or "$JS"
        return f"{prefix}.{'M' if self.is_mirror else 'S'}.{token}".encode()


class Start(NamedTuple):
    """Position from which an origin's messages are wanted."""

    seq: Seq  # the next one; 0: where the configuration says
    identity: str


class Made(NamedTuple):
    """Consumer that is there, as the answer describes it."""

    identity: str
    cseq: int  # of its last delivery
    sseq: Seq
    pending: int


class Refused(NamedTuple):
    """Error answer of the origin."""

    error: dict[str, Any]
    is_unknown: bool = False  # it knows less than it was asked for: ask as of old
    is_another: bool = False  # it was created anew
    identity: str = ""


def origins_of(config: StreamConfig, domain: str) -> list[Origin]:
    """Return the origins of a stream, in the order of its configuration."""
    account = config.get("account", ACCOUNT)
    base = f"{config['name']} {account}" + (f" {domain}" if domain else "")
    mirror = config.get("mirror")
    if mirror:
        facts = _metadata("mirror", config["name"], account, domain)
        return [Origin(MIRROR, mirror, f"JS_MIRROR_{short_hash(base)}", facts)]
    facts = _metadata("src", config["name"], account, domain)
    sources = config.get("sources") or []
    names = [source.get("name", "") for source in sources]
    found: list[Origin] = []
    for source in sources:
        name = index_name(source)
        text = short_hash(base)
        if names.count(source.get("name", "")) > 1:
            text += f" {name}"
        found.append(Origin(name, source, f"JS_SRC_{short_hash(text)}", facts))
    return found


def _metadata(kind: str, stream: str, account: str, domain: str) -> dict[str, str]:
    facts = {f"_nats.{kind}.acc": account, f"_nats.{kind}.stream": stream}
    if domain:
        facts[f"_nats.{kind}.domain"] = domain
    return facts


def create_request(
    origin: Origin, start: Start, token: str, *, is_plain: bool
) -> tuple[bytes, bytes, bytes]:
    """Return (subject, headers, payload) of the request for the consumer. `is_plain`: of a server
    that does not know consumers for this purpose."""
    source = origin.source
    name = f"{origin.consumer}-{token}" if is_plain else origin.consumer
    stream = source.get("name", "")
    config: dict[str, Any] = {"name": name} | _policy(source, start)
    config |= {"ack_policy": "none", "ack_wait": 22 * 3600 * _SECOND_NS, "max_deliver": 1}
    filters = [each.get("src") or ">" for each in source.get("subject_transforms") or ()]
    single = source.get("filter_subject", "")
    if len(filters) == 1:
        single, filters = filters[0], []
    subject = f"CONSUMER.CREATE.{stream}"
    if single:
        config["filter_subject"] = single
        subject += f".{name}.{single}"
    elif filters:
        config["filter_subjects"] = filters
    config |= {
        "replay_policy": "instant",
        "flow_control": True,
        "deliver_subject": origin.deliver_subject(token).decode(),
        "idle_heartbeat": _SECOND_NS,
        "inactive_threshold": 10 * _SECOND_NS,
        "num_replicas": 0,
        "direct": True,
        "metadata": origin.metadata,
    }
    headers = b""
    if not is_plain:
        config["sourcing"] = True
        lines = [f"Nats-Required-Api-Level: {_LEVEL}"]
        if not origin.is_mirror:
            lines.append(f"{_IDENTITY}: {start.identity}")
        headers = "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()
    payload = json.dumps({"stream_name": stream, "config": config, "action": ""})
    return origin.api(subject), headers, payload.encode()


def _policy(source: StreamSource, start: Start) -> dict[str, Any]:
    if start.seq:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start.seq}
    if source.get("opt_start_seq"):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": source["opt_start_seq"]}
    if source.get("opt_start_time"):
        return {"deliver_policy": "by_start_time", "opt_start_time": source["opt_start_time"]}
    return {"deliver_policy": "all"}


def reset_request(origin: Origin, start: Start) -> tuple[bytes, bytes, bytes]:
    """Return (subject, headers, payload) of the request that a user's consumer begins anew."""
    subject = f"CONSUMER.RESET.{origin.source.get('name', '')}.{origin.own_consumer}"
    payload = json.dumps({"seq": start.seq}).encode() if start.seq else b""
    return origin.api(subject), b"", payload


def delete_request(origin: Origin) -> tuple[bytes, bytes, bytes]:
    """Return (subject, headers, payload) of the request to delete the consumer, which is there only
    if the origin keeps messages for it."""
    subject = f"CONSUMER.DELETE.{origin.source.get('name', '')}.{origin.consumer}"
    return origin.api(subject), b"", b""


def read_answer(origin: Origin, headers: bytes, payload: bytes) -> Made | Refused | None:
    """Return what an answer says; None: it is none that makes sense."""
    try:
        document = json.loads(payload)
        error = document.get("error")
        if error:
            return _refusal(dict(error))
        delivered = document.get("delivered") or {}
        if origin.own_consumer and document["config"].get("ack_policy") != "flow_control":
            return Refused(_other_acks(origin.is_mirror).as_json())
        return Made(
            identity=(message_headers.get(headers, _IDENTITY.encode()) or b"").decode(),
            cseq=int(delivered.get("consumer_seq", 0)),
            sseq=int(delivered.get("stream_seq", 0)),
            pending=int(document.get("num_pending", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _other_acks(is_mirror: bool) -> errors.JsError:
    if is_mirror:
        return errors.MIRROR_CONSUMER_REQUIRES_ACK_FC()
    return errors.SOURCE_CONSUMER_REQUIRES_ACK_FC()


def _refusal(error: dict[str, Any]) -> Refused:
    code = error.get("err_code")
    is_another = code == _IDENTITY_MISMATCH
    identity = str(error.get("description", "")).rpartition(": ")[2] if is_another else ""
    return Refused(error, code in (_UNKNOWN_LEVEL, _UNKNOWN_FIELD), is_another, identity)
