"""From connect options to a socket that has shaken hands: server choice, TLS, credentials."""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_jobs.client.wire_errors import WireError, WireLost
from spark_jobs.client.wire_parser import LINE_BYTES_MAX, Address, parse_address

if TYPE_CHECKING:
    from spark_jobs.client.options import ConnectOptions

READ_BYTES: Final = 256 * 1024  # taken from the socket at once
_KNOWN_MAX: Final = 64  # servers remembered per set of configured ones

_names: dict[str, str] = {}  # server name last seen at "host:port"
_known: dict[tuple[str, ...], list[Address]] = {}  # what connect_urls told, by configured servers


class Dialed(NamedTuple):
    """A connection after its handshake: `rest` is what came behind the first PONG."""

    socket: socket.socket
    address: Address
    info: dict[str, Any]
    rest: bytes


def servers_of(options: ConnectOptions) -> list[Address]:
    """Return the configured servers in order, then those the cluster told of since.

    Raises WireError for a URL that is none, or for no server at all.
    """
    if not options.servers:
        raise WireError("no server given: set the option `servers`, e.g. nats://127.0.0.1:4222")
    found = [parse_address(url) for url in options.servers]
    places = {(one.host, one.port) for one in found}
    for one in _known.get(options.servers, []):
        if (one.host, one.port) not in places:
            places.add((one.host, one.port))
            found.append(one)
    return found


def learn(options: ConnectOptions, info: dict[str, Any], via: Address) -> None:
    """Remember the servers that an INFO names; they are dialed the way `via` was."""
    known = _known.setdefault(options.servers, [])
    places = {(one.host, one.port) for one in known}
    for url in info.get("connect_urls") or []:
        try:
            parsed = parse_address(str(url))
        except WireError:
            continue  # one server's odd advertisement is no reason to fail
        if (parsed.host, parsed.port) not in places and len(known) < _KNOWN_MAX:
            places.add((parsed.host, parsed.port))
            known.append(via._replace(host=parsed.host, port=parsed.port))


def dial_any(
    options: ConnectOptions,
    *,
    timeout_s: float,
    avoid: Sequence[str] = (),
    server_name: str = "",
) -> Dialed:
    """Connect to the first server that answers; those in `avoid` ("host:port") are tried last.

    With `server_name` only a server of that name will do. Raises WireError when a server refuses
    the credentials or TLS (no other server would do better), WireLost naming every server tried
    otherwise. `timeout_s` is per server.
    """
    tried: dict[str, str] = {}
    refusal: WireError | None = None
    while True:
        # Again after each success and failure: an INFO may have named further servers.
        left = [one for one in servers_of(options) if str(one) not in tried]
        if not left:
            break
        left.sort(
            key=lambda one: (
                str(one) in avoid,
                bool(server_name) and _names.get(str(one)) != server_name,
            )
        )
        address = left[0]
        try:
            return _dial(options, address, timeout_s=timeout_s, server_name=server_name)
        except WireLost as err:
            tried[str(address)] = str(err)
        except WireError as err:
            tried[str(address)] = str(err)
            refusal = refusal or err
    if refusal is not None and len(tried) == 1:
        raise refusal
    what = f"no server named {server_name!r}" if server_name else "no server could be reached"
    whole = f"{what}: " + "; ".join(f"{place}: {why}" for place, why in tried.items())
    raise WireError(whole) if refusal is not None else WireLost(whole)


def _dial(
    options: ConnectOptions, address: Address, *, timeout_s: float, server_name: str
) -> Dialed:
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection((address.host, address.port), timeout_s)
    except OSError as err:
        raise WireLost(f"cannot connect ({err})") from None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line, rest = _read_line(connection, b"", deadline)
        info = _info_of(line)
        learn(options, info, address)
        _names[str(address)] = str(info.get("server_name", ""))
        if server_name and info.get("server_name") != server_name:
            raise WireLost(f"this server is {info.get('server_name')!r}")
        secured = _secured(options, address, info, connection, deadline)
        if secured is not connection:
            connection, rest = secured, b""
        connection.sendall(_connect_line(options, address) + b"PING\r\n")
        while True:
            line, rest = _read_line(connection, rest, deadline)
            if line.startswith(b"PONG"):
                break
            if line.startswith(b"-ERR"):
                raise WireError(f"server {address} refused the connection: {error_text(line)}")
            if line.startswith(b"INFO"):
                info = _info_of(line)
        connection.settimeout(None)
    except ssl.SSLError as err:
        connection.close()
        raise WireError(f"server {address}: TLS handshake failed: {err}") from None
    except OSError as err:
        connection.close()
        raise WireLost(f"server {address} did not complete the handshake ({err})") from None
    except BaseException:
        connection.close()
        raise
    return Dialed(connection, address, info, rest)


def _read_line(connection: socket.socket, rest: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Return the next protocol line without its end, and the bytes behind it."""
    while b"\n" not in rest:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        chunk = connection.recv(READ_BYTES)
        if not chunk:
            raise ConnectionError("closed by the server")
        rest += chunk
        if len(rest) > LINE_BYTES_MAX:
            raise WireError(f"the server sent a line of more than {LINE_BYTES_MAX} bytes")
    line, _, rest = rest.partition(b"\n")
    return line.rstrip(b"\r"), rest


def _info_of(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.removeprefix(b"INFO "))
    except ValueError:
        found = None
    if not line.startswith(b"INFO ") or not isinstance(found, dict):
        raise WireError(f"this is no NATS server: its first line is {line[:60]!r}")
    return found


def error_text(line: bytes) -> str:
    """Return what stands in the quotes of an -ERR line."""
    return line[4:].strip().strip(b"'").decode("utf-8", "replace")


def _secured(
    options: ConnectOptions,
    address: Address,
    info: dict[str, Any],
    connection: socket.socket,
    deadline: float,
) -> socket.socket:
    """Return `connection`, inside TLS if the options ask for it or the server demands it."""
    is_asked = address.is_tls or bool(options.tls_ca or options.tls_cert)
    is_offered = bool(info.get("tls_required") or info.get("tls_available"))
    if not is_asked and not info.get("tls_required"):
        return connection
    if not is_offered:
        raise WireError(f"server {address} offers no TLS, which tls:// or tls.* options ask for")
    if options.tls_key and not options.tls_cert:
        raise WireError("option tls.key is set without tls.cert")
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
        if options.tls_cert:
            context.load_cert_chain(options.tls_cert, options.tls_key or None)
    except OSError as err:
        files = ", ".join(filter(None, (options.tls_ca, options.tls_cert, options.tls_key)))
        raise WireError(f"TLS files {files}: {err}") from None
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    return context.wrap_socket(connection, server_hostname=address.host)


def _connect_line(options: ConnectOptions, address: Address) -> bytes:
    fields: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "protocol": 1,
        "echo": True,
        "lang": "python-spark",
        "version": "1.0.0",
        "name": options.name or f"spark-{os.getpid()}",
    }
    # What is in the URL is meant for this server; the options are for all of them.
    user, password = address.user or options.user, address.password or options.password
    token = address.token or options.token
    if user:
        fields["user"], fields["pass"] = user, password or ""
    elif token:
        fields["auth_token"] = token
    return b"CONNECT " + json.dumps(fields).encode() + b"\r\n"
