"""`streamctl health`: one server's health, for containers and scripts."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

from streamd.cli import probe
from streamd.cli.cluster_local import health, is_ready
from streamd.ctl.display import say, show_data
from streamd.ctl.failures import unusable
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb

DEFAULT_URL = "http://127.0.0.1:8222/healthz"
_OF_CLIENTS = ("nats://", "tls://")


@verb(None, "health", example="streamctl health http://127.0.0.1:8222/healthz")
@click.argument("url", required=False, default="")
@click.option(
    "--pid",
    type=int,
    default=0,
    help="Ask the server with this process id, at the address that its command line and "
    "configuration give; a server without monitoring is well if it answers a client.",
)
def command_health(settings: Settings, url: str, pid: int) -> int:
    """Ask one server for its health (default: http://127.0.0.1:8222/healthz); status 0 if it is
    ready."""
    url = url or DEFAULT_URL
    if pid:
        url = probe.health_address(pid)
    _refuse_other_pages(url)
    if url.startswith(_OF_CLIENTS):
        found = probe.client_health(url)
    else:
        # A server of this machine: its name does not matter.
        found = health(url, context=probe.unverified_context() if pid else None)
    is_well = is_ready(found)
    if not show_data(settings, {"url": url, "health": found, "ready": is_well}):
        say(found if found == "ok" else f"{found} ({url})")
    return 0 if is_well else 1


def _refuse_other_pages(url: str) -> None:
    """Raise CtlError if a URL is not that of a server's health: what another page says is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as err:
        raise unusable(f"{url!r} is no URL: {err}") from None
    if url.startswith(_OF_CLIENTS):
        if port is None:
            raise unusable(f"{url} has no port", f"streamctl health {url}:4222")
        return
    if parts.scheme not in ("http", "https"):
        raise unusable(
            f"{url!r} is no URL: it begins with http://, https://, nats:// or tls://",
            f"streamctl health http://{url.rpartition('://')[2].partition('/')[0]}/healthz",
        )
    if not parts.path.endswith("/healthz"):
        whole = parts._replace(path=f"{parts.path.rstrip('/')}/healthz").geturl()
        raise unusable(f"{url} is no address of a server's health", f"streamctl health {whole}")
