"""Checks of mirrors and sources in a stream's configuration, in nats-server's order and words.

What depends on the streams that are copied is checked against those of the account that are known
here; others, and those of other accounts and domains, are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from streamd import errors, subjects
from streamd.errors import JsError, JsErrorKind
from streamd.machine.asset_configs import ExternalStream, StreamConfig, StreamSource
from streamd.machine.streams.origins import index_name
from streamd.subject_mapping import SubjectMappingError, check

Find = Callable[[str], StreamConfig | None]
"""Returns the configuration of a stream of the account."""

_API: Final = "$JS.API"
_FIELDS: Final = (
    "name", "opt_start_seq", "opt_start_time", "filter_subject", "subject_transforms", "external",
    "consumer",
)  # fmt: skip


def tidied(source: StreamSource) -> StreamSource:
    """Return a source as it is stored and shown: without what is not set."""
    given = cast(dict[str, object], source)
    kept: dict[str, object] = {key: given[key] for key in _FIELDS if given.get(key)}
    kept["name"] = source.get("name", "")
    if "external" in source:
        external = source["external"]
        kept["external"] = {"api": external.get("api", ""), "deliver": external.get("deliver", "")}
    transforms = source.get("subject_transforms")
    if transforms:
        kept["subject_transforms"] = [
            {"src": each.get("src", ""), "dest": each.get("dest", "")} for each in transforms
        ]
    return cast(StreamSource, kept)


# --- mirrors --------------------------------------------------------------------------------------


def check_mirror(config: StreamConfig, find: Find, *, is_pedantic: bool) -> None:
    """Refuse a mirror that makes no sense. Sets `mirror_direct` as the origin has it."""
    mirror = config["mirror"]
    if mirror is None:
        return
    for is_asked, kind in (
        (config["first_seq"], errors.MIRROR_WITH_FIRST_SEQ),
        (config["subjects"], errors.MIRROR_WITH_SUBJECTS),
        (config["sources"], errors.MIRROR_WITH_SOURCES),
        (config["allow_msg_counter"], errors.MIRROR_WITH_COUNTERS),
        (config["allow_atomic"], errors.MIRROR_WITH_ATOMIC_PUBLISH),
        (config["allow_batched"], errors.MIRROR_WITH_BATCH_PUBLISH),
        (config["allow_msg_schedules"], errors.MIRROR_WITH_MSG_SCHEDULES),
    ):
        if is_asked:
            raise kind()
    _check_consumer(mirror, errors.MIRROR_DURABLE_CONSUMER_CFG_INVALID)
    if mirror.get("filter_subject") and mirror.get("subject_transforms"):
        raise errors.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED()
    if config["subject_delete_marker_ttl"]:
        raise _invalid("subject delete markers forbidden on mirrors")
    _check_transforms(
        mirror, errors.MIRROR_INVALID_SUBJECT_FILTER, errors.MIRROR_INVALID_TRANSFORM_DESTINATION
    )
    filters = _sources_of(mirror)
    for at, pattern in enumerate(filters):
        if any(subjects.collides(pattern, other) for other in filters[:at]):
            raise errors.MIRROR_OVERLAPPING_SUBJECT_FILTERS()
    if "external" in mirror:
        _check_external(mirror["external"], [])
        return
    if not _is_name(mirror.get("name", "")):
        raise errors.MIRROR_INVALID_STREAM_NAME()
    origin = find(mirror["name"])
    if origin is None:
        return
    if 0 < config["max_msg_size"] < origin["max_msg_size"]:
        raise errors.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG()
    if config["mirror_direct"] != origin["allow_direct"]:
        if is_pedantic:
            raise errors.PEDANTIC(err="origin stream has direct get set, mirror has it disabled")
        config["mirror_direct"] = origin["allow_direct"]


# --- sources --------------------------------------------------------------------------------------


def check_sources(config: StreamConfig, find: Find) -> None:
    """Refuse sources that make no sense."""
    if not config["sources"]:
        return
    if config["allow_msg_schedules"]:
        raise errors.SOURCE_WITH_MSG_SCHEDULES()
    seen: set[str] = set()
    consumers: set[tuple[str, str]] = set()
    own: list[bytes] = []  # of the origins that are known here
    for source in config["sources"]:
        name = source.get("name", "")
        if not _is_name(name):
            raise errors.SOURCE_INVALID_STREAM_NAME()
        index = index_name(source)
        if index in seen:
            raise errors.SOURCE_DUPLICATE_DETECTED()
        seen.add(index)
        _check_source(source)
        consumer = source.get("consumer")
        if consumer:
            key = (name, consumer.get("name", ""))
            if key in consumers:
                raise errors.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED()
            consumers.add(key)
        origin = None if "external" in source else find(name)
        if origin is not None:
            if 0 < config["max_msg_size"] < origin["max_msg_size"]:
                raise errors.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG()
            own += [subject.encode() for subject in origin["subjects"]]
    for source in config["sources"]:
        if "external" in source:
            _check_external(source["external"], own)


def _check_source(source: StreamSource) -> None:
    if source.get("filter_subject") and source.get("subject_transforms"):
        raise errors.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED()
    _check_transforms(
        source, errors.SOURCE_INVALID_SUBJECT_FILTER, errors.SOURCE_INVALID_TRANSFORM_DESTINATION
    )
    filters = _sources_of(source)
    for at, pattern in enumerate(filters):
        for other in filters[:at]:
            if subjects.is_subset(pattern, other) or subjects.is_subset(other, pattern):
                raise errors.SOURCE_OVERLAPPING_SUBJECT_FILTERS()
    _check_consumer(source, errors.SOURCE_DURABLE_CONSUMER_CFG_INVALID)


# --- both -----------------------------------------------------------------------------------------


def check_filters(config: StreamConfig) -> None:
    """Refuse filters that are no subjects: after all else."""
    mirror = config["mirror"]
    filtered = mirror.get("filter_subject", "") if mirror is not None else ""
    if filtered and not subjects.is_valid(filtered.encode()):
        raise errors.STREAM_CREATE(
            err=f"subject filter '{filtered}' for the mirror invalid subject"
        )
    for source in config["sources"]:
        filtered = source.get("filter_subject", "")
        if filtered and not subjects.is_valid(filtered.encode()):
            raise errors.STREAM_CREATE(
                err=f"subject filter '{filtered}' for the source: invalid subject"
            )


def check_cycle(config: StreamConfig, find: Find) -> None:
    """Refuse a stream whose messages would come back to it."""
    own = config["name"]

    def known(name: str) -> StreamConfig | None:
        return config if name == own else find(name)

    done: set[str] = set()

    def leads_back(name: str, path: tuple[str, ...]) -> bool:
        each = known(name)
        if each is None or name in done:
            return False
        for source, is_mirror in _origins_of(each):
            origin = source.get("name", "")
            if origin in path:
                if is_mirror or _brings_own(each, source):
                    return True
            elif leads_back(origin, (*path, origin)):
                return True
        done.add(name)
        return False

    if leads_back(own, (own,)):
        raise _invalid("detected cycle")


def _origins_of(config: StreamConfig) -> list[tuple[StreamSource, bool]]:
    """Return the origins of a stream in its own account, and whether each is mirrored."""
    mirror = config.get("mirror")
    found = [(mirror, True)] if mirror else []
    found += [(source, False) for source in config.get("sources") or ()]
    return [(source, is_mirror) for source, is_mirror in found if "external" not in source]


def _brings_own(config: StreamConfig, source: StreamSource) -> bool:
    filtered = source.get("filter_subject", "").encode()
    return not filtered or any(
        subjects.collides(filtered, subject.encode()) for subject in config["subjects"]
    )


def _is_name(name: str) -> bool:
    return bool(name) and not any(
        character in ".*>\\/" or character.isspace() or character < " " or character == "\x7f"
        for character in name
    )


def _sources_of(source: StreamSource) -> list[bytes]:
    transforms = source.get("subject_transforms") or []
    return [each.get("src", "").encode() or b">" for each in transforms]


def _check_transforms(
    source: StreamSource, bad_source: JsErrorKind, bad_destination: JsErrorKind
) -> None:
    for each in source.get("subject_transforms") or ():
        pattern, destination = each.get("src", ""), each.get("dest", "")
        if pattern and not subjects.is_valid(pattern.encode()):
            raise bad_source(err=f"invalid subject {pattern}")
        try:
            check(pattern.encode() or b">", destination.encode())
        except SubjectMappingError as err:
            raise bad_destination(err=str(err)) from err


def _check_consumer(source: StreamSource, refusal: JsErrorKind) -> None:
    if "consumer" not in source:
        return
    name = source["consumer"].get("name", "")
    deliver = source["consumer"].get("deliver_subject", "").encode()
    is_positioned = source.get("opt_start_seq") or source.get("opt_start_time")
    if not _is_name(name) or not subjects.is_valid_literal(deliver):
        raise refusal()
    if is_positioned or source.get("filter_subject"):
        raise refusal()


def _check_external(external: ExternalStream, own: list[bytes]) -> None:
    """`own`: subjects of the other origins, which a deliver subject must not meet."""
    api, deliver = external.get("api", ""), external.get("deliver", "")
    if deliver:
        if not subjects.is_valid_literal(deliver.encode()):
            raise errors.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJ(prefix=deliver)
        for subject in own:
            if subjects.collides(subject, deliver.encode() + b".>"):
                raise errors.STREAM_EXTERNAL_DEL_PREFIX_OVERLAPS(
                    prefix=deliver, subject=subject.decode()
                )
    if api:
        if not subjects.is_valid_literal(api.encode()):
            raise _invalid(
                f'stream external api prefix "{api}" must be a valid subject without wildcards'
            )
        if subjects.collides(api.encode(), _API.encode()):
            raise errors.STREAM_EXTERNAL_API_OVERLAP(prefix=api, subject=_API)


def _invalid(text: str) -> JsError:
    return errors.STREAM_INVALID_CONFIG(err=text)
