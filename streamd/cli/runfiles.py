"""Files by which others find a running server: the pid file and the ports file."""

from __future__ import annotations

import json
import os
import socket
import struct


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
        name: [f"{scheme}://{_bracketed(address)}:{port}" for address in _addresses(host)]
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


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _addresses(host: str) -> list[str]:
    """Addresses by which `host` can be reached: every interface's for a wildcard."""
    if host not in ("", "0.0.0.0", "::"):
        return [host]
    loopback, others = ["127.0.0.1"], []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            address = _interface_address(probe, name)
            if address and address not in loopback:
                others.append(address)
    return loopback + others


def _interface_address(probe: socket.socket, name: str) -> str:
    """IPv4 address of an interface, "" if it has none or the system can't say."""
    try:
        import fcntl

        get_address = 0x8915  # SIOCGIFADDR
        answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
    except (OSError, ImportError):
        return ""
    return socket.inet_ntoa(answer[20:24])
