"""`MetaProposals`: commands on their way into the meta group, from this node and from others.

An outcome is told once it has taken effect: a stream's group runs (created), is reconfigured
(updated), or has stopped and is in trash (deleted).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd import errors
from streamd.machine import commands
from streamd.machine.command_shapes import why_malformed
from streamd.machine.commands import Command
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.groups import inbox
from streamd.node.ports import Done, Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.types import META_UID, Index, NodeId, Uid

_PROPOSED_FOR_PEERS = frozenset((commands.MOVED, commands.ADMIT_SERVER))


class MetaProposals:
    """Proposals of one node. `wait_configured` and `wait_closed` call back once a stream's group
    has followed; the node sets them when it has made the parts that know."""

    def __init__(
        self, groups: LocalGroups, leaders: Leaders, facts: NodeFacts, peers: Peers | None
    ) -> None:
        self._groups = groups
        self._leaders = leaders
        self._facts = facts
        self._peers = peers
        self.wait_configured: Callable[[Uid, Index, Done], None]
        self.wait_closed: Callable[[Uid, Callable[[], None]], None]

    def propose(self, command: Command, done: Done) -> None:
        """Propose a command; see ports.NodeHandle.propose_meta."""
        monitor = self._groups.meta_monitor
        if monitor is None:
            done(errors.Unserved())
            return
        kind = command[0]
        deleted = 0
        if kind == commands.DELETE_STREAM:
            asset = self._groups.meta.stream(command[2])
            deleted = command[3] or (asset.uid if asset is not None else 0)

        def applied(result: Any) -> None:
            if isinstance(result, errors.JsError):
                done(result)
            elif kind in (commands.CREATE_STREAM, commands.UPDATE_STREAM):
                self.wait_configured(
                    result.uid,
                    result.update_index,
                    lambda outcome: done(
                        outcome if isinstance(outcome, errors.JsError) else result
                    ),
                )
            elif kind == commands.DELETE_STREAM:
                self.wait_closed(deleted, lambda: done(True))
            else:
                done(result)

        monitor.post(inbox.Propose(command, applied, True))

    def rescue(self, quorum: int, done: Done) -> None:
        """Let this node's member take so many servers for enough; see ports.NodeHandle."""
        monitor = self._groups.meta_monitor
        if monitor is None:
            done(errors.CLUSTER_NOT_AVAIL())
        else:
            monitor.post(inbox.RescueQuorum(quorum, done))

    def propose_anywhere(self, command: Command) -> None:
        """Propose a command of the node's own to the node that leads the group, if one does."""
        monitor, leader = self._groups.meta_monitor, self._leaders.leader_of(META_UID)
        if self._groups.is_meta_leader and monitor is not None:
            monitor.post(inbox.Propose(command, None, True))
        elif leader and self._peers is not None:
            self._peers.note(leader, "meta", [command])

    def on_note(self, sender: NodeId, args: tuple[Command]) -> None:
        """Propose for another node: the note `meta`.

        A stream's leader reports what became of its group, or the former leader of the meta group
        lets a server in. Nothing else is proposed for others, and nothing at all that is not what
        it should be, for every member would have to apply it.
        """
        command = args[0]
        reason = why_malformed(command, _PROPOSED_FOR_PEERS)
        if reason:
            raise MalformedArgs(f"a proposal for the meta group: {reason}")
        if command[0] == commands.MOVED:
            is_theirs_to_say = self._is_led_by(sender, command[2])
        else:
            out = self._groups.meta.out
            is_theirs_to_say = command[2] in out.intersection(self._facts.known_members())
        if self._groups.is_meta_leader and is_theirs_to_say:
            self.propose_anywhere(command)

    def _is_led_by(self, sender: NodeId, uid: Uid) -> bool:
        """True if `sender` may speak for a stream. A node that leads it no more, by what is known
        here, says it again, if it was right."""
        streams = self._groups.meta.streams_by_uid
        return uid in streams and self._leaders.leader_of(uid) == sender
