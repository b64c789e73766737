"""A full disk (a small tmpfs): publishes are refused with the reason, and all acked stays."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.wire import Wire

SIZE = "96m"
BODY = b"x" * 20_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of SIZE; needs the right to mount."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def _publish(wire: Wire) -> dict[str, Any]:
    answer: dict[str, Any] = wire.ask("s", BODY)[0].json()
    return answer


def test_a_full_disk_refuses_publishes_and_loses_nothing(
    make_server: Start, small_disk: Path
) -> None:
    """Publish until 10023; read all acked back; purge; publish again; the same after a kill."""
    server = make_server(directory=small_disk)
    server.start()
    wire = Wire(server.port)
    wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
    acked: list[int] = []
    refusal = None
    for _ in range(10_000):
        answer = _publish(wire)
        if "error" in answer:
            refusal = answer["error"]
            break
        acked.append(answer["seq"])
    assert refusal is not None, "never full"
    assert refusal["err_code"] == 10023, refusal
    assert len(acked) > 500
    assert wire.api("STREAM.INFO.S")["state"]["messages"] == len(acked)
    server.kill()
    server.start()
    wire = Wire(server.port)
    state = wire.api("STREAM.INFO.S")["state"]
    assert (state["messages"], state["last_seq"]) == (len(acked), acked[-1])
    assert wire.api("STREAM.PURGE.S")["purged"] == len(acked)
    # What the purge emptied is unlinked by later snapshots, which refused publishes ask for.
    deadline = time.monotonic() + 20
    while "error" in (again := _publish(wire)):
        assert time.monotonic() < deadline, again
    assert again["seq"] == acked[-1] + 1
