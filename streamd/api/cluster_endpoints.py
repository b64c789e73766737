"""Endpoints of a cluster: placing streams, asking their leaders, handing leadership over.

Endpoints of the meta leader work on assets, for most streams are led elsewhere; what only a
stream's leader knows is asked for by a call (`serve_call` answers those).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from streamd import errors, limits, subjects
from streamd.api import (
    account_limits,
    cluster_infos,
    decoding,
    infos,
    shapes,
    stream_configs,
    times,
)
from streamd.api.cluster_infos import led_stream, short_hash
from streamd.api.decoding import decode, decode_optional
from streamd.api.paging import paged
from streamd.api.request import ApiContext, Request
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.asset_configs import ConsumerLimits, Placement, StreamConfig
from streamd.machine.meta import StreamAsset
from streamd.node.cluster import placement
from streamd.node.ports import Answer, MemberInfo, NodeHandle, StreamHandle
from streamd.types import META_UID, Document, NodeId

# --- streams: made, changed, deleted, shown -----------------------------------------------------


def create_stream(request: Request, config: StreamConfig) -> None:
    """Place and make a stream whose config is checked; answer once its leader runs it."""
    context = request.context
    meta = context.node.meta
    name = config["name"]
    is_new = context.asset(name) is None
    if is_new:
        account_limits.check_count(context, config)
        account_limits.check_room(context, config)
    if is_new and meta.overlaps(config):
        raise errors.STREAM_SUBJECT_OVERLAP()  # rather than that nobody would take it
    peers: list[NodeId] = []
    try:
        peers = _cluster(context).choose(config, may_be_down=True)
    except JsError:
        if is_new:
            raise
        # To be told that the name is taken takes no room. If it is free again by then, a stream
        # without a place is refused.

    def shown(info: Document) -> None:
        if is_new:
            context.advisories.stream_action("CREATED", "create", name)
            info = info | {"did_create": True}
        request.answer(info)

    bounds = account_limits.bounds(context, config)
    command = [commands.CREATE_STREAM, context.clock.now_ns(), config, peers, *bounds]
    request.propose_meta(command, lambda asset: show_configured(request, asset, shown))


def update_stream(request: Request, wanted: StreamConfig) -> None:
    """Replace a stream's config; place it anew if that says so."""
    context = request.context
    asset = request.asset()
    config = stream_configs.check_update(asset.config, wanted)
    account_limits.check_room(context, config)
    peers = placement.rescale(
        _cluster(context), asset, config, leader=context.node.leader_of(asset.uid)
    )

    def shown(info: Document) -> None:
        context.advisories.stream_action("UPDATED", "modify", asset.name)
        request.answer(info)

    def propose() -> None:
        now_ns = context.clock.now_ns()
        request.propose_meta(
            [commands.UPDATE_STREAM, now_ns, asset.name, config, peers, asset.basis],
            lambda changed: show_configured(request, changed, shown),
            again=lambda: update_stream(request, wanted),
        )

    _check_consumers(request, asset, config, propose)


def _check_consumers(
    request: Request, asset: StreamAsset, config: StreamConfig, then: Callable[[], None]
) -> None:
    """Refuse limits that consumers exceed already; their stream's leader knows."""
    consumer_limits = config["consumer_limits"]
    if not consumer_limits or consumer_limits == asset.config["consumer_limits"]:
        then()
        return
    context = request.context
    handle = led_stream(context.node, asset.uid)

    def judged(offenders: list[str] | JsError) -> None:
        if isinstance(offenders, JsError):
            request.refuse(offenders)
        elif offenders:
            names = ", ".join(offenders)
            text = f"change to limits violates consumers: {names}"
            request.refuse(errors.STREAM_UPDATE(err=text))
        else:
            request.guard(then)

    if handle is not None:
        judged(limit_offenders(handle, consumer_limits))
        return
    leader, peers = context.node.leader_of(asset.uid), context.node.peers
    if not leader or peers is None:
        raise errors.CLUSTER_NOT_AVAIL()
    peers.call(leader, "api.offenders", [asset.uid, consumer_limits], judged, limits.API_CALL_MS)


def limit_offenders(handle: StreamHandle, consumer_limits: ConsumerLimits) -> list[str]:
    """Return the names of consumers that exceed `consumer_limits`, sorted."""
    ack_pending_max = consumer_limits.get("max_ack_pending", 0)
    inactive_max = consumer_limits.get("inactive_threshold", 0)
    return sorted(
        consumer.name
        for consumer in handle.machine.consumers.values()
        if 0 < ack_pending_max < consumer.config.get("max_ack_pending", 0)
        or 0 < inactive_max < consumer.config.get("inactive_threshold", 0)
    )


def delete_stream(request: Request) -> None:
    """Delete a stream everywhere."""
    context = request.context
    asset = request.asset(may_be_restoring=True)

    def deleted(_: object) -> None:
        context.advisories.stream_action("DELETED", "delete", asset.name)
        request.answer({"success": True})

    now_ns = context.clock.now_ns()
    request.propose_meta([commands.DELETE_STREAM, now_ns, asset.name, asset.uid], deleted)


def show_configured(
    request: Request,
    asset: StreamAsset,
    then: Callable[[Document], None],
    owner: ApiContext | None = None,
) -> None:
    """Get the info of a stream once its leader runs the config of `asset`. `owner`: of the stream's
    account, if another one asks."""
    context = owner or request.context

    def ask(outcome: object) -> None:
        if isinstance(outcome, JsError):
            request.refuse(outcome)
        else:
            gather_infos(context, [asset], False, got)

    def got(found: dict[int, Document]) -> None:
        info = found.get(asset.uid)
        if info is None:  # it is there, but its leader has changed meanwhile
            info = _bare_info(context, asset)
        request.guard(then, info)

    context.node.wait_configured(asset.uid, asset.update_index, ask, limits.API_CONFIGURED_MS)


def _bare_info(context: ApiContext, asset: StreamAsset) -> Document:
    """StreamInfo of a stream whose leader does not answer, from what the meta group knows."""
    config = stream_configs.shown(asset.config)
    config["metadata"] = infos.with_dynamic_metadata(context, config.get("metadata", {}))
    state = dict.fromkeys(
        ("messages", "bytes", "first_seq", "first_ts", "last_seq", "last_ts", "consumer_count"), 0
    )
    return {
        "config": config,
        "created": times.format_ns(asset.created_ns),
        "state": infos.stream_state(state, asset.config),
        "cluster": cluster_infos.cluster_block(context.node, asset.uid, asset.config),
        "ts": times.format_ns(context.clock.now_ns()),
    }


def gather_infos(
    context: ApiContext,
    assets: list[StreamAsset],
    is_listed: bool,
    done: Callable[[dict[int, Document]], None],
) -> None:
    """Collect StreamInfos by uid, see cluster_infos.gather."""
    cluster_infos.gather(
        context.node,
        assets,
        is_listed=is_listed,
        show=lambda handle: infos.stream_info(context, handle, is_listed=is_listed),
        done=done,
    )


def matching(context: ApiContext, subject: str) -> list[StreamAsset]:
    """Return all streams by name, or those that capture a subject that `subject` matches."""
    assets = [
        asset
        for asset in context.node.meta.streams_of(context.account)
        if not asset.config.get("restoring")
    ]
    if not subject:
        return assets
    pattern = subject.encode()
    return [
        asset
        for asset in assets
        if any(subjects.collides(own.encode(), pattern) for own in asset.config["subjects"])
    ]


def list_streams(request: Request, wanted: Document) -> None:
    """Answer `STREAM.LIST` with what the leaders say; who does not leaves its streams missing."""
    context = request.context
    assets = matching(context, wanted.get("subject", ""))
    shown, place = paged(assets, wanted, limits.LIST_PAGE)

    def got(found: dict[int, Document]) -> None:
        rows = [found[asset.uid] for asset in shown if asset.uid in found]
        missing = [asset for asset in shown if asset.uid not in found]
        request.answer(place | {"streams": rows} | _what_is_missing(context, missing))

    gather_infos(context, shown, True, got)


def _what_is_missing(context: ApiContext, assets: list[StreamAsset]) -> Document:
    """Return the fields of a list for streams whose infos nobody gave: `missing`, all names, and
    `offline`, by name why, as far as this node can tell."""
    if not assets:
        return {}
    fields: Document = {"missing": [asset.name for asset in assets]}
    reasons = {asset.name: _why_offline(context, asset) for asset in assets}
    offline = {name: reason for name, reason in reasons.items() if reason}
    if offline:
        fields["offline"] = offline
    return fields


def _why_offline(context: ApiContext, asset: StreamAsset) -> str:
    node = context.node
    reason = node.failed.get(asset.key, "")
    if reason:
        return reason
    if not context.is_clustered:
        return ""
    members = asset.members or asset.peers
    nodes = _cluster(context)
    down = [name for name in members if not nodes.is_up(name)]
    if 2 * len(down) < len(members):
        return ""  # enough are there to elect a leader
    return f"no majority of its replicas is online: {', '.join(down)} offline"


def account_usage(context: ApiContext, done: Callable[[dict[str, int]], None]) -> None:
    """Add up what all nodes that can be reached hold: memory, storage, consumers; and these of the
    streams with each number of replicas (`memory.R3`)."""
    total = _own_usage(context.node, context.account)
    peers = context.node.peers
    others = peers.nodes() if peers is not None else []
    if not others or peers is None:
        done(total)
        return
    waiting = len(others)

    def answered(usage: object) -> None:
        nonlocal waiting
        waiting -= 1
        if isinstance(usage, dict):
            for field, amount in usage.items():
                total[field] = total.get(field, 0) + amount
        if not waiting:
            done(total)

    for node_id in others:
        peers.call(node_id, "api.usage", [context.account], answered, limits.API_CALL_MS)


def _own_usage(node: NodeHandle, account: str) -> dict[str, int]:
    usage: dict[str, int] = {}
    consumers: Counter[int] = Counter()
    replicas: set[int] = set()
    for asset in node.meta.streams_of(account):
        count = asset.config["num_replicas"]
        replicas.add(count)
        handle = led_stream(node, asset.uid)
        if handle is not None:
            consumers[count] += len(handle.machine.consumers)
    for count in sorted(replicas):
        tier = account_limits.tier_name(count)
        used = node.used_bytes(account, count)
        usage[f"memory.{tier}"], usage[f"storage.{tier}"] = used
        usage[f"consumers.{tier}"] = consumers[count]
    usage["memory"], usage["storage"] = node.used_bytes(account)
    usage["consumers"] = consumers.total()
    return usage


# --- peers and leaders --------------------------------------------------------------------------


def remove_peer(request: Request) -> None:
    """`STREAM.PEER.REMOVE.<stream>`: another node takes the place of one replica.

    The replica leaves when the new one is whole, so `STREAM.PEER.EVACUATE` is the same.
    """
    context = request.context
    if decoding.is_empty_request(request.payload):
        raise errors.BAD_REQUEST()
    asset, leaving = _asset_and_peer(request)
    peers = placement.replace(_cluster(context), asset, leaving)
    _set_peers(
        request, asset, peers, lambda _: request.answer({"success": True}), again=remove_peer
    )


def _asset_and_peer(request: Request) -> tuple[StreamAsset, NodeId]:
    """Return the stream of a request, and which of its nodes the request names."""
    wanted = decode(request.payload, shapes.PEER_REMOVE).get("peer", "")
    if not wanted:
        raise errors.BAD_REQUEST()
    asset = request.asset()
    found = [name for name in asset.peers if wanted in (name, short_hash(name))]
    if not found:
        raise errors.CLUSTER_PEER_NOT_MEMBER()
    return asset, found[0]


def remove_consumer_peer(request: Request) -> None:
    """`CONSUMER.PEER.REMOVE.<stream>.<consumer>`, and `CONSUMER.PEER.EVACUATE`: refused.

    A consumer is wherever its stream is, so none of the stream's other nodes can take the place of
    one; as where a consumer of nats-server's has as many replicas as its stream.
    """
    if decoding.is_empty_request(request.payload):
        raise errors.BAD_REQUEST()
    decode(request.payload, shapes.PEER_REMOVE)
    if request.names[1] not in request.stream().machine.consumers:
        raise errors.CONSUMER_NOT_FOUND()
    _asset_and_peer(request)
    raise errors.PEER_REMAP()


def _set_peers(
    request: Request,
    asset: StreamAsset,
    peers: list[NodeId],
    then: Callable[[StreamAsset], None],
    again: Callable[[Request], None],
) -> None:
    """Place a stream's replicas on `peers`, unless it is not what `asset` says by then: `again`
    looks once more."""
    now_ns = request.context.clock.now_ns()
    command = [commands.SET_PEERS, now_ns, asset.uid, peers, asset.basis]
    request.propose_meta(command, then, again=lambda: again(request))


def servers(node: NodeHandle) -> list[NodeId]:
    """Return the members of the meta group: all servers of the cluster."""
    group = node.group_info(META_UID) or {}
    return [node.server_name, *(peer["name"] for peer in group.get("peers") or ())]


def cancel_move(request: Request) -> None:
    """`STREAM.CANCEL_MOVE.<stream>`: the replicas stay where they are."""
    keep_members(request, request.context, request.asset(), again=cancel_move)


def keep_members(
    request: Request, owner: ApiContext, asset: StreamAsset, again: Callable[[Request], None]
) -> None:
    """Leave a stream's replicas where they are, as many as there were, with the placement
    that they had; answer with its info, as `owner`'s account sees it."""
    config = asset.config
    change = request.context.node.meta.changes.get(asset.uid)
    if change is not None and change.replicas:
        config = config | {"num_replicas": change.replicas, "placement": change.placement}
    # Those who were members first; who was wanted meanwhile comes behind.
    peers = list(asset.members)[: config["num_replicas"]]
    if set(asset.peers) == set(peers):
        raise errors.STREAM_RECONFIGURE_NOT_IN_PROGRESS()

    def kept(changed: StreamAsset) -> None:
        show_configured(request, changed, request.answer, owner)

    if config == asset.config:
        _set_peers(request, asset, peers, kept, again)
        return
    now_ns = request.context.clock.now_ns()
    command = [commands.UPDATE_STREAM, now_ns, asset.name, config, peers, asset.basis]
    request.propose_meta(command, kept, again=lambda: again(request))


def step_down_stream(request: Request) -> None:
    """`STREAM.LEADER.STEPDOWN.<stream>`: another member leads from now on."""
    _step_down(request, request.stream().uid)


def step_down_consumer(request: Request) -> None:
    """`CONSUMER.LEADER.STEPDOWN.<stream>.<consumer>`: a consumer is led with its stream, so that
    changes hands."""
    handle = request.stream()
    if request.names[1] not in handle.machine.consumers:
        raise errors.CONSUMER_NOT_FOUND()
    _step_down(request, handle.uid)


def step_down_meta(request: Request) -> None:
    """`META.LEADER.STEPDOWN`: another node leads the meta group."""
    _step_down(request, META_UID)


def _step_down(request: Request, uid: int) -> None:
    context = request.context
    node = context.node
    given = decode_optional(request.payload, shapes.STEP_DOWN)
    wanted = cast(Placement, given.get("placement") or {})
    members = (node.group_info(uid) or {}).get("peers") or ()
    others = [peer for peer in members if peer["name"] != node.server_name]
    if not others:
        request.answer({"success": True})  # the only one there is keeps it
        return
    preferred = _successor(context, wanted, others) if wanted else ""

    def stepped(outcome: object) -> None:
        context.counts.pending -= 1
        if isinstance(outcome, JsError):
            request.refuse(outcome)
        else:
            request.answer({"success": True})

    context.counts.pending += 1
    node.step_down(uid, preferred, stepped)


def _successor(context: ApiContext, wanted: Placement, others: list[MemberInfo]) -> NodeId:
    """Return the node that a step-down's placement asks for; empty: any."""
    node = context.node
    name = wanted.get("preferred", "")
    cluster = _cluster(context)
    if name:
        name = next((peer["name"] for peer in others if name == short_hash(peer["name"])), name)
        if name == node.server_name:
            raise errors.CLUSTER_NO_PEERS(err=f'preferred server "{name}" is already leader')
        if name not in [peer["name"] for peer in others]:
            raise errors.CLUSTER_NO_PEERS(err=f'preferred server "{name}" not known')
        if not cluster.is_up(name):
            raise errors.CLUSTER_NO_PEERS(err="no replacement peer connected")
        return str(name)
    fitting = [
        peer
        for peer in others
        if peer["name"] in cluster.facts and cluster.suits(peer["name"], {"placement": wanted})
    ]
    if not fitting:
        raise errors.CLUSTER_NO_PEERS(err="no replacement peer connected")

    def distance(peer: MemberInfo) -> tuple[bool, int, str]:
        return not peer.get("current"), peer.get("lag", 0), peer["name"]

    return str(min(fitting, key=distance)["name"])


def _cluster(context: ApiContext) -> placement.ClusterView:
    return placement.ClusterView.seen_by(context.node)


# --- what other nodes ask -----------------------------------------------------------------------


def serve_call(
    node: NodeHandle,
    context_of: Callable[[str], ApiContext],
    method: str,
    args: Any,
    answer: Answer,
) -> None:
    """Answer a call `api.*` of another node. `context_of`: of an account."""
    if method == "api.stream_infos":
        uids, is_listed = args
        handles = [led_stream(node, uid) for uid in uids]
        answer(
            [
                infos.stream_info(context_of(handle.account), handle, is_listed=is_listed)
                if handle
                else None
                for handle in handles
            ]
        )
    elif method == "api.offenders":
        uid, consumer_limits = args
        led = led_stream(node, uid)
        answer(errors.CLUSTER_NOT_AVAIL() if led is None else limit_offenders(led, consumer_limits))
    elif method == "api.usage":
        answer(_own_usage(node, *args))
    else:
        answer(errors.BAD_REQUEST())
