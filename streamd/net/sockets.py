"""Listening sockets, and who is at the other end of an accepted one."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext

WILDCARDS = ("", "0.0.0.0", "::")
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Bind and listen on `host:port` (port -1: any free one). Raises OSError, OverflowError.

    A wildcard is every address of both families, as in Go, if the machine has both.
    """
    if host not in WILDCARDS:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return _bound(family, host, port, backlog)
    try:
        return _bound(socket.AF_INET6, "::", port, backlog)
    except OSError as err:
        if host == "::" or err.errno not in _NO_IPV6:
            raise
        return _bound(socket.AF_INET, "0.0.0.0", port, backlog)


async def serve(
    loop: asyncio.AbstractEventLoop,
    make_protocol: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    backlog: int = 100,
    ssl: SSLContext | None = None,
) -> asyncio.Server:
    """Accept connections on `host:port`, as `listening_socket`; a name may have many addresses."""
    if host in WILDCARDS:
        listening = listening_socket(host, port, backlog)
        return await loop.create_server(make_protocol, sock=listening, backlog=backlog, ssl=ssl)
    return await loop.create_server(make_protocol, host, max(port, 0), backlog=backlog, ssl=ssl)


def refuse_connections(server: asyncio.Server) -> None:
    """Make the kernel refuse connections to `server` from this moment on.

    For a process that ends next: closing takes effect in the loop's next iteration at the earliest,
    and at the end of a process the kernel closes sockets in no order that is promised, so a
    connection could be accepted after those of clients were closed.
    """
    for listening in server.sockets:
        # The loop's socket may not be shut down by itself; both stand for the same one.
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Address and port of the other end; one that came by IPv4 is shown so."""
    peer = transport.get_extra_info("peername") or ("", 0)
    return peer[0].removeprefix("::ffff:"), peer[1]


def _bound(family: socket.AddressFamily, host: str, port: int, backlog: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, max(port, 0)))
        bound.listen(backlog)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
