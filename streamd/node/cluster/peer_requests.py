"""`PeerRequests`: which part of this node answers which call, and takes which note, of a peer.

The node fills the table when it makes its parts; the rooms above add prefixes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd import errors
from streamd.node.context import NodeLog
from streamd.node.ports import Answer
from streamd.types import NodeId

Serve = Callable[[NodeId, Any, Answer], None]
"""Serves one call: (sender, arguments, answer). Each says of which types its arguments are; a link
has checked that (protocol/peer_schemas.py). Rows that are unpacked are lists, typed as tuples."""

Take = Callable[[NodeId, Any], None]
"""Takes one note: (sender, arguments); likewise."""


class PeerRequests:
    """Table of calls and notes of one node."""

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self.calls: dict[str, Serve] = {}
        self.notes: dict[str, Take] = {}
        self.call_prefixes: dict[str, Callable[..., None]] = {}
        self.note_prefixes: dict[str, Callable[..., None]] = {}

    def on_call(self, sender: NodeId, method: str, args: list[object], answer: Answer) -> None:
        """Serve a call; see ports.PeerHandler."""
        for prefix, serve_prefix in self.call_prefixes.items():
            if method.startswith(prefix):
                serve_prefix(sender, method, args, answer)
                return
        serve = self.calls.get(method)
        if serve is None:
            answer(errors.BAD_REQUEST())
        else:
            serve(sender, args, answer)

    def on_note(self, sender: NodeId, kind: str, args: list[object]) -> None:
        """Take a note; see ports.PeerHandler."""
        for prefix, take_prefix in self.note_prefixes.items():
            if kind.startswith(prefix):
                take_prefix(sender, kind, args)
                return
        take = self.notes.get(kind)
        if take is None:
            self._log.warn("a peer's message of unknown kind is ignored", peer=sender, kind=kind)
        else:
            take(sender, args)
