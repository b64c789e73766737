"""Files by which others find a running server: the pid file and the ports file."""

from __future__ import annotations

import json
import os

from streamd.cli.addresses import addresses_of
from streamd.config.cluster_options import join_address


def write_pid(path: str) -> None:
    """Write this process's pid. Raises OSError."""
    with open(path, "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


def remove_pid(path: str) -> None:
    """Remove the pid file, unless another server has written its own there since."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            is_ours = file.read(64) == str(os.getpid())
        if is_ours:
            os.unlink(path)
    except OSError:
        return


def ports_path(directory: str, program: str) -> str:
    """Return where the ports file of this very process belongs."""
    return os.path.join(directory, f"{program}_{os.getpid()}.ports")


def write_ports(path: str, services: dict[str, tuple[str, str, int]]) -> None:
    """Write JSON lists of URLs. `services` maps a name to (scheme, host, port). Raises OSError.

    Whoever waits for the file never sees half of it: it appears by a rename.
    """
    content = {
        name: [f"{scheme}://{join_address(address, port)}" for address in addresses_of(host)]
        for name, (scheme, host, port) in services.items()
    }
    tmp = path + ".tmp"
    with open(tmp, "w", encoding="ascii") as file:
        json.dump(content, file, separators=(",", ":"))
    os.replace(tmp, path)


def remove(path: str) -> None:
    """Remove a file of ours; it is no matter if it is gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
