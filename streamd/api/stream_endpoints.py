"""The `STREAM.*` endpoints that make, show, change and empty streams."""

from __future__ import annotations

from functools import partial
from typing import Final, cast

from streamd import errors, limits
from streamd.api import account_limits, cluster_endpoints, decoding, infos, shapes, stream_configs
from streamd.api.decoding import decode, decode_optional
from streamd.api.paging import paged
from streamd.api.request import ApiContext, Request
from streamd.machine import commands, message_headers
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.meta import StreamAsset
from streamd.node.ports import StreamHandle
from streamd.subjects import Matcher
from streamd.types import Document

STORAGE_DETAIL: Final = b"Nats-Storage-Detail"
"""Header of a `STREAM.INFO`; "true": what the blocks take on the leader's disk is shown, too."""


def create(request: Request) -> None:
    """`STREAM.CREATE.<stream>`: make a stream; with an equal config, show the one there is."""
    given, is_pedantic = _given_config(request)
    name = request.names[0]
    if given.get("name", "") != name:
        raise errors.STREAM_MISMATCH()
    if "/" in name or "\\" in name:
        raise errors.STREAM_NAME_CONTAINS_PATH_SEPARATORS()
    stream_configs.check_create(given)
    config = _normal_config(request.context, given, is_pedantic)
    if config["storage"] == "file" and request.context.node.is_short_of_files():
        raise errors.JsError(
            errors.INSUFFICIENT_RESOURCES.code,
            errors.INSUFFICIENT_RESOURCES.err_code,
            "insufficient resources: the server may open too few files (ulimit -n)",
        )
    if request.context.is_clustered:
        cluster_endpoints.create_stream(request, config)
        return
    is_new = request.context.streams.stream(name) is None
    if is_new:
        account_limits.check_count(request.context, config)
    _check_resources(request.context, config)

    def created(asset: StreamAsset) -> None:
        handle = request.stream()
        if is_new:
            request.context.advisories.stream_action("CREATED", "create", name)
        request.answer(infos.stream_info(request.context, handle) | {"did_create": True})

    bounds = account_limits.bounds(request.context, config)
    placed = [None, *bounds] if bounds else []
    command = [commands.CREATE_STREAM, request.context.clock.now_ns(), config, *placed]
    request.propose_meta(command, created)


def _given_config(request: Request) -> tuple[StreamConfig, bool]:
    """Decode a request that is a stream's config, and whether it is pedantic."""
    given = cast(StreamConfig, decode(request.payload, shapes.STREAM_CONFIG))
    is_pedantic = given.pop("pedantic", False)
    return given, is_pedantic


def _normal_config(context: ApiContext, given: StreamConfig, is_pedantic: bool) -> StreamConfig:
    """Return the full config of a stream of the account."""
    config = stream_configs.normalise(
        given,
        duplicate_window_max_ns=context.asset_limits.duplicate_window_ns_max,
        is_pedantic=is_pedantic,
        find=partial(_config_of, context),
    )
    account_limits.check_config(context, config)
    return stream_configs.owned(config, context.account)


def _config_of(context: ApiContext, name: str) -> StreamConfig | None:
    asset = context.asset(name)
    return asset.config if asset is not None else None


def update(request: Request) -> None:
    """`STREAM.UPDATE.<stream>`: replace a stream's config."""
    given, is_pedantic = _given_config(request)
    name = request.names[0]
    config = _normal_config(request.context, given, is_pedantic)
    if config["name"] != name:
        raise errors.STREAM_MISMATCH()
    if request.context.is_clustered:
        cluster_endpoints.update_stream(request, config)
        return
    handle = request.stream()
    config = stream_configs.check_update(handle.machine.config, config)
    _check_resources(request.context, config, handle)
    _check_consumers(handle, config)

    def updated(asset: StreamAsset) -> None:
        request.context.advisories.stream_action("UPDATED", "modify", name)
        request.answer(infos.stream_info(request.context, request.stream()))

    command = [commands.UPDATE_STREAM, request.context.clock.now_ns(), name, config]
    request.propose_meta(command, updated)


def _check_resources(
    context: ApiContext, config: StreamConfig, existing: StreamHandle | None = None
) -> None:
    """Refuse what one node cannot hold: replicas, and more bytes than it may use."""
    if config["num_replicas"] > 1:
        raise errors.STREAM_REPLICAS_NOT_SUPPORTED()
    if existing is not None or context.asset(config["name"]) is None:
        account_limits.check_room(context, config)
    if config["max_bytes"] <= 0:
        return
    storage = config["storage"]
    available = context.node.storage_max if storage == "file" else context.node.memory_max
    if 0 <= available < _reserved_bytes(context, storage, existing) + config["max_bytes"]:
        raise account_limits.exceeded(storage)


def _reserved_bytes(context: ApiContext, storage: str, leave_out: StreamHandle | None) -> int:
    """Return what streams of this kind of storage, of any account, have set aside by their
    `max_bytes`."""
    return sum(
        max(0, handle.machine.config["max_bytes"])
        for handle in context.node.streams()
        if handle.machine.config["storage"] == storage
        and (leave_out is None or handle.uid != leave_out.uid)
    )


def _check_consumers(handle: StreamHandle, config: StreamConfig) -> None:
    """Refuse limits that consumers of the stream exceed already."""
    offenders = cluster_endpoints.limit_offenders(handle, config["consumer_limits"])
    if offenders:
        names = ", ".join(offenders)
        raise errors.STREAM_UPDATE(err=f"change to limits violates consumers: {names}")


def info(request: Request) -> None:
    """`STREAM.INFO.<stream>`: config and state, on demand with deleted seqs or subject counts."""
    wanted = decode_optional(request.payload, shapes.STREAM_INFO)
    request.when_current(request.stream(), _show_info, request, wanted)


def _show_info(request: Request, wanted: Document) -> None:
    handle = request.stream()
    shown = infos.stream_info(request.context, handle)
    headers = request.headers
    if headers and message_headers.get(headers, STORAGE_DETAIL) == b"true":
        shown |= infos.blocks(request.context.node, handle.uid)
    if not request.context.is_clustered:
        shown["cluster"] = {"leader": request.context.node.server_name}
    total = offset = limit = 0
    if wanted.get("deleted_details"):
        index = handle.machine.index
        page = limits.DELETED_DETAIL_PAGE
        if len(index.live.deleted) > page and not wanted.get("subjects_filter"):
            # As of subjects. With both, the offset is the subjects', and of these the first come.
            total, offset, limit = len(index.live.deleted), max(0, wanted.get("offset", 0)), page
        deleted = index.live.deleted.page(offset if limit else 0, page)
        if deleted:
            shown["state"]["deleted"] = deleted
    if wanted.get("subjects_filter"):
        matcher = Matcher([wanted["subjects_filter"].encode()])
        # Unlike elsewhere, an offset beyond the end is shown as it was asked.
        offset, limit = max(0, wanted.get("offset", 0)), limits.SUBJECT_DETAIL_PAGE
        total, counts = handle.machine.index.lookup.counts_page(matcher, offset, limit)
        if not total:
            offset = limit = 0
        if counts:
            shown["state"]["subjects"] = {
                subject.decode("utf-8", "replace"): count for subject, count in counts.items()
            }
    request.answer({"total": total, "offset": offset, "limit": limit} | shown)


def names(request: Request) -> None:
    """`STREAM.NAMES`: names of streams, on demand of those that capture a subject."""
    wanted = decode_optional(request.payload, shapes.STREAM_NAMES)
    found = cluster_endpoints.matching(request.context, wanted.get("subject", ""))
    shown, place = paged(found, wanted, limits.STREAM_NAME_PAGE)
    request.answer(place | {"streams": [asset.name for asset in shown] or None})


def list_infos(request: Request) -> None:
    """`STREAM.LIST`: as NAMES, with their infos."""
    cluster_endpoints.list_streams(request, decode_optional(request.payload, shapes.STREAM_LIST))


def delete(request: Request) -> None:
    """`STREAM.DELETE.<stream>`."""
    if not decoding.is_empty_request(request.payload):
        raise errors.NOT_EMPTY_REQUEST()
    if request.context.is_clustered:
        cluster_endpoints.delete_stream(request)
        return
    asset = request.asset(may_be_restoring=True)
    name = asset.name

    def deleted(_: object) -> None:
        request.context.advisories.stream_action("DELETED", "delete", name)
        request.answer({"success": True})

    command = [commands.DELETE_STREAM, request.context.clock.now_ns(), name, asset.uid]
    request.propose_meta(command, deleted)


def purge(request: Request) -> None:
    """`STREAM.PURGE.<stream>`: remove messages: all, of a filter, below a seq, all but some."""
    wanted = decode_optional(request.payload, shapes.STREAM_PURGE)
    seq, keep = wanted.get("seq", 0), wanted.get("keep", 0)
    if seq and keep:
        raise errors.BAD_REQUEST()
    handle = request.stream()
    if handle.machine.config["sealed"]:
        raise errors.STREAM_SEALED()
    if handle.machine.config["deny_purge"]:
        raise errors.STREAM_PURGE_FAILED(err="stream purge not permitted")
    pattern = wanted.get("filter", "").encode()
    now_ns = request.context.clock.now_ns()
    request.propose(
        handle,
        [commands.PURGE, now_ns, pattern, seq, keep],
        lambda count: request.answer({"success": True, "purged": count}),
    )


def needs_cluster(request: Request) -> None:
    """Endpoints that move, scale or hand over: there is nobody to do it with."""
    raise errors.CLUSTER_REQUIRED()
