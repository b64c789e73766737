"""Results of runs of `make parity`, for docs/COMPATIBILITY.md.

With STREAMD_PARITY_RECORD=FILE a run writes what each comparison saw into FILE, in the place of
what that has of the same comparisons: a run of a few of them, again, completes one of all. Then
`python -m tests.parity.compatibility --runs FILE` takes over from it what the page needs. With
`pytest-xdist` the processes that run tests hand what they saw to the one that started them.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.parity.observed import OURS, PEER

FILE = os.environ.get("STREAMD_PARITY_RECORD", "")
EXAMPLES = 2
_OUTCOMES = ("passed", "skipped", "failed")
_SCENARIO = re.compile(r"test_parity\.py::test_same_answers\[(.+)\]$")


class Results:
    """A plugin of pytest: collects what comparisons saw, and writes it at the end."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._found: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = self._found.setdefault(
            name_of(report.nodeid),
            {"outcome": "passed", "rules": [], "versions": {}, OURS: [], PEER: []},
        )
        # One of its parameters is enough, and a failure is more than a test left out.
        found["outcome"] = max(found["outcome"], report.outcome, key=_OUTCOMES.index)
        if report.when == "teardown":
            for key, value in report.user_properties:
                if key == "observed" and isinstance(value, dict):
                    for side, rows in value.items():
                        found[side] = sorted({*found[side], *rows})
                elif key == "rules" and isinstance(value, list):
                    found["rules"] = sorted({*found["rules"], *map(str, value)})
                elif key == "versions" and isinstance(value, dict):
                    found["versions"].update(value)

    def pytest_sessionfinish(self) -> None:
        before = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._path.write_text(json.dumps(before | self._found, indent=1, sort_keys=True) + "\n")


def name_of(node: str) -> str:
    """Name of a comparison: a scenario's, else a test's, whatever the parameters: they may be the
    two servers."""
    match = _SCENARIO.search(node)
    return match[1] if match else node.rpartition("/")[2].partition("[")[0]


def reduce(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what the page needs of recorded runs."""
    versions: dict[str, str] = {}
    by_outcome: dict[str, list[str]] = defaultdict(list)
    for name, one in found.items():
        by_outcome[one["outcome"]].append(name)
        versions.update(one["versions"])
    rows: dict[str, list[str]] = defaultdict(list)
    one_sided: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(by_outcome["passed"], key=_interest):
        ours, peer = set(found[name][OURS]), set(found[name][PEER])
        for row in ours & peer:
            rows[row].append(name)
        for side, more in ((OURS, ours - peer), (PEER, peer - ours)):
            for row in more:
                if row.startswith(("error:", "status:")):
                    one_sided[row][side].append(name)
    return {
        "versions": versions,
        "passed": len(by_outcome["passed"]),
        "scenarios": sum(1 for name in by_outcome["passed"] if "::" not in name),
        "failed": sorted(by_outcome["failed"]),
        "skipped": sorted(by_outcome["skipped"]),
        "rules": {name: one["rules"] for name, one in found.items() if one["rules"]},
        "rows": {row: len(names) for row, names in rows.items()},
        "one_sided": {
            row: {side: names[:EXAMPLES] for side, names in sides.items()}
            for row, sides in one_sided.items()
            if row not in rows
        },
    }


def _interest(name: str) -> tuple[bool, str]:
    return "::" in name, name  # scenarios first: all of their answers are compared
