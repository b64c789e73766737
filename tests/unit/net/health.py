"""Health of a node as monitoring shows it; a test says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.latency_histogram import LatencyHistogram
from streamd.node.ports import LogWaits


class Health:
    """Implements `ports.NodeHealth`. `lost` says of an asset why its only copy is lost."""

    def __init__(self, lost: Callable[[Any], str] = lambda asset: "") -> None:
        self.store_fault = ""
        self.waits = LogWaits(9.9, 2, 30, 20)  # not yet called hung
        self.lost_copy_reason = lost
        self.latencies = {name: LatencyHistogram() for name in ("log_write", "turn", "apply")}

    def log_waits(self) -> LogWaits:
        return self.waits

    def damage_reasons(self) -> dict[int, str]:
        return {}

    def discarded_reasons(self) -> dict[tuple[str, str], str]:
        return {}

    def counts(self) -> dict[str, int]:
        return dict.fromkeys(
            (
                "incarnation_conflicts", "damages", "scrubbed_bytes", "tails_set_aside",
                "tails_open", "tails_kept", "ignored_entries", "damaged_streams",
                "drifted_replicas", "repaired_blocks", "renewed_replicas", "scrub_rounds",
                "scrub_files", "scrub_files_left", "scrub_skipped",
            ),
            0,
        )  # fmt: skip
