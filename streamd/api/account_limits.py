"""Limits of an account: what its streams and consumers may be, and what they may set aside.

An account has one set of limits for all its streams, or tiers: a set for those with one number of
replicas each (`R1`, `R3`). Limits are read anew at every request, so that a reload counts at once;
what exists already stays when they get lower. Order and words of the refusals are nats-server's: as
there, a limit of no streams, consumers or bytes of a stream is none, and `max_consumers` counts the
consumers of each stream alone. Publishes are limited elsewhere: node/resources/account_storage.py.

Only the log's order decides which of two new streams comes first: `bounds` go with the command, and
the meta group checks them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final, NamedTuple

from streamd import errors
from streamd.api.request import ApiContext
from streamd.config.account_options import JetStreamTier
from streamd.errors import JsError
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.meta import StreamAsset, reserved_bytes
from streamd.types import AssetLimits, Document

_BOUND_MAX: Final = 1 << 62
"""A larger limit is as good as none: what it is multiplied with stays a number of 64 bits."""
_TIER_USAGE: Final = ("memory", "storage", "consumers")


class Selected(NamedTuple):
    """The limits that hold for a stream, and the streams that share them."""

    limits: JetStreamTier
    replicas: int = 0  # of the streams that share them; 0: all streams of the account do

    def shared_by(self, assets: Iterable[StreamAsset]) -> list[StreamAsset]:
        """Return those of an account's streams that count against the same limits."""
        return [
            asset
            for asset in assets
            if not self.replicas or asset.config["num_replicas"] == self.replicas
        ]

    def reserved(self, config: StreamConfig) -> int:
        """Return the bytes that a stream sets aside of these limits: those of all its replicas,
        but in a tier each stream counts once."""
        reserved = reserved_bytes(config)
        return reserved // config["num_replicas"] if self.replicas else reserved

    def bytes_max(self, storage: str) -> int:
        """Return the most bytes of this kind of storage; -1: there is no limit."""
        return self.limits.max_storage if storage == "file" else self.limits.max_memory


def tier_name(replicas: int) -> str:
    """Return the name of the tier of streams with so many replicas."""
    return f"R{replicas}"


def select(context: ApiContext, replicas: int) -> Selected:
    """Return the limits of the account's streams with `replicas`. Raises the API's error if it has
    none for them."""
    jetstream = context.jetstream()
    if jetstream is None:
        raise errors.NOT_ENABLED_FOR_ACCOUNT()
    if not jetstream.tiers:
        return Selected(jetstream.limits)
    limits = jetstream.tiers.get(tier_name(replicas))
    if limits is None:
        raise errors.NO_LIMITS()
    return Selected(limits, replicas)


# --- streams --------------------------------------------------------------------------------------


def check_config(context: ApiContext, config: StreamConfig) -> None:
    """Refuse a stream that no room would be enough for: whether it is new or is changed, and before
    it is known to exist."""
    limits = select(context, config["num_replicas"]).limits
    if 0 < limits.max_consumers < config["max_consumers"]:
        raise errors.MAXIMUM_CONSUMERS_LIMIT()
    if limits.max_bytes_required and config["max_bytes"] <= 0:
        raise errors.STREAM_MAX_BYTES_REQUIRED()
    is_file = config["storage"] == "file"
    most = limits.storage_max_stream_bytes if is_file else limits.memory_max_stream_bytes
    if 0 < most < config["max_bytes"]:
        raise errors.STREAM_MAX_STREAM_BYTES_EXCEEDED()


def check_count(context: ApiContext, config: StreamConfig) -> None:
    """Refuse one stream more than the account may have. Not for a stream that exists."""
    selected = select(context, config["num_replicas"])
    if 0 < selected.limits.max_streams <= len(_sharing(context, selected)):
        raise errors.MAXIMUM_STREAMS_LIMIT()


def check_room(context: ApiContext, config: StreamConfig) -> None:
    """Refuse a stream for which the account has too little storage that nothing else set aside. One
    that sets nothing aside needs a byte."""
    selected = select(context, config["num_replicas"])
    storage = config["storage"]
    most = selected.bytes_max(storage)
    if most < 0:
        return
    reserved = sum(
        selected.reserved(asset.config)
        for asset in _sharing(context, selected)
        if asset.config["storage"] == storage and asset.name != config["name"]
    )
    if reserved + (selected.reserved(config) or 1) > most:
        raise exceeded(storage)


def check_stored(context: ApiContext, config: StreamConfig, byte_count: int) -> None:
    """Refuse an archive for whose messages the account or this server has no room."""
    is_file = config["storage"] == "file"
    selected = select(context, config["num_replicas"])
    node = context.node
    used = node.used_bytes(context.account, selected.replicas)[is_file]
    server_used = node.storage_bytes() if is_file else node.memory_bytes()
    server_max = node.storage_max if is_file else node.memory_max
    bounds = (selected.bytes_max(config["storage"]), used), (server_max, server_used)
    if any(0 <= most < held + byte_count for most, held in bounds):
        raise exceeded(config["storage"])


def exceeded(storage: str) -> JsError:
    """Return the error of too little storage of a kind."""
    if storage == "file":
        return errors.STORAGE_RESOURCES_EXCEEDED()
    return errors.MEMORY_RESOURCES_EXCEEDED()


def bounds(context: ApiContext, config: StreamConfig) -> list[list[int]]:
    """Return the last fields of a CREATE_STREAM: its bounds, or nothing if there are none."""
    selected = select(context, config["num_replicas"])
    streams_max = min(selected.limits.max_streams, _BOUND_MAX) or -1
    bytes_max = selected.bytes_max(config["storage"])
    if streams_max < 0 and bytes_max < 0:
        return []
    if bytes_max >= 0:  # the meta group counts each replica
        bytes_max = min(bytes_max * (selected.replicas or 1), _BOUND_MAX)
    return [[max(streams_max, -1), max(bytes_max, -1), selected.replicas]]


def _sharing(context: ApiContext, selected: Selected) -> list[StreamAsset]:
    return selected.shared_by(context.node.meta.streams_of(context.account))


# --- consumers ------------------------------------------------------------------------------------


def asset_limits(context: ApiContext, stream: StreamConfig) -> AssetLimits:
    """Return the bounds of a stream's consumers: the server's, or the account's if they are
    narrower."""
    allowed = context.asset_limits
    most = select(context, stream["num_replicas"]).limits.max_ack_pending
    if most <= 0 or 0 < allowed.ack_pending_max <= most:
        return allowed
    return allowed._replace(ack_pending_max=most)


def consumers_max(context: ApiContext, stream: StreamConfig) -> int:
    """Return the most consumers that the account lets a stream have; 0: any number."""
    limits = select(context, stream["num_replicas"]).limits
    return min(max(0, limits.max_consumers), _BOUND_MAX)


# --- shown ----------------------------------------------------------------------------------------


def shown(context: ApiContext, usage: dict[str, int]) -> Document:
    """Return what INFO says of limits, usage and tiers. `usage`: of the whole account, and for each
    number of replicas behind a dot (`memory.R3`), over all replicas."""
    jetstream = context.jetstream()
    assets = context.node.meta.streams_of(context.account)
    document: Document = {field: usage[field] for field in _TIER_USAGE}
    document["streams"] = len(assets)
    if jetstream is None or not jetstream.tiers:
        limits = jetstream.limits if jetstream is not None else JetStreamTier()
        return document | _reserved(Selected(limits), assets) | {"limits": asdict(limits)}
    none = JetStreamTier(0, 0, 0, 0, 0, 0, 0)
    names = {tier_name(asset.config["num_replicas"]) for asset in assets} | set(jetstream.tiers)
    tiers: Document = {}
    for name in sorted(names):
        replicas = int(name[1:]) if name[1:].isdigit() else 0
        selected = Selected(jetstream.tiers.get(name, none), replicas)
        sharing = selected.shared_by(assets) if replicas else []
        tier: Document = {field: usage.get(f"{field}.{name}", 0) for field in _TIER_USAGE}
        for field in ("memory", "storage"):
            tier[field] //= max(1, replicas)
        tier |= _reserved(selected, sharing)
        tiers[name] = tier | {"streams": len(sharing), "limits": asdict(selected.limits)}
    nothing = {"reserved_memory": 0, "reserved_storage": 0, "limits": asdict(none)}
    return document | nothing | {"tiers": tiers}


def _reserved(selected: Selected, assets: list[StreamAsset]) -> Document:
    reserved = {"memory": 0, "file": 0}
    for asset in assets:
        reserved[asset.config["storage"]] += selected.reserved(asset.config)
    return {"reserved_memory": reserved["memory"], "reserved_storage": reserved["file"]}
