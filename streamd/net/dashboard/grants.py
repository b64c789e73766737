"""`Grant`: identity and rights behind a session of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streamd.config.user_options import Permissions
from streamd.net.client.auth import Identity, UserRights
from streamd.types import ACCOUNT

READER: Final = "reader"
ADMINISTRATOR: Final = "administrator"
_ALL: Final = b">"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of a login. `source` and `proof` say by which words of the configuration it was let
    in: once these are others, it has ended."""

    user: str
    account: str  # whose streams it sees; "": of all accounts
    is_administrator: bool
    permissions: Permissions | None = None  # of a client's user; None: no bounds but its account
    source: tuple[str, str] = ("", "")
    proof: str = ""
    expires_ns: int = 0  # unix time, as the service that let it in says; 0: never
    _rights: UserRights | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rights = UserRights(self.permissions) if self.permissions is not None else None
        object.__setattr__(self, "_rights", rights)  # which remembers its verdicts

    @property
    def role(self) -> str:
        """The role, as the page shows it."""
        return ADMINISTRATOR if self.is_administrator else READER

    @property
    def sees_all(self) -> bool:
        """True if no account bounds what is shown."""
        return not self.account

    def sees(self, account: str) -> bool:
        """True if what belongs to `account` is shown."""
        return self.account in ("", account)

    def may_request(self, subject: str) -> bool:
        """True if a client with this login could make a request on `subject`: the dashboard is no
        way around a user's permissions."""
        return self._rights is None or self._rights.may_publish(subject.encode(), now_ns=0)

    def may_hear(self, subject: str) -> bool:
        """True if a client with this login could subscribe to `subject`."""
        return self._rights is None or self._rights.may_subscribe(subject.encode(), b"")


def grant_of(identity: Identity, system_account: str, name: str) -> Grant:
    """Return the rights of a client's user: those of the system account, and who administers
    everything, see all accounts."""
    administers = identity.administers
    sees_all = identity.account == system_account or _ALL in administers
    return Grant(
        user=name,
        account="" if sees_all else identity.account or ACCOUNT,
        is_administrator=bool(administers),
        permissions=identity.permissions,
        expires_ns=identity.token.expires_ns if identity.token is not None else 0,
    )


OPEN: Final = Grant("", "", True)
"""Rights on a server that asks nobody to log in: anybody may do anything there by messages."""
