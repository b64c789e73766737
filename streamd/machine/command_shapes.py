"""Shapes of commands: is what stands in a log entry a command that `apply` can take?

`admit` is the first step of each machine's `apply`. Bytes that are no command, a missing field or
one of another type make the entry a no-op: the same on every replica, for nothing but the entry
decides, and told in `Effects.ignored`, so that the shell can shout. Such an entry comes from a
faulty proposer; without this step it would raise on every member, at each start.

A kind that no group of this release has, or more fields than it knows, is a later release's: the
replicas that know it do what this one can't. It raises, and the group stops here with its bytes as
they are, until this server is upgraded; passed over, the replica would differ from then on.

Of the kinds that come once or more per message (`_TRUSTED`) what the proposer itself holds decoded
is not looked at again: client parsers and `peer_args` let nothing else in. What is read from the
log, or comes from a leader, is always looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final, TypeGuard

from streamd import errors
from streamd.errors import NewerEntryError
from streamd.machine import commands
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.base import Effects
from streamd.machine.commands import Command
from streamd.machine.consumers.consumer import sample_percent
from streamd.machine.rfc3339 import parse_ns
from streamd.machine.streams.origins import origin_names
from streamd.machine.streams.retention import Limits
from streamd.types import Entry

Check = Callable[[object], bool]

IGNORED: Final[Command] = [0]
"""What `Entry.command` is of an entry that `admit` made a no-op: no kind is 0."""

_TRUSTED: Final = frozenset(
    (commands.STORE, commands.STORE_BATCH, commands.DELIVERED, commands.ACKED, commands.COPY)
)
_DELIVER_POLICIES: Final = (
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject",
)  # fmt: skip


def admit(entry: Entry, known: Container[int], out: Effects) -> Command | None:
    """Return the command of `entry`; None if there is none to apply: Raft's own no-op, or what is
    malformed. `known`: the kinds that this machine applies. Raises NewerEntryError."""
    command: Command | None = entry.command
    if command is not None:
        if command[0] in _TRUSTED and _has_field_count(command):
            return command
        _refuse_newer(entry, command)
        reason = why_malformed(command, known)
    elif not entry.data:
        return None
    else:
        try:
            command = commands.decode(entry.data)
        except (ValueError, TypeError):  # msgpack's errors are ValueErrors; TypeError: of a key
            reason = "bytes that are no command"
        else:
            _refuse_newer(entry, command)
            reason = why_malformed(command, known)
    if not reason:
        entry.command = command
        return command
    entry.command = IGNORED
    out.ignored.append((entry.index, reason))
    if entry.tag is not None:
        out.outcomes.append((entry.tag, errors.BAD_REQUEST()))
    return None


def _refuse_newer(entry: Entry, command: object) -> None:
    """Raise if `command` is one that only a later release can have proposed."""
    if not _is_list(command) or not command:
        return
    kind, field_count = command[0], len(command) - 1
    if type(kind) is not int or kind <= 0:
        return
    if kind not in _SHAPES:
        found = f"command {kind}, which this release does not know"
    elif field_count > len(_SHAPES[kind][1]):
        known = len(_SHAPES[kind][1])
        found = f"command {kind} with {field_count} fields, of which this release knows {known}"
    else:
        return
    raise NewerEntryError(
        f"log entry {entry.index} holds {found}: a later release wrote it; install that release on "
        "this server and start it again"
    )


def _has_field_count(command: Command) -> bool:
    """True if `command` has as many fields as its kind may have. Looked at for trusted commands,
    too: what every other replica passes over must not be applied by its proposer alone."""
    least, checks = _SHAPES[command[0]]
    return least < len(command) <= len(checks) + 1


def why_malformed(command: object, known: Container[int]) -> str:
    """Return why `command` can't be applied by who applies kinds `known`; "": it can."""
    if not _is_list(command) or not command or type(command[0]) is not int:
        return "no command"
    kind = command[0]
    if kind not in known or kind not in _SHAPES:
        return f"unknown command {kind}"
    least, checks = _SHAPES[kind]
    if not least <= len(command) - 1 <= len(checks):
        return f"command {kind} with {len(command) - 1} fields"
    for at, (check, field) in enumerate(zip(checks, command[1:], strict=False), 1):
        if not check(field):
            return f"command {kind}: field {at} is not what it should be"
    return ""


# --- fields -------------------------------------------------------------------------------------


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return type(value) is list or type(value) is tuple


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_uint(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_name(value: object) -> bool:
    return type(value) is str and value != ""


def _is_bytes(value: object) -> bool:
    return type(value) is bytes


def _is_any(value: object) -> bool:
    return True


def _is_integer_text(value: object) -> bool:
    return type(value) is bytes and value.removeprefix(b"-").isdigit()


def _list_of(check: Check) -> Check:
    return lambda value: _is_list(value) and all(map(check, value))


def _row_of(*checks: Check) -> Check:
    def is_row(value: object) -> bool:
        return (
            _is_list(value)
            and len(value) == len(checks)
            and all(check(field) for check, field in zip(checks, value, strict=True))
        )

    return is_row


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_is_uints: Final = _list_of(_is_uint)
_is_names: Final = _list_of(_is_name)
_is_delivered: Final = _list_of(_row_of(_is_uint, _is_uint, _is_uint, _is_any))


def _are_ranges(value: object) -> bool:
    return _is_list(value) and _is_uints(value) and len(value) % 2 == 0


def _are_msgs(value: object) -> bool:
    if not (type(value) is list or type(value) is tuple) or not value:
        return False
    try:  # on the way of every message that a replica takes from its leader
        for subject, headers, payload in value:
            if not (subject.__class__ is headers.__class__ is payload.__class__ is bytes):
                return False
    except (TypeError, ValueError):
        return False
    return True


def _are_rows(value: object) -> bool:
    if not (type(value) is list or type(value) is tuple):
        return False
    try:  # of archives, as long as messages
        for row in value:
            seq, ts, subject, headers, payload = row
            if not (
                _is_list(row)
                and (type(seq) is type(ts) is int and seq >= 0 and ts >= 0)
                and (type(subject) is type(headers) is type(payload) is bytes)
            ):
                return False
    except (TypeError, ValueError):
        return False
    return True


_are_verdicts: Final = _list_of(_row_of(_is_uint, _is_uint, _is_uint))


_are_members: Final = _list_of(_row_of(_is_bytes, _is_uint, _is_uint, _is_uint, _is_uint, _is_uint))


def _is_source(value: object) -> bool:
    return _is_list(value) and (not value or _row_of(_is_bytes, _is_uint)(value))


def _is_one_msg(value: object) -> bool:
    return _are_msgs([value])


_is_fired: Final = _row_of(
    _is_bytes, _is_uint, _is_uint, _is_uint, _is_source, _or_none(_is_one_msg)
)


def _are_msgs_or_none(value: object) -> bool:
    return _is_list(value) and (not value or _are_msgs(value))


# --- configs ------------------------------------------------------------------------------------

# What is read of a config by who applies it; other keys may be anything. A key may be missing.
_STREAM_FIELDS: Final[dict[str, Check]] = {
    "account": _is_name,
    "subjects": _or_none(_list_of(_is_text)),
    "storage": lambda value: value in ("file", "memory"),
    "retention": lambda value: value in ("limits", "interest", "workqueue"),
    "num_replicas": _is_uint,
    "max_consumers": _is_int,
    "first_seq": _or_none(_is_uint),
    "duplicate_window": _or_none(_is_uint),
    "max_msg_size": _or_none(_is_int),
    "metadata": _or_none(lambda value: type(value) is dict),
    "consumer_limits": _or_none(lambda value: type(value) is dict),
    "republish": _or_none(lambda value: type(value) is dict),
    "placement": _or_none(lambda value: type(value) is dict),
    "mirror": _or_none(lambda value: type(value) is dict),
    "sources": _or_none(_list_of(lambda value: type(value) is dict)),
}
_CONSUMER_FIELDS: Final[dict[str, Check]] = {
    "deliver_policy": lambda value: value in _DELIVER_POLICIES,
    "ack_policy": _is_text,
    "opt_start_seq": _is_uint,
    "opt_start_time": _is_text,
    "pause_until": _or_none(_is_text),
    "deliver_subject": _or_none(_is_text),
    "deliver_group": _or_none(_is_text),
    "filter_subject": _or_none(_is_text),
    "filter_subjects": _or_none(_list_of(_is_text)),
    "sample_freq": _is_text,
    "metadata": _or_none(lambda value: type(value) is dict),
    "backoff": _or_none(_list_of(_is_int)),
    "priority_groups": _or_none(_list_of(_is_text)),
    "priority_policy": _or_none(_is_text),
    "max_deliver": _is_int,
    "max_ack_pending": _is_int,
    "inactive_threshold": _is_int,
    "num_replicas": _is_int,
    "ack_wait": _or_none(_is_int),
    "idle_heartbeat": _or_none(_is_int),
    "rate_limit_bps": _or_none(_is_int),
    "priority_timeout": _or_none(_is_int),
    "max_waiting": _or_none(_is_int),
    "max_batch": _or_none(_is_int),
    "max_expires": _or_none(_is_int),
    "max_bytes": _or_none(_is_int),
}


def _has_fields(config: object, fields: dict[str, Check]) -> bool:
    return type(config) is dict and all(
        type(key) is str and (key not in fields or fields[key](value))
        for key, value in config.items()
    )


def _has_stream_fields(config: object) -> TypeGuard[StreamConfig]:
    return _has_fields(config, _STREAM_FIELDS)


def _has_consumer_fields(config: object) -> TypeGuard[ConsumerConfig]:
    return _has_fields(config, _CONSUMER_FIELDS)


def _is_stream_config(config: object) -> bool:
    if not _has_stream_fields(config) or not _is_name(config.get("name")):
        return False
    try:
        Limits(config)  # what every replica reads of it
        origin_names(config)
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def _is_consumer_config(config: object) -> bool:
    if not _has_consumer_fields(config):
        return False
    try:
        for moment in (config.get("opt_start_time"), config.get("pause_until")):
            if moment:
                parse_ns(moment)
        sample_percent(config.get("sample_freq", ""))
    except ValueError:
        return False
    return config.get("deliver_policy") != "by_start_time" or bool(config.get("opt_start_time"))


# --- commands -----------------------------------------------------------------------------------


def _shape(*checks: Check, optional: int = 0) -> tuple[int, tuple[Check, ...]]:
    """Fields behind the kind: the least number of them, and the type of each. The first is a
    time."""
    return len(checks) + 1 - optional, (_is_uint, *checks)


_SHAPES: Final[dict[int, tuple[int, tuple[Check, ...]]]] = {
    commands.STORE: _shape(_are_msgs, _is_uint, _is_uint, optional=2),
    commands.STORE_BATCH: _shape(
        lambda value: type(value) in (str, bytes), _are_msgs, _is_uint, _is_uint, optional=2
    ),
    commands.STORE_SCHEDULED: _shape(
        _are_msgs, _is_uint, _are_verdicts, _or_none(_is_uint), optional=1
    ),
    commands.STORE_SCHEDULED_BATCH: _shape(
        _is_text, _are_msgs, _is_uint, _are_verdicts, _or_none(_is_uint), optional=1
    ),
    commands.FIRE: _shape(_list_of(_is_fired)),
    commands.STORE_FAST: _shape(
        _are_msgs, _is_uint, _are_members, _are_verdicts, _or_none(_is_uint), optional=1
    ),
    commands.DROP_FAST: _shape(_list_of(_row_of(_is_bytes, _is_uint))),
    commands.LETTERS_SENT: _shape(_is_uints),
    commands.DELIVERED: _shape(_is_uint, _is_delivered, _is_uint, _is_uint, optional=1),
    commands.ACKED: _shape(_is_uint, _is_uints),
    commands.NAKED: _shape(_is_uint, _list_of(_row_of(_is_uint, _is_int))),
    commands.TERMED: _shape(_is_uint, _list_of(_row_of(_is_uint, _is_text))),
    commands.PROGRESS: _shape(_is_uint, _is_uints),
    commands.DEAD: _shape(_is_uint, _is_uints),
    commands.POSITION: _shape(_is_uint, _is_uint, _is_uint, _is_uint, _is_uint, optional=1),
    commands.EXPIRE: _shape(_is_uint, _is_uints),
    commands.PURGE: _shape(lambda value: type(value) is bytes, _is_uint, _is_uint),
    commands.DELETE_MSG: _shape(
        _is_uint, _is_any, _is_uint, _is_integer_text, _is_bytes, optional=3
    ),
    commands.CONFIGURE: _shape(_is_stream_config, _is_uint),
    commands.CREATE_CONSUMER: _shape(
        _is_name, _is_consumer_config, _is_text, _is_any, _is_uint, _is_any, optional=2
    ),
    commands.DELETE_CONSUMER: _shape(_is_text, _is_uint, _is_text, _is_any, optional=1),
    commands.PAUSE_CONSUMER: _shape(_is_text, _is_int),
    commands.RESET_CONSUMER: _shape(_is_text, _is_uint),
    commands.CHECKPOINT: _shape(_is_uint, _is_uint),
    commands.REWRITE: _shape(_is_uints, _are_ranges, lambda value: type(value) is bytes),
    commands.REMOVE: _shape(_are_ranges),
    commands.IMPORT: _shape(_are_rows, _is_uint),
    commands.IMPORT_CONSUMER: _shape(
        _is_name,
        _is_consumer_config,
        _is_uint,
        _row_of(
            _is_uint,
            _is_uint,
            _is_uint,
            _is_uint,
            _list_of(_row_of(_is_uint, _is_uint, _is_uint)),
            _list_of(_row_of(_is_uint, _is_uint)),
        ),
    ),
    commands.COPY: _shape(
        _is_text,
        _is_text,
        _is_uint,
        _is_uint,
        _is_uints,
        _is_uints,
        _are_msgs_or_none,
        _is_uint,
        optional=1,
    ),
    commands.CREATE_STREAM: _shape(
        _is_stream_config, _or_none(_is_names), _row_of(_is_int, _is_int, _is_uint), optional=2
    ),
    commands.UPDATE_STREAM: _shape(
        _is_name, _is_stream_config, _or_none(_is_names), _is_list, optional=2
    ),
    commands.DELETE_STREAM: _shape(_is_name, _is_uint, _is_any, optional=1),
    commands.SET_PEERS: _shape(_is_uint, _is_names, _is_list, optional=1),
    commands.MOVED: _shape(_is_uint, _is_names),
    commands.REMOVE_SERVER: _shape(_is_name),
    commands.ADMIT_SERVER: _shape(_is_name),
    commands.ADOPT_STREAM: _shape(_is_uint, _is_stream_config, _is_uint),
    commands.ACCEPT_LOSS: _shape(_is_uint, _is_uint),
}
