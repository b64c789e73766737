"""Endpoints that concern the servers of a cluster: one leaves for good, its replicas move away, or
less than a majority is to be enough."""

from __future__ import annotations

from streamd import errors, limits
from streamd.api import decoding, shapes
from streamd.api.cluster_endpoints import servers
from streamd.api.cluster_infos import short_hash
from streamd.api.decoding import decode
from streamd.api.request import Request
from streamd.errors import JsError
from streamd.machine import commands
from streamd.node.cluster import placement
from streamd.node.ports import NodeHandle
from streamd.types import META_UID, Document, NodeId


def remove(request: Request) -> None:
    """`SERVER.REMOVE`: a server that is gone leaves the cluster for good.

    Its replicas leave their streams with it; where there is room, others take their place. One
    that is online is not removed: it would go on to serve whoever is connected to it.
    """
    context = request.context
    wanted = _decoded(request)
    node, cluster = context.node, placement.ClusterView.seen_by(context.node)
    group = node.group_info(META_UID) or {}
    now_ms = context.clock.monotonic_ms()
    if now_ms < context.server.removing_until_ms or group.get("is_changing"):
        raise errors.CLUSTER_SERVER_MEMBER_CHANGE_INFLIGHT()
    name = _member(node, wanted)
    if cluster.is_up(name):
        raise errors.RAFT_GENERAL(err=f"server {name!r} is online: stop it, then remove it")
    stream = node.removal_obstacle(name)
    if stream and not group.get("rescue_quorum"):  # else it is known that none comes back
        text = f"stream {stream!r} has no leader and may need server {name!r} for a majority"
        raise errors.RAFT_GENERAL(err=f"{text}: have it come back, or delete the stream")
    server_id = cluster.facts.get(name, {}).get("server_id", "")

    def removed(outcome: object) -> None:
        context.server.removing_until_ms = 0
        if isinstance(outcome, JsError):
            request.refuse(outcome)
            return
        request.answer({"success": True})
        context.advisories.server_removed(name, server_id)

    context.server.removing_until_ms = now_ms + limits.API_CONFIGURED_MS
    node.propose_meta([commands.REMOVE_SERVER, context.clock.now_ns(), name], removed)


def evacuate(request: Request) -> None:
    """`SERVER.EVACUATE`: other servers take the place of one in all streams that it has replicas
    of.

    Answered when that is decided; each replica leaves when its successor is whole. A stream for
    which no other server suits stays where it is.
    """
    name = _member(request.context.node, _decoded(request))
    _Evacuation(request, name).go_on()


def rescue(request: Request) -> None:
    """`META.RESCUE`: fewer servers than a majority elect the meta leader, for some minutes.

    For an operator who has lost the others for good, and removes them then. Every server answers
    for itself; one that knows a leader refuses.
    """
    context = request.context
    node = context.node
    server_id = node.node_facts.get(node.server_name, {}).get("server_id", "")
    place: Document = {"server": node.server_name, "server_id": server_id}

    def rescued(outcome: object) -> None:
        if isinstance(outcome, JsError):
            request.refuse(outcome, place)
            return
        assert type(outcome) is int, outcome
        context.advisories.meta_rescued(server_id, outcome, quorum)
        request.answer(place | {"prev_quorum": outcome, "new_quorum": quorum})

    try:
        if decoding.is_empty_request(request.payload):
            raise errors.BAD_REQUEST()
        quorum: int = decode(request.payload, shapes.META_RESCUE).get("quorum_needed", 0)
    except JsError as error:
        request.refuse(error, place)
    else:
        node.rescue_meta(quorum, rescued)


def _decoded(request: Request) -> Document:
    if decoding.is_empty_request(request.payload):
        raise errors.BAD_REQUEST()
    return decode(request.payload, shapes.SERVER_REMOVE)


def _member(node: NodeHandle, wanted: Document) -> NodeId:
    """Return the server that a request names by its name or by the hash of that."""
    peer_id, name = wanted.get("peer_id", ""), wanted.get("peer", "")
    for each in servers(node):
        if short_hash(each) == peer_id if peer_id else each == name:
            return each
    raise errors.CLUSTER_SERVER_NOT_MEMBER()


class _Evacuation:
    """Streams that are to leave one server: new places are proposed for few at a time, so that a
    choice sees the load that the ones before it have made."""

    def __init__(self, request: Request, name: NodeId) -> None:
        self._request = request
        self._name = name
        assets = request.context.node.meta.streams_by_uid.values()
        uids = [asset.uid for asset in assets if name in asset.peers]
        self._left = sorted(uids, reverse=True)  # the oldest last
        self._waiting = 0
        self._is_proposing = False
        self._refused: JsError | None = None

    def go_on(self) -> None:
        """Propose the next places; answer when none is left."""
        if self._is_proposing:
            return
        self._is_proposing = True
        while self._left and self._waiting < limits.API_EVACUATED_AT_ONCE:
            self._propose(self._left.pop())
        self._is_proposing = False
        if self._waiting:
            return
        if self._refused is not None:
            self._request.refuse(self._refused)
        else:
            self._request.answer({"success": True})

    def _propose(self, uid: int) -> None:
        context = self._request.context
        asset = context.node.meta.streams_by_uid.get(uid)
        if asset is None or self._name not in asset.peers:
            return  # gone, or moved meanwhile
        view = placement.ClusterView.seen_by(context.node)
        try:
            peers = placement.replace(view, asset, self._name)
        except JsError:
            return
        self._waiting += 1
        command = [commands.SET_PEERS, context.clock.now_ns(), uid, peers, asset.basis]

        def decided(outcome: object) -> None:
            self._waiting -= 1
            if outcome == errors.STREAM_MOVE_IN_PROGRESS():
                self._left.append(uid)  # it is another by now: choose anew
            elif isinstance(outcome, JsError) and outcome != errors.STREAM_NOT_FOUND():
                self._refused = outcome
                self._left.clear()
            self.go_on()

        context.node.propose_meta(command, decided)
