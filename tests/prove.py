"""The long proofs, resumable: python -m tests.prove [PART ...] [--times N] [--jobs J] [--again]

Parts:
  seeds          simulated clusters of every kind under faults, and all seeds that once found a bug
  variants       servers that are broken on purpose: the simulator must notice each
  crash          simulated power failures of one node, histories of its consumers, and real SIGKILLs
                 of a process that loses its un-synced bytes
  cluster-crash  three real processes, killed, paused and restarted; all acceptance scenarios
  processes      the other long tests of real processes: lost logs, removed servers, images, Spark
                 (those that Spark or Docker is missing for say so and count as done)
  parsers        millions of malformed tokens and frames, a million deliveries between accounts
  parity         side by side with a real nats-server (`make parity`); without one they are skipped

Without a part all of them run. A part consists of steps; the result of each step is written to
`.prove/state.json` as soon as the step ends. The next call goes on with the steps that are not done
and with those that failed. A change of the sources of streamd or of its tests makes all results
void, as does `--again`. The exit code is 1 if a step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.sim import crash, histories
from tests.sim.__main__ import PLAIN, VARIED, Campaign, run_seed
from tests.sim.mutants import MUTANTS, RARE, TAILED, hunt
from tests.sim.mutants_copies import COPIED
from tests.sim.mutants_features import FEATURED
from tests.sim.mutants_varied import VARIED as VARIED_MUTANTS
from tests.sim.seeds import FINDERS, PROOF, SHORT_MEMORY, VARIED_FINDERS, run_all

ROOT = Path(__file__).parent.parent
STATE_DIR = ROOT / ".prove"
PARTS = ("seeds", "variants", "crash", "cluster-crash", "processes", "parsers", "parity")
CRASH_TESTS = "tests/e2e/test_process.py"
CLUSTER_CRASH_TESTS = "tests/e2e/test_cluster.py"
SEEDS_PER_STEP = 5
CRASH_POINTS = 10_000
CRASHES_PER_SEED = 12  # of tests/sim/crash.py
CRASH_SEEDS_PER_STEP = 21
HISTORIES = 300
HISTORIES_PER_STEP = 30
ALL_MUST_HAPPEN_FROM = 100  # seeds of a kind: from here on each of its faults and deeds must occur


class Result(NamedTuple):
    """The result of one step, as it is kept in the state file."""

    is_good: bool
    counts: dict[str, int]
    text: str  # of a failure, or the closing lines of a campaign of processes
    seconds: float


class Step(NamedTuple):
    """A piece of a part that takes seconds to minutes; `run` returns its counts and its text."""

    part: str
    name: str
    run: Callable[[], tuple[dict[str, int], str]]


def steps(parts: Iterable[str], times: int) -> Iterator[Step]:
    """Return the steps of these parts; `times` as many simulated seeds and crashes as usual."""
    for part in parts:
        if part == "seeds":
            yield from _seed_steps(times)
        elif part == "variants":
            yield from _variant_steps()
        elif part == "crash":
            yield from _crash_steps(times)
            yield from _process_steps(part, CRASH_TESTS)
        elif part == "cluster-crash":
            yield from _process_steps(part, CLUSTER_CRASH_TESTS, "tests/scenarios")
        elif part == "parsers":
            yield from _process_steps(part, "tests/unit", "tests/props")
        elif part == "parity":
            for file in sorted(Path(ROOT, "tests", "parity").glob("test_*.py")):
                yield Step(part, file.name, partial(_compare, file))
        else:
            others = (f"--ignore={CRASH_TESTS}", f"--ignore={CLUSTER_CRASH_TESTS}")
            yield from _process_steps(part, *others, "tests/e2e", "tests/spark")


def _seed_steps(times: int) -> Iterator[Step]:
    for kind, usual in PROOF.items():
        for seeds in _parts_of(range(1, usual * times + 1), SEEDS_PER_STEP):
            yield Step("seeds", f"{kind} {seeds[0]}-{seeds[-1]}", partial(_seeds, seeds, kind))
    for kind, finders in ((PLAIN, FINDERS), (VARIED, VARIED_FINDERS)):
        for at in range(0, len(finders), SEEDS_PER_STEP):
            some = finders[at : at + SEEDS_PER_STEP]
            name = f"{kind}, of former bugs {some[0]}-{some[-1]}"
            yield Step("seeds", name, partial(_seeds, some, kind))


def _variant_steps() -> Iterator[Step]:
    for name in (*MUTANTS, *VARIED_MUTANTS, *TAILED, *COPIED, *FEATURED):
        yield Step("variants", name, partial(_variant, name))
    for name, world in RARE.items():
        if world.caught_by:
            yield Step("variants", name, partial(_rare_variant, name))


def _crash_steps(times: int) -> Iterator[Step]:
    seed_count = -(-CRASH_POINTS * times // CRASHES_PER_SEED)
    for seeds in _parts_of(range(1, seed_count + 1), CRASH_SEEDS_PER_STEP):
        yield Step("crash", f"power failures {seeds[0]}-{seeds[-1]}", partial(_crashes, seeds))
    for seeds in _parts_of(range(1, HISTORIES * times + 1), HISTORIES_PER_STEP):
        yield Step("crash", f"histories {seeds[0]}-{seeds[-1]}", partial(_histories, seeds))


def _process_steps(part: str, *arguments: str) -> Iterator[Step]:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "proof", *arguments]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        if "::" in line:
            yield Step(part, line, partial(_pytest, line))


def _parts_of(numbers: range, size: int) -> Iterator[range]:
    for at in range(0, len(numbers), size):
        yield numbers[at : at + size]


# --- what steps do --------------------------------------------------------------------------------


def _seeds(seeds: Iterable[int], kind: str) -> tuple[dict[str, int], str]:
    campaign = run_all(seeds, kind)
    counts = {
        "seeds": campaign.seeds,
        "violations": campaign.violations,
        "virtual us": campaign.virtual_us,
        **campaign.counts,
    }
    assert campaign.violations == 0, campaign.last_line()
    if kind == SHORT_MEMORY:
        assert campaign.counts["log held"] > 20 * campaign.seeds
    return counts, ""


def _variant(name: str) -> tuple[dict[str, int], str]:
    seed, text = hunt(name)
    assert seed, f"{name} got away"
    return {"variants caught": 1}, f"seed {seed}: {text}"


def _rare_variant(name: str) -> tuple[dict[str, int], str]:
    world = RARE[name]
    seed, text = hunt(name, first_seed=world.caught_by, seeds=1, world=world)
    assert seed, f"{name} got away"
    whole = run_seed(world.caught_by, world=world)
    assert not whole.violation, f"without the fault: {whole.violation}"
    return {"variants caught": 1}, f"seed {seed}: {text}"


def _crashes(seeds: range) -> tuple[dict[str, int], str]:
    counts = crash.run(first_seed=seeds[0], points=CRASHES_PER_SEED * len(seeds))
    assert counts["acked"] > 10 * counts["crashes"]
    return dict(counts), ""


def _histories(seeds: range) -> tuple[dict[str, int], str]:
    return {"delivered in histories": histories.run(seeds[0], seeds[-1])}, ""


def _pytest(test: str) -> tuple[dict[str, int], str]:
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "proof", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:]
    words = (" acked, ", "SKIPPED")
    shown = [line for line in done.stdout.splitlines() if any(word in line for word in words)]
    counts = {"campaigns": 1}
    for line in shown:
        if " acked, " not in line:
            continue
        counts["acked"] = counts.get("acked", 0) + int(line.split(" acked, ")[0].split()[-1])
    return counts, "\n".join(shown)


def _compare(file: Path) -> tuple[dict[str, int], str]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "comparison", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:]
    return {"files of comparisons": 1}, done.stdout.splitlines()[-1]


# --- running them ---------------------------------------------------------------------------------


def run_step(step: Step) -> Result:
    """Run one step; an exception of it is its failure."""
    began = time.monotonic()
    output = io.StringIO()
    counts: dict[str, int] = {}
    is_good = False
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            counts, text = step.run()
            is_good = True
        except Exception as err:  # noqa: BLE001 - whatever it is, it is this step's failure
            counts = {"failed steps": 1}
            text = f"{output.getvalue()}\n{''.join(traceback.format_exception(err))}"
    return Result(is_good, counts, text, time.monotonic() - began)


def _run_numbered(job: tuple[int, Step]) -> tuple[int, Result]:
    return job[0], run_step(job[1])


def sources_digest() -> str:
    """A digest of all sources that a result depends on."""
    digest = hashlib.sha256()
    for top in ("streamd", "tests", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class State:
    """The results of steps, in a file that is replaced after each step."""

    def __init__(self, path: Path, digest: str, *, is_new: bool) -> None:
        self._path = path
        self._digest = digest
        self.results: dict[str, Result] = {}
        if not is_new and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["sources"] == digest:
                self.results = {name: Result(*fields) for name, fields in kept["steps"].items()}
            else:
                print("the sources have changed: all steps run anew")

    def is_done(self, step: Step) -> bool:
        found = self.results.get(key(step))
        return found is not None and found.is_good

    def add(self, step: Step, result: Result) -> None:
        self.results[key(step)] = result
        self._path.parent.mkdir(exist_ok=True)
        written = self._path.with_suffix(".tmp")
        kept: dict[str, Any] = {"sources": self._digest, "steps": self.results}
        written.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        os.replace(written, self._path)


def key(step: Step) -> str:
    return f"{step.part}: {step.name}"


def report(wanted: list[Step], state: State) -> bool:
    """Print the figures of each part and of all; return whether every step is done and good."""
    total: Counter[str] = Counter()
    is_good = True
    for part in dict.fromkeys(step.part for step in wanted):
        own = [step for step in wanted if step.part == part]
        done = [state.results[key(step)] for step in own if state.is_done(step)]
        failed = [step.name for step in own if key(step) in state.results]
        failed = [name for name in failed if not state.results[f"{part}: {name}"].is_good]
        seconds = sum(result.seconds for result in done)
        print(f"{part}: {len(done)} of {len(own)} steps done in {seconds:.0f} s")
        for name in failed:
            print(f"  FAILED: {name} (see {STATE_DIR.name}/state.json)")
        for result in done:
            total.update(result.counts)
        is_good = is_good and len(done) == len(own)
    is_good = _report_missing(wanted, state) and is_good
    faults = {name: n for name, n in sorted(total.items()) if name.startswith("fault ")}
    shown = ", ".join(f"{name.removeprefix('fault ')} {n}" for name, n in faults.items())
    print(
        f"seeds {total['seeds']}, violations {total['violations']}, acked {total['acked']}, "
        f"crashes {total['crashes']}, variants caught {total['variants caught']}, "
        f"virtual hours {total['virtual us'] / 3.6e9:.2f}"
    )
    if shown:
        print(f"faults: {shown}")
    return is_good


def _report_missing(wanted: list[Step], state: State) -> bool:
    """Once all seeds of a kind have run, each of its faults, deeds and points has occurred."""
    is_good = True
    for kind in PROOF:
        own = [step for step in wanted if step.name.startswith(f"{kind} ")]
        own = [step for step in own if step.part == "seeds"]
        if kind == SHORT_MEMORY or not all(map(state.is_done, own)):
            continue
        campaign = Campaign(kind)
        for step in own:
            campaign.counts.update(state.results[key(step)].counts)
        if campaign.counts["seeds"] >= ALL_MUST_HAPPEN_FROM and campaign.missing():
            print(f"  {kind}: never happened: {', '.join(campaign.missing())}")
            is_good = False
    return is_good


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--times", type=int, default=1, help="multiples of the usual seeds")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--again", action="store_true", help="forget all earlier results")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    wanted = list(steps(args.parts or PARTS, args.times))
    state = State(STATE_DIR / "state.json", sources_digest(), is_new=args.again)
    missing = [(at, step) for at, step in enumerate(wanted) if not state.is_done(step)]
    print(f"{len(wanted)} steps, {len(wanted) - len(missing)} of them done before", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(wanted, missing, state, args.jobs)
    except KeyboardInterrupt:
        print("interrupted: the next call goes on from here")
    return 0 if report(wanted, state) else 1


def _run(wanted: list[Step], missing: list[tuple[int, Step]], state: State, jobs: int) -> None:
    """Run the missing steps, each in a process of its own, and keep each result as it comes."""
    with multiprocessing.Pool(jobs, initializer=_begin_worker, maxtasksperchild=1) as pool:
        for number, (at, result) in enumerate(pool.imap_unordered(_run_numbered, missing), 1):
            step = wanted[at]
            state.add(step, result)
            word = "done" if result.is_good else f"FAILED\n{result.text}\n"
            if result.is_good and result.text:
                word = result.text
            at_of = f"{number}/{len(missing)}"
            print(f"{at_of} {key(step)}, {result.seconds:.0f} s: {word}", flush=True)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, which ends its workers by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
