"""Servers as the system account sees them: all of them, one by its name, and what each answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from streamd.ctl.failures import ApiError, CtlError, unusable
from streamd.ctl.nats_link import Link, decoded

_PING: Final = "$SYS.REQ.SERVER.PING"
_PAGE: Final = 256


class Servers(NamedTuple):
    """Servers that answered, each with its statistics, and names of those that should have."""

    found: list[dict[str, Any]]
    missing: list[str]


async def all_servers(link: Link) -> Servers:
    """Return all servers, in the order of their names. Raises CtlError if none answers."""
    answers = await link.survey(_PING, told=_active_servers)
    answers.sort(key=lambda answer: str(answer["server"]["name"]))
    here = {answer["server"]["name"] for answer in answers}
    known = set(here)
    for answer in answers:
        meta = (answer["statsz"].get("jetstream") or {}).get("meta") or {}
        known |= {peer["name"] for peer in meta.get("replicas") or []}
        known |= {meta["leader"]} if meta.get("leader") else set()
    return Servers(answers, sorted(known - here))


def _active_servers(answer: Mapping[str, Any]) -> int:
    return int(answer["statsz"].get("active_servers", 0))


async def chosen_servers(link: Link, names: tuple[str, ...]) -> Servers:
    """Return the servers of these names or ids, all if there are none. Raises CtlError."""
    servers = await all_servers(link)
    if not names:
        return servers
    found = []
    for name in names:
        match = [
            one for one in servers.found if name in (one["server"]["name"], one["server"]["id"])
        ]
        if not match:
            there = ", ".join(one["server"]["name"] for one in servers.found)
            raise unusable(
                f"no server {name!r} answers: there are {there}", "streamctl server list"
            )
        found += match
    return Servers(found, [])


async def ask_server(
    link: Link,
    server: Mapping[str, Any],
    name: str,
    body: Mapping[str, Any] | None = None,
    within_s: float = 0.0,
) -> Any:
    """Return what one server answers to a request of the system account. Raises CtlError."""
    import json

    subject = f"$SYS.REQ.SERVER.{server['server']['id']}.{name}"
    try:
        answer = await link.request(subject, json.dumps(body or {}).encode(), within_s=within_s)
    except CtlError as err:
        if str(err).startswith("nobody answers") and ".STREAMD." in subject:
            raise CtlError(
                f"server {server['server']['name']} does not serve {name}: it is no streamd, or an "
                "older one"
            ) from None
        raise
    try:
        document = decoded(answer.data)
    except ApiError as err:
        raise CtlError(f"server {server['server']['name']}: {err.description}") from None
    return document.get("data", document)


async def replicas_of(link: Link, server: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a server's replicas with their digests and accounts. Raises CtlError."""
    found: list[dict[str, Any]] = []
    accounts: list[str] = []
    while True:
        page = await ask_server(link, server, "STREAMD.REPLICAS", {"offset": len(accounts)})
        names = [each["name"] for each in page.get("account_details") or []]
        accounts += names
        if not names or len(accounts) >= page.get("total", 0):
            break
    for account in accounts:
        offset = 0
        while True:
            body = {"account": account, "offset": offset, "limit": _PAGE}
            page = await ask_server(link, server, "STREAMD.REPLICAS", body)
            details = (page.get("account_details") or [{}])[0].get("stream_detail") or []
            found += [{**detail, "account": account} for detail in details]
            offset += len(details)
            if len(details) < _PAGE:
                break
    return found
