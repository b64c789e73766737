"""The address at which a server of this machine tells its health, found by its own command line,
and the health of one without monitoring."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

from streamd.cli.cluster_local import ANSWERED_WITHIN_S, ClusterError
from streamd.config import flags
from streamd.config.cluster_options import join_address
from streamd.config.options import Options
from streamd.errors import ConfigError, describe

_PROGRAMS = ("streamd", "nats-server")
_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # listened on, asked at


def health_address(pid: int) -> str:
    """The URL at which the server that is, or was started by, process `pid` tells its health:
    `http://.../healthz`, or `nats://...`, `tls://...` of one without monitoring.

    Variables of the configuration are those of this process, which in a container are the server's.
    Raises ClusterError if there is no server, or its configuration can't be read.
    """
    for number in (pid, *_descendants(pid)):
        arguments = _arguments(number)
        if arguments is not None:
            return _address(_options(number, arguments))
    raise ClusterError(f"process {pid} is no streamd or nats-server, and has started none")


def client_health(url: str) -> str:
    """ "ok" if a server answers a client's PING at `nats://host:port`, else why not.

    One that asks for TLS has answered when it says so; at `tls://host:port`, when it shakes hands.
    """
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWERED_WITHIN_S) as link:
            if scheme == "tls":
                unverified_context().wrap_socket(link).close()
                return "ok"
            link.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            told = b""
            while b"PONG" not in told and b"-ERR" not in told:
                chunk = link.recv(65536)
                if b'"tls_required":true' in told + chunk:
                    return "ok"
                if not chunk:
                    return "no answer: the connection was closed"
                told += chunk
    except OSError as err:
        return f"no answer: {describe(err)}"
    # A server that asks for a password serves those who have it.
    is_well = b"PONG" in told or b"Authorization Violation" in told
    return "ok" if is_well else told[told.index(b"-ERR") :].decode(errors="replace").strip()


def unverified_context() -> ssl.SSLContext:
    """Return what it takes to talk to a server on this machine, whatever its certificate names."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _address(options: Options) -> str:
    if options.has_http:
        host, port = options.http_host or options.host, options.https_port or options.http_port
        scheme, path = "http", options.http_base_path.rstrip("/") + "/healthz"
        scheme += "s" if options.https_port else ""
    else:
        tls = options.tls
        scheme = "tls" if tls is not None and tls.is_first and not tls.first_delay_ns else "nats"
        host, port, path = options.host, options.port, ""
    if port < 0:
        raise ClusterError(
            "the server chose its port itself (-1): configure a port, or read its ports file"
        )
    return f"{scheme}://{join_address(_EVERYWHERE.get(host, host), port)}{path}"


def _options(pid: int, arguments: list[str]) -> Options:
    """The options of the server that process `pid` is; its relative paths begin where it runs."""
    try:
        line = flags.parse(arguments)
        if line.config_file:
            line.config_file = os.path.join(f"/proc/{pid}/cwd", line.config_file)
        return flags.options_from(line)
    except ConfigError as err:
        raise ClusterError(str(err)) from err


def _arguments(pid: int) -> list[str] | None:
    """Arguments of the server that runs as process `pid`; None if that is no server."""
    try:
        words = [
            os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]
    except OSError:
        return None
    for at, word in enumerate(words[:2]):  # the program, or an interpreter and the program
        if os.path.basename(word) in _PROGRAMS:
            return words[at + 1 : -1]
    return None


def _descendants(pid: int) -> list[int]:
    """The processes that `pid`, an init of containers perhaps, has started, near ones first."""
    found = [pid]
    for number in found:
        for file in Path(f"/proc/{number}/task").glob("*/children"):
            try:
                found += [int(word) for word in file.read_text().split()]
            except OSError:
                continue
    return found[1:]
