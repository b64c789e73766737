"""Streams that /healthz and /metrics call lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streamd.net.monitoring.healthz import lost_streams
from streamd.net.monitoring.sliced_pages import finish


def test_lost_streams_are_told_in_order() -> None:
    """By account and name, whenever they were created."""
    keys = [("B", "x"), ("A", "z"), ("A", "y"), ("A", "whole")]
    assets = {key: SimpleNamespace(key=key) for key in keys}
    reasons = {key: f"{key} is lost" for key in keys if key[1] != "whole"}
    node: Any = SimpleNamespace(
        meta=SimpleNamespace(streams_by_key=assets),
        health=SimpleNamespace(lost_copy_reason=lambda asset: reasons.get(asset.key, "")),
    )
    assert list(finish(lost_streams(node))) == [("A", "y"), ("A", "z"), ("B", "x")]
    only = finish(lost_streams(node, ("A", "z")))
    assert only == {("A", "z"): "('A', 'z') is lost"}
