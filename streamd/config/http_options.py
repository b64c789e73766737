"""Logins of the dashboard at the monitoring port: the `http` block."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpUser:
    """A user of the dashboard, who is no client."""

    name: str
    password: str = field(default="", repr=False)  # plain, or a bcrypt hash ($2a$...)
    is_administrator: bool = False  # else it only reads
    account: str = ""  # whose streams it sees; "": of all accounts


@dataclass(frozen=True, slots=True)
class HttpLogins:
    """Logins of the dashboard. Where there are any, they take the place of the clients' logins."""

    users: tuple[HttpUser, ...] = ()
    token: str = field(default="", repr=False)  # of an administrator; "": none

    def __bool__(self) -> bool:
        """True if the dashboard has logins of its own."""
        return bool(self.users or self.token)
