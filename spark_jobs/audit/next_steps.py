"""Next steps after an audit, in one order that is safe for all findings together. Pure.

A finding knows its own replica only. Three damaged replicas, each removed as its own finding would
have it, are a lost stream: so the order is made here, of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_jobs.audit.findings import CODES, DAMAGE, REPLACED

_COMPARED: Final = ("compared", "live")
_NODE_WIDE: Final = ("log-damaged", "identity-damaged", "log-torn-tail")


def next_steps(document: Mapping[str, Any]) -> list[str]:
    """The steps, in order, as sentences; empty if nothing was found. `document`: see
    `audit.document_of`."""
    findings = document["findings"]
    steps: list[str] = []
    if any(each["severity"] == DAMAGE for each in findings):
        steps.append(
            "Keep a copy of every damaged directory until the cause is known; look at the disks' "
            "own reports."
        )
    steps += _node_steps(document)
    done: set[str] = set()
    for name in sorted({row["stream"] for row in document["replicas"]}):
        found, replaced = _stream_steps(document, name)
        steps += found
        if replaced:
            done.add(name)
    for code in sorted({each["code"] for each in findings}):
        about = [each for each in findings if each["code"] == code]
        rest = [each for each in about if each["stream"] not in done or code not in REPLACED]
        if not rest or code in _NODE_WIDE or code == "replica-behind":
            continue
        advice = CODES[code].advice
        steps.append(f"{code} on {_names(rest)}: {advice}.")
    if steps:
        steps.append("Run this audit again: it must be clean.")
    return steps


def _node_steps(document: Mapping[str, Any]) -> list[str]:
    """Return the steps that concern a node as a whole."""
    found = []
    for code in _NODE_WIDE:
        about = [each for each in document["findings"] if each["code"] == code]
        if about:
            found.append(f"{code} on {_names(about)}: {CODES[code].advice}.")
    return found


def _stream_steps(document: Mapping[str, Any], name: str) -> tuple[list[str], bool]:
    """(the steps for stream `name`, whether they tell how damaged replicas are replaced)"""
    about = [each for each in document["findings"] if each["stream"] == name]
    rows = [row for row in document["replicas"] if row["stream"] == name]
    blamed = {
        label for each in about if each["code"] in REPLACED for label in each["replica"].split(", ")
    }
    behind = [each["replica"] for each in about if each["code"] == "replica-behind"]
    whole = [
        row["replica"] for row in rows if row["replica"] not in blamed and row["state"] in _COMPARED
    ]
    damaged = [row for row in rows if row["replica"] in blamed]
    steps: list[str] = []
    if damaged and whole:
        steps.append(
            f"Stream {name}: {_list(whole)} {'is' if len(whole) == 1 else 'are'} whole; leave "
            f"{'it' if len(whole) == 1 else 'them'} alone and running. Replace "
            f"{_list([row['replica'] for row in damaged])}, one node at a time, in this order:"
        )
        for row in damaged:
            place = _directory(document, row)
            aside = f"{place}.damaged"
            steps.append(
                f"Stream {name}, {row['replica']}: stop this node, type `mv {place} {aside}`, "
                "start it, and wait until the stream's info says that this replica is current. "
                "Only then go on."
            )
    elif damaged and len(rows) > 1:
        steps.append(
            f"Stream {name}: no replica is whole ({_list([row['replica'] for row in damaged])}"
            f"{' are damaged' if len(damaged) > 1 else ' is damaged'}"
            f"{', ' + _list(behind) + ' is behind' if behind else ''}). Remove none of them: what "
            "one lacks another may have. Export the stream from all directories together, which "
            "takes each record from whichever copy is whole: `streamd-spark export --path "
            f"{_common(document)} --stream {name} --to DIRECTORY`."
        )
        steps.append(
            f"Stream {name}: then start all nodes together. They repair blocks from one another; "
            "what no copy holds is named in their logs."
        )
    elif damaged:
        steps.append(
            f"Stream {name}: {damaged[0]['replica']} is the only copy that was audited. Do not "
            "remove it. Audit the other replicas, or restore a backup beside it; what is whole can "
            f"be exported: `streamd-spark export --path {_common(document)} --stream {name} "
            "--accept-damage --to DIRECTORY`."
        )
    if behind:
        steps.append(
            f"Stream {name}: {_list(behind)} {'is' if len(behind) == 1 else 'are'} behind, not "
            "damaged. Start it beside the others, and it catches up; never start it alone."
        )
    return steps, bool(damaged)


def _directory(document: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    root = next(
        (each["path"] for each in document["inputs"] if each["replica"] == row["replica"]), ""
    )
    return os.path.join(root, "streams", str(row["uid"]))


def _common(document: Mapping[str, Any]) -> str:
    """A directory that holds all data directories that were audited."""
    paths = [each["path"] for each in document["inputs"] if each["kind"] == "directory"]
    return os.path.commonpath(paths) if paths else "DIR"


def _names(findings: Sequence[Mapping[str, Any]]) -> str:
    return _list(list(dict.fromkeys(each["replica"] for each in findings)))


def _list(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
