"""Requests in a cluster: served here, handed to the node that can, or kept until there is one.

The node that serves a request publishes the answer itself; the reply subject finds its way back as
any other, or, after more than one hop, through the client's own node (see Request). When the
serving node is lost meanwhile, what only reads is asked again elsewhere, and the rest refused as
temporarily unavailable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from streamd import errors, limits
from streamd.api.remote_client import RemoteClient, facts_of
from streamd.api.request import HERE, META, REPLICA, CallLater, Request, ServerContext
from streamd.errors import JsError
from streamd.types import Index, NodeId

FORWARD: Final = "api.request"


PublishAnswer = Callable[[str, bytes, bytes, bytes], None]
"""(account, reply, headers, payload)"""


class Forwarding:
    """Finds who serves a request. `serve` is called for what this node serves itself."""

    def __init__(
        self,
        server: ServerContext,
        serve: Callable[[Request], None],
        call_later: CallLater,
        publish: PublishAnswer,
    ) -> None:
        """`publish` sends an answer in an account's subject space."""
        self._server = server
        self._publish = publish
        self._serve = serve
        self._call_later = call_later
        self._parked: list[Request] = []  # oldest first
        self._has_timer = False
        self._is_nudged = False
        self._lists: deque[Request] = deque()  # wait until others have been served
        self._lists_served = 0  # and not answered yet, or only just now
        self._passed_on = 0  # to other nodes, which have not answered
        self._changes = 0  # served here, and not answered
        server.node.watch_leaders(self._on_leaders)
        server.node.wait_for_requests(self._has_any)

    def route(self, request: Request) -> None:
        """Serve `request` here, or pass it on, or keep it for a while."""
        target = self._target(request)
        if target == self._server.node.server_name:
            self._serve_here(request)
        elif self._give_back(request):
            return
        elif not target or not self._send(target, request):
            self.park(request)

    def _give_back(self, request: Request) -> bool:
        """This node stops, and another must serve the request. Who passed it on sees to that: it
        would hear from this one only that the link broke, and not what became of it."""
        if not (self._server.node.is_stopping and request.may_go_back):
            return False
        request.finish(is_answered=False)
        return True

    def _serve_here(self, request: Request) -> None:
        if self._is_early(request):
            request.parked_until_ms = self._server.clock.monotonic_ms() + limits.API_RETRY_MS
            self._call_later(limits.API_EARLY_S, self._serve_here, request)
            return
        endpoint = request.endpoint
        if endpoint.is_list:
            if self._lists_served >= limits.API_LISTS_MAX:
                self._keep_list(request)
                return
            self._lists_served += 1
            request.on_done = partial(self._listed, request.on_done)
        if endpoint.is_json and not endpoint.is_read:  # a read can be asked again elsewhere
            self._changes += 1
            request.on_done = partial(self._answered, request.on_done)
        self._serve(request)

    def _is_early(self, request: Request) -> bool:
        """True if a pull, which came through a third node, is here before the word that its client
        listens, which took another link: nothing would be delivered. Such a one is served late."""
        return (
            request.hops > 1
            and not request.endpoint.is_json
            and bool(request.reply)
            and not request.parked_until_ms
            and not request.context.wires.has_interest(request.reply)
        )

    def _answered(self, on_done: Callable[[bool], None] | None, is_answered: bool) -> None:
        self._changes -= 1
        if on_done is not None:
            on_done(is_answered)

    def _keep_list(self, request: Request) -> None:
        if len(self._lists) < limits.API_LISTS_WAITING_MAX:
            self._lists.append(request)
        else:
            request.context.advisories.limit_reached(1)
            request.finish()

    def _listed(self, on_done: Callable[[bool], None] | None, is_answered: bool) -> None:
        self._call_later(0, self._next_list)  # not at once: one chunk of a link may bring hundreds
        if on_done is not None:
            on_done(is_answered)

    def _next_list(self) -> None:
        self._lists_served -= 1
        while self._lists and self._lists_served < limits.API_LISTS_MAX:
            self.route(self._lists.popleft())

    def _has_any(self) -> bool:
        return bool(self._parked or self._passed_on or self._changes)

    def _target(self, request: Request) -> NodeId:
        """Return the node that serves `request`; empty: nobody at the moment."""
        node = self._server.node
        where = request.endpoint.where
        if where == HERE:
            return node.server_name
        if where != META:
            handle = request.context.streams.stream(request.names[0])
            if handle is not None:
                if handle.is_local:
                    return node.server_name
                leader = node.leader_of(handle.uid)
                if leader and leader != node.server_name and self._is_up(leader):
                    return leader
                if where == REPLICA and (node.group_info(handle.uid) or {}).get("state") == "ok":
                    return node.server_name  # may be a little behind, as reads of this kind may
                return ""
        # Also a stream unknown here: the meta leader knows of all, and says so if there is none.
        if node.is_meta_leader:
            return node.server_name
        return node.meta_leader if node.meta_leader != node.server_name else ""

    def _send(self, target: NodeId, request: Request) -> bool:
        peers = self._server.node.peers
        if peers is None or not self._is_up(target) or request.hops >= limits.API_HOPS_MAX:
            return False
        args = self._args(request)
        if request.endpoint.is_json:
            asked_ms = self._server.clock.monotonic_ms()

            def passed(result: object) -> None:
                self._passed(request, target, asked_ms, result)

            self._passed_on += 1
            peers.call(target, FORWARD, args, passed, limits.API_FORWARD_MS)
        else:
            peers.note(target, FORWARD, args)
        return True

    def _args(self, request: Request) -> list[object]:
        """Return what another node is told of a request."""
        client = request.client
        facts: list[object] = []
        if client is not None:
            origin = self._server.node.server_name
            if isinstance(client, RemoteClient):
                origin = client.server
            facts = facts_of(client, origin)
        fields = [request.subject, request.reply, request.headers, request.payload, facts]
        return [*fields, request.hops + 1, request.context.account]

    def pass_to_others(self, request: Request) -> None:
        """Ask every other node to answer `request` as well, for itself."""
        peers = self._server.node.peers
        if peers is not None:
            for node_id in peers.nodes():
                peers.note(node_id, FORWARD, self._args(request))

    def _passed(self, request: Request, target: NodeId, asked_ms: int, result: object) -> None:
        """`target` has answered the client, or gives the request back, or is gone, perhaps before
        it did. There may be another link to it by now: then it was this one that is gone."""
        self._passed_on -= 1
        waited_ms = self._server.clock.monotonic_ms() - asked_ms
        if result is False:
            if self._target(request) == target:
                self.park(request)  # who takes its place will say so
            else:
                self.route(request)
        elif not isinstance(result, JsError):
            request.finish()
        elif self._is_up(target) and waited_ms > limits.API_PARKED_MS:
            # Its endpoint chose silence, or is slow: the client's patience decides.
            request.finish()
        elif request.endpoint.is_read:
            if self._is_up(target):
                self.park(request)  # not at once: the link may take no more
            else:
                self.route(request)
        else:
            request.refuse(errors.CLUSTER_NOT_AVAIL())  # it may or may not have been done

    def _is_up(self, target: NodeId) -> bool:
        peers = self._server.node.peers
        return peers is not None and peers.is_up(target)

    # --- answers of other nodes ---------------------------------------------------------------

    def answer(
        self,
        account: str,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        index: Index = 0,
        left_ms: int = -1,
    ) -> None:
        """Publish an answer for a client of this node, once the meta group's entry `index` is
        applied here, or when that takes too long."""
        left_ms = limits.API_ANSWER_LATE_MS if left_ms < 0 else left_ms
        if self._server.node.meta.applied >= index or not left_ms:
            self._publish(account, reply, headers, payload)
            return
        left_ms = max(0, left_ms - int(limits.API_ANSWER_LOOK_S * 1000))
        args = (account, reply, headers, payload, index, left_ms)
        self._call_later(limits.API_ANSWER_LOOK_S, self.answer, *args)

    # --- requests that wait -----------------------------------------------------------------

    def park(self, request: Request) -> None:
        """Keep `request` until somebody leads who serves it, for as long as clients wait."""
        if not request.endpoint.is_json:
            request.no_responders()
            return
        if self._give_back(request):
            return
        now_ms = self._server.clock.monotonic_ms()
        if not request.parked_until_ms:
            request.parked_until_ms = now_ms + limits.API_PARKED_MS
        if len(self._parked) >= limits.API_PARKED_MAX or now_ms >= request.parked_until_ms:
            request.refuse(errors.CLUSTER_NOT_AVAIL())
            return
        self._parked.append(request)
        if not self._has_timer:
            self._has_timer = True
            self._call_later(limits.API_RETRY_MS / 1000, self._on_timer)

    def _on_leaders(self) -> None:
        # Not at once: the node is in the middle of taking the change in, and one election can
        # change thousands of leaders.
        if self._parked and not self._is_nudged:
            self._is_nudged = True
            self._call_later(0, self._look_again)

    def _on_timer(self) -> None:
        self._has_timer = False
        self._look_again()

    def _look_again(self) -> None:
        """Serve the requests that waited for a leader, as far as there is one now."""
        self._is_nudged = False
        waiting, self._parked = self._parked, []
        for request in waiting:
            self.route(request)
