"""Users and permissions of a configuration: `authorization` and `accounts`."""

from __future__ import annotations

from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, Setter, Unserved, put_on, words
from streamd.config.options import Options, Permissions, ResponsePermission, User
from streamd.config.values import (
    as_allow_deny,
    as_integer,
    as_list,
    as_members,
    as_number,
    as_text,
    kind_of,
)
from streamd.durations import SECOND_NS
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT

UNSERVED_AUTHORIZATION = Unserved(words("auth_callout auth_hook proxy_required nkeys"))
_CONNECTION_TYPES = words("STANDARD WEBSOCKET MQTT MQTT_WS LEAFNODE LEAFNODE_WS IN_PROCESS")
_SERVED_TYPES = words("STANDARD WEBSOCKET")
OPERATORS = words("operator operators roots root root_operators root_operator")
# All of an account's keys come under its "accounts", which is refused as a whole.
_UNSERVED_ACCOUNT = Unserved(
    additional=words(
        """
        nkey users imports exports jetstream default_permissions mappings maps limits msg_trace
        trace_dest cluster_traffic
        """
    )
)


class UsersReader:
    """Reads users and their permissions into `Options`."""

    def __init__(self, options: Options, blocks: KeyBlocks) -> None:
        self._options = options
        self._blocks = blocks

    def unserved_users(self, key: str) -> Setter:
        """Return the setter of `key`, whose users can't log in here. The server that ignores it
        would be open to all."""

        def set_(value: Value) -> None:
            self._options.has_unserved_users = True
            self._blocks.refuse(
                value, f'"{key}" is not served by this version: those it lets in cannot log in'
            )

        return set_

    def authorization(self, block: Value) -> None:
        """Read the `authorization` block."""
        o = self._options
        users: list[User] = []
        defaults: list[Permissions] = []

        def add_timeout(value: Value) -> None:
            if isinstance(value.raw, str):
                o.auth_timeout_s = self._blocks.duration_of(value, "timeout") / SECOND_NS
            else:
                o.auth_timeout_s = float(as_number(value))

        self._blocks.read(
            block,
            {
                "user|username": self._blocks.text("username"),
                "pass|password": self._blocks.text("password"),
                "token": self._blocks.text("token"),
                "timeout": add_timeout,
                "users": lambda v: users.extend(self._users(v, ACCOUNT)),
                "nkeys": self.unserved_users("authorization.nkeys"),
                "auth_callout|auth_hook": self.unserved_users("authorization.auth_callout"),
                "default_permissions|default_permission|permissions": lambda v: defaults.append(
                    self._permissions(v)
                ),
            },
            "authorization.",
            UNSERVED_AUTHORIZATION,
        )
        if users and (o.username or o.password):
            raise block.error("Can not have a single user/pass and a users array")
        if users and o.token:
            raise block.error("Can not have a token and a users array")
        if o.username and o.token:
            raise block.error("Cannot have a user/pass and token")
        if defaults:
            o.default_permissions = defaults[-1]
            for user in users:
                user.permissions = user.permissions or defaults[-1]
        o.users.extend(users)

    def accounts(self, block: Value) -> None:
        """Read the users of all accounts, who share one; that is refused unless it is allowed."""
        self._blocks.refuse(
            block, '"accounts" is not served by this version: all users share one account'
        )
        for name, account in as_members(block, "accounts").items():
            users: list[User] = []
            if isinstance(account.raw, dict):
                self._blocks.read(
                    account,
                    {
                        "users": lambda v, n=name, u=users: u.extend(self._users(v, n))  # type: ignore[misc]
                    },
                    f"accounts.{name}.",
                    _UNSERVED_ACCOUNT,
                )
            elif not account.is_referred_to:
                raise account.error(f'"accounts.{name}" must be a block, not {kind_of(account)}')
            self._options.users.extend(users)

    def has_only_system_users(self, root: Value) -> bool:
        """Return True if the only users are the system account's, and no key names others.

        Monitoring is set up so for a server without logins: nats-server then admits every client
        without credentials, as if there were no users.
        """
        members = {key.lower(): value for key, value in as_members(root, "configuration").items()}
        accounts = members.get("accounts")
        named = members.get("system_account") or members.get("system")
        system = as_text(named) if named else SYSTEM_ACCOUNT
        decided = OPERATORS | {"authorization", "no_auth_user", "trusted_keys", "trusted"}
        if accounts is None or decided & set(members):
            return False
        return as_members(accounts, "accounts").keys() == {system}

    def _users(self, value: Value, account: str) -> list[User]:
        return [user for entry in as_list(value) if (user := self._user(entry, account))]

    def _user(self, entry: Value, account: str) -> User | None:
        user = User("", account=account)
        nkeys: list[Value] = []
        ways: list[str] = []  # by which the user may connect
        ways_at = [entry]

        def connection_types(value: Value) -> None:
            ways_at.append(value)
            for way in as_list(value) if isinstance(value.raw, list) else [value]:
                name = as_text(way).upper()
                if name not in _CONNECTION_TYPES:
                    raise value.error(f'invalid connection types ["{as_text(way)}"]')
                ways.append(name)

        self._blocks.read(
            entry,
            {
                "user|username": put_on(user, "name", as_text),
                "pass|password": put_on(user, "password", as_text),
                "permission|permissions|authorization": put_on(
                    user, "permissions", self._permissions
                ),
                "nkey": nkeys.append,
                "allowed_connection_types|connection_types|clients": connection_types,
            },
            "users.",
            Unserved(["proxy_required"]),
        )
        if nkeys:
            self._options.has_unserved_users = True
            self._blocks.refuse(
                nkeys[-1], '"users.nkey" is not served by this version: the user cannot log in'
            )
            return None
        if not user.name:
            raise entry.error("User entry requires a user")
        user.connection_types = frozenset(ways)
        if ways and not _SERVED_TYPES & user.connection_types:
            self._options.has_unserved_users = True
            self._blocks.refuse(
                ways_at[-1],
                f'"users.allowed_connection_types": {", ".join(ways)} is not served by this'
                f' version: user "{user.name}" cannot log in',
            )
            return None
        return user

    def _permissions(self, block: Value) -> Permissions:
        permissions = Permissions()

        def publish(value: Value) -> None:
            permissions.publish_allow, permissions.publish_deny = as_allow_deny(value, False)

        def subscribe(value: Value) -> None:
            permissions.subscribe_allow, permissions.subscribe_deny = as_allow_deny(value, True)

        self._blocks.read(
            block,
            {
                "pub|publish|import": publish,
                "sub|subscribe|export": subscribe,
                "allow_responses|publish_allow_responses": put_on(
                    permissions, "allow_responses", self._responses
                ),
            },
            "permissions.",
        )
        if permissions.allow_responses and permissions.publish_allow is None:
            permissions.publish_allow = []  # responses only
        return permissions

    def _responses(self, value: Value) -> ResponsePermission | None:
        if isinstance(value.raw, bool):
            return ResponsePermission() if value.raw else None
        response = ResponsePermission()
        self._blocks.read(
            value,
            {
                "max|max_msgs|max_messages|max_responses": put_on(
                    response, "max_msgs", lambda v: as_integer(v) or 1
                ),
                "expires|expiration|ttl": put_on(
                    response,
                    "ttl_ns",
                    lambda v: self._blocks.duration_of(v, "expires") or 120 * SECOND_NS,
                ),
            },
            "allow_responses.",
        )
        return response
