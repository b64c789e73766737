"""The fields of every request of the JetStream API, with the types nats-server gives them."""

from __future__ import annotations

import json
from typing import Final

from streamd import go_json
from streamd.api.decoding import Enum, FieldType, Shape


def _quoted(text: str) -> str:
    return f"can not unmarshal {json.dumps(text, ensure_ascii=False)}"


def _compression(text: str) -> str:
    if text.startswith('"') or text == "null":
        return "unknown compression algorithm"
    kind = {"t": "bool", "f": "bool", "[": "array", "{": "object"}.get(text[0], "number")
    return go_json.misfit(kind, "Go value", "string")


def _plain(*values: str) -> dict[str, str]:
    return {value: value for value in values}


_TRANSFORM = Shape("SubjectTransformConfig", {"src": "string", "dest": "string"})

_PLACEMENT = Shape("Placement", {"cluster": "string", "tags": ["string"], "preferred": "string"})

_SOURCE = Shape(
    "StreamSource",
    {
        "name": "string",
        "opt_start_seq": "uint64",
        "opt_start_time": "time.Time",
        "filter_subject": "string",
        "subject_transforms": [_TRANSFORM],
        "external": Shape("ExternalStream", {"api": "string", "deliver": "string"}),
        "consumer": Shape("StreamConsumerSource", {"name": "string", "deliver_subject": "string"}),
    },
)

STREAM_CONFIG_FIELDS: Final[dict[str, FieldType]] = {
    "name": "string",
    "description": "string",
    "subjects": ["string"],
    "retention": Enum(_plain("limits", "interest", "workqueue"), _quoted),
    "max_consumers": "int",
    "max_msgs": "int64",
    "max_bytes": "int64",
    "max_age": "time.Duration",
    "max_msgs_per_subject": "int64",
    "max_msg_size": "int32",
    "discard": Enum(
        _plain("old", "new") | {"OLD": "old", "Old": "old", "NEW": "new", "New": "new"}, _quoted
    ),
    "storage": Enum(_plain("file", "memory"), _quoted),
    "num_replicas": "int",
    "no_ack": "bool",
    "duplicate_window": "time.Duration",
    "placement": _PLACEMENT,
    "mirror": _SOURCE,
    "sources": [_SOURCE],
    "compression": Enum(_plain("none", "s2"), _compression),
    "first_seq": "uint64",
    "subject_transform": _TRANSFORM,
    "republish": Shape("RePublish", {"src": "string", "dest": "string", "headers_only": "bool"}),
    "allow_direct": "bool",
    "mirror_direct": "bool",
    "discard_new_per_subject": "bool",
    "sealed": "bool",
    "deny_delete": "bool",
    "deny_purge": "bool",
    "allow_rollup_hdrs": "bool",
    "consumer_limits": Shape(
        "StreamConsumerLimits", {"inactive_threshold": "time.Duration", "max_ack_pending": "int"}
    ),
    "allow_msg_ttl": "bool",
    "subject_delete_marker_ttl": "time.Duration",
    "allow_msg_counter": "bool",
    "allow_atomic": "bool",
    "allow_msg_schedules": "bool",
    "allow_batched": "bool",
    "persist_mode": Enum({"": "default"} | _plain("default", "async"), _quoted),
    "metadata": {"string": "string"},
}

CONSUMER_CONFIG_FIELDS: Final[dict[str, FieldType]] = {
    "durable_name": "string",
    "name": "string",
    "description": "string",
    "deliver_policy": Enum(
        _plain("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
        | {"undefined": "all"},
        _quoted,
    ),
    "opt_start_seq": "uint64",
    "opt_start_time": "time.Time",
    "ack_policy": Enum(_plain("none", "all", "explicit", "flow_control"), _quoted),
    "ack_wait": "time.Duration",
    "max_deliver": "int",
    "backoff": ["time.Duration"],
    "filter_subject": "string",
    "filter_subjects": ["string"],
    "replay_policy": Enum(_plain("instant", "original"), _quoted),
    "rate_limit_bps": "uint64",
    "sample_freq": "string",
    "max_waiting": "int",
    "max_ack_pending": "int",
    "flow_control": "bool",
    "headers_only": "bool",
    "max_batch": "int",
    "max_expires": "time.Duration",
    "max_bytes": "int",
    "deliver_subject": "string",
    "deliver_group": "string",
    "idle_heartbeat": "time.Duration",
    "inactive_threshold": "time.Duration",
    "num_replicas": "int",
    "mem_storage": "bool",
    "direct": "bool",
    "sourcing": "bool",
    "metadata": {"string": "string"},
    "pause_until": "time.Time",
    "priority_groups": ["string"],
    "priority_policy": Enum(
        _plain("none", "overflow", "pinned_client", "prioritized"),
        lambda text: f"unknown priority policy: {text}",
    ),
    "priority_timeout": "time.Duration",
}

STREAM_CONFIG: Final = Shape("StreamConfigRequest", STREAM_CONFIG_FIELDS | {"pedantic": "bool"})

CREATE_CONSUMER: Final = Shape(
    "CreateConsumerRequest",
    {
        "stream_name": "string",
        "config": Shape("ConsumerConfig", CONSUMER_CONFIG_FIELDS),
        "action": Enum(
            _plain("", "create", "update"), lambda text: f"unknown consumer action: {text}"
        ),
        "pedantic": "bool",
    },
)

CONSUMER_CONFIG: Final = Shape("ConsumerConfig", CONSUMER_CONFIG_FIELDS)
STREAM_SNAPSHOT: Final = Shape(
    "JSApiStreamSnapshotRequest",
    {
        "deliver_subject": "string",
        "no_consumers": "bool",
        "chunk_size": "int",
        "window_size": "int",
        "jsck": "bool",
        "start_seq": "uint64",  # streamd's own: messages before it are left out
    },
)
STREAM_RESTORE: Final = Shape(
    "JSApiStreamRestoreRequest",
    {
        "config": Shape("StreamConfig", STREAM_CONFIG_FIELDS),
        "state": Shape(
            "StreamState",
            {
                "messages": "uint64",
                "bytes": "uint64",
                "first_seq": "uint64",
                "first_ts": "time.Time",
                "last_seq": "uint64",
                "last_ts": "time.Time",
                "num_subjects": "int",
                "num_deleted": "int",
                "deleted": ["uint64"],
                "lost": Shape("LostStreamData", {"msgs": ["uint64"], "bytes": "uint64"}),
                "consumer_count": "int",
            },
        ),
    },
)

_PAGE: Final = {"offset": "int"}
STREAM_NAMES: Final = Shape("JSApiStreamNamesRequest", _PAGE | {"subject": "string"})
STREAM_LIST: Final = Shape("JSApiStreamListRequest", _PAGE | {"subject": "string"})
STREAM_INFO: Final = Shape(
    "JSApiStreamInfoRequest", _PAGE | {"deleted_details": "bool", "subjects_filter": "string"}
)
STREAM_PURGE: Final = Shape(
    "JSApiStreamPurgeRequest", {"filter": "string", "seq": "uint64", "keep": "uint64"}
)
MSG_DELETE: Final = Shape("JSApiMsgDeleteRequest", {"seq": "uint64", "no_erase": "bool"})
MSG_GET: Final = Shape(
    "JSApiMsgGetRequest",
    {
        "seq": "uint64",
        "last_by_subj": "string",
        "next_by_subj": "string",
        "batch": "int",
        "max_bytes": "int",
        "start_time": "time.Time",
        "multi_last": ["string"],
        "up_to_seq": "uint64",
        "up_to_time": "time.Time",
        "no_hdr": "bool",
    },
)
CONSUMERS: Final = Shape("JSApiConsumersRequest", _PAGE)
CONSUMER_PAUSE: Final = Shape("JSApiConsumerPauseRequest", {"pause_until": "time.Time"})
CONSUMER_UNPIN: Final = Shape("JSApiConsumerUnpinRequest", {"group": "string"})
CONSUMER_RESET: Final = Shape("JSApiConsumerResetRequest", {"seq": "uint64"})
STEP_DOWN: Final = Shape("JSApiLeaderStepdownRequest", {"placement": _PLACEMENT})
PEER_REMOVE: Final = Shape("JSApiStreamRemovePeerRequest", {"peer": "string"})
SERVER_REMOVE: Final = Shape(
    "JSApiMetaServerRemoveRequest", {"peer": "string", "peer_id": "string"}
)
META_RESCUE: Final = Shape("JSApiMetaRescueRequest", {"quorum_needed": "int"})
STREAM_MOVE: Final = Shape(
    "JSApiMetaServerStreamMoveRequest",
    {"server": "string", "cluster": "string", "domain": "string", "tags": ["string"]},
)
