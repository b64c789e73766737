"""A Docker engine's programs, as far as there are some here."""

from __future__ import annotations

import os
import subprocess


def compose_command() -> list[str]:
    """Return how `docker compose` is called, empty if there is none; COMPOSE names a program."""
    for command in ([os.environ.get("COMPOSE", "")], ["docker", "compose"], ["docker-compose"]):
        try:
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
        except OSError:
            continue
        if command[0] and done.returncode == 0:
            return command
    return []
