"""Keys of the configuration, block by block: each that streamd knows is one of nats-server's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.parity.compatibility.own import BLOCKS, config_keys
from tests.parity.runner import peer_binary

STREAMDS_OWN = ["jetstream.max_memory"]  # as an account's is called
NO_KEY = "no_such_key"
UNJUDGED = {"resolver."}  # there nats-server takes any key


def is_unknown(binary: str, file: Path, block: str, name: str) -> bool:
    """True if nats-server says of a key that it is none."""
    file.write_text(BLOCKS[block].format(f"{name}: x") + "\n")
    done = subprocess.run(
        [binary, "-t", "-c", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    return f'nknown field "{name}"' in done.stdout + done.stderr


def test_keys_are_those_of_nats_server(tmp_path: Path) -> None:
    binary = peer_binary()
    if not binary:
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    file = tmp_path / "one.conf"
    silent = {block for block in BLOCKS if not is_unknown(binary, file, block, NO_KEY)}
    assert silent <= UNJUDGED, f"blocks of which nats-server refuses no key: {silent}"
    strange = [
        f"{key.block}{name}"
        for key in config_keys()
        if key.block not in UNJUDGED
        for name in key.names.split("|")
        if is_unknown(binary, file, key.block, name)
    ]
    assert strange == STREAMDS_OWN
