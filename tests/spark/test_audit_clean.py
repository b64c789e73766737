"""Stores that are whole give no findings: 200 random workloads, however they ended."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_jobs.audit import run as audit_run
from spark_jobs.audit.block_check import DIGEST, FULL, QUICK
from streamd.offline.stream_view import StoreDir, find_stores
from tests.spark.audit_stores import CLUSTER, Replica, copy_of, random_work, small_blocks

WORKLOADS = 200
CONFIGS: list[dict[str, Any]] = [
    {},
    {"max_msgs": 60},
    {"max_bytes": 20_000},
    {"max_msgs_per_subject": 3},
    {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    {"discard": "new", "max_msgs": 100},
    {"retention": "workqueue"},
    {"retention": "interest"},
    {"duplicate_window": 5_000_000_000},
    {"max_age": 3_600_000_000_000, "first_seq": 1000},
]


def made(root: Path, seed: int) -> list[tuple[str, StoreDir]]:
    """One random workload, on one node, or on three of which some lag and one is a copy."""
    rng = random.Random(f"clean {seed}")
    name = f"W{seed}"
    config = CONFIGS[seed % len(CONFIGS)]
    ending = rng.choice(["stopped", "killed", "saved"])
    if seed % 4:
        replicas = [Replica(root / name / "n1", name=name, **config)]
    else:
        replicas = [
            Replica(root / name / node, name=name, node=node, peers=CLUSTER, **config)
            for node in CLUSTER
        ]
    steps = rng.randrange(5, 60)
    lag = rng.randrange(0, 6)
    for replica in replicas:
        behind = lag if replica is replicas[-1] and len(replicas) > 1 else 0
        random_work(replica, random.Random(f"work {seed}"), steps=steps - min(behind, steps - 1))
        if ending == "saved":
            replica.snapshot()
    if ending == "killed":
        directories = []
        for replica in replicas:
            replica.flush() if rng.random() < 0.5 else None
            directories.append(copy_of(replica.directory, root / "killed" / name / replica.node))
            replica.close()
    else:
        directories = [replica.close() for replica in replicas]
    if seed % 10 == 1:
        directories.append(copy_of(directories[0], root / name / "backup"))
    return [
        (f"{name}/{place.name}", store) for place in directories for store in find_stores(place)
    ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, StoreDir]]:
    root = tmp_path_factory.mktemp("clean")
    with small_blocks():
        return [each for seed in range(WORKLOADS) for each in made(root, seed)]


@pytest.mark.parametrize("level", [FULL, DIGEST, QUICK])
def test_a_whole_store_gives_no_finding(
    spark: Any, stores: list[tuple[str, StoreDir]], level: str
) -> None:
    with small_blocks():
        request = audit_run.Request(stores, level=level)
        outcome = audit_run.audit(spark, request, lambda label: nullcontext())
    lags = [each for each in outcome.findings if each.code == "replica-behind"]
    assert [each for each in outcome.findings if each not in lags] == []
    assert {(each.replica, each.stream) for each in lags} == {
        (row.replica, row.stream) for row in outcome.rows if row.state == "behind"
    }
    assert len({row.stream for row in outcome.rows}) == WORKLOADS
    assert sum(row.state == "compared" for row in outcome.rows) >= WORKLOADS // 4
    assert outcome.records > 10 * WORKLOADS
