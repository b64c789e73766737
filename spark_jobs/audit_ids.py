"""Message ids that are stored twice inside one duplicate window."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spark_jobs.audit_findings import Finding, finding
from spark_jobs.audit_open import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def duplicate_findings(ids: DataFrame, view: View) -> list[Finding]:
    """`ids` has a row (hash, seq, ts, id) of every stored message that has an id.

    A stream whose configuration was changed may have had another window before; there only ids
    that the state still remembers are judged, because what it remembers it must refuse.
    """
    from pyspark.sql import functions as f

    machine = view.machine
    window_ns = int(view.config.get("duplicate_window") or 0)
    if machine is None or window_ns <= 0:
        return []
    twice = (
        ids.groupBy("hash")
        .agg(f.count("*").alias("times"), f.collect_list(f.struct("seq", "ts", "id")).alias("rows"))
        .filter("times > 1")
    )
    created = int(view.files.asset.created_config.get("duplicate_window") or 0)
    is_changed = machine.config_meta_index != view.uid
    remembered: dict[bytes, int] = {}
    if is_changed:
        arrivals, _, seqs = machine.dedupe.to_state()
        numbers = memoryview(seqs).cast("Q")
        remembered = dict(zip(arrivals, numbers, strict=True))
    found: list[Finding] = []
    for row in twice.toLocalIterator():
        by_id: dict[bytes, list[tuple[int, int]]] = {}
        for each in row["rows"]:
            by_id.setdefault(bytes(each["id"]), []).append((each["seq"], each["ts"]))
        for msg_id, places in by_id.items():
            places.sort()
            for (first, first_ts), (second, second_ts) in pairwise(places):
                if is_changed:
                    is_wrong = remembered.get(msg_id) == first
                else:
                    is_wrong = second_ts - first_ts < min(window_ns, created or window_ns)
                if is_wrong:
                    found.append(_duplicate(view, msg_id, first, second, second_ts - first_ts))
    return found


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
