"""The difference between two configurations, in words for the log of a reload. No secret in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Final

from streamd.config.leaf_options import LeafOptions
from streamd.config.options import Options
from streamd.config.tls_options import TlsOptions
from streamd.config.user_options import User
from streamd.durations import format_duration
from streamd.errors import ConfigError
from streamd.types import SYSTEM_ACCOUNT

# A reload can't change these: sockets, data, identity and what a process keeps rest on them.
_FIXED = {
    "host": "host",
    "port": "port",
    "server_name": "server_name",
    "http_host": "http",
    "http_port": "http",
    "https_port": "https",
    "http_base_path": "http_base_path",
    "allows_non_tls": "allow_non_tls",
    "log_size_limit": "logfile_size_limit",
    "log_files_max": "logfile_max_num",
    "max_pending": "max_pending",
    "max_subscriptions": "max_subscriptions",
    "max_sub_tokens": "max_sub_tokens",
    "lame_duck_duration_ns": "lame_duck_duration",
    "lame_duck_grace_ns": "lame_duck_grace_period",
    "max_closed_clients": "max_closed_clients",
    "has_header_support": "no_header_support",
}
_FIXED_OF_TLS = {
    "is_mapping": "verify_and_map",
    "connections_per_s_max": "connection_rate_limit",
}
_LIVE_OF_LEAF = {"remotes", "compression", "compressions"}
_LIVE_OF_REMOTE = {"is_disabled", "compression", "place"}
_NO_TLS = TlsOptions()
# Told of in lines of their own, or not settings.
_APART = {
    *("users", "jetstream", "cluster", "tls", "websocket", "leaf"),
    *("config_file", "config_digest", "warnings", "unserved"),
    *(
        "is_open_besides_system",
        "is_mapping_elsewhere",
        "accounts",
        "configured_accounts",
        "operators",
        "callout",
    ),
    *("no_auth_user", "system_account", "has_system_account"),
    *("cluster_place", "allows_open_cluster"),
}
_SECRET = {"username", "password", "token", "default_permissions", "http_logins"}
_KEYS = {
    "username": "authorization.user",
    "password": "authorization.password",
    "token": "authorization.token",
    "default_permissions": "authorization.default_permissions",
    "http_logins": "http.users and http.token",
    "auth_timeout_s": "authorization.timeout",
    "log_file": "logfile",
}
_KEYS_OF_CLUSTER = {
    "has_advertise": "cluster.no_advertise",
    "username": "cluster.authorization.user",
    "password": "cluster.authorization.password",
    "auth_timeout_s": "cluster.authorization.timeout",
}
_KEYS_OF_WEBSOCKET = {
    "is_compressing": "websocket.compression",
    "username": "websocket.authorization.user",
    "password": "websocket.authorization.password",
    "token": "websocket.authorization.token",
    "auth_timeout_s": "websocket.authorization.timeout",
}
_KEYS_OF_JETSTREAM = {
    "max_memory": "jetstream.max_memory_store",
    "max_storage": "jetstream.max_file_store",
    "max_ack_pending": "jetstream.limits.max_ack_pending",
    "max_ha_assets": "jetstream.limits.max_ha_assets",
    "max_request_batch": "jetstream.limits.max_request_batch",
    "duplicate_window_ns": "jetstream.limits.duplicate_window",
    "max_batches_per_stream": "jetstream.limits.batch.max_inflight_per_stream",
    "max_batches_total": "jetstream.limits.batch.max_inflight_total",
    "max_batch_msgs": "jetstream.limits.batch.max_msgs",
    "batch_timeout_ns": "jetstream.limits.batch.timeout",
    "previous_key": "jetstream.prev_key",
}
# Settings that the node reads at its start only.
_LATER = {"server_tags": "for placement at the next start"}


def refuse_fixed(old: Options, new: Options) -> None:
    """Raise ConfigError, which names the setting, if `new` can't take the place of `old` in a
    process that runs. Routes are all that may change of the cluster."""
    for attribute, key in _FIXED.items():
        before, after = getattr(old, attribute), getattr(new, attribute)
        if before != after:
            raise ConfigError(
                f"config reload not supported for {key}: old={before!r}, new={after!r}"
            )
    for attribute, key in _FIXED_OF_TLS.items():
        before, after = (getattr(tls or _NO_TLS, attribute) for tls in (old.tls, new.tls))
        if before != after:
            raise ConfigError(
                f"config reload not supported for tls.{key}: old={before!r}, new={after!r}"
            )
    for name in _differing(old.cluster, new.cluster, besides={"routes"}):
        key = _KEYS_OF_CLUSTER.get(name) or f"cluster.{_plain(name)}"
        raise ConfigError(
            f"config reload not supported for the cluster, but for its routes: {key} changed"
        )
    for name in _differing(old.websocket, new.websocket):
        key = _KEYS_OF_WEBSOCKET.get(name) or f"websocket.{_plain(name)}"
        raise ConfigError(f"config reload not supported for Websocket: {key} changed")
    _refuse_identities(old, new)
    _refuse_leaf(old.leaf, new.leaf)
    for name in _differing(old.jetstream, new.jetstream):
        key = _KEYS_OF_JETSTREAM.get(name) or f"jetstream.{_plain(name)}"
        raise ConfigError(f"config reload not supported for JetStream: {key} changed")


def _refuse_leaf(old: LeafOptions, new: LeafOptions) -> None:
    """Refuse what can't change of leaf links: all but which hubs are dialed, and compression."""
    for name in _differing(old, new, besides=_LIVE_OF_LEAF):
        key = f"leafnodes.{_plain(name)}"
        raise ConfigError(f"config reload not supported for LeafNode: {key} changed")
    before = {remote.key: remote for remote in old.remotes}
    for remote in new.remotes:
        if remote.key in before:
            for name in _differing(before[remote.key], remote, besides=_LIVE_OF_REMOTE):
                key = f"leafnodes.remotes.{_plain(name)}"
                raise ConfigError(
                    f"config reload not supported for LeafNode: remote {remote.text}: {key} changed"
                )


def _refuse_identities(old: Options, new: Options) -> None:
    """Refuse another way of knowing who a client is. Fields and values are written as by
    nats-server."""
    if (old.operators.resolver is None) != (new.operators.resolver is None):
        raise ConfigError("config reload does not support moving to or from an account resolver")
    for name in ("resolver", "resolver_tls"):
        if getattr(old.operators, name) != getattr(new.operators, name):
            raise ConfigError(f"config reload not supported for {name}: it changed")
    for field, shown in _IDENTITIES.items():
        before, after = shown(old), shown(new)
        if field == "SystemAccount" and (before, after) == ("", SYSTEM_ACCOUNT):
            continue  # it was there all the time, without users
        if before != after:
            raise ConfigError(f"config reload not supported for {field}: old={before}, new={after}")


def _system_account(options: Options) -> str:
    name = options.system_account
    is_default = name == SYSTEM_ACCOUNT and name not in options.configured_accounts
    return "" if is_default else name


def _callout(options: Options) -> str:
    callout = options.callout
    if callout is None:
        return "<nil>"
    members = (
        callout.issuer,
        callout.account,
        _list(callout.users),
        callout.xkey,
        _list(callout.allowed_accounts),
    )
    return f"&{{{' '.join(members)}}}"


def _list(texts: Iterable[str]) -> str:
    return f"[{' '.join(texts)}]"


_IDENTITIES: Final[Mapping[str, Callable[[Options], str]]] = {
    "NoAuthUser": lambda o: o.no_auth_user,
    "SystemAccount": _system_account,
    "NoSystemAccount": lambda o: "false" if o.has_system_account else "true",
    "AuthCallout": _callout,
    "TrustedOperators": lambda o: _list(o.operators.tokens),
    "TrustedKeys": lambda o: _list(o.operators.trusted_keys),
}


def describe(old: Options, new: Options) -> list[str]:
    """Return one text per setting that a reload changed: `max_payload = 2097152 (was 1048576)`."""
    found = []
    for attribute in _differing(old, new, besides=_APART | _FIXED.keys()):
        key = _key(attribute)
        before, after = getattr(old, attribute), getattr(new, attribute)
        if attribute in _SECRET:
            found.append(f"{key} {_verb(before, after)}")
        else:
            later = f", {_LATER[attribute]}" if attribute in _LATER else ""
            found.append(f"{key} = {_text(key, after)} (was {_text(key, before)}){later}")
    found += _describe_tls(old.tls, new.tls)
    found += _describe_users(old.users, new.users)
    if old.accounts != new.accounts or old.operators != new.operators:
        found.append("accounts")
    if old.cluster.routes != new.cluster.routes:
        found.append("cluster routes")
    return found + _describe_leaf(old.leaf, new.leaf)


def _describe_leaf(old: LeafOptions, new: LeafOptions) -> list[str]:
    before = {remote.key: remote for remote in old.remotes}
    after = {remote.key: remote for remote in new.remotes}
    found = []
    if old.compression != new.compression:
        found.append(f"LeafNode Compression value is: {new.compression.mode}")
    for key in before.keys() | after.keys():
        if key not in after:
            found.append(f"LeafNode Remote {before[key].text} removed")
        elif key not in before:
            found.append(f"LeafNode Remote {after[key].text} added")
        elif before[key].is_disabled != after[key].is_disabled:
            value = "true" if after[key].is_disabled else "false"
            found.append(f"LeafNode Remote {after[key].text} Disabled value is: {value}")
        elif before[key].compression != after[key].compression:
            mode = after[key].compression.mode
            found.append(f"LeafNode Remote {after[key].text} Compression value is: {mode}")
    return sorted(found)


def _differing(old: object, new: object, besides: Iterable[str] = ()) -> list[str]:
    return [
        field.name
        for field in fields(old)  # type: ignore[arg-type]
        if field.name not in besides and getattr(old, field.name) != getattr(new, field.name)
    ]


def _describe_users(old: list[User], new: list[User]) -> list[str]:
    before = {user.identity: user for user in old}
    after = {user.identity: user for user in new}
    groups = {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in after.keys() & before.keys() if after[n] != before[n]),
    }
    return [f"users {verb}: {', '.join(names)}" for verb, names in groups.items() if names]


def _describe_tls(old: TlsOptions | None, new: TlsOptions | None) -> list[str]:
    """Certificates are read again by each reload, whether a key changed or not."""
    if new is None:
        return ["tls = disabled"] if old is not None else []
    before = old or _NO_TLS
    found = ["tls = enabled"]
    if before.timeout_s != new.timeout_s:
        found.append(f"tls timeout = {new.timeout_s:g}")
    if before.is_first != new.is_first:
        found.append(f"Client TLS handshake first: {'true' if new.is_first else 'false'}")
    if before.first_delay_ns != new.first_delay_ns:
        delay = format_duration(new.first_delay_ns)
        found.append(f"Client TLS handshake first fallback delay: {delay}")
    if before.pinned_certs != new.pinned_certs:
        found.append(f"{len(new.pinned_certs)} pinned_certs")
    return found


def _verb(before: object, after: object) -> str:
    if not before:
        return "set"
    return "changed" if after else "removed"


def _key(attribute: str) -> str:
    if attribute in _KEYS:
        return _KEYS[attribute]
    return _plain(attribute)


def _plain(attribute: str) -> str:
    return attribute.removeprefix("is_").removeprefix("has_").removesuffix("_ns")


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and key.endswith(("interval", "deadline", "duration", "period")):
        return format_duration(value)
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
