"""Operations that the system account asks for on streams of any account: `ACCOUNT.*`.

Streams belong to another account than the one that asks and is answered. They are shown, and
advisories are sent, as that other account's.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import errors, limits
from streamd.api import cluster_endpoints, shapes
from streamd.api.cluster_infos import short_hash
from streamd.api.decoding import decode
from streamd.api.request import ApiContext, Request
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.asset_configs import Placement
from streamd.machine.meta import StreamAsset
from streamd.node.cluster import placement
from streamd.types import Document, NodeId


class AccountOperations:
    """Endpoints whose subjects name the account."""

    def __init__(
        self,
        context_of: Callable[[str], ApiContext],
        with_jetstream: Callable[[], list[str]],
    ) -> None:
        """`with_jetstream` returns the names of the accounts that may have streams now; others may
        have had them before."""
        self._context_of = context_of
        self._with_jetstream = with_jetstream

    def purge(self, request: Request) -> None:
        """`ACCOUNT.PURGE.<account>`: delete all streams of an account, whatever becomes of it.

        As with nats-server an account that nobody has heard of is purged, too. Answered when the
        streams are deleted; who is told of an error meanwhile asks again for what is left.
        """
        account = request.names[0]
        if "/" in account or "\\" in account:
            raise errors.STREAM_GENERAL_ERROR(err="account name can not contain path separators")
        left = request.context.node.meta.streams_of(account)
        left.reverse()
        waiting = 0
        refused: JsError | None = None

        def propose() -> None:
            nonlocal waiting
            run = [left.pop() for _ in range(min(len(left), limits.API_PURGED_AT_ONCE))]
            waiting = len(run)
            if not run:
                request.answer({"initiated": True})
            for asset in run:
                self._delete(request, asset, deleted)

        def deleted(outcome: object) -> None:
            nonlocal waiting, refused
            waiting -= 1
            if isinstance(outcome, JsError) and outcome != errors.STREAM_NOT_FOUND():
                refused = outcome
            if waiting:
                return
            if refused is not None:
                request.refuse(refused)
            else:
                request.guard(propose)

        propose()

    def _delete(self, request: Request, asset: StreamAsset, done: Callable[[object], None]) -> None:
        def deleted(outcome: object) -> None:
            if not isinstance(outcome, JsError):
                owner = self._context_of(asset.account)
                owner.advisories.stream_action("DELETED", "delete", asset.name)
            done(outcome)

        now_ns = request.context.clock.now_ns()
        command = [commands.DELETE_STREAM, now_ns, asset.name, asset.uid]
        request.context.node.propose_meta(command, deleted)

    def move(self, request: Request) -> None:
        """`ACCOUNT.STREAM.MOVE.<account>.<stream>`: another server takes the place of one.

        The one that is named; else the first that the tags do not want, else the first. Tags are
        for this move, and do not become the stream's.
        """
        wanted = decode(request.payload, shapes.STREAM_MOVE)
        context = request.context
        server = ""
        if wanted.get("server"):
            server = self._member(request, wanted)
        asset = self._asset(request)
        if server and server not in asset.peers:
            is_leaving = server in asset.members
            raise (
                errors.STREAM_MOVE_IN_PROGRESS() if is_leaving else errors.CLUSTER_PEER_NOT_MEMBER()
            )
        view = placement.ClusterView.seen_by(context.node)
        peers = placement.relocate(view, asset, server, _placement(asset, wanted))
        if asset.is_moving:
            raise errors.STREAM_MOVE_IN_PROGRESS()
        owner = self._context_of(asset.account)

        def shown(info: Document) -> None:
            owner.advisories.stream_action("UPDATED", "modify", asset.name)
            request.answer(info)

        now_ns = context.clock.now_ns()
        request.propose_meta(
            [commands.UPDATE_STREAM, now_ns, asset.name, asset.config, peers, asset.basis],
            lambda changed: cluster_endpoints.show_configured(request, changed, shown, owner),
            again=lambda: self.move(request),
        )

    def cancel_move(self, request: Request) -> None:
        """`ACCOUNT.STREAM.CANCEL_MOVE.<account>.<stream>`: its replicas stay where they are."""
        asset = self._asset(request)
        owner = self._context_of(asset.account)
        cluster_endpoints.keep_members(request, owner, asset, again=self.cancel_move)

    def _asset(self, request: Request) -> StreamAsset:
        account, name = request.names
        meta = request.context.node.meta
        is_known = account in self._with_jetstream() or account == request.context.account
        if not is_known and not meta.streams_of(account):
            raise errors.NO_ACCOUNT()
        asset = meta.stream(name, account)
        if asset is None or asset.config.get("restoring"):
            raise errors.STREAM_NOT_FOUND()
        return asset

    def _member(self, request: Request, wanted: Document) -> NodeId:
        """Return the server that is to be left, which is one of the cluster that is named."""
        node, name = request.context.node, wanted["server"]
        if wanted.get("cluster", node.cluster_name) in ("", node.cluster_name):
            for server in cluster_endpoints.servers(node):
                if name in (server, short_hash(server)):
                    return server
        raise errors.CLUSTER_SERVER_NOT_MEMBER()


def _placement(asset: StreamAsset, wanted: Document) -> Placement:
    """Return what a stream's placement asks for, and what one move asks for beside it."""
    merged: Placement = {**(asset.config.get("placement") or {})}
    if wanted.get("cluster"):
        merged["cluster"] = wanted["cluster"]
    if wanted.get("tags"):
        merged["tags"] = [*merged.get("tags", ()), *wanted["tags"]]
    return merged
