"""The Dockerfile and the compose file without a Docker engine: their steps in a directory.

The build's steps run as they are written, with `/opt/streamd`, `/src` and `/data` below a temporary
directory; then the image's own command line starts the server and its health check asks it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers import free_port
from tests.e2e.docker_engine import compose_command
from tests.e2e.installation import made_once
from tests.wire import Wire

ROOT = Path(__file__).parents[2]
NODES = ("node1", "node2", "node3")
HEALTHY_WITHIN_S = 60.0

pytestmark = pytest.mark.timeout(900)  # the build's steps install packages


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (word, rest), continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    split = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in split]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if word != "ARG":  # the image that both begin with, before either
            found[-1].append((word, rest))
    return found


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the build stage has run: `opt/streamd` is what the image gets."""
    return made_once(tmp_path_factory, "image", _build)


def _build(root: Path) -> None:
    workdir = root
    for word, rest in stages()[0]:
        rest = _moved(rest, root)
        if word == "WORKDIR":
            workdir = Path(rest)
            workdir.mkdir()
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                _copy(ROOT / source, workdir / target, is_into=target.endswith("/"))
        elif word == "RUN":
            command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", rest)
            done = subprocess.run(
                command, shell=True, cwd=workdir, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
    shutil.rmtree(workdir)  # the image has only what was installed


def _moved(text: str, root: Path) -> str:
    return re.sub(r"(?<![\w/])/(opt|src|data)\b", lambda at: f"{root}/{at[1]}", text)


def _copy(source: Path, target: Path, *, is_into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if is_into else target)


class Container:
    """The server as the image would run it, on loopback and other ports."""

    def __init__(self, image: Path, arguments: list[str], http_port: int) -> None:
        bin_dir = image / "opt" / "streamd" / "bin"
        entry = json.loads(dict(stages()[-1])["ENTRYPOINT"])
        assert entry == ["streamd"]
        # As in the image: its PATH, no home, nothing else of the environment.
        self._env = {"PATH": f"{bin_dir}:/usr/bin:/bin", "CLUSTER_PASSWORD": "secret"}
        self.http_port = http_port
        self._log = image / f"log{http_port}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(bin_dir / entry[0]), *arguments], env=self._env, stdout=log, stderr=log
            )
        self._check = [str(bin_dir / "streamctl"), "health", "--pid", str(self.process.pid)]

    def health_status(self) -> int:
        done = subprocess.run(self._check, env=self._env, capture_output=True, check=False)
        return done.returncode

    def wait_healthy(self) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while self.health_status():
            log = self._log.read_text(errors="replace")
            assert self.process.poll() is None, log
            assert time.monotonic() < deadline, log

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    started: list[Container] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_the_image_serves_and_its_health_check_sees_it(
    image: Path, tmp_path: Path, containers: list[Container]
) -> None:
    """Build steps, then ENTRYPOINT and CMD; unhealthy before it is up and after it stopped."""
    last = dict(stages()[-1])
    check = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    assert check == ["streamctl", "health", "--pid", "1"]
    port, http_port = free_port(), free_port()
    command = json.loads(last["CMD"])
    swapped = {"/data": str(tmp_path), "8222": str(http_port), "0.0.0.0": "127.0.0.1"}
    arguments = [swapped.get(word, word) for word in command] + ["-p", str(port)]
    server = Container(image, arguments, http_port)
    containers.append(server)
    server.wait_healthy()
    with Wire(port) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        assert wire.ask("s", b"x")[0].json()["seq"] == 1
    assert server.stop() in (0, 1)
    assert server.health_status() == 1


@pytest.mark.slow
def test_the_three_configurations_form_a_cluster(
    image: Path, tmp_path: Path, containers: list[Container]
) -> None:
    """configs/node1..3.conf as compose runs them, with other hosts, ports and directories."""
    ports = {name: (free_port(), free_port(), free_port()) for name in NODES}
    for name in NODES:
        command = compose()["services"][name]["command"]
        assert command == ["-c", f"/etc/streamd/{name}.conf"]
        text = (ROOT / "configs" / f"{name}.conf").read_text(encoding="utf-8")
        for old, new in zip((4222, 8222, 6222), ports[name], strict=True):
            text = text.replace(f"0.0.0.0:{old}", f"127.0.0.1:{new}")
        for other in NODES:
            text = text.replace(f"nats://{other}:6222", f"nats://127.0.0.1:{ports[other][2]}")
        text = text.replace("/data ", f'"{tmp_path / name}" ')
        config = tmp_path / f"{name}.conf"
        config.write_text(text)
        containers.append(Container(image, ["-c", str(config)], ports[name][1]))
    for one in containers:
        one.wait_healthy()
    with Wire(ports["node2"][0]) as wire:
        config_of = {"name": "S", "subjects": ["s"], "num_replicas": 3}
        created = wire.api("STREAM.CREATE.S", config_of, within_s=20)
        assert len(created["cluster"]["replicas"]) == 2, created
    with Wire(ports["node3"][0]) as wire:
        assert wire.ask("s", b"x")[0].json()["seq"] == 1
    assert {one.stop() for one in containers} <= {0, 1}


@pytest.mark.proof
def test_the_image_has_our_commands_and_each_has_its_package(image: Path) -> None:
    """The Spark jobs are in an image of their own."""
    bin_dir = image / "opt" / "streamd" / "bin"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    there = {name: target for name, target in scripts.items() if (bin_dir / name).exists()}
    assert set(there) == {"streamd", "streamctl"}
    told = subprocess.run([bin_dir / "nats-server", "--version"], capture_output=True, text=True)
    assert told.stdout.startswith("nats-server: v2.")  # for tools that start one by that name
    for target in there.values():
        module, _, function = target.partition(":")
        code = f"import {module} as module; module.{function}"
        command = [str(bin_dir / "python"), "-I", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_image_is_small_and_not_root() -> None:
    """Two stages; the last runs no pip, has a user, a volume it owns and all ports."""
    build, last = stages()
    words = dict(last)
    assert words["USER"] == "streamd"
    assert words["VOLUME"] == "/data"
    assert words["EXPOSE"].split() == ["4222", "6222", "8222"]
    (base,) = (rest for word, rest in instructions() if word == "ARG")
    assert base.startswith("BASE=python:") and base.endswith("-slim")
    assert words["FROM"] == "${BASE}" and dict(build)["FROM"] == "${BASE} AS build"
    assert not [rest for word, rest in last if word == "RUN" and "pip" in rest]
    assert [rest for word, rest in build if word == "RUN" and "pip" in rest]
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == kept


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("useradd"), reason="needs root and useradd"
)
def test_the_user_can_be_made(tmp_path: Path) -> None:
    """groupadd and useradd take the flags they are given, on a directory of their own."""
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).touch()
    (run,) = (rest for word, rest in stages()[-1] if word == "RUN")
    commands = [part.strip() for part in run.split("&&")]
    for command in commands[:2]:
        word, _, rest = command.partition(" ")
        done = subprocess.run(
            [word, "--prefix", str(tmp_path), *rest.split()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    assert "streamd:x:10001:10001:" in (tmp_path / "etc" / "passwd").read_text()
    assert commands[2].startswith("install -d -o streamd -g streamd /data")


def test_compose_gives_each_node_a_volume_a_health_check_and_ports() -> None:
    """A volume, a health check, a restart policy and published ports per node; one image."""
    found = compose()
    nodes = {name: each for name, each in found["services"].items() if "profiles" not in each}
    assert set(nodes) == set(NODES)
    volumes = [service["volumes"][0] for service in nodes.values()]
    assert {volume.partition(":")[0] for volume in volumes} == set(NODES)
    assert all(volume.endswith(":/data") for volume in volumes)
    published: list[str] = []
    for name, service in nodes.items():
        assert service["hostname"] == name
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"] == ["CMD", "streamctl", "health", "--pid", "1"]
        # No default: it would be everybody's.
        assert service["environment"]["CLUSTER_PASSWORD"].startswith("${CLUSTER_PASSWORD:?")
        published += [port.rpartition(":")[0] for port in service["ports"]]
    assert len(set(published)) == 6


def test_the_spark_profile_reads_the_nodes_volumes_and_writes_its_own() -> None:
    """Not started by `up`; the nodes' data read-only; the same user; copies what is let in."""
    found = compose()
    service = found["services"]["spark"]
    assert service["profiles"] == ["spark"]
    assert [each for each in service["volumes"] if not each.endswith(":ro")] == ["spark:/out"]
    mounted = {each.partition(":")[0] for each in service["volumes"]}
    assert mounted == set(found["volumes"]) == {*NODES, "spark"}
    urls = service["environment"]["NATS_URL"].split(",")
    assert urls == [f"nats://{name}:4222" for name in NODES]
    text = (ROOT / service["build"]["dockerfile"]).read_text(encoding="utf-8")
    (base,) = (f"ARG {rest}" for word, rest in instructions() if word == "ARG")
    assert f"\n{base}\nFROM ${{BASE}}\n" in text
    assert "--uid 10001" in text
    assert 'ENTRYPOINT ["streamd-spark"]' in text
    copied = {
        source
        for line in text.splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }
    ignored = (ROOT / f"{service['build']['dockerfile']}.dockerignore").read_text().split("\n")
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_compose_accepts_its_file() -> None:
    """`docker compose config`, where there is one."""
    command = compose_command()
    if not command:
        pytest.skip("there is no docker compose")
    done = subprocess.run(
        [*command, "-f", str(ROOT / "docker-compose.yml"), "config", "-q"],
        env={**os.environ, "CLUSTER_PASSWORD": "x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["single", *NODES])
def test_the_examples_differ_only_in_their_names(name: str) -> None:
    """Every example is a valid configuration; the three nodes' are one text but for the name."""
    env = {**os.environ, "CLUSTER_PASSWORD": "of a cluster that nobody guesses".replace(" ", "-")}
    binary = Path(sys.executable).parent / "streamd"
    file = ROOT / "configs" / f"{name}.conf"
    done = subprocess.run(
        [str(binary), "-t", "-c", str(file)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    if name in NODES:
        first = (ROOT / "configs" / "node1.conf").read_text()
        named = re.sub(r"server_name: node\d", "server_name: node1", file.read_text())
        assert re.sub(r"configs/node\d", "configs/node1", named) == first
