"""Whether a consumer may be created, changed or reset: the checks that need the stream's state.

Checks of a config by itself (names, ranges, combinations) are made by the API before it proposes;
these are made while a command is applied, so that two requests can't both slip through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamd import errors, subjects
from streamd.durations import format_duration
from streamd.errors import JsError
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.remaining import filters_of
from streamd.machine.extension_settings import dead_letter
from streamd.machine.rfc3339 import parse_ns
from streamd.subject_tree import SubjectTree

# Config keys that the server writes into metadata by itself; they don't make configs different.
_DYNAMIC_METADATA = ("_nats.ver", "_nats.level", "_nats.req.level")

# What can't be changed, and how the refusal reads, in the order in which the peers check.
_FIXED = (
    ("deliver_policy", "deliver policy can not be updated"),
    ("opt_start_seq", "start sequence can not be updated"),
    ("opt_start_time", "start time can not be updated"),
    ("ack_policy", "ack policy can not be updated"),
    ("replay_policy", "replay policy can not be updated"),
    ("idle_heartbeat", "heart beats can not be updated"),
    ("flow_control", "flow control can not be updated"),
)


class Configured(Protocol):
    """A consumer of the stream, as far as the creation of another one depends on it."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> ConsumerConfig: ...


def check_create(
    name: str,
    config: ConsumerConfig,
    action: str,
    *,
    stream_config: StreamConfig,
    consumers: Mapping[str, Configured],
    account_max: int = 0,
) -> JsError | None:
    """Return why CREATE_CONSUMER must be refused, or None. An existing consumer of that name is
    then to be updated with `config` (a no-op if it is equal), else one is to be created."""
    refusal = check_limits(config, stream_config)
    if refusal is not None:
        return refusal
    existing = consumers.get(name)
    if existing is None and action == "update":
        return errors.CONSUMER_DOES_NOT_EXIST()
    if existing is not None and action == "create" and not is_same(existing.config, config):
        return errors.CONSUMER_ALREADY_EXISTS()
    if existing is not None and is_same(existing.config, config):
        return None
    refusal = _check_against_stream(config, stream_config)
    if refusal is not None:
        return refusal
    if existing is not None:
        refusal = _check_update(existing.config, config)
        if refusal is not None:
            return refusal
    elif not (config.get("direct") or config.get("sourcing")):
        limit = stream_config.get("max_consumers", -1)
        count = sum(
            not (each.config.get("direct") or each.config.get("sourcing"))
            for each in consumers.values()
        )
        if 0 < limit <= count or 0 < account_max <= count:
            return errors.MAXIMUM_CONSUMERS_LIMIT()
    if stream_config.get("retention") == "workqueue" and not config.get("sourcing"):
        others = [
            each.config
            for each in consumers.values()
            if each.name != name and not each.config.get("sourcing")
        ]
        return _check_workqueue(config, others)
    return None


def is_same(left: ConsumerConfig, right: ConsumerConfig) -> bool:
    """True if two normalised configs ask for the same consumer."""
    return _comparable(left) == _comparable(right)


def _comparable(config: ConsumerConfig) -> dict[str, object]:
    plain = {key: value for key, value in config.items() if value is not None}
    metadata = dict(config.get("metadata") or {})
    for key in _DYNAMIC_METADATA:
        metadata.pop(key, None)
    plain["metadata"] = metadata
    plain["filters"] = filters_of(config)
    plain.pop("pause_until", None)  # an existing consumer keeps its own
    for key in ("filter_subject", "filter_subjects"):
        plain.pop(key, None)
    return plain


def check_limits(config: ConsumerConfig, stream_config: StreamConfig) -> JsError | None:
    """Refuse what the stream's `consumer_limits` do not allow. Looked at first, whatever is asked
    for, and whether the consumer is there or not."""
    limits = stream_config.get("consumer_limits") or {}
    ack_pending_max = limits.get("max_ack_pending", 0)
    if 0 < ack_pending_max < config.get("max_ack_pending", 0):  # -1, without limit, is let in
        return errors.CONSUMER_MAX_PENDING_ACK_EXCESS(limit=ack_pending_max)
    threshold_max = limits.get("inactive_threshold", 0)
    if threshold_max > 0 and config.get("inactive_threshold", 0) > threshold_max:
        return errors.CONSUMER_INACTIVE_THRESHOLD_EXCESS(limit=format_duration(threshold_max))
    return None


def _check_against_stream(config: ConsumerConfig, stream_config: StreamConfig) -> JsError | None:
    retention = stream_config.get("retention", "limits")
    replicas = config.get("num_replicas", 0)
    if replicas > stream_config.get("num_replicas", 1):
        return errors.CONSUMER_REPLICAS_EXCEEDS_STREAM()
    if replicas and retention != "limits" and replicas != stream_config.get("num_replicas", 1):
        return errors.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM()
    deliver = config.get("deliver_subject")
    if deliver:
        for subject in stream_config.get("subjects") or ():
            if subjects.collides(subject.encode(), deliver.encode()):
                return errors.CONSUMER_DELIVER_CYCLE()
    letters = dead_letter(config)
    if letters:
        own = [subject.encode() for subject in stream_config.get("subjects") or ()]
        filters = filters_of(config) or [b">"]
        if any(subjects.matches(each, letters) for each in own) and any(
            subjects.matches(each, letters) for each in filters
        ):
            text = f"dead letters on '{letters.decode()}' would be delivered to the consumer itself"
            return errors.CONSUMER_CREATE(err=text)
    return None


def _check_update(old: ConsumerConfig, new: ConsumerConfig) -> JsError | None:
    for key, text in _FIXED:
        if (old.get(key) or None) != (new.get(key) or None):
            return errors.CONSUMER_CREATE(err=text)
    if bool(old.get("deliver_subject")) != bool(new.get("deliver_subject")):
        if old.get("deliver_subject"):
            text = "can not update push consumer to pull based"
        else:
            text = "can not update pull consumer to push based"
        return errors.CONSUMER_CREATE(err=text)
    if (old.get("max_waiting") or 0) != (new.get("max_waiting") or 0):
        return errors.CONSUMER_CREATE(err="max waiting can not be updated")
    if bool(old.get("mem_storage")) != bool(new.get("mem_storage")):
        return errors.CONSUMER_CREATE(err="storage type can not be updated")
    return None


def _check_workqueue(config: ConsumerConfig, others: list[ConsumerConfig]) -> JsError | None:
    """A work queue hands each message to one consumer only."""
    if config.get("ack_policy") == "none" and not config.get("deliver_subject"):
        return errors.CONSUMER_PULL_REQUIRES_ACK()
    if config.get("ack_policy") not in ("explicit", "flow_control"):
        return errors.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK()
    if config.get("deliver_policy", "all") != "all":
        return errors.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL()
    mine = filters_of(config)
    if others:
        if not mine:
            return errors.CONSUMER_WQ_MULTIPLE_UNFILTERED()
        tree: SubjectTree[bytes] = SubjectTree()
        for pattern in mine:
            tree.add(pattern, pattern)
        for other in others:
            if any(map(tree.overlapping, filters_of(other) or [b">"])):
                return errors.CONSUMER_WQ_CONSUMER_NOT_UNIQUE()
    return None


def check_reset(consumer: Consumer, seq: int) -> JsError | None:
    """Return why RESET_CONSUMER to `seq` must be refused, or None."""
    if seq == 0:
        return None
    policy = consumer.config.get("deliver_policy", "all")
    if policy == "by_start_sequence":
        if seq < int(consumer.config.get("opt_start_seq", 0)):
            return errors.CONSUMER_INVALID_RESET(err="below start seq")
    elif policy == "by_start_time":
        first = consumer.stream.index.locations.seq_at_time(
            parse_ns(consumer.config["opt_start_time"])
        )
        if seq < first:
            return errors.CONSUMER_INVALID_RESET(err="below start time")
    elif policy != "all":
        return errors.CONSUMER_INVALID_RESET(err="not allowed")
    return None
