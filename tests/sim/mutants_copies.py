"""Broken variants of mirrors and sources, which worlds of copies must catch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamd.machine.streams.origins import Origins
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.stream_copying import StreamCopying
from streamd.node.importing import origin_requests
from streamd.node.importing.origin_link import OriginLink
from streamd.node.importing.origin_requests import Start

Replace = Callable[[Any, str, Any], None]


def positions_forgotten_at_restart(replace: Replace) -> None:
    """A snapshot does not bring back how far an origin was taken."""
    replace(Origins, "load", lambda origins, state: None)


def gaps_closed(replace: Replace) -> None:
    """A mirror does not use up the seqs that its origin lacks."""
    replace(StreamCopying, "_skip_to", lambda copying, seq, index: None)


def position_left_behind(replace: Replace) -> None:
    """A source's position stays where it was."""
    replace(Origins, "advance", lambda origins, name, identity, seq: None)


def one_too_late(replace: Replace) -> None:
    """A new consumer begins one message too late."""
    request = origin_requests.create_request

    def late(origin: Any, start: Start, token: str, *, is_plain: bool) -> Any:
        later = start._replace(seq=start.seq + 1) if start.seq else start
        return request(origin, later, token, is_plain=is_plain)

    replace(origin_requests, "create_request", late)


def numbers_unchecked(replace: Replace) -> None:
    """A delivery is taken whatever its number is, and a heartbeat is not compared."""
    take, status = OriginLink.on_messages, OriginLink._on_status

    def trusting(link: OriginLink, token: str, batch: Sequence[Any]) -> None:
        for message in batch:
            tokens = message[1].split(b".")
            if len(tokens) == 9 and not link._is_asking:
                link._cseq = int(tokens[6]) - 1
            take(link, token, [message])

    def deaf(link: OriginLink, headers: bytes, reply: bytes) -> None:
        if reply:
            status(link, headers, reply)

    replace(OriginLink, "on_messages", trusting)
    replace(OriginLink, "_on_status", deaf)


def asked_from_where_it_was_sent(replace: Replace) -> None:
    """A new leader asks for what follows the last message that its log has of any origin."""

    def hasty(content: StreamContent, name: str, identity: str) -> int:
        if not name:
            return content.index.last_seq
        return max((position.seq for position in content.origins.positions.values()), default=0)

    replace(StreamContent, "position_of", hasty)


def _named(*mutants: Callable[[Replace], None]) -> dict[str, Callable[[Replace], None]]:
    return {mutant.__name__: mutant for mutant in mutants}


COPIED = _named(
    positions_forgotten_at_restart, gaps_closed, position_left_behind, one_too_late,
    numbers_unchecked, asked_from_where_it_was_sent,
)  # fmt: skip
