"""Worlds of five nodes in which streams copy others that come and go, empty, or are far away.

    CE   a mirror of S1, by the subjects of an external API
    CQ   its source is a work queue: what is copied leaves there
    CD   its source is deleted and created again, under the same name

At the end CE is S1; CQ has each message of the queue once, in order, and the queue is empty; CD has
the messages of each stream of that name in order, none of an earlier one behind one of a later one,
and all of the last.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from streamd.api.sourcing_consumers import identity_of
from streamd.types import Seq, Uid
from tests.sim import plan
from tests.sim.copies import check_mirror, lacking, origin_words
from tests.sim.plan import COMING_AND_GOING, Document, Plan
from tests.sim.workload import Client
from tests.sim.world import need

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

FAR, QUEUED, RECREATED = "CE", "CQ", "CD"
QUEUE = "W"
FAR_API, FAR_DELIVER = "$JS.hub.API", "$JS.hub.D"
_NEAR = "S1"
_SHARED = (_NEAR, COMING_AND_GOING)  # clients read from these, and take messages out of them


def draw_origins(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    drawn = plan.draw(rng, node_count)
    size = min(3, node_count)
    queue: Document = {
        "name": QUEUE,
        "subjects": [QUEUE + ".>"],
        "retention": "workqueue",
        "storage": "file",
        "num_replicas": rng.choice((size, size, 1)),
        "allow_direct": True,
        "allow_atomic": True,
    }
    configs = {name: drawn.configs[name] for name in _SHARED} | {QUEUE: queue}
    copy_size = rng.choice((size, size, 1))

    def copy(name: str, **more: Any) -> Document:
        return {"name": name, "num_replicas": copy_size, "allow_direct": True, **more}

    external = {"api": FAR_API, "deliver": FAR_DELIVER}
    copies = {
        FAR: copy(FAR, mirror={"name": _NEAR, "external": external}),
        QUEUED: copy(QUEUED, sources=[{"name": QUEUE}]),
        RECREATED: copy(RECREATED, sources=[{"name": COMING_AND_GOING}]),
    }
    more = {"step_down": 0.5, "create_stream": 2.0, "delete_stream": rng.choice((0.2, 0.6, 1.5))}
    return Plan(configs, drawn.actions | more, copies)


class OriginsClient(Client):
    """A client that leaves to the copy what is in the queue."""

    _is_taking = False

    def _some_name(self) -> str:
        is_taking, self._is_taking = self._is_taking, False
        return self.rng.choice(_SHARED if is_taking else self.cluster.plan.names)

    def delete_msg(self) -> None:
        self._is_taking = True
        super().delete_msg()

    def purge(self) -> None:
        self._is_taking = True
        super().purge()

    def create_consumer(self) -> None:
        self._is_taking = True
        super().create_consumer()

    def create_push_consumer(self) -> None:
        self._is_taking = True
        super().create_push_consumer()


class OriginChecks:
    """Compares copies with their origins, by what is committed."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._truth = cluster.checkers.truth_of
        self._checkers = cluster.checkers

    def check(self) -> None:
        """Compare every message that a copy ever stored with the origin's."""
        count = check_mirror(FAR, self._truth(FAR), self._truth(_NEAR))
        self._world.counts["mirrored from afar"] += count
        self._check_queued()
        self._check_recreated()

    def _check_queued(self) -> None:
        queue = self._truth(QUEUE)
        taken: list[Seq] = []
        for at, msg in sorted(self._truth(QUEUED).content.items()):
            seq = int(origin_words(msg)[1])
            wanted = queue.content.get(seq)
            is_same = wanted is not None and (msg[0], msg[2]) == (wanted[0], wanted[2])
            need(is_same, f"{QUEUED} {at} is not {seq} of {QUEUE}")
            taken.append(seq)
        need(taken == sorted(queue.content), f"{QUEUED} has {taken} of {sorted(queue.content)}")
        self._world.counts["sourced from a queue"] += len(taken)

    def _check_recreated(self) -> None:
        origins = {identity_of(asset.created_ns): uid for uid, asset in self._incarnations()}
        seen: list[str] = []  # identities
        last: Seq = 0
        copy = self._checkers.named(RECREATED)
        for at, msg in sorted(copy.content.items()) if copy is not None else ():
            words = origin_words(msg)
            seq, identity = int(words[1]), words[5]
            if identity not in seen:
                seen.append(identity)
                last = 0
            text = f"{RECREATED} {at}"
            need(identity in origins, f"{text} is of {identity}, no stream of that name")
            need(identity == seen[-1], f"{text}: {seq} of {identity} comes behind {seen[-1]}")
            need(seq > last, f"{text}: {seq} of {identity} came after {last}")
            last = seq
            wanted = self._checkers.truths[origins[identity]].content.get(seq)
            is_same = wanted is not None and (msg[0], msg[2]) == (wanted[0], wanted[2])
            need(is_same, f"{text} is not {seq} of {identity}")
            self._world.counts["sourced from recreated streams"] += 1
        wanted_order = sorted(seen, key=origins.__getitem__)  # a later stream has a higher uid
        need(seen == wanted_order, f"{RECREATED} has streams in the order {seen}: {wanted_order}")
        self._world.counts["incarnations copied"] += len(seen)

    def missing(self) -> str:
        """Messages that an origin has and its copy never stored, or that the queue still has."""
        near = self._truth(_NEAR)
        lacks = lacking(near, set(self._truth(FAR).content))
        if lacks:
            return f"{FAR} lacks {lacks[:5]} of {_NEAR}"
        queue = self._checkers.named(QUEUE)
        left = queue.machine.index.count if queue is not None else 0
        if left:
            return f"{left} messages are left in {QUEUE}"
        is_there = self._cluster.is_asset
        now = [uid for uid, _ in self._incarnations() if is_there(COMING_AND_GOING, uid)]
        origin = self._checkers.truths.get(now[0]) if now else None
        if origin is None:
            return ""
        identity = identity_of(self._checkers.assets[now[0]].created_ns)
        copy = self._checkers.named(RECREATED)
        found = [origin_words(msg) for msg in copy.content.values()] if copy is not None else []
        lacks = lacking(origin, {int(words[1]) for words in found if words[5] == identity})
        return f"{RECREATED} lacks {lacks[:5]} of {now[0]}, {identity}" if lacks else ""

    def _incarnations(self) -> list[tuple[Uid, Any]]:
        """Streams that had the name of the one that comes and goes, all of them."""
        assets = self._checkers.assets.items()
        return [(uid, asset) for uid, asset in assets if asset.name == COMING_AND_GOING]
