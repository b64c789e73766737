"""Shapes of what servers say to each other: the arguments of every note and call, and of answers.

A link checks each before anybody looks inside, so a handler may rely on types and lengths. What a
shape does not say, the handler judges: whether there is such a stream, whether the sender leads it.
A dict may hold keys that are not named here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from streamd.errors import StreamdError
from streamd.protocol.node_hello import Hello

Check = Callable[[object], bool]


class MalformedArgs(StreamdError):
    """Arguments of a note, a call or an answer that no handler would understand."""


def check_note(kind: str, args: list[object]) -> None:
    """Raise MalformedArgs unless `args` are as notes of this kind have them. A kind that nobody
    knows passes: who takes notes says what becomes of it."""
    is_good = _NOTES.get(kind)
    if is_good is not None and not is_good(args):
        raise MalformedArgs(f"malformed note {kind!r}")


def check_call(method: str, args: list[object]) -> None:
    """As `check_note`, for calls."""
    is_good = _CALLS.get(method)
    if is_good is not None and not is_good(args):
        raise MalformedArgs(f"malformed call {method!r}")


def check_answer(method: str, value: object) -> None:
    """As `check_note`, for the value that a call `method` is answered with."""
    is_good = _ANSWERS.get(method)
    if is_good is not None and not is_good(value):
        raise MalformedArgs(f"malformed answer to {method!r}")


def kinds() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of notes and of calls that have a shape."""
    return tuple(_NOTES), tuple(_CALLS)


# --- values -------------------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_uint(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_bytes(value: object) -> bool:
    return type(value) is bytes


def _is_any(value: object) -> bool:
    return True


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def _row(*checks: Check, optional: int = 0) -> Check:
    """A list of these fields, the last `optional` of which may be missing."""
    least, most = len(checks) - optional, len(checks)

    def is_row(value: object) -> bool:
        return (
            type(value) is list
            and least <= len(value) <= most
            and all(check(field) for check, field in zip(checks, value, strict=False))
        )

    return is_row


def _dict_of(check: Check) -> Check:
    return lambda value: (
        type(value) is dict
        and all(type(key) is str and check(field) for key, field in value.items())
    )


def _record(fields: dict[str, Check]) -> Check:
    """A dict whose keys are texts, and these, as far as they are there, as said."""
    return lambda value: (
        type(value) is dict
        and all(
            type(key) is str and (key not in fields or fields[key](field))
            for key, field in value.items()
        )
    )


_are_bytes: Final = _list_of(_is_bytes)
_are_texts: Final = _list_of(_is_text)
_are_uints: Final = _list_of(_is_uint)


def _are_msgs(value: object) -> bool:
    """(subject, headers, payload) of each: on the way of every publish that is passed on."""
    if type(value) is not list:
        return False
    try:
        for subject, headers, payload in value:
            if not (subject.__class__ is headers.__class__ is payload.__class__ is bytes):
                return False
    except (TypeError, ValueError):
        return False
    return True


# --- of nodes -----------------------------------------------------------------------------------

_is_facts: Final = _record(
    {
        "server_id": _is_text,
        "tags": _are_texts,
        "storage_max": _is_int,
        "memory_max": _is_int,
        "ha_assets_max": _is_int,
        "unique_tag": _is_text,
        "storage_used": _is_int,
        "memory_used": _is_int,
        "streams": _is_int,
        "ha_assets": _is_int,
    }
)
# See node/identity/incarnations.py.
_is_told: Final = _row(_is_int, _list_of(_row(_is_int, _is_text)))
_is_start: Final = _row(_is_text, _is_int, _is_text, _are_texts, _is_told, optional=1)
_is_hello: Final = _record(
    {
        "cluster_id": _is_text,
        "incarnation": _is_text,
        "is_virgin": _is_bool,
        "voters": _are_texts,
        "facts": _is_facts,
        "removal": _is_uint,
        "removals": _dict_of(_is_uint),
        "start": lambda value: value == [] or _is_start(value),
        "seen": _dict_of(_is_start),
    }
)


def check_hello(hello: dict[str, object]) -> Hello:
    """As `check_note`, for what a node says of itself when a link comes up; returns it."""
    if not _is_hello(hello):
        raise MalformedArgs("malformed hello of a node")
    return cast(Hello, hello)


def _is_part(value: object) -> bool:
    """Which of the messages of a chunk: all, some by their places, or by their replies."""
    return value is None or _are_uints(value) or _are_bytes(value)


def _is_outcome(value: object) -> bool:
    if type(value) is int:
        return True
    if type(value) is not list or not value:
        return False
    if value[0] == "e":
        return _is_error(value)
    return _is_found(value)  # a duplicate, or a batch with its name


_is_error: Final = _row(_is_text, _is_int, _is_int, _is_text)
_is_found: Final = _row(_is_int, _is_int, _is_text, optional=1)
_is_run: Final = _row(_is_text, _is_uint, _is_uint)


def _are_outcomes(value: object) -> bool:
    if type(value) is not list:
        return False
    if value and value[0] == "run":
        return _is_run(value)
    return all(map(_is_outcome, value))


_publish_fields: Final = _row(_is_uint, _is_uint, _are_msgs, _or_none(_are_bytes))


def _is_publish(value: object) -> bool:
    if type(value) is not list or not _publish_fields(value):
        return False
    return value[3] is None or len(value[3]) == len(value[2])


_acks_fields: Final = _row(_is_uint, _are_bytes, _or_none(_are_bytes), _are_bytes)


def _is_acks(value: object) -> bool:
    return (
        type(value) is list
        and _acks_fields(value)
        and bool(value[1])
        and len(value[1]) == len(value[3])
        and (value[2] is None or len(value[2]) == len(value[1]))
    )


# --- of clients ---------------------------------------------------------------------------------

# See api/remote_client.RemoteClient.
_client: Final = _row(
    _is_text, _is_int, _is_text, _is_int, _is_int, _is_text, _is_text, _is_text, _is_text,
)  # fmt: skip
_is_request: Final = _row(
    _is_bytes, _is_bytes, _is_bytes, _is_bytes,
    lambda value: value == [] or _client(value), _is_uint, _is_text,
)  # fmt: skip


_are_gate_msgs: Final = _row(
    _is_text,
    lambda value: value == [] or _client(value),
    _list_of(_row(_is_bytes, _is_bytes, _is_bytes, _is_bytes, _is_bool)),
)


def _is_core_msg(item: object) -> bool:
    if type(item) is not list or not 2 <= len(item) <= 6 or len(item) == 3:
        return False
    if type(item[0]) is not bytes:
        return False
    if type(item[1]) is not bytes and not (item[1] and _are_bytes(item[1])):
        return False
    if len(item) > 2 and not (type(item[2]) is bytes and type(item[3]) is bytes):
        return False
    return (len(item) < 5 or _are_bytes(item[4])) and (len(item) < 6 or type(item[5]) is bytes)


def _are_core_msgs(value: object) -> bool:
    if type(value) is not list:
        return False
    for item in value:
        try:  # nearly all are a subject and a payload
            subject, payload = item
            if subject.__class__ is payload.__class__ is bytes:
                continue
        except (TypeError, ValueError):
            pass  # with a reply, headers, queues; or it is no message
        if not _is_core_msg(item):
            return False
    return True


_delivery_fields: Final = _row(
    _is_text, _is_bytes, _is_bytes, _list_of(_is_any), _is_bytes, optional=1
)


def _is_delivery(value: object) -> bool:
    """[account, to, queue, [(subject, reply, headers, payload)], origin?]"""
    if type(value) is not list or not _delivery_fields(value):
        return False
    try:
        for subject, reply, headers, payload in value[3]:
            if not (
                subject.__class__ is reply.__class__ is headers.__class__ is payload.__class__
                is bytes
            ):  # fmt: skip
                return False
    except (TypeError, ValueError):
        return False
    return True


_run_fields: Final = _row(
    _is_text, _is_bytes, _is_bytes, _are_bytes, _are_bytes, _list_of(_list_of(_is_int))
)


def _is_delivery_run(value: object) -> bool:
    """[account, to, ack, subjects, payloads, four columns of numbers], all of one length and not
    empty. The payloads are equally long; `ack` is a template for the numbers."""
    if type(value) is not list or not _run_fields(value):
        return False
    _, _, ack, subjects, payloads, columns = value
    count = len(subjects)
    if not count or len(payloads) != count or len(set(map(len, payloads))) != 1:
        return False
    places = ack.replace(b"%%", b"")
    is_template = places.count(b"%d") == places.count(b"%") == 4
    return is_template and list(map(len, columns)) == [count] * 4


# --- the tables ---------------------------------------------------------------------------------

_NOTES: Final[dict[str, Check]] = {
    "leaders": _list_of(_row(_is_uint, _is_uint, _is_bool)),
    "digests": _list_of(_row(_is_uint, _is_uint, _is_uint)),
    "facts": _row(_is_facts),
    "stored": _list_of(_row(_is_uint, _is_uint)),
    "hello": _row(_is_hello),
    "meta": _row(_list_of(_is_any)),  # the command is judged by who would propose it
    "publish": _is_publish,
    "pubacks": _row(_is_uint, _is_part, _are_outcomes),
    "given_back": _row(_is_uint, _is_part, _are_msgs),
    "pull": _row(_is_uint, _is_text, _is_bytes, _is_bytes, _is_bytes),
    "acks": _is_acks,
    "flow": _row(_is_uint, _is_text, _is_bytes, _is_bytes, optional=1),
    "api.request": _is_request,
    "api.answer": _row(_is_text, _is_bytes, _is_bytes, _is_bytes, _is_uint, optional=1),
    "net.conns": _list_of(_row(_is_text, _is_uint, _is_uint)),
    "net.sub": _row(_is_text, _is_bool, _list_of(_row(_is_bytes, _is_bytes, _is_uint))),
    "net.msgs": _row(_is_text, _are_core_msgs),
    "net.trace": _row(
        _is_text,
        _row(
            _is_text,
            _is_bytes,
            _is_bool,
            _is_text,
            _is_bytes,
            _is_bytes,
            _is_bytes,
            _is_bytes,
            _are_bytes,
            _is_text,
        ),
    ),
    "net.deliver": _is_delivery,
    "net.run": _is_delivery_run,
    "net.full": _row(_is_text, _is_bytes),
    "net.room": _row(_is_text, _are_bytes),
    "gate.want": _row(_is_text),
    "gate.subjects": _row(_is_text, _is_bool, _are_bytes, _are_bytes),
    "gate.msgs": _are_gate_msgs,
    "net.peers": _row(_dict_of(_is_text)),
    "net.urls": _are_texts,
    "net.ws_urls": _are_texts,
}
_CALLS: Final[dict[str, Check]] = {
    "bootstrap": _row(_is_text, _are_texts),
    "configured": _row(_is_uint, _is_uint),
    "has_left": _row(_is_uint),
    "recall": _row(),
    "stand_in": _row(_is_uint, _are_texts, _is_uint, optional=1),
    "terms": _row(_is_uint),
    "held": _row(_is_uint, _list_of(_row(_is_uint, _is_uint, _is_uint))),
    "manifest": _row(_is_uint, _is_uint, _list_of(_is_int)),
    "block": _row(_is_uint, _is_uint, _is_int, _is_int, _is_int),
    "api.request": _is_request,
    "api.stream_infos": _row(_are_uints, _is_bool),
    "api.offenders": _row(_is_uint, _dict_of(_is_any)),
    "api.usage": _row(_is_text),
    "judge": _row(_is_uint, _is_bytes, _is_bytes, _is_bytes),
    "api.restore": _row(
        _is_text, _is_uint, _is_bytes, _is_text, lambda value: value == [] or _client(value)
    ),
    "api.restored": _row(_is_uint),
    "api.restore_failed": _row(_is_uint),
    "dashboard.node": _row(),
    "dashboard.rows": _are_uints,
    "dashboard.consumers": _are_uints,
    "dashboard.page": _row(_is_text, _is_text, _is_text, _dict_of(_is_text)),
    "dashboard.verify": _row(),
}
# Of what is not here the asker looks at the value itself, whatever it is.
_ANSWERS: Final[dict[str, Check]] = {
    "configured": _is_bool,
    "has_left": _is_bool,
    "recall": _row(_is_uint, _are_texts, _are_texts, _is_uint),
    "terms": _dict_of(_is_any),
    "held": _list_of(_is_bool),
    "block": _is_bytes,
    "api.request": _is_bool,
    "api.stream_infos": _list_of(_or_none(_dict_of(_is_any))),
    "api.offenders": _are_texts,
    "api.usage": _dict_of(_is_int),
    "judge": _row(_are_outcomes, _is_bytes, _is_bool),
    "api.restore": _is_bytes,
    "api.restored": _is_bool,
    "api.restore_failed": _is_bool,
    "dashboard.node": _dict_of(_is_any),
    "dashboard.rows": _list_of(_or_none(_dict_of(_is_any))),
    "dashboard.consumers": _list_of(_dict_of(_is_any)),
    "dashboard.page": _row(_is_uint, _is_any),
    "dashboard.verify": _is_bool,
}
