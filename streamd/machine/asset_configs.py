"""`StreamConfig` and `ConsumerConfig`: the configurations of streams and consumers, typed.

Both are the decoded JSON document of the API, with the API's field names, from the moment a
request was decoded and checked (`api/stream_configs.py`, `api/consumer_configs.py`) through the
log entry that carries it to `apply`, the snapshot and the answers. A document stays the same
mapping all the way, because its bytes are part of the log, of snapshots and of answers; its type
says which keys there are (docs/adr/0040). Values are as the API has them: durations in ns, times
as RFC 3339 text, -1 or 0 for no limit.

A stream's document has all fields, a consumer's only those that were given or have a default.
"""

from __future__ import annotations

from typing import Literal, TypedDict

Retention = Literal["limits", "interest", "workqueue"]
Storage = Literal["file", "memory"]
Metadata = dict[str, str]


class Placement(TypedDict, total=False):
    """Servers on which replicas of a stream may live."""

    cluster: str
    tags: list[str]
    preferred: str


class SubjectTransform(TypedDict, total=False):
    """Subjects that match `src` become `dest`."""

    src: str
    dest: str


class Republish(TypedDict, total=False):
    """Stored messages that match `src` are published again as `dest`."""

    src: str
    dest: str
    headers_only: bool


class ExternalStream(TypedDict, total=False):
    """Subjects by which a stream of another domain or account is reached."""

    api: str
    deliver: str


class SourceConsumer(TypedDict, total=False):
    """The consumer that a source or mirror uses at its origin."""

    name: str
    deliver_subject: str


class StreamSource(TypedDict, total=False):
    """A mirror's origin, or one of a stream's sources."""

    name: str
    opt_start_seq: int
    opt_start_time: str
    filter_subject: str
    subject_transforms: list[SubjectTransform]
    external: ExternalStream
    consumer: SourceConsumer


class ConsumerLimits(TypedDict, total=False):
    """Bounds for the consumers of a stream."""

    inactive_threshold: int
    max_ack_pending: int


class StreamConfig(TypedDict, total=False):
    """The configuration of a stream."""

    name: str
    description: str
    subjects: list[str]
    retention: Retention
    max_consumers: int
    max_msgs: int
    max_bytes: int
    max_age: int
    max_msgs_per_subject: int
    max_msg_size: int
    discard: Literal["old", "new"]
    storage: Storage
    num_replicas: int
    no_ack: bool
    duplicate_window: int
    placement: Placement | None
    mirror: StreamSource | None
    sources: list[StreamSource]
    compression: Literal["none", "s2"]
    first_seq: int
    subject_transform: SubjectTransform | None
    republish: Republish | None
    allow_direct: bool
    mirror_direct: bool
    discard_new_per_subject: bool
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    allow_rollup_hdrs: bool
    consumer_limits: ConsumerLimits
    allow_msg_ttl: bool
    subject_delete_marker_ttl: int
    allow_msg_counter: bool
    allow_atomic: bool
    allow_msg_schedules: bool
    allow_batched: bool
    persist_mode: Literal["default", "async"]
    metadata: Metadata
    account: str  # to which the stream belongs; absent: `$G`. Never shown, never asked for
    restoring: bool  # an archive is being read into it; absent: no. Never shown, never asked for
    pedantic: bool  # of a request only: never stored


class ConsumerConfig(TypedDict, total=False):
    """The configuration of a consumer."""

    durable_name: str
    name: str
    description: str
    deliver_policy: Literal[
        "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
    ]
    opt_start_seq: int
    opt_start_time: str
    ack_policy: Literal["none", "all", "explicit", "flow_control"]
    ack_wait: int
    max_deliver: int
    backoff: list[int]
    filter_subject: str
    filter_subjects: list[str]
    replay_policy: Literal["instant", "original"]
    rate_limit_bps: int
    sample_freq: str
    max_waiting: int
    max_ack_pending: int
    flow_control: bool
    headers_only: bool
    max_batch: int
    max_expires: int
    max_bytes: int
    deliver_subject: str
    deliver_group: str
    idle_heartbeat: int
    inactive_threshold: int
    num_replicas: int
    mem_storage: bool
    direct: bool
    sourcing: bool
    metadata: Metadata
    pause_until: str
    priority_groups: list[str]
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"]
    priority_timeout: int


class CreateConsumer(TypedDict, total=False):
    """A CONSUMER.CREATE request."""

    stream_name: str
    config: ConsumerConfig
    action: Literal["", "create", "update"]
    pedantic: bool
