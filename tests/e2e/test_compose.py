"""docker-compose.yml on a real engine: the image, three containers, a publisher through faults.

Needs an engine (`docker info`), a compose command and the base image (STREAMD_BASE_IMAGE names
another one with Python and pip); skipped where one is missing.
Each container is killed, paused or cut off its network in turn; what was acked must be there, once.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers import free_port
from tests.e2e.docker_engine import compose_command

nats = pytest.importorskip("nats", reason="the client is not installed: streamd-server[dev]")

from nats.errors import Error as NatsError  # noqa: E402
from nats.js.api import StreamConfig  # noqa: E402

ROOT = Path(__file__).parents[2]
NODES = ("node1", "node2", "node3")
BASE_IMAGE = os.environ.get("STREAMD_BASE_IMAGE", "python:3.12-slim")
ACKED_PER_STEP = 300
WITHIN_S = 90.0


def _docker(*words: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.strip() if done.returncode == 0 else ""


class Composed:
    """The project of docker-compose.yml under a name and on ports of its own."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.name = f"streamdtest{os.getpid()}"
        self.ports = {node: (free_port(), free_port()) for node in NODES}
        self._file = directory / "docker-compose.yml"
        self._command = [*command, "-p", self.name, "-f", str(self._file)]
        found = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
        self._write(found)

    def _write(self, found: dict[str, Any]) -> None:
        found.pop("x-node")
        found["services"].pop("spark")
        _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
        for node, service in found["services"].items():
            service["image"] = f"{self.name}:local"
            service.pop("build")
            client, http = self.ports[node]
            service["ports"] = [f"127.0.0.1:{client}:4222", f"127.0.0.1:{http}:8222"]
            if files_max != resource.RLIM_INFINITY:  # an engine inside a sandbox may not raise it
                service["ulimits"]["nofile"] = min(service["ulimits"]["nofile"], files_max)
        self._file.write_text(yaml.safe_dump(found), encoding="utf-8")

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{client}" for client, _ in self.ports.values()]

    def run(
        self, *words: str, password: str | None = "of-the-test"
    ) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k != "CLUSTER_PASSWORD"}
        if password is not None:
            env["CLUSTER_PASSWORD"] = password
        return subprocess.run(
            [*self._command, *words], env=env, capture_output=True, text=True, check=False
        )

    def container(self, node: str) -> str:
        return f"{self.name}-{node}-1"

    def get(self, node: str, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.ports[node][1]}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    command = compose_command()
    if not shutil.which("docker") or not _docker("info", "-f", "{{.ID}}", check=False):
        pytest.skip("there is no Docker engine")
    if not command:
        pytest.skip("there is no docker compose")
    if not _docker("image", "inspect", "-f", "{{.Id}}", BASE_IMAGE, check=False):
        pytest.skip(f"the base image {BASE_IMAGE} is not there, and tests fetch nothing")
    made = Composed(command, tmp_path)
    how = ("--network", "host", "--build-arg", f"BASE={BASE_IMAGE}")
    _docker("build", "-q", *how, "-t", f"{made.name}:local", str(ROOT))
    yield made
    made.run("down", "-v", "-t", "2")
    _docker("image", "rm", f"{made.name}:local", check=False)


async def _healthy(composed: Composed) -> None:
    """Wait until the engine's own health check says so of all three. Raises AssertionError with
    what the check said, and the end of the log, of one that does not become healthy."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WITHIN_S
    for node in NODES:
        name = composed.container(node)
        while _docker("inspect", "-f", "{{.State.Health.Status}}", name) != "healthy":
            if loop.time() > deadline:
                said = _docker("inspect", "-f", "{{json .State}}", name)
                raise AssertionError(
                    (node, said, composed.run("logs", "--tail", "20", node).stdout)
                )
            await asyncio.sleep(0.2)


class Publisher:
    """Publishes numbered messages one after another, each until it is acked."""

    def __init__(self, connection: Any) -> None:
        self._js = connection.jetstream(timeout=2)
        self.acked = 0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        while True:
            number = str(self.acked)
            try:
                await self._js.publish("s", number.encode(), headers={"Nats-Msg-Id": number})
            except (NatsError, OSError):
                await asyncio.sleep(0.05)  # no leader at this moment, or no server
                continue
            self.acked += 1
            self._changed.set()

    async def more(self) -> None:
        """Wait until some hundred more are acked. Raises TimeoutError."""
        wanted = self.acked + ACKED_PER_STEP
        async with asyncio.timeout(WITHIN_S):
            while self.acked < wanted:
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_containers_lose_nothing(composed: Composed) -> None:
    """No password, no start; then kill, pause and a cut network under a publisher."""
    refused = composed.run("up", "-d", password=None)
    assert refused.returncode != 0
    assert "CLUSTER_PASSWORD" in refused.stderr
    started = composed.run("up", "-d")
    assert started.returncode == 0, started.stderr
    asyncio.run(_through_faults(composed))


async def _through_faults(composed: Composed) -> None:
    await _healthy(composed)

    async def ignore(_: Exception) -> None:
        """Lost connections are what the test is about."""

    connection = await nats.connect(
        composed.urls,
        error_cb=ignore,
        reconnect_time_wait=0.1,
        max_reconnect_attempts=-1,
        ping_interval=1,
        max_outstanding_pings=2,
    )
    js = connection.jetstream(timeout=20)
    await js.add_stream(StreamConfig(name="S", subjects=["s"], num_replicas=3))
    publisher = Publisher(connection)
    running = asyncio.create_task(publisher.run())
    network = f"{composed.name}_default"
    try:
        await publisher.more()
        for begin, end in (
            (["kill", "-s", "KILL"], ["start"]),
            (["pause"], ["unpause"]),
            (["network", "disconnect", network], ["network", "connect", network]),
        ):
            leader = (await js.stream_info("S")).cluster.leader
            victims = [leader, next(node for node in NODES if node != leader)]
            for victim in victims:
                await asyncio.to_thread(_docker, *begin, composed.container(victim))
                await publisher.more()
                await asyncio.to_thread(_docker, *end, composed.container(victim))
                await _healthy(composed)
                await publisher.more()
    finally:
        running.cancel()
        await asyncio.wait([running])
    info = await js.stream_info("S")
    # The last one may have been stored without its ack being heard.
    assert publisher.acked <= info.state.messages <= publisher.acked + 1
    for number in range(publisher.acked):
        message = await js.get_msg("S", seq=number + 1)
        assert message.data == str(number).encode()
    await connection.close()
    digests = set()
    for node in NODES:
        found = composed.get(node, "/jsz?accounts=1&streams=1&digest=1")
        (stream,) = found["account_details"][0]["stream_detail"]
        digests.add((stream["state"]["last_seq"], json.dumps(stream.get("digest"))))
    assert len(digests) == 1, digests
