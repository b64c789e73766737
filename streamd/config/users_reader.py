"""Reader of users and their permissions: `authorization`, and the users of accounts.

Error texts are nats-server's where it has them. Rules between the single user, the token, lists of
users and accounts are checked by `finish`, once all keys are read.
"""

from __future__ import annotations

from streamd.config.account_options import AccountOptions
from streamd.config.callout_reader import read_callout
from streamd.config.duration_values import parse_go_duration
from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, Unserved, put_on, words
from streamd.config.options import Options
from streamd.config.unserved import refuse_connection_types
from streamd.config.user_options import Permissions, ResponsePermission, User
from streamd.config.values import as_allow_deny, as_integer, as_text, go_type, quoted, shown
from streamd.durations import SECOND_NS
from streamd.errors import ConfigError
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.types import ACCOUNT

UNSERVED_AUTHORIZATION = Unserved(words("proxy_required"))
_CONNECTION_TYPES = words("STANDARD WEBSOCKET MQTT MQTT_WS LEAFNODE LEAFNODE_WS IN_PROCESS")
_LONG_TIMEOUT_S = 60


class UsersReader:
    """Reads users and their permissions into `Options`."""

    def __init__(self, options: Options, blocks: KeyBlocks) -> None:
        self._options = options
        self._blocks = blocks
        self._authorization: Value | None = None
        self._has_list = False  # of users in `authorization`, be it an empty one
        self._of_authorization: list[User] = []
        self._of_accounts: list[tuple[Value, list[User]]] = []

    # --- setters ------------------------------------------------------------------------------

    def authorization(self, block: Value) -> None:
        """Read the `authorization` block."""
        o = self._options
        self._authorization = block
        users: list[User] = []

        def add_users(value: Value) -> None:
            self._has_list = True
            users.extend(self._users(value, ACCOUNT))

        def add_callout(value: Value) -> None:
            o.callout = read_callout(value, self._blocks)

        self._blocks.read(
            block,
            {
                "user|username": self._blocks.text("username"),
                "pass|password": self._blocks.text("password"),
                "token": self._blocks.text("token"),
                "timeout": self._timeout,
                "users": add_users,
                "auth_callout|auth_hook": add_callout,
                "default_permissions|default_permission|permissions": put_on(
                    o, "default_permissions", self.permissions
                ),
            },
            "authorization.",
            UNSERVED_AUTHORIZATION,
        )
        for user in users:
            user.permissions = user.permissions or o.default_permissions
        self._of_authorization = users

    def of_account(self, value: Value, account: AccountOptions) -> None:
        """Read the list of users of an account."""
        users = self._users(value, account.name)
        for user in users:
            user.permissions = user.permissions or account.default_permissions
        self._of_accounts.append((value, users))

    def finish(self) -> None:
        """Check how users log in, and put them into the options. Raises ConfigError."""
        o = self._options
        at = self._authorization
        if at is not None:
            if (o.username or o.password) and o.token:
                raise at.error("Cannot have a user/pass and token")
            if self._has_list and o.username:
                raise at.error("Can not have a single user/pass and a users array")
            if self._has_list and o.token:
                raise at.error("Can not have a token and a users array")
        seen: set[str] = set()
        if at is not None:
            self._add(self._of_authorization, seen, at)
        for value, users in self._of_accounts:
            if users and o.username:
                raise value.error("Can not have a single user/pass and accounts")
            if users and o.token:
                raise value.error("Can not have a token and accounts")
            self._add(users, seen, value)

    @property
    def has_authorization(self) -> bool:
        """True if there is an `authorization` block."""
        return self._authorization is not None

    def _add(self, users: list[User], seen: set[str], at: Value) -> None:
        for user in sorted(users, key=lambda user: not user.nkey):  # as nats-server looks at them
            if user.identity in seen:
                kind = "nkey" if user.nkey else "user"
                raise at.error(f"Duplicate {kind} {quoted(user.identity)} detected")
            seen.add(user.identity)
        self._options.users.extend(users)

    def _timeout(self, value: Value) -> None:
        prefix = "error parsing authorization config, 'timeout'"
        if isinstance(value.raw, str):
            try:
                seconds = parse_go_duration(value.raw) / SECOND_NS
            except ValueError as err:
                raise value.error(f"{prefix} {err}") from None
        elif isinstance(value.raw, bool) or not isinstance(value.raw, int | float):
            raise value.error(f"{prefix} wrong type")
        else:
            seconds = float(value.raw)
        if seconds > _LONG_TIMEOUT_S:
            self._blocks.warn(
                value,
                f'invalid use of field "timeout": timeout of {shown(value)} ({seconds:f} seconds)'
                " is high, consider keeping it under 60 seconds. possibly caused by unquoted"
                " duration; use '1m' instead of 1m, for example",
            )
        self._options.auth_timeout_s = seconds

    # --- users --------------------------------------------------------------------------------

    def _users(self, value: Value, account: str) -> list[User]:
        if not isinstance(value.raw, list):
            raise value.error(f"Expected users field to be an array, got {shown(value)}")
        return [self._user(entry, account) for entry in value.raw]

    def _user(self, entry: Value, account: str) -> User:
        if not isinstance(entry.raw, dict):
            raise entry.error(f"Expected user entry to be a map/struct, got {shown(entry)}")
        user = User("", account=account)
        places: dict[str, Value] = {}

        def connection_types(value: Value) -> None:
            places["connection_types"] = value
            user.connection_types = _connection_types(value)

        def nkey(value: Value) -> None:
            places["nkey"] = value
            user.nkey = as_text(value)

        self._blocks.read(
            entry,
            {
                "user|username": put_on(user, "name", as_text),
                "pass|password": put_on(user, "password", as_text),
                "permission|permissions|authorization": put_on(
                    user, "permissions", self.permissions
                ),
                "nkey": nkey,
                "allowed_connection_types|connection_types|clients": connection_types,
            },
            "users.",
            Unserved(["proxy_required"]),
        )
        last = next(reversed(entry.raw.values()), entry)
        if not user.identity:
            raise last.error("User entry requires a user")
        if user.nkey:
            if not is_valid_public(KeyKind.USER, user.nkey):
                raise last.error("Not a valid public nkey for a user")
            if user.name or user.password:
                raise last.error("Nkey users do not take usernames or passwords")
        refuse_connection_types(
            user.connection_types,
            user.identity,
            places.get("connection_types", entry),
            self._blocks,
        )
        return user

    # --- permissions --------------------------------------------------------------------------

    def permissions(self, block: Value) -> Permissions:
        """Read the permissions of a user, or those of users who have none of their own."""
        if not isinstance(block.raw, dict):
            raise block.error(f"Expected permissions to be a map/struct, got {shown(block)}")
        permissions = Permissions()

        def publish(value: Value) -> None:
            allow, permissions.publish_deny = as_allow_deny(value, False)
            permissions.publish_allow = self._allowed(allow, value)

        def subscribe(value: Value) -> None:
            allow, permissions.subscribe_deny = as_allow_deny(value, True)
            permissions.subscribe_allow = self._allowed(allow, value)

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
            unknown="Unknown field {} parsing permissions",
        )
        if permissions.allow_responses and permissions.publish_allow is None:
            permissions.publish_allow = []  # responses only
        return permissions

    def _allowed(self, subjects: list[bytes] | None, value: Value) -> list[bytes] | None:
        """Return the subjects that are allowed; None, all of them, for an empty list."""
        if subjects == []:
            self._blocks.warn(
                value, f'"{value.key}": an empty list allows every subject, as in nats-server'
            )
        return subjects or None

    def _responses(self, value: Value) -> ResponsePermission | None:
        if isinstance(value.raw, bool):
            return ResponsePermission() if value.raw else None
        if not isinstance(value.raw, dict):
            raise value.error("error parsing response permissions, expected a boolean or a map")
        response = ResponsePermission()
        self._blocks.read(
            value,
            {
                "max|max_msgs|max_messages|max_responses": put_on(
                    response, "max_msgs", lambda v: as_integer(v) or 1
                ),
                "expires|expiration|ttl": put_on(response, "ttl_ns", _expires),
            },
            "allow_responses.",
            unknown="Unknown field {} parsing permissions",
        )
        return response


def _expires(value: Value) -> int:
    if not isinstance(value.raw, str):
        raise value.error("error parsing expires, not a duration string")
    try:
        return parse_go_duration(value.raw) or 120 * SECOND_NS
    except ValueError as err:
        raise value.error(f"error parsing expires: {err}") from None


def _connection_types(value: Value) -> frozenset[str]:
    entries = value.raw if isinstance(value.raw, list) else [value]
    names = []
    for entry in entries:
        if not isinstance(entry.raw, str):
            raise _unsupported_type(entry, is_element=isinstance(value.raw, list))
        names.append(entry.raw)
    unknown = [name for name in names if name.upper() not in _CONNECTION_TYPES]
    if unknown:
        raise value.error(f"invalid connection types [{' '.join(map(quoted, unknown))}]")
    return frozenset(name.upper() for name in names)


def _unsupported_type(entry: Value, *, is_element: bool) -> ConfigError:
    where = "unsupported type in array" if is_element else "unsupported type"
    return entry.error(f"error parsing allowed connection types: {where} {go_type(entry)}")
