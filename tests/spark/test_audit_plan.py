"""The order of repairs: one node at a time, never the last whole copy, real paths."""

from __future__ import annotations

from typing import Any

from spark_jobs.audit.findings import finding
from spark_jobs.audit.next_steps import next_steps


def document(*findings: Any, states: dict[str, str] | None = None) -> dict[str, Any]:
    """Three directories with a replica of stream S, uid 7, and what was found."""
    nodes = ("n1", "n2", "n3")
    known = dict.fromkeys(nodes, "compared") | (states or {})
    return {
        "inputs": [
            {"replica": node, "kind": "directory", "path": f"/data/{node}/streamd"}
            for node in nodes
        ],
        "replicas": [
            {"replica": node, "stream": "S", "uid": 7, "state": known[node]} for node in nodes
        ],
        "findings": [each.row() for each in findings],
    }


def damaged(node: str) -> Any:
    return finding("record-crc", replica=node, stream="S", seq=5)


def test_nothing_found_is_nothing_to_do() -> None:
    assert next_steps(document()) == []


def test_damaged_replicas_are_replaced_one_after_another_by_their_real_paths() -> None:
    steps = next_steps(document(damaged("n1"), damaged("n3")))
    assert "n2 is whole; leave it alone and running. Replace n1 and n3, one node" in steps[1]
    assert "n1: stop this node, type `mv /data/n1/streamd/streams/7 " in steps[2]
    assert "Only then go on" in steps[2]
    assert "n3: stop this node, type `mv /data/n3/streamd/streams/7 " in steps[3]
    assert not any("n2: stop" in step for step in steps)
    assert steps[-1] == "Run this audit again: it must be clean."


def test_the_last_whole_copy_is_never_removed() -> None:
    """All three are damaged, each elsewhere; then a whole one that is behind is no source."""
    for steps in (
        next_steps(document(damaged("n1"), damaged("n2"), damaged("n3"))),
        next_steps(
            document(
                damaged("n1"),
                damaged("n2"),
                finding("replica-behind", replica="n3", stream="S"),
                states={"n3": "behind"},
            )
        ),
    ):
        assert not any("`mv " in step for step in steps)
        assert "Remove none of them" in steps[1]
        assert "--path /data --stream S" in steps[1]
        assert "start all nodes together" in steps[2]


def test_a_replica_that_is_behind_is_no_damage() -> None:
    behind = finding("replica-behind", replica="n2", stream="S")
    steps = next_steps(document(behind, states={"n2": "behind"}))
    assert steps[0].startswith("Stream S: n2 is behind, not damaged.")
    assert len(steps) == 2


def test_findings_of_a_node_come_before_those_of_its_streams() -> None:
    log = finding("log-damaged", replica="n2", file="/data/n2/streamd/wal")
    steps = next_steps(document(damaged("n1"), log))
    assert steps[1].startswith("log-damaged on n2: ")
    assert steps[2].startswith("Stream S: ")
