"""Consumer configurations: defaults, the checks that need no consumer state, how they are shown.

`normalise` gives the form that is proposed and stored: every default applied; optional fields that
are not set stay absent, so that equal configs are equal dicts. Order and words of the refusals are
nats-server's.
"""

from __future__ import annotations

import re
import secrets
import string
from typing import Final, Literal, cast

from streamd import errors, limits, subjects
from streamd.api import times
from streamd.api.shapes import CONSUMER_CONFIG_FIELDS
from streamd.api.stream_configs import is_valid_name, metadata_bytes, static_metadata
from streamd.errors import JsError
from streamd.machine import extension_settings
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.subject_tree import SubjectTree
from streamd.types import AssetLimits

Config = ConsumerConfig

_ALWAYS_SHOWN: Final[Config] = {
    "deliver_policy": "all",
    "ack_policy": "none",
    "replay_policy": "instant",
    "max_deliver": -1,
    "num_replicas": 0,
}
_Bounded = Literal[
    "max_deliver", "max_waiting", "max_ack_pending", "max_batch", "max_expires", "max_bytes",
    "idle_heartbeat", "inactive_threshold", "priority_timeout",
]  # fmt: skip
_FLOORS: Final[tuple[tuple[_Bounded, int], ...]] = (
    ("max_deliver", -1),
    ("max_waiting", 0),
    ("max_ack_pending", -1),
    ("max_batch", 0),
    ("max_expires", 0),
    ("max_bytes", 0),
    ("idle_heartbeat", 0),
    ("inactive_threshold", 0),
    ("priority_timeout", 0),
)
_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_NO_LIMITS: Final = AssetLimits()
_GROUP_NAME = re.compile(rf"[a-zA-Z0-9/_=-]{{1,{limits.PRIORITY_GROUP_NAME_MAX}}}")
_LIMIT_NOT_GIVEN: Final = "{} must be set if it's configured in stream limits"
_ACK_HEARTBEAT_NS: Final = 1_000_000_000
"""Heartbeat of consumers whose messages are acked by flow control: acks come with the next one."""
_NAME_REFUSAL: Final = "consumer name can not contain '.', '*', '>', '\\', '/'"


def new_name() -> str:
    """Return a name for a consumer that was given none."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(8))


def normalise(
    given: Config,
    stream: StreamConfig,
    *,
    allowed: AssetLimits = _NO_LIMITS,
    is_pedantic: bool = False,
    existing: Config | None = None,
) -> Config:
    """Return the config of a consumer of a stream that has config `stream`: of a new one, or for
    one that has config `existing`.

    The name must have been settled already. Raises JsError if the config makes no sense.
    """
    filled = {
        field: given.get(field, _ALWAYS_SHOWN.get(field))
        for field in CONSUMER_CONFIG_FIELDS
        if field in given or field in _ALWAYS_SHOWN
    }
    config = cast(ConsumerConfig, filled)
    _apply_defaults(config, stream, allowed, is_pedantic, existing)
    _check_replicas(config, stream)
    _check_flow_control_acks(config)
    _check_texts(config)
    if config.get("deliver_subject"):
        _check_push(config, stream)
    else:
        _check_pull(config, allowed)
        if stream["retention"] == "workqueue" and config["ack_policy"] == "none":
            raise errors.CONSUMER_PULL_REQUIRES_ACK()
    if 0 < allowed.ack_pending_max < config["max_ack_pending"]:
        raise errors.CONSUMER_MAX_PENDING_ACK_EXCESS(limit=allowed.ack_pending_max)
    if config.get("direct") and config.get("durable_name"):
        raise errors.CONSUMER_DIRECT_REQUIRES_EPHEMERAL()
    _check_filters(config)
    _check_start(config)
    _check_sampling_and_metadata(config)
    _check_priority(config)
    mistake = extension_settings.consumer_mistake(config)
    if mistake:
        raise errors.CONSUMER_CREATE(err=mistake)
    metadata = static_metadata(config.get("metadata", {}), required_level(config))
    config["metadata"] = metadata
    return shown(config)


def shown(config: Config) -> Config:
    """Return `config` as it is shown to clients."""
    fields = {
        field: config.get(field)
        for field in CONSUMER_CONFIG_FIELDS
        if field in config and (field in _ALWAYS_SHOWN or config.get(field))
    }
    return cast(ConsumerConfig, fields)


def required_level(config: Config) -> int:
    """Return the lowest API level that knows all features this config uses."""
    if config.get("ack_policy") == "flow_control":
        return 4
    if config.get("priority_policy", "none") != "none" or config.get("priority_groups"):
        return 1
    pause_until = config.get("pause_until")
    return 1 if pause_until and pause_until != times.ZERO_TIME else 0


def check_group_name(group: str) -> None:
    """Raise the API's error if `group` cannot be the name of a priority group."""
    if not _GROUP_NAME.fullmatch(group):
        raise errors.CONSUMER_INVALID_GROUP_NAME()


def check_name(name: str) -> None:
    """Refuse what cannot name a consumer."""
    if any(character in name for character in "\\/"):
        raise errors.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS()
    if not is_valid_name(name):
        raise errors.STREAM_INVALID_CONFIG(err=_NAME_REFUSAL)
    if len(name.encode()) > limits.ASSET_NAME_BYTES_MAX:
        raise errors.CONSUMER_NAME_TOO_LONG(max=limits.ASSET_NAME_BYTES_MAX)


# --- defaults -----------------------------------------------------------------------------------


def _apply_defaults(
    config: Config,
    stream: StreamConfig,
    allowed: AssetLimits,
    is_pedantic: bool,
    existing: Config | None,
) -> None:
    is_push = bool(config.get("deliver_subject"))
    has_acks = config["ack_policy"] in ("explicit", "all")
    _apply_floors(config, is_pedantic)
    if not is_push and not config.get("max_waiting"):
        config["max_waiting"] = limits.MAX_WAITING
    if has_acks and not config.get("ack_wait"):
        config["ack_wait"] = limits.ACK_WAIT_NS
    backoff = config.get("backoff")
    if backoff:
        if is_pedantic and config.get("ack_wait") != backoff[0]:
            raise errors.PEDANTIC(err="first backoff value has to equal batch AckWait")
        config["ack_wait"] = backoff[0]
    _apply_ack_pending(config, stream, allowed, is_pedantic)
    stream_limits = stream.get("consumer_limits") or {}
    if not config.get("inactive_threshold"):
        if stream_limits.get("inactive_threshold", 0) > 0:
            if is_pedantic:
                raise errors.PEDANTIC(err=_LIMIT_NOT_GIVEN.format("inactive_threshold"))
            config["inactive_threshold"] = stream_limits["inactive_threshold"]
        elif not config.get("durable_name") and not _stays_unused(existing):
            config["inactive_threshold"] = limits.EPHEMERAL_INACTIVE_NS
    if config.get("priority_policy") == "none":
        del config["priority_policy"]
    if config.get("priority_policy") == "pinned_client" and config.get("priority_timeout", 0) <= 0:
        config["priority_timeout"] = limits.PRIORITY_TIMEOUT_NS
    if not is_push and not config.get("max_batch") and allowed.request_batch_max:
        if is_pedantic:
            text = "max_request_batch must be set if it's JetStream limits are set"
            raise errors.PEDANTIC(err=text)
        config["max_batch"] = allowed.request_batch_max
    if config["ack_policy"] == "flow_control" and is_push and not is_pedantic:
        config["flow_control"] = True
        config["idle_heartbeat"] = _ACK_HEARTBEAT_NS


def _apply_floors(config: Config, is_pedantic: bool) -> None:
    """Put what is below the least value there: -1, which is no limit, or 0, which is not given."""
    for field, least in _FLOORS:
        given = config.get(field, 0)
        if given < least:
            if is_pedantic:
                must = "must not be negative" if least == 0 else "must be set to -1"
                raise errors.PEDANTIC(err=f"{field} {must}")
            config[field] = least
    if config["max_deliver"] == 0:
        config["max_deliver"] = -1


def _stays_unused(existing: Config | None) -> bool:
    """True of a consumer that is durable, or was made so. A request that changes it may name it
    without calling it durable; it would be gone a few seconds after its last reader."""
    return existing is not None and bool(
        existing.get("durable_name") or not existing.get("inactive_threshold")
    )


def _apply_ack_pending(
    config: Config, stream: StreamConfig, allowed: AssetLimits, is_pedantic: bool
) -> None:
    wanted = config.get("max_ack_pending", 0)
    if wanted == 0:
        stream_limit = (stream.get("consumer_limits") or {}).get("max_ack_pending", 0)
        if stream_limit > 0 and is_pedantic:
            raise errors.PEDANTIC(err=_LIMIT_NOT_GIVEN.format("max_ack_pending"))
        if stream_limit:
            wanted = max(-1, stream_limit)  # -1: without limit
        elif config["ack_policy"] != "none":
            wanted = min(limits.MAX_ACK_PENDING, allowed.ack_pending_max or limits.MAX_ACK_PENDING)
    config["max_ack_pending"] = wanted


# --- checks, in the order in which nats-server makes them ---------------------------------------


def _check_replicas(config: Config, stream: StreamConfig) -> None:
    replicas = config["num_replicas"]
    if replicas < 0:
        raise errors.REPLICAS_COUNT_CANNOT_BE_NEGATIVE()
    if replicas > 1 and stream["num_replicas"] == 1:
        raise errors.STREAM_REPLICAS_NOT_SUPPORTED()
    if replicas > stream["num_replicas"]:
        raise errors.CONSUMER_REPLICAS_EXCEEDS_STREAM()
    if replicas and stream["retention"] != "limits" and replicas != stream["num_replicas"]:
        raise errors.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM()


def _check_texts(config: Config) -> None:
    backoff = config.get("backoff")
    if backoff and min(backoff) < 0:
        raise errors.CONSUMER_BACK_OFF_NEGATIVE()
    if config.get("ack_wait", 0) < 0:
        raise errors.CONSUMER_ACK_WAIT_NEGATIVE()
    if backoff and config["max_deliver"] != -1 and len(backoff) > config["max_deliver"]:
        raise errors.CONSUMER_MAX_DELIVER_BACKOFF()
    if len(config.get("description", "").encode()) > limits.DESCRIPTION_BYTES_MAX:
        raise errors.CONSUMER_DESCRIPTION_TOO_LONG(max=limits.DESCRIPTION_BYTES_MAX)


def _check_push(config: Config, stream: StreamConfig) -> None:
    deliver = config["deliver_subject"].encode()
    if not subjects.is_literal(deliver):
        raise errors.CONSUMER_DELIVER_TO_WILDCARDS()
    if not subjects.is_valid(deliver):
        raise errors.CONSUMER_INVALID_DELIVER_SUBJECT()
    if any(subjects.matches(own.encode(), deliver) for own in stream["subjects"]):
        raise errors.CONSUMER_DELIVER_CYCLE()
    if config.get("max_waiting"):
        raise errors.CONSUMER_PUSH_MAX_WAITING()
    if config["max_ack_pending"] > 0 and config["ack_policy"] == "none":
        raise errors.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED()
    heartbeat = config.get("idle_heartbeat", 0)
    if 0 < heartbeat < limits.SHORT_DURATION_NS_MIN:
        raise errors.CONSUMER_SMALL_HEARTBEAT()
    if config.get("flow_control") and not heartbeat:
        raise errors.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS()


def _check_pull(config: Config, allowed: AssetLimits) -> None:
    if config.get("rate_limit_bps"):
        raise errors.CONSUMER_PULL_WITH_RATE_LIMIT()
    if config.get("idle_heartbeat"):
        raise errors.CONSUMER_HB_REQUIRES_PUSH()
    if config.get("flow_control"):
        raise errors.CONSUMER_FC_REQUIRES_PUSH()
    if 0 < config.get("max_expires", 0) < limits.REQUEST_EXPIRES_NS_MIN:
        raise errors.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL()
    if 0 < allowed.request_batch_max < config.get("max_batch", 0):
        raise errors.CONSUMER_MAX_REQUEST_BATCH_EXCEEDED(limit=allowed.request_batch_max)
    if config.get("direct"):
        raise errors.CONSUMER_DIRECT_REQUIRES_PUSH()


def _check_flow_control_acks(config: Config) -> None:
    if config["ack_policy"] != "flow_control":
        return
    if not config.get("deliver_subject"):
        raise errors.CONSUMER_ACK_FC_REQUIRES_PUSH()
    if not config.get("flow_control"):
        raise errors.CONSUMER_ACK_FC_REQUIRES_FC()
    if config.get("idle_heartbeat") != _ACK_HEARTBEAT_NS:
        text = "flow control ack policy heartbeat needs to be 1s"
        raise errors.STREAM_INVALID_CONFIG(err=text)
    if config["max_ack_pending"] <= 0:
        raise errors.CONSUMER_ACK_FC_REQUIRES_MAX_ACK_PENDING()
    if config.get("ack_wait") or config.get("backoff"):
        raise errors.CONSUMER_ACK_FC_REQUIRES_NO_ACK_WAIT()
    if config["max_deliver"] != -1:
        raise errors.CONSUMER_ACK_FC_REQUIRES_NO_MAX_DELIVER()


def _check_filters(config: Config) -> None:
    single, many = config.get("filter_subject", ""), config.get("filter_subjects") or []
    if single and many:
        raise errors.CONSUMER_DUPLICATE_FILTER_SUBJECTS()
    if single and not subjects.is_valid(single.encode()):
        raise errors.STREAM_INVALID_CONFIG(err="invalid subject")
    if "" in many:
        raise errors.CONSUMER_EMPTY_FILTER()
    patterns = [text.encode() for text in many]
    tree: SubjectTree[None] = SubjectTree()  # there may be thousands: not each with each
    for pattern in patterns:
        tree.add(pattern, None)
    for pattern in patterns:
        if not subjects.is_valid(pattern):
            raise errors.STREAM_INVALID_CONFIG(err="invalid subject")
        if len(tree.covering(pattern)) > 1:
            raise errors.CONSUMER_OVERLAPPING_SUBJECT_FILTERS()


def _check_start(config: Config) -> None:
    policy = config["deliver_policy"]
    words = policy.replace("_", " ")
    has_seq, has_time = bool(config.get("opt_start_seq")), bool(config.get("opt_start_time"))

    def refusal(what: str, state: str) -> JsError:
        return errors.CONSUMER_INVALID_POLICY(
            err=f"consumer delivery policy is deliver {words}, but optional {what} is {state} set"
        )

    if policy == "by_start_sequence":
        if not has_seq:
            raise refusal("start sequence", "not")
        if has_time:
            raise refusal("start time", "also")
    elif policy == "by_start_time":
        if not has_time:
            raise refusal("start time", "not")
        if has_seq:
            raise refusal("start start sequence", "also")  # as nats-server has it
    else:
        if has_seq:
            raise refusal("start sequence", "also")
        if has_time:
            raise refusal("start time", "also")
        if policy == "last_per_subject":
            if not config.get("filter_subject") and not config.get("filter_subjects"):
                raise refusal("filter subject", "not")


def _check_priority(config: Config) -> None:
    policy, groups = config.get("priority_policy", "none"), config.get("priority_groups") or []
    if policy == "none":
        if groups:
            raise errors.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE()
        if config.get("priority_timeout"):
            raise errors.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE()
        return
    if config.get("deliver_subject"):
        raise errors.CONSUMER_PUSH_WITH_PRIORITY_GROUP()
    if not groups:
        raise errors.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP()
    for group in groups:
        if not group:
            raise errors.CONSUMER_EMPTY_GROUP_NAME()
        check_group_name(group)


def _check_sampling_and_metadata(config: Config) -> None:
    sampling = config.get("sample_freq", "")
    if sampling:
        digits = sampling.removesuffix("%")
        if not re.fullmatch(r"[+-]?\d+", digits, re.ASCII):
            raise errors.CONSUMER_INVALID_SAMPLING(
                err=f'strconv.Atoi: parsing "{digits}": invalid syntax'
            )
        if len(digits.lstrip("+-0")) > 18:
            raise errors.CONSUMER_INVALID_SAMPLING(
                err=f'strconv.Atoi: parsing "{digits}": value out of range'
            )
        if digits.startswith("-") and digits.strip("-0"):
            raise errors.CONSUMER_INVALID_SAMPLING(err="<nil>")
    if metadata_bytes(config.get("metadata", {})) > limits.METADATA_BYTES_MAX:
        kilobytes = limits.METADATA_BYTES_MAX // 1024
        raise errors.CONSUMER_METADATA_LENGTH(limit=f"{kilobytes}KB")
