"""Every scenario gives the same answers as a real nats-server, except where we mean otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.differences import rule_of
from tests.parity.recorder import Recorder
from tests.parity.registry import Scenario, load
from tests.parity.runner import compare


def test_there_are_at_least_two_hundred_scenarios() -> None:
    assert len(load()) >= 200


@pytest.mark.parametrize(("name", "scenario"), load().items(), ids=list(load()))
def test_same_answers(
    name: str,
    scenario: Scenario,
    ours: ServerProcess,
    peer: ServerProcess,
    record_property: Callable[[str, object], None],
) -> None:
    found = compare(name, scenario, ours, peer, Recorder)
    rules = [rule_of(each) for each in found]
    record_property("rules", [str(rule.name) for rule in rules if rule is not None])
    unmeant = [each for each, rule in zip(found, rules, strict=True) if rule is None]
    assert not unmeant, "\n" + "\n".join(map(str, unmeant))
