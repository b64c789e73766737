"""Options of auth callout: logins are decided by a service that answers requests."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.types import ACCOUNT


@dataclass(frozen=True, slots=True)
class CalloutOptions:
    """An `auth_callout` block."""

    issuer: str  # public account key that signs the answers
    users: tuple[str, ...]  # of the service itself: names or nkeys that log in without it
    account: str = ACCOUNT  # in which requests are published
    xkey: str = ""  # public curve key of the service: requests are sealed for it; "": in clear
    allowed_accounts: tuple[str, ...] = ()  # static users of others log in without it; empty: none
