"""All differences as text: `python -m tests.parity [--only PATTERN] [--peer-twice]`."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time

from benchmarks.servers import ServerProcess
from tests.parity.differences import reason
from tests.parity.registry import load
from tests.parity.runner import compare, ours_binary, peer_binary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="pattern of scenario names")
    parser.add_argument("--ours", default=ours_binary())
    parser.add_argument("--peer", default=peer_binary())
    parser.add_argument("--all", action="store_true", help="also the intended ones")
    options = parser.parse_args()
    count = failed = 0
    with ServerProcess(options.ours) as ours, ServerProcess(options.peer) as peer:
        ours.start()
        peer.start()
        for name, scenario in load().items():
            if not fnmatch.fnmatchcase(name, options.only):
                continue
            count += 1
            if not ours.is_running():
                print(f"!!! our server died before {name}; restarting\n{ours.log_tail(40)}")
                ours.kill()
                ours.start()
            began = time.monotonic()
            try:
                found = compare(name, scenario, ours, peer)
            except Exception as err:  # noqa: BLE001 - one scenario must not end the survey
                print(f"{name}: {type(err).__name__}: {err}", flush=True)
                failed += 1
                continue
            if (took := time.monotonic() - began) > 5:
                print(f"{name}: slow, {took:.1f} s")
            shown = [each for each in found if options.all or reason(each) is None]
            failed += bool(shown)
            for each in shown:
                print(each, flush=True)
    print(f"{count} scenarios, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
