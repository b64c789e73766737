"""Dispatch of messages from other servers: to the node, or to the receivers of a kind of notes."""

from __future__ import annotations

import traceback
from pathlib import PurePath

from streamd.errors import CLUSTER_NOT_AVAIL
from streamd.limits import PEER_REFUSALS_MAX
from streamd.net.route.remote_messages import TakeNote
from streamd.node.ports import Answer, PeerHandler
from streamd.obs.server_log import Log
from streamd.protocol.node_hello import Hello
from streamd.protocol.peer_frames import RaftMessage
from streamd.types import NodeId, Uid


class PeerDispatch:
    """The node's handler, receivers of notes, and a count of messages that they failed on.

    Until `handler` is a node (a server without streams has none) links carry notes only.
    """

    __slots__ = ("_log", "_prefixes", "_take_note", "failed_count", "handler")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.handler: PeerHandler = _NoNode()
        self.failed_count = 0
        self._prefixes: list[tuple[str, TakeNote]] = []
        self._take_note: dict[str, TakeNote] = {}  # by kind: `_prefixes` resolved

    def on_note_prefix(self, prefix: str, take: TakeNote) -> None:
        """Hand notes whose kind starts with `prefix` to `take`; the longest prefix wins."""
        self._prefixes.append((prefix, take))
        self._prefixes.sort(key=lambda entry: len(entry[0]), reverse=True)
        self._take_note.clear()

    def on_note(self, sender: NodeId, kind: str, args: list[object]) -> None:
        """Give a note to its receiver."""
        take = self._take_note.get(kind)
        if take is None:
            take = self.handler.on_note
            for prefix, candidate in self._prefixes:
                if kind.startswith(prefix):
                    take = candidate
                    break
            if len(self._take_note) < PEER_REFUSALS_MAX:
                self._take_note[kind] = take
        take(sender, kind, args)

    def message_failed(self, name: NodeId, what: str, err: Exception, *, is_new: bool) -> None:
        """Count a message of a peer that could not be handled; the first of a kind is logged.
        The link stays, for what comes behind has nothing to do with it."""
        self.failed_count += 1
        if is_new:
            at = traceback.extract_tb(err.__traceback__)[-1]
            self._log.error(
                "a message of a peer could not be handled and is ignored",
                peer=name, message=what, reason=f"{type(err).__name__}: {err}",
                at=f"{PurePath(at.filename).name}:{at.lineno}",
            )  # fmt: skip


class _NoNode:
    """The handler of a server without streams."""

    def hello(self) -> Hello:
        return {}

    def on_peer_up(self, node_id: NodeId, hello: Hello) -> None: ...

    def on_peer_down(self, node_id: NodeId) -> None: ...

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[RaftMessage]) -> None: ...

    def on_call(self, sender: NodeId, method: str, args: list[object], answer: Answer) -> None:
        answer(CLUSTER_NOT_AVAIL())

    def on_note(self, sender: NodeId, kind: str, args: list[object]) -> None: ...
