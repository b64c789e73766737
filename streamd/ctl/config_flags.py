"""Flags for the configuration of a stream or consumer, and edits that keep every other field.

A configuration is the server's own JSON document. Flags change fields of it, `--config` takes a
file, `--set FIELD=JSON` reaches the fields that no flag has; what nothing names stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from streamd.ctl.failures import unusable
from streamd.ctl.quantities import parse_size, parse_span

Config = dict[str, Any]


class ConfigFlag(NamedTuple):
    """A flag and the field that it sets. `kind`: text, list, count, size, span, switch, pairs, or
    the values to choose from."""

    flag: str
    field: str
    kind: str | tuple[str, ...]
    help: str


_DESCRIPTION: Final = ConfigFlag("--description", "description", "text", "Remark for people.")
_METADATA: Final = ConfigFlag(
    "--metadata", "metadata", "pairs", "KEY=VALUE for people; may be repeated."
)
STREAM_FLAGS: Final = (
    ConfigFlag("--subject", "subjects", "list", "Subject to store; may be repeated."),
    _DESCRIPTION,
    ConfigFlag("--storage", "storage", ("file", "memory"), "Place of the messages."),
    ConfigFlag("--replicas", "num_replicas", "count", "Copies, on as many nodes."),
    ConfigFlag(
        "--retention",
        "retention",
        ("limits", "interest", "workqueue"),
        "Time a message stays: until a limit, until all consumers acked it, or until one did.",
    ),
    ConfigFlag("--discard", "discard", ("old", "new"), "Message that goes when it is full."),
    ConfigFlag("--max-msgs", "max_msgs", "count", "Most messages; -1 for no limit."),
    ConfigFlag("--max-bytes", "max_bytes", "size", "Most bytes, as 10GiB; -1 for no limit."),
    ConfigFlag("--max-age", "max_age", "span", "Longest time a message stays, as 7d; 0 for ever."),
    ConfigFlag("--max-msgs-per-subject", "max_msgs_per_subject", "count", "Most of one subject."),
    ConfigFlag("--max-msg-size", "max_msg_size", "size", "Largest message."),
    ConfigFlag("--max-consumers", "max_consumers", "count", "Most consumers."),
    ConfigFlag("--dupe-window", "duplicate_window", "span", "Time for which ids are known."),
    ConfigFlag("--compression", "compression", ("none", "s2"), "Compression of its files."),
    _METADATA,
    ConfigFlag("--allow-direct", "allow_direct", "switch", "Reads from any replica."),
    ConfigFlag("--allow-rollup", "allow_rollup_hdrs", "switch", "Roll-ups by header."),
    ConfigFlag("--allow-msg-ttl", "allow_msg_ttl", "switch", "A time to live of each message."),
    ConfigFlag("--allow-atomic", "allow_atomic", "switch", "Atomic batches."),
    ConfigFlag("--deny-delete", "deny_delete", "switch", "No message can be deleted."),
    ConfigFlag("--deny-purge", "deny_purge", "switch", "No purges."),
)

CONSUMER_FLAGS: Final = (
    _DESCRIPTION,
    ConfigFlag("--filter", "filter_subjects", "list", "Subjects it wants; may be repeated."),
    ConfigFlag(
        "--deliver",
        "deliver_policy",
        ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"),
        "Message to begin with.",
    ),
    ConfigFlag("--start-seq", "opt_start_seq", "count", "First sequence."),
    ConfigFlag("--start-time", "opt_start_time", "text", "First time, as 2026-01-31T12:00:00Z."),
    ConfigFlag("--ack", "ack_policy", ("explicit", "all", "none"), "Acks it waits for."),
    ConfigFlag("--ack-wait", "ack_wait", "span", "Time after which a message is sent again."),
    ConfigFlag("--max-deliver", "max_deliver", "count", "Most deliveries of a message."),
    ConfigFlag("--max-pending", "max_ack_pending", "count", "Most messages that wait for acks."),
    ConfigFlag("--max-waiting", "max_waiting", "count", "Most pull requests that wait."),
    ConfigFlag("--replay", "replay_policy", ("instant", "original"), "Pace of old messages."),
    ConfigFlag("--target", "deliver_subject", "text", "Subject to push messages to."),
    ConfigFlag("--deliver-group", "deliver_group", "text", "Queue group of --target."),
    ConfigFlag("--heartbeat", "idle_heartbeat", "span", "Beat of an idle --target."),
    ConfigFlag("--inactive-threshold", "inactive_threshold", "span", "Idle time until it goes."),
    ConfigFlag("--sample", "sample_freq", "text", "Percentage of acks that are measured."),
    ConfigFlag("--replicas", "num_replicas", "count", "Copies; 0: as the stream."),
    _METADATA,
    ConfigFlag("--flow-control", "flow_control", "switch", "Flow control of --target."),
    ConfigFlag("--headers-only", "headers_only", "switch", "Headers without payloads."),
    ConfigFlag("--memory", "mem_storage", "switch", "State in memory only."),
)


def config_options(flags: Sequence[ConfigFlag]) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that gives a command these flags, `--config` and `--set`."""

    def decorate(work: Callable[..., Any]) -> Callable[..., Any]:
        work = click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="FIELD=JSON",
            help="Any field of the configuration; may be repeated.",
        )(work)
        work = click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="Configuration as a JSON file: the fields in it, or an answer of `info`.",
        )(work)
        for each in reversed(flags):
            work = _option(each)(work)
        return work

    return decorate


def _option(each: ConfigFlag) -> Callable[..., Any]:
    if each.kind == "switch":
        name = each.flag.removeprefix("--")
        return click.option(f"--{name}/--no-{name}", each.field, default=None, help=each.help)
    if each.kind in ("list", "pairs"):
        metavar = "KEY=VALUE" if each.kind == "pairs" else "TEXT"
        return click.option(each.flag, each.field, multiple=True, metavar=metavar, help=each.help)
    if isinstance(each.kind, tuple):
        return click.option(each.flag, each.field, type=click.Choice(each.kind), help=each.help)
    if each.kind == "count":
        return click.option(each.flag, each.field, type=int, help=each.help)
    return click.option(each.flag, each.field, metavar=each.kind.upper(), help=each.help)


def changed(
    before: Mapping[str, Any], flags: Sequence[ConfigFlag], options: Mapping[str, Any]
) -> Config:
    """Return the configuration `before` with what the options say. Raises CtlError."""
    made: Config = dict(before)
    if options.get("config_file"):
        made |= _read(options["config_file"])
    for each in flags:
        value = options.get(each.field)
        if value is None or value == ():
            continue
        made[each.field] = _converted(each, value)
    for text in options.get("assignments", ()):
        field, sign, value = text.partition("=")
        if not (field and sign):
            raise unusable(f"--set {text}: write FIELD=JSON, as --set max_msgs=100")
        try:
            made[field] = json.loads(value)
        except ValueError:
            raise unusable(f"--set {text}: {value!r} is no JSON: write text in quotes") from None
        if made[field] is None:
            del made[field]
    return made


def _converted(each: ConfigFlag, value: Any) -> Any:
    if each.kind == "size":
        return parse_size(value)
    if each.kind == "span":
        return parse_span(value)
    if each.kind == "list":
        return list(value)
    if each.kind == "pairs":
        pairs = [text.partition("=") for text in value]
        if not all(key and sign for key, sign, _ in pairs):
            raise unusable(f"{each.flag} {' '.join(value)}: write KEY=VALUE")
        return {key: text for key, _, text in pairs}
    return value


def _read(path: Path) -> Config:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise unusable(f"--config {path}: {err}") from err
    if isinstance(found, dict) and isinstance(found.get("config"), dict):
        found = found["config"]
    if not isinstance(found, dict):
        raise unusable(f"--config {path}: holds no JSON object")
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a line for each field that an edit changes."""
    lines = []
    for field in sorted(before.keys() | after.keys()):
        old, new = before.get(field), after.get(field)
        if old != new:
            lines.append(f"{field}: {json.dumps(old)} -> {json.dumps(new)}")
    return lines
