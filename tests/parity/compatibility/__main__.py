"""`python -m tests.parity.compatibility` writes docs/COMPATIBILITY.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.parity.compatibility.page import EVERYWHERE, PAGE, RUNS, known_rows, load, render
from tests.parity.recording import reduce


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    parser.add_argument("--runs", help="take over what a recorded run wrote into this file")
    options = parser.parse_args()
    if options.runs:
        document = reduce(json.loads(Path(options.runs).read_text()))
        for part in ("rows", "one_sided"):
            document[part] = {row: at for row, at in document[part].items() if known_rows(row)}
        rules = {name: set(each) - EVERYWHERE for name, each in document["rules"].items()}
        document["rules"] = {name: sorted(each) for name, each in rules.items() if each}
        RUNS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    text = render(load())
    if options.check:
        is_same = PAGE.exists() and PAGE.read_text() == text
        print("up to date" if is_same else "behind: run python -m tests.parity.compatibility")
        return 0 if is_same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
