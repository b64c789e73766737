"""The `CONSUMER.*` endpoints, but for acks, which have subjects of their own."""

from __future__ import annotations

from typing import Final, cast

from streamd import errors, limits
from streamd.api import (
    account_limits,
    consumer_configs,
    decoding,
    infos,
    shapes,
    sourcing_consumers,
    times,
)
from streamd.api.decoding import Shape, decode, decode_one, decode_optional
from streamd.api.paging import paged
from streamd.api.request import Request
from streamd.api.stream_configs import static_metadata
from streamd.machine import commands, message_headers
from streamd.machine.asset_configs import ConsumerConfig, CreateConsumer
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_checks import check_limits
from streamd.node.ports import StreamHandle
from streamd.types import Document

_ENDS_TOO_SOON: Final = "unexpected end of JSON input"
LAG: Final = b"Nats-Consumer-Lag"
"""Header of a request for infos of consumers; "true": they tell the lag in time, too."""


def create(request: Request) -> None:
    """`CONSUMER.CREATE.<stream>[.<consumer>[.<filter>]]`: make or update a consumer.

    Without a name in the subject this is the old way of making an ephemeral one.
    """
    given = cast(CreateConsumer, decode(request.payload, shapes.CREATE_CONSUMER))
    config: ConsumerConfig = given.get("config", {})
    stream_name = request.names[0]
    if given.get("stream_name", "") != stream_name:
        raise errors.STREAM_MISMATCH()
    if len(request.names) == 1:
        if config.get("durable_name"):
            raise errors.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME()
        _create(request, given, config)
        return
    name = request.names[1]
    if "/" in name or "\\" in name:
        raise errors.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS()
    if config.get("durable_name") and config["durable_name"] != name:
        raise errors.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT()
    config["name"] = name
    if len(request.names) > 2:
        if config.get("filter_subjects"):
            raise errors.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED()
        if config.get("filter_subject", "") != ".".join(request.names[2:]):
            raise errors.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH()
    _create(request, given, config)


def create_durable(request: Request) -> None:
    """`CONSUMER.DURABLE.CREATE.<stream>.<consumer>`: the old way of making a durable one."""
    given = cast(CreateConsumer, decode(request.payload, shapes.CREATE_CONSUMER))
    config: ConsumerConfig = given.get("config", {})
    stream_name, name = request.names
    if given.get("stream_name", "") != stream_name:
        raise errors.STREAM_MISMATCH()
    if "/" in name or "\\" in name:
        raise errors.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS()
    if not config.get("durable_name"):
        raise errors.CONSUMER_DURABLE_NAME_NOT_SET()
    if config["durable_name"] != name:
        raise errors.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT()
    config["name"] = name  # whatever else it was to be called
    _create(request, given, config)


def _create(request: Request, given: CreateConsumer, config: ConsumerConfig) -> None:
    handle = request.stream()
    is_pedantic = given.get("pedantic", False)
    action = given.get("action", "")
    is_sourcing = config.get("sourcing", False)
    if is_sourcing:
        machine = handle.machine
        sourcing_consumers.check_identity(request.headers, machine.created_ns)
        suffix = consumer_configs.new_name()
        config = sourcing_consumers.adapted(config, machine.config, suffix)
    name = config.get("name", "")
    if name:
        consumer_configs.check_name(name)
    else:
        name = _unused_name(handle)  # shown as the consumer's name, but not as part of its config
    existing = handle.machine.consumers.get(name)
    normal = consumer_configs.normalise(
        config,
        handle.machine.config,
        allowed=account_limits.asset_limits(request.context, handle.machine.config),
        is_pedantic=is_pedantic,
        existing=existing.config if existing is not None else None,
    )
    if existing is not None:
        _keep_pause(normal, existing)
        _keep_start_time(normal, existing)
        if not is_sourcing:  # else another leader of the copy takes it over
            _check_name_in_use(handle, normal, existing)
        if action == "create" and not request.context.is_clustered:
            _check_threshold_given(handle, config, normal, existing)

    def shown(consumer: Consumer) -> None:
        headers = b""
        if is_sourcing:
            headers = sourcing_consumers.answer_headers(handle.machine.created_ns)
        request.answer(infos.consumer_info(request.context, handle, consumer), headers)

    now_ns = request.context.clock.now_ns()
    most = account_limits.consumers_max(request.context, handle.machine.config)
    command = [commands.CREATE_CONSUMER, now_ns, name, normal, action, is_pedantic]
    if is_sourcing:
        # It begins behind what was acknowledged, and numbers anew, in the entry that has it send to
        # another subject: there nothing may come of what it was.
        command += [most, True]
    elif most:
        command.append(most)
    request.propose(handle, command, shown)


def _unused_name(handle: StreamHandle) -> str:
    while True:
        name = consumer_configs.new_name()
        if name not in handle.machine.consumers:
            return name


def _keep_pause(config: ConsumerConfig, existing: Consumer) -> None:
    """An existing consumer is paused and resumed by its own endpoint only."""
    config.pop("pause_until", None)
    if existing.config.get("pause_until"):
        config["pause_until"] = existing.config["pause_until"]
    level = consumer_configs.required_level(config)
    config["metadata"] = static_metadata(config.get("metadata", {}), level)


def _keep_start_time(config: ConsumerConfig, existing: Consumer) -> None:
    """A start time stays as it was written: another zone does not make it another one."""
    given, kept = config.get("opt_start_time"), existing.config.get("opt_start_time")
    if given and kept and times.parse_ns(given) == times.parse_ns(kept):
        config["opt_start_time"] = kept


def _check_name_in_use(handle: StreamHandle, config: ConsumerConfig, existing: Consumer) -> None:
    """A push consumer that somebody listens to cannot be pointed elsewhere."""
    old, new = existing.config.get("deliver_subject"), config.get("deliver_subject")
    if old and new and old != new:
        view = handle.consumer_view(existing.name)
        if view is not None and view.is_push_bound:
            raise errors.CONSUMER_NAME_EXIST()


def _check_threshold_given(
    handle: StreamHandle, given: ConsumerConfig, normal: ConsumerConfig, existing: Consumer
) -> None:
    """A single nats-server compares the threshold as it was given with the one that it filled in
    for an ephemeral consumer before: without one this is another consumer. One of a cluster fills
    it in before it compares."""
    stream = handle.machine.config
    is_filled_in = not given.get("inactive_threshold") and not normal.get("durable_name")
    limit = (stream.get("consumer_limits") or {}).get("inactive_threshold", 0)
    if is_filled_in and existing.config.get("inactive_threshold") and limit <= 0:
        raise check_limits(normal, stream) or errors.CONSUMER_ALREADY_EXISTS()


def _consumer(request: Request) -> tuple[StreamHandle, Consumer]:
    handle = request.stream()
    consumer = handle.machine.consumers.get(request.names[1])
    if consumer is None:
        raise errors.CONSUMER_NOT_FOUND()
    return handle, consumer


def info(request: Request) -> None:
    """`CONSUMER.INFO.<stream>.<consumer>`."""
    if not decoding.is_empty_request(request.payload):
        raise errors.NOT_EMPTY_REQUEST()

    def show() -> None:
        handle, consumer = _consumer(request)
        has_lag = _wants_lag(request)
        request.answer(infos.consumer_info(request.context, handle, consumer, has_lag=has_lag))

    request.when_current(request.stream(), show)


def _wants_lag(request: Request) -> bool:
    """True if the request asks how far consumers are behind in time."""
    return bool(request.headers) and message_headers.get(request.headers, LAG) == b"true"


def names(request: Request) -> None:
    """`CONSUMER.NAMES.<stream>`."""
    shown, place = _page(request, limits.STREAM_NAME_PAGE)
    request.answer(place | {"consumers": [consumer.name for consumer in shown]})


def list_infos(request: Request) -> None:
    """`CONSUMER.LIST.<stream>`."""
    shown, place = _page(request, limits.LIST_PAGE)
    context, handle, has_lag = request.context, request.stream(), _wants_lag(request)
    rows = [
        infos.consumer_info(context, handle, consumer, is_listed=True, has_lag=has_lag)
        for consumer in shown
    ]
    request.answer(place | {"consumers": rows})


def _page(request: Request, size: int) -> tuple[list[Consumer], Document]:
    wanted = decode_optional(request.payload, shapes.CONSUMERS)
    by_name = request.stream().machine.consumers
    found = [by_name[name] for name in sorted(by_name) if not by_name[name].config.get("direct")]
    return paged(found, wanted, size)


def delete(request: Request) -> None:
    """`CONSUMER.DELETE.<stream>.<consumer>`."""
    if not decoding.is_empty_request(request.payload):
        raise errors.NOT_EMPTY_REQUEST()
    handle, consumer = _consumer(request)
    name = consumer.name

    def deleted(_: object) -> None:
        request.answer({"success": True})

    now_ns = request.context.clock.now_ns()
    request.propose(handle, [commands.DELETE_CONSUMER, now_ns, name, consumer.uid, ""], deleted)


def pause(request: Request) -> None:
    """`CONSUMER.PAUSE.<stream>.<consumer>`: pause until a time, or resume."""
    wanted = decode_optional(request.payload, shapes.CONSUMER_PAUSE)
    handle, consumer = _consumer(request)
    until_ns = max(0, times.parse_ns(wanted.get("pause_until", "")))

    def paused(_: object) -> None:
        remaining = until_ns - request.context.clock.now_ns()
        answer: Document = {
            "paused": remaining > 0,
            "pause_until": times.format_ns(until_ns),
        }
        if remaining > 0:
            answer["pause_remaining"] = remaining
        request.answer(answer)

    now_ns = request.context.clock.now_ns()
    request.propose(handle, [commands.PAUSE_CONSUMER, now_ns, consumer.name, until_ns], paused)


def unpin(request: Request) -> None:
    """`CONSUMER.UNPIN.<stream>.<consumer>`: the pinned client of a group loses its place."""
    group = _decode_plainly(request, shapes.CONSUMER_UNPIN).get("group", "")
    if not group:
        raise errors.INVALID_JSON(err="consumer group not specified")
    consumer_configs.check_group_name(group)
    handle, consumer = _consumer(request)
    if group not in (consumer.config.get("priority_groups") or ()):
        raise errors.CONSUMER_INVALID_PRIORITY_GROUP()

    def take() -> None:
        # After all pulls that came before, and answered once it has taken effect.
        view = handle.consumer_view(consumer.name)
        if view is not None:
            view.unpin("admin")
        request.when_current(handle, request.answer, {})

    request.when_current(handle, take)


def reset(request: Request) -> None:
    """`CONSUMER.RESET.<stream>.<consumer>`: deliver again from a seq, or from the ack floor."""
    handle = request.context.streams.stream(request.names[0])
    if handle is not None and request.context.is_clustered and not handle.is_local:
        raise errors.Unserved()
    consumer = handle.machine.consumers.get(request.names[1]) if handle is not None else None
    if handle is None or consumer is None:
        return  # this one is answered by the consumer itself; where there is none, nobody does
    wanted = _decode_plainly(request, shapes.CONSUMER_RESET) if request.payload else {}

    def done(outcome: Consumer) -> None:
        shown = infos.consumer_info(request.context, handle, outcome)
        request.answer(shown | {"reset_seq": outcome.next_sseq})

    now_ns = request.context.clock.now_ns()
    command = [commands.RESET_CONSUMER, now_ns, consumer.name, wanted.get("seq", 0)]
    request.propose(handle, command, done)


def _decode_plainly(request: Request, shape: Shape) -> Document:
    """Decode as nats-server does for a few requests: more tolerant, and errors without offsets."""
    try:
        return decode_one(request.payload, shape)
    except errors.JsError as error:
        reason = error.description.partition(" at offset ")[0].removeprefix("invalid JSON: ")
        raise errors.INVALID_JSON(err=reason.replace("unexpected EOF", _ENDS_TOO_SOON)) from None


def next_msgs(request: Request) -> None:
    """`CONSUMER.MSG.NEXT.<stream>.<consumer>`: a pull; the consumer answers with messages."""
    handle = request.context.streams.stream(request.names[0])
    if handle is None or not handle.pull(
        request.names[1], request.reply, request.headers, request.payload
    ):
        request.no_responders()
