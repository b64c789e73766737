"""Findings on log entries that a node set aside because its leader did not have them."""

from __future__ import annotations

import os

from spark_jobs.audit.findings import Finding, finding
from streamd.offline.engine import COMMITTED, OPEN, tails_in
from streamd.offline.read_only_disk import ReadOnlyDisk


def tail_findings(root: str, label: str) -> list[Finding]:
    """Return a finding for each file in `trash/` of the data directory `root`."""
    trash = os.path.join(root, "trash")
    found = []
    for tail in tails_in(ReadOnlyDisk(), trash) if os.path.isdir(trash) else ():
        facts = tail.facts
        word = "were" if facts.proof == COMMITTED else "may have been"
        found.append(
            finding(
                "tail-open" if facts.proof == OPEN else "tail-set-aside",
                replica=label,
                stream=facts.stream,
                seq=tail.first_seq or None,
                seq_hi=tail.last_seq or None,
                file=tail.path,
                expected=f"entries {facts.first_index}..{facts.last_index}, which {word} committed",
                got=f"another history, led by {facts.leader or 'a node that is not known'}; "
                f"{tail.messages} messages are kept",
            )
        )
    return found
