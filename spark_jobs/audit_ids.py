"""Message ids that are stored twice inside one duplicate window."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spark_jobs.audit_findings import Finding, finding
from spark_jobs.audit_open import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def duplicate_findings(ids: DataFrame, views: Mapping[str, View]) -> list[Finding]:
    """`ids` has a row (cohort, hash, seq, ts, id) of every stored message that has an id; `views`
    has the replica that was read, by cohort."""
    from pyspark.sql import functions as f

    twice = (
        ids.groupBy("cohort", "hash")
        .agg(f.count("*").alias("times"), f.collect_list(f.struct("seq", "ts", "id")).alias("rows"))
        .filter("times > 1")
    )
    windows = {cohort: _Window(view) for cohort, view in views.items()}
    found: list[Finding] = []
    for row in twice.collect():
        window = windows[row["cohort"]]
        by_id: dict[bytes, list[tuple[int, int]]] = {}
        for each in row["rows"]:
            by_id.setdefault(bytes(each["id"]), []).append((each["seq"], each["ts"]))
        for msg_id, places in by_id.items():
            places.sort()
            for (first, first_ts), (second, second_ts) in pairwise(places):
                if window.forbids(msg_id, first, second_ts - first_ts):
                    apart_ns = second_ts - first_ts
                    found.append(_duplicate(window.view, msg_id, first, second, apart_ns))
    return found


class _Window:
    """What the duplicate window of one stream surely forbids.

    A stream whose configuration was changed may have had another window before; there only ids
    that the state still remembers are judged, because what it remembers it must refuse.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        machine = view.machine
        now = int(view.config.get("duplicate_window") or 0)
        created = int(view.files.asset.created_config.get("duplicate_window") or 0)
        self._window_ns = min(now, created)
        self._is_changed = machine is None or machine.config_meta_index != view.uid
        self._remembered: dict[bytes, int] = {}
        if self._is_changed and machine is not None:
            arrivals, _, seqs = machine.dedupe.to_state()
            self._remembered = dict(zip(arrivals, memoryview(seqs).cast("Q"), strict=True))

    def forbids(self, msg_id: bytes, first: int, apart_ns: int) -> bool:
        """True if an id stored as `first` could not be stored again `apart_ns` later."""
        if self._is_changed:
            return self._remembered.get(msg_id) == first
        return apart_ns < self._window_ns


def _duplicate(view: View, msg_id: bytes, first: int, second: int, apart_ns: int) -> Finding:
    name: Any = msg_id.decode("utf-8", "replace")
    return finding(
        "duplicate-id",
        replica=view.label,
        stream=view.name,
        seq=second,
        file=view.files.store.directory(view.uid),
        expected=f"id {name!r} once, stored as sequence {first}",
        got=f"again {apart_ns / 1e9:.3f} s later",
    )
