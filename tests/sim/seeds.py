"""Seeds: those that `make test` runs, those that `make prove` runs, those that once found a bug."""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.__main__ import (
    DISKS,
    ENCRYPTED,
    GROWTH,
    HARSH,
    PLAIN,
    RUN,
    SIZES,
    TAILS,
    VARIED,
    Campaign,
)
from tests.sim.plan import ARCHIVES, COPIES, EXTENSIONS, FEATURES, ORIGINS
from tests.sim.shortage import short_memory

SHORT_MEMORY = "short memory"  # plain worlds within tests/sim/shortage.py

# Some of each kind for every change, spread over those of the proof.
SPREAD: dict[str, range] = {
    PLAIN: range(1, 301, 50),
    HARSH: range(1, 52, 17),
    VARIED: range(1, 102, 34),
    DISKS: range(1, 102, 34),
    SIZES: range(1, 102, 34),
    GROWTH: range(1, 102, 34),
    SHORT_MEMORY: range(1, 22, 10),
    TAILS: range(1, 13, 3),
    COPIES: range(1, 92, 31),
    ENCRYPTED: range(1, 42, 20),
    FEATURES: range(1, 32, 30),
    EXTENSIONS: range(1, 32, 30),
    ARCHIVES: range(1, 32, 30),
    ORIGINS: range(1, 32, 30),
}
# As many from 1 on for the proof, times its `--times`.
PROOF: dict[str, int] = {
    PLAIN: 300,
    HARSH: 51,
    VARIED: 101,
    DISKS: 101,
    SIZES: 101,
    GROWTH: 101,
    SHORT_MEMORY: 21,
    TAILS: 101,
    COPIES: 90,
    ENCRYPTED: 41,
    FEATURES: 101,
    EXTENSIONS: 101,
    ARCHIVES: 101,
    ORIGINS: 101,
}

# Seeds that once found a bug, in the worlds of their day.
FINDERS = (
    6, 17, 22, 24, 62, 78, 79, 113, 130, 146, 169, 197, 246, 390, 629, 768, 3004, 3070,
    20031, 20057, 20353, 20369, 20546, 20709, 20884, 21110, 21222, 21316, 21822, 21924,
    30111, 31157, 31457, 31667, 50158, 50728, 60380, 61423, 66314, 68321,
    711349, 721152, 910720, 4003778, 7001888, 7101290,
)  # fmt: skip
VARIED_FINDERS = (540019, 8100004, 8100274)
FINDERS_OF_EACH_CHANGE = FINDERS[1::6]  # `make test` runs these; the proof runs all


def run_all(seeds: Iterable[int], kind: str) -> Campaign:
    """Run these seeds one after the other; print each broken promise as it is found."""
    if kind == SHORT_MEMORY:
        with short_memory() as holds:
            campaign = run_all(seeds, PLAIN)
        campaign.counts["log held"] += holds.count
        return campaign
    campaign = Campaign(kind)
    for seed in seeds:
        campaign.add(RUN[kind](seed))
    return campaign
