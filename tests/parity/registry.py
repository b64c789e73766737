"""The scenarios by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.parity.recorder import Recorder

Scenario = Callable[[Recorder], None]
SCENARIOS: dict[str, Scenario] = {}
Function = TypeVar("Function", bound=Scenario)


def scenario(function: Function) -> Function:
    """Register a function under `module.function`."""
    module = function.__module__.rpartition(".")[2]
    return add(f"{module}.{function.__name__}", function)


def add(name: str, function: Function) -> Function:
    """Register under a name of its own, for scenarios made from tables."""
    assert name not in SCENARIOS, name
    SCENARIOS[name] = function
    return function


def load() -> dict[str, Scenario]:
    """Import all modules of scenarios and return what they registered."""
    from tests.parity.scenarios import (  # noqa: F401
        account,
        batches,
        consumers,
        core,
        counters,
        delivery,
        edges,
        fast_batches,
        headers,
        messages,
        mirrors,
        publish,
        pulls,
        refusals,
        schedules,
        sources,
        streams,
        transforms,
    )

    return SCENARIOS
