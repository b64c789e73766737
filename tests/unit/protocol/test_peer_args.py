"""Shapes of what servers tell each other: what they do say is let through."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import JsError
from streamd.node.stream_groups.forwarded_publishes import encode_outcomes
from streamd.protocol.peer_schemas import check_note


@pytest.mark.parametrize(
    "outcomes",
    [range(1, 3), [7], [(-1, 7)], [(9, 4, "batch")], [JsError(503, 10008, "no")]],
    ids=["a run", "stored", "a duplicate", "a batch", "refused"],
)
def test_every_outcome_of_a_relayed_publish_is_let_through(outcomes: Any) -> None:
    check_note("pubacks", [5, None, encode_outcomes(outcomes)])
