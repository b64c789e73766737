"""Options of users: how each logs in, to which account, and what it may do there."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamd.durations import SECOND_NS
from streamd.types import ACCOUNT


@dataclass(slots=True)
class ResponsePermission:
    """A user may publish to reply subjects it was sent: so many times, for so long."""

    max_msgs: int = 1  # -1: any number
    ttl_ns: int = 120 * SECOND_NS  # -1: for ever


@dataclass(slots=True)
class Permissions:
    """Subjects a user may and may not use; None for an allow list means every subject.

    Entries of the subscribe lists may name a queue group after a space.
    """

    publish_allow: list[bytes] | None = None
    publish_deny: list[bytes] = field(default_factory=list)
    subscribe_allow: list[bytes] | None = None
    subscribe_deny: list[bytes] = field(default_factory=list)
    allow_responses: ResponsePermission | None = None


@dataclass(slots=True)
class User:
    """A user: its name and password, or the public key that it proves to have the seed of."""

    name: str  # "": it has an nkey
    password: str = ""  # plain, or a bcrypt hash ($2a$...)
    permissions: Permissions | None = None
    account: str = ACCOUNT
    connection_types: frozenset[str] = frozenset()  # ways it may connect; empty: any
    nkey: str = ""  # public key; such a user has neither name nor password

    @property
    def identity(self) -> str:
        """Name or public key, by which configurations and logs refer to the user."""
        return self.nkey or self.name
