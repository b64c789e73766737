"""Kubernetes manifests: valid by the published schemas, and what they configure starts a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.manifests import SECRETS, VERSIONS, check_config, container_of

kubernetes_validate = pytest.importorskip("kubernetes_validate")

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"


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
    return container_of(document("StatefulSet"))


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
    text = document("ConfigMap")["data"]["streamd.conf"]
    secret = document("Secret")["metadata"]["name"]
    check_config(text, document("StatefulSet"), secret, tmp_path)


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
