"""Worlds of five nodes in which streams copy others that come and go, empty, or are far away.

    CE   a mirror of S1, by the subjects of an external API
    CQ   its source is a work queue: what is copied leaves there
    CV   a mirror of another work queue
    CD   its source is deleted and created again, under the same name
    CM   a mirror of the same

At the end CE is S1; CQ and CV have each message of their queue once, in order, and the queues are
empty. CD has the messages of each stream of that name in order, none of an earlier one behind one
of a later one, and all of the last. So has CM, but under the seqs that they had: of a later stream
only what is beyond the seq that CM had reached with the earlier ones, and of the last one all of
that. S1 and the stream that comes and goes are purged, too. Some copies reach their origin as if it
were far away.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from streamd.api.sourcing_consumers import identity_of
from streamd.types import Msg, Seq, Uid
from tests.sim import plan
from tests.sim.copies import check_mirror, cleaned, lacking, origin_words
from tests.sim.plan import COMING_AND_GOING, Document, Plan
from tests.sim.workload import Client
from tests.sim.world import need

if TYPE_CHECKING:
    from tests.sim.checkers import Truth
    from tests.sim.cluster import SimCluster

FAR, QUEUED, RECREATED = "CE", "CQ", "CD"
MIRRORED_QUEUE, MIRRORED = "CV", "CM"
QUEUE, OTHER_QUEUE = "W", "V"
FAR_API, FAR_DELIVER = "$JS.hub.API", "$JS.hub.D"
_NEAR = "S1"
_SHARED = (_NEAR, COMING_AND_GOING)  # clients read from these, and take messages out of them


def draw_origins(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    drawn = plan.draw(rng, node_count)
    size = min(3, node_count)

    def queue(name: str) -> Document:
        return {
            "name": name,
            "subjects": [name + ".>"],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": rng.choice((size, size, 1)),
            "allow_direct": True,
            "allow_atomic": True,
        }

    configs = {name: drawn.configs[name] for name in _SHARED} | {QUEUE: queue(QUEUE)}
    copy_size = rng.choice((size, size, 1))

    def copy(name: str, **more: Any) -> Document:
        return {"name": name, "num_replicas": copy_size, "allow_direct": True, **more}

    external = {"api": FAR_API, "deliver": FAR_DELIVER}
    copies = {
        FAR: copy(FAR, mirror={"name": _NEAR, "external": external}),
        QUEUED: copy(QUEUED, sources=[{"name": QUEUE}]),
        RECREATED: copy(RECREATED, sources=[{"name": COMING_AND_GOING}]),
    }
    configs[OTHER_QUEUE] = queue(OTHER_QUEUE)
    for name, origin in ((MIRRORED_QUEUE, OTHER_QUEUE), (MIRRORED, COMING_AND_GOING)):
        where = {"external": external} if rng.random() < 0.3 else {}
        copies[name] = copy(name, mirror={"name": origin, **where})
    more = {"step_down": 0.5, "create_stream": 2.0, "delete_stream": rng.choice((0.2, 0.6, 1.5))}
    return Plan(configs, drawn.actions | more, copies)


class OriginsClient(Client):
    """A client that leaves to the copy what is in the queue."""

    _is_taking = False

    def _some_name(self) -> str:
        is_taking, self._is_taking = self._is_taking, False
        if is_taking:
            return self.rng.choice(_SHARED)
        # So that a stream that was created anew passes what its mirror has of earlier ones.
        return self.rng.choice((*self.cluster.plan.names, COMING_AND_GOING, COMING_AND_GOING))

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
        queue, mirror = self._truth(OTHER_QUEUE), self._truth(MIRRORED_QUEUE)
        count = check_mirror(MIRRORED_QUEUE, mirror, queue)
        need(count == len(queue.content), f"{MIRRORED_QUEUE} has {count} of {len(queue.content)}")
        self._world.counts["mirrored from a queue"] += count
        self._check_queued()
        self._check_mirrored()
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

    def _check_mirrored(self) -> None:
        """Each message of the mirror is one of a stream of that name, with its seq, and of no
        earlier one than the message before it."""
        mirror, origins = self._checkers.named(MIRRORED), self._origins()
        at, used = 0, set[int]()
        for seq, msg in sorted(mirror.content.items()) if mirror is not None else ():
            while at < len(origins) and not _holds(origins[at], seq, msg):
                at += 1
            need(at < len(origins), f"{MIRRORED} {seq} is of no stream of that name, in order")
            used.add(at)
            self._world.counts["mirrored from recreated streams"] += 1
        self._world.counts["incarnations mirrored"] += max(0, len(used) - 1)

    def _lacking_in_mirror(self, origin: Truth) -> list[Seq]:
        """Return what the mirror lacks of the stream that has the name now: it is to have all that
        is beyond what it had reached when it took the first message of it."""
        mirror = self._checkers.named(MIRRORED)
        if mirror is None:
            return lacking(origin, set())
        earlier = self._origins()[:-1]
        first = next(
            (
                seq
                for seq, msg in sorted(mirror.content.items())
                if not any(_holds(each, seq, msg) for each in earlier)
            ),
            0,
        )
        reached = mirror.copied_behind[first] if first else mirror.machine.index.last_seq
        return [seq for seq in lacking(origin, set(mirror.content)) if seq > reached]

    def missing(self) -> str:
        """Messages that an origin has and its copy never stored, or that the queue still has."""
        near = self._truth(_NEAR)
        lacks = lacking(near, set(self._truth(FAR).content))
        if lacks:
            return f"{FAR} lacks {lacks[:5]} of {_NEAR}"
        for name in (QUEUE, OTHER_QUEUE):
            queue = self._checkers.named(name)
            left = queue.machine.index.count if queue is not None else 0
            if left:
                return f"{left} messages are left in {name}"
        is_there = self._cluster.is_asset
        now = [uid for uid, _ in self._incarnations() if is_there(COMING_AND_GOING, uid)]
        origin = self._checkers.truths.get(now[0]) if now else None
        if origin is None:
            return ""
        if self._is_behind_mirror(now[0], origin):
            return f"{now[0]} does not go beyond what {MIRRORED} has of earlier ones"
        if lacks := self._lacking_in_mirror(origin):
            return f"{MIRRORED} lacks {lacks[:5]} of {now[0]}"
        identity = identity_of(self._checkers.assets[now[0]].created_ns)
        copy = self._checkers.named(RECREATED)
        found = [origin_words(msg) for msg in copy.content.values()] if copy is not None else []
        lacks = lacking(origin, {int(words[1]) for words in found if words[5] == identity})
        return f"{RECREATED} lacks {lacks[:5]} of {now[0]}, {identity}" if lacks else ""

    def _is_behind_mirror(self, uid: Uid, origin: Truth) -> bool:
        """True if the stream that was created anew has nothing yet that its mirror could take; it
        is given more then."""
        mirror = self._checkers.named(MIRRORED)
        if mirror is None or len(self._origins()) < 2:
            return False
        behind: int = mirror.machine.index.last_seq - origin.machine.index.last_seq
        host = self._cluster.leader_of(uid)
        if behind > 0 and host is not None and host.process is not None:
            handle = host.process.node.stream(COMING_AND_GOING)
            if handle is not None:
                body = b"more-%d" % origin.machine.index.last_seq
                msgs: list[Msg] = [(b"%b.more" % handle.name_bytes, b"", body)] * (behind + 3)
                host.process.run(handle.publish, msgs, [b""] * len(msgs), self)
        return behind > 0

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        """See ports.PublishSink: of what a stream was given to go beyond its mirror."""

    def _incarnations(self) -> list[tuple[Uid, Any]]:
        """Streams that had the name of the one that comes and goes, all of them."""
        assets = self._checkers.assets.items()
        return [(uid, asset) for uid, asset in assets if asset.name == COMING_AND_GOING]

    def _origins(self) -> list[Truth]:
        """What was committed to each of them, the earliest first."""
        uids = sorted(uid for uid, _ in self._incarnations())
        return [self._checkers.truths[uid] for uid in uids if uid in self._checkers.truths]


def _holds(origin: Truth, seq: Seq, msg: Msg) -> bool:
    """True if a mirror of the stream has this message under this seq."""
    found = origin.content.get(seq)
    return found is not None and cleaned(found) == msg
