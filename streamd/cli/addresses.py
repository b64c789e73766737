"""Addresses as text: what this server listens on, and where clients reach it."""

from __future__ import annotations

import os
import socket
import struct
from array import array

from streamd.config.cluster_options import client_address, join_address
from streamd.config.options import Options
from streamd.net.sockets import WILDCARDS

_SIOCGIFCONF = 0x8912  # Linux: all IPv4 addresses, interface by interface


def client_urls(options: Options, port: int) -> list[str]:
    """URLs for clients of the listener that `options` are of: the advertised address, else every
    address that this server listens on."""
    if options.client_advertise:
        return [join_address(*client_address(options.client_advertise, port))]
    hosts = _reachable() if options.host in WILDCARDS else [options.host]
    return [join_address(host, port) for host in hosts]


def listen_error(what: str, host: str, port: int, err: BaseException) -> str:
    """The line of a listener that failed: tools read it."""
    reason = listen_reason(host, port, err)
    return f'Error listening on {what}: {join_address(host, max(port, 0))}, "{reason}"'


def listen_reason(host: str, port: int, err: BaseException) -> str:
    """The reason why a listener failed, in Go's words."""
    if isinstance(err, OverflowError) or port > 65535:
        return f"listen tcp: address {port}: invalid port"
    number = getattr(err, "errno", None)
    words = os.strerror(number).lower() if number and number > 0 else str(err)
    return f"listen tcp {join_address(host, max(port, 0))}: bind: {words}"


def addresses_of(host: str) -> list[str]:
    """Addresses by which `host` can be reached: every interface's for a wildcard."""
    if host not in WILDCARDS:
        return [host]
    loopback, others = ["127.0.0.1"], []
    for address in _ipv4_addresses():
        if address not in loopback:
            others.append(address)
    for address in _ipv6_addresses():
        (loopback if address == "::1" else others).append(address)
    return loopback + others


def _reachable() -> list[str]:
    """The addresses by which other machines may reach this one; loopback if there are none."""
    near = ("127.", "169.254.", "::1", "fe80:")
    return sorted(ip for ip in addresses_of("") if not ip.startswith(near)) or ["127.0.0.1"]


def _ipv4_addresses() -> list[str]:
    """IPv4 addresses of all interfaces, the secondary ones too; none where the system can't say."""
    try:
        import fcntl
    except ImportError:
        return []
    row_bytes = 16 + (24 if struct.calcsize("P") == 8 else 16)  # struct ifreq: a name, an address
    size = 64 * row_bytes
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        while True:
            rows = array("B", bytes(size))
            asked = struct.pack("iP", size, rows.buffer_info()[0])  # struct ifconf
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, asked)
            except OSError:
                return []
            filled = struct.unpack("iP", answer)[0]
            if filled + row_bytes <= size:
                break
            size *= 2  # there may be more
    data = rows.tobytes()[:filled]
    return [socket.inet_ntoa(data[at + 20 : at + 24]) for at in range(0, filled, row_bytes)]


def _ipv6_addresses() -> list[str]:
    """IPv6 addresses of all interfaces, none where the system can't say."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            words = [line.split()[0] for line in file]
    except OSError:
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(word)) for word in words]
