"""Consumers of an archive as they may be in the stream that is made of it.

The checks are those of a request for each of them in turn, with nothing there before. Nothing but
the upload makes consumers of a stream that is being restored, so they hold until it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from streamd import errors
from streamd.api import account_limits, consumer_configs, shapes
from streamd.api.decoding import decode
from streamd.api.request import ApiContext
from streamd.archives.archive_records import ArchivedConsumer, ArchiveError
from streamd.errors import JsError
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.consumers.consumer_checks import check_create


class Restored(NamedTuple):
    """A consumer with its config as it is stored."""

    name: str
    config: ConsumerConfig


def restored(
    context: ApiContext,
    stream: StreamConfig,
    consumers: Sequence[ArchivedConsumer],
    *,
    is_tar: bool,
) -> Iterator[ConsumerConfig]:
    """Yield the config of each of `consumers`, ordered as these are, for a stream with config
    `stream`.

    Raises ArchiveError, in the words of nats-server for archives of this kind, at the first that
    may not be.
    """
    found: dict[str, Restored] = {}
    for consumer in consumers:
        try:
            given = _decoded(consumer)
        except JsError as err:
            text = err.description.removeprefix("invalid JSON: ")
            raise _refusal(consumer, text, is_tar=is_tar, is_unreadable=True) from err
        try:
            config = _checked(context, stream, consumer.name, given, found)
        except JsError as err:
            text = f"{err.description} ({err.err_code})"
            raise _refusal(consumer, text, is_tar=is_tar) from err
        found[consumer.name] = Restored(consumer.name, config)
        yield config


def _decoded(consumer: ArchivedConsumer) -> ConsumerConfig:
    """Return the fields that are known here: a newer server's archive may have more."""
    body = json.dumps(consumer.config).encode()
    return cast(ConsumerConfig, decode(body, shapes.CONSUMER_CONFIG, is_strict=False))


def _checked(
    context: ApiContext,
    stream: StreamConfig,
    name: str,
    given: ConsumerConfig,
    others: dict[str, Restored],
) -> ConsumerConfig:
    consumer_configs.check_name(name)
    durable = given.get("durable_name")
    if durable and durable != given.get("name", durable):
        raise errors.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH()
    if stream["num_replicas"] == 1 and given.get("num_replicas", 0) > 1:
        given["num_replicas"] = 0  # of a stream that had more replicas
    allowed = account_limits.asset_limits(context, stream)
    config = consumer_configs.normalise(given, stream, allowed=allowed, existing=given)
    refusal = check_create(
        name,
        config,
        "",
        stream_config=stream,
        consumers=others,
        account_max=account_limits.consumers_max(context, stream),
    )
    if refusal is not None:
        raise refusal
    return config


def _refusal(
    consumer: ArchivedConsumer, text: str, *, is_tar: bool, is_unreadable: bool = False
) -> ArchiveError:
    if is_tar:
        return ArchiveError(f'error restoring consumer ["{consumer.name}"]: {text}')
    if is_unreadable:
        return ArchiveError(f'failed to decode consumer "{consumer.name}" state: {text}')
    return ArchiveError(f'failed to add consumer "{consumer.name}": {text}')
