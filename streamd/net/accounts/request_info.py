"""Facts about the client behind a request to a service of another account.

They travel in a header of the request, `Nats-Request-Info`: a short form, or, where the import
shares it, all that events tell about a client. A header of that name that the client itself sent is
replaced.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from streamd.api.remote_client import ClientFacts
from streamd.machine.rfc3339 import format_ns

HEADER: Final = b"Nats-Request-Info"
_START: Final = b"NATS/1.0\r\n"


class ServerFacts(NamedTuple):
    """This server, as events about clients name it."""

    name: str = ""
    cluster: str = ""


def short_info(requester: ClientFacts | None, account: str, service: str = "") -> dict[str, Any]:
    """Return what a service always learns: the account, and how far away the client is.

    `service`: the account in between, where one imports what another one imported.
    """
    info: dict[str, Any] = {"acc": account}
    if service:
        info["svc"] = service
    if requester is not None and requester.rtt_ns:
        info["rtt"] = requester.rtt_ns
    return info


def full_info(
    requester: ClientFacts, account: str, server: ServerFacts, service: str = ""
) -> dict[str, Any]:
    """Return everything about a client, in the order in which nats-server writes it."""
    texts = {
        "start": format_ns(requester.start_ns),
        "host": requester.ip,
        "id": requester.cid,
        "acc": account,
        "svc": service,
        "user": requester.user,
        "name": requester.name,
        "lang": requester.lang,
        "ver": requester.version,
        "rtt": requester.rtt_ns,
        "server": server.name,
        "cluster": server.cluster,
        **_token_facts(requester),
        "kind": "Client",
        "client_type": "websocket" if _is_websocket(requester) else "nats",
    }
    return {key: value for key, value in texts.items() if value}


def _token_facts(requester: ClientFacts) -> dict[str, Any]:
    """Return the token by which a client of this node logged in; nothing if there is none."""
    profile = getattr(requester, "profile", None)
    token = getattr(getattr(profile, "identity", None), "token", None)
    if profile is None or token is None:
        return {}
    return {
        "jwt": (profile.connect or {}).get("jwt", ""),
        "issuer_key": token.issuer_key,
        "name_tag": token.name,
        "tags": list(token.tags),
    }


def _is_websocket(requester: ClientFacts) -> bool:
    return bool(getattr(getattr(requester, "profile", None), "is_websocket", False))


def with_info(headers: bytes, info: dict[str, Any]) -> bytes:
    """Return a header block with `info` behind all other headers, and no other of that name."""
    line = b"%b: %b\r\n" % (HEADER, json.dumps(info, separators=(",", ":")).encode())
    if not headers:
        return b"%b%b\r\n" % (_START, line)
    kept = headers[:-2]
    if HEADER.lower() in kept.lower():
        lines = kept.split(b"\r\n")
        kept = b"\r\n".join([each for each in lines if not _is_info(each)])
    return b"%b%b\r\n" % (kept, line)


def _is_info(line: bytes) -> bool:
    return line.partition(b":")[0].strip().lower() == HEADER.lower()
