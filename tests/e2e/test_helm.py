"""Helm chart: linted, valid by the published schemas, and the same cluster as the plain manifests.

`helm` is on the path, or named by STREAMD_HELM (`python tools/get_helm.py DIRECTORY` gets one).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.certificates import Authority
from tests.e2e.manifests import SECRETS, VERSIONS, Document, check_config, container_of

kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "streamd"
PLAIN = CHART.parents[1] / "kubernetes"
HELM = os.environ.get("STREAMD_HELM") or shutil.which("helm") or ""

pytestmark = pytest.mark.skipif(
    not HELM, reason="there is no helm: python tools/get_helm.py DIRECTORY, and STREAMD_HELM"
)

WITH_SECRET = ("auth.existingSecret=login",)
OWN_SECRET = tuple(
    f"auth.{name}={value}"
    for name, value in (
        ("clusterPassword", SECRETS["cluster-password"]),
        ("clientPassword", SECRETS["client-password"]),
    )
)


def helm(*words: str, values: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    flags = [word for value in values for word in ("--set", value)]
    return subprocess.run(
        [HELM, *words, str(CHART), *flags], capture_output=True, text=True, timeout=60, check=False
    )


def rendered(*values: str, release: str = "streamd") -> dict[tuple[str, str], Document]:
    """Return the documents of a release by kind and name."""
    done = helm("template", release, values=values)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_the_chart_is_clean() -> None:
    for values in (WITH_SECRET, OWN_SECRET):
        done = helm("lint", "--strict", values=values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((), "auth.existingSecret, or auth.clusterPassword"),
        ((*WITH_SECRET, "replicas=2"), "/replicas"),
        ((*WITH_SECRET, "replica=3"), "replica"),
        ((*OWN_SECRET[:1], "auth.clientPassword=plain"), "/auth/clientPassword"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values: tuple[str, ...], told: str) -> None:
    done = helm("template", "streamd", values=values)
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        WITH_SECRET,
        OWN_SECRET,
        (*WITH_SECRET, "replicas=1"),
        (
            *WITH_SECRET, "replicas=5", "tls.existingSecret=t", "storage.className=fast",
            "priorityClassName=high", "nodeSelector.disk=nvme", "spread=ScheduleAnyway",
            "tolerations[0].operator=Exists", "imagePullSecrets[0].name=pull",
            "service.annotations.a=b", "podDisruptionBudget.enabled=false",
        ),
    ],
    ids=["secret", "own-secret", "one", "all"],
)  # fmt: skip
def test_all_that_is_rendered_is_valid(values: tuple[str, ...]) -> None:
    for one in rendered(*values).values():
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


def _plain(kind: str, name: str) -> Document:
    for file in PLAIN.glob("*.yaml"):
        for one in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if one["kind"] == kind and one["metadata"]["name"] == name:
                return dict(one)
    raise AssertionError((kind, name))


def _bare(document: Any) -> Any:
    """Return a document without labels and selectors, which name the release, and what only a
    chart has."""
    dropped = ("labels", "matchLabels", "selector", "checksum/config", "imagePullPolicy")
    if isinstance(document, dict):
        bare = {key: _bare(value) for key, value in document.items() if key not in dropped}
        return {key: value for key, value in bare.items() if (key, value) != ("type", "ClusterIP")}
    if isinstance(document, list):
        return [_bare(value) for value in document]
    return document


def test_a_release_is_what_the_plain_manifests_make() -> None:
    """Kind by kind; the manifests name the Secret `streamd`, as a release of that name would."""
    found = rendered("auth.existingSecret=streamd")
    assert len(found) == 5
    for (kind, name), document in found.items():
        plain = _plain(kind, name)
        if kind == "ConfigMap":
            plain["data"] = {key: text.split() for key, text in plain["data"].items()}
            document["data"] = {key: text.split() for key, text in document["data"].items()}
        assert _bare(document) == _bare(plain), kind


def test_another_name_is_everywhere() -> None:
    """Selectors fit the labels of the pods; routes and Services have the release's name."""
    found = rendered(*OWN_SECRET, release="blue")
    assert {name for _, name in found} == {"blue-streamd", "blue-streamd-nodes"}
    stateful = found["StatefulSet", "blue-streamd"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    for name in ("blue-streamd", "blue-streamd-nodes"):
        assert found["Service", name]["spec"]["selector"].items() <= labels.items()
    assert stateful["serviceName"] == "blue-streamd-nodes"
    config = found["ConfigMap", "blue-streamd"]["data"]["streamd.conf"]
    assert "nats://blue-streamd-2.blue-streamd-nodes:6222" in config
    assert set(found["Secret", "blue-streamd"]["stringData"]) == set(SECRETS)


@pytest.mark.parametrize("replicas", [1, 5])
def test_the_configuration_is_accepted(tmp_path: Path, replicas: int) -> None:
    """`streamd -t --strict` takes it, with TLS and with what is appended."""
    values = ("tls.existingSecret=t", "extraConfig=max_payload: 2MB")
    found = rendered(*WITH_SECRET, f"replicas={replicas}", *values)
    text = found["ConfigMap", "streamd"]["data"]["streamd.conf"]
    assert text.count("nats://") == (replicas if replicas > 1 else 0)
    pair = Authority(tmp_path).issue("server")
    for name, path in (("tls.crt", pair.cert), ("tls.key", pair.key)):
        text = text.replace(f"/etc/streamd-tls/{name}", path)
    stateful = found["StatefulSet", "streamd"]
    mounted = {mount["mountPath"] for mount in container_of(stateful)["volumeMounts"]}
    assert mounted == {"/data", "/etc/streamd-config", "/etc/streamd-tls"}
    check_config(text, stateful, "login", tmp_path)
