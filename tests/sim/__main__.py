"""Run a campaign: python -m tests.sim --seeds N [--first-seed S] [--jobs J] [--trace] [--hashes]
[--harsh | --varied | --disks | --sizes | --growth | --tails | --encrypted | --copies |
--origins | --features | --extensions | --archives]

The last line says how many seeds ran, how many promises were broken, how many publishes were
acked, and how often each kind of fault struck. A broken promise prints the command that replays
it. A campaign of 100 seeds or more also fails if a fault, a deed or a named point never happened,
unless its worlds have few kinds of faults each, as all have but the plain and the varied ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.sim.cluster import SimCluster
from tests.sim.faults import (
    KINDS,
    OF_GROWTH,
    SINGLE,
    DirectedWorld,
    copies_world,
    disks_world,
    encrypted_world,
    growth_world,
    harsh_world,
    sizes_world,
)
from tests.sim.plan import ARCHIVES, COPIES, EXTENSIONS, FEATURES, ORIGINS
from tests.sim.world import SECOND, Violation, World

CAMPAIGN_SEEDS = 100  # from here on nothing may be missing
SHOWN_LINES = 60

# Places a campaign must have been at; others are counted as they come.
POINTS = (
    "BLOCKS_SYNCED",
    "SNAPSHOT_RENAMED",
    "BLOCK_SEALED",
    "BLOCKS_TRUNCATED",
    "INDEX_RENAMED",
    "INSTALL_BLOCK_RENAMED",
    "INSTALL_MARKER_RENAMED",
    "INSTALL_SWAPPED",
    "WAL_SEGMENT_FREED",
    "WAL_MANIFEST_SYNCED",
    "WAL_DAMAGE_SET_ASIDE",
    "NODE_IDENTITY_RENAMED",
    "snapshot wanted",
)
# What clients did, checks that looked at something, and damage that was noticed.
DEEDS = (
    "acked",
    "answers in doubt",
    "batches",
    "batches as expected",
    "blocks rewritten",
    "consumers",
    "consumers drained",
    "deletes",
    "double acked",
    "duplicates found",
    "expectations met",
    "memory streams remembered again",
    "messages got",
    "messages got directly",
    "messages gone",
    "nodes lost for good",
    "purges",
    "pushed",
    "reads",
    "releases checked",
    "removals in steps",
    "step-downs",
    "stream deletes",
    "streams of 1",
    "streams of 3",
    "streams of 5",
    "streams in memory",
    "writes by the loop",
    "log warning: stream files set aside",
    "log warning: the log is damaged",
)


# The same in varied worlds.
VARIED_DEEDS = (
    "acked",
    "ages looked at",
    "batches",
    "blocks rewritten",
    "consumers",
    "consumers changed",
    "consumers deleted",
    "consumers drained",
    "deletes",
    "double acked",
    "duplicates found",
    "markers",
    "pauses",
    "peers removed",
    "purges",
    "pushed",
    "removals in steps",
    "resets",
    "retentions checked",
    "single servers",
    "stream updates",
    "unpins",
)
# And in those of failing disks of blocks, and of streams that grow and shrink.
DISKS_DEEDS = (
    "acked",
    "consumers drained",
    "disks of blocks lost for good",
    "fault log's disk fails",
)
SIZES_DEEDS = ("acked", "consumers drained", "peers removed", "resizes", "stream_moved")
TAILS_DEEDS = (
    "acked",
    "acked and lost",
    "a term led twice",
    "set aside: committed",
    "set aside: led",
    "logs let go",
    "no room to set aside",
    "point TAIL_SYNCED",
    "point TAIL_SET_ASIDE",
    "fault old copy put back",
    "fault last batches torn",
)
GROWTH_DEEDS = (
    "acked",
    "commits on too few disks",
    "led when all were current",
    "resizes",
    "stream_moved",
    *(f"fault {kind}" for kind in OF_GROWTH),
)
# Kinds of worlds.
PLAIN, HARSH, VARIED = "plain", "harsh", "varied"
DISKS, SIZES, GROWTH = "disks", "sizes", "growth"
ENCRYPTED = "encrypted"
TAILS = "tails"  # of what was acknowledged and is lost


_DEEDS_OF = {
    VARIED: VARIED_DEEDS,
    DISKS: DISKS_DEEDS,
    SIZES: SIZES_DEEDS,
    GROWTH: GROWTH_DEEDS,
    TAILS: TAILS_DEEDS,
    COPIES: ("acked", "mirrored", "sourced", "step-downs"),
    ARCHIVES: ("acked", "archived messages", "archives", "consumers restored", "restores"),
    ORIGINS: (
        "acked",
        "incarnations copied",
        "incarnations mirrored",
        "mirrored from a queue",
        "mirrored from afar",
        "mirrored from recreated streams",
        "purges",
        "sourced from a queue",
        "sourced from recreated streams",
        "stream deletes",
    ),
    FEATURES: (
        "acked",
        "expired",
        "fast acks",
        "fast batches ended",
        "fast gaps",
        "fast members",
        "fast refusals",
        "fired",
        "increments",
        "increments found again",
        "increments together",
        "markers",
        "schedules",
        "step-downs",
    ),
    EXTENSIONS: (
        "acked",
        "acked messages",
        "consumers drained",
        "deletes",
        "delivered",
        "letters without a body",
        "letters: max_deliver",
        "letters: terminated",
        "numbered",
        "numbers found again",
        "purges",
        "step-downs",
    ),
}


class Outcome(NamedTuple):
    """What became of one seed."""

    seed: int
    violation: str  # empty: none
    virtual_us: int
    trace_hash: str
    counts: Counter[str]
    recent: list[str]


def run_seed(
    seed: int,
    *,
    is_verbose: bool = False,
    world: DirectedWorld | None = None,
    is_varied: bool = False,
    about: str = "",
) -> Outcome:
    """Run one seed from birth to examination; in a `world` with chosen faults, if there is one.
    `about`: see plan."""
    is_varied = is_varied or (world is not None and world.is_varied)
    cluster = SimCluster(
        seed,
        is_verbose=is_verbose,
        directed=world,
        is_varied=is_varied,
        about=about,
    )
    return _outcome(seed, cluster.world, cluster.run)


def _outcome(seed: int, ran: World, run: Callable[[], None]) -> Outcome:
    violation = ""
    try:
        run()
    except Exception as err:  # noqa: BLE001 - whatever it is, it is this seed's failure
        violation = f"{type(err).__name__}: {err}"
        if not isinstance(err, Violation) or err.__cause__ is not None:
            violation += "\n" + "".join(traceback.format_exception(err))
    return Outcome(seed, violation, ran.now_us, ran.trace_hash(), ran.counts, ran.recent)


def run_harsh_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, in the harsh world that the seed tells."""
    return run_seed(seed, is_verbose=is_verbose, world=harsh_world(seed))


def run_encrypted_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_harsh_seed`, where all files are encrypted and sealed blocks packed."""
    return run_seed(seed, is_verbose=is_verbose, world=encrypted_world(seed))


def run_varied_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, with streams and consumers of many kinds."""
    return run_seed(seed, is_verbose=is_verbose, is_varied=True)


def run_copies_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, with streams that copy others; with odd seeds links break, and little else."""
    return run_seed(seed, is_verbose=is_verbose, world=copies_world(seed), about=COPIES)


def run_features_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, on five nodes, with counters, schedules, fast batches and lives."""
    return run_seed(seed, is_verbose=is_verbose, about=FEATURES)


def run_extensions_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, on five nodes, with dead letters, numbered producers and order by subject."""
    return run_seed(seed, is_verbose=is_verbose, about=EXTENSIONS)


def run_origins_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_copies_seed`, on five nodes, of origins that come and go, empty, or are far away."""
    return run_seed(seed, is_verbose=is_verbose, world=copies_world(seed), about=ORIGINS)


def run_archives_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, on five nodes, with archives of streams, and streams made of them."""
    return run_seed(seed, is_verbose=is_verbose, about=ARCHIVES)


def run_disks_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_seed`, where blocks and log are on two disks; with odd seeds clients of all kinds."""
    world = disks_world(seed)
    return run_seed(seed, is_verbose=is_verbose, world=world, is_varied=seed % 2 == 1)


def run_sizes_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_varied_seed`, with streams that grow, shrink and move under way."""
    return run_seed(seed, is_verbose=is_verbose, world=sizes_world(seed), is_varied=True)


def run_growth_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """As `run_sizes_seed`, where a new replica is lost as it comes, or the leader once all others
    are current."""
    return run_seed(seed, is_verbose=is_verbose, world=growth_world(seed))


def run_tails_seed(seed: int, *, is_verbose: bool = False) -> Outcome:
    """One seed in which what was acknowledged is lost (tests/sim/tails.py)."""
    from tests.sim.tails import TailsWorld  # its world is driven by hand, as scenarios are

    made = TailsWorld(seed, is_verbose=is_verbose)
    return _outcome(seed, made.world, made.run)


RUN: dict[str, Callable[..., Outcome]] = {
    PLAIN: run_seed,
    HARSH: run_harsh_seed,
    VARIED: run_varied_seed,
    DISKS: run_disks_seed,
    SIZES: run_sizes_seed,
    GROWTH: run_growth_seed,
    TAILS: run_tails_seed,
    ENCRYPTED: run_encrypted_seed,
    COPIES: run_copies_seed,
    FEATURES: run_features_seed,
    EXTENSIONS: run_extensions_seed,
    ORIGINS: run_origins_seed,
    ARCHIVES: run_archives_seed,
}


class Campaign:
    """Outcomes of many seeds."""

    def __init__(self, kind: str = PLAIN) -> None:
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self.seeds = 0
        self.violations = 0
        self.virtual_us = 0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome; show it if a promise was broken."""
        self.seeds += 1
        self.virtual_us += outcome.virtual_us
        self.counts.update(outcome.counts)
        if outcome.violation:
            self.violations += 1
            for line in outcome.recent[-SHOWN_LINES:]:
                print(line)
            print(f"VIOLATION in seed {outcome.seed}: {outcome.violation}")
            kind = f" --{self.kind}" if self.kind != PLAIN else ""
            print(
                f"replay: python -m tests.sim --seeds 1 --first-seed {outcome.seed} --trace{kind}"
            )
            sys.stdout.flush()

    def missing(self) -> list[str]:
        """Faults, deeds and points that never happened."""
        if self.kind in (HARSH, ENCRYPTED):
            return []
        if self.kind != PLAIN:
            wanted = _DEEDS_OF[self.kind]
            return [name for name in wanted if not self.counts[name]]
        faults = [kind for kind in (*KINDS, *SINGLE) if not self.counts[f"fault {kind}"]]
        deeds = [name for name in DEEDS if not self.counts[name]]
        return faults + deeds + [name for name in POINTS if not self.counts[f"point {name}"]]

    def report(self) -> None:
        """Figures, one a line."""
        for name, number in sorted(self.counts.items()):
            if not name.startswith("fault "):
                print(f"{name:44} {number}")

    def last_line(self) -> str:
        faults = {
            name.removeprefix("fault "): number
            for name, number in sorted(self.counts.items())
            if name.startswith("fault ")
        }
        hours = self.virtual_us / SECOND / 3600
        shown = ", ".join(f"{name} {number}" for name, number in faults.items())
        return (
            f"seeds {self.seeds}, violations {self.violations}, acked {self.counts['acked']}, "
            f"virtual hours {hours:.2f}, faults: {shown}"
        )


def main() -> int:
    """Run from the command line; the exit code is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes to use")
    parser.add_argument(
        "--harsh", action="store_true", help="few kinds of faults, but fast, and copies are lost"
    )
    parser.add_argument("--varied", action="store_true", help="streams and consumers of many kinds")
    parser.add_argument("--disks", action="store_true", help="one of two disks of a node fails")
    parser.add_argument("--sizes", action="store_true", help="streams grow, shrink and move")
    parser.add_argument("--growth", action="store_true", help="new replicas or leaders are lost")
    parser.add_argument("--tails", action="store_true", help="what was acknowledged is lost")
    parser.add_argument("--encrypted", action="store_true", help="harsh, with encrypted disks")
    parser.add_argument("--copies", action="store_true", help="mirrors and sources")
    parser.add_argument(
        "--features", action="store_true", help="counters, schedules, fast batches, lives"
    )
    parser.add_argument(
        "--extensions", action="store_true", help="dead letters, producers, order by subject"
    )
    parser.add_argument(
        "--origins", action="store_true", help="copies of what comes and goes, empties, or is far"
    )
    parser.add_argument("--archives", action="store_true", help="archives, and streams of them")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--hashes", action="store_true", help="print each seed's trace hash")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    began = time.monotonic()
    campaign = run_seeds(
        seeds,
        jobs=args.jobs,
        kind=next((kind for kind in RUN if kind != PLAIN and getattr(args, kind)), PLAIN),
        is_verbose=args.trace,
        shows_hashes=args.hashes,
    )
    campaign.report()
    missing = campaign.missing() if args.seeds >= CAMPAIGN_SEEDS else []
    if missing:
        print(f"never happened: {', '.join(missing)}")
    print(f"{time.monotonic() - began:.0f} s")
    print(campaign.last_line())
    return 1 if campaign.violations or missing else 0


def run_seeds(
    seeds: range,
    *,
    jobs: int = 1,
    kind: str = PLAIN,
    is_verbose: bool = False,
    shows_hashes: bool = False,
) -> Campaign:
    """Run many seeds, in `jobs` processes; what breaks a promise is printed as it is found."""
    campaign = Campaign(kind)
    run = RUN[kind]
    if jobs > 1:
        with multiprocessing.Pool(jobs) as pool:
            _collect(campaign, pool.imap_unordered(run, seeds), shows_hashes)
    else:
        _collect(campaign, (run(seed, is_verbose=is_verbose) for seed in seeds), shows_hashes)
    return campaign


def _collect(campaign: Campaign, outcomes: Iterable[Outcome], shows_hashes: bool) -> None:
    for outcome in outcomes:
        campaign.add(outcome)
        if shows_hashes:
            print(f"seed {outcome.seed} trace {outcome.trace_hash}")


if __name__ == "__main__":
    sys.exit(main())
