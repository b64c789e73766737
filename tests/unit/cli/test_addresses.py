"""Addresses that are told to clients of a server that listens on all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_COMMANDS = """
ip link set lo up
ip link add d0 type bridge
ip link set d0 up
ip addr add 10.9.0.1/24 dev d0
ip addr add 10.9.0.2/24 dev d0
ip addr add 10.9.1.3/24 dev d0 label d0:x
ip addr add 169.254.7.7/16 dev d0
ip addr add fd00:9::1/64 dev d0 nodad
ip addr add fd00:9::2/64 dev d0 nodad
"""
_PROGRAM = """
from streamd.cli import addresses
from streamd.config.options import Options
print(*addresses.client_urls(Options(host=HOST), 4222))
"""
# What nats-server gossips there, in whichever order.
_GOSSIPED = "10.9.0.1:4222 10.9.0.2:4222 10.9.1.3:4222 [fd00:9::1]:4222 [fd00:9::2]:4222"


def _in_namespace(commands: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands with network interfaces of their own."""
    words = ["unshare", "-n", "sh", "-ec", commands]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_every_address_of_every_interface_is_told(host: str) -> None:
    """The secondary ones too; not those by which only this machine or its link is reached."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare or ip here to make interfaces with")
    if _in_namespace(_COMMANDS).returncode:
        pytest.skip("this user may not make interfaces")
    root = Path(__file__).parents[3]
    program = f"cd {root}; {sys.executable} -c '{_PROGRAM}'".replace("HOST", f'"{host}"')
    found = _in_namespace(_COMMANDS + program)
    assert found.stdout.split() == _GOSSIPED.split(), found.stderr
