"""`streamctl health`: one server's health, for containers and scripts."""

from __future__ import annotations

import click

from streamd.cli import probe
from streamd.cli.cluster_local import health, is_ready
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb

DEFAULT_URL = "http://127.0.0.1:8222/healthz"


@verb(None, "health", example="streamctl health http://127.0.0.1:8222/healthz")
@click.argument("url", required=False, default="")
@click.option(
    "--pid",
    type=int,
    default=0,
    help="Ask the server with this process id, at the address that its command line and "
    "configuration give; a server without monitoring is well if it answers a client.",
)
def command_health(_settings: Settings, url: str, pid: int) -> int:
    """Ask one server for its health (default: http://127.0.0.1:8222/healthz); status 0 if it is
    ready."""
    url = url or DEFAULT_URL
    if pid:
        url = probe.health_address(pid)
    if url.startswith(("nats://", "tls://")):
        found = probe.client_health(url)
    else:
        # A server of this machine: its name does not matter.
        found = health(url, context=probe.unverified_context() if pid else None)
    print(found if found == "ok" else f"{found} ({url})")
    return 0 if is_ready(found) else 1
