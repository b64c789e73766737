"""All differences as text: `python -m tests.parity [--only PATTERN] [--random N]`."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.parity import random_publish, random_push, random_scenarios
from tests.parity.compare import Difference
from tests.parity.differences import reason
from tests.parity.disturbed import Clustered, Restarted
from tests.parity.recorder import Recorder
from tests.parity.registry import load
from tests.parity.runner import compare, ours_binary, peer_binary


def _why(difference: Difference) -> str | None:
    is_random = difference.scenario.startswith("random.")
    return reason(difference) or (random_scenarios.unsettled(difference) if is_random else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="pattern of scenario names")
    parser.add_argument("--ours", default=ours_binary())
    parser.add_argument("--peer", default=peer_binary())
    parser.add_argument("--all", action="store_true", help="also the intended ones")
    parser.add_argument("--random", type=int, default=0, help="instead: so many random stories")
    parser.add_argument("--first-seed", type=int, default=1, help="of the random stories")
    parser.add_argument("--push", action="store_true", help="of push consumers, undisturbed")
    parser.add_argument("--publish", action="store_true", help="of publishers, undisturbed")
    parser.add_argument("--disturb", type=int, default=0, help="ours about N times in a story")
    parser.add_argument("--cluster", action="store_true", help="ours is a cluster of three nodes")
    options = parser.parse_args()
    scenarios = load()
    if options.random:
        seeds = range(options.first_seed, options.first_seed + options.random)
        told = partial(random_scenarios.scenario, disturbances=options.disturb)
        if options.push:
            told = random_push.scenario
        if options.publish:
            told = random_publish.scenario
        scenarios = {f"random.{seed}": told(seed) for seed in seeds}
    count = failed = 0
    recorder: Callable[[Any], Recorder] = Clustered if options.cluster else Restarted
    with (
        ClusterProcess(options.ours) if options.cluster else ServerProcess(options.ours) as ours,
        ServerProcess(options.peer) as peer,
    ):
        ours.start()
        peer.start()
        for name, scenario in scenarios.items():
            if not fnmatch.fnmatchcase(name, options.only):
                continue
            count += 1
            if isinstance(ours, ServerProcess) and not ours.is_running():
                print(f"!!! our server died before {name}; restarting\n{ours.log_tail(40)}")
                ours.kill()
                ours.start()
            began = time.monotonic()
            try:
                found = compare(name, scenario, ours, peer, recorder)
            except Exception as err:  # noqa: BLE001 - one scenario must not end the survey
                print(f"{name}: {type(err).__name__}: {err}", flush=True)
                failed += 1
                continue
            if (took := time.monotonic() - began) > 5:
                print(f"{name}: slow, {took:.1f} s")
            shown = [each for each in found if options.all or _why(each) is None]
            failed += bool(shown)
            for each in shown[:1] if options.random else shown:  # one leads to others
                print(each, flush=True)
    print(f"{count} scenarios, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
