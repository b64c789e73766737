"""Tables and recorded runs from which docs/COMPATIBILITY.md is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.parity.compare import Difference
from tests.parity.compatibility import own
from tests.parity.differences import INTENDED, rule_of
from tests.parity.recording import Results


class _Report:
    """Report of one phase of a test."""

    when = "call"

    def __init__(self, nodeid: str, outcome: str) -> None:
        self.nodeid = nodeid
        self.outcome = outcome


@pytest.mark.parametrize("outcomes", [["failed", "skipped"], ["skipped", "passed", "failed"]])
def test_a_comparison_that_failed_once_has_failed(outcomes: list[str], tmp_path: Path) -> None:
    """Parameters of a test that are left out behind that one change nothing."""
    results = Results(str(tmp_path / "runs"))
    for number, outcome in enumerate(outcomes):
        report: Any = _Report(f"tests/parity/test_x.py::test_y[{number}]", outcome)
        results.pytest_runtest_logreport(cast(pytest.TestReport, report))
    results.pytest_sessionfinish()
    (found,) = json.loads((tmp_path / "runs").read_text()).values()
    assert found["outcome"] == "failed"


@pytest.mark.parametrize(
    ("status", "is_sent"),
    [("204", True), ("503", True), ("404 No Messages", True), ("299", False), ("418 EOB", False)],
)
def test_a_status_is_sent_with_its_number(status: str, is_sent: bool) -> None:
    assert own.sends(status) == is_sent


def test_no_difference_is_meant_wherever_it_is() -> None:
    """A scenario in which any difference is allowed could not fail."""
    for scenario in {rule.scenario for rule in INTENDED} - {"*"}:
        stumbled = Difference(scenario, 9, "raised", "", "KeyError", "<absent>")
        assert rule_of(stumbled) is None, scenario
