"""Every scenario gives the same answers as a real nats-server, except where we mean otherwise."""

from __future__ import annotations

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.differences import reason
from tests.parity.recorder import Recorder
from tests.parity.registry import Scenario, load
from tests.parity.runner import compare


def test_there_are_at_least_two_hundred_scenarios() -> None:
    assert len(load()) >= 200


@pytest.mark.parametrize(("name", "scenario"), load().items(), ids=list(load()))
def test_same_answers(
    name: str, scenario: Scenario, ours: ServerProcess, peer: ServerProcess
) -> None:
    found = [each for each in compare(name, scenario, ours, peer, Recorder) if reason(each) is None]
    assert not found, "\n" + "\n".join(map(str, found))
