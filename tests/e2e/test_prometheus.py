"""Alert rules and the Grafana dashboard: checked by promtool, and against what three nodes show.

`promtool` and `prometheus` are Debian's (package `prometheus`); what needs them skips without.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import free_port
from tests.e2e.cluster import api
from tests.parity.runner import ours_binary
from tests.wire import Wire

ROOT = Path(__file__).parents[2]
RULES = ROOT / "contrib" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "contrib" / "grafana" / "streamd.json"
WITHIN_S = 90.0
NAME = re.compile(r"\b((?:gnatsd|jetstream|streamd)_[a-z0-9_]+)")

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three nodes with a stream that has two consumers and a message, which one has given up: a
    dead letter waits."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    with ClusterProcess(binary, directory=tmp_path_factory.mktemp("watched")) as found:
        found.start()
        config = {"name": "S", "subjects": ["s"], "num_replicas": 3}
        assert "error" not in api(found, "STREAM.CREATE.S", config)
        for name, metadata in ("c", {}), ("d", {"streamd.dead_letter": "nobody.stores.it"}):
            consumer = {"durable_name": name, "ack_policy": "explicit", "metadata": metadata}
            body = {"stream_name": "S", "config": consumer}
            assert "error" not in api(found, f"CONSUMER.DURABLE.CREATE.S.{name}", body)
        with Wire(found.nodes["n1"].port) as wire:
            assert "error" not in wire.ask("s", b"never done")[0].json()
            given = wire.ask("$JS.API.CONSUMER.MSG.NEXT.S.d")[0]
            assert wire.ask(given.reply, b"+TERM")[0].payload == b""
        yield found


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_rules(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_and_has_words_for_the_reader() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    tested = yaml.safe_load(RULES.with_name("alerts_test.yml").read_text(encoding="utf-8"))
    assert {test["name"] for test in tested["tests"]} == alerts
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == alerts
    for rule in rules():
        if "alert" in rule:
            assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_every_metric_that_is_asked_for_is_shown_by_a_node(cluster: ClusterProcess) -> None:
    shown = ""
    for node in cluster.nodes.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics") as answer:
            shown += answer.read().decode()
    names = set(re.findall(r"^([a-z0-9_]+)\{", shown, re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {
        name
        for query in [*dashboard_queries(), *(rule["expr"] for rule in rules())]
        for name in NAME.findall(query)
    }
    assert asked - names == set()
    used = set(re.findall(r"streamd:[a-z_:0-9]+", " ".join(dashboard_queries())))
    assert used <= recorded


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("prometheus"), reason="there is no prometheus: apt-get install prometheus"
)
def test_a_real_prometheus_scrapes_three_nodes(cluster: ClusterProcess, tmp_path: Path) -> None:
    """All targets are up, no alert of a well cluster fires, and rates are recorded."""
    targets = [f"127.0.0.1:{node.http_port}" for node in cluster.nodes.values()]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "streamd", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        found: list[Any] = []
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline and len(found) < 3:
            found = ask(port, "count_over_time(streamd_replica_is_leader[1m])")
        assert len(found) == 3, log.read_text()[-3000:]
        assert {row["value"][1] for row in ask(port, 'up{job="streamd"}')} == {"1"}
        assert len(ask(port, "streamd_log_write_seconds_count")) == 3
        assert ask(port, 'ALERTS{severity="critical",alertstate="firing"}') == []
    finally:
        process.terminate()
        process.wait(timeout=60)


def ask(port: int, query: str) -> list[Any]:
    """Return the rows of an instant query; none while Prometheus does not answer yet."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            rows: list[Any] = json.load(answer)["data"]["result"]
            return rows
    except OSError:
        return []
