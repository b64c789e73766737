"""The first minutes of docs/first-minutes.md, typed as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Start

PAGE = Path(__file__).parents[2] / "docs" / "first-minutes.md"


@pytest.mark.slow
def test_every_command_of_the_first_minutes_does_what_it_should(
    make_server: Start, tmp_path: Path
) -> None:
    server = make_server(directory=tmp_path / "data")
    server.start()
    env = os.environ | {
        "NATS_URL": f"nats://127.0.0.1:{server.port}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),  # no contexts of whoever runs this
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 12
    said: dict[str, str] = {}
    for line in lines:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        said[line.split(" --")[0]] = done.stdout
    assert "order 3" in said["streamctl tail ORDERS"]
    assert "order 1" in said["streamctl consumer next ORDERS billing"]
    assert "blue" in said["streamctl kv get settings colour"]
    assert "COPY" in said["streamctl stream list"]
    assert "ORDERS" in said["streamctl audit data"]
