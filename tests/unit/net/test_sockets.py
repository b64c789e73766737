"""A wildcard listens on both families, as in Go; a machine without IPv6 has the other one."""

from __future__ import annotations

import asyncio
import errno
import json
import socket

import pytest

from streamd.config.options import Options
from streamd.net import sockets
from streamd.net.client.listener import Listener
from tests.unit.net.bed import make_listener


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


async def told(listener: Listener, host: str) -> str:
    """Connect by this address; return by which one the server says we came."""
    reader, writer = await asyncio.open_connection(host, listener.port)
    info = json.loads((await reader.readline())[5:])
    writer.close()
    return str(info["client_ip"])


@needs_ipv6
@pytest.mark.parametrize("host", sockets.WILDCARDS)
async def test_a_wildcard_is_reached_by_both_families(host: str) -> None:
    """Who comes by IPv4 is shown with that address."""
    options = Options(host=host, port=-1)
    listener = make_listener(options)
    await listener.start()
    assert await told(listener, "127.0.0.1") == "127.0.0.1"
    assert await told(listener, "::1") == "::1"
    await listener.close()


@needs_ipv6
def test_an_address_of_one_family_is_that_only() -> None:
    with sockets.listening_socket("::1", -1, backlog=1) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)


def test_a_machine_without_ipv6_listens_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it has no such sockets or no such addresses; unless IPv6 was asked for."""
    make = socket.socket
    for code in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):

        def refuse(family: int, kind: int, code: int = code) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(code, "none here")
            return make(family, kind)

        monkeypatch.setattr(socket, "socket", refuse)
        with sockets.listening_socket("0.0.0.0", -1, backlog=1) as listening:
            assert listening.family == socket.AF_INET
        with pytest.raises(OSError, match="none here"):
            sockets.listening_socket("::", -1, backlog=1)


def test_a_port_in_use_is_an_error_whatever_the_family() -> None:
    with sockets.listening_socket("0.0.0.0", -1, backlog=1) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OSError) as refused:
            sockets.listening_socket("0.0.0.0", port, backlog=1)
        assert refused.value.errno == errno.EADDRINUSE
