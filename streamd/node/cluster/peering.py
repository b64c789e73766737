"""What a node and its peers tell each other: leaders, digests, facts, relayed client traffic.

Raft's own messages pass through `Node.on_raft`; here is everything around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.command_shapes import why_malformed
from streamd.node.groups import group as g
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.integrity.consistency_check import Comparisons
from streamd.node.ports import Peers
from streamd.node.stream_groups.forwarded_publishes import RelaySink
from streamd.protocol import acks
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.raft.messages import Message
from streamd.types import META_UID, NodeId, Term, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Peering:
    """One node's dealings with the others."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.peers: Peers | None = None
        self.comparisons = Comparisons(node)
        self.node_facts: dict[NodeId, dict[str, Any]] = {}
        self.call_prefixes: dict[str, Callable[..., None]] = {}
        self.note_prefixes: dict[str, Callable[..., None]] = {}
        self._cluster_ids: dict[NodeId, str] = {}
        self._announced: set[Uid] = set()
        self._told: dict[Uid, Term] = {}  # what this node said it leads, and in which term
        self.ignored_count = 0  # entries that no machine here could apply
        self._has_joined = False  # a cluster that was there, in this process's life

    def send(self, node_id: NodeId, uid: Uid, messages: list[Message]) -> None:
        """Raft messages of a group, on their way to a member."""
        if self.peers is not None:
            self.peers.send(node_id, uid, messages)

    # --- links ------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """See ports.PeerHandler."""
        node = self._node
        identity = node.identity
        group = node.meta_member.group
        facts = self.node_facts[node.server_name] = self.own_facts()
        voters = list(identity.get("voters", ()))
        if group is not None and not group.raft.is_uncertain:
            voters = list(group.raft.members.voters)
        return {
            "cluster_id": identity.get("cluster_id", ""),
            "incarnation": identity.get("id", ""),
            "is_virgin": not identity.get("cluster_id"),
            "voters": voters,
            "facts": facts,
            **node.removals.hello(),
            **node.sightings.hello(),
        }

    def renew_hello(self, founders: list[NodeId]) -> None:
        """This node belongs to a cluster now: those it met before learn of it.

        Not from us, if they are of its `founders`: who founded it tells them, and what they heard
        from others first would make them think that they had been in it and forgot.
        """
        self._has_joined = not founders
        if self.peers is not None:
            for node_id in self.peers.nodes():
                if node_id not in founders:
                    self.peers.note(node_id, "hello", [self.hello()])
                self.introduce_to(node_id)

    def introduce(self, monitor: Monitor, members: tuple[NodeId, ...]) -> None:
        """Tell a group which of its new `members` are here."""
        if self.peers is None:
            return
        live = self._live()
        for node_id in self.peers.nodes():
            if node_id in members:
                monitor.post(inbox.PeerUp(node_id, live))

    def introduce_to(self, node_id: NodeId) -> None:
        """Tell every group that has `node_id` as a member that it is here."""
        self._post_to_members(node_id, inbox.PeerUp)

    def on_up(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """A link is up."""
        assert self.peers is not None
        self.know(node_id, hello)
        if self._has_joined:
            # The hello of this link may have left before we joined; the meta leader counts by it.
            self.peers.note(node_id, "hello", [self.hello()])
        own = self._node.leaders.own()
        if own:
            self._told.update(own)
            self.peers.note(node_id, "leaders", [[uid, term, True] for uid, term in own])
        self._post_to_members(node_id, inbox.PeerUp)

    def know(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """Remember what a node said of itself."""
        self.node_facts[node_id] = hello.get("facts", {})
        self._cluster_ids[node_id] = hello.get("cluster_id", "")

    def on_down(self, node_id: NodeId) -> None:
        """A link broke."""
        self._node.publish_routes.relay.on_down(node_id)
        self._node.leaders.on_down(node_id)
        self._node.catalog.changed()
        self._post_to_members(node_id, inbox.PeerDown)

    def known_members(self) -> list[NodeId]:
        """Nodes of this cluster that are here now."""
        ours = self._node.cluster_id
        here = self.peers.nodes() if self.peers is not None else []
        return [name for name in here if ours and self._cluster_ids.get(name) == ours]

    def _live(self) -> frozenset[NodeId]:
        assert self.peers is not None
        return frozenset((self._node.server_name, *self.peers.nodes()))

    def _post_to_members(self, node_id: NodeId, kind: type[inbox.PeerUp | inbox.PeerDown]) -> None:
        live = self._live()
        node = self._node
        if node.meta_member.monitor is not None:
            node.meta_member.monitor.post(kind(node_id, live))
        for replica in node.replicas:
            if node_id in replica.group.raft.members.members():
                replica.monitor.post(kind(node_id, live))

    # --- leaders ----------------------------------------------------------------------------

    def announce(self, uid: Uid) -> None:
        """Tell all nodes, soon, whether this node leads `uid`."""
        if not self._announced:
            self._node.env.loop.call_soon(self._tell_leaders)
        self._announced.add(uid)

    def forget(self, uid: Uid) -> None:
        """The stream is deleted: nobody asks who leads it."""
        self._told.pop(uid, None)
        self._node.leaders.forget(uid)
        self._node.publish_routes.forget(uid)

    def _tell_leaders(self) -> None:
        announced, self._announced = self._announced, set()
        if self.peers is None:
            return
        # Not what the groups believe: one that is being closed gets no turn to learn better.
        leaders = self._node.leaders
        rows: list[list[Any]] = []
        for uid in sorted(announced):
            term = leaders.own_term(uid)
            if term:
                self._told[uid] = term
                rows.append([uid, term, True])
            elif uid in self._told:
                # Only the end of what others were told of. Who was elected just now leads nothing
                # yet either, and said "no more" would be deposed by its followers.
                rows.append([uid, self._told.pop(uid), False])
        if not rows:
            return
        for node_id in self.peers.nodes():
            self.peers.note(node_id, "leaders", rows)

    # --- what a turn brought ----------------------------------------------------------------

    def follow(self, uid: Uid, turn: g.Turn) -> None:
        """Checkpoints to compare, a snapshot to fetch, things an operator must hear."""
        node = self._node
        for text in turn.alerts:
            node.error("replicas disagree", group=uid, reason=text)
        for index, reason in turn.effects.ignored:
            self.ignored_count += 1
            node.error("a log entry was passed over", group=uid, index=index, reason=reason)
        if turn.snapshot_offer is not None:
            leader, offer = turn.snapshot_offer
            node.replicas.catch_ups.start(uid, leader, offer.index)
        group = node.group_of(uid)
        if group is None or self.peers is None:
            return
        if turn.alerts and group.raft.status()["has_diverged"]:
            node.tails.keep_conflict(uid, turn.alerts[0])
        if turn.checkpoints:
            self.comparisons.tell(uid, group, turn.checkpoints)

    # --- calls and notes --------------------------------------------------------------------

    def on_call(
        self, sender: NodeId, method: str, args: list[Any], answer: Callable[[Any], None]
    ) -> None:
        """See ports.PeerHandler."""
        for prefix, serve in self.call_prefixes.items():
            if method.startswith(prefix):
                serve(sender, method, args, answer)
                return
        if method == "configured":
            uid, meta_index = args
            self._node.config_changes.wait(uid, meta_index, answer, limits.CONFIGURED_MS)
        elif method == "has_left":
            self._node.replicas.departures.answer(args[0], sender, answer)
        elif method == "recall":
            answer(self._node.heirs.meta.recall())
        elif method == "stand_in":
            self._node.heirs.serve(args, answer)
        elif method == "terms":
            self._node.tails.serve(args, answer)
        elif method == "held":
            self._node.tails.serve_held(args, answer)
        elif method in ("manifest", "block"):
            self._node.replicas.catch_ups.serve(sender, method, args, answer)
        else:
            answer(errors.BAD_REQUEST())

    def on_note(self, sender: NodeId, kind: str, args: list[Any]) -> None:
        """See ports.PeerHandler."""
        for prefix, take in self.note_prefixes.items():
            if kind.startswith(prefix):
                take(sender, kind, args)
                return
        handler = _NOTES.get(kind)
        if handler is None:
            self._node.warn("unknown note of a peer", peer=sender, kind=kind)
        else:
            handler(self, sender, args)

    def _on_leaders(self, sender: NodeId, rows: list[Any]) -> None:
        node = self._node
        for uid, term, is_ready in rows:
            if uid != META_UID and node.meta.is_deleted(uid):
                continue  # its leader heard of that later than we did, and nobody says so again
            if not is_ready:
                self._on_leader_gone(sender, uid, term)
            node.leaders.note(sender, uid, term, is_ready=is_ready)
            if uid == META_UID:
                node.moves.look()
            else:
                node.config_changes.settle(uid)
        node.catalog.changed()

    def _on_leader_gone(self, sender: NodeId, uid: Uid, term: Term) -> None:
        """The leader of `term` stopped serving one group while its node goes on: a member at rest
        would not notice by itself. It may lead again, in a later term."""
        group, monitor = self._node.group_of(uid), self._node.monitor_of(uid)
        if group is None or monitor is None:
            return
        if group.raft.leader_id == sender and group.raft.term <= term:
            live = self._live()
            monitor.post(inbox.PeerDown(sender, live))
            monitor.post(inbox.PeerUp(sender, live))

    def _on_digests(self, sender: NodeId, rows: list[Any]) -> None:
        self.comparisons.on_told(sender, rows)

    def _on_digest(self, sender: NodeId, args: list[Any]) -> None:
        """From a server that tells of one group at a time: of an earlier version."""
        self.comparisons.on_told(sender, (args,))

    def _on_facts(self, sender: NodeId, args: list[Any]) -> None:
        self.node_facts[sender] = args[0]

    def _on_hello(self, sender: NodeId, args: list[Any]) -> None:
        self._node.on_hello_renewed(sender, args[0])

    def _on_meta(self, sender: NodeId, args: list[Any]) -> None:
        """A stream's leader reports what became of its group, or who led the meta group until now
        lets a server in. Nothing else is proposed for others, and nothing at all that is not what
        it should be, for every member would have to apply it."""
        command: list[Any] = args[0]
        node = self._node
        reason = why_malformed(command, _PROPOSED_FOR_PEERS)
        if reason:
            raise MalformedArgs(f"a proposal for the meta group: {reason}")
        if command[0] == commands.MOVED:
            is_theirs_to_say = self._is_led_by(sender, command[2])
        else:
            is_theirs_to_say = command[2] in node.meta.out.intersection(self.known_members())
        if node.is_meta_leader and is_theirs_to_say:
            node.meta_member.propose_anywhere(command)

    def _is_led_by(self, sender: NodeId, uid: Uid) -> bool:
        """True if `sender` may speak for a stream. Who leads no more by what is known here says it
        again, if it was right."""
        node = self._node
        return uid in node.meta.streams_by_uid and node.leaders.leader_of(uid) == sender

    def _on_publish(self, sender: NodeId, args: list[Any]) -> None:
        uid, token, msgs, own_replies = args
        assert self.peers is not None
        replica = self._node.replicas.get(uid)
        sink = RelaySink(self.peers, sender, token, own_replies, len(msgs))
        replies = sink.replies
        if replica is not None and replica.is_ready:
            replica.note_writer_at(sender)
            replica.publish([tuple(msg) for msg in msgs], replies, sink)
        else:
            sink.give_back(msgs, replies)

    def _on_pubacks(self, sender: NodeId, args: list[Any]) -> None:
        token, part, outcomes = args
        self._node.publish_routes.relay.on_acks(token, part, outcomes)

    def _on_given_back(self, sender: NodeId, args: list[Any]) -> None:
        token, part, msgs = args
        self._node.publish_routes.on_given_back(token, part, [tuple(msg) for msg in msgs])

    def _on_pull(self, sender: NodeId, args: list[Any]) -> None:
        uid, consumer, reply, headers, payload = args
        replica = self._node.replicas.get(uid)
        if replica is None or not replica.is_ready:
            return
        if not replica.pull(consumer, reply, headers, payload):
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{replica.name}.{consumer}"
            self._tell_no_responders(reply, subject.encode())

    def _on_acks(self, sender: NodeId, args: list[Any]) -> None:
        uid, subjects, replies, payloads = args
        replica = self._node.replicas.get(uid)
        if replica is None or not replica.is_ready:
            return
        target = acks.parse_target(subjects[0])
        if target is None or replica.takes_acks(target[0].decode(errors="replace")):
            replica.acks(subjects, replies, payloads)
        elif replies is not None:
            for subject, reply in zip(subjects, replies, strict=True):
                if reply:
                    self._tell_no_responders(reply, subject)

    def _tell_no_responders(self, reply: bytes, subject: bytes) -> None:
        """What a server says itself of a request on a subject that nobody listens to."""
        headers = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
        self._node.wires.publish(reply, b"", headers, b"")

    def _on_flow(self, sender: NodeId, args: list[Any]) -> None:
        uid, consumer, subject, *headers = args
        replica = self._node.replicas.get(uid)
        if replica is not None and replica.is_ready:
            replica.flow_reply(consumer, subject, *headers)

    # --- facts ------------------------------------------------------------------------------

    def own_facts(self) -> dict[str, Any]:
        """What other nodes need to know to place streams here, and what this one understands."""
        node = self._node
        stream_count = ha_count = storage_used = memory_used = 0
        for replica in node.replicas:  # in one pass: an idle node does little else
            stream_count += 1
            ha_count += len(replica.group.raft.log.membership.voters) > 1
            if replica.is_file:
                storage_used += replica.machine.index.bytes
            else:
                memory_used += replica.machine.index.bytes
        return {
            "server_id": node.server_id,
            "tags": list(node.tags),
            "storage_max": node.storage_max,
            "memory_max": node.memory_max,
            "ha_assets_max": node.ha_assets_max,
            "unique_tag": node.unique_tag,
            "rewrites": True,
            "removes": True,
            "awaits": True,
            "takes_back": True,
            "compares": True,
            "rests": True,
            "storage_used": storage_used,
            "memory_used": memory_used,
            "streams": stream_count,
            "ha_assets": ha_count,
        }

    def all_know(self, command: str, members: Iterable[NodeId]) -> bool:
        """True if all `members` have said that they know a command ("rewrites", "removes"), or
        what may come with one ("rests": a basis): servers
        that do not may be among them while a cluster is brought to a new version node by node."""
        return not self._node.is_clustered or all(
            self.node_facts.get(name, {}).get(command) for name in members
        )

    def tell_facts(self) -> None:
        """Renew them everywhere."""
        facts = self.own_facts()
        self.node_facts[self._node.server_name] = facts
        if self.peers is not None:
            for node_id in self.peers.nodes():
                self.peers.note(node_id, "facts", [facts])


_PROPOSED_FOR_PEERS = frozenset((commands.MOVED, commands.ADMIT_SERVER))

_NOTES: dict[str, Callable[[Peering, NodeId, list[Any]], None]] = {
    "leaders": Peering._on_leaders,
    "digest": Peering._on_digest,
    "digests": Peering._on_digests,
    "facts": Peering._on_facts,
    "hello": Peering._on_hello,
    "meta": Peering._on_meta,
    "publish": Peering._on_publish,
    "pubacks": Peering._on_pubacks,
    "given_back": Peering._on_given_back,
    "pull": Peering._on_pull,
    "acks": Peering._on_acks,
    "flow": Peering._on_flow,
}
