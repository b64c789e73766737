"""Reader of the exports and imports of one account. Error texts are nats-server's.

What depends on other accounts is checked by `account_checks.py`, once all are read.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

from streamd.config.account_options import (
    CHUNKED,
    SINGLETON,
    STREAMED,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
)
from streamd.config.duration_values import parse_go_duration
from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, Setter, put_in
from streamd.config.values import (
    as_flag,
    as_integer,
    as_list,
    as_members,
    as_text,
    go_type,
    quoted,
)

_RESPONSE_TYPES = {
    "single": SINGLETON,
    "singleton": SINGLETON,
    "stream": STREAMED,
    "chunk": CHUNKED,
    "chunked": CHUNKED,
}
_DECIMAL = re.compile(r"[+-]?[0-9]+")


class ReadImport(NamedTuple):
    """An import as it was written: its prefix is still apart."""

    options: ImportOptions
    prefix: str = ""


def as_percentage(text: str) -> int | None:
    """The number of `50%` or `50`; None if it is none."""
    digits = text.removesuffix("%")
    return int(digits) if _DECIMAL.fullmatch(digits) and len(digits) < 12 else None


# --- exports --------------------------------------------------------------------------------------


def read_exports(value: Value, blocks: KeyBlocks) -> list[ExportOptions]:
    """Read the list `exports`. Raises ConfigError."""
    if not isinstance(value.raw, list):
        raise value.error(f"Exports should be an array, got {go_type(value)}")
    exports = (_export(item, blocks) for item in value.raw)
    return [each for each in exports if each is not None]


def _export(item: Value, blocks: KeyBlocks) -> ExportOptions | None:
    if not isinstance(item.raw, dict):
        raise item.error(f"Export Items should be a map with type entry, got {go_type(item)}")
    settings: dict[str, Any] = {}
    put = partial(put_in, settings)
    only_services: list[tuple[Value, str]] = []  # settings, and what they are called

    def subject(is_service: bool) -> Setter:
        kind, other = ("service", "stream") if is_service else ("stream", "service")

        def set_(value: Value) -> None:
            if not isinstance(value.raw, str):
                raise value.error(f"Expected {kind} name to be string, got {go_type(value)}")
            if settings.get("is_service", is_service) != is_service:
                raise value.error(f"Detected {kind} {quoted(value.raw)} but already saw a {other}")
            settings.update(is_service=is_service, subject=value.raw)

        return set_

    def service(attribute: str, name: str, read: Any, twice: str = "") -> Setter:
        def set_(value: Value) -> None:
            if twice and attribute in settings:
                raise value.error(twice)
            only_services.append((value, name))
            settings[attribute] = read(value)

        return set_

    blocks.read(
        item,
        {
            "stream": subject(False),
            "service": subject(True),
            "response|response_type": service(
                "response_type", "response", _response_type, "Duplicate response type definition"
            ),
            "threshold|response_threshold|response_max_time|response_time": service(
                "response_threshold_ns",
                "response",
                _threshold,
                "Duplicate response threshold detected",
            ),
            "accounts": put("accounts", lambda v: tuple(as_text(each) for each in as_list(v))),
            "latency": service("latency", "latency", lambda v: _latency(v, blocks)),
            "account_token_position": put("account_token_position", as_integer),
            "allow_trace": service("allows_trace", "allow_trace", as_flag),
        },
        "exports.",
    )
    if "subject" not in settings:
        blocks.warn(item, "an export of neither a stream nor a service is ignored")
        return None
    if only_services and not settings["is_service"]:
        value, name = only_services[0]
        raise value.error(f"Detected {name} directive on non-service")
    return ExportOptions(**settings)


def _response_type(value: Value) -> str:
    if not isinstance(value.raw, str):
        raise value.error(f"Expected response type to be string, got {go_type(value)}")
    found = _RESPONSE_TYPES.get(value.raw.lower())
    if found is None:
        raise value.error(f"Unknown response type: {quoted(value.raw)}")
    return found


def _threshold(value: Value) -> int:
    if isinstance(value.raw, str):
        try:
            return parse_go_duration(value.raw)
        except ValueError:
            got = quoted(value.raw)
    else:
        got = go_type(value)
    raise value.error(f"Expected response threshold to be a parseable time duration, got {got}")


def _latency(value: Value, blocks: KeyBlocks) -> LatencyOptions:
    if isinstance(value.raw, str):
        return LatencyOptions(value.raw)
    if not isinstance(value.raw, dict):
        raise value.error(
            f"Expected latency entry to be a map/struct or string, got {go_type(value)}"
        )
    for key, child in value.raw.items():
        if key not in ("sampling", "subject"):
            blocks.warn(child, f'"exports.latency.{key}" has no meaning and is ignored')
    sampling = _latency_sampling(value.raw["sampling"]) if "sampling" in value.raw else 100
    subject = value.raw.get("subject")
    if subject is None:
        raise value.error("Latency subject required, but missing")
    if not isinstance(subject.raw, str):
        # Their server names the type that it wants here, not the one that it has.
        raise subject.error("Expected latency subject to be a string, got string")
    return LatencyOptions(subject.raw, sampling)


def _latency_sampling(value: Value) -> int:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int | str):
        raise value.error(
            f"Expected latency sample to be a string or map/struct, got {go_type(value)}"
        )
    sampling: int | None
    if isinstance(value.raw, int):
        sampling = value.raw
    elif value.raw.strip().lower() == "headers":
        return 0
    else:
        sampling = as_percentage(value.raw)
        if sampling is None:
            shown = quoted(value.raw.removesuffix("%"))
            raise value.error(
                f"Failed to parse latency sample: strconv.Atoi: parsing {shown}: invalid syntax"
            )
    if not 1 <= sampling <= 100:
        raise value.error("bad sampling percentage, should be 1-100")
    return sampling


# --- imports --------------------------------------------------------------------------------------


def read_imports(value: Value, blocks: KeyBlocks) -> list[ReadImport]:
    """Read the list `imports`. Raises ConfigError."""
    if not isinstance(value.raw, list):
        raise value.error(f"Imports should be an array, got {go_type(value)}")
    found: list[ReadImport] = []
    services: dict[tuple[str, str], ImportOptions] = {}
    for item in value.raw:
        read = _import(item, blocks)
        if read is None:
            continue
        found.append(read)
        options = read.options
        if options.is_service:
            local = options.local_subject or options.subject
            before = services.setdefault((options.account, local), options)
            if before is not options:
                raise item.error(
                    f"Duplicate service import subject {quoted(local)}, previously used in import"
                    f" for account {quoted(before.account)}, subject {quoted(before.subject)}"
                )
    return found


def _import(item: Value, blocks: KeyBlocks) -> ReadImport | None:
    if not isinstance(item.raw, dict):
        raise item.error(f"Import Items should be a map with type entry, got {go_type(item)}")
    settings: dict[str, Any] = {}
    places: dict[str, Value] = {}
    prefix: dict[str, str] = {}

    def source(is_service: bool) -> Setter:
        kind, other = ("service", "stream") if is_service else ("stream", "service")

        def set_(value: Value) -> None:
            if settings.get("is_service", is_service) != is_service:
                raise value.error(f"Detected {kind} but already saw a {other}")
            if not isinstance(value.raw, dict):
                raise value.error(
                    f"{kind.capitalize()} entry should be an account map, got {go_type(value)}"
                )
            inner: dict[str, str] = {}
            put = partial(put_in, inner)
            blocks.read(
                value,
                {"account": put("account", as_text), "subject": put("subject", as_text)},
                f"imports.{kind}.",
            )
            if not inner.get("account") or not inner.get("subject"):
                raise value.error("Expect an account name and a subject")
            settings.update(inner, is_service=is_service)

        return set_

    def placed(name: str, set_: Setter) -> Setter:
        def set_and_place(value: Value) -> None:
            places[name] = value
            set_(value)

        return set_and_place

    blocks.read(
        item,
        {
            "stream": source(False),
            "service": source(True),
            "prefix": placed("prefix", put_in(prefix, "prefix", as_text)),
            "to": placed("to", put_in(settings, "local_subject", as_text)),
            "share": placed("share", put_in(settings, "is_shared", as_flag)),
            "allow_trace": placed("allow_trace", put_in(settings, "allows_trace", as_flag)),
        },
        "imports.",
    )
    if "subject" not in settings:
        as_members(item, "imports")
        blocks.warn(item, "an import of neither a stream nor a service is ignored")
        return None
    if settings["is_service"]:
        if "allow_trace" in places:
            raise places["allow_trace"].error("Detected allow_trace directive on a non-stream")
        if "prefix" in places:
            blocks.warn(places["prefix"], '"imports.prefix" has no effect on a service')
            prefix.clear()
    else:
        if prefix.get("prefix") and settings.get("local_subject"):
            raise places["to"].error("Stream import can not have a 'prefix' and a 'to' property")
        if settings.pop("is_shared", False):
            blocks.warn(places["share"], '"imports.share" has no effect on a stream')
    return ReadImport(ImportOptions(**settings), prefix.get("prefix", ""))
