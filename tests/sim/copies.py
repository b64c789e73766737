"""Worlds in which streams copy others: a mirror, a filtered mirror, a stream with two sources.

The origins are the streams that clients work on; faults strike either side. At the end each copy
is its origin through its filter: in order, each message once, none passed over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd.machine.message_headers import get
from streamd.types import Msg, Seq
from tests.sim import plan
from tests.sim.plan import ALWAYS, COMING_AND_GOING, Document, Plan
from tests.sim.world import SECOND, Violation, need

if TYPE_CHECKING:
    from tests.sim.checkers import Truth
    from tests.sim.cluster import SimCluster

COPIED_US = 200 * SECOND  # an origin that did not answer twice is asked again after a minute
MIRROR, FILTERED, SOURCED = "CM", "CF", "CS"
_FIRST, _SECOND = ALWAYS


def draw_copies(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    drawn = plan.draw(rng, node_count)
    configs = {name: drawn.configs[name] for name in (*ALWAYS, COMING_AND_GOING)}
    size = rng.choice((3, 3, 1)) if node_count > 1 else 1

    def copy(name: str, **more: Any) -> Document:
        return {"name": name, "num_replicas": size, "allow_direct": True, **more}

    copies = {
        MIRROR: copy(MIRROR, mirror={"name": _FIRST}),
        FILTERED: copy(FILTERED, mirror={"name": _SECOND, "filter_subject": f"{_SECOND}.*"}),
        SOURCED: copy(SOURCED, sources=[{"name": _FIRST}, {"name": _SECOND}]),
    }
    return Plan(configs, drawn.actions | {"step_down": 0.5}, copies)


class CopyChecks:
    """Compares copies with their origins, by what is committed."""

    def __init__(self, cluster: SimCluster) -> None:
        self._world = cluster.world
        self._truth = cluster.checkers.truth_of

    def check(self) -> None:
        """Compare every message that a copy ever stored with the origin's."""
        first, second = self._truth(_FIRST), self._truth(_SECOND)
        for name, origin in ((MIRROR, first), (FILTERED, second)):
            self._world.counts["mirrored"] += check_mirror(name, self._truth(name), origin)
        self._check_sourced({_FIRST: first, _SECOND: second})

    def _check_sourced(self, origins: dict[str, Truth]) -> None:
        lasts = dict.fromkeys(origins, 0)
        for seq, msg in sorted(self._truth(SOURCED).content.items()):
            name, at = _origin_of(msg)
            need(at > lasts[name], f"{SOURCED} {seq}: {name} {at} came after {lasts[name]}")
            lasts[name] = at
            wanted = origins[name].content.get(at)
            need(wanted is not None, f"{SOURCED} {seq}: {name} never had {at}")
            assert wanted is not None
            is_same = (msg[0], msg[2]) == (wanted[0], wanted[2])
            need(is_same, f"{SOURCED} {seq} is not {at} of {name}")
            self._world.counts["sourced"] += 1

    def missing(self) -> str:
        """Messages that an origin has and a copy never stored."""
        taken: dict[str, set[Seq]] = {_FIRST: set(), _SECOND: set()}
        for msg in self._truth(SOURCED).content.values():
            name, seq = _origin_of(msg)
            taken[name].add(seq)
        rows = (
            (MIRROR, _FIRST, set(self._truth(MIRROR).content)),
            (FILTERED, _SECOND, set(self._truth(FILTERED).content)),
            (SOURCED, _FIRST, taken[_FIRST]),
            (SOURCED, _SECOND, taken[_SECOND]),
        )
        for copy, origin, has in rows:
            if lacks := lacking(self._truth(origin), has):
                return f"{copy} lacks {lacks[:5]} of {origin}"
        return ""


def await_copied(cluster: SimCluster, missing: Callable[[], str]) -> None:
    """Wait until nothing is missing: each copy has all that its origin has."""
    is_copied = cluster.every_ms(100, lambda: not missing())
    if not cluster.world.run(cluster.world.now_us + COPIED_US, is_copied):
        raise Violation(f"after {COPIED_US / SECOND} s not copied: {missing()}")


def check_mirror(name: str, mirror: Truth, origin: Truth) -> int:
    """Compare all that a mirror ever stored with its origin's; return how many messages."""
    for seq, msg in mirror.content.items():
        need(seq in origin.content, f"{name} has {seq}, which its origin never had")
        need(msg == cleaned(origin.content[seq]), f"{name} has another {seq}")
    return len(mirror.content)


def lacking(origin: Truth, has: set[Seq]) -> list[Seq]:
    """Return live messages of an origin that are not among these."""
    index = origin.machine.index
    return [seq for seq in index.live.seqs(index.first_seq, index.last_seq) if seq not in has]


def _origin_of(msg: Msg) -> tuple[str, Seq]:
    words = origin_words(msg)
    return words[0], int(words[1])


def origin_words(msg: Msg) -> list[str]:
    """Return where a message comes from: stream, seq, filters, destinations, subject, identity."""
    words = (get(msg[1], b"Nats-Stream-Source") or b"").decode().split(" ")
    need(len(words) == 6, f"{msg} does not say where it comes from")
    return words


def cleaned(msg: Msg) -> Msg:
    """The message as a mirror stores it."""
    subject, headers, payload = msg
    lines = headers.split(b"\r\n")
    kept = [line for line in lines if not line.startswith((b"Nats-Expected-", b"Nats-Batch-"))]
    if len(kept) < len(lines):
        headers = b"" if len(kept) == 3 else b"\r\n".join(kept)
    return subject, headers, payload
