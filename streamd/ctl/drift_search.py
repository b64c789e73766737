"""Search for the sequences at which the replicas of a stream differ, by digests of ranges.

The first replica says into which ranges it cuts its messages, the others are asked for the same;
ranges that differ are cut finer. All is of one log index: a replica that applied anything meanwhile
ends the search.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from streamd.offline.odd_replicas import odd_ones

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Return what a server answers to a request for digests. Raises CtlError."""

SEQS_MAX: Final = 100  # that are told of one stream; more are not looked for


class Drift(NamedTuple):
    """Sequences at which replicas differ, and the servers that have something else there than most
    have, or than the first, by sequence."""

    seqs: dict[int, list[str]]
    reason: str  # why not all are told, "" if they are


class _Moved(Exception):
    """A replica is at another log index than when the search began."""


async def find_drift(
    ask: Ask, servers: list[str], account: str, stream: str, at_index: int
) -> Drift:
    """Return where these servers' replicas differ at a log index. Raises CtlError."""
    assert len(servers) > 1, servers
    found: dict[int, list[str]] = {}
    is_part = False

    async def digests(server: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await ask(server, {"account": account, "stream": stream, **body})
        if answer["applied"] != at_index or not answer["is_still"]:
            raise _Moved
        return answer

    async def compare(first: int, last: int) -> None:
        nonlocal is_part
        body = {"first_seq": first, "last_seq": last}
        own = await digests(servers[0], body)
        starts = ",".join(str(each["first_seq"]) for each in own["ranges"])
        others = [await digests(name, {**body, "starts": starts}) for name in servers[1:]]
        for ranges in zip(*(answer["ranges"] for answer in (own, *others)), strict=True):
            content = {name: _content(each) for name, each in zip(servers, ranges, strict=True)}
            if len(set(content.values())) == 1:
                continue
            if len(found) >= SEQS_MAX:
                is_part = True
                return
            start, end = ranges[0]["first_seq"], ranges[0]["last_seq"]
            if start == end:
                found[start] = odd_ones(content)
            else:
                await compare(start, end)

    try:
        wholes = [await digests(name, {}) for name in servers]
        first = min(answer["first_seq"] for answer in wholes)
        last = max(answer["last_seq"] for answer in wholes)
        if first <= last:
            await compare(first, last)
    except _Moved:
        return Drift(found, "the stream goes on: not all of it was compared at one log index")
    if is_part:
        return Drift(found, f"only the first {SEQS_MAX} that differ are told")
    return Drift(found, "" if found else "the messages are equal: something else differs")


def _content(ranged: Mapping[str, Any]) -> tuple[int, str]:
    return ranged["messages"], ranged["digest"]
