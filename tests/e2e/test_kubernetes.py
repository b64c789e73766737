"""Kubernetes manifests: valid by the published schemas, and what they configure starts a node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate")

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.27", "1.30", "1.33")
SECRETS = {
    "cluster-password": "0123456789abcdef" * 2,
    "client-user": "app",
    "client-password": "$2a$11$PkNqYqUqPZ8bxYd3pPzBKOxDjyXGM0JcHzFYgbzMHW2hhmZzcbOla",
}


def documents() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in sorted(MANIFESTS.glob("*.yaml")):
        if file.name != "kustomization.yaml":
            found += yaml.safe_load_all(file.read_text(encoding="utf-8"))
    return found


def document(kind: str, name: str = "streamd") -> dict[str, Any]:
    (found,) = (
        one for one in documents() if one["kind"] == kind and one["metadata"]["name"] == name
    )
    return found


def container() -> dict[str, Any]:
    (found,) = document("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_manifests_are_valid(version: str) -> None:
    """Unknown fields are errors, as `kubectl apply --validate=strict` has it."""
    assert len(documents()) == 6
    for one in documents():
        kubernetes_validate.validate(one, version, strict=True)


def test_the_kustomization_names_every_manifest_but_the_example_of_a_secret() -> None:
    named = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text(encoding="utf-8"))
    files = {file.name for file in MANIFESTS.glob("*.yaml")}
    assert set(named["resources"]) == files - {"kustomization.yaml", "secret.yaml"}


def test_the_configuration_is_accepted_with_the_environment_of_a_pod(tmp_path: Path) -> None:
    """`streamd -t --strict` reads the ConfigMap with exactly the variables that the pod sets."""
    file = tmp_path / "streamd.conf"
    text = document("ConfigMap")["data"]["streamd.conf"]
    file.write_text(text.replace("/data", str(tmp_path / "data")), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    for variable in container()["env"]:
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] == document("Secret")["metadata"]["name"]
            environment[variable["name"]] = SECRETS[source["secretKeyRef"]["key"]]
        else:
            environment[variable["name"]] = "streamd-0"
    done = subprocess.run(
        [sys.executable, "-m", "streamd.cli.server", "-t", "--strict", "-c", str(file)],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_ports_services_and_routes_fit_together() -> None:
    stateful = document("StatefulSet")["spec"]
    nodes = document("Service", "streamd-nodes")
    assert stateful["serviceName"] == nodes["metadata"]["name"]
    assert nodes["spec"]["clusterIP"] == "None"
    assert nodes["spec"]["publishNotReadyAddresses"]  # nodes find each other before they are ready
    labels = stateful["template"]["metadata"]["labels"]
    for one in (nodes, document("Service")):
        assert one["spec"]["selector"] == labels
        ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
        assert all(ports[port["targetPort"]] == port["port"] for port in one["spec"]["ports"])
    text = document("ConfigMap")["data"]["streamd.conf"]
    routes = re.findall(r"nats://(\S+):6222", text)
    assert routes == [f"streamd-{n}.streamd-nodes" for n in range(stateful["replicas"])]
    assert document("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_pod_is_restarted_only_for_its_own_process() -> None:
    """Health of streams and of other nodes is asked by the readiness probe alone."""
    probes = {name: container()[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/varz", "liveness": "/varz", "readiness": "/healthz"}


def test_the_secret_that_is_shown_has_the_keys_that_are_read() -> None:
    assert set(document("Secret")["stringData"]) == set(SECRETS)
