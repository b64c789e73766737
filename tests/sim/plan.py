"""Which streams a simulated cluster has, and what its clients do: drawn per seed.

Two R3 streams are always there and one comes and goes. Some worlds have a stream in memory, one
that lives on a single node, and, with five nodes, one that lives on all of them.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

Document = dict[str, Any]

ALWAYS = ("S1", "S2")
COMING_AND_GOING = "D"
ALONE = "O"  # one replica
EVERYWHERE = "F"  # five replicas
IN_MEMORY = "M"

# What a world may be about, beside the plain and the varied ones.
COPIES = "copies"  # mirrors and sources
ORIGINS = "origins"  # of copies: they come and go, are work queues, or far away
FEATURES = "features"  # counters, schedules, fast batches, lives
EXTENSIONS = "extensions"  # dead letters, numbered producers, order by subject
ARCHIVES = "archives"  # of streams, and streams made of them

# Action of a client -> how often, relative to the others.
ACTIONS: dict[str, float] = {
    "publish": 10.0,
    "publish_with_id": 4.0,
    "publish_expecting": 2.0,
    "publish_batch": 2.0,
    "publish_batch_expecting": 1.0,
    "delete_msg": 1.0,
    "purge": 0.2,
    "create_consumer": 0.7,
    "create_push_consumer": 0.7,
    "pull": 4.0,
    "ack": 6.0,
    "read_last": 2.0,
    "get_message": 2.0,
    "get_directly": 1.0,
    "create_stream": 0.5,
    "delete_stream": 0.3,
    "step_down": 0.1,
}


class Plan(NamedTuple):
    """What was drawn."""

    configs: dict[str, Document]  # by name, as a client asks for them
    actions: dict[str, float]  # what clients do -> how often, relative to the others
    copies: dict[str, Document] = {}  # noqa: RUF012 - of these: mirrors and streams with sources
    # By stream and name, if they are drawn: the configurations that a consumer has, one or another.
    consumers: dict[tuple[str, str], list[Document]] = {}  # noqa: RUF012

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.configs)

    @property
    def lasting(self) -> tuple[str, ...]:
        """Streams that are made at birth and stay."""
        return tuple(name for name in self.configs if name != COMING_AND_GOING)


def draw(rng: random.Random, node_count: int) -> Plan:
    """Draw the plan of one seed."""
    sizes = dict.fromkeys((*ALWAYS, COMING_AND_GOING), 3)
    if rng.random() < 0.4:
        sizes[ALONE] = 1
    if node_count == 5 and rng.random() < 0.6:
        sizes[EVERYWHERE] = 5
    if rng.random() < 0.4:
        sizes[IN_MEMORY] = rng.choice((3, 3, 1))
    configs = {name: stream_config(rng, name, size) for name, size in sizes.items()}
    actions = {
        action: weight * rng.choice((0.0, 1.0, 1.0, 2.0)) if action != "publish" else weight
        for action, weight in ACTIONS.items()
    }
    return Plan(configs, actions)


def stream_config(rng: random.Random, name: str, replica_count: int) -> Document:
    """The config of a stream, as a client asks for it."""
    return {
        "name": name,
        "subjects": [name + ".>"],
        "retention": "limits",
        "storage": "memory" if name == IN_MEMORY else "file",
        "max_msgs": rng.choice((-1, -1, 60)),
        "max_msgs_per_subject": rng.choice((-1, -1, 3)),
        "discard": "old",
        "num_replicas": replica_count,
        "duplicate_window": 10**6 * 10**9,
        "allow_direct": True,
        "allow_atomic": True,
    }
