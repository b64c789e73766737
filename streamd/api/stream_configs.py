"""Stream configurations: defaults, the checks that need no state, and how they are shown.

`normalise` turns what a client sent into the form that is proposed and stored: every field
present, every default applied. `check_update` says what an update may not change. Order and words
of the refusals are nats-server's.
"""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

from streamd import errors, limits, subject_mapping, subjects
from streamd.api import origin_checks, shapes
from streamd.durations import format_duration
from streamd.errors import JsError
from streamd.machine import extension_settings
from streamd.machine.asset_configs import ConsumerLimits, Republish, StreamConfig
from streamd.subject_tree import SubjectTree
from streamd.types import ACCOUNT

Config = StreamConfig

_DEFAULTS: Final[Config] = {
    "name": "",
    "description": "",
    "subjects": [],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "no_ack": False,
    "duplicate_window": 0,
    "placement": None,
    "mirror": None,
    "sources": [],
    "compression": "none",
    "first_seq": 0,
    "subject_transform": None,
    "republish": None,
    "allow_direct": False,
    "mirror_direct": False,
    "discard_new_per_subject": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "subject_delete_marker_ttl": 0,
    "allow_msg_counter": False,
    "allow_atomic": False,
    "allow_msg_schedules": False,
    "allow_batched": False,
    "persist_mode": "default",
    "metadata": {},
}
assert list(_DEFAULTS) == list(shapes.STREAM_CONFIG_FIELDS)  # one order, one set of fields

_SHOWN_ONLY_IF_SET: Final = frozenset(
    (
        "description",
        "subjects",
        "no_ack",
        "duplicate_window",
        "placement",
        "mirror",
        "sources",
        "first_seq",
        "subject_transform",
        "republish",
        "discard_new_per_subject",
        "subject_delete_marker_ttl",
        "allow_msg_counter",
        "allow_atomic",
        "allow_msg_schedules",
        "allow_batched",
    )
)

_Number = Literal[
    "max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers"
]  # fmt: skip
_NUMBERS: Final[tuple[_Number, ...]] = get_args(_Number)
"""Limits in the order in which a pedantic request is refused; below 1 there is none."""

_NAME_REFUSAL: Final = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
DYNAMIC_METADATA: Final = ("_nats.ver", "_nats.level")
REQUIRED_LEVEL: Final = "_nats.req.level"


def _no_stream(name: str) -> Config | None:
    return None


def normalise(
    given: Config,
    *,
    duplicate_window_max_ns: int = 0,
    is_pedantic: bool = False,
    find: origin_checks.Find = _no_stream,
) -> Config:
    """Return the full config for what a client sent; raises JsError if it makes no sense.

    Pedantic: refuse where a value would be replaced silently. `find`: the configurations of other
    streams of the account, for mirrors and sources.
    """
    _check_names(given)
    filled = {field: given.get(field, default) for field, default in _DEFAULTS.items()}
    config = cast(StreamConfig, filled)
    config["subjects"] = list(config["subjects"])
    if config["mirror"] is not None:
        config["mirror"] = origin_checks.tidied(config["mirror"])
    config["sources"] = [origin_checks.tidied(each or {}) for each in config["sources"]]
    _apply_number_defaults(config, is_pedantic)
    _apply_window(config, duplicate_window_max_ns, is_pedantic)
    _check_policies(config)
    _check_counter(config)  # markers switch message TTLs on, which it may not ask for itself
    origin_checks.check_mirror(config, find, is_pedantic=is_pedantic)
    _check_markers(config, is_pedantic)
    _check_features(config, is_pedantic)
    origin_checks.check_sources(config, find)
    if config["mirror"] or config["sources"]:
        origin_checks.check_cycle(config, find)
    if not config["subjects"] and not config["mirror"] and not config["sources"]:
        config["subjects"] = [config["name"]]
    _check_subjects(config)
    origin_checks.check_filters(config)
    _check_republish(config, is_pedantic)
    _check_transform(config)
    bounds = {key: value for key, value in config["consumer_limits"].items() if value}
    config["consumer_limits"] = cast(ConsumerLimits, bounds)
    mistake = extension_settings.stream_mistake(config)
    if mistake:
        raise _invalid(mistake)
    config["metadata"] = static_metadata(config["metadata"], required_level(config))
    return config


def owned(config: Config, account: str) -> Config:
    """Return `config` as that of a stream of `account`. The key stays away for `$G`: what was
    written before there were accounts is the same as what is written now."""
    return config if account == ACCOUNT else {**config, "account": account}


def restored(config: Config, *, is_whole: bool) -> Config:
    """Return `config` as that of a stream into which an archive is being read, or was."""
    kept = cast(Config, {key: value for key, value in config.items() if key != "restoring"})
    return kept if is_whole else {**kept, "restoring": True}


def check_create(given: Config) -> None:
    """Refuse what may be set later but not at creation: before all else that may be wrong with it,
    as nats-server does."""
    if given.get("sealed"):
        raise _invalid("stream configuration for create can not be sealed")
    if given.get("mirror_direct") and given.get("mirror") is None:
        raise _invalid("stream has no mirror but does have mirror direct")


def check_update(old: Config, new: Config) -> Config:
    """Return the config that `new` makes of a stream that has `old`; raises JsError if it may not.

    What depends on messages or consumers is checked when the command is applied.
    """
    if (old["mirror"] or None) != (new["mirror"] or None) and new["mirror"]:
        raise errors.STREAM_MIRROR_NOT_UPDATABLE()
    if old["storage"] != new["storage"]:
        raise _invalid("stream configuration update can not change storage type")
    if old["retention"] != new["retention"] and "workqueue" in (old["retention"], new["retention"]):
        raise _invalid(
            "stream configuration update can not change retention policy to/from workqueue"
        )
    if old["sealed"] and not new["sealed"]:
        raise _invalid("stream configuration update can not unseal a sealed stream")
    if old["deny_delete"] and not new["deny_delete"]:
        raise _invalid("stream configuration update can not cancel deny message deletes")
    if old["deny_purge"] and not new["deny_purge"]:
        raise _invalid("stream configuration update can not cancel deny purge")
    if old["allow_msg_counter"] != new["allow_msg_counter"]:
        raise _invalid("stream configuration update can not change message counter setting")
    if old["allow_msg_ttl"] and not new["allow_msg_ttl"]:
        raise _invalid("message TTL status can not be disabled")
    if old["allow_msg_schedules"] and not new["allow_msg_schedules"]:
        raise _invalid("message schedules can not be disabled")
    if old["persist_mode"] != new["persist_mode"]:
        raise _invalid("stream configuration update can not change persist mode")
    if new["sealed"] and not old["sealed"]:
        new = new.copy()
        new["max_age"] = 0
        new["discard"] = "new"
        new["deny_delete"] = new["deny_purge"] = True
        new["allow_rollup_hdrs"] = False
    return new


def shown(config: Config) -> Config:
    """Return `config` as it is shown to clients: optional fields only if they are set."""
    fields = {
        field: config.get(field, default)
        for field, default in _DEFAULTS.items()
        if (field not in _SHOWN_ONLY_IF_SET or config.get(field))
        and (field != "persist_mode" or config.get(field, default) != "default")
        and (field != "metadata" or config.get(field))
    }
    return cast(StreamConfig, fields)


def required_level(config: Config) -> int:
    """Return the lowest API level that knows all features this config uses."""
    if config["allow_batched"]:
        return 4
    if (
        config["allow_msg_counter"]
        or config["allow_atomic"]
        or config["allow_msg_schedules"]
        or config["persist_mode"] == "async"
    ):
        return 2
    if config["allow_msg_ttl"] or config["subject_delete_marker_ttl"]:
        return 1
    return 0


def static_metadata(metadata: dict[str, str], level: int) -> dict[str, str]:
    """Return the metadata to store: without the server's dynamic keys, with the level needed."""
    kept = {key: value for key, value in metadata.items() if key not in DYNAMIC_METADATA}
    kept[REQUIRED_LEVEL] = str(level)
    return dict(sorted(kept.items()))


def is_valid_name(name: str) -> bool:
    """True if `name` may name a stream or consumer. Length is another matter."""
    return bool(name) and not any(
        character in ".*>\\/" or character.isspace() or character < " " or character == "\x7f"
        for character in name
    )


def _invalid(text: str) -> JsError:
    return errors.STREAM_INVALID_CONFIG(err=text)


# --- checks, in the order in which nats-server makes them ---------------------------------------


def _check_names(given: Config) -> None:
    name = given.get("name", "")
    if not is_valid_name(name):
        raise _invalid(_NAME_REFUSAL)
    if len(name.encode()) > limits.ASSET_NAME_BYTES_MAX:
        raise _invalid(f"stream name is too long, maximum allowed is {limits.ASSET_NAME_BYTES_MAX}")
    if len(given.get("description", "").encode()) > limits.DESCRIPTION_BYTES_MAX:
        raise _invalid(
            f"stream description is too long, maximum allowed is {limits.DESCRIPTION_BYTES_MAX}"
        )
    if metadata_bytes(given.get("metadata", {})) > limits.METADATA_BYTES_MAX:
        raise _invalid(f"stream metadata exceeds maximum size of {limits.METADATA_BYTES_MAX} bytes")


def metadata_bytes(metadata: dict[str, str]) -> int:
    """Return what `metadata` counts for against its limit."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())


def _apply_number_defaults(config: Config, is_pedantic: bool) -> None:
    if config["num_replicas"] == 0:
        config["num_replicas"] = 1
    if config["num_replicas"] > limits.REPLICAS_MAX:
        raise _invalid(f"maximum replicas is {limits.REPLICAS_MAX}")
    if config["num_replicas"] < 0:
        raise errors.REPLICAS_COUNT_CANNOT_BE_NEGATIVE()
    for field in _NUMBERS:
        if config[field] < -1 and is_pedantic:
            raise errors.PEDANTIC(err=f"{field} must be set to -1")
        if config[field] == 0 or config[field] < -1:
            config[field] = -1


def _apply_window(config: Config, window_max_ns: int, is_pedantic: bool) -> None:
    age, window = config["max_age"], config["duplicate_window"]
    if age < 0:
        raise _invalid("max age can not be negative")
    if 0 < age < limits.SHORT_DURATION_NS_MIN:
        raise _invalid("max age needs to be >= 100ms")
    if window == 0 and not config["mirror"] and not config["sources"]:
        window = limits.DUPLICATE_WINDOW_NS
        if 0 < window_max_ns < window:
            if is_pedantic:
                text = "duplicate window limits are higher than current limits"
                raise errors.PEDANTIC(err=text)
            window = window_max_ns
        if 0 < age < window:
            if is_pedantic:
                raise errors.PEDANTIC(err="duplicate window cannot be bigger than max age")
            window = age
        config["duplicate_window"] = window
    if window < 0:
        raise _invalid("duplicates window can not be negative")
    if age and window > age:
        raise _invalid("duplicates window can not be larger then max age")
    if 0 < window_max_ns < window:
        limit = format_duration(window_max_ns)
        raise _invalid(f"duplicates window can not be larger then server limit of {limit}")
    if 0 < window < limits.SHORT_DURATION_NS_MIN:
        raise _invalid("duplicates window needs to be >= 100ms")


def _check_policies(config: Config) -> None:
    if config["deny_purge"] and config["allow_rollup_hdrs"]:
        raise _invalid("roll-ups require the purge permission")
    if config["discard_new_per_subject"]:
        if config["discard"] != "new":
            raise _invalid("discard new per subject requires discard new policy to be set")
        if config["max_msgs_per_subject"] <= 0:
            raise _invalid("discard new per subject requires max msgs per subject > 0")
    if (config["placement"] or {}).get("preferred"):
        raise _invalid("preferred server not permitted in placement")
    if not any((config["placement"] or {}).values()):
        config["placement"] = None


def _check_markers(config: Config, is_pedantic: bool) -> None:
    ttl = config["subject_delete_marker_ttl"]
    if ttl < 0:
        raise _invalid("subject delete marker TTL must not be negative")
    if ttl == 0:
        return
    if ttl < limits.MARKER_TTL_NS_MIN:
        raise _invalid("subject delete marker TTL must be at least 1 second")
    if is_pedantic and not config["allow_msg_ttl"]:
        raise _invalid("subject delete marker cannot be set if message TTLs are disabled")
    if is_pedantic and not config["allow_rollup_hdrs"]:
        raise _invalid("subject delete marker cannot be set if roll-ups are disabled")
    config["allow_msg_ttl"] = True
    config["allow_rollup_hdrs"] = True
    config["deny_purge"] = False  # markers purge what they stand for


def _check_counter(config: Config) -> None:
    if config["allow_msg_counter"]:
        if config["discard"] == "new":
            raise _invalid("counter stream cannot use discard new")
        if config["allow_msg_ttl"]:
            raise _invalid("counter stream cannot use message TTLs")
        if config["allow_msg_schedules"]:
            raise _invalid("counter stream cannot use message schedules")
        if config["retention"] != "limits":
            raise _invalid("counter stream can only use limits retention")


def _check_features(config: Config, is_pedantic: bool) -> None:
    if config["allow_msg_schedules"]:
        if config["discard"] == "new":
            raise _invalid("message scheduling cannot use discard new")
        if is_pedantic and not config["allow_rollup_hdrs"]:
            raise _invalid("message scheduling cannot be set if roll-ups are disabled")
        config["allow_rollup_hdrs"] = True
        config["deny_purge"] = False
    if config["persist_mode"] == "async":
        if config["storage"] != "file":
            raise _invalid("async persist mode is only supported on file storage")
        if config["num_replicas"] > 1:
            raise _invalid("async persist mode is not supported on replicated streams")
        if config["allow_atomic"]:
            raise _invalid("async persist mode is not supported with atomic batch publish")


def _check_subjects(config: Config) -> None:
    seen: SubjectTree[int] = SubjectTree()  # there may be thousands: not each with each
    own = [subject.encode() for subject in config["subjects"]]
    for position, subject in enumerate(own):
        if not subjects.is_valid(subject):
            raise _invalid("invalid subject")
        if not config["no_ack"]:
            _check_reserved(subject)
        if subject == b">" and config["num_replicas"] > 1:
            raise _invalid("capturing all subjects requires replicas of 1")
        overlapped = seen.overlapping(subject)
        if overlapped:
            earlier = own[min(overlapped)]
            raise _invalid(f'subject "{earlier.decode()}" overlaps with "{subject.decode()}"')
        seen.add(subject, position)


def _check_reserved(subject: bytes) -> None:
    """Acks of a stream that captures replies or API traffic would feed it for ever."""
    if subject == b">":
        raise _invalid("capturing all subjects requires no-ack to be true")
    for space in (b"$JS.>", b"$JSC.>", b"$NRG.>"):
        if subjects.collides(subject, space):
            if not subjects.is_subset(subject, b"$JS.EVENT.>"):
                raise _invalid("subjects that overlap with jetstream api require no-ack to be true")
    if subjects.collides(subject, b"$SYS.>"):
        if not subjects.is_subset(subject, b"$SYS.ACCOUNT.>"):
            raise _invalid("subjects that overlap with system api require no-ack to be true")


def _check_republish(config: Config, is_pedantic: bool) -> None:
    republish = config["republish"]
    if republish is None:
        return
    if is_pedantic and not republish.get("src"):
        raise errors.PEDANTIC(err="republish source can not be empty")
    source = republish.get("src") or ">"
    destination = republish.get("dest", "")
    transform = config["subject_transform"]
    if source == destination == ">" and transform is not None:
        if config["subjects"] == [transform.get("src")]:
            if is_pedantic:
                raise errors.PEDANTIC(err="implicit republish based on subject transform")
            source = destination = transform.get("dest", "")  # no cycle: elsewhere than all else
    full: Republish = {"src": source, "dest": destination}
    if republish.get("headers_only"):
        full["headers_only"] = True
    config["republish"] = full
    if destination:
        for subject in config["subjects"]:
            if subjects.collides(destination.encode(), subject.encode()):
                raise _invalid("stream configuration for republish destination forms a cycle")
    if transform_refusal(source, destination):
        raise _invalid(
            f"stream configuration for republish with transform from '{source}' to "
            f"'{destination}' not valid"
        )


def transform_refusal(source: str, destination: str) -> str:
    """Return why subjects of `source` can't be transformed to `destination`, in nats-server's
    words; "": they can. An empty source stands for all subjects."""
    try:
        subject_mapping.check(source.encode() or b">", destination.encode())
    except subject_mapping.SubjectMappingError as err:
        return str(err)
    return ""


def _check_transform(config: Config) -> None:
    transform = config["subject_transform"]
    if transform is None:
        return
    source, destination = transform.get("src", ""), transform.get("dest", "")
    if source and not subjects.is_valid(source.encode()):
        raise errors.STREAM_TRANSFORM_INVALID_SOURCE(err=f"invalid subject {source}")
    refusal = transform_refusal(source, destination)
    if refusal:
        raise errors.STREAM_TRANSFORM_INVALID_DESTINATION(err=refusal)
