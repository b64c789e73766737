"""`OriginImports`: the links to all origins of one stream, while this node leads it.

Part of the stream's group: everything here runs in a turn. What comes from the network is posted to
the inbox; what goes out leaves by the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamd import limits
from streamd.machine.commands import Command, encode
from streamd.machine.streams import publish
from streamd.machine.streams.origins import MIRROR, short_hash
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.group_shell import GroupShell
from streamd.node.groups.inbox import InboxMessage
from streamd.node.groups.turn import TurnTime
from streamd.node.importing.origin_link import Delivery, LinkInfo, OriginLink
from streamd.node.importing.origin_requests import Origin, delete_request, origins_of
from streamd.node.ports import Wires
from streamd.node.stream_groups.ingest_transform import IngestTransform
from streamd.node.stream_groups.publish_intake import StorageShare
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.types import Entry, Msg, Seq

Request = tuple[bytes, bytes, bytes]
"""(subject, headers, payload)"""


@dataclass(slots=True)
class OriginMessages(InboxMessage):
    """Messages came on the deliver subject of a link; `token` says of which subscription."""

    link: OriginLink
    token: str
    batch: list[Delivery]


@dataclass(slots=True)
class OriginAnswer(InboxMessage):
    """The origin of a link answered; `token` says which request."""

    link: OriginLink
    token: str
    headers: bytes
    payload: bytes


class ImportTag:
    """Tag of an entry that a link proposed."""

    __slots__ = ("link", "size")

    def __init__(self, link: OriginLink, size: int) -> None:
        self.link = link
        self.size = size


class OriginImports:
    """Links of one stream to what it copies. Implements `origin_link.LinkHost`."""

    def __init__(
        self,
        raft: RaftCore,
        machine: StreamMachine,
        shell: GroupShell,
        now: TurnTime,
        *,
        wires: Wires,
        has_room: Callable[[int], bool],
        share: StorageShare | None,
        domain: str,
    ) -> None:
        self.now = now
        self._raft = raft
        self._machine = machine
        self._shell = shell
        self._wires = wires
        self._has_room = has_room
        self._share = share  # of what the account stores; None: it is not counted
        self._domain = domain
        self._transform = IngestTransform()
        self._links: dict[str, OriginLink] = {}
        self._subscribed: dict[OriginLink, list[object]] = {}
        self._tokens = 0

    def __bool__(self) -> bool:
        return bool(self._links)

    # --- begin and end ----------------------------------------------------------------------

    def reconcile(self) -> None:
        """Keep a link to each origin that is configured, and to no other: as leader. What is being
        restored copies nothing yet."""
        config = self._machine.config
        origins = [] if config.get("restoring") else origins_of(config, self._domain)
        wanted = {origin.name: origin for origin in origins}
        for name in [name for name in self._links if name not in wanted]:
            self._end(self._links.pop(name), deletes=True)
        for name, origin in wanted.items():
            if name in self._links:
                self._links[name].origin = origin
            else:
                self._links[name] = OriginLink(origin, self)

    def end(self, *, is_gone: bool = False) -> None:
        """End all links: this node leads no more. `is_gone`: nor will any other."""
        links, self._links = self._links, {}
        for link in links.values():
            self._end(link, deletes=is_gone)

    def _end(self, link: OriginLink, *, deletes: bool) -> None:
        link.stop()
        if deletes and not link.origin.own_consumer:
            self.request(link.origin, b"", delete_request(link.origin))

    # --- the turn ---------------------------------------------------------------------------

    def poll(self) -> None:
        """Carry out what is due."""
        for link in self._links.values():
            link.poll()

    def deadline_ms(self) -> int:
        """Return when `poll` has something to do; 0: never."""
        return min((link.deadline_ms for link in self._links.values()), default=0)

    def on_messages(self, message: OriginMessages) -> None:
        """Give messages to their link."""
        message.link.on_messages(message.token, message.batch)

    def on_answer(self, message: OriginAnswer) -> None:
        """Give an answer to its link."""
        message.link.on_answer(message.token, message.headers, message.payload)

    def flush(self) -> None:
        """Propose what links have collected."""
        for link in self._links.values():
            link.flush()

    def on_applied(self, entry: Entry) -> None:
        """A COPY was applied."""
        tag = entry.tag
        if tag is not None and self._share is not None:
            self._share.release(entry.index)
        if type(tag) is ImportTag and entry.command is not None:
            if self._links.get(tag.link.origin.name) is tag.link:
                tag.link.on_applied(entry.command, tag.size)

    # --- LinkHost ---------------------------------------------------------------------------

    def position(self, name: str, identity: str) -> Seq:
        return self._machine.content.position_of(name, identity)

    def known_identity(self, name: str) -> str:
        found = self._machine.content.origins.positions.get(name)
        return found.identity if found is not None else ""

    def propose(self, command: Command) -> int:
        raft = self._raft
        if raft.is_handing_over or not raft.is_leader:
            return 0
        name, msgs = command[2], command[8]
        held = 0
        if msgs:
            command[8] = msgs = self._transform.apply(self._machine.config, msgs, command[1])
            room = self._account_room(msgs)
            if room is not None:
                wanted, left = room
                if left < wanted:
                    if self._is_stuck(name, msgs[0], left):
                        return 0  # or the same messages would go into the log again and again
                    command.append(left)
                held = min(wanted, left)
        data = encode(command)
        link = self._links[name]
        if not self._has_room(len(data)):
            return 0
        try:
            raft.propose(data, command, ImportTag(link, len(data)))
        except (NotLeader, ProposalRejected):
            return 0
        if held and self._share is not None:
            self._share.hold(raft.last_index, held)
        return len(data)

    def _account_room(self, msgs: Sequence[Msg]) -> tuple[int, int] | None:
        """Return what messages need, and what the account has left; None: it has no limit."""
        share = self._share
        if share is None or share.room(0) is None:
            return None
        wanted = sum(map(self._machine.index.sizes.of_message, msgs))
        return wanted, share.room(wanted) or 0

    def _is_stuck(self, name: str, first: Msg, room: int) -> bool:
        """True if nothing would be stored or passed over, for the first message does not fit."""
        config = self._machine.config
        is_passed_over = config.get("retention") != "limits"
        if name != MIRROR:
            is_passed_over |= bool(config.get("allow_msg_counter")) or publish.MSG_ID in first[1]
        return not is_passed_over and self._machine.index.sizes.of_message(first) > room

    def subscribe(self, link: OriginLink, token: str, deliver: bytes, reply: bytes) -> None:
        self._shell.call_soon(self._subscribe, link, token, deliver, reply)

    def _subscribe(self, link: OriginLink, token: str, deliver: bytes, reply: bytes) -> None:
        post = self._shell.post

        def on_messages(batch: list[Delivery]) -> None:
            post(OriginMessages(link, token, batch))

        def on_answer(batch: list[Delivery]) -> None:
            _, _, headers, payload = batch[0]
            post(OriginAnswer(link, token, headers, payload))

        self._unsubscribe(link)
        subscribe = self._wires.subscribe
        self._subscribed[link] = [subscribe(deliver, on_messages), subscribe(reply, on_answer)]

    def unsubscribe(self, link: OriginLink) -> None:
        self._shell.call_soon(self._unsubscribe, link)

    def _unsubscribe(self, link: OriginLink) -> None:
        for token in self._subscribed.pop(link, ()):
            self._wires.unsubscribe(token)

    def request(self, origin: Origin, reply: bytes, request: Request) -> None:
        self._shell.call_soon(self._request, reply, request, origin.is_external)

    def _request(self, reply: bytes, request: Request, is_external: bool) -> None:
        subject, headers, payload = request
        self._wires.request(subject, reply, headers, payload, is_external=is_external)

    def new_token(self) -> str:
        self._tokens += 1
        raft, now = self._raft, self.now
        return short_hash(f"{raft.node_id} {self._machine.uid} {raft.term} {now.ns} {self._tokens}")

    # --- facts ------------------------------------------------------------------------------

    def infos(self) -> dict[str, LinkInfo]:
        """Return facts about each link, by the index name of its origin."""
        return {name: link.info() for name, link in self._links.items()}

    def is_close(self) -> bool:
        """True if a mirror has all but a few of its origin's messages."""
        link = self._links.get(MIRROR)
        if link is None:
            return False
        info = link.info()
        return info.active_ns >= 0 and info.lag < limits.MIRROR_DIRECT_LAG_MAX
